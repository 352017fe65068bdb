/* SPDX-License-Identifier: Apache-2.0 */
/* reply.c: describes the tensors of a reply, and finds numbers that are not finite. */
#include "wire/reply.h"

#include "base/pace.h"
#include "base/size.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Of what a reply has of one sequence. */
#define SEQUENCE_STEPS 8

/* A tensor of a reply. */
struct result {
    const char *name;
    bool wanted;
    const void *numbers; /* NULL: not computed yet */
};

static struct result find_result(const attn_request *batch, const attn_result *result,
                                 enum wire_result which) {
    const attn_reductions *reduce = &batch->reduce;
    const struct result results[WIRE_NUM_RESULTS] = {
        [WIRE_RESULT_OUTPUTS] = {"outputs", !batch->omit_outputs, result->outputs},
        [WIRE_RESULT_WEIGHTS] = {"attention_weights",
                                 batch->need_weights != ATTN_WEIGHTS_NONE,
                                 result->weights},
        [WIRE_RESULT_HEADS] = {"heads", batch->need_heads, result->heads},
        [WIRE_RESULT_LSE] = {"lse", batch->need_lse, result->lse},
        [WIRE_RESULT_SCORES] = {"scores", reduce->scores, result->scores},
        [WIRE_RESULT_SPAN_WEIGHTS] = {"span_weights", reduce->spans != NULL,
                                      result->span_weights},
        [WIRE_RESULT_TOP_KEYS] = {"top_keys", reduce->top_k > 0, result->top_keys},
        [WIRE_RESULT_TOP_WEIGHTS] = {"top_weights", reduce->top_k > 0,
                                     result->top_weights},
        [WIRE_RESULT_TARGET_WEIGHTS] = {"target_weights", reduce->targets != NULL,
                                        result->target_weights},
        [WIRE_RESULT_RECEIVED] = {"received", reduce->received, result->received},
        [WIRE_RESULT_ENTROPY] = {"entropy", reduce->entropy, result->entropy},
        [WIRE_RESULT_BLOCK_WEIGHTS] = {"block_weights", reduce->block > 0,
                                       result->block_weights},
        [WIRE_RESULT_CONTRIBUTIONS] = {"contributions", batch->need_contributions,
                                       result->contributions},
    };
    return results[which];
}

const char *wire_result_name(enum wire_result which) {
    return find_result(&(attn_request){0}, &(attn_result){0}, which).name;
}

/* Gives a tensor planes, the selected heads, and rows, the selected queries. */
static void set_selected(const attn_request *batch, size_t num_heads,
                         struct wire_reply_tensor *tensor) {
    tensor->plane_axis = true;
    tensor->num_planes = num_heads;
    tensor->rows = batch->weights_queries != NULL ? NULL : batch->query_lens;
    tensor->num_rows = batch->num_weights_queries;
    tensor->flat = true;
}

/* Describes a reduction of the weights of `num_heads` heads; see attn_result. */
static void describe_reduction(const attn_request *batch, enum wire_result which,
                               size_t num_heads, struct wire_reply_tensor *tensor) {
    const attn_reductions *reduce = &batch->reduce;

    set_selected(batch, num_heads, tensor);
    if (which == WIRE_RESULT_SCORES) {
        tensor->widths = batch->key_lens;
        tensor->nullable = true;
    } else if (which == WIRE_RESULT_SPAN_WEIGHTS) {
        tensor->width = reduce->num_spans;
    } else if (which == WIRE_RESULT_TOP_KEYS || which == WIRE_RESULT_TOP_WEIGHTS) {
        tensor->num_parts = reduce->num_top_in;
        tensor->width = reduce->top_k;
        tensor->integers = tensor->nullable = which == WIRE_RESULT_TOP_KEYS;
    } else if (which == WIRE_RESULT_BLOCK_WEIGHTS) {
        tensor->widths = batch->key_lens;
        tensor->block = reduce->block;
    } else {
        tensor->plane_axis = false;
        tensor->num_planes = 1;
        tensor->width = num_heads;
    }
    if (which == WIRE_RESULT_RECEIVED) {
        tensor->rows = NULL;
        tensor->num_rows = num_heads;
        tensor->widths = batch->key_lens;
    }
}

