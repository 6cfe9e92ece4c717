/* The passes over memory that torch has no single operation for: the update of an expert's weights, and random numbers.
 *
 * Plain C without dependencies, compiled at first use. Every function has a counterpart in torch operations that serves where
 * there is no compiler and in the tests.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Not inlined: inlining forgets `restrict`, and the same numbers must go through the same instructions (where gate and prior are equal, their
 * KL is exactly zero). */
#define ONE_COPY static __attribute__((noinline))

/* -- matrix products: the library that torch uses, if its Fortran interface was found ----------------------------------------------- */

/* Sizes are pointers to 64-bit numbers: a library that reads 32 bits finds the same small number there (little-endian machines). */
typedef void (*Gemm)(
    const char *, const char *, const int64_t *, const int64_t *, const int64_t *, const float *, const float *, const int64_t *, const float *,
    const int64_t *, const float *, float *, const int64_t *);

static Gemm gemm;

void use_gemm(void *found) { gemm = (Gemm) found; }

/* c[rows, columns] = a b + beta c, all stored row by row, rows being lda, ldb and ldc numbers apart; `a` is [rows, n], or [n, rows] if turn_a,
 * b is [n, columns], or [columns, n] if turn_b */
static void product_of_parts(
    int64_t rows, int64_t columns, int64_t n, const float *a, int64_t lda, int turn_a, const float *b, int64_t ldb, int turn_b, float beta,
    float *c, int64_t ldc)
{
    if (gemm) {  /* which stores column by column: to it, everything is transposed */
        const float one = 1.0f;
        if (rows && columns) gemm(turn_b ? "T" : "N", turn_a ? "T" : "N", &columns, &rows, &n, &one, b, &ldb, a, &lda, &beta, c, &ldc);
        return;
    }
    for (ptrdiff_t i = 0; i < rows; i++) {
        float *restrict to = c + i * ldc;
        for (ptrdiff_t j = 0; j < columns; j++) to[j] = beta == 0.0f ? 0.0f : beta * to[j];
        for (ptrdiff_t k = 0; k < n; k++) {
            const float scale = a[turn_a ? k * lda + i : i * lda + k];
            if (turn_b)
                for (ptrdiff_t j = 0; j < columns; j++) to[j] += scale * b[j * ldb + k];
            else
                for (ptrdiff_t j = 0; j < columns; j++) to[j] += scale * b[k * ldb + j];
        }
    }
}

/* The same of whole matrices */
void product(
    ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t n, const float *a, int turn_a, const float *b, int turn_b, float beta, float *c)
{
    product_of_parts(rows, columns, n, a, turn_a ? rows : n, turn_a, b, turn_b ? n : columns, turn_b, beta, c, columns);
}

/* -- exponentials that the compiler can put between other instructions: half the time of a vector library's call --------------- */

#ifdef __FMA__
/* exp(x) - 1 = 2^n (e^r - 1) + (2^n - 1) with |r| <= log(2) / 2, after Cephes; exactly zero at zero. Beyond +-87 it stays what it is there. */
static inline float exp_minus_one(float x)
{
    x = x > 87.0f ? 87.0f : x < -87.0f ? -87.0f : x;
    const float n = rintf(x * 1.44269504f);
    const float r = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, x));  /* fmaf: -ffast-math must not add the two constants up */
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f; p = p * r + 8.3334519073e-3f; p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f; p = p * r + 5.0000001201e-1f;
    union { uint32_t u; float f; } power = { .u = (uint32_t)((int32_t) n + 127) << 23 };
    return fmaf(power.f, fmaf(p * r, r, r), power.f - 1.0f);
}

static inline float exponential(float x)
{
    x = x > 87.0f ? 87.0f : x < -87.0f ? -87.0f : x;
    const float n = rintf(x * 1.44269504f);
    const float r = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, x));
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f; p = p * r + 8.3334519073e-3f; p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f; p = p * r + 5.0000001201e-1f;
    union { uint32_t u; float f; } power = { .u = (uint32_t)((int32_t) n + 127) << 23 };
    return power.f * (fmaf(p * r, r, r) + 1.0f);
}
/* log(x) of a positive number, after Cephes: mantissa between sqrt(1/2) and sqrt(2), so that log(1) and what is near it are accurate */
static inline float logarithm(float x)
{
    union { float f; uint32_t u; } v = { .f = x };
    const uint32_t shifted = v.u - 0x3f3504f3u;  /* sqrt(1/2) */
    const float e = (float)((int32_t) shifted >> 23);
    v.u = (shifted & 0x007fffffu) + 0x3f3504f3u;
    const float m = v.f - 1.0f, z = m * m;
    float p = 7.0376836292e-2f;
    p = p * m - 1.1514610310e-1f; p = p * m + 1.1676998740e-1f; p = p * m - 1.2420140846e-1f; p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f; p = p * m + 2.0000714765e-1f; p = p * m - 2.4999993993e-1f; p = p * m + 3.3333331174e-1f;
    return fmaf(e, 0.69314718f, m + fmaf(p * m, z, -0.5f * z));
}
#else
#define exponential expf
#define exp_minus_one expm1f
#define logarithm logf
#endif

/* -- the update of one expert: KL gradient, Adam, and the KL to the prior after the step, in one pass ---------------------- */

typedef struct {
    double rate;       /* learning rate / (1 - beta1^t) */
    double beta1, beta2;
    double root;       /* 1 / sqrt(1 - beta2^t) */
    double epsilon;
    double kl_weight;  /* d loss / d KL of this expert */
} Adam;

#define BLOCK 256  /* weights whose KL is summed up in single precision */
static const float zeros[BLOCK];

/* Weights with a sigma = exp(rho) each. g_noise is d loss / d (sigma * shared) (mode 0, flipout) or d loss / d sigma^2 (mode 1, local
 * reparameterisation). Gradients may be NULL: an expert that saw no example has none. Arrays do not overlap.
 *
 * With s = sigma / prior sigma, the KL after a step of size t has exp(2 (rho - t - prior)) = s^2 exp(-2 t): a few terms of the series for the
 * small steps that there usually are, the exponential where a step of the block is large. */
