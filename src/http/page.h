/* SPDX-License-Identifier: Apache-2.0 */
/* page.h: the headers of the page's files, which page.c serves. */
#ifndef ATTND_HTTP_PAGE_H
#define ATTND_HTTP_PAGE_H

#include <microhttpd.h>
#include <stdbool.h>

struct page_file;

/* Adds the headers that only files of the page have. `gzip`: the file is sent compressed.
 * Returns false when memory is short. */
bool page_add_headers(const struct page_file *file, bool gzip,
                      struct MHD_Response *response);

#endif
