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

/* How to convert a file to safetensors; `script` is Python that does it, or NULL. */
struct remedy {
    const char *text;
    const char *script;
};

#define DICT_OF_TORCH                                                                    \
    { "convert its state dict", SCRIPT_TORCH }
#define LOAD_PICKLE                                                                      \
    {                                                                                    \
        "load it with pickle.load() if you trust its origin, and save its arrays under " \
        "their names with save_file() of safetensors.numpy",                             \
            NULL                                                                         \
    }

#define GIVE_ORIGIN                                                                      \
    { "give attnd the safetensors file that it was converted from", NULL }

#define FROM_TENSORFLOW                                                                  \
    { "transformers 4 reads some by from_tf=True, and saves safetensors", NULL }
#define FROM_FLAX                                                                        \
    { "transformers 4 reads it by from_flax=True, and saves safetensors", NULL }

/* Files of other programs, by their first bytes. Files of torch.save() begin as the first
 * row does, and is_npz() tells them apart. A pickle begins with 0x80 and its protocol, as
 * a header's size may; the opcode after them tells. */
static const struct {
    const char *bytes;
    size_t size;
    const char *what;
    struct remedy remedy;
} foreign_formats[] = {
    {"PK\3\4", 4, "an .npz file of NumPy", {"convert it", SCRIPT_NPZ}},
    {"PK\3\4", 4, "a file of torch.save()", DICT_OF_TORCH},
    {"\x80\x02\x8a\nl\xfc\x9c\x46", /* before 1.6 */
     8, "a file of torch.save()", DICT_OF_TORCH},
    {"\x93NUMPY",
     6,
     "an .npy file of NumPy, one array without a name",
     {"save all arrays of the layer under their names with save_file() of "
      "safetensors.numpy",
      NULL}},
    {"\x80\2}", 3, "a pickle of Python", LOAD_PICKLE},
    {"\x80\3}", 3, "a pickle of Python", LOAD_PICKLE},
    {"\x80\4\x95", 3, "a pickle of Python", LOAD_PICKLE},
    {"\x80\5\x95", 3, "a pickle of Python", LOAD_PICKLE},
    {"version https://git-lfs.",
     24,
     "a git-lfs pointer, not the file",
     {"run git lfs pull", NULL}},
    {"GGUF", 4, "a GGUF file", GIVE_ORIGIN},
    {"lmgg", 4, "a ggml file", GIVE_ORIGIN},
    {"tjgg", 4, "a ggml file", GIVE_ORIGIN},
    {"\x89HDF\r\n\x1a\n",
     8,
     "an HDF5 file",
     {"read it with h5py or Keras, and save the kernels, transposed and made "
      "contiguous, with save_file() of safetensors.numpy",
      NULL}},
};

/* Those that only their names tell, which are patterns of fnmatch(). */
static const struct {
    const char *name, *what;
    struct remedy remedy;
} foreign_names[] = {
    {"*.onnx", "an ONNX file", GIVE_ORIGIN},
    {"?(*/)model.bin", "a model of CTranslate2", GIVE_ORIGIN},
    {"*.ckpt*.data-*", "a checkpoint of TensorFlow", FROM_TENSORFLOW},
    {"*.ckpt*.index", "a checkpoint of TensorFlow", FROM_TENSORFLOW},
    {"?(*/)saved_model.pb", "a model of TensorFlow", FROM_TENSORFLOW},
    {"*.msgpack", "a file of Flax", FROM_FLAX},
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

/* Says what the file at `path` is, and what makes safetensors of it. */
static bool tell_format(const char *what, const struct remedy *remedy, const char *path,
                        attn_error *ret_error) {
    error_set(ret_error, ATTN_E_FORMAT, "is %s; %s", what, remedy->text);
    if (remedy->script != NULL)
        error_set(ret_error, ATTN_E_FORMAT, "is %s; %s: python3 -c \"%s\" '%s'", what,
                  remedy->text, remedy->script, quotable_path(path));
    return true;
}

bool safetensors_find_foreign(const unsigned char *bytes, size_t size, const char *path,
                              attn_error *ret_error) {
    for (size_t i = 0; i < sizeof foreign_formats / sizeof foreign_formats[0]; i++) {
        if (foreign_formats[i].size > size ||
            memcmp(bytes, foreign_formats[i].bytes, foreign_formats[i].size) != 0 ||
            (i == 0 && !is_npz(bytes, size)))
            continue;
        return tell_format(foreign_formats[i].what, &foreign_formats[i].remedy, path,
                           ret_error);
    }
    for (size_t i = 0; i < sizeof foreign_names / sizeof foreign_names[0]; i++) {
        if (fnmatch(foreign_names[i].name, path, FNM_EXTMATCH) == 0)
            return tell_format(foreign_names[i].what, &foreign_names[i].remedy, path,
                               ret_error);
    }
    return false;
}
