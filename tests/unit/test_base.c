/* SPDX-License-Identifier: Apache-2.0 */
/* test_base.c: tests of sizes, errors, buffers, arenas and the limits of the machine. */
#include "base/arena.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/heap.h"
#include "base/machine.h"
#include "base/size.h"
#include "fail_alloc.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

static void test_sizes_that_wrap_are_refused_and_write_nothing(void **state) {
    (void)state;
    size_t result = 7;
    assert_false(size_mul(SIZE_MAX, 2, &result));
    assert_false(size_add(SIZE_MAX, 1, &result));
    assert_false(size_add_mul(&result, SIZE_MAX / 2, 3));
    assert_false(size_round_up(SIZE_MAX - 3, 64, &result));
    assert_int_equal(result, 7);
}

static void test_saturating_sums_stay_at_the_largest_size(void **state) {
    (void)state;
    size_t sum = 1;
    size_add_saturating(&sum, 2);
    size_add_mul_saturating(&sum, 6, 7);
    assert_int_equal(sum, 45);
    size_add_mul_saturating(&sum, SIZE_MAX, 2);
    assert_true(sum == SIZE_MAX);
    size_add_mul_saturating(&sum, 1, 1);
    size_add_saturating(&sum, 1);
    assert_true(sum == SIZE_MAX);
}

static void test_sizes_that_fit_are_exact(void **state) {
    (void)state;
    size_t result = 1;
    assert_true(size_add_mul(&result, 6, 7));
    assert_int_equal(result, 43);
    assert_true(size_round_up(65, 64, &result));
    assert_int_equal(result, 128);
    assert_true(size_round_up(64, 64, &result));
    assert_int_equal(result, 64);
    assert_true(size_mul(SIZE_MAX, 1, &result));
    assert_true(result == SIZE_MAX);
}

static void test_every_status_has_a_text(void **state) {
    (void)state;
    for (int s = 0; s < ATTN_E_STATUS_COUNT; s++)
        assert_true(strlen(attn_status_text((attn_status)s)) > 0);
    assert_string_equal(attn_status_text((attn_status)99), "unknown status");
    assert_string_equal(attn_status_text((attn_status)-1), "unknown status");
}

static void test_error_text_is_one_printable_line(void **state) {
    (void)state;
    attn_error error;
    assert_int_equal(error_set(&error, ATTN_E_IO, "a%sb", "\n\x1b\xff"), ATTN_E_IO);
    assert_string_equal(error.text, "a???b");
    assert_int_equal(error.status, ATTN_E_IO);
    assert_int_equal(error_set(NULL, ATTN_E_IO, "x"), ATTN_E_IO);
}

static void test_buffer_grows_up_to_its_maximum_and_no_further(void **state) {
    (void)state;
    struct buf buf;

    buf_init(&buf, 1000);
    for (int i = 0; i < 100; i++)
        buf_append_format(&buf, "%d%s", 0, "123456789");
    buf_append(&buf, NULL, 0);
    assert_int_equal(buf.status, ATTN_OK);
    buf_append(&buf, "x", 1);
    assert_int_equal(buf.status, ATTN_E_NOMEM);
    assert_int_equal(buf.size, 1000);
    assert_true(buf.capacity <= 1000);
    assert_memory_equal(buf.data + 990, "0123456789", 10);
    assert_int_equal(buf_reserve(&buf, SIZE_MAX), ATTN_E_NOMEM);

    buf_deinit(&buf);
    assert_int_equal(buf.max, 1000);
}

static void test_buffer_appends_nothing_after_an_error(void **state) {
    (void)state;
    struct buf buf;

    buf_init(&buf, 4);
    buf_append_text(&buf, "abc");
    buf_append_text(&buf, "de");
    buf_append_text(&buf, "f");
    buf_append_format(&buf, "%d", 7);
    assert_int_equal(buf.status, ATTN_E_NOMEM);
    assert_int_equal(buf.size, 3);

    buf_deinit(&buf);
    buf_append_text(&buf, "abcd");
    assert_int_equal(buf.status, ATTN_OK);
    buf_deinit(&buf);
}

static void test_buffer_survives_a_failed_allocation(void **state) {
    (void)state;
    struct buf buf;
    buf_init(&buf, SIZE_MAX);
    buf_append_text(&buf, "kept");
    fail_alloc_at(1);
    assert_int_equal(buf_reserve(&buf, 1000), ATTN_E_NOMEM);
    assert_true(fail_alloc_stop());
    assert_int_equal(buf.status, ATTN_OK);
    assert_memory_equal(buf.data, "kept", 4);
    size_t size;
    char *data = buf_take(&buf, &size);
    assert_int_equal(size, 4);
    assert_null(buf.data);
    free(data);
}

