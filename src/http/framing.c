/* SPDX-License-Identifier: Apache-2.0 */
#include "http/framing.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct check {
    struct framing framing;
    size_t lengths, encodings, hosts; /* how often each header came */
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

static enum MHD_Result refuse(struct check *check, enum wire_error error,
                              const char *field, const char *detail) {
    wire_problem_set(check->problem, error, field, "%s", detail);
    check->refused = true;
    return MHD_NO;
}

static enum MHD_Result check_length(struct check *check, const char *value) {
    size_t digits = strspn(value, "0123456789");
    if (++check->lengths > 1)
        return refuse(check, WIRE_E_BAD_REQUEST, "Content-Length",
                      "Content-Length is given twice; send it once");
    if (digits == 0 || value[digits] != '\0' || digits > 18)
        return refuse(check, WIRE_E_BAD_REQUEST, "Content-Length",
                      "Content-Length is not a number of bytes");
    check->framing.content_length = strtoull(value, NULL, 10);
    return MHD_YES;
}

static enum MHD_Result check_encoding(struct check *check, const char *value) {
    if (++check->encodings > 1 || strcasecmp(value, "chunked") != 0)
        return refuse(check, WIRE_E_BAD_REQUEST, "Transfer-Encoding",
                      "the only Transfer-Encoding understood is one 'chunked'");
    check->framing.chunked = true;
    return MHD_YES;
}

static enum MHD_Result check_expect(struct check *check, const char *value) {
    if (strcasecmp(value, "100-continue") == 0) {
        check->framing.expects_continue = true;
        return MHD_YES;
    }
    return refuse(check, WIRE_E_EXPECTATION_FAILED, "Expect",
                  "the only expectation understood is 100-continue");
}

static enum MHD_Result check_header(void *cls, enum MHD_ValueKind kind, const char *name,
                                    size_t name_size, const char *value,
                                    size_t value_size) {
    struct check *check = cls;
    (void)kind;
    if (value == NULL)
        value = "";
    if (!is_token(name, name_size))
        return refuse(check, WIRE_E_BAD_REQUEST, NULL,
                      "a header's name holds a character that no name may hold");
    if (memchr(value, '\0', value_size) != NULL)
        return refuse(check, WIRE_E_BAD_REQUEST, name,
                      "a header's value holds a NUL byte");
    if (strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0)
        return check_length(check, value);
    if (strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0)
        return check_encoding(check, value);
    if (strcasecmp(name, MHD_HTTP_HEADER_EXPECT) == 0)
        return check_expect(check, value);
    if (strcasecmp(name, MHD_HTTP_HEADER_HOST) == 0 && ++check->hosts > 1)
        return refuse(check, WIRE_E_BAD_REQUEST, "Host",
                      "Host is given twice; send it once");
    return MHD_YES;
}

bool framing_check(struct MHD_Connection *connection, struct framing *ret_framing,
                   struct wire_problem *ret_problem) {
    struct check check = {.problem = ret_problem};
    MHD_get_connection_values_n(connection, MHD_HEADER_KIND, check_header, &check);
    if (!check.refused && check.lengths > 0 && check.encodings > 0)
        refuse(&check, WIRE_E_BAD_REQUEST, "Content-Length",
               "Content-Length and Transfer-Encoding exclude each other; send one");
    if (check.refused)
        return false;
    *ret_framing = check.framing;
    return true;
}
