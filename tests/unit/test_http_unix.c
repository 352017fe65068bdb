/* SPDX-License-Identifier: Apache-2.0 */
/* test_http_unix.c: tests of Unix sockets: how they are named, made and removed, who
 * their clients are, and how fast these read. */
#include "base/clock.h"
#include "http/net/connection.h"
#include "http/net/listen.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#define SECOND_NS ((int64_t)1000000000)

/* --- names --- */

static void test_path_mode_and_group_are_read(void **state) {
    static const char *const valid[] = {"unix:/a.sock", "unix:/a/b,mode=600",
                                        "unix:/a,mode=0777,group=0",
                                        "unix:/a,group=root"};
    attn_error error;
    (void)state;
    for (size_t i = 0; i < sizeof valid / sizeof *valid; i++) {
        assert_int_equal(listen_check("--listen", valid[i], &error), ATTN_OK);
        assert_true(listen_is_unix(valid[i]));
        bool is_loopback = false;
        assert_int_equal(listen_find_loopback("--listen", valid[i], &is_loopback, NULL),
                         ATTN_OK);
        assert_true(is_loopback);
    }
    assert_false(listen_is_unix("127.0.0.1:80"));

    struct sockaddr_un address;
    listen_get_path("unix:/a/b,mode=600", &address);
    assert_string_equal(address.sun_path, "/a/b");
}

static void test_malformed_sockets_are_refused_with_a_remedy(void **state) {
    static const char *const cases[][2] = {
        {"unix:", "must begin with '/'"},
        {"unix:a.sock", "must begin with '/'"},
        {"unix:@name", "must begin with '/'"},
        {"unix:/a,mode=1777", "'mode=1777' is not the mode of a file"},
        {"unix:/a,mode=", "'mode=' is not the mode"},
        {"unix:/a,mode=-1", "'mode=-1' is not the mode"},
        {"unix:/a,mode=0668", "'mode=0668' is not the mode"},
        {"unix:/a,group=no-such-group", "no group 'no-such-group'; create it"},
        {"unix:/a,group=", "no group ''"},
        {"unix:/a,group=4294967295", "no group '4294967295'"},
        {"unix:/a,b.sock", "'b.sock' is neither mode=MODE nor group=NAME"}};
    attn_error error;
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(listen_check("--listen", cases[i][0], &error), ATTN_E_VALUE);
        assert_non_null(strstr(error.text, "--listen: "));
        if (strstr(error.text, cases[i][1]) == NULL)
            fail_msg("%s: %s", cases[i][0], error.text);
    }
}

static void test_a_path_may_have_107_bytes(void **state) {
    char listen[256] = "unix:/";
    attn_error error;
    (void)state;

    memset(listen + 6, 'a', 106);
    assert_int_equal(listen_check("--listen", listen, &error), ATTN_OK);
    listen[6 + 106] = 'a';
    assert_int_equal(listen_check("--admin-listen", listen, &error), ATTN_E_VALUE);
    assert_non_null(strstr(error.text, "--admin-listen: "));
    assert_non_null(strstr(error.text,
                           "is too long: 108 bytes, and a Unix socket may have "
                           "107"));
}

/* --- files --- */

struct place {
    char folder[32], path[64], listen[96], lock[80];
};

static void make_place(struct place *place) {
    strcpy(place->folder, "/tmp/attnd-unix-XXXXXX");
    assert_non_null(mkdtemp(place->folder));
    snprintf(place->path, sizeof place->path, "%s/s", place->folder);
    snprintf(place->listen, sizeof place->listen, "unix:%s", place->path);
    snprintf(place->lock, sizeof place->lock, "%s.lock", place->path);
}

static attn_status open_place(const struct place *place, int fds[2],
                              struct listen_address *address, attn_error *error) {
    return listen_open("--listen", place->listen, -1, 2, fds, address, error);
}

static void close_both(const int fds[2]) {
    close(fds[0]);
    close(fds[1]);
}

static void test_a_socket_is_made_with_its_mode_and_removed_with_its_lock(void **state) {
    struct listen_address address;
    struct place place;
    struct stat file;
    attn_error error;
    int fds[2];
    (void)state;

    make_place(&place);
    mode_t mask = umask(077); /* which does not count */
    assert_int_equal(open_place(&place, fds, &address, &error), ATTN_OK);
    umask(mask);
    assert_string_equal(address.text, place.listen);
    assert_int_equal(lstat(place.path, &file), 0);
    assert_int_equal(file.st_mode, S_IFSOCK | 0660);

    listen_remove(&address);
    listen_remove(&address);
    close_both(fds);
    assert_int_equal(rmdir(place.folder), 0); /* so it is empty */
}

static void test_a_second_server_is_refused_until_the_first_is_gone(void **state) {
    struct listen_address address, second;
    struct place place;
    attn_error error;
    int fds[2], others[2];
    (void)state;

    make_place(&place);
    assert_int_equal(open_place(&place, fds, &address, &error), ATTN_OK);
    assert_int_equal(open_place(&place, others, &second, &error), ATTN_E_IO);
    assert_non_null(strstr(error.text, "a running attnd has the socket"));

    close_both(fds); /* as a process that is killed: the files stay */
    close(address.lock_fd);
    assert_int_equal(access(place.path, F_OK), 0);
    assert_int_equal(open_place(&place, fds, &address, &error), ATTN_OK);
    listen_remove(&address);
    close_both(fds);
    assert_int_equal(rmdir(place.folder), 0);
}

