/* SPDX-License-Identifier: Apache-2.0 */
/* address.h: who is one client: addresses, and users of this machine. Ranges of them. */
#pragma once

#include <attnd/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

/* An IPv6 address. One of IPv4 is ::ffff:a.b.c.d; all zeros for other families. Who comes
 * through a Unix socket is a user of this machine. */
struct address {
    unsigned char bytes[16]; /* of a user: a uid_t, and zeros */
    bool is_user;
};

/* The addresses whose first `bits` bits are those of `first`, or one user. */
struct address_range {
    struct address first;
    unsigned bits; /* 0..128 */
};

struct address_ranges {
    struct address_range *items; /* [count], owned */
    size_t count;
};

/* Begins the name of a Unix socket, unix:PATH, and of a user, unix:UID. */
#define ADDRESS_UNIX "unix:"

struct address address_of_socket(const struct sockaddr *socket_address);

/* Returns the address of whom `fd` is connected to, which accept() has given as `peer`:
 * at a Unix socket, the user who has connected. */
struct address address_of_peer(int fd, const struct sockaddr *peer);

/* Reads an address such as 10.0.0.1, 10.0.0.1:80, ::1 or [::1]:80 from `size` bytes of
 * text, with blanks around it. Returns false when it is malformed. */
bool address_read(const char *text, size_t size, struct address *ret_address);

#define ADDRESS_PRINT_MAX 46 /* bytes of the text, with the terminator */

/* Writes an address, one of IPv4 as a.b.c.d, a user as unix:UID. */
void address_print(const struct address *address, char ret_text[ADDRESS_PRINT_MAX]);

bool address_is_in(const struct address *address, const struct address_ranges *ranges);

/* Whether only the machine itself has the address: 127.0.0.0/8 and ::1. */
bool address_is_loopback(const struct address *address);

/* Returns the address that stands for all of a client's. A client of IPv6 has a network
 * of 64 bits; one of IPv4 has a single address, and a user stays one. */
struct address address_of_client(const struct address *address);

/* Reads the ranges of --trusted-proxy: ADDRESS, ADDRESS/BITS or unix:UID each. The caller
 * frees ret_ranges->items. Errors: ATTN_E_VALUE, with one line that names the text, or
 * ATTN_E_NOMEM. */
attn_status address_ranges_read(char *const *texts, size_t count,
                                struct address_ranges *ret_ranges, attn_error *ret_error);
