/* SPDX-License-Identifier: Apache-2.0 */
/* requests.c: reads a file of requests, and makes the bytes of each. A body that is JSON
 * is sent as it is written in the file, digit for digit. */
#include "bench/http/requests.h"

#include "base/buf.h"
#include "base/error.h"
#include "wire/json/object.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define BYTES_MAX     ((size_t)4 << 30) /* of a file, and of a request */
#define READ_BYTES    ((size_t)64 * 1024)
#define WEIGHT_MAX    1000000
#define LINE_MAX_SIZE 8192 /* of a header */

static const struct wire_keys request_keys = {
    .owner = "a request in the file",
    .count = 7,
    .names = {"body", "method", "path", "content_type", "headers", "body_file", "weight"},
};

/* One object of the file, while it is read. All but the buffers is borrowed. */
struct request_reader {
    const char *file; /* its path */
    size_t line;      /* where the object begins */
    const struct load_target *target;
    const struct config_texts *all;                       /* headers of all requests */
    const char *method, *path, *content_type, *body_file; /* NULL: left out */
    json_t *headers, *body;
    struct wire_span body_text; /* as it is written */
    json_int_t weight;
    struct buf head, content;
    attn_error *error;
};

/* Refuses the object: returns ATTN_E_VALUE, with the file and the line in the error. */
__attribute__((format(printf, 2, 3))) static attn_status
refuse_request(const struct request_reader *reader, const char *format, ...) {
    char text[320];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return error_set(reader->error, ATTN_E_VALUE, "%.200s:%zu: %s", reader->file,
                     reader->line, text);
}

/* --- files --- */

/* Reads a whole file into `buf`, which the caller has made. */
static attn_status load_file(const char *path, struct buf *buf, attn_error *ret_error) {
    FILE *file = fopen(path, "re");
    size_t size = file != NULL;

    for (; size > 0 && buf_reserve(buf, READ_BYTES) == ATTN_OK; buf->size += size)
        size = fread(buf->data + buf->size, 1, READ_BYTES, file);
    bool failed = file == NULL || ferror(file) != 0;
    int number = errno;

    if (file != NULL)
        fclose(file);
    if (failed)
        return error_set(ret_error, ATTN_E_IO, "cannot read %.200s: %s", path,
                         strerror(number));
    if (size > 0)
        return error_set(ret_error, ATTN_E_NOMEM,
                         "%.200s does not fit into memory, or has more than %zu bytes",
                         path, buf->max);
    return ATTN_OK;
}

/* Reads the file that "body_file" names, relative to the folder of the requests. */
static attn_status read_body_file(struct request_reader *reader) {
    char path[4096];
    const char *name = reader->body_file, *slash = strrchr(reader->file, '/');
    int folder = name[0] == '/' || slash == NULL ? 0 : (int)(slash - reader->file) + 1;
    attn_error error;

    if (snprintf(path, sizeof path, "%.*s%s", folder, reader->file, name) >=
        (int)sizeof path)
        return refuse_request(reader, "the path of body_file is too long");
    if (load_file(path, &reader->content, &error) != ATTN_OK)
        return refuse_request(reader, "body_file: %s", error.text);
    return ATTN_OK;
}

/* --- heads --- */

bool load_header_is_valid(const char *line) {
    static const char *const own[] = {"Content-Length", "Transfer-Encoding", "Connection",
                                      "Expect"};
    size_t name = strspn(line, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                               "0123456789!#$%&'*+-.^_`|~");

    if (name == 0 || line[name] != ':' || strlen(line) >= LINE_MAX_SIZE)
        return false;
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        if (strlen(own[i]) == name && strncasecmp(own[i], line, name) == 0)
            return strcasecmp(line, "Connection: close") == 0;
    }
    for (const char *c = line + name; *c != '\0'; c++) {
        if (iscntrl((unsigned char)*c) && *c != '\t')
            return false;
    }
    return true;
}

/* Adds a header, unless the head has one of this name that `is_default` gives way to.
 * Returns whether it can be sent. */
static bool add_header(struct buf *head, const char *name, const char *value,
                       bool is_default) {
    char line[LINE_MAX_SIZE];
    int size = snprintf(line, sizeof line, "%s: %s", name, value != NULL ? value : "\n");

    for (size_t i = 0; is_default && i + strlen(name) + 1 < head->size; i++) {
        if (head->data[i] == '\n' &&
            strncasecmp(head->data + i + 1, line, strlen(name) + 1) == 0)
            return true;
    }
    if (size >= (int)sizeof line || !load_header_is_valid(line))
        return false;
    buf_append_text(head, line);
    buf_append_text(head, "\r\n");
    return true;
}

