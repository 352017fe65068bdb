/* SPDX-License-Identifier: Apache-2.0 */
/* arena.h: memory for one job, given back all at once.
 *
 * A worker keeps its arena from job to job, so that in the long run a job takes no memory
 * from the system and touches no fresh pages. */
#ifndef ATTND_BASE_ARENA_H
#define ATTND_BASE_ARENA_H

#include <stddef.h>

#define ARENA_ALIGNMENT 64 /* bytes, of every allocation */

struct arena_chunk;

/* Owned by one thread at a time. */
struct arena {
    struct arena_chunk *chunks; /* the newest first; only that one is allocated from */
    size_t used;                /* bytes allocated since the last reset */
    size_t keep;                /* most bytes kept over a reset */
};

/* Makes an empty arena, which allocates nothing yet and keeps at most `keep` bytes over a
 * reset. */
void arena_init(struct arena *arena, size_t keep);

/* Gives everything back. */
void arena_deinit(struct arena *arena);

/* Returns `count` objects of `size` bytes, uninitialised, aligned to ARENA_ALIGNMENT,
 * that live until the next reset; NULL when there is no memory or the size does not fit.
 */
void *arena_alloc(struct arena *arena, size_t count, size_t size);

/* Ends the life of all that was allocated. The memory is kept as one chunk for the next
 * job when it is at most arena->keep bytes. */
void arena_reset(struct arena *arena);

#endif
