/* SPDX-License-Identifier: Apache-2.0 */
/* write.c: prints the header; the data is written from where it is. */
#include "safetensors/write.h"

#include "base/buf.h"
#include "base/endian.h"
#include "base/error.h"
#include "base/output.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define HEADER_UNIT 8 /* bytes; spaces pad the header, so that the data is aligned */

attn_status safetensors_write_file(const char *path,
                                   const struct safetensors_source *tensors, size_t count,
                                   const struct safetensors_text *metadata,
                                   size_t num_metadata, attn_error *ret_error) {
    struct output_piece pieces[1 + SAFETENSORS_SOURCES_MAX];
    uint64_t size = 0;
    size_t begin = 0;
    struct buf header;

    buf_init(&header, SIZE_MAX);
    buf_append(&header, (const char *)&size, sizeof size); /* known at the end */
    buf_append_format(&header, "{\"__metadata__\":{");
    for (size_t i = 0; i < num_metadata; i++)
        buf_append_format(&header, "%s\"%s\":\"%s\"", i > 0 ? "," : "", metadata[i].key,
                          metadata[i].value);
    buf_append_format(&header, "}");
    for (size_t i = 0; i < count; i++) {
        size_t rows = tensors[i].rows, columns = tensors[i].columns;
        size_t bytes = rows * (columns > 0 ? columns : 1) * sizeof(float);
        char second[24] = "";

        if (columns > 0)
            snprintf(second, sizeof second, ",%zu", columns);
        buf_append_format(
            &header,
            ",\"%s\":{\"dtype\":\"F32\",\"shape\":[%zu%s],\"data_offsets\":[%zu,%zu]}",
            tensors[i].name, rows, second, begin, begin + bytes);
        pieces[1 + i] = (struct output_piece){tensors[i].values, bytes};
        begin += bytes;
    }
    buf_append_format(&header, "}");
    while (header.status == ATTN_OK && header.size % HEADER_UNIT != 0)
        buf_append_format(&header, " ");

    attn_status status = header.status;
    size = header.size - sizeof size;
    pieces[0] = (struct output_piece){header.data, header.size};
    if (status == ATTN_OK) {
        memcpy(header.data, &size, sizeof size);
        status = output_create_file(path, pieces, 1 + count, ret_error);
    } else {
        error_set(ret_error, status, "out of memory");
    }
    buf_deinit(&header);
    return status;
}
