/* SPDX-License-Identifier: Apache-2.0 */
/* listen.c: parses HOST:PORT and unix:PATH, and opens one listening socket per HTTP
 * thread.
 *
 * A Unix socket is a file that outlives a process which is killed. So a second file,
 * PATH.lock, is locked as long as the socket is used: who has the lock may replace a
 * socket where nobody listens. Nobody can connect before the socket has its mode and its
 * group, since listen() comes last. */
#include "http/net/listen.h"

#include "base/authority.h"
#include "base/error.h"
#include "http/net/address.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define UNIX_MODE   0660
#define UNIX_MODES  0777 /* all that may be given */
#define LOCK_ENDING ".lock"
/* Bytes of the path of a lock, with the terminator. */
#define LOCK_PATH_MAX (sizeof(struct sockaddr_un) + sizeof LOCK_ENDING)
#define NOT_A_NUMBER  ((unsigned long)-1)

/* --- reading --- */

/* A unix:PATH[,KEY=VALUE]... that was read. */
struct unix_listen {
    struct sockaddr_un address;
    mode_t mode;
    gid_t group; /* (gid_t)-1: that of the process */
};

bool listen_is_unix(const char *listen) {
    return strncmp(listen, ADDRESS_UNIX, strlen(ADDRESS_UNIX)) == 0;
}

static unsigned long read_unsigned(const char *text, int base) {
    char *end;
    unsigned long number = strtoul(text, &end, base);
    return *text >= '0' && *text <= '9' && *end == '\0' ? number : NOT_A_NUMBER;
}

/* Finds a group by its number or its name. */
static bool find_group(const char *text, gid_t *ret_group) {
    unsigned long number = read_unsigned(text, 10);
    *ret_group = (gid_t)number;
    if (number < (gid_t)-1)
        return true;

    const struct group *group = getgrnam(text);
    if (group != NULL)
        *ret_group = group->gr_gid;
    return group != NULL;
}

/* Reads one KEY=VALUE. */
static attn_status parse_unix_key(const char *option, const char *item,
                                  struct unix_listen *listen, attn_error *ret_error) {
    if (strncmp(item, "mode=", 5) == 0) {
        unsigned long mode = read_unsigned(item + 5, 8);
        listen->mode = (mode_t)mode;
        if (mode <= UNIX_MODES)
            return ATTN_OK;
        return error_set(ret_error, ATTN_E_VALUE,
                         "%s: '%s' is not the mode of a file; write it in octal, at "
                         "most 0777",
                         option, item);
    }

    if (strncmp(item, "group=", 6) == 0) {
        if (find_group(item + 6, &listen->group))
            return ATTN_OK;
        return error_set(ret_error, ATTN_E_VALUE,
                         "%s: there is no group '%s'; create it, or give another one",
                         option, item + 6);
    }
    return error_set(ret_error, ATTN_E_VALUE,
                     "%s: '%s' is neither mode=MODE nor group=NAME; a path may not have "
                     "a comma",
                     option, item);
}

/* Reads unix:PATH[,KEY=VALUE]... Returns ATTN_E_VALUE when it is malformed. */
static attn_status parse_unix(const char *option, const char *text,
                              struct unix_listen *ret_listen, attn_error *ret_error) {
    const char *path = text + strlen(ADDRESS_UNIX);
    size_t size = strcspn(path, ",");

    *ret_listen = (struct unix_listen){
        .address.sun_family = AF_UNIX, .mode = UNIX_MODE, .group = (gid_t)-1};
    if (*path != '/')
        return error_set(ret_error, ATTN_E_VALUE,
                         "%s: the path in '%s' must begin with '/', as in "
                         "unix:/run/attnd/attnd.sock",
                         option, text);
    if (size >= sizeof ret_listen->address.sun_path)
        return error_set(ret_error, ATTN_E_VALUE,
                         "%s: the path in '%.200s' is too long: %zu bytes, and a Unix "
                         "socket may have %zu; put it in a folder nearer to '/'",
                         option, text, size, sizeof ret_listen->address.sun_path - 1);
    memcpy(ret_listen->address.sun_path, path, size);

    char *copy = strdup(path + size), *rest = copy;
    if (copy == NULL)
        return error_set(ret_error, ATTN_E_NOMEM, "%s: out of memory", option);
    attn_status status = ATTN_OK;
    const char *mode = NULL, *group = NULL; /* that were read */
    for (char *item = strtok_r(copy, ",", &rest); item != NULL && status == ATTN_OK;
         item = strtok_r(NULL, ",", &rest)) {
        const char **read = *item == 'm' ? &mode : &group;
        status = *read == NULL
                     ? parse_unix_key(option, item, ret_listen, ret_error)
                     : error_set(ret_error, ATTN_E_VALUE,
                                 "%s: '%s' is given twice; leave one out", option, *read);
        *read = item;
    }
    free(copy);
    return status;
}

