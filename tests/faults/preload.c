/* SPDX-License-Identifier: Apache-2.0 */
/* preload.c: a library for LD_PRELOAD that makes one chosen call of the C library fail,
 * counts blocks that are allocated, and moves the time of day. A test steers it while the
 * program runs (preload.h).
 *
 * Counted are calls by the program and its libraries from main() on, in the order in
 * which they happen. Left out is what no caller can help, or what cannot fail:
 * - calls by OpenBLAS, which repeats a failed mmap() for ever and does not look at the
 *   result of malloc();
 * - reads and writes of an eventfd, as attnd and libmicrohttpd use them;
 * - epoll_ctl() but for EPOLL_CTL_ADD, which alone needs memory. */
#include "preload.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DEPTH 10

/* The allocator of glibc under its own names. dlsym() would allocate. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *memory);

static struct fault_control *control;
static uintptr_t openblas_begin, openblas_end;
static __thread bool inside __attribute__((tls_model("initial-exec")));

/* The function that the program would have called without this library. */
#define NEXT(name) ((__typeof__(&name))find_next(#name))

static void *find_next(const char *name) {
    bool was_inside = inside;
    inside = true;
    void *found = dlsym(RTLD_NEXT, name);
    inside = was_inside;
    return found;
}

static int find_openblas(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    (void)data;
    if (strstr(info->dlpi_name, "openblas") == NULL &&
        strstr(info->dlpi_name, "libblas") == NULL)
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        uintptr_t end =
            info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
        if (info->dlpi_phdr[i].p_type == PT_LOAD && end > openblas_end)
            openblas_end = end;
    }
    openblas_begin = info->dlpi_addr;
    return 1;
}

__attribute__((constructor)) static void map_control(void) {
    const char *path = getenv("FAULTS_CONTROL");
    void *frames[DEPTH];
    if (path == NULL)
        return;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *mapped = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || mapped == MAP_FAILED)
        abort();
    close(fd);
    backtrace(frames, DEPTH); /* its first call allocates */
    dl_iterate_phdr(find_openblas, NULL);
    control = mapped;
}

/* Stores where the failing call is: the first caller outside this library and libc. */
static void store_site(void *const *frames, int depth) {
    for (int i = 0; i < depth; i++) {
        Dl_info info;
        if (dladdr(frames[i], &info) == 0 ||
            strstr(info.dli_fname, "preload.so") != NULL ||
            strstr(info.dli_fname, "libc.so") != NULL)
            continue;
        const char *name = strrchr(info.dli_fname, '/');
        snprintf(control->site, SITE_BYTES, "%s+%#tx",
                 name != NULL ? name + 1 : info.dli_fname,
                 (char *)frames[i] - (char *)info.dli_fbase);
        return;
    }
}

/* Counts a call by `caller`; returns whether it has to fail. */
static bool fails(enum call_kind kind, const void *caller) {
    if (control == NULL || inside || control->in_main == 0 ||
        (control->kinds & (int64_t)1 << kind) == 0 ||
        ((uintptr_t)caller >= openblas_begin && (uintptr_t)caller < openblas_end))
        return false;

    int64_t number = atomic_fetch_add(&control->counted, 1) + 1;
    int64_t from = control->fail_from;
    bool failing = from > 0 && number >= from && number - from < control->fail_count;
    if (!failing && control->record == 0)
        return false;

    inside = true;
    void *frames[DEPTH];
    int depth = backtrace(frames, DEPTH);
    uint64_t hash = kind + 1;
    for (int i = 0; i < depth; i++)
        hash = (hash ^ (uintptr_t)frames[i]) * 0x9E3779B97F4A7C15U;
    if (number <= STACKS_MAX)
        control->stacks[number - 1] = hash;
    if (failing) {
        store_site(frames, depth);
        atomic_fetch_add(&control->failed, 1);
        errno = (int)control->error;
    }
    inside = false;
    return failing;
}

#define FAILS(kind) fails(kind, __builtin_return_address(0))

static void *count_block(void *block) {
    if (block != NULL && control != NULL)
        atomic_fetch_add(&control->live, 1);
    return block;
}

void *malloc(size_t size) {
    return FAILS(CALL_MALLOC) ? NULL : count_block(__libc_malloc(size));
}

void *calloc(size_t count, size_t size) {
    return FAILS(CALL_CALLOC) ? NULL : count_block(__libc_calloc(count, size));
}

void *realloc(void *memory, size_t size) {
    if (FAILS(CALL_REALLOC))
        return NULL;
    void *moved = __libc_realloc(memory, size);
    return memory == NULL ? count_block(moved) : moved;
}

void *aligned_alloc(size_t alignment, size_t size) {
    return FAILS(CALL_ALIGNED_ALLOC) ? NULL
                                     : count_block(__libc_memalign(alignment, size));
}

int posix_memalign(void **block, size_t alignment, size_t size) {
    if (FAILS(CALL_ALIGNED_ALLOC))
        return ENOMEM;
    *block = count_block(__libc_memalign(alignment, size));
    return *block == NULL ? ENOMEM : 0;
}

void free(void *memory) {
    if (memory != NULL && control != NULL)
        atomic_fetch_sub(&control->live, 1);
    __libc_free(memory);
}

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    if (FAILS(CALL_MMAP))
        return MAP_FAILED;
    void *mapped = NEXT(mmap)(address, size, protection, flags, fd, offset);
    return mapped == MAP_FAILED || control == NULL ? mapped : count_block(mapped);
}