struct wire_reply_tensor wire_reply_get(const struct wire_request *request,
                                        const attn_result *result,
                                        enum wire_result which) {
    const attn_request *batch = &request->batch;
    const attn_model_info *info = attn_model_get_info(request->model);
    size_t selected =
        batch->weights_heads != NULL ? batch->num_weights_heads : info->num_heads;
    const struct result found = find_result(batch, result, which);
    struct wire_reply_tensor tensor = {.name = found.name,
                                       .numbers = found.numbers,
                                       .num_sequences = batch->num_sequences,
                                       .batched = request->batched,
                                       .block = 1,
                                       .nullable = which == WIRE_RESULT_LSE};

    if (which == WIRE_RESULT_CONTRIBUTIONS) {
        tensor.planes = batch->weights_queries != NULL ? NULL : batch->query_lens;
        tensor.num_planes = batch->num_weights_queries;
        tensor.plane_axis = true;
        tensor.num_rows = selected;
        tensor.width = info->width.out;
    } else if (which > WIRE_RESULT_LSE) {
        describe_reduction(batch, which, selected, &tensor);
    } else if (which == WIRE_RESULT_WEIGHTS) {
        bool mean = batch->need_weights == ATTN_WEIGHTS_MEAN;
        set_selected(batch, mean ? 1 : selected, &tensor);
        tensor.plane_axis = !mean;
        tensor.widths = batch->key_lens;
    } else if (which == WIRE_RESULT_HEADS) {
        tensor.planes = batch->query_lens;
        tensor.plane_axis = true;
        tensor.num_rows = info->num_heads;
        tensor.width = info->width.head;
    } else {
        tensor.num_planes = 1;
        tensor.rows = batch->query_lens;
        tensor.width = which == WIRE_RESULT_LSE ? info->num_heads : info->width.out;
    }
    return tensor;
}

size_t wire_reply_list(const struct wire_request *request, const attn_result *result,
                       struct wire_reply_tensor ret_tensors[WIRE_NUM_RESULTS]) {
    size_t count = 0;
    for (int i = 0; i < WIRE_NUM_RESULTS; i++) {
        if (find_result(&request->batch, result, (enum wire_result)i).wanted)
            ret_tensors[count++] = wire_reply_get(request, result, (enum wire_result)i);
    }
    return count;
}

size_t wire_reply_planes(const struct wire_reply_tensor *tensor, size_t sequence) {
    return tensor->planes != NULL ? tensor->planes[sequence] : tensor->num_planes;
}

/* Returns how many blocks have `count` rows or keys. */
static size_t count_blocks(size_t count, size_t block) {
    return count / block + (count % block != 0);
}

size_t wire_reply_rows(const struct wire_reply_tensor *tensor, size_t sequence) {
    size_t rows = tensor->rows != NULL ? tensor->rows[sequence] : tensor->num_rows;
    return count_blocks(rows, tensor->block);
}

size_t wire_reply_parts(const struct wire_reply_tensor *tensor) {
    return tensor->num_parts > 0 ? tensor->num_parts : 1;
}

size_t wire_reply_width(const struct wire_reply_tensor *tensor, size_t sequence) {
    size_t width = tensor->widths != NULL ? tensor->widths[sequence] : tensor->width;
    return count_blocks(width, tensor->block);
}

size_t wire_reply_number_bytes(const struct wire_reply_tensor *tensor) {
    return tensor->integers ? sizeof(int64_t) : sizeof(float);
}

const void *wire_reply_number(const struct wire_reply_tensor *tensor, size_t i) {
    return (const char *)tensor->numbers + i * wire_reply_number_bytes(tensor);
}

size_t wire_reply_count(const struct wire_reply_tensor *tensor) {
    size_t count = 0;
    for (size_t b = 0; b < tensor->num_sequences; b++) {
        pace_add(SEQUENCE_STEPS);
        count += wire_reply_planes(tensor, b) * wire_reply_rows(tensor, b) *
                 wire_reply_parts(tensor) * wire_reply_width(tensor, b);
    }
    return count;
}

size_t wire_reply_shape(const struct wire_reply_tensor *tensor,
                        size_t ret_shape[WIRE_REPLY_RANK_MAX]) {
    size_t rank = 0;
    if (tensor->batched)
        ret_shape[rank++] = tensor->num_sequences;
    if (tensor->plane_axis)
        ret_shape[rank++] = wire_reply_planes(tensor, 0);
    ret_shape[rank++] = wire_reply_rows(tensor, 0);
    if (tensor->num_parts > 0)
        ret_shape[rank++] = tensor->num_parts;
    ret_shape[rank++] = wire_reply_width(tensor, 0);
    return rank;
}

