/* SPDX-License-Identifier: Apache-2.0 */
/* phases.h: what a worker does with a request once it is decoded; see inference.h. */
#ifndef ATTND_HTTP_WORK_PHASES_H
#define ATTND_HTTP_WORK_PHASES_H

#include "wire/problem.h"

#include <stdbool.h>

struct inference;

/* Each returns false with *problem set when the request ends there. */
struct inference_phases {
    /* Plans the layer for the worker, and bounds the reply. May be called again, for
     * another worker. */
    bool (*plan)(struct inference *inference, struct wire_problem *problem);
    /* Reserves the memory of everything that follows, and computes. */
    bool (*compute)(struct inference *inference, struct wire_problem *problem);
    /* Writes the reply, then releases what the reply does not need. */
    bool (*encode)(struct inference *inference, struct wire_problem *problem);
    bool joins; /* the request may be computed together with others */
};

/* Of a request for attention (inference.c), and for an analysis of heads (heads.c). */
extern const struct inference_phases attention_phases, heads_phases;

#endif
