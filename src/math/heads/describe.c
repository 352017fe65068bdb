/* SPDX-License-Identifier: Apache-2.0 */
/* describe.c: means, words and the effect of leaving heads out, from the sums. */
#include <attnd/heads.h>
#include <math.h>
#include <string.h>

/* The limits of tags, which docs/heads.md lists, with the trained heads that they were
 * chosen by. OVER is how many times that of a head with even weights it must be. */
#define TAG_KEYS          6    /* of a row, on average: fewer, and there are no tags */
#define TAG_EVEN          0.97 /* of the entropy of even weights */
#define TAG_SHARE         0.5  /* of the weight */
#define TAG_OVER          1.5
#define TAG_NEAR          0.8 /* within two tokens */
#define TAG_PREFIX        0.9 /* on tokens up to the row's own */
#define TAG_PREFIX_OVER   1.25
#define TAG_DISTANCE_OVER 1.5
#define TAG_EXCESS        0.05 /* over even weights; less names no pattern */
#define TAG_ROWS          0.25 /* of all rows, that have a place */
#define TAG_REST          0.05 /* of the weight: less is not described */
#define TAG_UNUSED        1e-3 /* of the outputs */

/* Places that a tag names. Those behind those of sums are made of them. */
enum { PLACE_NEAR = ATTN_HEAD_PLACES, PLACE_SINK, NUM_PLACES };

/* Returns the mean of a sum over so many rows; NAN for none. */
static double mean_of(double sum, double rows) {
    return rows > 0 ? sum / rows : (double)NAN;
}

/* Returns the norm of a change, given its square, relative to another norm. */
static double relative_norm(double squared, double squared_norm) {
    bool defined = squared > 0 && squared_norm > 0;
    return defined ? sqrt(squared / squared_norm) : 0;
}

/* How a head spreads weight that adds up to `rows`: all of its weight, or the part that
 * marked keys leave. Even weights that add up to the same have `even_entropy`. Places
 * have rows of their own. */
struct spread {
    double rows, itself, entropy, even_entropy, prefix, distance;
    double at[NUM_PLACES], rows_at[NUM_PLACES];
};

/* Adds the places that are made of others. */
static void add_places(struct spread *s) {
    for (size_t o = ATTN_PLACE_SELF - 2; o <= ATTN_PLACE_SELF + 2; o++)
        s->at[PLACE_NEAR] += s->at[o];
    s->rows_at[PLACE_NEAR] = s->itself;
}

static struct spread find_whole(const attn_heads *heads, const attn_head_sums *sums) {
    struct spread s = {.rows = (double)heads->rows,
                       .itself = heads->rows_at[ATTN_PLACE_SELF],
                       .entropy = sums->entropy,
                       .even_entropy = heads->even.entropy,
                       .prefix = sums->prefix,
                       .distance = sums->distance};

    memcpy(s.at, sums->at, sizeof sums->at);
    memcpy(s.rows_at, heads->rows_at, sizeof heads->rows_at);
    s.at[PLACE_SINK] = heads->sinks ? s.rows - sums->total : 0;
    s.rows_at[PLACE_SINK] = s.rows;
    add_places(&s);
    return s;
}

static struct spread find_rest(const attn_head_sums *sums) {
    struct spread s = {.rows = sums->rest,
                       .itself = sums->rest_itself,
                       .entropy = sums->rest_entropy,
                       .even_entropy = sums->rest_even,
                       .prefix = sums->prefix - sums->marked_prefix,
                       .distance = sums->distance - sums->marked_distance};

    for (size_t p = 0; p < ATTN_HEAD_PLACES; p++) {
        s.at[p] = sums->at[p] - sums->marked_at[p];
        s.rows_at[p] = sums->rest_rows[p];
    }
    s.at[ATTN_PLACE_FIRST] = s.at[ATTN_PLACE_SEPARATOR] = 0;
    add_places(&s);
    return s;
}

static double part_of(double sum, double rows) {
    return rows > 0 ? sum / rows : 0;
}

static const char *const place_names[NUM_PLACES] = {
    "16 before", "15 before", "14 before",    "13 before",   "12 before", "11 before",
    "10 before", "9 before",  "8 before",     "7 before",    "6 before",  "5 before",
    "4 before",  "3 before",  "2 before",     "previous",    "self",      "next",
    "2 after",   "3 after",   "4 after",      "5 after",     "6 after",   "7 after",
    "8 after",   "9 after",   "10 after",     "11 after",    "12 after",  "13 after",
    "14 after",  "15 after",  "16 after",     "first token", "separator", "same token",
    "duplicate", "induction", "local window", "sink"};

/* Finds the place that has most over even weights, among all or the strong ones. A place
 * of several keys must have more than one key of it alone. Returns false without one. */
static bool find_place(const struct spread *s, const struct spread *even, bool strong,
                       attn_head_tag *ret_tag) {
    double best = strong ? 0 : TAG_EXCESS;
    bool found = false;

    for (size_t p = 0; p < NUM_PLACES; p++) {
        double share = part_of(s->at[p], s->rows_at[p]);
        double expected = part_of(even->at[p], even->rows_at[p]);
        double least = p == PLACE_NEAR ? TAG_NEAR : TAG_SHARE;
        double keys = p == PLACE_NEAR ? 2 : p == ATTN_PLACE_SAME ? 1.25 : 1;
        double excess = (share - expected) / keys;
        if (s->rows_at[p] < TAG_ROWS * s->rows || !(excess > best) ||
            (strong && (share < least || share < TAG_OVER * expected)))
            continue;
        best = excess;
        found = true;
        *ret_tag = (attn_head_tag){place_names[p], share, !strong};
    }
    return found;
}

