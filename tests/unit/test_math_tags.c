/* SPDX-License-Identifier: Apache-2.0 */
/* test_math_tags.c: the words for what heads do, from maps whose pattern is known, and
 * the order in which they may go. */
#include "split_plainly.h"

#include <attnd/heads.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
/* cmocka.h needs those above. */
#include <cmocka.h>

#define MAP 24 /* tokens of the maps below */

/* Adds row `i` of the only head, and the even weights of keys->even beside it. */
static void add_row(const double *row, const struct plain_keys *keys, size_t i,
                    attn_heads *heads) {
    split_plainly(row, keys, i, heads->sums);
    split_plainly(keys->even, keys, i, &heads->even);
    for (size_t p = 0; p < ATTN_HEAD_PLACES; p++)
        heads->rows_at[p] += p == ATTN_PLACE_FIRST || p == ATTN_PLACE_SEPARATOR ||
                             plain_has(keys, keys->even, i, p);
    heads->rows++;
    heads->row_keys += (double)keys->count;
}

/* Describes the only head of a model, which has these weights, [MAP, MAP]; rows are
 * divided by their sums, or have a sink when they are below 1. */
static attn_head describe_map(double map[MAP][MAP], const size_t *ids) {
    double gram = 1, even[MAP];
    const struct plain_keys keys = {MAP, MAP - 1, ids, true, even};
    attn_head_sums sums = {0};
    attn_heads heads = {.num_heads = 1, .sums = &sums, .gram = &gram, .squared_norm = 1};
    attn_head head;

    for (size_t k = 0; k < MAP; k++)
        even[k] = 1.0 / MAP;
    for (size_t i = 0; i < MAP; i++) {
        double sum = 0;
        for (size_t k = 0; k < MAP; k++)
            sum += map[i][k];
        for (size_t k = 0; sum > 1 && k < MAP; k++)
            map[i][k] /= sum;
        heads.sinks |= sum < 0.999;
        add_row(map[i], &keys, i, &heads);
    }
    attn_heads_describe(&heads, 0, &head);
    return head;
}

/* The id of token i: each is there three times, 8 apart. */
static const size_t three_ids[MAP] = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4,
                                      5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8};

/* Fills a map with `rest` of even weights, and adds `weight` at a place of each row. */
static void fill_map(double map[MAP][MAP], double rest, size_t place, double weight) {
    const struct plain_keys keys = {MAP, MAP - 1, three_ids, true, NULL};

    for (size_t i = 0; i < MAP; i++) {
        for (size_t k = 0; k < MAP; k++)
            map[i][k] = rest / MAP + (plain_is_at(&keys, i, k, place) ? weight : 0);
    }
}

static void check_tag(double map[MAP][MAP], const char *name, bool weak, double share) {
    const attn_head head = describe_map(map, three_ids);

    if (head.tags[0].name == NULL || strcmp(head.tags[0].name, name) != 0)
        fail_msg("%s, not %s", head.tags[0].name, name);
    assert_int_equal(head.tags[0].weak, weak);
    if (fabs(head.tags[0].share - share) > 0.02)
        fail_msg("%s: %.4f, not %.4f", name, head.tags[0].share, share);
}

static void test_tags_name_the_place_that_has_most(void **state) {
    static const struct {
        size_t place;
        const char *name;
    } places[] = {{ATTN_PLACE_SELF - 16, "16 before"}, {ATTN_PLACE_SELF - 3, "3 before"},
                  {ATTN_PLACE_PREVIOUS, "previous"},   {ATTN_PLACE_SELF, "self"},
                  {ATTN_PLACE_NEXT, "next"},           {ATTN_PLACE_SELF + 16, "16 after"},
                  {ATTN_PLACE_FIRST, "first token"}};
    double map[MAP][MAP];

    (void)state;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        fill_map(map, 0.2, places[i].place, 0.8);
        check_tag(map, places[i].name, false, 0.81);
        fill_map(map, 0.7, places[i].place, 0.3);
        check_tag(map, places[i].name, true, 0.33);
    }
}

static void test_tags_name_places_of_several_keys(void **state) {
    double map[MAP][MAP];
    (void)state;
    fill_map(map, 0, ATTN_PLACE_SAME, 1);
    check_tag(map, "same token", false, 1);
    fill_map(map, 0.1, ATTN_PLACE_DUPLICATE, 1);
    check_tag(map, "duplicate", false, 0.94);
    fill_map(map, 0.1, ATTN_PLACE_INDUCTION, 1);
    check_tag(map, "induction", false, 0.94);
    fill_map(map, 0.2, ATTN_PLACE_SEPARATOR, 0.8);
    check_tag(map, "separator", false, 0.93);
    assert_string_equal(describe_map(map, NULL).tags[0].name, "separator");
    fill_map(map, 0, ATTN_PLACE_SAME, 1); /* without ids, nothing names it */
    assert_string_not_equal(describe_map(map, NULL).tags[0].name, "same token");
    for (size_t i = 0; i < MAP; i++) {
        for (size_t k = 0; k < MAP; k++)
            map[i][k] = k + 2 >= i && k <= i + 2;
    }
    check_tag(map, "local window", false, 1);
}

