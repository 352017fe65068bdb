/* SPDX-License-Identifier: Apache-2.0 */
/* layers.c: a file or folder that is open, the text that describes it, and the models of
 * its layers, each made when it is first asked for. */
#include "base/buf.h"
#include "base/error.h"
#include "entry/begin.h"
#include "entry/tensors.h"
#include "models/spec.h"
#include "weights/checkpoint.h"
#include "weights/families/folder.h"
#include "weights/layer/make.h"
#include "wire/json/write.h"
#include "wire/native/describe.h"

#include <attnd/library.h>
#include <attnd/program.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A layer's model. */
struct slot {
    pthread_mutex_t lock;
    attn_model *model; /* NULL: not asked for */
};

struct attn_layers {
    struct model_spec spec;
    attn_engine_options engine;
    struct folder *folder;     /* NULL: there is only `file` */
    struct checkpoint *file;   /* NULL: there is only `folder` */
    struct stat state;         /* when it was opened */
    const struct layer *items; /* [count], of one of the two */
    size_t count;
    struct slot *slots; /* [count]; NULL: there are none yet */
    char *text;
};

/* --- the text --- */

/* Prints a layer whose `info` is that of its model. */
static void print_layer(const struct layer *layer, struct buf *text) {
    const attn_model_info *info = &layer->info;
    char features[FEATURES_TEXT_SIZE];

    wire_native_print_model(info, text);
    text->size -= text->status == ATTN_OK; /* its last bracket */
    buf_append_format(text, ",\"cross\":%s,\"norm_before\":%s,\"borrows\":",
                      layer->cross ? "true" : "false",
                      info->pre_norm.kind != ATTN_NORM_NONE ? "true" : "false");
    if (layer->borrows)
        buf_append_format(text, "\"%zu\"", layer->lender);
    else
        buf_append_text(text, "null");
    layer_describe_features(layer, features);
    buf_append_text(text, ",\"features\":");
    wire_json_add_string(text, strcmp(features, "plain") == 0 ? "" : features);
    buf_append_text(text, ",\"tensors\":");
    entry_print_tensors(layer, text);
    buf_append_text(text, "}");
}

static attn_status describe_layers(struct attn_layers *layers, attn_error *ret_error) {
    const attn_model_info *first = &layers->items[0].info;
    attn_status status = ATTN_OK;
    struct buf text;
    size_t size;

    buf_init(&text, SIZE_MAX);
    buf_append_text(&text, "{\"path\":");
    wire_json_add_string(&text, layers->spec.path);
    buf_append_text(&text, ",\"family\":");
    if (layers->folder != NULL)
        wire_json_add_string(&text, first->layout);
    else
        buf_append_text(&text, "null");
    buf_append_text(&text, ",\"layers\":[");
    for (size_t i = 0; i < layers->count && status == ATTN_OK; i++) {
        struct layer layer = layers->items[i];
        status = model_describe(&layers->items[i].info, &layers->engine, &layer.info,
                                ret_error);
        if (status != ATTN_OK)
            break;
        if (layers->folder != NULL) /* that of a file has its name */
            snprintf(layer.info.name, sizeof layer.info.name, "%s", layer.part);
        buf_append_text(&text, i > 0 ? "," : "");
        print_layer(&layer, &text);
    }
    buf_append(&text, "]}", sizeof "]}");
    if (status == ATTN_OK && text.status != ATTN_OK)
        status = error_set(ret_error, text.status, "out of memory");
    if (status == ATTN_OK)
        layers->text = buf_take(&text, &size);
    buf_deinit(&text);
    return status;
}

const char *attn_layers_text(const attn_layers *layers) {
    return layers->text;
}

/* --- opening --- */

/* Finds what shows that files were replaced. */
static void find_state(const struct attn_layers *layers, struct stat *ret_state) {
    *ret_state = (struct stat){0};
    if (layers->folder != NULL)
        folder_find_state(layers->spec.path, ret_state);
    else
        stat(layers->spec.path, ret_state); /* on failure it stays as it is */
}

