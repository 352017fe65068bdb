/* SPDX-License-Identifier: Apache-2.0 */
/* decode.c: decodes a request of the Open Inference Protocol: checks the inputs that
 * scan.c has found against the model, and reads their numbers. */
#include "base/pace.h"
#include "wire/checks/tensor_check.h"
#include "wire/json/object.h"
#include "wire/oip/numbers.h"
#include "wire/oip/scan.h"
#include "wire/oip/selection.h"
#include "wire/options.h"

#include <stdio.h>

/* A request that is being decoded. */
struct oip_decoder {
    struct wire_oip_reader reader;
    const struct wire_oip_scan *scan;
    const attn_model_info *info;
};

static const enum wire_oip_name tensor_inputs[] = {
    [WIRE_TENSOR_QUERIES] = WIRE_OIP_QUERIES,
    [WIRE_TENSOR_KEYS] = WIRE_OIP_KEYS,
    [WIRE_TENSOR_VALUES] = WIRE_OIP_VALUES,
};

/* Makes a tensor of an input's shape, without its rows. */
static bool make_shape(const struct oip_decoder *decoder,
                       const struct wire_oip_input *input, struct wire_tensor *tensor) {
    const size_t *shape = input->shape + input->rank - 2; /* rows, width */

    tensor->batched = input->rank == WIRE_LEVELS_BATCHED;
    tensor->num_sequences = tensor->batched ? input->shape[0] : 1;
    tensor->num_rows = tensor->num_sequences * shape[0]; /* at most input->count */
    tensor->width = shape[1];

    tensor->lens =
        arena_alloc(decoder->reader.arena, tensor->num_sequences, sizeof *tensor->lens);
    if (tensor->lens == NULL)
        return wire_problem_set_no_memory(decoder->reader.problem);
    for (size_t b = 0; b < tensor->num_sequences; b++) {
        pace_add(1);
        tensor->lens[b] = shape[0];
    }
    return true;
}

/* wire_tensor_source of a request, whose decoder is the context. Does not read the
 * rows. */
static bool oip_read_shape(const void *context, enum wire_tensor_id id, size_t min_levels,
                           size_t max_levels, bool *ret_given,
                           struct wire_tensor *ret_tensor) {
    const struct oip_decoder *decoder = context;
    const struct wire_oip_input *input = &decoder->scan->inputs[tensor_inputs[id]];

    *ret_given = input->type != NULL;
    if (!*ret_given)
        return true;
    if (input->rank >= min_levels && input->rank <= max_levels)
        return make_shape(decoder, input, ret_tensor);

    if (min_levels != max_levels)
        return wire_oip_refuse_shape(&decoder->reader, input, "[B,T,width] or [T,width]");
    return wire_oip_refuse_shape(&decoder->reader, input,
                                 min_levels == WIRE_LEVELS_BATCHED
                                     ? "[B,T,width], as queries have a batch axis"
                                     : "[T,width], as queries have no batch axis");
}

/* Reads the rows of a tensor whose shape was checked; the rows `before` stand in for one
 * that was left out. */
static bool oip_read_rows(const struct oip_decoder *decoder, enum wire_tensor_id id,
                          const float *before, const float **ret_rows) {
    const struct wire_oip_input *input = &decoder->scan->inputs[tensor_inputs[id]];
    *ret_rows =
        input->type != NULL ? wire_oip_read_floats(&decoder->reader, input) : before;
    return *ret_rows != NULL;
}

/* Checks all shapes before it reads numbers. */
static bool oip_read_tensors(const struct oip_decoder *decoder,
                             struct wire_tensors *ret_tensors) {
    struct wire_tensors tensors;

    if (!wire_tensors_read(oip_read_shape, decoder, decoder->info, &tensors,
                           decoder->reader.problem) ||
        !oip_read_rows(decoder, WIRE_TENSOR_QUERIES, NULL, &tensors.queries.rows) ||
        !oip_read_rows(decoder, WIRE_TENSOR_KEYS, tensors.queries.rows,
                       &tensors.keys.rows) ||
        !oip_read_rows(decoder, WIRE_TENSOR_VALUES, tensors.keys.rows,
                       &tensors.values.rows))
        return false;
    *ret_tensors = tensors;
    return true;
}

