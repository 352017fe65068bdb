/* SPDX-License-Identifier: Apache-2.0 */
/* main.c: the program attnd-bench, which times what --shape and --model ask for, or
 * puts load on a server. */
#include "base/heap.h"
#include "bench/bench.h"
#include "bench/http/command.h"
#include "config/help.h"
#include "config/read.h"
#include "models/spec.h"
#include "safetensors/parse.h"
#include "weights/families/folder.h"

#include <attnd/library.h>
#include <stdio.h>
#include <string.h>

#define DEFAULT_SHAPE "8,512,768,12"
#define MODEL_SHAPE   "8,512" /* the default where there is a --model */

static const char about[] =
    "Each round runs all contenders one after the other, so a ratio is of runs that are "
    "close in time. A row has the median of the rounds, the shortest and the longest, "
    "the operations per second that the mask leaves, and which share of the multiply-add "
    "peak of its instructions these are: with factors in registers, and loaded from the "
    "first-level cache. The baseline is the engine openblas. With one worker, times are "
    "CPU time. With --part attention or dot-product a row also has the bytes of keys and "
    "values per second, and their share of reading memory.";

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
    *ret_shape = (struct bench_shape){n[0], n[1], n[1], 0, 0};
    if (count % 2 == 1)
        ret_shape->key_len = n[count - 1];
    if (count < 4)
        return true;
    ret_shape->width = n[2];
    ret_shape->heads = n[3];
    return n[2] % n[3] == 0;
}

/* Times the layer of a file, or each layer of a folder. */
static int bench_spec(const struct bench_config *config, const struct bench_shape *shape,
                      const struct model_spec *spec) {
    struct folder *folder;
    const struct layer *layers = NULL;
    char name[128];
    size_t count = 1;
    attn_error error;
    int exit_code = 0;

    if (folder_open_spec(spec, &folder, &error) != ATTN_OK)
        return bench_report_error(error.text, 1);
    if (folder != NULL)
        layers = folder_get_layers(folder, &count);

    for (size_t i = 0; i < count && exit_code == 0; i++) {
        const struct bench_layer layer = {
            .shape = shape, .spec = spec, .name = name, .folder = folder, .index = i};
        snprintf(name, sizeof name, "%s%s%s", spec->name, layers != NULL ? "." : "",
                 layers != NULL ? layers[i].part : "");
        exit_code = bench_layer_run(config, &layer);
    }
    folder_close(folder);
    return exit_code;
}

static int refuse_shape(const char *text, const char *reason) {
    fprintf(stderr, "attnd-bench: --shape: '%s' %s\n", text, reason);
    return EXIT_USAGE;
}

/* Times what one --shape asks for: a made-up layer, or every --model. */
static int bench_shape(const struct bench_config *config, const char *text) {
    struct bench_shape shape;
    struct model_spec spec;
    attn_error error;
    int exit_code = 0;

    if (!parse_shape(text, &shape))
        return refuse_shape(text, "is not B,T,WIDTH,HEADS[,TK] with HEADS dividing "
                                  "WIDTH, or B,T[,TK] for a --model");
    if (shape.heads > 0)
        return bench_layer_run(config, &(struct bench_layer){.shape = &shape});
    if (bench_is_given((enum bench_part)config->part))
        return refuse_shape(text, "has no WIDTH and HEADS, which --part dot-product "
                                  "and stored need");
    if (config->models.count == 0)
        return refuse_shape(text, "has no WIDTH and HEADS; add them, or name a layer "
                                  "by --model");

    for (size_t i = 0; i < config->models.count && exit_code == 0; i++) {
        if (model_spec_parse(config->models.items[i], true, &spec, &error) != ATTN_OK)
            return bench_report_error(error.text, EXIT_USAGE);
        exit_code = bench_spec(config, &shape, &spec);
        model_spec_deinit(&spec);
    }
    return exit_code;
}

static int run_asked(const struct bench_config *config) {
    attn_error error;
    if (config->kv_heads > 0 && !bench_is_given((enum bench_part)config->part))
        return bench_report_error("--kv-heads is for --part dot-product and stored; "
                                  "leave it out",
                                  EXIT_USAGE);
    if (attn_init(&error) != ATTN_OK)
        return bench_report_error(error.text, 1);
    if (config->shapes.count == 0)
        return bench_shape(config,
                           config->models.count > 0 ? MODEL_SHAPE : DEFAULT_SHAPE);

    int exit_code = 0;
    for (size_t i = 0; i < config->shapes.count && exit_code == 0; i++)
        exit_code = bench_shape(config, config->shapes.items[i]);
    return exit_code;
}

static void print_help(void) {
    printf("attnd-bench %s: times layers of attention in process\n\n"
           "Usage: attnd-bench [OPTION]...\n"
           "       attnd-bench http URL [OPTION]...   puts load on a server; see\n"
           "                                          attnd-bench http --help\n\n",
           attn_version());
    help_print_indented(about, 0);
    printf("\nOptions:\n");
    help_print_options(&bench_options);
}

static int flush_output(int exit_code) {
    if (fflush(stdout) != 0 || ferror(stdout))
        return bench_report_error("standard output did not take all of the text", 1);
    return exit_code;
}

int main(int argc, char **argv) {
    struct bench_config config = {.part = BENCH_LAYER};
    attn_error error;

    heap_init();
    parse_json_init();
    if (argc > 1 && strcmp(argv[1], "http") == 0)
        return flush_output(bench_http(argc - 2, argv + 2));
    if (option_read_flags(&bench_options, argc - 1, argv + 1, &config, &error) != ATTN_OK)
        return bench_report_error(error.text, EXIT_USAGE);

    int exit_code = 0;
    if (config.help)
        print_help();
    else if (config.version)
        printf("attnd-bench %s\n", attn_version());
    else
        exit_code = run_asked(&config);
    option_deinit(&bench_options, &config);
    return flush_output(exit_code);
}
