/* SPDX-License-Identifier: Apache-2.0 */
/* match.c: finds the family of a folder by how the names of its tensors end. The text
 * before that ending is the prefix. A model of several towers may repeat the names in
 * each, so each stack must have exactly one prefix. */
#include "weights/families/match.h"

#include "base/error.h"
#include "weights/families/kinds.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

struct layer_source match_source(const struct match *match,
                                 const struct match_stack *stack, size_t index) {
    return (struct layer_source){.match = match,
                                 .stack = stack,
                                 .family = match->family,
                                 .section = &stack->section,
                                 .num_layers = stack->num_layers,
                                 .index = index};
}

bool match_name(const struct match_stack *stack, size_t index, const char *module,
                const char *name, const char *ending, char ret_name[MATCH_NAME_SIZE]) {
    const char *layer = stack->stack->layer;
    size_t before = strcspn(layer, "#");
    int size =
        snprintf(ret_name, MATCH_NAME_SIZE, "%s%.*s%zu%s%s%s%s", stack->prefix,
                 (int)before, layer, index, layer + before + 1, module, name, ending);
    return size > 0 && size < MATCH_NAME_SIZE;
}

/* Finds the weight of the first linear of a layer; NULL when there is none. */
static const struct safetensors_tensor *
find_first_weight(const struct match_stack *stack, const struct tensor_view *tensors,
                  size_t index, char ret_name[MATCH_NAME_SIZE]) {
    if (!match_name(stack, index, stack->stack->module, stack->stack->names[0], ".weight",
                    ret_name))
        return NULL;
    return tensor_view_find(tensors, ret_name);
}

/* Returns whether a prefix is that of layers which predict more tokens. */
static bool is_of_more_layers(const char *prefix, size_t size) {
    return size >= 4 && strncmp(prefix + size - 4, "mtp.", 4) == 0 &&
           (size == 4 || prefix[size - 5] == '.');
}

/* Sets stack->prefix, which contains `under` unless that is NULL. *ret_found says whether
 * the folder has tensors of the stack. */
static attn_status find_stack_prefix(struct match_stack *stack, const char *under,
                                     const struct tensor_view *tensors,
                                     const char *wanted, bool *ret_found,
                                     attn_error *ret_error) {
    char ending[MATCH_NAME_SIZE], list[200] = ""; /* of prefixes, for an error */
    size_t used = 0, count = 0;

    stack->prefix[0] = '\0';
    match_name(stack, stack->first, stack->stack->module, stack->stack->names[0],
               ".weight", ending);
    size_t ending_size = strlen(ending);
    for (size_t i = 0; i < tensors->count; i++) {
        const char *name = tensors->tensors[i].name;
        size_t size = strlen(name), prefix_size = size - ending_size;
        /* the ending must begin after a dot, not inside a word */
        if (size < ending_size || prefix_size >= sizeof stack->prefix ||
            strcmp(name + prefix_size, ending) != 0 ||
            (prefix_size > 0 && name[prefix_size - 1] != '.'))
            continue;
        if (wanted == NULL && is_of_more_layers(name, prefix_size))
            continue;
        if (wanted != NULL &&
            (strlen(wanted) != prefix_size || strncmp(name, wanted, prefix_size) != 0))
            continue;
        const char *found_under = under == NULL ? name : strstr(name, under);
        if (found_under == NULL || found_under > name + prefix_size)
            continue;
        if (count == 0)
            snprintf(stack->prefix, sizeof stack->prefix, "%.*s", (int)prefix_size, name);
        size_t needed = strlen(", prefix=") + prefix_size + 1;
        if (used + needed <= sizeof list)
            used += (size_t)snprintf(list + used, needed, "%sprefix=%.*s",
                                     count > 0 ? ", " : "", (int)prefix_size, name);
        count++;
    }

    *ret_found = count > 0;
    if (count <= 1)
        return ATTN_OK;
    return error_set(ret_error, ATTN_E_FORMAT,
                     "%zu tensors end in '%.80s'; choose one of their prefixes: %s",
                     count, ending, list);
}

