/* SPDX-License-Identifier: Apache-2.0 */
/* test_http_net.c: tests of addresses and connections, and of which uploads
 * are dropped. */
#include "fail_alloc.h"
#include "http/net/connection.h"
#include "http/net/listen.h"
#include "http/net/memory.h"

#include "base/clock.h"

#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#define SECOND_NS ((int64_t)1000000000)
#define KIB       ((size_t)1024)

/* --- addresses --- */

static struct address read_valid(const char *text) {
    struct address address;
    assert_true(address_read(text, strlen(text), &address));
    return address;
}

static void assert_same_address(const char *a, const char *b) {
    const struct address first = read_valid(a), second = read_valid(b);
    assert_memory_equal(&first, &second, sizeof first);
}

static void test_addresses_are_read_with_blanks_ports_and_brackets(void **state) {
    (void)state;
    assert_same_address("10.0.0.1", " \t10.0.0.1:8080 ");
    assert_same_address("10.0.0.1", "::ffff:10.0.0.1");
    assert_same_address("2001:db8::1", "[2001:db8:0::1]");
    assert_same_address("2001:db8::1", "[2001:db8::1]:80");
}

static void test_malformed_addresses_are_refused(void **state) {
    static const char *const texts[] = {
        "",
        " ",
        "unknown",
        "10.0.0",
        "10.0.0.256",
        "[::1",
        "::1]",
        "10.0.0.1 2",
        "_id",
        "1111111111111111111111111111111111111111111111111111111111111111111111111"};
    struct address address;
    (void)state;

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        assert_false(address_read(texts[i], strlen(texts[i]), &address));
}

static void test_ranges_contain_their_addresses_alone(void **state) {
    char *const texts[] = {(char[]){"10.8.0.0/13"}, (char[]){"fd00::/8"},
                           (char[]){"192.0.2.7"}, (char[]){"2001:db8::/128"}};
    static const struct {
        const char *text;
        bool inside;
    } cases[] = {{"10.8.0.0", true},      {"10.15.255.255", true}, {"10.16.0.0", false},
                 {"10.7.255.255", false}, {"fd12::1", true},       {"fe00::1", false},
                 {"192.0.2.7", true},     {"192.0.2.6", false},    {"2001:db8::", true},
                 {"2001:db8::1", false}};
    struct address_ranges ranges;
    attn_error error;
    (void)state;

    assert_int_equal(address_ranges_read(texts, 4, &ranges, &error), ATTN_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct address address = read_valid(cases[i].text);
        assert_int_equal(address_is_in(&address, &ranges), cases[i].inside);
    }
    free(ranges.items);
}

static void test_malformed_ranges_are_refused_with_their_text(void **state) {
    static const char *const texts[] = {
        "10.0.0.0/33",  "10.0.0.0/", "10.0.0.0/x", "::/129",
        "10.0.0.0/8/8", "localhost", "/8",         ""};
    struct address_ranges ranges;
    attn_error error;
    (void)state;

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char text[32];
        strcpy(text, texts[i]);
        assert_int_equal(address_ranges_read(&(char *){text}, 1, &ranges, &error),
                         ATTN_E_VALUE);
        assert_non_null(strstr(error.text, "--trusted-proxy"));
        assert_non_null(strstr(error.text, text));
    }
}

static void test_a_socket_of_another_family_has_the_empty_address(void **state) {
    const struct sockaddr other = {.sa_family = AF_UNIX};
    const struct address address = address_of_socket(&other), empty = {.is_user = false};
    (void)state;
    assert_memory_equal(&address, &empty, sizeof empty);
}

