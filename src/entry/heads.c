/* SPDX-License-Identifier: Apache-2.0 */
/* heads.c: what heads do over the requests of several calls. The sums go from call to
 * call in one array of float64, which has all members of struct attn_heads. */
#include "entry/call.h"

#include "base/size.h"
#include "wire/native/heads.h"

#define HEAD_SUMS (sizeof(attn_head_sums) / sizeof(double))

/* The members behind those of each head and pair of heads. */
struct sums_end {
    attn_head_sums even;
    double squared_norm, squared_residual, rows, row_keys, target_rows, sinks;
    double rows_at[ATTN_HEAD_PLACES];
};

#define END_SUMS (sizeof(struct sums_end) / sizeof(double))

/* Returns how many numbers the sums of a model have. */
static size_t count_in_sums(const attn_model_info *info) {
    size_t pairs = info->projection.given ? 0 : info->num_heads;
    size_t count = END_SUMS;

    size_add_mul_saturating(&count, info->num_heads, HEAD_SUMS);
    size_add_mul_saturating(&count, info->num_heads, pairs);
    return count;
}

/* Copies the caller's sums, or zeros. */
static bool load_sums(struct call *call, size_t count, double *sums) {
    const attn_array *from = call->sums;
    bool fits = from == NULL ||
                (strcmp(from->type, "F64") == 0 && from->rank == 1 &&
                 from->shape[0] == count && from->data != NULL &&
                 (from->strides == NULL || from->strides[0] == (ptrdiff_t)sizeof *sums));

    if (!fits)
        return wire_problem_set(&call->problem, WIRE_E_SHAPE_MISMATCH, "sums",
                                "sums is not what an earlier call returned for these "
                                "heads, %zu numbers of F64; send that, or leave it out",
                                count);
    if (from != NULL)
        memcpy(sums, from->data, count * sizeof *sums);
    else
        memset(sums, 0, count * sizeof *sums);
    return true;
}

/* Points at sums, and takes what is behind those of heads. */
static attn_heads open_sums(const attn_model_info *info, double *sums,
                            struct sums_end *ret_end) {
    size_t num_heads = info->num_heads;
    size_t pairs = info->projection.given ? 0 : num_heads * num_heads;
    double *gram = sums + num_heads * HEAD_SUMS;

    memcpy(ret_end, gram + pairs, sizeof *ret_end);
    attn_heads heads = {.num_heads = num_heads,
                        .sums = (attn_head_sums *)sums,
                        .gram = pairs > 0 ? gram : NULL,
                        .squared_norm = ret_end->squared_norm,
                        .squared_residual = ret_end->squared_residual,
                        .even = ret_end->even,
                        .rows = (size_t)ret_end->rows,
                        .row_keys = ret_end->row_keys,
                        .target_rows = (size_t)ret_end->target_rows,
                        .sinks = ret_end->sinks != 0};
    memcpy(heads.rows_at, ret_end->rows_at, sizeof heads.rows_at);
    return heads;
}

static struct sums_end find_sums_end(const attn_heads *heads) {
    struct sums_end end = {.even = heads->even,
                           .squared_norm = heads->squared_norm,
                           .squared_residual = heads->squared_residual,
                           .rows = (double)heads->rows,
                           .row_keys = heads->row_keys,
                           .target_rows = (double)heads->target_rows,
                           .sinks = heads->sinks};

    memcpy(end.rows_at, heads->rows_at, sizeof end.rows_at);
    return end;
}

/* Writes the text that the server sends, and lists the sums. */
static bool make_reply(struct call *call, const attn_heads *heads, double *sums,
                       size_t count) {
    const attn_model *model = call->request.model;
    attn_reply *reply = call->reply;
    size_t *shape = arena_alloc(&reply->arena, 1, sizeof *shape);
    struct buf text;

    if (!wire_native_heads_check(heads, &call->problem))
        return false;
    buf_init(&text, SIZE_MAX);
    buf_reserve(&text, wire_native_heads_bound(model));
    wire_native_heads_print(attn_model_get_info(model)->name, call->request.note, heads,
                            &text);
    buf_append(&text, "", 1);
    if (text.status == ATTN_OK)
        reply->text = arena_alloc(&reply->arena, text.size, 1);
    if (reply->text != NULL)
        memcpy(reply->text, text.data, text.size);
    buf_deinit(&text);
    if (shape == NULL || reply->text == NULL)
        return wire_problem_set_no_memory(&call->problem);

    *shape = count;
    reply->num_arrays = 1;
    reply->arrays[0] = (attn_array){
        .name = "sums", .type = "F64", .rank = 1, .shape = shape, .data = sums};
    return true;
}

bool call_analyse_heads(struct call *call) {
    const attn_model_info *info = attn_model_get_info(call->request.model);
    size_t count = count_in_sums(info), bytes = size_product(count, sizeof(double));
    struct sums_end end;

    if (!call_reserve(call, bytes, &call->problem))
        return false;
    double *sums = arena_alloc(&call->reply->arena, bytes, 1);
    if (sums == NULL)
        return wire_problem_set_no_memory(&call->problem);
    if (!load_sums(call, count, sums))
        return false;
    void *scratch = call_alloc_scratch(call);
    if (scratch == NULL)
        return false;

    attn_heads heads = open_sums(info, sums, &end);
    attn_heads_add(call->request.model, &call->request.batch, &call->sizes, scratch,
                   &heads);
    end = find_sums_end(&heads);
    memcpy(sums + count - END_SUMS, &end, sizeof end);
    return make_reply(call, &heads, sums, count);
}