static bool oip_read_lens(const struct oip_decoder *decoder,
                          const struct wire_tensors *tensors, attn_request *batch) {
    const struct wire_oip_input *input = &decoder->scan->inputs[WIRE_OIP_VALID_LENS];
    const struct wire_tensor *queries = &tensors->queries;
    size_t sequences = queries->num_sequences, rows = queries->lens[0];
    size_t max = tensors->keys.lens[0];
    char wanted[96], limit[WIRE_LENS_LIMIT_MAX];
    if (input->type == NULL)
        return true;

    bool per_sequence = input->rank == 1 && input->shape[0] == sequences, per_query;
    if (queries->batched) {
        per_query =
            input->rank == 2 && input->shape[0] == sequences && input->shape[1] == rows;
        snprintf(wanted, sizeof wanted, "[%zu] or [%zu,%zu]", sequences, sequences, rows);
    } else {
        per_query = input->rank == 1 && input->shape[0] == rows;
        snprintf(wanted, sizeof wanted, "[%zu]", rows);
    }
    if (!per_sequence && !per_query)
        return wire_oip_refuse_shape(&decoder->reader, input, wanted);

    wire_lens_limit(limit, max);
    batch->valid_lens_per_query = !per_sequence;
    batch->valid_lens = wire_oip_read_integers(&decoder->reader, input, 0, max, limit);
    return batch->valid_lens != NULL;
}

static bool refuse_positions_shape(const struct wire_oip_reader *reader,
                                   const struct wire_oip_input *input,
                                   const struct wire_positions *positions) {
    const struct wire_tensor *rows = positions->rows;
    size_t sequences = rows->num_sequences, len = rows->lens[0];
    bool sections = positions->sections;
    char wanted[128], axes[48] = "";

    if (sections && rows->batched)
        snprintf(axes, sizeof axes, ", or [%zu,%d,%zu]", sequences, ATTN_AXES, len);
    else if (sections)
        snprintf(axes, sizeof axes, ", or [%d,%zu]", ATTN_AXES, len);
    if (rows->batched)
        snprintf(wanted, sizeof wanted, "[%zu,%zu], or [%zu] for all sequences%s",
                 sequences, len, len, axes);
    else
        snprintf(wanted, sizeof wanted, "[%zu]%s", len, axes);
    return wire_oip_refuse_shape(reader, input, wanted);
}

/* wire_positions_source of a request, whose decoder is the context. */
static bool oip_read_positions(const void *context,
                               const struct wire_positions *positions,
                               struct wire_position_list *ret_list) {
    const struct oip_decoder *decoder = context;
    const struct wire_oip_reader *reader = &decoder->reader;
    const struct wire_tensor *rows = positions->rows;
    const struct wire_oip_input *input =
        &decoder->scan
             ->inputs[positions->id == WIRE_TENSOR_QUERIES ? WIRE_OIP_POSITIONS
                                                           : WIRE_OIP_KEY_POSITIONS];
    /* Without a batch axis, shapes are without the first number. */
    const size_t shape[] = {rows->num_sequences, ATTN_AXES, rows->lens[0]};
    size_t first = !rows->batched, len = rows->lens[0];
    if (input->type == NULL)
        return true;

    bool shared = input->rank == 1 && input->shape[0] == len;
    bool each = rows->batched && input->rank == 2 && input->shape[0] == shape[0] &&
                input->shape[1] == len;
    bool axes = input->rank == 3 - first;
    ret_list->axes = axes;
    if (!shared && !each &&
        !(axes && positions->sections &&
          memcmp(input->shape, shape + first, input->rank * sizeof *shape) == 0))
        return refuse_positions_shape(reader, input, positions);

    const size_t *list =
        wire_oip_read_integers(reader, input, 0, ATTN_POSITION_MAX, WIRE_POSITION_LIMIT);
    if (list == NULL)
        return false;
    *ret_list = (struct wire_position_list){list, axes};
    return !shared || wire_positions_repeat(positions, list, reader->arena, ret_list,
                                            reader->problem);
}

