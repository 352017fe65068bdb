/* SPDX-License-Identifier: Apache-2.0 */
/* made_file.h: opens a folder around a file that a test describes. */
#ifndef ATTND_TESTS_MADE_FILE_H
#define ATTND_TESTS_MADE_FILE_H

#include "made_folder.h"
#include "weights_file.h"

#include <string.h>

/* Opens a folder with the text of a config.json and one file of weights. The caller
 * closes *ret_folder. */
static inline attn_status open_made_file(const char *config,
                                         const struct weights_file *file,
                                         struct folder **ret_folder,
                                         attn_error *ret_error) {
    size_t size;
    unsigned char *bytes = file_make(file, &size);

    attn_status status = open_made_folder(config, strlen(config), bytes, size, NULL,
                                          ret_folder, ret_error);
    free(bytes);
    return status;
}

#endif
