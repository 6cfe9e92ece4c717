/* The sums that hold nodes in uncertainty-based continual learning (Ahn et al., 2019); see hvcl.learners.methods.ucl.
 *
 * With mu' and sigma' what they were at the last boundary, h and c how firmly and how surely each weight is held, and r = (sigma / sigma')^2:
 *     sum h (mu - mu')^2,    sum c |mu - mu'|,    sum over nodes of r - log r + sigma^2 - log sigma^2
 */
#include "hvcl.h"

/* As in torch, above 20 sigma is raw, and below -30 its logarithm is raw */
float log_softplus(float raw) { return raw < -30.0f ? raw : logf(raw > 20.0f ? raw : log1pf(expf(raw))); }

/* (1 - exp(-sigma)) / sigma */
float log_softplus_slope(float log_sigma)
{
    const float sigma = expf(log_sigma);
    return sigma > 0.0f ? -expm1f(-sigma) / sigma : 1.0f;
}

/* Row i of a copy's means, the bias being the last */
#define HELD_ROW(weights, bias) (i < n ? (weights) + (e * n + i) * units : (bias) + e * units)

void held_forward(const Held *layers, int64_t count, double *sums)
{
    sums[0] = sums[1] = sums[2] = 0.0;
    for (const Held *p = layers; p < layers + count; p++) {
        const int64_t n = p->inputs, units = p->outputs;
        for (int64_t e = 0; e < p->copies; e++)
            for (int64_t i = 0; i <= n; i++) {
                const float *restrict a = HELD_ROW(p->mean, p->bias), *restrict b = HELD_ROW(p->old_mean, p->old_bias);
                const float *restrict h = p->holds + (e * (n + 1) + i) * units, *restrict c = p->certainties + (e * (n + 1) + i) * units;
                float squares = 0.0f, magnitudes = 0.0f;
                for (int64_t u = 0; u < units; u++) {
                    const float shift = a[u] - b[u];
                    squares += h[u] * shift * shift;
                    magnitudes += c[u] * fabsf(shift);
                }
                sums[0] += squares;
                sums[1] += magnitudes;
            }
        for (int64_t u = 0; u < p->copies * units; u++) {
            const float variance = 2.0f * log_softplus(p->raw[u]), ratio = variance - 2.0f * p->old_log_sigma[u];  /* their logarithms */
            sums[2] += exponential(ratio) - ratio + exponential(variance) - variance;
        }
    }
}

/* Gradients of the sums with these weights */
void held_backward(const Held *layers, int64_t count, const float *weights)
{
    const float twice = 2.0f * weights[0], once = weights[1], spread = 2.0f * weights[2];
    for (const Held *p = layers; p < layers + count; p++) {
        const int64_t n = p->inputs, units = p->outputs;
        for (int64_t e = 0; e < p->copies; e++)
            for (int64_t i = 0; i <= n; i++) {
                const float *restrict a = HELD_ROW(p->mean, p->bias), *restrict b = HELD_ROW(p->old_mean, p->old_bias);
                const float *restrict h = p->holds + (e * (n + 1) + i) * units, *restrict c = p->certainties + (e * (n + 1) + i) * units;
                float *restrict to = HELD_ROW(p->g_mean, p->g_bias);
                for (int64_t u = 0; u < units; u++) {
                    const float shift = a[u] - b[u];
                    to[u] = twice * h[u] * shift + once * c[u] * (float) ((shift > 0.0f) - (shift < 0.0f));
                }
            }
        for (int64_t u = 0; u < p->copies * units; u++) {
            const float log_sigma = log_softplus(p->raw[u]), variance = 2.0f * log_sigma, ratio = variance - 2.0f * p->old_log_sigma[u];
            p->g_raw[u] = spread * (exp_minus_one(ratio) + exp_minus_one(variance)) * log_softplus_slope(log_sigma);
        }
    }
}
