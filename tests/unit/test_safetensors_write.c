/* SPDX-License-Identifier: Apache-2.0 */
/* test_safetensors_write.c: files are written whole, or not at all. */
#include "new_file.h"
#include "weights_file.h"

#include "base/output.h"
#include "safetensors/write.h"

#include <signal.h>
#include <sys/resource.h>

static void test_file_has_the_format_of_the_reference(void **state) {
    const float values[] = {1, 2, 3, 4, 5, 6, 7};
    const struct safetensors_source tensors[] = {{"a b", values, 2, 3},
                                                 {"c", values + 6, 1, 0}};
    const struct safetensors_text metadata[] = {{"k", "v"}};
    static const char header[] =
        "{\"__metadata__\":{\"k\":\"v\"},"
        "\"a b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
        "\"c\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[24,28]}}";
    char bytes[1024];
    (void)state;

    assert_int_equal(safetensors_write_file(path, tensors, 2, metadata, 1, NULL),
                     ATTN_OK);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t size = fread(bytes, 1, sizeof bytes, file), text = sizeof header - 1;
    fclose(file);
    assert_int_equal(unlink(path), 0);

    uint64_t padded;
    memcpy(&padded, bytes, sizeof padded);
    assert_true(padded % 8 == 0 && padded - text < 8);
    assert_memory_equal(bytes + 8, header, text);
    assert_int_equal(strspn(bytes + 8 + text, " "), padded - text);
    assert_int_equal(size, 8 + padded + sizeof values);
    assert_memory_equal(bytes + 8 + padded, values, sizeof values);
}

static void test_existing_file_is_never_replaced(void **state) {
    const struct output_piece piece = {"new", 3};
    attn_error error;
    char text[8] = "";
    (void)state;

    FILE *file = fopen(path, "w");
    assert_true(file != NULL && fputs("old", file) >= 0 && fclose(file) == 0);
    assert_int_equal(output_create_file(path, &piece, 1, &error), ATTN_E_VALUE);
    assert_text_has(error.text, "new.safetensors exists already; remove it, or");
    file = fopen(path, "r");
    assert_true(file != NULL && fgets(text, sizeof text, file) != NULL);
    fclose(file);
    assert_string_equal(text, "old");

    /* another attnd that writes it, or one that was killed */
    assert_int_equal(rename(path, part), 0);
    assert_int_equal(output_create_file(path, &piece, 1, &error), ATTN_E_VALUE);
    assert_text_has(error.text, "new.safetensors.part exists already; remove it");
    assert_true(exists(part) && !exists(path));
    assert_int_equal(unlink(part), 0);
}

static void test_file_that_cannot_be_made_is_named(void **state) {
    const struct output_piece piece = {"new", 3};
    attn_error error;
    char name[300];
    (void)state;

    snprintf(name, sizeof name, "%s/missing/x", folder);
    assert_int_equal(output_create_file(name, &piece, 1, &error), ATTN_E_IO);
    assert_text_has(error.text, "/missing/x cannot be created: No such file");

    snprintf(name, sizeof name, "%s/%0255d", folder, 1); /* .part is too much */
    assert_int_equal(output_create_file(name, &piece, 1, &error), ATTN_E_IO);
    assert_text_has(error.text, "cannot be created: File name too long");
}

static void test_full_disk_leaves_no_file(void **state) {
    static const float values[1024];
    const struct safetensors_source tensor = {"a", values, 1024, 0};
    struct rlimit limit, small;
    attn_error error;
    (void)state;

    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = (struct rlimit){1000, limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    attn_status status = safetensors_write_file(path, &tensor, 1, NULL, 0, &error);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(status, ATTN_E_IO);
    assert_text_has(error.text, "new.safetensors cannot be written: File too large");
    assert_false(exists(path) || exists(part));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file_has_the_format_of_the_reference),
        cmocka_unit_test(test_existing_file_is_never_replaced),
        cmocka_unit_test(test_file_that_cannot_be_made_is_named),
        cmocka_unit_test(test_full_disk_leaves_no_file),
    };
    return cmocka_run_group_tests_name("safetensors_write", tests, make_folder,
                                       remove_folder);
}
