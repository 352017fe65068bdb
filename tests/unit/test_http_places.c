/* SPDX-License-Identifier: Apache-2.0 */
/* test_http_places.c: tests of which connection gives up its place. */
#include "http/net/places.h"

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
    while (!LIST_EMPTY(&list->all)) {
        close(LIST_FIRST(&list->all)->fd);
        connection_destroy(LIST_FIRST(&list->all));
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

/* A thread that drains waits for its request. */
static void test_new_connection_is_young_until_its_first_request(void **state) {
    struct scene scene;
    (void)state;

    begin_scene(&scene);
    assert_false(connection_any_is_young(&scene.list));
    struct connection *connection = add(&scene, 1, CONNECTION_WAITS);
    assert_true(connection_any_is_young(&scene.list));
    connection->since -= SECOND_NS;
    assert_false(connection_any_is_young(&scene.list));
    connection_begin_phase(connection, CONNECTION_HEADERS);
    connection_begin_phase(connection, CONNECTION_WAITS);
    assert_false(connection_any_is_young(&scene.list));
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_complete_requests_of_a_hog_give_way_to_others),
        cmocka_unit_test(test_client_that_is_alone_loses_no_complete_request),
        cmocka_unit_test(test_newcomers_of_a_hog_do_not_replace_those_of_others),
        cmocka_unit_test(test_kept_connection_gives_way_before_a_first_request),
        cmocka_unit_test(test_place_is_held_by_the_client_of_the_request),
        cmocka_unit_test(test_places_of_one_thread_keep_nobody_out_of_another),
        cmocka_unit_test(test_new_connection_is_young_until_its_first_request),
        cmocka_unit_test(test_newcomer_is_left_to_a_thread_with_a_place),
        cmocka_unit_test(test_lack_of_descriptors_ends_no_complete_request),
        cmocka_unit_test(test_connection_that_has_ended_is_watched_no_longer),
    };
    return cmocka_run_group_tests_name("places", tests, NULL, NULL);
}
