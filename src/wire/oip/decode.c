/* SPDX-License-Identifier: Apache-2.0 */
/* decode.c: what was found in a request, held against the model, and its numbers. */
#include "wire/json/value.h"
#include "wire/oip/numbers.h"
#include "wire/oip/scan.h"
#include "wire/tensor_check.h"

#include <stdio.h>

/* What is being decoded, and with what. */
struct decoder {
    struct wire_oip_reader reader;
    const struct wire_oip_scan *scan;
    const attn_model_info *info;
};

static bool refuse_rank(const struct decoder *decoder, const struct wire_oip_input *input,
                        const char *wanted) {
    char shape[128];
    wire_shape_print(shape, input->shape, input->rank);
    wire_problem_set(decoder->reader.problem, WIRE_E_WRONG_RANK, input->name,
                     "%s has shape %s; send it with shape %s", input->name, shape,
                     wanted);
    return false;
}

/* Sets what the shape says: everything but the rows. */
static bool take_shape(const struct decoder *decoder, const struct wire_oip_input *input,
                       struct wire_tensor *tensor) {
    const size_t *shape = input->shape + input->rank - 2; /* rows, width */
    tensor->batched = input->rank == WIRE_LEVELS_BATCHED;
    tensor->num_sequences = tensor->batched ? input->shape[0] : 1;
    tensor->num_rows = tensor->num_sequences * shape[0]; /* at most input->count */
    tensor->width = shape[1];
    tensor->lens =
        arena_alloc(decoder->reader.arena, tensor->num_sequences, sizeof *tensor->lens);
    if (tensor->lens == NULL) {
        wire_problem_set_no_memory(decoder->reader.problem);
        return false;
    }
    for (size_t b = 0; b < tensor->num_sequences; b++)
        tensor->lens[b] = shape[0];
    return true;
}

static bool take_queries(const struct decoder *decoder, struct wire_tensors *tensors) {
    const struct wire_oip_input *queries = &decoder->scan->inputs[WIRE_OIP_QUERIES];
    if (queries->type == NULL) {
        wire_problem_set(decoder->reader.problem, WIRE_E_MISSING_KEY, "queries",
                         "queries is required; send it with shape [B,Tq,%zu] or "
                         "[Tq,%zu]",
                         decoder->info->query_size, decoder->info->query_size);
        return false;
    }
    if (queries->rank < WIRE_LEVELS_UNBATCHED)
        return refuse_rank(decoder, queries, "[B,T,width] or [T,width]");
    return take_shape(decoder, queries, &tensors->queries);
}

/* Takes keys or values, which have a batch axis if queries have. */
static bool take_like_queries(const struct decoder *decoder, enum wire_oip_name name,
                              bool *ret_given, struct wire_tensor *tensor) {
    const struct wire_oip_input *inputs = decoder->scan->inputs, *input = &inputs[name];
    *ret_given = input->type != NULL;
    if (!*ret_given)
        return true;
    if (input->rank != inputs[WIRE_OIP_QUERIES].rank)
        return refuse_rank(decoder, input,
                           inputs[WIRE_OIP_QUERIES].rank == WIRE_LEVELS_BATCHED
                               ? "[B,T,width], as queries have a batch axis"
                               : "[T,width], as queries have no batch axis");
    return take_shape(decoder, input, tensor);
}

/* Checks all shapes, then reads the numbers. */
static bool read_tensors(const struct decoder *decoder, struct wire_tensors *tensors) {
    const struct wire_oip_input *inputs = decoder->scan->inputs;
    const attn_model_info *info = decoder->info;
    struct wire_problem *problem = decoder->reader.problem;
    if (!take_queries(decoder, tensors) || !wire_queries_check(tensors, info, problem) ||
        !take_like_queries(decoder, WIRE_OIP_KEYS, &tensors->keys_given,
                           &tensors->keys) ||
        !wire_keys_check(tensors, info, problem) ||
        !take_like_queries(decoder, WIRE_OIP_VALUES, &tensors->values_given,
                           &tensors->values) ||
        !wire_values_check(tensors, info, problem))
        return false;
    const float *queries, *keys, *values;
    queries = wire_oip_floats(&decoder->reader, &inputs[WIRE_OIP_QUERIES]);
    if (queries == NULL)
        return false;
    keys = tensors->keys_given ? wire_oip_floats(&decoder->reader, &inputs[WIRE_OIP_KEYS])
                               : queries;
    if (keys == NULL)
        return false;
    values = tensors->values_given
                 ? wire_oip_floats(&decoder->reader, &inputs[WIRE_OIP_VALUES])
                 : keys;
    tensors->queries.rows = queries;
    tensors->keys.rows = keys;
    tensors->values.rows = values;
    return values != NULL;
}

