/* SPDX-License-Identifier: Apache-2.0 */
#include "base/dtype.h"

#include "base/endian.h"

#include <stdint.h>
#include <string.h>

static float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void f32_to_float(const unsigned char *bytes, size_t count, float *ret_values) {
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, bytes + i * sizeof bits, sizeof bits);
        ret_values[i] = float_of_bits(bits);
    }
}

/* bfloat16 is the upper half of a float32. */
static void bf16_to_float(const unsigned char *bytes, size_t count, float *ret_values) {
    for (size_t i = 0; i < count; i++) {
        uint16_t bits;
        memcpy(&bits, bytes + i * sizeof bits, sizeof bits);
        ret_values[i] = float_of_bits((uint32_t)bits << 16);
    }
}

/* IEEE 754 binary16: 1 sign, 5 exponent (bias 15), 10 fraction bits. All fit a float32.
 */
static float float_of_half(uint32_t half) {
    uint32_t sign = (half & 0x8000) << 16;
    uint32_t exponent = half >> 10 & 0x1f;
    uint32_t fraction = half & 0x3ff;
    if (exponent == 0) { /* zero or subnormal */
        float magnitude = (float)fraction * 0x1p-24f;
        return sign != 0 ? -magnitude : magnitude;
    }
    if (exponent == 0x1f) /* infinity or NaN */
        return float_of_bits(sign | 0x7f800000 | fraction << 13);
    return float_of_bits(sign | (exponent - 15 + 127) << 23 | fraction << 13);
}

static void f16_to_float(const unsigned char *bytes, size_t count, float *ret_values) {
    for (size_t i = 0; i < count; i++) {
        uint16_t bits;
        memcpy(&bits, bytes + i * sizeof bits, sizeof bits);
        ret_values[i] = float_of_half(bits);
    }
}

static void f64_to_float(const unsigned char *bytes, size_t count, float *ret_values) {
    for (size_t i = 0; i < count; i++) {
        uint64_t bits;
        memcpy(&bits, bytes + i * sizeof bits, sizeof bits);
        double value;
        memcpy(&value, &bits, sizeof value);
        ret_values[i] = (float)value;
    }
}

/* All that safetensors knows (safetensors/src/tensor.rs), so that the span of any tensor
 * can be checked. */
static const struct dtype dtypes[] = {
    {"F32", 32, f32_to_float}, {"F16", 16, f16_to_float}, {"BF16", 16, bf16_to_float},
    {"F64", 64, f64_to_float}, {"BOOL", 8, NULL},         {"F4", 4, NULL},
    {"F6_E2M3", 6, NULL},      {"F6_E3M2", 6, NULL},      {"U8", 8, NULL},
    {"I8", 8, NULL},           {"F8_E5M2", 8, NULL},      {"F8_E4M3", 8, NULL},
    {"F8_E8M0", 8, NULL},      {"F8_E4M3FNUZ", 8, NULL},  {"F8_E5M2FNUZ", 8, NULL},
    {"I16", 16, NULL},         {"U16", 16, NULL},         {"I32", 32, NULL},
    {"U32", 32, NULL},         {"C64", 64, NULL},         {"I64", 64, NULL},
    {"U64", 64, NULL},
};

const struct dtype *dtype_find(const char *name) {
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(dtypes[i].name, name) == 0)
            return &dtypes[i];
    }
    return NULL;
}
