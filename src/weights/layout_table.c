/* SPDX-License-Identifier: Apache-2.0 */
/* layout_table.c: the layouts that attnd knows, and which names of tensors they need. */
#include "weights/layout_table.h"

#include <stdio.h>
#include <string.h>

#define LINEAR(module)                                                                   \
    { module ".weight", module ".bias" }

/* clang-format off */
const struct layout layout_table[LAYOUT_TABLE_SIZE] = {
    {   /* Zhang et al., Dive into Deep Learning, section 11.5 */
        .name = "d2l",
        .linears = {
            [LINEAR_QUERY]  = LINEAR("W_q"),
            [LINEAR_KEY]    = LINEAR("W_k"),
            [LINEAR_VALUE]  = LINEAR("W_v"),
            [LINEAR_OUTPUT] = LINEAR("W_o"),
        },
    },
    {   /* torch.nn.MultiheadAttention */
        .name = "torch",
        .linears = {
            [LINEAR_PACKED] = {"in_proj_weight", "in_proj_bias"},
            [LINEAR_OUTPUT] = LINEAR("out_proj"),
        },
        .refused = {"bias_k", "bias_v"},
    },
    {   /* the same with kdim or vdim */
        .name = "torch",
        .linears = {
            [LINEAR_QUERY]  = {"q_proj_weight", NULL},
            [LINEAR_KEY]    = {"k_proj_weight", NULL},
            [LINEAR_VALUE]  = {"v_proj_weight", NULL},
            [LINEAR_PACKED] = {NULL, "in_proj_bias"},
            [LINEAR_OUTPUT] = LINEAR("out_proj"),
        },
        .refused = {"bias_k", "bias_v"},
    },
    {   /* Raschka, Build a Large Language Model (From Scratch), MultiHeadAttention */
        .name = "llms_from_scratch",
        .causal = true,
        .linears = {
            [LINEAR_QUERY]  = LINEAR("W_query"),
            [LINEAR_KEY]    = LINEAR("W_key"),
            [LINEAR_VALUE]  = LINEAR("W_value"),
            [LINEAR_OUTPUT] = LINEAR("out_proj"),
        },
        .ignored = "mask",
    },
    {   /* the same book's MultiHeadAttentionWrapper: the heads' outputs, concatenated */
        .name = "llms_from_scratch_wrapper",
        .causal = true,
        .linears = {
            [LINEAR_HEAD_QUERY] = LINEAR("heads.#.W_query"),
            [LINEAR_HEAD_KEY]   = LINEAR("heads.#.W_key"),
            [LINEAR_HEAD_VALUE] = LINEAR("heads.#.W_value"),
        },
        .ignored = "heads.#.mask",
    },
    {   /* one projection for all heads, then another in each head */
        .name = "two_stage",
        .linears = {
            [LINEAR_QUERY]      = LINEAR("W_Q"),
            [LINEAR_KEY]        = LINEAR("W_K"),
            [LINEAR_VALUE]      = LINEAR("W_V"),
            [LINEAR_HEAD_QUERY] = LINEAR("heads.#.W_Q"),
            [LINEAR_HEAD_KEY]   = LINEAR("heads.#.W_K"),
            [LINEAR_HEAD_VALUE] = LINEAR("heads.#.W_V"),
            [LINEAR_OUTPUT]     = LINEAR("W_O"),
        },
    },
};
/* clang-format on */

void layout_head_name(const char *pattern, size_t head, char ret_name[LAYOUT_NAME_SIZE]) {
    const char *mark = strchr(pattern, '#');
    if (mark == NULL)
        snprintf(ret_name, LAYOUT_NAME_SIZE, "%s", pattern);
    else
        snprintf(ret_name, LAYOUT_NAME_SIZE, "%.*s%zu%s", (int)(mark - pattern), pattern,
                 head, mark + 1);
}

const struct safetensors_tensor *tensor_view_find_head(const struct tensor_view *view,
                                                       const char *pattern, size_t head) {
    char name[LAYOUT_NAME_SIZE];

    layout_head_name(pattern, head, name);
    return tensor_view_find(view, name);
}

bool layout_name_matches(const char *name, const char *pattern, size_t *ret_head) {
    const char *mark = strchr(pattern, '#');
    size_t head = 0, digits = 0;

    if (mark != NULL) {
        size_t before = (size_t)(mark - pattern);
        if (strncmp(name, pattern, before) != 0)
            return false;
        name += before;

        digits = strspn(name, "0123456789");
        if (digits == 0 || digits > 9 || (digits > 1 && name[0] == '0'))
            return false;
        for (size_t i = 0; i < digits; i++)
            head = head * 10 + (size_t)(name[i] - '0');
        name += digits;
        pattern = mark + 1;
    }

    if (strcmp(name, pattern) != 0)
        return false;
    *ret_head = head;
    return true;
}

const char *layout_required_name(const struct layout *layout, size_t nth,
                                 char buffer[LAYOUT_NAME_SIZE]) {
    for (size_t i = 0; i < NUM_LINEARS; i++) {
        const char *weight = layout->linears[i].weight;
        if (weight == NULL || nth-- > 0)
            continue;
        layout_head_name(weight, 0, buffer);
        return buffer;
    }
    return NULL;
}

size_t layout_count_present(const struct layout *layout, const struct tensor_view *view,
                            size_t *ret_absent, char ret_missing[LAYOUT_NAME_SIZE]) {
    char name[LAYOUT_NAME_SIZE];
    size_t present = 0, absent = 0;

    for (size_t nth = 0; layout_required_name(layout, nth, name) != NULL; nth++) {
        if (tensor_view_find(view, name) != NULL)
            present++;
        else if (absent++ == 0)
            memcpy(ret_missing, name, sizeof name);
    }
    *ret_absent = absent;
    return present;
}

bool layout_fits(const struct layout *layout, const struct tensor_view *view) {
    char missing[LAYOUT_NAME_SIZE];
    size_t absent;
    layout_count_present(layout, view, &absent, missing);
    return absent == 0;
}

bool layout_is_called(const struct layout *layout, const char *name) {
    return name == NULL || strcmp(layout->name, name) == 0;
}

bool layout_uses(const struct layout *layout, const char *name) {
    size_t head;

    for (size_t i = 0; i < NUM_LINEARS; i++) {
        const struct linear_names *linear = &layout->linears[i];
        if ((linear->weight != NULL &&
             layout_name_matches(name, linear->weight, &head)) ||
            (linear->bias != NULL && layout_name_matches(name, linear->bias, &head)))
            return true;
    }
    return strcmp(name, LAYOUT_ADDITIVE_QUERY) == 0 ||
           strcmp(name, LAYOUT_ADDITIVE_KEY) == 0 ||
           strcmp(name, LAYOUT_ADDITIVE_SCORE) == 0;
}

bool layout_knows(const struct layout *layout, const char *name) {
    size_t head;
    return layout_uses(layout, name) ||
           (layout->ignored != NULL && layout_name_matches(name, layout->ignored, &head));
}
