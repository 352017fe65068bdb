/* SPDX-License-Identifier: Apache-2.0 */
/* places.c: finds each tensor of a layer by its name. */
#include "weights/families/places.h"

#include "base/error.h"
#include "base/size.h"

#include <stdio.h>
#include <string.h>

#define ANY 0 /* in an expected shape: any size */

struct places {
    const struct family *family;
    const struct match_stack *stack;
    const struct folder_tensors *tensors;
    const struct layer_biases *biases;
    struct layer *layer;
    attn_error *ret_error;
};

/* Returns the tensor `name` + `ending` of the module in layer `index`, or NULL. */
static const struct folder_tensor *find_in_module(const struct places *places,
                                                  size_t index, const char *name,
                                                  const char *ending,
                                                  char ret_name[MATCH_NAME_SIZE]) {
    if (!match_name(places->stack, index, places->stack->stack->module, name, ending,
                    ret_name))
        return NULL;
    return folder_tensors_find(places->tensors, ret_name);
}

static attn_status refuse_missing_tensor(const struct places *places, const char *name) {
    return error_set(places->ret_error, ATTN_E_FORMAT,
                     "tensor '%.120s' is missing; family %s has it", name,
                     places->family->type);
}

/* Checks shape and dtype. `columns` is ANY for a vector of `rows` numbers; a size of
 * `rows` that is ANY is not checked. */
static attn_status check_place(const struct places *places,
                               const struct folder_tensor *place, size_t rows,
                               size_t columns) {
    const struct safetensors_tensor *tensor = place->tensor;
    size_t rank = columns == ANY ? 1 : 2;
    const struct layer *layer = places->layer;

    if (tensor->dtype->to_float == NULL)
        return error_set(places->ret_error, ATTN_E_UNSUPPORTED,
                         "tensor '%.120s' has dtype %s: the weights are quantized; save "
                         "them in bfloat16 or float32",
                         place->name, tensor->dtype->name);
    if (tensor->rank == rank && tensor->shape[0] == rows &&
        (rank == 1 || tensor->shape[1] == columns))
        return ATTN_OK;

    char shape[64] = "", expected[64];
    for (size_t i = 0; i < tensor->rank && i < 2; i++)
        snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%zu",
                 i > 0 ? "," : "", tensor->shape[i]);
    if (rank == 1)
        snprintf(expected, sizeof expected, "%zu", rows);
    else
        snprintf(expected, sizeof expected, "%zu,%zu", rows, columns);
    return error_set(places->ret_error, ATTN_E_SHAPE,
                     "tensor '%.120s' has shape [%s%s], expected [%s]: config.json means "
                     "%zu heads, %zu key heads and size %zu, %zu wide",
                     place->name, shape, tensor->rank > 2 ? ",..." : "", expected,
                     layer->num_heads, layer->num_kv_heads, layer->head_size,
                     places->stack->width);
}

/* Finds the weight and the bias of a linear, whose tensor has `rows` in all. */
static attn_status place_linear(const struct places *places, size_t which,
                                const char *module_name, size_t rows) {
    struct layer_linear *linear = &places->layer->linears[which];
    char name[MATCH_NAME_SIZE], bias_name[MATCH_NAME_SIZE];
    size_t index = places->layer->index;

    linear->transposed = places->family->transposed;
    linear->weight = find_in_module(places, index, module_name, ".weight", name);
    if (linear->weight == NULL)
        return refuse_missing_tensor(places, name);
    /* keys of cross attention come from another model, which may have another width */
    bool is_key = which == LAYER_KEY || which == LAYER_VALUE;
    if (places->layer->cross && is_key && linear->weight->tensor->rank == 2)
        linear->in_size = linear->weight->tensor->shape[linear->transposed ? 0 : 1];
    attn_status status = linear->transposed
                             ? check_place(places, linear->weight, linear->in_size, rows)
                             : check_place(places, linear->weight, rows, linear->in_size);
    if (status != ATTN_OK)
        return status;

    linear->bias = find_in_module(places, index, module_name, ".bias", bias_name);
    if (places->biases->has[which] && linear->bias == NULL)
        return refuse_missing_tensor(places, bias_name);
    if (!places->biases->has[which] && linear->bias != NULL)
        return error_set(places->ret_error, ATTN_E_FORMAT,
                         "tensor '%.120s' is a bias that %s%s%s does not have; is it the "
                         "config.json of this model?",
                         bias_name, places->family->type,
                         places->family->bias_keys != NULL ? " without " : "",
                         places->family->bias_keys != NULL ? places->family->bias_keys
                                                           : "");
    return linear->bias == NULL ? ATTN_OK : check_place(places, linear->bias, rows, ANY);
}

