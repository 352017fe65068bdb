/* SPDX-License-Identifier: Apache-2.0 */
/* attention.c: POST /v1/attention. */
#include "http/routes.h"
#include "wire/native.h"

void attention_handle(struct exchange *exchange) {
    const struct http_options *options = exchange->options;
    const struct call_form form = {.read = wire_native_read,
                                   .writer = &wire_native_writer,
                                   .json_size = WIRE_NO_SIZE,
                                   .models = options->models,
                                   .num_models = options->num_models};
    call_submit(exchange, &form);
}
