/* SPDX-License-Identifier: Apache-2.0 */
/* framing.c: checks that a request consists of whole lines, and every header that says
 * where it ends. */
#include "http/net/framing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define ALPHANUMERIC "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

/* Whether the parts of a request are next to each other; set by framing_init(). */
static bool parts_are_adjacent;

/* Headers that two readers could understand in two ways if they appeared twice. */
enum { HEADER_HOST, HEADER_ORIGIN, HEADER_AUTHORIZATION, NUM_SINGLE };
static const char *const single_headers[NUM_SINGLE] = {
    MHD_HTTP_HEADER_HOST, MHD_HTTP_HEADER_ORIGIN, MHD_HTTP_HEADER_AUTHORIZATION};

/* The headers that were read so far. */
struct framing_state {
    struct framing framing;
    const char *next;          /* where the next line must begin, if parts are adjacent */
    size_t lengths, encodings; /* how often each appears */
    bool seen[NUM_SINGLE];     /* of single_headers */
    struct wire_problem *problem;
    bool refused;
};

/* Whether `name` is a token (RFC 9110, section 5.6.2); "Content-Length " is not. */
static bool is_token(const char *name, size_t size) {
    return size > 0 && strspn(name, ALPHANUMERIC "!#$%&'*+-.^_`|~") >= size;
}

/* Whether the text has no control characters but tabs. */
static bool is_printable(const char *text, size_t size) {
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)text[i];
        if ((c < ' ' && c != '\t') || c == 0x7F)
            return false;
    }
    return true;
}

/* Whether a request target may have all characters of the text. */
static bool is_target(const char *text) {
    while (*text > ' ' && *text <= '~')
        text++;
    return *text == '\0';
}

/* Whether the value of a Host header may be one (RFC 9110, section 7.2): each character
 * is of a host or a port. libmicrohttpd leaves blanks at the end. */
static bool is_host(const char *text) {
    text += strspn(text, ALPHANUMERIC "-._~%!$&'()*+,;=:[]");
    return text[strspn(text, " \t")] == '\0';
}

static enum MHD_Result refuse_header(struct framing_state *state, enum wire_error error,
                                     const char *field, const char *detail) {
    wire_problem_set(state->problem, error, field, "%s", detail);
    state->refused = true;
    return MHD_NO;
}

/* Refuses a request whose parts are not adjacent. */
static enum MHD_Result refuse_lines(struct framing_state *state) {
    return refuse_header(state, WIRE_E_BAD_REQUEST, NULL,
                         "the request has a NUL byte, a folded header, or a line that "
                         "does not end in CR LF; send each header as one line");
}

/* Whether a header is the next line, and moves on to the line after it. The name of one
 * that was folded is a copy, in memory behind the value. */
static bool is_next_line(struct framing_state *state, const char *name, size_t name_size,
                         const char *value, size_t value_size) {
    if (!parts_are_adjacent)
        return true;
    if (name != state->next || value <= name + name_size)
        return false;

    for (const char *c = name + name_size + 1; c < value; c++) {
        if (*c != ' ' && *c != '\t')
            return false;
    }
    state->next = value + value_size + 2;
    return true;
}

static enum MHD_Result check_length(struct framing_state *state, const char *value) {
    size_t digits = strspn(value, "0123456789");
    if (++state->lengths > 1)
        return refuse_header(state, WIRE_E_BAD_REQUEST, "Content-Length",
                             "Content-Length appears twice; send it once");
    if (digits == 0 || value[digits] != '\0' || digits > 18)
        return refuse_header(state, WIRE_E_BAD_REQUEST, "Content-Length",
                             "Content-Length must be a number of at most 18 digits");
    state->framing.content_length = strtoull(value, NULL, 10);
    return MHD_YES;
}

static enum MHD_Result check_transfer_encoding(struct framing_state *state,
                                               const char *value) {
    if (++state->encodings > 1 || strcasecmp(value, "chunked") != 0)
        return refuse_header(
            state, WIRE_E_BAD_REQUEST, "Transfer-Encoding",
            "only one Transfer-Encoding is supported; send 'chunked' once");
    state->framing.chunked = true;
    return MHD_YES;
}

static enum MHD_Result check_expect(struct framing_state *state, const char *value) {
    if (strcasecmp(value, "100-continue") == 0) {
        state->framing.expects_continue = true;
        return MHD_YES;
    }
    return refuse_header(state, WIRE_E_EXPECTATION_FAILED, "Expect",
                         "Expect can only be 100-continue; send that or no Expect");
}

static enum MHD_Result check_single(struct framing_state *state, const char *name,
                                    const char *value) {
    for (size_t i = 0; i < NUM_SINGLE; i++) {
        if (strcasecmp(name, single_headers[i]) != 0)
            continue;
        if (state->seen[i])
            return refuse_header(state, WIRE_E_BAD_REQUEST, single_headers[i],
                                 "this header appears twice; send it once");
        state->seen[i] = true;
        if (i == HEADER_HOST && !is_host(value))
            return refuse_header(state, WIRE_E_BAD_REQUEST, single_headers[i],
                                 "Host has an invalid character; send a name or an "
                                 "address, and the port if it is not the default");
    }
    return MHD_YES;
}

