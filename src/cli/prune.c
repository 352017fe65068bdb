/* SPDX-License-Identifier: Apache-2.0 */
/* prune.c: attnd prune, which writes a model without some of its heads. */
#include "cli/commands.h"

#include "base/error.h"
#include "cli/operand.h"
#include "weights/prune.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What command_prune() has made. */
struct pruning {
    const struct config *config;
    attn_model *whole, *pruned;
    size_t num_heads; /* of `whole`: H */
    bool *left_out;   /* [H] */
    size_t num_left_out;
};

static attn_status check_options(const struct config_heads *options, attn_error *error) {
    if (options->remove == NULL)
        return error_set(error, ATTN_E_VALUE,
                         "--heads is missing; list the heads to remove, such as 1,4");
    if (options->output == NULL)
        return error_set(error, ATTN_E_VALUE,
                         "--output is missing; name the file to write");
    return ATTN_OK;
}

/* Marks the heads that --heads lists. */
static attn_status mark_listed(struct pruning *pruning, attn_error *error) {
    const char *list = pruning->config->heads.remove;

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
                         "--heads: all %zu heads are listed; keep at least one",
                         pruning->num_heads);
    return ATTN_OK;
}

/* Does everything once the options are checked and the model is loaded. */
static attn_status prune_model(struct pruning *pruning, attn_error *error) {
    const char *output = pruning->config->heads.output;
    attn_status status =
        prune_create_model(pruning->whole, pruning->left_out, &pruning->pruned, error);
    if (status == ATTN_OK)
        status = prune_write_file(pruning->pruned, output, error);
    if (status == ATTN_OK)
        printf("%s: %zu of %zu heads\n", output,
               pruning->num_heads - pruning->num_left_out, pruning->num_heads);
    return status;
}

static void pruning_deinit(struct pruning *pruning) {
    free(pruning->left_out);
    attn_model_destroy(pruning->pruned);
    attn_model_destroy(pruning->whole);
}

int command_prune(const struct config *config, const struct config_texts *files) {
    struct pruning pruning = {.config = config};
    attn_error error;

    signal(SIGXFSZ, SIG_IGN); /* a file that grows too large is an error like others */
    if (check_options(&config->heads, &error) != ATTN_OK)
        return operand_report(&error, 2);
    int exit_code = operand_load(config, files, &pruning.whole);
    if (exit_code != 0)
        return exit_code;

    pruning.num_heads = attn_model_get_info(pruning.whole)->num_heads;
    pruning.left_out = calloc(pruning.num_heads, sizeof *pruning.left_out);
    if (pruning.left_out == NULL) {
        error_set(&error, ATTN_E_NOMEM, "out of memory");
        exit_code = operand_report(&error, 1);
    } else if (mark_listed(&pruning, &error) != ATTN_OK) {
        exit_code = operand_report(&error, 2);
    } else if (prune_model(&pruning, &error) != ATTN_OK) {
        exit_code = operand_report(&error, 1);
    }
    pruning_deinit(&pruning);
    return exit_code;
}
