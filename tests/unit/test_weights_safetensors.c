/* SPDX-License-Identifier: Apache-2.0 */
/* test_weights_safetensors.c: the reader of safetensors files: what it finds, what it
 * refuses and with which reason, and how it converts numbers. */
#include "safetensors/file.h"
#include "weights_file.h"

#include <math.h>
#include <sys/stat.h>

/* An open file in memory. */
struct opened {
    unsigned char *bytes;
    struct safetensors *file;
};

/* Opens a file that must be good; the caller closes it. */
static struct opened open_made(const struct weights_file *made) {
    struct opened opened;
    attn_error error;
    size_t size;

    opened.bytes = file_make(made, &size);
    if (safetensors_open_memory(opened.bytes, size, &opened.file, &error) != ATTN_OK)
        fail_msg("%s", error.text);
    return opened;
}

static void close_made(struct opened *opened) {
    safetensors_close(opened->file);
    free(opened->bytes);
}

static const struct safetensors_tensor *find_tensor(const struct safetensors *file,
                                                    const char *name) {
    const struct safetensors_tensor *found =
        safetensors_header_find(safetensors_get_header(file), name);
    assert_non_null(found);
    return found;
}

static void test_reader_finds_tensors_metadata_and_numbers(void **state) {
    (void)state;
    struct weights_file made = {0};
    file_add_text(&made, "\"__metadata__\":{\"num_heads\":\"2\",\"format\":\"pt\"}");
    file_add_f32(&made, "second", 2, 3, 1);
    file_add_f32(&made, "first", 4, 0, -1);
    struct opened opened = open_made(&made);

    const struct safetensors_header *header = safetensors_get_header(opened.file);
    const struct safetensors_tensor *tensors = header->tensors;
    assert_int_equal(header->num_tensors, 2);
    assert_string_equal(tensors[0].name, "first");
    assert_string_equal(tensors[1].name, "second");
    assert_int_equal(tensors[1].rank, 2);
    assert_int_equal(tensors[1].shape[0], 2);
    assert_int_equal(tensors[1].shape[1], 3);
    assert_int_equal(tensors[1].elements, 6);

    assert_string_equal(safetensors_get_metadata(opened.file, "num_heads"), "2");
    assert_null(safetensors_get_metadata(opened.file, "causal"));

    float values[2];
    assert_int_equal(safetensors_read(&tensors[1], 4, 2, values, NULL), ATTN_OK);
    assert_true(values[0] == 1.5F && values[1] == 1.625F);
    close_made(&opened);
}

static void test_reader_reads_a_file_in_chunks(void **state) {
    (void)state;
    /* more than one chunk, and not a multiple of it */
    const size_t count = 100003;
    float *values = malloc(count * sizeof *values), *got = malloc(count * sizeof *got);
    assert_non_null(values);
    assert_non_null(got);
    for (size_t i = 0; i < count; i++)
        values[i] = (float)i;

    char header[128], path[64];
    snprintf(header, sizeof header,
             "{\"a\":{\"dtype\":\"F32\",\"shape\":[%zu],\"data_offsets\":[0,%zu]}}   ",
             count, count * sizeof *values);
    size_t size;
    unsigned char *bytes =
        file_make_raw(header, strlen(header), values, count * sizeof *values, &size);
    file_write(bytes, size, path);

    struct safetensors *file = NULL;
    attn_error error;
    assert_int_equal(safetensors_open_file(path, &file, &error), ATTN_OK);
    const struct safetensors_tensor *tensor = find_tensor(file, "a");
    assert_int_equal(safetensors_read(tensor, 0, count, got, &error), ATTN_OK);
    assert_memory_equal(values, got, count * sizeof *values);

    /* a file that shrinks under the reader is an error, not a signal */
    assert_int_equal(truncate(path, (off_t)size - 4), 0);
    assert_int_equal(safetensors_read(tensor, 0, count, got, &error), ATTN_E_IO);
    assert_text_has(error.text, "became shorter");

    safetensors_close(file);
    unlink(path);
    free(bytes);
    free(values);
    free(got);
}

