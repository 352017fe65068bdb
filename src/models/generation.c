/* SPDX-License-Identifier: Apache-2.0 */
/* generation.c: publishes generations. The list of those that are held is short, so it is
 * searched for who else has a model. */
#include "models/generation.h"

#include "base/clock.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A text of many models takes long to print, and then at most one part in so many of a
 * thread's time. */
#define AGE_PER_COST 10
/* Each is some 2 kB a model. Requests that ask for changes, and wait, hold one, too. */
#define HELD_MAX 32

void generations_init(struct generations *all) {
    *all = (struct generations){.current = NULL};
    pthread_mutex_init(&all->lock, NULL);
}

/* --- who has what --- */

struct model_stats *generation_stats(const struct generation *generation,
                                     const attn_model *model) {
    for (size_t i = 0; i < generation->num_models; i++) {
        if (generation->models[i] == model)
            return generation->stats[i];
    }
    return NULL;
}

/* Returns the counters of the model with this name, or NULL. */
static struct model_stats *find_stats(const struct generation *generation,
                                      const char *name) {
    for (size_t i = 0; generation != NULL && i < generation->num_models; i++) {
        if (strcmp(attn_model_get_info(generation->models[i])->name, name) == 0)
            return generation->stats[i];
    }
    return NULL;
}

/* Returns whether a generation from `first` on has the model, or the counters; NULL is
 * in none. */
static bool is_held(const struct generation *first, const attn_model *model,
                    const struct model_stats *stats) {
    for (const struct generation *at = first; at != NULL; at = at->earlier) {
        for (size_t i = 0; i < at->num_models; i++) {
            if (at->models[i] == model || at->stats[i] == stats)
                return true;
        }
    }
    return false;
}

/* --- creating and freeing --- */

static void free_generation(struct generation *generation) {
    for (size_t i = 0; i < GENERATION_NUM_TEXTS; i++)
        shared_text_release(generation->texts[i].text);
    pthread_mutex_destroy(&generation->lock);
    estimate_destroy(generation->estimate);
    free(generation->models);
    free(generation->stats);
    free(generation->listings);
    free(generation);
}

/* Frees a generation that is on no list, and what those from `first` on do not have. */
static void destroy_generation(struct generation *generation,
                               const struct generation *first) {
    for (size_t i = 0; i < generation->num_models; i++) {
        if (!is_held(first, generation->models[i], NULL))
            attn_model_destroy((attn_model *)(uintptr_t)generation->models[i]);
        if (!is_held(first, NULL, generation->stats[i]))
            free(generation->stats[i]);
    }
    free_generation(generation);
}

/* Adds an entry of the list, and its model, if it is loaded, with its counters: those of
 * the one with its name in `current`, or new ones. Returns false when memory is short. */
static bool add_served_model(struct generation *generation,
                             const struct generation *current,
                             const struct model_entry *entry) {
    struct wire_oip_listing *listing = &generation->listings[generation->num_listings++];

    snprintf(listing->name, sizeof listing->name, "%.*s", ATTN_NAME_MAX, entry->name);
    snprintf(listing->reason, sizeof listing->reason, "%s", entry_reason(entry));
    if (entry->model == NULL)
        return true;
    listing->info = attn_model_get_info(entry->model);

    struct model_stats *stats = find_stats(current, entry->name);
    if (stats == NULL)
        stats = calloc(1, sizeof *stats);
    if (stats == NULL)
        return false;
    generation->models[generation->num_models] = entry->model;
    generation->stats[generation->num_models++] = stats;
    return true;
}

/* Returns NULL when memory is short. */
static struct generation *create_generation(const struct generation *current,
                                            const struct model_list *list) {
    const struct estimate *earlier = current != NULL ? current->estimate : NULL;
    struct generation *generation = calloc(1, sizeof *generation);
    if (generation == NULL)
        return NULL;

    pthread_mutex_init(&generation->lock, NULL);
    atomic_init(&generation->num_holders, 1);
    generation->models = calloc(list->count + 1, sizeof *generation->models);
    generation->stats = calloc(list->count + 1, sizeof *generation->stats);
    generation->listings = calloc(list->count + 1, sizeof *generation->listings);
    bool added = generation->models != NULL && generation->stats != NULL &&
                 generation->listings != NULL;
    for (size_t i = 0; i < list->count && added; i++)
        added = add_served_model(generation, current, &list->items[i]);
    if (added && estimate_create(generation->models, generation->num_models, earlier,
                                 &generation->estimate) == ATTN_OK)
        return generation;

    for (size_t i = 0; generation->stats != NULL && i < generation->num_models; i++) {
        if (!is_held(current, NULL, generation->stats[i]))
            free(generation->stats[i]);
    }
    free_generation(generation);
    return NULL;
}

