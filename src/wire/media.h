/* SPDX-License-Identifier: Apache-2.0 */
/* media.h: the forms that POST /v1/attention has, by their media types. */
#ifndef ATTND_WIRE_MEDIA_H
#define ATTND_WIRE_MEDIA_H

#include <stdbool.h>
#include <stddef.h>

enum wire_media {
    WIRE_MEDIA_JSON,        /* application/json */
    WIRE_MEDIA_SAFETENSORS, /* application/vnd.safetensors */
    WIRE_MEDIA_OCTETS,      /* application/octet-stream, holding safetensors */
    WIRE_NUM_MEDIA          /* none of them */
};

/* Their names, for errors. */
#define WIRE_MEDIA_LIST                                                                  \
    "application/json, application/vnd.safetensors or application/octet-stream"

/* Returns what a Content-Type says, whatever its parameters; NULL is none. */
enum wire_media wire_media_find(const char *content_type);

/* What the lines of Accept have said so far; zeroed it is no line at all. */
struct wire_accept {
    bool any_line;
    int weight[WIRE_NUM_MEDIA];   /* thousandths */
    int specific[WIRE_NUM_MEDIA]; /* of the range that gave it: 0 none, 1 all types, 2 a
                                     type's, 3 the very one */
};

/* Adds one line of Accept (RFC 9110, section 12.5.1). Of ranges that match the most
 * specific one counts; a weight that is none counts as 0. */
void wire_accept_add(struct wire_accept *accept, const char *value);

/* Returns the form that a reply to a body of the form `request` should have: the one of
 * the greatest weight, of equal ones the request's own, and application/vnd.safetensors
 * for application/octet-stream. WIRE_NUM_MEDIA when none is acceptable. */
enum wire_media wire_accept_choose(const struct wire_accept *accept,
                                   enum wire_media request);

#endif
