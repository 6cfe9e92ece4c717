/* The gate: probabilities, choice, sorted order and statistics of a batch in one pass each way. */
#include "hvcl.h"

#define GATE_ROWS LANES  /* that are looked at together, side by side in memory */
#define FEW 8  /* columns that make one vector */
#define WIDEST 4096  /* inputs of a gate that are packed on the stack */

typedef float Eight __attribute__((vector_size(4 * FEW)));

/* sums[rows] = x[rows, n] w, w of eight columns: every number of w that is read serves eight rows */
ONE_COPY void eight_columns(int64_t rows, int64_t n, const float *restrict x, const Eight *restrict w, Eight *restrict sums)
{
    int64_t i = 0;
    for (; i + 8 <= rows; i += 8) {
        const float *restrict r = x + i * n, *restrict s = r + 4 * n;
        Eight a = { 0 }, b = { 0 }, c = { 0 }, d = { 0 }, e = { 0 }, f = { 0 }, g = { 0 }, h = { 0 };
        for (int64_t k = 0; k < n; k++) {
            const Eight v = w[k];
            a += r[k] * v; b += r[n + k] * v; c += r[2 * n + k] * v; d += r[3 * n + k] * v;
            e += s[k] * v; f += s[n + k] * v; g += s[2 * n + k] * v; h += s[3 * n + k] * v;
        }
        sums[i] = a; sums[i + 1] = b; sums[i + 2] = c; sums[i + 3] = d;
        sums[i + 4] = e; sums[i + 5] = f; sums[i + 6] = g; sums[i + 7] = h;
    }
    for (; i < rows; i++) {
        Eight a = { 0 };
        for (int64_t k = 0; k < n; k++) a += x[i * n + k] * w[k];
        sums[i] = a;
    }
}

/* Logits of the gate and of its prior (or without one: NULL), [rows, M] each: x w^T + bias. Matrix products of a few columns are slow in the
 * libraries made for large ones: here gate and prior share every number of x that is read, and go through the same instructions. */
ONE_COPY void two_gates(
    int64_t rows, int64_t n, int64_t M, const float *x, const float *w, const float *bias, const float *prior_w, const float *prior_bias,
    float *out, float *prior_out)
{
    if (M > 12 || n > WIDEST) {
        for (int64_t i = 0; i < rows * M; i++) out[i] = bias[i % M];
        product(rows, M, n, x, 0, w, 1, 1.0f, out);
        if (!prior_w) return;
        for (int64_t i = 0; i < rows * M; i++) prior_out[i] = prior_bias[i % M];
        product(rows, M, n, x, 0, prior_w, 1, 1.0f, prior_out);
        return;
    }
    Eight columns[WIDEST], sums[GATE_ROWS];
    const int64_t all = prior_w ? 2 * M : M;
    for (int64_t first = 0; first < all; first += FEW) {  /* of all columns, those of the gate and then those of its prior */
        const int64_t some = all - first < FEW ? all - first : FEW;
        float *packed = (float *) columns, more[FEW], *to[FEW];
        for (int64_t j = 0; j < FEW; j++) {
            const int64_t m = first + j < M ? first + j : first + j - M;
            const float *from = j >= some ? NULL : (first + j < M ? w : prior_w) + m * n;
            for (int64_t k = 0; k < n; k++) packed[k * FEW + j] = from ? from[k] : 0.0f;
            more[j] = j >= some ? 0.0f : (first + j < M ? bias : prior_bias)[m];
            to[j] = (first + j < M ? out : prior_out) + m;
        }
        for (int64_t start = 0; start < rows; start += GATE_ROWS) {
            const int64_t count = rows - start < GATE_ROWS ? rows - start : GATE_ROWS;
            const float *found = (const float *) sums;
            eight_columns(count, n, x + start * n, columns, sums);
            for (int64_t j = 0; j < some; j++)
                for (int64_t i = 0; i < count; i++) to[j][(start + i) * M] = found[i * FEW + j] + more[j];
        }
    }
}

