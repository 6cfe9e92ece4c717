/* What the compiled code and Python agree on: structures, functions, and small mathematics that is put into loops.
 *
 * Python reads the structures and the prototypes between the two marks from this file (hvcl.ops.header) and compares the sizes of the
 * structures when it loads the library: there is no second copy of them. All memory belongs to Python, which checks every size where it
 * takes an address (hvcl.ops.border). Arrays are contiguous, row by row; pointers may be NULL where it says so.
 *
 * Plain C11 without dependencies. Every operator has a counterpart in torch operations: its reference in the tests, and what serves where there
 * is no library.
 */
#ifndef HVCL_H
#define HVCL_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* [python */

/* Gradients of dense experts that are still to be multiplied out: expert m's is left[starts[m]:starts[m + 1]]^T right[...] */
typedef struct {
    int64_t copies, inputs, outputs, slots;
    const int64_t *starts;       /* [copies, M + 1] */
    const float *left, *right;   /* [copies, slots, inputs], [copies, slots, outputs] */
    const float *noise_left, *noise_right;  /* the same for the noise's gradient, or NULL */
    const float *shared;         /* [copies, inputs, outputs]: flipout's draw, or NULL */
} Products;

/* A parameter without a prior, for a step of Adam; see adam.c */
typedef struct {
    int64_t count;
    float *values, *first, *second;              /* and its moments */
    float *steps;                /* [1]: steps so far */
    const float *g, *more;       /* gradients that are added up, or NULL */
    double rate;                 /* its step size over the others' */
} Plain;

/* The posteriors of a layer's experts, for a step of Adam; see adam.c */
typedef struct {
    int64_t experts;             /* M of all copies */
    int64_t size;                /* weights of an expert */
    int64_t outer, units, inner; /* a sigma per unit: weights are [outer, units, inner]; outer is 0 for a sigma per weight */
    int64_t variance;            /* what g_noise and noise products are of: 0 sigma * shared, 1 sigma^2 */
    float *mean, *first_mean, *second_mean;      /* means and their moments [M, size] */
    float *rho, *first_rho, *second_rho;         /* log sigmas [M, size]; NULL for a sigma per unit */
    const float *prior_mean, *prior_log_sigma;   /* [M, size]; a sigma per unit: [M, units] */
    double retention, first;     /* the precision of a prior beyond `first` counts `retention` times where it holds means */
    double sigma_rate;           /* step size of log sigmas over that of means */
    float *steps;                /* steps so far [M] */
    float *kl;                   /* [M]: KL to the prior after the step; a sigma per unit: the means' part of it */
    const float *kl_weights;     /* d loss / d KL [M], or NULL */
    int64_t active;              /* 0: nothing is to be stepped */
    int64_t lazy;                /* with products: only experts that have slots are stepped */
    const uint8_t *stepped;      /* which experts to step [M], or NULL: all */
    const float *more_mean, *more_rho;           /* dense gradients [M, size] that are added, or NULL */
    const float *g_mean, *g_noise, *shared;      /* gradients of the experts [M, size], or NULL; what sigma was multiplied with [size] */
    const Products *products;    /* instead of g_mean, g_noise and shared, or NULL */
    float *room;                 /* 2 size numbers */
    int64_t plains;              /* of the layer's other parameters */
    Plain *plain;                /* which are stepped, too, but for those without any gradient */
} Experts;

