/* SPDX-License-Identifier: Apache-2.0 */
/* layout.c: matches a file with the table of layouts. */
#include "weights/layout.h"

#include "base/error.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* --- files that no layout fits --- */

#define PREFIXES_SIZE 160 /* bytes of prefixes that an error shows */

/* Counts the prefixes under which `layout` fits, of those that name a module under
 * `under`, whose dot at the end may be missing. Lists them, in the order of the tensors:
 * "prefix=a., prefix=b., ...". */
static size_t list_prefixes(const struct tensor_view *all, const struct layout *layout,
                            const char *under, char ret_list[PREFIXES_SIZE]) {
    static const char more[] = ", ...";
    const char *first = layout_first_name(layout);
    size_t count = 0, used = 0, before = strlen(under);

    for (size_t i = 0; i < all->count; i++) {
        char prefix[100]; /* so that an error's line has room for it */
        const char *name = all->tensors[i].name;
        size_t size = strlen(name), prefix_size = size - strlen(first);
        if (size < strlen(first) || prefix_size >= sizeof prefix ||
            strcmp(name + prefix_size, first) != 0)
            continue;

        memcpy(prefix, name, prefix_size);
        prefix[prefix_size] = '\0';
        bool inside = strncmp(prefix, under, before) == 0 &&
                      (before == 0 || under[before - 1] == '.' || prefix[before] == '.');
        struct tensor_view view = tensor_view_make(all, prefix);
        if (!inside || !layout_fits(layout, &view))
            continue;
        const char *comma = count++ > 0 ? ", " : "";
        size_t needed = strlen(comma) + strlen("prefix=") + prefix_size + sizeof more;
        if (used + needed <= PREFIXES_SIZE)
            used +=
                (size_t)snprintf(ret_list + used, needed, "%sprefix=%s", comma, prefix);
        else if (used < PREFIXES_SIZE) {
            memcpy(ret_list + used, more, sizeof more);
            used = PREFIXES_SIZE; /* no more is shown */
        }
    }
    return count;
}

/* Refuses `prefix` when a layout called `name`, or any where that is NULL, fits under
 * another one; else returns ATTN_OK. The modules under the prefix come first: a dot or a
 * last name may have been forgotten, and another block is not what was asked for. */
static attn_status refuse_prefix(const struct tensor_view *all, const char *prefix,
                                 const char *name, attn_error *ret_error) {
    for (size_t i = 0; i < (size_t)2 * LAYOUT_TABLE_SIZE; i++) {
        const struct layout *layout = &layout_table[i % LAYOUT_TABLE_SIZE];
        bool inside = i < LAYOUT_TABLE_SIZE;
        char list[PREFIXES_SIZE];
        size_t count = layout_is_called(layout, name)
                           ? list_prefixes(all, layout, inside ? prefix : "", list)
                           : 0;
        if (count == 1 && inside)
            return error_set(ret_error, ATTN_E_FORMAT,
                             "no layout fits with prefix '%.80s', "
                             "but layout %s fits with another; write %s",
                             prefix, layout->name, list);
        if (count > 0)
            return error_set(ret_error, ATTN_E_FORMAT,
                             "no layout fits with prefix '%.80s'; choose one that layout "
                             "%s fits with (%zu in all): %s",
                             prefix, layout->name, count, list);
    }
    return ATTN_OK;
}

#define LISTED          "; 'attnd inspect FILE' lists all, and may tell what to write"
#define NAMES_SHOWN     3 /* tensors that an error lists */
#define NAMES_TEXT_SIZE (NAMES_SHOWN * 48 + 32)

/* Writes the first names in the view that `layout` does not know: "'a', 'b' and 7 more".
 * With a layout of NULL, all are unknown. The text is empty where it knows every name. */
static void list_unknown(const struct tensor_view *view, const struct layout *layout,
                         char ret_text[NAMES_TEXT_SIZE]) {
    size_t count = 0, used = 0;

    ret_text[0] = '\0';
    for (size_t i = 0; i < view->count; i++) {
        const char *name = view->tensors[i].name;
        if (layout != NULL && layout_knows(layout, name + view->prefix_size))
            continue;
        if (count++ < NAMES_SHOWN)
            used += (size_t)snprintf(ret_text + used, NAMES_TEXT_SIZE - used, "%s'%.40s'",
                                     count > 1 ? ", " : "", name);
    }
    if (count > NAMES_SHOWN)
        snprintf(ret_text + used, NAMES_TEXT_SIZE - used, " and %zu more",
                 count - NAMES_SHOWN);
}

