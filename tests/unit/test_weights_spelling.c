/* SPDX-License-Identifier: Apache-2.0 */
/* test_weights_spelling.c: folders of tests/data/hf whose config.json is spelled in
 * another way, or lacks keys that have the default of the class. They must give the same
 * results. */
#include "family_models.h"

#include "weights/families/config.h"

#include <attnd/library.h>
#include <dirent.h>

/* What is changed in a config.json. */
static const struct spelling {
    const char *folder;
    const char *removed; /* words: keys */
    const char *added;   /* JSON */
} spellings[] = {
    /* rotary keys of version 4 */
    {"llama", "rope_parameters",
     "{\"rope_theta\": 10000, \"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8, "
     "\"low_freq_factor\": 1, \"high_freq_factor\": 4, "
     "\"original_max_position_embeddings\": 16}}"},
    {"gpt_oss", "rope_parameters",
     "{\"rope_theta\": 150000, \"rope_scaling\": {\"rope_type\": \"yarn\", "
     "\"factor\": 32, \"beta_fast\": 32, \"beta_slow\": 1, \"truncate\": false, "
     "\"original_max_position_embeddings\": 4096}}"},
    {"gemma3_text", "rope_parameters",
     "{\"rope_theta\": 1e6, \"rope_local_base_freq\": 1e4, \"rope_scaling\": null}"},
    {"gpt_neox", "rope_parameters", "{\"rotary_pct\": 0.25, \"rotary_emb_base\": 1e4}"},
    {"phi", "rope_parameters", "{\"partial_rotary_factor\": 0.5, \"rope_theta\": 1e4}"},
    {"modernbert", "rope_parameters layer_types",
     "{\"global_rope_theta\": 160000, \"local_rope_theta\": 10000}"},
    {"qwen2", "rope_parameters", "{\"rope_theta\": 1e6}"},
    {"ministral3", "rope_parameters",
     "{\"rope_theta\": 1e6, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, "
     "\"mscale\": 1, \"mscale_all_dim\": 1, \"llama_4_scaling_beta\": 0.1, "
     "\"original_max_position_embeddings\": 8}}"},
    {"mistral4", "rope_parameters",
     "{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"mscale\": 1, "
     "\"mscale_all_dim\": 1, \"llama_4_scaling_beta\": 0.1, "
     "\"original_max_position_embeddings\": 8}}"},
    {"dbrx", "rope_parameters", "{\"rope_theta\": 1e4}"},
    /* as published: an extension by 1, and an mscale of 0, which is none */
    {"youtu", "rope_parameters",
     "{\"rope_theta\": 1.6e6, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 1.0, "
     "\"mscale_all_dim\": 0}}"},
    {"qwen3", "rope_parameters",
     "{\"rope_theta\": 1e4, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 1.0, "
     "\"mscale\": 1.0, \"mscale_all_dim\": 0.0}}"},
    /* layer types as a rule instead of a list */
    {"gemma2", "layer_types", "{}"},
    {"gpt_oss", "layer_types", "{}"},
    {"gemma3_text", "layer_types _sliding_window_pattern",
     "{\"sliding_window_pattern\": 2}"},
    {"gpt_neo", "attention_types attention_layers", "{}"},
    /* what comes first when there are both */
    {"llama", "", "{\"rope_theta\": 7}"},
    {"llama", "rope_parameters",
     "{\"original_max_position_embeddings\": 16, \"rope_parameters\": "
     "{\"rope_type\": \"llama3\", \"rope_theta\": 1e4, \"factor\": 8, "
     "\"low_freq_factor\": 1, \"high_freq_factor\": 4, "
     "\"original_max_position_embeddings\": 64}}"},
    /* defaults of the classes */
    {"falcon", "rope_parameters alibi bias multi_query new_decoder_architecture", "{}"},
    {"gemma", "rope_parameters rms_norm_eps attention_bias", "{}"},
    {"gemma2", "rope_parameters rms_norm_eps", "{}"},
    {"gemma3_text", "rope_parameters rms_norm_eps", "{}"},
    {"gpt2", "layer_norm_epsilon scale_attn_weights scale_attn_by_inverse_layer_idx",
     "{}"},
    {"gpt_neox", "rope_parameters layer_norm_eps attention_bias", "{}"},
    {"gpt_oss", "rope_parameters rms_norm_eps attention_bias", "{}"},
    {"llama", "rms_norm_eps attention_bias", "{}"},
    {"mistral", "rope_parameters rms_norm_eps", "{}"},
    {"modernbert", "rope_parameters norm_eps global_attn_every_n_layers", "{}"},
    {"mpnet", "relative_attention_num_buckets", "{}"},
    {"mpt", "attn_config layer_norm_epsilon", "{}"},
    {"olmo2", "rope_parameters rms_norm_eps", "{}"},
    {"opt", "do_layer_norm_before enable_bias", "{}"},
    {"phi", "rope_parameters layer_norm_eps qk_layernorm", "{}"},
    {"phi3", "rope_parameters rms_norm_eps", "{}"},
    {"starcoder2", "rope_parameters norm_epsilon use_bias", "{}"},
    {"vit", "layer_norm_eps qkv_bias", "{}"},
    {"wav2vec2", "do_stable_layer_norm layer_norm_eps", "{}"},
    /* keys that the classes have and do not use */
    {"mpt", "attn_config", "{\"attn_config\": {\"alibi_bias_max\": 16}}"},
    {"gemma3n_text", "", "{\"query_pre_attn_scalar\": 256}"},
    {"nemotron_h", "attention_bias sliding_window",
     "{\"attention_bias\": true, \"sliding_window\": 8}"},
    {"llama", "", "{\"rope_scaling\": null, \"partial_rotary_factor\": 1}"},
    {"gemma2", "attention_bias", "{\"attention_bias\": null}"},
    /* other names of one key */
    {"nemotron_h", "layers_block_type", "{\"layer_types\": [\"mamba\", \"attention\"]}"},
    {"granitemoehybrid", "layer_types",
     "{\"layers_block_type\": [\"mamba\", \"attention\"]}"},
};

