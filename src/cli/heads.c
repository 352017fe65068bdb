/* SPDX-License-Identifier: Apache-2.0 */
/* heads.c: attnd heads, which prints what each head of a layer, or of all layers of a
 * folder, does over a file of requests or of hidden states. */
#include "cli/heads.h"

#include "base/buf.h"
#include "base/error.h"
#include "cli/commands.h"
#include "cli/heads_table.h"
#include "cli/hidden.h"
#include "cli/operand.h"
#include "models/spec.h"
#include "models/team.h"
#include "weights/families/folder.h"
#include "wire/native/heads.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

/* --- analysis --- */

/* The sums that each request is added to. */
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

    attn_heads_add(analysis->model, batch, &sizes, scratch, analysis->heads);
    if (attn_heads_are_finite(analysis->heads, &head))
        return ATTN_OK;
    return error_set(ret_error, ATTN_E_VALUE,
                     "a head or the outputs are not finite; "
                     "use smaller numbers in queries, keys and values");
}

attn_status heads_analyse(const struct config *config, const struct hidden *hidden,
                          size_t state, const attn_model *model, const char *done,
                          struct attn_heads *ret_heads, attn_error *ret_error) {
    size_t num_heads = attn_model_get_info(model)->num_heads;
    struct analysis analysis = {model, ret_heads};
    attn_status status;

    *ret_heads = (struct attn_heads){
        .num_heads = num_heads,
        .sums = calloc(num_heads, sizeof *ret_heads->sums),
        .gram = calloc(num_heads, num_heads * sizeof *ret_heads->gram),
    };
    if (ret_heads->sums == NULL || ret_heads->gram == NULL)
        status = error_set(ret_error, ATTN_E_NOMEM, "not enough memory for %zu heads",
                           num_heads);
    else if (hidden != NULL)
        status = hidden_read(hidden, state, config, model, analyse_request, &analysis,
                             ret_error);
    else
        status =
            request_file_read(config, model, done, analyse_request, &analysis, ret_error);
    if (status != ATTN_OK)
        heads_deinit(ret_heads);
    return status;
}

void heads_deinit(struct attn_heads *heads) {
    free(heads->sums);
    free(heads->gram);
    *heads = (struct attn_heads){.num_heads = 0};
}

/* --- layers --- */

/* The layers and data of the command. */
struct heads_job {
    struct config config; /* max_memory is for one layer */
    const attn_engine_options *engine;
    struct folder *folder;     /* NULL: there is only `file` */
    attn_model *file;          /* the layer of a file, or NULL */
    struct hidden *hidden;     /* NULL: --data has requests */
    size_t count, *layers;     /* of the folder; NULL: all */
    struct layer_heads *found; /* [count] */
};

/* team_work.run */
static attn_status analyse_layer(void *context, size_t i, attn_error *ret_error) {
    struct heads_job *job = context;
    size_t layer = job->layers != NULL ? job->layers[i] : i, count;
    struct layer_heads *found = &job->found[i];
    const char *done = job->count > 1 ? NULL : "analysed";
    attn_model *model;
    attn_error error;

    found->name = "model";
    if (job->file != NULL)
        return heads_analyse(&job->config, NULL, 0, job->file, done, &found->heads,
                             ret_error);
    const char *part = folder_get_layers(job->folder, &count)[layer].part;
    found->name = part;
    attn_status status =
        folder_create_model(job->folder, layer, part, job->engine, &model, ret_error);
    if (status != ATTN_OK)
        return status;
    status =
        heads_analyse(&job->config, job->hidden, i, model, done, &found->heads, &error);
    attn_model_destroy(model);
    if (status != ATTN_OK)
        error_set(ret_error, status, "layer %s: %s", part, error.text);
    return status;
}

/* team_work.report */
static void report_progress(void *context, size_t done, size_t count) {
    (void)context;
    fprintf(stderr, "attnd: %zu of %zu layers analysed\n", done, count);
}

