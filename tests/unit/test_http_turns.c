/* SPDX-License-Identifier: Apache-2.0 */
/* test_http_turns.c: tests of which request has its turn. */
#include "http/net/turns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#define SECOND_NS ((int64_t)1000000000)

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
    struct turns turns = {.flows = TAILQ_HEAD_INITIALIZER(turns.flows)};
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
    struct turns turns = {.flows = TAILQ_HEAD_INITIALIZER(turns.flows)};
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
    struct turns turns = {.flows = TAILQ_HEAD_INITIALIZER(turns.flows)};
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
    struct turns turns = {.flows = TAILQ_HEAD_INITIALIZER(turns.flows)};
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
    struct turns turns = {.flows = TAILQ_HEAD_INITIALIZER(turns.flows)};
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
    struct turns turns = {.flows = TAILQ_HEAD_INITIALIZER(turns.flows)};
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
    struct turns turns = {.flows = TAILQ_HEAD_INITIALIZER(turns.flows)};
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
        cmocka_unit_test(test_client_gets_its_share_of_a_round),
        cmocka_unit_test(test_requests_that_wait_get_turns_in_order_and_by_client),
        cmocka_unit_test(test_requests_that_leave_are_no_longer_served),
        cmocka_unit_test(test_members_of_a_flow_have_turns_by_turns),
        cmocka_unit_test(test_client_has_the_thread_for_its_time_of_a_round),
        cmocka_unit_test(test_time_is_that_of_the_client_that_was_served_last),
        cmocka_unit_test(test_requests_wait_again_in_order_when_the_time_is_over),
    };
    return cmocka_run_group_tests_name("turns", tests, NULL, NULL);
}
