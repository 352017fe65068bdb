/* SPDX-License-Identifier: Apache-2.0 */
/* call.c: takes a request of a program through the phases that one of the server has:
 * decode, plan, compute, reply. */
#include "base/clock.h"
#include "base/error.h"
#include "base/machine.h"
#include "base/size.h"
#include "entry/crew.h"
#include "entry/reply.h"
#include "wire/init.h"
#include "wire/native/native.h"

#include <locale.h>
#include <pthread.h>
#include <stdlib.h>

/* Less is allocated without asking how much is free, which takes some microseconds. */
#define UNASKED_BYTES ((size_t)64 * 1024 * 1024)

/* One call. */
struct call {
    struct crew_call crew;
    attn_parallel parallel;
    struct arena arena;    /* of what is read, and scratch */
    size_t reserved, free; /* bytes; `free` is 0 until it is asked for */
    struct wire_request request;
    attn_sizes sizes;
    attn_reply *reply;
    struct wire_problem problem;
};

/* --- memory --- */

/* Returns how many bytes are free, of which this call has taken none yet. */
static size_t find_free(struct call *call) {
    if (call->free == 0)
        call->free = machine_free_memory("");
    return call->free;
}

/* wire_input.reserve */
static bool reserve_for_call(void *context, size_t bytes,
                             struct wire_problem *ret_problem) {
    struct call *call = context;

    size_add_saturating(&call->reserved, bytes);
    if (call->reserved <= UNASKED_BYTES || call->reserved <= find_free(call))
        return true;
    return wire_problem_set(ret_problem, WIRE_E_OUT_OF_MEMORY, NULL,
                            "the call needs %zu bytes, but %zu are free; send fewer or "
                            "shorter sequences",
                            call->reserved, call->free);
}

/* Returns the word of need of a result. */
static const char *find_word_of(enum result_id id) {
    while (id > 0 && result_table[id].word == NULL)
        id--;
    return result_table[id].word;
}

/* Reserves the results. The largest one is named where they do not fit. */
static bool reserve_results(struct call *call) {
    size_t bytes = 0, largest_bytes = 0;
    enum result_id largest = RESULT_OUTPUTS;

    for (enum result_id id = 0; id < NUM_RESULTS; id++) {
        size_t result =
            size_product(result_count(&call->sizes, id), result_number_bytes(id));
        size_add_saturating(&bytes, result);
        if (result > largest_bytes) {
            largest = id;
            largest_bytes = result;
        }
    }
    size_add_saturating(&call->reserved, bytes);
    if (call->reserved <= UNASKED_BYTES || call->reserved <= find_free(call))
        return true;
    return wire_problem_set(
        &call->problem, WIRE_E_OUT_OF_MEMORY, "need",
        "the results would have %zu bytes, of which %s %zu, but %zu are free; %s", bytes,
        find_word_of(largest), largest_bytes, call->free,
        (result_table[largest].kinds & RESULT_BY_ROW) != 0
            ? "need received, top, entropy or blocks, which are small, or " //
            WIRE_SELECT_FEWER
            : "send fewer or shorter sequences");
}

/* Allocates the results, where NULL stands for none. */
static bool alloc_results(struct call *call, attn_result *ret_result) {
    for (enum result_id id = 0; id < NUM_RESULTS; id++) {
        size_t count = result_count(&call->sizes, id);
        void *numbers = NULL;
        if (count > 0)
            numbers = arena_alloc(&call->reply->arena, count, result_number_bytes(id));
        if (count > 0 && numbers == NULL)
            return wire_problem_set_no_memory(&call->problem);
        result_set_numbers(ret_result, id, numbers);
    }
    return true;
}

/* --- the phases --- */

static bool read_request(struct call *call, const attn_model *model, const char *options,
                         const attn_array *arrays, size_t num_arrays) {
    const char *body = options != NULL ? options : "{}";
    const struct wire_input input = {.body = body,
                                     .size = strlen(body),
                                     .json_size = WIRE_NO_SIZE,
                                     .models = &model,
                                     .num_models = model != NULL,
                                     .any_name = true,
                                     .arena = &call->arena,
                                     .reserve = reserve_for_call,
                                     .context = call};
    int64_t begun = clock_now_ns();

    if (!wire_arrays_read(&input, arrays, num_arrays, &call->request, &call->problem))
        return false;
    if (call->request.timeout_ns != 0)
        call->crew.limit.deadline = begun + call->request.timeout_ns;
    return true;
}

