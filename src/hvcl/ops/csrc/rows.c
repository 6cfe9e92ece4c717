/* Rows of a table through two feature maps, the models on them, and the weights of a filter over these models; see hvcl.estimators: scales, plain,
 * concepts, single. Rows are taken one after another: what a row gives does not depend on those beside it. */
#include "hvcl.h"

#define MANTISSA 0x7fffffffffffffffu  /* all but the sign: -ffast-math knows no NaN, so that their bits are compared */
#define INFINITE 0x7ff0000000000000u

static inline uint64_t size_bits(double value)
{
    union { double f; uint64_t u; } bits = { .f = value };
    return bits.u & MANTISSA;
}

/* Row i from its numbers and the places of its categories; returns the first number that is infinite, or -1 */
static int64_t encode(const Rows *rows, int64_t i, float *restrict x)
{
    const int64_t numbers = rows->numbers, indicators = rows->indicators;
    const double *values = rows->values + i * numbers;
    int64_t missing = 0;
    memset(x + numbers, 0, (size_t)(rows->inputs - numbers) * sizeof *x);
    for (int64_t j = 0; j < numbers; j++) {
        const uint64_t bits = size_bits(values[j]);
        if (bits == INFINITE) return j;
        if (bits > INFINITE) {
            x[j] = 0.0f;
            if (indicators == numbers) x[numbers + j] = 1.0f;
            missing++;
            continue;
        }
        const double z = (values[j] - rows->centre[j]) / rows->spread[j];
        x[j] = (float)(z < -rows->clip ? -rows->clip : z > rows->clip ? rows->clip : z);
    }
    if (indicators == 1 && numbers > 1) x[numbers] = (float)((double) missing / (double) numbers);
    for (int64_t k = 0; k < rows->categories; k++) {
        const int64_t place = rows->places[i * rows->categories + k];
        if (place >= 0 && place < rows->slots) x[numbers + indicators + k * rows->slots + place] = 1.0f;
    }
    return -1;
}

/* (cos(x w + b) - shift) scale; zeros, of which encoded categories have many, are skipped */
static void own_features(const Rows *rows, const float *restrict x, float *restrict own)
{
    const int64_t width = rows->width;
    const float *restrict shift = rows->own_shift, *restrict scale = rows->own_scale;
    memcpy(own, rows->own_offset, (size_t) width * sizeof *own);
    for (int64_t j = 0; j < rows->inputs; j++) {
        const float *restrict w = rows->own_weights + j * width, value = x[j];
        if (value != 0.0f) for (int64_t k = 0; k < width; k++) own[k] += value * w[k];
    }
    for (int64_t k = 0; k < width; k++) own[k] = (cosf(own[k]) - shift[k]) * scale[k];
}

static void plain_features(const Rows *rows, const float *restrict x, double *restrict phi)
{
    const int64_t cosines = rows->cosines, rules = rows->rules, second = rows->second, third = rows->third;
    const int64_t count = cosines + rules + second + third, linear = rows->linear;
    double *restrict p = rows->room;
    memcpy(p, rows->phase, (size_t) count * sizeof *p);
    for (int64_t j = 0; j < rows->inputs; j++) {
        const double *restrict w = rows->weights + j * count, value = x[j];
        if (value != 0.0) for (int64_t k = 0; k < count; k++) p[k] += value * w[k];
    }
    phi[0] = 1.0;
    for (int64_t j = 0; j < linear; j++) phi[1 + j] = j < rows->numbers ? tanh((double) x[j] / 3.0) : (double) x[j];
    for (int64_t k = 0; k < cosines; k++) phi[1 + linear + k] = cos(p[k]);
    double *restrict e = p + cosines, *restrict rule = phi + 1 + linear + cosines;
    for (int64_t k = 0; k < rules + second + third; k++) e[k] = 1.0 + exp(e[k]);
    for (int64_t k = 0; k < second; k++) e[k] *= e[rules + k];
    for (int64_t k = 0; k < third; k++) e[k] *= e[rules + second + k];
    for (int64_t k = 0; k < rules; k++) rule[k] = 1.0 / e[k];
    for (int64_t k = 0; k < rows->features; k++) phi[k] = phi[k] * rows->scale[k] + rows->shift[k];
}

