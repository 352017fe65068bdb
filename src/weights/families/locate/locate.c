/* SPDX-License-Identifier: Apache-2.0 */
/* locate.c: finds each tensor of a layer by its name. */
#include "weights/families/locate/locate.h"

#include "base/error.h"
#include "base/size.h"
#include "weights/families/fp8.h"
#include "weights/families/locate/locator.h"
#include "weights/layer/make.h"

#include <stdio.h>
#include <string.h>

/* Finds the weight and the bias of a linear, whose tensor has `rows` in all. */
static void locate_linear(const struct locator *locator, size_t which,
                          const char *module_name, size_t rows) {
    const struct family *family = locator->family;
    const char *keys = family->biases.keys;
    struct layer_linear *linear = &locator->layer->linears[which];
    char name[MATCH_NAME_SIZE], bias_name[MATCH_NAME_SIZE];
    bool is_key = which == ATTN_KEY || which == ATTN_VALUE;
    size_t index = is_key ? locator->layer->lender : locator->layer->info.layer;

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
                   bias_name, locator->type, keys != NULL ? " without " : "",
                   keys != NULL ? (int)strcspn(keys, "=") : 0, keys);
    locator_check(locator, linear->bias, rows, VECTOR);
}

/* The tensor of a linear has `groups` times some heads of each member. */
struct row_split {
    size_t members[3], num_members, groups;
};

static struct row_split find_row_split(const struct locator *locator, size_t which) {
    enum family_split split = locator->family->weights.split;
    size_t heads = locator->layer->info.num_heads,
           kv_heads = locator->layer->info.num_kv_heads;
    bool of_query = which == ATTN_QUERY || which == ATTN_GATE;
    bool of_keys = which == ATTN_KEY || which == ATTN_VALUE;
    const char *const *names = locator->stack->stack->names;
    bool apart =
        split == SPLIT_LATENT || /* keys and values have a tensor together */
        (names[ATTN_KEY] != NULL && strcmp(names[ATTN_KEY], names[ATTN_VALUE]) == 0);
    bool blocks = split == SPLIT_BLOCKS || (split == SPLIT_ONE_KEY && kv_heads == 1);

    if (split == SPLIT_GATED && of_query)
        return (struct row_split){{ATTN_QUERY, ATTN_GATE}, 2, heads};
    if (apart && of_keys)
        return (struct row_split){
            {ATTN_KEY, ATTN_VALUE}, 2, split == SPLIT_LATENT ? kv_heads : 1};
    if (apart || which > ATTN_VALUE || split == SPLIT_SEPARATE || split == SPLIT_GATED)
        return (struct row_split){{which}, 1, 1};
    if (split == SPLIT_QUARTERS)
        return (struct row_split){{ATTN_QUERY, ATTN_VALUE, ATTN_KEY}, 3, 4};
    return (struct row_split){
        {ATTN_QUERY, ATTN_KEY, ATTN_VALUE}, 3, blocks ? 1 : kv_heads};
}

/* Sets the input of a linear, and which rows are its heads. Returns how many rows its
 * tensor has. */
static size_t set_linear_rows(const struct locator *locator, size_t which) {
    const attn_model_info *info = &locator->layer->info;
    struct layer_linear *linear = &locator->layer->linears[which];
    const struct row_split split = find_row_split(locator, which);
    size_t width = locator->stack->width, shared = info->latent.shared;
    size_t query_in = info->latent.query > 0 ? info->latent.query : width;
    size_t key_in = info->latent.key > 0 ? info->latent.key - shared : width;
    const struct {
        size_t heads, rows, in_size;
    } sizes[LAYER_NUM_LINEARS] = {
        [ATTN_QUERY] = {info->num_heads, info->width.score, query_in},
        [ATTN_KEY] = {info->num_kv_heads, info->width.score - shared, key_in},
        [ATTN_VALUE] = {info->num_kv_heads, info->width.head, key_in},
        [ATTN_OUTPUT] = {1, width, size_product(info->num_heads, info->width.head)},
        [ATTN_GATE] = {info->num_heads, info->width.head, width},
        [ATTN_LATENT_QUERY] = {1, info->latent.query, width},
        [ATTN_LATENT_KEY] = {1, info->latent.key, width},
        [LAYER_POSITION_KEY] = {info->num_heads, info->width.score, width},
        [LAYER_POSITION_QUERY] = {info->num_heads, info->width.score, width},
    };

    linear->in_size = sizes[which].in_size;
    linear->num_heads = sizes[which].heads;
    linear->head_rows = sizes[which].rows;
    linear->group_heads = linear->num_heads / split.groups;
    linear->group_rows = 0;
    for (size_t i = 0; i < split.num_members; i++) {
        size_t member = split.members[i];
        if (member == which)
            linear->first_row = linear->group_rows;
        linear->group_rows += sizes[member].heads / split.groups * sizes[member].rows;
    }
    return split.groups * linear->group_rows;
}

