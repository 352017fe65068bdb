/* SPDX-License-Identifier: Apache-2.0 */
/* describe.c: means, words and the effect of leaving heads out, from the sums. */
#include <attnd/heads.h>
#include <math.h>

/* The limits of tags: of a mean over a head's rows, and of how it compares with that of a
 * head with even weights. docs/heads.md lists these figures. */
#define TAG_MASS           0.5  /* of the weight, on one place */
#define TAG_MASS_OVER      1.5  /* times that of even weights */
#define TAG_NEAR           0.8  /* of the weight, within two tokens */
#define TAG_PREFIX         0.9  /* of the weight, on tokens up to the row's own */
#define TAG_PREFIX_OVER    1.25 /* times; under a causal mask there is no more to have */
#define TAG_UNIFORM        0.97 /* of the entropy of even weights */
#define TAG_DISTANCE_OVER  1.25 /* times */
#define TAG_FIRST_AND_SINK 0.5  /* of the weight: more, and the rest has a tag */
#define TAG_REST           0.05 /* of the weight: less is not described */
#define TAG_UNUSED         1e-3 /* of the outputs */

/* Returns the mean of a sum over so many rows; NAN for none. */
static double mean_of(double sum, size_t rows) {
    return rows > 0 ? sum / (double)rows : (double)NAN;
}

/* Returns the norm of a change of the outputs, given its square, relative to theirs. */
static double relative_norm(const attn_heads *heads, double squared) {
    bool defined = squared > 0 && heads->squared_norm > 0;
    return defined ? sqrt(squared / heads->squared_norm) : 0;
}

/* How a head spreads weight that adds up to `rows`: all of its weight, or the part that
 * the first key leaves. */
struct pattern {
    double rows, itself_rows, previous_rows;
    double entropy, previous, next, self, first, near, prefix, distance;
};

static struct pattern find_whole(const attn_heads *heads, const attn_head_sums *s) {
    return (struct pattern){.rows = (double)heads->rows,
                            .itself_rows = (double)heads->self_rows,
                            .previous_rows = (double)heads->previous_rows,
                            .entropy = s->entropy,
                            .previous = s->previous,
                            .next = s->next,
                            .self = s->self,
                            .first = s->first,
                            .near = s->near,
                            .prefix = s->prefix,
                            .distance = s->distance};
}

static struct pattern find_rest(const attn_head_sums *s) {
    return (struct pattern){.rows = s->rest,
                            .itself_rows = s->rest_itself,
                            .previous_rows = s->rest_itself,
                            .entropy = s->rest_entropy,
                            .previous = s->previous - s->first_previous,
                            .next = s->next,
                            .self = s->self - s->first_self,
                            .near = s->near - s->first_near,
                            .prefix = s->prefix - s->first_prefix,
                            .distance = s->distance - s->first_distance};
}

/* Whether a sum is at least `share` of its rows, and `over` times that of even weights,
 * which has rows of its own. */
static bool stands_out(double sum, double rows, double even, double even_rows,
                       double share, double over) {
    return rows > 0 && even_rows > 0 && sum >= share * rows &&
           sum / rows >= over * (even / even_rows);
}

/* Returns the word for what a head attends to, or NULL. */
static const char *find_pattern(const struct pattern *p, const struct pattern *even) {
    if (even->entropy > 0 &&
        stands_out(p->entropy, p->rows, even->entropy, even->rows, 0, TAG_UNIFORM))
        return "uniform";
    if (stands_out(p->previous, p->previous_rows, even->previous, even->previous_rows,
                   TAG_MASS, TAG_MASS_OVER))
        return "previous token";
    if (stands_out(p->next, p->previous_rows, even->next, even->previous_rows, TAG_MASS,
                   TAG_MASS_OVER))
        return "next token";
    if (stands_out(p->self, p->itself_rows, even->self, even->itself_rows, TAG_MASS,
                   TAG_MASS_OVER))
        return "self";
    if (stands_out(p->first, p->rows, even->first, even->rows, TAG_MASS, TAG_MASS_OVER))
        return "first token";
    if (stands_out(p->near, p->itself_rows, even->near, even->itself_rows, TAG_NEAR,
                   TAG_MASS_OVER))
        return "local window";
    if (stands_out(p->prefix, p->itself_rows, even->prefix, even->itself_rows, TAG_PREFIX,
                   TAG_PREFIX_OVER))
        return "causal prefix";
    if (stands_out(p->distance, p->itself_rows, even->distance, even->itself_rows, 1,
                   TAG_DISTANCE_OVER))
        return "long range";
    return NULL;
}

