/* The experts of a convolutional layer in one call each way: patches, the experts' products, noise, mixing.
 *
 * Slots (rows with one of their chosen experts) are taken in chunks, small enough for the cache, that belong to one expert each. A chunk is
 * transposed, so that its examples are side by side: whatever is done at one place is then done to a row of memory. Its patches make a matrix
 * [channels * kernel, places * examples]; the rest is products and passes along rows. Kept for the backward pass are answers and z, chunk by
 * chunk as [units, places * examples]; the patches are made again. The noise is that of dense.c, with patches in place of inputs.
 */
#include "hvcl.h"

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

/* and back: to[row of i, j] = from[j, i] scale[i] (1 without scale); added to what is there if `add` */
ONE_COPY void to_rows(int64_t count, int64_t size, const float *from, const float *scale, const int64_t *rows, int64_t first, int add, float *to)
{
    for (int64_t start = 0; start < size; start += 16) {
        const int64_t stop = size - start < 16 ? size : start + 16;
        for (int64_t i = 0; i < count; i++) {
            float *restrict row = to + (rows ? rows[first + i] : first + i) * size;
            const float by = scale ? scale[i] : 1.0f;
            if (add)
                for (int64_t j = start; j < stop; j++) row[j] += by * from[j * count + i];
            else
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

/* x[k, p, i] *= signs[k, i] */
ONE_COPY void turn_columns(int64_t rows, int64_t places, int64_t count, const float *signs, float *x)
{
    for (int64_t k = 0; k < rows * places; k++) {
        const float *restrict sign = signs + k / places * count;
        float *restrict to = x + k * count;
        for (int64_t i = 0; i < count; i++) to[i] *= sign[i];
    }
}

#define CHUNKS(d, m, a, count) \
    for (int64_t m = 0; m < d->experts; m++) \
        for (int64_t a = d->starts[m], count; a < d->starts[m + 1] \
             && (count = d->starts[m + 1] - a < d->chunk ? d->starts[m + 1] - a : d->chunk, 1); a += count)

typedef struct { uint64_t noise, in, out; } Seeds;

static Seeds seeds_of(const Conv *d)
{
    uint64_t state = d->seed;
    Seeds s;
    s.noise = splitmix(&state); s.in = splitmix(&state); s.out = splitmix(&state);
    return s;
}

/* |patch| of every column */
ONE_COPY void norms(int64_t inputs, int64_t n, const float *patches, float *restrict norm)
{
    for (int64_t i = 0; i < n; i++) norm[i] = 0.0f;
    for (int64_t k = 0; k < inputs; k++) {
        const float *restrict row = patches + k * n;
        for (int64_t i = 0; i < n; i++) norm[i] += row[i] * row[i];
    }
    for (int64_t i = 0; i < n; i++) norm[i] = sqrtf(norm[i]);
}

ONE_COPY void squares(int64_t n, const float *restrict x, float *restrict out)
{
    for (int64_t i = 0; i < n; i++) out[i] = x[i] * x[i];
}

/* patches[k, i] *= along[i] / norm[i]^2: what the patches' norms add to their gradient; a patch of zeros has no noise to follow */
ONE_COPY void scale_by_norms(int64_t inputs, int64_t n, const float *restrict norm, float *restrict along, float *patches)
{
    for (int64_t i = 0; i < n; i++) {
        const float square = norm[i] * norm[i];
        along[i] /= square > TINY ? square : TINY;
    }
    for (int64_t k = 0; k < inputs; k++) {
        float *restrict row = patches + k * n;
        for (int64_t i = 0; i < n; i++) row[i] *= along[i];
    }
}

ONE_COPY void twice_times(int64_t n, const float *restrict by, float *restrict x)
{
    for (int64_t i = 0; i < n; i++) x[i] *= 2.0f * by[i];
}

/* Draws and sigmas that all chunks use */
static void draw(Conv *d, int64_t slots, int64_t n, int64_t places)
{
    const Seeds seeds = seeds_of(d);
    const int64_t units = d->units;
    if (FLIPOUT(d->noise)) {
        standard_normals(n, seeds.noise, d->shared);
        random_signs(slots * d->channels, seeds.in, d->signs_in);
        random_signs(slots * units, seeds.out, d->signs_out);
    } else if (d->noise != NOISE_NONE)
        standard_normals(slots * units * places, seeds.noise, d->z);
    if (PER_UNIT(d->noise))
        for (int64_t k = 0; k < d->experts * units; k++) d->sigma[k] = exponential(d->log_sigma[k]);
    if (PER_WEIGHT(d->noise))
        for (int64_t m = 0; m < d->experts; m++) {
            if (d->starts[m] == d->starts[m + 1]) continue;
            const float *restrict rho = d->log_sigma + m * n, *restrict shared = d->shared;
            float *restrict to = d->scaled + m * n;
            if (FLIPOUT(d->noise))
                for (int64_t i = 0; i < n; i++) to[i] = exponential(rho[i]) * shared[i];
            else
                for (int64_t i = 0; i < n; i++) to[i] = exponential(2.0f * rho[i]);
        }
}

void conv_forward(Conv *d)
{
    const int64_t places = d->out_height * d->out_width, size = d->channels * d->height * d->width, units = d->units;
    const int64_t share = d->kernel_height * d->kernel_width, inputs = d->channels * share;
    draw(d, d->starts[d->experts], units * inputs, places);
    if (d->top_k > 1) memset(d->out, 0, d->rows * units * places * sizeof(float));
    CHUNKS(d, m, a, count) {
        const int64_t n = count * places, weights = m * units * inputs;
        float *answers = d->answers + a * units * places, *z = d->z + a * units * places;
        to_columns(count, size, d->x, d->rows_of, a, d->images);
        move_patches(d, count, 0, d->images, d->patches);
        if (FLIPOUT(d->noise)) {
            flip_columns(inputs, places, count, 0, d->patches, d->signs_in + a * d->channels, share, d->more);
            product(units, n, inputs, PER_WEIGHT(d->noise) ? d->scaled + weights : d->shared, 0, d->more, 0, 0.0f, d->room);
            flip_columns(units, places, count, 0, d->room, d->signs_out + a * units, 1, PER_WEIGHT(d->noise) ? answers : z);
        } else if (d->noise == NOISE_LOCAL_WEIGHT) {
            squares(inputs * n, d->patches, d->more);
            product(units, n, inputs, d->scaled + weights, 0, d->more, 0, 0.0f, d->room);
        } else if (d->noise == NOISE_LOCAL_UNIT)
            norms(inputs, n, d->patches, d->norm + a * places);
        for (int64_t u = 0; u < units; u++) {
            const float bias = d->bias ? d->bias[m * units + u] : 0.0f, *restrict norm = d->norm + a * places, *restrict variance = d->room + u * n;
            float *restrict y = answers + u * n, *restrict of = z + u * n;
            const float sigma = PER_UNIT(d->noise) ? d->sigma[m * units + u] : 0.0f;
            switch (d->noise) {
            case NOISE_NONE:
                for (int64_t i = 0; i < n; i++) y[i] = bias;
                break;
            case NOISE_FLIPOUT_WEIGHT:
                for (int64_t i = 0; i < n; i++) y[i] += bias;
                break;
            case NOISE_FLIPOUT_UNIT:
                for (int64_t i = 0; i < n; i++) y[i] = sigma * of[i] + bias;
                break;
            case NOISE_LOCAL_WEIGHT:
                for (int64_t i = 0; i < n; i++) {
                    const float spread = sqrtf(variance[i] + TINY);
                    y[i] = spread * of[i] + bias;
                    of[i] *= 0.5f / spread;
                }
                break;
            default:
                for (int64_t i = 0; i < n; i++) { of[i] *= norm[i]; y[i] = sigma * of[i] + bias; }
            }
        }
        product(units, n, inputs, d->mean + weights, 0, d->patches, 0, 1.0f, answers);
        to_rows(count, units * places, answers, d->weights ? d->weights + a : NULL, d->rows_of, a, d->top_k > 1, d->out);
    }
}

/* Gradients of the weights of `count` slots, and g times the weights */
ONE_COPY void mix_columns(int64_t count, int64_t size, const float *restrict weights, const float *answers, float *g, float *restrict dots)
{
    for (int64_t i = 0; i < count; i++) dots[i] = 0.0f;
    for (int64_t k = 0; k < size; k++) {
        const float *restrict y = answers + k * count;
        float *restrict of = g + k * count;
        for (int64_t i = 0; i < count; i++) { dots[i] += of[i] * y[i]; of[i] *= weights[i]; }
    }
}

void conv_backward(Conv *d)
{
    const int64_t places = d->out_height * d->out_width, size = d->channels * d->height * d->width, units = d->units;
    const int64_t share = d->kernel_height * d->kernel_width, inputs = d->channels * share;
    if (d->g_bias) memset(d->g_bias, 0, d->experts * units * sizeof(float));
    if (d->g_sigma) memset(d->g_sigma, 0, d->experts * units * sizeof(float));
    if (d->g_x && d->top_k > 1) memset(d->g_x, 0, d->rows * size * sizeof(float));
    CHUNKS(d, m, a, count) {
        const int64_t n = count * places, o = m * units * inputs;
        const float beta = a == d->starts[m] ? 0.0f : 1.0f;
        float *g = d->g_answers, *restrict along = d->room + d->chunk * units * places;
        to_columns(count, size, d->x, d->rows_of, a, d->images);
        move_patches(d, count, 0, d->images, d->patches);
        to_columns(count, units * places, d->g_out, d->rows_of, a, g);
        if (d->weights) mix_columns(count, units * places, d->weights + a, d->answers + a * units * places, g, d->g_weights + a);
        for (int64_t i = 0; i < n; i++) along[i] = 0.0f;
        for (int64_t u = 0; u < units; u++) {
            const float *restrict of = g + u * n, *restrict z = d->z + a * units * places + u * n;
            float *restrict turned = d->room + u * n;
            if (d->g_bias) {
                float sum = 0.0f;
                for (int64_t i = 0; i < n; i++) sum += of[i];
                d->g_bias[m * units + u] += sum;
            }
            if (PER_UNIT(d->noise)) {
                const float sigma = d->sigma[m * units + u];
                float spread = 0.0f;
                for (int64_t i = 0; i < n; i++) { const float t = of[i] * z[i] * sigma; spread += t; along[i] += t; }
                if (d->g_sigma) d->g_sigma[m * units + u] += spread;
                if (d->noise == NOISE_FLIPOUT_UNIT)
                    for (int64_t i = 0; i < n; i++) turned[i] = of[i] * sigma;
            } else if (d->noise == NOISE_LOCAL_WEIGHT)
                for (int64_t i = 0; i < n; i++) turned[i] = of[i] * z[i];
        }
        if (d->g_mean) product(units, inputs, n, g, 0, d->patches, 1, beta, d->g_mean + o);
        float *turned = d->room;
        if (d->noise == NOISE_FLIPOUT_WEIGHT) flip_columns(units, places, count, 0, g, d->signs_out + a * units, 1, turned);
        else if (d->noise == NOISE_FLIPOUT_UNIT) turn_columns(units, places, count, d->signs_out + a * units, turned);
        if (PER_WEIGHT(d->noise) && d->g_noise) {
            if (FLIPOUT(d->noise)) flip_columns(inputs, places, count, 0, d->patches, d->signs_in + a * d->channels, share, d->more);
            else squares(inputs * n, d->patches, d->more);
            product(units, inputs, n, turned, 0, d->more, 1, beta, d->g_noise + o);
        }
        if (!d->g_x) continue;
        /* the gradient of the patches takes their place */
        float kept = 0.0f;
        if (d->noise == NOISE_LOCAL_UNIT) {
            scale_by_norms(inputs, n, d->norm + a * places, along, d->patches);
            kept = 1.0f;
        } else if (d->noise == NOISE_LOCAL_WEIGHT) {
            product(inputs, n, units, d->scaled + o, 1, turned, 0, 0.0f, d->more);
            twice_times(inputs * n, d->more, d->patches);
            kept = 1.0f;
        }
        product(inputs, n, units, d->mean + o, 1, g, 0, kept, d->patches);
        if (FLIPOUT(d->noise)) {
            product(inputs, n, units, PER_WEIGHT(d->noise) ? d->scaled + o : d->shared, 1, turned, 0, 0.0f, d->more);
            flip_columns(inputs, places, count, 1, d->more, d->signs_in + a * d->channels, share, d->patches);
        }
        memset(d->images, 0, count * size * sizeof(float));
        move_patches(d, count, 1, d->images, d->patches);
        to_rows(count, size, d->images, NULL, d->rows_of, a, d->top_k > 1, d->g_x);
    }
}
