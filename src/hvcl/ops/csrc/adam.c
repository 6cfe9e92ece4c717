/* One step of Adam for posteriors of experts: KL gradient, step, and the KL to the prior after it, in one pass over the weights. */
#include "hvcl.h"

typedef struct {
    double rate;       /* learning rate / (1 - beta1^t) */
    double beta1, beta2;
    double root;       /* 1 / sqrt(1 - beta2^t) */
    double epsilon;
    double kl_weight;  /* d loss / d KL of this expert */
    double sigma_rate; /* step size of log sigmas over that of means */
    double more, first;  /* precisions of priors beyond `first` count 1 + `more` times where they hold means */
} Adam;

/* What holds a mean, of the precision of its prior */
static inline float held(float precision, float more, float first)
{
    return precision + more * (precision > first ? precision - first : 0.0f);
}

#define BLOCK 256  /* weights whose KL is summed up in single precision */
static const float zeros[BLOCK];

/* Weights with a sigma = exp(rho) each. g_noise is d loss / d (sigma * shared) (mode 0, flipout) or d loss / d sigma^2 (mode 1, local
 * reparameterisation). Gradients may be NULL: an expert that saw no example has none. Arrays do not overlap.
 *
 * With s = sigma / prior sigma, the KL after a step of size t has exp(2 (rho - t - prior)) = s^2 exp(-2 t): a few terms of the series for the
 * small steps that there usually are, the exponential where a step of the block is large. */
ONE_COPY double variational_expert(
    int64_t n, const Adam *a, int mode,
    float *restrict mean, const float *restrict g_mean, float *restrict m1, float *restrict v1,
    const float *restrict prior_mean,
    float *restrict rho, const float *restrict g_rho, const float *restrict g_noise, const float *restrict shared,
    float *restrict m2, float *restrict v2, const float *restrict prior_log_sigma)
{
    const float rate = a->rate, beta2 = a->beta2, root = a->root, epsilon = a->epsilon, w = a->kl_weight;
    const float c1 = 1.0 - a->beta1, c2 = 1.0 - a->beta2, rate_of_sigmas = a->rate * a->sigma_rate, more = a->more, first = a->first;
    double kl = 0.0;
    for (int64_t start = 0; start < n; start += BLOCK) {
        const int64_t count = n - start < BLOCK ? n - start : BLOCK;
        const float *restrict gm = g_mean ? g_mean + start : zeros, *restrict gr = g_rho ? g_rho + start : zeros;
        const float *restrict gn = g_noise ? g_noise + start : zeros, *restrict sh = g_noise && mode == 0 ? shared + start : zeros;
        float shift = 0.0f, spread = 0.0f, largest = 0.0f;
        for (int64_t j = 0; j < count; j++) {
            const int64_t i = start + j;
            const float prior = prior_log_sigma[i], before = rho[i], inverse = exponential(-prior), s = exponential(before - prior);
            const float sigma = s / inverse, excess = s * s - 1.0f;
            const float h = gn[j] * (mode ? 2.0f * sigma : sh[j]) * sigma + gr[j] + w * excess;
            const float p = m2[i] + c1 * (h - m2[i]), q = beta2 * v2[i] + c2 * h * h;
            const float t = rate_of_sigmas * p / (sqrtf(q) * root + epsilon), r = before - t, u = -2.0f * t;
            rho[i] = r; m2[i] = p; v2[i] = q;
            largest = fabsf(t) > largest ? fabsf(t) : largest;
            spread += 0.5f * (excess + (excess + 1.0f) * u * (1.0f + u * (0.5f + u * (1.0f / 6 + u * (1.0f / 24))))) - (r - prior);
            const float k = held(inverse * inverse, more, first), g = gm[j] + w * (mean[i] - prior_mean[i]) * k;
            const float m = m1[i] + c1 * (g - m1[i]), v = beta2 * v1[i] + c2 * g * g;
            const float mu = mean[i] - rate * m / (sqrtf(v) * root + epsilon), d = mu - prior_mean[i];
            mean[i] = mu; m1[i] = m; v1[i] = v;
            shift += 0.5f * d * d * k;
        }
        if (!(largest < 0.02f)) {
            spread = 0.0f;
            for (int64_t i = start; i < start + count; i++) {
                const float d = rho[i] - prior_log_sigma[i];
                spread += 0.5f * exp_minus_one(2.0f * d) - d;
            }
        }
        kl += shift + spread;
    }
    return kl;
}

/* Means of weights [outer, units, inner] whose sigma belongs to the output unit, `inverse` of each unit what holds them: 1 / (prior sigma)^2,
 * or more. Returns the means' part of the KL after the step, sum d^2 / (2 s^2). */
ONE_COPY double mean_expert(
    int64_t outer, int64_t units, int64_t inner, const Adam *a,
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
    for (int64_t o = 0; o < outer; o++) {
        const int64_t row = o * units * inner;
        if (inner == 1) {
            float part = 0.0f;
            for (int64_t u = 0; u < units; u++) STEP(row + u, inverse[u]);
            kl += part;
        } else {
            for (int64_t u = 0; u < units; u++) {
                const int64_t start = row + u * inner;
                const float k = inverse[u];
                float part = 0.0f;
                for (int64_t i = start; i < start + inner; i++) STEP(i, k);
                kl += part;
            }
        }
    }
    return 0.5 * kl;
}

/* Weights whose gradients are multiplied out at a time: they stay in the second-level cache until they are used */
#define PIECE 16384

/* A piece of one expert's weights: from `from` on, `count` of them */
typedef struct { int64_t expert, from, count; } Piece;

