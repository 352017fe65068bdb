/* SPDX-License-Identifier: Apache-2.0 */
/* list_families.c: prints what the layers of each family of the table have when
 * config.json has nothing but its type: lines of TYPE, PART, and features, with tabs. */
#include "weights/families/kinds.h"
#include "weights/families/traits.h"
#include "weights/layer/make.h"

#include <stdio.h>

#define LAYERS_MAX 12 /* of a stack; kinds of layers are repeated sooner */

static void print_layer(const struct match *match, const struct match_stack *stack,
                        size_t index) {
    static const char letters[] = "qkvo";
    char features[FEATURES_TEXT_SIZE], biases[sizeof letters] = "";
    struct layer layer;

    if (traits_read(match, stack, index, &layer) != ATTN_OK)
        return;
    for (size_t i = ATTN_QUERY, used = 0; i <= ATTN_OUTPUT; i++) {
        if (layer.linears[i].has_bias)
            biases[used++] = letters[i];
    }
    layer_describe_features(&layer, features);
    printf("%s\t%s%s\t%s, heads of %zu%s%s%s%s%s\n", match->type, stack->part,
           layer.cross ? "cross" : "", features, layer.info.width.score,
           layer.info.num_kv_heads < layer.info.num_heads ? ", shared key heads" : "",
           match->family->scores.sinks != NULL ? ", sinks" : "",
           match->family->weights.split == SPLIT_GATED ||
                   stack->stack->names[ATTN_GATE] != NULL
               ? ", gate"
               : "",
           biases[0] != '\0' ? ", biases " : "", biases);
}

static void print_family(const struct family *family, const char *type,
                         const json_t *config) {
    const struct match match = {.family = family, .type = type};

    for (size_t s = 0; s < MATCH_STACKS_MAX && family->stacks[s].layer != NULL; s++) {
        const struct stack *from = &family->stacks[s];
        attn_error error = {.status = ATTN_OK};
        const struct match_stack stack = {
            .stack = from,
            .part = from->part,
            .section = {.object = config, .error = &error},
            .num_heads = from->heads,
            .width = from->width % from->heads == 0 ? from->width : from->heads * 64,
            .num_layers = from->layers};
        for (size_t i = 0; i < from->layers && i < LAYERS_MAX; i++) {
            const struct layer_source kind = match_source(&match, &stack, i);
            if (kind_attends(&kind))
                print_layer(&match, &stack, i);
            error.status = ATTN_OK;
        }
    }
}

int main(void) {
    json_t *config = json_object();
    const struct family *family;

    for (size_t f = 0; (family = family_get(f)) != NULL; f++) {
        for (size_t i = 0; family->types[i] != NULL; i++)
            print_family(family, family->types[i], config);
    }
    json_decref(config);
    return 0;
}
