/* Mean and maximum over all places of an image: what the gate of a convolutional layer reads. */
#include "hvcl.h"

/* Mean, maximum and place of the maximum of every channel's map of `places` numbers; out is [rows, 2 channels], means first */
void pool_forward(int64_t rows, int64_t channels, int64_t places, const float *restrict x, float *restrict out, int64_t *restrict where)
{
    for (int64_t i = 0; i < rows * channels; i++) {
        const float *restrict map = x + i * places;
        float sum = 0.0f, top = map[0];
        for (int64_t k = 0; k < places; k++) { sum += map[k]; top = map[k] > top ? map[k] : top; }
        int64_t at = 0;
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

void pool_backward(int64_t rows, int64_t channels, int64_t places, const float *restrict g, const int64_t *restrict where, float *restrict g_x)
{
    for (int64_t i = 0; i < rows * channels; i++) {
        const float *row = g + i / channels * 2 * channels + i % channels;
        float *restrict map = g_x + i * places;
        const float even = row[0] / places;
        for (int64_t k = 0; k < places; k++) map[k] = even;
        map[where[i]] += row[channels];
    }
}
