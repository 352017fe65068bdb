/* SPDX-License-Identifier: Apache-2.0 */
/* pace.c: handles arrays in pieces of WIRE_PACE_NUMBERS. */
#include "wire/pace.h"

#include "base/finite.h"

static size_t next_piece(size_t done, size_t count) {
    return count - done < WIRE_PACE_NUMBERS ? count - done : WIRE_PACE_NUMBERS;
}

size_t wire_pace_finite_end(struct wire_pace *pace, const float *numbers, size_t count) {
    size_t done = 0;
    while (done < count) {
        size_t piece = next_piece(done, count);
        size_t end = finite_end(numbers + done, piece);
        done += end;
        if (end < piece)
            break;
        wire_pace_add(pace, piece * sizeof *numbers);
    }
    return done;
}

void wire_pace_to_float(struct wire_pace *pace, const struct dtype *dtype,
                        const unsigned char *bytes, size_t count, float *ret_values) {
    size_t size = dtype->bits / 8;
    for (size_t done = 0, piece; done < count; done += piece) {
        piece = next_piece(done, count);
        dtype->to_float(bytes + done * size, piece, ret_values + done);
        wire_pace_add(pace, piece * sizeof *ret_values);
    }
}
