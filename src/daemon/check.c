/* SPDX-License-Identifier: Apache-2.0 */
/* check.c: asks the kernel as another user what that one can read. */
#include "daemon/check.h"

#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#define NOBODY    65534 /* a user without rights of its own */
#define FEW_FILES 256   /* descriptors, of which connections get what is left */

void check_config(const struct config *config) {
    const char *admin = config->admin_listen != NULL ? config->admin_listen : "";
    struct rlimit files;

    for (size_t i = 0; i < config->trusted_proxies.count; i++) {
        const char *range = config->trusted_proxies.items[i];
        if (strcmp(range + strcspn(range, "/"), "/0") == 0)
            log_write(LOG_WARN, "every client is trusted",
                      LOG_TEXT("trusted_proxy", range),
                      LOG_TEXT("remedy", "name the proxies; each client can now say in "
                                         "X-Forwarded-For that it is another one"));
    }
    if (!config->insecure_listen &&
        (strncmp(admin, "0.0.0.0:", 8) == 0 || strncmp(admin, "[::]:", 5) == 0))
        log_write(LOG_WARN, "the admin address has no keys and is open to all",
                  LOG_TEXT("admin_listen", admin),
                  LOG_TEXT("remedy",
                           "give an address that only those who watch reach, or "
                           "--insecure-listen where the network lets in nobody "
                           "else"));
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_max < FEW_FILES)
        log_write(
            LOG_WARN, "few files may be open, so there are few connections",
            LOG_NUMBER("files", files.rlim_max),
            LOG_TEXT("remedy", "raise the limit: ulimit -n, LimitNOFILE= of systemd"));
}

/* Warns of a file or folder that this user cannot read, and returns false. */
static bool check_access(const char *path) {
    if (eaccess(path, R_OK) == 0 || errno != EACCES)
        return true;
    log_write(LOG_WARN, "others than root cannot read it", LOG_TEXT("path", path),
              LOG_TEXT("remedy", "chmod -R a+rX it, and a+x the folders above it"));
    return false;
}

/* Checks a path, and the files in it if it is a folder. */
static void check_path(const char *path) {
    char file[PATH_MAX];
    DIR *folder = check_access(path) ? opendir(path) : NULL;
    if (folder == NULL)
        return;

    for (struct dirent *each = readdir(folder); each != NULL; each = readdir(folder)) {
        snprintf(file, sizeof file, "%s/%s", path, each->d_name);
        if (each->d_name[0] != '.')
            check_access(file);
    }
    closedir(folder);
}

void check_readable(const struct config *config, const struct model_list *list) {
    const char *last = config->model_dir != NULL ? config->model_dir : "";

    if (geteuid() != 0 || setgroups(0, NULL) != 0 || setegid(NOBODY) != 0 ||
        seteuid(NOBODY) != 0)
        return;
    if (config->model_dir != NULL)
        check_access(config->model_dir);
    for (size_t i = 0; i < list->count; i++) {
        const char *path = list->items[i].path; /* layers of one folder have the same */
        if (path != NULL && strcmp(path, last) != 0)
            check_path(path);
        last = path != NULL ? path : last;
    }
    /* A debugger, or a sanitizer, may look at the process again. */
    if (seteuid(0) == 0 && setegid(0) == 0)
        prctl(PR_SET_DUMPABLE, 1);
}