/* Returns whether a file is a request or a capture: one of its tensors is called queries
 * or LAYER.queries. */
static bool has_queries(const struct tensor_view *view) {
    for (size_t i = 0; i < view->count; i++) {
        const char *last = strrchr(view->tensors[i].name, '.');
        if (strcmp(last != NULL ? last + 1 : view->tensors[i].name, "queries") == 0)
            return true;
    }
    return false;
}

/* Explains why none of the layouts called `name` fits the tensors under `prefix`, or none
 * at all when it is NULL. The line has the option, or the names of tensors, that would
 * help. Returns ATTN_E_FORMAT, or ATTN_E_VALUE for an unknown name of a layout. */
static attn_status refuse_unrecognised(const struct tensor_view *all,
                                       const struct tensor_view *view, const char *prefix,
                                       const char *name, attn_error *ret_error) {
    const struct layout *nearest = NULL;
    struct layout_scan scan = {.present = 0};
    char others[NAMES_TEXT_SIZE];

    attn_status status = refuse_prefix(all, prefix, name, ret_error);
    if (status != ATTN_OK)
        return status;

    /* Where no prefix helps, the nearest layout is the one with the most tensors here. */
    for (size_t i = 0; i < LAYOUT_TABLE_SIZE; i++) {
        const struct layout_scan tried = layout_scan_view(&layout_table[i], view);
        if (layout_is_called(&layout_table[i], name) &&
            (nearest == NULL || tried.present > scan.present ||
             (tried.present == scan.present && scan.present > 0 &&
              tried.absent < scan.absent))) {
            nearest = &layout_table[i];
            scan = tried;
        }
    }
    if (nearest == NULL)
        return error_set(ret_error, ATTN_E_VALUE,
                         "layout '%.40s' is unknown; known are " LAYOUT_NAMES, name);
    if (view->count == 0)
        return error_set(ret_error, ATTN_E_FORMAT,
                         "no tensor has a name that begins with prefix '%.80s'", prefix);

    bool none = scan.present == 0 && name == NULL;
    list_unknown(view, none ? NULL : nearest, others);
    if (none && has_queries(view))
        return error_set(
            ret_error, ATTN_E_FORMAT,
            "this is not a layer: the file has %s, which are rows; send them to "
            "POST /v1/attention/dot-product, or drop the file on the page",
            others);
    if (none)
        return error_set(ret_error, ATTN_E_FORMAT,
                         "no layout fits: the file has %s, but no name that one "
                         "of " LAYOUT_NAMES " uses" LISTED,
                         others);
    return error_set(
        ret_error, ATTN_E_FORMAT,
        "%s layout %s, which lacks tensor '%.80s%s' (%zu of its %zu weights are "
        "present)%s%s" LISTED,
        name == NULL ? "no layout fits; the nearest is" : "the tensors do not fit",
        nearest->name, prefix, scan.missing, scan.present, scan.present + scan.absent,
        others[0] != '\0' ? "; what it does not know is " : "", others);
}

/* Explains that both fit. Returns ATTN_E_FORMAT. */
static attn_status refuse_ambiguous(const struct layout *a, const struct layout *b,
                                    attn_error *ret_error) {
    const char *name_a = layout_first_name(a), *name_b = layout_first_name(b);

    if (strcmp(a->name, b->name) == 0)
        return error_set(ret_error, ATTN_E_FORMAT,
                         "layout %s has either '%s' or '%s', but both are present; "
                         "remove the one that is not used",
                         a->name, name_a, name_b);
    return error_set(ret_error, ATTN_E_FORMAT,
                     "layouts %s ('%s') and %s ('%s') both fit; "
                     "write layout=%s or layout=%s",
                     a->name, name_a, b->name, name_b, a->name, b->name);
}

/* --- files that one fits --- */

