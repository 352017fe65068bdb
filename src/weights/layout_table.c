/* SPDX-License-Identifier: Apache-2.0 */
/* layout_table.c: the layouts that attnd knows, and which names of tensors they need. */
#include "weights/layout_table.h"

#include <stdlib.h>
#include <string.h>

/* clang-format off */
#define LINEAR(module) {module ".weight", module ".bias"}
/* Those of queries, keys and values; `query` is the first of the three. */
#define INPUTS(query, q, k, v) \
    [query] = LINEAR(q), [(query) + 1] = LINEAR(k), [(query) + 2] = LINEAR(v)

const struct layout layout_table[LAYOUT_TABLE_SIZE] = {
    {   /* Zhang et al., Dive into Deep Learning, section 11.5 */
        .name = "d2l",
        .linears = {INPUTS(LINEAR_QUERY, "W_q", "W_k", "W_v"),
                    [LINEAR_OUTPUT] = LINEAR("W_o")},
    },
    {   /* torch.nn.MultiheadAttention */
        .name = "torch",
        .linears = {[LINEAR_PACKED] = {"in_proj_weight", "in_proj_bias"},
                    [LINEAR_OUTPUT] = LINEAR("out_proj")},
        .refused = {"bias_k", "bias_v"},
    },
    {   /* the same with kdim or vdim */
        .name = "torch",
        .linears = {[LINEAR_QUERY] = {"q_proj_weight", NULL},
                    [LINEAR_KEY] = {"k_proj_weight", NULL},
                    [LINEAR_VALUE] = {"v_proj_weight", NULL},
                    [LINEAR_PACKED] = {NULL, "in_proj_bias"},
                    [LINEAR_OUTPUT] = LINEAR("out_proj")},
        .refused = {"bias_k", "bias_v"},
    },
    {   /* Raschka, Build a Large Language Model (From Scratch), MultiHeadAttention, and
         * GroupedQueryAttention, whose norms are those of Qwen3 */
        .name = "llms_from_scratch",
        .causal = true,
        .linears = {INPUTS(LINEAR_QUERY, "W_query", "W_key", "W_value"),
                    [LINEAR_OUTPUT] = LINEAR("out_proj")},
        .norms = {"q_norm.scale", "k_norm.scale"},
        .ignored = "mask",
    },
    {   /* the same book's MultiHeadAttentionWrapper: the heads' outputs, concatenated */
        .name = "llms_from_scratch_wrapper",
        .causal = true,
        .linears = {INPUTS(LINEAR_HEAD_QUERY, "heads.0.W_query", "heads.0.W_key",
                           "heads.0.W_value")},
        .ignored = "heads.0.mask",
    },
    {   /* one projection for all heads, then another in each head */
        .name = "two_stage",
        .linears = {INPUTS(LINEAR_QUERY, "W_Q", "W_K", "W_V"),
                    INPUTS(LINEAR_HEAD_QUERY, "heads.0.W_Q", "heads.0.W_K",
                           "heads.0.W_V"),
                    [LINEAR_OUTPUT] = LINEAR("W_O")},
    },
    {   /* Attention of timm, and of many vision transformers */
        .name = "timm",
        .wide = true,
        .linears = {[LINEAR_PACKED] = LINEAR("qkv"), [LINEAR_OUTPUT] = LINEAR("proj")},
    },
    {   /* Karpathy's nanoGPT, and GPT-2, whose weights are [in, out] */
        .name = "nanogpt",
        .causal = true,
        .turned = true,
        .linears = {[LINEAR_PACKED] = LINEAR("c_attn"),
                    [LINEAR_OUTPUT] = LINEAR("c_proj")},
        .ignored = "bias",
    },
};
/* clang-format on */

const char *const layout_additive[3] = {LAYOUT_ADDITIVE_QUERY, LAYOUT_ADDITIVE_KEY,
                                        LAYOUT_ADDITIVE_SCORE};

bool layout_is_called(const struct layout *layout, const char *name) {
    return name == NULL || strcmp(layout->name, name) == 0;
}

bool layout_name_matches(const char *name, const char *pattern, size_t *ret_head) {
    const size_t size = strlen(LAYOUT_HEADS);
    size_t head = 0, digits;

    if (pattern == NULL)
        return false;
    if (strncmp(pattern, LAYOUT_HEADS, size) == 0 &&
        strncmp(name, LAYOUT_HEADS, size) == 0) {
        name += size;
        pattern += size + 1;
        digits = strspn(name, "0123456789");
        if (digits == 0 || digits > 9 || (digits > 1 && name[0] == '0'))
            return false;
        head = strtoul(name, NULL, 10);
        name += digits;
    }
    *ret_head = head;
    return strcmp(name, pattern) == 0;
}

struct layout_scan layout_scan_view(const struct layout *layout,
                                    const struct tensor_view *view) {
    struct layout_scan scan = {.present = 0};

    for (size_t i = 0; i < NUM_LINEARS; i++) {
        const char *name = layout->linears[i].weight;
        if (name == NULL)
            continue;
        if (tensor_view_find(view, name) != NULL)
            scan.present++;
        else if (scan.absent++ == 0)
            scan.missing = name;
    }
    return scan;
}

bool layout_fits(const struct layout *layout, const struct tensor_view *view) {
    return layout_scan_view(layout, view).absent == 0;
}

const char *layout_first_name(const struct layout *layout) {
    size_t i = 0;
    while (layout->linears[i].weight == NULL)
        i++;
    return layout->linears[i].weight;
}

/* Returns whether `name` is `pattern`, which stands for other heads, too, unless it is a
 * name of one's own. */
static bool is_called(const struct layout *layout, const char *name,
                      const char *pattern) {
    size_t head;
    return layout->own ? pattern != NULL && strcmp(name, pattern) == 0
                       : layout_name_matches(name, pattern, &head);
}

bool layout_uses(const struct layout *layout, const char *name) {
    bool uses = false;

    for (size_t i = 0; i < NUM_LINEARS && !uses; i++)
        uses = is_called(layout, name, layout->linears[i].weight) ||
               is_called(layout, name, layout->linears[i].bias);
    for (size_t i = 0; i < 2 && !uses; i++)
        uses = is_called(layout, name, layout->norms[i]);
    for (size_t i = 0; i < 3 && !uses; i++)
        uses = strcmp(name, layout_additive[i]) == 0;
    return uses;
}

bool layout_knows(const struct layout *layout, const char *name) {
    return layout_uses(layout, name) || is_called(layout, name, layout->ignored);
}
