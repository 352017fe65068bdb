/* SPDX-License-Identifier: Apache-2.0 */
/* digest.h: 128 bits of a sequence of bytes, which tell weights apart, while they are in
 * the cache anyway. Not for secrets: a person can make two sequences alike.
 *
 * The bytes are divided into blocks of DIGEST_BLOCK, the last one filled up with zeros. A
 * block has a pair of 64-bit little-endian words (x, y) for each lane, whose state s
 * becomes fold((x ^ s) * (y ^ k)), with the lane's key k, and fold() of a product of 128
 * bits its upper half xor its lower. Lane l starts as ~k; keys are (l + 1) * DIGEST_KEY
 * modulo 2^64. At the end all states and the number of bytes go through the same step. So
 * the result depends on the bytes alone: not on the CPU, nor on how they were divided. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define DIGEST_LANES     8
#define DIGEST_BLOCK     ((size_t)DIGEST_LANES * 16)  /* bytes */
#define DIGEST_KEY       UINT64_C(0x9e3779b97f4a7c15) /* 2^64 over the golden ratio */
#define DIGEST_TEXT_SIZE 33 /* hexadecimal, and the terminator */

struct digest {
    uint64_t lanes[DIGEST_LANES];
    uint64_t size;                    /* bytes that were added */
    unsigned char rest[DIGEST_BLOCK]; /* those after the last whole block */
};

/* Starts a digest of no bytes. */
void digest_init(struct digest *digest);

/* Adds bytes after those that were added. */
void digest_add(struct digest *digest, const void *bytes, size_t size);

/* Lets all that this thread reads of files (safetensors/file.h) be added, from now on;
 * NULL: to none. Returns what it was added to before. */
struct digest *digest_enter(struct digest *digest);

/* Adds bytes to the digest of this thread, if there is one. */
void digest_note(const void *bytes, size_t size);

/* Writes the digest of all bytes that were added, with which it ends. */
void digest_end(struct digest *digest, char ret_text[DIGEST_TEXT_SIZE]);