static void test_arena_memory_is_aligned_and_distinct(void **state) {
    (void)state;
    struct arena arena;

    arena_init(&arena, 1 << 20);
    for (int round = 0; round < 3; round++) {
        char *previous = NULL;
        for (size_t size = 1; size < 200000; size = size * 3 + 1) {
            char *memory = arena_alloc(&arena, size, 1);
            assert_non_null(memory);
            assert_int_equal((uintptr_t)memory % ARENA_ALIGNMENT, 0);
            memset(memory, 0x5a, size);
            assert_ptr_not_equal(memory, previous);
            previous = memory;
        }
        arena_reset(&arena);
    }
    arena_deinit(&arena);
}

static void test_arena_keeps_its_memory_for_the_next_job(void **state) {
    (void)state;
    struct arena arena;
    arena_init(&arena, 1 << 20);
    for (int i = 0; i < 3; i++)
        assert_non_null(arena_alloc(&arena, 200000, 1));
    arena_reset(&arena);
    fail_alloc_at(1); /* no further allocation may be needed */
    for (int i = 0; i < 3; i++)
        assert_non_null(arena_alloc(&arena, 200000, 1));
    assert_false(fail_alloc_stop());
    arena_deinit(&arena);
}

static void test_arena_frees_what_is_over_its_limit(void **state) {
    (void)state;
    struct arena arena;
    arena_init(&arena, 1000);
    assert_non_null(arena_alloc(&arena, 100000, 1));
    arena_reset(&arena);
    assert_null(arena.chunks);
}

static void test_arena_returns_null_when_memory_is_short(void **state) {
    (void)state;
    struct arena arena;
    arena_init(&arena, 1000);
    assert_null(arena_alloc(&arena, SIZE_MAX, 2));
    assert_null(arena_alloc(&arena, SIZE_MAX - 10, 1));
    fail_alloc_at(1);
    assert_null(arena_alloc(&arena, 10, 1));
    assert_true(fail_alloc_stop());
    assert_non_null(arena_alloc(&arena, 10, 1));
    arena_deinit(&arena);
}

