/* SPDX-License-Identifier: Apache-2.0 */
/* latent.h: puts the weights of latent attention into the engine's terms. */
#pragma once

#include "math/model.h"

/* Lays out weights that were read as the file has them, at the begin of each array: key
 * weights [H * (S - r), C], value weights [H * D, C], and query weights whose heads end
 * with the r rotated rows, where r is info.latent.shared and C + r is info.latent.key.
 * Then rows of all three read whole latent rows, heads of queries and keys begin with the
 * rotated rows, and those of keys copy the shared head. Error, with one line:
 * ATTN_E_NOMEM. */
attn_status latent_lay_out(attn_model *model, attn_error *ret_error);
