/* SPDX-License-Identifier: Apache-2.0 */
/* problem.c: the catalogue of errors, and how an error is printed. */
#include "wire/problem.h"

#include "wire/json/write.h"

#include <stdarg.h>
#include <stdio.h>

/* The status and the title of an error are written here only. */
/* clang-format off */
static const struct wire_error_entry catalogue[WIRE_NUM_ERRORS] = {
    [WIRE_E_BAD_REQUEST] = {400, "Bad request",
        "headers that are ambiguous, or that break HTTP"},
    [WIRE_E_MALFORMED_JSON] = {400, "Malformed JSON",
        "text that is not JSON, or that goes on after its object"},
    [WIRE_E_MALFORMED_SAFETENSORS] = {400, "Malformed safetensors",
        "a body whose header, names or offsets break the format"},
    [WIRE_E_NESTED_TOO_DEEPLY] = {400, "Nested too deeply",
        "lists and objects that are nested beyond the limit"},
    [WIRE_E_UNKNOWN_KEY] = {400, "Unknown key",
        "a name that the object, the inputs or the tensors do not have"},
    [WIRE_E_MISSING_KEY] = {400, "Missing key",
        "a required name that was left out"},
    [WIRE_E_DUPLICATE_KEY] = {400, "Duplicate key",
        "a name that appears twice in one object"},
    [WIRE_E_WRONG_TYPE] = {400, "Wrong type",
        "a value of the wrong JSON type"},
    [WIRE_E_WRONG_DTYPE] = {400, "Wrong dtype",
        "a type of elements that the tensor cannot have"},
    [WIRE_E_WRONG_RANK] = {400, "Wrong rank",
        "too few or too many levels of lists, or dimensions"},
    [WIRE_E_EMPTY_TENSOR] = {400, "Empty tensor",
        "a list without elements, or a dimension of 0"},
    [WIRE_E_UNEVEN_ROWS] = {400, "Uneven rows",
        "rows of one tensor that differ in width"},
    [WIRE_E_SHAPE_MISMATCH] = {400, "Shape mismatch",
        "shapes that disagree with the model or with each other"},
    [WIRE_E_TOO_MANY_TOKENS] = {400, "Too many tokens",
        "a sequence over the model's context length"},
    [WIRE_E_OUT_OF_RANGE] = {400, "Out of range",
        "a number outside the range that its field allows"},
    [WIRE_E_DUPLICATE_INDEX] = {400, "Duplicate index",
        "an index that appears twice in a selection"},
    [WIRE_E_NOTHING_TO_SELECT_FROM] = {400, "Nothing to select from",
        "a selection of weights that were not requested"},
    [WIRE_E_MODEL_NOT_NAMED] = {400, "Model not named",
        "several models are loaded, and the request names none"},
    [WIRE_E_DUPLICATE_INPUT] = {400, "Duplicate input",
        "an input that appears twice"},
    [WIRE_E_UNKNOWN_OUTPUT] = {400, "Unknown output",
        "an output that no model has"},
    [WIRE_E_DUPLICATE_OUTPUT] = {400, "Duplicate output",
        "an output that appears twice"},
    [WIRE_E_OUTPUTS_DISAGREE] = {400, "Outputs disagree",
        "need_weights and the requested outputs contradict each other"},
    [WIRE_E_BINARY_DATA] = {400, "Binary data",
        "binary data whose size or position disagrees with the JSON"},
    [WIRE_E_BAD_CAPTURE_NAME] = {400, "Bad capture name",
        "a name with other characters, or that is the hash of another file"},
    [WIRE_E_UNKNOWN_LAYER] = {400, "Unknown layer",
        "a layer that the capture does not have, or that is not named"},
    [WIRE_E_UNAUTHORIZED] = {401, "Unauthorized",
        "a request without a key, or with one that --api-key-file does not have"},
    [WIRE_E_ORIGIN_NOT_ALLOWED] = {403, "Origin not allowed",
        "a web page that is neither the server's own nor of a --cors-origin"},
    [WIRE_E_MODEL_CONTROL_OFF] = {403, "Model control is off",
        "a request to load or unload a model without --model-control explicit"},
    [WIRE_E_UNKNOWN_ROUTE] = {404, "Unknown route",
        "a path that no route has"},
    [WIRE_E_UNKNOWN_MODEL] = {404, "Unknown model",
        "a name that no loaded model has"},
    [WIRE_E_UNKNOWN_VERSION] = {404, "Unknown version",
        "a version that the model does not have"},
    [WIRE_E_CAPTURES_OFF] = {404, "Captures are off",
        "a route of captures without --capture-memory"},
    [WIRE_E_UNKNOWN_CAPTURE] = {404, "Unknown capture",
        "a name that no capture has, or has no more"},
    [WIRE_E_METHOD_NOT_ALLOWED] = {405, "Method not allowed",
        "a method that the route does not have"},
    [WIRE_E_NOT_ACCEPTABLE] = {406, "Not acceptable",
        "an Accept header that allows no media type of the reply"},
    [WIRE_E_REQUEST_TIMEOUT] = {408, "Request timeout",
        "headers or a body that took too long to arrive"},
    [WIRE_E_MODEL_NOT_CHANGED] = {409, "Model not changed",
        "a model that cannot be loaded now; what was served before still is"},
    [WIRE_E_CAPTURE_EXISTS] = {409, "Capture exists",
        "a name that has other bytes"},
    [WIRE_E_LENGTH_REQUIRED] = {411, "Length required",
        "a capture without Content-Length"},
    [WIRE_E_BODY_TOO_LARGE] = {413, "Body too large",
        "a body over --max-body, or over the limit of its route"},
    [WIRE_E_REQUEST_TOO_LARGE] = {413, "Request too large",
        "a request that would need more than --max-memory"},
    [WIRE_E_REPLY_TOO_LARGE] = {413, "Reply too large",
        "a reply over --max-reply"},
    [WIRE_E_CAPTURE_TOO_LARGE] = {413, "Capture too large",
        "a capture over half of --capture-memory"},
    [WIRE_E_UNSUPPORTED_MEDIA_TYPE] = {415, "Unsupported media type",
        "a Content-Type or Content-Encoding that the route cannot read"},
    [WIRE_E_EXPECTATION_FAILED] = {417, "Expectation failed",
        "an Expect header other than 100-continue"},
    [WIRE_E_RESULT_NOT_FINITE] = {422, "Result not finite",
        "an infinity or NaN among the results"},
    [WIRE_E_TOO_MANY_REQUESTS] = {429, "Too many requests",
        "a client with as many requests in progress as --max-per-client allows"},
    [WIRE_E_QUEUE_FULL] = {503, "Queue full",
        "as many requests wait as --queue and --max-queue-delay allow"},
    [WIRE_E_OUT_OF_MEMORY] = {503, "Out of memory",
        "not enough memory for this request now"},
    [WIRE_E_DEADLINE_EXCEEDED] = {504, "Deadline exceeded",
        "the time that the request allowed is over"},
    [WIRE_E_CAPTURES_FULL] = {507, "Captures full",
        "no room in --capture-memory for this capture now"},
};
/* clang-format on */

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
