/* SPDX-License-Identifier: Apache-2.0 */
/* captures/put.c: hashes a file, reads its header, and writes each number to where it is
 * kept. The pieces may be cut anywhere. */
#include "captures/put.h"

#include "base/clock.h"
#include "base/heap.h"
#include "base/pace.h"
#include "base/size.h"
#include "captures/capture.h"
#include "wire/json/object.h"

#include <math.h>
#include <nettle/base16.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBERS_MAX 1024 /* that are converted at a time */

/* --- numbers --- */

/* Writes `count` numbers of keys, or values, head by head; `first` is the first in the
 * tensor. They are of the type that is kept. */
static void keep_rows(const struct attn_packed *packed, enum capture_tensor kind,
                      size_t first, size_t count, const unsigned char *numbers,
                      unsigned char *to) {
    bool keys = kind == CAPTURE_KEYS;
    size_t size = keys ? packed->head_size : packed->value_size;
    size_t ld = packed_head_ld(packed, size);
    bool bf16 = strcmp(keys ? packed->keys_type : packed->values_type, "BF16") == 0;

    for (size_t i = 0; i < count;) {
        size_t row = (first + i) / size, d = (first + i) % size, step = 1;
        size_t head = row % packed->num_kv_heads, token = row / packed->num_kv_heads;
        size_t at = keys ? packed_find_key(packed, token, &step) : token * size;
        for (at += head * ld + d * step; d < size && i < count; d++, i++, at += step) {
            if (bf16)
                memcpy(to + at * 2, numbers + i * 2, 2);
            else
                memcpy(to + at * sizeof(float), numbers + i * sizeof(float),
                       sizeof(float));
        }
    }
}

/* Writes numbers to where they are kept: float32, but for queries, and bfloat16. */
static void keep_numbers(const struct capture_put *put, const struct capture_part *part,
                         size_t first, size_t count, const unsigned char *bytes,
                         const float *values) {
    const struct capture_layer *layer = &put->capture->layout.items[part->layer];
    unsigned char *to = put->capture->block + part->offset;
    size_t size = part->type->bits / 8;

    if (part->kind == CAPTURE_KEYS || part->kind == CAPTURE_VALUES)
        keep_rows(&layer->packed, part->kind, first, count,
                  strcmp(part->type->name, "BF16") == 0 ? bytes
                                                        : (const unsigned char *)values,
                  to);
    else if (part->kind == CAPTURE_QUERIES)
        memcpy(to + first * size, bytes, count * size);
    else
        memcpy(to + first * sizeof(float), values, count * sizeof(float));
}

static bool refuse_number(const struct capture_put *put, const struct capture_part *part,
                          size_t index, struct wire_problem *ret_problem) {
    bool common = part->kind >= CAPTURE_TOKEN_IDS;
    char name[sizeof ret_problem->field];
    snprintf(name, sizeof name, "%s%s%s",
             common ? "" : put->capture->layout.layers.items[part->layer].name,
             common ? "" : ".", capture_tensor_name(part->kind));
    return wire_problem_set(ret_problem, WIRE_E_OUT_OF_RANGE, name,
                            "number %zu of tensor '%.64s' is not finite, or a position "
                            "or id outside 0..%d, or not the end of a range of keys; "
                            "only a bias may have -inf",
                            index, name, ATTN_POSITION_MAX);
}

static bool take_floats(const struct capture_put *put, const struct capture_part *part,
                        size_t first, size_t count, const unsigned char *bytes,
                        struct wire_problem *ret_problem) {
    float values[NUMBERS_MAX];

    part->type->to_float(bytes, count, values);
    for (size_t i = 0; i < count; i++) {
        bool masks = part->kind == CAPTURE_BIAS && values[i] == -INFINITY;
        if (!isfinite(values[i]) && !masks)
            return refuse_number(put, part, first + i, ret_problem);
    }
    keep_numbers(put, part, first, count, bytes, values);
    return true;
}

