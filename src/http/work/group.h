/* SPDX-License-Identifier: Apache-2.0 */
/* group.h: requests that wait decoded for one model, computed as one (math/join.h).
 *
 * A request of few rows takes as long as reading the model's weights. So a worker that
 * takes such a request also takes those that can be joined with it, of any client.
 * Nothing waits for more to come. Each request keeps its own exchange, reply and errors,
 * and gets the bits that it would get alone. */
#pragma once

#include "http/work/inference.h"

/* Computing a request takes at least so many ns, else joining gains nothing. */
#define GROUP_NS_MIN 100000

/* Whether a planned request can be joined with others. Sets the group of its job, which
 * names the requests to try. */
bool group_mark(struct inference *inference);

/* Takes requests that wait and can be joined with `first`, computes all of them at once
 * and writes their replies. Each is passed to `end`, with the problem that is its reply
 * or NULL; `first` is the last. Returns false when there are none to join, or not enough
 * memory: `first` is then untouched, and others wait again, to be computed alone. */
bool group_finish(struct inference *first,
                  void (*end)(struct inference *inference,
                              const struct wire_problem *problem));