/* What the model of everything says, from scores that are linear in its features: themselves, or probabilities of classes by Student's t */
static void read_everything(const Rows *rows, const float *restrict own, double *restrict out)
{
    const int64_t scores = rows->scores, known = rows->known, width = rows->width;
    double *restrict score = rows->room, *restrict p = score + scores;
    for (int64_t c = 0; c < rows->outputs; c++) out[c] = rows->unknown;
    for (int64_t s = 0; s < scores; s++) {
        const double *restrict read = rows->read + s * width;
        double sum = 0.0;
        for (int64_t k = 0; k < width; k++) sum += read[k] * (double) own[k];
        score[s] = rows->at_zero[s] + sum;
    }
    if (!known) {
        for (int64_t s = 0; s < scores; s++) out[s] = score[s];
        return;
    }
    double most = -1e300, total = 0.0;
    for (int64_t c = 0; c < known; c++) {
        double distance = 0.0;
        for (int64_t s = 0; s < scores; s++) {
            const double away = score[s] - rows->means[c * scores + s];
            distance += away * away;
        }
        p[c] = rows->prior[c] - rows->power * log(1.0 + distance / rows->freedom);
        most = p[c] > most ? p[c] : most;
    }
    for (int64_t c = 0; c < known; c++) { p[c] = exp(p[c] - most); total += p[c]; }
    for (int64_t c = 0; c < known; c++) out[rows->units[c]] = p[c] / total;
}

static inline void bounded(int64_t n, double least, double *restrict p)
{
    double total = 0.0;
    for (int64_t c = 0; c < n; c++) {
        p[c] = p[c] < least ? least : p[c] > 1.0 ? 1.0 : p[c];
        total += p[c];
    }
    for (int64_t c = 0; c < n; c++) p[c] /= total;
}

/* Probabilities of the members [members, n] to the power of each member, normalised and bounded */
static void sharpen(int64_t members, int64_t n, double least, const double *restrict answers, const double *restrict powers, double *restrict out)
{
    for (int64_t i = 0; i < members * n; i++) out[i] = log(answers[i]);
    for (int64_t m = 0; m < members; m++)
        for (int64_t c = 0; c < n; c++) out[m * n + c] *= powers[m];
    for (int64_t i = 0; i < members * n; i++) out[i] = exp(out[i]);
    for (int64_t m = 0; m < members; m++) {
        double total = 0.0;
        for (int64_t c = 0; c < n; c++) total += out[m * n + c];
        for (int64_t c = 0; c < n; c++) out[m * n + c] /= total;
        bounded(n, least, out + m * n);
    }
}

static void member_answers(const Rows *rows, const double *restrict phi, const double *restrict everything, double *restrict answers)
{
    const int64_t n = rows->outputs, others = (rows->members - 1) * n;
    double *restrict found = answers + n;
    memcpy(answers, everything, (size_t) n * sizeof *answers);
    memset(found, 0, (size_t) others * sizeof *found);
    for (int64_t d = 0; d < rows->features; d++) {
        const double *restrict w = rows->coefficients + d * others, value = phi[d];
        for (int64_t k = 0; k < others; k++) found[k] += value * w[k];
    }
    if (rows->classes) for (int64_t m = 0; m < rows->members; m++) bounded(n, rows->least, answers + m * n);
}

static double novelty_of(const Rows *rows, const float *restrict x)
{
    const int64_t size = rows->directions;
    double *restrict z = rows->room, least = 1e300;
    memset(z, 0, (size_t) size * sizeof *z);
    for (int64_t j = 0; j < rows->inputs; j++) {
        const double *restrict w = rows->white + j * size, value = x[j];
        if (value != 0.0) for (int64_t k = 0; k < size; k++) z[k] += value * w[k];
    }
    for (int64_t c = 0; c < rows->centres; c++) {
        double distance = 0.0;
        for (int64_t k = 0; k < size; k++) {
            const double away = z[k] - rows->white_means[c * size + k];
            distance += away * away;
        }
        least = distance < least ? distance : least;
    }
    return rows->centres ? least / (double) size : 0.0;
}

/* Rows `first` to `first + count` - 1: encoded if there are values, their features in both maps, and answers if there are coefficients.
 * Returns the column of the first number that is infinite, or -1; then nothing of that row and those after it is written but x. */