static void test_listen_must_be_a_host_and_a_port(void **state) {
    static const char *const valid[] = {"127.0.0.1:0", "localhost:65535", "[::1]:8080"};
    static const char *const invalid[] = {
        "",           "localhost",        ":80",
        "localhost:", "localhost:655350", "localhost:65536",
        "a:8x0",      "::1:80",           "[::1]",
        "[]:80"};
    char long_host[2048];
    attn_error error;
    (void)state;

    for (size_t i = 0; i < sizeof valid / sizeof *valid; i++)
        assert_int_equal(listen_check("--listen", valid[i], &error), ATTN_OK);
    for (size_t i = 0; i < sizeof invalid / sizeof *invalid; i++) {
        assert_int_equal(listen_check("--listen", invalid[i], &error), ATTN_E_VALUE);
        assert_non_null(strstr(error.text, "--listen"));
        assert_non_null(strstr(error.text, invalid[i]));
    }

    memset(long_host, 'a', sizeof long_host);
    strcpy(long_host + sizeof long_host - 4, ":80");
    assert_int_equal(listen_check("--listen", long_host, &error), ATTN_E_VALUE);
}

/* --- connections --- */

/* Sweeps as if the last time had been a second and a half ago. Returns whether the
 * connection was ended. */
static bool sweep_ends(struct connection_list *list, int peer) {
    char byte;
    list->swept = clock_now_ns() - SECOND_NS * 3 / 2;
    connection_sweep(list);
    return recv(peer, &byte, 1, MSG_DONTWAIT) == 0;
}

static void test_body_that_arrives_during_a_sweep_is_not_stuck(void **state) {
    const struct address_ranges no_proxies = {0};
    const struct config config = {.header_timeout = 10, .idle_timeout = 60};
    const struct http_options options = {.config = &config,
                                         .trusted_proxies = &no_proxies};
    struct connection_limits limits = {.options = &options, .max_connections = 1};
    struct connection_list list = {.limits = &limits};
    const struct sockaddr unknown = {.sa_family = AF_UNIX};
    int fds[2];
    (void)state;

    client_table_init(&limits.clients, 1, NULL);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    struct connection *connection = connection_create(&list, fds[0], &unknown);
    assert_ptr_equal(connection_start(&list, fds[0]), connection);
    connection_begin_phase(connection, CONNECTION_BODY);
    for (int i = 0; i < 2; i++) { /* its last bytes came long ago, the next ones now */
        connection->moved_at -= 5 * SECOND_NS;
        assert_int_equal(send(fds[1], "x", 1, 0), 1);
        assert_false(sweep_ends(&list, fds[1]));
        connection_count_received(connection, 1);
        assert_false(sweep_ends(&list, fds[1]));
    }

    connection->moved_at -= 5 * SECOND_NS; /* nothing reads them any more */
    assert_false(sweep_ends(&list, fds[1]));
    assert_true(sweep_ends(&list, fds[1]));
    connection_destroy(connection);
    close(fds[0]);
    close(fds[1]);
    client_table_deinit(&limits.clients);
}

/* --- memory --- */

/* A budget, a client with a complete request, and uploads of two clients. */
struct scene {
    struct sched_budget budget;
    struct memory memory;
    struct client clients[2];
    struct memory_share complete, shares[3];
    struct buf bodies[3];
    struct upload uploads[3];
};

static void receive(struct scene *scene, size_t i, size_t size) {
    struct wire_problem problem;
    char *data = calloc(1, size);
    assert_true(upload_append(&scene->uploads[i], data, size, &problem));
    free(data);
}

/* Each upload has received 64 KiB, upload 0 in 9 s and the others in 3 s and 1 s. Upload
 * 2 is of the other client, and `left` bytes of the budget are free. */
static void begin_scene(struct scene *scene, size_t left) {
    static const int64_t seconds[] = {9, 3, 1};

    memset(scene, 0, sizeof *scene);
    sched_budget_init(&scene->budget, 3 * 64 * KIB + left);
    memory_init(&scene->memory, &scene->budget, 0);
    scene->complete.memory = &scene->memory;
    scene->complete.client = &scene->clients[0];
    for (size_t i = 0; i < 3; i++) {
        scene->shares[i].memory = &scene->memory;
        scene->shares[i].client = &scene->clients[i / 2];
        buf_init(&scene->bodies[i], 1024 * KIB);
        upload_begin(&scene->uploads[i], &scene->shares[i], &scene->bodies[i]);
        scene->uploads[i].started -= seconds[i] * SECOND_NS;
        receive(scene, i, 64 * KIB);
    }
}

