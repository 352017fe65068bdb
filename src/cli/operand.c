/* SPDX-License-Identifier: Apache-2.0 */
/* operand.c: loads the model of an operand. */
#include "cli/operand.h"

#include "base/error.h"
#include "cli/load.h"
#include "config/model_spec.h"

#include <attnd/library.h>
#include <stdio.h>

int operand_report(const attn_error *error, int exit_code) {
    fprintf(stderr, "attnd: %s\n", error->text);
    return exit_code;
}

int operand_load(const struct config *config, const struct config_texts *files,
                 attn_model **ret_model) {
    struct model_spec spec;
    attn_error error;

    if (files->count != 1) {
        error_set(&error, ATTN_E_VALUE,
                  "%zu files are given; give one model, FILE[,KEY=VALUE]...",
                  files->count);
        return operand_report(&error, 2);
    }
    if (model_spec_parse_operand(files->items[0], &spec, &error) != ATTN_OK)
        return operand_report(&error, 2);

    const attn_engine_options engine = load_engine_options(config, spec.precision, false);
    attn_status status = attn_init(&error);
    if (status == ATTN_OK)
        status = attn_model_load("model", spec.path, &spec.options, &engine, ret_model,
                                 &error);
    model_spec_deinit(&spec);
    return status == ATTN_OK ? 0 : operand_report(&error, 1);
}
