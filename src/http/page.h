/* SPDX-License-Identifier: Apache-2.0 */
/* page.h: the page's files. */
#pragma once

#include "http/exchange.h"

#define PAGE_NUM_FILES 3

/* Zeroed, it has no files. */
struct page {
    char *texts[PAGE_NUM_FILES]; /* inflated */
};

/* Inflates the files. Returns false when memory is short; what there is then is freed by
 * page_deinit() too. */
bool page_init(struct page *page);
void page_deinit(struct page *page);