/* Sets which rows are the heads of a linear. */
static void set_linear_rows(const struct places *places, size_t which,
                            struct layer_linear *linear) {
    const struct layer *layer = places->layer;
    size_t size = layer->head_size, heads = layer->num_heads;
    size_t kv_heads = layer->num_kv_heads, shared = heads / kv_heads;
    const size_t blocks[] = {0, heads * size, (heads + kv_heads) * size};
    const size_t groups[] = {0, shared * size, (shared + 1) * size};

    linear->num_heads = which == LAYER_QUERY ? heads : kv_heads;
    linear->head_rows = size;
    linear->group_heads = linear->num_heads;
    linear->group_rows = linear->num_heads * size;
    if (places->stack->stack->query_apart) {
        linear->first_row = which == LAYER_VALUE ? kv_heads * size : 0;
    } else if (places->family->split == SPLIT_BLOCKS) {
        linear->first_row = blocks[which];
    } else if (places->family->split == SPLIT_GROUPS) {
        linear->first_row = groups[which];
        linear->group_heads = which == LAYER_QUERY ? shared : 1;
        linear->group_rows = (shared + 2) * size;
    }
}

static attn_status place_linears(const struct places *places) {
    const char *const *names = places->stack->stack->names;
    struct layer *layer = places->layer;
    size_t width = places->stack->width, hidden, kv_hidden, packed;
    bool separate = places->family->split == SPLIT_SEPARATE;
    bool apart = places->stack->stack->query_apart;

    if (!size_mul(layer->num_heads, layer->head_size, &hidden) ||
        !size_mul(layer->num_kv_heads, layer->head_size, &kv_hidden) ||
        !size_mul(kv_hidden, 2, &packed) || !size_add(hidden, packed, &packed))
        return error_set(places->ret_error, ATTN_E_OVERFLOW, "the heads are too large");
    for (size_t which = LAYER_QUERY; which <= LAYER_VALUE; which++) {
        struct layer_linear *linear = &layer->linears[which];
        size_t rows = which == LAYER_QUERY ? hidden : kv_hidden, total = packed;

        linear->in_size = width;
        set_linear_rows(places, which, linear);
        if (apart)
            total = which == LAYER_QUERY ? hidden : 2 * kv_hidden;
        attn_status status = place_linear(
            places, which, names[separate || apart ? which : 0], separate ? rows : total);
        if (status != ATTN_OK)
            return status;
    }

    struct layer_linear *output = &layer->linears[LAYER_OUTPUT];
    *output = (struct layer_linear){.in_size = hidden,
                                    .num_heads = 1,
                                    .head_rows = width,
                                    .group_heads = 1,
                                    .group_rows = width};
    return place_linear(places, LAYER_OUTPUT, names[LAYER_OUTPUT], width);
}

/* Finds weight and bias of a norm under `name`, which has its module in it; older files
 * call them gamma and beta. */
