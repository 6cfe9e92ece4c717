/* The passes over memory that torch has no single operation for: the update of an expert's weights, and random numbers.
 *
 * Plain C without dependencies, compiled at first use. Every function has a counterpart in torch operations that serves where
 * there is no compiler and in the tests.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>

/* Not inlined: inlining forgets `restrict`, and the same numbers must go through the same instructions (where gate and prior are equal, their
 * KL is exactly zero). */
#define ONE_COPY static __attribute__((noinline))

/* -- the update of one expert: KL gradient, Adam, and the KL to the prior after the step, in one pass ---------------------- */

typedef struct {
    double rate;       /* learning rate / (1 - beta1^t) */
    double beta1, beta2;
    double root;       /* 1 / sqrt(1 - beta2^t) */
    double epsilon;
    double kl_weight;  /* d loss / d KL of this expert */
} Adam;

#define BLOCK 512  /* weights at a time: few streams of memory at once, intermediate values in the first-level cache */

/* Weights with a sigma = exp(rho) each. g_noise is d loss / d (sigma * shared) (mode 0, flipout) or d loss / d sigma^2 (mode 1, local
 * reparameterisation). Gradients may be NULL: an expert that saw no example has none. Arrays do not overlap. */
ONE_COPY double variational_expert(
    ptrdiff_t n, const Adam *a, int mode,
    float *restrict mean, const float *restrict g_mean, float *restrict m1, float *restrict v1,
    const float *restrict prior_mean,
    float *restrict rho, const float *restrict g_rho, const float *restrict g_noise, const float *restrict shared,
    float *restrict m2, float *restrict v2, const float *restrict prior_log_sigma)
{
    const float rate = a->rate, beta1 = a->beta1, beta2 = a->beta2, root = a->root, epsilon = a->epsilon, w = a->kl_weight;
    const float c1 = 1.0 - a->beta1, c2 = 1.0 - a->beta2;
    double kl = 0.0;
    for (ptrdiff_t start = 0; start < n; start += BLOCK) {
        const ptrdiff_t stop = n - start < BLOCK ? n : start + BLOCK;
        float inverse[BLOCK], ratio[BLOCK], sigma[BLOCK], grad[BLOCK], part = 0.0f;
        for (ptrdiff_t i = start; i < stop; i++) {
            inverse[i - start] = expf(-2.0f * prior_log_sigma[i]);
            ratio[i - start] = expf(rho[i] - prior_log_sigma[i]);
            sigma[i - start] = expf(rho[i]);
        }
        if (!g_noise)
            for (ptrdiff_t i = start; i < stop; i++) grad[i - start] = 0.0f;
        else if (mode == 0)
            for (ptrdiff_t i = start; i < stop; i++) grad[i - start] = g_noise[i] * shared[i] * sigma[i - start];
        else
            for (ptrdiff_t i = start; i < stop; i++) grad[i - start] = 2.0f * g_noise[i] * sigma[i - start] * sigma[i - start];
        if (g_rho)
            for (ptrdiff_t i = start; i < stop; i++) grad[i - start] += g_rho[i];
        for (ptrdiff_t i = start; i < stop; i++) {
            const float s = ratio[i - start];
            const float h = grad[i - start] + w * (s * s - 1.0f);
            const float p = m2[i] + c1 * (h - m2[i]), q = beta2 * v2[i] + c2 * h * h;
            const float r = rho[i] - rate * p / (sqrtf(q) * root + epsilon), t = expf(r - prior_log_sigma[i]);
            rho[i] = r; m2[i] = p; v2[i] = q;
            part += 0.5f * (t * t - 1.0f) - (r - prior_log_sigma[i]);
        }
        for (ptrdiff_t i = start; i < stop; i++) {
            const float k = inverse[i - start];
            const float g = (g_mean ? g_mean[i] : 0.0f) + w * (mean[i] - prior_mean[i]) * k;
            const float m = m1[i] + c1 * (g - m1[i]), v = beta2 * v1[i] + c2 * g * g;
            const float mu = mean[i] - rate * m / (sqrtf(v) * root + epsilon), d = mu - prior_mean[i];
            mean[i] = mu; m1[i] = m; v1[i] = v;
            part += 0.5f * d * d * k;
        }
        kl += part;
    }
    return kl;
}