attn_status listen_split(const char *option, const char *listen,
                         char ret_host[static NI_MAXHOST],
                         char ret_port[static NI_MAXSERV], attn_error *ret_error) {
    struct authority parts;

    if (!authority_split(listen, strlen(listen), &parts) || !parts.has_port ||
        parts.host_size >= NI_MAXHOST)
        return error_set(ret_error, ATTN_E_VALUE,
                         "%s: '%s' is not HOST:PORT or unix:PATH; write an address such "
                         "as 127.0.0.1:8080, and brackets around IPv6: [::1]:8080",
                         option, listen);
    if (parts.port > AUTHORITY_PORT_MAX)
        return error_set(ret_error, ATTN_E_VALUE,
                         "%s: the port of '%s' is out of range; it must be 0 to 65535",
                         option, listen);

    snprintf(ret_host, NI_MAXHOST, "%.*s", (int)parts.host_size, parts.host);
    snprintf(ret_port, NI_MAXSERV, "%u", parts.port);
    return ATTN_OK;
}

attn_status listen_find_addresses(const char *option, const char *listen,
                                  struct addrinfo **ret_addresses,
                                  attn_error *ret_error) {
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    char host[NI_MAXHOST], port[NI_MAXSERV];

    if (listen_split(option, listen, host, port, ret_error) != ATTN_OK)
        return ATTN_E_VALUE;
    int failure = getaddrinfo(host, port, &hints, ret_addresses);
    if (failure == 0)
        return ATTN_OK;
    return error_set(ret_error, ATTN_E_VALUE, "%s: unknown host '%s': %s", option, host,
                     gai_strerror(failure));
}

attn_status listen_check(const char *option, const char *listen, attn_error *ret_error) {
    char host[NI_MAXHOST], port[NI_MAXSERV];
    struct unix_listen file;
    if (listen_is_unix(listen))
        return parse_unix(option, listen, &file, ret_error);
    return listen_split(option, listen, host, port, ret_error);
}

void listen_get_path(const char *listen, struct sockaddr_un *ret_address) {
    const char *path = listen + strlen(ADDRESS_UNIX);
    *ret_address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(ret_address->sun_path, path, strcspn(path, ","));
}

attn_status listen_find_loopback(const char *option, const char *listen,
                                 bool *ret_is_loopback, attn_error *ret_error) {
    struct addrinfo *addresses;

    *ret_is_loopback = true;
    if (listen_is_unix(listen))
        return listen_check(option, listen, ret_error);
    if (listen_find_addresses(option, listen, &addresses, ret_error) != ATTN_OK)
        return ATTN_E_VALUE;
    for (struct addrinfo *each = addresses; each != NULL; each = each->ai_next) {
        const struct address address = address_of_socket(each->ai_addr);
        *ret_is_loopback = *ret_is_loopback && address_is_loopback(&address);
    }
    freeaddrinfo(addresses);
    return ATTN_OK;
}

/* Closes descriptors; errno stays. */
static void close_all(const int *fds, size_t count) {
    int error = errno;
    for (size_t i = 0; i < count; i++)
        close(fds[i]);
    errno = error;
}

/* --- TCP --- */

/* Opens a socket that listens. The first one is bound alone, so that it fails where any
 * other socket listens. Only then it shares its address, whose port may be any free one,
 * with those that follow. Returns -1 with errno set. */
static int open_listening(struct addrinfo *address, bool is_first) {
    int on = 1;
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -1;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        (is_first || setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) == 0) &&
        bind(fd, address->ai_addr, address->ai_addrlen) == 0 &&
        listen(fd, SOMAXCONN) == 0 &&
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) == 0 &&
        getsockname(fd, address->ai_addr, &address->ai_addrlen) == 0)
        return fd;

    close_all(&fd, 1);
    return -1;
}

/* Opens the sockets. When it returns false, errno is set and none is left open. A second
 * attnd must not share the address, as each would get some of the requests. */
static bool open_sockets(struct addrinfo *address, size_t count, int *ret_fds) {
    for (size_t opened = 0; opened < count; opened++) {
        ret_fds[opened] = open_listening(address, opened == 0);
        if (ret_fds[opened] >= 0)
            continue;

        close_all(ret_fds, opened);
        return false;
    }
    return true;
}

