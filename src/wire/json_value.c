/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/json_value.h"

#include <pthread.h>
#include <stdlib.h>

static _Thread_local bool allocation_failed;

static void *noting_malloc(size_t size) {
    void *memory = malloc(size);
    if (memory == NULL)
        allocation_failed = true;
    return memory;
}

static void use_noting_malloc(void) {
    json_set_alloc_funcs(noting_malloc, free);
}

json_t *wire_json_load(const char *body, size_t size, bool *ret_no_memory,
                       json_error_t *ret_error) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, use_noting_malloc);
    allocation_failed = false;
    json_t *root =
        json_loadb(body, size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, ret_error);
    *ret_no_memory = allocation_failed;
    if (allocation_failed) {
        json_decref(root);
        return NULL;
    }
    return root;
}

const char *wire_json_type(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "object";
    case JSON_ARRAY:
        return "array";
    case JSON_STRING:
        return "string";
    case JSON_INTEGER:
        return "integer";
    case JSON_REAL:
        return "number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "boolean";
    case JSON_NULL:
        break;
    }
    return "null";
}

size_t wire_json_levels(const json_t *value, const json_t **ret_leaf) {
    size_t levels = 0;
    for (; value != NULL && json_is_array(value); levels++)
        value = json_array_get(value, 0);
    *ret_leaf = value;
    return levels;
}

const json_t *wire_json_member(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}
