/* SPDX-License-Identifier: Apache-2.0 */
/* program.h: what the server computes, in the process of a program that has no HTTP:
 * named arrays and options as JSON in, named arrays out, with the server's defaults,
 * checks and words. It is for bindings of other languages; docs/protocol.md has the
 * fields.
 *
 *     attn_array arrays[] = {{"queries", "F32", 3, shape, NULL, queries},
 *                            {"keys", "F32", 3, shape, NULL, keys}};
 *     if (attn_pool_create(0, &pool, &error) != ATTN_OK ||
 *         attn_call(pool, NULL, "{\"need\":[\"received\"]}", arrays, 2, NULL, &reply,
 *                   &error) != ATTN_OK) ...
 *     const attn_array *received = attn_reply_array(reply, 0);
 *
 * Nothing here prints or ends the process. Texts are terminated. */
#ifndef ATTND_PROGRAM_H
#define ATTND_PROGRAM_H

#include <attnd/model.h>
#include <attnd/status.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One array of the caller, which is borrowed and only read, or of a reply. This struct
 * does not grow. */
typedef struct attn_array {
    const char *name; /* of a field of a request, or of a result: "queries", "weights" */
    const char *type; /* as safetensors calls it: "F32", "BF16", "I64", "BOOL", ... */
    size_t rank;
    const size_t *shape; /* [rank] */
    /* [rank], in bytes, of any sign; NULL: row-major without gaps */
    const ptrdiff_t *strides;
    const void *data; /* at any alignment; may be NULL where a size is 0 */
} attn_array;

typedef struct attn_pool attn_pool;     /* threads that share the work of calls */
typedef struct attn_reply attn_reply;   /* what one call returned */
typedef struct attn_layers attn_layers; /* an opened file or folder */

/* Makes a pool of so many threads, of which the caller of attn_call() is one; 0: as many
 * as the process may use CPUs. Threads start with the first call, and once more with the
 * first call after a fork(). They take no signals. Errors: ATTN_E_VALUE for more than
 * 1024 threads, ATTN_E_NOMEM. */
ATTN_API attn_status attn_pool_create(size_t num_threads, attn_pool **ret_pool,
                                      attn_error *ret_error);

/* Ends the threads. No call may run. Accepts NULL. */
ATTN_API void attn_pool_destroy(attn_pool *pool);

/* Computes what POST /v1/attention does for `model`, or without one (NULL) what POST
 * /v1/attention/dot-product does. `options` is a JSON object of the fields that are not
 * among the arrays, or NULL; lists of it may be fields that could be arrays, but lengths
 * (query_lens, key_lens) are arrays. A "model" in it is not looked at. Any number of
 * threads may call with one pool, at the same time. attn_init() must have succeeded where
 * `model` has its engine from OpenBLAS or from matrix tiles.
 *
 * float32 that lies row by row is not copied, nor are 16-bit keys without a model. All
 * else is copied once. So an array [B, H, T, D] should be a transposed one, whose memory
 * is [B, T, H, D].
 *
 * *stop, unless NULL, may be set to other than 0 by any thread, atomically. It ends the
 * call between two tasks.
 *
 * Errors, with the words of the server in ret_error (which may be NULL), its title first:
 * ATTN_E_STOPPED, also when the request's timeout_ms is over; ATTN_E_NOMEM, also when
 * more is needed than is free; ATTN_E_SHAPE, _FORMAT for options that are not JSON,
 * _OVERFLOW, and ATTN_E_VALUE for all else that is wrong with a request. *ret_reply is
 * untouched then. */
ATTN_API attn_status attn_call(attn_pool *pool, const attn_model *model,
                               const char *options, const attn_array *arrays,
                               size_t num_arrays, const int *stop, attn_reply **ret_reply,
                               attn_error *ret_error);

/* Describes what heads do, as POST /v1/heads: results that the options ask for are left
 * out. Without a model (NULL) it does so for given queries and keys, whose importance is
 * null. attn_reply_text() is the body that the server sends, and the reply has one array,
 * "sums". Among the arrays of a later call for the same heads, it makes the reply that of
 * all requests together; only this library can read it. All else is as in attn_call(). */
ATTN_API attn_status attn_call_heads(attn_pool *pool, const attn_model *model,
                                     const char *options, const attn_array *arrays,
                                     size_t num_arrays, const int *stop,
                                     attn_reply **ret_reply, attn_error *ret_error);

/* Returns array `index` of a reply, which belongs to it; NULL behind the last. They have
 * the names, types and shapes of a reply in safetensors. Thread-safe. */
ATTN_API const attn_array *attn_reply_array(const attn_reply *reply, size_t index);

/* Returns a JSON object of all that is not an array: the model's name, and what heads do.
 * It belongs to the reply. Thread-safe. */
ATTN_API const char *attn_reply_text(const attn_reply *reply);

ATTN_API void attn_reply_destroy(attn_reply *reply); /* accepts NULL */

/* Opens a file or folder as --model does. `options` is a JSON object of the keys of
 * --model, such as "layer", "num_heads", "pre_norm" or "precision", or NULL. Reads no
 * weights. Errors, in one line: those of attn_model_load(), and ATTN_E_FORMAT or _VALUE
 * for options. The caller owns *ret_layers. */
ATTN_API attn_status attn_layers_open(const char *path, const char *options,
                                      attn_layers **ret_layers, attn_error *ret_error);

/* Returns {"path", "family", "layers"} as JSON; the family of a single file is null. A
 * layer has the members of GET /v1/models, where "name" is the part behind the folder's
 * ("3", "decoder.3.cross"), of a single file "model". Further members:
 *
 *     "cross"        whether keys come from another stack
 *     "borrows"      the name of the layer that has its keys and values, or null
 *     "norm_before"  whether the model has a norm before it, applied or not
 *     "features"     what it has besides plain attention; "" for none
 *     "tensors"      each tensor with a part for each head: "array" ("query.weight"),
 *                    "name", "file", "shape", "dtype", "transposed", and "heads" parts of
 *                    "rows" rows. Part h begins at row "first" + h / "group_heads" *
 *                    "group_rows" + h % "group_heads" * "rows"; rows of output.weight are
 *                    its inputs. A tensor of one head alone has its "head", too.
 *
 * It belongs to `layers`. Thread-safe. */
ATTN_API const char *attn_layers_text(const attn_layers *layers);

/* Returns the model of layer `index` of the text, and reads its weights at the first
 * time; it belongs to `layers`. Calls attn_init() before the first model of the process.
 * Thread-safe. Errors, in one line: those of attn_model_load() and attn_init(); ATTN_E_IO
 * when a file was replaced since it was opened; ATTN_E_VALUE for no such layer. */
ATTN_API attn_status attn_layers_get(attn_layers *layers, size_t index,
                                     const attn_model **ret_model, attn_error *ret_error);

/* Closes the files and releases the models, which no call may use any more. Accepts
 * NULL. */
ATTN_API void attn_layers_destroy(attn_layers *layers);

#ifdef __cplusplus
}
#endif

#endif