/* Means of weights [outer, units, inner] whose sigma belongs to the output unit, `inverse` = 1 / (prior sigma)^2 of each unit. Returns
 * the means' part of the KL after the step, sum d^2 / (2 s^2). */
ONE_COPY double mean_expert(
    ptrdiff_t outer, ptrdiff_t units, ptrdiff_t inner, const Adam *a,
    float *restrict mean, const float *restrict g_mean, float *restrict m1, float *restrict v1,
    const float *restrict prior_mean, const float *restrict inverse)
{
    const float rate = a->rate, beta1 = a->beta1, beta2 = a->beta2, root = a->root, epsilon = a->epsilon, w = a->kl_weight;
    const float c1 = 1.0 - a->beta1, c2 = 1.0 - a->beta2;
    double kl = 0.0;
#define STEP(i, k) do { \
        const float g = (g_mean ? g_mean[i] : 0.0f) + w * (mean[i] - prior_mean[i]) * (k); \
        const float m = m1[i] + c1 * (g - m1[i]), v = beta2 * v1[i] + c2 * g * g; \
        const float mu = mean[i] - rate * m / (sqrtf(v) * root + epsilon), d = mu - prior_mean[i]; \
        mean[i] = mu; m1[i] = m; v1[i] = v; \
        part += d * d * (k); \
    } while (0)
    for (ptrdiff_t o = 0; o < outer; o++) {
        const ptrdiff_t row = o * units * inner;
        if (inner == 1) {
            float part = 0.0f;
            for (ptrdiff_t u = 0; u < units; u++) STEP(row + u, inverse[u]);
            kl += part;
        } else {
            for (ptrdiff_t u = 0; u < units; u++) {
                const ptrdiff_t start = row + u * inner;
                const float k = inverse[u];
                float part = 0.0f;
                for (ptrdiff_t i = start; i < start + inner; i++) STEP(i, k);
                kl += part;
            }
        }
    }
    return 0.5 * kl;
}

/* The same for `count` experts of a layer, whose arrays are stacked [M, n]; gradients and steps are given for each of the `count`. */
void variational_update(
    ptrdiff_t count, const int64_t *experts, ptrdiff_t n, const Adam *steps, int mode,
    float *mean, float *m1, float *v1, const float *prior_mean, float *rho, float *m2, float *v2, const float *prior_log_sigma,
    const float *const *g_mean, const float *const *g_rho, const float *const *g_noise, const float *const *shared, float *kl)
{
    for (ptrdiff_t j = 0; j < count; j++) {
        const ptrdiff_t o = experts[j] * n;
        kl[experts[j]] = (float) variational_expert(n, steps + j, mode, mean + o, g_mean[j], m1 + o, v1 + o, prior_mean + o, rho + o,
                                                    g_rho[j], g_noise[j], shared[j], m2 + o, v2 + o, prior_log_sigma + o);
    }
}

void mean_update(
    ptrdiff_t count, const int64_t *experts, ptrdiff_t outer, ptrdiff_t units, ptrdiff_t inner, const Adam *steps,
    float *mean, float *m1, float *v1, const float *prior_mean, const float *inverse, const float *const *g_mean, float *kl)
{
    const ptrdiff_t n = outer * units * inner;
    for (ptrdiff_t j = 0; j < count; j++) {
        const ptrdiff_t o = experts[j] * n;
        kl[experts[j]] = (float) mean_expert(outer, units, inner, steps + j, mean + o, g_mean[j], m1 + o, v1 + o, prior_mean + o,
                                             inverse + experts[j] * units);
    }
}

/* -- the gate: probabilities, choice, sorted order and statistics of a batch in one pass -------------------------------------- */

