/* SPDX-License-Identifier: Apache-2.0 */
/* preload.h: how preload.c and a test talk. The test maps the file that FAULTS_CONTROL
 * names and writes `kinds`, `fail_from`, `fail_count`, `error` and `clock_offset_ns`;
 * fault.py knows the order of the members. */
#ifndef ATTND_TESTS_PRELOAD_H
#define ATTND_TESTS_PRELOAD_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define STACKS_MAX  65536
#define SITE_BYTES  256
#define LARGE_BYTES ((size_t)64 * 1024)

/* Bits of `kinds`. fault.py has the same list. */
enum call_kind {
    CALL_MALLOC,
    CALL_CALLOC,
    CALL_REALLOC,
    CALL_ALIGNED_ALLOC,
    CALL_MMAP,
    CALL_PTHREAD_CREATE,
    CALL_ACCEPT,
    CALL_RECV,
    CALL_SEND,
    CALL_WRITE,
    CALL_READ,
    CALL_EPOLL_CTL,
    CALL_EPOLL_WAIT,
    CALL_EPOLL_CREATE,
    CALL_EVENTFD,
    CALL_SOCKET,
    CALL_BIND,
    CALL_LISTEN,
    CALL_OPEN,
    CALL_GETRANDOM,
    CALL_LCHOWN,
    CALL_FLOCK,
};

struct fault_control {
    _Atomic int64_t in_main;    /* 0 until main() begins; nothing is counted before */
    _Atomic int64_t kinds;      /* which calls are counted, by the bits of call_kind */
    _Atomic int64_t fail_from;  /* the first counted call that fails; 0: none */
    _Atomic int64_t fail_count; /* how many fail from there on */
    _Atomic int64_t error;      /* what errno they set */
    _Atomic int64_t counted;    /* calls so far */
    _Atomic int64_t failed;     /* of these, how many failed */
    _Atomic int64_t live;       /* blocks that were allocated and not freed */
    _Atomic int64_t clock_offset_ns; /* added to the time of day */
    _Atomic int64_t record;          /* whether `stacks` is written */
    _Atomic int64_t large;           /* blocks of LARGE_BYTES or more for HTTP threads */
    char site[SITE_BYTES];           /* where the last failure was: "object+0xoffset" */
    _Atomic uint64_t stacks[STACKS_MAX]; /* [counted] a hash of who called */
};

#endif
