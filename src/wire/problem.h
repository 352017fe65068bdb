/* SPDX-License-Identifier: Apache-2.0 */
/* problem.h: an error for a client, as application/problem+json (RFC 9457).
 *
 * Fixed sizes and no allocation, so that running out of memory can be told too. */
#ifndef ATTND_WIRE_PROBLEM_H
#define ATTND_WIRE_PROBLEM_H

#include "base/buf.h"

struct wire_problem {
    int status;         /* HTTP status */
    const char *title;  /* constant; the same words for every error of this kind */
    char field[72];     /* the request's key (or the header) that is wrong; "" for none */
    char expected[128]; /* JSON text: a shape with null for "any", a number, ...; "" for
                           none */
    char got[128];      /* likewise */
    char detail[512]; /* for a person: what is wrong and what to do; may hold any bytes */
};

/* Fills in everything but expected and got, which become empty. `field` may be NULL. */
__attribute__((format(printf, 5, 6))) void
wire_problem_set(struct wire_problem *problem, int status, const char *title,
                 const char *field, const char *detail_format, ...);

/* The only problem that has one cause and one wording: 503, no memory left for this
 * request. */
void wire_problem_set_no_memory(struct wire_problem *problem);

/* Adds the JSON text to `body`. Bytes that are not UTF-8 are replaced by '?'. Returns
 * ATTN_OK or ATTN_E_NOMEM. Thread-safe for distinct arguments. */
attn_status wire_problem_print(const struct wire_problem *problem, struct buf *body);

/* How a protocol writes its errors. */
struct wire_error_format {
    const char *content_type; /* constant */
    /* Adds the text to `body`; ATTN_OK or ATTN_E_NOMEM. */
    attn_status (*print)(const struct wire_problem *problem, struct buf *body);
    char *no_memory; /* constant text, for when there is none even for that: 503 */
};

/* application/problem+json (RFC 9457). */
extern const struct wire_error_format wire_problem_format;

#endif
