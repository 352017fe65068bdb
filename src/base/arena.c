/* SPDX-License-Identifier: Apache-2.0 */
/* arena.c: allocates from the newest of its chunks, which come from heap_alloc(). */
#include "base/arena.h"

#include "base/heap.h"
#include "base/size.h"

#include <stdlib.h>

#define ARENA_CHUNK_MIN ((size_t)32 * 1024) /* bytes */

struct arena_chunk {
    struct arena_chunk *next;
    size_t size; /* bytes of this chunk, header included */
    size_t used; /* bytes in use, header included */
};

void arena_init(struct arena *arena, size_t keep) {
    *arena = (struct arena){.keep = keep};
}

static void free_chunks(struct arena_chunk *chunk) {
    while (chunk != NULL) {
        struct arena_chunk *next = chunk->next;
        free(chunk);
        chunk = next;
    }
}

void arena_deinit(struct arena *arena) {
    free_chunks(arena->chunks);
    arena_init(arena, arena->keep);
}

/* Adds a chunk with room for `bytes` past its header. */
static struct arena_chunk *add_chunk(struct arena *arena, size_t bytes) {
    size_t size;

    if (!size_add(bytes, ARENA_ALIGNMENT, &size))
        return NULL;
    if (size < ARENA_CHUNK_MIN)
        size = ARENA_CHUNK_MIN;
    struct arena_chunk *chunk = heap_alloc(size);
    if (chunk == NULL)
        return NULL;

    _Static_assert(sizeof *chunk <= ARENA_ALIGNMENT, "the header fits in one unit");
    *chunk = (struct arena_chunk){arena->chunks, size, ARENA_ALIGNMENT};
    arena->chunks = chunk;
    return chunk;
}

void *arena_alloc(struct arena *arena, size_t count, size_t size) {
    size_t bytes;

    if (!size_mul(count, size, &bytes) || !size_round_up(bytes, ARENA_ALIGNMENT, &bytes))
        return NULL;

    struct arena_chunk *chunk = arena->chunks;
    if (chunk == NULL || chunk->size - chunk->used < bytes) {
        chunk = add_chunk(arena, bytes);
        if (chunk == NULL)
            return NULL;
    }

    void *memory = (char *)chunk + chunk->used;
    chunk->used += bytes;
    arena->used += bytes;
    return memory;
}

void arena_reset(struct arena *arena) {
    size_t used = arena->used;
    struct arena_chunk *newest = arena->chunks;

    arena->used = 0;
    if (newest != NULL && newest->next == NULL && newest->size <= arena->keep) {
        newest->used = ARENA_ALIGNMENT;
        return;
    }

    free_chunks(newest);
    arena->chunks = NULL;
    /* A failure here does no harm: the next allocation tries again. */
    if (used > 0 && used <= arena->keep)
        (void)add_chunk(arena, used);
}
