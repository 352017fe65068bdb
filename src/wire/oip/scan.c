/* SPDX-License-Identifier: Apache-2.0 */
/* scan.c: finds the parts of a request, and what decoding them will take. */
#include "wire/oip/scan.h"

#include "base/size.h"
#include "wire/json/cost.h"
#include "wire/json/list.h"
#include "wire/json/object.h"
#include "wire/oip/input.h"
#include "wire/oip/numbers.h"

#include <stdio.h>
#include <stdlib.h>

#define HEADER      "Inference-Header-Content-Length"
#define SIZE_DIGITS 18 /* more is refused */

enum { ID, PARAMETERS, INPUTS, OUTPUTS, NUM_MEMBERS };

static const struct wire_keys request_keys = {
    .owner = "a request",
    .known = "id, parameters, inputs and outputs",
    .count = NUM_MEMBERS,
    .names = {[ID] = "id",
              [PARAMETERS] = "parameters",
              [INPUTS] = "inputs",
              [OUTPUTS] = "outputs"},
};

enum { CAUSAL, NEED_WEIGHTS, BINARY_OUTPUT, NUM_PARAMETERS };

static const struct wire_keys parameter_keys = {
    .owner = "a request's parameters",
    .known = "causal, need_weights and binary_data_output",
    .count = NUM_PARAMETERS,
    .names = {[CAUSAL] = "causal",
              [NEED_WEIGHTS] = "need_weights",
              [BINARY_OUTPUT] = "binary_data_output"},
};

static const struct wire_keys output_keys = {.owner = "an output",
                                             .known = "name and parameters",
                                             .count = 2,
                                             .names = {"name", "parameters"}};

static const struct wire_keys output_parameter_keys = {.owner = "an output's parameters",
                                                       .known = "binary_data alone",
                                                       .count = 1,
                                                       .names = {"binary_data"}};

/* What parameters and outputs say. */
struct wishes {
    bool need_given, binary;
    bool binary_given[2]; /* by the output itself */
};

static struct wire_cursor cursor_at(const struct wire_cursor *cursor,
                                    const struct wire_span *span) {
    return (struct wire_cursor){cursor->body, span->start, span->end, cursor->problem};
}

/* --- parameters --- */

/* Reads true or false; *ret_flag stays as it is when the member was left out. */
static bool read_flag(const struct wire_cursor *cursor, const struct wire_span *span,
                      const char *field, bool *ret_flag) {
    struct wire_place place = {.field = field};
    if (span->start == NULL)
        return true;
    struct wire_cursor there = cursor_at(cursor, span);
    const char *type = wire_cursor_type(&there);
    if (type == NULL || strcmp(type, "boolean") != 0)
        return wire_refuse_value_type(&there, &place, "boolean");
    *ret_flag = *span->start == 't';
    return true;
}

static bool read_need(const struct wire_cursor *cursor, const struct wire_span *span,
                      struct wire_oip_scan *scan) {
    char word[WIRE_WORD_MAX + 1] = "";
    bool all = false;
    if (*span->start != '"') {
        if (!read_flag(cursor, span, "need_weights", &all))
            return false;
        scan->need_weights = all ? ATTN_WEIGHTS_ALL : ATTN_WEIGHTS_NONE;
        return true;
    }
    if (!wire_word_read(cursor, span, word))
        return false;
    scan->need_weights = ATTN_WEIGHTS_MEAN;
    return strcmp(word, "mean") == 0 ||
           wire_refuse_need_weights("string", cursor->problem);
}

static bool read_parameters(const struct wire_cursor *cursor,
                            const struct wire_span *span, struct wire_oip_scan *scan,
                            struct wishes *wishes) {
    struct wire_span members[NUM_PARAMETERS];
    struct wire_place place = {.field = "parameters"};
    if (span->start == NULL)
        return true;
    struct wire_cursor there = cursor_at(cursor, span);
    if (!wire_object_scan(&there, &place, 2, &parameter_keys, members) ||
        !read_flag(cursor, &members[CAUSAL], "causal", &scan->causal) ||
        !read_flag(cursor, &members[BINARY_OUTPUT], "binary_data_output",
                   &wishes->binary))
        return false;
    scan->causal_given = members[CAUSAL].start != NULL;
    wishes->need_given = members[NEED_WEIGHTS].start != NULL;
    return !wishes->need_given || read_need(cursor, &members[NEED_WEIGHTS], scan);
}

/* --- lists of objects --- */

