/* SPDX-License-Identifier: Apache-2.0 */
/* digest.c: lanes do not wait for each other's products. */
#include "safetensors/digest.h"

#include "base/size.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

__extension__ typedef unsigned __int128 digest_product;

static _Thread_local struct digest *digest_of_thread;

static inline uint64_t mix(uint64_t a, uint64_t b) {
    digest_product product = (digest_product)a * b;
    return (uint64_t)(product >> 64) ^ (uint64_t)product;
}

static inline uint64_t key_of(uint64_t lane) {
    return (lane + 1) * DIGEST_KEY;
}

/* Adds whole blocks. */
static void digest_blocks(struct digest *digest, const unsigned char *bytes,
                          size_t count) {
    uint64_t lanes[DIGEST_LANES], words[2];
    memcpy(lanes, digest->lanes, sizeof lanes);

    for (; count > 0; count--, bytes += DIGEST_BLOCK) {
#pragma GCC unroll 8
        for (size_t lane = 0; lane < DIGEST_LANES; lane++) {
            memcpy(words, bytes + lane * sizeof words, sizeof words);
            lanes[lane] = mix(words[0] ^ lanes[lane], words[1] ^ key_of(lane));
        }
    }
    memcpy(digest->lanes, lanes, sizeof lanes);
}

void digest_init(struct digest *digest) {
    *digest = (struct digest){.size = 0};
    for (uint64_t lane = 0; lane < DIGEST_LANES; lane++)
        digest->lanes[lane] = ~key_of(lane);
}

void digest_add(struct digest *digest, const void *bytes, size_t size) {
    size_t used = (size_t)(digest->size % DIGEST_BLOCK);
    const unsigned char *at = bytes;
    digest->size += size;

    if (used > 0 || size < DIGEST_BLOCK) {
        size_t part = size_min(size, DIGEST_BLOCK - used);
        memcpy(digest->rest + used, at, part);
        if (used + part < DIGEST_BLOCK)
            return;
        digest_blocks(digest, digest->rest, 1);
        at += part;
        size -= part;
    }
    digest_blocks(digest, at, size / DIGEST_BLOCK);
    memcpy(digest->rest, at + size / DIGEST_BLOCK * DIGEST_BLOCK, size % DIGEST_BLOCK);
}

struct digest *digest_enter(struct digest *digest) {
    struct digest *before = digest_of_thread;
    digest_of_thread = digest;
    return before;
}

void digest_note(const void *bytes, size_t size) {
    if (digest_of_thread != NULL)
        digest_add(digest_of_thread, bytes, size);
}

void digest_end(struct digest *digest, char ret_text[DIGEST_TEXT_SIZE]) {
    size_t used = (size_t)(digest->size % DIGEST_BLOCK);
    uint64_t halves[2] = {digest->size, ~digest->size};

    if (used > 0) {
        memset(digest->rest + used, 0, DIGEST_BLOCK - used);
        digest_blocks(digest, digest->rest, 1);
    }
    for (uint64_t lane = 0; lane < DIGEST_LANES; lane++) {
        halves[0] = mix(halves[0] ^ digest->lanes[lane], key_of(lane));
        halves[1] = mix(halves[1] ^ digest->lanes[lane], key_of(lane + DIGEST_LANES));
    }
    snprintf(ret_text, DIGEST_TEXT_SIZE, "%016" PRIx64 "%016" PRIx64, halves[0],
             halves[1]);
}
