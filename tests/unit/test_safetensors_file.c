/* SPDX-License-Identifier: Apache-2.0 */
/* test_safetensors_file.c: which files are opened, and why others are refused. */
#include "safetensors/file.h"
#include "weights_file.h"

#include <sys/stat.h>

static void assert_path_refused(const char *path, const char *reason) {
    struct safetensors *file = NULL;
    attn_error error;
    assert_int_equal(safetensors_open_file(path, &file, &error), ATTN_E_IO);
    assert_null(file);
    assert_text_has(error.text, reason);
}

static void test_reader_accepts_only_regular_files(void **state) {
    (void)state;
    char fifo[] = "/tmp/attnd_test_fifo_XXXXXX";
    assert_non_null(mkdtemp(fifo));
    char path[64];
    snprintf(path, sizeof path, "%s/fifo", fifo);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_path_refused(path, "is a pipe or device, not a regular file");
    unlink(path);
    assert_path_refused(fifo, "is a directory, not a regular file");
    rmdir(fifo);
    assert_path_refused(fifo, "cannot be opened: No such file");
    assert_path_refused("/dev/null", "is a pipe or device");
}

/* Root can read everything, so these checks are made as another user. */
static void test_file_without_permission_says_for_whom_and_what_to_do(void **state) {
    (void)state;
    char folder[] = "/tmp/attnd_test_folder_XXXXXX", path[64], user[64];
    uid_t own = geteuid(), other = own == 0 ? 65532 : own;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/closed", folder);
    snprintf(user, sizeof user, "cannot be opened by user %lu: Permission denied; ",
             (unsigned long)other);
    assert_int_equal(mknod(path, S_IFREG, 0), 0);
    assert_int_equal(chmod(folder, 0755), 0);

    assert_int_equal(seteuid(other), 0);
    assert_path_refused(path, user);
    assert_path_refused(path, "make it readable, as in chmod a+r FILE");
    assert_int_equal(seteuid(own), 0);
    assert_int_equal(chmod(folder, 0600), 0);
    assert_int_equal(seteuid(other), 0);
    assert_path_refused(path, user);
    assert_path_refused(path, "open the folders on its path, as in chmod a+x FOLDER");
    assert_int_equal(seteuid(own), 0);

    assert_int_equal(chmod(folder, 0700), 0);
    unlink(path);
    rmdir(folder);
}

/* Checks what is said of a file that begins with `bytes`; zeros follow. */
static void assert_bytes_refused(const char *bytes, size_t size, const char *reason) {
    char contents[300] = {0};
    struct safetensors *file = NULL;
    attn_error error;

    memcpy(contents, bytes, size);
    assert_int_equal(safetensors_open_memory(contents, sizeof contents, &file, &error),
                     ATTN_E_FORMAT);
    assert_text_has(error.text, reason);
}

static void test_files_of_other_programs_are_recognised(void **state) {
    (void)state;
    static const char torch[] = "PK\3\4\0\0\10\10\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
                                "\20\0\0\0archive/data.pkl";
    static const char numpy[] = "PK\3\4\55\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
                                "\7\0\0\0W_q.npy";
    static const char legacy[] = "\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.";

    assert_bytes_refused(torch, sizeof torch, "is a file of torch.save(); convert");
    assert_bytes_refused(torch, sizeof torch, "sys.argv[1] + '.safetensors')\" 'FILE'");
    assert_bytes_refused(legacy, sizeof legacy, "is a file of torch.save(); convert");
    assert_bytes_refused(numpy, sizeof numpy, "is an .npz file of NumPy; convert");
    assert_bytes_refused("\x93NUMPY\1\0v", 9, "is an .npy file of NumPy, one array");
    assert_bytes_refused("\x80\2}q\0", 5, "is a pickle of Python; load");
    assert_bytes_refused("\x80\3}q\0", 5, "is a pickle of Python; load");
    assert_bytes_refused("\x80\4\x95\n", 4, "is a pickle of Python; load");
    assert_bytes_refused("\x80\5\x95\n", 4, "is a pickle of Python; load");
    assert_bytes_refused("GGUF\3\0\0\0", 8, "is a GGUF file; give");
    assert_bytes_refused("\x89HDF\r\n\x1a\n", 8, "is an HDF5 file; read");
    assert_bytes_refused("lmgg\1\0\0\0", 8, "is a ggml file; give");
    assert_bytes_refused("tjgg\3\0\0\0", 8, "is a ggml file; give");
    assert_bytes_refused("PK\5\6\1\1\1\1", 8, "not a safetensors file");
}

static void test_cut_header_whose_size_looks_like_a_pickle_is_not_one(void **state) {
    (void)state;
    assert_bytes_refused("\x80\4\0\0\0\0\0\0{", 9, "header should be 1152 bytes long");
}

/* 80 02 00 .. is also the size of a header of 640 bytes. */
static void test_header_whose_size_looks_like_a_pickle_is_read(void **state) {
    (void)state;
    char header[640];
    size_t size;
    struct safetensors *file = NULL;
    memset(header, ' ', sizeof header);
    memcpy(header, "{}", 2);
    unsigned char *bytes = file_make_raw(header, sizeof header, NULL, 0, &size);
    assert_memory_equal(bytes, "\x80\x02", 2);
    assert_int_equal(safetensors_open_memory(bytes, size, &file, NULL), ATTN_OK);
    safetensors_close(file);
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reader_accepts_only_regular_files),
        cmocka_unit_test(test_file_without_permission_says_for_whom_and_what_to_do),
        cmocka_unit_test(test_files_of_other_programs_are_recognised),
        cmocka_unit_test(test_cut_header_whose_size_looks_like_a_pickle_is_not_one),
        cmocka_unit_test(test_header_whose_size_looks_like_a_pickle_is_read),
    };
    return cmocka_run_group_tests_name("safetensors_file", tests, NULL, NULL);
}
