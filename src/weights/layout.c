/* SPDX-License-Identifier: Apache-2.0 */
/* layout.c: the table of layouts, and how a file is matched with it. A file that fits no
 * layout, or several, is refused with the option that would help. */
#include "weights/layout.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>

#define LINEAR(module)                                                                   \
    { module ".weight", module ".bias" }

/* clang-format off */
static const struct layout layouts[] = {
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

/* Bytes of a tensor's name in a layout, terminator included. */
#define LAYOUT_NAME_SIZE 64

#define NUM_LAYOUTS  (sizeof layouts / sizeof layouts[0])
#define LAYOUT_NAMES "d2l, torch, llms_from_scratch, llms_from_scratch_wrapper, two_stage"

/* Returns how many of the sorted tensors have a name that sorts before `name`; with
 * `or_begins`, those that begin with it count too. The first `skip` bytes of the tensors'
 * names are ignored. */
static size_t count_before(const struct safetensors_tensor *tensors, size_t count,
                           size_t skip, const char *name, bool or_begins) {
    size_t lo = 0, hi = count, size = strlen(name);

    while (lo < hi) {
        size_t middle = lo + (hi - lo) / 2;
        int order = strncmp(tensors[middle].name + skip, name, size);
        if (order < 0 || (order == 0 && or_begins))
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo;
}

/* Returns the view of the tensors under `prefix`. */
static struct tensor_view make_tensor_view(const struct safetensors *file,
                                           const char *prefix) {
    size_t count;
    const struct safetensors_tensor *tensors = safetensors_get_tensors(file, &count);
    size_t first = count_before(tensors, count, 0, prefix, false);
    size_t end = count_before(tensors, count, 0, prefix, true);
    return (struct tensor_view){tensors + first, end - first, strlen(prefix)};
}

const struct safetensors_tensor *tensor_view_find(const struct tensor_view *view,
                                                  const char *name) {
    size_t i = count_before(view->tensors, view->count, view->prefix_size, name, false);
    if (i == view->count || strcmp(view->tensors[i].name + view->prefix_size, name) != 0)
        return NULL;
    return &view->tensors[i];
}

/* Writes the name of a head's tensor: `pattern` with the head's number for '#'. */
static void format_head_name(const char *pattern, size_t head,
                             char ret_name[LAYOUT_NAME_SIZE]) {
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

    format_head_name(pattern, head, name);
    return tensor_view_find(view, name);
}

/* Returns whether `name` is `pattern` with a number for '#', without leading zeros. Sets
 * *ret_head to that number, or to 0 where the pattern has no '#'. */
static bool name_matches(const char *name, const char *pattern, size_t *ret_head) {
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

/* Returns the nth name that the layout requires, or NULL past the last one. A name with
 * '#' stands for that of head 0. */
static const char *required_name(const struct layout *layout, size_t nth,
                                 char buffer[LAYOUT_NAME_SIZE]) {
    for (size_t i = 0; i < NUM_LINEARS; i++) {
        const char *weight = layout->linears[i].weight;
        if (weight == NULL || nth-- > 0)
            continue;
        format_head_name(weight, 0, buffer);
        return buffer;
    }
    return NULL;
}

/* Returns how many required tensors the view has. *ret_absent is how many it lacks, and
 * ret_missing the name of the first that it lacks, where there is one. */
static size_t count_present(const struct layout *layout, const struct tensor_view *view,
                            size_t *ret_absent, char ret_missing[LAYOUT_NAME_SIZE]) {
    char name[LAYOUT_NAME_SIZE];
    size_t present = 0, absent = 0;

    for (size_t nth = 0; required_name(layout, nth, name) != NULL; nth++) {
        if (tensor_view_find(view, name) != NULL)
            present++;
        else if (absent++ == 0)
            memcpy(ret_missing, name, sizeof name);
    }
    *ret_absent = absent;
    return present;
}

static bool layout_fits(const struct layout *layout, const struct tensor_view *view) {
    char missing[LAYOUT_NAME_SIZE];
    size_t absent;
    count_present(layout, view, &absent, missing);
    return absent == 0;
}

static bool is_candidate(const struct layout *layout, const char *name) {
    return name == NULL || strcmp(layout->name, name) == 0;
}

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
    size_t first_size = strlen(required_name(layout, 0, first));

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

        struct tensor_view view = make_tensor_view(file, prefix);
        if (is_under(prefix, under) && layout_fits(layout, &view))
            suggest_prefix(ret_suggestion, prefix);
    }
}

/* Refuses `prefix` when a layout called `name`, or any where that is NULL, fits under
 * another one; else returns ATTN_OK. The modules under the prefix come first: a dot or a
 * last word may have been forgotten, and another block is not what was asked for. */
static attn_status refuse_prefix(const struct safetensors *file, const char *prefix,
                                 const char *name, attn_error *ret_error) {
    const char *const scopes[] = {prefix, ""};

    for (size_t scope = 0; scope < 2; scope++) {
        for (size_t i = 0; i < NUM_LAYOUTS; i++) {
            struct suggestion suggestion;
            if (!is_candidate(&layouts[i], name))
                continue;
            find_prefixes(file, &layouts[i], scopes[scope], &suggestion);
            if (suggestion.count == 0)
                continue;
            if (suggestion.count == 1 && scope == 0)
                return error_set(ret_error, ATTN_E_FORMAT,
                                 "no layout fits with prefix '%.80s', "
                                 "but layout %s fits with another; write %s",
                                 prefix, layouts[i].name, suggestion.text);
            return error_set(
                ret_error, ATTN_E_FORMAT,
                "no layout fits with prefix '%.80s'; choose one that layout %s "
                "fits with (%zu in all): %s",
                prefix, layouts[i].name, suggestion.count, suggestion.text);
        }
    }
    return ATTN_OK;
}

/* Refuses names without ".weight" when a layout called `name`, or any where that is NULL,
 * would fit with it; else returns ATTN_OK. */
static attn_status refuse_short_names(const struct tensor_view *view, const char *name,
                                      attn_error *ret_error) {
    for (size_t i = 0; i < NUM_LAYOUTS; i++) {
        const struct safetensors_tensor *first = NULL;
        char required[LAYOUT_NAME_SIZE];
        bool fits = is_candidate(&layouts[i], name);

        for (size_t nth = 0; fits && required_name(&layouts[i], nth, required); nth++) {
            if (tensor_view_find(view, required) != NULL)
                continue;
            char *end = strstr(required, ".weight");
            if (end != NULL)
                *end = '\0';
            const struct safetensors_tensor *tensor = tensor_view_find(view, required);
            if (first == NULL)
                first = tensor;
            fits = tensor != NULL;
        }
        if (fits && first != NULL)
            return error_set(ret_error, ATTN_E_FORMAT,
                             "no layout fits: tensor '%.80s' would be '%.80s.weight' of "
                             "layout %s; save it, and others like it, under such a name",
                             first->name, first->name, layouts[i].name);
    }
    return ATTN_OK;
}

/* Explains why none of the layouts called `name` fits, or none at all when it is NULL. */
static attn_status refuse_unrecognised(const struct safetensors *file,
                                       const struct tensor_view *view, const char *prefix,
                                       const char *name, attn_error *ret_error) {
    const struct layout *nearest = NULL;
    size_t nearest_present = 0, nearest_absent = 0;
    char nearest_missing[LAYOUT_NAME_SIZE] = "";

    attn_status status = refuse_prefix(file, prefix, name, ret_error);
    if (status == ATTN_OK)
        status = refuse_short_names(view, name, ret_error);
    if (status != ATTN_OK)
        return status;

    /* Where no prefix helps, the nearest layout is the one with the most tensors here. */
    for (size_t i = 0; i < NUM_LAYOUTS; i++) {
        if (!is_candidate(&layouts[i], name))
            continue;
        char missing[LAYOUT_NAME_SIZE];
        size_t absent, present = count_present(&layouts[i], view, &absent, missing);
        if (nearest == NULL || present > nearest_present ||
            (present == nearest_present && present > 0 && absent < nearest_absent)) {
            nearest = &layouts[i];
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
    if (nearest_present == 0 && name == NULL)
        return error_set(ret_error, ATTN_E_FORMAT,
                         "no layout fits: tensor '%.80s' and the others "
                         "have no name that one of " LAYOUT_NAMES " uses",
                         view->tensors[0].name);

    const char *start =
        name == NULL ? "no layout fits; the nearest is" : "the tensors do not fit";
    return error_set(ret_error, ATTN_E_FORMAT,
                     "%s layout %s, which lacks tensor '%.80s%s' "
                     "(%zu of its %zu weights are present)",
                     start, nearest->name, prefix, nearest_missing, nearest_present,
                     nearest_present + nearest_absent);
}

static attn_status refuse_ambiguous(const struct layout *a, const struct layout *b,
                                    attn_error *ret_error) {
    char name_a[LAYOUT_NAME_SIZE], name_b[LAYOUT_NAME_SIZE];

    required_name(a, 0, name_a);
    required_name(b, 0, name_b);
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

static bool layout_knows(const struct layout *layout, const char *name) {
    size_t head;

    for (size_t i = 0; i < NUM_LINEARS; i++) {
        const struct linear_names *linear = &layout->linears[i];
        if ((linear->weight != NULL && name_matches(name, linear->weight, &head)) ||
            (linear->bias != NULL && name_matches(name, linear->bias, &head)))
            return true;
    }
    if (layout->ignored != NULL && name_matches(name, layout->ignored, &head))
        return true;
    return strcmp(name, LAYOUT_ADDITIVE_QUERY) == 0 ||
           strcmp(name, LAYOUT_ADDITIVE_KEY) == 0 ||
           strcmp(name, LAYOUT_ADDITIVE_SCORE) == 0;
}

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
    struct tensor_view view = make_tensor_view(file, prefix);
    const struct layout *found = NULL;

    for (size_t i = 0; i < NUM_LAYOUTS; i++) {
        if (!is_candidate(&layouts[i], name) || !layout_fits(&layouts[i], &view))
            continue;
        if (found != NULL)
            return refuse_ambiguous(found, &layouts[i], ret_error);
        found = &layouts[i];
    }
    if (found == NULL)
        return refuse_unrecognised(file, &view, prefix, name, ret_error);

    attn_status status = check_refused(found, &view, ret_error);
    if (status != ATTN_OK)
        return status;
    for (size_t i = 0; name == NULL && i < view.count; i++) {
        if (!layout_knows(found, view.tensors[i].name + view.prefix_size))
            return error_set(ret_error, ATTN_E_FORMAT,
                             "tensor '%.80s' is not part of layout %s and might change "
                             "the results; remove it, or write layout=%s to ignore it",
                             view.tensors[i].name, found->name, found->name);
    }

    *ret_layout = found;
    *ret_view = view;
    return ATTN_OK;
}

const struct layout *layout_get(const char *name) {
    const struct layout *layout = layouts;
    while (!is_candidate(layout, name))
        layout++;
    return layout;
}

attn_status layout_count_heads(const struct layout *layout,
                               const struct tensor_view *view, size_t *ret_num_heads,
                               attn_error *ret_error) {
    size_t num_heads = 0;

    /* The highest number decides; then there must be no gap. */
    for (size_t i = 0; i < view->count; i++) {
        const char *name = view->tensors[i].name + view->prefix_size;
        for (size_t linear = LINEAR_HEAD_QUERY; linear <= LINEAR_HEAD_VALUE; linear++) {
            size_t head;
            if ((name_matches(name, layout->linears[linear].weight, &head) ||
                 name_matches(name, layout->linears[linear].bias, &head)) &&
                head >= num_heads)
                num_heads = head + 1;
        }
    }

    for (size_t head = 0; head < num_heads; head++) {
        for (size_t linear = LINEAR_HEAD_QUERY; linear <= LINEAR_HEAD_VALUE; linear++) {
            char name[LAYOUT_NAME_SIZE];
            format_head_name(layout->linears[linear].weight, head, name);
            if (tensor_view_find(view, name) == NULL)
                return error_set(ret_error, ATTN_E_FORMAT,
                                 "tensor '%.*s%s' is missing, but there are tensors of "
                                 "head %zu; number the heads from 0 without gaps",
                                 (int)view->prefix_size, view->tensors[0].name, name,
                                 num_heads - 1);
        }
    }

    *ret_num_heads = num_heads;
    return ATTN_OK;
}
