/* SPDX-License-Identifier: Apache-2.0 */
/* write.c: prints the header; the data is written from where it is. */
#include "safetensors/write.h"

#include "base/endian.h"
#include "base/output.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define HEADER_UNIT 8   /* bytes; spaces pad the header, so that the data is aligned */
#define ENTRY_BYTES 256 /* of a name or key, a value, and the rest of an entry */

/* A header in the making, its size first. */
struct header_text {
    char bytes[(SAFETENSORS_SOURCES_MAX + SAFETENSORS_TEXTS_MAX + 1) * ENTRY_BYTES];
    size_t size;
};

__attribute__((format(printf, 2, 3))) static void add_text(struct header_text *header,
                                                           const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    header->size +=
        (size_t)vsnprintf(header->bytes + header->size,
                          sizeof header->bytes - header->size, format, arguments);
    va_end(arguments);
}

attn_status safetensors_write_file(const char *path,
                                   const struct safetensors_source *tensors, size_t count,
                                   const struct safetensors_text *metadata,
                                   size_t num_metadata, attn_error *ret_error) {
    struct output_piece pieces[1 + SAFETENSORS_SOURCES_MAX];
    struct header_text header = {.size = sizeof(uint64_t)};
    size_t begin = 0;

    add_text(&header, "{\"__metadata__\":{");
    for (size_t i = 0; i < num_metadata; i++)
        add_text(&header, "%s\"%s\":\"%s\"", i > 0 ? "," : "", metadata[i].key,
                 metadata[i].value);
    add_text(&header, "}");
    for (size_t i = 0; i < count; i++) {
        size_t rows = tensors[i].rows, columns = tensors[i].columns;
        size_t bytes = rows * (columns > 0 ? columns : 1) * sizeof(float);
        char second[24] = "";

        if (columns > 0)
            snprintf(second, sizeof second, ",%zu", columns);
        add_text(
            &header,
            ",\"%s\":{\"dtype\":\"F32\",\"shape\":[%zu%s],\"data_offsets\":[%zu,%zu]}",
            tensors[i].name, rows, second, begin, begin + bytes);
        pieces[1 + i] = (struct output_piece){tensors[i].values, bytes};
        begin += bytes;
    }
    add_text(&header, "}");
    while (header.size % HEADER_UNIT != 0)
        add_text(&header, " ");

    uint64_t size = header.size - sizeof size;
    memcpy(header.bytes, &size, sizeof size);
    pieces[0] = (struct output_piece){header.bytes, header.size};
    return output_create_file(path, pieces, 1 + count, ret_error);
}
