/* SPDX-License-Identifier: Apache-2.0 */
/* stored.c: completes a request from a layer of a capture. */
#include "wire/fields/readers.h"

#include "base/pace.h"
#include "base/size.h"

#include <stdio.h>
#include <string.h>

#define LAYERS_SHOWN 8 /* names that an error lists */

/* --- the layer --- */

/* Writes the first names of a capture's layers. */
static void print_names(const struct capture_layer *layers, size_t count, char *ret_text,
                        size_t size) {
    size_t used = 0;

    ret_text[0] = '\0';
    for (size_t i = 0; i < count && i <= LAYERS_SHOWN && used < size; i++)
        used +=
            (size_t)snprintf(ret_text + used, size - used, "%s%.40s", i > 0 ? ", " : "",
                             i < LAYERS_SHOWN ? layers[i].name : "...");
}

bool wire_stored_find(const struct capture_layers *capture, const char *name, size_t size,
                      const struct capture_layer **ret_layer,
                      struct wire_problem *ret_problem) {
    const struct capture_layer *layers = capture->items;
    size_t count = capture->count;
    char names[300];

    *ret_layer = layers;
    if (name == NULL && count == 1)
        return true;
    for (size_t i = 0; name != NULL && i < count; i++) {
        *ret_layer = &layers[i];
        if (strncmp(layers[i].name, name, size) == 0 && layers[i].name[size] == '\0')
            return true;
    }
    print_names(layers, count, names, sizeof names);
    if (name == NULL)
        return wire_problem_set(ret_problem, WIRE_E_UNKNOWN_LAYER, "layer",
                                "the capture has several layers, and layer is left out; "
                                "send one of %s",
                                names);
    return wire_problem_set(ret_problem, WIRE_E_UNKNOWN_LAYER, "layer",
                            "the capture has no layer '%.*s'; send one of %s",
                            size < 64 ? (int)size : 64, name, names);
}

void wire_stored_set_options(struct wire_decoder *decoder) {
    struct wire_given *given = &decoder->given;
    const struct capture_layer *layer = given->stored;

    decoder->request.batch.causal = layer->causal;
    decoder->request.batch.window = layer->window;
    decoder->request.batch.keys_are_queries = !layer->cross;
    given->has_scale = layer->has_scale;
    given->scale = layer->scale;
    given->softcap = layer->softcap;
    given->sinks = (struct wire_head_list){layer->sinks, layer->num_sinks};
    given->slopes = (struct wire_head_list){layer->slopes, layer->num_slopes};
}

/* --- tensors --- */

/* Whether the request has queries in the place of the stored ones. */
static bool sends_queries(const struct wire_decoder *decoder) {
    return wire_is_sent(decoder->source, WIRE_FIELD_QUERIES);
}

static bool check_query_rows(struct wire_decoder *decoder) {
    struct wire_given *given = &decoder->given;
    struct wire_problem *problem = decoder->source->problem;
    size_t count = given->stored->num_queries, *rows = given->query_rows;

    if (!wire_is_sent(decoder->source, WIRE_FIELD_QUERY_ROWS)) {
        rows[0] = 0;
        rows[1] = count;
    }
    if (rows[0] < rows[1] && rows[1] <= count)
        return true;
    wire_problem_set(problem, WIRE_E_OUT_OF_RANGE, "query_rows",
                     "query_rows is not a range of the %zu queries that are stored; send "
                     "[first, end] with first below end, and end at most %zu",
                     count, count);
    wire_range_print(problem->expected, 0, count);
    return false;
}

/* Returns a tensor of one sequence, whose rows are not set. */
static struct wire_tensor make_tensor(size_t *lens, size_t heads, size_t head_size) {
    return (struct wire_tensor){.num_sequences = 1,
                                .lens = lens,
                                .num_rows = *lens,
                                .width = heads * head_size,
                                .heads = heads};
}

/* Reserves what is allocated for queries: their numbers, positions, and two marks of
 * each; and a mark of each head. */
static bool reserve_queries(const struct wire_source *source,
                            const struct wire_given *given) {
    const struct capture_layer *layer = given->stored;
    size_t rows = given->query_rows[1] - given->query_rows[0];
    size_t bytes = layer->num_heads + (size_t)8 * ARENA_ALIGNMENT;

    size_add_mul_saturating(&bytes, rows, sizeof(size_t) + 2);
    if (strcmp(layer->queries_type->name, "F32") != 0)
        size_add_mul_saturating(&bytes, rows * layer->num_heads,
                                layer->packed.head_size * sizeof(float));
    return source->input->reserve(source->input->context, bytes, source->problem);
}