/* Compares the layers that the folder has with those of config.json that attend. */
static attn_status check_layers(const struct match *match,
                                const struct match_stack *stack,
                                const struct tensor_view *tensors,
                                attn_error *ret_error) {
    char name[MATCH_NAME_SIZE];

    for (size_t i = 0; i < stack->num_layers; i++) {
        const struct layer_source layer = match_source(match, stack, i);
        if (kind_attends(&layer) && find_first_weight(stack, tensors, i, name) == NULL)
            return error_set(
                ret_error, ATTN_E_FORMAT,
                "tensor '%.120s' is missing, but the number of layers in config.json is "
                "%zu; copy the folder again",
                name, stack->num_layers);
    }
    size_t end =
        stack->num_layers + config_get_index(&stack->section, stack->stack->more_keys);
    if (find_first_weight(stack, tensors, end, name) == NULL)
        return ret_error->status;
    return error_set(
        ret_error, ATTN_E_FORMAT,
        "the number of layers in config.json is %zu, but there is a tensor '%.120s'; is "
        "it the config.json of this model?",
        stack->num_layers, name);
}

/* Names the keys that leave no layer with attention. */
static void refuse_no_attention(const struct family *family,
                                const struct config_section *section, size_t num_layers) {
    const struct family_layers *layers = &family->layers;
    const char *named = layers->types_keys;

    if (kind_count_layers(family, section) == 0) {
        bool listed = config_find(section, layers->list_keys, NULL) != NULL;
        named = listed ? layers->list_keys : layers->period_keys;
    }
    if (named == NULL || config_find(section, named, NULL) == NULL)
        named = "layer_types";
    error_keep(section->error, ATTN_E_VALUE,
               "by %.*s none of %zu layers has attention; is it the config.json of this "
               "model?",
               (int)strcspn(named, "="), named, num_layers);
}

/* Layers without attention cost no tensor, but time: each is looked up in lists that may
 * be as long. Models have hundreds. */
#define LAYERS_MAX 16384

/* Finds how many layers there are, and the first that attends. */
static void count_layers(const struct match *match, struct match_stack *stack) {
    const struct family *family = match->family;
    const struct config_section *section = &stack->section;
    const char *keys = stack->stack->layers_keys;
    size_t listed = kind_count_layers(family, section);
    bool counts =
        family->layers.types_keys != NULL && listed > 0 && !config_is_null(section, keys);

    stack->num_layers =
        config_get_count(section, keys, counts ? listed : stack->stack->layers);
    if (stack->num_layers > LAYERS_MAX) {
        error_keep(section->error, ATTN_E_VALUE,
                   "there are %zu layers, but attnd serves at most %d; correct %s",
                   stack->num_layers, LAYERS_MAX, keys);
        return;
    }
    struct layer_source layer = match_source(match, stack, 0);
    while (layer.index < stack->num_layers && !kind_attends(&layer))
        layer.index++;
    stack->first = layer.index;
    if (layer.index == stack->num_layers)
        refuse_no_attention(family, section, stack->num_layers);
}

/* Fills in a stack except its prefix. *ret_present says if config.json announces it. */
static attn_status describe_stack(const struct match *match, const struct stack *stack,
                                  const struct config_section *root,
                                  struct match_stack *ret_stack, bool *ret_present,
                                  attn_error *ret_error) {
    const struct family_text *text = match->text;
    char overriding[64] = "";

    *ret_stack = (struct match_stack){
        .stack = stack, .part = text != NULL ? "text." : stack->part, .section = *root};
    if (stack->section != NULL) {
        snprintf(overriding, sizeof overriding, "%s_dict", stack->section);
        ret_stack->section.object = json_object_get(root->object, stack->section);
        ret_stack->section.override = json_object_get(root->object, overriding);
    }
    const struct config_section *section = &ret_stack->section;

    *ret_present = stack->present == NULL || config_get_bool(section, stack->present);
    ret_stack->num_heads = config_get_count(section, stack->heads_keys, stack->heads);
    ret_stack->width = config_get_count(section, stack->width_keys, stack->width);
    if (*ret_present)
        count_layers(match, ret_stack);
    return ret_error->status;
}

/* Finds the stacks of match->family in the folder; num_stacks becomes 0 without any. */
static attn_status match_stacks(const struct config_section *root,
                                const struct tensor_view *tensors, const char *prefix,
                                struct match *match, attn_error *ret_error) {
    const struct family *family = match->family;
    const char *under = match->text != NULL ? match->text->under : NULL;

    match->num_stacks = 0;
    for (size_t i = 0; i < MATCH_STACKS_MAX && family->stacks[i].layer != NULL; i++) {
        const struct stack *announced = &family->stacks[i];
        struct match_stack *stack = &match->stacks[match->num_stacks];
        bool present, found = false;

        attn_status status =
            describe_stack(match, announced, root, stack, &present, ret_error);
        if (status == ATTN_OK && present)
            status = find_stack_prefix(stack, under, tensors, prefix, &found, ret_error);
        if (status != ATTN_OK)
            return status;
        if (present && !found && announced->present != NULL && match->num_stacks > 0)
            return error_set(ret_error, ATTN_E_FORMAT,
                             "%.*s is true, but no tensor has a name that ends in "
                             "'%s%s%s.weight' (# is 0); copy the folder again",
                             (int)strcspn(announced->present, "="), announced->present,
                             announced->layer, announced->module, announced->names[0]);
        match->num_stacks += found;
    }
    return ATTN_OK;
}

