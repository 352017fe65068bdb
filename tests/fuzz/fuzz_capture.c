/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_capture.c: any bytes as the file of a capture, at once and in pieces. It is kept
 * with numbers that can be asked, the same both times, or refused; the store is empty
 * afterwards. */
#include "captures/put.h"
#include "fuzz.h"
#include "wire/fields/readers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT        ((size_t)64 * 1024 * 1024) /* bytes of the store */
#define TTL          ((int64_t)3600 * 1000000000)
#define PIECE_MAX    64  /* bytes of a piece, at most */
#define FLOATS_MAX   512 /* that are converted at a time */
#define POSITION_MAX 2147483647

static void must(bool holds, const char *what) {
    if (holds)
        return;
    fprintf(stderr, "%s\n", what);
    abort();
}

/* capture_printer.reserve: gives what a server gives with the default of --max-memory. */
static bool reserve_some(void *context, size_t bytes, struct wire_problem *ret_problem) {
    (void)context;
    return bytes <= LIMIT * 16 || wire_problem_set_no_memory(ret_problem);
}

static void check_problem(const struct wire_problem *problem) {
    enum wire_error error = problem->error;
    must(error < WIRE_NUM_ERRORS, "an error that there is not");
    must(problem->status == 400 || error == WIRE_E_CAPTURE_TOO_LARGE ||
             error == WIRE_E_CAPTURES_FULL || error == WIRE_E_OUT_OF_MEMORY,
         "a fault that is not the file's");
    must(strlen(problem->field) < sizeof problem->field, "a field without an end");
    must(strchr(problem->detail, ';') != NULL, "an error without a remedy");
    must(strchr(problem->detail, '\n') == NULL, "an error of two lines");
}

/* Returns a layer, or NULL. */
static const struct capture_layer *find_layer(const struct capture *capture,
                                              const char *name, size_t size) {
    const struct capture_layer *layer;
    struct wire_problem problem;
    return wire_stored_find(capture_get_layers(capture), name, size, &layer, &problem)
               ? layer
               : NULL;
}

/* --- numbers --- */

static void check_floats(const float *numbers, size_t count, bool masks) {
    for (size_t i = 0; i < count; i++)
        must(isfinite(numbers[i]) || (masks && numbers[i] == -INFINITY),
             "a number that is not finite");
}

/* Checks numbers of a type, such as queries. */
static void check_encoded(const struct dtype *type, const unsigned char *bytes,
                          size_t count) {
    float numbers[FLOATS_MAX];
    size_t size = type->bits / 8;

    must((uintptr_t)bytes % size == 0, "numbers that are not aligned");
    for (size_t i = 0, some; i < count; i += some) {
        some = count - i < FLOATS_MAX ? count - i : FLOATS_MAX;
        type->to_float(bytes + i * size, some, numbers);
        check_floats(numbers, some, false);
    }
}

/* Reads the number at `index` of keys or values. */
static float read_number(const char *type, const void *numbers, size_t index) {
    const struct dtype *found = dtype_find(type);
    float number;
    must(found != NULL, "a type that there is not");
    found->to_float((const unsigned char *)numbers + index * (found->bits / 8), 1,
                    &number);
    return number;
}

static void check_keys(const struct attn_packed *packed) {
    size_t ld = packed_head_ld(packed, packed->head_size), step;
    for (size_t head = 0; head < packed->num_kv_heads; head++) {
        for (size_t key = 0; key < packed->num_keys; key++) {
            size_t at = head * ld + packed_find_key(packed, key, &step);
            for (size_t d = 0; d < packed->head_size; d++)
                must(
                    isfinite(read_number(packed->keys_type, packed->keys, at + d * step)),
                    "a key that is not finite");
        }
    }
}

static void check_values(const struct attn_packed *packed) {
    size_t ld = packed_head_ld(packed, packed->value_size);
    for (size_t head = 0; packed->values != NULL && head < packed->num_kv_heads; head++) {
        for (size_t i = 0; i < packed->num_keys * packed->value_size; i++)
            must(
                isfinite(read_number(packed->values_type, packed->values, head * ld + i)),
                "a value that is not finite");
    }
}

static void check_positions(const size_t *positions, size_t count) {
    for (size_t i = 0; positions != NULL && i < count; i++)
        must(positions[i] <= POSITION_MAX, "a position over its limit");
}

/* --- layers --- */

/* Reads all numbers of a layer, so that a sanitizer finds those that are missing. */
static void check_layer(const struct capture_layer *layer) {
    const struct attn_packed *packed = &layer->packed;
    size_t tk = packed->num_keys;

    must(tk > 0 && packed->num_kv_heads > 0 && packed->head_size > 0 &&
             packed->value_size > 0,
         "an empty layer");
    check_keys(packed);
    check_values(packed);
    if (layer->num_queries > 0) {
        must(layer->num_heads > 0 && layer->num_heads % packed->num_kv_heads == 0,
             "heads that key heads do not divide");
        check_encoded(layer->queries_type, layer->queries,
                      layer->num_queries * layer->num_heads * packed->head_size);
    }
    if (layer->bias != NULL)
        check_floats(layer->bias, layer->bias_heads * layer->bias_rows * tk, true);
    check_floats(layer->sinks, layer->sinks != NULL ? layer->num_sinks : 0, false);
    check_floats(layer->slopes, layer->slopes != NULL ? layer->num_slopes : 0, false);
    check_positions(layer->positions, layer->num_queries);
    check_positions(layer->key_positions, tk);
    must(isfinite((float)layer->scale) && isfinite((float)layer->softcap) &&
             layer->softcap >= 0 && layer->window <= POSITION_MAX,
         "an option over its limit");
}

