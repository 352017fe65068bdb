/* SPDX-License-Identifier: Apache-2.0 */
/* layout.c: matches a file with the table of layouts. */
#include "weights/layout.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>

/* --- files that no layout fits --- */

/* Prefixes under which a layout fits, as an error shows them. */
struct suggestion {
    char text[160]; /* "prefix=a., prefix=b., ..." */
    size_t size;    /* of the text; sizeof text once no more is shown */
    size_t count;   /* of all prefixes */
};

static void suggest_prefix(struct suggestion *suggestion, const char *prefix) {
    static const char more[] = ", ...";
    size_t room = sizeof suggestion->text - suggestion->size;
    const char *comma = suggestion->count++ > 0 ? ", " : "";

    if (room == 0)
        return;
    if (strlen(comma) + strlen("prefix=") + strlen(prefix) + sizeof more <= room) {
        suggestion->size += (size_t)snprintf(suggestion->text + suggestion->size, room,
                                             "%sprefix=%s", comma, prefix);
        return;
    }
    memcpy(suggestion->text + suggestion->size, more, sizeof more);
    suggestion->size = sizeof suggestion->text;
}

/* Returns whether `name` begins with `prefix` and a dot; `prefix` may have that dot, or
 * be empty. */
static bool is_under(const char *name, const char *prefix) {
    size_t size = strlen(prefix);
    return strncmp(name, prefix, size) == 0 &&
           (size == 0 || prefix[size - 1] == '.' || name[size] == '.');
}

/* Collects the prefixes under which `layout` fits, in the order of the tensors; with
 * `under`, only those that name a module under that prefix. */
static void find_prefixes(const struct safetensors *file, const struct layout *layout,
                          const char *under, struct suggestion *ret_suggestion) {
    size_t count;
    const struct safetensors_tensor *tensors = safetensors_get_tensors(file, &count);
    char first[LAYOUT_NAME_SIZE];
    size_t first_size = strlen(layout_required_name(layout, 0, first));

    *ret_suggestion = (struct suggestion){.size = 0};
    for (size_t i = 0; i < count; i++) {
        size_t size = strlen(tensors[i].name);
        if (size < first_size || strcmp(tensors[i].name + size - first_size, first) != 0)
            continue;

        char prefix[100]; /* so that an error's line has room for it */
        size -= first_size;
        if (size >= sizeof prefix)
            continue;
        memcpy(prefix, tensors[i].name, size);
        prefix[size] = '\0';

        struct tensor_view view = tensor_view_make(tensors, count, prefix);
        if (is_under(prefix, under) && layout_fits(layout, &view))
            suggest_prefix(ret_suggestion, prefix);
    }
}

/* Refuses `prefix` when a layout called `name`, or any where that is NULL, fits under
 * another one; else returns ATTN_OK. The modules under the prefix come first: a dot or a
 * last name may have been forgotten, and another block is not what was asked for. */
static attn_status refuse_prefix(const struct safetensors *file, const char *prefix,
                                 const char *name, attn_error *ret_error) {
    const char *const scopes[] = {prefix, ""};

    for (size_t scope = 0; scope < 2; scope++) {
        for (size_t i = 0; i < LAYOUT_TABLE_SIZE; i++) {
            struct suggestion suggestion;
            if (!layout_is_called(&layout_table[i], name))
                continue;
            find_prefixes(file, &layout_table[i], scopes[scope], &suggestion);
            if (suggestion.count == 0)
                continue;
            if (suggestion.count == 1 && scope == 0)
                return error_set(ret_error, ATTN_E_FORMAT,
                                 "no layout fits with prefix '%.80s', "
                                 "but layout %s fits with another; write %s",
                                 prefix, layout_table[i].name, suggestion.text);
            return error_set(
                ret_error, ATTN_E_FORMAT,
                "no layout fits with prefix '%.80s'; choose one that layout %s "
                "fits with (%zu in all): %s",
                prefix, layout_table[i].name, suggestion.count, suggestion.text);
        }
    }
    return ATTN_OK;
}