static attn_status open_tcp(const char *option, const char *listen, size_t count,
                            int *ret_fds, struct listen_address *ret_address,
                            attn_error *ret_error) {
    char port[NI_MAXSERV];
    struct addrinfo *address;
    attn_status status = listen_find_addresses(option, listen, &address, ret_error);
    if (status != ATTN_OK)
        return status;
    if (!open_sockets(address, count, ret_fds)) {
        const char *remedy =
            errno == EADDRINUSE ? "; is another server running? give another port"
            : errno == EACCES   ? "; below port 1024, a unit needs AmbientCapabilities= "
                                  "and CapabilityBoundingSet=CAP_NET_BIND_SERVICE"
                                : "";
        status = error_set(ret_error, ATTN_E_IO, "%s: cannot listen on %s: %s%s", option,
                           listen, strerror(errno), remedy);
    } else if (getnameinfo(address->ai_addr, address->ai_addrlen, NULL, 0, port,
                           sizeof port, NI_NUMERICSERV) == 0) {
        snprintf(ret_address->text, sizeof ret_address->text, "%.*s:%s",
                 (int)(strrchr(listen, ':') - listen), listen, port);
    }
    freeaddrinfo(address);
    return status;
}

/* --- Unix sockets --- */

/* Returns what helps when errno says why a file could not be made. */
static const char *find_file_remedy(int error, const char *path) {
    struct stat file;
    if (error == EMFILE || error == ENFILE)
        return "raise the limit of open files (ulimit -n)";
    if (error == ENOENT)
        return "make its folder first, or give another path";
    if (lstat(path, &file) == 0)
        return "it exists; remove it, or give another path";
    return "attnd must be able to write to its folder";
}

static attn_status refuse_file(const char *option, const char *path,
                               attn_error *ret_error) {
    int error = errno;
    return error_set(ret_error, ATTN_E_IO, "%s: cannot make %s: %s; %s", option, path,
                     strerror(error), find_file_remedy(error, path));
}

/* Whether the path still names a file that is open. */
static bool still_names(const char *path, const struct stat *file) {
    struct stat named;
    return lstat(path, &named) == 0 && named.st_dev == file->st_dev &&
           named.st_ino == file->st_ino;
}

static void get_lock_path(const char *socket_path, char ret_path[LOCK_PATH_MAX]) {
    snprintf(ret_path, LOCK_PATH_MAX, "%s" LOCK_ENDING, socket_path);
}

/* Locks an open file that has nothing in it. Returns false with errno set, EEXIST when it
 * is something else. */
static bool lock_empty_file(int fd, struct stat *ret_file) {
    if (fstat(fd, ret_file) != 0)
        return false;
    errno = EEXIST;
    return S_ISREG(ret_file->st_mode) && ret_file->st_size == 0 &&
           flock(fd, LOCK_EX | LOCK_NB) == 0;
}

/* Opens the lock of a socket and takes it, unless another process has it. Who releases a
 * lock removes its file, perhaps after it was opened here: then there is a new one. */
static attn_status take_lock(const char *option, const char *socket_path, int *ret_fd,
                             attn_error *ret_error) {
    char path[LOCK_PATH_MAX];
    struct stat locked;

    get_lock_path(socket_path, path);
    for (;;) {
        int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
        if (fd < 0)
            return refuse_file(option, path, ret_error);
        if (!lock_empty_file(fd, &locked)) {
            int error = errno;
            close(fd);
            return error_set(ret_error, ATTN_E_IO, "%s: cannot lock %s: %s; %s", option,
                             path, strerror(error),
                             error == EWOULDBLOCK
                                 ? "a running attnd has the socket; stop it, or give "
                                   "another path"
                                 : "remove it, or give another path");
        }
        if (still_names(path, &locked)) {
            *ret_fd = fd;
            return ATTN_OK;
        }
        close(fd);
    }
}

static void release_lock(const char *socket_path, int fd) {
    char path[LOCK_PATH_MAX];
    struct stat file;
    get_lock_path(socket_path, path);
    if (fstat(fd, &file) == 0 && still_names(path, &file))
        unlink(path);
    close(fd);
}

/* Removes the socket that a process has left which is gone. Nothing else is removed. */
static attn_status remove_stale(const char *option, const struct sockaddr_un *address,
                                attn_error *ret_error) {
    const char *path = address->sun_path;
    struct stat file;

    if (lstat(path, &file) != 0)
        return errno == ENOENT ? ATTN_OK : refuse_file(option, path, ret_error);
    if (!S_ISSOCK(file.st_mode))
        return error_set(ret_error, ATTN_E_IO,
                         "%s: %s exists and is not a socket; remove it, or give another "
                         "path",
                         option, path);

    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return refuse_file(option, path, ret_error);
    int error =
        connect(fd, (const struct sockaddr *)address, sizeof *address) == 0 ? 0 : errno;
    close(fd);
    if (error == ECONNREFUSED)
        return unlink(path) == 0 ? ATTN_OK : refuse_file(option, path, ret_error);
    if (error == EACCES)
        return error_set(ret_error, ATTN_E_IO,
                         "%s: cannot ask whether a server listens at %s: %s; remove it, "
                         "or give another path",
                         option, path, strerror(error));
    return error_set(ret_error, ATTN_E_IO,
                     "%s: %s belongs to another server%s%s; stop that, or give another "
                     "path",
                     option, path, error == 0 ? "" : ": ",
                     error == 0 ? "" : strerror(error));
}

