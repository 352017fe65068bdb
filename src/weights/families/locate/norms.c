/* SPDX-License-Identifier: Apache-2.0 */
/* norms.c: the norms before a layer, of latent rows, of heads, and of what heads
 * give. */
#include "weights/families/locate/locator.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>

/* Finds weight and bias of a norm of layer `index` under `name`, which has its module in
 * it; older files call them gamma and beta. `columns` may be VECTOR. */
static void locate_norm(const struct locator *locator, size_t index, const char *module,
                        const char *name, size_t rows, size_t columns,
                        struct layer_norm *norm) {
    static const char *const weights[] = {".weight", ".gamma"};
    static const char *const biases[] = {".bias", ".beta"};
    char found[MATCH_NAME_SIZE];

    for (size_t i = 0; i < 2 && norm->weight == NULL; i++) {
        if (!match_name(locator->stack, index, module, name, weights[i], found))
            continue;
        norm->weight = tensor_view_find(locator->tensors, found);
        match_name(locator->stack, index, module, name, biases[i], found);
        norm->bias = tensor_view_find(locator->tensors, found);
    }
    locator_check(locator, norm->weight, rows, columns);
    locator_check(locator, norm->bias, rows, columns);
}

/* Locates a norm that must be there. */
static void locate_needed_norm(const struct locator *locator, size_t index,
                               const char *name, size_t rows, size_t columns,
                               struct layer_norm *norm) {
    const char *module = locator->stack->stack->module;
    char found[MATCH_NAME_SIZE];

    locate_norm(locator, index, module, name, rows, columns, norm);
    match_name(locator->stack, index, module, name, ".weight", found);
    if (norm->weight == NULL)
        locator_refuse_missing(locator, found);
}

static void refuse_norm_bias(const struct locator *locator,
                             const struct layer_norm *norm) {
    if (norm->bias != NULL)
        error_keep(locator->error, ATTN_E_UNSUPPORTED,
                   "tensor '%.120s' is a bias that family %s does not have",
                   norm->bias->name, locator->type);
}

/* Finds the norm before the layer, under the first of its names that exists. */
static void locate_norm_before(const struct locator *locator) {
    const char *names = locator->stack->stack->norm;
    struct layer_norm *norm = &locator->layer->norm_before;

    while (locator->layer->info.pre_norm.kind != ATTN_NORM_NONE && norm->weight == NULL &&
           names != NULL && *names != '\0') {
        char name[64];
        size_t size = strcspn(names, " ");
        snprintf(name, sizeof name, "%.*s", (int)size, names);
        locate_norm(locator, locator->layer->info.layer, "", name, locator->stack->width,
                    VECTOR, norm);
        names += size + strspn(names + size, " ");
    }
}

/* Finds the norm of projected queries or keys, which have so many heads, in layer
 * `index`. */
static void locate_head_norm(const struct locator *locator, size_t index, size_t heads,
                             struct layer_norm *norm) {
    const struct layer *layer = locator->layer;
    const char *named = norm->name;
    size_t size = layer->info.width.score, before = strcspn(named, "#");
    bool numbered = named[before] == '#',
         matrix = layer->info.head_norm.per_head && !numbered;
    size_t numbers = layer->info.head_norm.whole ? heads * size : size;
    char name[64];

    snprintf(name, sizeof name, "%.*s%s", (int)before, named, numbered ? "0" : "");
    locate_needed_norm(locator, index, name, matrix ? heads : numbers,
                       matrix ? size : VECTOR, norm);
    if (norm->weight == NULL || !numbered)
        return;
    refuse_norm_bias(locator, norm);
    norm->of_heads = locator->tensors;
    for (size_t h = 1; h < heads; h++) {
        const struct safetensors_tensor *weight =
            tensor_view_find_numbered(locator->tensors, norm->weight->name, h);
        if (weight == NULL)
            error_keep(locator->error, ATTN_E_FORMAT,
                       "tensor '%.120s' has none beside it for head %zu; copy the folder "
                       "again",
                       norm->weight->name, h);
        locator_check(locator, weight, size, VECTOR);
    }
}

void locate_norms(const struct locator *locator) {
    struct layer *layer = locator->layer;
    const attn_model_info *info = &layer->info;

    if (info->latent.query > 0)
        locate_needed_norm(locator, layer->info.layer, "q_a_layernorm",
                           info->latent.query, VECTOR, &layer->latent_query_norm);
    if (info->latent.key > 0)
        locate_needed_norm(locator, layer->info.layer, "kv_a_layernorm",
                           info->latent.key - info->latent.shared, VECTOR,
                           &layer->latent_key_norm);
    if (layer->info.head_norm.kind != ATTN_NORM_NONE && !layer->query_norm.bare) {
        locate_head_norm(locator, layer->info.layer, layer->info.num_heads,
                         &layer->query_norm);
        locate_head_norm(locator, layer->lender, layer->info.num_kv_heads,
                         &layer->key_norm);
    }
    if (layer->info.out_norm.kind != ATTN_NORM_NONE) {
        locate_needed_norm(locator, layer->info.layer, layer->out_norm.name,
                           layer->info.num_heads * layer->info.width.head, VECTOR,
                           &layer->out_norm);
        refuse_norm_bias(locator, &layer->out_norm);
    }
    locate_norm_before(locator);
}
