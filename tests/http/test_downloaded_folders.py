# SPDX-License-Identifier: Apache-2.0
"""Folders as they are downloaded: caches, broken downloads, and formats of other programs."""

import numpy as np
import pytest

from folders import change_config, copy_folder, refusal_of, rewrite
from reload import reload, wait_for_log
from server import run_attnd

POINTER = """version https://git-lfs.github.com/spec/v1
oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
size 4976698672
"""


@pytest.mark.parametrize("name, file", [
    ("gpt2", "model.safetensors"), ("gpt2", "config.json"), ("bert", "model.safetensors.index.json"),
    ("bert", "model-00002-of-00002.safetensors")])
def test_pointer_of_git_lfs_is_called_so(name, file, tmp_path):
    folder = copy_folder(name, tmp_path)
    (folder / file).write_text(POINTER)
    assert f"{file}: is a git-lfs pointer, not the file; run git lfs pull\n" in refusal_of("--model", f"m={folder}")


def make_cache(path, *versions):
    """Makes the folder of a model in a cache of Hugging Face."""
    for folder in "blobs", "refs", "snapshots":
        (path / folder).mkdir(parents=True)
    return [copy_folder("gpt2", path / "snapshots").rename(path / "snapshots" / version) for version in versions]


def test_cache_of_hugging_face_is_opened_at_its_version(tmp_path):
    """refs/main decides; without it there must be one version. Both folders of a model mean the same."""
    cache = tmp_path / "models--x--y"
    older, newer = make_cache(cache, "0a1b", "0c2d")
    for path in cache, cache / "snapshots", f"{cache}/":
        line = refusal_of("--model", f"m={path}")
        assert line.endswith("refs/main names none of the versions in snapshots; give the folder of one, or finish the "
                             "download: 0a1b, 0c2d\n"), line
    change_config(older, n_head=5)  # which is refused
    for main in "0c2d", "0c2d\n":
        (cache / "refs/main").write_text(main)
        for path in cache, cache / "snapshots", f"{cache}/", f"{cache}/snapshots/":
            assert run_attnd("inspect", path).stdout.startswith(f"{path}: family gpt2, 1 layer\n")
    for main, words in (("0a1b", f"{older}: 5 heads do not divide"), ("0e", "names none"),
                        ("../..", "names none"), ("", "names none")):
        (cache / "refs/main").write_text(main)
        assert words in refusal_of("--model", f"m={cache}")
    for file in older.iterdir():
        file.unlink()
    older.rmdir()
    assert run_attnd("inspect", cache).returncode == 0
    assert run_attnd("inspect", ".", cwd=cache / "snapshots").returncode == 0
    assert "name=models--x--y.0 " in run_attnd("--check-config", "--model-dir", tmp_path).stderr
    assert f"give the one in it that has it: {cache}\n" in refusal_of("--model", f"m={tmp_path}")
    newer.rename(cache / "0c2d")
    assert "is a directory without config.json" in refusal_of("--model", f"m={cache}")


def test_new_version_in_a_cache_is_loaded_by_sighup(start_server, tmp_path):
    cache = tmp_path / "models--x--y"
    older, newer = make_cache(cache, "0a1b", "0c2d")
    rewrite(newer, lambda tensors: tensors.update({"h.0.attn.c_proj.bias": np.full(48, 7, np.float32)}))
    (cache / "refs/main").write_text(older.name)
    server = start_server("--model", f"m={cache}")
    body = {"model": "m.0", "queries": np.zeros((1, 48)).tolist()}
    before = server.attention(body).json()
    (cache / "refs/main").write_text(newer.name)
    reload(server)
    wait_for_log(server, "models reloaded")
    assert server.attention(body).json() != before


def test_link_to_a_file_that_was_not_downloaded_is_called_so(tmp_path):
    """A download may have broken off, at any file."""
    for name, file in (("gpt2", "config.json"), ("gpt2", "model.safetensors"),
                       ("bert", "model.safetensors.index.json"), ("bert", "model-00002-of-00002.safetensors")):
        folder = copy_folder(name, tmp_path / file)
        blob = tmp_path / f"blob-{file}"
        (folder / file).rename(blob)
        (folder / file).symlink_to(blob)
        assert run_attnd("--check-config", "--model", f"m={folder}").returncode == 0
        blob.unlink()
        assert f"{file} is a link to a file that is not there; finish the download" in refusal_of(
            "--model", f"m={folder}")


