/* SPDX-License-Identifier: Apache-2.0 */
/* test_prune_order.c: the order in which heads are left out, compared with trying every
 * set of heads that the definition speaks of. */
#include "random_model.h"

#include <attnd/heads.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#define HEADS_MAX 6
#define ROWS      8 /* numbers of a contribution */

/* Makes heads with random contributions; some are equal, and some are 0. */
static void make_heads(uint64_t *seed, size_t num_heads, double *gram,
                       struct attn_heads *ret_heads) {
    float parts[HEADS_MAX][ROWS], sum[ROWS] = {0};

    *ret_heads = (struct attn_heads){.num_heads = num_heads, .gram = gram};
    for (size_t h = 0; h < num_heads; h++) {
        random_fill(seed, parts[h], ROWS);
        for (size_t i = 0; i < ROWS; i++) {
            if (h > 0 && random_between(seed, 0, 9) == 0)
                parts[h][i] = parts[h - 1][i];
            sum[i] += parts[h][i];
        }
    }
    for (size_t i = 0; i < ROWS; i++)
        ret_heads->squared_norm += (double)sum[i] * (double)sum[i];
    for (size_t g = 0; g < num_heads; g++) {
        for (size_t h = 0; h < num_heads; h++) {
            gram[g * num_heads + h] = 0;
            for (size_t i = 0; i < ROWS; i++)
                gram[g * num_heads + h] += (double)parts[g][i] * (double)parts[h][i];
        }
    }
}

/* The change without the heads of a set, from the sum over the set itself. */
static double change_without(const struct attn_heads *heads, const bool *left_out) {
    double sum = 0;
    for (size_t g = 0; g < heads->num_heads; g++) {
        for (size_t h = 0; h < heads->num_heads; h++) {
            if (left_out[g] && left_out[h])
                sum += heads->gram[g * heads->num_heads + h];
        }
    }
    return sqrt(fmax(0, sum) / heads->squared_norm);
}

static void test_each_head_in_the_order_changes_the_outputs_least(void **state) {
    uint64_t seed = unit_seed(14);
    (void)state;

    for (size_t trial = 0; trial < 500; trial++) {
        double gram[HEADS_MAX * HEADS_MAX], changes[HEADS_MAX];
        size_t order[HEADS_MAX], num_heads = random_between(&seed, 1, HEADS_MAX);
        bool left_out[HEADS_MAX] = {false};
        struct attn_heads heads;

        make_heads(&seed, num_heads, gram, &heads);
        attn_heads_order(&heads, order, changes);
        for (size_t i = 0; i < num_heads; i++) {
            assert_true(order[i] < num_heads && !left_out[order[i]]);
            left_out[order[i]] = true;
            double chosen = change_without(&heads, left_out);
            assert_true(fabs(changes[i] - chosen) <= 1e-6);
            assert_true(fabs(attn_heads_change(&heads, left_out) - chosen) <= 1e-6);

            left_out[order[i]] = false;
            for (size_t h = 0; h < num_heads; h++) {
                if (left_out[h])
                    continue;
                left_out[h] = true;
                assert_true(change_without(&heads, left_out) >= chosen - 1e-6);
                left_out[h] = false;
            }
            left_out[order[i]] = true;
        }
    }
}

static void test_equal_heads_are_left_out_by_their_number(void **state) {
    double gram[16] = {0}, changes[4];
    size_t order[4];
    (void)state;

    for (size_t h = 0; h < 4; h++) /* orthogonal, of squared norms 2 1 2 1 */
        gram[h * 4 + h] = h % 2 == 0 ? 2 : 1;
    attn_heads_order(
        &(struct attn_heads){.num_heads = 4, .gram = gram, .squared_norm = 6}, order,
        changes);
    const size_t want[] = {1, 3, 0, 2};
    assert_memory_equal(order, want, sizeof want);
    assert_true(fabs(changes[3] - 1) <= 1e-12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_head_in_the_order_changes_the_outputs_least),
        cmocka_unit_test(test_equal_heads_are_left_out_by_their_number),
    };
    return cmocka_run_group_tests_name("prune_order", tests, NULL, NULL);
}