/* Checks that two captures of a file have the same numbers. */
static void compare_layers(const struct capture_layer *a, const struct capture_layer *b) {
    const struct attn_packed *keys = &a->packed, *others = &b->packed;
    size_t ld = packed_head_ld(keys, keys->head_size), step;

    must(keys->num_keys == others->num_keys && a->num_queries == b->num_queries,
         "other sizes in pieces");
    for (size_t key = 0; key < keys->num_keys; key++) {
        size_t at = packed_find_key(keys, key, &step) + (keys->num_kv_heads - 1) * ld;
        for (size_t d = 0; d < keys->head_size; d++)
            must(read_number(keys->keys_type, keys->keys, at + d * step) ==
                     read_number(others->keys_type, others->keys, at + d * step),
                 "another key in pieces");
    }
    if (a->num_queries > 0)
        must(memcmp(a->queries, b->queries,
                    a->num_queries * a->num_heads * keys->head_size *
                        (a->queries_type->bits / 8)) == 0,
             "other queries in pieces");
}

static void check_capture(const struct capture *capture) {
    const struct capture_layer *layers = capture_get_layers(capture)->items;
    size_t count = capture_get_layers(capture)->count;

    must(count > 0, "a capture without layers");
    must(find_layer(capture, "", 0) == NULL, "a layer without a name");
    for (size_t i = 0; i < count; i++) {
        size_t size = strlen(layers[i].name);
        must(find_layer(capture, layers[i].name, size) == &layers[i],
             "a layer that is not found");
        const struct capture_layer *shorter =
            find_layer(capture, layers[i].name, size - 1);
        must(shorter != &layers[i], "a layer of half its name");
        check_layer(&layers[i]);
    }
}

/* capture_printer.print */
static void print_names(void *capture, struct buf *text) {
    const struct capture_layers *layers = capture_get_layers(capture);
    for (size_t i = 0; i < layers->count; i++)
        buf_append_text(text, layers->items[i].name);
}

/* --- files --- */

/* Puts a file, in pieces of at most `piece_max` bytes, whose sizes follow from the file.
 * Returns the capture, or NULL with *ret_problem set. */
static struct capture *put_file(struct captures *store, const char *name,
                                const uint8_t *data, size_t size, size_t piece_max,
                                struct wire_problem *ret_problem) {
    const struct capture_owner owner = {"", "127.0.0.1"};
    const struct capture_printer printer = {reserve_some, NULL, print_names};
    struct capture_put *put = NULL;
    struct capture *capture = NULL;
    uint32_t random = (uint32_t)size;
    bool created = false;

    if (!capture_put_create(store, &owner, name, strlen(name), size, TTL, &put,
                            ret_problem))
        return NULL;
    bool added = true;
    for (size_t at = 0, some; added && at < size; at += some) {
        random = random * 1664525 + 1013904223 + data[at];
        some = 1 + (random >> 8) % piece_max;
        some = some < size - at ? some : size - at;

        /* of its exact size, for the sanitizers */
        unsigned char *piece = malloc(some);
        must(piece != NULL, "no memory");
        memcpy(piece, data + at, some);
        added = capture_put_add(put, piece, some, &printer, ret_problem);
        free(piece);
    }
    if (added && !capture_put_finish(put, &capture, &created, ret_problem))
        capture = NULL;
    must(capture == NULL || created, "a name that was there already");
    capture_put_destroy(put);
    return capture;
}

/* Checks that both ways to send a file end alike. */
static void check_both(struct capture *whole, struct capture *pieces,
                       const struct wire_problem *whole_problem,
                       const struct wire_problem *pieces_problem) {
    must((whole == NULL) == (pieces == NULL), "kept in one way alone");
    if (whole == NULL) {
        check_problem(whole_problem);
        must(whole_problem->error == pieces_problem->error &&
                 strcmp(whole_problem->field, pieces_problem->field) == 0,
             "another problem in pieces");
        return;
    }
    must(strcmp(capture_get_info(whole).sha256, capture_get_info(pieces).sha256) == 0,
         "another hash in pieces");
    check_capture(whole);
    check_capture(pieces);
    const struct capture_layers *layers = capture_get_layers(whole);
    for (size_t i = 0; i < layers->count; i++)
        compare_layers(&layers->items[i], find_layer(pieces, layers->items[i].name,
                                                     strlen(layers->items[i].name)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct captures *store = captures_create(LIMIT);
    struct wire_problem problems[2];

    must(store != NULL, "no memory");
    struct capture *whole = put_file(store, "whole", data, size, SIZE_MAX, &problems[0]);
    struct capture *pieces =
        put_file(store, "pieces", data, size, PIECE_MAX, &problems[1]);
    check_both(whole, pieces, &problems[0], &problems[1]);
    must(captures_get_stats(store).captures == (whole != NULL ? 2U : 0U),
         "captures that do not count");
    must(whole == NULL || captures_delete(store, "", "whole", 5, CAPTURE_REMOVED_DELETED),
         "a lost name");
    must(pieces == NULL ||
             captures_delete(store, "", "pieces", 6, CAPTURE_REMOVED_DELETED),
         "a lost name");
    must((captures_get_stats(store).bytes > 0) == (whole != NULL),
         "what is in use does not count");
    capture_release(whole);
    capture_release(pieces);
    must(captures_get_stats(store).bytes == 0, "bytes are lost from the budget");
    captures_destroy(store);
    return 0;
}
