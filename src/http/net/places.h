/* SPDX-License-Identifier: Apache-2.0 */
/* places.h: which connection goes when all places are taken.
 *
 * The place of a connection is held by the client of its present request. While there is
 * none, its peer holds it: a client, or a proxy. So a client has as many places as it can
 * get, until another one wants one.
 *
 * A thread ends connections of its own only. So each has an equal part of the places, and
 * clients hold places of each: nobody keeps newcomers out of one by what is on others. */
#pragma once

#include "http/net/connection.h"

/* Takes a place of its thread for a new connection. When all are taken, another
 * connection of the thread is ended, the first of these:
 *
 * 1. One that is gone, idle for a second, or slow. Of several, one of the client that
 *    holds most places.
 * 2. One of the client that holds most places, if the newcomer's client would hold fewer:
 *    one that is young, or sends a body, or whose reply is read, or whose job waits or
 *    runs. The first two also go when it would hold as many. A newcomer also replaces a
 *    connection of its own client, unless the request of that is complete.
 *
 * So a client that is alone loses no complete request, and no client keeps all places
 * when others come. Returns false when none goes; the connection is then of no use. */
bool place_take(struct connection *newcomer);

/* Whether the thread has no free place, but another one that accepts at its address has:
 * a newcomer to a Unix socket is left to that. */
bool place_is_elsewhere(const struct connection_list *list);

/* Ends the most dispensable connection of the list, because there are too few
 * descriptors. A connection whose request is complete stays. Returns false when none
 * ends. */
bool place_end_one(struct connection_list *list);