/* A dense layer of mixtures; see dense.c. All arrays have a first dimension of `copies`. */
typedef struct {
    int64_t copies, rows, inputs, outputs, experts, top_k;
    int64_t noise;               /* NOISE_... */
    int64_t sampled;             /* experts are drawn from the gate, not the most probable ones */
    int64_t through;             /* top-1: the chosen expert's answer has weight 1 (and the gate the gradient of p / p), not p */
    int64_t shared_x;            /* x is the same for all copies, and has no first dimension */
    int64_t gate_inputs;         /* of what the gate reads */
    int64_t learns;              /* there will be a backward pass that asks for gradients of the experts */
    uint64_t seed;               /* written */
    const float *x;              /* [rows, inputs] */
    const float *features;       /* what the gate reads [rows, gate_inputs], or NULL: x */
    const float *mean, *log_sigma, *bias;        /* [M, inputs, outputs]; that or [M, outputs]; [M, outputs] or NULL */
    const float *raw;            /* a sigma per unit: NULL, or sigma = log(1 + exp(raw)), log_sigma is written, and g_sigma is that of raw */
    const float *gate_weight, *gate_bias;        /* [M, gate_inputs], [M], or NULL: one expert and no gate */
    const float *prior_weight, *prior_bias;      /* the same, or NULL: nobody asks for the gate's terms */
    const float *kl;             /* [M]: KL of every expert to its prior (a sigma per unit: the means' part of it), or NULL: nobody asks */
    const float *prior_log_sigma;                /* [M, outputs]: a sigma per unit */
    int64_t uniform;             /* the experts' KLs are weighted by 1 instead of usage */
    /* forward: written. A slot is a row with one of its chosen experts; slots are sorted by expert. */
    float *out;                  /* [rows, outputs] */
    float *log_p, *ratio;        /* [rows, M]: log p(m|x), and log p - log prior */
    float *usage;                /* [M]: mean p */
    float *terms;                /* that of the stack; written */
    float *whole_kl;             /* [M]: the experts' KLs */
    float *weights;              /* [slots] */
    int64_t *rows_of, *slot_of, *choice;         /* [slots]; [rows, top_k] twice */
    int64_t *counts, *starts;    /* [M]; [M + 1] */
    int64_t *moved;              /* [1]: whether the rows were sorted; else one expert has them all, where they were */
    float *sorted;               /* [slots, inputs] */
    float *answers;              /* [slots, outputs]; without a gate NULL: out */
    float *z;                    /* [slots, outputs]: see dense.c */
    float *norm;                 /* [slots]: local noise with a sigma per unit */
    float *sigma;                /* [M, outputs]: a sigma per unit */
    float *altered;              /* [slots, inputs]: flipout: x with signs; local noise with a sigma per weight: x^2 */
    float *shared;               /* [inputs, outputs]: flipout's draw */
    float *scaled;               /* [M, inputs, outputs]: a sigma per weight: sigma * shared or sigma^2; one expert's if not kept */
    int64_t keep_scaled;
    float *room;                 /* max(slots * max(inputs, outputs), 2 rows * M) numbers */
    /* backward */
    const float *g_out, *g_usage; /* g_usage may be NULL: zero */
    const float *g_terms;        /* that of the stack; written */
    float *kl_weights;           /* [M]: d loss / d KL of every expert */
    float *g_answers;            /* [slots, outputs]; without a gate a copy of g_out, or NULL: g_out itself */
    float *turned;               /* [slots, outputs]: the noise's right factor */
    float *g_weights;            /* [slots] */
    float *g_bias, *g_sigma;     /* [M, outputs] or NULL; a sigma per unit: of log sigma */
    float *g_gate_weight, *g_gate_bias;          /* or NULL */
    float *g_x, *g_features;     /* or NULL */
    float *g_sorted;             /* [slots, inputs] */
} Dense;

/* A stack of dense layers with leaky ReLU between them; see dense.c */
typedef struct {
    int64_t layers;
    double slope;
    uint64_t seed;
    float *terms;                /* [4] or NULL: sums over all copies of all layers of the mean KL to the prior gate, H(M|X), H(M), the experts' KLs */
    const float *g_terms;        /* [4] or NULL */
    Dense *calls;                /* each one's x is the out of the one before, each one's g_out the g_x of the one after */
    float *side;                 /* NULL, or: the answers of the copies side by side [rows, copies * outputs] */
    const float *g_side;         /* its gradient, from which the last g_out is written */
} Stack;

