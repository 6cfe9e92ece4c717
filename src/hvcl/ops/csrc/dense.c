/* Dense layers of mixtures, with leaky ReLU between several of them, in one call each way: gate, sorting, the experts' products, noise, mixing.
 *
 * Rows that belong to an expert are side by side: a slot is a row with one of its chosen experts. With x a slot's input, m its expert, E one
 * standard normal draw for all experts, s and r random signs and e standard normals of the slot's own, its answer before mixing is
 *
 *     x mu + b + ...    flipout, sigma per weight   ((x s) (sigma E)) r
 *                       flipout, sigma per unit     sigma z,  z = ((x s) E) r
 *                       local, sigma per weight     sqrt(x^2 sigma^2) e;  z = e / (2 sqrt(...)) is kept
 *                       local, sigma per unit       sigma z,  z = |x| e
 */
#include "hvcl.h"

#define EACH(d, m, a, count) \
    for (int64_t m = 0, a, count; m < d->experts && (a = d->starts[m], count = d->starts[m + 1] - a, 1); m++) if (count)

/* The arrays of one copy */
static Dense of_copy(const Dense *all, int64_t c)
{
    Dense d = *all;
    const int64_t M = d.experts, slots = d.rows * d.top_k, size = d.inputs * d.outputs, of_sigma = PER_WEIGHT(d.noise) ? size : d.outputs;
#define SHIFT(name, by) if (d.name) d.name += c * (by)
    if (!d.shared_x) { SHIFT(x, d.rows * d.inputs); SHIFT(features, d.rows * d.gate_inputs); }
    SHIFT(mean, M * size); SHIFT(log_sigma, M * of_sigma); SHIFT(raw, M * d.outputs); SHIFT(bias, M * d.outputs);
    SHIFT(gate_weight, M * d.gate_inputs); SHIFT(gate_bias, M); SHIFT(prior_weight, M * d.gate_inputs); SHIFT(prior_bias, M);
    SHIFT(out, d.rows * d.outputs); SHIFT(log_p, d.rows * M); SHIFT(ratio, d.rows * M); SHIFT(usage, M); SHIFT(kl, M); SHIFT(prior_log_sigma, M * d.outputs); SHIFT(whole_kl, M); SHIFT(kl_weights, M);
    SHIFT(weights, slots); SHIFT(rows_of, slots); SHIFT(slot_of, slots); SHIFT(choice, slots); SHIFT(counts, M); SHIFT(starts, M + 1);
    SHIFT(moved, 1); SHIFT(sorted, slots * d.inputs); SHIFT(answers, slots * d.outputs); SHIFT(z, slots * d.outputs); SHIFT(norm, slots);
    SHIFT(sigma, M * d.outputs); SHIFT(altered, slots * d.inputs); SHIFT(shared, size);
    if (d.keep_scaled) SHIFT(scaled, M * size);
    SHIFT(g_out, d.rows * d.outputs); SHIFT(g_usage, M); SHIFT(g_answers, slots * d.outputs);
    SHIFT(turned, slots * d.outputs); SHIFT(g_weights, slots); SHIFT(g_bias, M * d.outputs); SHIFT(g_sigma, M * d.outputs);
    SHIFT(g_gate_weight, M * d.gate_inputs); SHIFT(g_gate_bias, M); SHIFT(g_x, d.rows * d.inputs); SHIFT(g_features, d.rows * d.gate_inputs);
    SHIFT(g_sorted, slots * d.inputs);
#undef SHIFT
    if (!d.answers) d.answers = d.out;
    if (!d.g_answers) d.g_answers = (float *) d.g_out;
    d.seed += (uint64_t) c * 0xD1342543DE82EF95u;
    return d;
}

/* Seeds of a call: of weight noise, signs of inputs and of outputs, and routing */
typedef struct { uint64_t noise, in, out, route; } Seeds;

static Seeds seeds_of(const Dense *d)
{
    uint64_t state = d->seed;
    Seeds s;
    s.noise = splitmix(&state); s.in = splitmix(&state); s.out = splitmix(&state); s.route = splitmix(&state);
    return s;
}