#define ONE_HEAD "heads.0." /* what names in a file of a single head lack */

/* Returns the tensor that has a required name but for a part of it, or NULL. *ret_bare
 * becomes true where ".weight" is missing, as in the name of an nn.Parameter, and
 * *ret_alone where ONE_HEAD is missing, as in the names of a single head. */
static const struct safetensors_tensor *find_short(const struct tensor_view *view,
                                                   const struct layout *layout,
                                                   const char *required, bool *ret_bare,
                                                   bool *ret_alone) {
    bool per_head = layout->linears[LINEAR_QUERY].weight == NULL &&
                    strncmp(required, ONE_HEAD, strlen(ONE_HEAD)) == 0;

    for (int form = 0; form < 4; form++) {
        bool bare = form & 1, alone = form & 2;
        char name[LAYOUT_NAME_SIZE];
        if (alone && !per_head)
            break;
        snprintf(name, sizeof name, "%s", required + (alone ? strlen(ONE_HEAD) : 0));
        char *end = strstr(name, ".weight");
        if (bare && end != NULL)
            *end = '\0';

        const struct safetensors_tensor *found = tensor_view_find(view, name);
        if (found == NULL)
            continue;
        *ret_bare = *ret_bare || (bare && end != NULL);
        *ret_alone = *ret_alone || alone;
        return found;
    }
    return NULL;
}

/* Refuses shorter names when a layout called `name`, or any where that is NULL, would fit
 * with the full ones; else returns ATTN_OK. */
static attn_status refuse_short_names(const struct tensor_view *view, const char *name,
                                      attn_error *ret_error) {
    for (size_t i = 0; i < LAYOUT_TABLE_SIZE; i++) {
        const struct layout *layout = &layout_table[i];
        const struct safetensors_tensor *first = NULL;
        char required[LAYOUT_NAME_SIZE], full[LAYOUT_NAME_SIZE] = "";
        bool fits = layout_is_called(layout, name), bare = false, alone = false;

        for (size_t nth = 0; fits && layout_required_name(layout, nth, required); nth++) {
            const struct safetensors_tensor *tensor =
                find_short(view, layout, required, &bare, &alone);
            fits = tensor != NULL;
            if (first == NULL && fits &&
                strcmp(tensor->name + view->prefix_size, required) != 0) {
                first = tensor;
                memcpy(full, required, sizeof full);
            }
        }
        if (fits && first != NULL)
            return error_set(
                ret_error, ATTN_E_FORMAT,
                "no layout fits: tensor '%.80s' would be '%.*s%s' of layout %s%s; save "
                "it, and others like it, under such a name%s%s",
                first->name, view->prefix_size < 80 ? (int)view->prefix_size : 80,
                first->name, full, layout->name,
                alone ? ", as that of a single head without an output projection" : "",
                bare ? " and as [out, in]: transposed where y = x W, by "
                       "np.ascontiguousarray(w.T)"
                     : "",
                alone && layout->causal ? "; write causal=false if it has no mask" : "");
    }
    return ATTN_OK;
}

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
static attn_status layout_refuse_unrecognised(const struct safetensors *file,
                                              const struct tensor_view *view,
                                              const char *prefix, const char *name,
                                              attn_error *ret_error) {
    const struct layout *nearest = NULL;
    size_t nearest_present = 0, nearest_absent = 0;
    char nearest_missing[LAYOUT_NAME_SIZE] = "";

    attn_status status = refuse_prefix(file, prefix, name, ret_error);
    if (status == ATTN_OK)
        status = refuse_short_names(view, name, ret_error);
    if (status != ATTN_OK)
        return status;

    /* Where no prefix helps, the nearest layout is the one with the most tensors here. */
    for (size_t i = 0; i < LAYOUT_TABLE_SIZE; i++) {
        if (!layout_is_called(&layout_table[i], name))
            continue;
        char missing[LAYOUT_NAME_SIZE];
        size_t absent,
            present = layout_count_present(&layout_table[i], view, &absent, missing);
        if (nearest == NULL || present > nearest_present ||
            (present == nearest_present && present > 0 && absent < nearest_absent)) {
            nearest = &layout_table[i];
            nearest_present = present;
            nearest_absent = absent;
            memcpy(nearest_missing, missing, sizeof missing);
        }
    }

    if (nearest == NULL)
        return error_set(ret_error, ATTN_E_VALUE,
                         "layout '%.40s' is unknown; known are " LAYOUT_NAMES, name);
    if (view->count == 0)
        return error_set(ret_error, ATTN_E_FORMAT,
                         "no tensor has a name that begins with prefix '%.80s'", prefix);

    char others[NAMES_TEXT_SIZE];
    bool none = nearest_present == 0 && name == NULL;
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
                         "of " LAYOUT_NAMES " uses",
                         others);

    const char *start =
        name == NULL ? "no layout fits; the nearest is" : "the tensors do not fit";
    return error_set(ret_error, ATTN_E_FORMAT,
                     "%s layout %s, which lacks tensor '%.80s%s' (%zu of its %zu weights "
                     "are present)%s%s",
                     start, nearest->name, prefix, nearest_missing, nearest_present,
                     nearest_present + nearest_absent,
                     others[0] != '\0' ? "; what it does not know is " : "", others);
}

