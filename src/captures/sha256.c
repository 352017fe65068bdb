/* SPDX-License-Identifier: Apache-2.0 */
/* sha256.c: FIPS 180-4, sections 4.1.2, 5.1.1 and 6.2.2; names are those of the standard
 * where it has short ones. */
#include "captures/sha256.h"

#include "base/pace.h"
#include "base/size.h"

#include <stdio.h>
#include <string.h>

enum { BLOCK_BYTES = 64, ROUNDS = 64 };

/* The first 32 bits of the fractions of the cube roots of the first 64 primes. */
static const uint32_t round_constants[ROUNDS] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
    0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
    0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
    0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
    0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
    0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
    0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
    0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
    0xc67178f2};

static uint32_t rotate_right(uint32_t word, unsigned bits) {
    return word >> bits | word << (32 - bits);
}

/* Expands a block to the words of all rounds. */
static void make_schedule(const unsigned char *block, uint32_t words[static ROUNDS]) {
    for (size_t t = 0; t < 16; t++)
        words[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 |
                   (uint32_t)block[4 * t + 2] << 8 | block[4 * t + 3];
    for (size_t t = 16; t < ROUNDS; t++) {
        uint32_t near = words[t - 2], far = words[t - 15];
        words[t] = (rotate_right(near, 17) ^ rotate_right(near, 19) ^ near >> 10) +
                   words[t - 7] +
                   (rotate_right(far, 7) ^ rotate_right(far, 18) ^ far >> 3) +
                   words[t - 16];
    }
}

static void hash_block(uint32_t state[static 8], const unsigned char *block) {
    uint32_t words[ROUNDS];
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];

    make_schedule(block, words);
    for (size_t t = 0; t < ROUNDS; t++) {
        uint32_t first =
            h + (rotate_right(e, 6) ^ rotate_right(e, 11) ^ rotate_right(e, 25)) +
            ((e & f) ^ (~e & g)) + round_constants[t] + words[t];
        uint32_t second =
            (rotate_right(a, 2) ^ rotate_right(a, 13) ^ rotate_right(a, 22)) +
            ((a & b) ^ (a & c) ^ (b & c));
        h = g;
        g = f;
        f = e;
        e = d + first;
        d = c;
        c = b;
        b = a;
        a = first + second;
    }

    const uint32_t last[] = {a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < 8; i++)
        state[i] += last[i];
}

void sha256_init(struct sha256 *hash) {
    /* First 32 bits of the fractions of the square roots of the first 8 primes. */
    *hash = (struct sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void sha256_add(struct sha256 *hash, const unsigned char *bytes, size_t size) {
    while (size > 0) {
        size_t used = hash->size % BLOCK_BYTES;
        size_t count = size_min(BLOCK_BYTES - used, size);
        const unsigned char *block = bytes;
        if (count < BLOCK_BYTES) {
            memcpy(hash->block + used, bytes, count);
            block = hash->block;
        }
        hash->size += count;
        if (hash->size % BLOCK_BYTES == 0) {
            hash_block(hash->state, block);
            pace_add(4 * (size_t)BLOCK_BYTES); /* a byte takes about 4 ns */
        }
        bytes += count;
        size -= count;
    }
}

void sha256_finish(struct sha256 *hash, char ret_text[static SHA256_TEXT_MAX]) {
    unsigned char padding[BLOCK_BYTES + 8] = {0x80};
    uint64_t bits = 8 * hash->size;
    size_t zeros = (2 * BLOCK_BYTES - 8 - hash->size % BLOCK_BYTES - 1) % BLOCK_BYTES;

    for (size_t i = 0; i < 8; i++)
        padding[1 + zeros + i] = (unsigned char)(bits >> (56 - 8 * i));
    sha256_add(hash, padding, 1 + zeros + 8);
    for (size_t i = 0; i < 8; i++)
        snprintf(ret_text + 8 * i, 9, "%08x", (unsigned)hash->state[i]);
}
