/* SPDX-License-Identifier: Apache-2.0 */
/* native_decode.c: the envelope of a request: JSON, keys, model, options. */
#include "wire/json_value.h"
#include "wire/native.h"
#include "wire/native_lens.h"
#include "wire/native_select.h"
#include "wire/native_tensors.h"
#include "wire/tensor_json.h"

#include <stdio.h>
#include <string.h>

#define NAMES_SHOWN 5 /* models that a detail lists */

static const char *const known_keys[] = {
    "model",  "queries",      "keys",      "values",        "valid_lens",
    "causal", "need_weights", "head_mask", "weights_heads", "weights_queries"};

/* Writes the string that ends before `end` in the body, as it stands there, escapes and
 * all. */
static void copy_key_before(const char *body, size_t end, char *ret_key,
                            size_t key_size) {
    ret_key[0] = '\0';
    if (end < 2 || body[end - 1] != '"')
        return;
    size_t start = end - 1; /* of the text, going back from the closing quote */
    while (start > 0 &&
           (body[start - 1] != '"' || (start > 1 && body[start - 2] == '\\')))
        start--;
    size_t length = end - 1 - start;
    if (length > key_size - 1)
        length = key_size - 1;
    memcpy(ret_key, body + start, length);
    ret_key[length] = '\0';
}

/* Says what jansson found. */
static bool refuse_json(const char *body, size_t size, const json_error_t *error,
                        struct wire_problem *ret_problem) {
    char key[sizeof ret_problem->field];
    size_t position = error->position < 0 ? 0 : (size_t)error->position;
    switch (json_error_code(error)) {
    case json_error_duplicate_key:
        copy_key_before(body, position < size ? position : size, key, sizeof key);
        wire_problem_set(
            ret_problem, 400, "Duplicate key", key,
            "line %d, column %d: '%s' stands twice in one object; send it once",
            error->line, error->column, key);
        return false;
    case json_error_numeric_overflow:
        wire_problem_set(ret_problem, 400, "Out of range", NULL,
                         "line %d, column %d: %s; send numbers that fit a float32, and "
                         "integers over 64 bits with a decimal point or an exponent",
                         error->line, error->column, error->text);
        return false;
    default:
        wire_problem_set(ret_problem, 400, "Malformed JSON", NULL,
                         "line %d, column %d: %s; send one JSON object in UTF-8",
                         error->line, error->column, error->text);
        return false;
    }
}

/* Returns a new reference to the request's object, or NULL with *ret_problem set. */
static json_t *parse(const char *body, size_t size, struct wire_problem *ret_problem) {
    if (size == 0) {
        wire_problem_set(ret_problem, 400, "Malformed JSON", NULL,
                         "line 1, column 1: the body is empty; send one JSON object");
        return NULL;
    }
    if (size >= 3 && memcmp(body, "\xEF\xBB\xBF", 3) == 0) {
        wire_problem_set(ret_problem, 400, "Malformed JSON", NULL,
                         "line 1, column 1: the body begins with a byte order mark; send "
                         "UTF-8 without one");
        return NULL;
    }
    json_error_t error;
    bool no_memory;
    json_t *root = wire_json_load(body, size, &no_memory, &error);
    if (no_memory) {
        wire_problem_set_no_memory(ret_problem);
        return NULL;
    }
    if (root == NULL) {
        refuse_json(body, size, &error, ret_problem);
        return NULL;
    }
    if (!json_is_object(root)) {
        wire_problem_set(
            ret_problem, 400, "Wrong type", NULL,
            "the body is not a JSON object but of type %s; send an object with "
            "the key queries",
            wire_json_type(root));
        strcpy(ret_problem->expected, "\"object\"");
        snprintf(ret_problem->got, sizeof ret_problem->got, "\"%s\"",
                 wire_json_type(root));
        json_decref(root);
        return NULL;
    }
    return root;
}

static bool check_keys(json_t *root, struct wire_problem *ret_problem) {
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value) {
        bool known = false;
        for (size_t i = 0; i < sizeof known_keys / sizeof known_keys[0] && !known; i++)
            known = strcmp(key, known_keys[i]) == 0;
        if (!known) {
            wire_problem_set(
                ret_problem, 400, "Unknown key", key,
                "'%.64s' is no key of a request; leave it out. Known are model, "
                "queries, keys, values, valid_lens, causal, need_weights, "
                "head_mask, weights_heads and weights_queries",
                key);
            return false;
        }
    }
    return true;
}

/* Writes "'a', 'b', ..." of the first few models. */
static void list_models(const attn_model *const *models, size_t num_models,
                        char ret_text[(ATTN_NAME_MAX + 4) * NAMES_SHOWN + 8]) {
    char *out = ret_text;
    *out = '\0';
    for (size_t i = 0; i < num_models && i < NAMES_SHOWN; i++)
        out += sprintf(out, "%s'%s'", i == 0 ? "" : ", ",
                       attn_model_get_info(models[i])->name);
    if (num_models > NAMES_SHOWN)
        sprintf(out, ", ...");
}

/* Returns the model that the request names, or the only one; NULL with *ret_problem set.
 */
