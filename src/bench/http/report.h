/* SPDX-License-Identifier: Apache-2.0 */
/* report.h: prints what became of each step. */
#pragma once

#include "bench/http/loop.h"

/* Print a step to standard output: as a row, with the head of the table before the first,
 * or as one line of JSON. */
void load_report_head(const struct load_plan *plan, const char *url);
void load_report_text(const struct load_plan *plan, const struct load_tally *tally);
void load_report_json(const struct load_plan *plan, const struct load_tally *tally);