/* The experts of a convolutional layer; see conv.c */
typedef struct {
    int64_t rows, channels, height, width, units, out_height, out_width, experts, top_k;
    int64_t kernel_height, kernel_width, stride_height, stride_width, padding_height, padding_width, dilation_height, dilation_width;
    int64_t noise;
    int64_t chunk;               /* examples at a time, at most */
    uint64_t seed;
    const float *x, *mean, *bias, *log_sigma;    /* [rows, channels, height, width], [M, units, channels, kernel], [M, units] or NULL */
    const float *weights;        /* of the slots, or NULL: 1 */
    const int64_t *rows_of;      /* slot to row, or NULL: they are the same */
    const int64_t *starts;       /* [M + 1]: first slot of every expert, and the end */
    float *out;                  /* [rows, units, places] */
    float *answers, *z;          /* slots * units * places each, chunk by chunk */
    float *norm, *sigma;         /* a sigma per unit: |patch| [slots * places] (local), exp(log sigma) [M, units] */
    float *shared, *scaled;      /* flipout's draw [n]; a sigma per weight: sigma * shared or sigma^2 [M, n] */
    float *signs_in, *signs_out; /* flipout: slots * channels, slots * units */
    float *images;               /* chunk * channels * height * width numbers */
    float *patches, *more;       /* chunk * channels * kernel * places numbers each */
    float *room;                 /* chunk * (units + 1) * places numbers */
    /* backward */
    const float *g_out;
    float *g_answers;            /* room for a chunk */
    float *g_weights;            /* [slots] */
    float *g_mean, *g_noise;     /* [M, n]; g_noise for a sigma per weight: of sigma * shared or of sigma^2 */
    float *g_bias, *g_sigma;     /* [M, units] */
    float *g_x;                  /* or NULL */
} Conv;

/* Small plain networks, several of one shape; see plain.c */
typedef struct {
    int64_t layers, copies, rows, stride;        /* stride: of the rows of x */
    double slope;
    const int64_t *sizes;        /* [layers + 1], of one copy */
    const float *const *parameters;              /* of each layer weight and bias: [in, copies * out] in the first, [copies, in, out] after; [copies * out] */
    const float *x;
    float *hidden;               /* [rows, copies * units] of each layer but the last, one after another */
    float *answers;              /* [rows, copies * outputs] */
    const float *g_answers;
    float *const *gradients;     /* of the parameters, or NULL */
    float *room;                 /* 2 rows * copies * widest hidden layer */
    float *g_x;                  /* or NULL */
} Chain;

/* Uncertainty-regularised layers; see held.c */
typedef struct {
    int64_t copies, inputs, outputs;
    const float *mean, *old_mean, *bias, *old_bias;              /* [copies, inputs, outputs], [copies, outputs] */
    const float *raw, *old_log_sigma;                            /* [copies, outputs]; sigma = log(1 + exp(raw)) */
    const float *holds, *certainties;                            /* [copies, inputs + 1, outputs] */
    float *g_mean, *g_bias, *g_raw;
} Held;

