/* SPDX-License-Identifier: Apache-2.0 */
/* test_safetensors_scales.c: a matrix of FP8 whose blocks have scales is read as the
 * products, whatever part of it is asked for. */
#include "safetensors/file.h"
#include "seed.h"
#include "weights_file.h"

#include <math.h>

/* A file of two tensors, codes [rows, columns] and scales, and what they mean. */
struct scaled {
    struct safetensors *file;
    unsigned char *bytes;
    struct safetensors_scale scale;
    struct safetensors_tensor matrix;
    float *wanted; /* [rows, columns] */
};

/* The value of a code of E4M3, by its definition. */
static double value_of_code(unsigned code) {
    int exponent = (int)(code >> 3 & 15), fraction = (int)(code & 7);
    double value =
        exponent == 0 ? ldexp(fraction, -9) : ldexp(8 + fraction, exponent - 7 - 3);
    return code & 0x80 ? -value : value;
}

static void open_scaled(size_t rows, size_t columns, size_t block_rows,
                        size_t block_columns, uint64_t *random, struct scaled *scaled) {
    size_t across = (columns + block_columns - 1) / block_columns;
    size_t down = (rows + block_rows - 1) / block_rows;
    size_t count = rows * columns, num_scales = across * down, size;
    size_t data_size = num_scales * sizeof(float) + count;
    unsigned char *data = malloc(data_size);
    float *scales = malloc(num_scales * sizeof *scales);
    char header[400];

    *scaled = (struct scaled){.wanted = malloc(count * sizeof(float))};
    assert_true(data != NULL && scales != NULL && scaled->wanted != NULL);
    for (size_t i = 0; i < num_scales; i++) {
        *random = *random * 6364136223846793005 + 1442695040888963407;
        scales[i] = ldexpf((float)(*random >> 40 | 1), -30 - (int)(*random >> 33 & 31));
    }
    memcpy(data, scales, num_scales * sizeof *scales);
    for (size_t i = 0; i < count; i++) {
        *random = *random * 6364136223846793005 + 1442695040888963407;
        unsigned code = *random >> 56 & 0xff;
        code = (code & 0x7f) == 0x7f ? code - 1 : code;
        size_t block = i / columns / block_rows * across + i % columns / block_columns;
        data[num_scales * sizeof *scales + i] = (unsigned char)code;
        scaled->wanted[i] = (float)(value_of_code(code) * (double)scales[block]);
    }
    int header_size = snprintf(
        header, sizeof header,
        "{\"s\":{\"dtype\":\"F32\",\"shape\":[%zu,%zu],\"data_offsets\":[0,%zu]},"
        "\"w\":{\"dtype\":\"F8_E4M3\",\"shape\":[%zu,%zu],\"data_offsets\":[%zu,%zu]}}",
        down, across, num_scales * sizeof *scales, rows, columns,
        num_scales * sizeof *scales, data_size);
    scaled->bytes = file_make_raw(header, (size_t)header_size, data, data_size, &size);
    free(data);
    free(scales);

    attn_error error = {.text = ""};
    if (safetensors_open_memory(scaled->bytes, size, &scaled->file, &error) != ATTN_OK)
        fail_msg("%s", error.text);
    const struct safetensors_tensor *all = safetensors_get_header(scaled->file)->tensors;
    scaled->scale = (struct safetensors_scale){all[0], block_rows, block_columns};
    scaled->matrix = all[1];
    scaled->matrix.dtype = &dtype_e4m3;
    scaled->matrix.scale = &scaled->scale;
}

static void close_scaled(struct scaled *scaled) {
    safetensors_close(scaled->file);
    free(scaled->bytes);
    free(scaled->wanted);
}

/* Reads a part into memory of its exact size, and compares its bits. */
static void assert_part(const struct scaled *scaled, size_t first, size_t count) {
    float *got = malloc(count * sizeof *got + 1);
    attn_error error = {.text = ""};
    assert_non_null(got);
    if (safetensors_read(&scaled->matrix, first, count, got, &error) != ATTN_OK)
        fail_msg("%s", error.text);
    if (memcmp(got, scaled->wanted + first, count * sizeof *got) != 0)
        fail_msg("[%zu,%zu] in blocks of %zu x %zu: %zu from %zu",
                 scaled->matrix.shape[0], scaled->matrix.shape[1], scaled->scale.rows,
                 scaled->scale.columns, count, first);
    free(got);
}