static void
test_a_socket_of_another_program_is_replaced_when_nobody_listens(void **state) {
    struct sockaddr_un where = {.sun_family = AF_UNIX};
    struct listen_address address;
    struct place place;
    attn_error error;
    int fds[2], other = socket(AF_UNIX, SOCK_STREAM, 0);
    (void)state;

    make_place(&place);
    strcpy(where.sun_path, place.path);
    assert_int_equal(bind(other, (struct sockaddr *)&where, sizeof where), 0);
    assert_int_equal(listen(other, 1), 0);
    assert_int_equal(open_place(&place, fds, &address, &error), ATTN_E_IO);
    assert_non_null(strstr(error.text, "belongs to another server"));
    assert_int_equal(access(place.lock, F_OK), -1);

    close(other);
    assert_int_equal(open_place(&place, fds, &address, &error), ATTN_OK);
    listen_remove(&address);
    close_both(fds);
    assert_int_equal(rmdir(place.folder), 0);
}

static void test_a_file_that_is_not_a_socket_stays(void **state) {
    struct listen_address address;
    struct place place;
    attn_error error;
    char target[96];
    int fds[2];
    (void)state;

    make_place(&place);
    const char *const files[] = {place.path, place.lock};
    for (size_t i = 0; i < 2; i++) { /* the file of the lock is not attnd's, either */
        FILE *file = fopen(files[i], "w");
        assert_true(file != NULL && fputs("mine", file) >= 0 && fclose(file) == 0);
        assert_int_equal(open_place(&place, fds, &address, &error), ATTN_E_IO);
        assert_non_null(strstr(error.text, "remove it, or give another path"));
        assert_int_equal(unlink(files[i]), 0);
    }

    snprintf(target, sizeof target, "%s/target", place.folder);
    assert_int_equal(symlink(target, place.path), 0);
    assert_int_equal(open_place(&place, fds, &address, &error), ATTN_E_IO);
    assert_non_null(strstr(error.text, "exists and is not a socket"));
    assert_int_equal(unlink(place.path), 0);
    assert_int_equal(rmdir(place.folder), 0);
}

static void test_only_files_of_its_own_are_removed(void **state) {
    struct listen_address address, second;
    struct place place;
    attn_error error;
    int fds[2], others[2];
    (void)state;

    make_place(&place);
    assert_int_equal(open_place(&place, fds, &address, &error), ATTN_OK);
    assert_int_equal(unlink(place.path), 0); /* as who empties the folder */
    assert_int_equal(unlink(place.lock), 0);
    assert_int_equal(open_place(&place, others, &second, &error), ATTN_OK);
    listen_remove(&address);
    close_both(fds);
    assert_int_equal(access(place.path, F_OK), 0);
    assert_int_equal(access(place.lock, F_OK), 0);

    listen_remove(&second);
    close_both(others);
    assert_int_equal(rmdir(place.folder), 0);
}

