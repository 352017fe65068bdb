/* SPDX-License-Identifier: Apache-2.0 */
/* names.h: what PyTorch, transformers and others call the fields of a request. */
#pragma once

#include <stdbool.h>

/* Returns what to do about a field of that name, such as "use causal", or NULL when no
 * other program is known to have it, and attnd neither in other letters. `given`: in a
 * request without a model. Constant. Thread-safe. */
const char *wire_name_remedy(const char *name, bool given);
