/* SPDX-License-Identifier: Apache-2.0 */
/* captures/layout.c: checks the header of a file, and lays out what is kept of it. */
#include "captures/layout.h"

#include "base/heap.h"
#include "base/pace.h"
#include "base/size.h"
#include "safetensors/parse.h"

#include <attnd/dot_product.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYER_STEPS    4096 /* of reading one, with its tensors and options */
#define LAYER_NAME_MAX 64
#define NUM_OPTIONS    4  /* of a layer */
#define OPTION_MAX     64 /* bytes of the text of one */
#define FORM                                                                             \
    "docs/protocol.md says what a capture has, and "                                     \
    "Captured.save() writes it"

/* Why a field is refused. */
static const char *const sentences[WIRE_NUM_ERRORS] = {
    [WIRE_E_UNKNOWN_KEY] =
        "is neither a tensor nor an option of a layer; remove it: " FORM,
    [WIRE_E_MISSING_KEY] = "is missing; " FORM,
    [WIRE_E_WRONG_TYPE] =
        "in __metadata__ is not the JSON that it should be, or "
        "out of range: scale and softcap up to 3e38, scale not 0; " FORM,
    [WIRE_E_WRONG_DTYPE] = "has a type that it cannot have; send F32, BF16, "
                           "F16 or F64, and positions as I64 or I32",
    [WIRE_E_WRONG_RANK] = "has too few dimensions, or too many; a capture "
                          "has one sequence: [tokens, heads, head size]",
    [WIRE_E_SHAPE_MISMATCH] = "has sizes that do not fit the other tensors of "
                              "its layer, or a size of 0; " FORM,
};

/* The tensors of a layer, how many axes they have, and where they go. */
static const struct {
    const char *name;
    size_t rank_min, rank_max;
    size_t place; /* of the pointer to its numbers, in struct capture_layer */
} tensors[CAPTURE_NUM_TENSORS] = {
    [CAPTURE_KEYS] = {"keys", 3, 3, offsetof(struct capture_layer, packed.keys)},
    [CAPTURE_QUERIES] = {"queries", 3, 3, offsetof(struct capture_layer, queries)},
    [CAPTURE_VALUES] = {"values", 3, 3, offsetof(struct capture_layer, packed.values)},
    [CAPTURE_BIAS] = {"bias", 2, 3, offsetof(struct capture_layer, bias)},
    [CAPTURE_SINKS] = {"sinks", 1, 1, offsetof(struct capture_layer, sinks)},
    [CAPTURE_SLOPES] = {"slopes", 1, 1, offsetof(struct capture_layer, slopes)},
    [CAPTURE_POSITIONS] = {"positions", 1, 1, offsetof(struct capture_layer, positions)},
    [CAPTURE_KEY_POSITIONS] = {"key_positions", 1, 1,
                               offsetof(struct capture_layer, key_positions)},
    [CAPTURE_TOKEN_IDS] = {"token_ids", 1, 1, offsetof(struct capture_layer, token_ids)},
    [CAPTURE_TARGETS] = {"targets", 2, 2, offsetof(struct capture_layer, targets)},
    [CAPTURE_HIDDEN_STATES] = {"hidden_states", 3, 3, 0},
};

/* A header that is being read. */
struct reader {
    const struct safetensors_header *header;
    const json_t *metadata;
    json_t *known; /* an object: true for each tensor that was read, false for options */
    char name[LAYER_NAME_MAX + 32]; /* room for one of these */
    struct capture_layout *layout;
    struct wire_problem *problem;
};

const char *capture_tensor_name(enum capture_tensor kind) {
    return tensors[kind].name;
}

bool capture_tensor_counts(enum capture_tensor kind) {
    return kind >= CAPTURE_POSITIONS && kind <= CAPTURE_TARGETS;
}

/* --- one layer --- */

/* Makes the name of a tensor or option of a layer; with "" of the capture. */
static const char *name_of(struct reader *r, const char *layer, const char *what) {
    snprintf(r->name, sizeof r->name, "%s%s%s", layer, *layer != '\0' ? "." : "", what);
    return r->name;
}

