/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.c: converts elements to float32, and has the table of all element types. */
#include "base/dtype.h"

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

/* Returns a number whose bits are in the place of those of a float32, whose exponent is
 * too small by that of `scale`; the multiplication also normalises subnormals. `others`
 * are bits that it has besides. Without branches, compilers convert several at once. */
static inline float float_of_small(uint32_t magnitude, float scale, uint32_t others) {
    float value = float_of_bits(magnitude) * scale;
    uint32_t result;

    memcpy(&result, &value, sizeof result);
    return float_of_bits(result | others);
}

/* IEEE 754 binary16 has 1 sign bit, 5 exponent bits (bias 15) and 10 fraction bits. Every
 * value is exact in float32 (bias 127). */
static float float_of_f16(uint16_t bits) {
    uint32_t magnitude = (uint32_t)(bits & 0x7fff) << 13;
    uint32_t special = magnitude >= 0x1fU << 23 ? 0x7f800000 : 0; /* infinity or NaN */
    return float_of_small(magnitude, 0x1p112f, special | (uint32_t)(bits & 0x8000) << 16);
}

/* The exponent has 4 bits (bias 7). All bits set, but for the sign, are a NaN. */
static float float_of_e4m3(uint8_t bits) {
    uint32_t magnitude = (uint32_t)(bits & 0x7f) << 20;
    uint32_t nan = magnitude == (uint32_t)0x7f << 20 ? 0x7fc00000 : 0;
    return float_of_small(magnitude, 0x1p120f, nan | (uint32_t)(bits & 0x80) << 24);
}

/* The exponent of a float32; 0 is 2^-127, and 255 a NaN. */
static float float_of_e8m0(uint8_t bits) {
    return float_of_bits(bits == 0     ? 0x00400000
                         : bits == 255 ? 0x7fc00000
                                       : (uint32_t)bits << 23);
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
DEFINE_TO_FLOAT(f64_to_float, double, (float))
DEFINE_TO_FLOAT(e4m3_to_float, uint8_t, float_of_e4m3)
DEFINE_TO_FLOAT(e8m0_to_float, uint8_t, float_of_e8m0)

const struct dtype dtype_e4m3 = {"F8_E4M3", 8, e4m3_to_float};
const struct dtype dtype_e8m0 = {"F8_E8M0", 8, e8m0_to_float};

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
