/* Diversity: how far experts are from each other, the log determinant of their kernel matrix, and the push that parts them. */
#include "hvcl.h"
#include <stdlib.h>

/* Numbers from:from + count of row j of values [M, n], or their exponentials, which are put into `room` */
static const float *columns_of(const float *values, int64_t n, int64_t j, int64_t from, int64_t count, int64_t exponentials, float *restrict room)
{
    const float *restrict row = values + j * n + from;
    if (!exponentials) return row;
    for (int64_t k = 0; k < count; k++) room[k] = exponential(row[k]);
    return room;
}

/* Squared distances between row i and every other, for the `some` rows i that are named in `which`, are added to out[M, M] (times `weight`).
 * values is [M, n]; room holds (some + 1) * COLUMNS numbers. The distance of two rows does not depend on which others are named. */
void pair_distances(
    int64_t M, int64_t n, const float *values, int64_t exponentials, double weight, int64_t some, const int64_t *which, float *room, double *out)
{
    if (some < 1) return;  /* an array of no elements is undefined */
    int64_t place[M];  /* of a row among the named ones: a pair is looked at once */
    const float *named[some];
    for (int64_t j = 0; j < M; j++) place[j] = some;
    for (int64_t w = 0; w < some; w++) place[which[w]] = w;
    for (int64_t from = 0; from < n; from += COLUMNS) {
        const int64_t count = n - from < COLUMNS ? n - from : COLUMNS;
        for (int64_t w = 0; w < some; w++) named[w] = columns_of(values, n, which[w], from, count, exponentials, room + (w + 1) * COLUMNS);
        for (int64_t j = 0; j < M; j++) {
            const float *restrict b = place[j] < some ? named[place[j]] : columns_of(values, n, j, from, count, exponentials, room);
            for (int64_t w = 0; w < place[j]; w++) {
                const float *restrict a = named[w];
                float sum = 0.0f;
                for (int64_t k = 0; k < count; k++) { const float d = a[k] - b[k]; sum += d * d; }
                out[which[w] * M + j] += weight * sum; out[j * M + which[w]] += weight * sum;
            }
        }
    }
}

/* out[i] = sum_j push[i, j] (values[j] - values[0]) for the `some` rows i of values [M, n] that are named in `which`; with exponentials of
 * theirs, times its own: the gradient of the logarithm. The rows of `push` sum to zero: the common shift is only taken out because single
 * precision would see it. room holds M * M + (2 M + 1) * COLUMNS numbers. */
void repel(
    int64_t M, int64_t n, const float *push, const float *values, int64_t exponentials, int64_t some, const int64_t *which, float *room, float *out)
{
    const int64_t columns = M > 16 ? 128 : 512;  /* of all rows together, in the second-level cache */
    float *chosen = room, *apart = room + M * M, *sums = apart + (M + 1) * COLUMNS, *first = apart + M * COLUMNS;
    for (int64_t w = 0; w < some; w++) memcpy(chosen + w * M, push + which[w] * M, M * sizeof(float));
    for (int64_t from = 0; from < n; from += columns) {
        const int64_t count = n - from < columns ? n - from : columns;
        for (int64_t j = 0; j < M; j++) {
            float *restrict to = apart + j * count;
            const float *restrict row = values + j * n + from, *restrict base = first;
            if (exponentials) for (int64_t k = 0; k < count; k++) to[k] = exponential(row[k]);
            else memcpy(to, row, count * sizeof(float));
            if (j == 0) memcpy(first, to, count * sizeof(float));
            for (int64_t k = 0; k < count; k++) to[k] -= base[k];
        }
        product(some, count, M, chosen, 0, apart, 0, 0.0f, sums);
        for (int64_t w = 0; w < some; w++) {
            float *restrict to = out + which[w] * n + from;
            const float *restrict sum = sums + w * count, *restrict own = apart + which[w] * count, *restrict base = first;
            if (exponentials) for (int64_t k = 0; k < count; k++) to[k] = sum[k] * (own[k] + base[k]);
            else memcpy(to, sum, count * sizeof(float));
        }
    }
}

/* log det(K + jitter I) with K = exp(-distances / (2 width^2)), [M, M]; the Laplacian of (K + jitter I)^-1 o K / (2 width^2) goes to `laplacian`.
 * room holds 3 M^2 numbers. */
