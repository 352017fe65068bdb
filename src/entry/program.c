/* SPDX-License-Identifier: Apache-2.0 */
/* program.c: takes a request of a program through the phases that one of the server has:
 * decode, plan, compute, reply. */
#include "base/clock.h"
#include "base/error.h"
#include "base/size.h"
#include "entry/begin.h"
#include "entry/call.h"
#include "wire/native/native.h"

#include <attnd/heads.h>
#include <stdlib.h>

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
    if (call_reserve(call, bytes, &call->problem))
        return true;
    return wire_problem_set(
        &call->problem, WIRE_E_OUT_OF_MEMORY, "need",
        "the results would have %zu bytes, of which %s %zu, but %zu are free; %s", bytes,
        find_word_of(largest), largest_bytes, call->free,
        (result_table[largest].kinds & RESULT_BY_ROW) != 0
            ? "need received, top, entropy or blocks, or " WIRE_SELECT_FEWER
            : "send fewer or shorter sequences");
}

/* --- the phases --- */

static bool read_request(struct call *call, const attn_model *model, const char *options,
                         const attn_array *arrays, size_t num_arrays) {
    const char *body = options != NULL ? options : "{}";
    const struct wire_input input = {.body = body,
                                     .size = strlen(body),
                                     .json_size = WIRE_NO_SIZE,
                                     .models = model != NULL ? &model : NULL,
                                     .num_models = model != NULL,
                                     .any_name = true,
                                     .targets_alone = call->analyses,
                                     .arena = &call->arena,
                                     .reserve = call_reserve,
                                     .context = call};
    int64_t begun = clock_now_ns();

    if (!wire_arrays_read(&input, arrays, num_arrays, &call->request, &call->problem))
        return false;
    if (call->request.timeout_ns != 0)
        call->crew.limit.deadline = begun + call->request.timeout_ns;
    return true;
}

static bool attend(struct call *call) {
    const struct wire_request *request = &call->request;
    attn_result result = {0};

    if (!reserve_results(call))
        return false;
    void *scratch = call_alloc_scratch(call);
    if (scratch == NULL)
        return false;
    if (!results_alloc(&call->reply->arena, &call->sizes, &result))
        return wire_problem_set_no_memory(&call->problem);
    attn_run(request->model, &request->batch, &call->sizes, scratch, &result);
    return call_check_limit(call) && call_make_reply(call, &result);
}

static bool compute(struct call *call) {
    struct wire_request *request = &call->request;
    attn_error error;

    call->parallel = crew_parallel(&call->crew);
    request->batch.parallel = &call->parallel;
    attn_status status = (call->analyses ? attn_heads_plan : attn_plan)(
        request->model, &request->batch, &call->sizes, &error);
    if (status != ATTN_OK)
        return wire_problem_set(&call->problem, WIRE_E_REQUEST_TOO_LARGE, NULL,
                                "%s; send fewer or shorter sequences", error.text);
    return call->analyses ? call_analyse_heads(call) && call_check_limit(call)
                          : attend(call);
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

/* Reads and computes. Among the arrays of an analysis, sums are not a field. */
static bool answer(struct call *call, const attn_model *model, const char *options,
                   const attn_array *arrays, size_t num_arrays) {
    attn_array *fields = arena_alloc(&call->arena, num_arrays, sizeof *fields);
    size_t num_fields = 0;

    if (fields == NULL)
        return wire_problem_set_no_memory(&call->problem);
    for (size_t i = 0; i < num_arrays; i++) {
        if (call->analyses && strcmp(arrays[i].name, "sums") == 0)
            call->sums = &arrays[i];
        else
            fields[num_fields++] = arrays[i];
    }
    return read_request(call, model, options, fields, num_fields) && compute(call);
}

static attn_status make_call(struct call *call, attn_pool *pool, const attn_model *model,
                             const char *options, const attn_array *arrays,
                             size_t num_arrays, attn_reply **ret_reply,
                             attn_error *ret_error) {
    locale_t before;
    attn_status status = entry_begin(&before, ret_error);
    if (status != ATTN_OK)
        return status;

    status = crew_get(pool, &call->crew.crew, ret_error);
    call->reply = calloc(1, sizeof *call->reply);
    if (status == ATTN_OK && call->reply == NULL)
        status = error_set(ret_error, ATTN_E_NOMEM, "out of memory");
    if (status == ATTN_OK && !answer(call, model, options, arrays, num_arrays))
        status = refuse_call(call, ret_error);
    arena_deinit(&call->arena);
    if (status == ATTN_OK)
        *ret_reply = call->reply;
    else
        attn_reply_destroy(call->reply);
    entry_end(before);
    return status;
}

attn_status attn_call(attn_pool *pool, const attn_model *model, const char *options,
                      const attn_array *arrays, size_t num_arrays, const int *stop,
                      attn_reply **ret_reply, attn_error *ret_error) {
    struct call call = {.crew.limit.stop = stop};

    return make_call(&call, pool, model, options, arrays, num_arrays, ret_reply,
                     ret_error);
}

attn_status attn_call_heads(attn_pool *pool, const attn_model *model, const char *options,
                            const attn_array *arrays, size_t num_arrays, const int *stop,
                            attn_reply **ret_reply, attn_error *ret_error) {
    struct call call = {.crew.limit.stop = stop, .analyses = true};

    return make_call(&call, pool, model, options, arrays, num_arrays, ret_reply,
                     ret_error);
}