static void test_tags_name_patterns_of_many_keys(void **state) {
    double map[MAP][MAP];
    (void)state;
    fill_map(map, 1, ATTN_PLACE_SELF, 0);
    check_tag(map, "even", false, 1);
    for (size_t i = 0; i < MAP; i++) {
        for (size_t k = 0; k < MAP; k++)
            map[i][k] = k <= i;
    }
    check_tag(map, "causal prefix", false, 1);
    for (size_t i = 0; i < MAP; i++) {
        for (size_t k = 0; k < MAP; k++)
            map[i][k] = (i < MAP / 2) == (k >= MAP - 6) && (k < 6 || k >= MAP - 6);
    }
    check_tag(map, "long range", false, 1);
    for (size_t i = 0; i < MAP; i++) {
        for (size_t k = 0; k < MAP; k++) /* no place has more than others */
            map[i][k] = 1 + 30 * ((i * 7 + k * k * 5 + i * k) % 3 == 0);
    }
    check_tag(map, "spread", true, 0.83);
}

/* Where one key or a sink has most of the weight, a second tag describes the rest. */
static void test_second_tag_describes_what_marked_keys_leave(void **state) {
    double map[MAP][MAP];
    attn_head head;

    (void)state;
    fill_map(map, 0, ATTN_PLACE_PREVIOUS, 0.3);
    for (size_t i = 0; i < MAP; i++)
        map[i][0] += 0.7;
    head = describe_map(map, NULL);
    assert_string_equal(head.tags[0].name, "first token");
    assert_string_equal(head.tags[1].name, "previous");
    assert_true(head.tags[1].share > 0.99 && !head.tags[1].weak);
    assert_null(head.tags[2].name);

    for (size_t i = 0; i < MAP; i++)
        map[i][0] = 20; /* leaves 0.015 */
    assert_null(describe_map(map, NULL).tags[1].name);

    fill_map(map, 0, ATTN_PLACE_SELF - 2, 0.2); /* the rest is a sink's */
    head = describe_map(map, NULL);
    assert_string_equal(head.tags[0].name, "sink");
    assert_true(fabs(head.tags[0].share - 0.8) < 0.03);
    assert_string_equal(head.tags[1].name, "2 before");
}

/* Where rows differ in what is left for the rest: two of three keys are not even, though
 * the rows that leave most have many keys. */
static void test_rest_is_compared_with_even_weights_of_its_rows(void **state) {
    attn_head_sums sums = {0};
    double gram = 1;
    attn_heads heads = {.num_heads = 1, .sums = &sums, .gram = &gram, .squared_norm = 1};
    attn_head head;

    (void)state;
    for (size_t i = 0; i < MAP; i++) {
        double row[MAP] = {1}, even[MAP] = {0}, some = (double)(i - 1 - (i - 1) / 3);
        const struct plain_keys keys = {MAP, MAP - 1, NULL, true, even};
        for (size_t k = 0; k <= i; k++)
            even[k] = 1 / (double)(i + 1);
        for (size_t k = 0; i >= 16 && k < i; k++)
            row[k] = k == 0 ? 0.1 : k % 3 > 0 ? 0.9 / some : 0;
        add_row(row, &keys, i, &heads);
    }
    attn_heads_describe(&heads, 0, &head);
    assert_string_equal(head.tags[0].name, "first token");
    assert_non_null(head.tags[1].name);
    assert_string_not_equal(head.tags[1].name, "even");
}

/* Rows of fewer than 6 keys say too little. */
static void test_short_sequences_have_no_tags(void **state) {
    attn_head_sums sums = {.entropy = 8, .total = 5};
    attn_heads heads = {.num_heads = 1, .sums = &sums, .rows = 5, .row_keys = 25};
    attn_head head;

    (void)state;
    heads.even = sums;
    attn_heads_describe(&heads, 0, &head);
    assert_null(head.tags[0].name);
    heads.row_keys = 30;
    attn_heads_describe(&heads, 0, &head);
    assert_string_equal(head.tags[0].name, "even");
}

static void test_outputs_of_0_have_no_change(void **state) {
    (void)state;
    double gram = 0;
    attn_head_sums sums = {0};
    const attn_heads heads = {.num_heads = 1, .sums = &sums, .gram = &gram, .rows = 1};
    attn_head head;

    attn_heads_describe(&heads, 0, &head);
    assert_true(head.importance == 0);
    assert_string_equal(head.tags[0].name, "unused");
    assert_true(isnan(head.mean_distance) && isnan(head.mass_on_previous));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tags_name_the_place_that_has_most),
        cmocka_unit_test(test_tags_name_places_of_several_keys),
        cmocka_unit_test(test_tags_name_patterns_of_many_keys),
        cmocka_unit_test(test_second_tag_describes_what_marked_keys_leave),
        cmocka_unit_test(test_rest_is_compared_with_even_weights_of_its_rows),
        cmocka_unit_test(test_short_sequences_have_no_tags),
        cmocka_unit_test(test_outputs_of_0_have_no_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