/* noise = exp(log_sigma) * shared: an expert's share of a standard normal draw */
ONE_COPY void scale_noise(int64_t n, const float *restrict log_sigma, const float *restrict shared, float *restrict noise)
{
    for (int64_t i = 0; i < n; i++) noise[i] = exponential(log_sigma[i]) * shared[i];
}

ONE_COPY void variances(int64_t n, const float *restrict log_sigma, float *restrict variance)
{
    for (int64_t i = 0; i < n; i++) variance[i] = exponential(2.0f * log_sigma[i]);
}

/* y = sum of each row's answers, weighted; without slot_of every row has one, where it is */
ONE_COPY void mix_forward(
    int64_t rows, int64_t k, int64_t n, const float *restrict y, const float *restrict w, const int64_t *slot_of, float *restrict out)
{
    for (int64_t i = 0; i < rows; i++) {
        float *restrict to = out + i * n;
        for (int64_t j = 0; j < k; j++) {
            const int64_t s = slot_of ? slot_of[i * k + j] : i;
            const float *restrict from = y + s * n, weight = w[s];
            if (j)
                for (int64_t u = 0; u < n; u++) to[u] += weight * from[u];
            else
                for (int64_t u = 0; u < n; u++) to[u] = weight * from[u];
        }
    }
}

/* For every slot s of row r: g_y[s] = w[s] g[r], g_w[s] = g[r] . y[s] */
ONE_COPY void mix_backward(
    int64_t slots, int64_t n, const float *restrict g, const float *restrict y, const float *restrict w, const int64_t *row_of,
    float *restrict g_y, float *restrict g_w)
{
    for (int64_t s = 0; s < slots; s++) {
        const float *restrict from = g + (row_of ? row_of[s] : s) * n, *restrict answer = y + s * n;
        float *restrict to = g_y + s * n;
        const float weight = w[s];
        float dot = 0.0f;
        for (int64_t u = 0; u < n; u++) { to[u] = weight * from[u]; dot += from[u] * answer[u]; }
        g_w[s] = dot;
    }
}

/* Biases, and noise with a sigma per unit, of an expert's slots: answers = sigma z + bias */
ONE_COPY void unit_noise(int64_t slots, int64_t units, const float *restrict sigma, const float *restrict z, const float *restrict bias, float *restrict y)
{
    for (int64_t s = 0; s < slots; s++, z += units, y += units) {
        if (bias)
            for (int64_t k = 0; k < units; k++) y[k] = sigma[k] * z[k] + bias[k];
        else
            for (int64_t k = 0; k < units; k++) y[k] = sigma[k] * z[k];
    }
}

ONE_COPY void fill_bias(int64_t slots, int64_t units, const float *restrict bias, float *restrict y)
{
    for (int64_t s = 0; s < slots; s++) {
        if (bias) memcpy(y + s * units, bias, units * sizeof(float));
        else memset(y + s * units, 0, units * sizeof(float));
    }
}

/* z *= |x| of every slot */
ONE_COPY void multiply_by_norms(int64_t slots, int64_t n, int64_t units, const float *restrict x, float *restrict norm, float *restrict z)
{
    for (int64_t s = 0; s < slots; s++) {
        const float *restrict row = x + s * n;
        float *restrict noise = z + s * units, square = 0.0f;
        for (int64_t k = 0; k < n; k++) square += row[k] * row[k];
        norm[s] = sqrtf(square);
        for (int64_t k = 0; k < units; k++) noise[k] *= norm[s];
    }
}

ONE_COPY void squares(int64_t n, const float *restrict x, float *restrict out)
{
    for (int64_t i = 0; i < n; i++) out[i] = x[i] * x[i];
}

/* y += sqrt(variance + TINY) z, and z becomes z / (2 sqrt(...)) */
ONE_COPY void local_noise(int64_t n, const float *restrict variance, float *restrict z, float *restrict y)
{
    for (int64_t i = 0; i < n; i++) {
        const float spread = sqrtf(variance[i] + TINY);
        y[i] += spread * z[i];
        z[i] *= 0.5f / spread;
    }
}