static void test_each_failure_has_its_own_remedy(void **state) {
    struct listen_address address;
    struct rlimit files, few;
    struct place place;
    attn_error error;
    int fds[2];
    (void)state;

    make_place(&place);
    assert_int_equal(symlink("/nowhere", place.lock), 0);
    assert_int_equal(open_place(&place, fds, &address, &error), ATTN_E_IO);
    assert_non_null(strstr(error.text, ".lock: Too many levels of symbolic links; it "
                                       "exists; remove it"));
    assert_int_equal(unlink(place.lock), 0);

    int first = dup(0); /* the lowest that is free */
    close(first);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    for (int left = 0; left < 3; left++) { /* a lock, a socket and its copy */
        few = (struct rlimit){(rlim_t)(first + left), files.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        assert_int_equal(open_place(&place, fds, &address, &error), ATTN_E_IO);
        assert_non_null(strstr(error.text, "Too many open files; raise the limit"));
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    assert_int_equal(rmdir(place.folder), 0);
}

static void test_a_missing_folder_is_named(void **state) {
    struct listen_address address;
    attn_error error;
    int fds[1];
    (void)state;
    assert_int_equal(listen_open("--listen", "unix:/no/such/folder/a.sock", -1, 1, fds,
                                 &address, &error),
                     ATTN_E_IO);
    assert_non_null(strstr(error.text, "--listen: cannot make /no/such/folder/a.sock"));
    assert_non_null(strstr(error.text, "make its folder first"));
}

/* --- clients --- */

static void test_the_peer_of_a_unix_socket_is_its_user(void **state) {
    const struct sockaddr peer = {.sa_family = AF_UNIX};
    char text[ADDRESS_PRINT_MAX], expected[ADDRESS_PRINT_MAX];
    int fds[2];
    (void)state;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    const struct address address = address_of_peer(fds[0], &peer);
    const struct address client = address_of_client(&address);
    close_both(fds);
    assert_memory_equal(&address, &client, sizeof address);
    address_print(&address, text);
    snprintf(expected, sizeof expected, "unix:%u", (unsigned)getuid());
    assert_string_equal(text, expected);

    const struct address unknown = address_of_peer(-1, &peer);
    address_print(&unknown, text);
    assert_string_equal(text, "unix:4294967295");
}

static void test_a_trusted_user_is_not_an_address(void **state) {
    char own[32];
    snprintf(own, sizeof own, "unix:%u", (unsigned)getuid());
    char *const texts[] = {own, (char[]){"::/0"}, (char[]){"unix:4294967294"}};
    const struct sockaddr peer = {.sa_family = AF_UNIX};
    struct address_ranges user, all, nobody;
    attn_error error;
    int fds[2];
    (void)state;

    assert_int_equal(address_ranges_read(&texts[0], 1, &user, &error), ATTN_OK);
    assert_int_equal(address_ranges_read(&texts[1], 1, &all, &error), ATTN_OK);
    assert_int_equal(address_ranges_read(&texts[2], 1, &nobody, &error), ATTN_OK);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    const struct address address = address_of_peer(fds[0], &peer);
    struct address same_bytes = address;
    same_bytes.is_user = false;

    assert_true(address_is_in(&address, &user));
    assert_false(address_is_in(&address, &all));
    assert_false(address_is_in(&address, &nobody));
    assert_false(address_is_in(&same_bytes, &user));
    assert_true(address_is_in(&same_bytes, &all));
    close_both(fds);
    free(user.items);
    free(all.items);
    free(nobody.items);
}

static void test_malformed_users_are_refused(void **state) {
    static const char *const texts[] = {
        "unix:",           "unix:root",        "unix:-1",
        "unix:4294967295", "unix:12345678901", "unix:1/8"};
    struct address_ranges ranges;
    attn_error error;
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char text[32];
        strcpy(text, texts[i]);
        assert_int_equal(address_ranges_read(&(char *){text}, 1, &ranges, &error),
                         ATTN_E_VALUE);
        assert_non_null(strstr(error.text, text));
    }
}

/* --- slow readers --- */

/* Returns whether a sweep ends a connection that has replied for 100 s, and whose client
 * has read all but `unread` of `sent` bytes in that time. */
static bool sweep_ends_reader(size_t sent, size_t unread) {
    const struct address_ranges no_proxies = {0};
    const struct config config = {
        .header_timeout = 10, .idle_timeout = 1000, .min_rate = 1000};
    const struct http_options options = {.config = &config,
                                         .trusted_proxies = &no_proxies};
    struct connection_limits limits = {.options = &options, .max_connections = 1};
    struct connection_list list = {.limits = &limits};
    const struct sockaddr peer = {.sa_family = AF_UNIX};
    static char bytes[100000];
    int fds[2];

    client_table_init(&limits.clients, 1, NULL);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    struct connection *connection = connection_create(&list, fds[0], &peer);
    assert_ptr_equal(connection_start(&list, fds[0]), connection);
    connection_begin_phase(connection, CONNECTION_REPLIES);
    connection_sweep(&list);
    assert_int_equal(send(fds[0], bytes, unread, 0), unread);
    connection->sent += sent;
    connection->since -= 100 * SECOND_NS;
    list.swept = clock_now_ns() - SECOND_NS * 3 / 2;
    connection_sweep(&list);
    bool ended = send(fds[0], "", 1, MSG_NOSIGNAL) < 0;

    close_both(fds);
    connection_destroy(connection);
    client_table_deinit(&limits.clients);
    return ended;
}

static void test_what_the_kernel_holds_at_a_unix_socket_is_not_read(void **state) {
    (void)state;
    assert_true(sweep_ends_reader(90000, 90000));
    assert_true(sweep_ends_reader(150000, 90000)); /* 90 s at 1,000 bytes need 90,000 */
    assert_false(sweep_ends_reader(100000, 0));
    assert_false(sweep_ends_reader(300000, 90000));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_path_mode_and_group_are_read),
        cmocka_unit_test(test_malformed_sockets_are_refused_with_a_remedy),
        cmocka_unit_test(test_a_path_may_have_107_bytes),
        cmocka_unit_test(test_a_socket_is_made_with_its_mode_and_removed_with_its_lock),
        cmocka_unit_test(test_a_second_server_is_refused_until_the_first_is_gone),
        cmocka_unit_test(
            test_a_socket_of_another_program_is_replaced_when_nobody_listens),
        cmocka_unit_test(test_a_file_that_is_not_a_socket_stays),
        cmocka_unit_test(test_only_files_of_its_own_are_removed),
        cmocka_unit_test(test_each_failure_has_its_own_remedy),
        cmocka_unit_test(test_a_missing_folder_is_named),
        cmocka_unit_test(test_the_peer_of_a_unix_socket_is_its_user),
        cmocka_unit_test(test_a_trusted_user_is_not_an_address),
        cmocka_unit_test(test_malformed_users_are_refused),
        cmocka_unit_test(test_what_the_kernel_holds_at_a_unix_socket_is_not_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