/* Ends everything, and checks that all is released. */
static void end_scene(struct scene *scene) {
    for (size_t i = 0; i < 3; i++) {
        upload_end(&scene->uploads[i]);
        memory_keep(&scene->shares[i], 0);
        buf_deinit(&scene->bodies[i]);
    }
    memory_keep(&scene->complete, 0);
    assert_int_equal(sched_budget_left(&scene->budget), scene->budget.limit);
    assert_int_equal(atomic_load(&scene->clients[0].held), 0);
    assert_int_equal(atomic_load(&scene->clients[1].held), 0);
    assert_true(LIST_EMPTY(&scene->memory.uploads));
    memory_deinit(&scene->memory);
}

static bool is_dropped(const struct scene *scene, size_t i) {
    bool dropped = atomic_load(&scene->uploads[i].state) == UPLOAD_DROPPED;
    if (dropped) {
        assert_int_equal(atomic_load(&scene->shares[i].bytes), 0);
        assert_null(scene->bodies[i].data);
    }
    return dropped;
}

static void test_slowest_upload_is_dropped_first(void **state) {
    struct scene scene;
    struct wire_problem problem;
    (void)state;

    begin_scene(&scene, 10 * KIB);
    assert_true(memory_reserve(&scene.complete, 10 * KIB, &problem));
    assert_false(is_dropped(&scene, 0));
    assert_true(memory_reserve(&scene.complete, 20 * KIB, &problem));
    assert_true(is_dropped(&scene, 0) && !is_dropped(&scene, 1) &&
                !is_dropped(&scene, 2));

    assert_false(upload_append(&scene.uploads[0], "x", 1, &problem));
    assert_int_equal(problem.status, 503);
    assert_false(upload_end(&scene.uploads[0]));
    assert_true(upload_end(&scene.uploads[1]));
    end_scene(&scene);
}

static void test_upload_of_a_client_that_holds_much_is_dropped_first(void **state) {
    struct scene scene;
    struct wire_problem problem;
    (void)state;

    begin_scene(&scene, 2048 * KIB);
    struct memory_share held = {&scene.memory, &scene.clients[1], 0};
    assert_true(memory_reserve(&held, 2048 * KIB, &problem));
    assert_true(memory_reserve(&scene.complete, 1, &problem));
    assert_true(is_dropped(&scene, 2) && !is_dropped(&scene, 0));
    memory_keep(&held, 0);
    end_scene(&scene);
}

static void test_nothing_is_dropped_in_vain(void **state) {
    struct scene scene;
    struct wire_problem problem;
    int64_t before = clock_now_ns();
    (void)state;

    begin_scene(&scene, 0);
    struct memory_share held = {&scene.memory, &scene.clients[1], 0};
    assert_true(upload_end(&scene.uploads[2])); /* complete, so it stays */
    assert_false(memory_reserve(&scene.complete, 193 * KIB, &problem));
    assert_int_equal(problem.status, 413);
    assert_false(memory_lacked_since(&scene.memory, before)); /* it could never fit */
    scene.budget.limit += 100 * KIB;
    assert_true(memory_reserve(&held, 100 * KIB, &problem));
    assert_false(memory_reserve(&scene.complete, 129 * KIB, &problem));
    assert_int_equal(problem.status, 503);
    assert_true(memory_lacked_since(&scene.memory, before));
    assert_false(is_dropped(&scene, 0) || is_dropped(&scene, 1));
    memory_keep(&held, 0);
    end_scene(&scene);
}

static void test_slowest_upload_drops_no_other(void **state) {
    struct scene scene;
    struct wire_problem problem;
    (void)state;

    begin_scene(&scene, 0);
    assert_false(upload_append(&scene.uploads[0], "x", 1, &problem));
    assert_int_equal(problem.status, 503);
    assert_true(upload_append(&scene.uploads[1], "x", 1, &problem));
    assert_true(is_dropped(&scene, 0) && !is_dropped(&scene, 2));
    end_scene(&scene);
}

