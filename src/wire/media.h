/* SPDX-License-Identifier: Apache-2.0 */
/* media.h: the media types of requests and replies, and which one a reply to POST
 * /v1/attention has. */
#pragma once

#include <stdbool.h>

#define WIRE_MEDIA_TYPE_JSON        "application/json"
#define WIRE_MEDIA_TYPE_SAFETENSORS "application/vnd.safetensors"
#define WIRE_MEDIA_TYPE_OCTETS      "application/octet-stream"

enum wire_media {
    WIRE_MEDIA_JSON,
    WIRE_MEDIA_SAFETENSORS,
    WIRE_MEDIA_OCTETS, /* safetensors under /v1; under /v2, JSON with tensors after it */
    WIRE_NUM_MEDIA     /* none of them */
};

/* The media types of POST /v1/attention, for errors. */
#define WIRE_MEDIA_LIST                                                                  \
    WIRE_MEDIA_TYPE_JSON ", " WIRE_MEDIA_TYPE_SAFETENSORS " or " WIRE_MEDIA_TYPE_OCTETS

/* Returns the media type that a Content-Type names, whatever its parameters are; NULL
 * names none. */
enum wire_media wire_media_find(const char *content_type);

/* How closely a media range of Accept names a media type. */
enum wire_specificity {
    WIRE_SPECIFICITY_NONE,        /* not at all */
    WIRE_SPECIFICITY_ALL,         /* by "*" for both parts */
    WIRE_SPECIFICITY_APPLICATION, /* by "application/" and "*" */
    WIRE_SPECIFICITY_EXACT        /* by its name */
};

/* The lines of Accept that were read so far. Zeroed, it has no line. One without a range
 * counts as none. */
struct wire_accept {
    bool any_range;
    int weight[WIRE_NUM_MEDIA];                        /* thousandths */
    enum wire_specificity specificity[WIRE_NUM_MEDIA]; /* of the range with that weight */
};

/* Adds one line of Accept (RFC 9110, section 12.5.1). Of several ranges that match a
 * media type, the most specific one counts. A malformed weight counts as 0. */
void wire_accept_add(struct wire_accept *accept, const char *value);

/* Whether a reply may be of the type `media`. */
bool wire_accept_allows(const struct wire_accept *accept, enum wire_media media);

/* Returns the media type for the reply to a body of the type `request`: the one with the
 * greatest weight. Among equals it is the request's own, but application/vnd.safetensors
 * instead of application/octet-stream. WIRE_NUM_MEDIA when none is acceptable. */
enum wire_media wire_accept_choose(const struct wire_accept *accept,
                                   enum wire_media request);