/* Finds the pattern of many keys that is there, if any. */
static bool find_wide(const struct spread *s, const struct spread *even,
                      attn_head_tag *ret_tag) {
    double prefix = part_of(s->prefix, s->itself);
    double near = part_of(s->at[PLACE_NEAR], s->itself);

    if (s->itself <= 0)
        return false;
    if (prefix >= TAG_PREFIX &&
        prefix >= TAG_PREFIX_OVER * part_of(even->prefix, even->itself))
        *ret_tag = (attn_head_tag){"causal prefix", prefix, false};
    else if (part_of(s->distance, s->itself) >=
             TAG_DISTANCE_OVER * part_of(even->distance, even->itself))
        *ret_tag = (attn_head_tag){"long range", 1 - near, false};
    else
        return false;
    return true;
}

/* Returns the tag of what a head attends to: the strongest pattern, if none is strong. */
static attn_head_tag find_tag(const struct spread *s, const struct spread *even) {
    double evenness = part_of(s->entropy, s->even_entropy);
    bool even_enough = evenness >= TAG_EVEN;
    attn_head_tag tag = {even_enough ? "even" : "spread", evenness, !even_enough};

    if (tag.weak && !find_place(s, even, true, &tag) && !find_wide(s, even, &tag))
        find_place(s, even, false, &tag);
    return tag;
}

/* Whether a tag says that weight rests on one key, or on none. */
static bool is_marked(const attn_head_tag *tag) {
    return tag->name == place_names[ATTN_PLACE_FIRST] ||
           tag->name == place_names[ATTN_PLACE_SEPARATOR] ||
           tag->name == place_names[PLACE_SINK];
}

/* Finds the tags of what a head attends to. Returns how many there are. */
static size_t find_tags(const attn_heads *heads, const attn_head_sums *s,
                        attn_head_tag *ret_tags) {
    const struct spread whole = find_whole(heads, s),
                        even = find_whole(heads, &heads->even), rest = find_rest(s),
                        even_rest = find_rest(&heads->even);
    double share = part_of(s->rest, whole.rows);

    if (heads->row_keys < TAG_KEYS * whole.rows)
        return 0;
    ret_tags[0] = find_tag(&whole, &even);
    if (share > 1 - TAG_SHARE || share < TAG_REST ||
        !(ret_tags[0].weak || is_marked(&ret_tags[0])))
        return 1;
    ret_tags[1] = find_tag(&rest, &even_rest);
    bool more =
        ret_tags[1].name != ret_tags[0].name && strcmp(ret_tags[1].name, "spread") != 0;
    return more ? 2 : 1;
}

/* Whether all that is known of a head is finite. */
static bool head_is_finite(const attn_heads *heads, size_t head) {
    bool finite = isfinite(heads->sums[head].entropy);

    for (size_t h = 0; finite && heads->gram != NULL && h < heads->num_heads; h++)
        finite = isfinite(heads->gram[head * heads->num_heads + h]);
    return finite;
}

bool attn_heads_are_finite(const attn_heads *heads, size_t *ret_head) {
    size_t head = 0;

    while (head < heads->num_heads && head_is_finite(heads, head))
        head++;
    *ret_head = head;
    return head == heads->num_heads && isfinite(heads->squared_norm);
}

void attn_heads_describe(const attn_heads *heads, size_t head, attn_head *ret_head) {
    const attn_head_sums *s = &heads->sums[head];
    double rows = (double)heads->rows, targets = (double)heads->target_rows;
    double square = heads->gram != NULL ? heads->gram[head * heads->num_heads + head] : 0;

    *ret_head = (attn_head){
        .importance = heads->gram != NULL ? relative_norm(square, heads->squared_norm)
                                          : (double)NAN,
        .residual_importance = heads->squared_residual > 0
                                   ? relative_norm(square, heads->squared_residual)
                                   : (double)NAN,
        .entropy = mean_of(s->entropy, rows),
        .mass_on_first = mean_of(s->at[ATTN_PLACE_FIRST], rows),
        .mass_on_sink = heads->sinks ? fmax(1 - mean_of(s->total, rows), 0) : (double)NAN,
        .mean_distance = mean_of(s->distance, heads->rows_at[ATTN_PLACE_SELF]),
        .mass_on_self = mean_of(s->at[ATTN_PLACE_SELF], heads->rows_at[ATTN_PLACE_SELF]),
        .mass_on_previous =
            mean_of(s->at[ATTN_PLACE_PREVIOUS], heads->rows_at[ATTN_PLACE_PREVIOUS]),
        .mass_on_target = mean_of(s->target, targets),
        .target_is_largest = mean_of(s->largest, targets),
    };
    size_t count = find_tags(heads, s, ret_head->tags);
    ret_head->tags[count] = (attn_head_tag){0};
    if (ret_head->importance < TAG_UNUSED)
        ret_head->tags[count] = (attn_head_tag){"unused", ret_head->importance, false};
}
