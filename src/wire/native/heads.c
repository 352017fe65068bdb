/* SPDX-License-Identifier: Apache-2.0 */
/* heads.c: prints the reply to POST /v1/heads, what each head does. The text is short, so
 * it is printed as a whole. */
#include "wire/native/heads.h"

#include "base/pace.h"
#include "base/size.h"
#include "wire/json/write.h"
#include "wire/reply.h"

#include <math.h>

#define NUMBER_BYTES 20  /* -1.234567891e-300 and a comma, or a bracket */
#define NUMBER_STEPS 300 /* of printing one */
#define HEAD_BYTES   640 /* of one head: its keys, 13 numbers, three tags and words */
#define KEYS_BYTES   (64 + WIRE_NOTE_BYTES) /* {"model":"","heads":[],"gram":[]} */

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
static void add_number(struct buf *reply, const char *before, double number) {
    pace_add(NUMBER_STEPS);
    if (isnan(number))
        buf_append_format(reply, "%snull", before);
    else
        buf_append_format(reply, "%s%.10g", before, number);
}

static void add_head(const attn_heads *heads, size_t index, struct buf *reply) {
    attn_head head;

    attn_heads_describe(heads, index, &head);
    buf_append_text(reply, "{");
    if (heads->gram != NULL) {
        add_number(reply, "\"importance\":", head.importance);
        add_number(reply, ",\"residual_importance\":", head.residual_importance);
    }
    add_number(reply,
               heads->gram != NULL ? ",\"entropy\":" : "\"entropy\":", head.entropy);
    add_number(reply, ",\"mean_distance\":", head.mean_distance);
    add_number(reply, ",\"mass_on_self\":", head.mass_on_self);
    add_number(reply, ",\"mass_on_first\":", head.mass_on_first);
    add_number(reply, ",\"mass_on_sink\":", head.mass_on_sink);
    add_number(reply, ",\"mass_on_previous\":", head.mass_on_previous);
    add_number(reply, ",\"mass_on_target\":", head.mass_on_target);
    add_number(reply, ",\"target_is_largest\":", head.target_is_largest);

    buf_append_text(reply, ",\"tags\":[");
    for (size_t i = 0; head.tags[i].name != NULL; i++)
        buf_append_format(reply, i > 0 ? ",\"%s\"" : "\"%s\"", head.tags[i].name);
    buf_append_text(reply, "],\"shares\":[");
    for (size_t i = 0; head.tags[i].name != NULL; i++)
        add_number(reply, i > 0 ? "," : "", head.tags[i].share);
    buf_append_text(reply, "],\"weak\":[");
    for (size_t i = 0; head.tags[i].name != NULL; i++)
        buf_append_format(reply, "%s%s", i > 0 ? "," : "",
                          head.tags[i].weak ? "true" : "false");
    buf_append_text(reply, "]}");
}

void wire_native_heads_print(const char *model, const char *note, const attn_heads *heads,
                             struct buf *reply) {
    size_t num_heads = heads->num_heads;
    char text[WIRE_NOTE_BYTES];

    wire_reply_put_note(note, text);
    buf_append_text(reply, "{\"model\":");
    wire_json_add_string(reply, model);
    buf_append_text(reply, text);
    buf_append_text(reply, ",\"heads\":[");
    for (size_t h = 0; h < num_heads; h++) {
        buf_append_text(reply, h > 0 ? "," : "");
        add_head(heads, h, reply);
    }

    if (heads->gram == NULL) {
        buf_append_text(reply, "]}");
        return;
    }
    buf_append_text(reply, "],\"gram\":[");
    for (size_t i = 0; i < num_heads * num_heads; i++) {
        const char *before = i == 0 ? "[" : i % num_heads == 0 ? "],[" : ",";
        add_number(reply, before, heads->gram[i]);
    }
    buf_append_text(reply, "]]}");
}
