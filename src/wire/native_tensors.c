/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/native_tensors.h"

#include "wire/tensor_text.h"

/* Reads keys or values, which have a batch axis if queries have. */
static bool read_like_queries(const char *body, const struct wire_span *span,
                              const char *field, const struct wire_tensor *queries,
                              struct arena *arena, struct wire_tensor *ret_tensor,
                              struct wire_problem *ret_problem) {
    size_t levels = queries->batched ? WIRE_LEVELS_BATCHED : WIRE_LEVELS_UNBATCHED;
    return wire_tensor_read(body, span, field, levels, levels, arena, ret_tensor,
                            ret_problem);
}

bool wire_tensors_read(const char *body, const struct wire_span members[WIRE_NUM_MEMBERS],
                       const attn_model_info *model, struct arena *arena,
                       struct wire_tensors *ret_tensors,
                       struct wire_problem *ret_problem) {
    struct wire_tensors tensors = {0};
    const struct wire_span *queries = &members[WIRE_QUERIES];
    const struct wire_span *keys = &members[WIRE_KEYS], *values = &members[WIRE_VALUES];
    tensors.keys_given = keys->start != NULL;
    tensors.values_given = values->start != NULL;
    if (queries->start == NULL) {
        wire_problem_set(ret_problem, 400, "Missing key", "queries",
                         "queries is required; send numbers [B][Tq][%zu] or [Tq][%zu]",
                         model->query_size, model->query_size);
        return false;
    }
    if (!wire_tensor_read(body, queries, "queries", WIRE_LEVELS_UNBATCHED,
                          WIRE_LEVELS_BATCHED, arena, &tensors.queries, ret_problem) ||
        !wire_queries_check(&tensors, model, ret_problem) ||
        (tensors.keys_given && !read_like_queries(body, keys, "keys", &tensors.queries,
                                                  arena, &tensors.keys, ret_problem)) ||
        !wire_keys_check(&tensors, model, ret_problem) ||
        (tensors.values_given &&
         !read_like_queries(body, values, "values", &tensors.queries, arena,
                            &tensors.values, ret_problem)) ||
        !wire_values_check(&tensors, model, ret_problem))
        return false;
    *ret_tensors = tensors;
    return true;
}