static bool refuse_field(struct reader *r, enum wire_error error, const char *field) {
    return wire_problem_set(r->problem, error, field, "'%.64s' %s", field,
                            sentences[error]);
}

/* Whether numbers of a tensor may have that type. */
static bool allows_type(enum capture_tensor kind, const struct dtype *type) {
    if (capture_tensor_counts(kind))
        return strcmp(type->name, "I64") == 0 || strcmp(type->name, "I32") == 0;
    return type->to_float != NULL;
}

/* Whether keys or values stay as they are. */
static bool stays(const struct dtype *type) {
    return strcmp(type->name, "BF16") == 0;
}

/* Returns how many bytes the numbers of a tensor take when they are kept. Saturates. */
static size_t count_bytes(const struct capture_layer *layer, enum capture_tensor kind,
                          const struct safetensors_tensor *tensor) {
    const struct attn_packed *packed = &layer->packed;
    size_t bytes = 0, number = sizeof(float), count = tensor->elements;

    if (kind == CAPTURE_QUERIES)
        number = tensor->dtype->bits / 8;
    if (capture_tensor_counts(kind))
        number = sizeof(size_t);
    if (kind == CAPTURE_KEYS || kind == CAPTURE_VALUES) {
        size_t size = kind == CAPTURE_KEYS ? packed->head_size : packed->value_size;
        number = stays(tensor->dtype) ? sizeof(uint16_t) : sizeof(float);
        count = 0;
        size_add_mul_saturating(&count, packed->num_kv_heads,
                                packed_head_ld(packed, size));
        if (kind == CAPTURE_KEYS)
            size_add_saturating(&count, KEY_BLOCK * sizeof(float) / number);
    }
    size_add_mul_saturating(&bytes, count, number);
    size_t rounded = SIZE_MAX;
    return size_round_up(bytes, HEAP_ALIGNMENT, &rounded) ? rounded : SIZE_MAX;
}

/* Checks type, rank and sizes of 1 at least. */
static bool check_form(struct reader *r, const char *field, enum capture_tensor kind,
                       const struct safetensors_tensor *tensor) {
    if (!allows_type(kind, tensor->dtype))
        return refuse_field(r, WIRE_E_WRONG_DTYPE, field);
    if (tensor->rank < tensors[kind].rank_min || tensor->rank > tensors[kind].rank_max)
        return refuse_field(r, WIRE_E_WRONG_RANK, field);
    return tensor->elements > 0 || refuse_field(r, WIRE_E_SHAPE_MISMATCH, field);
}

/* Whether a tensor fits those before it, and sets the sizes that it has. */
static bool take_shape(struct capture_layer *layer, enum capture_tensor kind,
                       const struct safetensors_tensor *tensor) {
    const size_t *shape = tensor->shape;
    struct attn_packed *packed = &layer->packed;

    switch (kind) {
    case CAPTURE_KEYS:
        packed->num_keys = shape[0];
        packed->num_kv_heads = shape[1];
        packed->head_size = packed->value_size = shape[2];
        packed->keys_type = packed->values_type = stays(tensor->dtype) ? "BF16" : "F32";
        return true;
    case CAPTURE_QUERIES:
        layer->num_queries = shape[0];
        layer->num_heads = shape[1];
        layer->queries_type = tensor->dtype;
        return shape[1] % packed->num_kv_heads == 0 && shape[2] == packed->head_size;
    case CAPTURE_VALUES:
        packed->value_size = shape[2];
        packed->values_type = stays(tensor->dtype) ? "BF16" : "F32";
        return shape[0] == packed->num_keys && shape[1] == packed->num_kv_heads;
    case CAPTURE_BIAS:
        layer->bias_rank = tensor->rank;
        layer->bias_heads = tensor->rank == 3 ? shape[0] : 1;
        layer->bias_rows = shape[tensor->rank - 2];
        return shape[tensor->rank - 1] == packed->num_keys &&
               (layer->bias_rows == 1 || layer->bias_rows == layer->num_queries) &&
               (layer->bias_heads == 1 || layer->bias_heads == layer->num_heads ||
                layer->num_heads == 0);
    case CAPTURE_SINKS:
        layer->num_sinks = shape[0];
        return layer->num_heads == 0 || shape[0] == layer->num_heads;
    case CAPTURE_SLOPES:
        layer->num_slopes = shape[0];
        return layer->num_heads == 0 || shape[0] == layer->num_heads;
    case CAPTURE_POSITIONS:
        return shape[0] == layer->num_queries;
    case CAPTURE_TARGETS:
        return shape[1] == 2;
    case CAPTURE_TOKEN_IDS:
    case CAPTURE_HIDDEN_STATES:
        return true;
    default:
        return shape[0] == packed->num_keys;
    }
}