/* Explains that both fit. Returns ATTN_E_FORMAT. */
static attn_status layout_refuse_ambiguous(const struct layout *a, const struct layout *b,
                                           attn_error *ret_error) {
    char name_a[LAYOUT_NAME_SIZE], name_b[LAYOUT_NAME_SIZE];

    layout_required_name(a, 0, name_a);
    layout_required_name(b, 0, name_b);
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

/* Refuses tensors that change the results in a way that attnd does not compute. */
static attn_status check_refused(const struct layout *layout,
                                 const struct tensor_view *view, attn_error *ret_error) {
    for (size_t i = 0; i < sizeof layout->refused / sizeof layout->refused[0]; i++) {
        if (layout->refused[i] == NULL)
            continue;
        const struct safetensors_tensor *tensor =
            tensor_view_find(view, layout->refused[i]);
        if (tensor != NULL)
            return error_set(ret_error, ATTN_E_UNSUPPORTED,
                             "tensor '%.80s' adds a learned row to the keys or values "
                             "(torch's add_bias_kv), which attnd does not compute",
                             tensor->name);
    }
    return ATTN_OK;
}

attn_status layout_recognise(const struct safetensors *file, const char *prefix,
                             const char *name, const struct layout **ret_layout,
                             struct tensor_view *ret_view, attn_error *ret_error) {
    size_t count;
    const struct safetensors_tensor *tensors = safetensors_get_tensors(file, &count);
    struct tensor_view view = tensor_view_make(tensors, count, prefix);
    const struct layout *found = NULL;

    for (size_t i = 0; i < LAYOUT_TABLE_SIZE; i++) {
        if (!layout_is_called(&layout_table[i], name) ||
            !layout_fits(&layout_table[i], &view))
            continue;
        if (found != NULL)
            return layout_refuse_ambiguous(found, &layout_table[i], ret_error);
        found = &layout_table[i];
    }
    if (found == NULL)
        return layout_refuse_unrecognised(file, &view, prefix, name, ret_error);

    attn_status status = check_refused(found, &view, ret_error);
    if (status != ATTN_OK)
        return status;
    for (size_t i = 0; i < view.count && status == ATTN_OK; i++) {
        const struct safetensors_tensor *tensor = &view.tensors[i];
        if (layout_uses(found, tensor->name + view.prefix_size))
            status = safetensors_check_dtype(tensor, ret_error);
        else if (name == NULL && !layout_knows(found, tensor->name + view.prefix_size))
            status = error_set(ret_error, ATTN_E_FORMAT,
                               "tensor '%.80s' is not part of layout %s and might change "
                               "the results; remove it, or write layout=%s to ignore it",
                               tensor->name, found->name, found->name);
    }
    if (status != ATTN_OK)
        return status;

    *ret_layout = found;
    *ret_view = view;
    return ATTN_OK;
}
