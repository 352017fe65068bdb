/* SPDX-License-Identifier: Apache-2.0 */
/* inspect.c: attnd inspect, which checks checkpoints and prints what they are. */
#include "base/error.h"
#include "captures/layout.h"
#include "cli/commands.h"
#include "math/features.h"
#include "models/spec.h"
#include "models/team.h"
#include "weights/checkpoint.h"
#include "weights/families/folder.h"
#include "weights/layer/make.h"
#include "weights/layout.h"
#include "weights/propose.h"

#include <stdio.h>

static const char *yes_or_no(bool value) {
    return value ? "yes" : "no";
}

static void print_info(const char *path, const attn_model_info *info) {
    struct features features;

    printf("%s: layout %s\n", path, info->layout);
    if (checkpoint_find_note(info) != NULL)
        printf("  note: %s\n", checkpoint_find_note(info));
    if (info->score.kind == ATTN_ADDITIVE)
        printf("  scoring         additive, %zu wide\n", info->width.additive);
    else
        printf("  scoring         scaled dot product\n");

    printf("  heads           %zu of size %zu\n", info->num_heads, info->width.head);
    if (info->num_kv_heads != info->num_heads)
        printf("  key heads       %zu\n", info->num_kv_heads);
    printf("  sizes           query %zu, key %zu, value %zu, out %zu\n",
           info->width.query, info->width.key, info->width.value, info->width.out);
    printf("  biases          query %s, key %s, value %s, output %s\n",
           yes_or_no(info->linears[ATTN_QUERY].bias),
           yes_or_no(info->linears[ATTN_KEY].bias),
           yes_or_no(info->linears[ATTN_VALUE].bias),
           yes_or_no(info->linears[ATTN_OUTPUT].bias));
    printf("  projection out  %s\n",
           info->linears[ATTN_OUTPUT].weight ? "yes" : "no, the heads are concatenated");

    features_list(info, NULL, &features);
    if (features.more)
        printf("  features        %s\n", features.text);
    printf("  causal          %s\n", yes_or_no(info->mask.causal));
    if (info->context_length > 0)
        printf("  context length  %zu\n", info->context_length);
    else
        printf("  context length  no limit\n");

    printf("  engine          %s, %s kernels, %s\n", info->engine.name, info->engine.cpu,
           info->engine.precision);
    printf("  parameters      %zu (%zu bytes as float32)\n", info->footprint.parameters,
           info->footprint.bytes);
    printf("  memory          %zu bytes when served\n", info->footprint.memory);
    printf("  fingerprint     %s\n", info->fingerprint);
}

/* --- files that no layout fits --- */

#define TENSORS_SHOWN 20

/* Lists the tensors of a file that no layout fits, and what may be written to serve them;
 * prints nothing of other files. */
static void list_unrecognised(const char *path, const attn_model_options *options) {
    struct safetensors *file = NULL;
    struct layout layout = {.name = ""};
    struct tensor_view view = {.count = 0};
    char shape[SHAPE_TEXT_SIZE], proposal[PROPOSAL_SIZE];
    attn_error line; /* without what a terminal would not print */

    if (safetensors_open_file(path, &file, NULL) != ATTN_OK)
        return;
    if (layout_recognise(file, options, &layout, &view, NULL) == ATTN_E_FORMAT &&
        layout.name == NULL) {
        view = view.count > 0 ? view : tensor_view_of(file);
        view.prefix_size = 0;
        printf("%s: no layout fits\n", path);
        for (size_t i = 0; i < view.count && i < TENSORS_SHOWN; i++) {
            tensor_print_shape(&view.tensors[i], shape);
            error_set(&line, ATTN_OK, "  %-40.120s %s", view.tensors[i].name, shape);
            puts(line.text);
        }
        if (view.count > TENSORS_SHOWN)
            printf("  and %zu more\n", view.count - TENSORS_SHOWN);
        if (propose_options(file, &view, proposal))
            printf("  a layer, where N is its number of heads (with transposed=true if "
                   "weights are [in, out]):\n  --model NAME=%s,num_heads=N%s\n",
                   path, proposal);
    }
    safetensors_close(file);
}

