/* SPDX-License-Identifier: Apache-2.0 */
/* test_math_matrix_refused.c: matrix tiles that the operating system refuses. Each case
 * runs in a process of its own, since an answer holds for a whole process. */
#include "math/kernels/kernels.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
/* cmocka.h needs those above. */
#include <cmocka.h>

#ifdef __x86_64__
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* Makes arch_prctl() fail, as in a sandbox, but not what the C library needs of it. */
static bool refuse_by_seccomp(unsigned error) {
    const unsigned number = offsetof(struct seccomp_data, nr);
    const unsigned argument = offsetof(struct seccomp_data, args);
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, number),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, argument),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x1023, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {sizeof filter / sizeof *filter, filter};

    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}
#else
static bool refuse_by_seccomp(unsigned error) {
    (void)error;
    return true;
}
#endif

/* Gives the thread an alternate signal stack without room for tiles. */
static bool have_small_signal_stack(unsigned error) {
    static char memory[8192];
    const stack_t stack = {.ss_sp = memory, .ss_size = sizeof memory};
    (void)error;
    return sigaltstack(&stack, NULL) == 0;
}

enum { REFUSED, NOT_PREPARED, NO_TILES, ALLOWED, WITHOUT_REASON, STILL_LISTED };

/* Runs in the process of a case. */
static int ask(bool (*prepare)(unsigned error), unsigned error, const char *reason) {
    const char *refused;

    if (!prepare(error))
        return NOT_PREPARED;
    bool have = kernels_have_matrix(&refused);
    if (!have && refused == NULL)
        return NO_TILES;
    if (have)
        return ALLOWED;
    if (strstr(refused, reason) == NULL || kernels_have_matrix(&refused))
        return WITHOUT_REASON;
    /* The model of a build for tests needs no permission; then both sets are there. */
    return (kernels_get("amx", true) != NULL) == (kernels_get("amx", false) != NULL)
               ? REFUSED
               : STILL_LISTED;
}

static void expect_refused(bool (*prepare)(unsigned error), unsigned error,
                           const char *reason) {
    int status;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0)
        _exit(ask(prepare, error, reason));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == NO_TILES || WEXITSTATUS(status) == NOT_PREPARED)
        skip();
    assert_int_equal(WEXITSTATUS(status), REFUSED);
}

static void test_sandbox_that_refuses_tiles_is_named(void **state) {
    (void)state;
    expect_refused(refuse_by_seccomp, EPERM, "arch_prctl");
    expect_refused(refuse_by_seccomp, ENOSYS, "arch_prctl");
}

static void test_operating_system_without_tiles_is_named(void **state) {
    (void)state;
    expect_refused(refuse_by_seccomp, EINVAL, "Linux 5.16");
}

static void test_small_signal_stack_is_named(void **state) {
    (void)state;
    expect_refused(have_small_signal_stack, 0, "AT_MINSIGSTKSZ");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sandbox_that_refuses_tiles_is_named),
        cmocka_unit_test(test_operating_system_without_tiles_is_named),
        cmocka_unit_test(test_small_signal_stack_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
