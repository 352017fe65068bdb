/* SPDX-License-Identifier: Apache-2.0 */
/* trace.c: checks the headers that name a request, and makes ids. */
#include "http/log/trace.h"

#include <stdbool.h>
#include <string.h>
#include <sys/random.h>

static const char hex_digits[] = "0123456789abcdef";

static bool is_id(const char *text) {
    size_t size = 0;
    for (; text[size] > ' ' && text[size] <= '~'; size++) {
        if (size == TRACE_ID_MAX)
            return false;
    }
    return size > 0 && text[size] == '\0';
}

/* Returns whether `text` has `size` hex digits and then `end`. All digits may be 0 only
 * when `zero` is true. */
static bool is_hex_field(const char *text, size_t size, bool zero, char end) {
    return strspn(text, hex_digits) == size && text[size] == end &&
           (zero || strspn(text, "0") < size);
}

/* Returns whether `text` is a valid traceparent. Version 00 ends after the flags; later
 * versions may add fields there. */
static bool is_parent(const char *text) {
    if (!is_hex_field(text, 2, true, '-') || strncmp(text, "ff", 2) == 0 ||
        !is_hex_field(text + 3, 32, false, '-') ||
        !is_hex_field(text + 36, 16, false, '-'))
        return false;
    return is_hex_field(text + 53, 2, true, '\0') ||
           (strncmp(text, "00", 2) != 0 && is_hex_field(text + 53, 2, true, '-'));
}

/* Makes a random id, or "" when the system has no random bytes. */
static void make_id(struct trace_source *source, char *ret_id) {
    if (source->num_left == 0 && getrandom(source->bytes, sizeof source->bytes, 0) ==
                                     (ssize_t)sizeof source->bytes)
        source->num_left = sizeof source->bytes;

    for (size_t i = 0; i < TRACE_ID_BYTES && source->num_left > 0; i++) {
        unsigned char byte = source->bytes[--source->num_left];
        *ret_id++ = hex_digits[byte >> 4];
        *ret_id++ = hex_digits[byte & 15];
    }
    *ret_id = '\0';
}

void trace_begin(struct trace *trace, struct MHD_Connection *connection,
                 struct trace_source *source) {
    const char *id =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, TRACE_ID_HEADER);
    const char *parent =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, TRACE_PARENT_HEADER);

    if (id != NULL && is_id(id))
        stpcpy(trace->id, id);
    else
        make_id(source, trace->id);

    if (parent == NULL || !is_parent(parent))
        return;
    memcpy(trace->trace_id, parent + 3, sizeof trace->trace_id - 1);
    memcpy(trace->span_id, parent + 36, sizeof trace->span_id - 1);
}