/* --- captures, and hidden states --- */

/* What a capture may have besides layers, and what there is not without it. */
static const struct {
    const char *tensor, *without;
} extras[] = {{"token_ids", "no tags of equal tokens"},
              {"targets", "no column target"},
              {"hidden_states", "no layers of a folder, hence no importance"}};

/* Prints what the file of Captured.save(), or of vLLM, has, and what it lacks. */
static void print_captured(const char *path, const struct safetensors_header *header,
                           const struct capture_layers *layers) {
    char shape[SHAPE_TEXT_SIZE];

    if (layers->count == 0)
        printf("%s: hidden states; python3 -m attnd heads FOLDER takes it as --data\n",
               path);
    else
        printf("%s: a capture of %zu layer%s; put it, or drop it on the page\n", path,
               layers->count, plural_of(layers->count));
    for (size_t i = 0; i < layers->count; i++) {
        const struct capture_layer *layer = &layers->items[i];
        printf("  %-16s %zu heads, %zu of keys, of size %zu; %zu queries, %zu keys\n",
               layer->name, layer->num_heads, layer->packed.num_kv_heads,
               layer->packed.head_size, layer->num_queries, layer->packed.num_keys);
    }
    for (size_t i = 0; i < sizeof extras / sizeof extras[0]; i++) {
        const struct safetensors_tensor *tensor =
            safetensors_header_find(header, extras[i].tensor);
        if (tensor != NULL)
            tensor_print_shape(tensor, shape);
        printf("  %-16s %s%s\n", extras[i].tensor, tensor != NULL ? shape : "none: ",
               tensor != NULL ? "" : extras[i].without);
    }
}

/* Whether a file is a capture or has hidden states. Says what it has, or what is wrong
 * with it: then *ret_status is not ATTN_OK. */
static bool inspect_capture(const char *path, attn_status *ret_status,
                            attn_error *ret_error) {
    struct safetensors *file = NULL;
    struct capture_layout layout = {0};
    struct wire_problem problem;

    if (safetensors_open_file(path, &file, NULL) != ATTN_OK)
        return false;
    const struct safetensors_header *header = safetensors_get_header(file);
    bool layers = safetensors_get_metadata(file, "layers") != NULL;
    bool found = layers || safetensors_header_find(header, "hidden_states") != NULL;

    *ret_status = ATTN_OK;
    if (layers && !capture_layout_make(header, &layout, &problem))
        *ret_status =
            error_set(ret_error, ATTN_E_FORMAT, "%.160s: %.300s", path, problem.detail);
    else if (found)
        print_captured(path, header, &layout.layers);
    capture_layout_deinit(&layout);
    safetensors_close(file);
    return found;
}

/* --- folders --- */

/* Prints what the queries of the layers are: for each answer the first layer. */
static void print_queries(const struct layer *layers, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const char *text = features_queries(&layers[i].info);
        size_t same = 0;
        while (features_queries(&layers[same].info) != text)
            same++;
        if (same == i)
            printf("  queries%s%s: %s\n", i > 0 ? " from layer " : "",
                   i > 0 ? layers[i].part : "", text);
    }
}

/* Prints the table of the layers, which needs no weights. */
static attn_status print_layers(const char *path, const struct folder *folder,
                                const attn_engine_options *engine,
                                attn_error *ret_error) {
    size_t count = 0;
    char features[FEATURES_TEXT_SIZE];
    attn_model_info info;
    attn_error error;
    const struct layer *layers = folder_get_layers(folder, &count);

    printf("%s: family %s, %zu layer%s\n", path, layers[0].info.layout, count,
           plural_of(count));
    for (enum folder_note i = 0; i < FOLDER_NUM_NOTES; i++) {
        if (folder_get_note(folder, i) != NULL)
            printf("  note: %s\n", folder_get_note(folder, i));
    }
    print_queries(layers, count);
    printf("  %-16s %5s %5s %5s %12s  %s\n", "layer", "H", "KV", "D", "bytes",
           "features");
    for (size_t i = 0; i < count; i++) {
        attn_status status = model_describe(&layers[i].info, engine, &info, &error);
        if (status != ATTN_OK)
            return error_set(ret_error, status, "%.160s: %s", path, error.text);
        layer_describe_features(&layers[i], features);
        printf("  %-16s %5zu %5zu %5zu %12zu  %s\n", layers[i].part, info.num_heads,
               info.num_kv_heads, info.width.score, info.footprint.memory, features);
    }
    return ATTN_OK;
}

