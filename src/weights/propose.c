/* SPDX-License-Identifier: Apache-2.0 */
/* propose.c: weights of keys and values are called as that of queries is, but for one
 * word. The only other matrix of their module is the output's. */
#include "weights/propose.h"

#include "weights/layout.h"

#include <stdio.h>
#include <string.h>

#define TRIED_MAX 64 /* triples that are looked at, however many a file has */
#define NAME_SIZE 100

/* Words for queries, keys and values, or for all three in one tensor. */
static const char *const spellings[][3] = {
    {"qkv"}, {"query", "key", "value"}, {"q", "k", "v"}, {"Q", "K", "V"}};

/* Finds the matrices that are called as `name`, but with words for keys and values in
 * place of the one at `at`. Returns false unless their shapes agree. */
static bool find_triple(const struct tensor_view *tensors, const char *name,
                        const char *at, const char *const words[3],
                        const struct safetensors_tensor *ret_parts[3]) {
    for (size_t i = 0; i < 3 && words[i] != NULL; i++) {
        char part[NAME_SIZE];
        int size = snprintf(part, sizeof part, "%.*s%s%s", (int)(at - name), name,
                            words[i], at + strlen(words[0]));
        ret_parts[i] =
            (size_t)size < sizeof part ? tensor_view_find(tensors, part) : NULL;
        if (ret_parts[i] == NULL || ret_parts[i]->rank != 2 ||
            ret_parts[i]->elements == 0)
            return false;
    }
    if (words[1] == NULL)
        return ret_parts[0]->shape[0] % 3 == 0 || ret_parts[0]->shape[1] % 3 == 0;
    return ret_parts[1]->shape[0] == ret_parts[2]->shape[0] &&
           ret_parts[0]->shape[0] % ret_parts[1]->shape[0] == 0;
}

/* Finds the output's weight, the only other matrix of the module, whose columns are
 * `hidden`. Returns false where there is another one. */
static bool find_output(const struct tensor_view *module, size_t hidden,
                        const struct safetensors_tensor *const parts[3],
                        const struct safetensors_tensor **ret_output) {
    *ret_output = NULL;
    for (size_t i = 0; i < module->count; i++) {
        const struct safetensors_tensor *tensor = &module->tensors[i];
        if (tensor->rank != 2 || tensor == parts[0] || tensor == parts[1] ||
            tensor == parts[2])
            continue;
        if (*ret_output != NULL || tensor->shape[1] != hidden)
            return false;
        *ret_output = tensor;
    }
    return true;
}

/* Writes ",KEY=NAME", without the name's ".weight". Returns false where the name has
 * characters that a shell, or --model, would take for others. */
static bool add_name(const char *key, const struct safetensors_tensor *tensor,
                     size_t prefix_size, char ret_text[PROPOSAL_SIZE]) {
    const char *name = tensor->name + prefix_size, *end = strstr(name, ".weight");
    size_t size = end != NULL && end[7] == '\0' ? (size_t)(end - name) : strlen(name);
    size_t used = strlen(ret_text);

    used += (size_t)snprintf(ret_text + used, PROPOSAL_SIZE - used, ",%s=%.*s", key,
                             (int)size, name);
    return used < PROPOSAL_SIZE &&
           strspn(tensor->name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                "0123456789._-/") == strlen(tensor->name);
}

/* Proposes the layer whose queries have the word at `at` of their tensor's name. */
static bool propose_layer(const struct safetensors *file,
                          const struct tensor_view *tensors,
                          const struct safetensors_tensor *const parts[3], const char *at,
                          char ret_text[PROPOSAL_SIZE]) {
    const char *name = parts[0]->name;
    const struct safetensors_tensor *output;
    char prefix[NAME_SIZE];

    while (at > name && at[-1] != '.')
        at--;
    snprintf(prefix, sizeof prefix, "%.*s", (int)(at - name), name);
    const struct tensor_view module =
        tensor_view_make(tensors->tensors, tensors->count, prefix);
    const size_t *shape = parts[0]->shape, size = module.prefix_size;
    bool packed = parts[1] == NULL, turned = packed && shape[1] == 3 * shape[0];
    size_t hidden = turned ? shape[0] : packed ? shape[0] / 3 : shape[0];
    if (!find_output(&module, hidden, parts, &output))
        return false;

    const attn_model_options options = {
        .prefix = prefix,
        .q = packed ? NULL : name + size,
        .k = packed ? NULL : parts[1]->name + size,
        .v = packed ? NULL : parts[2]->name + size,
        .qkv = packed ? name + size : NULL,
        .o = output != NULL ? output->name + size : NULL,
    };
    struct layout layout;
    struct tensor_view view;
    if (layout_recognise(file, &options, &layout, &view, NULL) != ATTN_OK)
        return false;

    snprintf(ret_text, PROPOSAL_SIZE, "%s%s%s", turned ? ",transposed=true" : "",
             size > 0 ? ",prefix=" : "", prefix);
    bool written = add_name(packed ? "qkv" : "q", parts[0], size, ret_text);
    if (!packed)
        written = written && add_name("k", parts[1], size, ret_text) &&
                  add_name("v", parts[2], size, ret_text);
    return written && (output == NULL || add_name("o", output, size, ret_text));
}

bool propose_options(const struct safetensors *file, const struct tensor_view *tensors,
                     char ret_text[PROPOSAL_SIZE]) {
    const size_t num_spellings = sizeof spellings / sizeof spellings[0];
    size_t tried = 0;

    for (size_t i = 0; i < tensors->count * num_spellings && tried < TRIED_MAX; i++) {
        const char *name = tensors->tensors[i / num_spellings].name;
        const char *const *words = spellings[i % num_spellings];
        for (const char *at = name; (at = strstr(at, words[0])) != NULL; at++) {
            const struct safetensors_tensor *parts[3] = {NULL};
            if (!find_triple(tensors, name, at, words, parts))
                continue;
            if (propose_layer(file, tensors, parts, at, ret_text))
                return true;
            tried++;
        }
    }
    return false;
}