/* Makes the socket listen as a file with its mode and its group. The file is never
 * without its mode, and no path is followed to another file. On failure it is removed. */
static attn_status bind_unix(const char *option, int fd,
                             const struct unix_listen *listen_at, attn_error *ret_error) {
    const char *path = listen_at->address.sun_path;
    mode_t mask = umask(UNIX_MODES & ~listen_at->mode);
    int result =
        bind(fd, (const struct sockaddr *)&listen_at->address, sizeof listen_at->address);
    umask(mask);
    if (result != 0)
        return refuse_file(option, path, ret_error);

    attn_status status = ATTN_OK;
    if (listen_at->group != (gid_t)-1 && lchown(path, (uid_t)-1, listen_at->group) != 0)
        status =
            error_set(ret_error, ATTN_E_IO,
                      "%s: cannot give %s to group %ju: %s; let the user of attnd be "
                      "in that group",
                      option, path, (uintmax_t)listen_at->group, strerror(errno));
    else if (listen(fd, SOMAXCONN) != 0)
        status = error_set(ret_error, ATTN_E_IO, "%s: cannot listen at %s: %s", option,
                           path, strerror(errno));
    if (status != ATTN_OK)
        unlink(path);
    return status;
}

/* Gives each thread a descriptor of the one socket. */
static bool copy_socket(int fd, size_t count, int *ret_fds) {
    ret_fds[0] = fd;
    for (size_t i = 1; i < count; i++) {
        ret_fds[i] = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        if (ret_fds[i] >= 0)
            continue;

        close_all(ret_fds + 1, i - 1);
        return false;
    }
    return true;
}

/* Opens the socket; the lock is held. */
static attn_status open_locked(const char *option, const struct unix_listen *listen,
                               size_t count, int *ret_fds, attn_error *ret_error) {
    const char *path = listen->address.sun_path;
    attn_status status = remove_stale(option, &listen->address, ret_error);
    if (status != ATTN_OK)
        return status;

    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return refuse_file(option, path, ret_error);
    status = bind_unix(option, fd, listen, ret_error);
    if (status == ATTN_OK && !copy_socket(fd, count, ret_fds)) {
        status = refuse_file(option, path, ret_error);
        unlink(path);
    }
    if (status != ATTN_OK)
        close(fd);
    return status;
}

static attn_status open_unix(const char *option, const char *text, size_t count,
                             int *ret_fds, struct listen_address *ret_address,
                             attn_error *ret_error) {
    struct unix_listen listen;
    const char *path = listen.address.sun_path;
    int lock = -1;
    attn_status status = parse_unix(option, text, &listen, ret_error);
    if (status == ATTN_OK)
        status = take_lock(option, path, &lock, ret_error);
    if (status != ATTN_OK)
        return status;
    status = open_locked(option, &listen, count, ret_fds, ret_error);
    if (status != ATTN_OK) {
        release_lock(path, lock);
        return status;
    }
    snprintf(ret_address->text, sizeof ret_address->text, ADDRESS_UNIX "%s", path);
    ret_address->lock_fd = lock;
    if (lstat(path, &ret_address->file) != 0)
        ret_address->file = (struct stat){0}; /* it is gone already */
    return ATTN_OK;
}

/* --- both --- */

attn_status listen_open(const char *option, const char *listen, int inherited,
                        size_t count, int *ret_fds, struct listen_address *ret_address,
                        attn_error *ret_error) {
    bool is_unix = listen_is_unix(listen);
    *ret_address = (struct listen_address){.lock_fd = -1};
    if (inherited < 0)
        return (is_unix ? open_unix : open_tcp)(option, listen, count, ret_fds,
                                                ret_address, ret_error);
    snprintf(ret_address->text, sizeof ret_address->text, "%.*s",
             (int)strcspn(listen, is_unix ? "," : ""), listen);
    return copy_socket(inherited, count, ret_fds)
               ? ATTN_OK
               : refuse_file(option, listen, ret_error);
}

void listen_remove(struct listen_address *address) {
    const char *path = address->text + strlen(ADDRESS_UNIX);
    if (address->lock_fd < 0)
        return;
    if (still_names(path, &address->file))
        unlink(path);
    release_lock(path, address->lock_fd);
    address->lock_fd = -1;
}