/* Does something to all files of weights at `from`. */
static void for_each_file(const char *from, const char *to,
                          void (*act)(const char *from, const char *to)) {
    DIR *folder = opendir(from);
    assert_non_null(folder);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char source[1024], target[1024];
        snprintf(source, sizeof source, "%s/%s", from, entry->d_name);
        snprintf(target, sizeof target, "%s/%s", to, entry->d_name);
        if (strncmp(entry->d_name, "model", 5) == 0)
            act(source, target);
    }
    closedir(folder);
}

static void link_file(const char *from, const char *to) {
    assert_int_equal(symlink(from, to), 0);
}

static void unlink_file(const char *from, const char *to) {
    (void)from;
    assert_int_equal(unlink(to), 0);
}

/* Reads the config.json of a folder, and changes it. */
static json_t *change_config(const char *path, const struct spelling *spelling) {
    char words[256];
    json_t *config = NULL, *added = json_loads(spelling->added, 0, NULL);
    attn_error error;

    assert_non_null(added);
    if (config_read_file(path, "config.json", &config, &error) != ATTN_OK)
        fail_msg("%s", error.text);
    snprintf(words, sizeof words, "%s", spelling->removed);
    for (char *word = strtok(words, " "); word != NULL; word = strtok(NULL, " ")) {
        if (json_object_del(config, word) != 0)
            fail_msg("%s has no %s", spelling->folder, word);
    }
    assert_int_equal(json_object_update(config, added), 0);
    json_decref(added);
    return config;
}

/* Opens a folder of tests/data/hf with a changed config.json. The caller closes it. */
static struct folder *open_changed(const struct spelling *spelling,
                                   const struct folder_options *options) {
    char from[512], to[] = "/tmp/attnd-spelling-XXXXXX", file[64];
    struct folder *folder = NULL;
    attn_error error;

    snprintf(from, sizeof from, FOLDERS "%s", spelling->folder);
    assert_non_null(mkdtemp(to));
    snprintf(file, sizeof file, "%s/config.json", to);
    json_t *config = change_config(from, spelling);
    assert_int_equal(json_dump_file(config, file, 0), 0);
    for_each_file(from, to, link_file);
    attn_status status = folder_open(to, options, &folder, &error);

    for_each_file(from, to, unlink_file);
    assert_int_equal(unlink(file), 0);
    assert_int_equal(rmdir(to), 0);
    json_decref(config);
    if (status != ATTN_OK)
        fail_msg("%s: %s", spelling->added, error.text);
    return folder;
}

static void test_spellings_of_a_config_give_the_same_results(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; i++) {
        struct folder *folder = open_changed(&spellings[i], NULL);
        size_t count;
        const struct layer *layers = folder_get_layers(folder, &count);

        for (size_t j = 0; j < count; j++) {
            struct layer_case want = read_layer_case(spellings[i].folder, layers[j].part);
            double error = run_layer(&layers[j], &want);
            if (!(error <= FAMILY_TOLERANCE))
                fail_msg("%s without '%s' and with %s: error %.3g", spellings[i].folder,
                         spellings[i].removed, spellings[i].added, error);
            free_layer_case(&want);
        }
        folder_close(folder);
    }
}

/* The end of the norm's name is also that of a norm in the convolutions. */
static void test_norm_of_wav2vec2_is_that_of_the_encoder(void **state) {
    const struct spelling stable = {"wav2vec2", "", "{\"do_stable_layer_norm\": true}"};
    struct folder *folder =
        open_changed(&stable, &(struct folder_options){.pre_norm = "true"});
    size_t count;
    const struct layer *layers = folder_get_layers(folder, &count);
    (void)state;

    for (size_t i = 0; i < count; i++) {
        char wanted[64];
        attn_model *model = make_model(&layers[i], true);
        const attn_model_info *info = attn_model_get_info(model);
        snprintf(wanted, sizeof wanted, "encoder.layers.%zu.layer_norm.weight", i);
        assert_string_equal(info->pre_norm.name, wanted);
        assert_true(info->pre_norm.applied && info->pre_norm.kind == ATTN_NORM_LAYER);
        attn_model_destroy(model);
    }
    folder_close(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spellings_of_a_config_give_the_same_results),
        cmocka_unit_test(test_norm_of_wav2vec2_is_that_of_the_encoder),
    };
    if (attn_init(NULL) != ATTN_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