static const attn_model *find_model(const json_t *root, const attn_model *const *models,
                                    size_t num_models, struct wire_problem *ret_problem) {
    char names[(ATTN_NAME_MAX + 4) * NAMES_SHOWN + 8];
    list_models(models, num_models, names);
    const json_t *value = wire_json_member(root, "model");
    if (value == NULL) {
        if (num_models == 1)
            return models[0];
        wire_problem_set(ret_problem, 400, "Model not named", "model",
                         "%zu models are loaded: %s; name one of them", num_models,
                         names);
        return NULL;
    }
    if (!json_is_string(value)) {
        const struct wire_place place = {.field = "model"};
        wire_refuse_type(&place, "string", wire_json_type(value), ret_problem);
        return NULL;
    }
    const char *name = json_string_value(value);
    for (size_t i = 0; i < num_models; i++) {
        if (strcmp(name, attn_model_get_info(models[i])->name) == 0)
            return models[i];
    }
    wire_problem_set(ret_problem, 404, "Unknown model", "model",
                     "no model is called '%.64s'; name one of %s", name, names);
    return NULL;
}

static bool read_causal(const json_t *root, const attn_model_info *info,
                        attn_request *request, struct wire_problem *ret_problem) {
    const struct wire_place place = {.field = "causal"};
    const json_t *value = wire_json_member(root, place.field);
    if (value != NULL && !json_is_boolean(value))
        return wire_refuse_type(&place, "boolean", wire_json_type(value), ret_problem);
    request->causal = value == NULL ? info->causal : json_is_true(value);
    return true;
}

static bool read_need_weights(const json_t *root, attn_request *request,
                              struct wire_problem *ret_problem) {
    const json_t *value = wire_json_member(root, "need_weights");
    if (value == NULL || json_is_false(value)) {
        request->need_weights = ATTN_WEIGHTS_NONE;
    } else if (json_is_true(value)) {
        request->need_weights = ATTN_WEIGHTS_ALL;
    } else if (json_is_string(value) && strcmp(json_string_value(value), "mean") == 0) {
        request->need_weights = ATTN_WEIGHTS_MEAN;
    } else {
        wire_problem_set(
            ret_problem, 400, "Wrong type", "need_weights",
            "need_weights is none of its three values; send false, true (the "
            "weights of every head) or \"mean\" (over the heads)");
        strcpy(ret_problem->expected, "[false,true,\"mean\"]");
        snprintf(ret_problem->got, sizeof ret_problem->got, "\"%s\"",
                 wire_json_type(value));
        return false;
    }
    return true;
}

static bool read_head_mask(const json_t *root, const attn_model_info *info,
                           struct arena *arena, attn_request *request,
                           struct wire_problem *ret_problem) {
    const struct wire_place place = {.field = "head_mask"};
    const json_t *value = wire_json_member(root, place.field);
    if (value == NULL)
        return true;
    if (!wire_list_check(value, &place, 1, ret_problem))
        return false;
    size_t count = json_array_size(value);
    float *mask = arena_alloc(arena, count, sizeof *mask);
    if (mask == NULL) {
        wire_problem_set_no_memory(ret_problem);
        return false;
    }
    if (!wire_row_read(value, &place, mask, ret_problem))
        return false;
    if (count != info->num_heads) {
        wire_problem_set(
            ret_problem, 400, "Shape mismatch", place.field,
            "head_mask has %zu numbers, but model '%s' has %zu heads; send one "
            "number for each",
            count, info->name, info->num_heads);
        wire_shape_print(ret_problem->expected, &info->num_heads, 1);
        wire_shape_print(ret_problem->got, &count, 1);
        return false;
    }
    request->head_mask = mask;
    return true;
}

/* Reads everything but the model. */
static bool read_request(const json_t *root, const attn_model_info *info,
                         struct arena *arena, struct wire_call *call,
                         struct wire_problem *ret_problem) {
    struct wire_tensors tensors;
    attn_request *request = &call->request;
    if (!read_causal(root, info, request, ret_problem) ||
        !read_need_weights(root, request, ret_problem) ||
        !read_head_mask(root, info, arena, request, ret_problem) ||
        !wire_tensors_read(root, info, arena, &tensors, ret_problem))
        return false;
    call->batched = tensors.queries.batched;
    request->num_sequences = tensors.queries.num_sequences;
    request->query_lens = tensors.queries.lens;
    request->key_lens = tensors.keys.lens;
    request->queries = tensors.queries.rows;
    request->keys = tensors.keys.rows;
    request->values = tensors.values.rows;
    if (!wire_selection_read(root, arena, call, ret_problem))
        return false;
    const json_t *lens = wire_json_member(root, "valid_lens");
    return lens == NULL || wire_lens_read(lens, &tensors.queries, &tensors.keys, arena,
                                          request, ret_problem);
}

bool wire_native_decode(const char *body, size_t size, const attn_model *const *models,
                        size_t num_models, struct arena *arena,
                        struct wire_call *ret_call, struct wire_problem *ret_problem) {
    struct wire_call call = {0};
    json_t *root = parse(body, size, ret_problem);
    if (root == NULL)
        return false;
    bool read = false;
    if (!check_keys(root, ret_problem))
        goto done;
    call.model = find_model(root, models, num_models, ret_problem);
    if (call.model == NULL)
        goto done;
    read = read_request(root, attn_model_get_info(call.model), arena, &call, ret_problem);
    if (read)
        *ret_call = call;
done:
    json_decref(root);
    return read;
}
