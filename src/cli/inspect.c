/* SPDX-License-Identifier: Apache-2.0 */
/* inspect.c: attnd inspect, which checks checkpoints and prints what they are. */
#include "cli/commands.h"
#include "cli/folder.h"
#include "models/load.h"
#include "models/open.h"
#include "models/spec.h"
#include "weights/checkpoint.h"

#include <stdio.h>

static const char *yes_or_no(bool value) {
    return value ? "yes" : "no";
}

static void print_info(const char *path, const attn_model_info *info) {
    printf("%s: layout %s\n", path, info->layout);
    if (info->scoring == ATTN_ADDITIVE)
        printf("  scoring         additive, %zu wide\n", info->additive_size);
    else
        printf("  scoring         scaled dot product\n");

    printf("  heads           %zu of size %zu\n", info->num_heads, info->head_size);
    printf("  sizes           query %zu, key %zu, value %zu, out %zu\n", info->query_size,
           info->key_size, info->value_size, info->out_size);
    printf("  biases          query %s, key %s, value %s, output %s\n",
           yes_or_no(info->query_bias), yes_or_no(info->key_bias),
           yes_or_no(info->value_bias), yes_or_no(info->output_bias));
    printf("  projection out  %s\n",
           info->output_projection ? "yes" : "no, the heads are concatenated");

    printf("  causal          %s\n", yes_or_no(info->causal));
    if (info->context_length > 0)
        printf("  context length  %zu\n", info->context_length);
    else
        printf("  context length  no limit\n");

    printf("  engine          %s, %s kernels, %s\n", info->engine, info->cpu,
           info->precision);
    printf("  parameters      %zu (%zu bytes as float32)\n", info->parameters,
           info->bytes);
    printf("  memory          %zu bytes when served\n", info->memory);
}

/* model_spec_parse() or model_spec_parse_operand() */
typedef attn_status spec_parser(const char *text, struct model_spec *ret_spec,
                                attn_error *ret_error);

static bool inspect_spec(const struct config *config, spec_parser *parse,
                         const char *text) {
    struct model_spec spec;
    attn_model_info info;
    attn_error error;

    attn_status status = parse(text, &spec, &error);
    if (status == ATTN_OK) {
        const attn_engine_options engine =
            compute_engine_options(&config->compute, spec.precision, true);
        bool is_folder = false;
        status = folder_inspect_spec(&spec, &engine, &is_folder, &error);
        if (status == ATTN_OK && !is_folder) {
            status = checkpoint_describe(spec.path, &spec.options, &engine, true, &info,
                                         &error);
            if (status == ATTN_OK)
                print_info(spec.path, &info);
            folder_hint(spec.path, status, &error);
        }
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
        return 2;
    }

    for (size_t i = 0; i < config->models.count; i++)
        all_good =
            inspect_spec(config, model_spec_parse, config->models.items[i]) && all_good;
    for (size_t i = 0; i < files->count; i++)
        all_good =
            inspect_spec(config, model_spec_parse_operand, files->items[i]) && all_good;
    return all_good ? 0 : 1;
}
