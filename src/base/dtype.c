/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.c: converts elements to float32, and has the table of all element types. */
#include "base/dtype.h"

#include "base/endian.h"

#include <string.h>

static float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* bfloat16 is the upper half of a float32. */
static float float_of_bf16(uint16_t bits) {
    return float_of_bits((uint32_t)bits << 16);
}

/* IEEE 754 binary16 has 1 sign bit, 5 exponent bits (bias 15) and 10 fraction bits. Every
 * value is exact in float32. */
static float float_of_f16(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16;
    uint32_t exponent = bits >> 10 & 0x1f;
    uint32_t fraction = bits & 0x3ff;

    if (exponent == 0) { /* zero or subnormal */
        float magnitude = (float)fraction * 0x1p-24f;
        return sign != 0 ? -magnitude : magnitude;
    }
    if (exponent == 0x1f) /* infinity or NaN */
        return float_of_bits(sign | 0x7f800000 | fraction << 13);
    return float_of_bits(sign | (exponent - 15 + 127) << 23 | fraction << 13);
}

static float float_of_f64(double value) {
    return (float)value;
}

/* Defines a dtype.to_float for elements stored as `stored`, which `convert` converts. */
#define DEFINE_TO_FLOAT(name, stored, convert)                                           \
    static void name(const unsigned char *bytes, size_t count, float *ret_values) {      \
        for (size_t i = 0; i < count; i++) {                                             \
            stored element;                                                              \
            memcpy(&element, bytes + i * sizeof element, sizeof element);                \
            ret_values[i] = convert(element);                                            \
        }                                                                                \
    }

DEFINE_TO_FLOAT(f32_to_float, uint32_t, float_of_bits)
DEFINE_TO_FLOAT(f16_to_float, uint16_t, float_of_f16)
DEFINE_TO_FLOAT(bf16_to_float, uint16_t, float_of_bf16)
DEFINE_TO_FLOAT(f64_to_float, double, float_of_f64)

/* All types of safetensors (safetensors/src/tensor.rs), so that the span of any tensor
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

bool dtype_is_float_array(const char *name, const unsigned char *bytes) {
    return strcmp(name, "F32") == 0 && (uintptr_t)bytes % _Alignof(float) == 0;
}

int64_t dtype_read_integer(const unsigned char *bytes, size_t size) {
    int64_t wide;
    int32_t narrow;

    if (size == sizeof wide) {
        memcpy(&wide, bytes, sizeof wide);
        return wide;
    }
    memcpy(&narrow, bytes, sizeof narrow);
    return narrow;
}
