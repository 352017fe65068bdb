/* SPDX-License-Identifier: Apache-2.0 */
/* framing.c: checks every header that says where a message ends. */
#include "http/framing.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* What has been found so far. */
struct framing_state {
    struct framing framing;
    size_t lengths, encodings, hosts; /* how often each header appears */
    struct wire_problem *problem;
    bool refused;
};

/* Whether `name` is a token (RFC 9110, section 5.6.2); "Content-Length " is not. */
static bool is_token(const char *name, size_t size) {
    static const char marks[] = "!#$%&'*+-.^_`|~";

    for (size_t i = 0; i < size; i++) {
        char c = name[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && !(c >= '0' && c <= '9') && (c == '\0' || strchr(marks, c) == NULL))
            return false;
    }
    return size > 0;
}

static enum MHD_Result refuse_header(struct framing_state *state, enum wire_error error,
                                     const char *field, const char *detail) {
    wire_problem_set(state->problem, error, field, "%s", detail);
    state->refused = true;
    return MHD_NO;
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

static enum MHD_Result check_encoding(struct framing_state *state, const char *value) {
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
    if (memchr(value, '\0', value_size) != NULL)
        return refuse_header(state, WIRE_E_BAD_REQUEST, name,
                             "the value of a header contains a NUL byte; remove it");
    if (strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0)
        return check_length(state, value);
    if (strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0)
        return check_encoding(state, value);
    if (strcasecmp(name, MHD_HTTP_HEADER_EXPECT) == 0)
        return check_expect(state, value);
    if (strcasecmp(name, MHD_HTTP_HEADER_HOST) == 0 && ++state->hosts > 1)
        return refuse_header(state, WIRE_E_BAD_REQUEST, "Host",
                             "Host appears twice; send it once");
    return MHD_YES;
}

bool framing_check(struct MHD_Connection *connection, struct framing *ret_framing,
                   struct wire_problem *ret_problem) {
    struct framing_state state = {.problem = ret_problem};

    MHD_get_connection_values_n(connection, MHD_HEADER_KIND, check_header, &state);
    if (!state.refused && state.lengths > 0 && state.encodings > 0)
        refuse_header(&state, WIRE_E_BAD_REQUEST, "Content-Length",
                      "Content-Length and Transfer-Encoding are both present; send one");
    if (state.refused)
        return false;

    *ret_framing = state.framing;
    return true;
}
