/* Sums over a complete binary tree; see hvcl.rl.sum_tree. */
#include "hvcl.h"

/* The sums above some nodes anew, level by level; the nodes' numbers are overwritten */
void tree_update(int64_t count, int64_t levels, int64_t *restrict at, double *nodes)
{
    for (int64_t l = 0; l < levels; l++)
        for (int64_t i = 0; i < count; i++) {
            const int64_t node = at[i] >>= 1;
            nodes[node] = nodes[2 * node] + nodes[2 * node + 1];
        }
}

/* From the root down to the leaf at which the running sum first exceeds each of `masses`, which are overwritten */
void tree_find(int64_t count, int64_t levels, int64_t root, const double *restrict nodes, double *restrict masses, int64_t *restrict found)
{
    for (int64_t i = 0; i < count; i++) found[i] = root;
    for (int64_t l = 0; l < levels; l++)
        for (int64_t i = 0; i < count; i++) {
            const double left = nodes[2 * found[i]];
            const int right = masses[i] >= left;
            masses[i] -= right ? left : 0.0;
            found[i] = 2 * found[i] + right;
        }
}
