/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/problem.h"

#include "wire/json/write.h"

#include <stdarg.h>
#include <stdio.h>

void wire_problem_set(struct wire_problem *problem, int status, const char *title,
                      const char *field, const char *detail_format, ...) {
    problem->status = status;
    problem->title = title;
    snprintf(problem->field, sizeof problem->field, "%s", field == NULL ? "" : field);
    problem->expected[0] = '\0';
    problem->got[0] = '\0';
    va_list args;
    va_start(args, detail_format);
    if (vsnprintf(problem->detail, sizeof problem->detail, detail_format, args) < 0)
        problem->detail[0] = '\0';
    va_end(args);
}

void wire_problem_set_no_memory(struct wire_problem *problem) {
    wire_problem_set(problem, 503, "Out of memory", NULL,
                     "there is no memory for this request now; try again later");
}

static attn_status print_member(struct buf *body, const char *name, const char *json) {
    if (json[0] == '\0')
        return ATTN_OK;
    attn_status status = wire_json_format(body, ",\"%s\":", name);
    return status == ATTN_OK ? buf_append_text(body, json) : status;
}

attn_status wire_problem_print(const struct wire_problem *problem, struct buf *body) {
    attn_status status =
        wire_json_format(body, "{\"status\":%d,\"title\":", problem->status);
    if (status == ATTN_OK)
        status = wire_json_string(body, problem->title);
    if (status == ATTN_OK && problem->field[0] != '\0') {
        status = buf_append_text(body, ",\"field\":");
        if (status == ATTN_OK)
            status = wire_json_string(body, problem->field);
    }
    if (status == ATTN_OK)
        status = print_member(body, "expected", problem->expected);
    if (status == ATTN_OK)
        status = print_member(body, "got", problem->got);
    if (status == ATTN_OK)
        status = buf_append_text(body, ",\"detail\":");
    if (status == ATTN_OK)
        status = wire_json_string(body, problem->detail);
    return status == ATTN_OK ? buf_append_text(body, "}") : status;
}

static char no_memory[] =
    "{\"status\":503,\"title\":\"Out of memory\",\"detail\":\"retry later\"}";

const struct wire_error_format wire_problem_format = {"application/problem+json",
                                                      wire_problem_print, no_memory};