static attn_status place_norm(const struct places *places, const char *module,
                              const char *name, size_t size, struct layer_norm *norm) {
    static const char *const weights[] = {".weight", ".gamma"};
    static const char *const biases[] = {".bias", ".beta"};
    char found[MATCH_NAME_SIZE];
    size_t index = places->layer->index;
    attn_status status = ATTN_OK;

    for (size_t i = 0; i < 2 && norm->weight == NULL; i++) {
        if (!match_name(places->stack, index, module, name, weights[i], found))
            continue;
        norm->weight = folder_tensors_find(places->tensors, found);
        match_name(places->stack, index, module, name, biases[i], found);
        norm->bias = folder_tensors_find(places->tensors, found);
    }
    if (norm->weight != NULL)
        status = check_place(places, norm->weight, size, ANY);
    if (status == ATTN_OK && norm->bias != NULL)
        status = check_place(places, norm->bias, size, ANY);
    return status;
}

/* Finds the norm before the layer, the first that exists of the words. */
static attn_status place_norm_before(const struct places *places) {
    const char *words = places->stack->stack->norm;
    struct layer_norm *norm = &places->layer->norm_before;
    attn_status status = ATTN_OK;

    while (norm->kind != ATTN_NORM_NONE && norm->weight == NULL && status == ATTN_OK &&
           words != NULL && *words != '\0') {
        char name[64];
        size_t size = strcspn(words, " ");
        snprintf(name, sizeof name, "%.*s", (int)size, words);
        status = place_norm(places, "", name, places->stack->width, norm);
        words += size + strspn(words + size, " ");
    }
    return status;
}

/* Finds the norms of projected queries and keys. */
static attn_status place_head_norms(const struct places *places) {
    const struct family *family = places->family;
    struct layer *layer = places->layer;
    const char *module = places->stack->stack->module;
    size_t queries = layer->head_norm_whole ? layer->num_heads : 1;
    size_t keys = layer->head_norm_whole ? layer->num_kv_heads : 1;
    char name[MATCH_NAME_SIZE];

    if (layer->query_norm.kind == ATTN_NORM_NONE)
        return ATTN_OK;
    attn_status status = place_norm(places, module, family->query_norm,
                                    queries * layer->head_size, &layer->query_norm);
    if (status == ATTN_OK)
        status = place_norm(places, module, family->key_norm, keys * layer->head_size,
                            &layer->key_norm);
    if (status != ATTN_OK)
        return status;
    bool has_query = layer->query_norm.weight != NULL;
    if (has_query && layer->key_norm.weight != NULL)
        return ATTN_OK;
    match_name(places->stack, layer->index, module,
               has_query ? family->key_norm : family->query_norm, ".weight", name);
    return refuse_missing_tensor(places, name);
}

/* Finds the sinks, and the table of the bias by distance: of this layer, of the first
 * one, or of the whole stack. */
static attn_status place_tables(const struct places *places) {
    const struct family *family = places->family;
    struct layer *layer = places->layer;
    char name[MATCH_NAME_SIZE] = "";
    attn_status status = ATTN_OK;

    if (family->sinks != NULL) {
        layer->sinks = find_in_module(places, layer->index, family->sinks, "", name);
        if (layer->sinks == NULL)
            return refuse_missing_tensor(places, name);
        status = check_place(places, layer->sinks, layer->num_heads, ANY);
    }
    if (status != ATTN_OK || layer->bias.kind != ATTN_BIAS_BUCKETS)
        return status;

    if (family->bias_outside) {
        snprintf(name, sizeof name, "%s%s", places->stack->prefix, family->bias_table);
        layer->bias.table = folder_tensors_find(places->tensors, name);
    } else {
        layer->bias.table =
            find_in_module(places, family->bias_every_layer ? layer->index : 0,
                           family->bias_table, "", name);
    }
    if (layer->bias.table == NULL)
        return refuse_missing_tensor(places, name);
    return check_place(places, layer->bias.table, layer->bias.table_rows,
                       layer->num_heads);
}

