/* SPDX-License-Identifier: Apache-2.0 */
/* layout_misfit.h: errors that explain why no layout fits a file, or several do. */
#ifndef ATTND_WEIGHTS_LAYOUT_MISFIT_H
#define ATTND_WEIGHTS_LAYOUT_MISFIT_H

#include "weights/layout_table.h"

/* Explains why none of the layouts called `name` fits the tensors under `prefix`, or none
 * at all when it is NULL. The line has the option, or the names of tensors, that would
 * help. Returns ATTN_E_FORMAT, or ATTN_E_VALUE for an unknown name of a layout. */
attn_status layout_refuse_unrecognised(const struct safetensors *file,
                                       const struct tensor_view *view, const char *prefix,
                                       const char *name, attn_error *ret_error);

/* Explains that both fit. Returns ATTN_E_FORMAT. */
attn_status layout_refuse_ambiguous(const struct layout *a, const struct layout *b,
                                    attn_error *ret_error);

#endif
