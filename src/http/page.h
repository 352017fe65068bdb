/* SPDX-License-Identifier: Apache-2.0 */
/* page.h: the page's files, and their headers, as replies have them. */
#pragma once

#include "http/exchange.h"

#define PAGE_NUM_FILES   3
#define PAGE_NUM_HEADERS 8
#define PAGE_ETAG_SIZE   32

/* A file as it is sent, with or without compression; all replies share it. */
struct page_variant {
    const char *bytes;
    size_t size;
    char etag[PAGE_ETAG_SIZE];
    struct reply_header headers[PAGE_NUM_HEADERS];
};

/* Zeroed, it has no files. */
struct page {
    char *texts[PAGE_NUM_FILES]; /* inflated */
    /* Of each file: inflated, and compressed. */
    struct page_variant variants[PAGE_NUM_FILES][2];
};

/* Inflates the files. Returns ATTN_E_NOMEM when memory is short; what there is then is
 * freed by page_deinit() too. */
attn_status page_init(struct page *page);
void page_deinit(struct page *page);
