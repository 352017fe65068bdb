/* SPDX-License-Identifier: Apache-2.0 */
/* family.h: the table of families. A new family is an entry in a file of table/.
 *
 * Keys are as in config.h: alternative spellings of one key, separated by spaces. NULL
 * means that the family does not have such a key, so that config.json is not asked. */
#pragma once

#include "weights/families/wordlist.h"
#include "weights/layer/layer.h"

/* Which rows of which tensor are queries, keys and values. */
enum family_split {
    SPLIT_SEPARATE, /* a tensor each */
    SPLIT_GATED,    /* likewise; that of queries has a head's queries, then its gate */
    SPLIT_BLOCKS,   /* one tensor: all query heads, all key heads, all value heads */
    SPLIT_GROUPS,   /* one tensor: per key head its query heads, itself, its value head */
    SPLIT_ONE_KEY,  /* one tensor: blocks where there is one key head, else groups */
    SPLIT_QUARTERS, /* one tensor: four times a quarter of queries, values and keys */
    SPLIT_LATENT    /* those of latent attention, which are called alike everywhere; the
                       first name is the tensor that makes latent rows of keys */
};

enum family_scale {
    SCALE_HEAD_SIZE, /* 1/sqrt(D) */
    SCALE_ONE,
    SCALE_UNLESS_OFF, /* 1/sqrt(D), or 1 where scale_attn_weights is false */
    SCALE_GPT2,       /* the same; divided by N + 1 in layer N where
                         scale_attn_by_inverse_layer_idx is true */
    SCALE_SCALAR,     /* 1/sqrt(query_pre_attn_scalar) */
    SCALE_KEY,        /* see scale_keys */
    SCALE_YARN        /* 1/sqrt(D), times what mscale_all_dim of yarn asks for */
};

enum family_heads {
    HEADS_KEY,        /* see kv_keys and kv_heads */
    HEADS_MULTI_QUERY /* Falcon's: by new_decoder_architecture (absent: false) and
                         multi_query (absent: true) */
};

/* But for MASK_ALWAYS_CAUSAL, a causal one is none where is_causal is false. */
enum family_mask {
    MASK_NONE,
    MASK_CAUSAL,
    MASK_ALWAYS_CAUSAL,
    MASK_IF_DECODER,          /* causal where is_decoder is true */
    MASK_UNLESS_BIDIRECTIONAL /* causal unless use_bidirectional_attention is true */
};

/* Which layers have a window. Where config.json has layer_types, they overrule this,
 * except WINDOW_ALL and WINDOW_GPT_NEO. */
enum family_window {
    WINDOW_NONE,
    WINDOW_ALL,
    WINDOW_BY_TYPE,        /* all without layer_types */
    WINDOW_UNLESS_NTH,     /* all but layers N with (N + 1) % period == 0 */
    WINDOW_UNLESS_1ST,     /* all but layers N with N % period == 0 */
    WINDOW_QWEN,           /* layers from max_window_layers on; see `from` */
    WINDOW_QWEN2_MOE,      /* even layers before max_window_layers */
    WINDOW_UNLESS_ROTATED, /* layers that do not rotate; layer_types overrule only_if */
    WINDOW_GPT_NEO         /* as attention_types says */
};

/* Which layers of a family that rotates are rotated. */
enum family_rotated {
    ROTATED_ALL,
    ROTATED_SLIDING,     /* those with a window */
    ROTATED_UNLESS_FULL, /* those with a window, and all where that is null */
    ROTATED_LISTED       /* those with 1 in no_rope_layers; without it, all but every
                            no_rope_layer_interval-th (absent: 4) */
};

/* Layers of one kind, numbered from 0. */
struct stack {
    const char *part; /* how its layers' names begin, with the dot: "decoder."; or "" */
    const char *section; /* its object in config.json: "text_config"; NULL: the root */
    const char *layer;   /* the path of a layer; '#' is its number */
    const char *module;  /* the attention inside it; every tensor there must be known */
    /* Of the linears inside the module; NULL: it is in the tensor of another, or, for
     * the gate, there is none. */
    const char *names[ATTN_NUM_LINEARS];
    const char *norm;    /* inside the layer: the first name that exists; NULL: none */
    const char *present; /* a key: where it is true, the folder must have these layers;
                            else the model has none. NULL: no such key */
    bool query_apart;    /* queries have a tensor of their own, whatever the split */
    const char *heads_keys, *width_keys, *layers_keys;
    const char *more_keys; /* how many layers, which predict more tokens, may follow */
    const char *kv_keys;   /* NULL: those of the family */
    size_t heads, width, layers; /* when absent */
    enum family_mask mask;
    bool cross;
};

/* Which layers have attention. Others are left out, and the numbers of layers stay. The
 * first that config.json has decides: types, a list, a pattern, else the period. */
