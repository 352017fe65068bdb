/* SPDX-License-Identifier: Apache-2.0 */
/* family.h: the table of families. A new family is an entry in a file of table/.
 *
 * Keys are as in config.h: alternative spellings of one key, separated by spaces. NULL
 * means that the family does not have such a key, so that config.json is not asked.
 *
 * A member is for several entries. What one family does by itself is a function in the
 * file of its entry. The function asks config.json for its keys, so they are known. */
#pragma once

#include "weights/families/config.h"
#include "weights/families/wordlist.h"
#include "weights/layer/layer.h"

#define FAMILY_TYPES_MAX 8 /* that have an entry together */

/* Which rows of which tensor are queries, keys and values. */
enum family_split {
    SPLIT_SEPARATE, /* a tensor each */
    SPLIT_GATED,  /* a tensor each; that of queries has a head's queries, then its gate */
    SPLIT_BLOCKS, /* one tensor: all query heads, all key heads, all value heads */
    SPLIT_GROUPS, /* one tensor: per key head its query heads, itself, its value head */
    SPLIT_ONE_KEY,  /* one tensor: blocks where there is one key head, else groups */
    SPLIT_QUARTERS, /* one tensor: four times a quarter of queries, values and keys */
    SPLIT_LATENT    /* those of latent attention, which are called alike everywhere; the
                       first name is the tensor that makes latent rows of keys */
};

/* But for MASK_ALWAYS_CAUSAL, a causal one is none where is_causal is false. */
enum family_mask {
    MASK_NONE,
    MASK_CAUSAL,
    MASK_ALWAYS_CAUSAL,
    MASK_IF_DECODER,          /* causal where is_decoder is true */
    MASK_UNLESS_ENCODER,      /* causal unless is_decoder is false */
    MASK_UNLESS_BIDIRECTIONAL /* causal unless use_bidirectional_attention is true */
};

/* A layer of config.json that is being read; see match_source(). */
struct layer_source {
    const struct match *match;
    const struct match_stack *stack;
    const struct family *family;
    const struct config_section *section;
    size_t num_layers, index;
    /* Of what is read before rotations; `slides` and `length` have a window that they
     * change. */
    bool causal;
    size_t window; /* 0: none */
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
    const char *heads_keys, *width_keys, *layers_keys;
    const char *more_keys; /* how many layers, which predict more tokens, may follow */
    const char *kv_keys;   /* NULL: those of the family */
    size_t heads, width, layers; /* when absent */
    enum family_mask mask;
    bool cross;
};

/* Which layers have attention. Others are left out, and the numbers of layers stay. The
 * first that config.json has decides: types, a list, else `attends` or the period. */
struct family_layers {
    /* Of words, one for each layer. NULL: "layer_types"; "": there is no such key */
    const char *types_keys;
    const char *without;   /* the words of layers without attention */
    const char *list_keys; /* of numbers of the layers with attention */
    bool (*attends)(const struct layer_source *layer); /* NULL: by the period */
    /* The first layer of each period attends; NULL: all do. Of `attends`: its key. */
    const char *period_keys;
    bool last;               /* the last of each period, instead */
    const char *offset_keys; /* the one of each period that has this number, instead */
    const char *shared_keys; /* how many of the last layers borrow keys and values */
};

/* How the tensors of the projections lie in a file. */
struct family_weights {
    enum family_split split;
    bool transposed;     /* weights are [in, out] */
    const char *ignored; /* names: tensors of the module that do not change results */
};

/* Which projections have a bias; each text has some letters of q, k, v, o, g for the
 * gate, Q and K for latent rows, and r and R for positional keys and queries. */
struct family_biases {
    const char *always;
    const char *if_set; /* where `keys` is true */
    const char *keys;
    const char *as_stored; /* where the file has it */
};

/* Of latent attention, when absent: latent rows of queries and keys, the part of a head
 * that is not rotated, and values, whose 0 is width / H. */
struct latent_sizes {
    size_t query, key, plain, value;
};

struct family_sizes {
    const char *kv_keys;   /* absent or 0: H */
    const char *head_keys; /* absent or 0: width / H */
    struct latent_sizes latent;
    /* Corrects them, once the window is known. A value size of 0 becomes that of queries
     * and keys. */
    void (*adjust)(const struct layer_source *source, struct layer *layer);
};

/* The norm before a layer, and those of projected queries, keys and values. */
struct family_norms {
    bool plus_one; /* all norms multiply by 1 + w */
    const char *eps_keys;
    double eps;

    attn_norm before;
    bool bare;             /* the norm before has no weight */
    const char *before_if; /* a key that switches it on; NULL: it is on */

