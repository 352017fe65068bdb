/* SPDX-License-Identifier: Apache-2.0 */
/* sha256.h: SHA-256 (FIPS 180-4) of bytes that come piece by piece. GnuTLS, which has it
 * too, is not in every build. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define SHA256_TEXT_MAX 65 /* bytes of a hash as hexadecimal digits and a terminator */

/* A hash that is being computed. Owned by one thread at a time. */
struct sha256 {
    uint32_t state[8];
    uint64_t size;           /* bytes so far */
    unsigned char block[64]; /* the last size % 64 of them */
};

void sha256_init(struct sha256 *hash);

/* Adds bytes. Counts its steps (base/pace.h). */
void sha256_add(struct sha256 *hash, const unsigned char *bytes, size_t size);

/* Ends the hash and writes it in lower case. It takes no more bytes then. */
void sha256_finish(struct sha256 *hash, char ret_text[static SHA256_TEXT_MAX]);