/* Writes a file below `root`, and creates the folders that it needs. */
static void write_file(const char *root, const char *path, const char *text) {
    char full[PATH_MAX];

    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL;
         slash++) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }

    FILE *file = fopen(full, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static const char *new_root(char root[static 32]) {
    strcpy(root, "/tmp/attnd-machine-XXXXXX");
    assert_non_null(mkdtemp(root));
    return root;
}

static void remove_root(const char *root) {
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

static void test_machine_without_limits_reports_all_cpus_and_memory(void **state) {
    (void)state;
    char root[32];
    new_root(root);
    size_t cpus = machine_cpus(root), memory = machine_memory(root);
    assert_in_range(cpus, 1, 100000);
    assert_true(memory > 1 << 20);

    write_file(root, "/proc/self/cgroup", "0::/a/b\n");
    write_file(root, "/sys/fs/cgroup/a/cpu.max", "max 100000\n");
    write_file(root, "/sys/fs/cgroup/a/b/memory.max", "max\n");

    assert_int_equal(machine_cpus(root), cpus);
    assert_int_equal(machine_memory(root), memory);
    remove_root(root);
}

static void test_machine_uses_the_lowest_limit_of_all_groups_above(void **state) {
    (void)state;
    char root[32];
    new_root(root);

    write_file(root, "/proc/self/cgroup", "0::/a/b\n");
    write_file(root, "/sys/fs/cgroup/a/cpu.max", "50000 100000\n");
    write_file(root, "/sys/fs/cgroup/a/b/cpu.max", "9900000 100000\n");
    write_file(root, "/sys/fs/cgroup/memory.max", "1000000\n");
    write_file(root, "/sys/fs/cgroup/a/b/memory.max", "2000000\n");

    assert_int_equal(machine_cpus(root), 1);
    assert_int_equal(machine_memory(root), 1000000);
    remove_root(root);
}

static void test_machine_reads_cgroups_of_version_1(void **state) {
    (void)state;
    char root[32];
    new_root(root);

    write_file(root, "/proc/self/cgroup", "4:memory:/d\n3:cpu,cpuacct:/d\n");
    write_file(root, "/sys/fs/cgroup/cpu/d/cpu.cfs_quota_us", "20000\n");
    write_file(root, "/sys/fs/cgroup/cpu/d/cpu.cfs_period_us", "100000\n");
    write_file(root, "/sys/fs/cgroup/memory/d/memory.limit_in_bytes", "3000000\n");

    assert_int_equal(machine_cpus(root), 1);
    assert_int_equal(machine_memory(root), 3000000);
    remove_root(root);
}

static void test_machine_without_limits_has_free_what_is_available(void **state) {
    (void)state;
    char root[32];
    new_root(root);
    assert_true(machine_free_memory(root) > 1 << 20); /* the machine's pages */
    write_file(root, "/proc/meminfo",
               "MemTotal:  9000 kB\nMemFree:  100 kB\nMemAvailable:    4000 kB\n");
    assert_int_equal(machine_free_memory(root), 4000 * 1024);
    remove_root(root);
}

static void test_machine_has_free_what_the_tightest_group_has_left(void **state) {
    (void)state;
    char root[32];
    new_root(root);

    write_file(root, "/proc/meminfo", "MemAvailable: 4000 kB\n");
    write_file(root, "/proc/self/cgroup", "0::/a/b\n");
    write_file(root, "/sys/fs/cgroup/a/memory.max", "2000000\n");
    write_file(root, "/sys/fs/cgroup/a/memory.current", "900000\n");
    write_file(root, "/sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 400000\n");
    write_file(root, "/sys/fs/cgroup/a/b/memory.max", "2000000\n");
    write_file(root, "/sys/fs/cgroup/a/b/memory.current", "300000\n");
    assert_int_equal(machine_free_memory(root), 1500000);

    write_file(root, "/sys/fs/cgroup/a/b/memory.current", "2000001\n");
    assert_int_equal(machine_free_memory(root), 0);
    remove_root(root);
}

static void test_machine_reads_free_memory_of_version_1(void **state) {
    (void)state;
    char root[32];
    new_root(root);

    write_file(root, "/proc/meminfo", "MemAvailable: 4000 kB\n");
    write_file(root, "/proc/self/cgroup", "4:memory:/d\n");
    write_file(root, "/sys/fs/cgroup/memory/d/memory.limit_in_bytes", "3000000\n");
    write_file(root, "/sys/fs/cgroup/memory/d/memory.usage_in_bytes", "1000000\n");
    write_file(root, "/sys/fs/cgroup/memory/d/memory.stat",
               "inactive_file 1\ntotal_inactive_file 200000\n");
    assert_int_equal(machine_free_memory(root), 2200000);
    remove_root(root);
}

static void test_machine_ignores_controllers_with_longer_names(void **state) {
    (void)state;
    char root[32];
    new_root(root);
    size_t cpus = machine_cpus(root);

    write_file(root, "/proc/self/cgroup", "3:cpuset:/batch\n2:cpu,cpuacct:/\n");
    write_file(root, "/sys/fs/cgroup/cpu/batch/cpu.cfs_quota_us", "100000\n");
    write_file(root, "/sys/fs/cgroup/cpu/batch/cpu.cfs_period_us", "100000\n");

    assert_int_equal(machine_cpus(root), cpus);
    remove_root(root);
}

static void test_blocks_of_the_heap_are_aligned(void **state) {
    const size_t sizes[] = {64, (size_t)4 << 20, ((size_t)5 << 20) + 64};
    (void)state;

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        unsigned char *block = heap_alloc(sizes[i]);
        assert_non_null(block);
        assert_int_equal((uintptr_t)block % HEAP_ALIGNMENT, 0);
        block[0] = block[sizes[i] - 1] = 1;
        free(block);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_that_wrap_are_refused_and_write_nothing),
        cmocka_unit_test(test_sizes_that_fit_are_exact),
        cmocka_unit_test(test_saturating_sums_stay_at_the_largest_size),
        cmocka_unit_test(test_every_status_has_a_text),
        cmocka_unit_test(test_error_text_is_one_printable_line),
        cmocka_unit_test(test_buffer_grows_up_to_its_maximum_and_no_further),
        cmocka_unit_test(test_buffer_appends_nothing_after_an_error),
        cmocka_unit_test(test_buffer_survives_a_failed_allocation),
        cmocka_unit_test(test_arena_memory_is_aligned_and_distinct),
        cmocka_unit_test(test_arena_keeps_its_memory_for_the_next_job),
        cmocka_unit_test(test_arena_frees_what_is_over_its_limit),
        cmocka_unit_test(test_arena_returns_null_when_memory_is_short),
        cmocka_unit_test(test_machine_without_limits_reports_all_cpus_and_memory),
        cmocka_unit_test(test_machine_uses_the_lowest_limit_of_all_groups_above),
        cmocka_unit_test(test_machine_reads_cgroups_of_version_1),
        cmocka_unit_test(test_machine_without_limits_has_free_what_is_available),
        cmocka_unit_test(test_machine_has_free_what_the_tightest_group_has_left),
        cmocka_unit_test(test_machine_reads_free_memory_of_version_1),
        cmocka_unit_test(test_machine_ignores_controllers_with_longer_names),
        cmocka_unit_test(test_blocks_of_the_heap_are_aligned),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