int64_t rows_answer(const Rows *rows, int64_t first, int64_t count)
{
    const int64_t n = rows->outputs, all = rows->members * n;
    for (int64_t i = first; i < first + count; i++) {
        float *x = rows->x + i * rows->inputs, *own = rows->own + i * rows->width;
        double *phi = rows->phi + i * rows->features;
        const int64_t bad = rows->values ? encode(rows, i, x) : -1;
        if (bad >= 0) return bad;
        own_features(rows, x, own);
        plain_features(rows, x, phi);
        if (!rows->coefficients) continue;
        read_everything(rows, own, rows->everything + i * n);
        member_answers(rows, phi, rows->everything + i * n, rows->answers + i * all);
        if (rows->sharpened) {
            if (rows->classes) sharpen(rows->members, n, rows->least, rows->answers + i * all, rows->powers, rows->sharpened + i * all);
            else memcpy(rows->sharpened + i * all, rows->answers + i * all, (size_t) all * sizeof(double));
        }
        if (rows->white) rows->novelty[i] = novelty_of(rows, x);
    }
    return -1;
}

/* Answers of the model of everything to rows whose features are given */
void rows_read(const Rows *rows, int64_t count)
{
    for (int64_t i = 0; i < count; i++) read_everything(rows, rows->own + i * rows->width, rows->everything + i * rows->outputs);
}

/* Answers of all members to rows whose features and answers of the model of everything are given */
void rows_members(const Rows *rows, int64_t count)
{
    const int64_t n = rows->outputs;
    for (int64_t i = 0; i < count; i++)
        member_answers(rows, rows->phi + i * rows->features, rows->everything + i * n, rows->answers + i * rows->members * n);
}

/* The members' answers to row i, as far as each is believed: out [outputs] */
void rows_mix(const Rows *rows, int64_t i, double *restrict out)
{
    const int64_t K = rows->members, n = rows->outputs;
    const double *restrict p = rows->sharpened + i * K * n;
    for (int64_t c = 0; c < n; c++) out[c] = 0.0;
    for (int64_t m = 0; m < K; m++) {
        double believed = 0.0;
        for (int64_t r = 0; r < rows->rates; r++) believed += rows->shares[r] * rows->weights_of[r * K + m];
        for (int64_t c = 0; c < n; c++) out[c] += believed * p[m * n + c];
    }
}

/* One step of the filter's weights [rates, members] and of the shares of its rates; likelihoods are `apart` numbers apart, up to a factor.
 * The probabilities of a switch are `rate`; those of one between rates `slow`. A switch leads, in the share `known` of all cases, to a member
 * by its `usual` weight, which follows the weights at `pace`, else to any. */
static void believe(int64_t rates, int64_t members, const double *restrict rate, double slow, double known, double pace, const double *restrict likely, int64_t apart, double *restrict weights, double *restrict usual, double *restrict shares)
{
    double whole = 0.0;
    for (int64_t r = 0; r < rates; r++) {
        double *restrict w = weights + r * members, *restrict u = usual + r * members, total = 0.0;
        for (int64_t m = 0; m < members; m++) { w[m] *= likely[m * apart]; total += w[m]; }
        const double once = 1.0 / total, stays = 1.0 - rate[r], goes = rate[r] * known, share = rate[r] * (1.0 - known) / (double) members;
        for (int64_t m = 0; m < members; m++) {
            const double now = w[m] * once;
            u[m] += pace * (now - u[m]);
            w[m] = now * stays + u[m] * goes + share;
        }
        shares[r] *= total;
        whole += shares[r];
    }
    for (int64_t r = 0; r < rates; r++) shares[r] = (1.0 - slow) * shares[r] / whole + slow / (double) rates;
}

/* The label of row i is known now */
void rows_believe(const Rows *rows, int64_t i, int64_t unit)
{
    const double *likely = rows->sharpened + i * rows->members * rows->outputs + unit;
    believe(rows->rates, rows->members, rows->rate, rows->slow, rows->known_share, rows->pace, likely, rows->outputs, rows->weights_of, rows->usual, rows->shares);
}

/* Steps for many rows, with their likelihoods [count, members] */
void rows_believe_all(int64_t count, int64_t rates, int64_t members, const double *rate, double slow, double known, double pace, const double *likely, double *weights, double *usual, double *shares)
{
    for (int64_t i = 0; i < count; i++) believe(rates, members, rate, slow, known, pace, likely + i * members, 1, weights, usual, shares);
}

/* Sharpened answers [count, members, outputs] of many rows */
void rows_sharpen(int64_t count, int64_t members, int64_t outputs, double least, const double *answers, const double *powers, double *out)
{
    for (int64_t i = 0; i < count; i++) sharpen(members, outputs, least, answers + i * members * outputs, powers, out + i * members * outputs);
}
