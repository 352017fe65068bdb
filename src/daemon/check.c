/* SPDX-License-Identifier: Apache-2.0 */
/* check.c: asks the kernel as another user what that one can read. */
#include "daemon/check.h"

#include "base/log.h"
#include "http/net/listen.h"

#include <dirent.h>
#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define NOBODY    65534 /* a user without rights of its own */
#define FEW_FILES 256   /* descriptors, of which connections get what is left */

/* Whether the range has all addresses, or all of IPv4. */
static bool is_everybody(const struct address_range *range) {
    static const unsigned char ipv4[16] = {[10] = 0xff, [11] = 0xff};
    return !range->first.is_user &&
           (range->bits == 0 ||
            (range->bits == 96 && memcmp(range->first.bytes, ipv4, sizeof ipv4) == 0));
}

static bool is_any_address(const char *listen) {
    char host[NI_MAXHOST], port[NI_MAXSERV];
    return !listen_is_unix(listen) &&
           listen_split("", listen, host, port, NULL) == ATTN_OK &&
           (strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0);
}

void check_config(const struct config *config, const struct address_ranges *trusted) {
    struct rlimit files;

    for (size_t i = 0; i < trusted->count; i++) {
        if (is_everybody(&trusted->items[i]))
            log_write(LOG_WARN, "every client is trusted",
                      LOG_TEXT("trusted_proxy", config->trusted_proxies.items[i]),
                      LOG_TEXT("remedy", "name the proxies; each client can now say in "
                                         "X-Forwarded-For that it is another one"));
    }
    if (config->admin_listen != NULL && !config->insecure_listen &&
        is_any_address(config->admin_listen))
        log_write(LOG_WARN, "the admin address has no keys and is open to all",
                  LOG_TEXT("admin_listen", config->admin_listen),
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
}
