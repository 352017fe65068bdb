/* SPDX-License-Identifier: Apache-2.0 */
/* wire_fixture.h: what the tests of the wire room share: models, decoding, an arena that
 * is nearly full, and a seeded generator. */
#ifndef ATTND_TESTS_WIRE_FIXTURE_H
#define ATTND_TESTS_WIRE_FIXTURE_H

#include "math/model.h"
#include "safetensors/parse.h"
#include "seed.h"
#include "wire/native/native.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_CHUNK ((size_t)32 * 1024) /* bytes, as in base/arena.c */

/* tests/data/invalid/README.md describes them. */
enum { MODEL_D2L, MODEL_NARROW, NUM_MODELS };

struct fixture {
    attn_model *models[NUM_MODELS];
    struct arena arena;
    struct wire_request request;
    struct wire_problem problem;
};

static inline attn_model_info fixture_info(int which) {
    attn_model_info info = {
        .name = "d2l",
        .layout = "d2l",
        .width = {.query = 4, .key = 4, .value = 4, .out = 4, .head = 2},
        .num_heads = 2,
        .linears[ATTN_OUTPUT].weight = true};
    if (which == MODEL_NARROW) {
        strcpy(info.name, "narrow");
        info.width.query = 3;
        info.width.key = info.width.value = info.width.out = 2;
        info.num_heads = 1;
        info.mask.causal = true;
        info.context_length = 6;
    }
    return info;
}

static inline int fixture_setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    if (fixture == NULL)
        return -1;
    parse_json_init();
    for (int i = 0; i < NUM_MODELS; i++) {
        attn_model_info info = fixture_info(i);
        if (attn_model_create(&info, &fixture->models[i]) != ATTN_OK)
            return -1;
    }
    arena_init(&fixture->arena, 1 << 20);
    *state = fixture;
    return 0;
}

static inline int fixture_teardown(void **state) {
    struct fixture *fixture = *state;
    for (int i = 0; i < NUM_MODELS; i++)
        attn_model_destroy(fixture->models[i]);
    arena_deinit(&fixture->arena);
    free(fixture);
    return 0;
}

/* wire_input.reserve, whose context adds up what is asked for. */
static inline bool fixture_reserve(void *context, size_t bytes,
                                   struct wire_problem *ret_problem) {
    (void)ret_problem;
    *(size_t *)context += bytes;
    return true;
}

/* Reads a native body for some models; *reserved is what it has reserved. */
static inline bool fixture_read(struct fixture *fixture, const attn_model *const *models,
                                size_t num_models, struct arena *arena, const void *body,
                                size_t size, size_t *reserved) {
    const struct wire_input input = {.body = body,
                                     .size = size,
                                     .json_size = WIRE_NO_SIZE,
                                     .models = models,
                                     .num_models = num_models,
                                     .arena = arena,
                                     .reserve = fixture_reserve,
                                     .context = reserved};
    *reserved = 0;
    return wire_native_read(&input, &fixture->request, &fixture->problem);
}

/* Decodes a copy of `size` bytes that is exactly as large, so that a sanitizer finds a
 * read past its end. */
static inline bool fixture_decode_bytes(struct fixture *fixture, const void *body,
                                        size_t size, size_t num_models) {
    size_t reserved;
    char *copy = malloc(size > 0 ? size : 1);
    if (size > 0)
        memcpy(copy, body, size);
    arena_reset(&fixture->arena);
    bool decoded = fixture_read(fixture, (const attn_model *const *)fixture->models,
                                num_models, &fixture->arena, copy, size, &reserved);
    free(copy);
    return decoded;
}

static inline bool fixture_decode(struct fixture *fixture, const char *body) {
    return fixture_decode_bytes(fixture, body, strlen(body), NUM_MODELS);
}

/* Makes an arena whose first chunk has room for only `allocations` small ones, so that
 * the next one needs a new chunk. */
static inline void fixture_fill_arena(struct arena *arena, size_t allocations) {
    size_t max = FIRST_CHUNK - 2 * ARENA_ALIGNMENT; /* its header and the first one */
    arena_init(arena, 0);
    if (arena_alloc(arena, 1, 1) == NULL ||
        arena_alloc(arena, 1, max - allocations * ARENA_ALIGNMENT) == NULL)
        abort();
}

/* xorshift64* (Vigna 2016): the same numbers on every machine. */
static inline uint64_t fixture_random(uint64_t *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(0x2545F4914F6CDD1D);
}

#endif
