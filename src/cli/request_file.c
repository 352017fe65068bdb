/* SPDX-License-Identifier: Apache-2.0 */
/* request_file.c: reads lines of JSON, or one request in safetensors, and decodes each as
 * the server decodes a body. */
#include "cli/request_file.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/machine.h"
#include "base/size.h"
#include "safetensors/foreign.h"
#include "wire/native/native.h"
#include "wire/safetensors/safetensors.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define ARENA_KEEP ((size_t)64 * 1024 * 1024) /* bytes, from request to request */
#define NS_PER_S   1000000000

#define MEMORY_SHORT                                                                     \
    "the request needs more memory than there is, or than --max-memory allows; split "   \
    "it, or raise --max-memory"

struct request_file {
    const attn_model *model;
    FILE *file;
    unsigned char begin[SAFETENSORS_FOREIGN_MAX]; /* its first bytes, read ahead */
    size_t begin_size, begin_used;
    wire_read *read;
    int separator;   /* the byte that ends a request; EOF: the file has only one */
    size_t line;     /* the number of the last request read */
    struct buf text; /* the request */
    struct request_memory memory;
};

size_t request_memory_max(const struct config *config) {
    return config->max_memory > 0 ? config->max_memory : machine_memory("") / 2;
}

void request_memory_init(struct request_memory *memory, const struct config *config) {
    memory->max = request_memory_max(config);
    memory->left = memory->max;
    arena_init(&memory->arena, ARENA_KEEP);
}

void *request_alloc(struct request_memory *memory, size_t count, size_t size,
                    attn_error *ret_error) {
    size_t bytes;
    bool fits = size_mul(count, size, &bytes) && bytes <= memory->left;
    void *allocated = fits ? arena_alloc(&memory->arena, count, size) : NULL;

    if (allocated != NULL)
        memory->left -= bytes;
    else
        error_set(ret_error, ATTN_E_NOMEM, MEMORY_SHORT);
    return allocated;
}

/* --- bytes --- */

/* Reads ahead until there are `size` of the first bytes, or the file ends. */
static void read_begin(struct request_file *file, size_t size) {
    file->begin_size +=
        fread(file->begin + file->begin_size, 1, size - file->begin_size, file->file);
}

/* Finds out what the file has. A request in JSON may come through a pipe whose other end
 * waits, so no more is read ahead than it must have. */
static attn_status find_format(struct request_file *file, const char *path,
                               attn_error *ret_error) {
    read_begin(file, SAFETENSORS_BEGIN_MIN);
    if (safetensors_is_likely(file->begin, file->begin_size)) {
        file->read = wire_safetensors_read;
        file->separator = EOF;
        return ATTN_OK;
    }

    file->read = wire_native_read;
    file->separator = '\n';
    if (file->begin_size == 0 || strchr(" \t\r\n{", file->begin[0]) != NULL)
        return ATTN_OK;
    read_begin(file, sizeof file->begin);
    if (!safetensors_find_foreign(file->begin, file->begin_size, path,
                                  SAFETENSORS_OF_REQUEST, ret_error))
        return ATTN_OK; /* the JSON is wrong, and its reader says where */
    return ATTN_E_FORMAT;
}

static int next_byte(struct request_file *file) {
    return file->begin_used < file->begin_size ? file->begin[file->begin_used++]
                                               : getc_unlocked(file->file);
}

/* Reads the next request into file->text, without its separator. *ret_found is false at
 * the end of the file. */
static attn_status read_text(struct request_file *file, bool *ret_found,
                             attn_error *ret_error) {
    int c;

    file->text.size = 0;
    file->line++;
    while ((c = next_byte(file)) != EOF && c != file->separator) {
        char byte = (char)c;
        buf_append(&file->text, &byte, 1);
        if (file->text.status == ATTN_OK)
            continue;
        if (file->text.size < file->text.max)
            return error_set(ret_error, ATTN_E_NOMEM, "out of memory");
        return error_set(ret_error, ATTN_E_VALUE,
                         "the request has more than %zu bytes; split it, "
                         "or raise --max-body",
                         file->text.max);
    }

    if (ferror(file->file))
        return error_set(ret_error, ATTN_E_IO, "cannot be read: %s", strerror(errno));
    *ret_found = c != EOF || file->text.size > 0;
    return ATTN_OK;
}

