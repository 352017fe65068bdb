/* SPDX-License-Identifier: Apache-2.0 */
/* test_captures.c: the hash against the vectors of FIPS 180, the times of a PUT, and who
 * gives room to whom. */
#include "base/buf.h"
#include "captures/capture.h"
#include "captures/put.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h needs those above. */
#include <cmocka.h>

#define NS_PER_SECOND ((int64_t)1000000000)
#define LIMIT         ((size_t)2 * 1024 * 1024)
#define UNIT          CAPTURE_BYTES_MIN
#define DESCRIPTION   "a layer"

static bool reserve_all(void *context, size_t bytes, struct wire_problem *ret_problem) {
    (void)context;
    (void)bytes;
    (void)ret_problem;
    return true;
}

static void print_text(void *capture, struct buf *text) {
    (void)capture;
    buf_append_text(text, DESCRIPTION);
}

static const struct capture_printer printer = {reserve_all, NULL, print_text};

/* Begins a PUT of a holder, dated back by `seconds`. NULL: it is refused. */
static struct capture_put *begin(struct captures *store, const char *holder, size_t size,
                                 int64_t seconds, struct wire_problem *ret_problem) {
    const struct capture_owner owner = {"", holder};
    struct capture_put *put;

    if (!capture_put_create(store, &owner, holder, strlen(holder), size, NS_PER_SECOND,
                            &put, ret_problem))
        return NULL;
    put->started -= seconds * NS_PER_SECOND;
    store->next_expiry = 0; /* a look at the store finds out anew */
    return put;
}

/* Returns why bytes are not taken. */
static enum wire_error add_byte(struct capture_put *put) {
    struct wire_problem problem;

    return capture_put_add(put, (const unsigned char *)"", 1, &printer, &problem)
               ? WIRE_NUM_ERRORS
               : problem.error;
}

static void test_put_ends_after_ten_minutes(void **state) {
    struct captures *store = captures_create(LIMIT);
    struct wire_problem problem;
    (void)state;

    struct capture_put *young =
        begin(store, "young", LIMIT / 4, CAPTURES_PUT_SECONDS - 5, &problem);
    struct capture_put *old =
        begin(store, "old", LIMIT / 4, CAPTURES_PUT_SECONDS + 1, &problem);
    assert_non_null(young);
    assert_non_null(old);
    assert_int_equal(add_byte(old), WIRE_E_REQUEST_TIMEOUT);
    assert_int_equal(add_byte(young), WIRE_NUM_ERRORS);
    /* A look at the store takes its room back. */
    assert_int_equal(captures_get_stats(store).bytes, LIMIT / 4);
    capture_put_destroy(old);
    capture_put_destroy(young);
    assert_int_equal(captures_get_stats(store).bytes, 0);
    captures_destroy(store);
}

/* --- room --- */

/* Puts a capture that counts nearly `units` of 64 KiB. Returns whether it was kept. */
static bool keep(struct captures *store, const char *holder, const char *name,
                 size_t units, int64_t ttl, struct wire_problem *ret_problem) {
    const struct capture_owner owner = {"", holder};
    size_t rows = (units * UNIT / 256 - 4) / 96 * 96, size = rows * 256;
    unsigned char *file = calloc(1, size + 512);
    struct capture *capture = NULL;
    struct capture_put *put;
    bool created, kept = false;

    int header = snprintf((char *)file + 8, 504,
                          "{\"__metadata__\":{\"layers\":\"[\\\"0\\\"]\"},\"0.keys\":{"
                          "\"dtype\":\"F32\",\"shape\":[%zu,1,64],\"data_offsets\":[0,"
                          "%zu]}}",
                          rows, size);
    memcpy(file, &(uint64_t){(uint64_t)header}, 8);
    size += 8 + (size_t)header;
    if (capture_put_create(store, &owner, name, strlen(name), size, ttl, &put,
                           ret_problem)) {
        kept = capture_put_add(put, file, size, &printer, ret_problem) &&
               capture_put_finish(put, &capture, &created, ret_problem);
        capture_put_destroy(put);
    }
    capture_release(capture);
    free(file);
    return kept;
}

