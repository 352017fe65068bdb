/* SPDX-License-Identifier: Apache-2.0 */
/* store.h: all captures that are kept, by their names, within a budget of their own.
 *
 * Captures are immutable and have users: requests that ask them. One that is deleted, or
 * has expired, is found no more; it counts until its last user has left. Every function
 * is thread-safe. */
#pragma once

#include "captures/limits.h"

#include <stdint.h>

struct captures;
struct capture;
struct capture_layers;

/* The client that asks. Captures of another space do not exist for it. A holder is of one
 * space, and may have half of the budget. Texts of at most CAPTURE_HOLDER_MAX bytes,
 * which are copied. */
struct capture_owner {
    const char *space, *holder;
};

/* Makes a store of at most `limit` bytes. Returns NULL when memory is short. */
struct captures *captures_create(size_t limit);

/* Frees all captures, which have no users. Accepts NULL. */
void captures_destroy(struct captures *store);

/* Returns whether a name has the form that names must have. */
bool capture_name_is_valid(const char *name, size_t size);

/* Finds a capture and becomes one of its users; NULL when there is none. `uses` says
 * whether it is asked for attention, which counts and renews its time. */
struct capture *captures_acquire(struct captures *store, const char *space,
                                 const char *name, size_t size, bool uses);

/* Leaves a capture. Accepts NULL. */
void capture_release(struct capture *capture);

/* Deletes a capture. Returns false when there is none. */
bool captures_delete(struct captures *store, const char *space, const char *name,
                     size_t size, enum capture_removal reason);

/* Removes all captures of spaces that keep() does not keep, which is called without a
 * lock. A PUT that ends later looks for its space itself. */
void captures_keep_spaces(struct captures *store,
                          bool (*keep)(void *context, const char *space), void *context);

/* Returns the capture of the space, or with NULL of all, that follows `previous`, or with
 * NULL the first one; NULL when there are no more. The caller becomes a user of it, and
 * leaves `previous`. So the store is never locked for long. Each capture that is there
 * from the first call to the last comes once. */
struct capture *captures_next(struct captures *store, const char *space,
                              struct capture *previous, struct capture_info *ret_info);

/* Returns what is told about a capture, which the caller uses. */
struct capture_info capture_get_info(const struct capture *capture);

/* Returns the layers of a capture, for as long as it has a user; NULL for NULL. */
const struct capture_layers *capture_get_layers(const struct capture *capture);

/* Counts a PUT that was refused, and reads all counts; without a store, NULL, all are
 * 0. */
void captures_count_refusal(struct captures *store, enum wire_error error);
struct capture_stats captures_get_stats(struct captures *store);