/* The gradient of a piece, from the expert's slots (NULL: it has none) and `more` (or NULL), in `room` if need be */
static const float *gathered(
    const Experts *x, Piece w, const float *dense, const float *left, const float *right, const float *more, float *room)
{
    const Products *p = x->products;
    const int64_t at = w.expert * x->size + w.from;
    more = more ? more + at : NULL;
    if (!p) {
        dense = dense ? dense + at : NULL;
        if (!dense || !more) return dense ? dense : more;
        for (int64_t i = 0; i < w.count; i++) room[i] = dense[i] + more[i];
        return room;
    }
    const int64_t each = x->experts / p->copies, c = w.expert / each, *starts = p->starts + c * (each + 1) + w.expert % each;
    const int64_t a = c * p->slots + starts[0], slots = starts[1] - starts[0];
    if (!slots || !left) return more;
    if (more) memcpy(room, more, w.count * sizeof(float));
    product_of_parts(w.count / p->outputs, p->outputs, slots, left + a * p->inputs + w.from / p->outputs, p->inputs, 1, right + a * p->outputs,
                     p->outputs, 0, more ? 1.0f : 0.0f, room, p->outputs);
    return room;
}

/* The step of a piece; returns the KL after it (a sigma per unit: the means' part of it) */
static double step_piece(const Experts *x, Piece w, const Adam *step)
{
    const Products *p = x->products;
    const int64_t at = w.expert * x->size + w.from, outputs = p ? p->outputs : 1;
    float *room = x->room;
    const float *g_mean = gathered(x, w, x->g_mean, p ? p->left : NULL, p ? p->right : NULL, x->more_mean, room);
    if (x->outer) {
        const int64_t row = x->units * x->inner;
        return mean_expert(w.count / row, x->units, x->inner, step, x->mean + at, g_mean, x->first_mean + at, x->second_mean + at,
                           x->prior_mean + at, room + x->size);
    }
    const float *g_noise = gathered(x, w, x->g_noise, p ? p->noise_left : NULL, p ? p->noise_right : NULL, NULL, room + w.count);
    const float *shared = p ? p->shared : x->shared;
    if (shared) shared += (p ? w.expert / (x->experts / p->copies) * p->inputs * outputs : 0) + w.from;
    return variational_expert(
        w.count, step, (int) x->variance, x->mean + at, g_mean, x->first_mean + at, x->second_mean + at, x->prior_mean + at, x->rho + at,
        x->more_rho ? x->more_rho + at : NULL, g_noise, shared, x->first_rho + at, x->second_rho + at, x->prior_log_sigma + at);
}

static void step_plain(const Plain *x, double lr, double beta1, double beta2, double epsilon)
{
    if (!x->g && !x->more) return;
    const double t = *x->steps += 1.0f;
    const float rate = lr * x->rate / (1.0 - pow(beta1, t)), root = pow(1.0 - pow(beta2, t), -0.5), c1 = 1.0 - beta1, c2 = 1.0 - beta2, b2 = beta2, eps = epsilon;
    float *restrict values = x->values, *restrict first = x->first, *restrict second = x->second;
    for (int64_t i = 0; i < x->count; i++) {
        const float g = (x->g ? x->g[i] : 0.0f) + (x->more ? x->more[i] : 0.0f);
        const float m = first[i] + c1 * (g - first[i]), v = b2 * second[i] + c2 * g * g;
        first[i] = m; second[i] = v;
        values[i] -= rate * m / (sqrtf(v) * root + eps);
    }
}

static int is_stepped(const Experts *x, int64_t e)
{
    const Products *p = x->products;
    if (x->stepped) return x->stepped[e];
    if (!p || !x->lazy) return 1;
    const int64_t each = x->experts / p->copies, *starts = p->starts + e / each * (each + 1) + e % each;
    return starts[0] < starts[1];
}

/* The experts that are to be stepped, of several layers, piece by piece. A gradient that is still a product is multiplied out right before it is
 * used, in memory that is used again for the next piece. */
void adam_experts(const Experts *layers, int64_t count, double lr, double beta1, double beta2, double epsilon)
{
    for (const Experts *x = layers; x < layers + count; x++) {
        const int64_t n = x->size;
        int64_t piece = n;
        if (!x->active) continue;
        if (x->products) {  /* whole rows of the weight matrix, and sums of the KL over the same blocks as without pieces */
            const int64_t row = x->products->outputs, rows = PIECE / row / BLOCK * BLOCK;
            piece = row >= PIECE / BLOCK ? (PIECE / row > 0 ? PIECE / row : 1) * row : (rows > 0 ? rows : BLOCK) * row;
        }
        for (int64_t e = 0; e < x->experts; e++) {
            if (!is_stepped(x, e)) continue;
            const double t = x->steps[e] += 1.0f;
            const Adam step = {
                lr / (1.0 - pow(beta1, t)), beta1, beta2, pow(1.0 - pow(beta2, t), -0.5), epsilon, x->kl_weights ? x->kl_weights[e] : 0.0,
                x->sigma_rate, x->retention - 1.0, x->first };
            if (x->outer) {
                float *restrict inverse = x->room + n;
                for (int64_t u = 0; u < x->units; u++) {
                    inverse[u] = held(exponential(-2.0f * x->prior_log_sigma[e * x->units + u]), step.more, step.first);
                }
            }
            double kl = 0.0;
            for (int64_t from = 0; from < n; from += piece) {
                const Piece w = { e, from, n - from < piece ? n - from : piece };
                kl += step_piece(x, w, &step);
            }
            x->kl[e] = (float) kl;
        }
        for (int64_t i = 0; i < x->plains; i++) step_plain(x->plain + i, lr, beta1, beta2, epsilon);
    }
}