/* The experts' KLs, weighted. With a sigma per unit, what sigmas add to them: inputs * sum ((sigma / s)^2 - 1) / 2 - log(sigma / s). */
static void expert_terms(const Dense *d)
{
    const int64_t units = d->outputs;
    double total = 0.0;
    for (int64_t m = 0; m < d->experts; m++) {
        double kl = d->kl[m];
        if (d->prior_log_sigma) {
            const float *restrict rho = d->log_sigma + m * units, *restrict prior = d->prior_log_sigma + m * units;
            float spread = 0.0f;
            for (int64_t u = 0; u < units; u++) {
                const float twice = 2.0f * (rho[u] - prior[u]);
                spread += exp_minus_one(twice) - twice;
            }
            kl += 0.5 * (double) d->inputs * spread;
        }
        d->whole_kl[m] = (float) kl;
        total += kl * (d->uniform || !d->gate_weight ? 1.0 : d->usage[m]);
    }
    d->terms[3] += (float) total;
}

/* What an expert's KL adds to the gradients of its log sigmas per unit, and the weights of the KLs for whoever steps the rest */
static void expert_term_gradients(const Dense *d)
{
    const int64_t units = d->outputs;
    for (int64_t m = 0; m < d->experts; m++) {
        const float weight = d->g_terms[3] * (d->uniform || !d->gate_weight ? 1.0f : d->usage[m]);
        d->kl_weights[m] = weight;
        if (!d->prior_log_sigma || !d->g_sigma) continue;
        const float *restrict rho = d->log_sigma + m * units, *restrict prior = d->prior_log_sigma + m * units;
        float *restrict to = d->g_sigma + m * units;
        for (int64_t u = 0; u < units; u++) to[u] += weight * (float) d->inputs * exp_minus_one(2.0f * (rho[u] - prior[u]));
    }
}

static void dense_forward(const Dense *d)
{
    const int64_t rows = d->rows, n = d->inputs, units = d->outputs, M = d->experts, slots = rows * d->top_k;
    const Seeds seeds = seeds_of(d);
    *d->moved = d->top_k > 1;
    d->starts[0] = 0;
    d->starts[1] = rows;
    if (d->gate_weight) {
        float statistics[3];
        gate_forward(rows, d->gate_inputs, M, d->top_k, d->sampled, d->through, seeds.route, d->features ? d->features : d->x, d->gate_weight,
                     d->gate_bias, d->prior_weight, d->prior_bias, d->log_p, d->ratio, d->rows_of, d->slot_of, d->counts, d->choice, d->weights,
                     d->usage, statistics);
        for (int i = 0; d->prior_weight && i < 3; i++) d->terms[i] += statistics[i];
        for (int64_t m = 0; m < M; m++) {
            d->starts[m + 1] = d->starts[m] + d->counts[m];
            *d->moved |= d->counts[m] && d->counts[m] != rows;
        }
    }
    if (d->raw)
        for (int64_t k = 0; k < M * units; k++) ((float *) d->log_sigma)[k] = log_softplus(d->raw[k]);
    if (d->kl) expert_terms(d);
    const float *x = d->x;
    if (*d->moved) {
        for (int64_t s = 0; s < slots; s++) memcpy(d->sorted + s * n, d->x + d->rows_of[s] * n, n * sizeof(float));
        x = d->sorted;
    } else if (d->learns) {  /* whoever the input belongs to may write to it before the step */
        memcpy(d->sorted, d->x, rows * n * sizeof(float));
        x = d->sorted;
    }
    if (FLIPOUT(d->noise)) {
        standard_normals(n * units, seeds.noise, d->shared);
        random_flip(slots * n, seeds.in, 0, x, d->altered);
    } else if (d->noise != NOISE_NONE)
        standard_normals(slots * units, seeds.noise, d->z);
    if (PER_UNIT(d->noise)) {
        for (int64_t k = 0; k < M * units; k++) d->sigma[k] = exponential(d->log_sigma[k]);
        if (FLIPOUT(d->noise)) {
            product(slots, units, n, d->altered, 0, d->shared, 0, 0.0f, d->room);
            random_flip(slots * units, seeds.out, 0, d->room, d->z);
        } else
            multiply_by_norms(slots, n, units, x, d->norm, d->z);
        EACH(d, m, a, count)
            unit_noise(count, units, d->sigma + m * units, d->z + a * units, d->bias ? d->bias + m * units : NULL, d->answers + a * units);
    } else {
        if (d->noise == NOISE_LOCAL_WEIGHT) squares(slots * n, x, d->altered);
        EACH(d, m, a, count) {
            fill_bias(count, units, d->bias ? d->bias + m * units : NULL, d->answers + a * units);
            if (!PER_WEIGHT(d->noise)) continue;
            float *scaled = d->scaled + (d->keep_scaled ? m * n * units : 0);
            if (FLIPOUT(d->noise)) scale_noise(n * units, d->log_sigma + m * n * units, d->shared, scaled);
            else variances(n * units, d->log_sigma + m * n * units, scaled);
            product(count, units, n, d->altered + a * n, 0, scaled, 0, 0.0f, d->room + a * units);
        }
        if (d->noise == NOISE_FLIPOUT_WEIGHT) random_flip(slots * units, seeds.out, 1, d->room, d->answers);
        else if (d->noise == NOISE_LOCAL_WEIGHT) local_noise(slots * units, d->room, d->z, d->answers);
    }
    EACH(d, m, a, count) product(count, units, n, x + a * n, 0, d->mean + m * n * units, 0, 1.0f, d->answers + a * units);
    if (d->gate_weight) mix_forward(rows, d->top_k, units, d->answers, d->weights, *d->moved ? d->slot_of : NULL, d->out);
}