/* Returns the module with the tensor of a linear; NULL: the layer has no such linear. */
static const char *name_linear(const struct locator *locator, size_t which) {
    const char *const *names = locator->stack->stack->names;
    const attn_model_info *info = &locator->layer->info;
    bool is_gated = locator->family->weights.split == SPLIT_GATED;

    if (which >= LAYER_POSITION_KEY)
        return locator->layer->bias.projections[which - LAYER_POSITION_KEY];
    if (which == ATTN_LATENT_QUERY)
        return info->latent.query > 0 ? "q_a_proj" : NULL;
    if (which == ATTN_LATENT_KEY)
        return info->latent.key > 0 ? names[0] : NULL;
    if (which == ATTN_QUERY && info->latent.key > 0)
        return info->latent.query > 0 ? "q_b_proj" : "q_proj";
    if (which <= ATTN_VALUE && info->latent.key > 0)
        return "kv_b_proj";
    if (which == ATTN_GATE && is_gated)
        return names[ATTN_QUERY];
    return which <= ATTN_VALUE && names[which] == NULL ? names[0] : names[which];
}

/* Counts of config.json, even where a family doubles them. */
_Static_assert(SIZE_MAX / CONFIG_COUNT_MAX / CONFIG_COUNT_MAX >= 64,
               "rows and columns of all heads overflow");

static void locate_linears(const struct locator *locator) {
    static const size_t order[LAYER_NUM_LINEARS] = {
        ATTN_LATENT_QUERY, ATTN_QUERY,         ATTN_LATENT_KEY,
        ATTN_KEY,          ATTN_VALUE,         ATTN_GATE,
        ATTN_OUTPUT,       LAYER_POSITION_KEY, LAYER_POSITION_QUERY};
    struct layer *layer = locator->layer;

    if (locator->family->weights.split == SPLIT_QUARTERS &&
        layer->info.num_heads % 4 != 0) {
        error_keep(locator->error, ATTN_E_VALUE,
                   "%zu heads lie in quarters, so their number must be divisible by 4",
                   layer->info.num_heads);
        return;
    }

    for (size_t i = 0; i < LAYER_NUM_LINEARS; i++) {
        size_t which = order[i];
        const char *name = name_linear(locator, which);

        if (which == ATTN_VALUE && layer->keys_are_values)
            layer->linears[which] = layer->linears[ATTN_KEY];
        else if (name != NULL)
            locate_linear(locator, which, name, set_linear_rows(locator, which));
    }
}

/* Returns the tensor `name` + `ending`, [rows, columns], which must be there: in the
 * module of a layer, or behind a '/' under the prefix. */
static const struct safetensors_tensor *locate_table(const struct locator *locator,
                                                     size_t index, const char *name,
                                                     const char *ending, size_t rows,
                                                     size_t columns) {
    const struct safetensors_tensor *tensor;
    char found[MATCH_NAME_SIZE] = "";

    if (name[0] == '/') {
        snprintf(found, sizeof found, "%s%s%s", locator->stack->prefix, name + 1, ending);
        tensor = tensor_view_find(locator->tensors, found);
    } else {
        tensor = locator_find(locator, index, name, ending, found);
    }
    if (tensor == NULL)
        locator_refuse_missing(locator, found);
    locator_check(locator, tensor, rows, columns);
    return tensor;
}

