/* SPDX-License-Identifier: Apache-2.0 */
/* foreign.c: tables of first bytes and names, and of the Python that converts. */
#include "safetensors/foreign.h"

#include "base/error.h"

#include <fnmatch.h>
#include <string.h>

#define PATH_QUOTED_MAX 90 /* bytes of a path in a command that an error shows */

/* The Python that converts file sys.argv[1]. save_file() takes neither views nor shared
 * memory. */
#define SAVE_TO ", sys.argv[1] + '.safetensors')"
#define SCRIPT_TORCH                                                                     \
    "import sys, torch; from safetensors.torch import save_file; "                       \
    "save_file({k: v.clone().contiguous() for k, v in torch.load(sys.argv[1], 'cpu', "   \
    "weights_only=True).items()}" SAVE_TO
#define SCRIPT_NPZ                                                                       \
    "import sys, numpy as np; from safetensors.numpy import save_file; "                 \
    "save_file({k: np.ascontiguousarray(v) for k, v in "                                 \
    "np.load(sys.argv[1]).items()}" SAVE_TO

/* How to convert a file to safetensors, and Python that does it, or NULL. */
#define DICT_OF_TORCH "convert its state dict", SCRIPT_TORCH
#define LOAD_PICKLE                                                                      \
    "load it with pickle.load() if you trust its origin, and save its arrays under "     \
    "their names with save_file() of safetensors.numpy",                                 \
        NULL
#define GIVE_ORIGIN "give attnd the safetensors file that it was converted from", NULL
#define FROM_TENSORFLOW                                                                  \
    "transformers 4 reads some by from_tf=True, and saves safetensors", NULL
#define FROM_FLAX "transformers 4 reads it by from_flax=True, and saves safetensors", NULL

#define BYTES(text) text, sizeof(text) - 1, NULL
#define NAME(text)  NULL, 0, text

/* Files of other programs, by their first bytes, or by patterns of fnmatch() where only
 * their names tell. Files of torch.save() begin as the first row does, and is_npz() tells
 * them apart. A pickle begins with 0x80 and its protocol, as a header's size may; the
 * opcode after them tells. */
static const struct {
    const char *bytes;
    size_t size;
    const char *name, *what, *remedy, *script;
} foreign_formats[] = {
    {BYTES("PK\3\4"), "an .npz file of NumPy", "convert it", SCRIPT_NPZ},
    {BYTES("PK\3\4"), "a file of torch.save()", DICT_OF_TORCH},
    {BYTES("\x80\x02\x8a\nl\xfc\x9c\x46"), /* before 1.6 */
     "a file of torch.save()", DICT_OF_TORCH},
    {BYTES("\x93NUMPY"), "an .npy file of NumPy, one array without a name",
     "save all arrays of the layer under their names with save_file() of "
     "safetensors.numpy",
     NULL},
    {BYTES("\x80\2}"), "a pickle of Python", LOAD_PICKLE},
    {BYTES("\x80\3}"), "a pickle of Python", LOAD_PICKLE},
    {BYTES("\x80\4\x95"), "a pickle of Python", LOAD_PICKLE},
    {BYTES("\x80\5\x95"), "a pickle of Python", LOAD_PICKLE},
    {BYTES("version https://git-lfs."), "a git-lfs pointer, not the file",
     "run git lfs pull", NULL},
    {BYTES("GGUF"), "a GGUF file", GIVE_ORIGIN},
    {BYTES("lmgg"), "a ggml file", GIVE_ORIGIN},
    {BYTES("tjgg"), "a ggml file", GIVE_ORIGIN},
    {BYTES("\x89HDF\r\n\x1a\n"), "an HDF5 file",
     "read it with h5py or Keras, and save the kernels, transposed and made contiguous, "
     "with save_file() of safetensors.numpy",
     NULL},
    {NAME("*.onnx"), "an ONNX file", GIVE_ORIGIN},
    {NAME("?(*/)model.bin"), "a model of CTranslate2", GIVE_ORIGIN},
    {NAME("*.ckpt*.data-*"), "a checkpoint of TensorFlow", FROM_TENSORFLOW},
    {NAME("*.ckpt*.index"), "a checkpoint of TensorFlow", FROM_TENSORFLOW},
    {NAME("?(*/)saved_model.pb"), "a model of TensorFlow", FROM_TENSORFLOW},
    {NAME("*.msgpack"), "a file of Flax", FROM_FLAX},
};

/* Returns whether the archive of zip that begins with `bytes` is one of NumPy: the name
 * of its first file ends in ".npy". */
static bool is_npz(const unsigned char *bytes, size_t size) {
    enum { NAME_SIZE_AT = 26, NAME_AT = 30, SUFFIX = 4 };
    size_t name_end = size > NAME_AT ? NAME_AT + (size_t)bytes[NAME_SIZE_AT] : 0;

    return name_end >= NAME_AT + SUFFIX && name_end <= size &&
           memcmp(bytes + name_end - SUFFIX, ".npy", SUFFIX) == 0;
}

/* Returns `path` if a shell takes it unchanged between single quotes and an error's line
 * has room for it twice, else FILE. */
static const char *quotable_path(const char *path) {
    size_t size = 0;
    while (path[size] >= ' ' && path[size] <= '~' && path[size] != '\'')
        size++;
    return path[size] == '\0' && size <= PATH_QUOTED_MAX ? path : "FILE";
}

bool safetensors_find_foreign(const unsigned char *bytes, size_t size, const char *path,
                              attn_error *ret_error) {
    size_t i = 0, count = sizeof foreign_formats / sizeof foreign_formats[0];

    for (; i < count; i++) {
        const char *name = foreign_formats[i].name;
        if (name != NULL ? fnmatch(name, path, FNM_EXTMATCH) == 0
                         : foreign_formats[i].size <= size &&
                               memcmp(bytes, foreign_formats[i].bytes,
                                      foreign_formats[i].size) == 0 &&
                               (i > 0 || is_npz(bytes, size)))
            break;
    }
    if (i == count)
        return false;
    const char *what = foreign_formats[i].what, *remedy = foreign_formats[i].remedy;
    const char *script = foreign_formats[i].script;
    if (script == NULL)
        error_set(ret_error, ATTN_E_FORMAT, "is %s; %s", what, remedy);
    else
        error_set(ret_error, ATTN_E_FORMAT, "is %s; %s: python3 -c \"%s\" '%s'", what,
                  remedy, script, quotable_path(path));
    return true;
}
