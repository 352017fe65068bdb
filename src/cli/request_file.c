/* SPDX-License-Identifier: Apache-2.0 */
/* request_file.c: reads lines, and decodes each as the server decodes a body. */
#include "cli/request_file.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/machine.h"
#include "base/size.h"
#include "wire/native/native.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define ARENA_KEEP ((size_t)64 * 1024 * 1024) /* bytes, from request to request */
#define NS_PER_S   1000000000

struct request_file {
    const attn_model *model;
    FILE *file;
    size_t line;     /* the number of the last line read */
    struct buf text; /* the line */
    struct request_memory memory;
    size_t memory_max; /* bytes */
};

static attn_status refuse_memory(attn_error *ret_error) {
    return error_set(ret_error, ATTN_E_NOMEM,
                     "the request needs more memory than there is, or than --max-memory "
                     "allows; split it, or raise --max-memory");
}

void *request_alloc(struct request_memory *memory, size_t count, size_t size,
                    attn_error *ret_error) {
    size_t bytes;
    bool fits = size_mul(count, size, &bytes) && bytes <= memory->left;
    void *allocated = fits ? arena_alloc(&memory->arena, count, size) : NULL;

    if (allocated != NULL)
        memory->left -= bytes;
    else
        refuse_memory(ret_error);
    return allocated;
}

/* Reads the next line into file->text, without its end. *ret_found is false at the end of
 * the file. */
static attn_status read_line(struct request_file *file, bool *ret_found,
                             attn_error *ret_error) {
    int c;

    file->text.size = 0;
    file->line++;
    while ((c = getc_unlocked(file->file)) != EOF && c != '\n') {
        char byte = (char)c;
        if (buf_append(&file->text, &byte, 1) == ATTN_OK)
            continue;
        if (file->text.size < file->text.max)
            return error_set(ret_error, ATTN_E_NOMEM, "out of memory");
        return error_set(ret_error, ATTN_E_VALUE,
                         "the line has more than %zu bytes; split the request, "
                         "or raise --max-body",
                         file->text.max);
    }

    if (ferror(file->file))
        return error_set(ret_error, ATTN_E_IO, "cannot be read: %s", strerror(errno));
    *ret_found = c != EOF || file->text.size > 0;
    return ATTN_OK;
}

/* Whether the line is not a request, but empty. */
static bool is_blank(const struct buf *text) {
    for (size_t i = 0; i < text->size; i++) {
        if (strchr(" \t\r", text->data[i]) == NULL || text->data[i] == '\0')
            return false;
    }
    return true;
}

/* Decodes the line into the arena. */
static attn_status decode_line(struct request_file *file, attn_request *ret_batch,
                               attn_error *ret_error) {
    const struct buf *text = &file->text;
    struct request_memory *memory = &file->memory;
    struct wire_native_scan scan;
    struct wire_problem problem;
    struct wire_request request;

    if (!wire_native_scan(text->data, text->size, NULL, &scan, &problem))
        goto refuse;
    size_t bytes = scan.decode_bytes; /* and a mark for each head */
    size_add_saturating(&bytes, attn_model_get_info(file->model)->num_heads);
    if (bytes > memory->left)
        return refuse_memory(ret_error);
    memory->left -= bytes;

    scan.members[WIRE_NATIVE_MODEL].start = NULL; /* the only one is meant */
    if (!wire_native_decode(text->data, &scan, &file->model, 1, &memory->arena, &request,
                            &problem))
        goto refuse;
    *ret_batch = request.batch;
    ret_batch->need_weights = ATTN_WEIGHTS_NONE;
    return ATTN_OK;

refuse:
    return error_set(ret_error, ATTN_E_VALUE, "%s%s%s", problem.field,
                     problem.field[0] != '\0' ? ": " : "", problem.detail);
}

/* Calls `use` with the request of each line. *ret_count is how many there were. */
static attn_status use_lines(struct request_file *file, const char *done,
                             request_use *use, void *context, size_t *ret_count,
                             attn_error *ret_error) {
    int64_t began = clock_now_ns(), report_after = NS_PER_S;
    bool found;

    for (*ret_count = 0;;) {
        attn_status status = read_line(file, &found, ret_error);
        if (status != ATTN_OK || !found)
            return status;
        if (is_blank(&file->text))
            continue;

        attn_request batch;
        arena_reset(&file->memory.arena);
        file->memory.left = file->memory_max;
        status = decode_line(file, &batch, ret_error);
        if (status == ATTN_OK)
            status = use(context, &batch, &file->memory, ret_error);
        if (status != ATTN_OK)
            return status;

        ++*ret_count;
        int64_t passed = clock_now_ns() - began;
        if (passed >= report_after) {
            fprintf(stderr, "attnd: %zu request%s %s in %.0f s\n", *ret_count,
                    plural_of(*ret_count), done, (double)passed / NS_PER_S);
            report_after = 2 * passed; /* fewer lines, the longer it takes */
        }
    }
}

attn_status request_file_read(const struct config *config, const attn_model *model,
                              const char *done, request_use *use, void *context,
                              attn_error *ret_error) {
    const char *path = config->heads.data;
    struct request_file file = {
        .model = model,
        .file = fopen(path, "re"),
        .memory_max =
            config->max_memory > 0 ? config->max_memory : machine_memory("") / 2,
    };
    if (file.file == NULL)
        return error_set(ret_error, ATTN_E_IO, "--data: cannot read %.200s: %s", path,
                         strerror(errno));
    buf_init(&file.text, config->max_body);
    arena_init(&file.memory.arena, ARENA_KEEP);

    attn_error error;
    size_t count;
    attn_status status = use_lines(&file, done, use, context, &count, &error);
    if (status != ATTN_OK)
        error_set(ret_error, status, "%.200s:%zu: %s", path, file.line, error.text);
    else if (count == 0)
        status = error_set(ret_error, ATTN_E_FORMAT,
                           "%.200s has no request; write the JSON of one "
                           "POST /v1/attention on each line",
                           path);

    arena_deinit(&file.memory.arena);
    buf_deinit(&file.text);
    fclose(file.file);
    return status;
}
