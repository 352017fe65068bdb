/* SPDX-License-Identifier: Apache-2.0 */
/* bench_shapes.c: attnd bench, which times what --shape and --model ask
 * for. */
#include "base/error.h"
#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/operand.h"
#include "models/open.h"
#include "models/spec.h"
#include "weights/families/folder.h"

#include <stdio.h>
#include <string.h>

#define DEFAULT_SHAPE "8,512,768,12"
#define MODEL_SHAPE   "8,512" /* the default where there is a --model */

/* Parses B,T[,TK] or B,T,WIDTH,HEADS[,TK]. */
static bool parse_shape(const char *text, struct bench_shape *ret_shape) {
    size_t n[5] = {0};
    char rest;

    int count =
        sscanf(text, "%zu,%zu,%zu,%zu,%zu%c", &n[0], &n[1], &n[2], &n[3], &n[4], &rest);
    if (count < 2 || count > 5 || strchr(text, '-') != NULL)
        return false;
    for (int i = 0; i < count; i++) {
        if (n[i] == 0)
            return false;
    }
    *ret_shape = (struct bench_shape){text, n[0], n[1], n[1], 0, 0};
    if (count % 2 == 1)
        ret_shape->key_len = n[count - 1];
    if (count < 4)
        return true;
    ret_shape->width = n[2];
    ret_shape->heads = n[3];
    return n[2] % n[3] == 0;
}

/* Times the layer of a file, or each layer of a folder. */
static int bench_spec(const struct config *config, const struct bench_shape *shape,
                      const struct model_spec *spec) {
    struct folder *folder;
    const struct layer *layers = NULL;
    char name[BENCH_NAME_SIZE];
    size_t count = 1;
    attn_error error;
    int exit_code = 0;

    if (folder_open_spec(spec, &folder, &error) != ATTN_OK)
        return operand_report(&error, 1);
    if (folder != NULL)
        layers = folder_get_layers(folder, &count);

    for (size_t i = 0; i < count && exit_code == 0; i++) {
        const struct bench_layer layer = {
            .spec = spec, .name = name, .folder = folder, .index = i};
        snprintf(name, sizeof name, "%s%s%s", spec->name, layers != NULL ? "." : "",
                 layers != NULL ? layers[i].part : "");
        exit_code = bench_layer_run(config, shape, &layer);
    }
    folder_close(folder);
    return exit_code;
}

static int refuse_shape(const char *text, const char *reason) {
    fprintf(stderr, "attnd: --shape: '%s' %s\n", text, reason);
    return 2;
}

/* Times what one --shape asks for: a made-up layer, or every --model. */
static int bench_shape(const struct config *config, const char *text) {
    struct bench_shape shape;
    struct model_spec spec;
    attn_error error;
    int exit_code = 0;

    if (!parse_shape(text, &shape))
        return refuse_shape(text, "is not B,T,WIDTH,HEADS[,TK] with HEADS dividing "
                                  "WIDTH, or B,T[,TK] for a --model");
    if (shape.heads > 0)
        return bench_layer_run(
            config, &shape,
            &(struct bench_layer){.width = shape.width, .heads = shape.heads});
    if (config->models.count == 0)
        return refuse_shape(text, "has no WIDTH and HEADS; add them, or name a layer "
                                  "by --model");

    for (size_t i = 0; i < config->models.count && exit_code == 0; i++) {
        if (model_spec_parse(config->models.items[i], &spec, &error) != ATTN_OK)
            return operand_report(&error, 2);
        exit_code = bench_spec(config, &shape, &spec);
        model_spec_deinit(&spec);
    }
    return exit_code;
}

int command_bench(const struct config *config) {
    if (config->bench.wire)
        return bench_wire(config);
    if (config->bench.shapes.count == 0)
        return bench_shape(config,
                           config->models.count > 0 ? MODEL_SHAPE : DEFAULT_SHAPE);
    int exit_code = 0;
    for (size_t i = 0; i < config->bench.shapes.count && exit_code == 0; i++)
        exit_code = bench_shape(config, config->bench.shapes.items[i]);
    return exit_code;
}
