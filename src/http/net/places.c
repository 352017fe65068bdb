/* SPDX-License-Identifier: Apache-2.0 */
/* places.c: ranks the connections of a thread by how dispensable they are. */
#include "http/net/places.h"

#include "base/clock.h"

/* A client that connects gets at least this long for its request while others are idle
 * or slow. */
#define YOUNG_NS ((int64_t)1000000000)

/* How dispensable a connection is. Of one client, those of a higher class go first. */
enum dispensable {
    WORKS,    /* its job waits or runs */
    IS_READ,  /* its reply */
    RECEIVES, /* a body, fast enough */
    IS_YOUNG, /* without a complete request for less than YOUNG_NS */
    PAUSES,   /* between two requests for less than that: no request is lost with it */
    IS_SLOW,  /* for longer than that, or its body pauses for as long */
    IS_IDLE,  /* has had a request and waits for the next one for longer than that */
    IS_GONE   /* its client left, or was told that it took too long */
};

/* Decides which connection gives way. One of a higher tier goes first. */
enum tier {
    STAYS,
    OF_LARGEST, /* to clients that would hold fewer places */
    OF_ANY,     /* idle or slow */
    USELESS
};

struct rank {
    enum tier tier;
    size_t num_places; /* of its holder */
    enum dispensable class;
    double order; /* larger for those that go first */
};

/* Returns the class of a connection, and its order within that. */
static enum dispensable find_class(const struct connection *connection, int64_t now,
                                   double *ret_order) {
    int64_t elapsed = now - connection->since;
    double seconds = (double)elapsed / 1e9;
    double min_rate = (double)connection->list->limits->options->config->min_rate;

    if (connection->phase == CONNECTION_WORKS) {
        *ret_order = -seconds; /* less work is lost with the newest */
        return WORKS;
    }
    *ret_order = seconds;
    if (connection->phase == CONNECTION_REPLIES) {
        *ret_order = connection_time_of_byte(connection, now);
        return IS_READ;
    }
    if (connection->cut_at != 0 || connection->hung_up)
        return IS_GONE;
    bool pauses = connection->phase == CONNECTION_WAITS && connection->served;
    if (connection->phase != CONNECTION_BODY && elapsed < YOUNG_NS)
        return pauses ? PAUSES : IS_YOUNG;
    if (pauses)
        return IS_IDLE;
    if (connection->phase != CONNECTION_BODY || now - connection->moved_at > YOUNG_NS ||
        (elapsed > YOUNG_NS && (double)connection->received < seconds * min_rate))
        return IS_SLOW;
    *ret_order = seconds / ((double)connection->received + 1);
    return RECEIVES;
}

/* Finds how dispensable a connection is to a newcomer of `client`; NULL: when descriptors
 * are short. */
static struct rank find_rank(const struct connection *connection,
                             const struct client *client, int64_t now) {
    size_t index = connection->list->index;
    size_t wanted = client != NULL ? client->shares[index].num_places + 1 : 0;
    struct rank rank = {.tier = STAYS};

    if (connection->holder == NULL)
        return rank;
    rank.num_places = connection_share(connection)->num_places;
    rank.class = find_class(connection, now, &rank.order);
    if (rank.class == IS_GONE)
        rank.tier = USELESS;
    else if (rank.class >= IS_SLOW)
        rank.tier = OF_ANY;
    else if (rank.class >= RECEIVES)
        rank.tier = connection->holder == client || rank.num_places >= wanted ? OF_LARGEST
                                                                              : STAYS;
    else
        rank.tier = client != NULL && rank.num_places > wanted ? OF_LARGEST : STAYS;
    return rank;
}

static bool goes_before(const struct rank *a, const struct rank *b) {
    if (a->tier != b->tier)
        return a->tier > b->tier;
    if (a->num_places != b->num_places)
        return a->num_places > b->num_places;
    if (a->class != b->class)
        return a->class > b->class;
    return a->order > b->order;
}

/* Returns the connection that goes for a newcomer of `client`, or NULL. */
static struct connection *find_dispensable(const struct connection_list *list,
                                           const struct client *client) {
    struct connection *found = NULL, *each;
    struct rank first = {.tier = STAYS};
    int64_t now = clock_now_ns();

    LIST_FOREACH(each, &list->all, links) {
        const struct rank rank = find_rank(each, client, now);
        if (rank.tier != STAYS && (found == NULL || goes_before(&rank, &first))) {
            found = each;
            first = rank;
        }
    }
    return found;
}

bool place_is_elsewhere(const struct connection_list *list) {
    return list->num_places >= list->max_places &&
           atomic_load(&list->places->num_taken) < list->places->max;
}

bool place_take(struct connection *newcomer) {
    struct connection_list *list = newcomer->list;

    if (list->num_places < list->max_places) {
        list->num_places++;
        atomic_fetch_add(&list->places->num_taken, 1);
        atomic_fetch_add(&list->limits->num_connections, 1);
    } else {
        struct connection *other = find_dispensable(list, newcomer->client);
        if (other == NULL)
            return false;
        connection_share(other)->num_places--;
        other->holder = NULL; /* its place is the newcomer's */
        connection_end(other);
    }
    newcomer->holder = newcomer->client;
    connection_share(newcomer)->num_places++;
    return true;
}

bool place_end_one(struct connection_list *list) {
    struct connection *connection = find_dispensable(list, NULL);
    if (connection != NULL)
        connection_end(connection);
    return connection != NULL;
}
