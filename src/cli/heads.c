/* SPDX-License-Identifier: Apache-2.0 */
/* heads.c: attnd heads, which prints what each head does over a file of requests. */
#include "cli/heads.h"

#include "base/error.h"
#include "cli/commands.h"
#include "cli/operand.h"
#include "cli/request_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* --- analysis --- */

/* What a request is added to. */
struct analysis {
    const attn_model *model;
    struct attn_heads *heads;
};

/* request_use */
static attn_status analyse_request(void *context, attn_request *batch,
                                   struct request_memory *memory, attn_error *ret_error) {
    const struct analysis *analysis = context;
    attn_sizes sizes;
    size_t head;

    attn_status status = attn_heads_plan(analysis->model, batch, &sizes, ret_error);
    if (status != ATTN_OK)
        return status;
    void *scratch = request_alloc(memory, sizes.scratch_bytes, 1, ret_error);
    if (scratch == NULL)
        return ATTN_E_NOMEM;

    attn_heads_add(analysis->model, batch, scratch, analysis->heads);
    if (attn_heads_are_finite(analysis->heads, &head))
        return ATTN_OK;
    return error_set(ret_error, ATTN_E_VALUE,
                     "a head or the outputs are not finite; "
                     "use smaller numbers in queries, keys and values");
}

attn_status heads_analyse(const struct config *config, const attn_model *model,
                          struct attn_heads *ret_heads, attn_error *ret_error) {
    size_t num_heads = attn_model_get_info(model)->num_heads;
    struct attn_heads heads = {
        .num_heads = num_heads,
        .sums = calloc(num_heads, sizeof *heads.sums),
        .gram = calloc(num_heads, num_heads * sizeof *heads.gram),
    };
    struct analysis analysis = {model, &heads};

    attn_status status;
    if (heads.sums == NULL || heads.gram == NULL)
        status = error_set(ret_error, ATTN_E_NOMEM, "not enough memory for %zu heads",
                           num_heads);
    else
        status = request_file_read(config, model, "analysed", analyse_request, &analysis,
                                   ret_error);
    if (status != ATTN_OK) {
        heads_deinit(&heads);
        return status;
    }
    *ret_heads = heads;
    return ATTN_OK;
}

void heads_deinit(struct attn_heads *heads) {
    free(heads->sums);
    free(heads->gram);
    *heads = (struct attn_heads){.num_heads = 0};
}

/* --- the table --- */

/* Prints a number in a column, or "-" for NAN. */
static void print_cell(double value) {
    if (isnan(value))
        printf("  %8s", "-");
    else
        printf("  %8.4f", value);
}

void heads_print(const struct attn_heads *heads) {
    printf("head  importance  entropy  distance      self     first  previous  tags\n");
    for (size_t i = 0; i < heads->num_heads; i++) {
        attn_head head;
        attn_heads_describe(heads, i, &head);

        printf("%4zu  %10.6f  %7.4f", i, head.importance, head.entropy);
        print_cell(head.mean_distance);
        print_cell(head.mass_on_self);
        print_cell(head.mass_on_first);
        print_cell(head.mass_on_previous);
        for (size_t tag = 0; head.tags[tag] != NULL; tag++)
            printf("%s%s", tag == 0 ? "  " : ", ", head.tags[tag]);
        putchar('\n');
    }
}

/* --- the command --- */

int command_heads(const struct config *config, const struct config_texts *files) {
    struct attn_heads heads;
    attn_model *model;
    attn_error error;

    if (config->heads.data == NULL) {
        error_set(&error, ATTN_E_VALUE, "--data is missing; " REQUEST_FILE_REMEDY);
        return operand_report(&error, 2);
    }
    int exit_code = operand_load(config, files, &model);
    if (exit_code != 0)
        return exit_code;

    if (heads_analyse(config, model, &heads, &error) == ATTN_OK) {
        heads_print(&heads);
        heads_deinit(&heads);
    } else {
        exit_code = operand_report(&error, 1);
    }
    attn_model_destroy(model);
    return exit_code;
}