/* MHD_KeyValueIteratorN; MHD_NO ends the iteration. */
static enum MHD_Result check_header(void *cls, enum MHD_ValueKind kind, const char *name,
                                    size_t name_size, const char *value,
                                    size_t value_size) {
    struct framing_state *state = cls;
    (void)kind;
    if (value == NULL)
        value = "";

    if (!is_token(name, name_size))
        return refuse_header(
            state, WIRE_E_BAD_REQUEST, NULL,
            "a header name has an invalid character; use letters, digits and hyphens");
    if (!is_printable(value, value_size))
        return refuse_header(state, WIRE_E_BAD_REQUEST, name,
                             "the value of a header has a control character; remove it");
    if (!is_next_line(state, name, name_size, value, value_size))
        return refuse_lines(state);
    if (strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0)
        return check_length(state, value);
    if (strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0)
        return check_transfer_encoding(state, value);
    if (strcasecmp(name, MHD_HTTP_HEADER_EXPECT) == 0)
        return check_expect(state, value);
    return check_single(state, name, value);
}

/* Checks the request line, and finds where the first header must begin. */
static bool check_request_line(struct framing_state *state,
                               const struct framing_target *target,
                               const struct framing_line *line) {
    if (!target->valid)
        return refuse_header(state, WIRE_E_BAD_REQUEST, NULL,
                             "the path has a space, a control character or a character "
                             "that is not ASCII; send %%XX instead");
    if (!parts_are_adjacent)
        return true;

    state->next = line->version + strlen(line->version) + 2;
    return (target->start == line->method + strlen(line->method) + 1 &&
            line->url == target->start &&
            line->version == target->start + target->size + 1) ||
           refuse_lines(state);
}

/* Checks that an empty line follows the last header. */
static bool check_empty_line(struct framing_state *state,
                             struct MHD_Connection *connection, const char *method) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    return !parts_are_adjacent || state->next + 2 == method + info->header_size ||
           refuse_lines(state);
}

void framing_init(void) {
    parts_are_adjacent = strcmp(MHD_get_version(), "0.9.75") == 0;
}

int framing_strictness(void) {
    return parts_are_adjacent ? 0 : 1;
}

void framing_note_target(struct framing_target *target, const char *text) {
    /* The text is in the library's buffer, where it would also write zeros. */
    char *query = strchr((char *)(uintptr_t)text, '?');

    *target = (struct framing_target){text, strlen(text), is_target(text), ""};
    if (query != NULL)
        snprintf(target->query, sizeof target->query, "%s", query + 1);
    if (parts_are_adjacent && query != NULL && query[1] != '\0')
        query[1] = '\0';
}

bool framing_check(struct MHD_Connection *connection, const struct framing_target *target,
                   const struct framing_line *line, struct framing *ret_framing,
                   struct wire_problem *ret_problem) {
    struct framing_state state = {.problem = ret_problem};
    if (!check_request_line(&state, target, line))
        return false;

    MHD_get_connection_values_n(connection, MHD_HEADER_KIND, check_header, &state);
    if (state.refused || !check_empty_line(&state, connection, line->method))
        return false;
    if (!state.seen[HEADER_HOST] && strcmp(line->version, MHD_HTTP_VERSION_1_0) != 0)
        return refuse_header(&state, WIRE_E_BAD_REQUEST, "Host",
                             "Host is missing; send it, as HTTP/1.1 requires");
    if (state.lengths > 0 && state.encodings > 0)
        return refuse_header(
            &state, WIRE_E_BAD_REQUEST, "Content-Length",
            "Content-Length and Transfer-Encoding are both present; send one");

    /* A proxy that speaks HTTP/1.0 may not know chunks, and delimit the body in another
     * way (RFC 9112, section 6.1). */
    state.framing.close =
        state.framing.chunked && strcmp(line->version, MHD_HTTP_VERSION_1_0) == 0;
    *ret_framing = state.framing;
    return true;
}

/* Returns the size of what is before the host of a whole URL; 0 for a path. */
static size_t scheme_size(const char *url) {
    static const char *const schemes[] = {"http://", "https://"};
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
        size_t size = strlen(schemes[i]);
        if (strncasecmp(url, schemes[i], size) == 0)
            return size;
    }
    return 0;
}

const char *framing_path(const char *url) {
    size_t scheme = scheme_size(url);
    if (scheme == 0)
        return url;
    const char *path = strchr(url + scheme, '/');
    return path != NULL ? path : "/";
}

const char *framing_host(const char *url, size_t *ret_size) {
    size_t scheme = scheme_size(url);
    *ret_size = strcspn(url + scheme, "/?");
    return scheme > 0 ? url + scheme : NULL;
}
