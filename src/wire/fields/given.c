/* SPDX-License-Identifier: Apache-2.0 */
/* given.c: sizes and options of a request without a model. */
#include "wire/fields/readers.h"

#include "base/error.h"
#include "base/pace.h"
#include "math/dot_product.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define POSITIONS_SHOWN 6 /* that an error lists */

/* --- sizes --- */

/* Returns the heads of a tensor: of its axis, or as the request says. */
static size_t heads_of(const struct wire_tensor *tensor, size_t said) {
    return tensor->heads > 0 ? tensor->heads : said;
}

/* Checks that the rows of a tensor have `heads` heads side by side. */
static bool check_side_by_side(const struct wire_tensor *tensor, const char *field,
                               const char *option, size_t heads,
                               struct wire_problem *ret_problem) {
    char divisors[DIVISORS_TEXT_SIZE];
    if (heads > 0 && tensor->width % heads == 0)
        return true;
    divisors_print(tensor->width, divisors);
    wire_problem_set(ret_problem, WIRE_E_SHAPE_MISMATCH, field,
                     "%s are %zu wide, which is not a multiple of %s %zu, but of %s; "
                     "send the heads side by side, or leave num_heads out and send them "
                     "as an axis",
                     field, tensor->width, option, heads, divisors);
    snprintf(ret_problem->got, sizeof ret_problem->got, "%zu", tensor->width);
    return false;
}

/* Checks the heads of queries and keys, and finds the sizes. */
static bool find_sizes(const struct wire_given *given, const struct wire_tensors *tensors,
                       attn_dot_product *options, struct wire_problem *ret_problem) {
    const struct wire_tensor *queries = &tensors->queries, *keys = &tensors->keys;
    size_t said = given->num_kv_heads > 0 ? given->num_kv_heads : given->num_heads;
    const char *option = given->num_kv_heads > 0 ? "num_kv_heads" : "num_heads";
    size_t heads = heads_of(queries, given->num_heads), kv_heads = heads_of(keys, said);

    if (kv_heads == 0 || heads % kv_heads != 0)
        return wire_problem_set(ret_problem, WIRE_E_SHAPE_MISMATCH,
                                given->num_kv_heads > 0 ? "num_kv_heads" : "keys",
                                "queries have %zu head%s and keys have %zu; the heads of "
                                "the queries must be a multiple of those of the keys "
                                "(heads follow tokens: [B, T, H, D], so transpose "
                                "[B, H, T, D])",
                                heads, plural_of(heads), kv_heads);
    if (!check_side_by_side(queries, "queries", "num_heads", heads, ret_problem) ||
        !check_side_by_side(keys, "keys", option, kv_heads, ret_problem))
        return false;
    options->num_heads = heads;
    options->num_kv_heads = kv_heads;
    options->head_size = queries->width / heads;
    options->value_size = options->head_size;
    if (keys->width / kv_heads == options->head_size)
        return true;
    return wire_problem_set(ret_problem, WIRE_E_SHAPE_MISMATCH, "keys",
                            "heads of keys have size %zu, but those of queries %zu; send "
                            "keys of the same head size",
                            keys->width / kv_heads, options->head_size);
}

/* Finds the size of the values' heads, of which there are as many as of the keys. */
static bool find_value_size(const struct wire_tensors *tensors, attn_dot_product *options,
                            struct wire_problem *ret_problem) {
    const struct wire_tensor *values = &tensors->values;
    size_t kv_heads = options->num_kv_heads, heads = heads_of(values, kv_heads);

    if (!tensors->values_sent)
        return true;
    if (heads != kv_heads)
        return wire_problem_set(ret_problem, WIRE_E_SHAPE_MISMATCH, "values",
                                "values have %zu head%s, but keys have %zu; send as many "
                                "heads of values as of keys",
                                heads, plural_of(heads), kv_heads);
    if (!check_side_by_side(values, "values", "the keys' heads,", kv_heads, ret_problem))
        return false;
    options->value_size = values->width / kv_heads;
    return true;
}

