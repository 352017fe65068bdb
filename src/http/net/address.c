/* SPDX-License-Identifier: Apache-2.0 */
/* address.c: reads addresses of all families into one form, and compares them. */
#include "http/net/address.h"

#include "base/error.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#define ADDRESS_TEXT_MAX 64
#define MAPPED_BITS      96          /* of ::ffff:0:0/96, which holds IPv4 */
#define CLIENT_BITS      64          /* of an IPv6 network that one client has */
#define USER_NONE        ((uid_t)-1) /* no user has this number */

static const unsigned char mapped_prefix[12] = {[10] = 0xff, [11] = 0xff};

static struct address map_ipv4(const void *four_bytes) {
    struct address address = {.is_user = false};
    memcpy(address.bytes, mapped_prefix, sizeof mapped_prefix);
    memcpy(address.bytes + sizeof mapped_prefix, four_bytes, 4);
    return address;
}

static bool is_ipv4(const struct address *address) {
    return memcmp(address->bytes, mapped_prefix, sizeof mapped_prefix) == 0;
}

static struct address map_user(uid_t user) {
    struct address address = {.is_user = true};
    memcpy(address.bytes, &user, sizeof user);
    return address;
}

struct address address_of_socket(const struct sockaddr *socket_address) {
    struct address address = {.is_user = false};

    if (socket_address->sa_family == AF_INET)
        return map_ipv4(&((const struct sockaddr_in *)socket_address)->sin_addr);
    if (socket_address->sa_family == AF_INET6)
        memcpy(address.bytes, &((const struct sockaddr_in6 *)socket_address)->sin6_addr,
               sizeof address.bytes);
    return address;
}

struct address address_of_peer(int fd, const struct sockaddr *peer) {
    struct ucred user = {.uid = USER_NONE};
    socklen_t size = sizeof user;

    if (peer->sa_family != AF_UNIX)
        return address_of_socket(peer);
    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &user, &size); /* on failure it has no user */
    return map_user(user.uid);
}

/* Reads `size` bytes of text that are an address alone. */
static bool read_plain_address(const char *text, size_t size,
                               struct address *ret_address) {
    char plain[ADDRESS_TEXT_MAX];
    struct in_addr ipv4;
    if (size >= sizeof plain)
        return false;

    snprintf(plain, sizeof plain, "%.*s", (int)size, text);
    ret_address->is_user = false;
    if (inet_pton(AF_INET, plain, &ipv4) != 1)
        return inet_pton(AF_INET6, plain, ret_address->bytes) == 1;
    *ret_address = map_ipv4(&ipv4);
    return true;
}

bool address_read(const char *text, size_t size, struct address *ret_address) {
    while (size > 0 && (*text == ' ' || *text == '\t')) {
        text++;
        size--;
    }
    while (size > 0 && (text[size - 1] == ' ' || text[size - 1] == '\t'))
        size--;
    if (size == 0 || size >= ADDRESS_TEXT_MAX)
        return false;

    /* A port follows a bracket, or the only colon. */
    const char *end = text + size, *bracket = memchr(text, ']', size),
               *colon = memchr(text, ':', size);
    if (*text == '[' && bracket != NULL && (bracket + 1 == end || bracket[1] == ':'))
        return read_plain_address(text + 1, (size_t)(bracket - text - 1), ret_address);
    if (colon != NULL && memchr(colon + 1, ':', (size_t)(end - colon - 1)) == NULL)
        end = colon;
    return read_plain_address(text, (size_t)(end - text), ret_address);
}

static bool range_contains(const struct address_range *range,
                           const struct address *address) {
    size_t bytes = range->bits / 8;
    unsigned rest = range->bits % 8;

    if (address->is_user != range->first.is_user ||
        memcmp(address->bytes, range->first.bytes, bytes) != 0)
        return false;
    return rest == 0 ||
           (address->bytes[bytes] ^ range->first.bytes[bytes]) >> (8 - rest) == 0;
}

void address_print(const struct address *address, char ret_text[ADDRESS_PRINT_MAX]) {
    bool ipv4 = is_ipv4(address);
    uid_t user;

    if (address->is_user) {
        memcpy(&user, address->bytes, sizeof user);
        snprintf(ret_text, ADDRESS_PRINT_MAX, ADDRESS_UNIX "%ju", (uintmax_t)user);
        return;
    }
    inet_ntop(ipv4 ? AF_INET : AF_INET6,
              address->bytes + (ipv4 ? sizeof mapped_prefix : 0), ret_text,
              ADDRESS_PRINT_MAX);
}

bool address_is_in(const struct address *address, const struct address_ranges *ranges) {
    for (size_t i = 0; i < ranges->count; i++) {
        if (range_contains(&ranges->items[i], address))
            return true;
    }
    return false;
}

bool address_is_loopback(const struct address *address) {
    static const struct address ipv6_loopback = {.bytes = {[15] = 1}};
    if (is_ipv4(address))
        return address->bytes[sizeof mapped_prefix] == 127;
    return memcmp(address, &ipv6_loopback, sizeof *address) == 0;
}

struct address address_of_client(const struct address *address) {
    struct address client = *address;
    if (!address->is_user && !is_ipv4(address))
        memset(client.bytes + CLIENT_BITS / 8, 0, sizeof client.bytes - CLIENT_BITS / 8);
    return client;
}

/* Reads unix:UID. */
static bool read_user(const char *text, struct address_range *ret_range) {
    const char *digits = text + strlen(ADDRESS_UNIX);
    size_t count = strspn(digits, "0123456789");
    unsigned long long user = strtoull(digits, NULL, 10);

    if (count == 0 || count > 10 || digits[count] != '\0' || user >= USER_NONE)
        return false;
    *ret_range = (struct address_range){.first = map_user((uid_t)user), .bits = 128};
    return true;
}

static bool read_range(const char *text, struct address_range *ret_range) {
    if (strncmp(text, ADDRESS_UNIX, strlen(ADDRESS_UNIX)) == 0)
        return read_user(text, ret_range);

    const char *slash = strchrnul(text, '/');
    size_t size = (size_t)(slash - text);
    if (!read_plain_address(text, size, &ret_range->first))
        return false;

    unsigned offset = memchr(text, ':', size) == NULL ? MAPPED_BITS : 0;
    ret_range->bits = 128;
    if (*slash == '\0')
        return true;
    size_t digits = strspn(slash + 1, "0123456789");
    if (digits == 0 || digits > 3 || slash[1 + digits] != '\0')
        return false;
    ret_range->bits = offset + (unsigned)atoi(slash + 1);
    return ret_range->bits <= 128;
}

attn_status address_ranges_read(char *const *texts, size_t count,
                                struct address_ranges *ret_ranges,
                                attn_error *ret_error) {
    struct address_range *items = calloc(count + 1, sizeof *items);
    if (items == NULL)
        return error_set(ret_error, ATTN_E_NOMEM, "--trusted-proxy: out of memory");

    for (size_t i = 0; i < count; i++) {
        if (!read_range(texts[i], &items[i])) {
            free(items);
            return error_set(ret_error, ATTN_E_VALUE,
                             "--trusted-proxy: '%s' is not an address such as "
                             "10.0.0.1, a range such as 10.0.0.0/8 or fd00::/8, or "
                             "unix:UID with the number of a user, as id -u prints it",
                             texts[i]);
        }
    }
    *ret_ranges = (struct address_ranges){items, count};
    return ATTN_OK;
}