/* Returns the media type of the body. */
static const char *find_type(const struct request_reader *reader) {
    const char *ending =
        reader->body_file != NULL ? strrchr(reader->body_file, '.') : NULL;

    if (reader->content_type != NULL)
        return reader->content_type;
    return ending != NULL && strcmp(ending, ".safetensors") == 0
               ? "application/vnd.safetensors"
               : "application/json";
}

static attn_status make_head(struct request_reader *reader, bool has_body) {
    const char *listen = reader->target->listen, *name;
    struct buf *head = &reader->head;
    json_t *value;

    /* A path may be longer than BUF_FORMAT_MAX. */
    buf_append_format(head, "%s ", reader->method);
    buf_append_text(head, reader->path);
    buf_append_text(head, " HTTP/1.1\r\n");
    for (size_t i = 0; i < reader->all->count; i++) {
        buf_append_text(head, reader->all->items[i]);
        buf_append_text(head, "\r\n");
    }
    json_object_foreach(reader->headers, name, value) {
        if (!add_header(head, name, json_string_value(value), false))
            return refuse_request(
                reader,
                "headers: '%.64s' cannot be sent; its value must be a string in one "
                "line, and what frames a body is added",
                name);
    }

    add_header(head, "Host", listen_is_unix(listen) ? "localhost" : listen, true);
    if (has_body && !add_header(head, "Content-Type", find_type(reader), true))
        return refuse_request(reader, "content_type cannot be sent in a header");
    if (has_body || strcmp(reader->method, "GET") != 0)
        buf_append_format(head, "Content-Length: %zu\r\n", reader->content.size);
    buf_append_text(head, "\r\n");
    return ATTN_OK;
}

/* --- requests --- */

static attn_status add_body(struct request_reader *reader) {
    const struct wire_span *text = &reader->body_text;

    if (reader->body != NULL && reader->body_file != NULL)
        return refuse_request(reader, "has body and body_file; leave one of them out");
    if (reader->body_file != NULL)
        return read_body_file(reader);
    if (json_is_string(reader->body))
        buf_append(&reader->content, json_string_value(reader->body),
                   json_string_length(reader->body));
    else if (json_is_object(reader->body) || json_is_array(reader->body))
        buf_append(&reader->content, text->start, (size_t)(text->end - text->start));
    else if (reader->body != NULL)
        return refuse_request(reader, "body is not an object, a list or a string");
    return ATTN_OK;
}

/* Makes the bytes of the request in reader->head. */
static attn_status build_request(struct request_reader *reader) {
    bool has_body = reader->body != NULL || reader->body_file != NULL;

    if (reader->method == NULL)
        reader->method = has_body ? "POST" : "GET";
    if (reader->path == NULL)
        reader->path = reader->target->path;
    if (strcmp(reader->method, "GET") != 0 && strcmp(reader->method, "POST") != 0 &&
        strcmp(reader->method, "PUT") != 0 && strcmp(reader->method, "DELETE") != 0)
        return refuse_request(reader, "method is not GET, POST, PUT or DELETE");
    if (!load_path_is_valid(reader->path))
        return refuse_request(reader,
                              "path must begin with '/', without blanks and '#', and "
                              "have at most %d bytes",
                              LOAD_PATH_MAX);
    if (reader->weight < 1 || reader->weight > WEIGHT_MAX)
        return refuse_request(reader, "weight is not a whole number from 1 to %d",
                              WEIGHT_MAX);

    attn_status status = add_body(reader);
    if (status == ATTN_OK)
        status = make_head(reader, has_body);
    if (reader->content.size > 0)
        buf_append(&reader->head, reader->content.data, reader->content.size);
    return status;
}

/* Appends a request, and takes its bytes. Returns false when memory is short. The list's
 * capacity is a power of two. */
static bool append_request(struct load_requests *requests, uint64_t weight,
                           struct buf *bytes) {
    size_t count = requests->count;
    uint64_t before = count > 0 ? requests->items[count - 1].weight_end : 0;

    if ((count & (count - 1)) == 0) {
        struct load_request *items =
            realloc(requests->items, (count > 0 ? 2 * count : 1) * sizeof *items);
        if (items == NULL)
            return false;
        requests->items = items;
    }
    struct load_request *request = &requests->items[requests->count++];
    request->weight_end = before + weight;
    request->bytes = buf_take(bytes, &request->size);
    return true;
}

