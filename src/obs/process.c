/* SPDX-License-Identifier: Apache-2.0 */
/* process.c: reads /proc/self. */
#include "obs/process.h"

#include <dirent.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static double read_clock(clockid_t clock) {
    struct timespec now = {0};
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

double obs_process_start(void) {
    char line[1024];
    FILE *file = fopen("/proc/self/stat", "re");
    size_t size = file != NULL ? fread(line, 1, sizeof line - 1, file) : 0;
    if (file != NULL)
        fclose(file);
    line[size] = '\0';

    /* The second field, the name in parentheses, may hold spaces. The start is the 22nd,
     * in ticks since the machine booted. */
    const char *end = strrchr(line, ')');
    unsigned long long ticks;
    if (end == NULL || sscanf(end + 1,
                              " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d "
                              "%*d %*d %*d %*d %*d %llu",
                              &ticks) != 1)
        return (double)NAN;
    double age =
        read_clock(CLOCK_BOOTTIME) - (double)ticks / (double)sysconf(_SC_CLK_TCK);
    return read_clock(CLOCK_REALTIME) - age;
}

static double read_resident(void) {
    unsigned long long pages;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL)
        return (double)NAN;
    bool read = fscanf(file, "%*u %llu", &pages) == 1;
    fclose(file);
    return read ? (double)pages * (double)sysconf(_SC_PAGESIZE) : (double)NAN;
}

/* Counts the open descriptors, without the one that counting needs. */
static double count_fds(void) {
    DIR *folder = opendir("/proc/self/fd");
    double count = -3; /* ".", ".." and the folder */
    if (folder == NULL)
        return (double)NAN;
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

static double find_max_fds(void) {
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0)
        return (double)NAN;
    return files.rlim_cur == RLIM_INFINITY ? (double)INFINITY : (double)files.rlim_cur;
}

struct obs_process obs_process_read(void) {
    return (struct obs_process){.cpu = read_clock(CLOCK_PROCESS_CPUTIME_ID),
                                .resident = read_resident(),
                                .open_fds = count_fds(),
                                .max_fds = find_max_fds()};
}