/* Whether layers attend in the same text: their names begin alike, up to a number. */
static bool share_text(const struct capture_layer *a, const struct capture_layer *b) {
    size_t size = strcspn(a->name, "0123456789");
    return size == strcspn(b->name, "0123456789") && memcmp(a->name, b->name, size) == 0;
}

/* Points the layers that use a tensor of the capture at its numbers: those of the text
 * that the last layer is of, if it has as many rows. Returns how many layers come up to
 * the last that does. */
static size_t share_tensor(struct capture_layout *layout, enum capture_tensor kind,
                           size_t elements, const void *numbers) {
    const struct capture_layer *last = NULL;
    size_t end = 0;

    for (size_t i = layout->layers.count; i > 0; i--) {
        struct capture_layer *layer = &layout->items[i - 1];
        size_t fits = kind == CAPTURE_TOKEN_IDS ? layer->packed.num_keys
                      : kind == CAPTURE_TARGETS ? 2 * layer->num_queries
                                                : 0;
        last = last == NULL && !layer->cross ? layer : last;
        if (layer->cross || fits != elements || !share_text(layer, last))
            continue;
        memcpy((char *)layer + tensors[kind].place, &numbers, sizeof numbers);
        end = end == 0 ? i : end;
    }
    return end;
}

/* Adds a tensor of a layer, or one of the capture, for which `index` is 0. */
static bool add_tensor(struct reader *r, size_t index, enum capture_tensor kind) {
    struct capture_layout *layout = r->layout;
    struct capture_layer *layer = &layout->items[index];
    bool common = kind >= CAPTURE_TOKEN_IDS;
    const char *field = name_of(r, common ? "" : layer->name, tensors[kind].name);
    const struct safetensors_tensor *tensor = safetensors_header_find(r->header, field);

    if (tensor == NULL)
        return kind != CAPTURE_KEYS || refuse_field(r, WIRE_E_MISSING_KEY, field);
    if (json_object_get(r->known, tensor->name) != NULL) /* two layers of one name */
        return refuse_field(r, WIRE_E_WRONG_TYPE, "layers");
    if (json_object_set_new_nocheck(r->known, tensor->name, json_true()) != 0)
        return wire_problem_set_no_memory(r->problem);
    if (!check_form(r, field, kind, tensor))
        return false;
    if (!take_shape(layer, kind, tensor))
        return refuse_field(r, WIRE_E_SHAPE_MISMATCH, field);

    size_t end = common ? share_tensor(layout, kind, tensor->elements, NULL) : index + 1;
    if (end == 0)
        layout->layers.left_out[layout->num_left_out++] = tensors[kind].name;
    layout->parts[layout->num_parts++] =
        (struct capture_part){.kind = kind,
                              .layer = end > 0 ? end - 1 : 0,
                              .type = tensor->dtype,
                              .begin = tensor->begin,
                              .end = tensor->end,
                              .offset = layout->block_bytes,
                              .unused = end == 0};
    if (end > 0)
        size_add_saturating(&layout->block_bytes, count_bytes(layer, kind, tensor));
    return true;
}

