/* SPDX-License-Identifier: Apache-2.0 */
/* one_attention.c: uses libattnd without the daemon. Runs the built-in model 'journey' on
 * the six tokens "Your journey starts with one step" and prints its outputs.
 *
 *     cc one_attention.c $(pkg-config --cflags --libs attnd) -o one_attention */
#include <attnd/attention.h>
#include <attnd/library.h>
#include <stdio.h>
#include <stdlib.h>

static const float tokens[6 * 3] = {
    0.43F, 0.15F, 0.89F, /* Your */
    0.55F, 0.87F, 0.66F, /* journey */
    0.57F, 0.85F, 0.64F, /* starts */
    0.22F, 0.58F, 0.33F, /* with */
    0.77F, 0.25F, 0.10F, /* one */
    0.05F, 0.80F, 0.55F, /* step */
};

int main(void) {
    const size_t length[] = {6};
    attn_error error = {.text = "out of memory"};
    attn_model *model = NULL;
    attn_result result = {0};
    attn_sizes sizes;
    void *scratch = NULL;
    int exit_code = EXIT_FAILURE;

    if (attn_init(&error) != ATTN_OK ||
        attn_model_demo("journey", NULL, &model, &error) != ATTN_OK)
        goto done;

    const attn_model_info *info = attn_model_get_info(model);
    const attn_request request = {
        .num_sequences = 1,
        .query_lens = length,
        .key_lens = length,
        .queries = tokens,
        .keys = tokens,
        .values = tokens,
        .causal = info->mask.causal,
    };
    if (attn_plan(model, &request, &sizes, &error) != ATTN_OK)
        goto done;

    result.outputs = malloc(sizes.outputs * sizeof *result.outputs);
    scratch = aligned_alloc(ATTN_ALIGNMENT, sizes.scratch_bytes);
    if (result.outputs == NULL || scratch == NULL)
        goto done;
    attn_run(model, &request, &sizes, scratch, &result);

    for (size_t q = 0; q < length[0]; q++)
        printf("%.4f %.4f\n", (double)result.outputs[q * info->width.out],
               (double)result.outputs[q * info->width.out + 1]);
    exit_code = EXIT_SUCCESS;

done:
    if (exit_code != EXIT_SUCCESS)
        fprintf(stderr, "%s\n", error.text);
    free(scratch);
    free(result.outputs);
    attn_model_destroy(model);
    return exit_code;
}