/* Checks a list that has a number for each head. */
static bool check_head_list(const struct wire_head_list *list, const char *field,
                            size_t heads, struct wire_problem *ret_problem) {
    size_t count = list->count;
    if (list->numbers == NULL)
        return true;
    size_t i = pace_finite_end(list->numbers, count);
    const struct wire_place place = {field, 1, {i}, 0, 0};
    if (i < count)
        return wire_refuse_not_finite(&place, list->numbers[i], ret_problem);
    if (count == heads)
        return true;
    wire_problem_set(ret_problem, WIRE_E_SHAPE_MISMATCH, field,
                     "%s has %zu number%s, but queries have %zu head%s; send one number "
                     "for each head",
                     field, count, plural_of(count), heads, plural_of(heads));
    wire_shape_print(ret_problem->expected, &heads, 1);
    wire_shape_print(ret_problem->got, &count, 1);
    return false;
}

/* --- tensors --- */

static bool refuse_missing_tensor(const struct wire_source *source, const char *field) {
    char rows = field[0] == 'q' ? 'q' : 'k';
    if (wire_has_heads_axis(source))
        return wire_problem_set(source->problem, WIRE_E_MISSING_KEY, field,
                                "%s is required; send it with shape [B, T%c, heads, head "
                                "size] or [T%c, heads, head size]",
                                field, rows, rows);
    return wire_problem_set(source->problem, WIRE_E_MISSING_KEY, field,
                            "%s is required; send it with shape [B, T%c, width] or [T%c, "
                            "width], its heads side by side",
                            field, rows, rows);
}

/* Says how heads may lie, where queries lack their axis. */
static bool explain_rank(const struct wire_source *source) {
    struct wire_problem *problem = source->problem;
    size_t used = strlen(problem->detail);
    if (wire_has_heads_axis(source) && problem->error == WIRE_E_WRONG_RANK &&
        strstr(problem->detail, "num_heads") == NULL)
        snprintf(problem->detail + used, sizeof problem->detail - used,
                 ", the last two for heads and head size; or send num_heads where heads "
                 "lie side by side");
    return false;
}

bool wire_given_read(struct wire_decoder *decoder) {
    const struct wire_source *source = decoder->source;
    const struct wire_given *given = &decoder->given;
    struct wire_tensors *tensors = &decoder->tensors;

    if (given->num_kv_heads > 0 && given->num_heads == 0)
        return wire_problem_set(source->problem, WIRE_E_MISSING_KEY, "num_heads",
                                "num_kv_heads was sent without num_heads; send both, or "
                                "none where heads are an axis");
    if (!wire_tensor_read_field(source, WIRE_FIELD_QUERIES, WIRE_LEVELS_UNBATCHED,
                                WIRE_LEVELS_BATCHED, &tensors->queries))
        return explain_rank(source);
    if (!wire_is_sent(source, WIRE_FIELD_QUERIES))
        return refuse_missing_tensor(source, "queries");

    size_t levels =
        tensors->queries.batched ? WIRE_LEVELS_BATCHED : WIRE_LEVELS_UNBATCHED;
    if (!wire_tensor_read_field(source, WIRE_FIELD_KEYS, levels, levels, &tensors->keys))
        return false;
    if (!tensors->keys_sent)
        return refuse_missing_tensor(source, "keys");
    return wire_tensor_read_field(source, WIRE_FIELD_VALUES, levels, levels,
                                  &tensors->values) &&
           wire_tensors_check_lens(decoder);
}

/* --- the request --- */

