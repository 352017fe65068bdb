/* SPDX-License-Identifier: Apache-2.0 */
/* problem.h: an error for a client, as application/problem+json (RFC 9457).
 *
 * It has a fixed size and is set without an allocation, so that running out of memory can
 * be reported as well. */
#pragma once

#include "base/buf.h"

#include <stdbool.h>

/* Every error that a client can get. The catalogue in problem.c has the status and the
 * title of each; docs/protocol.md, docs/protocol-v2.md and docs/openapi.json list the
 * same ones, and say what each means. */
enum wire_error {
    WIRE_E_BAD_REQUEST,
    WIRE_E_MALFORMED_JSON,
    WIRE_E_MALFORMED_SAFETENSORS,
    WIRE_E_NESTED_TOO_DEEPLY,
    WIRE_E_UNKNOWN_KEY,
    WIRE_E_MISSING_KEY,
    WIRE_E_DUPLICATE_KEY,
    WIRE_E_WRONG_TYPE,
    WIRE_E_WRONG_DTYPE,
    WIRE_E_WRONG_RANK,
    WIRE_E_EMPTY_TENSOR,
    WIRE_E_UNEVEN_ROWS,
    WIRE_E_SHAPE_MISMATCH,
    WIRE_E_TOO_MANY_TOKENS,
    WIRE_E_OUT_OF_RANGE,
    WIRE_E_DUPLICATE_INDEX,
    WIRE_E_NOTHING_TO_SELECT_FROM,
    WIRE_E_MODEL_NOT_NAMED,
    WIRE_E_DUPLICATE_INPUT,
    WIRE_E_UNKNOWN_OUTPUT,
    WIRE_E_DUPLICATE_OUTPUT,
    WIRE_E_OUTPUTS_DISAGREE,
    WIRE_E_BINARY_DATA,
    WIRE_E_BAD_CAPTURE_NAME,
    WIRE_E_UNKNOWN_LAYER,
    WIRE_E_UNAUTHORIZED,
    WIRE_E_ORIGIN_NOT_ALLOWED,
    WIRE_E_MODEL_CONTROL_OFF,
    WIRE_E_UNKNOWN_ROUTE,
    WIRE_E_UNKNOWN_MODEL,
    WIRE_E_UNKNOWN_VERSION,
    WIRE_E_CAPTURES_OFF,
    WIRE_E_UNKNOWN_CAPTURE,
    WIRE_E_METHOD_NOT_ALLOWED,
    WIRE_E_NOT_ACCEPTABLE,
    WIRE_E_REQUEST_TIMEOUT,
    WIRE_E_MODEL_NOT_CHANGED,
    WIRE_E_CAPTURE_EXISTS,
    WIRE_E_LENGTH_REQUIRED,
    WIRE_E_BODY_TOO_LARGE,
    WIRE_E_REQUEST_TOO_LARGE,
    WIRE_E_REPLY_TOO_LARGE,
    WIRE_E_CAPTURE_TOO_LARGE,
    WIRE_E_UNSUPPORTED_MEDIA_TYPE,
    WIRE_E_EXPECTATION_FAILED,
    WIRE_E_RESULT_NOT_FINITE,
    WIRE_E_TOO_MANY_REQUESTS,
    WIRE_E_QUEUE_FULL,
    WIRE_E_OUT_OF_MEMORY,
    WIRE_E_DEADLINE_EXCEEDED,
    WIRE_E_CAPTURES_FULL,
    WIRE_NUM_ERRORS
};

struct wire_error_entry {
    int status;        /* of HTTP */
    const char *title; /* for clients: the same words for every error of this kind */
};

/* Returns the entry of an error; constant. Thread-safe. */
const struct wire_error_entry *wire_error_get(enum wire_error error);

#define WIRE_SHAPE_PRINT_MAX 128 /* bytes of a shape or range as JSON */

struct wire_problem {
    enum wire_error error;
    int status;        /* of HTTP, from the catalogue */
    const char *title; /* from the catalogue; constant */
    char field[72];    /* the field or header that is wrong; "" for none */
    /* JSON, such as a shape with null for "any"; "" for none. */
    char expected[WIRE_SHAPE_PRINT_MAX], got[WIRE_SHAPE_PRINT_MAX];
    char detail[512]; /* for people: the fault and the remedy; may hold any bytes */
};

/* Sets everything but expected and got, which become empty. `field` may be NULL. Returns
 * false, so that a failing function can end in `return wire_problem_set(...)`. */
__attribute__((format(printf, 4, 5))) bool
wire_problem_set(struct wire_problem *problem, enum wire_error error, const char *field,
                 const char *detail_format, ...);

/* Sets Out of memory, which always has the same detail. Returns false. */
bool wire_problem_set_no_memory(struct wire_problem *problem);

/* Adds the JSON text to `body`. Bytes that are not UTF-8 become '?'. Thread-safe for
 * distinct arguments. */
void wire_problem_print(const struct wire_problem *problem, struct buf *body);

/* How a protocol prints its errors. */
struct wire_error_format {
    const char *content_type; /* constant */
    /* Adds the text to `body`. */
    void (*print)(const struct wire_problem *problem, struct buf *body);
    char *out_of_memory; /* a reply for when print() has no memory (503); constant */
};

/* application/problem+json (RFC 9457). */
extern const struct wire_error_format wire_problem_format;
