/* SPDX-License-Identifier: Apache-2.0 */
/* split.c: decides whether chunks of keys are tasks, and works out what sizes of scratch
 * memory follow from. What saturates at SIZE_MAX on the way is refused when it is
 * reserved. */
#include "math/plan/parts.h"

#include "base/size.h"
#include "math/plan/rules.h"
#include "math/rows/rotate.h"

/* How many bytes of one head's keys and values a cache can hold. */
#define GATHER_BYTES ((size_t)1 << 20)

/* Fewer keys stay in the cache without being gathered. */
#define GATHER_KEYS 256

/* So many are gathered even by head: a copy in the cache is worth 5% up to 512 keys. */
#define GATHER_KEYS_BY_HEAD 512

/* Larger chunks of a panel are tasks: between two, a worker looks for cheap requests. */
#define SPLIT_FLOPS 5e8

/* Bytes of the chunks' results for each thread; and their greatest share of the keys and
 * values that direct sequences read. */
#define PARTIALS_MAX   (1 << 20)
#define PARTIALS_SHARE (1.0 / 16)

/* Floats of the weights that chunks share until they are reduced. */
#define SHARED_MAX ((size_t)4 << 20)

/* Returns whether what is reduced can wait until chunks are merged. */
static bool reduces_merged(const struct plan *plan) {
    const attn_request *request = plan->request;

    if (request->reduce.scores || plan_wants(plan, RESULT_SUMMED))
        return false;
    return request->num_sequences == 1 || !plan_wants(plan, RESULT_REDUCED);
}

/* Plans the weights that chunks share where they are tasks, and are reduced. They are not
 * split when that is too much. */
static void share_weights(struct plan *plan) {
    struct plan_scratch *scratch = &plan->scratch;
    const struct plan_items items = plan_items(plan, 0);
    size_t row = plan_weights_ld(plan->batch.longest_key_len);

    if (!scratch->splits || !plan_wants(plan, RESULT_REDUCED) ||
        plan->request->need_weights == ATTN_WEIGHTS_ALL)
        return;
    scratch->shared_panels = size_product(items.heads, items.panels);
    scratch->splits = size_product(size_product(scratch->shared_panels, row),
                                   plan->batch.panel_rows) <= SHARED_MAX;
    if (!scratch->splits)
        scratch->shared_panels = 0;
}

/* Decides whether chunks of the keys are tasks of their own: only when one panel would
 * leave threads idle, or is too large for one task, and while the results of the chunks
 * need little memory. Who computes a chunk does not change a bit. */
static void split_chunks(struct plan *plan) {
    const attn_model_info *info = &plan->model->info;
    const attn_request *request = plan->request;
    const struct plan_batch *batch = &plan->batch;
    struct plan_scratch *scratch = &plan->scratch;
    size_t direct_keys = plan->batch.num_keys - batch->projected_keys;
    double threads = (double)plan->num_threads, count = 0;
    double max = (double)PARTIALS_MAX / sizeof(float) * threads;
    double share = PARTIALS_SHARE * (double)direct_keys *
                   ((double)info->width.key + (double)info->width.value);

    scratch->partial_floats = size_product(batch->result_size + 2, batch->panel_rows);
    scratch->splits =
        plan->kind != PLAN_HEADS && request->need_weights != ATTN_WEIGHTS_MEAN &&
        reduces_merged(plan) && request->parallel != NULL && scratch->max_chunks > 1 &&
        ((threads > 1 && 2 * threads * batch->panel_flops >= batch->items_flops) ||
         batch->panel_flops > SPLIT_FLOPS);
    if (!scratch->splits)
        return;

    for (size_t s = 0; s < request->num_sequences; s++) {
        const struct plan_items items = plan_items(plan, s);
        count += (double)items.heads * (double)items.panels * (double)items.chunks;
    }
    scratch->splits =
        count * (double)scratch->partial_floats <= (max > share ? max : share);
    share_weights(plan);
    scratch->num_partials = scratch->splits ? (size_t)count : 0;
}

void plan_scratch(struct plan *plan) {
    const attn_model *model = plan->model;
    const attn_model_info *info = &model->info;
    size_t k_step = model->engine.kernels->k_step, longest = plan->batch.longest_key_len;
    size_t key_floats = model->engine.score_size + info->width.head;
    size_t rows = plan->batch.num_queries;
    struct plan_scratch *scratch = &plan->scratch;

    /* A table costs as much as ROTATE_STEP rows without one. */
    size_add_saturating(&rows, plan->batch.num_keys);
    if (info->rotation.size > 0 && rows > ROTATE_STEP)
        scratch->num_rotations = model->rotation.long_frequencies != NULL ? 2 : 1;
    scratch->direct_ld =
        size_max(info->width.key, info->width.value) + KERNEL_COLUMNS_MAX - 1;
    scratch->direct_ld -= scratch->direct_ld % KERNEL_COLUMNS_MAX;
    scratch->max_chunks = (longest - 1) / KERNEL_CHUNK_KEYS + 1;
    if (longest >= GATHER_KEYS && plan->request->need_weights != ATTN_WEIGHTS_MEAN)
        scratch->gather_keys =
            size_min(longest, plan->layer.by_head || plan->layer.packs_values
                                  ? GATHER_KEYS_BY_HEAD
                                  : GATHER_BYTES / sizeof(float) / key_floats);
    scratch->num_strips = (plan->batch.num_queries - 1) / PLAN_HEAD_ROWS + 1;
    scratch->head_ld = info->width.head + 2 * (k_step - 1);
    split_chunks(plan);
}