/* Sets what the reply has. */
static bool apply_need(struct wire_decoder *decoder) {
    const struct wire_source *source = decoder->source;
    bool *needs = decoder->needs;
    bool has_values = decoder->tensors.values_sent;

    if (!wire_is_sent(source, WIRE_FIELD_NEED))
        needs[has_values ? RESULT_HEADS : RESULT_WEIGHTS] = true;
    if (needs[RESULT_HEADS] && !has_values)
        return wire_problem_set(source->problem, WIRE_E_MISSING_KEY, "values",
                                "need has heads, which are sums of values; send values, "
                                "or leave heads out");
    wire_need_apply(decoder);
    return true;
}

bool wire_given_apply(struct wire_decoder *decoder) {
    const struct wire_given *given = &decoder->given;
    const struct wire_tensors *tensors = &decoder->tensors;
    struct wire_problem *problem = decoder->source->problem;
    attn_dot_product options = {.sinks = given->sinks.numbers,
                                .slopes = given->slopes.numbers,
                                .softcap = given->softcap};
    attn_error error;

    if (!find_sizes(given, tensors, &options, problem) ||
        !find_value_size(tensors, &options, problem) ||
        !check_head_list(&given->sinks, "sinks", options.num_heads, problem) ||
        !check_head_list(&given->slopes, "slopes", options.num_heads, problem) ||
        !apply_need(decoder))
        return false;
    if (given->has_scale && given->scale == 0)
        return wire_problem_set(problem, WIRE_E_OUT_OF_RANGE, "scale",
                                "scale is 0, which makes all scores alike; leave it out "
                                "for 1/sqrt(D), or send 1 where queries are scaled");
    options.scale = given->has_scale ? given->scale : 1 / sqrt((double)options.head_size);

    attn_model *model = arena_alloc(decoder->source->input->arena, 1, sizeof *model);
    if (model == NULL)
        return wire_problem_set_no_memory(problem);
    if (dot_product_init(&options, model, &error) != ATTN_OK)
        return wire_problem_set(problem, WIRE_E_REQUEST_TOO_LARGE, "queries",
                                "%s; send fewer or smaller heads", error.text);
    decoder->request.model = model;
    wire_request_set_tensors(decoder);
    return true;
}

/* --- masks --- */

/* Writes the positions of the last `count` of `keys` tokens as a list of JSON. */
static void print_positions(char *ret_text, size_t size, size_t count, size_t keys) {
    size_t used = 0;

    for (size_t i = 0; i < count && used < size; i++) {
        const char *before = i == 0 ? "[" : ",";
        if (count > POSITIONS_SHOWN && i == 2) {
            used += (size_t)snprintf(ret_text + used, size - used, ",...");
            i = count - 1;
        }
        used += (size_t)snprintf(ret_text + used, size - used, "%s%zu", before,
                                 keys - count + i);
    }
    if (used < size)
        snprintf(ret_text + used, size - used, "]");
}

bool wire_given_check_causal(const struct wire_decoder *decoder) {
    struct wire_problem *problem = decoder->source->problem;
    const attn_request *batch = &decoder->request.batch;
    char positions[96];

    for (size_t b = 0;
         batch->causal && batch->positions == NULL && b < batch->num_sequences; b++) {
        size_t queries = batch->query_lens[b], keys = batch->key_lens[b];
        pace_add(1);
        if (queries == keys || (queries > keys && batch->key_positions != NULL))
            continue;
        if (queries > keys)
            return wire_problem_set(
                problem, WIRE_E_MISSING_KEY, "positions",
                "a causal mask over %zu queries and %zu key%s needs positions; if these "
                "are heads, as in [B, H, T, D] of torch, send [B, T, H, D]: "
                "q.transpose(1, 2)",
                queries, keys, plural_of(keys));
        print_positions(positions, sizeof positions, queries, keys);
        return wire_problem_set(
            problem, WIRE_E_MISSING_KEY, "positions",
            "a causal mask over %zu quer%s and %zu keys needs positions: without them, "
            "the last query would attend to the first %zu key%s only; if the queries are "
            "the last tokens, send \"positions\": %s",
            queries, queries == 1 ? "y" : "ies", keys, queries, plural_of(queries),
            positions);
    }
    return true;
}
