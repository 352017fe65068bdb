/* SPDX-License-Identifier: Apache-2.0 */
/* loader.c: the loop of the loader. */
#include "daemon/loader.h"

#include "base/clock.h"
#include "base/log.h"
#include "daemon/notify.h"

#include <attnd/library.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#define NICENESS 10
/* How often it looks for generations that are no longer held. */
#define LOOK_SECONDS 1
/* At most one line in this time tells of changes that clients asked for. */
#define LOG_AGAIN_NS 1000000000
/* How long loader_stop() waits for what the thread is busy with. */
#define STOP_NS 100000000

struct loader {
    struct catalogue *catalogue;
    pthread_t id;
    atomic_bool refuses;
    atomic_bool is_busy;      /* with models */
    struct log_limit changes; /* by requests */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t wake;  /* one of them has changed */
    bool reload, stops;
    STAILQ_HEAD(, model_change) waiting;
};

/* Waits until there is something to do, at most LOOK_SECONDS. */
static void wait_locked(struct loader *loader) {
    struct timespec until;

    if (loader->reload || loader->stops || !STAILQ_EMPTY(&loader->waiting))
        return;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += LOOK_SECONDS;
    pthread_cond_timedwait(&loader->wake, &loader->lock, &until);
}

/* Logs how many changes no line told of. */
static void report_changes(size_t count) {
    if (count > 0)
        log_write(LOG_INFO, "more models were loaded or unloaded",
                  LOG_NUMBER("count", count));
}

static void log_change(const struct model_change *change) {
    const struct log_field fields[] = {LOG_TEXT("model", change->name),
                                       LOG_TEXT("client", change->client),
                                       LOG_TEXT("key", change->key)};
    log_fields(LOG_INFO, change->load ? "model loaded" : "model unloaded", fields,
               change->key[0] != '\0' ? 3 : 2);
}

/* Any number of changes may be asked for, so only one that comes alone is logged itself:
 * a second has one line. */
static void run_change(struct loader *loader, struct model_change *change) {
    size_t untold = log_limit_add(&loader->changes, LOG_AGAIN_NS);
    struct wire_problem problem;
    bool done;

    if (untold > 1)
        report_changes(untold);
    loader->catalogue->is_quiet = untold != 1;
    if (atomic_load(&loader->refuses))
        done = wire_problem_set(&problem, WIRE_E_MODEL_NOT_CHANGED, "model",
                                "attnd is stopping; ask another one");
    else if (!generations_have_room(loader->catalogue->generations))
        done = wire_problem_set(&problem, WIRE_E_MODEL_NOT_CHANGED, "model",
                                "requests that have begun before the last changes have "
                                "not ended; retry when they have, or send SIGHUP");
    else
        done = (change->load ? catalogue_load : catalogue_unload)(loader->catalogue,
                                                                  change->name, &problem);
    if (done && !loader->catalogue->is_quiet)
        log_change(change);
    loader->catalogue->is_quiet = false;
    change->done(change, done ? NULL : &problem);
}

static void run_reload(struct loader *loader) {
    if (atomic_load(&loader->refuses))
        return;
    notify_reloading();
    catalogue_reload(loader->catalogue, &loader->refuses);
    if (!atomic_load(&loader->refuses))
        notify_send(NOTIFY_READY);
}

static void *loader_main(void *argument) {
    struct loader *loader = argument;

    setpriority(PRIO_PROCESS, 0, NICENESS); /* of this thread alone, in Linux */
    attn_warm_up();
    for (;;) {
        pthread_mutex_lock(&loader->lock);
        wait_locked(loader);
        bool reload = loader->reload, stops = loader->stops;
        struct model_change *change = STAILQ_FIRST(&loader->waiting);
        if (change != NULL)
            STAILQ_REMOVE_HEAD(&loader->waiting, links);
        loader->reload = false;
        pthread_mutex_unlock(&loader->lock);
        if (stops)
            break;

        atomic_store(&loader->is_busy, true);
        if (reload)
            run_reload(loader);
        if (change != NULL)
            run_change(loader, change);
        else
            report_changes(log_limit_take(&loader->changes, LOG_AGAIN_NS));
        atomic_store(&loader->is_busy, false);
        generations_free_unused(loader->catalogue->generations);
    }
    return NULL;
}

attn_status loader_start(struct catalogue *catalogue, struct loader **ret_loader) {
    struct loader *loader = calloc(1, sizeof *loader);
    pthread_condattr_t monotonic;
    if (loader == NULL)
        return ATTN_E_NOMEM;

    loader->catalogue = catalogue;
    STAILQ_INIT(&loader->waiting);
    pthread_mutex_init(&loader->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&loader->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&loader->id, NULL, loader_main, loader) == 0) {
        *ret_loader = loader;
        return ATTN_OK;
    }

    pthread_cond_destroy(&loader->wake);
    pthread_mutex_destroy(&loader->lock);
    free(loader);
    return ATTN_E_IO;
}

void loader_reload(struct loader *loader) {
    pthread_mutex_lock(&loader->lock);
    loader->reload = true;
    pthread_cond_signal(&loader->wake);
    pthread_mutex_unlock(&loader->lock);
}

void loader_submit(void *argument, struct model_change *change) {
    struct loader *loader = argument;

    pthread_mutex_lock(&loader->lock);
    STAILQ_INSERT_TAIL(&loader->waiting, change, links);
    pthread_cond_signal(&loader->wake);
    pthread_mutex_unlock(&loader->lock);
}

void loader_refuse(struct loader *loader) {
    atomic_store(&loader->refuses, true);
}

bool loader_stop(struct loader *loader) {
    const struct timespec pause = {.tv_nsec = 1000000};
    if (loader == NULL)
        return true;

    loader_refuse(loader);
    pthread_mutex_lock(&loader->lock);
    loader->stops = true;
    pthread_cond_signal(&loader->wake);
    pthread_mutex_unlock(&loader->lock);
    for (int64_t end = clock_now_ns() + STOP_NS;
         pthread_tryjoin_np(loader->id, NULL) != 0;) {
        if (atomic_load(&loader->is_busy) && clock_now_ns() > end) {
            pthread_detach(loader->id);
            return false;
        }
        nanosleep(&pause, NULL);
    }

    pthread_cond_destroy(&loader->wake);
    pthread_mutex_destroy(&loader->lock);
    free(loader);
    return true;
}