static void test_reader_accepts_empty_and_rank_zero_tensors(void **state) {
    (void)state;
    struct weights_file made = {0};
    const float one = 1;
    file_add(&made, "empty_first", "F32", "[0]", NULL, 0);
    file_add(&made, "scalar", "F32", "[]", &one, sizeof one);
    file_add(&made, "empty_between", "I64", "[3,0]", NULL, 0);
    file_add(&made, "half_bytes", "F4", "[2,2]", &one, 2);
    file_add(&made, "six_bits", "F6_E2M3", "[4]", &one, 3);
    file_add(&made, "empty_last", "F32", "[0,7]", NULL, 0);

    struct opened opened = open_made(&made);
    assert_int_equal(find_tensor(opened.file, "scalar")->rank, 0);
    assert_int_equal(find_tensor(opened.file, "scalar")->elements, 1);
    assert_int_equal(find_tensor(opened.file, "empty_between")->elements, 0);
    close_made(&opened);
}

/* Opens a file of this header and `data_size` bytes of zeros; it must be refused. */
static void assert_header_refused(const char *header, size_t data_size,
                                  const char *tensor, const char *reason) {
    static const unsigned char zeros[64];
    size_t size;

    assert_true(data_size <= sizeof zeros);
    unsigned char *bytes = file_make_raw(header, strlen(header), zeros, data_size, &size);
    struct safetensors *file = NULL;
    attn_error error;
    assert_int_equal(safetensors_open_memory(bytes, size, &file, &error), ATTN_E_FORMAT);
    assert_int_equal(error.status, ATTN_E_FORMAT);
    assert_null(file);
    assert_text_has(error.text, tensor);
    assert_text_has(error.text, reason);
    free(bytes);
}

#define F32(name, shape, begin, end)                                                     \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" begin       \
    "," end "]}"
#define ENTRY(text) "{\"a\":{" text "}}"

static void test_reader_refuses_a_header_that_is_not_an_object(void **state) {
    (void)state;
    assert_header_refused(" {}", 0, "", "does not begin with '{'");
    assert_header_refused("[]", 0, "", "does not begin with '{'");
    assert_header_refused("{", 0, "", "1 byte cannot be a JSON object");
    assert_header_refused("{\"a\"", 0, "", "not valid JSON: byte 4");
    assert_header_refused("{} x", 0, "", "not valid JSON");
    assert_header_refused("{\"\xff\":1}", 0, "", "not valid JSON");
    assert_header_refused("{\"a\":1}", 0, "tensor 'a'", "not an object");
    assert_header_refused("{\"a\":[]}", 0, "tensor 'a'", "not an object");
}

static void test_reader_refuses_duplicate_names(void **state) {
    (void)state;
    assert_header_refused(
        "{" F32("abc", "[1]", "0", "4") "," F32("abc", "[1]", "4", "8") "}", 8, "\"abc\"",
        "duplicate object key");
    assert_header_refused(ENTRY("\"dtype\":\"F32\",\"dtype\":\"F32\""), 0, "dtype",
                          "duplicate object key");
}

static void test_reader_refuses_metadata_that_is_not_text(void **state) {
    (void)state;
    assert_header_refused("{\"__metadata__\":[]}", 0, "__metadata__", "not an object");
    assert_header_refused("{\"__metadata__\":{\"num_heads\":2}}", 0, "'num_heads'",
                          "not a string");
}

static void test_reader_refuses_entries_with_wrong_fields(void **state) {
    (void)state;
    assert_header_refused(ENTRY("\"shape\":[],\"data_offsets\":[0,4]"), 4, "tensor 'a'",
                          "dtype is missing");
    assert_header_refused(ENTRY("\"dtype\":\"F32\",\"data_offsets\":[0,4]"), 4,
                          "tensor 'a'", "shape is missing");
    assert_header_refused(ENTRY("\"dtype\":\"F32\",\"shape\":[]"), 4, "tensor 'a'",
                          "data_offsets is missing");
    assert_header_refused(
        ENTRY("\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4],\"x\":1"), 4,
        "tensor 'a'", "4 fields");
}

static void test_reader_refuses_an_unknown_dtype_by_its_name(void **state) {
    (void)state;
    assert_header_refused(ENTRY("\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]"),
                          4, "tensor 'a'", "dtype 'F31' is unknown");
    assert_header_refused(ENTRY("\"dtype\":32,\"shape\":[1],\"data_offsets\":[0,4]"), 4,
                          "tensor 'a'", "dtype is not a string");
}

