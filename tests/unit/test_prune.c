/* SPDX-License-Identifier: Apache-2.0 */
/* test_prune.c: a pruned file computes what head_mask computes, for random models and for
 * the golden files of every layout. */
#include "fail_alloc.h"
#include "new_file.h"
#include "random_model.h"
#include "weights_file.h"

#include "math/model.h"
#include "weights/prune.h"

#include <attnd/library.h>
#include <math.h>

#define TOLERANCE 1e-6 /* of the largest output */

static int begin(void **state) {
    return attn_init(NULL) == ATTN_OK ? make_folder(state) : -1;
}

/* Runs a request; the caller frees the outputs. */
static float *run_request(const attn_model *model, const attn_request *request,
                          size_t *ret_count) {
    attn_sizes sizes;
    assert_int_equal(attn_plan(model, request, &sizes, NULL), ATTN_OK);
    attn_result result = {.outputs = calloc(sizes.outputs, sizeof(float))};
    void *scratch = aligned_alloc(ATTN_ALIGNMENT, sizes.scratch_bytes + ATTN_ALIGNMENT);
    assert_true(result.outputs != NULL && scratch != NULL);
    attn_run(model, request, &sizes, scratch, &result);
    free(scratch);
    *ret_count = sizes.outputs;
    return result.outputs;
}

/* No fmax(): gcc 12 for arm64 fails to compile a loop of these. */
static void assert_close(const float *got, const float *want, size_t count) {
    double largest = 0;

    for (size_t i = 0; i < count; i++) {
        double magnitude = fabs((double)want[i]);
        if (magnitude > largest)
            largest = magnitude;
    }
    for (size_t i = 0; i < count; i++) {
        if (!(fabs((double)got[i] - (double)want[i]) <= TOLERANCE * largest))
            fail_msg("outputs[%zu] is %g, not %g", i, (double)got[i], (double)want[i]);
    }
}

/* Compares a pruned model with the whole one on a random request, whose mask is 0 for the
 * heads that were left out. */
static void compare_outputs(uint64_t *seed, const attn_model *whole, const bool *left_out,
                            const attn_model *pruned) {
    size_t num_heads = attn_model_get_info(whole)->num_heads, count, pruned_count;
    struct random_request random;
    float masks[2][64];

    random_request_init(seed, whole, 12, 12, &random);
    random_fill(seed, masks[0], num_heads);
    for (size_t head = 0, to = 0; head < num_heads; head++) {
        if (left_out[head])
            masks[0][head] = 0;
        else
            masks[1][to++] = masks[0][head];
    }
    random.request.need_weights = ATTN_WEIGHTS_NONE;
    random.request.head_mask = masks[0];
    float *want = run_request(whole, &random.request, &count);
    random.request.head_mask = masks[1];
    float *got = run_request(pruned, &random.request, &pruned_count);

    assert_int_equal(pruned_count, count);
    assert_close(got, want, count);
    free(want);
    free(got);
    random_request_deinit(&random);
}

/* Prunes a model, writes the file and loads it without options. */
static attn_model *prune_and_load(const attn_model *whole, const bool *left_out) {
    attn_model *pruned, *loaded = NULL;
    attn_error error;

    assert_int_equal(prune_create_model(whole, left_out, &pruned, &error), ATTN_OK);
    if (prune_write_file(pruned, path, &error) != ATTN_OK ||
        attn_model_load("pruned", path, NULL, NULL, &loaded, &error) != ATTN_OK)
        fail_msg("%s", error.text);
    assert_false(exists(part));
    assert_int_equal(unlink(path), 0);
    attn_model_destroy(pruned);
    return loaded;
}