/* Returns whether the weights have the orientation of the family. Only shapes tell GPT-2,
 * which stores [in, out], from nanoGPT, which stores [out, in] under the same names. */
static bool is_oriented(const struct match *match, const struct tensor_view *tensors) {
    char name[MATCH_NAME_SIZE];
    const struct match_stack *stack = &match->stacks[0];
    const struct safetensors_tensor *weight =
        find_first_weight(stack, tensors, stack->first, name);

    return weight != NULL && weight->rank == 2 &&
           weight->shape[match->family->weights.transposed ? 0 : 1] == stack->width;
}

/* Explains why no entry of the table is for this model_type. */
static attn_status refuse_type(const char *type, attn_error *ret_error) {
    const char *anchor, *reason;

    if (type == NULL)
        return error_set(ret_error, ATTN_E_UNSUPPORTED,
                         "config.json has no model_type, so the family is not known%s",
                         REFUSAL_REMEDY);
    reason = family_refusal(type, &anchor);
    if (reason != NULL)
        return error_set(ret_error, ATTN_E_UNSUPPORTED,
                         "attnd does not compute family %.40s: %s "
                         "(docs/checkpoints.md#%s)%s",
                         type, reason, anchor, REFUSAL_REMEDY);
    return error_set(ret_error, ATTN_E_UNSUPPORTED,
                     "attnd does not know model_type '%.40s'; docs/checkpoints.md lists "
                     "the families%s",
                     type, REFUSAL_REMEDY);
}

/* Finds the entry for texts of that model_type, and what the text's own is. *config
 * becomes the text's object. */
static const struct family_text *find_text(const json_t **config, const char **type) {
    const struct family_text *text = *type != NULL ? family_find_text(*type) : NULL;

    if (text == NULL)
        return NULL;
    const json_t *section = json_object_get(*config, "text_config");
    const json_t *own = json_object_get(section, "model_type");
    bool fixed = strstr(text->otherwise, "_text") != NULL;
    *type = json_is_string(own) && !fixed ? json_string_value(own) : text->otherwise;
    *config = json_is_object(section) ? section : *config;
    return text;
}

attn_status match_check_type(const json_t *config, attn_error *ret_error) {
    const struct config_section root = {.object = config, .error = ret_error};
    const char *type = config_get_text(&root, "model_type", NULL);
    const struct family *family;

    if (ret_error->status != ATTN_OK)
        return ret_error->status;
    find_text(&config, &type);
    for (size_t i = 0; (family = family_get(i)) != NULL; i++) {
        if (family_find_type(family, config, type) != NULL)
            return ATTN_OK;
    }
    return refuse_type(type, ret_error);
}

/* Explains why the folder has no tensor of the family. */
static attn_status refuse_unmatched(const json_t *config, const struct match *match,
                                    attn_error *ret_error) {
    const struct stack *stack = &match->family->stacks[0];
    const json_t *quantized = json_object_get(config, "quantization_config");
    const char *method = json_string_value(json_object_get(quantized, "quant_method"));

    return error_set(
        ret_error, quantized != NULL ? ATTN_E_UNSUPPORTED : ATTN_E_FORMAT,
        "no tensor has a name that ends in '%s%s%s.weight', as those of family %.40s do "
        "(# is 0)%s%.20s%s",
        stack->layer, stack->module, stack->names[0], match->type,
        quantized != NULL ? "; the weights are quantized (" : "",
        quantized == NULL ? ""
        : method == NULL  ? "?"
                          : method,
        quantized != NULL ? "), save them in bfloat16 or float32" : "");
}

/* Returns what follows the words of a type in the name of a class, whatever their case
 * and signs; a text's may lack that word. NULL: it begins otherwise. */
static const char *skip_type(const char *name, const char *type) {
    for (; *type != '\0'; type++) {
        if (!isalnum((unsigned char)*type))
            continue;
        name += *name == '_';
        if (tolower((unsigned char)*name) != tolower((unsigned char)*type))
            return strncmp(type, "text", 4) == 0 ? name : NULL;
        name++;
    }
    return name + (*name == '_');
}