/* Whether the last of two numbers ends a range of keys, or both are 0. */
static bool ends_range(const struct capture_put *put, const struct capture_part *part,
                       const size_t *range) {
    const struct capture_layer *layers = put->capture->layout.items;
    bool fits = range[0] < range[1];

    pace_add(part->layer + 1);
    for (size_t i = 0; i <= part->layer; i++)
        fits =
            fits && (layers[i].targets == NULL || range[1] <= layers[i].packed.num_keys);
    return fits || (range[0] == 0 && range[1] == 0);
}

static bool take_positions(const struct capture_put *put, const struct capture_part *part,
                           size_t first, size_t count, const unsigned char *bytes,
                           struct wire_problem *ret_problem) {
    size_t *to = (size_t *)(void *)(put->capture->block + part->offset);
    size_t size = part->type->bits / 8;

    for (size_t i = 0; i < count; i++) {
        int64_t position = dtype_read_integer(bytes + i * size, size);
        if (position < 0 || position > ATTN_POSITION_MAX)
            return refuse_number(put, part, first + i, ret_problem);
        to[first + i] = (size_t)position;
        if (part->kind == CAPTURE_TARGETS && (first + i) % 2 == 1 &&
            !ends_range(put, part, to + first + i - 1))
            return refuse_number(put, part, first + i, ret_problem);
    }
    return true;
}

/* Takes whole numbers of a tensor. */
static bool take_numbers(const struct capture_put *put, const struct capture_part *part,
                         size_t first, size_t count, const unsigned char *bytes,
                         struct wire_problem *ret_problem) {
    bool taken = true;

    for (size_t i = 0, some; i < count && taken; i += some) {
        some = size_min(count - i, NUMBERS_MAX);
        pace_add(4 * some); /* a number takes about 4 ns */
        taken = (capture_tensor_counts(part->kind) ? take_positions : take_floats)(
            put, part, first + i, some, bytes + i * (part->type->bits / 8), ret_problem);
    }
    return taken;
}

/* Takes bytes of one tensor, of which `done` came before. */
static bool take_bytes(struct capture_put *put, const struct capture_part *part,
                       uint64_t done, const unsigned char *bytes, size_t count,
                       struct wire_problem *ret_problem) {
    size_t size = part->type->bits / 8, first = (size_t)(done / size);

    if (part->unused)
        return true;
    if (put->num_carried > 0) {
        size_t some = size_min(size - put->num_carried, count);
        memcpy(put->carry + put->num_carried, bytes, some);
        put->num_carried += some;
        bytes += some;
        count -= some;
        if (put->num_carried < size)
            return true;
        put->num_carried = 0;
        if (!take_numbers(put, part, first++, 1, put->carry, ret_problem))
            return false;
    }
    put->num_carried = count % size;
    if (put->num_carried > 0)
        memcpy(put->carry, bytes + count - put->num_carried, put->num_carried);
    return take_numbers(put, part, first, count / size, bytes, ret_problem);
}

/* --- the header --- */

/* Refuses a file; `field` may be NULL. */
static bool refuse_format(const char *field, const char *reason,
                          struct wire_problem *ret_problem) {
    return wire_problem_set(ret_problem, WIRE_E_MALFORMED_SAFETENSORS, field,
                            "the file is not valid safetensors: %s; write it with a "
                            "safetensors library",
                            reason);
}

/* Takes bytes of the header's size, or of the header; returns how many. */
static size_t take_header(struct capture_put *put, const unsigned char *bytes,
                          size_t size) {
    unsigned char *to = put->header != NULL ? put->header : put->carry;
    size_t done = put->header != NULL ? put->taken - SAFETENSORS_SIZE_BYTES : put->taken;
    size_t whole = put->header != NULL ? put->header_size : SAFETENSORS_SIZE_BYTES;
    size_t some = size_min(whole - done, size);

    memcpy(to + done, bytes, some);
    put->taken += some;
    return some;
}

/* Allocates room for the header, when its size is known. It is in the bytes of the file,
 * which are reserved. */
