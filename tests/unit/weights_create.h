/* SPDX-License-Identifier: Apache-2.0 */
/* weights_create.h: creates models from the files of weights_file.h. */
#ifndef ATTND_TESTS_WEIGHTS_CREATE_H
#define ATTND_TESTS_WEIGHTS_CREATE_H

#include "weights_file.h"

#include "math/model.h"
#include "weights/checkpoint.h"

#include <attnd/model.h>

/* Creates a model from the file that `made` describes. Returns the text of the error, ""
 * on success. */
static inline const char *create_from(const struct weights_file *made,
                                      const attn_model_options *options,
                                      attn_model **ret_model, attn_status *ret_status) {
    static attn_error error;
    size_t size;
    unsigned char *bytes = file_make(made, &size);
    struct safetensors *file = NULL;

    error.text[0] = '\0';
    *ret_status = safetensors_open_memory(bytes, size, &file, &error);
    if (*ret_status == ATTN_OK)
        *ret_status =
            checkpoint_create_model("m", file, options, NULL, ret_model, &error);
    safetensors_close(file);
    free(bytes);
    return error.text;
}

/* Creates a model, which must succeed. */
static inline attn_model *must_create(const struct weights_file *made,
                                      const attn_model_options *options) {
    attn_model *model = NULL;
    attn_status status;
    const char *text = create_from(made, options, &model, &status);
    if (status != ATTN_OK)
        fail_msg("%s", text);
    return model;
}

/* Expects `want`, with an error that has both words. */
static inline void must_refuse(const struct weights_file *made,
                               const attn_model_options *options, attn_status want,
                               const char *words, const char *other_words) {
    attn_model *model = NULL;
    attn_status status;
    const char *text = create_from(made, options, &model, &status);
    if (status == ATTN_OK)
        fail_msg("not refused; expected: %s", words);
    assert_text_has(text, words);
    assert_text_has(text, other_words);
    assert_int_equal(status, want);
    assert_null(model);
}

/* two_stage, 2 heads of size 2; the width of queries is 2, of the stage 3, of outputs
 * 5. */
static inline void add_two_stage(struct weights_file *made) {
    file_add_f32(made, "W_Q.weight", 3, 2, 1);
    file_add_f32(made, "W_K.weight", 3, 2, 2);
    file_add_f32(made, "W_V.weight", 3, 2, 3);
    file_add_f32(made, "W_O.weight", 5, 4, 1);
    for (int head = 0; head < 2; head++) {
        static const char *const names[] = {"W_Q", "W_K", "W_V"};
        for (size_t i = 0; i < 3; i++) {
            char name[32];
            snprintf(name, sizeof name, "heads.%d.%s.weight", head, names[i]);
            file_add_f32(made, name, 2, 3, head + (double)i);
        }
    }
}

#endif
