/* SPDX-License-Identifier: Apache-2.0 */
/* hub.h: the cache in which Hugging Face's programs keep what they download. Of a model
 * it has models--OWNER--NAME, with a folder of links in snapshots/ for each version. */
#pragma once

#include <attnd/status.h>
#include <limits.h>

/* Finds the folder of files that `path` means, which is `path` unless that is the folder
 * of a model in the cache, or its snapshots/. There it is the version that refs/main
 * names; without that file, the only one. Returns ATTN_E_FORMAT, with one line that lists
 * the others, where there is no such version. */
attn_status hub_find_folder(const char *path, char ret_folder[PATH_MAX],
                            attn_error *ret_error);
