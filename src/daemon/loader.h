/* SPDX-License-Identifier: Apache-2.0 */
/* loader.h: the thread that loads models while attnd serves.
 *
 * It runs at a low priority, so that requests under way are hardly slower meanwhile. It
 * does one thing at a time, in the order in which they were asked for; several reloads
 * that are asked for meanwhile become one. */
#pragma once

#include "models/catalogue.h"

struct loader;

/* Starts the thread, which uses the catalogue alone from then on, until loader_stop() has
 * returned true. The caller owns *ret_loader. Returns ATTN_E_NOMEM or ATTN_E_IO when the
 * system refuses memory or the thread. */
attn_status loader_start(struct catalogue *catalogue, struct loader **ret_loader);

/* Asks for catalogue_reload(). Never waits for it. Any thread may call it. */
void loader_reload(struct loader *loader);

/* model_changer.submit: loads or unloads a model, then calls change->done(). Never waits
 * for it. Any thread may call it. */
void loader_submit(void *loader, struct model_change *change);

/* From now on nothing more is loaded: a reload ends after its present model, and changes
 * that are submitted are refused. */
void loader_refuse(struct loader *loader);

/* Ends the thread and frees the loader. Returns false when it is still busy with one
 * model; then the process may only exit. Nothing may be submitted any more. Accepts
 * NULL. */
bool loader_stop(struct loader *loader);
