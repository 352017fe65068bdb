/* SPDX-License-Identifier: Apache-2.0 */
/* test_http_places.c: tests of which connection gives up its place, and of which request
 * has its turn. */
#include "http/net/places.h"
#include "http/net/turns.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#define SECOND_NS ((int64_t)1000000000)
#define PLACES    4

/* --- places --- */

/* Two threads with PLACES places each, and the other ends of their connections. */
struct scene {
    struct address_ranges proxies;
    struct config config;
    struct http_options options;
    struct connection_limits limits;
    struct connection_list list, other;
    struct connection_places places;
    int peers[16];
    size_t num_peers;
};

static void begin_scene(struct scene *scene) {
    *scene = (struct scene){
        .config = {.header_timeout = 10, .idle_timeout = 60, .min_rate = 4096},
        .places = {.max = 2 * PLACES}};
    scene->options.config = &scene->config;
    scene->options.trusted_proxies = &scene->proxies;
    scene->limits.options = &scene->options;
    scene->list = (struct connection_list){
        .limits = &scene->limits, .places = &scene->places, .max_places = PLACES};
    scene->other = scene->list;
    scene->other.index = 1;
    client_table_init(&scene->limits.clients, 2, NULL);
}

/* Returns a connection of 10.0.0.`host` in `phase`; NULL: it got no place. */
static struct connection *add_to(struct connection_list *list, struct scene *scene,
                                 unsigned host, enum connection_phase phase) {
    const struct sockaddr_in peer = {.sin_family = AF_INET,
                                     .sin_addr.s_addr = htonl(0x0a000000 + host)};
    int fds[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    scene->peers[scene->num_peers++] = fds[1];
    struct connection *connection =
        connection_create(list, fds[0], (const struct sockaddr *)&peer);
    assert_non_null(connection);
    if (!place_take(connection)) {
        connection_destroy(connection);
        close(fds[0]);
        return NULL;
    }
    connection_start(list, fds[0]);
    connection_begin_phase(connection, phase);
    connection->served = phase > CONNECTION_WAITS;
    return connection;
}

static struct connection *add(struct scene *scene, unsigned host,
                              enum connection_phase phase) {
    return add_to(&scene->list, scene, host, phase);
}

static void end_list(struct connection_list *list) {
    while (list->first != NULL) {
        close(list->first->fd);
        connection_destroy(list->first);
    }
    assert_int_equal(list->num_places, 0);
}

static void end_scene(struct scene *scene) {
    end_list(&scene->list);
    end_list(&scene->other);
    for (size_t i = 0; i < scene->num_peers; i++)
        close(scene->peers[i]);
    assert_int_equal(scene->limits.num_connections, 0);
    assert_int_equal(scene->places.num_taken, 0);
    client_table_deinit(&scene->limits.clients);
}

static void test_complete_requests_of_a_hog_give_way_to_others(void **state) {
    struct connection *hog[PLACES];
    struct scene scene;
    (void)state;

    begin_scene(&scene);
    for (size_t i = 0; i < PLACES; i++) {
        hog[i] = add(&scene, 1, i % 2 == 0 ? CONNECTION_REPLIES : CONNECTION_WORKS);
        hog[i]->since -= (int64_t)i * SECOND_NS; /* the first is the newest */
    }
    hog[2]->reply_seen = true; /* its reply was read slowly */
    assert_non_null(add(&scene, 2, CONNECTION_WORKS));
    assert_null(hog[2]->holder);
    assert_non_null(add(&scene, 3, CONNECTION_WORKS));
    assert_null(hog[0]->holder);
    assert_true(hog[1]->holder && hog[3]->holder);

    /* Two, one and one: each has its part. */
    assert_null(add(&scene, 3, CONNECTION_WORKS));
    assert_null(add(&scene, 1, CONNECTION_WORKS));
    assert_non_null(add(&scene, 4, CONNECTION_WORKS));
    assert_null(hog[1]->holder); /* newer than the other */
    assert_null(add(&scene, 5, CONNECTION_WORKS));
    end_scene(&scene);
}

static void test_client_that_is_alone_loses_no_complete_request(void **state) {
    struct connection *own[PLACES];
    struct scene scene;
    (void)state;

    begin_scene(&scene);
    for (size_t i = 0; i < PLACES; i++)
        own[i] = add(&scene, 1, CONNECTION_REPLIES);
    assert_null(add(&scene, 1, CONNECTION_WAITS));
    own[1]->phase = CONNECTION_BODY;
    assert_non_null(add(&scene, 1, CONNECTION_WORKS));
    assert_null(own[1]->holder);
    assert_true(own[0]->holder && own[2]->holder && own[3]->holder);
    end_scene(&scene);
}

static void test_newcomers_of_a_hog_do_not_replace_those_of_others(void **state) {
    struct connection *hog[PLACES - 1];
    struct scene scene;
    (void)state;

    begin_scene(&scene);
    struct connection *other = add(&scene, 2, CONNECTION_WAITS);
    for (size_t i = 0; i < PLACES - 1; i++)
        hog[i] = add(&scene, 1, CONNECTION_REPLIES);
    assert_null(add(&scene, 1, CONNECTION_WAITS));
    assert_non_null(other->holder);

    /* Both are idle. That of the client with most places goes, although for less long. */
    other->since -= 9 * SECOND_NS;
    other->served = true;
    connection_begin_phase(hog[0], CONNECTION_WAITS);
    hog[0]->since -= 2 * SECOND_NS;
    assert_non_null(add(&scene, 3, CONNECTION_WORKS));
    assert_true(other->holder && !hog[0]->holder);

    /* Now only the other is idle, and gives way to anybody. */
    assert_non_null(add(&scene, 1, CONNECTION_WORKS));
    assert_null(other->holder);
    end_scene(&scene);
}

/* Although it is the newest. A client that has closed it a moment ago, and is on another
 * thread now, looks so too. */
static void test_kept_connection_gives_way_before_a_first_request(void **state) {
    struct connection *each[PLACES];
    struct scene scene;
    (void)state;

    begin_scene(&scene);
    for (unsigned i = 0; i < PLACES; i++) {
        each[i] = add(&scene, 1 + i, CONNECTION_WAITS);
        each[i]->since -= SECOND_NS / 8 * (PLACES - i);
    }
    each[PLACES - 1]->served = true;
    assert_non_null(add(&scene, 9, CONNECTION_WAITS));
    assert_null(each[PLACES - 1]->holder);
    assert_true(each[0]->holder && each[1]->holder && each[2]->holder);
    end_scene(&scene);
}

static void test_place_is_held_by_the_client_of_the_request(void **state) {
    struct scene scene;
    (void)state;

    begin_scene(&scene);
    struct connection *proxied[PLACES];
    for (size_t i = 0; i < PLACES; i++) /* all from one proxy */
        proxied[i] = add(&scene, 9, CONNECTION_WORKS);
    struct connection *hog = proxied[2];
    connection_set_holder(proxied[1], hog->client);
    assert_int_equal(hog->client->shares[0].num_places, PLACES);

    const struct address address = {.bytes = {1}};
    struct client *client = client_acquire(&scene.limits.clients, &address, NULL);
    connection_set_holder(proxied[0], client);
    connection_set_holder(proxied[1], client);
    connection_set_holder(proxied[2], client);
    assert_int_equal(client->shares[0].num_places, 3);
    assert_int_equal(hog->client->shares[0].num_places, 1);
    assert_non_null(add(&scene, 9, CONNECTION_WORKS));
    assert_int_equal(client->shares[0].num_places, 2);
    for (size_t i = 0; i < PLACES; i++)
        connection_set_holder(proxied[i], proxied[i]->client);
    assert_int_equal(client->shares[0].num_places, 0);
    client_release(&scene.limits.clients, client);
    end_scene(&scene);
}

/* Not by idle connections, and not by as many requests as one client has there. */
static void test_places_of_one_thread_keep_nobody_out_of_another(void **state) {
    struct scene scene;
    (void)state;

    begin_scene(&scene);
    for (size_t i = 0; i < 2 * PLACES; i++)
        add(&scene, 1, i % 2 == 0 ? CONNECTION_WAITS : CONNECTION_REPLIES);
    for (unsigned i = 0; i < PLACES; i++)
        assert_non_null(add_to(&scene.other, &scene, 2 + i, CONNECTION_WORKS));
    assert_null(add_to(&scene.other, &scene, 9, CONNECTION_WORKS));
    end_scene(&scene);

    begin_scene(&scene);
    for (unsigned i = 0; i < PLACES; i++)
        add(&scene, 2, CONNECTION_WORKS);
    add_to(&scene.other, &scene, 2, CONNECTION_WORKS);
    for (unsigned i = 0; i < PLACES - 1; i++)
        add_to(&scene.other, &scene, 1, CONNECTION_REPLIES);
    assert_non_null(add_to(&scene.other, &scene, 2, CONNECTION_WORKS));
    end_scene(&scene);
}

static void test_newcomer_is_left_to_a_thread_with_a_place(void **state) {
    struct scene scene;
    (void)state;

    begin_scene(&scene);
    for (size_t i = 0; i < PLACES; i++) {
        assert_false(place_is_elsewhere(&scene.list));
        add(&scene, 1, CONNECTION_WORKS);
    }
    for (size_t i = 0; i < PLACES; i++) {
        assert_true(place_is_elsewhere(&scene.list));
        assert_false(place_is_elsewhere(&scene.other));
        add_to(&scene.other, &scene, 1, CONNECTION_WORKS);
    }
    assert_false(place_is_elsewhere(&scene.list));
    end_scene(&scene);
}

static void test_lack_of_descriptors_ends_no_complete_request(void **state) {
    struct scene scene;
    (void)state;

    begin_scene(&scene);
    for (size_t i = 0; i < PLACES - 1; i++)
        add(&scene, 1, CONNECTION_WORKS);
    assert_false(place_end_one(&scene.list));
    add(&scene, 2, CONNECTION_BODY);
    assert_true(place_end_one(&scene.list));
    end_scene(&scene);
}

/* Its descriptor may be open elsewhere: in a debugger, or a child that was forked. */
static void test_connection_that_has_ended_is_watched_no_longer(void **state) {
    struct scene scene;
    struct epoll_event event;
    (void)state;

    begin_scene(&scene);
    int epoll_fd = scene.list.handshakes.epoll_fd = epoll_create1(0);
    struct connection *connection = add(&scene, 1, CONNECTION_WAITS);
    int copy = dup(connection->fd);
    connection_hold(connection);
    connection_end(connection);
    assert_int_equal(write(scene.peers[0], "x", 1), 1);
    assert_int_equal(epoll_wait(epoll_fd, &event, 1, 0), 0);
    close(copy);
    close(epoll_fd);
    end_scene(&scene);
}

/* --- turns --- */

/* Whether a new request of the flow gets a turn at once, which takes until `end`. */
static bool take(struct turns *turns, struct turn_flow *flow, int64_t begin,
                 int64_t end) {
    const struct turn turn = {.flow = flow};
    bool taken = turn_take(turns, &turn, begin);
    turn_end(turns, &turn, end);
    return taken;
}

/* Returns how many turns the flow gets in one go. */
static size_t take_all(struct turns *turns, struct turn_flow *flow) {
    size_t count = 0;
    while (take(turns, flow, 0, 0))
        count++;
    return count;
}

static void wait_for_turn(struct turns *turns, struct turn_flow *flow,
                          struct turn *turn) {
    turn->flow = flow;
    turn_wait(turns, turn);
}

static void test_client_gets_its_share_of_a_round(void **state) {
    struct turns turns = {0};
    struct turn_flow flows[8] = {0};
    (void)state;

    for (size_t round = 0; round < 3; round++) {
        size_t count = 0;
        assert_int_equal(take_all(&turns, &flows[0]), TURNS_PER_CLIENT);
        for (size_t i = 1; i < 8; i++)
            count += take_all(&turns, &flows[i]);
        assert_int_equal(count, TURNS_PER_ROUND - TURNS_PER_CLIENT);
        turns_begin_round(&turns);
        assert_null(turns_give(&turns));
    }
}

static void test_requests_that_wait_get_turns_in_order_and_by_client(void **state) {
    struct turns turns = {0};
    struct turn_flow flows[2] = {0};
    struct turn hog[TURNS_PER_CLIENT + 2] = {0}, other[2] = {0};
    (void)state;

    take_all(&turns, &flows[0]);
    for (size_t i = 0; i < TURNS_PER_CLIENT + 2; i++)
        wait_for_turn(&turns, &flows[0], &hog[i]);
    for (size_t i = 0; i < 2; i++)
        wait_for_turn(&turns, &flows[1], &other[i]);
    turn_leave(&turns, &hog[1]);

    turns_begin_round(&turns);
    assert_ptr_equal(turns_give(&turns), &hog[0]);
    assert_ptr_equal(turns_give(&turns), &other[0]);
    assert_ptr_equal(turns_give(&turns), &hog[2]);
    assert_ptr_equal(turns_give(&turns), &other[1]);
    for (size_t i = 3; i < TURNS_PER_CLIENT + 1; i++)
        assert_ptr_equal(turns_give(&turns), &hog[i]);
    assert_null(turns_give(&turns));
    assert_false(take(&turns, &flows[0], 0, 0)); /* it has its share, and one waits */
    assert_true(take(&turns, &flows[1], 0, 0));

    turns_begin_round(&turns);
    assert_false(take(&turns, &flows[0], 0, 0)); /* not before the one that waits */
    assert_ptr_equal(turns_give(&turns), &hog[TURNS_PER_CLIENT + 1]);
    assert_true(take(&turns, &flows[0], 0, 0));
    assert_null(turns_give(&turns));
}

static void test_requests_that_leave_are_no_longer_served(void **state) {
    struct turns turns = {0};
    struct turn_flow flow = {0};
    struct turn waiting[3] = {0};
    (void)state;

    for (size_t i = 0; i < 3; i++)
        wait_for_turn(&turns, &flow, &waiting[i]);
    turn_leave(&turns, &waiting[2]);
    turn_leave(&turns, &waiting[0]);
    turns_begin_round(&turns);
    assert_ptr_equal(turns_give(&turns), &waiting[1]);
    assert_null(turns_give(&turns));
    turn_wait(&turns, &waiting[0]);
    turn_leave(&turns, &waiting[0]);
    assert_null(turns_give(&turns));
    assert_true(take(&turns, &flow, 0, 0));
}

static void test_members_of_a_flow_have_turns_by_turns(void **state) {
    struct turns turns = {0};
    struct turn_flow flow = {0};
    struct turn_member members[2] = {{0}};
    struct turn hog[6] = {0}, other[3] = {0};
    (void)state;

    for (size_t i = 0; i < 6; i++) {
        hog[i].member = &members[0];
        wait_for_turn(&turns, &flow, &hog[i]);
    }
    for (size_t i = 0; i < 2; i++) {
        other[i].member = &members[1];
        wait_for_turn(&turns, &flow, &other[i]);
    }
    turns_begin_round(&turns);
    for (size_t i = 0; i < 2; i++) {
        assert_ptr_equal(turns_give(&turns), &hog[i]);
        assert_ptr_equal(turns_give(&turns), &other[i]);
    }
    assert_ptr_equal(turns_give(&turns), &hog[2]);
    other[2].member = &members[1]; /* which has not had as many */
    wait_for_turn(&turns, &flow, &other[2]);
    assert_ptr_equal(turns_give(&turns), &hog[3]);
    assert_ptr_equal(turns_give(&turns), &other[2]);

    turn_wait(&turns, &hog[3]); /* its time was over: it is before the later ones */
    assert_ptr_equal(turns_give(&turns), &hog[3]);
    assert_ptr_equal(turns_give(&turns), &hog[4]);
    assert_ptr_equal(turns_give(&turns), &hog[5]);
    assert_null(turns_give(&turns));
}

/* 5 ms of a round, however many requests that is; what nobody has served counts for
 * nobody. */
static void test_client_has_the_thread_for_its_time_of_a_round(void **state) {
    struct turns turns = {0};
    struct turn_flow dear = {0}, other = {0};
    (void)state;

    for (int round = 0; round < 3; round++) {
        int64_t now = round * SECOND_NS;
        assert_true(take(&turns, &dear, now, now + TURN_NS / 2));
        now += TURN_NS;
        assert_true(take(&turns, &dear, now, now + TURN_NS / 2));
        assert_false(take(&turns, &dear, now + TURN_NS, now + TURN_NS));
        assert_true(take(&turns, &other, now, now));
        turns_begin_round(&turns);
    }
    assert_true(take(&turns, &dear, 0, 13 * TURN_NS)); /* one is served to its end */
    assert_false(take(&turns, &dear, 13 * TURN_NS, 13 * TURN_NS));
    assert_true(take(&turns, &other, 13 * TURN_NS, 13 * TURN_NS));
}

/* It ends with the next request, when the reply has not ended before. */
static void test_time_is_that_of_the_client_that_was_served_last(void **state) {
    struct turns turns = {0};
    struct turn_flow flows[2] = {0};
    const struct turn turn[2] = {{.flow = &flows[0]}, {.flow = &flows[1]}};
    (void)state;

    assert_true(turn_take(&turns, &turn[0], 0));
    assert_true(turn_take(&turns, &turn[1], TURN_NS - 1));
    turn_end(&turns, &turn[0], 9 * TURN_NS); /* not its time */
    assert_true(turn_take(&turns, &turn[0], 9 * TURN_NS));
    assert_false(turn_take(&turns, &turn[1], 9 * TURN_NS + 1));
    assert_false(turn_take(&turns, &turn[0], 9 * TURN_NS + 1));
}

static void test_requests_wait_again_in_order_when_the_time_is_over(void **state) {
    struct turns turns = {0};
    struct turn_flow dear = {0}, other = {0};
    struct turn waiting[6] = {0}, last = {0};
    (void)state;

    for (size_t i = 0; i < 6; i++)
        wait_for_turn(&turns, &dear, &waiting[i]);
    wait_for_turn(&turns, &other, &last);
    for (size_t served = 0; served < 4; served++) { /* one of them a round */
        turns_begin_round(&turns);
        size_t given = served;
        for (struct turn *turn; (turn = turns_give(&turns)) != NULL;)
            assert_ptr_equal(turn, turn == &last ? &last : &waiting[given++]);
        assert_int_equal(given, 6);

        assert_true(turn_take(&turns, &waiting[served], 0));
        turn_end(&turns, &waiting[served], TURN_NS);
        for (size_t i = served + 1; i < 6; i++) {
            assert_false(turn_take(&turns, &waiting[i], TURN_NS));
            turn_wait(&turns, &waiting[i]);
        }
        assert_true(served > 0 || turn_take(&turns, &last, TURN_NS));
    }
    turn_leave(&turns, &waiting[4]);
    turns_begin_round(&turns);
    assert_ptr_equal(turns_give(&turns), &waiting[5]);
    assert_null(turns_give(&turns));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_complete_requests_of_a_hog_give_way_to_others),
        cmocka_unit_test(test_client_that_is_alone_loses_no_complete_request),
        cmocka_unit_test(test_newcomers_of_a_hog_do_not_replace_those_of_others),
        cmocka_unit_test(test_kept_connection_gives_way_before_a_first_request),
        cmocka_unit_test(test_place_is_held_by_the_client_of_the_request),
        cmocka_unit_test(test_places_of_one_thread_keep_nobody_out_of_another),
        cmocka_unit_test(test_newcomer_is_left_to_a_thread_with_a_place),
        cmocka_unit_test(test_lack_of_descriptors_ends_no_complete_request),
        cmocka_unit_test(test_connection_that_has_ended_is_watched_no_longer),
        cmocka_unit_test(test_client_gets_its_share_of_a_round),
        cmocka_unit_test(test_requests_that_wait_get_turns_in_order_and_by_client),
        cmocka_unit_test(test_requests_that_leave_are_no_longer_served),
        cmocka_unit_test(test_members_of_a_flow_have_turns_by_turns),
        cmocka_unit_test(test_client_has_the_thread_for_its_time_of_a_round),
        cmocka_unit_test(test_time_is_that_of_the_client_that_was_served_last),
        cmocka_unit_test(test_requests_wait_again_in_order_when_the_time_is_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