/* out[rows, M] = x[rows, n] w[M, n]^T + bias; matrix products of a few columns are slow in the libraries made for large ones */
ONE_COPY void narrow_product(ptrdiff_t rows, ptrdiff_t n, ptrdiff_t M, const float *x, const float *w, const float *bias, float *out)
{
    for (ptrdiff_t i = 0; i < rows; i++) {
        const float *restrict row = x + i * n;
        ptrdiff_t m = 0;
        for (; m + 4 <= M; m += 4) {
            const float *restrict p = w + m * n, *restrict q = p + n, *restrict r = q + n, *restrict s = r + n;
            float a = 0.0f, b = 0.0f, c = 0.0f, d = 0.0f;
            for (ptrdiff_t k = 0; k < n; k++) { a += row[k] * p[k]; b += row[k] * q[k]; c += row[k] * r[k]; d += row[k] * s[k]; }
            out[i * M + m] = a + bias[m]; out[i * M + m + 1] = b + bias[m + 1];
            out[i * M + m + 2] = c + bias[m + 2]; out[i * M + m + 3] = d + bias[m + 3];
        }
        for (; m < M; m++) {
            const float *restrict p = w + m * n;
            float a = 0.0f;
            for (ptrdiff_t k = 0; k < n; k++) a += row[k] * p[k];
            out[i * M + m] = a + bias[m];
        }
    }
}

ONE_COPY void log_softmax(ptrdiff_t rows, ptrdiff_t M, float *values)
{
    for (ptrdiff_t i = 0; i < rows; i++) {
        float *v = values + i * M, top = v[0], sum = 0.0f;
        for (ptrdiff_t m = 1; m < M; m++) if (v[m] > top) top = v[m];
        for (ptrdiff_t m = 0; m < M; m++) sum += expf(v[m] - top);
        const float log_sum = top + logf(sum);
        for (ptrdiff_t m = 0; m < M; m++) v[m] -= log_sum;
    }
}

/* x[rows, n] through the gate (w, bias) and its prior. Out: log p and log p - log prior [rows, M]; for the most probable expert of each row the
 * sorted order (rows_of: slot to row, slot_of: row to slot, counts per expert) and its p in slot order (weights); the mean mass on each expert
 * (usage); statistics: mean KL[p || prior], H(M|X), H(M). `choice` is room for one number a row. */
void gate_forward(
    ptrdiff_t rows, ptrdiff_t n, ptrdiff_t M, const float *x, const float *w, const float *bias, const float *prior_w,
    const float *prior_bias, float *restrict log_p, float *restrict ratio,
    int64_t *restrict rows_of, int64_t *restrict slot_of, int64_t *restrict counts, int64_t *restrict choice,
    float *restrict weights, float *restrict usage, float *restrict statistics)
{
    double kl = 0.0, conditional = 0.0, marginal = 0.0;
    double mass[M];
    narrow_product(rows, n, M, x, w, bias, log_p);
    narrow_product(rows, n, M, x, prior_w, prior_bias, ratio);
    log_softmax(rows, M, log_p);
    log_softmax(rows, M, ratio);
    for (ptrdiff_t m = 0; m < M; m++) { mass[m] = 0.0; counts[m] = 0; }
    for (ptrdiff_t i = 0; i < rows; i++) {
        const float *l = log_p + i * M;
        float *r = ratio + i * M;
        ptrdiff_t best = 0;
        for (ptrdiff_t m = 0; m < M; m++) {
            const float p = expf(l[m]);
            if (l[m] > l[best]) best = m;
            r[m] = l[m] - r[m];
            mass[m] += p; kl += p * r[m]; conditional -= p * l[m];
        }
        choice[i] = best; counts[best]++;
    }
    ptrdiff_t next[M], start = 0;
    for (ptrdiff_t m = 0; m < M; m++) { next[m] = start; start += counts[m]; }
    for (ptrdiff_t i = 0; i < rows; i++) {
        const ptrdiff_t slot = next[choice[i]]++;
        rows_of[slot] = i; slot_of[i] = slot;
        weights[slot] = expf(log_p[i * M + choice[i]]);
    }
    for (ptrdiff_t m = 0; m < M; m++) {
        const double u = mass[m] / rows;
        usage[m] = (float) u;
        if (u > 0) marginal -= u * log(u);
    }
    statistics[0] = (float)(kl / rows); statistics[1] = (float)(conditional / rows); statistics[2] = (float) marginal;
}

