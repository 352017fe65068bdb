/* SPDX-License-Identifier: Apache-2.0 */
/* generation.h: what is served, and how it is replaced.
 *
 * A generation is a set of models with their counters and estimates. It does not change
 * once it is published. An exchange holds the generation that it began with until it
 * ends, so a request never sees a mixture of two. */
#pragma once

#include "base/buf.h"
#include "models/estimate.h"
#include "models/list.h"
#include "models/stats.h"
#include "wire/problem.h"

#include <attnd/model.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

/* The texts that a generation keeps. */
enum generation_text_id {
    GENERATION_MODELS,
    GENERATION_INDEX, /* of the repository; four of them, see the enum below */
    GENERATION_STATISTICS = GENERATION_INDEX + 4,
    GENERATION_METRICS,
    GENERATION_NUM_TEXTS
};

/* Added to GENERATION_INDEX. */
enum generation_index { GENERATION_INDEX_READY_ONLY = 1, GENERATION_INDEX_DRAINING = 2 };

/* How old a text may be: one that does not change, and one that counts. */
#define GENERATION_FOREVER   INT64_MAX
#define GENERATION_RECENT_NS ((int64_t)100000000)

struct generation {
    const attn_model *
        *models; /* [num_models], owned unless a later generation has them */
    /* [num_models]; a later generation shares those of models that keep their names. */
    struct model_stats **stats;
    size_t num_models;
    struct estimate *estimate;
    struct wire_oip_listing *listings; /* [num_listings], of all that is configured */
    size_t num_listings;
    pthread_mutex_t lock; /* guards `texts`, and that one is held when it is read */
    struct {
        struct shared_text *text; /* NULL: none yet */
        int64_t begun;            /* clock_now_ns, when its printing began */
        int64_t took;             /* ns of CPU time, that it took */
    } texts[GENERATION_NUM_TEXTS];
    struct generation *earlier; /* the generation before, while it is held */
    atomic_size_t num_holders;  /* exchanges, and generations while it is current */
};

/* All generations that are held. The thread that publishes frees those that are not. */
struct generations {
    pthread_mutex_t lock; /* guards `current`, and that it is held when it is read */
    struct generation *current; /* its list of earlier ones is the publisher's */
    struct obs_reloads reloads; /* by SIGHUP */
};

/* There is no generation before the first one is published. */
void generations_init(struct generations *all);

/* Frees every generation with its models. No thread may hold one. Accepts a zeroed struct
 * that generations_init() was called for. */
void generations_deinit(struct generations *all);

/* Publishes a generation of the models in the list that are loaded, which then belong to
 * it. It shares those that the generation before has too. One thread at a time may
 * publish. Returns ATTN_E_NOMEM, with nothing changed, when memory is short. */
attn_status generation_publish(struct generations *all, const struct model_list *list);

/* Frees what is no longer held: earlier generations, and models and counters that
 * only they had. This may take long for large models, so it is not done where a
 * generation is released. For the thread that publishes. */
void generations_free_unused(struct generations *all);

/* Returns whether one more may be published by request: each that is held has lists and
 * estimates that no budget counts. Frees what is no longer held. For the thread that
 * publishes. */
bool generations_have_room(struct generations *all);

/* Returns the current generation, which the caller holds until generation_release().
 * Thread-safe. */
struct generation *generation_acquire(struct generations *all);
void generation_release(struct generation *generation);

/* Finds a text that is at most `max_age` ns old, or prints one, which others then find.
 * Unless max_age is 0, a text that took long may be ten times as old as that.
 * No lock is held while it is printed, so several threads may print at one time. The
 * caller holds *ret_text, though the generation may end before. Returns ATTN_OK or
 * ATTN_E_NOMEM. Thread-safe. */
attn_status generation_get_text(struct generation *generation, enum generation_text_id id,
                                int64_t max_age,
                                void (*print)(void *context, struct buf *text),
                                void *context, struct shared_text **ret_text);

/* A request to load or unload one model, from an HTTP thread to the thread that
 * publishes. */
struct model_change {
    char name[ATTN_NAME_MAX + 1];
    bool load;                        /* or unload */
    const char *client, *key;         /* who asks; the key is "" without one; borrowed */
    STAILQ_ENTRY(model_change) links; /* of those that wait */
    /* Called once, on the thread that publishes; `problem` is NULL when it is done. */
    void (*done)(struct model_change *change, const struct wire_problem *problem);
    void *context; /* for done() */
};

/* Takes such requests. Any thread may call submit(), which never waits. */
struct model_changer {
    void *context;
    void (*submit)(void *context, struct model_change *change);
};

/* Returns the counters of a model of the generation, or NULL when it has none such.
 * Thread-safe. */
struct model_stats *generation_stats(const struct generation *generation,
                                     const attn_model *model);
