/* SPDX-License-Identifier: Apache-2.0 */
/* prune.c: attnd prune, which writes a model without some of its heads. */
#include "cli/commands.h"

#include "base/error.h"
#include "base/output.h"
#include "cli/heads.h"
#include "cli/heads_table.h"
#include "cli/operand.h"
#include "cli/request_file.h"
#include "weights/prune.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Everything that command_prune() has made. */
struct pruning {
    const struct config *config;
    attn_model *whole, *pruned;
    size_t num_heads; /* of `whole`: H */
    bool *left_out;   /* [H] */
    size_t num_left_out;
    struct attn_heads heads;             /* over --data */
    size_t *order;                       /* [H], as attn_heads_order() returns them */
    double *changes;                     /* [H], of the outputs */
    double squared_change, squared_norm; /* of the outputs, as measured */
};

/* --- options --- */

/* Checks what needs no file but --data. */
static attn_status check_prune_options(const struct config_heads *options,
                                       attn_error *error) {
    struct stat data;

    if ((options->remove == NULL) == (options->keep == 0))
        return error_set(error, ATTN_E_VALUE,
                         "give either --heads, the heads to remove, "
                         "or --keep, how many to keep");
    if (options->output == NULL)
        return error_set(error, ATTN_E_VALUE,
                         "--output is missing; name the file to write");
    if (options->data == NULL && options->keep > 0)
        return error_set(error, ATTN_E_VALUE,
                         "--data is missing, which --keep needs; " REQUEST_FILE_REMEDY);
    if (options->data != NULL && stat(options->data, &data) == 0 &&
        !S_ISREG(data.st_mode))
        return error_set(error, ATTN_E_VALUE,
                         "--data: %.200s is read twice, so it must be a regular file",
                         options->data);
    return ATTN_OK;
}

/* Marks the heads that --heads lists, or checks how many --keep keeps. */
static attn_status read_heads(struct pruning *pruning, attn_error *error) {
    const char *list = pruning->config->heads.remove;
    size_t keep = pruning->config->heads.keep;

    if (keep >= pruning->num_heads)
        return error_set(error, ATTN_E_VALUE,
                         "--keep: %zu of %zu head%s leaves none to remove; keep fewer",
                         keep, pruning->num_heads, plural_of(pruning->num_heads));
    if (keep > 0)
        return ATTN_OK;
    for (const char *at = list;; at++) {
        size_t head = 0, digits = strspn(at, "0123456789");
        for (size_t i = 0; i < digits && head < pruning->num_heads; i++)
            head = head * 10 + (size_t)(at[i] - '0');
        if (digits == 0 || (at[digits] != ',' && at[digits] != '\0'))
            return error_set(error, ATTN_E_VALUE,
                             "--heads: '%.40s' is not a list of heads, such as 1,4",
                             list);
        if (head >= pruning->num_heads)
            return error_set(error, ATTN_E_VALUE,
                             "--heads: there is no head %.*s; the last one is %zu",
                             digits < 20 ? (int)digits : 20, at, pruning->num_heads - 1);
        if (pruning->left_out[head])
            return error_set(error, ATTN_E_VALUE, "--heads: head %zu is listed twice",
                             head);
        pruning->left_out[head] = true;
        pruning->num_left_out++;
        at += digits;
        if (*at == '\0')
            break;
    }
    if (pruning->num_left_out == pruning->num_heads)
        return error_set(error, ATTN_E_VALUE,
                         "--heads: every head of %zu is listed; keep at least one",
                         pruning->num_heads);
    return ATTN_OK;
}

/* --- with --data --- */

/* Runs a model on a batch; *ret_outputs is in `memory`. */
static attn_status run_model(const attn_model *model, const attn_request *batch,
                             struct request_memory *memory, attn_sizes *ret_sizes,
                             const float **ret_outputs, attn_error *ret_error) {
    attn_status status = attn_plan(model, batch, ret_sizes, ret_error);
    if (status != ATTN_OK)
        return status;
    void *scratch = request_alloc(memory, ret_sizes->scratch_bytes, 1, ret_error);
    float *outputs =
        request_alloc(memory, ret_sizes->outputs, sizeof *outputs, ret_error);
    if (scratch == NULL || outputs == NULL)
        return ATTN_E_NOMEM;
    *ret_outputs = outputs;
    attn_run(model, batch, ret_sizes, scratch, &(attn_result){.outputs = outputs});
    return ATTN_OK;
}

/* request_use */
static attn_status measure_request(void *context, attn_request *batch,
                                   struct request_memory *memory, attn_error *ret_error) {
    struct pruning *pruning = context;
    const float *whole, *pruned;
    attn_sizes sizes;

    attn_status status =
        run_model(pruning->whole, batch, memory, &sizes, &whole, ret_error);
    if (status != ATTN_OK)
        return status;

    /* The heads that are left keep their factors. */
    if (batch->head_mask != NULL) {
        float *mask = request_alloc(memory, pruning->num_heads, sizeof *mask, ret_error);
        if (mask == NULL)
            return ATTN_E_NOMEM;
        for (size_t head = 0, to = 0; head < pruning->num_heads; head++) {
            if (!pruning->left_out[head])
                mask[to++] = batch->head_mask[head];
        }
        batch->head_mask = mask;
    }
    status = run_model(pruning->pruned, batch, memory, &sizes, &pruned, ret_error);
    if (status != ATTN_OK)
        return status;

    for (size_t i = 0; i < sizes.outputs; i++) {
        double output = (double)whole[i], change = (double)pruned[i] - output;
        pruning->squared_norm += output * output;
        pruning->squared_change += change * change;
    }
    return ATTN_OK;
}

