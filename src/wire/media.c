/* SPDX-License-Identifier: Apache-2.0 */
/* media.c: reads Content-Type and Accept, and chooses the media type of a reply. */
#include "wire/media.h"

#include <string.h>
#include <strings.h>

static const char *const media_names[WIRE_NUM_MEDIA] = {
    [WIRE_MEDIA_JSON] = WIRE_MEDIA_TYPE_JSON,
    [WIRE_MEDIA_SAFETENSORS] = WIRE_MEDIA_TYPE_SAFETENSORS,
    [WIRE_MEDIA_OCTETS] = WIRE_MEDIA_TYPE_OCTETS,
};

/* Returns whether the first `size` bytes of `text` are `name`, ignoring case. */
static bool is_media_name(const char *text, size_t size, const char *name) {
    return strlen(name) == size && strncasecmp(text, name, size) == 0;
}

enum wire_media wire_media_find(const char *content_type) {
    size_t size = content_type == NULL ? 0 : strcspn(content_type, " \t;");
    int media = 0;
    while (media < WIRE_NUM_MEDIA &&
           !is_media_name(content_type, size, media_names[media]))
        media++;
    return (enum wire_media)media;
}

/* Returns a weight such as "0.5" or "1" in thousandths, or 0 when it is malformed. At
 * most three digits may follow the point. */
static int read_weight(const char *text) {
    int weight = (*text == '1') * 1000;
    if (*text != '0' && *text != '1')
        return 0;
    if (*++text == '.') {
        for (int unit = 100; *++text >= '0' && *text <= '9' && unit > 0; unit /= 10)
            weight += (*text - '0') * unit;
    }
    return weight > 1000 || strchr(" \t;,", *text) == NULL ? 0 : weight;
}

/* Returns the weight q of the parameters from `text` to `end`; 1000 without one. */
static int find_weight(const char *text, const char *end) {
    while (text < end) {
        text += strspn(text, "; \t");
        if (end - text >= 2 && (text[0] == 'q' || text[0] == 'Q') && text[1] == '=')
            return read_weight(text + 2);
        text += strcspn(text, ";,");
    }
    return 1000;
}

static enum wire_specificity match_range(const char *range, size_t size,
                                         enum wire_media media) {
    if (is_media_name(range, size, media_names[media]))
        return WIRE_SPECIFICITY_EXACT;
    if (is_media_name(range, size, "application/*"))
        return WIRE_SPECIFICITY_APPLICATION;
    return is_media_name(range, size, "*/*") ? WIRE_SPECIFICITY_ALL
                                             : WIRE_SPECIFICITY_NONE;
}

void wire_accept_add(struct wire_accept *accept, const char *value) {
    while (*value != '\0') {
        value += strspn(value, ", \t");
        const char *end = value + strcspn(value, ",");
        size_t size = strcspn(value, ";, \t");
        accept->any_range |= *value != '\0';
        int weight = find_weight(value + size, end);

        for (int i = 0; i < WIRE_NUM_MEDIA; i++) {
            enum wire_specificity match = match_range(value, size, (enum wire_media)i);
            if (match == WIRE_SPECIFICITY_NONE || match < accept->specificity[i])
                continue;
            accept->specificity[i] = match;
            accept->weight[i] = weight;
        }
        value = end;
    }
}

bool wire_accept_allows(const struct wire_accept *accept, enum wire_media media) {
    return !accept->any_range || accept->weight[media] > 0;
}

enum wire_media wire_accept_choose(const struct wire_accept *accept,
                                   enum wire_media request) {
    enum wire_media own =
        request == WIRE_MEDIA_JSON ? WIRE_MEDIA_JSON : WIRE_MEDIA_SAFETENSORS;
    if (!accept->any_range)
        return own;

    enum wire_media best = own;
    for (int i = 0; i < WIRE_NUM_MEDIA; i++) {
        if (accept->weight[i] > accept->weight[best])
            best = (enum wire_media)i;
    }
    return accept->weight[best] > 0 ? best : WIRE_NUM_MEDIA;
}