/* Checks the tensors of a file that the layout fits; others may be there if `named`. */
static attn_status check_known(const struct layout *layout,
                               const struct tensor_view *view, bool named,
                               attn_error *ret_error) {
    attn_status status = ATTN_OK;

    for (size_t i = 0; i < 2 && layout->refused[i] != NULL; i++) {
        const struct safetensors_tensor *tensor =
            tensor_view_find(view, layout->refused[i]);
        if (tensor != NULL)
            return error_set(ret_error, ATTN_E_UNSUPPORTED,
                             "tensor '%.80s' adds a learned row to the keys or values "
                             "(torch's add_bias_kv), which attnd does not compute",
                             tensor->name);
    }
    for (size_t i = 0; i < view->count && status == ATTN_OK; i++) {
        const struct safetensors_tensor *tensor = &view->tensors[i];
        const char *name = tensor->name + view->prefix_size;
        if (layout_uses(layout, name))
            status = safetensors_check_dtype(tensor, ret_error);
        else if (layout->own && !layout_knows(layout, name))
            status = error_set(ret_error, ATTN_E_FORMAT,
                               "tensor '%.80s' has none of the given names and might "
                               "change the results; if it does not, save the file "
                               "without it, or write the prefix= of the layer's module",
                               tensor->name);
        else if (!named && !layout_knows(layout, name))
            status = error_set(ret_error, ATTN_E_FORMAT,
                               "tensor '%.80s' is not part of layout %s and might change "
                               "the results; remove it, or write layout=%s to ignore it",
                               tensor->name, layout->name, layout->name);
    }
    return status;
}

/* --- names of one's own --- */

/* The options that name tensors, and which model weight each of them is. */
static const struct own_key {
    const char *name;
    size_t member; /* of attn_model_options */
    enum linear_id linear;
} own_keys[] = {
    {"q", offsetof(attn_model_options, q), LINEAR_QUERY},
    {"k", offsetof(attn_model_options, k), LINEAR_KEY},
    {"v", offsetof(attn_model_options, v), LINEAR_VALUE},
    {"qkv", offsetof(attn_model_options, qkv), LINEAR_PACKED},
    {"o", offsetof(attn_model_options, o), LINEAR_OUTPUT},
};

#define NUM_OWN_KEYS (sizeof own_keys / sizeof own_keys[0])

/* Returns where the options have the name that own_keys[i] gives. */
static const char **find_own_name(attn_model_options *options, size_t i) {
    return (const char **)((char *)options + own_keys[i].member);
}

/* Completes the options by __metadata__. A layout and names of one's own are all from the
 * same place. Returns whether there are names of one's own. */
static bool complete_options(const struct safetensors *file,
                             attn_model_options *options) {
    bool own = false;

    for (size_t i = 0; i < NUM_OWN_KEYS; i++)
        own = own || *find_own_name(options, i) != NULL;
    bool given = own || options->layout != NULL;
    for (size_t i = 0; i < NUM_OWN_KEYS && !given; i++) {
        const char **name = find_own_name(options, i);
        *name = safetensors_get_metadata(file, own_keys[i].name);
        own = own || *name != NULL;
    }
    if (!given)
        options->layout = safetensors_get_metadata(file, "layout");
    if (options->prefix == NULL)
        options->prefix = safetensors_get_metadata(file, "prefix");
    if (options->prefix == NULL)
        options->prefix = "";
    return own;
}

/* Returns the first name in the view, of those after `after` unless that is NULL, that is
 * the first `size` bytes of `base` and one of two endings; or NULL. */
static const char *find_spelled(const struct tensor_view *view, const char *after,
                                const char *base, size_t size,
                                const char *const endings[2]) {
    for (size_t i = 0; i < view->count; i++) {
        const char *name = view->tensors[i].name + view->prefix_size;
        if ((after == NULL || strcmp(name, after) > 0) &&
            strncmp(name, base, size) == 0 &&
            (strcmp(name + size, endings[0]) == 0 ||
             strcmp(name + size, endings[1]) == 0))
            return name;
    }
    return NULL;
}

/* Finds weight and bias of a linear by a name of one's own, which must not be that of two
 * tensors. */
