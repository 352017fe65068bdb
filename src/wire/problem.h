/* SPDX-License-Identifier: Apache-2.0 */
/* problem.h: an error for a client, as application/problem+json (RFC 9457).
 *
 * It has a fixed size and is set without an allocation, so that running out of memory can
 * be reported as well. */
#pragma once

#include "base/buf.h"

#include <stdbool.h>

/* The rows of problem.inc, in their order. */
enum wire_error {
#define WIRE_ERROR(name, status, title) WIRE_E_##name,
#include "wire/problem.inc"
#undef WIRE_ERROR
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
