/* SPDX-License-Identifier: Apache-2.0 */
/* requests.h: what is sent: the requests of a file, with how often each is chosen.
 *
 * The file has JSON objects, one after the other, usually one in a line:
 *
 *     {"path": "/v1/attention", "body": {"queries": [[1, 2]]}, "weight": 9}
 *     {"path": "/v1/attention", "body_file": "wide.safetensors"}
 *
 * docs/load-testing.md explains its fields. */
#pragma once

#include "bench/http/target.h"
#include "config/option.h"

#include <stddef.h>
#include <stdint.h>

struct load_request {
    char *bytes; /* [size], head and body, owned */
    size_t size;
    uint64_t weight_end; /* the sum of the weights up to this request */
};

struct load_requests {
    struct load_request *items; /* [count], owned */
    size_t count;
};

/* Reads a file of requests; body files are relative to its folder. All get the Host of
 * the target and `headers`, lines "NAME: VALUE", which are borrowed. With `path` NULL
 * there is one request, GET of the target's path. The caller owns *ret_requests, until
 * load_requests_deinit(). Errors, with one line that names the file and the line:
 * ATTN_E_IO, ATTN_E_FORMAT, ATTN_E_VALUE, ATTN_E_NOMEM. */
attn_status load_requests_read(const char *path, const struct load_target *target,
                               const struct config_texts *headers,
                               struct load_requests *ret_requests, attn_error *ret_error);

/* Frees the requests; zeroed ones are fine. */
void load_requests_deinit(struct load_requests *requests);

/* Returns the index of the request that `random` chooses, by weight. Thread-safe. */
size_t load_requests_choose(const struct load_requests *requests, uint64_t random);

/* Returns whether `line` is a header "NAME: VALUE" that requests may have; those that
 * frame a request are this program's own. */
bool load_header_is_valid(const char *line);
