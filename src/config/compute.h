/* SPDX-License-Identifier: Apache-2.0 */
/* compute.h: the options of both programs, attnd and attnd-bench: how layers are
 * computed. */
#pragma once

#include "config/option.h"

#include <attnd/model.h>

/* The first member of the struct that an option_set fills. */
struct config_compute {
    int engine;     /* index into the choices of --engine */
    int cpu;        /* of --cpu */
    int precision;  /* of --precision */
    size_t workers; /* 0: as many as CPUs */
};

#define COMPUTE_NUM_OPTIONS 4

extern const struct option compute_options[COMPUTE_NUM_OPTIONS];

/* Returns the engine options of a model. `precision` is the one that its own --model
 * sets, or NULL. */
attn_engine_options compute_engine_options(const struct config_compute *compute,
                                           const char *precision, bool serve_only);
