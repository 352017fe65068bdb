/* SPDX-License-Identifier: Apache-2.0 */
/* problem.c: the catalogue of errors, and how an error is printed. */
#include "wire/problem.h"

#include "wire/json/write.h"

#include <stdarg.h>
#include <stdio.h>

/* The status and the title of an error are written here only. */
static const struct wire_error_entry catalogue[WIRE_NUM_ERRORS] = {
    [WIRE_E_BAD_REQUEST] = {400, "Bad request"},
    [WIRE_E_MALFORMED_JSON] = {400, "Malformed JSON"},
    [WIRE_E_MALFORMED_SAFETENSORS] = {400, "Malformed safetensors"},
    [WIRE_E_NESTED_TOO_DEEPLY] = {400, "Nested too deeply"},
    [WIRE_E_UNKNOWN_KEY] = {400, "Unknown key"},
    [WIRE_E_MISSING_KEY] = {400, "Missing key"},
    [WIRE_E_DUPLICATE_KEY] = {400, "Duplicate key"},
    [WIRE_E_WRONG_TYPE] = {400, "Wrong type"},
    [WIRE_E_WRONG_DTYPE] = {400, "Wrong dtype"},
    [WIRE_E_WRONG_RANK] = {400, "Wrong rank"},
    [WIRE_E_EMPTY_TENSOR] = {400, "Empty tensor"},
    [WIRE_E_UNEVEN_ROWS] = {400, "Uneven rows"},
    [WIRE_E_SHAPE_MISMATCH] = {400, "Shape mismatch"},
    [WIRE_E_TOO_MANY_TOKENS] = {400, "Too many tokens"},
    [WIRE_E_OUT_OF_RANGE] = {400, "Out of range"},
    [WIRE_E_DUPLICATE_INDEX] = {400, "Duplicate index"},
    [WIRE_E_NOTHING_TO_SELECT_FROM] = {400, "Nothing to select from"},
    [WIRE_E_MODEL_NOT_NAMED] = {400, "Model not named"},
    [WIRE_E_DUPLICATE_INPUT] = {400, "Duplicate input"},
    [WIRE_E_UNKNOWN_OUTPUT] = {400, "Unknown output"},
    [WIRE_E_DUPLICATE_OUTPUT] = {400, "Duplicate output"},
    [WIRE_E_OUTPUTS_DISAGREE] = {400, "Outputs disagree"},
    [WIRE_E_BINARY_DATA] = {400, "Binary data"},
    [WIRE_E_BAD_CAPTURE_NAME] = {400, "Bad capture name"},
    [WIRE_E_UNKNOWN_LAYER] = {400, "Unknown layer"},
    [WIRE_E_UNAUTHORIZED] = {401, "Unauthorized"},
    [WIRE_E_ORIGIN_NOT_ALLOWED] = {403, "Origin not allowed"},
    [WIRE_E_MODEL_CONTROL_OFF] = {403, "Model control is off"},
    [WIRE_E_UNKNOWN_ROUTE] = {404, "Unknown route"},
    [WIRE_E_UNKNOWN_MODEL] = {404, "Unknown model"},
    [WIRE_E_UNKNOWN_VERSION] = {404, "Unknown version"},
    [WIRE_E_CAPTURES_OFF] = {404, "Captures are off"},
    [WIRE_E_UNKNOWN_CAPTURE] = {404, "Unknown capture"},
    [WIRE_E_METHOD_NOT_ALLOWED] = {405, "Method not allowed"},
    [WIRE_E_NOT_ACCEPTABLE] = {406, "Not acceptable"},
    [WIRE_E_REQUEST_TIMEOUT] = {408, "Request timeout"},
    [WIRE_E_MODEL_NOT_CHANGED] = {409, "Model not changed"},
    [WIRE_E_CAPTURE_EXISTS] = {409, "Capture exists"},
    [WIRE_E_LENGTH_REQUIRED] = {411, "Length required"},
    [WIRE_E_BODY_TOO_LARGE] = {413, "Body too large"},
    [WIRE_E_REQUEST_TOO_LARGE] = {413, "Request too large"},
    [WIRE_E_REPLY_TOO_LARGE] = {413, "Reply too large"},
    [WIRE_E_CAPTURE_TOO_LARGE] = {413, "Capture too large"},
    [WIRE_E_UNSUPPORTED_MEDIA_TYPE] = {415, "Unsupported media type"},
    [WIRE_E_EXPECTATION_FAILED] = {417, "Expectation failed"},
    [WIRE_E_RESULT_NOT_FINITE] = {422, "Result not finite"},
    [WIRE_E_TOO_MANY_REQUESTS] = {429, "Too many requests"},
    [WIRE_E_QUEUE_FULL] = {503, "Queue full"},
    [WIRE_E_OUT_OF_MEMORY] = {503, "Out of memory"},
    [WIRE_E_DEADLINE_EXCEEDED] = {504, "Deadline exceeded"},
    [WIRE_E_CAPTURES_FULL] = {507, "Captures full"},
};

const struct wire_error_entry *wire_error_get(enum wire_error error) {
    return &catalogue[error];
}

bool wire_problem_set(struct wire_problem *problem, enum wire_error error,
                      const char *field, const char *detail_format, ...) {
    problem->error = error;
    problem->status = catalogue[error].status;
    problem->title = catalogue[error].title;
    snprintf(problem->field, sizeof problem->field, "%s", field == NULL ? "" : field);
    problem->expected[0] = '\0';
    problem->got[0] = '\0';

    va_list args;
    va_start(args, detail_format);
    if (vsnprintf(problem->detail, sizeof problem->detail, detail_format, args) < 0)
        problem->detail[0] = '\0';
    va_end(args);
    return false;
}

bool wire_problem_set_no_memory(struct wire_problem *problem) {
    return wire_problem_set(
        problem, WIRE_E_OUT_OF_MEMORY, NULL,
        "there is not enough memory for this request now; retry later");
}

/* Adds a member whose value is JSON already; nothing when it is "". */
static void print_member(struct buf *body, const char *name, const char *json) {
    if (json[0] != '\0')
        buf_append_format(body, ",\"%s\":%s", name, json);
}

void wire_problem_print(const struct wire_problem *problem, struct buf *body) {
    buf_append_format(body, "{\"status\":%d,\"title\":", problem->status);
    wire_json_add_string(body, problem->title);
    if (problem->field[0] != '\0') {
        buf_append_text(body, ",\"field\":");
        wire_json_add_string(body, problem->field);
    }
    print_member(body, "expected", problem->expected);
    print_member(body, "got", problem->got);

    buf_append_text(body, ",\"detail\":");
    wire_json_add_string(body, problem->detail);
    buf_append_text(body, "}");
}

static char out_of_memory_problem[] =
    "{\"status\":503,\"title\":\"Out of memory\",\"detail\":\"retry later\"}";

const struct wire_error_format wire_problem_format = {
    .content_type = "application/problem+json",
    .print = wire_problem_print,
    .out_of_memory = out_of_memory_problem,
};
