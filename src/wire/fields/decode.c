/* SPDX-License-Identifier: Apache-2.0 */
/* decode.c: reads a request: its model, its options, its tensors, and what belongs to
 * their rows. */
#include "wire/fields/decoder.h"

#include "wire/fields/readers.h"
#include "wire/models.h"

/* Reads the fields of a phase that were sent, in the order of the table. */
static bool read_phase(struct wire_decoder *decoder, enum wire_phase phase) {
    uint64_t left = decoder->source->sent;

    for (const struct wire_field *field; (field = wire_field_next(&left)) != NULL;) {
        if (field->phase == phase &&
            !field->read(decoder, field, &decoder->source->values[field->id]))
            return false;
    }
    return true;
}

/* --- with a model --- */

/* Finds the model that is named, and its masks. */
static bool find_model(struct wire_decoder *decoder) {
    const struct wire_source *source = decoder->source;
    const struct wire_input *input = source->input;
    const struct wire_value *value = &source->values[WIRE_FIELD_MODEL];
    attn_request *batch = &decoder->request.batch;
    char word[WIRE_WORD_MAX + 1];
    struct wire_span name;

    if (!wire_read_name(source, value, word, &name) ||
        !wire_model_find(input->any_name ? NULL : name.start, input->models,
                         input->num_models, &decoder->request.model, source->problem))
        return false;
    const attn_model_info *info = attn_model_get_info(decoder->request.model);
    batch->causal = info->mask.causal;
    batch->window = info->mask.window;
    batch->chunk = info->mask.chunk;
    return true;
}

/* --- without a model --- */

/* Finds the layer of a capture that is named, and its options. */
static bool find_stored_layer(struct wire_decoder *decoder) {
    const struct wire_source *source = decoder->source;
    char word[WIRE_WORD_MAX + 1];
    struct wire_span name;

    if (source->input->capture == NULL)
        return true;
    if (!wire_read_name(source, &source->values[WIRE_FIELD_LAYER], word, &name) ||
        !wire_stored_find(source->input->capture, name.start,
                          (size_t)(name.end - name.start), &decoder->given.stored,
                          source->problem))
        return false;
    wire_stored_set_options(decoder);
    return true;
}

/* Reads the tensors, and makes a model of their sizes. */
static bool read_given_tensors(struct wire_decoder *decoder) {
    struct wire_given *given = &decoder->given;
    bool stored = given->stored != NULL;

    given->has_scale |= wire_is_sent(decoder->source, WIRE_FIELD_SCALE);
    return (stored ? wire_stored_read(decoder) : wire_given_read(decoder)) &&
           wire_tensor_rows_read(decoder) && wire_given_apply(decoder) &&
           (!stored || wire_stored_set_rows(decoder));
}

/* --- both --- */

bool wire_decode(struct wire_decoder *decoder, size_t extra) {
    const struct wire_source *source = decoder->source;
    bool given = wire_is_given(source);

    decoder->tensors.keys_sent = wire_is_sent(source, WIRE_FIELD_KEYS);
    decoder->tensors.values_sent = wire_is_sent(source, WIRE_FIELD_VALUES);
    return (given ? find_stored_layer(decoder) : find_model(decoder)) &&
           wire_fields_reserve(decoder, extra) &&
           read_phase(decoder, WIRE_PHASE_OPTIONS) &&
           read_phase(decoder, WIRE_PHASE_LENS) &&
           (given ? read_given_tensors(decoder) : wire_tensors_read(decoder)) &&
           wire_reduce_check_need(decoder) &&
           read_phase(decoder, WIRE_PHASE_REDUCTIONS) && wire_reduce_check_top(decoder) &&
           read_phase(decoder, WIRE_PHASE_TARGETS) &&
           read_phase(decoder, WIRE_PHASE_SELECTIONS) && wire_selection_check(decoder) &&
           read_phase(decoder, WIRE_PHASE_MASKS) &&
           (!source->has_arrays || wire_finite_check(decoder)) &&
           read_phase(decoder, WIRE_PHASE_BIAS) &&
           (decoder->given.stored == NULL || wire_stored_set_bias(decoder)) &&
           (!given || wire_given_check_causal(decoder));
}
