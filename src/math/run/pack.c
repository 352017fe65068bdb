/* SPDX-License-Identifier: Apache-2.0 */
/* pack.c: the keys and values of a layer without projections, where they are copied. An
 * item is up to KEY_BLOCK keys of a sequence, a panel of each key head of the phase. */
#include "math/run/run.h"

#include "base/dtype.h"
#include "base/size.h"
#include "math/packed.h"

#include <string.h>

static size_t count_pack_items(const struct run *run, size_t sequence) {
    return (run->request->key_lens[sequence] - 1) / KEY_BLOCK + 1;
}

/* Makes `count` encoded keys of a head float32, from row `first` of the batch on. */
static void decode_keys(const struct run *run, size_t head, size_t first, size_t count,
                        float *to) {
    const struct dtype *type = dtype_find(run->request->keys_type);
    size_t size = run->model->engine.score_size, bytes = type->bits / 8;
    size_t width = run->plan->layer.key_width;
    const unsigned char *from = run->request->encoded_keys;

    from += (first * width + head * size) * bytes;
    for (size_t k = 0; k < count; k++)
        type->to_float(from + k * width * bytes, size, to + k * size);
}

/* Makes `count` numbers of a kept head float32, from number `first` of its head on. */
static void widen_packed(const void *from, size_t head_ld, size_t head, size_t first,
                         size_t count, float *to) {
    const struct dtype *type = dtype_find("BF16");
    type->to_float((const unsigned char *)from +
                       (head * head_ld + first) * type->bits / 8,
                   count, to);
}

/* Packs `count` keys of a head, from row `first` of the batch on. */
static void pack_keys(const struct run *run, size_t head, size_t first, size_t count,
                      float *tile, float *to) {
    const struct plan_layer *layer = &run->plan->layer;
    const attn_request *request = run->request;
    size_t size = run->model->engine.score_size, ld = size;
    const struct attn_packed *packed = request->packed;
    float *decoded = layer->key_panels ? tile : to;
    const float *from = decoded;

    if (packed != NULL) {
        widen_packed(packed->keys, packed_head_ld(packed, size), head, first * size,
                     count * size, to);
        return;
    }
    if (request->encoded_keys != NULL) {
        decode_keys(run, head, first, count, decoded);
    } else {
        ld = layer->key_width;
        from = request->keys + first * ld + head * size;
    }
    if (layer->key_panels)
        run->model->engine.kernels->transpose(from, ld, count, size, to, count);
}

/* Copies `count` values of a head, from row `first` of the batch on. */
static void pack_values(const struct run *run, size_t head, size_t first, size_t count,
                        float *to) {
    size_t size = run->model->info.width.head, width = run->plan->layer.value_width;
    const struct attn_packed *packed = run->request->packed;
    if (packed != NULL) {
        widen_packed(packed->values, packed_head_ld(packed, size), head, first * size,
                     count * size, to);
        return;
    }

    const float *from = run->request->values + first * width + head * size;

    for (size_t k = 0; k < count; k++, from += width, to += size)
        memcpy(to, from, size * sizeof *to);
}

static void pack_items(const struct run *run, const struct sequence_position *at,
                       struct range items, size_t thread) {
    const struct plan *plan = run->plan;
    size_t key_len = run->request->key_lens[at->sequence];
    float *tile = run_thread(run, thread, run->thread.tile);

    for (size_t item = items.first; item < items.end; item++) {
        size_t first = item * KEY_BLOCK, count = size_min(key_len - first, KEY_BLOCK);
        size_t row = at->first_projected + first;

        for (size_t h = run->phase.first; h < run->phase.end; h++) {
            size_t place = h - run->phase.first;
            if (plan->layer.packs && ranges_find(run->key_heads, h) != SIZE_MAX)
                pack_keys(run, h, at->first_key + first, count, tile,
                          run->keys + place * plan->keys.head_ld + row * plan->keys.ld);
            if (plan->layer.packs_values && ranges_find(run->summed_keys, h) != SIZE_MAX)
                pack_values(run, h, at->first_key + first, count,
                            run->values + place * plan->values.head_ld +
                                row * plan->values.ld);
        }
    }
}

void run_pack_keys(const struct run *run) {
    if (run->plan->layer.packs || run->plan->layer.packs_values)
        run_items(run, run_phase_flops(run, run->plan->flops.finish), count_pack_items,
                  pack_items);
}
