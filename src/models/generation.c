/* SPDX-License-Identifier: Apache-2.0 */
/* generation.c: publishes generations. The list of those that are held is short, so it is
 * searched for who else has a model. */
#include "models/generation.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A hundred large models would take each worker seconds. */
#define WARM_UP_NS ((int64_t)1000000000)
/* A text of many models takes long to print, and then at most one part in so many of a
 * thread's time. */
#define AGE_PER_COST 10

void served_models_init(struct served_models *all) {
    *all = (struct served_models){.current = NULL};
    pthread_mutex_init(&all->lock, NULL);
}

/* --- who has what --- */

struct model_stats *served_stats(const struct served *served, const attn_model *model) {
    for (size_t i = 0; i < served->num_models; i++) {
        if (served->models[i] == model)
            return served->stats[i];
    }
    return NULL;
}

/* Returns the counters of the model with this name, or NULL. */
static struct model_stats *find_stats(const struct served *served, const char *name) {
    for (size_t i = 0; served != NULL && i < served->num_models; i++) {
        if (strcmp(attn_model_get_info(served->models[i])->name, name) == 0)
            return served->stats[i];
    }
    return NULL;
}

static bool has_model(const struct served *first, const attn_model *model) {
    for (const struct served *at = first; at != NULL; at = at->earlier) {
        if (served_stats(at, model) != NULL)
            return true;
    }
    return false;
}

static bool has_stats(const struct served *first, const struct model_stats *stats) {
    for (const struct served *at = first; at != NULL; at = at->earlier) {
        for (size_t i = 0; i < at->num_models; i++) {
            if (at->stats[i] == stats)
                return true;
        }
    }
    return false;
}

/* --- creating and freeing --- */

static void free_served(struct served *served) {
    for (size_t i = 0; i < SERVED_NUM_TEXTS; i++)
        served_text_release(served->texts[i].text);
    pthread_mutex_destroy(&served->lock);
    estimate_destroy(served->estimate);
    free(served->models);
    free(served->stats);
    free(served->listings);
    free(served);
}

/* Frees a generation that is on no list, and what those from `first` on do not have. */
static void destroy_served(struct served *served, const struct served *first) {
    for (size_t i = 0; i < served->num_models; i++) {
        if (!has_model(first, served->models[i]))
            attn_model_destroy((attn_model *)(uintptr_t)served->models[i]);
        if (!has_stats(first, served->stats[i]))
            free(served->stats[i]);
    }
    free_served(served);
}

/* Adds a model with its counters: those of the one with its name in `current`, or new
 * ones. Returns false when memory is short. */
static bool add_model(struct served *served, const struct served *current,
                      attn_model *model) {
    struct model_stats *stats = find_stats(current, attn_model_get_info(model)->name);
    if (stats == NULL)
        stats = calloc(1, sizeof *stats);
    if (stats == NULL)
        return false;
    served->models[served->num_models] = model;
    served->stats[served->num_models++] = stats;
    return true;
}

/* Returns NULL when memory is short. */
static struct served *create_served(const struct served *current,
                                    const struct served_set *set) {
    const struct estimate *earlier = current != NULL ? current->estimate : NULL;
    bool added = true;
    struct served *served = calloc(1, sizeof *served);
    if (served == NULL)
        return NULL;

    pthread_mutex_init(&served->lock, NULL);
    served->models = calloc(set->num_models + 1, sizeof *served->models);
    served->stats = calloc(set->num_models + 1, sizeof *served->stats);
    served->listings = calloc(set->num_listings + 1, sizeof *served->listings);
    if (served->models == NULL || served->stats == NULL || served->listings == NULL) {
        free_served(served);
        return NULL;
    }

    served->num_listings = set->num_listings;
    for (size_t i = 0; i < set->num_listings; i++)
        served->listings[i] = set->listings[i];
    for (size_t i = 0; i < set->num_models && added; i++)
        added = add_model(served, current, set->models[i]);
    if (!added || estimate_create(served->models, served->num_models, earlier,
                                  &served->estimate) != ATTN_OK)
        goto fail;

    atomic_init(&served->num_holders, 1);
    return served;

fail:
    for (size_t i = 0; i < served->num_models; i++) {
        if (!has_stats(current, served->stats[i]))
            free(served->stats[i]);
    }
    free_served(served);
    return NULL;
}

/* --- texts --- */

