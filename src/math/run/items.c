/* SPDX-License-Identifier: Apache-2.0 */
/* items.c: items in order of their sequences, as many in a task as its time allows. */
#include "math/run/run.h"

#include "base/pace.h"

#define COUNT_STEPS 16 /* of the items of a sequence */

/* How a step is divided into tasks. */
struct item_tasks {
    const struct run *run;
    size_t task_items; /* items in one task */
    void (*work)(const struct run *run, const struct sequence_position *at,
                 struct range items, size_t thread);
};

/* Returns the sequence that has an item: the last that begins at it or before. */
static size_t find_sequence_of_item(const struct run *run, size_t item) {
    size_t low = 0, high = run->request->num_sequences;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (run->first_items[middle] <= item)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void items_task(void *data, size_t index, size_t thread) {
    const struct item_tasks *t = data;
    const struct run *run = t->run;
    const size_t *first = run->first_items;
    size_t num_items = first[run->request->num_sequences];
    size_t item = index * t->task_items, end = item + t->task_items;

    end = end < num_items ? end : num_items;
    for (size_t s = find_sequence_of_item(run, item); item < end; s++) {
        size_t last = first[s + 1] < end ? first[s + 1] : end;
        if (item < last)
            t->work(run, &run->sequences[s],
                    (struct range){item - first[s], last - first[s]}, thread);
        item = last;
        pace_add(COUNT_STEPS);
    }
}

void run_items(const struct run *run, double flops,
               size_t (*count)(const struct run *run, size_t sequence),
               void (*work)(const struct run *run, const struct sequence_position *at,
                            struct range items, size_t thread)) {
    struct item_tasks t = {.run = run, .work = work};
    size_t num_items = 0;

    for (size_t s = 0; s < run->request->num_sequences; s++) {
        pace_add(COUNT_STEPS);
        run->first_items[s] = num_items;
        num_items += count(run, s);
    }
    run->first_items[run->request->num_sequences] = num_items;
    t.task_items = share_task_items(num_items, flops, run->plan->num_threads);
    share_tasks(run->request->parallel, flops,
                (num_items + t.task_items - 1) / t.task_items, items_task, &t);
}