/* [count, M] to [M, GATE_ROWS] or, if `back`, the other way; rows that are not there are zero */
static inline void turn_rows(int64_t count, int64_t M, int back, float *restrict rows, float (*restrict turned)[GATE_ROWS])
{
    for (int64_t m = 0; m < M; m++) {
        if (back)
            for (int64_t i = 0; i < count; i++) rows[i * M + m] = turned[m][i];
        else {
            for (int64_t i = 0; i < count; i++) turned[m][i] = rows[i * M + m];
            for (int64_t i = count; i < GATE_ROWS; i++) turned[m][i] = 0.0f;
        }
    }
}

ONE_COPY void log_softmax(int64_t M, float (*v)[GATE_ROWS])
{
    float top[GATE_ROWS], sum[GATE_ROWS];
    for (int i = 0; i < GATE_ROWS; i++) { top[i] = v[0][i]; sum[i] = 0.0f; }
    for (int64_t m = 1; m < M; m++)
        for (int i = 0; i < GATE_ROWS; i++) top[i] = v[m][i] > top[i] ? v[m][i] : top[i];
    for (int64_t m = 0; m < M; m++)
        for (int i = 0; i < GATE_ROWS; i++) sum[i] += exponential(v[m][i] - top[i]);
    for (int i = 0; i < GATE_ROWS; i++) top[i] += logarithm(sum[i]);
    for (int64_t m = 0; m < M; m++)
        for (int i = 0; i < GATE_ROWS; i++) v[m][i] -= top[i];
}

/* The k best of every row by `scores`, which are spoiled: best[j][i] is the j-th choice of row i */
static void choose(int64_t M, int64_t k, float (*restrict scores)[GATE_ROWS], int32_t (*restrict best)[GATE_ROWS])
{
    float top[GATE_ROWS];
    for (int64_t j = 0; j < k; j++) {
        for (int i = 0; i < GATE_ROWS; i++) { top[i] = scores[0][i]; best[j][i] = 0; }
        for (int64_t m = 1; m < M; m++)
            for (int i = 0; i < GATE_ROWS; i++) {
                best[j][i] = scores[m][i] > top[i] ? (int32_t) m : best[j][i];
                top[i] = scores[m][i] > top[i] ? scores[m][i] : top[i];
            }
        if (j + 1 < k)
            for (int i = 0; i < GATE_ROWS; i++) scores[best[j][i]][i] = -3e38f;
    }
}

/* x[rows, n] through the gate (w, bias) and its prior. Out: log p and log p - log prior [rows, M]; the k most probable experts of every row, or
 * (sampled) the first k in a race at rates p (`choice` [rows, k]); slots sorted by expert and then by row (rows_of: slot to row, slot_of
 * [rows, k]: choice to slot, counts per expert) with their weights: p or (through) 1 for k = 1, else p renormalised over the chosen; the mean
 * mass on each expert (usage); statistics: mean KL[p || prior], H(M|X), H(M). Without a prior (prior_w NULL) there are no ratio, usage and
 * statistics. */
