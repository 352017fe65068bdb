/* SPDX-License-Identifier: Apache-2.0 */
/* locate.c: finds each tensor of a layer by its name. */
#include "weights/families/locate/locate.h"

#include "base/error.h"
#include "base/size.h"
#include "weights/families/locate/locator.h"
#include "weights/families/locate/norms.h"

#include <stdio.h>
#include <string.h>

/* Finds the weight and the bias of a linear, whose tensor has `rows` in all. */
static void locate_linear(const struct locator *locator, size_t which,
                          const char *module_name, size_t rows) {
    const struct family *family = locator->family;
    const char *keys = family->biases.keys;
    struct layer_linear *linear = &locator->layer->linears[which];
    char name[MATCH_NAME_SIZE], bias_name[MATCH_NAME_SIZE];
    bool is_key = which == LAYER_KEY || which == LAYER_VALUE;
    size_t index = is_key ? locator->layer->lender : locator->layer->index;

    linear->transposed = family->weights.transposed;
    linear->weight = locator_find(locator, index, module_name, ".weight", name);
    if (linear->weight == NULL) {
        locator_refuse_missing(locator, name);
        return;
    }
    /* keys of cross attention come from another model, which may have another width */
    if (locator->layer->cross && is_key && linear->weight->rank == 2)
        linear->in_size = linear->weight->shape[linear->transposed ? 0 : 1];
    if (linear->transposed)
        locator_check(locator, linear->weight, linear->in_size, rows);
    else
        locator_check(locator, linear->weight, rows, linear->in_size);

    const char *own = linear->bias_name;
    linear->bias = locator_find(locator, index, own != NULL ? own : module_name,
                                own != NULL ? "" : ".bias", bias_name);
    if (linear->has_bias && linear->bias == NULL)
        locator_refuse_missing(locator, bias_name);
    if (!linear->has_bias && !linear->may_have_bias && linear->bias != NULL)
        error_keep(locator->error, ATTN_E_FORMAT,
                   "tensor '%.120s' is a bias that %s%s%.*s does not have; is it the "
                   "config.json of this model?",
                   bias_name, family->type, keys != NULL ? " without " : "",
                   keys != NULL ? (int)strcspn(keys, "=") : 0, keys);
    locator_check(locator, linear->bias, rows, VECTOR);
}

/* Returns whether queries have a tensor, and keys and values one together. */
static bool has_queries_apart(const struct locator *locator) {
    const char *const *names = locator->stack->stack->names;
    return names[LAYER_KEY] != NULL && strcmp(names[LAYER_KEY], names[LAYER_VALUE]) == 0;
}

/* Sets which rows are the heads of a linear. */
static void set_linear_rows(const struct locator *locator, size_t which,
                            struct layer_linear *linear) {
    const struct layer *layer = locator->layer;
    size_t size = layer->head_size, heads = layer->num_heads;
    size_t kv_heads = layer->num_kv_heads, shared = heads / kv_heads;
    size_t plain = size - layer->latent.shared; /* what a key head has by itself */
    const size_t blocks[] = {0, heads * size, (heads + kv_heads) * size};
    const size_t groups[] = {0, shared * size, (shared + 1) * size};
    const size_t sizes[NUM_LAYER_LINEARS] = {[LAYER_QUERY] = size,
                                             [LAYER_KEY] = plain,
                                             [LAYER_VALUE] = layer->value_size,
                                             [LAYER_GATE] = layer->value_size};
    const size_t quarters[] = {0, heads / 2 * size, heads / 4 * size};
    enum family_split split = locator->family->weights.split;
    bool of_query = which == LAYER_QUERY || which == LAYER_GATE;

    linear->num_heads = of_query ? heads : kv_heads;
    linear->head_rows = sizes[which];
    linear->group_heads = linear->num_heads;
    linear->group_rows = linear->num_heads * linear->head_rows;
    if (split == SPLIT_GATED && of_query) {
        linear->first_row = which == LAYER_GATE ? size : 0;
        linear->group_heads = 1;
        linear->group_rows = 2 * size;
    } else if (which == LAYER_GATE) {
        linear->first_row = 0; /* of a tensor of its own */
    } else if (has_queries_apart(locator)) {
        linear->first_row = which == LAYER_VALUE ? kv_heads * size : 0;
    } else if (split == SPLIT_BLOCKS || (split == SPLIT_ONE_KEY && kv_heads == 1)) {
        linear->first_row = blocks[which];
    } else if (split == SPLIT_QUARTERS) {
        linear->first_row = quarters[which];
        linear->group_heads = heads / 4;
        linear->group_rows = heads / 4 * 3 * size;
    } else if (split == SPLIT_LATENT && which != LAYER_QUERY) {
        linear->first_row = which == LAYER_VALUE ? plain : 0;
        linear->group_heads = 1;
        linear->group_rows = plain + layer->value_size;
    } else if (split == SPLIT_GROUPS || split == SPLIT_ONE_KEY) {
        linear->first_row = groups[which];
        linear->group_heads = which == LAYER_QUERY ? shared : 1;
        linear->group_rows = (shared + 1) * size + layer->value_size;
    }
}