/* Adds the request that was read. */
static attn_status add_request(struct request_reader *reader,
                               struct load_requests *requests) {
    buf_init(&reader->head, BYTES_MAX);
    buf_init(&reader->content, BYTES_MAX);

    attn_status status = build_request(reader);
    if (status == ATTN_OK &&
        (reader->head.status != ATTN_OK || reader->content.status != ATTN_OK ||
         !append_request(requests, (uint64_t)reader->weight, &reader->head)))
        status = error_set(reader->error, ATTN_E_NOMEM, "%.200s:%zu: out of memory",
                           reader->file, reader->line);
    buf_deinit(&reader->head);
    buf_deinit(&reader->content);
    return status;
}

/* Finds the members of an object whose keys are known. */
static attn_status read_members(struct request_reader *reader, const json_t *root) {
    const struct {
        const char *key;
        const char **value;
    } texts[] = {{"method", &reader->method},
                 {"path", &reader->path},
                 {"content_type", &reader->content_type},
                 {"body_file", &reader->body_file}};

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        const json_t *value = json_object_get(root, texts[i].key);
        *texts[i].value = json_string_value(value);
        if (value != NULL && !json_is_string(value))
            return refuse_request(reader, "%s is not a string", texts[i].key);
    }
    const json_t *weight = json_object_get(root, "weight");
    reader->weight = weight != NULL ? json_integer_value(weight) : 1;
    reader->body = json_object_get(root, "body");
    reader->headers = json_object_get(root, "headers");
    if (reader->headers != NULL && !json_is_object(reader->headers))
        return refuse_request(reader, "headers is not an object of names and values");
    return ATTN_OK;
}

/* Adds the request whose object is `text`. */
static attn_status read_object(struct request_reader *reader, const char *text,
                               size_t size, struct load_requests *requests) {
    json_error_t error;
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);

    attn_status status = root != NULL ? read_members(reader, root)
                                      : refuse_request(reader, "%s", error.text);
    if (status == ATTN_OK)
        status = add_request(reader, requests);
    json_decref(root);
    return status;
}

/* --- the file --- */

static attn_status read_objects(struct request_reader *reader, const struct buf *text,
                                struct load_requests *requests) {
    struct wire_problem problem;
    struct wire_cursor cursor = {text->data, text->data, text->data + text->size,
                                 &problem};
    struct wire_place place = {.field = ""};
    const char *counted = text->data;
    attn_status status = ATTN_OK;

    reader->line = 1;
    while (status == ATTN_OK && wire_cursor_next(&cursor) != '\0') {
        struct wire_span members[7];
        const char *start = cursor.at;

        for (; counted < start; counted++)
            reader->line += *counted == '\n';
        if (!wire_object_scan(&cursor, &place, 1, &request_keys, members))
            return error_set(reader->error, ATTN_E_FORMAT, "%.200s: %s", reader->file,
                             problem.detail);
        reader->body_text = members[0];
        status = read_object(reader, start, (size_t)(cursor.at - start), requests);
    }
    if (status == ATTN_OK && cursor.at < cursor.end)
        status = refuse_request(reader, "a byte 0 is not text");
    if (status == ATTN_OK && requests->count == 0)
        status = error_set(reader->error, ATTN_E_FORMAT,
                           "%.200s has no requests; write one JSON object in each line, "
                           "such as {\"path\": \"/v2/health/live\"}",
                           reader->file);
    return status;
}

attn_status load_requests_read(const char *path, const struct load_target *target,
                               const struct config_texts *headers,
                               struct load_requests *ret_requests,
                               attn_error *ret_error) {
    struct request_reader reader = {
        .file = path, .target = target, .all = headers, .weight = 1, .error = ret_error};
    struct load_requests requests = {NULL, 0};
    struct buf text;

    if (path == NULL) {
        reader.file = target->listen;
        attn_status status = add_request(&reader, &requests);
        *ret_requests = requests;
        return status;
    }
    buf_init(&text, BYTES_MAX);
    attn_status status = load_file(path, &text, ret_error);
    if (status == ATTN_OK)
        status = read_objects(&reader, &text, &requests);
    buf_deinit(&text);
    if (status == ATTN_OK)
        *ret_requests = requests;
    else
        load_requests_deinit(&requests);
    return status;
}

void load_requests_deinit(struct load_requests *requests) {
    for (size_t i = 0; i < requests->count; i++)
        free(requests->items[i].bytes);
    free(requests->items);
    *requests = (struct load_requests){NULL, 0};
}

size_t load_requests_choose(const struct load_requests *requests, uint64_t random) {
    uint64_t at = random % requests->items[requests->count - 1].weight_end;
    size_t low = 0, high = requests->count - 1;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (at < requests->items[middle].weight_end)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}