double log_determinant(int64_t M, const double *distances, double width, double jitter, double *room, float *laplacian)
{
    double *kernel = room, *root = room + M * M, *inverse = root + M * M, value = 0.0;
    const double scale = 2.0 * width * width;
    for (int64_t i = 0; i < M; i++)  /* Cholesky's root, row by row */
        for (int64_t j = 0; j <= i; j++) {
            kernel[i * M + j] = kernel[j * M + i] = exp(-distances[i * M + j] / scale);
            double rest = kernel[i * M + j] + (i == j ? jitter : 0.0);
            for (int64_t k = 0; k < j; k++) rest -= root[i * M + k] * root[j * M + k];
            root[i * M + j] = i == j ? sqrt(rest) : rest / root[j * M + j];
            if (i == j) value += 2.0 * log(root[i * M + i]);
        }
    for (int64_t c = 0; c < M; c++)  /* and its inverse, column by column */
        for (int64_t i = 0; i < M; i++) {
            double rest = i == c ? 1.0 : 0.0;
            for (int64_t k = c; k < i; k++) rest -= root[i * M + k] * inverse[k * M + c];
            inverse[i * M + c] = i < c ? 0.0 : rest / root[i * M + i];
        }
    for (int64_t i = 0; i < M; i++) {
        double sum = 0.0;
        for (int64_t j = 0; j < M; j++) {
            double both = 0.0;
            for (int64_t k = i > j ? i : j; k < M; k++) both += inverse[k * M + i] * inverse[k * M + j];
            const double attraction = i == j ? 0.0 : both * kernel[i * M + j] / scale;
            laplacian[i * M + j] = (float) -attraction;
            sum += attraction;
        }
        laplacian[i * M + i] = (float) sum;
    }
    return value;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *) a, y = *(const double *) b;
    return (x > y) - (x < y);
}

/* The diversity of each copy's experts, summed: log det(K + jitter I). Means are [copies, M, n], log sigmas [copies, M, sigmas], each of them counted
 * `repeats` times. `known` [copies, M, M] has the squared distances of the means (and, if sigmas == n, of the sigmas), up to date but for the
 * `some` experts named in `changed` (numbers of all copies). A width of zero is measured, by the median heuristic: h^2 is the lower median. The
 * Laplacians go to `laplacian` [copies * M, copies * M], whose other blocks are zero. room holds 5 M^2 + 2 + (M + 1) * COLUMNS numbers. */
double diversity(
    int64_t copies, int64_t M, int64_t n, int64_t sigmas, const float *mean, const float *log_sigma, double repeats, int64_t some,
    const int64_t *changed, double jitter, double *known, float *widths, double *room, float *laplacian)
{
    double *distances = room, *sorted = room + M * M, *work = room + 2 * M * M, value = 0.0;
    float *columns = (float *) (room + 5 * M * M);
    memset(laplacian, 0, copies * M * copies * M * sizeof(float));
    for (int64_t c = 0; c < copies; c++) {
        double *of_copy = known + c * M * M;
        int64_t which[MOST_EXPERTS], mine = 0;
        for (int64_t k = 0; k < some; k++) if (changed[k] / M == c) which[mine++] = changed[k] - c * M;
        for (int64_t k = 0; k < mine; k++)
            for (int64_t j = 0; j < M; j++) of_copy[which[k] * M + j] = of_copy[j * M + which[k]] = 0.0;
        if (mine) {
            pair_distances(M, n, mean + c * M * n, 0, 1.0, mine, which, columns, of_copy);
            if (sigmas == n) pair_distances(M, n, log_sigma + c * M * n, 1, 1.0, mine, which, columns, of_copy);
        }
        memcpy(distances, of_copy, M * M * sizeof(double));
        if (sigmas != n) {  /* few, and always stepped */
            for (int64_t j = 0; j < M; j++) which[j] = j;
            pair_distances(M, sigmas, log_sigma + c * M * sigmas, 1, repeats, M, which, columns, distances);
        }
        if (widths[c] == 0.0f) {
            int64_t count = 0;
            for (int64_t i = 0; i < M; i++)
                for (int64_t j = i + 1; j < M; j++) sorted[count++] = distances[i * M + j];
            qsort(sorted, count, sizeof(double), ascending);
            const double median = sorted[(count - 1) / 2];
            widths[c] = median > 0.0 ? (float) sqrt(median) : 1.0f;
        }
        float block[MOST_EXPERTS * MOST_EXPERTS];
        value += log_determinant(M, distances, widths[c], jitter, work, block);
        for (int64_t i = 0; i < M; i++) memcpy(laplacian + (c * M + i) * copies * M + c * M, block + i * M, M * sizeof(float));
    }
    return value;
}
