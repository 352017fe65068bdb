/* SPDX-License-Identifier: Apache-2.0 */
/* analyse.c: runs the layer up to the heads' outputs, and sums up what each head does. */
#include "math/heads/contribute.h"
#include "math/mask.h"

#include <math.h>

/* Returns the request as the steps of the layer shall see it. */
static attn_request without_weights(const attn_request *request) {
    attn_request copy = *request;
    copy.need_weights = ATTN_WEIGHTS_NONE;
    copy.omit_outputs = copy.need_heads = copy.need_lse = false;
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

/* Adds what even weights of `share` on some keys amount to, in row `row`. `itself` says
 * that the keys are the queries. */
static void add_even_keys(size_t row, struct mask_keys keys, double share, bool itself,
                          attn_head_sums *even) {
    double n = (double)(keys.end - keys.first), i = (double)row;
    struct mask_keys near = {row > 2 ? row - 2 : 0, row + 3};
    /* Of the keys below the row's own, and up to it. */
    size_t below = row < keys.end ? row : keys.end;
    size_t prefix = row < keys.end ? row + 1 : keys.end;

    even->entropy -= n * share * log(share);
    even->first += keys.first == 0 ? share : 0;
    if (!itself)
        return;
    even->self += keys.first <= row && row < keys.end ? share : 0;
    even->previous += keys.first < row && row <= keys.end ? share : 0;
    even->next += keys.first <= row + 1 && row + 1 < keys.end ? share : 0;
    near.first = near.first > keys.first ? near.first : keys.first;
    near.end = near.end < keys.end ? near.end : keys.end;
    even->near += near.first < near.end ? (double)(near.end - near.first) * share : 0;
    even->prefix += prefix > keys.first ? (double)(prefix - keys.first) * share : 0;

    /* The sums of i - k for k below i, and of k - i for k from i on: both are a number of
     * keys times the mean of the first and the last. */
    below = below > keys.first ? below : keys.first;
    even->distance += (double)(below - keys.first) * share *
                      (2 * i - (double)keys.first - (double)below + 1) / 2;
    even->distance += (double)(keys.end - below) * share *
                      ((double)below + (double)keys.end - 1 - 2 * i) / 2;
}

/* Adds what even weights would amount to in a row of queries. A row without a valid key
 * has no weights at all in a model with sinks. */
static void add_even_row(const struct mask *mask, size_t row, bool itself, bool sinks,
                         attn_head_sums *even) {
    struct mask_keys keys = mask_find_keys(mask, row);
    size_t count = keys.end - keys.first;

    if (count == 0 && sinks)
        return;
    if (count == 0 || !mask->by_pair) {
        if (count == 0)
            keys = (struct mask_keys){0, mask->key_len};
        add_even_keys(row, keys, 1 / (double)(keys.end - keys.first), itself, even);
        return;
    }
    for (size_t k = keys.first; k < keys.end; k++)
        count -= !mask_attends(mask, row, k);
    for (size_t k = keys.first; k < keys.end; k++) {
        if (mask_attends(mask, row, k))
            add_even_keys(row, (struct mask_keys){k, k + 1}, 1 / (double)count, itself,
                          even);
    }
}

/* Counts the rows, and adds what even weights would amount to. */
static void add_rows(const attn_request *request, bool sinks, attn_heads *heads) {
    size_t first_query = 0, first_key = 0;

    for (size_t s = 0; s < request->num_sequences; s++) {
        size_t query_len = request->query_lens[s];
        bool itself = mask_keys_are_queries(request, s, first_query, first_key);
        struct mask mask;

        mask_init(&mask, request, s, first_query, first_key);
        for (size_t q = 0; q < query_len; q++)
            add_even_row(&mask, q, itself, sinks, &heads->even);
        heads->rows += query_len;
        if (itself) {
            heads->self_rows += query_len;
            heads->previous_rows += query_len - 1;
        }
        first_query += query_len;
        first_key += request->key_lens[s];
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
    run_place_rows(&run);
    run_attend(&run);
    heads_contribute(&run, heads->gram, &heads->squared_norm);
    add_sums(&run, heads->sums);
    add_rows(&copy, model->info.sinks, heads);
    return ATTN_OK;
}