/* Returns the word for what a head does with the rest, where the first key and a sink
 * have most of the weight but not all; else NULL. */
static const char *find_rest_pattern(const attn_heads *heads, const attn_head_sums *s) {
    const struct pattern rest = find_rest(s), even = find_rest(&heads->even);
    double share = heads->rows > 0 ? s->rest / (double)heads->rows : 1;

    if (share >= 1 - TAG_FIRST_AND_SINK || share < TAG_REST)
        return NULL;
    return find_pattern(&rest, &even);
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
    const double *gram = heads->gram;
    const char **tag = ret_head->tags;

    *ret_head = (attn_head){
        .importance = gram != NULL
                          ? relative_norm(heads, gram[head * heads->num_heads + head])
                          : (double)NAN,
        .entropy = mean_of(s->entropy, heads->rows),
        .mass_on_first = mean_of(s->first, heads->rows),
        .mass_on_sink =
            heads->sinks ? fmax(1 - mean_of(s->total, heads->rows), 0) : (double)NAN,
        .mean_distance = mean_of(s->distance, heads->self_rows),
        .mass_on_self = mean_of(s->self, heads->self_rows),
        .mass_on_previous = mean_of(s->previous, heads->previous_rows),
        .mass_on_target = mean_of(s->target, heads->target_rows),
        .target_is_largest = mean_of(s->largest, heads->target_rows),
    };
    const struct pattern whole = find_whole(heads, s),
                         even = find_whole(heads, &heads->even);
    const char *rest = find_rest_pattern(heads, s);
    *tag = find_pattern(&whole, &even);
    if (rest != NULL && *tag != rest)
        *(tag += *tag != NULL) = rest;
    tag += *tag != NULL;
    if (ret_head->importance < TAG_UNUSED)
        *tag = "unused";
}

double attn_heads_change(const attn_heads *heads, const bool *left_out) {
    double squared = 0;

    for (size_t h = 0; h < heads->num_heads; h++) {
        for (size_t g = 0; left_out[h] && g < heads->num_heads; g++) {
            if (left_out[g])
                squared += heads->gram[h * heads->num_heads + g];
        }
    }
    return relative_norm(heads, squared);
}

/* Whether a head is among the first `count` of `order`. */
static bool is_ordered(const size_t *order, size_t count, size_t head) {
    while (count > 0 && order[count - 1] != head)
        count--;
    return count > 0;
}

void attn_heads_order(const attn_heads *heads, size_t *ret_order, double *ret_changes) {
    size_t num_heads = heads->num_heads;
    double squared = 0; /* of the change without those that are ordered */

    for (size_t count = 0; count < num_heads; count++) {
        double least = (double)INFINITY;

        for (size_t h = 0; h < num_heads; h++) {
            if (is_ordered(ret_order, count, h))
                continue;
            double added = heads->gram[h * num_heads + h];
            for (size_t i = 0; i < count; i++)
                added += 2 * heads->gram[h * num_heads + ret_order[i]];
            if (!(added >= least)) { /* also when it is NaN */
                least = added;
                ret_order[count] = h;
            }
        }
        squared += least;
        ret_changes[count] = relative_norm(heads, squared);
    }
}
