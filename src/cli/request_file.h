/* SPDX-License-Identifier: Apache-2.0 */
/* request_file.h: the requests of a file, each on a line of its own. One of them is in
 * memory at a time. */
#ifndef ATTND_CLI_REQUEST_FILE_H
#define ATTND_CLI_REQUEST_FILE_H

#include "base/arena.h"
#include "config/config.h"

#include <attnd/attention.h>

/* The memory that a request may use; the arena is reset behind it. */
struct request_memory {
    struct arena arena;
    size_t left; /* of --max-memory, bytes */
};

/* Returns uninitialised memory for `count` objects of `size` bytes, at ATTN_ALIGNMENT, or
 * NULL with *ret_error set: ATTN_E_NOMEM. */
void *request_alloc(struct request_memory *memory, size_t count, size_t size,
                    attn_error *ret_error);

/* What is done with each request. It may change the batch, which is for the model, and
 * has no need_weights. */
typedef attn_status request_use(void *context, attn_request *batch,
                                struct request_memory *memory, attn_error *ret_error);

/* Calls `use` with every request of the file --data, which are bodies of /v1/attention in
 * JSON, for `model`, whatever model they name. Blank lines are skipped. When that takes
 * long, lines on standard error say how far it has got; `done` is their verb, such as
 * "analysed".
 *
 * Errors, with one line that names the file, and the line and field at fault: those of
 * `use`; ATTN_E_IO; ATTN_E_FORMAT for a file without a request; ATTN_E_VALUE for a line
 * that is not a request, or too long (--max-body); ATTN_E_NOMEM, also for a request that
 * needs more than --max-memory. */
attn_status request_file_read(const struct config *config, const attn_model *model,
                              const char *done, request_use *use, void *context,
                              attn_error *ret_error);

#endif
