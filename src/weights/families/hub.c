/* SPDX-License-Identifier: Apache-2.0 */
/* hub.c: chooses a version in Hugging Face's cache. */
#include "weights/families/hub.h"

#include "base/error.h"
#include "weights/families/config.h"

#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Returns whether `path` has snapshots/, or is it; ret_versions is its path. */
static bool find_versions(const char *path, char ret_versions[PATH_MAX]) {
    char real[PATH_MAX];

    snprintf(ret_versions, PATH_MAX, "%s", path);
    if (realpath(path, real) != NULL && strcmp(strrchr(real, '/'), "/snapshots") == 0)
        return true;
    return config_has_file(path, "snapshots") &&
           snprintf(ret_versions, PATH_MAX, "%s/snapshots", path) < PATH_MAX;
}

/* Reads the version that refs/main names, a hash; "" where it names none. */
static void read_main(const char *versions, char ret_version[72]) {
    char path[PATH_MAX];
    ssize_t size = 0;

    if (snprintf(path, sizeof path, "%s/../refs/main", versions) < (int)sizeof path) {
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        size = fd >= 0 ? read(fd, ret_version, 71) : 0;
        if (fd >= 0)
            close(fd);
    }
    ret_version[size > 0 ? size : 0] = '\0';
    ret_version[strspn(ret_version, "0123456789abcdef")] = '\0';
}

attn_status hub_find_folder(const char *path, char ret_folder[PATH_MAX],
                            attn_error *ret_error) {
    char versions[PATH_MAX], version[72], list[300] = "";
    bool is_cache =
        !config_has_file(path, "config.json") && find_versions(path, versions);
    size_t used = 0;
    glob_t found;

    snprintf(ret_folder, PATH_MAX, "%s", path);
    if (!is_cache || snprintf(ret_folder, PATH_MAX, "%s/*", versions) >= PATH_MAX ||
        glob(ret_folder, 0, NULL, &found) != 0)
        return ATTN_OK;
    read_main(versions, version);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        const char *name = strrchr(found.gl_pathv[i], '/') + 1;
        if (version[0] == '\0' ? found.gl_pathc == 1 : strcmp(name, version) == 0) {
            snprintf(ret_folder, PATH_MAX, "%s", found.gl_pathv[i]);
            globfree(&found);
            return ATTN_OK;
        }
        if (used < sizeof list)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s",
                                     i == 0 ? "" : ", ", name);
    }
    globfree(&found);
    return error_set(ret_error, ATTN_E_FORMAT,
                     "refs/main names none of the versions in snapshots; give the folder "
                     "of one, or finish the download: %s",
                     list);
}
