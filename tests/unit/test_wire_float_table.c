/* SPDX-License-Identifier: Apache-2.0 */
/* Printing in batches reads nothing beside its table of powers: here the table has
 * protected pages before and behind it. No sanitizer sees what a gather reads. */
#include "wire/decimal/powers.h"

#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

/* The file under test, with a table that a test can place. */
static const uint64_t *placed_powers = wire_powers;
#define wire_powers placed_powers
#include "wire/decimal/print_avx2.c" /* NOLINT(bugprone-suspicious-include) */
#undef wire_powers

/* Returns memory of one page, between two that cannot be read. */
static char *map_guarded_page(size_t page) {
    char *pages = mmap(NULL, 3 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(pages, MAP_FAILED);
    assert_int_equal(mprotect(pages + page, page, PROT_READ | PROT_WRITE), 0);
    return pages + page;
}

/* Finds the digits of all sixteen values with the table at `table`. */
static void find_with_table(void *table, const float values[WIRE_DIGITS_BATCH]) {
    struct wire_digits expected, found;

    wire_digits_find(values, &expected);
    placed_powers = memcpy(table, wire_powers, sizeof wire_powers);
    wire_digits_find(values, &found);
    placed_powers = wire_powers;
    assert_memory_equal(&found, &expected, sizeof found);
}

static void test_digits_are_found_without_reading_beside_the_table(void **state) {
    const float values[WIRE_DIGITS_BATCH] = {
        0.0F,    -0.0F,    FLT_TRUE_MIN, -FLT_TRUE_MIN, 1e-40F,   -1e-40F,
        FLT_MIN, -FLT_MIN, FLT_MAX,      -FLT_MAX,      0x1p127F, 0x1p-125F,
        1.0F,    0.0F,     1e38F,        1e-37F};
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    (void)state;
    if (!wire_digits_available()) {
        print_message("needs AVX2\n");
        skip();
    }

    char *memory = map_guarded_page(page);
    find_with_table(memory, values);
    find_with_table(memory + page - sizeof wire_powers, values);
    munmap(memory - page, 3 * page);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digits_are_found_without_reading_beside_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