/* Checks that only the layout, the number of heads and what follows from it differ. */
static void compare_info(const attn_model_info *whole, const bool *left_out,
                         const attn_model_info *pruned) {
    size_t kept = 0;
    for (size_t head = 0; head < whole->num_heads; head++)
        kept += left_out[head] ? 0 : 1;

    assert_string_equal(pruned->layout, "d2l");
    assert_int_equal(pruned->num_heads, kept);
    assert_int_equal(pruned->width.head, whole->width.head);
    assert_int_equal(pruned->score.kind, whole->score.kind);
    assert_int_equal(pruned->width.query, whole->width.query);
    assert_int_equal(pruned->width.key, whole->width.key);
    assert_int_equal(pruned->width.value, whole->width.value);
    assert_int_equal(pruned->width.out, whole->width.out);
    assert_int_equal(pruned->width.additive, whole->width.additive);
    assert_int_equal(pruned->linears[ATTN_QUERY].bias, whole->linears[ATTN_QUERY].bias);
    assert_int_equal(pruned->linears[ATTN_KEY].bias, whole->linears[ATTN_KEY].bias);
    assert_int_equal(pruned->linears[ATTN_VALUE].bias, whole->linears[ATTN_VALUE].bias);
    assert_int_equal(pruned->linears[ATTN_OUTPUT].bias, whole->linears[ATTN_OUTPUT].bias);
    assert_true(pruned->linears[ATTN_OUTPUT].weight);
    assert_int_equal(pruned->mask.causal, whole->mask.causal);
    assert_int_equal(pruned->context_length, whole->context_length);
}

/* Prunes random heads, at least one and not all. */
static void check_random_heads(uint64_t *seed, const attn_model *whole) {
    const attn_model_info *info = attn_model_get_info(whole);
    bool left_out[64] = {false};
    size_t first = random_between(seed, 0, info->num_heads - 1);

    for (size_t head = 0; head < info->num_heads; head++)
        left_out[head] = random_between(seed, 0, 1) == 1;
    left_out[first] = true;
    left_out[(first + 1) % info->num_heads] = false;
    attn_model *pruned = prune_and_load(whole, left_out);
    compare_info(info, left_out, attn_model_get_info(pruned));
    compare_outputs(seed, whole, left_out, pruned);
    attn_model_destroy(pruned);
}

static void test_pruned_model_equals_head_mask(void **state) {
    uint64_t seed = unit_seed(11);
    size_t checked = 0;
    (void)state;

    while (checked < 60) {
        attn_model_info info = random_model_info(&seed);
        info.mask.causal = random_between(&seed, 0, 1) == 1;
        info.context_length = random_between(&seed, 0, 1) * 50;
        if (info.num_heads == 1)
            continue;
        attn_model *model = random_model(&seed, &info);
        check_random_heads(&seed, model);
        attn_model_destroy(model);
        checked++;
    }
}

static void test_every_layout_can_be_pruned(void **state) {
    static const struct {
        const char *file;
        attn_model_options options;
    } goldens[] = {
        {"additive_scoring", {.num_heads = 4, .causal = "true"}},
        {"d2l_bias_random", {.num_heads = 5}},
        {"d2l_sizes", {.num_heads = 6}},
        {"llms_from_scratch_split", {.num_heads = 2, .context_length = 12}},
        {"llms_from_scratch_wrapper", {.causal = "false"}},
        {"torch_kdim_vdim", {.num_heads = 6}},
        {"torch_packed", {.num_heads = 6, .causal = "true"}},
        {"two_stage_heads", {0}},
    };
    uint64_t seed = unit_seed(12);
    (void)state;

    for (size_t i = 0; i < sizeof goldens / sizeof goldens[0]; i++) {
        char golden[512];
        attn_model *model;
        attn_error error;

        snprintf(golden, sizeof golden, TEST_DATA "/golden/%s.safetensors",
                 goldens[i].file);
        if (attn_model_load("m", golden, &goldens[i].options, NULL, &model, &error) !=
            ATTN_OK)
            fail_msg("%s", error.text);
        print_message("%s\n", goldens[i].file);
        check_random_heads(&seed, model);
        attn_model_destroy(model);
    }
}

