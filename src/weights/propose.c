/* SPDX-License-Identifier: Apache-2.0 */
/* propose.c: weights of keys and values are called as that of queries is, but for one
 * word. The only other matrix of their module is the output's. */
#include "weights/propose.h"

#include "weights/layout.h"

#include <stdio.h>
#include <string.h>

#define TRIED_MAX 64 /* layers that are tried, however many a file has */
#define NAME_SIZE 100

/* Words for queries, keys and values, or for all three in one tensor. */
static const char *const spellings[][3] = {
    {"qkv"}, {"query", "key", "value"}, {"q", "k", "v"}, {"Q", "K", "V"}};

/* Weights of queries, keys, values and output; of "qkv" the first is all three. */
enum { PARTS_OUTPUT = 3, NUM_PARTS };

/* Finds the matrices that are called as `name`, but with words for keys and values in
 * place of the one at `at`. Returns false unless all are there. */
static bool find_parts(const struct tensor_view *tensors, const char *name,
                       const char *at, const char *const words[3],
                       const struct safetensors_tensor *ret_parts[NUM_PARTS]) {
    for (size_t i = 0; i < PARTS_OUTPUT && words[i] != NULL; i++) {
        char part[NAME_SIZE];
        int size = snprintf(part, sizeof part, "%.*s%s%s", (int)(at - name), name,
                            words[i], at + strlen(words[0]));
        if ((size_t)size < sizeof part)
            ret_parts[i] = tensor_view_find(tensors, part);
        if (ret_parts[i] == NULL || ret_parts[i]->rank != 2 ||
            ret_parts[i]->elements == 0)
            return false;
    }
    return true;
}

/* Finds the output's weight, the only other matrix of the module, if there is one.
 * Returns false where there are more, or shapes do not agree. */
static bool find_output(const struct tensor_view *module, bool turned,
                        const struct safetensors_tensor *parts[NUM_PARTS]) {
    const struct safetensors_tensor *query = parts[0], *key = parts[1], *value = parts[2];
    size_t hidden = query->shape[0] / (key == NULL && !turned ? 3 : 1);

    for (size_t i = 0; i < module->count; i++) {
        const struct safetensors_tensor *tensor = &module->tensors[i];
        if (tensor->rank != 2 || tensor == query || tensor == key || tensor == value)
            continue;
        if (parts[PARTS_OUTPUT] != NULL || tensor->shape[1] != hidden)
            return false;
        parts[PARTS_OUTPUT] = tensor;
    }
    return key == NULL ||
           (key->shape[0] == value->shape[0] && hidden % key->shape[0] == 0);
}

/* Proposes the layer whose queries have the word at `at` of their tensor's name. */
static bool propose_layer(const struct safetensors *file,
                          const struct tensor_view *tensors,
                          const struct safetensors_tensor *parts[NUM_PARTS],
                          const char *at, char ret_text[PROPOSAL_SIZE]) {
    const char *name = parts[0]->name, *keys[NUM_PARTS] = {"q", "k", "v", "o"};
    bool packed = parts[1] == NULL;
    bool turned = packed && parts[0]->shape[1] == 3 * parts[0]->shape[0];
    attn_model_options options = {.prefix = NULL};
    const char **names[NUM_PARTS] = {&options.q, &options.k, &options.v, &options.o};
    struct layout layout;
    struct tensor_view view;
    char prefix[NAME_SIZE];

    while (at > name && at[-1] != '.')
        at--;
    snprintf(prefix, sizeof prefix, "%.*s", (int)(at - name), name);
    view = tensor_view_make(tensors, prefix);
    if (!find_output(&view, turned, parts))
        return false;
    if (packed) {
        keys[0] = "qkv";
        names[0] = &options.qkv;
    }

    size_t used = (size_t)snprintf(ret_text, PROPOSAL_SIZE, "%s%s%s",
                                   turned ? ",transposed=true" : "",
                                   prefix[0] != '\0' ? ",prefix=" : "", prefix);
    options.prefix = prefix;
    for (size_t i = 0; i < NUM_PARTS && used < PROPOSAL_SIZE; i++) {
        if (parts[i] == NULL)
            continue;
        *names[i] = parts[i]->name + strlen(prefix);
        const char *end = strstr(*names[i], ".weight");
        size_t size =
            end != NULL && end[7] == '\0' ? (size_t)(end - *names[i]) : strlen(*names[i]);
        used += (size_t)snprintf(ret_text + used, PROPOSAL_SIZE - used, ",%s=%.*s",
                                 keys[i], (int)size, *names[i]);
        /* others may be those of a shell, or of --model */
        if (strspn(parts[i]->name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                   "0123456789._-/") < strlen(parts[i]->name))
            return false;
    }
    return used < PROPOSAL_SIZE &&
           layout_recognise(file, &options, &layout, &view, NULL) == ATTN_OK;
}

bool propose_options(const struct safetensors *file, const struct tensor_view *tensors,
                     char ret_text[PROPOSAL_SIZE]) {
    const size_t num_spellings = sizeof spellings / sizeof spellings[0];
    size_t tried = 0;

    for (size_t i = 0; i < tensors->count * num_spellings && tried < TRIED_MAX; i++) {
        const char *name = tensors->tensors[i / num_spellings].name;
        const char *const *words = spellings[i % num_spellings];
        for (const char *at = name; (at = strstr(at, words[0])) != NULL; at++) {
            const struct safetensors_tensor *parts[NUM_PARTS] = {NULL};
            if (!find_parts(tensors, name, at, words, parts))
                continue;
            if (propose_layer(file, tensors, parts, at, ret_text))
                return true;
            tried++;
        }
    }
    return false;
}
