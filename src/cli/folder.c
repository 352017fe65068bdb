/* SPDX-License-Identifier: Apache-2.0 */
/* folder.c: prints the layers of a folder, for attnd inspect. */
#include "cli/folder.h"

#include "base/error.h"
#include "models/open.h"
#include "models/team.h"
#include "weights/families/features.h"
#include "weights/families/folder.h"

#include <stdio.h>

/* Prints a row: what the layer is. */
static attn_status print_layer(const struct folder *folder, size_t i,
                               const attn_engine_options *engine, attn_error *ret_error) {
    size_t count;
    const struct layer *layer = &folder_get_layers(folder, &count)[i];
    char features[FEATURES_TEXT_SIZE];
    attn_model_info info;

    attn_status status = folder_describe_model(folder, i, engine, &info, ret_error);
    if (status != ATTN_OK)
        return status;
    layer_describe_features(layer, features);
    printf("  %-16s %5zu %5zu %5zu %12zu  %s\n", layer->part, layer->num_heads,
           layer->num_kv_heads, layer->head_size, info.memory, features);
    return ATTN_OK;
}

/* The layers whose numbers are checked. */
struct numbers_check {
    const struct folder *folder;
    size_t count;
};

/* team_work.run */
static attn_status check_layer(void *context, size_t i, attn_error *ret_error) {
    const struct numbers_check *check = context;
    return folder_check_weights(check->folder, i, ret_error);
}

/* team_work.report */
static void report_checked(void *context, size_t done) {
    const struct numbers_check *check = context;
    fprintf(stderr, "attnd: %zu of %zu layers checked\n", done, check->count);
}

/* Prints what the layers are, which needs no weights. */
static attn_status print_layers(const char *path, const struct folder *folder,
                                const attn_engine_options *engine,
                                attn_error *ret_error) {
    size_t count = 0;
    attn_error error;
    attn_status status = ATTN_OK;
    const struct layer *layers = folder_get_layers(folder, &count);

    printf("%s: family %s, %zu layer%s\n", path, layers[0].family, count,
           plural_of(count));
    printf("  %-16s %5s %5s %5s %12s  %s\n", "layer", "H", "KV", "D", "bytes",
           "features");
    for (size_t i = 0; i < count && status == ATTN_OK; i++)
        status = print_layer(folder, i, engine, &error);
    if (status != ATTN_OK)
        error_set(ret_error, status, "%.160s: %s", path, error.text);
    return status;
}

attn_status folder_inspect_spec(const struct model_spec *spec,
                                const attn_engine_options *engine, bool *ret_is_folder,
                                attn_error *ret_error) {
    struct numbers_check check;
    struct folder *folder;
    attn_status status = folder_open_spec(spec, &folder, ret_error);

    *ret_is_folder = folder != NULL;
    if (folder == NULL)
        return status;
    status = print_layers(spec->path, folder, engine, ret_error);
    fflush(stdout); /* the table is there while numbers are read */
    check.folder = folder;
    folder_get_layers(folder, &check.count);
    if (status == ATTN_OK)
        status = team_run(&(struct team_work){.count = check.count,
                                              .run = check_layer,
                                              .report = report_checked,
                                              .context = &check},
                          ret_error);
    folder_close(folder);
    return status;
}