/* Rows of a table through two maps and the models on them; see rows.c */
typedef struct {
    int64_t inputs;              /* numbers of an encoded row */
    int64_t numbers, indicators, categories, slots;              /* of which it is made; slots of each category */
    const double *values;        /* [rows, numbers], or NULL: x is given */
    const int64_t *places;       /* of the categories among their slots [rows, categories] */
    const double *centre, *spread;               /* [numbers] */
    double clip;
    int64_t width;               /* features of the model of everything */
    const float *own_weights, *own_offset, *own_shift, *own_scale;   /* [inputs, width]; [width] */
    int64_t features, linear, cosines, rules, second, third;     /* of the filter's map: 1 + linear + cosines + rules; further conditions of rules */
    const double *weights, *phase, *scale, *shift;               /* [inputs, cosines + rules + second + third]; one row of it; [features] */
    int64_t members, outputs, classes;           /* whether outputs are probabilities */
    double least;                /* that none is below */
    const double *coefficients;  /* [features, (members - 1) outputs], or NULL: features only */
    int64_t scores, known;       /* of the model of everything; classes that it knows, 0: numbers */
    const double *read, *at_zero, *means, *prior;                /* [scores, width]; [scores]; [known, scores]; [known] */
    const int64_t *units;        /* outputs of the known classes */
    double power, freedom;
    double unknown;              /* its answer where it knows nothing */
    const double *powers;        /* sharpness [members] */
    int64_t directions, centres; /* of the novelty */
    const double *white, *white_means;           /* [inputs, directions], or NULL; [centres, directions] */
    int64_t rates;
    const double *rate;          /* [rates] */
    double slow, known_share, pace;              /* see believe in rows.c */
    double *weights_of, *usual, *shares;         /* [rates, members] twice; [rates]: read by rows_mix, stepped by rows_believe */
    float *x, *own;              /* [rows, inputs]; [rows, width] */
    double *phi;                 /* [rows, features] */
    double *everything, *answers, *sharpened;    /* [rows, outputs]; [rows, members, outputs]; the same, or NULL */
    double *novelty;             /* [rows] */
    double *room;                /* max(cosines + rules + second + third, scores + known, directions) numbers */
} Rows;

/* library.c */
void use_gemm(void *found);
int64_t structure_size(int64_t number);
const char *compiled_by(void);

/* product.c */
void product(int64_t rows, int64_t columns, int64_t n, const float *a, int64_t turn_a, const float *b, int64_t turn_b, float beta, float *c);

/* random.c */
void standard_normals(int64_t n, uint64_t seed, float *out);
void random_signs(int64_t n, uint64_t seed, float *out);
void random_exponentials(int64_t n, uint64_t seed, float *out);

/* gate.c */
void gate_forward(int64_t rows, int64_t n, int64_t M, int64_t top_k, int64_t sampled, int64_t through, uint64_t seed, const float *x, const float *w, const float *bias, const float *prior_w, const float *prior_bias, float *log_p, float *ratio, int64_t *rows_of, int64_t *slot_of, int64_t *counts, int64_t *choice, float *weights, float *usage, float *statistics);
void gate_backward(int64_t rows, int64_t n, int64_t M, int64_t top_k, int64_t through, const float *x, const float *w, const float *prior_w, const float *log_p, const float *ratio, const int64_t *slot_of, const int64_t *choice, const float *weights, const float *usage, const float *g_weights, const float *g_usage, const float *g_statistics, const float *kl, float *room, float *g_w, float *g_bias, float *g_x);

/* dense.c, conv.c, pool.c */
void stack_forward(Stack *stack);
void stack_backward(Stack *stack);
void expert_gradients(const Products *products, int64_t M, int64_t variance, const float *log_sigma, float *g_mean, float *g_log_sigma);
void conv_forward(Conv *conv);
void conv_backward(Conv *conv);
void pool_forward(int64_t rows, int64_t channels, int64_t places, const float *x, float *out, int64_t *where);
void pool_backward(int64_t rows, int64_t channels, int64_t places, const float *g, const int64_t *where, float *g_x);

/* adam.c, diversity.c, held.c */
void adam_experts(const Experts *experts, int64_t count, double lr, double beta1, double beta2, double epsilon);
void pair_distances(int64_t M, int64_t n, const float *values, int64_t exponentials, double weight, int64_t some, const int64_t *which, float *room, double *out);
void repel(int64_t M, int64_t n, const float *push, const float *values, int64_t exponentials, int64_t some, const int64_t *which, float *room, float *out);
double log_determinant(int64_t M, const double *distances, double width, double jitter, double *room, float *laplacian);
double diversity(int64_t copies, int64_t M, int64_t n, int64_t sigmas, const float *mean, const float *log_sigma, double repeats, int64_t some, const int64_t *changed, double jitter, double *known, float *widths, double *room, float *laplacian);
void held_forward(const Held *layers, int64_t count, double *sums);
void held_backward(const Held *layers, int64_t count, const float *weights);