/* Gradients of the gate's weights and bias, and of x if g_x is not NULL, from those of weights, usage and statistics. */
void gate_backward(
    ptrdiff_t rows, ptrdiff_t n, ptrdiff_t M, const float *x, const float *w, const float *prior_w,
    const float *restrict log_p, const float *restrict ratio, const int64_t *restrict slot_of,
    const int64_t *restrict choice, const float *restrict usage, const float *restrict g_weights, const float *restrict g_usage,
    const float *restrict g_statistics, float *g_w, float *restrict g_bias, float *g_x)
{
    const float scale = 1.0f / rows;
    const float g_kl = g_statistics[0] * scale, g_conditional = g_statistics[1] * scale;
    float g_mass[M], ga[M], gb[M];
    for (ptrdiff_t m = 0; m < M; m++) {
        g_mass[m] = scale * (g_usage[m] - (usage[m] > 0.0f ? g_statistics[2] * (logf(usage[m]) + 1.0f) : 0.0f));
        g_bias[m] = 0.0f;
    }
    for (ptrdiff_t k = 0; k < M * n; k++) g_w[k] = 0.0f;
    for (ptrdiff_t i = 0; i < rows; i++) {
        const float *l = log_p + i * M, *r = ratio + i * M;
        const float *restrict row = x + i * n;
        float mean = 0.0f;
        for (ptrdiff_t m = 0; m < M; m++) {
            const float p = expf(l[m]);
            /* d / dp of everything but the chosen weight; a softmax subtracts its mean */
            ga[m] = g_mass[m] + g_kl * r[m] - g_conditional * l[m];
            mean += p * ga[m];
        }
        const float chosen = g_weights[slot_of[i]] * expf(l[choice[i]]);
        for (ptrdiff_t m = 0; m < M; m++) {
            const float p = expf(l[m]);
            ga[m] = p * (ga[m] - mean) - p * chosen;
            gb[m] = g_kl * (expf(l[m] - r[m]) - p);
        }
        ga[choice[i]] += chosen;
        for (ptrdiff_t m = 0; m < M; m++) {
            float *restrict to = g_w + m * n;
            const float g = ga[m];
            g_bias[m] += g;
            for (ptrdiff_t k = 0; k < n; k++) to[k] += g * row[k];
        }
        if (g_x) {
            float *restrict to = g_x + i * n;
            for (ptrdiff_t k = 0; k < n; k++) to[k] = 0.0f;
            for (ptrdiff_t m = 0; m < M; m++) {
                const float *restrict p = w + m * n, *restrict q = prior_w + m * n;
                const float g = ga[m], h = gb[m];
                for (ptrdiff_t k = 0; k < n; k++) to[k] += g * p[k] + h * q[k];
            }
        }
    }
}

/* -- moving and pooling ------------------------------------------------------------------------------------------------------------ */

/* out[i] = w[slot_of[i]] y[slot_of[i]], rows of n numbers; without slot_of nothing moves */
void mix_forward(ptrdiff_t rows, ptrdiff_t n, const float *restrict y, const float *restrict w, const int64_t *slot_of, float *restrict out)
{
    for (ptrdiff_t i = 0; i < rows; i++) {
        const ptrdiff_t s = slot_of ? slot_of[i] : i;
        const float *restrict from = y + s * n;
        float *restrict to = out + i * n;
        const float weight = w[s];
        for (ptrdiff_t k = 0; k < n; k++) to[k] = weight * from[k];
    }
}

/* For every slot s of row r: g_y[s] = w[s] g[r], g_w[s] = g[r] . y[s] */
void mix_backward(
    ptrdiff_t slots, ptrdiff_t n, const float *restrict g, const float *restrict y, const float *restrict w, const int64_t *row_of,
    float *restrict g_y, float *restrict g_w)
{
    for (ptrdiff_t s = 0; s < slots; s++) {
        const float *restrict from = g + (row_of ? row_of[s] : s) * n, *restrict answer = y + s * n;
        float *restrict to = g_y + s * n;
        const float weight = w[s];
        float dot = 0.0f;
        for (ptrdiff_t k = 0; k < n; k++) { to[k] = weight * from[k]; dot += from[k] * answer[k]; }
        g_w[s] = dot;
    }
}

