/* SPDX-License-Identifier: Apache-2.0 */
/* page.h: the page's files, and their headers. */
#ifndef ATTND_HTTP_PAGE_H
#define ATTND_HTTP_PAGE_H

#include <attnd/status.h>
#include <microhttpd.h>
#include <stdbool.h>

struct page_file;

#define PAGE_NUM_FILES 3

/* The files without compression, which all replies share. Zeroed, it has none. */
struct page {
    char *texts[PAGE_NUM_FILES];
    size_t sizes[PAGE_NUM_FILES];
};

/* Inflates the files. Returns ATTN_E_NOMEM when memory is short; what there is then is
 * freed by page_deinit() too. */
attn_status page_init(struct page *page);
void page_deinit(struct page *page);

/* Adds the headers that only files of the page have. `gzip`: the file is sent compressed.
 * Returns false when memory is short. */
bool page_add_headers(const struct page_file *file, bool gzip,
                      struct MHD_Response *response);

#endif