/* Gradients of biases and of sigmas per unit from those of the answers */
static void unit_gradients(const Dense *d)
{
    const int64_t units = d->outputs, unit = PER_UNIT(d->noise), along = d->noise == NOISE_LOCAL_UNIT;
    if (d->g_bias) memset(d->g_bias, 0, d->experts * units * sizeof(float));
    if (d->g_sigma) memset(d->g_sigma, 0, d->experts * units * sizeof(float));
    if (!d->g_bias && !unit) return;
    EACH(d, m, a, count)
        for (int64_t s = a; s < a + count; s++) {
            const float *restrict g = d->g_answers + s * units, *restrict z = d->z + s * units, *restrict sigma = d->sigma + m * units;
            if (d->g_bias) {
                float *restrict of_bias = d->g_bias + m * units;
                for (int64_t k = 0; k < units; k++) of_bias[k] += g[k];
            }
            if (!unit) continue;
            float sum = 0.0f;
            if (d->g_sigma) {
                float *restrict of_sigma = d->g_sigma + m * units;
                for (int64_t k = 0; k < units; k++) {
                    const float t = g[k] * z[k] * sigma[k];
                    of_sigma[k] += t;
                    sum += t;
                }
            } else if (along)
                for (int64_t k = 0; k < units; k++) sum += g[k] * z[k] * sigma[k];
            if (along) {  /* d(|x| sigma e) / dx = x / |x| * sigma e, and z holds |x| e; an all-zero input has no noise to follow */
                const float square = d->norm[s] * d->norm[s];
                d->room[s] = sum / (square > TINY ? square : TINY);
            }
        }
}

/* The noise's right factor, from which its gradients follow */
static void turn_gradients(const Dense *d, uint64_t seed)
{
    const int64_t units = d->outputs, slots = d->rows * d->top_k;
    const float *restrict g = d->g_answers, *restrict z = d->z;
    float *restrict turned = d->turned;
    if (d->noise == NOISE_FLIPOUT_WEIGHT)
        random_flip(slots * units, seed, 0, g, turned);
    else if (d->noise == NOISE_LOCAL_WEIGHT)
        for (int64_t i = 0; i < slots * units; i++) turned[i] = g[i] * z[i];
    else if (d->noise == NOISE_FLIPOUT_UNIT && d->g_x) {
        float *restrict scaled = d->room;
        EACH(d, m, a, count)
            for (int64_t s = a; s < a + count; s++)
                for (int64_t k = 0; k < units; k++) scaled[s * units + k] = g[s * units + k] * d->sigma[m * units + k];
        random_flip(slots * units, seed, 0, scaled, turned);
    }
}