static bool read_lens(const struct decoder *decoder, const struct wire_tensors *tensors,
                      attn_request *batch) {
    const struct wire_oip_input *input = &decoder->scan->inputs[WIRE_OIP_VALID_LENS];
    const struct wire_tensor *queries = &tensors->queries;
    size_t sequences = queries->num_sequences, rows = queries->lens[0];
    size_t max = tensors->keys.lens[0];
    char wanted[96], limit[48];
    if (input->type == NULL)
        return true;
    bool whole = input->rank == 1 && input->shape[0] == sequences;
    bool per_query =
        queries->batched
            ? input->rank == 2 && input->shape[0] == sequences && input->shape[1] == rows
            : input->rank == 1 && input->shape[0] == rows;
    if (!whole && !per_query) {
        snprintf(wanted, sizeof wanted, queries->batched ? "[%zu] or [%zu,%zu]" : "[%zu]",
                 queries->batched ? sequences : rows, sequences, rows);
        return refuse_rank(decoder, input, wanted);
    }
    snprintf(limit, sizeof limit, "its sequence has %zu keys", max);
    batch->valid_lens_per_query = !whole;
    batch->valid_lens = wire_oip_integers(&decoder->reader, input, max, limit);
    return batch->valid_lens != NULL;
}

static bool read_head_mask(const struct decoder *decoder, attn_request *batch) {
    const struct wire_oip_input *input = &decoder->scan->inputs[WIRE_OIP_HEAD_MASK];
    char wanted[48];
    if (input->type == NULL)
        return true;
    if (input->rank != 1 || input->shape[0] != decoder->info->num_heads) {
        snprintf(wanted, sizeof wanted, "[%zu], one number for each head",
                 decoder->info->num_heads);
        return refuse_rank(decoder, input, wanted);
    }
    batch->head_mask = wire_oip_floats(&decoder->reader, input);
    return batch->head_mask != NULL;
}

/* Checks the id, and keeps it with the rest: the body may go before the reply. */
static bool keep_reply(const struct decoder *decoder,
                       const struct wire_oip_reply **ret_reply) {
    const struct wire_oip_reader *reader = &decoder->reader;
    const struct wire_oip_reply *found = &decoder->scan->reply;
    struct wire_oip_reply *kept = arena_alloc(reader->arena, 1, sizeof *kept);
    char *id = NULL;
    if (found->id != NULL) {
        struct wire_span span = {found->id, found->id + found->id_size, 0, 0};
        json_t *parsed = wire_json_load(reader->body, &span, reader->problem);
        if (parsed == NULL)
            return false;
        json_decref(parsed);
        id = arena_alloc(reader->arena, found->id_size, 1);
    }
    if (kept == NULL || (found->id != NULL && id == NULL)) {
        wire_problem_set_no_memory(reader->problem);
        return false;
    }
    *kept = *found;
    kept->id = id;
    if (id != NULL)
        memcpy(id, found->id, found->id_size);
    *ret_reply = kept;
    return true;
}

static bool decode(const struct decoder *decoder, const attn_model *model,
                   struct wire_request *ret_request) {
    const struct wire_oip_scan *scan = decoder->scan;
    struct wire_tensors tensors = {0};
    struct wire_request request = {.model = model};
    attn_request *batch = &request.batch;
    if (!keep_reply(decoder, &request.oip) || !read_tensors(decoder, &tensors) ||
        !read_lens(decoder, &tensors, batch) || !read_head_mask(decoder, batch))
        return false;
    batch->num_sequences = tensors.queries.num_sequences;
    batch->query_lens = tensors.queries.lens;
    batch->key_lens = tensors.keys.lens;
    batch->queries = tensors.queries.rows;
    batch->keys = tensors.keys.rows;
    batch->values = tensors.values.rows;
    batch->causal = scan->causal_given ? scan->causal : decoder->info->causal;
    batch->need_weights = scan->need_weights;
    request.batched = tensors.queries.batched;
    for (size_t i = 0; i < WIRE_OIP_NUM_INPUTS; i++)
        request.in_body = request.in_body || scan->inputs[i].bytes != NULL;
    *ret_request = request;
    return true;
}

bool wire_oip_read(const struct wire_input *input, struct wire_request *ret_request,
                   struct wire_problem *ret_problem) {
    struct wire_oip_scan scan;
    const struct decoder decoder = {{input->body, input->arena, ret_problem},
                                    &scan,
                                    attn_model_get_info(input->models[0])};
    return wire_oip_scan(input, &scan, ret_problem) &&
           input->reserve(input->context, scan.decode_bytes, ret_problem) &&
           decode(&decoder, input->models[0], ret_request);
}