int munmap(void *address, size_t size) {
    int result = NEXT(munmap)(address, size);
    if (result == 0 && control != NULL)
        atomic_fetch_sub(&control->live, 1);
    return result;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                   void *(*run)(void *), void *argument) {
    if (FAILS(CALL_PTHREAD_CREATE))
        return EAGAIN;
    return NEXT(pthread_create)(thread, attributes, run, argument);
}

int accept4(int fd, struct sockaddr *address, socklen_t *size, int flags) {
    return FAILS(CALL_ACCEPT) ? -1 : NEXT(accept4)(fd, address, size, flags);
}

ssize_t recv(int fd, void *bytes, size_t size, int flags) {
    return FAILS(CALL_RECV) ? -1 : NEXT(recv)(fd, bytes, size, flags);
}

ssize_t send(int fd, const void *bytes, size_t size, int flags) {
    return FAILS(CALL_SEND) ? -1 : NEXT(send)(fd, bytes, size, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    return FAILS(CALL_SEND) ? -1 : NEXT(sendmsg)(fd, message, flags);
}

ssize_t sendfile64(int to, int from, off64_t *offset, size_t size) {
    return FAILS(CALL_SEND) ? -1 : NEXT(sendfile64)(to, from, offset, size);
}

static bool is_eventfd(int fd) {
    struct stat status;
    return fstat(fd, &status) == 0 && (status.st_mode & S_IFMT) == 0;
}

ssize_t write(int fd, const void *bytes, size_t size) {
    return !is_eventfd(fd) && FAILS(CALL_WRITE) ? -1 : NEXT(write)(fd, bytes, size);
}

ssize_t read(int fd, void *bytes, size_t size) {
    return !is_eventfd(fd) && FAILS(CALL_READ) ? -1 : NEXT(read)(fd, bytes, size);
}

ssize_t pread64(int fd, void *bytes, size_t size, off64_t offset) {
    return FAILS(CALL_READ) ? -1 : NEXT(pread64)(fd, bytes, size, offset);
}

int epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event) {
    if (operation == EPOLL_CTL_ADD && FAILS(CALL_EPOLL_CTL))
        return -1;
    return NEXT(epoll_ctl)(epoll, operation, fd, event);
}

int epoll_wait(int epoll, struct epoll_event *events, int size, int timeout) {
    return FAILS(CALL_EPOLL_WAIT) ? -1 : NEXT(epoll_wait)(epoll, events, size, timeout);
}

int epoll_create1(int flags) {
    return FAILS(CALL_EPOLL_CREATE) ? -1 : NEXT(epoll_create1)(flags);
}

int eventfd(unsigned value, int flags) {
    return FAILS(CALL_EVENTFD) ? -1 : NEXT(eventfd)(value, flags);
}

int socket(int domain, int type, int protocol) {
    return FAILS(CALL_SOCKET) ? -1 : NEXT(socket)(domain, type, protocol);
}

int bind(int fd, const struct sockaddr *address, socklen_t size) {
    return FAILS(CALL_BIND) ? -1 : NEXT(bind)(fd, address, size);
}

int listen(int fd, int backlog) {
    return FAILS(CALL_LISTEN) ? -1 : NEXT(listen)(fd, backlog);
}

int lchown(const char *path, uid_t user, gid_t group) {
    return FAILS(CALL_LCHOWN) ? -1 : NEXT(lchown)(path, user, group);
}

int flock(int fd, int operation) {
    return FAILS(CALL_FLOCK) ? -1 : NEXT(flock)(fd, operation);
}

int open64(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return FAILS(CALL_OPEN) ? -1 : NEXT(open64)(path, flags, mode);
}

FILE *fopen64(const char *path, const char *mode) {
    return FAILS(CALL_OPEN) ? NULL : NEXT(fopen64)(path, mode);
}

ssize_t getrandom(void *bytes, size_t size, unsigned flags) {
    return FAILS(CALL_GETRANDOM) ? -1 : NEXT(getrandom)(bytes, size, flags);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = NEXT(clock_gettime)(clock, time);
    if (result != 0 || control == NULL || clock != CLOCK_REALTIME)
        return result;
    int64_t ns =
        (int64_t)time->tv_sec * 1000000000 + time->tv_nsec + control->clock_offset_ns;
    int64_t rest = (ns % 1000000000 + 1000000000) % 1000000000; /* before 1970, too */
    *time = (struct timespec){.tv_sec = (ns - rest) / 1000000000, .tv_nsec = rest};
    return 0;
}

time_t time(time_t *ret_time) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (ret_time != NULL)
        *ret_time = now.tv_sec;
    return now.tv_sec;
}

static int (*real_main)(int argc, char **argv, char **environment);

static int counted_main(int argc, char **argv, char **environment) {
    if (control != NULL)
        control->in_main = 1;
    int code = real_main(argc, argv, environment);
    if (control != NULL)
        control->in_main = 0;
    return code;
}

int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv,
                      void (*init)(void), void (*fini)(void), void (*rtld_fini)(void),
                      void *stack_end);

int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv,
                      void (*init)(void), void (*fini)(void), void (*rtld_fini)(void),
                      void *stack_end) {
    real_main = main;
    return NEXT(__libc_start_main)(counted_main, argc, argv, init, fini, rtld_fini,
                                   stack_end);
}