static bool begin_header(struct capture_put *put, struct wire_problem *ret_problem) {
    attn_error error;
    if (safetensors_find_header(put->carry, put->size, CAPTURE_HEADER_MAX,
                                &put->header_size, &error) != ATTN_OK)
        return refuse_format(NULL, error.text, ret_problem);
    put->header = malloc(put->header_size);
    return put->header != NULL || wire_problem_set_no_memory(ret_problem);
}

/* Lays out what the header describes, and allocates it. */
static bool lay_out_capture(struct capture_put *put,
                            const struct safetensors_header *header,
                            struct wire_problem *ret_problem) {
    struct capture *capture = put->capture;
    struct capture_layout *layout = &capture->layout;

    if (!capture_layout_make(header, layout, ret_problem) ||
        !store_grow(put, capture_count_bytes(capture), ret_problem))
        return false;
    capture->block = heap_alloc(layout->block_bytes);
    if (capture->block == NULL)
        return wire_problem_set_no_memory(ret_problem);
    capture_layout_place(layout, capture->block);
    return true;
}

/* Cuts what the option `tokens` has out of a header, in place. Returns its new size.
 * Texts of captured tokens may be long, and nothing here reads them. */
static size_t cut_tokens(char *text, size_t size) {
    char *at = text, *end = text + size;

    while ((at = memchr(at, '"', (size_t)(end - at))) != NULL) {
        bool is_tokens = end - at >= 8 && memcmp(at, "\"tokens\"", 8) == 0;
        at += wire_string_end(at, end) - at;
        if (at == end)
            return size;
        at++;
        while (is_tokens && at < end && *at != '\0' && strchr(" :\t\n\r", *at) != NULL)
            at++;
        if (!is_tokens || at == end || *at != '"')
            continue;
        char *begin = at + 1;
        at += wire_string_end(at, end) - at;
        if (at == end)
            return size;
        memmove(begin, at, (size_t)(end - at));
        return size - (size_t)(at - begin);
    }
    return size;
}

/* Reads the header, which is whole. */
static bool end_header(struct capture_put *put, const struct capture_printer *printer,
                       struct wire_problem *ret_problem) {
    char *text = (char *)put->header;
    size_t size = cut_tokens(text, put->header_size);
    uint64_t data_size = put->size - SAFETENSORS_SIZE_BYTES - put->header_size;
    struct safetensors_header header = {0};
    attn_error error;

    if (!printer->reserve(printer->context, wire_json_cost(size), ret_problem))
        return false;
    attn_status status = safetensors_header_parse(text, size, data_size, &header, &error);
    bool read = status == ATTN_OK && lay_out_capture(put, &header, ret_problem);
    if (status == ATTN_E_NOMEM)
        wire_problem_set_no_memory(ret_problem);
    else if (status != ATTN_OK)
        refuse_format(header.wrong, error.text, ret_problem);
    safetensors_header_deinit(&header);
    free(put->header);
    put->header = NULL;
    if (!read)
        return false;
    put->capture->info.description = shared_text_create(printer->print, put->capture);
    if (put->capture->info.description == NULL)
        return wire_problem_set_no_memory(ret_problem);
    return store_grow(put, capture_count_bytes(put->capture), ret_problem);
}

/* --- the file --- */

/* Adds bytes to a file that is kept. */
static bool keep_bytes(struct capture_put *put, const unsigned char *bytes, size_t size,
                       const struct capture_printer *printer,
                       struct wire_problem *ret_problem) {
    const struct capture_layout *layout = &put->capture->layout;

    while (size > 0) {
        size_t some;
        if (put->capture->block == NULL) { /* in the header */
            some = take_header(put, bytes, size);
            if (put->taken == SAFETENSORS_SIZE_BYTES && !begin_header(put, ret_problem))
                return false;
            if (put->header != NULL &&
                put->taken == SAFETENSORS_SIZE_BYTES + put->header_size &&
                !end_header(put, printer, ret_problem))
                return false;
        } else {
            const struct capture_part *part = &layout->parts[put->part];
            uint64_t at = put->taken - SAFETENSORS_SIZE_BYTES - put->header_size;
            some = size_min((size_t)(part->end - at), size);
            if (!take_bytes(put, part, at - part->begin, bytes, some, ret_problem))
                return false;
            put->taken += some;
            put->part += at + some == part->end;
        }
        bytes += some;
        size -= some;
    }
    return true;
}

