/* SPDX-License-Identifier: Apache-2.0 */
/* test_models_generation.c: tests of generations: what they share, and when they are
 * freed. Leaks and use after free are found by the sanitizers. */
#include "fail_alloc.h"
#include "models/generation.h"

#include <attnd/library.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

static int set_up(void **state) {
    static struct generations all;
    attn_error error;
    generations_init(&all);
    *state = &all;
    return attn_init(&error) == ATTN_OK ? 0 : -1;
}

static int tear_down(void **state) {
    generations_deinit(*state);
    return 0;
}

static attn_model *new_model(const char *name) {
    attn_model *model;
    attn_error error;
    assert_int_equal(attn_model_demo(name, NULL, &model, &error), ATTN_OK);
    return model;
}

/* Publishes at most three models, and one that cannot be loaded. */
static attn_status publish(struct generations *all, attn_model *const *models,
                           size_t count) {
    struct model_entry entries[4] = {{.name = ""}};
    for (size_t i = 0; i < count; i++) {
        entries[i].model = models[i];
        strcpy(entries[i].name, attn_model_get_info(models[i])->name);
    }
    strcpy(entries[count].name, "bad");
    entries[count].error = (attn_error){ATTN_E_VALUE, "why"};
    return generation_publish(all, &(struct model_list){entries, count + 1});
}

static void test_models_and_counters_are_shared_by_name(void **state) {
    struct generations *all = *state;
    attn_model *first[] = {new_model("d2l"), new_model("journey")};
    assert_int_equal(publish(all, first, 2), ATTN_OK);
    struct generation *old = generation_acquire(all);
    assert_int_equal(old->num_models, 2);
    assert_int_equal(old->num_listings, 3);
    assert_string_equal(old->listings[1].name, "journey");
    assert_ptr_equal(old->listings[1].info, attn_model_get_info(first[1]));
    assert_null(old->listings[2].info);
    assert_string_equal(old->listings[2].reason, "why");

    /* d2l is another model of the same name, journey is the same, stacked is new. */
    attn_model *second[] = {new_model("d2l"), first[1], new_model("stacked")};
    assert_int_equal(publish(all, second, 3), ATTN_OK);
    struct generation *generation = generation_acquire(all);
    assert_ptr_not_equal(generation, old);
    assert_ptr_equal(generation_stats(generation, second[0]),
                     generation_stats(old, first[0]));
    assert_ptr_equal(generation_stats(generation, second[1]),
                     generation_stats(old, first[1]));
    assert_null(generation_stats(generation, first[0]));
    assert_null(generation_stats(old, second[2]));
    generation_release(generation);
    generation_release(old);
}

static void test_generation_lives_while_it_is_held(void **state) {
    struct generations *all = *state;
    attn_model *first = new_model("d2l"), *second = new_model("journey");
    assert_int_equal(publish(all, &first, 1), ATTN_OK);
    struct generation *old = generation_acquire(all);

    for (int i = 0; i < 3; i++)
        assert_int_equal(publish(all, &second, 1), ATTN_OK);
    generations_free_unused(all); /* the two in the middle */
    assert_ptr_equal(all->current->earlier, old);
    assert_string_equal(attn_model_get_info(old->models[0])->name, "d2l");
    generation_release(old);
    generations_free_unused(all);
    assert_null(all->current->earlier);
}

static void test_room_for_generations_is_bounded(void **state) {
    struct generations *all = *state;
    struct generation *held[100];
    attn_model *model = new_model("d2l");
    size_t count = 0;

    assert_int_equal(publish(all, &model, 1), ATTN_OK);
    for (; generations_have_room(all) && count < 100; count++) {
        held[count] = generation_acquire(all);
        assert_int_equal(publish(all, &model, 1), ATTN_OK);
    }
    assert_true(count >= 8 && count < 100);
    generation_release(held[count / 2]);
    assert_true(generations_have_room(all));
    for (size_t i = 0; i < count; i++) {
        if (i != count / 2)
            generation_release(held[i]);
    }
}

static void test_generation_may_be_empty(void **state) {
    struct generations *all = *state;
    attn_model *model = new_model("d2l");
    assert_int_equal(publish(all, &model, 1), ATTN_OK);
    assert_int_equal(publish(all, NULL, 0), ATTN_OK);
    generations_free_unused(all);
    struct generation *generation = generation_acquire(all);
    assert_int_equal(generation->num_models, 0);
    generation_release(generation);
}

/* Prints how often it was called; `context` counts. */
static void print_count(void *context, struct buf *text) {
    char number[16];
    snprintf(number, sizeof number, "%d", ++*(int *)context);
    buf_append_text(text, number);
}

