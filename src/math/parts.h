/* SPDX-License-Identifier: Apache-2.0 */
/* parts.h: the steps of the layer one by one, so that each can be timed by itself. */
#ifndef ATTND_MATH_PARTS_H
#define ATTND_MATH_PARTS_H

#include <attnd/attention.h>

enum attn_parts {
    ATTN_PART_PROJECT_IN = 1,
    ATTN_PART_ATTEND = 2,
    ATTN_PART_PROJECT_OUT = 4,
    ATTN_PARTS_ALL = 7
};

/* As attn_run(), but does only `parts`, a sum of attn_parts; what an earlier step would
 * have written to scratch must stand there from an earlier call. */
attn_status attn_run_parts(const attn_model *model, const attn_request *request,
                           void *scratch, const attn_result *result, unsigned parts);

#endif