/* Looks at the heads over --data, orders them, and prints both. */
static attn_status order_heads(struct pruning *pruning, attn_error *error) {
    size_t num_heads = pruning->num_heads;
    attn_status status = heads_analyse(pruning->config, NULL, 0, pruning->whole,
                                       "analysed", &pruning->heads, error);
    if (status != ATTN_OK)
        return status;

    pruning->order = calloc(num_heads, sizeof *pruning->order);
    pruning->changes = calloc(num_heads, sizeof *pruning->changes);
    if (pruning->order == NULL || pruning->changes == NULL)
        return error_set(error, ATTN_E_NOMEM, "not enough memory for %zu heads",
                         num_heads);
    attn_heads_order(&pruning->heads, pruning->order, pruning->changes);
    const struct layer_heads whole = {"model", pruning->heads};
    status = heads_table_print(&whole, 1, 0, error);
    if (status != ATTN_OK)
        return status;

    printf("\nkept  removed    change\n");
    for (size_t i = 0; i < num_heads; i++)
        printf("%4zu  %7zu  %8.6f\n", num_heads - 1 - i, pruning->order[i],
               pruning->changes[i]);
    return ATTN_OK;
}

/* Runs both models on --data, and prints how much the outputs change. */
static attn_status measure_change(struct pruning *pruning, attn_error *error) {
    const attn_model_info *info = attn_model_get_info(pruning->whole);
    const attn_engine_options engine = {.engine = info->engine.name,
                                        .cpu = info->engine.cpu,
                                        .precision = info->engine.precision};

    attn_status status = attn_model_set_engine(pruning->pruned, &engine, error);
    if (status == ATTN_OK)
        status = request_file_read(pruning->config, pruning->whole, "compared",
                                   measure_request, pruning, error);
    if (status != ATTN_OK)
        return status;

    double ratio = pruning->squared_change / pruning->squared_norm;
    printf("\npredicted change  %.6g\n",
           attn_heads_change(&pruning->heads, pruning->left_out));
    printf("measured change   %.6g\n", pruning->squared_norm > 0 ? sqrt(ratio) : 0);
    return ATTN_OK;
}

/* --- the command --- */

/* Does everything once the options are checked and the model is loaded. */
static attn_status prune_model(struct pruning *pruning, attn_error *error) {
    const struct config_heads *options = &pruning->config->heads;
    attn_status status = prune_check(attn_model_get_info(pruning->whole), error);
    if (status == ATTN_OK)
        status = output_check_new(options->output, error);
    if (status == ATTN_OK && options->data != NULL)
        status = order_heads(pruning, error);
    if (status != ATTN_OK)
        return status;

    if (options->keep > 0)
        pruning->num_left_out = pruning->num_heads - options->keep;
    for (size_t i = 0; options->keep > 0 && i < pruning->num_left_out; i++)
        pruning->left_out[pruning->order[i]] = true;
    status =
        prune_create_model(pruning->whole, pruning->left_out, &pruning->pruned, error);
    if (status == ATTN_OK && options->data != NULL)
        status = measure_change(pruning, error);
    if (status == ATTN_OK)
        status = prune_write_file(pruning->pruned, options->output, error);

    size_t kept = pruning->num_heads - pruning->num_left_out;
    if (status == ATTN_OK)
        printf("%s: %zu of %zu heads\n", options->output, kept, pruning->num_heads);
    return status;
}

static void pruning_deinit(struct pruning *pruning) {
    heads_deinit(&pruning->heads);
    free(pruning->order);
    free(pruning->changes);
    attn_model_destroy(pruning->pruned);
    attn_model_destroy(pruning->whole);
}

int command_prune(const struct config *config, const struct config_texts *files) {
    struct pruning pruning = {.config = config};
    attn_error error;

    signal(SIGXFSZ, SIG_IGN); /* a file that grows too large is an error like others */
    if (check_prune_options(&config->heads, &error) != ATTN_OK)
        return operand_report(&error, 2);
    int exit_code = operand_load(config, files, &pruning.whole);
    if (exit_code != 0)
        return exit_code;

    pruning.num_heads = attn_model_get_info(pruning.whole)->num_heads;
    bool *left_out = calloc(pruning.num_heads, sizeof *left_out);
    pruning.left_out = left_out;
    if (left_out == NULL) {
        error_set(&error, ATTN_E_NOMEM, "out of memory");
        exit_code = operand_report(&error, 1);
    } else if (read_heads(&pruning, &error) != ATTN_OK) {
        exit_code = operand_report(&error, 2);
    } else if (prune_model(&pruning, &error) != ATTN_OK) {
        exit_code = operand_report(&error, 1);
    }
    pruning_deinit(&pruning);
    free(left_out);
    return exit_code;
}
