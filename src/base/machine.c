/* SPDX-License-Identifier: Apache-2.0 */
/* machine.c: reads the scheduler's set of CPUs, /proc and the cgroup files of both
 * versions. */
#include "base/machine.h"

#include "base/size.h"

#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Returns the limit that the files of a cgroup's folder set; SIZE_MAX for none. */
typedef size_t (*limit_reader)(const char *folder);

/* Returns the lowest limit of `folder` and of all folders above it, up to the root, whose
 * path has `root_size` bytes. Shortens `folder`. */
static size_t find_lowest_limit(char *folder, size_t root_size, limit_reader read) {
    size_t min = SIZE_MAX;
    for (;;) {
        min = size_min(min, read(folder));
        char *slash = strrchr(folder, '/');
        if (strlen(folder) <= root_size || slash == NULL)
            return min;
        *slash = '\0';
    }
}

/* Returns whether `list` has `word`, between commas. Cuts the list into words. */
static bool list_has_word(char *list, const char *word) {
    char *item;
    while ((item = strsep(&list, ",")) != NULL) {
        if (strcmp(item, word) == 0)
            return true;
    }
    return false;
}

/* Returns the lowest limit of this process's cgroup and of those above it. `controller`
 * is the folder of version 1; version 2 has one tree for all. A container may see its own
 * group as the root. */
static size_t read_cgroup_limit(const char *root, const char *controller,
                                limit_reader read) {
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
        if (!version_2 && !list_has_word(controllers + 1, controller))
            continue;

        int size = version_2 ? snprintf(folder, sizeof folder, "%s/sys/fs/cgroup", root)
                             : snprintf(folder, sizeof folder, "%s/sys/fs/cgroup/%s",
                                        root, controller);
        snprintf(folder + size, sizeof folder - (size_t)size, "%s", group);
        min = size_min(min, find_lowest_limit(folder, (size_t)size, read));
    }

    fclose(groups);
    return min;
}

/* Returns the number that follows `key` at the start of a line of a file; 0 when there is
 * none. */
static size_t read_entry(const char *folder, const char *name, const char *key) {
    char path[3 * PATH_MAX], line[256];
    size_t number = 0, size = strlen(key);

    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;

    while (number == 0 && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, key, size) == 0)
            number = (size_t)strtoull(line + size, NULL, 10);
    }
    fclose(file);
    return number;
}

/* Returns the limit in CPUs, rounded up. Version 2 has "QUOTA PERIOD" in one file,
 * version 1 has two files; "max" or -1 means that there is no limit. */
static size_t read_cpu_limit(const char *folder) {
    char path[3 * PATH_MAX];
    long long quota = 0, period = 0;

    snprintf(path, sizeof path, "%s/cpu.max", folder);
    FILE *file = fopen(path, "re");
    if (file != NULL) {
        if (fscanf(file, "%lld %lld", &quota, &period) != 2)
            quota = 0;
        fclose(file);
    } else {
        quota = (long long)read_entry(folder, "cpu.cfs_quota_us", "");
        period = (long long)read_entry(folder, "cpu.cfs_period_us", "");
    }

    if (quota <= 0 || period <= 0)
        return SIZE_MAX;
    return (size_t)((quota + period - 1) / period);
}

/* Reads the number in a cgroup's file, `name` of version 2 or `name_1` of version 1.
 * Returns 0 when there is none, as for "max". */
static size_t read_bytes(const char *folder, const char *name, const char *name_1) {
    size_t bytes = read_entry(folder, name, "");
    return bytes > 0 ? bytes : read_entry(folder, name_1, "");
}

/* Returns the limit in bytes. */
static size_t read_memory_limit(const char *folder) {
    size_t bytes = read_bytes(folder, "memory.max", "memory.limit_in_bytes");
    return bytes > 0 ? bytes : SIZE_MAX;
}

/* Returns the bytes that are left below the limit. */
static size_t read_memory_left(const char *folder) {
    size_t limit = read_memory_limit(folder);
    if (limit == SIZE_MAX)
        return SIZE_MAX;

    size_t used = read_bytes(folder, "memory.current", "memory.usage_in_bytes");
    size_t files = read_entry(folder, "memory.stat", "total_inactive_file ");
    if (files == 0) /* the former is of version 1 */
        files = read_entry(folder, "memory.stat", "inactive_file ");
    used -= files < used ? files : used;
    return used < limit ? limit - used : 0;
}

size_t machine_cpus(const char *root) {
    cpu_set_t set;
    size_t cpus = 1;

    if (sched_getaffinity(0, sizeof set, &set) == 0)
        cpus = (size_t)CPU_COUNT(&set);
    else if (sysconf(_SC_NPROCESSORS_ONLN) > 0) /* more CPUs than the set can hold */
        cpus = (size_t)sysconf(_SC_NPROCESSORS_ONLN);

    size_t limit = read_cgroup_limit(root, "cpu", read_cpu_limit);
    return limit < cpus ? limit : cpus;
}

size_t machine_memory(const char *root) {
    size_t bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    size_t limit = read_cgroup_limit(root, "memory", read_memory_limit);
    return limit < bytes ? limit : bytes;
}

size_t machine_free_memory(const char *root) {
    size_t bytes = read_entry(root, "proc/meminfo", "MemAvailable:") * 1024;
    if (bytes == 0) /* no /proc, or Linux before 3.14 */
        bytes = (size_t)sysconf(_SC_AVPHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    size_t left = read_cgroup_limit(root, "memory", read_memory_left);
    return left < bytes ? left : bytes;
}