/* plain.c, squash.c, tree.c, patches.c */
void chain_forward(const Chain *chain);
void chain_backward(const Chain *chain);
void squash_forward(int64_t rows, int64_t n, double low, double high, const float *outputs, const float *noise, const float *mask, int64_t apart, float *action, float *density, float *kept);
void squash_backward(int64_t rows, int64_t n, double low, double high, const float *outputs, const float *mask, int64_t apart, const float *kept, const float *of_action, int64_t of_apart, const float *of_density, float *g);
void tree_update(int64_t count, int64_t levels, int64_t *at, double *nodes);
void tree_find(int64_t count, int64_t levels, int64_t root, const double *nodes, double *masses, int64_t *found);
void patches_of(int64_t channels, int64_t height, int64_t width, int64_t size, int64_t step, float constant, const float *image, float *rows, float *scale);
void threshold_and_pool(int64_t places, int64_t filters, int64_t stride, float t, const float *even, const float *odd, const float *scale, const float *offset, const int32_t *cell, const int32_t *mirrored, float *up, float *down);

/* rows.c */
int64_t rows_answer(const Rows *rows, int64_t first, int64_t count);
void rows_read(const Rows *rows, int64_t count);
void rows_members(const Rows *rows, int64_t count);
void rows_mix(const Rows *rows, int64_t i, double *out);
void rows_believe(const Rows *rows, int64_t i, int64_t unit);
void rows_believe_all(int64_t count, int64_t rates, int64_t members, const double *rate, double slow, double known, double pace, const double *likely, double *weights, double *usual, double *shares);
void rows_sharpen(int64_t count, int64_t members, int64_t outputs, double least, const double *answers, const double *powers, double *out);

/* python] */

/* How weights are drawn; the order is that of hvcl.ops.structures */
enum { NOISE_NONE, NOISE_FLIPOUT_WEIGHT, NOISE_FLIPOUT_UNIT, NOISE_LOCAL_WEIGHT, NOISE_LOCAL_UNIT };
#define FLIPOUT(noise) ((noise) == NOISE_FLIPOUT_WEIGHT || (noise) == NOISE_FLIPOUT_UNIT)
#define PER_WEIGHT(noise) ((noise) == NOISE_FLIPOUT_WEIGHT || (noise) == NOISE_LOCAL_WEIGHT)
#define PER_UNIT(noise) ((noise) == NOISE_FLIPOUT_UNIT || (noise) == NOISE_LOCAL_UNIT)

#define MOST_EXPERTS 64  /* of a copy; the same in hvcl.ops.structures: gates keep numbers for every expert on the stack */
#define COLUMNS 1024     /* numbers of every expert that are looked at together in diversity.c; the same in hvcl.ops.diversity */
#define TINY 1e-20f      /* under the square root of a variance: an all-zero input has no noise, and its gradient must be 0, not 0 * inf */

/* Not inlined: inlining forgets `restrict`, and the same numbers must go through the same instructions (where gate and prior are equal, their
 * KL is exactly zero). */
#define ONE_COPY static __attribute__((noinline))

/* random.c, for other files */
uint64_t splitmix(uint64_t *state);
void random_flip(int64_t n, uint64_t seed, int add, const float *x, float *out);
/* held.c: log sigma from raw, sigma = log(1 + exp(raw)), and d log sigma / d raw */
float log_softplus(float raw);
float log_softplus_slope(float log_sigma);
/* product.c: c[rows, columns] = a b + beta c, rows being lda, ldb and ldc numbers apart */
void product_of_parts(int64_t rows, int64_t columns, int64_t n, const float *a, int64_t lda, int turn_a, const float *b, int64_t ldb, int turn_b, float beta, float *c, int64_t ldc);

