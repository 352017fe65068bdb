/* SPDX-License-Identifier: Apache-2.0 */
/* items.c: items in order of their sequences, as many in a task as its time allows. */
#include "math/attend/items.h"

/* How a step is divided into tasks. */
struct item_tasks {
    const struct run *run;
    size_t task_items; /* items in one task */
    void (*work)(const struct run *run, const struct sequence_position *at,
                 struct range items, size_t thread);
};

/* Sets how the sequence that `at` has come to attends. */
static void set_kind(const struct run *run, struct sequence_position *at) {
    at->direct = plan_is_direct(run->plan, run->model, run->request, at->sequence);
    at->grouped = plan_is_grouped(run->plan, run->model, run->request, at->sequence);
}

static void next_sequence(const struct run *run, struct sequence_position *at) {
    const attn_request *request = run->request;
    size_t query_len = request->query_lens[at->sequence];
    size_t key_len = request->key_lens[at->sequence];

    at->first_query += query_len;
    at->first_key += key_len;
    at->first_projected += at->direct ? 0 : key_len;
    at->first_direct += at->direct ? run->plan->num_scored * query_len : 0;
    at->first_weight += plan_weights_heads(&run->model->info, request) *
                        plan_weights_rows(request, at->sequence) * key_len;
    at->sequence++;
    if (at->sequence < request->num_sequences)
        set_kind(run, at);
}

static void items_task(void *data, size_t index, size_t thread) {
    const struct item_tasks *t = data;
    const struct run *run = t->run;
    const size_t *first = run->first_items;
    size_t num_items = first[run->request->num_sequences];
    size_t item = index * t->task_items, end = item + t->task_items;
    struct sequence_position at = {0};

    set_kind(run, &at);
    end = end < num_items ? end : num_items;
    while (item < end) {
        size_t begin = first[at.sequence], last = first[at.sequence + 1];
        last = last < end ? last : end;
        if (item < last) {
            t->work(run, &at, (struct range){item - begin, last - begin}, thread);
            item = last;
        } else {
            next_sequence(run, &at);
        }
    }
}

void run_items(const struct run *run, double flops,
               size_t (*count)(const struct run *run, size_t sequence),
               void (*work)(const struct run *run, const struct sequence_position *at,
                            struct range items, size_t thread)) {
    struct item_tasks t = {.run = run, .work = work};
    size_t num_items = 0;

    for (size_t s = 0; s < run->request->num_sequences; s++) {
        run->first_items[s] = num_items;
        num_items += count(run, s);
    }
    run->first_items[run->request->num_sequences] = num_items;
    t.task_items = run_task_items(num_items, flops, run->plan->num_threads);
    run_share(run, flops, (num_items + t.task_items - 1) / t.task_items, items_task, &t);
}