/* Sets a linear of `rows` outputs, which are not divided into heads. */
static void set_whole(struct layer_linear *linear, size_t in_size, size_t rows) {
    linear->in_size = in_size;
    linear->num_heads = linear->group_heads = 1;
    linear->head_rows = linear->group_rows = rows;
}

/* Finds the linears of latent attention, but for the output projection. `queries` and
 * `values` are the rows of all heads. */
static void locate_latents(const struct locator *locator, size_t queries, size_t values) {
    struct layer *layer = locator->layer;
    struct layer_linear *linears = layer->linears;
    const struct layer_latent *latent = &layer->latent;
    size_t width = locator->stack->width, rows = latent->key + latent->shared;
    size_t keys = queries - layer->num_heads * latent->shared;

    for (size_t which = LAYER_QUERY; which <= LAYER_VALUE; which++)
        set_linear_rows(locator, which, &linears[which]);
    linears[LAYER_KEY].in_size = linears[LAYER_VALUE].in_size = latent->key;
    set_whole(&linears[LAYER_LATENT_KEY], width, rows);
    linears[LAYER_QUERY].in_size = latent->query > 0 ? latent->query : width;
    if (latent->query > 0) {
        set_whole(&linears[LAYER_LATENT_QUERY], width, latent->query);
        locate_linear(locator, LAYER_LATENT_QUERY, "q_a_proj", latent->query);
    }
    locate_linear(locator, LAYER_QUERY, latent->query > 0 ? "q_b_proj" : "q_proj",
                  queries);
    locate_linear(locator, LAYER_LATENT_KEY, locator->stack->stack->names[0], rows);
    locate_linear(locator, LAYER_KEY, "kv_b_proj", keys + values);
    locate_linear(locator, LAYER_VALUE, "kv_b_proj", keys + values);
}

/* Finds the gate, of `hidden` rows: in a tensor of its own, or in that of queries. */
static void locate_gate(const struct locator *locator, size_t hidden) {
    const char *const *names = locator->stack->stack->names;
    bool gated = locator->family->weights.split == SPLIT_GATED;
    struct layer_linear *gate = &locator->layer->linears[LAYER_GATE];

    if (!gated && names[LAYER_GATE] == NULL)
        return;
    gate->in_size = locator->stack->width;
    set_linear_rows(locator, LAYER_GATE, gate);
    locate_linear(locator, LAYER_GATE, names[gated ? LAYER_QUERY : LAYER_GATE],
                  gated ? 2 * hidden : hidden);
}

