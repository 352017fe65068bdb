/* SPDX-License-Identifier: Apache-2.0 */
/* bytes.h: reads a text one or eight bytes at a time, never past its end. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define WIRE_ALL_BYTES(byte) (UINT64_C(0x0101010101010101) * (byte))

/* Returns the byte at `at`, or 0 at the end. */
static inline char wire_peek(const char *at, const char *end) {
    return at < end ? *at : '\0';
}

/* Returns the next 8 bytes, the first in the lowest bits. Bytes past the end are 0. */
static inline uint64_t wire_load_word(const char *at, const char *end) {
    uint64_t word = 0;
    if (__builtin_expect(end - at >= (ptrdiff_t)sizeof word, 1)) {
        memcpy(&word, at, sizeof word);
    } else {
        for (size_t i = 0; at + i < end; i++)
            ((char *)&word)[i] = at[i];
    }
    return word;
}

/* Returns the first byte that is not white space of JSON. */
static inline const char *wire_skip_space(const char *at, const char *end) {
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')) {
        at++;
        /* A line break is usually followed by a run of spaces. */
        uint64_t others;
        while ((others = wire_load_word(at, end) ^ WIRE_ALL_BYTES(' ')) == 0)
            at += sizeof others;
        at += __builtin_ctzll(others) / 8;
    }
    return at;
}