ONE_COPY double variational_expert(
    ptrdiff_t n, const Adam *a, int mode,
    float *restrict mean, const float *restrict g_mean, float *restrict m1, float *restrict v1,
    const float *restrict prior_mean,
    float *restrict rho, const float *restrict g_rho, const float *restrict g_noise, const float *restrict shared,
    float *restrict m2, float *restrict v2, const float *restrict prior_log_sigma)
{
    const float rate = a->rate, beta2 = a->beta2, root = a->root, epsilon = a->epsilon, w = a->kl_weight;
    const float c1 = 1.0 - a->beta1, c2 = 1.0 - a->beta2;
    double kl = 0.0;
    for (ptrdiff_t start = 0; start < n; start += BLOCK) {
        const ptrdiff_t count = n - start < BLOCK ? n - start : BLOCK;
        const float *restrict gm = g_mean ? g_mean + start : zeros, *restrict gr = g_rho ? g_rho + start : zeros;
        const float *restrict gn = g_noise ? g_noise + start : zeros, *restrict sh = g_noise && mode == 0 ? shared + start : zeros;
        float shift = 0.0f, spread = 0.0f, largest = 0.0f;
        for (ptrdiff_t j = 0; j < count; j++) {
            const ptrdiff_t i = start + j;
            const float prior = prior_log_sigma[i], before = rho[i], inverse = exponential(-prior), s = exponential(before - prior);
            const float sigma = s / inverse, excess = s * s - 1.0f;
            const float h = gn[j] * (mode ? 2.0f * sigma : sh[j]) * sigma + gr[j] + w * excess;
            const float p = m2[i] + c1 * (h - m2[i]), q = beta2 * v2[i] + c2 * h * h;
            const float t = rate * p / (sqrtf(q) * root + epsilon), r = before - t, u = -2.0f * t;
            rho[i] = r; m2[i] = p; v2[i] = q;
            largest = fabsf(t) > largest ? fabsf(t) : largest;
            spread += 0.5f * (excess + (excess + 1.0f) * u * (1.0f + u * (0.5f + u * (1.0f / 6 + u * (1.0f / 24))))) - (r - prior);
            const float k = inverse * inverse, g = gm[j] + w * (mean[i] - prior_mean[i]) * k;
            const float m = m1[i] + c1 * (g - m1[i]), v = beta2 * v1[i] + c2 * g * g;
            const float mu = mean[i] - rate * m / (sqrtf(v) * root + epsilon), d = mu - prior_mean[i];
            mean[i] = mu; m1[i] = m; v1[i] = v;
            shift += 0.5f * d * d * k;
        }
        if (!(largest < 0.02f)) {
            spread = 0.0f;
            for (ptrdiff_t i = start; i < start + count; i++) {
                const float d = rho[i] - prior_log_sigma[i];
                spread += 0.5f * exp_minus_one(2.0f * d) - d;
            }
        }
        kl += shift + spread;
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
    const float rate = a->rate, beta2 = a->beta2, root = a->root, epsilon = a->epsilon, w = a->kl_weight;
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

/* Where gradients are still to be multiplied out: expert m's is left[starts[m]:starts[m + 1]]^T right[...]. It is made right before it is used,
 * in memory that is used again for the next expert: it never leaves the cache. */
typedef struct {
    int64_t inputs, outputs;
    const int64_t *starts;
    const float *left, *right;
    const float *noise_left, *noise_right;  /* the same for the noise's gradient, or NULL */
    const float *shared;
    float *room;  /* 2 inputs * outputs numbers */
} Products;

/* One expert's gradient, added to `more` (in place) if that is given; NULL for an expert without rows and more */
static const float *multiplied(const Products *p, int64_t expert, const float *left, const float *right, float *more, float *room)
{
    const int64_t a = p->starts[expert], count = p->starts[expert + 1] - a;
    if (!count) return more;
    float *to = more ? more : room;
    product(p->inputs, p->outputs, count, left + a * p->inputs, 1, right + a * p->outputs, 0, more ? 1.0f : 0.0f, to);
    return to;
}

/* The same for `count` experts of a layer, whose arrays are stacked [M, n]; gradients and steps are given for each of the `count`. With
 * `products` the gradients of means (if given: to be added) and noise come from there. */
void variational_update(
    ptrdiff_t count, const int64_t *experts, ptrdiff_t n, const Adam *steps, int mode,
    float *mean, float *m1, float *v1, const float *prior_mean, float *rho, float *m2, float *v2, const float *prior_log_sigma,
    float *const *g_mean, const float *const *g_rho, const float *const *g_noise, const float *const *shared, const Products *products,
    float *kl)
{
    for (ptrdiff_t j = 0; j < count; j++) {
        const int64_t e = experts[j];
        const ptrdiff_t o = e * n;
        const float *of_mean = g_mean[j], *of_noise = g_noise[j], *draw = shared[j];
        if (products) {
            of_mean = multiplied(products, e, products->left, products->right, g_mean[j], products->room);
            of_noise = multiplied(products, e, products->noise_left, products->noise_right, NULL, products->room + n);
            draw = products->shared;
        }
        kl[e] = (float) variational_expert(n, steps + j, mode, mean + o, of_mean, m1 + o, v1 + o, prior_mean + o, rho + o,
                                           g_rho[j], of_noise, draw, m2 + o, v2 + o, prior_log_sigma + o);
    }
}

void mean_update(
    ptrdiff_t count, const int64_t *experts, ptrdiff_t outer, ptrdiff_t units, ptrdiff_t inner, const Adam *steps,
    float *mean, float *m1, float *v1, const float *prior_mean, const float *inverse, float *const *g_mean, const Products *products, float *kl)
{
    const ptrdiff_t n = outer * units * inner;
    for (ptrdiff_t j = 0; j < count; j++) {
        const int64_t e = experts[j];
        const ptrdiff_t o = e * n;
        const float *of_mean = g_mean[j];
        if (products) of_mean = multiplied(products, e, products->left, products->right, g_mean[j], products->room);
        kl[e] = (float) mean_expert(outer, units, inner, steps + j, mean + o, of_mean, m1 + o, v1 + o, prior_mean + o, inverse + e * units);
    }
}

/* -- diversity: how far experts are from each other, and the push that parts them -------------------------------------------------- */

#define COLUMNS 1024  /* numbers of every expert that are looked at together; distances depend on it in their last digits */

/* Numbers from:from + count of row j of values [M, n], or their exponentials, which are put into `room` */
static const float *columns_of(const float *values, ptrdiff_t n, ptrdiff_t j, ptrdiff_t from, ptrdiff_t count, int exponentials, float *restrict room)
{
    const float *restrict row = values + j * n + from;
    if (!exponentials) return row;
    for (ptrdiff_t k = 0; k < count; k++) room[k] = exponential(row[k]);
    return room;
}

/* Squared distances between row i and every other, for the `some` rows i that are named in `which`, are added to out[M, M] (times `weight`).
 * values is [M, n]; room holds (some + 1) * COLUMNS numbers. The distance of two rows does not depend on which others are named. */
void pair_distances(
    ptrdiff_t M, ptrdiff_t n, const float *values, int exponentials, double weight, ptrdiff_t some, const int64_t *which, float *room, double *out)
{
    ptrdiff_t place[M];  /* of a row among the named ones: a pair is looked at once */
    const float *named[some];
    for (ptrdiff_t j = 0; j < M; j++) place[j] = some;
    for (ptrdiff_t w = 0; w < some; w++) place[which[w]] = w;
    for (ptrdiff_t from = 0; from < n; from += COLUMNS) {
        const ptrdiff_t count = n - from < COLUMNS ? n - from : COLUMNS;
        for (ptrdiff_t w = 0; w < some; w++) named[w] = columns_of(values, n, which[w], from, count, exponentials, room + (w + 1) * COLUMNS);
        for (ptrdiff_t j = 0; j < M; j++) {
            const float *restrict b = place[j] < some ? named[place[j]] : columns_of(values, n, j, from, count, exponentials, room);
            for (ptrdiff_t w = 0; w < place[j]; w++) {
                const float *restrict a = named[w];
                float sum = 0.0f;
                for (ptrdiff_t k = 0; k < count; k++) { const float d = a[k] - b[k]; sum += d * d; }
                out[which[w] * M + j] += weight * sum; out[j * M + which[w]] += weight * sum;
            }
        }
    }
}

/* out[w] = sum_j push[which[w], j] (values[j] - values[0]) for `some` rows of values [M, n]; with exponentials of theirs, times its own: the
 * gradient of the logarithm. The rows of `push` sum to zero: the common shift is only taken out because single precision would see it.
 * room holds 2 * COLUMNS numbers. */
void repel(
    ptrdiff_t M, ptrdiff_t n, const float *push, const float *values, int exponentials, ptrdiff_t some, const int64_t *which, float *room, float *out)
{
    const ptrdiff_t columns = some > 4 ? 256 : COLUMNS;  /* all sums in the first-level cache */
    for (ptrdiff_t from = 0; from < n; from += columns) {
        const ptrdiff_t count = n - from < columns ? n - from : columns;
        const float *restrict first = columns_of(values, n, 0, from, count, exponentials, room);
        for (ptrdiff_t w = 0; w < some; w++) memset(out + w * n + from, 0, count * sizeof(float));
        for (ptrdiff_t j = 1; j < M; j++) {
            const float *restrict row = columns_of(values, n, j, from, count, exponentials, room + COLUMNS);
            for (ptrdiff_t w = 0; w < some; w++) {
                const float by = push[which[w] * M + j];
                float *restrict to = out + w * n + from;
                for (ptrdiff_t k = 0; k < count; k++) to[k] += by * (row[k] - first[k]);
            }
        }
        if (exponentials)
            for (ptrdiff_t w = 0; w < some; w++) {
                const float *restrict own = columns_of(values, n, which[w], from, count, 1, room + COLUMNS);
                float *restrict to = out + w * n + from;
                for (ptrdiff_t k = 0; k < count; k++) to[k] *= own[k];
            }
    }
}

/* -- the gate: probabilities, choice, sorted order and statistics of a batch in one pass -------------------------------------- */

#define GATE_ROWS 64  /* that are looked at together, side by side in memory */
#define FEW 8  /* columns that make one vector */

typedef float Eight __attribute__((vector_size(4 * FEW)));

/* sums[rows] = x[rows, n] w, w of eight columns: every number of w that is read serves eight rows */
ONE_COPY void eight_columns(ptrdiff_t rows, ptrdiff_t n, const float *restrict x, const Eight *restrict w, Eight *restrict sums)
{
    ptrdiff_t i = 0;
    for (; i + 8 <= rows; i += 8) {
        const float *restrict r = x + i * n, *restrict s = r + 4 * n;
        Eight a = { 0 }, b = { 0 }, c = { 0 }, d = { 0 }, e = { 0 }, f = { 0 }, g = { 0 }, h = { 0 };
        for (ptrdiff_t k = 0; k < n; k++) {
            const Eight v = w[k];
            a += r[k] * v; b += r[n + k] * v; c += r[2 * n + k] * v; d += r[3 * n + k] * v;
            e += s[k] * v; f += s[n + k] * v; g += s[2 * n + k] * v; h += s[3 * n + k] * v;
        }
        sums[i] = a; sums[i + 1] = b; sums[i + 2] = c; sums[i + 3] = d;
        sums[i + 4] = e; sums[i + 5] = f; sums[i + 6] = g; sums[i + 7] = h;
    }
    for (; i < rows; i++) {
        Eight a = { 0 };
        for (ptrdiff_t k = 0; k < n; k++) a += x[i * n + k] * w[k];
        sums[i] = a;
    }
}

/* Logits of the gate and of its prior (or without one: NULL), [rows, M] each: x w^T + bias. Matrix products of a few columns are slow in the
 * libraries made for large ones: here gate and prior share every number of x that is read, and go through the same instructions. */
ONE_COPY void two_gates(
    ptrdiff_t rows, ptrdiff_t n, ptrdiff_t M, const float *x, const float *w, const float *bias, const float *prior_w, const float *prior_bias,
    float *out, float *prior_out)
{
    if (M > 12 || n > 4096) {
        for (ptrdiff_t i = 0; i < rows * M; i++) out[i] = bias[i % M];
        product(rows, M, n, x, 0, w, 1, 1.0f, out);
        if (!prior_w) return;
        for (ptrdiff_t i = 0; i < rows * M; i++) prior_out[i] = prior_bias[i % M];
        product(rows, M, n, x, 0, prior_w, 1, 1.0f, prior_out);
        return;
    }
    Eight columns[n], sums[GATE_ROWS];
    const ptrdiff_t all = prior_w ? 2 * M : M;
    for (ptrdiff_t first = 0; first < all; first += FEW) {  /* of all columns, those of the gate and then those of its prior */
        const ptrdiff_t some = all - first < FEW ? all - first : FEW;
        float *packed = (float *) columns, more[FEW], *to[FEW];
        for (ptrdiff_t j = 0; j < FEW; j++) {
            const ptrdiff_t m = first + j < M ? first + j : first + j - M;
            const float *from = j >= some ? NULL : (first + j < M ? w : prior_w) + m * n;
            for (ptrdiff_t k = 0; k < n; k++) packed[k * FEW + j] = from ? from[k] : 0.0f;
            more[j] = j >= some ? 0.0f : (first + j < M ? bias : prior_bias)[m];
            to[j] = (first + j < M ? out : prior_out) + m;
        }
        for (ptrdiff_t start = 0; start < rows; start += GATE_ROWS) {
            const ptrdiff_t count = rows - start < GATE_ROWS ? rows - start : GATE_ROWS;
            const float *found = (const float *) sums;
            eight_columns(count, n, x + start * n, columns, sums);
            for (ptrdiff_t j = 0; j < some; j++)
                for (ptrdiff_t i = 0; i < count; i++) to[j][(start + i) * M] = found[i * FEW + j] + more[j];
        }
    }
}

/* [count, M] to [M, GATE_ROWS] or, if `back`, the other way; rows that are not there are zero */
static inline void turn_rows(ptrdiff_t count, ptrdiff_t M, int back, float *restrict rows, float (*restrict turned)[GATE_ROWS])
{
    for (ptrdiff_t m = 0; m < M; m++) {
        if (back)
            for (ptrdiff_t i = 0; i < count; i++) rows[i * M + m] = turned[m][i];
        else {
            for (ptrdiff_t i = 0; i < count; i++) turned[m][i] = rows[i * M + m];
            for (ptrdiff_t i = count; i < GATE_ROWS; i++) turned[m][i] = 0.0f;
        }
    }
}

ONE_COPY void log_softmax(ptrdiff_t M, float (*v)[GATE_ROWS])
{
    float top[GATE_ROWS], sum[GATE_ROWS];
    for (int i = 0; i < GATE_ROWS; i++) { top[i] = v[0][i]; sum[i] = 0.0f; }
    for (ptrdiff_t m = 1; m < M; m++)
        for (int i = 0; i < GATE_ROWS; i++) top[i] = v[m][i] > top[i] ? v[m][i] : top[i];
    for (ptrdiff_t m = 0; m < M; m++)
        for (int i = 0; i < GATE_ROWS; i++) sum[i] += exponential(v[m][i] - top[i]);
    for (int i = 0; i < GATE_ROWS; i++) top[i] += logarithm(sum[i]);
    for (ptrdiff_t m = 0; m < M; m++)
        for (int i = 0; i < GATE_ROWS; i++) v[m][i] -= top[i];
}

/* x[rows, n] through the gate (w, bias) and its prior. Out: log p and log p - log prior [rows, M]; for the most probable expert of each row the
 * sorted order (rows_of: slot to row, slot_of: row to slot, counts per expert) and its p in slot order (weights); the mean mass on each expert
 * (usage); statistics: mean KL[p || prior], H(M|X), H(M). `choice` is room for one number a row. Without a prior (prior_w NULL) there are no
 * ratio, usage and statistics. */
void gate_forward(
    ptrdiff_t rows, ptrdiff_t n, ptrdiff_t M, const float *x, const float *w, const float *bias, const float *prior_w,
    const float *prior_bias, float *restrict log_p, float *restrict ratio,
    int64_t *restrict rows_of, int64_t *restrict slot_of, int64_t *restrict counts, int64_t *restrict choice,
    float *restrict weights, float *restrict usage, float *restrict statistics)
{
    double kl = 0.0, conditional = 0.0, marginal = 0.0, mass[M];
    float l[M][GATE_ROWS], r[M][GATE_ROWS];
    two_gates(rows, n, M, x, w, bias, prior_w, prior_bias, log_p, ratio);
    for (ptrdiff_t m = 0; m < M; m++) { mass[m] = 0.0; counts[m] = 0; }
    for (ptrdiff_t start = 0; start < rows; start += GATE_ROWS) {
        const ptrdiff_t count = rows - start < GATE_ROWS ? rows - start : GATE_ROWS;
        float top[GATE_ROWS];
        int32_t best[GATE_ROWS];
        turn_rows(count, M, 0, log_p + start * M, l);
        log_softmax(M, l);
        turn_rows(count, M, 1, log_p + start * M, l);
        for (int i = 0; i < GATE_ROWS; i++) { top[i] = l[0][i]; best[i] = 0; }
        for (ptrdiff_t m = 1; m < M; m++)
            for (int i = 0; i < GATE_ROWS; i++) {
                best[i] = l[m][i] > top[i] ? (int32_t) m : best[i];
                top[i] = l[m][i] > top[i] ? l[m][i] : top[i];
            }
        for (ptrdiff_t i = 0; i < count; i++) { choice[start + i] = best[i]; counts[best[i]]++; }
        if (!prior_w) continue;
        turn_rows(count, M, 0, ratio + start * M, r);
        log_softmax(M, r);
        for (ptrdiff_t m = 0; m < M; m++) {
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
    ptrdiff_t next[M], start = 0;
    for (ptrdiff_t m = 0; m < M; m++) { next[m] = start; start += counts[m]; }
    for (ptrdiff_t i = 0; i < rows; i++) {
        const ptrdiff_t slot = next[choice[i]]++;
        rows_of[slot] = i; slot_of[i] = slot;
        weights[slot] = log_p[i * M + choice[i]];
    }
    for (ptrdiff_t s = 0; s < rows; s++) weights[s] = exponential(weights[s]);
    if (!prior_w) return;
    for (ptrdiff_t m = 0; m < M; m++) {
        const double u = mass[m] / rows;
        usage[m] = (float) u;
        if (u > 0) marginal -= u * log(u);
    }
    statistics[0] = (float)(kl / rows); statistics[1] = (float)(conditional / rows); statistics[2] = (float) marginal;
}

/* Gradients of the gate's weights and bias (if g_w is not NULL), and of x if g_x is not NULL (which they are added to), from those of weights,
 * usage and statistics; without a prior (prior_w NULL) from those of weights alone. `room` holds 2 rows * M numbers: the gradients of the gate's
 * logits and of its prior's. */
void gate_backward(
    ptrdiff_t rows, ptrdiff_t n, ptrdiff_t M, const float *x, const float *w, const float *prior_w,
    float *restrict log_p, float *restrict ratio, const int64_t *restrict slot_of,
    const int64_t *restrict choice, const float *restrict usage, const float *restrict g_weights, const float *restrict g_usage,
    const float *restrict g_statistics, float *restrict room, float *g_w, float *restrict g_bias, float *g_x)
{
    const float scale = 1.0f / rows;
    const float g_kl = prior_w ? g_statistics[0] * scale : 0.0f, g_conditional = prior_w ? g_statistics[1] * scale : 0.0f;
    float g_mass[M], of_bias[M], l[M][GATE_ROWS], r[M][GATE_ROWS], p[M][GATE_ROWS], g[M][GATE_ROWS];
    for (ptrdiff_t m = 0; m < M; m++) {
        g_mass[m] = prior_w ? scale * (g_usage[m] - (usage[m] > 0.0f ? g_statistics[2] * (logf(usage[m]) + 1.0f) : 0.0f)) : 0.0f;
        of_bias[m] = 0.0f;
    }
    if (!prior_w) memset(r, 0, sizeof r);
    for (ptrdiff_t start = 0; start < rows; start += GATE_ROWS) {
        const ptrdiff_t count = rows - start < GATE_ROWS ? rows - start : GATE_ROWS;
        float mean[GATE_ROWS] = { 0 }, chosen[GATE_ROWS] = { 0 };
        turn_rows(count, M, 0, log_p + start * M, l);
        if (prior_w) turn_rows(count, M, 0, ratio + start * M, r);
        for (ptrdiff_t m = 0; m < M; m++)
            for (int i = 0; i < GATE_ROWS; i++) {
                p[m][i] = exponential(l[m][i]);
                /* d / dp of everything but the chosen weight; a softmax subtracts its mean */
                g[m][i] = g_mass[m] + g_kl * r[m][i] - g_conditional * l[m][i];
                mean[i] += p[m][i] * g[m][i];
            }
        for (ptrdiff_t i = 0; i < count; i++) chosen[i] = g_weights[slot_of[start + i]] * p[choice[start + i]][i];
        for (ptrdiff_t m = 0; m < M; m++)
            for (int i = 0; i < GATE_ROWS; i++) g[m][i] = p[m][i] * (g[m][i] - mean[i] - chosen[i]);
        for (ptrdiff_t i = 0; i < count; i++) g[choice[start + i]][i] += chosen[i];
        for (ptrdiff_t m = 0; m < M; m++) {
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
    }
    if (g_w) {
        memcpy(g_bias, of_bias, sizeof of_bias);
        product(M, n, rows, room, 1, x, 0, 0.0f, g_w);
    }
    if (g_x) {
        product(rows, n, M, room, 0, w, 0, 1.0f, g_x);
        if (prior_w && g_kl != 0.0f) product(rows, n, M, room + rows * M, 0, prior_w, 0, 1.0f, g_x);
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
    for (ptrdiff_t i = 0; i < n; i++) noise[i] = exponential(rho[i]) * shared[i];
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

/* Standard normals by inversion, sqrt(2) erfinv(x), erfinv in single precision after Giles (2010). 23 random bits, so that x stays within
 * (-1, 1): the largest normal is 5.2. One in 300 lies in the tails, which have a polynomial of their own: it is only evaluated for lanes
 * with such a number among them. */
static inline void next_lanes(Lanes *lanes, float *restrict out)
{
    uint32_t bits[LANES];
    float xs[LANES], ws[LANES], largest = 0.0f;
    next_bits(lanes, bits);
    for (int i = 0; i < LANES; i++) {
        const float x = ((float)(int32_t)(bits[i] >> 9) + 0.5f) * 0x1p-22f - 1.0f;
        const float w = -logarithm((1.0f - x) * (1.0f + x)), s = w - 2.5f;
        float p = 2.81022636e-08f;
        p = p * s + 3.43273939e-07f; p = p * s - 3.5233877e-06f; p = p * s - 4.39150654e-06f; p = p * s + 0.00021858087f;
        p = p * s - 0.00125372503f; p = p * s - 0.00417768164f; p = p * s + 0.246640727f; p = p * s + 1.50140941f;
        xs[i] = x; ws[i] = w;
        largest = w > largest ? w : largest;
        out[i] = 1.41421356f * x * p;
    }
    if (largest < 5.0f) return;
    for (int i = 0; i < LANES; i++) {
        const float t = sqrtf(ws[i]) - 3.0f;
        float q = -0.000200214257f;
        q = q * t + 0.000100950558f; q = q * t + 0.00134934322f; q = q * t - 0.00367342844f; q = q * t + 0.00573950773f;
        q = q * t - 0.0076224613f; q = q * t + 0.00943887047f; q = q * t + 1.00167406f; q = q * t + 2.83297682f;
        out[i] = ws[i] < 5.0f ? out[i] : 1.41421356f * xs[i] * q;
    }
}

void standard_normals(ptrdiff_t n, uint64_t seed, float *restrict out)
{
    Lanes lanes;
    ptrdiff_t start = 0;
    seed_lanes(&lanes, seed);
    for (; start + LANES <= n; start += LANES) next_lanes(&lanes, out + start);
    if (start < n) {
        float last[LANES];
        next_lanes(&lanes, last);
        for (int i = 0; i < n - start; i++) out[start + i] = last[i];
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
    for (ptrdiff_t start = 0; start < n; start += LANES) next_lanes(lanes, out + start);
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

/* -- a dense layer in one call each way: gate, sorting, the experts' products, noise, mixing ---------------------------------------- */

typedef struct {
    int64_t rows, inputs, outputs, experts;
    int64_t moved;  /* out: whether the rows were sorted; else one expert has them all, and they are where they were */
    int64_t flipout;  /* 1: flipout with a sigma per weight; 0: local reparameterisation with a sigma per unit */
    uint64_t seed, seed_in, seed_out;
    const float *x, *mean, *bias, *rho;  /* [rows, inputs], [M, inputs, outputs], [M, outputs] or NULL; without rho (NULL) there is no noise */
    const float *gate_weight, *gate_bias, *prior_weight, *prior_bias;  /* NULL without a gate; the prior NULL where nobody asks for its terms */
    /* forward: written */
    float *log_p, *ratio, *weights, *usage, *statistics, *out;
    int64_t *rows_of, *slot_of, *counts, *choice, *starts;
    float *sorted;  /* rows of x in slot order; not used unless moved */
    float *answers;  /* [rows, outputs] in slot order; the same as out without a gate */
    float *norm, *noise, *sigma;  /* local: |x| [rows], |x| z [rows, outputs], exp(rho) [M, outputs] */
    float *flipped, *shared, *scaled;  /* flipout: x with signs, the draw [inputs, outputs], sigma times it [M or 1, inputs, outputs] */
    int64_t keep_scaled;  /* whether `scaled` has room for all experts, for the input's gradient */
    float *room;  /* max(rows * max(inputs, outputs), 2 rows * M) numbers */
    /* backward */
    const float *g_out, *g_usage, *g_statistics;
    float *g_answers;  /* [rows, outputs] in slot order */
    float *turned;  /* flipout: that with signs */
    float *g_weights, *g_bias, *g_rho, *g_gate_weight, *g_gate_bias;
    float *g_x;  /* or NULL */
    float *g_sorted;  /* room for g_x in slot order */
} Dense;

#define EACH(d, m, a, count) \
    for (int64_t m = 0, a, count; m < d->experts && (a = d->starts[m], count = d->starts[m + 1] - a, 1); m++) if (count)

void dense_forward(Dense *d)
{
    const int64_t rows = d->rows, n = d->inputs, units = d->outputs, M = d->experts;
    d->moved = 0;
    d->starts[0] = 0;
    d->starts[1] = rows;
    if (d->gate_weight) {
        gate_forward(rows, n, M, d->x, d->gate_weight, d->gate_bias, d->prior_weight, d->prior_bias, d->log_p, d->ratio, d->rows_of,
                     d->slot_of, d->counts, d->choice, d->weights, d->usage, d->statistics);
        for (int64_t m = 0; m < M; m++) {
            d->starts[m + 1] = d->starts[m] + d->counts[m];
            d->moved |= d->counts[m] && d->counts[m] != rows;
        }
    }
    const float *x = d->x;
    if (d->moved) {
        for (int64_t s = 0; s < rows; s++) memcpy(d->sorted + s * n, d->x + d->rows_of[s] * n, n * sizeof(float));
        x = d->sorted;
    }
    if (d->flipout) {
        standard_normals(n * units, d->seed, d->shared);
        random_flip(rows * n, d->seed_in, 0, x, d->flipped);
        EACH(d, m, a, count) {
            float *scaled = d->scaled + (d->keep_scaled ? m * n * units : 0);
            scale_noise(n * units, d->rho + m * n * units, d->shared, scaled);
            product(count, units, n, d->flipped + a * n, 0, scaled, 0, 0.0f, d->room + a * units);
        }
        EACH(d, m, a, count)
            for (int64_t s = a; s < a + count; s++)
                for (int64_t k = 0; k < units; k++) d->answers[s * units + k] = d->bias ? d->bias[m * units + k] : 0.0f;
        random_flip(rows * units, d->seed_out, 1, d->room, d->answers);
    } else if (!d->rho) {
        EACH(d, m, a, count)
            for (int64_t s = a; s < a + count; s++) {
                if (d->bias) memcpy(d->answers + s * units, d->bias + m * units, units * sizeof(float));
                else memset(d->answers + s * units, 0, units * sizeof(float));
            }
    } else {
        standard_normals(rows * units, d->seed, d->noise);
        EACH(d, m, a, count) {
            float *restrict sigma = d->sigma + m * units;
            for (int64_t k = 0; k < units; k++) sigma[k] = exponential(d->rho[m * units + k]);
            for (int64_t s = a; s < a + count; s++) {
                const float *restrict row = x + s * n;
                float *restrict z = d->noise + s * units, *restrict y = d->answers + s * units, square = 0.0f;
                for (int64_t k = 0; k < n; k++) square += row[k] * row[k];
                const float norm = d->norm[s] = sqrtf(square);
                if (d->bias)
                    for (int64_t k = 0; k < units; k++) { z[k] *= norm; y[k] = sigma[k] * z[k] + d->bias[m * units + k]; }
                else
                    for (int64_t k = 0; k < units; k++) { z[k] *= norm; y[k] = sigma[k] * z[k]; }
            }
        }
    }
    EACH(d, m, a, count) product(count, units, n, x + a * n, 0, d->mean + m * n * units, 0, 1.0f, d->answers + a * units);
    if (d->gate_weight) mix_forward(rows, units, d->answers, d->weights, d->moved ? d->slot_of : NULL, d->out);
}

void dense_backward(Dense *d)
{
    const int64_t rows = d->rows, n = d->inputs, units = d->outputs, M = d->experts;
    const int local = !d->flipout && d->rho;
    const float *x = d->moved ? d->sorted : d->x;
    if (d->gate_weight)
        mix_backward(rows, units, d->g_out, d->answers, d->weights, d->moved ? d->rows_of : NULL, d->g_answers, d->g_weights);
    if (d->g_bias) memset(d->g_bias, 0, M * units * sizeof(float));
    if (!d->flipout && d->g_rho) memset(d->g_rho, 0, M * units * sizeof(float));
    if (d->g_bias || local) EACH(d, m, a, count) {
        const float *restrict sigma = d->sigma + m * units;
        float *restrict of_bias = d->g_bias + m * units, *restrict of_rho = d->g_rho + m * units;
        for (int64_t s = a; s < a + count; s++) {
            const float *restrict g = d->g_answers + s * units, *restrict z = d->noise + s * units;
            if (d->g_bias)
                for (int64_t k = 0; k < units; k++) of_bias[k] += g[k];
            if (local) {
                float along = 0.0f;
                for (int64_t k = 0; k < units; k++) {
                    const float t = g[k] * z[k] * sigma[k];
                    of_rho[k] += t;
                    along += t;
                }
                /* d(|x| sigma z) / dx = x / |x| * sigma z, and noise holds |x| z; an all-zero input has no noise to follow */
                const float square = d->norm[s] * d->norm[s];
                d->room[s] = along / (square > 1e-20f ? square : 1e-20f);
            }
        }
    }
    if (d->flipout) random_flip(rows * units, d->seed_out, 0, d->g_answers, d->turned);
    if (d->g_x) {
        float *to = d->moved ? d->g_sorted : d->g_x;
        EACH(d, m, a, count)
            product(count, n, units, d->g_answers + a * units, 0, d->mean + m * n * units, 1, 0.0f, to + a * n);
        if (d->flipout) {
            EACH(d, m, a, count)
                product(count, n, units, d->turned + a * units, 0, d->scaled + m * n * units, 1, 0.0f, d->room + a * n);
            random_flip(rows * n, d->seed_in, 1, d->room, to);
        } else if (local) {
            for (int64_t s = 0; s < rows; s++) {
                const float along = d->room[s], *restrict from = x + s * n;
                float *restrict row = to + s * n;
                for (int64_t k = 0; k < n; k++) row[k] += along * from[k];
            }
        }
        if (d->moved)
            for (int64_t s = 0; s < rows; s++) memcpy(d->g_x + d->rows_of[s] * n, to + s * n, n * sizeof(float));
    }
    if (d->gate_weight)
        gate_backward(rows, n, M, d->x, d->gate_weight, d->prior_weight, d->log_p, d->ratio, d->slot_of, d->choice, d->usage, d->g_weights,
                      d->g_usage, d->g_statistics, d->room, d->g_gate_weight, d->g_gate_bias, d->g_x);
}

/* -- a stack of small networks of dense layers with leaky ReLU between, in one call each way ---------------------------------------- */

/* The KLs of one layer's experts to their priors, with a sigma per unit, and their diversity */
typedef struct {
    int64_t inputs, outputs;
    const float *mean;  /* [copies * M, inputs, outputs] */
    float *rho;  /* log sigma [copies * M, outputs] */
    const float *raw;  /* NULL: rho is what is learned; else sigma = log(1 + exp(raw)), and rho is written forward */
    const float *prior_mean, *prior_log_sigma;
    float *width;  /* of the diversity's kernel, [copies]; where it is 0 it is measured */
    const float *usage;  /* [copies * M] */
    float *kl, *laplacian;  /* written forward: [copies * M], [copies, M, M] */
    float *g_usage, *g_mean, *g_rho, *g_bias;
    /* instead of KLs and diversity, UCL's sums (holds not NULL): [copies, outputs] twice, [copies, inputs + 1, outputs] twice */
    const float *bias, *old_bias, *holds, *certainties;
} Price;

typedef struct {
    int64_t layers, copies, experts, rows;
    int64_t learns;  /* whether there are prices and gradients of parameters */
    int64_t diverse;  /* whether the diversity is among them */
    int64_t stride;  /* of the rows of `given` */
    uint64_t seed;
    double slope, jitter;
    Dense *calls;  /* [layers, copies] */
    Price *prices;  /* [layers] */
    const float *given;  /* the inputs */
    float *x;  /* room for them */
    float *answers;  /* [rows, copies * outputs] */
    float *terms;  /* expert KL, gate KL, H(M|X), diversity, summed over layers and copies */
    const float *statistics;  /* of the calls */
    /* backward */
    const float *g_answers, *g_terms;
    float *g_statistics;
    float *g_x;  /* [rows, inputs] or NULL */
} Network;

/* KL = sum (mu - nu)^2 / (2 s^2) + inputs sum ((sigma / s)^2 - 1) / 2 - log (sigma / s) of expert e */
static double unit_kl(const Price *p, int64_t e)
{
    const int64_t n = p->inputs, units = p->outputs;
    const float *restrict rho = p->rho + e * units, *restrict prior = p->prior_log_sigma + e * units;
    float inverse[units], spread = 0.0f;
    double shift = 0.0;
    for (int64_t u = 0; u < units; u++) {
        const float twice = 2.0f * (rho[u] - prior[u]);
        inverse[u] = exponential(-2.0f * prior[u]);
        spread += exp_minus_one(twice) - twice;
    }
    for (int64_t i = 0; i < n; i++) {
        const float *restrict a = p->mean + (e * n + i) * units, *restrict b = p->prior_mean + (e * n + i) * units;
        float sum = 0.0f;
        for (int64_t u = 0; u < units; u++) sum += (a[u] - b[u]) * (a[u] - b[u]) * inverse[u];
        shift += sum;
    }
    return 0.5 * (shift + (double) n * spread);
}

static void sigmas(const Price *p, int64_t experts, int64_t first, float *restrict to)
{
    for (int64_t k = 0; k < experts * p->outputs; k++) to[k] = exponential(p->rho[first * p->outputs + k]);
}

/* The median heuristic: h^2 is the (lower) median of the squared distances */
static float median_width(int64_t M, const double (*distances)[M])
{
    double sorted[M * M];
    int64_t count = 0;
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = i + 1; j < M; j++) {
            int64_t k = count++;
            for (; k && sorted[k - 1] > distances[i][j]; k--) sorted[k] = sorted[k - 1];
            sorted[k] = distances[i][j];
        }
    const double median = sorted[(count - 1) / 2];
    return median > 0 ? (float) sqrt(median) : 1.0f;
}

/* log det(K + jitter I) of one copy's experts, K = exp(-W2^2 / (2 h^2)); the Laplacian of (K + jitter I)^-1 o K / (2 h^2) is kept */
static double kernel_log_determinant(const Price *p, int64_t M, int64_t copy, double jitter)
{
    const int64_t size = p->inputs * p->outputs, units = p->outputs;
    const float *mean = p->mean + copy * M * size;
    float sigma[M * units], *laplacian = p->laplacian + copy * M * M;
    double distances[M][M], kernel[M][M], root[M][M], inverse[M][M], value = 0.0;
    sigmas(p, M, copy * M, sigma);
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j <= i; j++) {
            const float *restrict a = mean + i * size, *restrict b = mean + j * size, *restrict s = sigma + i * units, *restrict t = sigma + j * units;
            float far = 0.0f, wide = 0.0f;
            for (int64_t k = 0; k < size; k++) far += (a[k] - b[k]) * (a[k] - b[k]);
            for (int64_t k = 0; k < units; k++) wide += (s[k] - t[k]) * (s[k] - t[k]);
            distances[i][j] = distances[j][i] = far + (double) p->inputs * wide;
        }
    if (p->width[copy] == 0.0f) p->width[copy] = median_width(M, distances);
    const double scale = 2.0 * p->width[copy] * p->width[copy];
    for (int64_t i = 0; i < M; i++)  /* Cholesky's root, row by row */
        for (int64_t j = 0; j <= i; j++) {
            kernel[i][j] = kernel[j][i] = exp(-distances[i][j] / scale);
            double rest = kernel[i][j] + (i == j ? jitter : 0.0);
            for (int64_t k = 0; k < j; k++) rest -= root[i][k] * root[j][k];
            root[i][j] = i == j ? sqrt(rest) : rest / root[j][j];
            if (i == j) value += 2.0 * log(root[i][i]);
        }
    for (int64_t c = 0; c < M; c++)  /* and its inverse, column by column */
        for (int64_t i = 0; i < M; i++) {
            double rest = i == c ? 1.0 : 0.0;
            for (int64_t k = c; k < i; k++) rest -= root[i][k] * inverse[k][c];
            inverse[i][c] = i < c ? 0.0 : rest / root[i][i];
        }
    for (int64_t i = 0; i < M; i++) {
        double sum = 0.0;
        for (int64_t j = 0; j < M; j++) {
            double both = 0.0;
            for (int64_t k = i > j ? i : j; k < M; k++) both += inverse[k][i] * inverse[k][j];
            const double attraction = i == j ? 0.0 : both * kernel[i][j] / scale;
            laplacian[i * M + j] = (float) -attraction;
            sum += attraction;
        }
        laplacian[i * M + i] = (float) sum;
    }
    return value;
}

/* Gradients of an expert's means: those of its KL, which has this weight, and of the diversity (NULL: none) */
static void price_of_means(const Price *p, int64_t M, int64_t e, float weight, const float *push)
{
    const int64_t n = p->inputs, units = p->outputs, size = n * units, first = e / M * M;
    float inverse[units], *restrict to = p->g_mean + e * size;
    for (int64_t u = 0; u < units; u++) inverse[u] = weight * exponential(-2.0f * p->prior_log_sigma[e * units + u]);
    for (int64_t i = 0; i < n; i++) {
        const float *restrict a = p->mean + e * size + i * units, *restrict b = p->prior_mean + e * size + i * units;
        for (int64_t u = 0; u < units; u++) to[i * units + u] = (a[u] - b[u]) * inverse[u];
    }
    if (!push) return;
    for (int64_t j = 1; j < M; j++) {  /* distances do not see a common shift, single precision does: as seen from the first */
        const float *restrict a = p->mean + (first + j) * size, *restrict b = p->mean + first * size, by = push[j];
        for (int64_t k = 0; k < size; k++) to[k] += by * (a[k] - b[k]);
    }
}

/* The same of its log sigmas, added to what is there */
static void price_of_sigmas(const Price *p, int64_t M, int64_t e, float weight, const float *push)
{
    const int64_t units = p->outputs, first = e / M * M;
    const float *restrict rho = p->rho + e * units, *restrict prior = p->prior_log_sigma + e * units, many = p->inputs;
    float *restrict to = p->g_rho + e * units;
    for (int64_t u = 0; u < units; u++) to[u] += weight * many * exp_minus_one(2.0f * (rho[u] - prior[u]));
    if (!push) return;
    float sigma[M * units];
    sigmas(p, M, first, sigma);
    for (int64_t j = 1; j < M; j++)
        for (int64_t u = 0; u < units; u++)
            to[u] += many * push[j] * (sigma[j * units + u] - sigma[u]) * sigma[(e - first) * units + u];
}

/* Row i of a copy's means, the bias being the last */
#define HELD_ROW(weights, bias) (i < n ? (weights) + (e * n + i) * units : (bias) + e * units)

/* UCL's sums of a copy: h (mu - mu')^2, c |mu - mu'|, r - log r + sigma^2 - log sigma^2 with r = (sigma / sigma')^2 */
static void held_terms(const Price *p, int64_t e, double *terms)
{
    const int64_t n = p->inputs, units = p->outputs;
    for (int64_t i = 0; i <= n; i++) {
        const float *restrict a = HELD_ROW(p->mean, p->bias), *restrict b = HELD_ROW(p->prior_mean, p->old_bias);
        const float *restrict h = p->holds + (e * (n + 1) + i) * units, *restrict c = p->certainties + (e * (n + 1) + i) * units;
        float squares = 0.0f, magnitudes = 0.0f;
        for (int64_t u = 0; u < units; u++) {
            const float shift = a[u] - b[u];
            squares += h[u] * shift * shift;
            magnitudes += c[u] * fabsf(shift);
        }
        terms[0] += squares;
        terms[1] += magnitudes;
    }
    for (int64_t u = e * units; u < (e + 1) * units; u++) {
        const float variance = 2.0f * p->rho[u], ratio = variance - 2.0f * p->prior_log_sigma[u];  /* their logarithms */
        terms[2] += exponential(ratio) - ratio + exponential(variance) - variance;
    }
}

/* Their gradients with these weights, added to what is there */
static void held_gradients(const Price *p, int64_t e, const float *weights)
{
    const int64_t n = p->inputs, units = p->outputs;
    const float twice = 2.0f * weights[0], once = weights[1];
    for (int64_t i = 0; i <= n; i++) {
        const float *restrict a = HELD_ROW(p->mean, p->bias), *restrict b = HELD_ROW(p->prior_mean, p->old_bias);
        const float *restrict h = p->holds + (e * (n + 1) + i) * units, *restrict c = p->certainties + (e * (n + 1) + i) * units;
        float *restrict to = HELD_ROW(p->g_mean, p->g_bias);
        for (int64_t u = 0; u < units; u++) {
            const float shift = a[u] - b[u];
            to[u] += twice * h[u] * shift + once * c[u] * (float) ((shift > 0.0f) - (shift < 0.0f));
        }
    }
    for (int64_t u = e * units; u < (e + 1) * units; u++) {
        const float variance = 2.0f * p->rho[u], ratio = variance - 2.0f * p->prior_log_sigma[u];
        p->g_rho[u] += 2.0f * weights[2] * (exp_minus_one(ratio) + exp_minus_one(variance));
    }
}

/* rho = log sigma, sigma = log(1 + exp(raw)); as in torch, above 20 sigma is raw, and below -30 rho is raw */
static void softplus_forward(const Price *p, int64_t count)
{
    for (int64_t k = 0; k < count; k++) {
        const float raw = p->raw[k];
        p->rho[k] = raw < -30.0f ? raw : logf(raw > 20.0f ? raw : log1pf(expf(raw)));
    }
}

/* d rho / d raw = (1 - exp(-sigma)) / sigma */
static void softplus_backward(const Price *p, int64_t count)
{
    for (int64_t k = 0; k < count; k++) {
        const float sigma = expf(p->rho[k]);
        if (sigma > 0.0f) p->g_rho[k] *= -expm1f(-sigma) / sigma;
    }
}

void network_forward(Network *a)
{
    const int64_t rows = a->rows, copies = a->copies, M = a->experts, n = a->calls->inputs;
    const Dense *last = a->calls + (a->layers - 1) * copies;
    const float slope = a->slope;
    uint64_t seed = a->seed;
    for (int64_t i = 0; i < rows; i++) memcpy(a->x + i * n, a->given + i * a->stride, n * sizeof(float));
    for (const Price *p = a->prices; p < a->prices + a->layers; p++)
        if (p->raw && (a->learns || a->calls->rho)) softplus_forward(p, copies * M * p->outputs);
    for (Dense *d = a->calls; d < last + copies; d++) {
        d->seed = ++seed;
        dense_forward(d);
        float *restrict out = d->out;
        if (d < last)
            for (int64_t k = 0; k < rows * d->outputs; k++) out[k] = out[k] > 0.0f ? out[k] : slope * out[k];
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < copies; c++)
            for (int64_t k = 0; k < last->outputs; k++)
                a->answers[(i * copies + c) * last->outputs + k] = last[c].out[i * last->outputs + k];
    if (!a->learns) return;
    double terms[4] = { 0 };
    for (int64_t l = 0; l < a->layers; l++) {
        const Price *p = a->prices + l;
        for (int64_t c = 0; p->holds && c < copies; c++) held_terms(p, c, terms);
        if (p->holds) continue;
        for (int64_t e = 0; e < copies * M; e++) terms[0] += p->usage[e] * (p->kl[e] = (float) unit_kl(p, e));
        for (int64_t c = 0; c < copies; c++) {
            terms[1] += a->statistics[3 * (l * copies + c)];
            terms[2] += a->statistics[3 * (l * copies + c) + 1];
            if (a->diverse) terms[3] += kernel_log_determinant(p, M, c, a->jitter);
        }
    }
    for (int k = 0; k < 4; k++) a->terms[k] = (float) terms[k];
}

void network_backward(Network *a)
{
    const int64_t rows = a->rows, copies = a->copies, M = a->experts, n = a->calls->inputs;
    const Dense *last = a->calls + (a->layers - 1) * copies;
    const float slope = a->slope;
    float push[copies * M * M];
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < copies; c++)
            for (int64_t k = 0; k < last->outputs; k++)
                ((float *) last[c].g_out)[i * last->outputs + k] = a->g_answers[(i * copies + c) * last->outputs + k];
    if (a->learns) {
        a->g_statistics[0] = a->g_terms[1]; a->g_statistics[1] = a->g_terms[2]; a->g_statistics[2] = 0.0f;
    }
    for (int64_t l = a->layers - 1; l >= 0; l--) {
        const Price *p = a->learns ? a->prices + l : NULL;
        for (int64_t k = 0; p && a->diverse && k < copies * M * M; k++) push[k] = -4.0f * a->g_terms[3] * p->laplacian[k];
        for (int64_t e = 0; p && e < copies * M; e++) {
            if (p->holds) {
                memset(p->g_mean + e * p->inputs * p->outputs, 0, p->inputs * p->outputs * sizeof(float));
                continue;
            }
            p->g_usage[e] = a->g_terms[0] * p->kl[e];
            price_of_means(p, M, e, a->g_terms[0] * p->usage[e], a->diverse ? push + e * M : NULL);
        }
        for (int64_t c = 0; c < copies; c++) {
            Dense *d = a->calls + l * copies + c;
            float *g_x = d->g_x;
            if (!l && !a->g_x) d->g_x = NULL;
            dense_backward(d);
            d->g_x = g_x;
            if (p) {
                const float *x = d->moved ? d->sorted : d->x;
                float *to = p->g_mean + c * M * d->inputs * d->outputs;
                EACH(d, m, from, count)
                    product(d->inputs, d->outputs, count, x + from * d->inputs, 1, d->g_answers + from * d->outputs, 0, 1.0f,
                            to + m * d->inputs * d->outputs);
            }
        }
        for (int64_t c = 0; l && c < copies; c++) {  /* only now: the gradients of different layers' answers may share their memory */
            const Dense *d = a->calls + l * copies + c, *before = d - copies;
            const float *restrict g = d->g_x, *restrict out = before->out;
            float *restrict to = (float *) before->g_out;
            for (int64_t k = 0; k < rows * d->inputs; k++) to[k] = out[k] > 0.0f ? g[k] : slope * g[k];
        }
        for (int64_t e = 0; p && e < copies * M; e++) {
            if (p->holds) held_gradients(p, e, a->g_terms);
            else price_of_sigmas(p, M, e, a->g_terms[0] * p->usage[e], a->diverse ? push + e * M : NULL);
        }
        if (p && p->raw) softplus_backward(p, copies * M * p->outputs);
    }
    if (!a->g_x) return;
    memcpy(a->g_x, a->calls->g_x, rows * n * sizeof(float));
    for (int64_t c = 1; c < copies; c++) {
        const float *restrict g = a->calls[c].g_x;
        float *restrict to = a->g_x;
        for (int64_t k = 0; k < rows * n; k++) to[k] += g[k];
    }
}

/* -- the same of plain layers -------------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t layers, copies, rows;
    int64_t stride;  /* of the rows of x */
    double slope;
    const int64_t *sizes;  /* [layers + 1], of one copy */
    const float *const *parameters;  /* of each layer weight and bias: [in, copies * out] in the first, [copies, in, out] after; [copies * out] */
    const float *x;
    float *hidden;  /* [rows, copies * units] of each layer but the last, one after another */
    float *answers;  /* [rows, copies * outputs] */
    /* backward */
    const float *g_answers;
    float *const *gradients;  /* of the parameters, or NULL */
    float *room;  /* 2 rows * copies * widest hidden layer */
    float *g_x;  /* or NULL */
} Chain;

void chain_forward(const Chain *d)
{
    const int64_t rows = d->rows, copies = d->copies;
    const float *from = d->x, slope = d->slope;
    float *next = d->hidden;
    for (int64_t l = 0; l < d->layers; l++) {
        const int64_t in = d->sizes[l], out = d->sizes[l + 1], width = copies * out;
        const float *weight = d->parameters[2 * l], *bias = d->parameters[2 * l + 1];
        float *restrict to = l == d->layers - 1 ? d->answers : next;
        for (int64_t i = 0; i < rows; i++) memcpy(to + i * width, bias, width * sizeof(float));
        if (l == 0)
            product_of_parts(rows, width, in, from, d->stride, 0, weight, width, 0, 1.0f, to, width);
        else
            for (int64_t c = 0; c < copies; c++)
                product_of_parts(rows, out, in, from + c * in, copies * in, 0, weight + c * in * out, out, 0, 1.0f, to + c * out, width);
        if (to == d->answers) return;
        for (int64_t k = 0; k < rows * width; k++) to[k] = to[k] > 0.0f ? to[k] : slope * to[k];
        from = to;
        next += rows * width;
    }
}

void chain_backward(const Chain *d)
{
    const int64_t rows = d->rows, copies = d->copies;
    const float *g = d->g_answers, *after = d->hidden, slope = d->slope;
    int64_t widest = 0;
    for (int64_t l = 1; l < d->layers; l++) {
        after += rows * copies * d->sizes[l];
        widest = d->sizes[l] > widest ? d->sizes[l] : widest;
    }
    for (int64_t l = d->layers - 1; l >= 0; l--) {
        const int64_t in = d->sizes[l], out = d->sizes[l + 1], width = copies * out, apart = l ? copies * in : d->stride;
        const float *weight = d->parameters[2 * l], *restrict h = l ? after -= rows * copies * in : d->x;
        if (d->gradients) {
            float *of_weight = d->gradients[2 * l], *restrict of_bias = d->gradients[2 * l + 1];
            memset(of_bias, 0, width * sizeof(float));
            for (int64_t i = 0; i < rows; i++)
                for (int64_t k = 0; k < width; k++) of_bias[k] += g[i * width + k];
            if (l == 0)
                product_of_parts(in, width, rows, h, apart, 1, g, width, 0, 0.0f, of_weight, width);
            else
                for (int64_t c = 0; c < copies; c++)
                    product_of_parts(in, out, rows, h + c * in, apart, 1, g + c * out, width, 0, 0.0f, of_weight + c * in * out, out);
        }
        if (l == 0) {
            if (d->g_x) product_of_parts(rows, in, width, g, width, 0, weight, width, 1, 0.0f, d->g_x, in);
            return;
        }
        float *restrict to = d->room + (l & 1) * rows * copies * widest;
        for (int64_t c = 0; c < copies; c++)
            product_of_parts(rows, in, out, g + c * out, width, 0, weight + c * in * out, out, 1, 0.0f, to + c * in, apart);
        for (int64_t k = 0; k < rows * apart; k++) to[k] = h[k] > 0.0f ? to[k] : slope * to[k];
        g = to;
    }
}

/* -- the squashed Gaussian a = tanh(u), u = mu + sigma eps: see hvcl.rl.squashed ------------------------------------------------------- */

/* outputs [rows, 2 n] are mu and log sigma (held between low and high), noise is eps; rows of the mask are `apart` numbers apart. Out: actions,
 * zero where the mask is, log densities [rows], and for the way back tanh(u) and sigma eps (kept [2, rows, n]).
 * With e = exp(-2 |u|) - 1, tanh |u| = -e / (2 + e) and log(1 - tanh(u)^2) = 2 (log 2 - |u| - log(2 + e)). */
void squash_forward(
    ptrdiff_t rows, ptrdiff_t n, double low, double high, const float *restrict outputs, const float *restrict noise, const float *restrict mask,
    ptrdiff_t apart, float *restrict action, float *restrict density, float *restrict kept)
{
    const float least = low, most = high;
    for (ptrdiff_t i = 0; i < rows; i++) {
        float sum = 0.0f;
        for (ptrdiff_t k = 0; k < n; k++) {
            const float raw = outputs[(2 * i + 1) * n + k], log_sigma = raw < least ? least : raw > most ? most : raw;
            const float eps = noise[i * n + k], scaled = exponential(log_sigma) * eps, u = outputs[2 * i * n + k] + scaled, size = fabsf(u);
            const float e = exp_minus_one(-2.0f * size), along = copysignf(-e / (2.0f + e), u), m = mask[i * apart + k];
            kept[i * n + k] = along; kept[(rows + i) * n + k] = scaled;
            action[i * n + k] = along * m;
            sum += m * (2.0f * (size + logarithm(2.0f + e)) - log_sigma - 0.5f * eps * eps - 2.30523289f);  /* log(2 pi) / 2 + 2 log 2 */
        }
        density[i] = sum;
    }
}

/* Gradient of the outputs from those of actions, whose rows are of_apart numbers apart, and densities */
void squash_backward(
    ptrdiff_t rows, ptrdiff_t n, double low, double high, const float *restrict outputs, const float *restrict mask, ptrdiff_t apart,
    const float *restrict kept, const float *restrict of_action, ptrdiff_t of_apart, const float *restrict of_density, float *restrict g)
{
    const float least = low, most = high;
    for (ptrdiff_t i = 0; i < rows; i++)
        for (ptrdiff_t k = 0; k < n; k++) {
            const float a = kept[i * n + k], m = mask[i * apart + k], raw = outputs[(2 * i + 1) * n + k];
            const float of_mean = m * (of_action[i * of_apart + k] * (1.0f - a * a) + of_density[i] * 2.0f * a);
            g[2 * i * n + k] = of_mean;
            g[(2 * i + 1) * n + k] = raw < least || raw > most ? 0.0f : of_mean * kept[(rows + i) * n + k] - of_density[i] * m;
        }
}

/* -- sums over a complete binary tree: see hvcl.rl.sum_tree ------------------------------------------------------------------------------ */

/* The sums above some nodes anew, level by level; the nodes' numbers are overwritten */
void tree_update(ptrdiff_t count, ptrdiff_t levels, int64_t *restrict at, double *nodes)
{
    for (ptrdiff_t l = 0; l < levels; l++)
        for (ptrdiff_t i = 0; i < count; i++) {
            const int64_t node = at[i] >>= 1;
            nodes[node] = nodes[2 * node] + nodes[2 * node + 1];
        }
}

/* From the root down to the leaf at which the running sum first exceeds each of `masses`, which are overwritten */
void tree_find(ptrdiff_t count, ptrdiff_t levels, int64_t root, const double *restrict nodes, double *restrict masses, int64_t *restrict found)
{
    for (ptrdiff_t i = 0; i < count; i++) found[i] = root;
    for (ptrdiff_t l = 0; l < levels; l++)
        for (ptrdiff_t i = 0; i < count; i++) {
            const double left = nodes[2 * found[i]];
            const int right = masses[i] >= left;
            masses[i] -= right ? left : 0.0;
            found[i] = 2 * found[i] + right;
        }
}

/* -- a convolutional layer in one call each way: patches, the experts' products, noise, mixing ----------------------------------------
 *
 * Examples are taken in chunks, small enough for the cache, that belong to one expert each. A chunk is transposed, so that its examples are
 * side by side: whatever is done at one place is then done to a row of memory. Its patches make a matrix [channels * kernel, places * examples];
 * the rest is products and passes along rows. Kept for the backward pass are answers and noise, chunk by chunk as [units, places * examples];
 * the patches are made again. */

typedef struct {
    int64_t rows, channels, height, width, units, out_height, out_width, experts;
    int64_t kernel_height, kernel_width, stride_height, stride_width, padding_height, padding_width, dilation_height, dilation_width;
    int64_t flipout;  /* 1: flipout with a sigma per weight; 0: local reparameterisation with a sigma per unit */
    int64_t chunk;  /* examples at a time, at most */
    uint64_t seed, seed_in, seed_out;
    const float *x, *mean, *bias, *rho;  /* [rows, channels, height, width], [M, units, channels, kernel], [M, units] or NULL */
    const float *weights;  /* of the answers, in slot order, or NULL: 1 */
    const int64_t *rows_of;  /* slot to row, or NULL: they are the same */
    const int64_t *starts;  /* first slot of every expert, and the end */
    float *out;  /* [rows, units, places] */
    float *answers, *noise;  /* rows * units * places each; noise for local only */
    float *norm, *sigma;  /* local: |patch| [rows * places], exp(rho) [M, units] */
    float *shared, *scaled, *signs_in, *signs_out;  /* flipout: draw [n], sigma times it [M, n], signs, rows * channels and rows * units */
    float *images;  /* chunk * channels * height * width numbers */
    float *patches, *more;  /* chunk * channels * kernel * places numbers each */
    float *room;  /* chunk * units * places + chunk * places numbers */
    /* backward */
    const float *g_out;
    float *g_answers, *g_weights, *g_mean, *g_noise, *g_bias, *g_rho;  /* room for a chunk; [rows]; like mean, like mean, [M, units] twice */
    float *g_x;  /* or NULL */
} Conv;

/* Fair signs +-1 */
static void random_signs(int64_t n, uint64_t seed, float *out)
{
    static const float one[1024] = { [0 ... 1023] = 1.0f };
    for (int64_t i = 0; i < n; i += 1024) random_flip(n - i < 1024 ? n - i : 1024, splitmix(&seed), 0, one, out + i);
}

/* Examples of `size` numbers, wherever their rows are, to columns: to[j, i] = from[row of i, j] */
ONE_COPY void to_columns(int64_t count, int64_t size, const float *from, const int64_t *rows, int64_t first, float *to)
{
    for (int64_t start = 0; start < size; start += 16) {
        const int64_t stop = size - start < 16 ? size : start + 16;
        for (int64_t i = 0; i < count; i++) {
            const float *restrict row = from + (rows ? rows[first + i] : first + i) * size;
            for (int64_t j = start; j < stop; j++) to[j * count + i] = row[j];
        }
    }
}

/* and back: to[row of i, j] = from[j, i] scale[i] (1 without scale) */
ONE_COPY void to_rows(int64_t count, int64_t size, const float *from, const float *scale, const int64_t *rows, int64_t first, float *to)
{
    for (int64_t start = 0; start < size; start += 16) {
        const int64_t stop = size - start < 16 ? size : start + 16;
        for (int64_t i = 0; i < count; i++) {
            float *restrict row = to + (rows ? rows[first + i] : first + i) * size;
            const float by = scale ? scale[i] : 1.0f;
            for (int64_t j = start; j < stop; j++) row[j] = by * from[j * count + i];
        }
    }
}

/* All patches of transposed images, or, if `back`, the patches added to where they came from */
ONE_COPY void move_patches(const Conv *d, int64_t count, int back, float *images, float *patches)
{
    float *restrict to = patches;
    for (int64_t c = 0; c < d->channels; c++)
        for (int64_t kh = 0; kh < d->kernel_height; kh++)
            for (int64_t kw = 0; kw < d->kernel_width; kw++)
                for (int64_t oh = 0; oh < d->out_height; oh++)
                    for (int64_t ow = 0; ow < d->out_width; ow++, to += count) {
                        const int64_t ih = oh * d->stride_height + kh * d->dilation_height - d->padding_height;
                        const int64_t iw = ow * d->stride_width + kw * d->dilation_width - d->padding_width;
                        const int inside = ih >= 0 && ih < d->height && iw >= 0 && iw < d->width;
                        float *restrict from = images + ((c * d->height + (inside ? ih : 0)) * d->width + (inside ? iw : 0)) * count;
                        if (back && inside)
                            for (int64_t i = 0; i < count; i++) from[i] += to[i];
                        else if (inside)
                            for (int64_t i = 0; i < count; i++) to[i] = from[i];
                        else if (!back)
                            for (int64_t i = 0; i < count; i++) to[i] = 0.0f;
                    }
}

/* out[k, p, i] = x[k, p, i] signs[k / share, i], or, if `add`, that is added */
ONE_COPY void flip_columns(
    int64_t rows, int64_t places, int64_t count, int add, const float *x, const float *signs, int64_t share, float *out)
{
    for (int64_t k = 0; k < rows * places; k++) {
        const float *restrict from = x + k * count, *restrict sign = signs + k / places / share * count;
        float *restrict to = out + k * count;
        if (add) for (int64_t i = 0; i < count; i++) to[i] += sign[i] * from[i];
        else for (int64_t i = 0; i < count; i++) to[i] = sign[i] * from[i];
    }
}

#define CHUNKS(d, m, a, count) \
    for (int64_t m = 0; m < d->experts; m++) \
        for (int64_t a = d->starts[m], count; a < d->starts[m + 1] \
             && (count = d->starts[m + 1] - a < d->chunk ? d->starts[m + 1] - a : d->chunk, 1); a += count)

void conv_forward(Conv *d)
{
    const int64_t places = d->out_height * d->out_width, size = d->channels * d->height * d->width, units = d->units;
    const int64_t share = d->kernel_height * d->kernel_width, inputs = d->channels * share;
    if (d->flipout) {
        standard_normals(units * inputs, d->seed, d->shared);
        random_signs(d->rows * d->channels, d->seed_in, d->signs_in);
        random_signs(d->rows * units, d->seed_out, d->signs_out);
        for (int64_t m = 0; m < d->experts; m++)
            if (d->starts[m] < d->starts[m + 1]) scale_noise(units * inputs, d->rho + m * units * inputs, d->shared, d->scaled + m * units * inputs);
    } else {
        standard_normals(d->rows * units * places, d->seed, d->noise);
        for (int64_t k = 0; k < d->experts * units; k++) d->sigma[k] = exponential(d->rho[k]);
    }
    CHUNKS(d, m, a, count) {
        const int64_t n = count * places;
        float *answers = d->answers + a * units * places;
        to_columns(count, size, d->x, d->rows_of, a, d->images);
        move_patches(d, count, 0, d->images, d->patches);
        if (d->flipout) {
            flip_columns(inputs, places, count, 0, d->patches, d->signs_in + a * d->channels, share, d->more);
            product(units, n, inputs, d->scaled + m * units * inputs, 0, d->more, 0, 0.0f, d->room);
            flip_columns(units, places, count, 0, d->room, d->signs_out + a * units, 1, answers);
        } else {
            float *restrict norm = d->norm + a * places;
            for (int64_t i = 0; i < n; i++) norm[i] = 0.0f;
            for (int64_t k = 0; k < inputs; k++) {
                const float *restrict row = d->patches + k * n;
                for (int64_t i = 0; i < n; i++) norm[i] += row[i] * row[i];
            }
            for (int64_t i = 0; i < n; i++) norm[i] = sqrtf(norm[i]);
        }
        for (int64_t u = 0; u < units; u++) {
            const float bias = d->bias ? d->bias[m * units + u] : 0.0f;
            float *restrict y = answers + u * n;
            if (d->flipout)
                for (int64_t i = 0; i < n; i++) y[i] += bias;
            else {
                const float sigma = d->sigma[m * units + u], *restrict norm = d->norm + a * places;
                float *restrict z = d->noise + a * units * places + u * n;
                for (int64_t i = 0; i < n; i++) { z[i] *= norm[i]; y[i] = sigma * z[i] + bias; }
            }
        }
        product(units, n, inputs, d->mean + m * units * inputs, 0, d->patches, 0, 1.0f, answers);
        to_rows(count, units * places, answers, d->weights ? d->weights + a : NULL, d->rows_of, a, d->out);
    }
}

void conv_backward(Conv *d)
{
    const int64_t places = d->out_height * d->out_width, size = d->channels * d->height * d->width, units = d->units;
    const int64_t share = d->kernel_height * d->kernel_width, inputs = d->channels * share;
    if (d->g_bias) memset(d->g_bias, 0, d->experts * units * sizeof(float));
    if (!d->flipout) memset(d->g_rho, 0, d->experts * units * sizeof(float));
    CHUNKS(d, m, a, count) {
        const int64_t n = count * places, o = m * units * inputs;
        const float beta = a == d->starts[m] ? 0.0f : 1.0f, *answers = d->answers + a * units * places;
        float *g = d->g_answers, *restrict along = d->room + d->chunk * units * places;
        to_columns(count, size, d->x, d->rows_of, a, d->images);
        move_patches(d, count, 0, d->images, d->patches);
        to_columns(count, units * places, d->g_out, d->rows_of, a, g);
        if (d->weights) {
            const float *restrict weights = d->weights + a;
            float *restrict dots = d->g_weights + a;
            for (int64_t i = 0; i < count; i++) dots[i] = 0.0f;
            for (int64_t k = 0; k < units * places; k++) {
                const float *restrict y = answers + k * count;
                float *restrict of = g + k * count;
                for (int64_t i = 0; i < count; i++) { dots[i] += of[i] * y[i]; of[i] *= weights[i]; }
            }
        }
        if (!d->flipout)
            for (int64_t i = 0; i < n; i++) along[i] = 0.0f;
        for (int64_t u = 0; u < units; u++) {
            const float *restrict of = g + u * n;
            float sum = 0.0f, spread = 0.0f;
            for (int64_t i = 0; i < n; i++) sum += of[i];
            if (d->g_bias) d->g_bias[m * units + u] += sum;
            if (!d->flipout) {
                const float sigma = d->sigma[m * units + u], *restrict z = d->noise + a * units * places + u * n;
                for (int64_t i = 0; i < n; i++) { const float t = of[i] * z[i] * sigma; spread += t; along[i] += t; }
                d->g_rho[m * units + u] += spread;
            }
        }
        product(units, inputs, n, g, 0, d->patches, 1, beta, d->g_mean + o);
        if (d->g_x && !d->flipout) {
            const float *restrict norm = d->norm + a * places;
            for (int64_t i = 0; i < n; i++) {
                const float square = norm[i] * norm[i];
                along[i] /= square > 1e-20f ? square : 1e-20f;
            }
            for (int64_t k = 0; k < inputs; k++) {  /* what the patches' norms add to their gradient takes the place of the patches */
                float *restrict row = d->patches + k * n;
                for (int64_t i = 0; i < n; i++) row[i] *= along[i];
            }
            product(inputs, n, units, d->mean + o, 1, g, 0, 1.0f, d->patches);
        }
        if (d->flipout) {
            flip_columns(units, places, count, 0, g, d->signs_out + a * units, 1, d->room);
            flip_columns(inputs, places, count, 0, d->patches, d->signs_in + a * d->channels, share, d->more);
            product(units, inputs, n, d->room, 0, d->more, 1, beta, d->g_noise + o);
            if (d->g_x) {
                product(inputs, n, units, d->mean + o, 1, g, 0, 0.0f, d->patches);
                product(inputs, n, units, d->scaled + o, 1, d->room, 0, 0.0f, d->more);
                flip_columns(inputs, places, count, 1, d->more, d->signs_in + a * d->channels, share, d->patches);
            }
        }
        if (d->g_x) {
            memset(d->images, 0, count * size * sizeof(float));
            move_patches(d, count, 1, d->images, d->patches);
            to_rows(count, size, d->images, NULL, d->rows_of, a, d->g_x);
        }
    }
}