static attn_status open_layers(struct attn_layers *layers, attn_error *ret_error) {
    const struct model_spec *spec = &layers->spec;
    attn_error error;

    layers->engine =
        (attn_engine_options){.precision = spec->precision, .serve_only = true};
    attn_status status = folder_open_spec(spec, &layers->folder, ret_error);
    if (status != ATTN_OK)
        return status;
    if (layers->folder != NULL) {
        layers->items = folder_get_layers(layers->folder, &layers->count);
    } else {
        status = checkpoint_open(spec->path, &spec->options, &layers->file, &error);
        if (status != ATTN_OK)
            return error_set(ret_error, folder_hint(spec->path, status, &error), "%s",
                             error.text);
        layers->items = checkpoint_get_layer(layers->file);
        layers->count = 1;
    }
    find_state(layers, &layers->state);

    layers->slots = calloc(layers->count, sizeof *layers->slots);
    if (layers->slots == NULL)
        return error_set(ret_error, ATTN_E_NOMEM, "out of memory");
    for (size_t i = 0; i < layers->count; i++)
        pthread_mutex_init(&layers->slots[i].lock, NULL);
    return describe_layers(layers, ret_error);
}

attn_status attn_layers_open(const char *path, const char *options,
                             attn_layers **ret_layers, attn_error *ret_error) {
    locale_t before;
    attn_status status = entry_begin(&before, ret_error);
    if (status != ATTN_OK)
        return status;

    struct attn_layers *layers = calloc(1, sizeof *layers);
    if (layers == NULL) {
        entry_end(before);
        return error_set(ret_error, ATTN_E_NOMEM, "out of memory");
    }
    status = model_spec_read(path, options, &layers->spec, ret_error);
    if (status == ATTN_OK)
        status = open_layers(layers, ret_error);
    if (status == ATTN_OK)
        *ret_layers = layers;
    else
        attn_layers_destroy(layers);
    entry_end(before);
    return status;
}

void attn_layers_destroy(attn_layers *layers) {
    if (layers == NULL)
        return;
    for (size_t i = 0; layers->slots != NULL && i < layers->count; i++) {
        attn_model_destroy(layers->slots[i].model);
        pthread_mutex_destroy(&layers->slots[i].lock);
    }
    free(layers->slots);
    free(layers->text);
    checkpoint_close(layers->file);
    folder_close(layers->folder);
    model_spec_deinit(&layers->spec);
    free(layers);
}

/* --- models --- */

static attn_error blas_error; /* of attn_init(), which a process calls once */

static void init_blas(void) {
    attn_error error = {.status = ATTN_OK};
    attn_init(&error);
    blas_error = error;
}

/* Refuses weights that are not those of the text. */
static attn_status check_state(const struct attn_layers *layers, attn_error *ret_error) {
    struct stat now;

    find_state(layers, &now);
    if (folder_state_is_same(&now, &layers->state))
        return ATTN_OK;
    return error_set(ret_error, ATTN_E_IO,
                     "%.200s was replaced since it was opened; open it once more",
                     layers->spec.path);
}

static attn_status create_model(const struct attn_layers *layers, size_t index,
                                attn_model **ret_model, attn_error *ret_error) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const struct layer *layer = &layers->items[index];

    pthread_once(&once, init_blas);
    if (blas_error.status != ATTN_OK)
        return error_set(ret_error, blas_error.status, "%s", blas_error.text);
    attn_status status = check_state(layers, ret_error);
    if (status != ATTN_OK)
        return status;
    if (layers->folder != NULL)
        return folder_create_model(layers->folder, index, layer->part, &layers->engine,
                                   ret_model, ret_error);
    return layer_create_model(layer, &layer->info, &layers->engine, ret_model, ret_error);
}

attn_status attn_layers_get(attn_layers *layers, size_t index,
                            const attn_model **ret_model, attn_error *ret_error) {
    locale_t before;
    if (index >= layers->count)
        return error_set(ret_error, ATTN_E_VALUE,
                         "there is no layer %zu, but %zu, counted from 0", index,
                         layers->count);
    attn_status status = entry_begin(&before, ret_error);
    if (status != ATTN_OK)
        return status;

    struct slot *slot = &layers->slots[index];
    pthread_mutex_lock(&slot->lock);
    if (slot->model == NULL)
        status = create_model(layers, index, &slot->model, ret_error);
    if (status == ATTN_OK)
        *ret_model = slot->model;
    pthread_mutex_unlock(&slot->lock);
    entry_end(before);
    return status;
}