    attn_norm heads;
    const char *query, *key; /* names in the module; NULL: none */
    const char *heads_if;    /* a key: they exist where it is true; NULL: always */
    bool heads_whole;        /* over all heads together */
    bool heads_last;         /* behind the rotation */
    bool heads_each;         /* each head has weights: [H, D]; or where the names have a
                                '#', which is the number of the head, [D] each */
};

/* Rotary positions. Cross attention has none, whatever is here. */
struct family_rotation {
    const char *base_keys;
    double base; /* when absent; 0: the family does not rotate */
    bool (*only_if)(const struct layer_source *layer); /* it rotates; NULL: all do */
    const char *only_type; /* layers rotate if position_embedding_type is this, or NULL */
    const char *interleaved; /* a key: where it is true, pairs are neighbours */
    bool plain;              /* config.json has no object of scaling */
    const char *local_keys;  /* the base of layers with a window */
    double local_base;       /* 0: as for all layers */
    bool local_scaled;       /* an object for all layers scales these too */
    const char *part_keys;   /* the share of D that is rotated */
    double part;             /* when absent; of "proportional" also without part_keys */
    /* How many numbers of D are rotated; behind part_keys where both are there. */
    const char *dims_keys;
    enum layer_sections sections;           /* of pairs, as mrope_section counts them */
    unsigned char section_sizes[ATTN_AXES]; /* when that is absent; 0, 0, 0: it may not */
    const char *words; /* WORD=TYPE: other words for a rope_type, separated by spaces */
    bool query_beta;   /* the object has a factor of queries, see attn_model_info */
    size_t original_positions; /* before scaling, when absent beside its object; or 0 */
    /* The scaling when config.json has none, and the base, unless that is 0. */
    const struct layer_rotation *unset;
    /* Corrects base, type and dims, which must be even then, before scaling is read.
     * `inside` is the object of scaling, or empty. */
    void (*adjust)(const struct layer_source *source, const struct config_section *inside,
                   struct layer_rotation *rotation);
};

/* A causal window of W has the keys i - W < j <= i, another those at most W away. Cross
 * attention has none. */
struct family_windows {
    const char *keys;    /* NULL: no layer has a window */
    const char *only_if; /* a key: layers have windows only where it is true */
    /* Says, where config.json lists no types, if a layer has the window that it would
     * have; NULL: all layers have it, whatever their types. */
    bool (*slides)(const struct layer_source *layer);
    /* Makes the window of a layer of what `keys` say; or NULL. */
    size_t (*length)(const struct layer_source *layer);
    const char *from_keys;   /* the first layer with a window, or without one */
    const char *period_keys; /* the last layer of each period has none */
    bool first;              /* the first of each period, instead */
};

/* Changes of a score before softmax, but for biases by distance. */
struct family_scores {
    const char *scale_keys;
    double scale;             /* when absent; 0: 1/sqrt(D) */
    const char *root_keys;    /* of a number whose root divides instead */
    const char *softcap_keys; /* absent: 50 */
    const char *clip_keys;
    const char *sinks; /* in the module */
};

/* A bias of a score by the distance of the key; none in cross attention. */
struct family_distance {
    attn_bias kind;
    const char *table;    /* in layer 0's module; behind a '/': under the prefix */
    bool each;            /* in the module of each layer, instead */
    const char *max_keys; /* of the farthest distance; NULL: it and the number of buckets
                             are fixed, whatever the rows of the table */
};

struct family {
    /* Each a model_type of config.json, and the name of the family; constants. */
    const char *types[FAMILY_TYPES_MAX + 1];
    struct stack stacks[3];
    const char *demands; /* see config_check_demands() */
    const char *ignored; /* keys of attention that its class has, and does not use */
    struct family_layers layers;
    struct family_weights weights;
    struct family_biases biases;
    struct family_sizes sizes;
    struct family_norms norms;
    struct family_rotation rotation;
    struct family_windows windows;
    struct family_scores scores;
    struct family_distance distance;
    /* Changes a layer that is read but for its tensors, where no member can say what this
     * family does; NULL: nothing. */
    void (*adjust)(const struct layer_source *source, struct layer *layer);
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

/* Returns an entry of the table, a constant; NULL behind the last one. */
const struct family *family_get(size_t index);

/* Returns the type of the entry that is for folders with this model_type, which may be
 * NULL; else NULL. The shapes of weights decide between several entries. */
const char *family_find_type(const struct family *family, const json_t *config,
                             const char *type);

/* Finds why attnd does not compute a model_type. Returns the reason, and sets *ret_anchor
 * to its place in docs/checkpoints.md, both constants; NULL where the type is unknown. */
const char *family_refusal(const char *type, const char **ret_anchor);
