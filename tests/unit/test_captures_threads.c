/* SPDX-License-Identifier: Apache-2.0 */
/* test_captures_threads.c: captures that are put, used, deleted, listed and removed with
 * their keys by many threads. Each has keys of one number, so that one that is found
 * before it is whole is seen. */
#include "base/buf.h"
#include "captures/put.h"
#include "seed.h"
#include "wire/layer.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define NUM_PUTTERS 6
#define NUM_ROUNDS  2000 /* of each thread */
#define NUM_KEYS    200
#define HEAD_SIZE   4
#define TTL         ((int64_t)3600 * 1000000000)
#define HEADER                                                                           \
    "{\"__metadata__\":{\"layers\":\"[\\\"0\\\"]\"},\"0.keys\":{\"dtype\":\"F32\","      \
    "\"shape\":[200,1,4],\"data_offsets\":[0,3200]}} "

static const size_t file_size = 8 + sizeof HEADER - 1 + 4 * NUM_KEYS * HEAD_SIZE;
static struct captures *store;
static atomic_size_t num_running, num_kept, num_found, num_wrong;

static bool reserve_all(void *context, size_t bytes, struct wire_problem *ret_problem) {
    (void)context;
    (void)bytes;
    (void)ret_problem;
    return true;
}

static void print_name(void *capture, struct buf *text) {
    buf_append_text(text, capture_get_layers(capture)->items[0].name);
}

/* Makes a file whose keys all have this number. */
static void make_file(unsigned char *file, float number) {
    uint64_t header_size = sizeof HEADER - 1;
    memcpy(file, &header_size, 8);
    memcpy(file + 8, HEADER, header_size);
    for (size_t i = 0; i < NUM_KEYS * HEAD_SIZE; i++)
        memcpy(file + 8 + header_size + 4 * i, &number, 4);
}

/* A thread, which has a holder of its own. */
struct putter {
    const char *space;
    char holder[32];
    unsigned random;
};

static unsigned draw(struct putter *putter, unsigned count) {
    putter->random = putter->random * 1664525 + 1013904223;
    return (putter->random >> 8) % count;
}

/* Puts a file in two pieces, or leaves after the first. */
static void put_one(struct putter *putter, const char *name) {
    const struct capture_owner owner = {putter->space, putter->holder};
    const struct capture_printer printer = {reserve_all, NULL, print_name};
    struct wire_problem problem;
    struct capture_put *put;
    struct capture *capture = NULL;
    unsigned char file[8 + sizeof HEADER + 4 * NUM_KEYS * HEAD_SIZE];
    size_t cut = draw(putter, (unsigned)file_size);
    bool created;

    make_file(file, (float)draw(putter, 3));
    if (!capture_put_create(store, &owner, name, strlen(name), file_size, TTL, &put,
                            &problem))
        return;
    bool added = capture_put_add(put, file, cut, &printer, &problem);
    if (added && draw(putter, 8) != 0 &&
        capture_put_add(put, file + cut, file_size - cut, &printer, &problem) &&
        capture_put_finish(put, &capture, &created, &problem))
        atomic_fetch_add(&num_kept, 1);
    capture_put_destroy(put);
    capture_release(capture);
}

/* Uses a capture, whose keys are whole. */
static void use_one(struct putter *putter, const char *name) {
    struct capture *capture =
        captures_acquire(store, putter->space, name, strlen(name), true);
    size_t step;

    if (capture == NULL)
        return;
    atomic_fetch_add(&num_found, 1);
    const struct capture_layers *layers = capture_get_layers(capture);
    const struct capture_layer *layer = layers->items;
    const float *keys = layer->packed.keys;
    float sum = 0;
    for (size_t key = 0; key < NUM_KEYS; key++) {
        const float *row = keys + packed_find_key(&layer->packed, key, &step);
        for (size_t d = 0; d < HEAD_SIZE; d++)
            sum += row[d * step];
    }
    if (layers->count != 1 || sum != keys[0] * NUM_KEYS * HEAD_SIZE)
        atomic_fetch_add(&num_wrong, 1); /* cmocka's words are for the main thread */
    capture_release(capture);
}

static void *run_putter(void *context) {
    struct putter *putter = context;
    for (size_t i = 0; i < NUM_ROUNDS; i++) {
        const char name[] = {(char)('a' + (char)draw(putter, 3)), '\0'};
        unsigned what = draw(putter, 8);
        if (what < 4)
            put_one(putter, name);
        else if (what < 7)
            use_one(putter, name);
        else
            captures_delete(store, putter->space, name, 1, CAPTURE_REMOVED_DELETED);
    }
    atomic_fetch_sub(&num_running, 1);
    return NULL;
}

static bool keep_alice(void *context, const char *space) {
    (void)context;
    return strcmp(space, "alice") == 0;
}

/* Looks at all captures of a space, and at what is told about them. */
static void check_list(const char *space) {
    struct capture_info info;
    for (struct capture *capture = captures_next(store, space, NULL, &info);
         capture != NULL; capture = captures_next(store, space, capture, &info)) {
        struct shared_text *text = shared_text_hold(info.description);
        assert_int_equal(capture_get_layers(capture)->count, 1);
        assert_int_equal(strlen(info.sha256), 64);
        assert_memory_equal(text->text.data, "0", 1);
        shared_text_release(text);
    }
}

static void test_threads_lose_nothing(void **state) {
    struct putter putters[NUM_PUTTERS];
    pthread_t threads[NUM_PUTTERS];
    (void)state;

    /* Half as much as they may put: they take room from each other. */
    store = captures_create((size_t)NUM_PUTTERS * CAPTURE_BYTES_MIN);
    atomic_store(&num_running, NUM_PUTTERS);
    for (size_t i = 0; i < NUM_PUTTERS; i++) {
        putters[i] = (struct putter){.space = i % 2 == 0 ? "alice" : "bob",
                                     .random = (unsigned)unit_seed(i)};
        snprintf(putters[i].holder, sizeof putters[i].holder, "holder %zu", i);
        assert_int_equal(pthread_create(&threads[i], NULL, run_putter, &putters[i]), 0);
    }
    for (size_t i = 0; atomic_load(&num_running) > 0; i++) {
        check_list("alice");
        struct capture_stats stats = captures_get_stats(store);
        assert_true(stats.bytes <= stats.limit);
        if (i % 16 == 0)
            captures_keep_spaces(store, keep_alice, NULL);
    }
    for (size_t i = 0; i < NUM_PUTTERS; i++)
        pthread_join(threads[i], NULL);

    assert_int_equal(atomic_load(&num_wrong), 0);
    assert_true(atomic_load(&num_kept) > 0 && atomic_load(&num_found) > 0);
    captures_keep_spaces(store, keep_alice, NULL);
    for (char name = 'a'; name < 'd'; name++)
        captures_delete(store, "alice", &name, 1, CAPTURE_REMOVED_DELETED);
    assert_int_equal(captures_get_stats(store).bytes, 0);
    assert_int_equal(captures_get_stats(store).captures, 0);
    captures_destroy(store);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_threads_lose_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
