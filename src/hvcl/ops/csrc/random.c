/* Random numbers: normals, signs and exponentials, the same ones for the same seed. */
#include "hvcl.h"

uint64_t splitmix(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

void seed_lanes(Lanes *lanes, uint64_t seed)
{
    for (int i = 0; i < LANES; i++) {
        const uint64_t x = splitmix(&seed), y = splitmix(&seed);
        lanes->a[i] = (uint32_t) x; lanes->b[i] = (uint32_t)(x >> 32);
        lanes->c[i] = (uint32_t) y; lanes->d[i] = (uint32_t)(y >> 32);
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

void standard_normals(int64_t n, uint64_t seed, float *restrict out)
{
    Lanes lanes;
    int64_t start = 0;
    seed_lanes(&lanes, seed);
    for (; start + LANES <= n; start += LANES) next_lanes(&lanes, out + start);
    if (start < n) {
        float last[LANES];
        next_lanes(&lanes, last);
        for (int i = 0; i < n - start; i++) out[start + i] = last[i];
    }
}

/* out = x with fair random signs, or, if `add`, out += that. The same seed gives the same signs. */
void random_flip(int64_t n, uint64_t seed, int add, const float *restrict x, float *restrict out)
{
    Lanes lanes;
    uint32_t bits[LANES];
    union { float f; uint32_t u; } v;
    seed_lanes(&lanes, seed);
#define FLIP(i, j) (v.f = x[i], v.u ^= (bits[j] << k) & 0x80000000u, v.f)
    for (int64_t start = 0; start < n; start += 32 * LANES) {
        next_bits(&lanes, bits);
        for (int k = 0; k < 32; k++) {
            const int64_t row = start + k * LANES;
            const int count = n - row < LANES ? (n > row ? (int)(n - row) : 0) : LANES;
            if (add)
                for (int j = 0; j < count; j++) out[row + j] += FLIP(row + j, j);
            else
                for (int j = 0; j < count; j++) out[row + j] = FLIP(row + j, j);
        }
    }
}

/* Fair signs +-1 */
void random_signs(int64_t n, uint64_t seed, float *restrict out)
{
    Lanes lanes;
    uint32_t bits[LANES];
    union { float f; uint32_t u; } v;
    seed_lanes(&lanes, seed);
    for (int64_t start = 0; start < n; start += 32 * LANES) {
        next_bits(&lanes, bits);
        const int64_t count = n - start < 32 * LANES ? n - start : 32 * LANES;
        for (int64_t i = 0; i < count; i++) {
            v.u = 0x3f800000u | ((bits[i % LANES] << (i / LANES)) & 0x80000000u);
            out[start + i] = v.f;
        }
    }
}

/* Exponentials with mean 1 */
void random_exponentials(int64_t n, uint64_t seed, float *out)
{
    Lanes lanes;
    float last[LANES];
    seed_lanes(&lanes, seed);
    for (int64_t start = 0; start < n; start += LANES) {
        next_exponentials(&lanes, last);
        for (int64_t i = start; i < n && i < start + LANES; i++) out[i] = last[i - start];
    }
}