/* Reads the element `index` of a list, and moves past it. */
typedef bool read_element(struct wire_cursor *cursor, size_t index, void *context);

static bool read_elements(const struct wire_cursor *cursor, const struct wire_span *span,
                          const char *field, read_element *read, void *context) {
    struct wire_place place = {.field = field};
    if (span->start == NULL)
        return true;
    struct wire_cursor there = cursor_at(cursor, span);
    if (*span->start != '[')
        return wire_refuse_value_type(&there, &place, "array");
    there.at++;
    if (wire_cursor_next(&there) == ']')
        return true;
    bool more = true;
    place.depth = 1;
    for (size_t i = 0; more; i++) {
        place.index[0] = i;
        if (!read(&there, i, context) || !wire_list_next(&there, &place, &more))
            return false;
    }
    return true;
}

struct inputs {
    struct wire_oip_input *inputs;
    struct wire_oip_binary binary;
};

static bool read_input(struct wire_cursor *cursor, size_t index, void *context) {
    struct inputs *inputs = context;
    return wire_oip_input_scan(cursor, index, &inputs->binary, inputs->inputs);
}

/* --- outputs --- */

struct outputs {
    struct wire_oip_reply *reply;
    struct wishes *wishes;
};

/* Says which output it is. */
static bool read_output_name(const struct wire_cursor *cursor,
                             const struct wire_span *span, size_t index,
                             bool *ret_weights) {
    char word[WIRE_WORD_MAX + 1] = "";
    struct wire_place place = {.field = "name"};
    if (span->start == NULL) {
        wire_problem_set(cursor->problem, WIRE_E_MISSING_KEY, "name",
                         "outputs[%zu] has no name; send it", index);
        return false;
    }
    struct wire_cursor there = cursor_at(cursor, span);
    if (*span->start != '"')
        return wire_refuse_value_type(&there, &place, "string");
    if (!wire_word_read(cursor, span, word))
        return false;
    *ret_weights = strcmp(word, "attention_weights") == 0;
    if (*ret_weights || strcmp(word, "outputs") == 0)
        return true;
    wire_problem_set(cursor->problem, WIRE_E_UNKNOWN_OUTPUT, "outputs",
                     "outputs[%zu] is called '%.64s'; known are outputs and "
                     "attention_weights",
                     index, word);
    return false;
}

static bool read_output(struct wire_cursor *cursor, size_t index, void *context) {
    struct outputs *outputs = context;
    struct wire_oip_reply *reply = outputs->reply;
    struct wire_span members[2], binary = {0};
    struct wire_place place = {.field = "outputs", .depth = 1, .index = {index}};
    struct wire_place parameters = {.field = "parameters"};
    bool weights = false;
    if (!wire_object_scan(cursor, &place, 3, &output_keys, members) ||
        !read_output_name(cursor, &members[0], index, &weights))
        return false;
    for (size_t i = 0; i < reply->num_outputs; i++) {
        if (reply->outputs[i].weights == weights) {
            wire_problem_set(cursor->problem, WIRE_E_DUPLICATE_OUTPUT, "outputs",
                             "outputs[%zu] is %s once more; send each output once", index,
                             weights ? "attention_weights" : "outputs");
            return false;
        }
    }
    if (members[1].start != NULL) {
        struct wire_cursor there = cursor_at(cursor, &members[1]);
        if (!wire_object_scan(&there, &parameters, 4, &output_parameter_keys, &binary))
            return false;
    }
    size_t i = reply->num_outputs++; /* at most 2, as they differ */
    reply->outputs[i].weights = weights;
    outputs->wishes->binary_given[i] = binary.start != NULL;
    return read_flag(cursor, &binary, "binary_data", &reply->outputs[i].binary);
}

/* Brings parameters and outputs together. */
static bool settle(const struct wishes *wishes, struct wire_oip_scan *scan,
                   struct wire_problem *problem) {
    struct wire_oip_reply *reply = &scan->reply;
    bool named = false;
    if (reply->num_outputs == 0)
        reply->num_outputs = 1; /* outputs alone */
    for (size_t i = 0; i < reply->num_outputs; i++) {
        named = named || reply->outputs[i].weights;
        if (!wishes->binary_given[i])
            reply->outputs[i].binary = wishes->binary;
    }
    if (named && !wishes->need_given)
        scan->need_weights = ATTN_WEIGHTS_ALL;
    if (named == (scan->need_weights != ATTN_WEIGHTS_NONE))
        return true;
    wire_problem_set(problem, WIRE_E_OUTPUTS_DISAGREE, "need_weights",
                     named ? "outputs names attention_weights, but need_weights is "
                             "false; leave one of them out"
                           : "need_weights asks for weights that no output returns; name "
                             "attention_weights in outputs, or leave need_weights out");
    return false;
}

