/* Matrix products: by the library that torch itself uses, if its Fortran interface was found, else by plain loops. */
#include "hvcl.h"

/* Sizes are pointers to 64-bit numbers: a library that reads 32 bits finds the same small number there (little-endian machines). */
typedef void (*Gemm)(
    const char *, const char *, const int64_t *, const int64_t *, const int64_t *, const float *, const float *, const int64_t *, const float *,
    const int64_t *, const float *, float *, const int64_t *);

static Gemm gemm;

void use_gemm(void *found) { gemm = (Gemm) found; }

/* c[rows, columns] = a b + beta c, all stored row by row, rows being lda, ldb and ldc numbers apart; `a` is [rows, n], or [n, rows] if turn_a,
 * b is [n, columns], or [columns, n] if turn_b */
void product_of_parts(
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
    int64_t rows, int64_t columns, int64_t n, const float *a, int64_t turn_a, const float *b, int64_t turn_b, float beta, float *c)
{
    product_of_parts(rows, columns, n, a, turn_a ? rows : n, (int) turn_a, b, turn_b ? n : columns, (int) turn_b, beta, c, columns);
}