/* --- texts --- */

/* Returns a text that is not too old at `now`, or NULL. */
static struct shared_text *hold_text(struct generation *generation,
                                     enum generation_text_id id, int64_t now,
                                     int64_t max_age) {
    struct shared_text *text = NULL;

    pthread_mutex_lock(&generation->lock);
    int64_t least = generation->texts[id].took * AGE_PER_COST;
    if (max_age > 0 && max_age < least)
        max_age = least;
    if (generation->texts[id].text != NULL &&
        now - generation->texts[id].begun <= max_age)
        text = shared_text_hold(generation->texts[id].text);
    pthread_mutex_unlock(&generation->lock);
    return text;
}

/* Keeps a text that the caller holds, unless there is a later one. */
static void keep_text(struct generation *generation, enum generation_text_id id,
                      struct shared_text *text, int64_t begun, int64_t took) {
    struct shared_text *former = NULL;

    pthread_mutex_lock(&generation->lock);
    if (generation->texts[id].text == NULL || generation->texts[id].begun < begun) {
        former = generation->texts[id].text;
        generation->texts[id].text = shared_text_hold(text);
        generation->texts[id].begun = begun;
        generation->texts[id].took = took;
    }
    pthread_mutex_unlock(&generation->lock);
    shared_text_release(former);
}

attn_status generation_get_text(struct generation *generation, enum generation_text_id id,
                                int64_t max_age,
                                void (*print)(void *context, struct buf *text),
                                void *context, struct shared_text **ret_text) {
    int64_t now = clock_now_ns();
    struct shared_text *text = hold_text(generation, id, now, max_age);
    if (text != NULL) {
        *ret_text = text;
        return ATTN_OK;
    }

    int64_t spent = clock_thread_ns();
    text = shared_text_create(print, context);
    if (text == NULL)
        return ATTN_E_NOMEM;
    keep_text(generation, id, text, now, clock_thread_ns() - spent);
    *ret_text = text;
    return ATTN_OK;
}

/* --- publishing --- */

attn_status generation_publish(struct generations *all, const struct model_list *list) {
    struct generation *before = all->current; /* only this thread changes it */
    struct generation *generation = create_generation(before, list);
    if (generation == NULL)
        return ATTN_E_NOMEM;

    generation->earlier = before;
    pthread_mutex_lock(&all->lock);
    all->current = generation;
    pthread_mutex_unlock(&all->lock);
    if (before != NULL)
        generation_release(before);
    return ATTN_OK;
}

struct generation *generation_acquire(struct generations *all) {
    pthread_mutex_lock(&all->lock);
    struct generation *generation = all->current;
    atomic_fetch_add(&generation->num_holders, 1);
    pthread_mutex_unlock(&all->lock);
    return generation;
}

void generation_release(struct generation *generation) {
    atomic_fetch_sub(&generation->num_holders, 1);
}

void generations_free_unused(struct generations *all) {
    struct generation **link = &all->current;
    while (*link != NULL) {
        struct generation *generation = *link;
        if (atomic_load(&generation->num_holders) > 0) {
            link = &generation->earlier;
        } else {
            *link = generation->earlier;
            destroy_generation(generation, all->current);
        }
    }
}

bool generations_have_room(struct generations *all) {
    size_t count = 0;
    generations_free_unused(all);
    for (struct generation *at = all->current; at != NULL; at = at->earlier)
        count++;
    return count <= HELD_MAX;
}

void generations_deinit(struct generations *all) {
    if (all->current != NULL)
        generation_release(all->current);
    generations_free_unused(all);
    pthread_mutex_destroy(&all->lock);
}