ONE_COPY void add_twice_times(int64_t n, const float *restrict x, const float *restrict by, float *restrict to)
{
    for (int64_t i = 0; i < n; i++) to[i] += 2.0f * x[i] * by[i];
}

static void input_gradients(const Dense *d, const float *x, uint64_t seed)
{
    const int64_t n = d->inputs, units = d->outputs, slots = d->rows * d->top_k;
    float *to = *d->moved ? d->g_sorted : d->g_x;
    if (d->noise == NOISE_LOCAL_UNIT) {  /* first: `room` holds what unit_gradients left there */
        for (int64_t s = 0; s < slots; s++) {
            const float along = d->room[s], *restrict from = x + s * n;
            float *restrict row = to + s * n;
            for (int64_t k = 0; k < n; k++) row[k] = along * from[k];
        }
    }
    const float beta = d->noise == NOISE_LOCAL_UNIT ? 1.0f : 0.0f;
    EACH(d, m, a, count)
        product(count, n, units, d->g_answers + a * units, 0, d->mean + m * n * units, 1, beta, to + a * n);
    if (PER_WEIGHT(d->noise)) {
        EACH(d, m, a, count)
            product(count, n, units, d->turned + a * units, 0, d->scaled + m * n * units, 1, 0.0f, d->room + a * n);
    } else if (d->noise == NOISE_FLIPOUT_UNIT)
        product(slots, n, units, d->turned, 0, d->shared, 1, 0.0f, d->room);
    if (FLIPOUT(d->noise)) random_flip(slots * n, seed, 1, d->room, to);
    else if (d->noise == NOISE_LOCAL_WEIGHT) add_twice_times(slots * n, x, d->room, to);
    if (!*d->moved) return;
    if (d->top_k > 1) memset(d->g_x, 0, d->rows * n * sizeof(float));
    for (int64_t s = 0; s < slots; s++) {
        float *restrict row = d->g_x + d->rows_of[s] * n;
        const float *restrict from = to + s * n;
        if (d->top_k == 1) memcpy(row, from, n * sizeof(float));
        else for (int64_t k = 0; k < n; k++) row[k] += from[k];
    }
}

static void dense_backward(const Dense *d)
{
    const Seeds seeds = seeds_of(d);
    const float *x = *d->moved || d->learns ? d->sorted : d->x;
    if (d->gate_weight)
        mix_backward(d->rows * d->top_k, d->outputs, d->g_out, d->answers, d->weights, *d->moved ? d->rows_of : NULL, d->g_answers, d->g_weights);
    else if (d->g_answers != d->g_out)
        memcpy(d->g_answers, d->g_out, d->rows * d->outputs * sizeof(float));
    turn_gradients(d, seeds.out);
    unit_gradients(d);
    if (d->kl) expert_term_gradients(d);
    if (d->raw && d->g_sigma)
        for (int64_t k = 0; k < d->experts * d->outputs; k++) d->g_sigma[k] *= log_softplus_slope(d->log_sigma[k]);
    if (d->g_x) input_gradients(d, x, seeds.in);
    if (!d->gate_weight) return;
    if (d->g_features) memset(d->g_features, 0, d->rows * d->gate_inputs * sizeof(float));
    gate_backward(d->rows, d->gate_inputs, d->experts, d->top_k, d->through, d->features ? d->features : d->x, d->gate_weight, d->prior_weight,
                  d->log_p, d->ratio, d->slot_of, d->choice, d->weights, d->usage, d->g_weights, d->g_usage, d->g_terms,
                  d->kl && !d->uniform ? d->whole_kl : NULL, d->room, d->g_gate_weight, d->g_gate_bias, d->features ? d->g_features : d->g_x);
}

