/* Small plain networks, several of one shape at once, with leaky ReLU between their layers: one call each way. */
#include "hvcl.h"

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