/* Finds the sinks, and the table of the bias by distance. */
static void locate_tables(const struct locator *locator) {
    struct layer *layer = locator->layer;
    struct layer_bias *bias = &layer->bias;

    if (layer->sinks_name != NULL)
        layer->sinks = locate_table(locator, layer->info.layer, layer->sinks_name, "",
                                    layer->info.num_heads, VECTOR);
    if (bias->table_rows > 0)
        bias->table =
            locate_table(locator, bias->table_layer, locator->family->distance.table, "",
                         bias->table_rows, bias->table_columns);
    if (bias->norm.name == NULL)
        return;
    bias->norm.weight =
        locate_table(locator, 0, bias->norm.name, ".weight", bias->table_columns, VECTOR);
    bias->norm.bias =
        locate_table(locator, 0, bias->norm.name, ".bias", bias->table_columns, VECTOR);
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
    const char *const unused[] = {linears[ATTN_KEY], linears[ATTN_VALUE], norms[1]};

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
 * files have, and scales of what a cache, or a product, has in fewer bits, which attnd
 * does not have. One number is such a scale whatever config.json says. */
static bool is_beside(const struct locator *locator,
                      const struct safetensors_tensor *tensor, const char *name) {
    const struct fp8 *fp8 = locator->tensors->fp8;
    static const char scales[] = "activation_scale input_scale output_scale k_scale "
                                 "v_scale kv_scale q_scale prob_scale";
    const char *dot = strrchr(name, '.');

    return strcmp(name, "rotary_emb.inv_freq") == 0 ||
           ((tensor->elements == 1 || (fp8 != NULL && fp8->quantization != NULL)) &&
            wordlist_has(scales, dot != NULL ? dot + 1 : name));
}

/* Returns whether the layer uses the tensor, or its family ignores it. */
static bool is_known_tensor(const struct locator *locator,
                            const struct safetensors_tensor *tensor, const char *name) {
    const struct layer *layer = locator->layer;
    const struct layer_norm *const norms[] = {
        &layer->query_norm,  &layer->key_norm,          &layer->out_norm,
        &layer->norm_before, &layer->latent_query_norm, &layer->latent_key_norm};

    for (size_t i = 0; i < LAYER_NUM_LINEARS; i++) {
        const struct layer_linear *linear = &layer->linears[i];
        const struct safetensors_scale *scale =
            linear->weight != NULL ? linear->weight->scale : NULL;
        if (tensor == linear->weight || tensor == linear->bias ||
            (scale != NULL && strcmp(tensor->name, scale->tensor.name) == 0))
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
           is_beside(locator, tensor, name) ||
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
    const struct tensor_view *tensors = locator->tensors;
    char module[MATCH_NAME_SIZE];

    match_name(locator->stack, locator->layer->info.layer, locator->stack->stack->module,
               "", "", module);
    size_t size = strlen(module);
    for (size_t i = tensor_view_lower(tensors, module); i < tensors->count; i++) {
        const struct safetensors_tensor *tensor = &tensors->tensors[i];
        if (strncmp(tensor->name, module, size) != 0)
            break;
        if (!is_known_tensor(locator, tensor, tensor->name + size))
            error_keep(locator->error, ATTN_E_UNSUPPORTED,
                       "tensor '%.120s' is not known of family %s: %s", tensor->name,
                       locator->type, describe_unknown(tensor->name + size));
    }
}

attn_status locate_tensors(const struct match *match, const struct match_stack *stack,
                           const struct tensor_view *tensors, struct layer *layer) {
    const struct locator locator = {.family = match->family,
                                    .type = match->type,
                                    .stack = stack,
                                    .tensors = tensors,
                                    .layer = layer,
                                    .error = stack->section.error};

    locate_linears(&locator);
    locate_norms(&locator);
    locate_tables(&locator);
    check_module(&locator);
    layer_complete(layer);
    return locator.error->status;
}