static bool oip_read_head_mask(const struct oip_decoder *decoder, attn_request *batch) {
    const struct wire_oip_input *input = &decoder->scan->inputs[WIRE_OIP_HEAD_MASK];
    char wanted[48];
    if (input->type == NULL)
        return true;

    if (input->rank != 1 || input->shape[0] != decoder->info->num_heads) {
        snprintf(wanted, sizeof wanted, "[%zu], one number for each head",
                 decoder->info->num_heads);
        return wire_oip_refuse_shape(&decoder->reader, input, wanted);
    }
    batch->head_mask = wire_oip_read_floats(&decoder->reader, input);
    return batch->head_mask != NULL;
}

/* Sets the options of the batch. */
static void apply_options(const struct oip_decoder *decoder, attn_request *batch) {
    const struct wire_oip_scan *scan = decoder->scan;
    struct wire_need need = {0};
    for (size_t i = 0; i < scan->reply.num_outputs; i++)
        need.has[scan->reply.outputs[i].which] = true;

    batch->causal = scan->causal_given ? scan->causal : decoder->info->mask.causal;
    batch->window = scan->window_given ? scan->window : decoder->info->mask.window;
    batch->chunk = decoder->info->mask.chunk;
    batch->need_weights = scan->need_weights;
    wire_need_apply(&need, batch);
}

/* Checks the id, and copies it with the rest, since the body may be released before the
 * reply is written. */
static bool keep_reply(const struct oip_decoder *decoder,
                       const struct wire_oip_reply **ret_reply) {
    const struct wire_oip_reader *reader = &decoder->reader;
    const struct wire_oip_reply *found = &decoder->scan->reply;
    struct wire_oip_reply *kept = arena_alloc(reader->arena, 1, sizeof *kept);
    char *id = NULL;

    if (found->id != NULL) {
        struct wire_span span = {found->id, found->id + found->id_size, 0, 0};
        const struct wire_cursor cursor = {.body = reader->body,
                                           .problem = reader->problem};
        json_t *parsed = wire_string_load(&cursor, &span);
        if (parsed == NULL)
            return false;
        json_decref(parsed);
        id = arena_alloc(reader->arena, found->id_size, 1);
    }
    if (kept == NULL || (found->id != NULL && id == NULL))
        return wire_problem_set_no_memory(reader->problem);

    *kept = *found;
    kept->id = id;
    if (id != NULL)
        memcpy(id, found->id, found->id_size);
    *ret_reply = kept;
    return true;
}

static bool oip_decode(const struct oip_decoder *decoder, const attn_model *model,
                       struct wire_request *ret_request) {
    const struct wire_oip_scan *scan = decoder->scan;
    struct wire_tensors tensors;
    struct wire_request request = {.model = model,
                                   .timeout_ns = decoder->scan->timeout_ns,
                                   .priority = decoder->scan->priority};
    attn_request *batch = &request.batch;
    if (!keep_reply(decoder, &request.oip) || !oip_read_tensors(decoder, &tensors) ||
        !oip_read_lens(decoder, &tensors, batch) ||
        !wire_positions_read(oip_read_positions, decoder, &tensors, decoder->info, batch,
                             decoder->reader.problem) ||
        !oip_read_head_mask(decoder, batch))
        return false;

    wire_request_set_tensors(&tensors, &request);
    apply_options(decoder, batch);
    if (!wire_valid_lens_check(batch, decoder->reader.problem) ||
        !wire_oip_selection_read(&decoder->reader, scan, &request))
        return false;
    for (size_t i = 0; i < WIRE_OIP_NUM_INPUTS; i++)
        request.in_body = request.in_body || scan->inputs[i].bytes != NULL;
    if (!wire_finite_check(&tensors, &request, decoder->reader.problem))
        return false;
    *ret_request = request;
    return true;
}

bool wire_oip_read(const struct wire_input *input, struct wire_request *ret_request,
                   struct wire_problem *ret_problem) {
    struct wire_oip_scan scan;
    const struct oip_decoder decoder = {{input->body, input->arena, ret_problem},
                                        &scan,
                                        attn_model_get_info(input->models[0])};
    return wire_oip_scan(input, &scan, ret_problem) &&
           input->reserve(input->context, scan.decode_bytes, ret_problem) &&
           oip_decode(&decoder, input->models[0], ret_request);
}
