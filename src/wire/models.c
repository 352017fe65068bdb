/* SPDX-License-Identifier: Apache-2.0 */
/* models.c: finds the model that a request names, or lists those that it could name. */
#include "wire/models.h"

#include <stdio.h>
#include <string.h>

#define NAMES_SHOWN    5 /* models that an error lists */
#define NAMES_TEXT_MAX ((ATTN_NAME_MAX + 4) * NAMES_SHOWN + 8)

/* Writes "'a', 'b', ..." of the first few models. */
static void list_model_names(const attn_model *const *models, size_t num_models,
                             char ret_text[NAMES_TEXT_MAX]) {
    char *out = ret_text;
    *out = '\0';
    for (size_t i = 0; i < num_models && i < NAMES_SHOWN; i++)
        out += sprintf(out, "%s'%s'", i == 0 ? "" : ", ",
                       attn_model_get_info(models[i])->name);
    if (num_models > NAMES_SHOWN)
        sprintf(out, ", ...");
}

size_t wire_models_index(const attn_model *const *models, size_t num_models,
                         const char *name, size_t size) {
    for (size_t i = 0; i < num_models; i++) {
        const char *candidate = attn_model_get_info(models[i])->name;
        if (strlen(candidate) == size && memcmp(candidate, name, size) == 0)
            return i;
    }
    return num_models;
}

bool wire_model_find(const char *name, const attn_model *const *models, size_t num_models,
                     const attn_model **ret_model, struct wire_problem *ret_problem) {
    size_t index = name == NULL && num_models == 1 ? 0 : num_models;
    char names[NAMES_TEXT_MAX];

    if (name != NULL)
        index = wire_models_index(models, num_models, name, strlen(name));
    if (index < num_models) {
        *ret_model = models[index];
        return true;
    }
    list_model_names(models, num_models, names);
    if (num_models == 0)
        return wire_problem_set(ret_problem, WIRE_E_UNKNOWN_MODEL, "model",
                                "no model is loaded; load one, or ask the operator");
    if (name == NULL)
        return wire_problem_set(ret_problem, WIRE_E_MODEL_NOT_NAMED, "model",
                                "%zu models are loaded: %s; name one of them in the "
                                "request (a query string is not read)",
                                num_models, names);
    return wire_problem_set(ret_problem, WIRE_E_UNKNOWN_MODEL, "model",
                            "there is no model '%.64s'; use one of %s", name, names);
}

bool wire_model_is_cross(const attn_model_info *info) {
    return info->kind != NULL && strcmp(info->kind, "cross") == 0;
}

bool wire_model_needs_keys(const attn_model_info *info) {
    return info->kind != NULL && strcmp(info->kind, "self") != 0;
}
