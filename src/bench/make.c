/* SPDX-License-Identifier: Apache-2.0 */
/* make.c: makes the layers that are timed, and counts their operations. */
#include "bench/bench.h"

#include "base/noise.h"
#include "math/mask.h"
#include "math/model.h"
#include "models/spec.h"
#include "weights/families/folder.h"

#include <string.h>

static attn_status make_up_layer(const struct bench_layer *layer,
                                 const attn_engine_options *engine,
                                 attn_model **ret_model, attn_error *ret_error) {
    size_t width = layer->shape->width, heads = layer->shape->heads;
    const attn_model_info info = {.name = "bench",
                                  .layout = "bench",
                                  .width = {.query = width,
                                            .key = width,
                                            .value = width,
                                            .out = width,
                                            .head = width / heads},
                                  .num_heads = heads,
                                  .linears[ATTN_OUTPUT].weight = true};
    attn_model *model;

    attn_status status = attn_model_create(&info, &model);
    if (status != ATTN_OK)
        return status;

    for (attn_linear i = ATTN_QUERY; i <= ATTN_OUTPUT; i++)
        noise_fill(model_weight(model, i), width * width, 0.05F);
    status = attn_model_set_engine(model, engine, ret_error);
    if (status == ATTN_OK)
        *ret_model = model;
    else
        attn_model_destroy(model);
    return status;
}

attn_status bench_layer_create(const struct bench_layer *layer,
                               const attn_engine_options *engine, attn_model **ret_model,
                               attn_error *ret_error) {
    const struct model_spec *spec = layer->spec;

    if (spec == NULL)
        return make_up_layer(layer, engine, ret_model, ret_error);
    if (layer->folder == NULL)
        return attn_model_load(spec->name, spec->path, &spec->options, engine, ret_model,
                               ret_error);
    return folder_create_model(layer->folder, layer->index, spec->name, engine, ret_model,
                               ret_error);
}

/* Returns how many multiplications and additions the part needs, each counted as one. The
 * functions of single scores, such as exponentials, are not counted. `pairs` is the
 * number of pairs of a query and a key. Without `scores`, queries and keys are not
 * projected. */
static double count_flop(const attn_model *model, const struct bench_report *r,
                         double pairs, bool scores) {
    const attn_model_info *info = &model->info;
    const struct linear *linears = model->engine.linears;
    /* Of kept keys only the largest weights are asked for. */
    double value_size = r->part == BENCH_STORED ? 0 : (double)info->width.head;
    double queries = (double)r->sequences * (double)r->query_len;
    double keys = (double)r->sequences * (double)r->key_len;
    double sum = 2 * pairs * (double)info->num_heads *
                 ((double)model->engine.score_size + value_size);

    if (bench_is_attention(r))
        return sum;
    for (attn_linear i = 0; i < ATTN_NUM_LINEARS; i++) {
        bool of_keys = i == ATTN_KEY || i == ATTN_VALUE || i == ATTN_LATENT_KEY;
        double flop = 2 * (of_keys ? keys : queries) * (double)linears[i].out *
                      (double)linears[i].in;
        if (r->part == BENCH_PROJECTION && i == ATTN_OUTPUT)
            return flop;
        if (scores || (i != ATTN_QUERY && i != ATTN_KEY))
            sum += flop;
    }
    return sum;
}

void bench_layer_count(const attn_model *model, const attn_request *request,
                       struct bench_report *report) {
    const attn_model_info *info = &model->info;
    double sequences = (double)report->sequences, pairs = 0;
    struct range reached = {report->key_len, 0}; /* keys that any query attends to */
    struct mask mask;

    mask_init(&mask, request, 0, 0, 0);
    for (size_t q = 0; q < report->query_len; q++) {
        struct range keys = mask_find_keys(&mask, 0, q);
        if (keys.first == keys.end) /* the query attends to all alike */
            keys = (struct range){0, report->key_len};
        pairs += (double)(keys.end - keys.first);
        reached.first = keys.first < reached.first ? keys.first : reached.first;
        reached.end = keys.end > reached.end ? keys.end : reached.end;
    }
    report->read_words = report->sequences * (reached.end - reached.first) *
                         info->num_kv_heads *
                         (model->engine.score_size +
                          (report->part == BENCH_STORED ? 0 : info->width.head));

    double dense = (double)report->query_len * (double)report->key_len;
    report->dense_flop = count_flop(model, report, dense * sequences, true);
    report->done_flop = count_flop(model, report, pairs * sequences,
                                   /* with one key no score matters */
                                   report->key_len > 1 || info->score.sinks);
}

/* --- keys as captures have them --- */

attn_status bench_stored_make(const attn_model *model, size_t num_keys,
                              const float *input, struct arena *memory,
                              struct attn_packed ret_packed[2]) {
    struct attn_packed packed = {.num_kv_heads = model->info.num_kv_heads,
                                 .num_keys = num_keys,
                                 .head_size = model->engine.score_size,
                                 .value_size = model->info.width.head,
                                 .keys = input,
                                 .keys_type = "F32",
                                 .values_type = "F32"};
    size_t count = packed.num_kv_heads * packed_head_ld(&packed, packed.head_size);

    uint16_t *halves = arena_alloc(memory, count + (size_t)2 * KEY_BLOCK, sizeof *halves);
    if (halves == NULL)
        return ATTN_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &input[i], sizeof bits);
        halves[i] = (uint16_t)(bits >> 16);
    }
    ret_packed[0] = packed;
    packed.keys = halves;
    packed.keys_type = "BF16";
    ret_packed[1] = packed;
    return ATTN_OK;
}