/* Returns a text that is not too old at `now`, or NULL. */
static struct served_text *hold_text(struct served *served, enum served_text_id id,
                                     int64_t now, int64_t max_age) {
    struct served_text *text = NULL;

    pthread_mutex_lock(&served->lock);
    int64_t least = served->texts[id].took * AGE_PER_COST;
    if (max_age > 0 && max_age < least)
        max_age = least;
    if (served->texts[id].text != NULL && now - served->texts[id].begun <= max_age) {
        text = served->texts[id].text;
        atomic_fetch_add(&text->num_holders, 1);
    }
    pthread_mutex_unlock(&served->lock);
    return text;
}

/* Keeps a text that the caller holds, unless there is a later one. */
static void keep_text(struct served *served, enum served_text_id id,
                      struct served_text *text, int64_t begun, int64_t took) {
    struct served_text *former = NULL;

    pthread_mutex_lock(&served->lock);
    if (served->texts[id].text == NULL || served->texts[id].begun < begun) {
        former = served->texts[id].text;
        served->texts[id].text = text;
        served->texts[id].begun = begun;
        served->texts[id].took = took;
        atomic_fetch_add(&text->num_holders, 1);
    }
    pthread_mutex_unlock(&served->lock);
    served_text_release(former);
}

static int64_t read_thread_cpu_ns(void) {
    struct timespec spent;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    return (int64_t)spent.tv_sec * 1000000000 + spent.tv_nsec;
}

attn_status served_get_text(struct served *served, enum served_text_id id,
                            int64_t max_age,
                            attn_status (*print)(void *context, struct buf *text),
                            void *context, struct served_text **ret_text) {
    int64_t now = clock_now_ns();
    struct served_text *text = hold_text(served, id, now, max_age);
    if (text != NULL) {
        *ret_text = text;
        return ATTN_OK;
    }

    text = calloc(1, sizeof *text);
    if (text == NULL)
        return ATTN_E_NOMEM;
    atomic_init(&text->num_holders, 1);
    buf_init(&text->text, SIZE_MAX);
    int64_t spent = read_thread_cpu_ns();
    attn_status status = print(context, &text->text);
    if (status == ATTN_OK)
        status = buf_set_capacity(&text->text, text->text.size);
    if (status != ATTN_OK) {
        served_text_release(text);
        return status;
    }
    keep_text(served, id, text, now, read_thread_cpu_ns() - spent);
    *ret_text = text;
    return ATTN_OK;
}

void served_text_release(struct served_text *text) {
    if (text == NULL || atomic_fetch_sub(&text->num_holders, 1) > 1)
        return;
    buf_deinit(&text->text);
    free(text);
}

/* --- publishing --- */

attn_status served_publish(struct served_models *all, const struct served_set *set) {
    struct served *before = all->current; /* nobody else changes it */
    struct served *served = create_served(before, set);
    if (served == NULL)
        return ATTN_E_NOMEM;

    served->earlier = before;
    pthread_mutex_lock(&all->lock);
    all->current = served;
    pthread_mutex_unlock(&all->lock);
    if (before != NULL)
        served_release(before);
    return ATTN_OK;
}

void served_count_failed_reload(struct served_models *all) {
    obs_add(&all->num_failed_reloads, 1);
}

void served_warm_up_model(const attn_model *model) {
    estimate_time_flop(model);
}

void served_warm_up(struct served_models *all) {
    int64_t begun = clock_now_ns();
    struct served *served = served_acquire(all);
    size_t count = 0;

    while (count < served->num_models && clock_now_ns() - begun < WARM_UP_NS)
        served_warm_up_model(served->models[count++]);
    log_write(LOG_DEBUG, "worker warmed up", LOG_NUMBER("models", count),
              LOG_NUMBER("of", served->num_models),
              LOG_NUMBER("microseconds", (clock_now_ns() - begun) / 1000));
    served_release(served);
}

struct served *served_acquire(struct served_models *all) {
    pthread_mutex_lock(&all->lock);
    struct served *served = all->current;
    atomic_fetch_add(&served->num_holders, 1);
    pthread_mutex_unlock(&all->lock);
    return served;
}

void served_release(struct served *served) {
    atomic_fetch_sub(&served->num_holders, 1);
}

void served_free_unused(struct served_models *all) {
    struct served **link = &all->current;
    while (*link != NULL) {
        struct served *served = *link;
        if (atomic_load(&served->num_holders) > 0) {
            link = &served->earlier;
        } else {
            *link = served->earlier;
            destroy_served(served, all->current);
        }
    }
}

void served_models_deinit(struct served_models *all) {
    if (all->current != NULL)
        served_release(all->current);
    served_free_unused(all);
    pthread_mutex_destroy(&all->lock);
}