/* Finds the projections of queries, keys and values, of so many rows, and the gate. */
static void locate_inputs(const struct locator *locator, size_t hidden, size_t kv_hidden,
                          size_t values, size_t outputs) {
    const char *const *names = locator->stack->stack->names;
    struct layer *layer = locator->layer;
    bool gated = locator->family->weights.split == SPLIT_GATED;
    bool separate = gated || locator->family->weights.split == SPLIT_SEPARATE;
    bool apart = has_queries_apart(locator);

    for (size_t which = LAYER_QUERY; which <= LAYER_VALUE; which++) {
        struct layer_linear *linear = &layer->linears[which];
        const size_t all_rows[] = {gated ? 2 * hidden : hidden, kv_hidden, values};
        size_t rows = all_rows[which], total = hidden + kv_hidden + values;

        if (which == LAYER_VALUE && layer->keys_are_values) {
            *linear = layer->linears[LAYER_KEY];
            continue;
        }
        linear->in_size = locator->stack->width;
        set_linear_rows(locator, which, linear);
        if (apart)
            total = which == LAYER_QUERY ? hidden : kv_hidden + values;
        locate_linear(locator, which, names[separate || apart ? which : 0],
                      separate ? rows : total);
    }
    locate_gate(locator, outputs);
}

static void locate_linears(const struct locator *locator) {
    struct layer *layer = locator->layer;
    enum family_split split = locator->family->weights.split;
    size_t width = locator->stack->width, hidden, kv_hidden, values, outputs, packed;

    if (!size_mul(layer->num_heads, layer->head_size, &hidden) ||
        !size_mul(layer->num_kv_heads, layer->head_size, &kv_hidden) ||
        !size_mul(layer->num_kv_heads, layer->value_size, &values) ||
        !size_mul(layer->num_heads, layer->value_size, &outputs) ||
        !size_mul(hidden, 2, &packed) || !size_add(kv_hidden, values, &packed) ||
        !size_add(hidden, packed, &packed)) {
        error_keep(locator->error, ATTN_E_OVERFLOW, "the heads are too large");
        return;
    }
    if (split == SPLIT_QUARTERS && layer->num_heads % 4 != 0) {
        error_keep(locator->error, ATTN_E_VALUE,
                   "%zu heads lie in quarters, so their number must be divisible by 4",
                   layer->num_heads);
        return;
    }
    if (split == SPLIT_LATENT)
        locate_latents(locator, hidden, values);
    else
        locate_inputs(locator, hidden, kv_hidden, values, outputs);
    set_whole(&layer->linears[LAYER_OUTPUT], outputs, width);
    locate_linear(locator, LAYER_OUTPUT, locator->stack->stack->names[LAYER_OUTPUT],
                  width);
}

/* Finds the sinks, and the table of the bias by distance: in the module of a layer, or
 * under the prefix. */
static void locate_tables(const struct locator *locator) {
    const char *table = locator->family->distance.table;
    struct layer *layer = locator->layer;
    char name[MATCH_NAME_SIZE] = "";

    if (layer->sinks_name != NULL) {
        layer->sinks = locator_find(locator, layer->index, layer->sinks_name, "", name);
        if (layer->sinks == NULL)
            locator_refuse_missing(locator, name);
        locator_check(locator, layer->sinks, layer->num_heads, VECTOR);
    }
    if (layer->bias.kind != ATTN_BIAS_BUCKETS)
        return;

    if (table[0] == '/') {
        snprintf(name, sizeof name, "%s%s", locator->stack->prefix, table + 1);
        layer->bias.table = folder_tensors_find(locator->tensors, name);
    } else {
        layer->bias.table =
            locator_find(locator, layer->bias.table_layer, table, "", name);
    }
    if (layer->bias.table == NULL)
        locator_refuse_missing(locator, name);
    locator_check(locator, layer->bias.table, layer->bias.table_rows, layer->num_heads);
}

static bool begins_with(const char *name, const char *start, size_t size) {
    return start != NULL && strncmp(name, start, size) == 0;
}

/* Returns whether the tensor is the weight of a norm of one of several heads, or of the
 * keys or values of a layer that takes those of another. */
static bool is_head_tensor(const struct locator *locator, const char *name) {
    const char *const *linears = locator->stack->stack->names;
    const struct layer *layer = locator->layer;
    const char *const norms[] = {layer->query_norm.name, layer->key_norm.name};
    const char *const unused[] = {linears[LAYER_KEY], linears[LAYER_VALUE], norms[1]};

    for (size_t i = 0; layer->query_norm.of_heads != NULL && i < 2; i++) {
        if (strstr(name, ".bias") == NULL &&
            begins_with(name, norms[i], strcspn(norms[i], "#")))
            return true;
    }
    for (size_t i = 0; layer->borrows && i < 3; i++) {
        size_t size = unused[i] != NULL ? strlen(unused[i]) : 0;
        if (begins_with(name, unused[i], size) && name[size] == '.')
            return true;
    }
    return false;
}

