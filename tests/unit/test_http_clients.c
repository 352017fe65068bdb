/* SPDX-License-Identifier: Apache-2.0 */
/* test_http_clients.c: tests of the table of clients. */
#include "http/net/client.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

static struct address read_valid(const char *text) {
    struct address address;
    assert_true(address_read(text, strlen(text), &address));
    return address;
}

static struct sched_pool *create_pool(void) {
    const struct sched_options options = {.num_workers = 1, .queue_slots = 1};
    struct sched_pool *pool;
    assert_int_equal(sched_pool_create(&options, &pool), ATTN_OK);
    return pool;
}

/* Returns the tag of a client that has no other users. */
static int64_t find_tag(struct client_table *table, uint32_t number) {
    struct address address = read_valid("10.0.0.0");
    memcpy(address.bytes + sizeof address.bytes - sizeof number, &number, sizeof number);
    struct client *client = client_acquire(table, &address, NULL);
    int64_t tag = client->jobs.flows[SCHED_LARGE].tag;
    client_release(table, client);
    return tag;
}

/* Lets a client use so much more than its share, without any users before or after. */
static void set_tag(struct client_table *table, uint32_t number, int64_t tag) {
    struct address address = read_valid("10.0.0.0");
    memcpy(address.bytes + sizeof address.bytes - sizeof number, &number, sizeof number);
    struct client *client = client_acquire(table, &address, NULL);
    client->jobs.flows[SCHED_LARGE].tag = tag;
    client_release(table, client);
}

static void do_nothing(struct sched_job *job, struct sched_worker *worker) {
    (void)job;
    sched_end_job(worker);
}

static void test_client_that_used_more_than_its_share_is_kept_as_long(void **state) {
    struct client_table table;
    struct sched_client other = {0};
    struct sched_job job = {.run = do_nothing, .client = &other, .cost = 10000000};
    (void)state;

    struct sched_pool *pool = create_pool();
    client_table_init(&table, 1, pool);
    for (uint32_t i = 1; i <= 20; i++)
        set_tag(&table, i, 1000);
    assert_int_equal(find_tag(&table, 1), 1000);
    set_tag(&table, 21, 0);
    assert_int_equal(table.num_kept, 20);

    sched_submit(pool, &job); /* virtual time passes the clients */
    while (sched_get_load(pool).num_queued + sched_get_load(pool).num_busy > 0)
        ;
    for (uint32_t i = 1; i <= 20; i++)
        set_tag(&table, 30, 0);
    assert_int_equal(table.num_kept, 0);
    assert_int_equal(find_tag(&table, 1), 0);
    client_table_deinit(&table);
    sched_pool_destroy(pool);
}

static void test_so_many_clients_are_kept_and_the_newest(void **state) {
    struct client_table table;
    (void)state;

    struct sched_pool *pool = create_pool();
    client_table_init(&table, 1, pool);
    for (uint32_t i = 0; i < CLIENT_KEPT_MAX + 100; i++) {
        set_tag(&table, i, 1000);
        assert_true(table.num_kept <= CLIENT_KEPT_MAX);
    }
    assert_int_equal(table.num_kept, CLIENT_KEPT_MAX);
    assert_int_equal(find_tag(&table, CLIENT_KEPT_MAX + 99), 1000);
    client_table_deinit(&table);
    sched_pool_destroy(pool);
}

static void test_client_is_shared_until_its_last_user_leaves(void **state) {
    struct client_table table;
    const struct address a = read_valid("2001:db8::1"), b = read_valid("2001:db8::2"),
                         c = read_valid("2001:db8:0:1::1");
    (void)state;

    struct sched_pool *pool = create_pool();
    client_table_init(&table, 1, pool);
    struct client *first = client_acquire(&table, &a, NULL),
                  *second = client_acquire(&table, &b, NULL);
    struct client *other = client_acquire(&table, &c, NULL);
    assert_ptr_equal(first, second);
    assert_ptr_not_equal(first, other);
    assert_int_equal(first->num_users, 2);

    client_release(&table, other);
    client_release(&table, first);
    assert_ptr_equal(client_acquire(&table, &a, NULL), second);
    client_release(&table, second);
    client_release(&table, second);
    client_table_deinit(&table);
    sched_pool_destroy(pool);
}

static void test_address_is_a_member_of_each_owner_by_itself(void **state) {
    struct client_table table;
    const struct address a = read_valid("10.0.0.1"), b = read_valid("10.0.0.2");
    (void)state;

    struct sched_pool *pool = create_pool();
    client_table_init(&table, 2, pool);
    struct client *plain = client_acquire(&table, &a, NULL);
    struct client *member = client_acquire(&table, &a, "team");
    assert_ptr_not_equal(plain, member);
    assert_ptr_equal(client_acquire(&table, &a, "team"), member);
    client_release(&table, member);
    struct client *second = client_acquire(&table, &b, "team");
    struct client *elsewhere = client_acquire(&table, &a, "other");
    struct owner *team = member->owner, *other = elsewhere->owner;
    assert_ptr_equal(second->owner, team);
    assert_ptr_equal(client_list_owners(&table), other);
    assert_ptr_equal(other->next, team);
    assert_ptr_not_equal(second, member);
    assert_ptr_not_equal(elsewhere, member);

    /* One that has had more than the others is kept, without users. */
    atomic_store(&second->member.tags[SCHED_LARGE], 1000);
    client_release(&table, second);
    client_release(&table, elsewhere);
    assert_int_equal(table.num_kept, 1);
    assert_ptr_equal(client_acquire(&table, &b, "team"), second);
    atomic_store(&team->jobs.flows[SCHED_LARGE].member_time, 1000);
    client_release(&table, second);
    client_release(&table, member);
    client_release(&table, plain);
    assert_int_equal(table.num_kept, 0);
    client_table_deinit(&table);
    sched_pool_destroy(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_client_is_shared_until_its_last_user_leaves),
        cmocka_unit_test(test_client_that_used_more_than_its_share_is_kept_as_long),
        cmocka_unit_test(test_address_is_a_member_of_each_owner_by_itself),
        cmocka_unit_test(test_so_many_clients_are_kept_and_the_newest),
    };
    return cmocka_run_group_tests_name("clients", tests, NULL, NULL);
}