/* Mean, maximum and place of the maximum of every channel's map of `places` numbers; out is [rows, 2 channels], means first */
void pool_forward(ptrdiff_t rows, ptrdiff_t channels, ptrdiff_t places, const float *restrict x, float *restrict out, int64_t *restrict where)
{
    for (ptrdiff_t i = 0; i < rows * channels; i++) {
        const float *restrict map = x + i * places;
        float sum = 0.0f, top = map[0];
        for (ptrdiff_t k = 0; k < places; k++) { sum += map[k]; top = map[k] > top ? map[k] : top; }
        ptrdiff_t at = 0;
        for (; at + 32 < places; at += 32) {  /* whole blocks first: a search that may stop anywhere is done one by one */
            int found = 0;
            for (int k = 0; k < 32; k++) found |= map[at + k] == top;
            if (found) break;
        }
        while (at < places - 1 && map[at] != top) at++;
        float *row = out + i / channels * 2 * channels + i % channels;
        row[0] = sum / places; row[channels] = top; where[i] = at;
    }
}

void pool_backward(ptrdiff_t rows, ptrdiff_t channels, ptrdiff_t places, const float *restrict g, const int64_t *restrict where, float *restrict g_x)
{
    for (ptrdiff_t i = 0; i < rows * channels; i++) {
        const float *row = g + i / channels * 2 * channels + i % channels;
        float *restrict map = g_x + i * places;
        const float even = row[0] / places;
        for (ptrdiff_t k = 0; k < places; k++) map[k] = even;
        map[where[i]] += row[channels];
    }
}

/* -- noise --------------------------------------------------------------------------------------------------------------------------- */

/* noise = exp(rho) * shared: an expert's share of a standard normal draw */
void scale_noise(ptrdiff_t n, const float *restrict rho, const float *restrict shared, float *restrict noise)
{
    for (ptrdiff_t i = 0; i < n; i++) noise[i] = expf(rho[i]) * shared[i];
}

/* -- random numbers: xoshiro128++ (Blackman & Vigna, 2019) in many lanes, each started by splitmix64 -------------------------- */

#define LANES 64

typedef struct { uint32_t a[LANES], b[LANES], c[LANES], d[LANES]; } Lanes;

