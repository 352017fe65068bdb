/* SPDX-License-Identifier: Apache-2.0 */
/* demo.c: the built-in models, which are files inside the program. */
#include "weights/checkpoint.h"

#include "base/error.h"

#include <string.h>

/* In demo_data.S: four whole files, and their sizes in bytes. */
extern const unsigned char attnd_demo_journey[];
extern const uint64_t attnd_demo_journey_size;
extern const unsigned char attnd_demo_d2l[];
extern const uint64_t attnd_demo_d2l_size;
extern const unsigned char attnd_demo_patterns[];
extern const uint64_t attnd_demo_patterns_size;
extern const unsigned char attnd_demo_stacked[];
extern const uint64_t attnd_demo_stacked_size;

static const struct demo {
    const char *name;
    const unsigned char *file;
    const uint64_t *size;
} demos[] = {
    {"journey", attnd_demo_journey, &attnd_demo_journey_size},
    {"d2l", attnd_demo_d2l, &attnd_demo_d2l_size},
    {"patterns", attnd_demo_patterns, &attnd_demo_patterns_size},
    {"stacked", attnd_demo_stacked, &attnd_demo_stacked_size},
};

attn_status attn_model_demo(const char *name, const attn_engine_options *engine,
                            attn_model **ret_model, attn_error *ret_error) {
    const struct demo *demo = NULL;

    for (size_t i = 0; i < sizeof demos / sizeof demos[0]; i++) {
        if (strcmp(demos[i].name, name) == 0)
            demo = &demos[i];
    }
    if (demo == NULL)
        return error_set(ret_error, ATTN_E_VALUE,
                         "built-in model '%.80s' is unknown; "
                         "use journey, d2l, patterns or stacked",
                         name);

    struct safetensors *file = NULL;
    attn_status status =
        safetensors_open_memory(demo->file, (size_t)*demo->size, &file, ret_error);
    if (status == ATTN_OK) /* the files have their options in __metadata__ */
        status = checkpoint_create_model(name, file, NULL, engine, ret_model, ret_error);
    safetensors_close(file);
    return status;
}