/* Returns whether a tensor changes nothing in any family: rotary frequencies, which old
 * files have, and a scale of a cache of fewer bits, which attnd does not have. */
static bool is_beside(const struct safetensors_tensor *tensor, const char *name) {
    static const char scales[] = "k_scale v_scale q_scale kv_scale k_proj.k_scale "
                                 "v_proj.v_scale qkv_proj.k_scale qkv_proj.v_scale "
                                 "k_proj.output_scale v_proj.output_scale";

    return strcmp(name, "rotary_emb.inv_freq") == 0 ||
           (tensor->elements == 1 && wordlist_has(scales, name));
}

/* Returns whether the layer uses the tensor, or its family ignores it. */
static bool is_known_tensor(const struct locator *locator,
                            const struct safetensors_tensor *tensor, const char *name) {
    const struct layer *layer = locator->layer;
    const struct layer_norm *const norms[] = {
        &layer->query_norm,  &layer->key_norm,          &layer->out_norm,
        &layer->norm_before, &layer->latent.query_norm, &layer->latent.key_norm};

    for (size_t i = 0; i < NUM_LAYER_LINEARS; i++) {
        if (tensor == layer->linears[i].weight || tensor == layer->linears[i].bias)
            return true;
    }
    for (size_t i = 0; i < sizeof norms / sizeof norms[0]; i++) {
        if (tensor == norms[i]->weight || tensor == norms[i]->bias)
            return true;
    }
    /* a table that cross attention of old T5 files has is not used there */
    bool is_table = locator->family->distance.table != NULL &&
                    strcmp(name, locator->family->distance.table) == 0;
    return tensor == layer->sinks || is_table || is_head_tensor(locator, name) ||
           is_beside(tensor, name) ||
           wordlist_has(locator->family->weights.ignored, name);
}

/* Says what a tensor of the module is, as far as its name tells. */
static const char *describe_unknown(const char *name) {
    static const struct {
        const char *part, *text;
    } known[] = {
        {"lora_", "it is of LoRA; merge the adapter with peft's merge_and_unload()"},
        {"base_layer", "it is of LoRA; merge the adapter with peft's merge_and_unload()"},
        {"distance_embedding", "attnd does not compute relative_key positions"},
        {"q_a_", "it is of latent attention, which config.json does not ask for"},
        {"kv_a_", "it is of latent attention, which config.json does not ask for"},
        {"gate", "attnd knows no gate of this family"},
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
static void check_module(const struct locator *locator) {
    const struct folder_tensors *tensors = locator->tensors;
    char module[MATCH_NAME_SIZE];

    match_name(locator->stack, locator->layer->index, locator->stack->stack->module, "",
               "", module);
    size_t size = strlen(module);
    for (size_t i = folder_tensors_lower(tensors, module); i < tensors->count; i++) {
        const struct safetensors_tensor *tensor = tensors->items[i];
        if (strncmp(tensor->name, module, size) != 0)
            break;
        if (!is_known_tensor(locator, tensor, tensor->name + size))
            error_keep(locator->error, ATTN_E_UNSUPPORTED,
                       "tensor '%.120s' is not known of family %s: %s", tensor->name,
                       locator->family->type, describe_unknown(tensor->name + size));
    }
}

attn_status locate_tensors(const struct match *match, const struct match_stack *stack,
                           const struct folder_tensors *tensors, struct layer *layer) {
    const struct locator locator = {.family = match->family,
                                    .stack = stack,
                                    .tensors = tensors,
                                    .layer = layer,
                                    .error = stack->section.error};

    locate_linears(&locator);
    locate_norms(&locator);
    locate_tables(&locator);
    check_module(&locator);
    return locator.error->status;
}