static uint64_t splitmix(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static void seed_lanes(Lanes *lanes, uint64_t seed)
{
    for (int i = 0; i < LANES; i++) {
        const uint64_t x = splitmix(&seed), y = splitmix(&seed);
        lanes->a[i] = (uint32_t) x; lanes->b[i] = (uint32_t)(x >> 32);
        lanes->c[i] = (uint32_t) y; lanes->d[i] = (uint32_t)(y >> 32);
    }
}

#define ROTATE(x, k) (((x) << (k)) | ((x) >> (32 - (k))))

static inline void next_bits(Lanes *lanes, uint32_t *restrict bits)
{
    for (int i = 0; i < LANES; i++) {
        uint32_t a = lanes->a[i], b = lanes->b[i], c = lanes->c[i], d = lanes->d[i];
        const uint32_t sum = a + d, shifted = b << 9;
        bits[i] = ROTATE(sum, 7) + a;
        c ^= a; d ^= b; b ^= c; a ^= d; c ^= shifted;
        lanes->a[i] = a; lanes->b[i] = b; lanes->c[i] = c; lanes->d[i] = ROTATE(d, 11);
    }
}

/* A standard normal by inversion, sqrt(2) erfinv(x), erfinv in single precision after Giles (2010). 23 random bits, so that x stays
 * within (-1, 1): the largest normal is 5.2. */
static inline float normal(uint32_t bits)
{
    const float x = ((float)(int32_t)(bits >> 9) + 0.5f) * 0x1p-22f - 1.0f;
    const float w = -logf((1.0f - x) * (1.0f + x)), s = w - 2.5f, t = sqrtf(w) - 3.0f;
    float p = 2.81022636e-08f, q = -0.000200214257f;
    p = p * s + 3.43273939e-07f;  q = q * t + 0.000100950558f;
    p = p * s - 3.5233877e-06f;   q = q * t + 0.00134934322f;
    p = p * s - 4.39150654e-06f;  q = q * t - 0.00367342844f;
    p = p * s + 0.00021858087f;   q = q * t + 0.00573950773f;
    p = p * s - 0.00125372503f;   q = q * t - 0.0076224613f;
    p = p * s - 0.00417768164f;   q = q * t + 0.00943887047f;
    p = p * s + 0.246640727f;     q = q * t + 1.00167406f;
    p = p * s + 1.50140941f;      q = q * t + 2.83297682f;
    return 1.41421356f * x * (w < 5.0f ? p : q);
}

void standard_normals(ptrdiff_t n, uint64_t seed, float *restrict out)
{
    Lanes lanes;
    uint32_t bits[LANES];
    ptrdiff_t start = 0;
    seed_lanes(&lanes, seed);
    for (; start + LANES <= n; start += LANES) {
        next_bits(&lanes, bits);
        for (int i = 0; i < LANES; i++) out[start + i] = normal(bits[i]);
    }
    if (start < n) {
        next_bits(&lanes, bits);
        for (int i = 0; i < n - start; i++) out[start + i] = normal(bits[i]);
    }
}

/* out = x with fair random signs, or, if `add`, out += that. The same seed gives the same signs. */
void random_flip(ptrdiff_t n, uint64_t seed, int add, const float *restrict x, float *restrict out)
{
    Lanes lanes;
    uint32_t bits[LANES];
    union { float f; uint32_t u; } v;
    seed_lanes(&lanes, seed);
#define FLIP(i, j) (v.f = x[i], v.u ^= (bits[j] << k) & 0x80000000u, v.f)
    for (ptrdiff_t start = 0; start < n; start += 32 * LANES) {
        next_bits(&lanes, bits);
        for (int k = 0; k < 32; k++) {
            const ptrdiff_t row = start + k * LANES;
            const int count = n - row < LANES ? (n > row ? (int)(n - row) : 0) : LANES;
            if (add)
                for (int j = 0; j < count; j++) out[row + j] += FLIP(row + j, j);
            else
                for (int j = 0; j < count; j++) out[row + j] = FLIP(row + j, j);
        }
    }
}

/* Normals for one example after another, the same ones for the same seed; room for n rounded up to LANES */
static void next_normals(Lanes *lanes, ptrdiff_t n, float *restrict out)
{
    uint32_t bits[LANES];
    for (ptrdiff_t start = 0; start < n; start += LANES) {
        next_bits(lanes, bits);
        for (int i = 0; i < LANES; i++) out[start + i] = normal(bits[i]);
    }
}

/* Local reparameterisation with a sigma per channel: y[i, c, p] += sigma[expert[i], c] norm[i, p] z[i, c, p], z standard normal from `seed`.
 * `room` holds channels * places numbers, rounded up to LANES. */
void local_noise(
    ptrdiff_t rows, ptrdiff_t channels, ptrdiff_t places, uint64_t seed, const int64_t *expert, const float *restrict norm,
    const float *restrict sigma, float *restrict room, float *restrict y)
{
    Lanes lanes;
    seed_lanes(&lanes, seed);
    for (ptrdiff_t i = 0; i < rows; i++) {
        next_normals(&lanes, channels * places, room);
        for (ptrdiff_t c = 0; c < channels; c++) {
            const float s = sigma[expert[i] * channels + c], *restrict z = room + c * places, *restrict k = norm + i * places;
            float *restrict to = y + (i * channels + c) * places;
            for (ptrdiff_t p = 0; p < places; p++) to[p] += s * k[p] * z[p];
        }
    }
}

/* Gradients of norm [rows, places] and sigma [M, channels] (zero before) from that of y */
void local_noise_backward(
    ptrdiff_t rows, ptrdiff_t channels, ptrdiff_t places, uint64_t seed, const int64_t *expert, const float *restrict norm,
    const float *restrict sigma, float *restrict room, const float *restrict g, float *restrict g_norm, float *restrict g_sigma)
{
    Lanes lanes;
    seed_lanes(&lanes, seed);
    for (ptrdiff_t i = 0; i < rows; i++) {
        float *restrict gn = g_norm + i * places;
        const float *restrict k = norm + i * places;
        next_normals(&lanes, channels * places, room);
        for (ptrdiff_t p = 0; p < places; p++) gn[p] = 0.0f;
        for (ptrdiff_t c = 0; c < channels; c++) {
            const ptrdiff_t unit = expert[i] * channels + c;
            const float s = sigma[unit], *restrict z = room + c * places, *restrict from = g + (i * channels + c) * places;
            float dot = 0.0f;
            for (ptrdiff_t p = 0; p < places; p++) {
                const float t = from[p] * z[p];
                gn[p] += s * t;
                dot += k[p] * t;
            }
            g_sigma[unit] += dot;
        }
    }
}