static void test_reader_refuses_dimensions_that_are_not_counts(void **state) {
    (void)state;
    static const char *const shapes[] = {"[-1]",   "[1.0]",  "[\"1\"]",
                                         "[null]", "[true]", "[[1]]"};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        char header[128];
        snprintf(header, sizeof header,
                 "{\"a\":{\"dtype\":\"F32\",\"shape\":%s,\"data_offsets\":[0,4]}}",
                 shapes[i]);
        assert_header_refused(header, 4, "tensor 'a'",
                              "dimension 0 of shape is not an integer of 0 or more");
    }
    assert_header_refused("{" F32("a", "{}", "0", "4") "}", 4, "tensor 'a'",
                          "shape is not a list");
    assert_header_refused("{" F32("a", "[9223372036854775808]", "0", "4") "}", 4, "",
                          "too big integer");
}

static void test_reader_refuses_a_shape_that_overflows(void **state) {
    (void)state;
    assert_header_refused("{" F32("a", "[4294967296,4294967296]", "0", "4") "}", 4,
                          "tensor 'a'", "more elements than can be counted");
    assert_header_refused("{" F32("a", "[4,1152921504606846978]", "0", "4") "}", 4,
                          "tensor 'a'", "more bits than can be counted");
}

static void test_reader_refuses_offsets_that_are_not_a_span(void **state) {
    (void)state;
    static const char *const offsets[] = {"[0]",    "[0,4,4]", "{}",        "[-1,3]",
                                          "[0,-4]", "[0,4.0]", "[\"0\",4]", "null"};
    for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; i++) {
        char header[128];
        snprintf(header, sizeof header,
                 "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":%s}}",
                 offsets[i]);
        assert_header_refused(header, 4, "tensor 'a'",
                              "data_offsets are not two integers of 0 or more");
    }
    assert_header_refused("{" F32("a", "[1]", "4", "0") "}", 4, "tensor 'a'",
                          "[4,0] end before they begin");
    assert_header_refused("{" F32("a", "[2]", "0", "8") "}", 4, "tensor 'a'",
                          "[0,8] exceed the 4 bytes of data");
}

static void test_reader_refuses_a_span_that_does_not_fit_the_shape(void **state) {
    (void)state;
    assert_header_refused("{" F32("a", "[2]", "0", "4") "}", 4, "tensor 'a'",
                          "span 4 bytes, but its shape needs 8 of F32");
    assert_header_refused("{" F32("a", "[0]", "0", "4") "}", 4, "tensor 'a'",
                          "span 4 bytes, but its shape needs 0 of F32");
    assert_header_refused(ENTRY("\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]"),
                          2, "tensor 'a'", "3 elements of F4 cannot fill whole bytes");
    assert_header_refused(
        ENTRY("\"dtype\":\"F6_E3M2\",\"shape\":[2],\"data_offsets\":[0,2]"), 2,
        "tensor 'a'", "2 elements of F6_E3M2 cannot fill whole bytes");
}

static void test_reader_refuses_overlapping_tensors(void **state) {
    (void)state;
    assert_header_refused("{" F32("a", "[2]", "0", "8") "," F32("b", "[1]", "4", "8") "}",
                          8, "tensor 'b' overlaps tensor 'a'", "byte 4 of the data");
    assert_header_refused("{" F32("a", "[1]", "0", "4") "," F32("b", "[1]", "0", "4") "}",
                          4, "overlaps tensor", "byte 0 of the data");
    assert_header_refused("{" F32("a", "[2]", "0", "8") "," F32("b", "[0]", "4", "4") "}",
                          8, "tensor 'b' overlaps tensor 'a'", "byte 4 of the data");
}

static void test_reader_refuses_holes(void **state) {
    (void)state;
    assert_header_refused("{" F32("a", "[1]", "4", "8") "}", 8, "hole before tensor 'a'",
                          "byte 4 of the data instead of 0");
    assert_header_refused(
        "{" F32("a", "[1]", "0", "4") "," F32("b", "[1]", "8", "12") "}", 12,
        "hole before tensor 'b'", "byte 8 of the data instead of 4");
    assert_header_refused("{" F32("a", "[1]", "0", "4") "}", 5, "last tensor 'a'",
                          "1 byte after the last tensor");
    assert_header_refused("{}", 1, "", "1 byte after the last tensor");
}

