/* SPDX-License-Identifier: Apache-2.0 */
/* problem.c: sets and prints errors. */
#include "wire/problem.h"

#include "wire/json/write.h"

#include <stdarg.h>
#include <stdio.h>

static const struct wire_error_entry catalogue[WIRE_NUM_ERRORS] = {
#define WIRE_ERROR(name, status, title) {status, title},
#include "wire/problem.inc"
#undef WIRE_ERROR
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