static void test_text_is_printed_anew_when_it_is_too_old(void **state) {
    struct generations *all = *state;
    attn_model *model = new_model("d2l");
    assert_int_equal(publish(all, &model, 1), ATTN_OK);
    struct generation *generation = generation_acquire(all);
    struct shared_text *texts[4];
    int count = 0;

    assert_int_equal(generation_get_text(generation, GENERATION_MODELS,
                                         GENERATION_FOREVER, print_count, &count,
                                         &texts[0]),
                     ATTN_OK);
    assert_int_equal(generation_get_text(generation, GENERATION_MODELS,
                                         GENERATION_FOREVER, print_count, &count,
                                         &texts[1]),
                     ATTN_OK);
    assert_ptr_equal(texts[0], texts[1]);
    assert_int_equal(texts[0]->text.size, 1);
    assert_int_equal(texts[0]->text.capacity, 1);

    assert_int_equal(generation_get_text(generation, GENERATION_MODELS, 0, print_count,
                                         &count, &texts[2]),
                     ATTN_OK);
    assert_int_equal(generation_get_text(generation, GENERATION_INDEX, GENERATION_FOREVER,
                                         print_count, &count, &texts[3]),
                     ATTN_OK);
    assert_int_equal(count, 3);
    generation_release(generation);
    publish(all, NULL, 0);
    generations_free_unused(all); /* readers keep what they send */
    for (int i = 0; i < 4; i++) {
        assert_int_equal(texts[i]->text.data[0], "1123"[i]);
        shared_text_release(texts[i]);
    }
}

static void print_slowly(void *context, struct buf *text) {
    clock_t end = clock() + CLOCKS_PER_SEC / 20; /* of CPU time */
    while (clock() < end)
        ;
    print_count(context, text);
}

static void test_text_that_takes_long_is_printed_less_often(void **state) {
    struct generations *all = *state;
    attn_model *model = new_model("d2l");
    assert_int_equal(publish(all, &model, 1), ATTN_OK);
    struct generation *generation = generation_acquire(all);
    int count = 0, calls = 0;

    /* Where other programs take the CPU, one may be too old when it is there. */
    do {
        struct shared_text *text;
        assert_int_equal(generation_get_text(generation, GENERATION_METRICS, 1,
                                             print_slowly, &count, &text),
                         ATTN_OK);
        shared_text_release(text);
        calls++;
    } while (count == calls && calls < 200);
    assert_true(count < calls);
    generation_release(generation);
}

/* One thread prints while another has printed a later text, which stays. */
static void print_twice(void *context, struct buf *text) {
    struct generation *generation = context;
    struct shared_text *later;
    int count = 1;

    while (generation_get_text(generation, GENERATION_METRICS, 0, print_count, &count,
                               &later) != ATTN_OK)
        ;
    shared_text_release(later);
    buf_append_text(text, "1");
}

static void test_later_text_is_kept(void **state) {
    struct generations *all = *state;
    attn_model *model = new_model("d2l");
    assert_int_equal(publish(all, &model, 1), ATTN_OK);
    struct generation *generation = generation_acquire(all);
    struct shared_text *first, *kept;

    assert_int_equal(generation_get_text(generation, GENERATION_METRICS, 0, print_twice,
                                         generation, &first),
                     ATTN_OK);
    assert_int_equal(generation_get_text(generation, GENERATION_METRICS,
                                         GENERATION_FOREVER, print_twice, generation,
                                         &kept),
                     ATTN_OK);
    assert_int_equal(first->text.data[0], '1');
    assert_int_equal(kept->text.data[0], '2');
    shared_text_release(first);
    shared_text_release(kept);
    generation_release(generation);
}

static void test_text_is_not_kept_when_memory_is_short(void **state) {
    struct generations *all = *state;
    attn_model *model = new_model("d2l");
    assert_int_equal(publish(all, &model, 1), ATTN_OK);
    struct generation *generation = generation_acquire(all);

    for (size_t nth = 1;; nth++) {
        struct shared_text *text = NULL;
        int count = 0;
        fail_alloc_at(nth);
        attn_status status =
            generation_get_text(generation, GENERATION_STATISTICS, GENERATION_FOREVER,
                                print_count, &count, &text);
        if (!fail_alloc_stop()) {
            assert_int_equal(status, ATTN_OK);
            shared_text_release(text);
            break;
        }
        assert_int_equal(status, ATTN_E_NOMEM);
        assert_null(generation->texts[GENERATION_STATISTICS].text);
    }
    generation_release(generation);
}

static void test_what_is_served_stays_when_memory_is_short(void **state) {
    struct generations *all = *state;
    attn_model *models[] = {new_model("d2l"), new_model("journey")};
    assert_int_equal(publish(all, models, 1), ATTN_OK);
    const struct generation *before = all->current;

    for (size_t nth = 1;; nth++) {
        fail_alloc_at(nth);
        attn_status status = publish(all, models, 2);
        if (!fail_alloc_stop()) {
            assert_int_equal(status, ATTN_OK);
            assert_in_range(nth, 8, 20);
            break;
        }
        assert_int_equal(status, ATTN_E_NOMEM);
        assert_ptr_equal(all->current, before);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_models_and_counters_are_shared_by_name,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_generation_lives_while_it_is_held, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_room_for_generations_is_bounded, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_generation_may_be_empty, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_text_is_printed_anew_when_it_is_too_old,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_text_that_takes_long_is_printed_less_often,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_later_text_is_kept, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_text_is_not_kept_when_memory_is_short,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_is_served_stays_when_memory_is_short,
                                        set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
