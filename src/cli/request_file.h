/* SPDX-License-Identifier: Apache-2.0 */
/* request_file.h: the requests of a file: JSON, each on a line of its own, or one in
 * safetensors. One of them is in memory at a time. */
#pragma once

#include "base/arena.h"
#include "config/config.h"

#include <attnd/attention.h>

/* Says what --data must have, for errors. */
#define REQUEST_FILE_REMEDY                                                              \
    "name a file with the JSON of one POST /v1/attention on each line, or with one in "  \
    "safetensors"

/* The memory that a request may use; the arena is reset behind it. */
struct request_memory {
    struct arena arena;
    size_t max, left; /* of --max-memory, bytes */
};

/* Returns the bytes of --max-memory, or half of those that the process may use. */
size_t request_memory_max(const struct config *config);

/* Prepares memory of --max-memory. The caller owns the arena. */
void request_memory_init(struct request_memory *memory, const struct config *config);

/* Returns uninitialised memory for `count` objects of `size` bytes, at ATTN_ALIGNMENT, or
 * NULL with *ret_error set: ATTN_E_NOMEM. */
void *request_alloc(struct request_memory *memory, size_t count, size_t size,
                    attn_error *ret_error);

/* Called with each request. It may change the batch, which is for the model, and asks for
 * nothing but outputs. */
typedef attn_status request_use(void *context, attn_request *batch,
                                struct request_memory *memory, attn_error *ret_error);

/* Calls `use` with every request of the file --data for `model`, whatever model they
 * name. They are bodies of /v1/attention: JSON on each line, where blank lines are
 * skipped, or one in safetensors. When that takes long, lines on standard error say how
 * far it has got; `done` is their verb, such as "analysed"; NULL: no lines.
 *
 * Errors, with one line that names the file, and the line and field at fault: those of
 * `use`; ATTN_E_IO; ATTN_E_FORMAT for a file without a request, or of another program;
 * ATTN_E_VALUE for what is not a request, too long (--max-body), or needs more than
 * --max-memory; ATTN_E_NOMEM. */
attn_status request_file_read(const struct config *config, const attn_model *model,
                              const char *done, request_use *use, void *context,
                              attn_error *ret_error);
