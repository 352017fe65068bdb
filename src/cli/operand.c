/* SPDX-License-Identifier: Apache-2.0 */
/* operand.c: loads the one model that a command line names. */
#include "cli/operand.h"

#include "base/error.h"
#include "models/spec.h"
#include "weights/families/folder.h"

#include <attnd/library.h>
#include <stdio.h>

int operand_report(const attn_error *error, int exit_code) {
    fprintf(stderr, "attnd: %s\n", error->text);
    return exit_code;
}

attn_status operand_load_file(const struct model_spec *spec,
                              const attn_engine_options *engine, attn_model **ret_model,
                              attn_error *ret_error) {
    attn_status status = attn_model_load("model", spec->path, &spec->options, engine,
                                         ret_model, ret_error);
    return folder_hint(spec->path, status, ret_error);
}

int operand_parse(const struct config *config, const struct config_texts *files,
                  struct model_spec *ret_spec, attn_engine_options *ret_engine) {
    attn_error error;

    if (files->count != 1) {
        error_set(&error, ATTN_E_VALUE,
                  "%zu files are given; give one model, FILE[,KEY=VALUE]...",
                  files->count);
        return operand_report(&error, 2);
    }
    if (model_spec_parse(files->items[0], false, ret_spec, &error) != ATTN_OK)
        return operand_report(&error, 2);

    *ret_engine = compute_engine_options(&config->compute, ret_spec->precision, false);
    if (attn_init(&error) == ATTN_OK)
        return 0;
    model_spec_deinit(ret_spec);
    return operand_report(&error, 1);
}

int operand_load(const struct config *config, const struct config_texts *files,
                 attn_model **ret_model) {
    attn_engine_options engine;
    struct model_spec spec;
    struct folder *folder;
    size_t count = 0;
    attn_error error;

    int exit_code = operand_parse(config, files, &spec, &engine);
    if (exit_code != 0)
        return exit_code;
    attn_status status = folder_open_spec(&spec, &folder, &error);
    const struct layer *layers =
        folder != NULL ? folder_get_layers(folder, &count) : NULL;
    if (count > 1)
        status = error_set(&error, ATTN_E_VALUE,
                           "%.160s: the folder has %zu layers; choose one, as in "
                           "FOLDER,layer=%s",
                           spec.path, count, layers[0].part);
    else if (folder != NULL)
        status = folder_create_model(folder, 0, "model", &engine, ret_model, &error);
    else if (status == ATTN_OK)
        status = operand_load_file(&spec, &engine, ret_model, &error);
    folder_close(folder);
    model_spec_deinit(&spec);
    return status == ATTN_OK ? 0 : operand_report(&error, 1);
}