void stack_forward(Stack *stack)
{
    const float slope = (float) stack->slope;
    if (stack->terms) memset(stack->terms, 0, 4 * sizeof(float));
    for (int64_t l = 0; l < stack->layers; l++) {
        Dense *all = stack->calls + l;
        all->terms = stack->terms;
        all->seed = stack->seed + (uint64_t) l * 0x9E3779B97F4A7C15u;
        for (int64_t c = 0; c < all->copies; c++) {
            const Dense d = of_copy(all, c);
            dense_forward(&d);
        }
        float *restrict out = all->out;
        if (l < stack->layers - 1)
            for (int64_t k = 0; k < all->copies * all->rows * all->outputs; k++) out[k] = out[k] > 0.0f ? out[k] : slope * out[k];
    }
    const Dense *last = stack->calls + stack->layers - 1;
    for (int64_t c = 0; stack->side && c < last->copies; c++)
        for (int64_t i = 0; i < last->rows; i++)
            for (int64_t k = 0; k < last->outputs; k++)
                stack->side[(i * last->copies + c) * last->outputs + k] = last->out[(c * last->rows + i) * last->outputs + k];
}

/* values[0] += all the others, [copies, size] */
static void sum_copies(int64_t copies, int64_t size, float *values)
{
    for (int64_t c = 1; c < copies; c++) {
        const float *restrict more = values + c * size;
        float *restrict to = values;
        for (int64_t k = 0; k < size; k++) to[k] += more[k];
    }
}

void stack_backward(Stack *stack)
{
    const float slope = (float) stack->slope;
    const Dense *last = stack->calls + stack->layers - 1;
    for (int64_t c = 0; stack->side && c < last->copies; c++)
        for (int64_t i = 0; i < last->rows; i++)
            for (int64_t k = 0; k < last->outputs; k++)
                ((float *) last->g_out)[(c * last->rows + i) * last->outputs + k] = stack->g_side[(i * last->copies + c) * last->outputs + k];
    for (int64_t l = stack->layers - 1; l >= 0; l--) {
        Dense *all = stack->calls + l;
        all->g_terms = stack->g_terms;
        for (int64_t c = 0; c < all->copies; c++) {
            const Dense d = of_copy(all, c);
            dense_backward(&d);
        }
        if (!all->g_x) continue;
        const int64_t size = all->rows * all->inputs;
        float *restrict g = all->g_x;
        if (l) {
            const float *restrict out = all->x;
            for (int64_t k = 0; k < all->copies * size; k++) g[k] = out[k] > 0.0f ? g[k] : slope * g[k];
        } else if (all->shared_x)
            sum_copies(all->copies, size, all->g_x);
    }
    const Dense *first = stack->calls;
    if (first->shared_x && first->g_features) sum_copies(first->copies, first->rows * first->gate_inputs, first->g_features);
}

/* Gradients of all experts' means and, for a sigma per weight, log sigmas: zero for experts without slots */
void expert_gradients(
    const Products *p, int64_t M, int64_t variance, const float *log_sigma, float *g_mean, float *g_log_sigma)
{
    const int64_t size = p->inputs * p->outputs, each = M / p->copies;
    for (int64_t e = 0; e < M; e++) {
        const int64_t c = e / each, *starts = p->starts + c * (each + 1) + e % each, a = c * p->slots + starts[0], count = starts[1] - starts[0];
        float *restrict of_mean = g_mean + e * size, *restrict of_sigma = g_log_sigma ? g_log_sigma + e * size : NULL;
        if (!count) {
            memset(of_mean, 0, size * sizeof(float));
            if (of_sigma) memset(of_sigma, 0, size * sizeof(float));
            continue;
        }
        product(p->inputs, p->outputs, count, p->left + a * p->inputs, 1, p->right + a * p->outputs, 0, 0.0f, of_mean);
        if (!of_sigma) continue;
        product(p->inputs, p->outputs, count, p->noise_left + a * p->inputs, 1, p->noise_right + a * p->outputs, 0, 0.0f, of_sigma);
        const float *restrict rho = log_sigma + e * size;
        if (variance)
            for (int64_t i = 0; i < size; i++) of_sigma[i] *= 2.0f * exponential(2.0f * rho[i]);
        else {
            const float *restrict shared = p->shared + c * size;
            for (int64_t i = 0; i < size; i++) of_sigma[i] *= shared[i] * exponential(rho[i]);
        }
    }
}
