/* SPDX-License-Identifier: Apache-2.0 */
/* attention_keys.c: the list of keys, and what each is where it changes nothing. */
#include "weights/families/attention_keys.h"

#include "base/error.h"
#include "weights/families/wordlist.h"

#include <stdbool.h>
#include <string.h>

/* Values that mean "off", besides null and []. A list is off when all its items are. */
static const struct {
    const char *key, *nothing; /* texts, numbers or booleans, separated by spaces */
} known_keys[] = {
    /* scores */
    {"attention_multiplier", ""},
    {"key_multiplier", "1"},
    {"attention_value_scale", "1"},
    {"query_pre_attn_scalar", ""},
    {"softmax_scale", ""},
    {"attn_logit_softcapping", ""},
    {"scale_attn_weights", "true"},
    {"scale_attn_by_inverse_layer_idx", "false"},
    {"attn_temperature_tuning", "false 0"},
    {"llama_4_scaling_beta", "0"},
    /* projections */
    {"clip_qkv", ""},
    {"qk_norm", "false"},
    {"qk_ln", "false"},
    {"qk_layernorm", "false"},
    {"use_qk_norm", "false"},
    {"num_kv_shared_layers", "0"},
    {"attention_k_eq_v", "false"},
    {"use_cla", "false"},
    /* positions */
    {"alibi", "false"},
    {"position_embedding_type", "absolute learned sine rope rotary"},
    {"rotary_value", ""},
    {"no_rope_layers", "1"},
    {"rope_interleave", "false"},
    {"rope_interleaved", "false"},
    {"rotary_emb_interleaved", "false"},
    {"alpha", "1"},
    {"rotary_pct", "1"},
    {"rotary_dim", ""},
    {"rotary_emb_base", ""},
    {"rope_local_base_freq", ""},
    {"local_rope_theta", ""},
    {"global_rope_theta", ""},
    /* masks */
    {"layer_types", "full_attention"},
    {"sliding_window", ""},
    {"attention_chunk_size", ""},
    {"local_attention", ""},
    {"attention_types", ""},
    {"attention_type", "full original_full"},
    {"attn_type", "full multihead_attention"},
    {"prefix_lm", "false"},
    {"is_prefix_lm", "false"},
};

#define NUM_KEYS (sizeof known_keys / sizeof known_keys[0])
_Static_assert(NUM_KEYS <= 64, "each key has a bit");

/* Classes that no key tells from another, with what the types that compute them have in
 * their names. */
static const struct {
    const char *begins, *type;
} classes[] = {
    {"Ernie4_5", "ernie4_5"}, {"EuroBert", "eurobert"}, {"Gemma", "gemma"},
    {"Helium", "helium"},     {"NanoChat", "nanochat"},
};

/* Returns the place of an object in the list, or of the end of what is used. */
static size_t find_object(const struct attention_keys *keys, const json_t *object) {
    size_t i = 0;

    while (i < ATTENTION_OBJECTS_MAX && keys->asked[i].object != NULL &&
           keys->asked[i].object != object)
        i++;
    return i;
}

void attention_keys_note(struct attention_keys *keys, const json_t *object,
                         const char *name) {
    for (size_t i = 0; keys != NULL && object != NULL && i < NUM_KEYS; i++) {
        if (strcmp(name, known_keys[i].key) != 0)
            continue;
        size_t at = find_object(keys, object);
        if (at == ATTENTION_OBJECTS_MAX)
            return;
        keys->asked[at].object = object;
        keys->asked[at].keys |= UINT64_C(1) << i;
    }
}

/* Returns whether a value, unless it is a list, changes nothing, as `nothing` does. */
static bool is_nothing(const json_t *value, const char *nothing) {
    return json_is_null(value) || wordlist_has_value(nothing, value);
}

/* Returns whether no item of a list changes anything. */
static bool is_list_of_nothing(const json_t *value, const char *nothing) {
    size_t i = 0;

    while (i < json_array_size(value) && is_nothing(json_array_get(value, i), nothing))
        i++;
    return json_is_array(value) && i == json_array_size(value);
}

/* Checks the members of an object; of anything else there are none. */
static attn_status check_object(const struct attention_keys *keys, const json_t *object,
                                const char *type, const char *ignored,
                                attn_error *ret_error) {
    bool no_window = json_is_false(json_object_get(object, "use_sliding_window"));
    size_t at = find_object(keys, object);
    uint64_t asked = at < ATTENTION_OBJECTS_MAX ? keys->asked[at].keys : 0;

    for (size_t i = 0; i < NUM_KEYS; i++) {
        const char *key = known_keys[i].key, *nothing = known_keys[i].nothing;
        const json_t *value = json_object_get(object, key);
        if (value == NULL || (asked >> i & 1) != 0 || is_nothing(value, nothing) ||
            is_list_of_nothing(value, nothing) || wordlist_has(ignored, key) ||
            (no_window && strcmp(key, "sliding_window") == 0))
            continue;
        return error_set(ret_error, ATTN_E_UNSUPPORTED,
                         "config.json has %s, which changes the attention, but family "
                         "%.40s does not have it (docs/checkpoints.md#unknown-keys)%s",
                         key, type, REFUSAL_REMEDY);
    }
    return ATTN_OK;
}

attn_status attention_keys_check(const struct attention_keys *keys, const json_t *section,
                                 const char *type, const char *ignored,
                                 attn_error *ret_error) {
    const json_t *rotary = json_object_get(section, "rope_scaling");
    if (json_object_size(rotary) == 0)
        rotary = json_object_get(section, "rope_parameters");
    /* the section, and objects in it that have keys of attention */
    const json_t *const objects[] = {section, json_object_get(section, "attn_config"),
                                     rotary, json_object_get(rotary, "full_attention"),
                                     json_object_get(rotary, "sliding_attention")};
    attn_status status = ATTN_OK;

    for (size_t i = 0; i < sizeof objects / sizeof objects[0] && status == ATTN_OK; i++)
        status = check_object(keys, objects[i], type, ignored, ret_error);
    return status;
}

attn_status attention_keys_check_class(const json_t *root, const char *type,
                                       attn_error *ret_error) {
    const char *name =
        json_string_value(json_array_get(json_object_get(root, "architectures"), 0));

    for (size_t i = 0; name != NULL && i < sizeof classes / sizeof classes[0]; i++) {
        if (strncmp(name, classes[i].begins, strlen(classes[i].begins)) == 0 &&
            strstr(type, classes[i].type) == NULL)
            return error_set(ret_error, ATTN_E_UNSUPPORTED,
                             "architectures is %.40s, but model_type is of family %.40s, "
                             "which computes something else "
                             "(docs/checkpoints.md#unknown-keys)%s",
                             name, type, REFUSAL_REMEDY);
    }
    return ATTN_OK;
}
