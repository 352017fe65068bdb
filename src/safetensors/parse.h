/* SPDX-License-Identifier: Apache-2.0 */
/* parse.h: parses JSON with jansson, safely when memory is short.
 *
 * jansson 2.14's lexer mistakes a failed allocation for the end of the token, and may
 * then read a cut value without an error, or end the process. So any allocation that
 * fails while a text is parsed means that memory is short. */
#pragma once

#include <attnd/status.h>
#include <jansson.h>

/* Sets jansson's hash seed, and the allocator that notes failures. Call it before any
 * other use of jansson, and before other threads run; further calls do nothing. Without
 * it, only what jansson reports is known. */
void parse_json_init(void);

/* Parses a text; `flags` are json_loadb()'s, and JSON_REJECT_DUPLICATES is one of them.
 * The caller owns *ret_json. Returns ATTN_E_FORMAT with *ret_error set, or ATTN_E_NOMEM.
 * Thread-safe. */
attn_status parse_json(const char *text, size_t size, size_t flags, json_t **ret_json,
                       json_error_t *ret_error);