@pytest.mark.parametrize("file, words", [
    ("pytorch_model.bin", 'AutoModel.from_pretrained(sys.argv[1])'),
    ("pytorch_model.bin.index.json", 'AutoModel.from_pretrained(sys.argv[1])'),
    ("adapter_model.safetensors", "merge_and_unload"), ("consolidated.safetensors", "Meta and Mistral"),
    ("tf_model.h5", "which transformers 4 makes by from_tf=True"),
    ("part.safetensors", "or call a file of all weights model.safetensors"),
    ("other.txt", "has neither model.safetensors nor")])
def test_folder_without_safetensors_says_what_to_do(file, words, tmp_path):
    folder = copy_folder("gpt2", tmp_path)
    (folder / "model.safetensors").rename(folder / file)
    assert words in refusal_of("--model", f"m={folder}")


# Files of other programs, and how they are called.
OTHERS = {
    "x.onnx": (b"\x08\x08\x12\x07pytorch\x1a\x05", "an ONNX file; give attnd the safetensors file that it was"),
    "onnx/model.onnx": (b"\x08\x08\x12\x0aonnx.quant", "an ONNX file; give"),
    "model.bin": (b"\6\0\0\0\x0c\0WhisperSpec\0\3\0\0\0", "a model of CTranslate2; give"),
    "ggml-base.bin": (b"lmgg\x6c\xca\0\0", "a ggml file; give"), "ggjt.bin": (b"tjgg\3\0\0\0", "a ggml file; give"),
    "a.Q4_K_M.gguf": (b"GGUF\3\0\0\0", "a GGUF file; give"),
    "saved_model.pb": (b"\x08\1\x12\xb0\x8a", "a model of TensorFlow; transformers 4 reads some by from_tf=True"),
    "bert_model.ckpt.data-00000-of-00001": (b"\x9a\x99\x99", "a checkpoint of TensorFlow; transformers 4"),
    "model.ckpt-1000.index": (b"\0\0\6\x0a", "a checkpoint of TensorFlow; transformers 4"),
    "flax_model.msgpack": (b"\x81\xaaembeddings", "a file of Flax; transformers 4 reads it by from_flax=True"),
    "weights.pt": (b"PK\3\4" + bytes(26) + b"archive/data.pkl", "a file of torch.save(); convert its state dict: python3"),
    "x.npz": (b"PK\3\4" + bytes(22) + b"\5\0\0\0a.npy", "an .npz file of NumPy; convert it: python3 -c"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_folder_and_file_of_another_program_are_called_so(name, tmp_path):
    """The folder never says to give a file that says to give the folder."""
    content, words = OTHERS[name]
    folder = copy_folder("gpt2", tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "cases.safetensors").unlink()
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(content + bytes(99))
    assert f"{folder}: has no model.safetensors; {name} is {words}" in refusal_of("--model", f"m={folder}")
    line = refusal_of("--model", f"m={folder / name}")
    assert f"{folder / name}: is {words}" in line and "give the folder instead" not in line
    remedy = "; call that model.safetensors, and give the folder\n"
    if "/" not in name:  # whole, or left out where an error has no room for it
        assert line.endswith(remedy) or ("; call" not in line and len(line) + len(remedy) > 480), line
    (folder / "config.json").write_text('{"alignment_heads": []}')  # as that of CTranslate2
    assert f"has no model.safetensors; {name} is {words}" in refusal_of("--model", f"m={folder}")


def test_file_beside_a_config_is_told_to_become_its_weights(tmp_path):
    folder = copy_folder("gpt2", tmp_path)
    path = (folder / "model.safetensors").rename(folder / "other.safetensors")
    assert refusal_of("--model", f"m={path}").endswith("; call that model.safetensors, and give the folder\n")
    path.rename(folder / "model.safetensors")
    assert run_attnd("--check-config", "--model", f"m={folder}").returncode == 0