static bool is_place(const struct folder_tensor *tensor,
                     const struct folder_tensor *place) {
    return place != NULL && tensor == place;
}

/* Returns whether the layer uses the tensor, or its family ignores it. */
static bool is_known_tensor(const struct places *places,
                            const struct folder_tensor *tensor, const char *name) {
    const struct layer *layer = places->layer;
    const struct layer_norm *const norms[] = {&layer->query_norm, &layer->key_norm,
                                              &layer->norm_before};

    for (size_t i = 0; i < NUM_LAYER_LINEARS; i++) {
        if (is_place(tensor, layer->linears[i].weight) ||
            is_place(tensor, layer->linears[i].bias))
            return true;
    }
    for (size_t i = 0; i < sizeof norms / sizeof norms[0]; i++) {
        if (is_place(tensor, norms[i]->weight) || is_place(tensor, norms[i]->bias))
            return true;
    }
    /* a table that cross attention of old T5 files has is not used there */
    bool is_table = places->family->bias_table != NULL &&
                    strcmp(name, places->family->bias_table) == 0;
    return is_place(tensor, layer->sinks) || is_table ||
           family_words_have(places->family->ignored, name);
}

/* Says what a tensor of the module is, as far as its name tells. */
static const char *describe_unknown(const char *name) {
    static const struct {
        const char *part, *text;
    } known[] = {
        {"lora_", "it is of LoRA; merge the adapter with peft's merge_and_unload()"},
        {"base_layer", "it is of LoRA; merge the adapter with peft's merge_and_unload()"},
        {"distance_embedding", "attnd does not compute relative_key positions"},
        {"q_a_proj", "attnd does not compute multi-head latent attention"},
        {"kv_a_proj", "attnd does not compute multi-head latent attention"},
        {"gate", "attnd does not compute gates in attention"},
        {"scale", "the weights are quantized; save them in bfloat16 or float32"},
        {"qweight", "the weights are quantized; save them in bfloat16 or float32"},
        {"qzeros", "the weights are quantized; save them in bfloat16 or float32"},
        {"absmax", "the weights are quantized; save them in bfloat16 or float32"},
        {"SCB", "the weights are quantized; save them in bfloat16 or float32"},
    };

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strstr(name, known[i].part) != NULL)
            return known[i].text;
    }
    return "it might change the results";
}

/* Refuses tensors of the module that attnd does not know. */
static attn_status check_module(const struct places *places) {
    char module[MATCH_NAME_SIZE];

    match_name(places->stack, places->layer->index, places->stack->stack->module, "", "",
               module);
    size_t size = strlen(module);
    for (size_t i = folder_tensors_lower(places->tensors, module);
         i < places->tensors->count; i++) {
        const struct folder_tensor *tensor = &places->tensors->items[i];
        if (strncmp(tensor->name, module, size) != 0)
            break;
        if (is_known_tensor(places, tensor, tensor->name + size))
            continue;
        return error_set(places->ret_error, ATTN_E_UNSUPPORTED,
                         "tensor '%.120s' is not known of family %s: %s", tensor->name,
                         places->family->type, describe_unknown(tensor->name + size));
    }
    return ATTN_OK;
}

attn_status places_find(const struct match *match, const struct match_stack *stack,
                        const struct folder_tensors *tensors,
                        const struct layer_biases *biases, struct layer *layer,
                        attn_error *ret_error) {
    const struct places places = {.family = match->family,
                                  .stack = stack,
                                  .tensors = tensors,
                                  .biases = biases,
                                  .layer = layer,
                                  .ret_error = ret_error};

    attn_status status = place_linears(&places);
    if (status == ATTN_OK)
        status = place_head_norms(&places);
    if (status == ATTN_OK)
        status = place_norm_before(&places);
    if (status == ATTN_OK)
        status = place_tables(&places);
    if (status == ATTN_OK)
        status = check_module(&places);
    return status;
}