/* --- the whole --- */

static size_t cost_of(const struct wire_oip_scan *scan) {
    size_t bytes = 0;
    if (scan->reply.id != NULL)
        wire_json_cost(scan->reply.id, scan->reply.id_size, &bytes);
    size_add_saturating(&bytes, scan->reply.id_size);
    size_add_saturating(&bytes, sizeof scan->reply + (size_t)2 * ARENA_ALIGNMENT);
    for (size_t i = 0; i < WIRE_OIP_NUM_INPUTS; i++) {
        if (scan->inputs[i].type != NULL)
            size_add_saturating(&bytes, wire_oip_cost(&scan->inputs[i]));
    }
    return bytes;
}

static bool check_id(const struct wire_cursor *cursor, const struct wire_span *span,
                     struct wire_oip_reply *reply) {
    struct wire_place place = {.field = "id"};
    if (span->start == NULL)
        return true;
    struct wire_cursor there = cursor_at(cursor, span);
    if (*span->start != '"')
        return wire_refuse_value_type(&there, &place, "string");
    reply->id = span->start;
    reply->id_size = (size_t)(span->end - span->start);
    return true;
}

bool wire_oip_scan(const struct wire_input *input, struct wire_oip_scan *ret_scan,
                   struct wire_problem *ret_problem) {
    bool split = input->json_size != WIRE_NO_SIZE;
    const char *body = input->body;
    const char *end = body + (split ? input->json_size : input->size);
    struct wire_cursor cursor = {body, body, end, ret_problem};
    struct wire_oip_scan scan = {.need_weights = ATTN_WEIGHTS_NONE};
    struct wishes wishes = {0};
    struct inputs inputs = {scan.inputs, {NULL, 0}};
    struct outputs outputs = {&scan.reply, &wishes};
    struct wire_span members[NUM_MEMBERS];
    if (split)
        inputs.binary = (struct wire_oip_binary){(const unsigned char *)end,
                                                 input->size - input->json_size};
    if (!wire_body_open(&cursor, "inputs") ||
        !wire_object_scan(&cursor, NULL, 1, &request_keys, members) ||
        !wire_body_close(&cursor) || !check_id(&cursor, &members[ID], &scan.reply) ||
        !read_parameters(&cursor, &members[PARAMETERS], &scan, &wishes) ||
        !read_elements(&cursor, &members[INPUTS], "inputs", read_input, &inputs) ||
        !read_elements(&cursor, &members[OUTPUTS], "outputs", read_output, &outputs) ||
        !settle(&wishes, &scan, ret_problem))
        return false;
    if (inputs.binary.size > 0) {
        wire_problem_set(ret_problem, WIRE_E_BINARY_DATA, NULL,
                         "%zu bytes follow the last input's binary data; send just what "
                         "the inputs' binary_data_size say",
                         inputs.binary.size);
        return false;
    }
    scan.decode_bytes = cost_of(&scan);
    *ret_scan = scan;
    return true;
}

bool wire_oip_json_size(const char *value, size_t body_size, size_t *ret_json_size,
                        struct wire_problem *ret_problem) {
    size_t digits = strspn(value, "0123456789");
    if (digits == 0 || value[digits] != '\0') {
        wire_problem_set(ret_problem, WIRE_E_BINARY_DATA, HEADER,
                         HEADER " is '%.40s'; send the number of bytes of JSON", value);
        return false;
    }
    size_t size = digits <= SIZE_DIGITS ? (size_t)strtoull(value, NULL, 10) : SIZE_MAX;
    if (size > body_size) {
        wire_problem_set(ret_problem, WIRE_E_BINARY_DATA, HEADER,
                         HEADER " is %.40s, but the body has %zu bytes; send the number "
                                "of bytes of JSON",
                         value, body_size);
        return false;
    }
    if (size == 0) {
        wire_problem_set(ret_problem, WIRE_E_BINARY_DATA, HEADER,
                         HEADER " is 0, but a body without JSON has no shape; send JSON "
                                "that names the inputs in front of their data");
        return false;
    }
    *ret_json_size = size;
    return true;
}
