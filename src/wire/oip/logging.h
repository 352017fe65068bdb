/* SPDX-License-Identifier: Apache-2.0 */
/* logging.h: the logging extension of Triton, as far as attnd's log has its settings.
 *
 * attnd has levels where Triton has switches, so a level that is logged includes all more
 * important ones. Format and file are fixed at start. */
#ifndef ATTND_WIRE_OIP_LOGGING_H
#define ATTND_WIRE_OIP_LOGGING_H

#include "base/buf.h"
#include "base/log.h"
#include "wire/problem.h"

struct wire_oip_logging {
    enum log_level level; /* the least important one that is logged */
    enum log_format format;
};

/* Adds the settings as one JSON object. Returns ATTN_OK or ATTN_E_NOMEM. */
attn_status wire_oip_print_logging(const struct wire_oip_logging *logging,
                                   struct buf *body);

/* Reads the body of POST /v2/logging, and changes logging->level to what it asks for.
 * What is left out stays as it is. Returns false with *ret_problem set (400), and nothing
 * changed, when the body is malformed, or asks for what `logging` cannot be. */
bool wire_oip_read_logging(const char *text, size_t size,
                           struct wire_oip_logging *logging,
                           struct wire_problem *ret_problem);

#endif
