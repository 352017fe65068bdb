/* SPDX-License-Identifier: Apache-2.0 */
#include "base/machine.h"

#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads the first line of a small file, without its newline. */
static bool read_line(const char *path, char *line, size_t size) {
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    bool read = fgets(line, (int)size, file) != NULL;
    fclose(file);
    if (read)
        line[strcspn(line, "\n")] = '\0';
    return read;
}

/* What a limit file says, as one number; SIZE_MAX for none. */
typedef size_t (*limit_reader)(const char *folder);

/* Takes the least limit of `folder` and all folders above it, down to `length` bytes of
 * path. */
static size_t least_limit(char *folder, size_t length, limit_reader read) {
    size_t min = SIZE_MAX;
    for (;;) {
        size_t limit = read(folder);
        if (limit < min)
            min = limit;
        char *slash = strrchr(folder, '/');
        if (strlen(folder) <= length || slash == NULL)
            return min;
        *slash = '\0';
    }
}

/* The least limit of this process's cgroup and those above it. `controller` is the folder
 * of version 1; version 2 has one tree for all. A container may see its own group as the
 * root. */
static size_t cgroup_limit(const char *root, const char *controller, limit_reader read) {
    char path[PATH_MAX], line[PATH_MAX], folder[2 * PATH_MAX];
    size_t min = SIZE_MAX;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *groups = fopen(path, "re");
    if (groups == NULL)
        return min;
    while (fgets(line, sizeof line, groups) != NULL) { /* ID:CONTROLLERS:PATH */
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (group == NULL)
            continue;
        *group++ = '\0';
        bool version_2 = controllers[1] == '\0';
        if (!version_2 && strstr(controllers, controller) == NULL)
            continue;
        int length = snprintf(folder, sizeof folder, "%s/sys/fs/cgroup%s%s", root,
                              version_2 ? "" : "/", version_2 ? "" : controller);
        snprintf(folder + length, sizeof folder - (size_t)length, "%s", group);
        size_t limit = least_limit(folder, (size_t)length, read);
        if (limit < min)
            min = limit;
    }
    fclose(groups);
    return min;
}

/* CPUs: "QUOTA PERIOD" in version 2, two files in version 1; "max" or -1 for no limit. */
static size_t read_cpu_limit(const char *folder) {
    char path[3 * PATH_MAX], line[64];
    long long quota = -1, period = -1;
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    if (read_line(path, line, sizeof line)) {
        if (sscanf(line, "%lld %lld", &quota, &period) != 2)
            quota = -1;
    } else {
        snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
        if (read_line(path, line, sizeof line))
            quota = atoll(line);
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
        if (read_line(path, line, sizeof line))
            period = atoll(line);
    }
    if (quota <= 0 || period <= 0)
        return SIZE_MAX;
    return (size_t)((quota + period - 1) / period);
}

static size_t read_memory_limit(const char *folder) {
    char path[3 * PATH_MAX], line[64];
    snprintf(path, sizeof path, "%s/memory.max", folder);
    if (!read_line(path, line, sizeof line)) {
        snprintf(path, sizeof path, "%s/memory.limit_in_bytes", folder);
        if (!read_line(path, line, sizeof line))
            return SIZE_MAX;
    }
    long long bytes = atoll(line); /* "max" gives 0 */
    return bytes > 0 ? (size_t)bytes : SIZE_MAX;
}

size_t machine_cpus(const char *root) {
    cpu_set_t set;
    size_t cpus = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        cpus = (size_t)CPU_COUNT(&set);
    else if (sysconf(_SC_NPROCESSORS_ONLN) > 0) /* more CPUs than the set can hold */
        cpus = (size_t)sysconf(_SC_NPROCESSORS_ONLN);
    size_t limit = cgroup_limit(root, "cpu", read_cpu_limit);
    return limit < cpus ? limit : cpus;
}

size_t machine_memory(const char *root) {
    size_t bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    size_t limit = cgroup_limit(root, "memory", read_memory_limit);
    return limit < bytes ? limit : bytes;
}