bool capture_put_add(struct capture_put *put, const unsigned char *bytes, size_t size,
                     const struct capture_printer *printer,
                     struct wire_problem *ret_problem) {
    if (!store_enter(put, ret_problem))
        return false;
    bool added = size <= put->size - put->taken || /* a body longer than was said */
                 refuse_format(NULL, "it has more bytes than it said", ret_problem);
    if (added) {
        sha256_update(&put->hash, size, bytes);
        pace_add(4 * size); /* without instructions for it, a byte takes about 4 ns */
        added = put->compares || keep_bytes(put, bytes, size, printer, ret_problem);
        put->taken += put->compares ? size : 0;
    }
    store_leave(put);
    return added;
}

bool capture_put_create(struct captures *store, const struct capture_owner *owner,
                        const char *name, size_t name_size, size_t size, int64_t ttl,
                        struct capture_put **ret_put, struct wire_problem *ret_problem) {
    struct capture_put *put = calloc(1, sizeof *put);
    struct capture *capture = calloc(1, sizeof *capture);

    if (put == NULL || capture == NULL) {
        free(put);
        free(capture);
        return wire_problem_set_no_memory(ret_problem);
    }
    capture->store = put->store = store;
    capture->file_bytes = put->size = size;
    capture->info.ttl = ttl;
    snprintf(capture->info.name, sizeof capture->info.name, "%.*s", (int)name_size, name);
    put->capture = capture;
    put->started = clock_now_ns();
    sha256_init(&put->hash);
    if (!store_begin(store, put, owner, ret_problem)) {
        free(put);
        return false;
    }
    *ret_put = put;
    return true;
}

/* Writes the hash of all bytes in lower case. */
static void finish_hash(struct sha256_ctx *hash, char ret_text[static CAPTURE_HASH_MAX]) {
    uint8_t digest[SHA256_DIGEST_SIZE];

    sha256_digest(hash, sizeof digest, digest);
    base16_encode_update(ret_text, sizeof digest, digest);
    ret_text[CAPTURE_HASH_MAX - 1] = '\0';
}

/* Whether a name is a hash. */
static bool is_hash(const char *name) {
    size_t size = strlen(name);
    return size == CAPTURE_HASH_MAX - 1 && strspn(name, "0123456789abcdefABCDEF") == size;
}

bool capture_put_finish(struct capture_put *put, struct capture **ret_capture,
                        bool *ret_created, struct wire_problem *ret_problem) {
    bool published = false;

    if (!store_enter(put, ret_problem))
        return false;
    struct capture *capture = put->capture; /* is not ended while it is busy */
    finish_hash(&put->hash, capture->info.sha256);
    if (put->taken < put->size || (!put->compares && capture->block == NULL)) {
        refuse_format(NULL, "it ends early", ret_problem);
    } else if (is_hash(capture->info.name) &&
               strcmp(capture->info.name, capture->info.sha256) != 0) {
        wire_problem_set(
            ret_problem, WIRE_E_BAD_CAPTURE_NAME, NULL,
            "a name of 64 hexadecimal digits must be the SHA-256 of the file "
            "in lower case, and that is another one; choose another name");
    } else {
        free(capture->layout.parts);
        capture->layout.parts = NULL;
        published = store_publish(put, ret_capture, ret_created, ret_problem);
    }
    store_leave(put);
    return published;
}

void capture_put_destroy(struct capture_put *put) {
    if (put == NULL)
        return;
    store_end(put);
    free(put->header);
    free(put);
}
