/* SPDX-License-Identifier: Apache-2.0 */
/* table.c: the fields of a request, and how they are read. */
#include "wire/fields/fields.h"

#include "wire/fields/readers.h"

#include <stddef.h>

/* Which requests have a field. */
#define MODEL  WIRE_TO_MODEL
#define GIVEN  (WIRE_TO_GIVEN | WIRE_TO_STORED)
#define SENT   (WIRE_TO_MODEL | WIRE_TO_GIVEN)
#define ALL    (MODEL | GIVEN)
#define INPUT  WIRE_OIP_INPUT
#define PARAM  WIRE_OIP_PARAMETER
#define EITHER (INPUT | PARAM)

#define OPTIONS    WIRE_PHASE_OPTIONS
#define LENS       WIRE_PHASE_LENS
#define REDUCTIONS WIRE_PHASE_REDUCTIONS
#define TARGETS    WIRE_PHASE_TARGETS
#define SELECTIONS WIRE_PHASE_SELECTIONS
#define MASKS      WIRE_PHASE_MASKS

#define DAY_US 86400000000

#define TO(member) offsetof(struct wire_decoder, member)
#define ID(name)   .id = WIRE_FIELD_##name

const struct wire_field wire_fields[WIRE_NUM_FIELDS] = {
    {ID(MODEL), "model", MODEL, WIRE_OPTION},
    {ID(QUERIES), "queries", ALL | INPUT, WIRE_TENSOR},
    {ID(KEYS), "keys", SENT | INPUT, WIRE_TENSOR},
    {ID(VALUES), "values", SENT | INPUT, WIRE_TENSOR},
    {ID(QUERY_LENS), "query_lens", SENT, WIRE_LENS, LENS, wire_check_lens},
    {ID(KEY_LENS), "key_lens", SENT, WIRE_LENS, LENS, wire_check_lens},
    {ID(VALID_LENS), "valid_lens", ALL | INPUT, WIRE_INTEGERS, MASKS,
     wire_read_valid_lens},
    {ID(POSITIONS), "positions", ALL | INPUT, WIRE_INTEGERS, MASKS, wire_read_positions},
    {ID(KEY_POSITIONS), "key_positions", ALL | INPUT, WIRE_INTEGERS, MASKS,
     wire_read_positions},
    {ID(CAUSAL), "causal", ALL | PARAM, WIRE_OPTION, OPTIONS, wire_read_bool,
     TO(request.batch.causal)},
    {ID(PREFIX_LENS), "prefix_lens", ALL | INPUT, WIRE_INTEGERS, MASKS,
     wire_read_prefix_lens},
    {ID(WINDOW), "window", ALL | PARAM, WIRE_OPTION, OPTIONS, wire_read_integer,
     TO(request.batch.window), 0, ATTN_POSITION_MAX,
     "it is a number of positions, of which 0 means no window"},
    {ID(NEED), "need", ALL, WIRE_OPTION, OPTIONS, wire_read_need},
    {ID(NEED_WEIGHTS), "need_weights", MODEL | PARAM, WIRE_OPTION, OPTIONS,
     wire_read_need_weights, TO(request.batch.need_weights)},
    {ID(HEAD_MASK), "head_mask", MODEL | INPUT, WIRE_FLOATS, OPTIONS,
     wire_read_head_mask},
    {ID(WEIGHTS_HEADS), "weights_heads", ALL | EITHER, WIRE_INTEGERS, SELECTIONS,
     wire_read_selection},
    {ID(WEIGHTS_QUERIES), "weights_queries", ALL | EITHER, WIRE_INTEGERS, SELECTIONS,
     wire_read_selection},
    {ID(BINARY_OUTPUT), "binary_data_output", PARAM, WIRE_OPTION},
    {ID(CODEC), "content_type", PARAM, WIRE_OPTION},
    {ID(TIMEOUT_MS), "timeout_ms", ALL, WIRE_OPTION, OPTIONS, wire_read_timeout_ms,
     TO(request.timeout_ns)},
    {ID(TIMEOUT), "timeout", PARAM, WIRE_OPTION, OPTIONS, wire_read_timeout,
     TO(request.timeout_ns), 0, DAY_US, "it is a number of microseconds, at most a day"},
    {ID(PRIORITY), "priority", ALL | PARAM, WIRE_OPTION, OPTIONS, wire_read_integer,
     TO(request.priority), 0, INT32_MAX,
     "it is a place in the order, of which 1 is first"},
    {ID(SPANS), "spans", ALL, WIRE_INTEGERS, REDUCTIONS, wire_read_spans},
    {ID(TOP_K), "top_k", ALL, WIRE_OPTION, REDUCTIONS, wire_read_integer,
     TO(request.batch.reduce.top_k), 1, INT32_MAX, "it is a number of keys, at least 1"},
    {ID(TOP_IN), "top_in", ALL, WIRE_INTEGERS, REDUCTIONS, wire_read_top_in},
    {ID(TARGETS), "targets", ALL, WIRE_INTEGERS, TARGETS, wire_read_targets},
    {ID(TOKEN_IDS), "token_ids", SENT, WIRE_INTEGERS, TARGETS, wire_read_token_ids},
    {ID(BLOCK), "block", ALL, WIRE_OPTION, TARGETS, wire_read_integer,
     TO(request.batch.reduce.block), 1, INT32_MAX,
     "it is a number of queries and keys, at least 1"},
    {ID(ROW_WEIGHTS), "row_weights", ALL, WIRE_FLOATS, TARGETS, wire_read_row_weights},
    {ID(NUM_HEADS), "num_heads", GIVEN, WIRE_OPTION, OPTIONS, wire_read_integer,
     TO(given.num_heads), 1, INT32_MAX, "it is a number of heads, at least 1"},
    {ID(NUM_KV_HEADS), "num_kv_heads", WIRE_TO_GIVEN, WIRE_OPTION, OPTIONS,
     wire_read_integer, TO(given.num_kv_heads), 1, INT32_MAX,
     "it is a number of heads, at least 1"},
    {ID(SCALE), "scale", GIVEN, WIRE_OPTION, OPTIONS, wire_read_number, TO(given.scale)},
    {ID(SOFTCAP), "softcap", GIVEN, WIRE_OPTION, OPTIONS, wire_read_softcap,
     TO(given.softcap)},
    {ID(SINKS), "sinks", GIVEN, WIRE_FLOATS, OPTIONS, wire_read_head_numbers,
     TO(given.sinks)},
    {ID(SLOPES), "slopes", GIVEN, WIRE_FLOATS, OPTIONS, wire_read_head_numbers,
     TO(given.slopes)},
    {ID(BIAS), "bias", ALL | INPUT, WIRE_FLOATS, WIRE_PHASE_BIAS, wire_read_bias},
    {ID(ATTN_MASK), "attn_mask", ALL | INPUT, WIRE_MASK, WIRE_PHASE_BIAS, wire_read_bias},
    {ID(LAYER), "layer", WIRE_TO_STORED, WIRE_OPTION},
    {ID(QUERY_ROWS), "query_rows", WIRE_TO_STORED, WIRE_INTEGERS, OPTIONS,
     wire_read_query_rows},
    {ID(SELF_ATTENTION), "self_attention", GIVEN, WIRE_OPTION, OPTIONS, wire_read_bool,
     TO(request.batch.keys_are_queries)},
};