struct family_layers {
    const char *types_keys;   /* words, one for each layer; NULL: "layer_types" */
    const char *without;      /* those of layers without attention */
    const char *list_keys;    /* numbers of the layers with attention */
    const char *pattern_keys; /* a text, where the layers with attention have a * */
    const char *period_keys, *offset_keys;
    size_t period, offset; /* N % period == offset; 0, 0: all */
    bool last;             /* the last of each period instead, whatever `offset` */
};

/* How the tensors of the projections lie in a file. */
struct family_weights {
    enum family_split split;
    bool transposed;     /* weights are [in, out] */
    const char *ignored; /* names: tensors of the module that do not change results */
    const char *keys_are_values; /* a key: where it is true, layers without a window have
                                    no tensor of values, which are the raw keys */
};

/* Which projections have a bias; each text has some letters of q, k, v, o, g for the
 * gate, and Q and K for latent rows. */
struct family_biases {
    const char *always;
    const char *if_set; /* where `keys` is true */
    const char *keys;
    bool otherwise;            /* when `keys` is absent */
    const char *output_keys;   /* where it is true, the output projection has one */
    const char *as_stored;     /* where the file has it */
    const char *query, *value; /* their names; NULL: as the weight's */
};

struct family_sizes {
    enum family_heads kv_rule;
    const char *kv_keys;
    size_t kv_heads;   /* when kv_keys is absent; 0: H */
    size_t kv_sliding; /* layers with a window have so many times as many; 0: as many */
    const char *head_keys;
    size_t head; /* when head_keys are absent; 0: width / H */
    const char *value_keys;
    size_t value; /* when value_keys are absent; 0: as queries and keys */
    /* Of layers without a window, unless config.json has an object of layers' own sizes,
     * per_layer_config. The number of key heads counts where keys are values. */
    const char *full_head_keys, *full_kv_keys;
    size_t full_head; /* when full_head_keys are absent */
};

/* Sizes of latent attention when their keys are absent, see SPLIT_LATENT. */
struct family_latent {
    size_t query, key;      /* q_lora_rank, kv_lora_rank */
    size_t plain, rotating; /* qk_nope_head_dim, qk_rope_head_dim */
    size_t value;           /* v_head_dim */
};

/* The norm before a layer, and those of projected queries, keys and values. */
struct family_norms {
    bool plus_one; /* all norms multiply by 1 + w */
    const char *eps_keys;
    double eps;

    attn_norm before;
    bool bare;               /* that before has no weight */
    const char *before_if;   /* a key: it is there where that is true */
    bool before_otherwise;   /* when before_if is absent */
    bool before_skips_first; /* layer 0 has none */

    attn_norm heads;
    const char *query, *key; /* names in the module; NULL: none */
    const char *heads_if;    /* a key: they exist where it is true; NULL: always */
    bool heads_otherwise;    /* when heads_if is absent */
    bool heads_whole;        /* over all heads together */
    bool heads_each;         /* each head has weights: [H, D]; or where the names have a
                                '#', which is the number of the head, [D] each */
    bool heads_bare;         /* they have no weight, and so no name */
    bool heads_last;         /* they come after the rotation */
    bool heads_rotated;      /* only layers with a rotation have them */
    attn_norm values;        /* in each head, without weight */

    const char *out; /* RMS norm of the heads' outputs together, in the module; or NULL */
};

/* Rotary positions. Cross attention has none, whatever is here. */
struct family_rotation {
    bool rotates;
    const char *only_if; /* KEY=VALUE: it rotates where that holds; NULL: always */
    enum family_rotated layers;
    bool null_base; /* a base of null means no rotation */
    bool interleaved;
    const char *interleaved_keys; /* `interleaved` is when they are absent */
    bool backward;                /* by the negative angle */
    const char *values_if;        /* a key: where it is true, values are rotated too */
    bool alpha;                   /* the base of "dynamic" with alpha is fixed */
    bool plain;                   /* config.json has no object of scaling */
    const char *base_keys;        /* NULL: always `base` */
    double base;
    const char *local_keys; /* the base of layers with a window */
    double local_base;      /* 0: as for all layers */
    bool local_scaled;      /* an object for all layers scales these too */
    const char *part_keys;  /* the share of D that is rotated */
    double part;
    double part_turning; /* of "proportional", when partial_rotary_factor is absent */
    bool rounds_part;    /* down to an even number, else it must be one */
    /* How many numbers of D are rotated; behind part_keys where both are there. */
    const char *dims_keys;
    size_t dims;
    enum layer_sections sections; /* of pairs, as mrope_section counts them */
    bool grid; /* image_size and patch_size have a grid, num_register_tokens precede it */
    unsigned char section_sizes[ATTN_AXES]; /* when that is absent; 0, 0, 0: it may not */
    const char *longrope_alias;             /* values of "type" that mean longrope */
    /* The scaling when config.json has none, and the base, unless that is 0. */
    const struct layer_rotation *unset;
    size_t original; /* positions before scaling, when absent beside its object; or 0 */
};

