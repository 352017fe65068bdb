/* SPDX-License-Identifier: Apache-2.0 */
/* noise.h: numbers to try the layer with, the same ones every time. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Fills `numbers` with values from -scale to scale, from a linear congruential generator
 * (Knuth, The Art of Computer Programming, vol. 2, section 3.3.4). */
static inline void noise_fill(float *numbers, size_t count, float scale) {
    uint32_t x = 12345;
    for (size_t i = 0; i < count; i++) {
        x = x * 1664525 + 1013904223;
        numbers[i] = ((float)(x >> 8) / 0x1p23F - 1.0F) * scale;
    }
}