/* Whether the text is not a request, but an empty line. */
static bool is_blank(const struct buf *text) {
    for (size_t i = 0; i < text->size; i++) {
        if (strchr(" \t\r", text->data[i]) == NULL || text->data[i] == '\0')
            return false;
    }
    return true;
}

/* --- requests --- */

/* wire_input.reserve */
static bool reserve_memory(void *context, size_t bytes,
                           struct wire_problem *ret_problem) {
    struct request_memory *memory = context;

    if (bytes > memory->left)
        return wire_problem_set(ret_problem, WIRE_E_REQUEST_TOO_LARGE, NULL,
                                MEMORY_SHORT);
    memory->left -= bytes;
    return true;
}

/* Decodes the text into the arena, or in place. */
static attn_status decode_text(struct request_file *file, attn_request *ret_batch,
                               attn_error *ret_error) {
    struct request_memory *memory = &file->memory;
    const struct wire_input input = {
        .body = file->text.data,
        .size = file->text.size,
        .json_size = WIRE_NO_SIZE,
        .models = &file->model,
        .num_models = 1,
        .any_name = true,
        .targets_alone = true,
        .arena = &memory->arena,
        .reserve = reserve_memory,
        .context = memory,
    };
    struct wire_problem problem;
    struct wire_request request;

    if (!file->read(&input, &request, &problem))
        return error_set(ret_error, ATTN_E_VALUE, "%s%s%s", problem.field,
                         problem.field[0] != '\0' ? ": " : "", problem.detail);
    *ret_batch = request.batch;
    /* The results that a server would send do not matter here. */
    ret_batch->need_weights = ATTN_WEIGHTS_NONE;
    ret_batch->omit_outputs = ret_batch->need_heads = ret_batch->need_lse = false;
    ret_batch->need_contributions = false;
    ret_batch->reduce = (attn_reductions){.targets = request.batch.reduce.targets};
    return ATTN_OK;
}

/* Calls `use` with each request. *ret_count is how many there were. */
static attn_status use_requests(struct request_file *file, const char *done,
                                request_use *use, void *context, size_t *ret_count,
                                attn_error *ret_error) {
    int64_t began = clock_now_ns(), report_after = NS_PER_S;
    bool found;

    for (*ret_count = 0;;) {
        attn_status status = read_text(file, &found, ret_error);
        if (status != ATTN_OK || !found)
            return status;
        if (is_blank(&file->text))
            continue;

        attn_request batch;
        arena_reset(&file->memory.arena);
        file->memory.left = file->memory.max;
        status = decode_text(file, &batch, ret_error);
        if (status == ATTN_OK)
            status = use(context, &batch, &file->memory, ret_error);
        if (status != ATTN_OK)
            return status;

        ++*ret_count;
        int64_t passed = clock_now_ns() - began;
        if (done != NULL && passed >= report_after) {
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
    };
    if (file.file == NULL)
        return error_set(ret_error, ATTN_E_IO, "--data: cannot read %.200s: %s", path,
                         strerror(errno));
    buf_init(&file.text, config->max_body);
    request_memory_init(&file.memory, config);

    attn_error error;
    size_t count = 0;
    char line[24] = "";
    attn_status status = find_format(&file, path, &error);
    if (status == ATTN_OK)
        status = use_requests(&file, done, use, context, &count, &error);
    if (file.separator == '\n' && file.line > 0)
        snprintf(line, sizeof line, ":%zu", file.line);
    if (status != ATTN_OK)
        error_set(ret_error, status, "%.200s%s: %s", path, line, error.text);
    else if (count == 0)
        status = error_set(ret_error, ATTN_E_FORMAT,
                           "%.200s has no request; " REQUEST_FILE_REMEDY, path);

    arena_deinit(&file.memory.arena);
    buf_deinit(&file.text);
    fclose(file.file);
    return status;
}
