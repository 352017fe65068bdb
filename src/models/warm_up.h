/* SPDX-License-Identifier: Apache-2.0 */
/* warm_up.h: the first computation with a new model, before requests wait for it. */
#ifndef ATTND_MODELS_WARM_UP_H
#define ATTND_MODELS_WARM_UP_H

#include "models/entries.h"
#include "sched/pool.h"

/* Lets each worker compute a small request with each model that is new, for a tenth of a
 * second, since requests wait meanwhile. Waits a second for workers that are busy, and
 * leaves out those that still are. Does nothing without a pool, which is NULL before the
 * workers have started: they warm up by themselves (models/generation.h). */
void warm_up_workers(struct sched_pool *pool, struct catalogue_entries *entries);

#endif