static void assert_memory_refused(const unsigned char *bytes, size_t size,
                                  const char *reason) {
    struct safetensors *file = NULL;
    attn_error error;
    assert_int_equal(safetensors_open_memory(bytes, size, &file, &error), ATTN_E_FORMAT);
    assert_text_has(error.text, reason);
}

static void test_reader_refuses_impossible_header_lengths(void **state) {
    (void)state;
    static const unsigned char seven[7] = {2}, none[8] = {0};
    static const unsigned char too_long[10] = {0x01, 0xe1, 0xf5, 0x05, 0,
                                               0,    0,    0,    '{',  '}'};
    static const unsigned char huge[10] = {255, 255, 255, 255, 255,
                                           255, 255, 255, '{', '}'};
    static const unsigned char past_end[10] = {3, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    assert_memory_refused(seven, sizeof seven, "7 bytes, is too small");
    assert_memory_refused(none, sizeof none, "header of 0 bytes");
    assert_memory_refused(too_long, sizeof too_long,
                          "100000001 bytes long, but at most 100000000");
    assert_memory_refused(huge, sizeof huge, "18446744073709551615 bytes long");
    assert_memory_refused(past_end, sizeof past_end,
                          "3 bytes long, but the file has only 2 of them");
}

static void test_reader_refuses_deep_nesting_cheaply(void **state) {
    (void)state;
    const size_t depth = 4000000;
    char *header = malloc(depth);
    assert_non_null(header);
    memset(header, '[', depth);
    memcpy(header, "{\"a\":", 5);
    size_t size;
    unsigned char *bytes = file_make_raw(header, depth, NULL, 0, &size);
    assert_memory_refused(bytes, size, "maximum parsing depth");
    free(bytes);
    free(header);
}

static void test_reader_opens_many_tensors_in_near_linear_time(void **state) {
    (void)state;
    /* a scan of all for each tensor would exceed the time limit of the test */
    const size_t count = 200000, room = count * 80;
    char *header = malloc(room);
    assert_non_null(header);
    size_t used = 0;
    for (size_t i = 0; i < count; i++)
        used += (size_t)snprintf(header + used, room - used,
                                 "%s\"t%zu\":{\"dtype\":\"U8\",\"shape\":[0],"
                                 "\"data_offsets\":[0,0]}",
                                 i == 0 ? "{" : ",", i);
    header[used++] = '}';
    size_t size;
    unsigned char *bytes = file_make_raw(header, used, NULL, 0, &size);
    struct safetensors *file = NULL;
    attn_error error;
    assert_int_equal(safetensors_open_memory(bytes, size, &file, &error), ATTN_OK);
    assert_int_equal(safetensors_get_header(file)->num_tensors, count);
    safetensors_close(file);
    free(bytes);
    free(header);
}

/* Reads the tensor 'x', [count] of `dtype`, the only one of a file. */
static attn_status read_numbers(const char *dtype, const void *bytes, size_t size,
                                size_t count, float *ret_values, attn_error *error) {
    struct weights_file made = {0};
    char shape[32];
    snprintf(shape, sizeof shape, "[%zu]", count);
    file_add(&made, "x", dtype, shape, bytes, size);

    struct opened opened = open_made(&made);
    attn_status status =
        safetensors_read(find_tensor(opened.file, "x"), 0, count, ret_values, error);
    close_made(&opened);
    return status;
}

static void test_f64_is_rounded_to_the_nearest_float32(void **state) {
    (void)state;
    const double values[] = {0x1.000001p0,   0x1.0000010000001p0,
                             0x1.000003p0,   -0.0,
                             0x1.fffffep127, 0x1p-149,
                             0x1p-150,       1e-300,
                             0x1.8p-149,     -3.25};
    const float want[] = {
        1.0F,      0x1.000002p0F, 0x1.000004p0F, -0.0F,     0x1.fffffep127F,
        0x1p-149F, 0.0F,          0.0F,          0x1p-148F, -3.25F};
    const size_t count = sizeof want / sizeof want[0];
    float got[sizeof want / sizeof want[0]];
    attn_error error;
    assert_int_equal(read_numbers("F64", values, sizeof values, count, got, &error),
                     ATTN_OK);
    assert_memory_equal(got, want, sizeof want);
}

static void test_reader_refuses_numbers_that_are_not_finite(void **state) {
    (void)state;
    static const double large[] = {1, 2, 1e300}, f64_nan[] = {(double)NAN};
    /* halfway to 2^128, so it rounds to infinity */
    static const double tie[] = {0x1.ffffffp127};
    static const float f32[] = {1, -INFINITY};
    static const uint16_t f16[] = {0x3c00, 0x7c00}, bf16[] = {0x7fc0};
    static const struct {
        const char *dtype;
        const void *numbers;
        size_t size, count;
        const char *want;
    } cases[] = {
        {"F64", large, sizeof large, 3, "element 2 is 1e+300, too large for float32"},
        {"F64", tie, sizeof tie, 1, "element 0"},
        {"F64", f64_nan, sizeof f64_nan, 1, "element 0 is nan, not a finite number"},
        {"F32", f32, sizeof f32, 2, "element 1 is -inf, not a finite number"},
        {"F16", f16, sizeof f16, 2, "element 1 is inf, not a finite number"},
        {"BF16", bf16, sizeof bf16, 1, "element 0 is nan, not a finite number"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        float got[3];
        attn_error error;
        assert_int_equal(read_numbers(cases[i].dtype, cases[i].numbers, cases[i].size,
                                      cases[i].count, got, &error),
                         ATTN_E_VALUE);
        assert_text_has(error.text, "tensor 'x': ");
        assert_text_has(error.text, cases[i].want);
    }
}

static void test_reader_names_the_index_past_the_first_chunk(void **state) {
    (void)state;
    double values[2048] = {0};
    values[2047] = (double)INFINITY; /* in the last of the chunks of 16 KiB */
    float got[2048];
    attn_error error;
    assert_int_equal(
        read_numbers("F64", values + 1, sizeof values - 8, 2047, got, &error),
        ATTN_E_VALUE);
    assert_text_has(error.text, "element 2046 is inf");
}

static void test_reader_refuses_to_compute_with_integers(void **state) {
    (void)state;
    const unsigned char bytes[8] = {0};
    float got[1];
    attn_error error;
    assert_int_equal(read_numbers("I64", bytes, 8, 1, got, &error), ATTN_E_UNSUPPORTED);
    assert_text_has(error.text,
                    "tensor 'x' has dtype I64; store it as F32, F16, BF16 or F64");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reader_finds_tensors_metadata_and_numbers),
        cmocka_unit_test(test_reader_reads_a_file_in_chunks),
        cmocka_unit_test(test_reader_accepts_empty_and_rank_zero_tensors),
        cmocka_unit_test(test_reader_refuses_a_header_that_is_not_an_object),
        cmocka_unit_test(test_reader_refuses_duplicate_names),
        cmocka_unit_test(test_reader_refuses_metadata_that_is_not_text),
        cmocka_unit_test(test_reader_refuses_entries_with_wrong_fields),
        cmocka_unit_test(test_reader_refuses_an_unknown_dtype_by_its_name),
        cmocka_unit_test(test_reader_refuses_dimensions_that_are_not_counts),
        cmocka_unit_test(test_reader_refuses_a_shape_that_overflows),
        cmocka_unit_test(test_reader_refuses_offsets_that_are_not_a_span),
        cmocka_unit_test(test_reader_refuses_a_span_that_does_not_fit_the_shape),
        cmocka_unit_test(test_reader_refuses_overlapping_tensors),
        cmocka_unit_test(test_reader_refuses_holes),
        cmocka_unit_test(test_reader_refuses_impossible_header_lengths),
        cmocka_unit_test(test_reader_refuses_deep_nesting_cheaply),
        cmocka_unit_test(test_reader_opens_many_tensors_in_near_linear_time),
        cmocka_unit_test(test_f64_is_rounded_to_the_nearest_float32),
        cmocka_unit_test(test_reader_refuses_numbers_that_are_not_finite),
        cmocka_unit_test(test_reader_names_the_index_past_the_first_chunk),
        cmocka_unit_test(test_reader_refuses_to_compute_with_integers),
    };
    return cmocka_run_group_tests_name("weights_safetensors", tests, NULL, NULL);
}