static void test_upload_that_asks_in_vain_drops_itself_alone(void **state) {
    struct scene scene;
    struct wire_problem problem;
    char *data = calloc(1, 65 * KIB);
    (void)state;

    begin_scene(&scene, 0);
    assert_false(upload_append(&scene.uploads[1], data, 65 * KIB, &problem));
    assert_int_equal(problem.status, 503);
    assert_true(!is_dropped(&scene, 0) && is_dropped(&scene, 1) &&
                !is_dropped(&scene, 2));
    free(data);
    end_scene(&scene);
}

static void test_upload_that_holds_nothing_is_not_dropped(void **state) {
    struct scene scene;
    struct wire_problem problem;
    struct memory_share share = {&scene.memory, &scene.clients[0], 0};
    struct upload announced;
    struct buf body;
    (void)state;

    begin_scene(&scene, 0);
    buf_init(&body, 64 * KIB);
    upload_begin(&announced, &share, &body);
    announced.started -= 100 * SECOND_NS;
    assert_true(memory_reserve(&scene.complete, 1, &problem));
    assert_true(is_dropped(&scene, 0));
    assert_true(upload_end(&announced));
    end_scene(&scene);
}

/* Makes upload 0 idle after a while. */
static void *end_busy(void *argument) {
    const struct timespec pause = {.tv_nsec = 50000000};
    struct scene *scene = argument;
    nanosleep(&pause, NULL);
    atomic_store(&scene->uploads[0].state, UPLOAD_IDLE);
    return NULL;
}

static void test_busy_upload_is_dropped_when_it_is_idle_again(void **state) {
    struct scene scene;
    struct wire_problem problem;
    pthread_t thread;
    (void)state;

    begin_scene(&scene, 0);
    atomic_store(&scene.uploads[0].state, UPLOAD_BUSY);
    assert_int_equal(pthread_create(&thread, NULL, end_busy, &scene), 0);
    assert_true(memory_reserve(&scene.complete, 1, &problem));
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(is_dropped(&scene, 0) && !is_dropped(&scene, 1));
    end_scene(&scene);
}

/* Adds a byte to an upload; returns it unless it was refused. */
static void *append_byte(void *upload) {
    struct wire_problem problem;
    return upload_append(upload, "x", 1, &problem) ? upload : NULL;
}

static void test_of_two_uploads_that_ask_at_once_one_goes_on(void **state) {
    const struct timespec pause = {.tv_nsec = 50000000};
    struct scene scene;
    pthread_t threads[2];
    void *results[2];
    (void)state;

    begin_scene(&scene, 0);
    pthread_mutex_lock(&scene.memory.lock); /* so that both must wait for it */
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(
            pthread_create(&threads[i], NULL, append_byte, &scene.uploads[i]), 0);
    nanosleep(&pause, NULL);
    pthread_mutex_unlock(&scene.memory.lock);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(pthread_join(threads[i], &results[i]), 0);

    assert_null(results[0]);
    assert_ptr_equal(results[1], &scene.uploads[1]);
    assert_true(is_dropped(&scene, 0) && !is_dropped(&scene, 2));
    end_scene(&scene);
}

static void test_body_grows_in_steps_up_to_its_maximum(void **state) {
    struct scene scene;
    (void)state;

    begin_scene(&scene, 1024 * KIB);
    receive(&scene, 0, 1);
    assert_int_equal(scene.bodies[0].capacity, 96 * KIB);
    receive(&scene, 0, 500 * KIB);
    assert_int_equal(scene.bodies[0].capacity, 564 * KIB + 1);
    receive(&scene, 0, 460 * KIB - 1);
    assert_int_equal(scene.bodies[0].size, scene.bodies[0].max);
    assert_int_equal(scene.bodies[0].capacity, scene.bodies[0].max);
    assert_int_equal(atomic_load(&scene.shares[0].bytes), scene.bodies[0].max);
    end_scene(&scene);
}