void gate_forward(
    int64_t rows, int64_t n, int64_t M, int64_t k, int64_t sampled, int64_t through, uint64_t seed, const float *x, const float *w, const float *bias,
    const float *prior_w, const float *prior_bias, float *restrict log_p, float *restrict ratio,
    int64_t *restrict rows_of, int64_t *restrict slot_of, int64_t *restrict counts, int64_t *restrict choice,
    float *restrict weights, float *restrict usage, float *restrict statistics)
{
    double kl = 0.0, conditional = 0.0, marginal = 0.0, mass[MOST_EXPERTS];
    float l[MOST_EXPERTS][GATE_ROWS], r[MOST_EXPERTS][GATE_ROWS];
    Lanes lanes;
    if (sampled) seed_lanes(&lanes, seed);
    two_gates(rows, n, M, x, w, bias, prior_w, prior_bias, log_p, ratio);
    for (int64_t m = 0; m < M; m++) { mass[m] = 0.0; counts[m] = 0; }
    for (int64_t start = 0; start < rows; start += GATE_ROWS) {
        const int64_t count = rows - start < GATE_ROWS ? rows - start : GATE_ROWS;
        int32_t best[MOST_EXPERTS][GATE_ROWS];
        turn_rows(count, M, 0, log_p + start * M, l);
        log_softmax(M, l);
        turn_rows(count, M, 1, log_p + start * M, l);
        if (k == M && !sampled && k > 1) {
            for (int64_t j = 0; j < k; j++)
                for (int i = 0; i < GATE_ROWS; i++) best[j][i] = (int32_t) j;
        } else if (sampled || k > 1) {
            memcpy(r, l, M * sizeof *l);
            for (int64_t m = 0; sampled && m < M; m++) {
                float wait[GATE_ROWS];
                next_exponentials(&lanes, wait);
                for (int i = 0; i < GATE_ROWS; i++) r[m][i] -= logarithm(wait[i]);
            }
            choose(M, k, r, best);
        } else
            choose(M, 1, l, best);
        for (int64_t i = 0; i < count; i++)
            for (int64_t j = 0; j < k; j++) { choice[(start + i) * k + j] = best[j][i]; counts[best[j][i]]++; }
        if (!prior_w) continue;
        turn_rows(count, M, 0, ratio + start * M, r);
        log_softmax(M, r);
        for (int64_t m = 0; m < M; m++) {
            float of_mass = 0.0f, of_kl = 0.0f, of_entropy = 0.0f;
            for (int i = 0; i < GATE_ROWS; i++) {
                const float p = i < count ? exponential(l[m][i]) : 0.0f;
                r[m][i] = l[m][i] - r[m][i];
                of_mass += p; of_kl += p * r[m][i]; of_entropy -= p * l[m][i];
            }
            mass[m] += of_mass; kl += of_kl; conditional += of_entropy;
        }
        turn_rows(count, M, 1, ratio + start * M, r);
    }
    int64_t next[MOST_EXPERTS], first = 0;
    for (int64_t m = 0; m < M; m++) { next[m] = first; first += counts[m]; }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < k; j++) {
            const int64_t m = choice[i * k + j], slot = next[m]++;
            rows_of[slot] = i; slot_of[i * k + j] = slot;
            weights[slot] = log_p[i * M + m];
        }
    if (k > 1) {
        for (int64_t i = 0; i < rows; i++) {
            const int64_t *restrict slots = slot_of + i * k;
            float top = weights[slots[0]], sum = 0.0f;
            for (int64_t j = 1; j < k; j++) top = weights[slots[j]] > top ? weights[slots[j]] : top;
            for (int64_t j = 0; j < k; j++) sum += weights[slots[j]] = exponential(weights[slots[j]] - top);
            for (int64_t j = 0; j < k; j++) weights[slots[j]] /= sum;
        }
    } else
        for (int64_t s = 0; s < rows; s++) weights[s] = through ? 1.0f : exponential(weights[s]);
    if (!prior_w) return;
    for (int64_t m = 0; m < M; m++) {
        const double u = mass[m] / rows;
        usage[m] = (float) u;
        if (u > 0) marginal -= u * log(u);
    }
    statistics[0] = (float)(kl / rows); statistics[1] = (float)(conditional / rows); statistics[2] = (float) marginal;
}

/* With `kl` (or NULL) there is a fourth statistic, sum_m usage[m] kl[m].
 * Gradients of the gate's weights and bias (if g_w is not NULL), and of x if g_x is not NULL (which they are added to), from those of weights,
 * usage and statistics; without a prior (prior_w NULL) from those of weights alone. `room` holds 2 rows * M numbers: the gradients of the gate's
 * logits and of its prior's. */
