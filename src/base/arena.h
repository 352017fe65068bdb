/* SPDX-License-Identifier: Apache-2.0 */
/* arena.h: memory for one job, released all at once.
 *
 * A worker keeps its arena from job to job. So in the long run a job that needs at most
 * `keep` bytes allocates nothing from the system and touches no fresh pages. */
#pragma once

#include <stddef.h>

#define ARENA_ALIGNMENT 64 /* bytes, of every allocation */

struct arena_chunk;

/* Owned by one thread at a time. */
struct arena {
    struct arena_chunk *chunks; /* newest first; only the newest is allocated from */
    size_t used;                /* bytes allocated since the last reset */
    size_t keep;                /* bytes kept across a reset, at most */
};

/* Makes an empty arena that keeps at most `keep` bytes across a reset. Allocates
 * nothing. */
void arena_init(struct arena *arena, size_t keep);

/* Frees all memory of the arena. */
void arena_deinit(struct arena *arena);

/* Returns uninitialised memory for `count` objects of `size` bytes, aligned to
 * ARENA_ALIGNMENT and valid until the next reset. Returns NULL when memory is short or
 * the product overflows. */
void *arena_alloc(struct arena *arena, size_t count, size_t size);

/* Invalidates everything that was allocated. Memory of at most arena->keep bytes is kept
 * for the next job, as one chunk. */
void arena_reset(struct arena *arena);