/* --- options --- */

/* Whether an option has a value that it can have, which it sets. */
static bool take_option(struct capture_layer *layer, size_t option, const json_t *value) {
    double number = json_number_value(value);

    switch (option) {
    case 0:
        layer->has_scale = true;
        layer->scale = number;
        return json_is_number(value) && number != 0 && fabs(number) <= ATTN_SCALE_MAX;
    case 1:
        layer->softcap = number;
        return json_is_number(value) && number > 0 && number <= ATTN_SCALE_MAX;
    case 2:
        layer->causal = json_is_true(value);
        return json_is_boolean(value);
    default:
        layer->window = (size_t)json_integer_value(value);
        return json_is_integer(value) && json_integer_value(value) >= 0 &&
               json_integer_value(value) <= ATTN_POSITION_MAX;
    }
}

/* Reads an option of a layer, which is JSON, if it is there and not null. */
static bool add_option(struct reader *r, struct capture_layer *layer, size_t option) {
    static const char *const options[NUM_OPTIONS] = {"scale", "softcap", "causal",
                                                     "window"};
    const char *name = name_of(r, layer->name, options[option]);
    const char *text = json_string_value(json_object_get(r->metadata, name));
    attn_status status = ATTN_E_FORMAT;
    json_t *value = NULL;
    json_error_t error;

    if (text == NULL)
        return true;
    if (json_object_set_new_nocheck(r->known, name, json_false()) != 0)
        return wire_problem_set_no_memory(r->problem);
    if (strlen(text) <= OPTION_MAX)
        status = parse_json(text, strlen(text), JSON_REJECT_DUPLICATES | JSON_DECODE_ANY,
                            &value, &error);
    if (status == ATTN_E_NOMEM)
        return wire_problem_set_no_memory(r->problem);
    bool taken = json_is_null(value) || take_option(layer, option, value);
    json_decref(value);
    return taken || refuse_field(r, WIRE_E_WRONG_TYPE, name);
}

/* --- all of them --- */

/* Checks that the file has nothing that was not read. */
static bool check_names(struct reader *r) {
    static const char *const others[] = {"layers", "tokens", "format", "hidden_ids"};
    void *at = json_object_iter((json_t *)(uintptr_t)r->metadata);

    for (size_t i = 0; i < r->header->num_tensors; i++) {
        if (!json_is_true(json_object_get(r->known, r->header->tensors[i].name)))
            return refuse_field(r, WIRE_E_UNKNOWN_KEY, r->header->tensors[i].name);
    }
    for (; at != NULL; at = json_object_iter_next((json_t *)(uintptr_t)r->metadata, at)) {
        const char *key = json_object_iter_key(at);
        bool known = json_is_false(json_object_get(r->known, key));
        for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
            known = known || strcmp(key, others[i]) == 0;
        if (!known)
            return refuse_field(r, WIRE_E_UNKNOWN_KEY, key);
    }
    return true;
}

