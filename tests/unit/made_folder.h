/* SPDX-License-Identifier: Apache-2.0 */
/* made_folder.h: opens a folder whose config.json and model.safetensors are in memory. */
#ifndef ATTND_TESTS_MADE_FOLDER_H
#define ATTND_TESTS_MADE_FOLDER_H

#include "weights/families/folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Writes both files, and opens their folder, which is then removed; its files stay open.
 * The arguments are as in folder_open(). */
static inline attn_status open_made_folder(const void *config, size_t config_size,
                                           const void *file, size_t file_size,
                                           const struct folder_options *options,
                                           struct folder **ret_folder,
                                           attn_error *ret_error) {
    char path[] = "/tmp/attnd-made-XXXXXX", names[2][64];
    const void *const contents[] = {config, file};
    const size_t sizes[] = {config_size, file_size};

    if (mkdtemp(path) == NULL)
        abort();
    snprintf(names[0], sizeof names[0], "%s/config.json", path);
    snprintf(names[1], sizeof names[1], "%s/model.safetensors", path);
    for (size_t i = 0; i < 2; i++) {
        FILE *made = fopen(names[i], "wb");
        if (made == NULL || fwrite(contents[i], 1, sizes[i], made) != sizes[i] ||
            fclose(made) != 0)
            abort();
    }
    attn_status status = folder_open(path, options, ret_folder, ret_error);
    if (unlink(names[0]) != 0 || unlink(names[1]) != 0 || rmdir(path) != 0)
        abort();
    return status;
}

#endif
