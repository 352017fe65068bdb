/* SPDX-License-Identifier: Apache-2.0 */
/* pack.c: the keys of a layer without projections. An item is up to KEY_BLOCK keys of a
 * sequence, which are a panel of each key head. */
#include "math/run/run.h"

static size_t count_pack_items(const struct run *run, size_t sequence) {
    return (run->request->key_lens[sequence] - 1) / KEY_BLOCK + 1;
}

static void pack_items(const struct run *run, const struct sequence_position *at,
                       struct range items, size_t thread) {
    const struct kernels *kernels = run->model->engine.kernels;
    const struct plan_rows *rows = &run->plan->keys;
    const struct ranges heads = run->key_heads;
    size_t key_len = run->request->key_lens[at->sequence];
    size_t size = run->model->engine.score_size, width = run->plan->layer.key_width;

    (void)thread;
    for (size_t item = items.first; item < items.end; item++) {
        size_t first = item * KEY_BLOCK, left = key_len - first;
        size_t count = left < KEY_BLOCK ? left : KEY_BLOCK;
        const float *from = run->request->keys + (at->first_key + first) * width;
        float *to = run->keys + (at->first_projected + first) * rows->ld;

        for (size_t i = 0; i < heads.count; i++) {
            for (size_t h = heads.items[i].first; h < heads.items[i].end; h++)
                kernels->transpose(from + h * size, width, count, size,
                                   to + h * rows->head_ld, count);
        }
    }
}

void run_pack_keys(const struct run *run) {
    if (run->plan->layer.key_panels)
        run_items(run, run->plan->flops.finish, count_pack_items, pack_items);
}
