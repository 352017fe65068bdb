/* SPDX-License-Identifier: Apache-2.0 */
/* steps.h: the rates or numbers of clients of a sweep. */
#pragma once

#include <attnd/status.h>
#include <stdbool.h>
#include <stddef.h>

#define LOAD_STEPS_MAX   100
#define LOAD_RATE_MIN    1e-3 /* so that moments, in ns, fit into 64 bits */
#define LOAD_RATE_MAX    1e6
#define LOAD_CLIENTS_MAX 65536

/* Parses N[,N]..., the value of the option `name`: at most
 * LOAD_STEPS_MAX numbers from LOAD_RATE_MIN to `max`; with `whole` they are whole.
 * Error: ATTN_E_VALUE. */
attn_status load_steps_parse(const char *name, const char *text, double max, bool whole,
                             double ret_steps[LOAD_STEPS_MAX], size_t *ret_count,
                             attn_error *ret_error);