static void test_every_part_of_a_matrix_has_the_scales_of_its_blocks(void **state) {
    static const size_t sizes[][2] = {{1, 1},    {3, 5},     {48, 32},  {130, 200},
                                      {7, 1000}, {3, 12000}, {2, 8192}, {9000, 2}};
    static const size_t blocks[][2] = {{128, 128}, {16, 16}, {1, 32},
                                       {1, 1},     {5, 3},   {2, 9000}};
    uint64_t random = unit_seed(8);
    (void)state;

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t rows = sizes[i][0], columns = sizes[i][1], count = rows * columns;
        /* one for all, and one a row, besides */
        for (size_t b = 0; b < sizeof blocks / sizeof blocks[0] + 2; b++) {
            size_t block_rows = b == 0 ? rows : b == 1 ? 1 : blocks[b - 2][0];
            size_t block_columns = b < 2 ? columns : blocks[b - 2][1];
            struct scaled scaled;
            open_scaled(rows, columns, block_rows, block_columns, &random, &scaled);
            assert_part(&scaled, 0, count);
            assert_part(&scaled, 0, 0);
            for (size_t draw = 0; draw < 20; draw++) {
                random = random * 6364136223846793005 + 1442695040888963407;
                size_t first = (size_t)(random >> 33) % count;
                random = random * 6364136223846793005 + 1442695040888963407;
                assert_part(&scaled, first, (size_t)(random >> 33) % (count - first) + 1);
            }
            close_scaled(&scaled);
        }
    }
}

/* Puts `bytes` in the place of a scale, or of a number, of a matrix [4, 6] in blocks of
 * 2 x 3, and expects that line. */
static void assert_refused(size_t at, const void *bytes, size_t size, const char *line) {
    uint64_t random = 1;
    struct scaled scaled;
    float numbers[24];
    attn_error error = {.text = ""};
    size_t header_size = 0;

    open_scaled(4, 6, 2, 3, &random, &scaled);
    for (size_t i = 0; i < 8; i++)
        header_size |= (size_t)scaled.bytes[i] << 8 * i;
    memcpy(scaled.bytes + 8 + header_size + at, bytes, size);
    assert_int_equal(safetensors_read_all(&scaled.matrix, numbers, &error), ATTN_E_VALUE);
    assert_string_equal(error.text, line);
    close_scaled(&scaled);
}

static void test_scales_and_numbers_that_cannot_be_are_refused_by_name(void **state) {
    const float negative = -0.5F, zero = 0, infinite = INFINITY, not_a_number = NAN;
    const float huge = 3e38F;
    const size_t third = 3 * sizeof(float), numbers = 4 * sizeof(float);
    (void)state;

    assert_refused(
        third, &negative, sizeof negative,
        "tensor 's': element 3 is -0.5, but a scale is above 0 where numbers of "
        "'w' are not 0; copy the file again");
    assert_refused(third, &zero, sizeof zero,
                   "tensor 's': element 3 is 0, but a scale is above 0 where numbers of "
                   "'w' are not 0; copy the file again");
    assert_refused(third, &infinite, sizeof infinite,
                   "tensor 's': element 3 is inf, not a finite number");
    assert_refused(third, &not_a_number, sizeof not_a_number,
                   "tensor 's': element 3 is nan, not a finite number");
    assert_refused(numbers + 7, "\x7f", 1,
                   "tensor 'w': element 7 is nan, not a finite number");
    assert_refused(numbers + 23, "\xff", 1,
                   "tensor 'w': element 23 is -nan, not a finite number");
    /* its last block: 448 is at its first number */
    struct scaled scaled;
    uint64_t random = 1;
    open_scaled(4, 6, 2, 3, &random, &scaled);
    size_t header_size = 0;
    for (size_t i = 0; i < 8; i++)
        header_size |= (size_t)scaled.bytes[i] << 8 * i;
    unsigned char *data = scaled.bytes + 8 + header_size;
    memset(data + numbers, 0x38, 24); /* 1 */
    data[numbers + 15] = 0xfe;        /* -448 */
    memcpy(data + third, &huge, sizeof huge);
    attn_error error = {.text = ""};
    float read[24];
    assert_int_equal(safetensors_read_all(&scaled.matrix, read, &error), ATTN_E_VALUE);
    assert_string_equal(
        error.text, "tensor 'w': element 15 times its scale is too large for float32");

    /* a scale of 0 over zeros hides nothing */
    memset(data + numbers, 0, 24);
    data[numbers + 1] = 0x80; /* -0 */
    memcpy(data + third, &zero, sizeof zero);
    assert_int_equal(safetensors_read_all(&scaled.matrix, read, &error), ATTN_OK);
    for (size_t i = 0; i < 24; i++)
        assert_true(read[i] == 0 && !signbit(read[i]) == (i != 1));
    close_scaled(&scaled);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_part_of_a_matrix_has_the_scales_of_its_blocks),
        cmocka_unit_test(test_scales_and_numbers_that_cannot_be_are_refused_by_name),
    };
    return cmocka_run_group_tests_name("safetensors_scales", tests, NULL, NULL);
}