void gate_backward(
    int64_t rows, int64_t n, int64_t M, int64_t k, int64_t through, const float *x, const float *w, const float *prior_w,
    const float *restrict log_p, const float *restrict ratio, const int64_t *restrict slot_of, const int64_t *restrict choice,
    const float *restrict weights, const float *restrict usage, const float *restrict g_weights, const float *restrict g_usage,
    const float *restrict g_statistics, const float *restrict kl, float *restrict room, float *g_w, float *restrict g_bias, float *g_x)
{
    const float scale = 1.0f / rows;
    const float g_kl = prior_w ? g_statistics[0] * scale : 0.0f, g_conditional = prior_w ? g_statistics[1] * scale : 0.0f;
    float g_mass[MOST_EXPERTS], of_bias[MOST_EXPERTS], l[MOST_EXPERTS][GATE_ROWS], r[MOST_EXPERTS][GATE_ROWS];
    float p[MOST_EXPERTS][GATE_ROWS], g[MOST_EXPERTS][GATE_ROWS];
    for (int64_t m = 0; m < M; m++) {
        g_mass[m] = prior_w ? (g_usage ? g_usage[m] : 0.0f) - (usage[m] > 0.0f ? g_statistics[2] * (logf(usage[m]) + 1.0f) : 0.0f) : 0.0f;
        if (kl) g_mass[m] += g_statistics[3] * kl[m];
        g_mass[m] *= scale;
        of_bias[m] = 0.0f;
    }
    if (!prior_w) memset(r, 0, M * sizeof *r);
    for (int64_t start = 0; start < rows; start += GATE_ROWS) {
        const int64_t count = rows - start < GATE_ROWS ? rows - start : GATE_ROWS;
        float mean[GATE_ROWS] = { 0 }, chosen[GATE_ROWS] = { 0 };
        turn_rows(count, M, 0, (float *) log_p + start * M, l);
        if (prior_w) turn_rows(count, M, 0, (float *) ratio + start * M, r);
        for (int64_t m = 0; m < M; m++)
            for (int i = 0; i < GATE_ROWS; i++) {
                p[m][i] = exponential(l[m][i]);
                /* d / dp of everything but the chosen weights; a softmax subtracts its mean */
                g[m][i] = g_mass[m] + g_kl * r[m][i] - g_conditional * l[m][i];
                mean[i] += p[m][i] * g[m][i];
            }
        if (k == 1)  /* d / d log p of the chosen expert */
            for (int64_t i = 0; i < count; i++) {
                const float of = g_weights[slot_of[start + i]];
                chosen[i] = through ? of : of * p[choice[start + i]][i];
            }
        for (int64_t m = 0; m < M; m++)
            for (int i = 0; i < GATE_ROWS; i++) g[m][i] = p[m][i] * (g[m][i] - mean[i] - chosen[i]);
        for (int64_t i = 0; i < count; i++) {
            const int64_t *restrict which = choice + (start + i) * k, *restrict slots = slot_of + (start + i) * k;
            if (k == 1) {
                g[which[0]][i] += chosen[i];
                continue;
            }
            float along = 0.0f;  /* renormalised weights: a softmax over the chosen, whose gradients sum to zero */
            for (int64_t j = 0; j < k; j++) along += weights[slots[j]] * g_weights[slots[j]];
            for (int64_t j = 0; j < k; j++) g[which[j]][i] += weights[slots[j]] * (g_weights[slots[j]] - along);
        }
        for (int64_t m = 0; m < M; m++) {
            float sum = 0.0f;
            for (int i = 0; i < GATE_ROWS; i++) {  /* a sure gate's gradients are denormal, with which a processor calculates a hundred times slower */
                g[m][i] = fabsf(g[m][i]) < 1e-30f ? 0.0f : g[m][i];
                sum += i < count ? g[m][i] : 0.0f;
                const float of_prior = g_kl * (exponential(l[m][i] - r[m][i]) - p[m][i]);
                r[m][i] = fabsf(of_prior) < 1e-30f ? 0.0f : of_prior;
            }
            of_bias[m] += sum;
        }
        turn_rows(count, M, 1, room + start * M, g);
        if (prior_w) turn_rows(count, M, 1, room + (rows + start) * M, r);
        else memset(r, 0, M * sizeof *r);
    }
    if (g_w) {
        memcpy(g_bias, of_bias, M * sizeof(float));
        product(M, n, rows, room, 1, x, 0, 0.0f, g_w);
    }
    if (g_x) {
        product(rows, n, M, room, 0, w, 0, 1.0f, g_x);
        if (prior_w && g_kl != 0.0f) product(rows, n, M, room + rows * M, 0, prior_w, 0, 1.0f, g_x);
    }
}