static const size_t *copy_lens(struct arena *arena, const size_t *lens, size_t count) {
    size_t *copy = arena_alloc(arena, count, sizeof *copy);
    if (copy != NULL)
        pace_copy(copy, lens, count * sizeof *copy);
    return copy;
}

size_t wire_reply_lens_bytes(const struct wire_request *request) {
    size_t bytes;
    bool fits = size_mul(request->batch.num_sequences, 2 * sizeof(size_t), &bytes);
    return fits ? bytes : SIZE_MAX;
}

/* Refuses the result at `index`; only the axes that the client sees are named. */
static bool refuse_result(const struct wire_reply_tensor *tensor,
                          const size_t index[WIRE_REPLY_RANK_MAX], bool biased,
                          struct wire_problem *ret_problem) {
    const bool shown[WIRE_REPLY_RANK_MAX] = {tensor->batched, tensor->plane_axis, true,
                                             tensor->num_parts > 0, true};
    char where[128];
    size_t used = (size_t)snprintf(where, sizeof where, "%s", tensor->name);
    for (size_t i = 0; i < WIRE_REPLY_RANK_MAX; i++) {
        if (shown[i])
            used +=
                (size_t)snprintf(where + used, sizeof where - used, "[%zu]", index[i]);
    }

    return wire_problem_set(ret_problem, WIRE_E_RESULT_NOT_FINITE, NULL,
                            "%s is not finite: float32 overflowed; send smaller numbers"
                            "%s",
                            where, biased ? ", and null in bias where it masks" : "");
}

/* Returns the index of the first number that is not a result, or `count`. */
static size_t find_bad_number(const struct wire_reply_tensor *tensor,
                              const float *numbers, size_t count) {
    size_t i = pace_finite_end(numbers, count);
    while (i < count && tensor->nullable && numbers[i] == -INFINITY)
        i += 1 + pace_finite_end(numbers + i + 1, count - i - 1);
    return i;
}

static bool check_reply_tensor(const struct wire_reply_tensor *tensor, bool biased,
                               struct wire_problem *ret_problem) {
    const float *numbers = tensor->numbers;
    for (size_t b = 0; b < tensor->num_sequences; b++) {
        size_t width = wire_reply_width(tensor, b),
               row = wire_reply_parts(tensor) * width;
        size_t plane = wire_reply_rows(tensor, b) * row;
        size_t count = wire_reply_planes(tensor, b) * plane;
        pace_add(SEQUENCE_STEPS);
        size_t i = find_bad_number(tensor, numbers, count);
        if (i < count) {
            const size_t index[] = {b, i / plane, i % plane / row, i % row / width,
                                    i % width};
            return refuse_result(tensor, index, biased, ret_problem);
        }
        numbers += count;
    }
    return true;
}

bool wire_reply_check(const struct wire_request *request, const attn_result *result,
                      struct wire_problem *ret_problem) {
    struct wire_reply_tensor tensors[WIRE_NUM_RESULTS];
    size_t count = wire_reply_list(request, result, tensors);
    for (size_t i = 0; i < count; i++) {
        if (!tensors[i].integers &&
            !check_reply_tensor(&tensors[i], request->batch.bias != NULL, ret_problem))
            return false;
    }
    return true;
}

void *wire_reply_begin(struct arena *arena, size_t size,
                       const struct wire_request *request, const attn_result *result,
                       struct wire_request *ret_kept, struct wire_problem *ret_problem) {
    const attn_request *batch = &request->batch;
    void *encoder = arena_alloc(arena, 1, size);
    const size_t *query_lens = copy_lens(arena, batch->query_lens, batch->num_sequences);
    const size_t *key_lens = copy_lens(arena, batch->key_lens, batch->num_sequences);

    if (encoder == NULL || query_lens == NULL || key_lens == NULL) {
        wire_problem_set_no_memory(ret_problem);
        return NULL;
    }
    if (!wire_reply_check(request, result, ret_problem))
        return NULL;

    *ret_kept = *request;
    ret_kept->batch.query_lens = query_lens;
    ret_kept->batch.key_lens = key_lens;
    return encoder;
}