/* -- exponentials that the compiler can put between other instructions: half the time of a vector library's call ------------------- */

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
/* 2^n and r with x = n log(2) + r, |r| <= log(2) / 2; beyond +-87 x stays what it is there. The value is a polynomial after Cephes. */
static inline float exponential_parts(float x, float *power, float *r)
{
    x = x > 87.0f ? 87.0f : x < -87.0f ? -87.0f : x;
    const float n = rintf(x * 1.44269504f);
    *r = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, x));  /* fmaf: -ffast-math must not add the two constants up */
    const union { uint32_t u; float f; } two = { .u = (uint32_t)((int32_t) n + 127) << 23 };
    *power = two.f;
    const float s = *r;
    float p = 1.9875691500e-4f;
    p = p * s + 1.3981999507e-3f; p = p * s + 8.3334519073e-3f; p = p * s + 4.1665795894e-2f;
    p = p * s + 1.6666665459e-1f; p = p * s + 5.0000001201e-1f;
    return fmaf(p * s, s, s);
}

/* exp(x) - 1 = 2^n (e^r - 1) + (2^n - 1); exactly zero at zero */
static inline float exp_minus_one(float x)
{
    float power, r;
    const float e = exponential_parts(x, &power, &r);
    return fmaf(power, e, power - 1.0f);
}

static inline float exponential(float x)
{
    float power, r;
    const float e = exponential_parts(x, &power, &r);
    return power * (e + 1.0f);
}

/* log(x) of a positive number, after Cephes: mantissa between sqrt(1/2) and sqrt(2), so that log(1) and what is near it are accurate */
static inline float logarithm(float x)
{
    union { float f; uint32_t u; } v = { .f = x };
    const uint32_t shifted = v.u - 0x3f3504f3u;  /* sqrt(1/2) */
    const float e = (float)((int32_t) shifted >> 23);
    v.u = (shifted & 0x007fffffu) + 0x3f3504f3u;
    const float m = v.f - 1.0f, z = m * m;
    float p = 7.0376836292e-2f;
    p = p * m - 1.1514610310e-1f; p = p * m + 1.1676998740e-1f; p = p * m - 1.2420140846e-1f; p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f; p = p * m + 2.0000714765e-1f; p = p * m - 2.4999993993e-1f; p = p * m + 3.3333331174e-1f;
    return fmaf(e, 0.69314718f, m + fmaf(p * m, z, -0.5f * z));
}
#else
#define exponential expf
#define exp_minus_one expm1f
#define logarithm logf
#endif

/* -- random numbers: xoshiro128++ (Blackman & Vigna, 2019) in many lanes, each started by splitmix64 -------------------------------- */

#define LANES 64

typedef struct { uint32_t a[LANES], b[LANES], c[LANES], d[LANES]; } Lanes;

void seed_lanes(Lanes *lanes, uint64_t seed);

#define ROTATE(x, k) (((x) << (k)) | ((x) >> (32 - (k))))

static inline void next_bits(Lanes *lanes, uint32_t *restrict bits)
{
    for (int i = 0; i < LANES; i++) {
        uint32_t a = lanes->a[i], b = lanes->b[i], c = lanes->c[i], d = lanes->d[i];
        const uint32_t sum = a + d, shifted = b << 9;
        bits[i] = ROTATE(sum, 7) + a;
        c ^= a; d ^= b; b ^= c; a ^= d; c ^= shifted;
        lanes->a[i] = a; lanes->b[i] = b; lanes->c[i] = c; lanes->d[i] = ROTATE(d, 11);
    }
}

/* Exponentials with mean 1, from 23 random bits each */
static inline void next_exponentials(Lanes *lanes, float *restrict out)
{
    uint32_t bits[LANES];
    next_bits(lanes, bits);
    for (int i = 0; i < LANES; i++) out[i] = -logarithm(((float)(int32_t)(bits[i] >> 9) + 0.5f) * 0x1p-23f);
}

#endif
