/* SPDX-License-Identifier: Apache-2.0 */
/* write.c: prints the header; the data is written from where it is. jansson would do for
 * the header, if its printer noticed every allocation that fails. */
#include "safetensors/write.h"

#include "base/buf.h"
#include "base/endian.h"
#include "base/error.h"
#include "base/output.h"
#include "safetensors/header.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_UNIT 8   /* bytes; spaces pad the header, so that the data is aligned */
#define ENTRY_BYTES 256 /* of a name or key, a value, and the rest of an entry */

static size_t count_bytes(const struct safetensors_source *tensor) {
    size_t columns = tensor->columns > 0 ? tensor->columns : 1;
    return tensor->rows * columns * sizeof(float);
}

/* Appends a tensor whose data begins at byte `begin`. */
static attn_status append_tensor(const struct safetensors_source *tensor, size_t begin,
                                 struct buf *out) {
    char entry[ENTRY_BYTES], columns[24] = "";

    if (tensor->columns > 0)
        snprintf(columns, sizeof columns, ",%zu", tensor->columns);
    snprintf(entry, sizeof entry,
             ",\"%s\":{\"dtype\":\"F32\",\"shape\":[%zu%s],\"data_offsets\":[%zu,%zu]}",
             tensor->name, tensor->rows, columns, begin, begin + count_bytes(tensor));
    return buf_append_text(out, entry);
}

/* Appends the whole header, its size first. */
static attn_status append_header(const struct safetensors_source *tensors, size_t count,
                                 const struct safetensors_text *metadata,
                                 size_t num_metadata, struct buf *out) {
    uint64_t size = 0;
    size_t begin = 0;

    attn_status status = buf_append(out, &size, sizeof size);
    if (status == ATTN_OK)
        status = buf_append_text(out, "{\"__metadata__\":{");
    for (size_t i = 0; status == ATTN_OK && i < num_metadata; i++) {
        char entry[ENTRY_BYTES];
        snprintf(entry, sizeof entry, "%s\"%s\":\"%s\"", i > 0 ? "," : "",
                 metadata[i].key, metadata[i].value);
        status = buf_append_text(out, entry);
    }
    if (status == ATTN_OK)
        status = buf_append_text(out, "}");
    for (size_t i = 0; status == ATTN_OK && i < count; i++) {
        status = append_tensor(&tensors[i], begin, out);
        begin += count_bytes(&tensors[i]);
    }
    if (status == ATTN_OK)
        status = buf_append_text(out, "}");
    while (status == ATTN_OK && out->size % HEADER_UNIT != 0)
        status = buf_append_text(out, " ");
    if (status != ATTN_OK)
        return status;

    size = out->size - sizeof size;
    memcpy(out->data, &size, sizeof size);
    return ATTN_OK;
}

attn_status safetensors_write_file(const char *path,
                                   const struct safetensors_source *tensors, size_t count,
                                   const struct safetensors_text *metadata,
                                   size_t num_metadata, attn_error *ret_error) {
    struct output_piece *pieces = calloc(count + 1, sizeof *pieces);
    struct buf header;
    buf_init(&header, SAFETENSORS_SIZE_BYTES + SAFETENSORS_HEADER_MAX);

    attn_status status =
        pieces == NULL ? ATTN_E_NOMEM
                       : append_header(tensors, count, metadata, num_metadata, &header);
    if (status == ATTN_OK) {
        pieces[0] = (struct output_piece){header.data, header.size};
        for (size_t i = 0; i < count; i++)
            pieces[i + 1] =
                (struct output_piece){tensors[i].values, count_bytes(&tensors[i])};
        status = output_create_file(path, pieces, count + 1, ret_error);
    } else {
        error_set(ret_error, status, "not enough memory to write %.200s", path);
    }
    free(pieces);
    buf_deinit(&header);
    return status;
}