static void test_what_d2l_cannot_hold_is_named_beside_the_remedy(void **state) {
    static const struct {
        attn_model_info info; /* 0: the head size, which is 4, and its scale */
        const char *words;
    } cases[] = {
        {{.num_kv_heads = 3}, "heads that share a key head"},
        {{.score.scale = 0.25}, "a scale of its own"},
        {{.width.score = 8}, "values of another size than keys"},
        {{.latent.key = 5}, "latent rows"},
        {{.mask.window = 7}, "a window"},
        {{.score.softcap = 50}, "a softcap"},
        {{.projection.clip = 8}, "a clip"},
        {{.score.sinks = true}, "sinks"},
        {{.score.bias = ATTN_BIAS_ALIBI}, "a bias by distance"},
        {{.score = {.bias = ATTN_BIAS_CONTENT,
                    .position_rows = 2,
                    .position_keys = true}},
         "terms of content by position"},
        {{.head_norm.kind = ATTN_NORM_RMS}, "norms of queries and keys"},
        {{.linears[ATTN_GATE].weight = true}, "a gate"},
        {{.out_norm.kind = ATTN_NORM_RMS}, "a norm of the heads' outputs"},
        {{.rotation = {.size = 4, .type = "default"}}, "rotary positions"},
        {{.pre_norm = {.kind = ATTN_NORM_RMS, .applied = true}},
         "a norm before it (pre_norm=true)"},
    };
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attn_model_info info = cases[i].info;
        attn_error error;

        info.num_heads = 6;
        info.width.head = 4;
        info.width.score = info.width.score > 0 ? info.width.score : 4;
        info.num_kv_heads = info.num_kv_heads > 0 ? info.num_kv_heads : 6;
        info.score.scale = info.score.scale > 0 ? info.score.scale : 0.5;
        assert_int_equal(prune_check(&info, &error), ATTN_E_UNSUPPORTED);
        assert_non_null(strstr(error.text, cases[i].words));
        assert_non_null(strstr(error.text, "head_mask"));
    }
}

static void test_layer_without_output_projection_keeps_its_columns(void **state) {
    const bool left_out[] = {false, true, false};
    const attn_model_info info = {
        .name = "m",
        .layout = "test",
        .width = {.query = 2, .key = 2, .value = 2, .out = 6, .head = 2},
        .num_heads = 3};
    uint64_t seed = unit_seed(13);
    size_t count;
    (void)state;

    attn_model *model = random_model(&seed, &info);
    attn_model *pruned = prune_and_load(model, left_out);
    const float rows[] = {1, 2, 3, 4};
    const size_t lens[] = {2};
    const attn_request request = {.num_sequences = 1,
                                  .query_lens = lens,
                                  .key_lens = lens,
                                  .queries = rows,
                                  .keys = rows,
                                  .values = rows};
    float *outputs = run_request(pruned, &request, &count);
    assert_int_equal(count, 12);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(outputs[i] == 0, i % 6 == 2 || i % 6 == 3);
    free(outputs);
    attn_model_destroy(pruned);
    attn_model_destroy(model);
}

static void test_pruning_survives_every_failed_allocation(void **state) {
    const bool left_out[] = {true, false};
    attn_model *model, *pruned = NULL;
    size_t nth;
    (void)state;

    assert_int_equal(attn_model_demo("journey", NULL, &model, NULL), ATTN_OK);
    for (nth = 1;; nth++) {
        attn_error error = {ATTN_OK, ""};
        fail_alloc_at(nth);
        attn_status status = prune_create_model(model, left_out, &pruned, &error);
        if (status == ATTN_OK)
            status = prune_write_file(pruned, path, &error);
        bool failed = fail_alloc_stop();
        attn_model_destroy(pruned);
        pruned = NULL;
        if (!failed) {
            assert_int_equal(status, ATTN_OK);
            break;
        }
        assert_int_equal(status, ATTN_E_NOMEM);
        assert_true(error.text[0] != '\0');
        assert_false(exists(path) || exists(part));
    }
    assert_true(nth > 5);
    assert_int_equal(unlink(path), 0);
    attn_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pruned_model_equals_head_mask),
        cmocka_unit_test(test_every_layout_can_be_pruned),
        cmocka_unit_test(test_what_d2l_cannot_hold_is_named_beside_the_remedy),
        cmocka_unit_test(test_layer_without_output_projection_keeps_its_columns),
        cmocka_unit_test(test_pruning_survives_every_failed_allocation),
    };
    return cmocka_run_group_tests_name("prune", tests, begin, remove_folder);
}