static bool is_kept(struct captures *store, const char *name) {
    struct capture *capture = captures_acquire(store, "", name, strlen(name), false);
    capture_release(capture);
    return capture != NULL;
}

static void use(struct captures *store, const char *name) {
    struct capture *capture = captures_acquire(store, "", name, strlen(name), true);
    assert_non_null(capture);
    capture_release(capture);
}

/* Makes a store of 32 units: `a` has nearly 15 in three captures, `b` 16 in two. */
static struct captures *make_full_store(void) {
    struct captures *store = captures_create(LIMIT);
    struct wire_problem problem;
    int64_t ttl = NS_PER_SECOND * 1000;

    assert_true(keep(store, "a", "a1", 5, ttl, &problem));
    assert_true(keep(store, "a", "a2", 5, ttl, &problem));
    assert_true(keep(store, "a", "a3", 5, ttl, &problem));
    assert_true(keep(store, "b", "b1", 8, ttl, &problem));
    assert_true(keep(store, "b", "b2", 8, ttl, &problem));
    use(store, "b1");
    return store;
}

static void test_who_has_most_gives_what_was_used_least_recently(void **state) {
    struct captures *store = make_full_store();
    struct wire_problem problem;
    (void)state;

    assert_true(keep(store, "c", "c1", 2, NS_PER_SECOND, &problem));
    assert_false(is_kept(store, "b2"));
    assert_true(is_kept(store, "b1") && is_kept(store, "a1"));
    /* `a` has most now. */
    assert_true(keep(store, "d", "d1", 10, NS_PER_SECOND, &problem));
    assert_false(is_kept(store, "a1"));
    assert_true(is_kept(store, "b1") && is_kept(store, "a2") && is_kept(store, "c1"));
    assert_int_equal(captures_get_stats(store).removals[CAPTURE_REMOVED_ROOM], 2);
    captures_destroy(store);
}

static void test_nothing_goes_that_does_not_suffice(void **state) {
    struct captures *store = make_full_store();
    struct wire_problem problem;
    (void)state;

    /* b2 would go for it; then it would have more than those who have most. */
    size_t bytes = captures_get_stats(store).bytes;
    assert_false(keep(store, "c", "c1", 15, NS_PER_SECOND, &problem));
    assert_int_equal(problem.error, WIRE_E_CAPTURES_FULL);
    assert_int_equal(captures_get_stats(store).bytes, bytes);
    assert_int_equal(captures_get_stats(store).captures, 5);
    captures_destroy(store);
}

static void test_what_is_in_use_stays(void **state) {
    struct captures *store = make_full_store();
    struct wire_problem problem;
    (void)state;

    struct capture *b1 = captures_acquire(store, "", "b1", 2, true);
    struct capture *b2 = captures_acquire(store, "", "b2", 2, true);
    assert_true(keep(store, "c", "c1", 2, NS_PER_SECOND, &problem));
    assert_false(is_kept(store, "a1"));
    assert_true(is_kept(store, "b1") && is_kept(store, "b2"));
    capture_release(b1);
    capture_release(b2);
    captures_destroy(store);
}

static void test_holder_that_is_full_gives_its_own(void **state) {
    struct captures *store = make_full_store();
    struct wire_problem problem;
    (void)state;

    /* It has its half; the other one keeps all. */
    use(store, "a1");
    assert_true(keep(store, "a", "a4", 5, NS_PER_SECOND, &problem));
    assert_false(is_kept(store, "a2"));
    assert_true(keep(store, "b", "b3", 7, NS_PER_SECOND, &problem));
    assert_false(is_kept(store, "b2"));
    assert_true(is_kept(store, "a1") && is_kept(store, "a3") && is_kept(store, "b1"));
    captures_destroy(store);
}