/* Whether the limit of the call is not over. */
static bool check_limit(struct call *call) {
    return !crew_limit_is_over(&call->crew.limit) ||
           wire_problem_set(&call->problem, WIRE_E_DEADLINE_EXCEEDED, NULL,
                            "the result was not computed within timeout_ms; allow more "
                            "time, or send a smaller request");
}

static bool compute(struct call *call) {
    struct wire_request *request = &call->request;
    attn_result result = {0};
    attn_error error;

    call->parallel = crew_parallel(&call->crew);
    request->batch.parallel = &call->parallel;
    if (attn_plan(request->model, &request->batch, &call->sizes, &error) != ATTN_OK)
        return wire_problem_set(&call->problem, WIRE_E_REQUEST_TOO_LARGE, NULL,
                                "%s; send fewer or shorter sequences", error.text);
    if (!reserve_results(call) ||
        !reserve_for_call(call, call->sizes.scratch_bytes, &call->problem) ||
        !check_limit(call) || !alloc_results(call, &result))
        return false;
    void *scratch = arena_alloc(&call->arena, call->sizes.scratch_bytes, 1);
    if (scratch == NULL)
        return wire_problem_set_no_memory(&call->problem);

    attn_run(request->model, &request->batch, &call->sizes, scratch, &result);
    return check_limit(call) &&
           entry_reply_fill(call->reply, request, &result, &call->problem);
}

/* --- errors --- */

static attn_status find_status(enum wire_error error) {
    switch (error) {
    case WIRE_E_OUT_OF_MEMORY:
        return ATTN_E_NOMEM;
    case WIRE_E_DEADLINE_EXCEEDED:
        return ATTN_E_STOPPED;
    case WIRE_E_REQUEST_TOO_LARGE:
        return ATTN_E_OVERFLOW;
    case WIRE_E_MALFORMED_JSON:
    case WIRE_E_NESTED_TOO_DEEPLY:
        return ATTN_E_FORMAT;
    case WIRE_E_WRONG_RANK:
    case WIRE_E_EMPTY_TENSOR:
    case WIRE_E_UNEVEN_ROWS:
    case WIRE_E_SHAPE_MISMATCH:
    case WIRE_E_TOO_MANY_TOKENS:
        return ATTN_E_SHAPE;
    default:
        return ATTN_E_VALUE;
    }
}

static attn_status refuse_call(const struct call *call, attn_error *ret_error) {
    const struct crew_limit stopped = {.stop = call->crew.limit.stop};

    if (crew_limit_is_over(&stopped))
        return error_set(ret_error, ATTN_E_STOPPED, "the caller has stopped it");
    return error_set(ret_error, find_status(call->problem.error), "%s: %s",
                     call->problem.title, call->problem.detail);
}

/* --- the call --- */

static attn_status init_status;
static locale_t c_locale; /* in which numbers have a point, whatever the program's has */

static void init_once(void) {
    init_status = wire_init();
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (c_locale == (locale_t)0)
        init_status = ATTN_E_NOMEM;
}

attn_status attn_call(attn_pool *pool, const attn_model *model, const char *options,
                      const attn_array *arrays, size_t num_arrays, const int *stop,
                      attn_reply **ret_reply, attn_error *ret_error) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct call call = {.crew.limit.stop = stop};

    pthread_once(&once, init_once);
    call.reply = calloc(1, sizeof *call.reply);
    if (init_status != ATTN_OK || call.reply == NULL) {
        free(call.reply);
        return error_set(ret_error, ATTN_E_NOMEM, "out of memory");
    }
    attn_status status = crew_get(pool, &call.crew.crew, ret_error);
    if (status != ATTN_OK) {
        free(call.reply);
        return status;
    }

    locale_t before = uselocale(c_locale);
    arena_init(&call.arena, 0);
    arena_init(&call.reply->arena, 0);
    bool done = read_request(&call, model, options, arrays, num_arrays) && compute(&call);
    arena_deinit(&call.arena);
    if (done) {
        *ret_reply = call.reply;
    } else {
        attn_reply_destroy(call.reply);
        status = refuse_call(&call, ret_error);
    }
    uselocale(before);
    return status;
}
