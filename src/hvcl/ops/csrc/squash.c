/* The squashed Gaussian a = tanh(u), u = mu + sigma eps; see hvcl.rl.squashed. */
#include "hvcl.h"

/* outputs [rows, 2 n] are mu and log sigma (held between low and high), noise is eps; rows of the mask are `apart` numbers apart. Out: actions,
 * zero where the mask is, log densities [rows], and for the way back tanh(u) and sigma eps (kept [2, rows, n]).
 * With e = exp(-2 |u|) - 1, tanh |u| = -e / (2 + e) and log(1 - tanh(u)^2) = 2 (log 2 - |u| - log(2 + e)). */
void squash_forward(
    int64_t rows, int64_t n, double low, double high, const float *restrict outputs, const float *restrict noise, const float *restrict mask,
    int64_t apart, float *restrict action, float *restrict density, float *restrict kept)
{
    const float least = low, most = high;
    for (int64_t i = 0; i < rows; i++) {
        float sum = 0.0f;
        for (int64_t k = 0; k < n; k++) {
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
    int64_t rows, int64_t n, double low, double high, const float *restrict outputs, const float *restrict mask, int64_t apart,
    const float *restrict kept, const float *restrict of_action, int64_t of_apart, const float *restrict of_density, float *restrict g)
{
    const float least = low, most = high;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < n; k++) {
            const float a = kept[i * n + k], m = mask[i * apart + k], raw = outputs[(2 * i + 1) * n + k];
            const float of_mean = m * (of_action[i * of_apart + k] * (1.0f - a * a) + of_density[i] * 2.0f * a);
            g[2 * i * n + k] = of_mean;
            g[(2 * i + 1) * n + k] = raw < least || raw > most ? 0.0f : of_mean * kept[(rows + i) * n + k] - of_density[i] * m;
        }
}