static void test_announced_files_give_room(void **state) {
    struct captures *store = captures_create(LIMIT);
    struct wire_problem problem;
    (void)state;

    struct capture_put *first = begin(store, "first", LIMIT / 2, 0, &problem);
    struct capture_put *second = begin(store, "second", LIMIT / 2, 0, &problem);
    assert_true(keep(store, "c", "c1", 2, NS_PER_SECOND, &problem));
    struct capture_put *ended = first->capture == NULL ? first : second;
    assert_null(ended->capture);
    assert_non_null((ended == first ? second : first)->capture);
    assert_int_equal(add_byte(ended), WIRE_E_CAPTURES_FULL);
    /* Its owner has nothing now, but wants as much again. */
    capture_put_destroy(ended);
    assert_null(begin(store, "again", LIMIT / 2, 0, &problem));
    capture_put_destroy(ended == first ? second : first);
    captures_destroy(store);
}

/* --- what else the store tells and keeps --- */

static void test_description_is_printed_once_and_counts(void **state) {
    struct captures *store = make_full_store();
    (void)state;

    struct capture *capture = captures_acquire(store, "", "a1", 2, false);
    struct shared_text *kept = capture_get_info(capture).description;
    struct shared_text *first = shared_text_hold(kept);
    struct shared_text *second = shared_text_hold(kept);
    assert_ptr_equal(first, second);
    assert_memory_equal(first->text.data, DESCRIPTION, first->text.size);
    assert_int_equal(capture_get_info(capture).bytes,
                     sizeof *capture + capture->layout.block_bytes +
                         capture->layout.own_bytes + sizeof DESCRIPTION - 1);
    capture_release(capture);
    captures_destroy(store);
    /* They outlive it. */
    shared_text_release(first);
    assert_memory_equal(second->text.data, DESCRIPTION, second->text.size);
    shared_text_release(second);
}

static void test_same_bytes_again_set_the_time(void **state) {
    struct captures *store = captures_create(LIMIT);
    struct wire_problem problem;
    (void)state;

    assert_true(keep(store, "a", "a1", 2, NS_PER_SECOND * 1000, &problem));
    assert_true(keep(store, "b", "a1", 2, NS_PER_SECOND * 5, &problem));
    struct capture *capture = captures_acquire(store, "", "a1", 2, false);
    assert_int_equal(capture_get_info(capture).ttl, NS_PER_SECOND * 5);
    assert_int_equal(store->next_expiry, capture->last_use + NS_PER_SECOND * 5);
    capture_release(capture);
    captures_destroy(store);
}

static void test_list_goes_on_while_captures_go(void **state) {
    struct captures *store = make_full_store();
    struct wire_problem problem;
    struct capture_info info;
    size_t count = 0;
    (void)state;

    for (struct capture *capture = captures_next(store, "", NULL, &info); capture != NULL;
         capture = captures_next(store, "", capture, &info)) {
        assert_true(captures_delete(store, "", info.name, strlen(info.name),
                                    CAPTURE_REMOVED_DELETED));
        assert_true(count > 0 || keep(store, "new", "new", 1, NS_PER_SECOND, &problem));
        count++;
    }
    assert_int_equal(count, 6);
    assert_int_equal(captures_get_stats(store).bytes, 0);
    captures_destroy(store);
}

/* captures_keep_spaces(): would wait for ever if the store were locked. */
static bool keep_if_few(void *context, const char *space) {
    assert_true(captures_get_stats(context).captures <= 5);
    return *space != '\0';
}

static void test_spaces_are_judged_without_the_lock(void **state) {
    struct captures *store = make_full_store();
    (void)state;

    captures_keep_spaces(store, keep_if_few, store);
    assert_int_equal(captures_get_stats(store).bytes, 0);
    assert_int_equal(captures_get_stats(store).removals[CAPTURE_REMOVED_KEY], 5);
    captures_destroy(store);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_put_ends_after_ten_minutes),
        cmocka_unit_test(test_who_has_most_gives_what_was_used_least_recently),
        cmocka_unit_test(test_nothing_goes_that_does_not_suffice),
        cmocka_unit_test(test_what_is_in_use_stays),
        cmocka_unit_test(test_holder_that_is_full_gives_its_own),
        cmocka_unit_test(test_announced_files_give_room),
        cmocka_unit_test(test_description_is_printed_once_and_counts),
        cmocka_unit_test(test_same_bytes_again_set_the_time),
        cmocka_unit_test(test_list_goes_on_while_captures_go),
        cmocka_unit_test(test_spaces_are_judged_without_the_lock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