/* Whether a field is among those of `requests` and `kinds`. */
static bool is_among(const struct wire_field *field, unsigned requests, unsigned kinds) {
    return (field->requests & requests) != 0 && (field->kind & kinds) != 0;
}

const struct wire_field *wire_field_find(const char *name, unsigned requests,
                                         unsigned kinds) {
    for (size_t i = 0; i < WIRE_NUM_FIELDS; i++) {
        if (is_among(&wire_fields[i], requests, kinds) &&
            strcmp(wire_fields[i].name, name) == 0)
            return &wire_fields[i];
    }
    return NULL;
}

void wire_fields_list(unsigned requests, unsigned kinds, char *ret_text, size_t size) {
    const char *names[WIRE_NUM_FIELDS];
    size_t count = 0;

    for (size_t i = 0; i < WIRE_NUM_FIELDS; i++) {
        if (is_among(&wire_fields[i], requests, kinds))
            names[count++] = wire_fields[i].name;
    }
    wire_names_print(ret_text, size, names, count, "and");
}

void wire_fields_set_keys(unsigned requests, unsigned kinds, struct wire_keys *ret_keys) {
    ret_keys->count = WIRE_NUM_FIELDS;
    for (size_t i = 0; i < WIRE_NUM_FIELDS; i++)
        ret_keys->names[i] =
            is_among(&wire_fields[i], requests, kinds) ? wire_fields[i].name : NULL;
}

void wire_fields_take(const struct wire_span members[WIRE_NUM_FIELDS],
                      struct wire_source *source) {
    for (size_t i = 0; i < WIRE_NUM_FIELDS; i++) {
        if (members[i].start != NULL)
            wire_source_set(source, &wire_fields[i])->text = members[i];
    }
}
