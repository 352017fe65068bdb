/* SPDX-License-Identifier: Apache-2.0 */
/* analyse.c: runs the layer up to the heads' outputs, and sums up what each head does. */
#include "math/heads/contribute.h"
#include "math/mask.h"

#include <math.h>

/* Returns the request as the steps of the layer shall see it. */
static attn_request without_weights(const attn_request *request) {
    attn_request copy = *request;
    copy.need_weights = ATTN_WEIGHTS_NONE;
    return copy;
}

attn_status attn_heads_plan(const attn_model *model, const attn_request *request,
                            attn_sizes *ret_sizes, attn_error *ret_error) {
    const attn_request copy = without_weights(request);
    struct plan plan;

    attn_status status = plan_make(model, &copy, PLAN_HEADS, &plan, ret_error);
    if (status == ATTN_OK)
        *ret_sizes = plan.sizes;
    return status;
}

/* Adds what even weights on keys 0..count-1 amount to, in row `row`. */
static void add_even_row(size_t row, size_t count, bool itself, attn_head_sums *even) {
    double n = (double)count, i = (double)row;
    size_t up_to_own = row < count ? row + 1 : count;
    size_t near_first = row > 2 ? row - 2 : 0, near_end = row + 3;

    even->entropy += log(n);
    even->first += 1 / n;
    if (!itself)
        return;
    even->self += row < count ? 1 / n : 0;
    even->previous += row > 0 && row - 1 < count ? 1 / n : 0;
    even->next += row + 1 < count ? 1 / n : 0;
    near_end = near_end < count ? near_end : count;
    even->near += near_first < near_end ? (double)(near_end - near_first) / n : 0;
    even->prefix += (double)up_to_own / n;

    /* The sums of i - k for k below i, and of k - i for k above. */
    double below = (double)(row < count ? row : count);
    even->distance += (below * i - below * (below - 1) / 2) / n;
    if (row < count)
        even->distance += (n - 1 - i) * (n - i) / 2 / n;
}

/* Counts the rows, and adds what even weights would amount to. */
static void add_rows(const attn_request *request, attn_heads *heads) {
    size_t first_query = 0, first_key = 0;

    for (size_t s = 0; s < request->num_sequences; s++) {
        size_t query_len = request->query_lens[s], key_len = request->key_lens[s];
        bool itself = mask_keys_are_queries(request, s, first_query, first_key);

        for (size_t q = 0; q < query_len; q++) {
            size_t num_keys = mask_num_keys(request, s, first_query, q);
            add_even_row(q, num_keys > 0 ? num_keys : key_len, itself, &heads->even);
        }
        heads->rows += query_len;
        if (itself) {
            heads->self_rows += query_len;
            heads->previous_rows += query_len - 1;
        }
        first_query += query_len;
        first_key += key_len;
    }
}

/* Adds up the sums of all panels. */
static void add_sums(const struct run *run, attn_head_sums *sums) {
    size_t num_heads = run->model->info.num_heads;

    for (size_t i = 0; i < run->plan->num_panels * num_heads; i++) {
        const attn_head_sums *from = &run->panel_sums[i];
        attn_head_sums *to = &sums[i % num_heads];
        to->entropy += from->entropy;
        to->first += from->first;
        to->self += from->self;
        to->previous += from->previous;
        to->next += from->next;
        to->near += from->near;
        to->prefix += from->prefix;
        to->distance += from->distance;
    }
}

attn_status attn_heads_add(const attn_model *model, const attn_request *request,
                           void *scratch, attn_heads *heads) {
    const attn_request copy = without_weights(request);
    struct plan plan;
    attn_status status = plan_make(model, &copy, PLAN_HEADS, &plan, NULL);
    if (status != ATTN_OK)
        return status;

    struct run run;
    run_init(&run, model, &copy, &plan, scratch);
    run_project_inputs(&run);
    run_attend(&run);
    heads_contribute(&run, heads->gram, &heads->squared_norm);
    add_sums(&run, heads->sums);
    add_rows(&copy, heads);
    return ATTN_OK;
}