static attn_status find_own_linear(const struct tensor_view *view, const char *key,
                                   const char *name, struct linear_names *ret_names,
                                   attn_error *ret_error) {
    static const char *const weights[] = {"", ".weight"}, *const biases[] = {".bias",
                                                                             "_bias"};
    char others[NAMES_TEXT_SIZE];
    const char *weight = find_spelled(view, NULL, name, strlen(name), weights);

    if (weight == NULL) {
        list_unknown(view, NULL, others);
        return error_set(ret_error, ATTN_E_FORMAT,
                         "%s=%.80s names no tensor; with the prefix that is given, or "
                         "none, there are %s" LISTED,
                         key, name, others[0] != '\0' ? others : "no tensors");
    }

    const char *other = find_spelled(view, weight, name, strlen(name), weights);
    if (other != NULL)
        return error_set(ret_error, ATTN_E_FORMAT,
                         "%s=%.80s names '%.80s' and '%.80s'; remove the one that is not "
                         "used",
                         key, name, weight, other);

    size_t size = strlen(weight);
    const char *ending = weight + (size > 7 ? size - 7 : 0);
    if (strcmp(ending, ".weight") == 0 || strcmp(ending, "_weight") == 0)
        size -= 7;
    *ret_names = (struct linear_names){
        .weight = weight, .bias = find_spelled(view, NULL, weight, size, biases)};
    return ATTN_OK;
}

/* Makes the layout of names of one's own. */
static attn_status find_own_layout(attn_model_options *options,
                                   const struct tensor_view *view,
                                   struct layout *ret_layout, attn_error *ret_error) {
    struct layout layout = {.name = "own", .own = true, .wide = true};
    attn_status status = ATTN_OK;

    if (options->layout != NULL)
        return error_set(ret_error, ATTN_E_VALUE,
                         "layout=%.40s and names of tensors (q=, k=, v=, qkv=, o=) "
                         "exclude each other; leave one out",
                         options->layout);
    for (size_t i = LINEAR_QUERY; i <= LINEAR_VALUE; i++) {
        if ((*find_own_name(options, i) != NULL) == (options->qkv != NULL))
            return error_set(ret_error, ATTN_E_VALUE,
                             "%s= %s; write q=, k= and v=, or qkv= alone, and o= for the "
                             "output projection",
                             own_keys[i].name,
                             options->qkv != NULL ? "is beside qkv=" : "is missing");
    }

    for (size_t i = 0; i < NUM_OWN_KEYS && status == ATTN_OK; i++) {
        const char *name = *find_own_name(options, i);
        if (name != NULL)
            status = find_own_linear(view, own_keys[i].name, name,
                                     &layout.linears[own_keys[i].linear], ret_error);
    }
    if (status == ATTN_OK)
        *ret_layout = layout;
    return status;
}

/* --- any file --- */

/* Finds the one layout of the table that fits; *ret_layout has no name yet. */
static attn_status find_known_layout(const struct tensor_view *all,
                                     const struct tensor_view *view, const char *prefix,
                                     const char *name, struct layout *ret_layout,
                                     attn_error *ret_error) {
    for (size_t i = 0; i < LAYOUT_TABLE_SIZE; i++) {
        const struct layout *layout = &layout_table[i];
        if (!layout_is_called(layout, name) || !layout_fits(layout, view))
            continue;
        if (ret_layout->name != NULL)
            return refuse_ambiguous(ret_layout, layout, ret_error);
        *ret_layout = *layout;
    }
    return ret_layout->name != NULL
               ? ATTN_OK
               : refuse_unrecognised(all, view, prefix, name, ret_error);
}

attn_status layout_recognise(const struct safetensors *file,
                             const attn_model_options *options, struct layout *ret_layout,
                             struct tensor_view *ret_view, attn_error *ret_error) {
    const struct tensor_view all = tensor_view_of(file);
    attn_model_options chosen = *options;
    bool own = complete_options(file, &chosen);

    *ret_layout = (struct layout){.name = NULL};
    *ret_view = tensor_view_make(&all, chosen.prefix);
    attn_status status = own ? find_own_layout(&chosen, ret_view, ret_layout, ret_error)
                             : find_known_layout(&all, ret_view, chosen.prefix,
                                                 chosen.layout, ret_layout, ret_error);
    return status != ATTN_OK
               ? status
               : check_known(ret_layout, ret_view, chosen.layout != NULL, ret_error);
}