/* Returns whether a class has the mask of the family by its name. */
static bool is_known_class(const char *name, const char *type, bool decoder) {
    static const char endings[] =
        "Model TextModel VisionModel LMHeadModel TextLMHeadModel DoubleHeadsModel "
        "MTModel WithProjection TextModelWithProjection VisionModelWithProjection "
        "Backbone ForCausalLM ForCausalImageModeling ForConditionalGeneration "
        "ForPreTraining ForQuestionAnswering ForMultipleChoice ForCTC ForXVector "
        "ForNextSentencePrediction ForObjectDetection ForSegmentation "
        "ForImageTextRetrieval ForMaskedImageModeling ForProteinFolding";
    static const char others[] = /* whose types are called otherwise */
        "ASTModel ASTForAudioClassification HunYuanDenseV1Model HunYuanMoEV1Model "
        "HunYuanDenseV1ForCausalLM HunYuanMoEV1ForCausalLM Speech2TextModel "
        "Speech2TextForConditionalGeneration RWModel RWForCausalLM FalconModel "
        "FalconForCausalLM";
    const char *end = skip_type(name, type);

    if (end == NULL)
        return wordlist_has(others, name);
    return *end == '\0' || wordlist_has(endings, end) ||
           strstr(end, "Classification") != NULL ||
           (!decoder && wordlist_has("EncoderModel ForMaskedLM", end));
}

/* Takes in the class that `value` names, behind the last dot. */
static void read_class(const json_t *value, const char *type, struct match *match) {
    enum family_mask mask = match->family->stacks[0].mask;
    bool decoder = mask == MASK_CAUSAL || mask == MASK_UNLESS_BIDIRECTIONAL;
    const char *name = json_string_value(value);

    if (name == NULL || type == NULL)
        return;
    name = strrchr(name, '.') != NULL ? strrchr(name, '.') + 1 : name;
    if (decoder &&
        (strstr(name, "Bidirectional") != NULL || strstr(name, "BiModel") != NULL ||
         strstr(name, "BiFor") != NULL || strstr(name, "EncoderModel") != NULL))
        match->bidirectional = name;
    else if (!is_known_class(name, type, decoder))
        match->unknown = name;
}

/* Takes in the classes of an object of config.json. */
static void read_classes(const json_t *object, struct match *match) {
    const char *type = json_string_value(json_object_get(object, "model_type")), *key;
    const json_t *is_causal = json_object_get(object, "is_causal");
    json_t *path;

    read_class(json_array_get(json_object_get(object, "architectures"), 0), type, match);
    json_object_foreach(json_object_get(object, "auto_map"), key, path) {
        if (strncmp(key, "AutoModel", strlen("AutoModel")) == 0)
            read_class(path, type, match);
    }
    if (match->bidirectional == NULL || is_causal == NULL)
        return;
    if (!json_is_false(is_causal)) /* which decides */
        match->unknown = match->bidirectional;
    match->bidirectional = NULL;
}

attn_status match_find(const json_t *config, const struct tensor_view *tensors,
                       const char *prefix, struct attention_keys *asked,
                       struct match *ret_match, attn_error *ret_error) {
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const json_t *whole = config;
    const struct family *family;
    struct match match = {.family = NULL}, first = match;
    attn_status status = ATTN_OK;

    const struct family_text *text = find_text(&config, &type);
    const struct config_section root = {
        .object = config, .error = ret_error, .asked = asked};
    for (size_t i = 0; (family = family_get(i)) != NULL; i++) {
        struct match tried = {.family = family,
                              .type = family_find_type(family, config, type),
                              .text = text};
        if (tried.type == NULL)
            continue;
        status = match_stacks(&root, tensors, prefix, &tried, ret_error);
        if (status != ATTN_OK)
            return status;
        /* several entries may have this type: prefer one whose weights fit */
        if (tried.num_stacks > 0 &&
            (first.family == NULL || is_oriented(&tried, tensors)) &&
            (match.family == NULL || !is_oriented(&match, tensors)))
            match = tried;
        if (first.family == NULL)
            first = tried;
    }

    assert(first.family != NULL); /* match_check_type() has accepted it */
    if (match.family == NULL)
        return refuse_unmatched(config, &first, ret_error);
    for (size_t i = 0; i < match.num_stacks && status == ATTN_OK; i++)
        status = check_layers(&match, &match.stacks[i], tensors, ret_error);
    read_classes(whole, &match);
    if (text != NULL && config != whole)
        read_classes(config, &match);
    if (status == ATTN_OK)
        *ret_match = match;
    return status;
}
