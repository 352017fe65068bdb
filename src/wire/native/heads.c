/* SPDX-License-Identifier: Apache-2.0 */
/* heads.c: prints what the heads of a model do. The text is short, so it is
 * printed as a whole. */
#include "wire/native/heads.h"

#include "base/pace.h"
#include "base/size.h"
#include "wire/json/write.h"

#include <math.h>

#define NUMBER_BYTES 20  /* -1.234567891e-300 and a comma, or a bracket */
#define NUMBER_STEPS 300 /* of printing one */
#define HEAD_BYTES   256 /* of one head: its keys, six numbers and two tags */
#define KEYS_BYTES   64  /* {"model":"","heads":[],"gram":[]} */

size_t wire_native_heads_bound(const attn_model *model) {
    size_t num_heads = attn_model_get_info(model)->num_heads, row;
    size_t bound = KEYS_BYTES + ATTN_NAME_MAX * WIRE_JSON_BYTE_MAX;

    if (!size_mul(num_heads, NUMBER_BYTES, &row) ||
        !size_add(row, HEAD_BYTES + 3, &row) || !size_add_mul(&bound, num_heads, row))
        return SIZE_MAX;
    return bound;
}

bool wire_native_heads_check(const attn_heads *heads, struct wire_problem *ret_problem) {
    size_t head;

    if (attn_heads_are_finite(heads, &head))
        return true;
    if (head == heads->num_heads)
        return wire_problem_set(ret_problem, WIRE_E_RESULT_NOT_FINITE, NULL,
                                "the sum of all heads is not finite: float32 overflowed; "
                                "send smaller numbers");
    return wire_problem_set(
        ret_problem, WIRE_E_RESULT_NOT_FINITE, NULL,
        "head %zu (counted from 0) is not finite: float32 overflowed; "
        "send smaller numbers",
        head);
}

/* Adds a number, with 10 digits; null where it has no meaning. */
static attn_status add_number(struct buf *reply, const char *before, double number) {
    pace_add(NUMBER_STEPS);
    if (isnan(number))
        return wire_json_add_format(reply, "%snull", before);
    return wire_json_add_format(reply, "%s%.10g", before, number);
}

static attn_status add_head(const attn_heads *heads, size_t index, struct buf *reply) {
    attn_head head;
    attn_heads_describe(heads, index, &head);
    const struct {
        const char *before;
        double number;
    } members[] = {
        {"{\"importance\":", head.importance},
        {",\"entropy\":", head.entropy},
        {",\"mean_distance\":", head.mean_distance},
        {",\"mass_on_self\":", head.mass_on_self},
        {",\"mass_on_first\":", head.mass_on_first},
        {",\"mass_on_previous\":", head.mass_on_previous},
    };
    attn_status status = ATTN_OK;

    for (size_t i = 0; status == ATTN_OK && i < sizeof members / sizeof members[0]; i++)
        status = add_number(reply, members[i].before, members[i].number);
    if (status == ATTN_OK)
        status = buf_append_text(reply, ",\"tags\":[");
    for (size_t i = 0; status == ATTN_OK && head.tags[i] != NULL; i++)
        status = wire_json_add_format(reply, i > 0 ? ",\"%s\"" : "\"%s\"", head.tags[i]);
    return status == ATTN_OK ? buf_append_text(reply, "]}") : status;
}

static attn_status add_gram(const attn_heads *heads, struct buf *reply) {
    size_t num_heads = heads->num_heads;
    attn_status status = ATTN_OK;

    for (size_t i = 0; status == ATTN_OK && i < num_heads * num_heads; i++) {
        const char *before = i == 0 ? "[" : i % num_heads == 0 ? "],[" : ",";
        status = add_number(reply, before, heads->gram[i]);
    }
    return status == ATTN_OK ? buf_append_text(reply, "]") : status;
}

attn_status wire_native_heads_print(const attn_model *model, const attn_heads *heads,
                                    struct buf *reply) {
    attn_status status = buf_append_text(reply, "{\"model\":");
    if (status == ATTN_OK)
        status = wire_json_add_string(reply, attn_model_get_info(model)->name);
    if (status == ATTN_OK)
        status = buf_append_text(reply, ",\"heads\":[");

    for (size_t h = 0; status == ATTN_OK && h < heads->num_heads; h++) {
        if (h > 0)
            status = buf_append_text(reply, ",");
        if (status == ATTN_OK)
            status = add_head(heads, h, reply);
    }

    if (status == ATTN_OK)
        status = buf_append_text(reply, "],\"gram\":[");
    if (status == ATTN_OK)
        status = add_gram(heads, reply);
    return status == ATTN_OK ? buf_append_text(reply, "]}") : status;
}