/* Prints what POST /v1/heads replies for each layer. */
static attn_status print_heads_json(const struct heads_job *job, attn_error *ret_error) {
    struct buf text;

    buf_init(&text, SIZE_MAX);
    buf_append_text(&text, "{\"layers\":[");
    for (size_t i = 0; i < job->count; i++) {
        buf_append_text(&text, i == 0 ? "" : ",\n");
        wire_native_heads_print(job->found[i].name, &job->found[i].heads, &text);
    }
    buf_append_text(&text, "]}\n");
    attn_status status = text.status;
    if (status == ATTN_OK)
        fwrite(text.data, 1, text.size, stdout);
    else
        error_set(ret_error, status, "out of memory");
    buf_deinit(&text);
    return status;
}

/* --- the command --- */

/* Opens the operand: a file, or a folder with the layers that --data is for. */
static attn_status open_job(struct heads_job *job, struct model_spec *spec,
                            attn_error *ret_error) {
    bool norm = false;

    attn_status status = folder_open_spec(spec, &job->folder, ret_error);
    if (status == ATTN_OK && job->folder == NULL && job->hidden != NULL)
        return error_set(ret_error, ATTN_E_VALUE,
                         "%.160s is one layer; name the folder of the model whose "
                         "hidden_states %.160s has",
                         spec->path, job->config.heads.data);
    job->count = 1;
    if (status == ATTN_OK && job->folder == NULL)
        return operand_load_file(spec, job->engine, &job->file, ret_error);
    if (status == ATTN_OK)
        folder_get_layers(job->folder, &job->count);
    if (status != ATTN_OK || job->hidden == NULL)
        return status;

    status = hidden_find_layers(job->hidden, job->folder, &job->layers, &job->count,
                                &norm, ret_error);
    if (status != ATTN_OK || !norm || spec->pre_norm)
        return status;
    folder_close(job->folder);
    spec->pre_norm = true;
    return folder_open_spec(spec, &job->folder, ret_error);
}

/* Does the work of all layers, on all CPUs, and prints it. */
static attn_status run_job(struct heads_job *job, attn_error *ret_error) {
    const struct team_work work = {.count = job->count,
                                   .run = analyse_layer,
                                   .report = report_progress,
                                   .context = job};
    const char *path = job->config.heads.data;
    struct stat data;

    if (job->count > 1 && stat(path, &data) == 0 && !S_ISREG(data.st_mode))
        return error_set(ret_error, ATTN_E_VALUE,
                         "%.200s is read once for each of %zu layers; save it to a file",
                         path, job->count);
    job->config.max_memory = request_memory_max(&job->config) / team_size(job->count);
    job->found = calloc(job->count, sizeof *job->found);
    if (job->found == NULL)
        return error_set(ret_error, ATTN_E_NOMEM, "out of memory");
    attn_status status =
        job->count == 1 ? analyse_layer(job, 0, ret_error) : team_run(&work, ret_error);
    if (status != ATTN_OK)
        return status;
    if (job->config.heads.json)
        return print_heads_json(job, ret_error);
    return heads_table_print(job->found, job->count, job->config.heads.sort, ret_error);
}

static void job_deinit(struct heads_job *job) {
    for (size_t i = 0; job->found != NULL && i < job->count; i++)
        heads_deinit(&job->found[i].heads);
    free(job->found);
    free(job->layers);
    hidden_close(job->hidden);
    attn_model_destroy(job->file);
    folder_close(job->folder);
}

int command_heads(const struct config *config, const struct config_texts *files) {
    attn_engine_options engine;
    struct model_spec spec;
    struct heads_job job = {.config = *config, .engine = &engine};
    attn_error error;

    if (config->heads.data == NULL) {
        error_set(&error, ATTN_E_VALUE, "--data is missing; " REQUEST_FILE_REMEDY);
        return operand_report(&error, 2);
    }
    if (config->heads.json && config->heads.sort > 0) {
        error_set(&error, ATTN_E_VALUE,
                  "--sort is for the table; leave it or --json out");
        return operand_report(&error, 2);
    }
    int exit_code = operand_parse(config, files, &spec, &engine);
    if (exit_code != 0)
        return exit_code;

    attn_status status = hidden_open(&config->heads, &job.hidden, &error);
    if (status == ATTN_OK)
        status = open_job(&job, &spec, &error);
    if (status == ATTN_OK)
        status = run_job(&job, &error);
    if (status != ATTN_OK)
        exit_code = operand_report(&error, 1);
    job_deinit(&job);
    model_spec_deinit(&spec);
    return exit_code;
}
