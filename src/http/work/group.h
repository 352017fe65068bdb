/* SPDX-License-Identifier: Apache-2.0 */
/* group.h: requests that wait decoded for one model, computed as one (math/join.h).
 *
 * A request of few rows takes as long as reading the model's weights. So a worker that
 * takes such a request also takes those that can be joined with it, of any client.
 * Nothing waits for more to come, unless http_options.batch_delay asks for it. Each
 * request keeps its own exchange, reply and errors, and gets the bits that it would get
 * alone. */
#ifndef ATTND_HTTP_WORK_GROUP_H
#define ATTND_HTTP_WORK_GROUP_H

#include "http/work/inference.h"

#define GROUP_MAX WIRE_OIP_BATCH_MAX /* requests */
/* Computing a request takes at least so many ns, else joining gains nothing. */
#define GROUP_NS_MIN 100000

/* Whether a planned request can be joined with others. Sets the group of its job, which
 * names the requests to try. */
bool group_mark(struct inference *inference);

/* Takes requests that wait and can be joined with ret_members[0], whose worker then owns
 * them: they follow in ret_members, planned. Returns how many there are in all. A request
 * that ended meanwhile is passed to `end`. */
size_t group_gather(struct inference *ret_members[GROUP_MAX],
                    void (*end)(struct inference *inference,
                                const struct wire_problem *problem));

/* Computes all members at once, in the arena of their worker. Memory for the reply of the
 * first is then reserved, too. Returns false, with nothing computed or reserved, when
 * there is not enough memory. */
bool group_compute(struct inference *members[], size_t count);

/* Lets members wait again, to be computed alone. */
void group_dissolve(struct inference *members[], size_t count);

#endif