/* A causal window of W has the keys i - W < j <= i, another those at most W away. Cross
 * attention has none. */
struct family_windows {
    enum family_window rule;
    const char *only_if; /* a key: layers have windows only where it is true */
    const char *keys;
    const char *earlier_keys; /* of keys before the query's own, counts before `keys` */
    const char *half_keys;    /* of half of it, counts before `keys` */
    size_t size;              /* when absent; 0: none */
    bool halved;              /* half of it is the window */
    const char *halved_if;    /* a key: the same, where it is true */
    size_t from;              /* max_window_layers when absent; 0: 28 */
    const char *period_keys;
    size_t period;
    bool skips_first;       /* by the period layer 0 has none, too */
    bool skips_last;        /* the last layer has none, whatever layer_types says */
    const char *chunk_keys; /* of chunks of keys, see attn_model_info; NULL: none. Layers
                               have them as layer_types says, else those that rotate */
    size_t chunk;           /* when absent */
};

/* What happens to a score before softmax, but for biases by distance. */
struct family_scores {
    enum family_scale scale;
    const char *scale_keys;  /* the scale itself */
    double scale_otherwise;  /* when scale_keys are absent; 0: 1/sqrt(D) */
    const char *factor_keys; /* of keys, and so of the scale; NULL: 1 */
    const char *softcap_keys;
    double softcap;
    const char *clip_keys;
    bool clip_last;     /* queries and keys are clipped after their norms */
    const char *sinks;  /* in the module */
    bool sinks_sliding; /* only layers with a window have them */
    const char *value_factor_keys;
    double value_factor; /* of values, when absent; null is 1 */
};

/* A factor of queries by their position, see attn_model_info. */
struct family_factor {
    bool rotary; /* beta and length are those of the rotation, in its object */
    const char *beta_keys, *length_keys;
    double beta; /* when absent */
    size_t length, offset;
    const char *only_if; /* a key: not where it is false or 0; NULL: always */
    bool unrotated;      /* only in layers without a rotation */
};

/* Keys and values that the last layers take from an earlier layer of their kind. */
struct family_borrowing {
    const char *count_keys; /* how many layers do; NULL: none */
    size_t count;           /* when absent */
};

/* What is added to a score by the distance of the key; nothing in cross attention. */
struct family_distance {
    attn_bias kind;
    const char *only_if; /* a key: only where it is true */
    const char *table;   /* in layer 0's module, or in every layer's */
    bool every_layer;
    bool outside; /* the table is not in a module, but under the prefix */
    const char *max_keys;
    size_t buckets, farthest; /* when absent */
    bool fixed;               /* `buckets` counts, not the rows of the table */
};

struct family {
    const char *type;    /* model_type of config.json, and the name; a constant */
    const char *also;    /* another model_type that may mean it; weight shapes decide */
    const char *untyped; /* a key that tells this family where model_type is absent */
    bool decodes;        /* is_decoder when that is absent */
    struct stack stacks[3];
    const char *demands; /* see config_check_demands() */
    const char *ignored; /* keys of attention that its class has, and does not use */
    struct family_layers layers;
    struct family_weights weights;
    struct family_biases biases;
    struct family_sizes sizes;
    struct family_latent latent;
    struct family_norms norms;
    struct family_rotation rotation;
    struct family_windows windows;
    struct family_scores scores;
    struct family_factor factor;
    struct family_borrowing borrowing;
    struct family_distance distance;
};

/* A model of images or sound beside text, which is a family of its own. Its layers are
 * called text.0, text.1 and so on. The text has the object text_config, or the root. */
struct family_text {
    const char *type;  /* model_type of config.json */
    const char *under; /* what the prefix of names must contain; NULL: any prefix */
    /* The text's family, when its object has no model_type; or always, where that ends in
     * "_text": it is the class of this model alone. */
    const char *otherwise;
    bool any_mask; /* images and prompts have another mask, which no key says, and the
                      first position is 1 */
    const char *demands; /* of the text, about its mask */
};

/* Returns the entry of that model_type, a constant, or NULL. */
const struct family_text *family_find_text(const char *type);

/* The entries of one file of the table. */
struct family_list {
    const struct family *items; /* [count] */
    size_t count;
};

/* Returns an entry of the table, a constant; NULL behind the last one. */
const struct family *family_get(size_t index);

/* Finds why attnd does not compute a model_type. Returns the reason, and sets *ret_anchor
 * to its place in docs/checkpoints.md, both constants; NULL where the type is unknown. */
const char *family_refusal(const char *type, const char **ret_anchor);