static int compare_parts(const void *a, const void *b) {
    const struct capture_part *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Allocates the layers of a list of names, and copies these. */
static bool alloc_layers(struct reader *r, const json_t *list) {
    struct capture_layout *layout = r->layout;
    size_t count = json_array_size(list), size = 0;

    for (size_t i = 0; i < count; i++) {
        const json_t *name = json_array_get(list, i);
        if (json_string_length(name) == 0 || /* of other types, too */
            json_string_length(name) > LAYER_NAME_MAX)
            return refuse_field(r, WIRE_E_WRONG_TYPE, "layers");
        size += json_string_length(name) + 1;
    }
    if (count == 0)
        return refuse_field(r, WIRE_E_WRONG_TYPE, "layers");
    layout->names = malloc(size);
    layout->items = calloc(count, sizeof *layout->items);
    layout->parts = calloc(r->header->num_tensors + 1, sizeof *layout->parts);
    layout->own_bytes = size + count * sizeof *layout->items;
    if (layout->names == NULL || layout->items == NULL || layout->parts == NULL) {
        wire_problem_set_no_memory(r->problem);
        return false; /* as the analyzer sees */
    }

    layout->layers = (struct capture_layers){.items = layout->items, .count = count};
    for (size_t i = 0, at = 0; i < count; i++) {
        const json_t *name = json_array_get(list, i);
        layout->items[i].name = layout->names + at;
        memcpy(layout->names + at, json_string_value(name), json_string_length(name) + 1);
        at += json_string_length(name) + 1;
        const char *dot = strrchr(layout->items[i].name, '.');
        layout->items[i].cross = dot != NULL && strcmp(dot, ".cross") == 0;
    }
    return true;
}

static bool read_layers(struct reader *r, const json_t *list) {
    if (!alloc_layers(r, list))
        return false;
    for (size_t i = 0; i < r->layout->layers.count; i++) {
        pace_add(LAYER_STEPS);
        for (size_t k = 0; k < CAPTURE_TOKEN_IDS; k++) {
            if (!add_tensor(r, i, (enum capture_tensor)k))
                return false;
        }
        for (size_t k = 0; k < NUM_OPTIONS; k++) {
            if (!add_option(r, &r->layout->items[i], k))
                return false;
        }
    }
    for (size_t k = CAPTURE_TOKEN_IDS; k < CAPTURE_NUM_TENSORS; k++) {
        if (!add_tensor(r, 0, (enum capture_tensor)k))
            return false;
    }
    if (!check_names(r))
        return false;
    if (r->layout->num_parts > 0 && r->layout->parts != NULL)
        qsort(r->layout->parts, r->layout->num_parts, sizeof *r->layout->parts,
              compare_parts);
    return true;
}

bool capture_layout_make(const struct safetensors_header *header,
                         struct capture_layout *ret_layout,
                         struct wire_problem *ret_problem) {
    struct reader r = {.header = header,
                       .metadata = safetensors_header_get_metadata(header),
                       .known = json_object(),
                       .layout = ret_layout,
                       .problem = ret_problem};
    const char *names = json_string_value(json_object_get(r.metadata, "layers"));
    json_t *list = NULL;
    json_error_t error;
    bool read = false;

    *ret_layout = (struct capture_layout){0};
    if (names == NULL && safetensors_header_find(header, "hidden_states") != NULL)
        wire_problem_set(ret_problem, WIRE_E_MISSING_KEY, "layers",
                         "the file has hidden_states and no layers of queries and keys, "
                         "which are what a server keeps; the folder of the model makes "
                         "these: python3 -m attnd heads FOLDER --data FILE");
    else if (names == NULL)
        refuse_field(&r, WIRE_E_MISSING_KEY, "layers");
    else if (r.known == NULL || parse_json(names, strlen(names), JSON_REJECT_DUPLICATES,
                                           &list, &error) == ATTN_E_NOMEM)
        wire_problem_set_no_memory(ret_problem);
    else if (!json_is_array(list))
        refuse_field(&r, WIRE_E_WRONG_TYPE, "layers");
    else
        read = read_layers(&r, list);

    json_decref(list);
    json_decref(r.known);
    if (!read)
        capture_layout_deinit(ret_layout);
    return read;
}

void capture_layout_place(struct capture_layout *layout, unsigned char *block) {
    for (size_t i = 0; i < layout->num_parts; i++) {
        const struct capture_part *part = &layout->parts[i];
        struct capture_layer *layer = &layout->items[part->layer];
        const void *at = block + part->offset;

        if (part->kind < CAPTURE_TOKEN_IDS)
            memcpy((char *)layer + tensors[part->kind].place, &at, sizeof at);
        else if (!part->unused)
            share_tensor(layout, part->kind,
                         (size_t)(part->end - part->begin) / (part->type->bits / 8), at);
    }
}

void capture_layout_deinit(struct capture_layout *layout) {
    free(layout->items);
    free(layout->names);
    free(layout->parts);
    *layout = (struct capture_layout){0};
}
