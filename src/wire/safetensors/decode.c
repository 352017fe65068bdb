/* SPDX-License-Identifier: Apache-2.0 */
/* decode.c: finds the fields of a request in safetensors: its header, the strings of its
 * metadata, and its tensors; and has them read. */
#include "base/error.h"
#include "safetensors/header.h"
#include "wire/fields/decoder.h"
#include "wire/names.h"
#include "wire/safetensors/safetensors.h"

#include <jansson.h>
#include <stdio.h>

/* --- header --- */

/* Refuses a body; `defect` says what is wrong with it. */
static bool refuse_body_format(const char *field, const char *defect,
                               struct wire_problem *ret_problem) {
    return wire_problem_set(ret_problem, WIRE_E_MALFORMED_SAFETENSORS, field,
                            "the body is not valid safetensors: %s; "
                            "write it with a safetensors library, "
                            "or send JSON as application/json",
                            defect);
}

/* Refuses a header that was not parsed, because of `defect` in the tensor or option
 * `field`. Where brackets do not match, says so instead, and where. */
static bool refuse_body_header(const char *json, size_t size, const char *field,
                               const char *defect, struct wire_problem *ret_problem) {
    struct wire_cursor cursor = {json, json, json + size, ret_problem};
    struct wire_span span;

    if (json[0] != '{')
        return refuse_body_format(NULL, "header does not begin with '{'", ret_problem);
    if (!wire_cursor_skip(&cursor, 0, &span)) {
        /* The remedy for a request in JSON, after "; ", is not that for a header. */
        const char *detail = ret_problem->detail, *remedy = strstr(detail, "; ");
        char shown[sizeof ret_problem->detail];
        snprintf(shown, sizeof shown, "header: %.*s",
                 remedy != NULL ? (int)(remedy - detail) : 200, detail);
        return refuse_body_format(NULL, shown, ret_problem);
    }
    if (wire_cursor_next(&cursor) != '\0' || cursor.at != cursor.end)
        return refuse_body_format(NULL, "trailing bytes after the header's object",
                                  ret_problem);
    return refuse_body_format(field, defect, ret_problem);
}

/* Parses the header, whose memory it reserves before. *ret_header must be released with
 * safetensors_header_deinit() in any case. */
static bool parse_body_header(const struct wire_input *input,
                              struct safetensors_header *ret_header,
                              const char **ret_data, struct wire_problem *ret_problem) {
    const char *json = input->body + SAFETENSORS_SIZE_BYTES;
    attn_error error;
    size_t size;

    if (safetensors_find_header((const unsigned char *)input->body, input->size,
                                WIRE_SAFETENSORS_HEADER_MAX, &size, &error) != ATTN_OK)
        return refuse_body_format(NULL, error.text, ret_problem);
    if (!input->reserve(input->context, wire_json_cost(size), ret_problem))
        return false;
    attn_status status = safetensors_header_parse(
        json, size, input->size - SAFETENSORS_SIZE_BYTES - size, ret_header, &error);
    if (status == ATTN_E_NOMEM)
        return wire_problem_set_no_memory(ret_problem);
    if (status != ATTN_OK)
        return refuse_body_header(json, size, ret_header->wrong, error.text, ret_problem);
    *ret_data = json + size;
    return true;
}

/* --- fields --- */

#define NAMES_BYTES 256 /* of the names that an error lists */

/* Refuses a name, which is not `what`; `advice` says what to do. */
static bool refuse_name(const struct wire_source *source, const char *name,
                        const char *what, const char *advice) {
    char shown[sizeof source->problem->field];
    const char *remedy = wire_name_remedy(name, wire_is_given(source));

    snprintf(shown, sizeof shown, "%s", name);
    return wire_problem_set(source->problem, WIRE_E_UNKNOWN_KEY, shown,
                            "'%.64s' is not %s; %s%s", shown, what,
                            remedy != NULL ? remedy : advice,
                            remedy != NULL ? " (options are strings in __metadata__, all "
                                             "else is a tensor)"
                                           : "");
}

/* Refuses a tensor of a name that the request does not have. */
static bool refuse_tensor(const struct wire_source *source, const char *name) {
    char tensors[NAMES_BYTES], options[NAMES_BYTES], advice[2 * NAMES_BYTES + 96];

    wire_fields_list(source->requests, WIRE_LISTS | WIRE_LENS, tensors, sizeof tensors);
    wire_fields_list(source->requests, WIRE_OPTION, options, sizeof options);
    snprintf(advice, sizeof advice,
             "remove it, or use one of %s (%s are strings in __metadata__)", tensors,
             options);
    return refuse_name(source, name,
                       source->requests == WIRE_TO_STORED
                           ? "a tensor of a request for a capture"
                           : "a tensor of a request",
                       advice);
}

static bool find_tensors(const struct safetensors_header *header, const char *data,
                         struct wire_source *source) {
    for (size_t i = 0; i < header->num_tensors; i++) {
        const struct safetensors_tensor *tensor = &header->tensors[i];
        const struct wire_field *field =
            wire_field_find(tensor->name, source->requests, WIRE_LISTS | WIRE_LENS);
        if (field == NULL)
            return refuse_tensor(source, tensor->name);
        *wire_source_set(source, field) = (struct wire_value){
            .name = field->name,
            .shape = tensor->shape,
            .rank = tensor->rank,
            .count = tensor->elements,
            .dtype = tensor->dtype,
            .bytes = (const unsigned char *)data + tensor->begin,
        };
    }
    return true;
}

static bool find_options(const struct safetensors_header *header,
                         struct wire_source *source) {
    /* jansson does not change the object, but its functions have no const parameter. */
    json_t *metadata = (json_t *)(uintptr_t)safetensors_header_get_metadata(header);
    char options[NAMES_BYTES], advice[NAMES_BYTES + 64];

    for (void *at = json_object_iter(metadata); at != NULL;
         at = json_object_iter_next(metadata, at)) {
        const char *key = json_object_iter_key(at);
        const char *text = json_string_value(json_object_iter_value(at));
        const struct wire_field *field =
            wire_field_find(key, source->requests, WIRE_OPTION);
        if (field != NULL) {
            wire_source_set(source, field)->text =
                (struct wire_span){text, text + strlen(text), 0, 0};
        } else if (strcmp(key, "format") != 0) { /* torch and others write it */
            wire_fields_list(source->requests, WIRE_OPTION, options, sizeof options);
            snprintf(advice, sizeof advice,
                     "remove it, or use one of %s (all else is a tensor)", options);
            return refuse_name(source, key, "an option in __metadata__", advice);
        }
    }
    return true;
}

/* --- the body --- */

bool wire_safetensors_read(const struct wire_input *input,
                           struct wire_request *ret_request,
                           struct wire_problem *ret_problem) {
    struct safetensors_header header = {0};
    struct wire_source source = {.input = input,
                                 .problem = ret_problem,
                                 .requests = wire_input_requests(input),
                                 .has_arrays = true};
    struct wire_decoder decoder = {.source = &source};
    const char *data = NULL;

    bool read = parse_body_header(input, &header, &data, ret_problem) &&
                find_tensors(&header, data, &source) && find_options(&header, &source) &&
                wire_decode(&decoder, 0);
    safetensors_header_deinit(&header);
    if (read)
        *ret_request = decoder.request;
    return read;
}
