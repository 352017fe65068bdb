/* SPDX-License-Identifier: Apache-2.0 */
/* folder.h: what attnd inspect prints of a folder. */
#ifndef ATTND_CLI_FOLDER_H
#define ATTND_CLI_FOLDER_H

#include "models/spec.h"

#include <attnd/model.h>

/* Prints a line for each layer of a folder: what it has, and what of it attnd does not
 * compute. Then reads all numbers of the layers to check them, on all CPUs; each second a
 * line on standard error says how far that has got. *ret_is_folder becomes false, and
 * nothing is done, when the path is that of a file. Errors are as in folder_open_spec()
 * and folder_check_weights(). */
attn_status folder_inspect_spec(const struct model_spec *spec,
                                const attn_engine_options *engine, bool *ret_is_folder,
                                attn_error *ret_error);

#endif