/* Finds which queries are meant, and reads them. */
static bool read_stored_queries(struct wire_decoder *decoder, size_t *lens) {
    const struct wire_source *source = decoder->source;
    struct wire_given *given = &decoder->given;
    struct wire_tensor *queries = &decoder->tensors.queries;
    const struct capture_layer *layer = given->stored;

    if (!wire_tensor_read_field(source, WIRE_FIELD_QUERIES, WIRE_LEVELS_UNBATCHED,
                                WIRE_LEVELS_UNBATCHED, queries))
        return false;
    if (sends_queries(decoder) && wire_is_sent(source, WIRE_FIELD_QUERY_ROWS))
        return wire_problem_set(source->problem, WIRE_E_UNKNOWN_KEY, "query_rows",
                                "query_rows chooses stored queries, but queries are "
                                "sent; remove one of them");
    if (sends_queries(decoder)) { /* of which nothing says what they are */
        decoder->request.batch.keys_are_queries &=
            wire_is_sent(source, WIRE_FIELD_SELF_ATTENTION);
        return true;
    }
    if (layer->num_queries == 0)
        return wire_problem_set(source->problem, WIRE_E_MISSING_KEY, "queries",
                                "layer '%.40s' is kept without queries; send some",
                                layer->name);
    if (!check_query_rows(decoder) || !reserve_queries(source, given))
        return false;
    *lens = given->query_rows[1] - given->query_rows[0];
    *queries = make_tensor(lens, layer->num_heads, layer->packed.head_size);
    size_t row_bytes = queries->width * (layer->queries_type->bits / 8);
    const struct wire_value stored = {.name = "queries",
                                      .count = queries->num_rows * queries->width,
                                      .dtype = layer->queries_type,
                                      .bytes = layer->queries +
                                               given->query_rows[0] * row_bytes};
    return wire_numbers_read(source, &stored, &queries->rows);
}

bool wire_stored_read(struct wire_decoder *decoder) {
    const struct attn_packed *packed = &decoder->given.stored->packed;
    struct wire_tensors *tensors = &decoder->tensors;
    size_t *lens = arena_alloc(decoder->source->input->arena, 2, sizeof *lens);

    if (lens == NULL)
        return wire_problem_set_no_memory(decoder->source->problem);
    if (!read_stored_queries(decoder, &lens[0]))
        return false;
    lens[1] = packed->num_keys;
    tensors->keys = make_tensor(&lens[1], packed->num_kv_heads, packed->head_size);
    tensors->values = make_tensor(&lens[1], packed->num_kv_heads, packed->value_size);
    tensors->keys.stored = tensors->values.stored = true;
    tensors->keys_sent = true;
    tensors->values_sent = packed->values != NULL;
    return true;
}

/* --- rows --- */

bool wire_stored_set_rows(struct wire_decoder *decoder) {
    const struct wire_given *given = &decoder->given;
    const struct capture_layer *layer = given->stored;
    attn_request *batch = &decoder->request.batch;
    size_t first = given->query_rows[0], count = given->query_rows[1] - first;

    batch->packed = &layer->packed;
    batch->key_positions = layer->key_positions;
    if (sends_queries(decoder))
        return true;
    if (decoder->source->input->targets_alone && layer->targets != NULL &&
        !wire_is_sent(decoder->source, WIRE_FIELD_TARGETS))
        batch->reduce.targets = layer->targets + 2 * first;
    if (decoder->source->input->targets_alone && batch->keys_are_queries &&
        count == layer->packed.num_keys)
        batch->reduce.token_ids = layer->token_ids;
    if (layer->positions != NULL) {
        batch->positions = layer->positions + first;
        return true;
    }
    /* Of fewer queries than keys, nothing says which positions a causal mask means. */
    if (count == layer->num_queries ||
        (batch->causal && layer->num_queries < layer->packed.num_keys))
        return true;

    size_t *positions =
        arena_alloc(decoder->source->input->arena, count, sizeof *positions);
    if (positions == NULL)
        return wire_problem_set_no_memory(decoder->source->problem);
    for (size_t i = 0; i < count; i++)
        positions[i] = first + i;
    pace_add(count);
    batch->positions = positions;
    return true;
}

bool wire_stored_set_bias(struct wire_decoder *decoder) {
    const struct wire_given *given = &decoder->given;
    const struct capture_layer *layer = given->stored;
    struct wire_problem *problem = decoder->source->problem;
    attn_request *batch = &decoder->request.batch;
    size_t rows = layer->bias_rows, heads = layer->bias_heads;
    size_t num_heads = attn_model_get_info(decoder->request.model)->num_heads;

    if (batch->bias != NULL || layer->bias == NULL)
        return true;
    if (decoder->source->input->targets_alone)
        return wire_problem_set(problem, WIRE_E_UNKNOWN_KEY, "layer",
                                "layer '%.40s' has a bias, and what heads do is found "
                                "without one; ask POST /v1/captures/NAME/attention for "
                                "entropy, received or target",
                                layer->name);
    if (sends_queries(decoder) && rows > 1)
        return wire_problem_set(problem, WIRE_E_MISSING_KEY, "bias",
                                "the stored bias has a row for each stored query, but "
                                "other queries are sent; send their bias, or zeros");
    if (heads > 1 && heads != num_heads)
        return wire_problem_set(problem, WIRE_E_SHAPE_MISMATCH, "bias",
                                "the stored bias has %zu heads, but queries have %zu; "
                                "send a bias, or queries of as many heads",
                                heads, num_heads);
    batch->bias_row_ld = rows > 1 ? layer->packed.num_keys : 0;
    batch->bias_head_ld = heads > 1 ? rows * layer->packed.num_keys : 0;
    batch->bias_sequence_ld = 0;
    batch->bias = layer->bias + given->query_rows[0] * batch->bias_row_ld;
    return true;
}