static void test_body_takes_no_spare_room_that_another_would_lose(void **state) {
    struct scene scene;
    (void)state;

    begin_scene(&scene, 1);
    receive(&scene, 2, 1);
    assert_int_equal(scene.bodies[2].capacity, 64 * KIB + 1);
    assert_false(is_dropped(&scene, 0));
    end_scene(&scene);
}

/* Where there are no addresses for all of it, it is moved once more. */
static void test_large_body_stays_where_it_is(void **state) {
    const size_t most = 6 * 1024 * KIB;
    (void)state;

    for (size_t fails = 0; fails < 2; fails++) {
        struct scene scene;
        begin_scene(&scene, 8 * 1024 * KIB);
        struct buf *body = &scene.bodies[0];
        body->max = most;
        body->data[0] = 'a';
        fail_alloc_at(fails == 1 ? 2 : SIZE_MAX); /* the first one is of receive() */
        receive(&scene, 0, 4 * 1024 * KIB);
        assert_int_equal(fail_alloc_stop(), fails);
        assert_int_equal(scene.uploads[0].mapped, fails == 1 ? 0 : most);
        const char *data = body->data;
        for (size_t i = 0; i < 3; i++) {
            assert_int_equal(atomic_load(&scene.shares[0].bytes), body->capacity);
            receive(&scene, 0, 512 * KIB);
            assert_true(fails == 1 || body->data == data);
        }
        assert_int_equal(scene.uploads[0].mapped, most);
        assert_int_equal(body->data[0], 'a');
        end_scene(&scene);
    }
}

static void test_lack_of_memory_is_reported(void **state) {
    struct scene scene;
    struct client_table table;
    struct wire_problem problem;
    const struct address address = read_valid("10.0.0.1");
    (void)state;

    begin_scene(&scene, 1024 * KIB);
    fail_alloc_at(1);
    assert_false(upload_append(&scene.uploads[0], "x", 1, &problem));
    assert_true(fail_alloc_stop());
    assert_int_equal(problem.status, 503);
    end_scene(&scene);
    client_table_init(&table, 1, NULL);
    for (size_t i = 1; i <= 2; i++) { /* the owner, and its member */
        fail_alloc_at(i);
        assert_null(client_acquire(&table, &address, "name"));
        assert_true(fail_alloc_stop());
    }
    client_table_deinit(&table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_addresses_are_read_with_blanks_ports_and_brackets),
        cmocka_unit_test(test_malformed_addresses_are_refused),
        cmocka_unit_test(test_ranges_contain_their_addresses_alone),
        cmocka_unit_test(test_malformed_ranges_are_refused_with_their_text),
        cmocka_unit_test(test_a_socket_of_another_family_has_the_empty_address),
        cmocka_unit_test(test_listen_must_be_a_host_and_a_port),
        cmocka_unit_test(test_body_that_arrives_during_a_sweep_is_not_stuck),
        cmocka_unit_test(test_slowest_upload_is_dropped_first),
        cmocka_unit_test(test_upload_of_a_client_that_holds_much_is_dropped_first),
        cmocka_unit_test(test_nothing_is_dropped_in_vain),
        cmocka_unit_test(test_slowest_upload_drops_no_other),
        cmocka_unit_test(test_upload_that_asks_in_vain_drops_itself_alone),
        cmocka_unit_test(test_upload_that_holds_nothing_is_not_dropped),
        cmocka_unit_test(test_busy_upload_is_dropped_when_it_is_idle_again),
        cmocka_unit_test(test_of_two_uploads_that_ask_at_once_one_goes_on),
        cmocka_unit_test(test_body_grows_in_steps_up_to_its_maximum),
        cmocka_unit_test(test_large_body_stays_where_it_is),
        cmocka_unit_test(test_lack_of_memory_is_reported),
        cmocka_unit_test(test_body_takes_no_spare_room_that_another_would_lose),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