/* team_work.run */
static attn_status check_folder_layer(void *folder, size_t i, attn_error *ret_error) {
    return folder_check_layer(folder, i, ret_error);
}

/* team_work.report */
static void report_checked(void *context, size_t done, size_t count) {
    (void)context;
    fprintf(stderr, "attnd: %zu of %zu layers checked\n", done, count);
}

/* Prints the table of a folder's layers. Then reads all their numbers to check them, on
 * all CPUs, and prints the fingerprints. */
static attn_status inspect_folder(const struct model_spec *spec, struct folder *folder,
                                  const attn_engine_options *engine,
                                  attn_error *ret_error) {
    struct team_work work = {
        .run = check_folder_layer, .report = report_checked, .context = folder};
    const struct layer *layers = folder_get_layers(folder, &work.count);

    attn_status status = print_layers(spec->path, folder, engine, ret_error);
    fflush(stdout); /* show the table before the slow check */
    if (status == ATTN_OK)
        status = team_run(&work, ret_error);
    for (size_t i = 0; status == ATTN_OK && i < work.count; i++)
        printf("  %-16s fingerprint %s\n", layers[i].part, layers[i].info.fingerprint);
    return status;
}

/* --- files and folders --- */

/* Inspects a file or a folder. */
static attn_status inspect_path(const struct model_spec *spec,
                                const attn_engine_options *engine,
                                attn_error *ret_error) {
    struct folder *folder;
    attn_model_info info;
    attn_status status;

    if (inspect_capture(spec->path, &status, ret_error))
        return status;
    status = folder_open_spec(spec, &folder, ret_error);
    if (folder != NULL) {
        status = inspect_folder(spec, folder, engine, ret_error);
        folder_close(folder);
        return status;
    }
    if (status != ATTN_OK)
        return status;
    status =
        checkpoint_describe(spec->path, &spec->options, engine, true, &info, ret_error);
    if (status == ATTN_OK)
        print_info(spec->path, &info);
    else
        list_unrecognised(spec->path, &spec->options);
    return folder_hint(spec->path, status, ret_error);
}

/* Inspects what `text` names, see model_spec_parse(). */
static bool inspect_spec(const struct config *config, const char *text, bool named) {
    struct model_spec spec;
    attn_error error;

    attn_status status = model_spec_parse(text, named, &spec, &error);
    if (status == ATTN_OK) {
        const attn_engine_options engine =
            compute_engine_options(&config->compute, spec.precision, true);
        status = inspect_path(&spec, &engine, &error);
        model_spec_deinit(&spec);
    }
    if (status != ATTN_OK)
        fprintf(stderr, "attnd: %s\n", error.text);
    return status == ATTN_OK;
}

int command_inspect(const struct config *config, const struct config_texts *files) {
    bool all_good = true;

    if (files->count == 0 && config->models.count == 0) {
        fprintf(stderr,
                "attnd: nothing to inspect; "
                "give FILE[,KEY=VALUE]..., or --model NAME=FILE[,KEY=VALUE]...\n");
        return EXIT_USAGE;
    }

    for (size_t i = 0; i < config->models.count; i++)
        all_good &= inspect_spec(config, config->models.items[i], true);
    for (size_t i = 0; i < files->count; i++)
        all_good &= inspect_spec(config, files->items[i], false);
    return all_good ? 0 : 1;
}
