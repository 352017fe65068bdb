/* SPDX-License-Identifier: Apache-2.0 */
/* call.c: which of the weights a reply has. All of them are computed, as the outputs need
 * them; what is not selected never gets to the reply. */
#include "wire/call.h"

#include <math.h>
#include <string.h>

bool wire_call_selects(const struct wire_call *call) {
    return call->selection.heads != NULL || call->selection.queries != NULL;
}

size_t wire_call_num_weights(const struct wire_call *call, const attn_sizes *sizes) {
    const struct wire_selection *selection = &call->selection;
    const attn_request *request = &call->request;
    if (request->need_weights == ATTN_WEIGHTS_NONE)
        return 0;
    if (!wire_call_selects(call))
        return sizes->weights;
    /* At most sizes->weights, so nothing here can overflow. */
    size_t heads = attn_model_get_info(call->model)->num_heads, weights = 0;
    if (request->need_weights == ATTN_WEIGHTS_MEAN)
        heads = 1;
    else if (selection->heads != NULL)
        heads = selection->num_heads;
    for (size_t b = 0; b < request->num_sequences; b++)
        weights += heads * request->key_lens[b] *
                   (selection->queries != NULL ? selection->num_queries
                                               : request->query_lens[b]);
    return weights;
}

void wire_call_select(const struct wire_call *call, const float *weights,
                      float *ret_selected) {
    const struct wire_selection *selection = &call->selection;
    const attn_request *request = &call->request;
    bool all = request->need_weights == ATTN_WEIGHTS_ALL;
    size_t planes = all ? attn_model_get_info(call->model)->num_heads : 1;
    size_t heads = selection->heads != NULL ? selection->num_heads : planes;
    for (size_t b = 0; b < request->num_sequences; b++) {
        size_t queries = request->query_lens[b], width = request->key_lens[b];
        size_t rows = selection->queries != NULL ? selection->num_queries : queries;
        for (size_t h = 0; h < heads; h++) {
            size_t plane = selection->heads != NULL ? selection->heads[h] : h;
            for (size_t i = 0; i < rows; i++, ret_selected += width) {
                size_t row = selection->queries != NULL ? selection->queries[i] : i;
                memcpy(ret_selected, weights + (plane * queries + row) * width,
                       width * sizeof *weights);
            }
        }
        weights += planes * queries * width; /* the next sequence's */
    }
}

bool wire_all_finite(const float *numbers, size_t count) {
    bool finite = true;
    for (size_t i = 0; i < count; i++)
        finite &= isfinite(numbers[i]) != 0;
    return finite;
}
