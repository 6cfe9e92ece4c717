/* The two passes around the matrix product of patch features: patches out of an image, and threshold and pooling.
 *
 * One image at a time, so that the responses of all its patches stay in the cache between product and pooling.
 */
#include "hvcl.h"

/* Patches of `size` x `size` of an image [channels, height, width], `step` apart, as rows [places, channels * size * size], and for every
 * patch 1 / sqrt(variance + constant). */
void patches_of(int64_t channels, int64_t height, int64_t width, int64_t size, int64_t step, float constant, const float *restrict image,
                float *restrict rows, float *restrict scale)
{
    const int64_t numbers = channels * size * size, down = (height - size) / step + 1, across = (width - size) / step + 1;
    for (int64_t r = 0; r < down; r++)
        for (int64_t c = 0; c < across; c++) {
            float *restrict row = rows + (r * across + c) * numbers;
            int64_t k = 0;
            for (int64_t channel = 0; channel < channels; channel++)
                for (int64_t i = 0; i < size; i++) {
                    const float *restrict line = image + (channel * height + r * step + i) * width + c * step;
                    for (int64_t j = 0; j < size; j++) row[k++] = line[j];
                }
            float sum = 0.0f, spread = 0.0f;
            for (k = 0; k < numbers; k++) sum += row[k];
            const float mean = sum / (float) numbers;
            for (k = 0; k < numbers; k++) spread += (row[k] - mean) * (row[k] - mean);
            scale[r * across + c] = 1.0f / sqrtf(spread / (float) numbers + constant);
        }
}

/* With v = even[p, k] * scale[p] + offset[k]: adds max(v - t, 0) to up[cell[p], k] and max(-v - t, 0) to down[cell[p], k]. Rows of up and
 * down are `stride` apart. With `odd` (or NULL) the same of v = (even + odd) * scale + offset, and of (even - odd) * scale + offset for the
 * cells `mirrored`: what filters see of the mirror image. */
void threshold_and_pool(int64_t places, int64_t filters, int64_t stride, float t, const float *restrict even, const float *restrict odd,
                        const float *restrict scale, const float *restrict offset, const int32_t *restrict cell,
                        const int32_t *restrict mirrored, float *restrict up, float *restrict down)
{
    for (int64_t p = 0; p < places; p++) {
        const float *restrict row = even + p * filters;
        float *restrict above = up + cell[p] * stride, *restrict below = down + cell[p] * stride;
        const float s = scale[p];
        if (!odd) {
            for (int64_t k = 0; k < filters; k++) {
                const float v = row[k] * s + offset[k];
                above[k] += v > t ? v - t : 0.0f;
                below[k] += v < -t ? -v - t : 0.0f;
            }
            continue;
        }
        const float *restrict other = odd + p * filters;
        for (int64_t k = 0; k < filters; k++) {
            const float v = (row[k] + other[k]) * s + offset[k];
            above[k] += v > t ? v - t : 0.0f;
            below[k] += v < -t ? -v - t : 0.0f;
        }
        above = up + mirrored[p] * stride, below = down + mirrored[p] * stride;
        for (int64_t k = 0; k < filters; k++) {
            const float v = (row[k] - other[k]) * s + offset[k];
            above[k] += v > t ? v - t : 0.0f;
            below[k] += v < -t ? -v - t : 0.0f;
        }
    }
}
