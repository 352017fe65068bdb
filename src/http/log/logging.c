/* SPDX-License-Identifier: Apache-2.0 */
/* logging.c: reads and changes the level of the log at run time. */
#include "wire/oip/logging.h"
#include "http/exchange.h"
#include "http/handlers.h"

#include <string.h>

static bool is_post(const struct exchange *exchange) {
    return strcmp(exchange->method, MHD_HTTP_METHOD_POST) == 0;
}

bool logging_check(struct exchange *exchange, struct wire_problem *ret_problem) {
    return !is_post(exchange) || oip_check_short(exchange, ret_problem);
}

void logging_handle(struct exchange *exchange) {
    struct wire_oip_logging logging = {log_get_level(), log_get_format()};
    const struct buf *body = &exchange->body;
    struct wire_problem problem;

    if (is_post(exchange)) {
        if (!wire_oip_read_logging(body->data != NULL ? body->data : "", body->size,
                                   &logging, &problem)) {
            exchange_set_problem(exchange, &problem);
            return;
        }
        log_set_level(logging.level, "POST /v2/logging");
    }
    exchange_set_json(exchange, wire_oip_print_logging(&logging, &exchange->reply),
                      MHD_HTTP_OK);
}
