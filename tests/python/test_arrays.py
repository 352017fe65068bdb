# SPDX-License-Identifier: Apache-2.0
"""Arrays of callers, as attnd takes them: types, strides, and what is refused."""

import types

import ml_dtypes  # tritonclient needs it, too
import numpy as np
import pytest

from attnd import Error
from attnd._arrays import BFLOAT16, to_array, to_integers, to_numbers, widen
from attnd._fields import prepare, split_fields, to_lists


def numbers(*shape, dtype=np.float32):
    return np.random.default_rng(7).normal(size=shape).astype(dtype)


class Exporter:
    """An array of another library, which knows DLPack only."""

    def __init__(self, array, device=1):
        self.array, self.device = array, device

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device, 0


@pytest.mark.parametrize("view", [lambda a: a, lambda a: a[:, ::2], lambda a: a[::-1], lambda a: a.transpose(2, 0, 1),
                                  lambda a: a[:0], lambda a: np.broadcast_to(a, (3, *a.shape))])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, ml_dtypes.bfloat16])
def test_arrays_are_views_whatever_their_strides(view, dtype):
    array = view(numbers(4, 6, 3, dtype=dtype))
    got = to_numbers("queries", array)
    assert np.shares_memory(got, array) or array.size == 0
    assert got.shape == array.shape and got.strides == array.strides
    assert np.array_equal(widen(got), array.astype(np.float32 if got.dtype == BFLOAT16 else dtype))


def test_read_only_array_is_a_view():
    array = numbers(4, 3)
    array.flags.writeable = False
    assert np.shares_memory(to_numbers("queries", array), array)


def test_array_with_dlpack_is_a_view():
    array = numbers(4, 3)
    assert np.shares_memory(to_numbers("queries", Exporter(array)), array)


def test_array_on_another_device_is_refused():
    with pytest.raises(TypeError, match="keys is not in the memory of the CPU"):
        to_numbers("keys", Exporter(numbers(2), device=2))


def test_numbers_of_other_byte_orders_are_swapped():
    array = numbers(4, 3)
    assert to_numbers("queries", array.astype(">f4")).tobytes() == array.tobytes()


def test_lists_are_arrays_and_their_integers_are_numbers():
    assert to_numbers("queries", [[1, 2], [3, 4]]).dtype == np.float32
    assert to_numbers("queries", [numbers(3), numbers(3)]).shape == (2, 3)
    bits = to_numbers("queries", [numbers(3).astype(ml_dtypes.bfloat16)] * 2)
    assert bits.shape == (2, 3) and bits.dtype == BFLOAT16


@pytest.mark.parametrize("value, words", [
    (np.zeros((2, 3), np.int64), r"queries is int64, .* queries.astype\('float32'\), or if they are ids of tokens, the rows "),
    (np.zeros((2, 3), np.uint16), r"astype\('float32'\), or bits of bfloat16 as \.view\(attnd\.BFLOAT16\)$"),
    (np.zeros((2, 3), complex), "^queries is complex128, which attnd does not read; send float32, or int64 for whole numbers$"),
    (np.zeros(2, np.longdouble), "queries is float128, which"),
    (np.array(["a"]), "queries is <U1, which"),
    (np.array([None]), "queries is object, which"),
    ("abc", "queries is <U3, which"),
    (None, "queries is object, which"),
    (object(), "queries is object, which"),
    (np.ma.masked_array([1.0, 2.0], [True, False]), "masked array")])
def test_types_without_a_meaning_are_refused(value, words):
    with pytest.raises(TypeError, match=words) as caught:
        to_numbers("queries", value)
    assert isinstance(caught.value, Error)


def test_lists_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="queries cannot be one array; rows of different lengths"):
        to_numbers("queries", [[1.0], [1.0, 2.0]])


@pytest.mark.parametrize("value, dtype", [([1, 2], np.int64), (np.uint8([1]), np.int64), ([1.0, 2.5], np.float64),
                                          ([], np.int64), (range(3), np.int64), (np.int32(3), np.int64)])
def test_integers_are_of_64_bits_and_floats_stay(value, dtype):
    assert to_integers("valid_lens", value).dtype == dtype


@pytest.mark.parametrize("value, words", [([True], r"mask\.sum\(-1\), its places mask\.nonzero\(\)\[0\]"), (["a"], "valid_lens is <U1, which"), ([1j], "valid_lens is complex128, which")])
def test_integers_of_other_types_are_refused(value, words):
    with pytest.raises(TypeError, match=words):
        to_integers("valid_lens", value)


@pytest.mark.parametrize("value, printed", [
    (np.float32(0.25), 0.25), (np.array(0.25), 0.25), (np.bool_(True), True), (np.int64(3), 3), ("mean", "mean"),
    ((1, np.int8(2)), [1, 2]), (np.array(0.5, ml_dtypes.bfloat16), 0.5), (None, None)])
def test_options_are_what_json_prints(value, printed):
    assert to_lists("scale", value) == printed


@pytest.mark.parametrize("value", [1j, b"a", object(), types.SimpleNamespace(), {1, 2}])
def test_options_of_other_types_are_refused(value):
    with pytest.raises(TypeError, match="^scale is of the type"):
        to_lists("scale", value)


def test_ragged_batch_is_joined_with_its_lengths():
    fields = {"queries": [numbers(2, 1, 4), numbers(3, 1, 4)], "keys": [numbers(5, 1, 4), numbers(1, 1, 4)],
              "positions": [[0, 1], [4, 5, 6]], "causal": np.bool_(True), "need": "lse"}
    tensors, options = split_fields(prepare(fields), rank=3, integers=False)
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        "query_lens": (2,), "queries": (5, 1, 4), "key_lens": (2,), "keys": (6, 1, 4), "positions": (5,)}
    assert options == {"causal": True, "need": ["lse"]}


@pytest.mark.parametrize("keys, words", [
    ([numbers(2, 1, 4), numbers(3, 1, 5)], "all but the rows must agree"),
    ([numbers(2, 1, 4), numbers(3, 1, 4, dtype=ml_dtypes.bfloat16)], "bfloat16 goes with no other type")])
def test_sequences_that_cannot_be_joined_are_refused(keys, words):
    with pytest.raises(Error, match="keys has sequences of.*" + words):
        split_fields(prepare({"queries": keys, "keys": keys}) | {"queries": [numbers(2, 1, 4), numbers(3, 1, 4)]}, 3, False)


class TestTorch:
    torch = None

    @pytest.fixture(autouse=True)
    def need_torch(self):
        TestTorch.torch = pytest.importorskip("torch", reason="torch is not installed")

    @pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float64"])
    def test_tensors_are_views_without_their_gradient(self, name):
        tensor = self.torch.randn(2, 3, 5, dtype=getattr(self.torch, name)).requires_grad_().transpose(1, 2)
        array = to_numbers("queries", tensor)
        assert array.ctypes.data == tensor.data_ptr() and array.shape == (2, 5, 3)
        assert np.array_equal(widen(array), tensor.detach().to(self.torch.float64).numpy())

    def test_scalars_and_lists_of_tensors(self):
        assert to_lists("scale", self.torch.tensor(0.25, dtype=self.torch.bfloat16)) == 0.25
        assert to_lists("causal", self.torch.tensor(True)) is True
        assert to_numbers("queries", [self.torch.ones(3, requires_grad=True)] * 2).shape == (2, 3)

    def test_tensor_on_another_device_says_how_to_copy_it(self):
        tensor = type("Tensor", (), {"__module__": "torch", "device": types.SimpleNamespace(type="cuda")})()
        with pytest.raises(TypeError, match=r"queries is on .*cuda.*, but attnd computes on the CPU; send queries\.cpu\(\)"):
            to_numbers("queries", tensor)

    def test_tensor_on_meta_has_no_numbers_to_copy(self):
        with pytest.raises(TypeError, match="queries is on meta: it has a shape, but no numbers; send a tensor of a model that"):
            to_numbers("queries", self.torch.zeros(3, device="meta"))

    def test_tensor_that_numpy_does_not_read_is_refused(self):
        for tensor in (self.torch.zeros(3, 3).to_sparse(), self.torch.zeros(3, dtype=self.torch.float8_e4m3fn)):
            with pytest.raises(TypeError, match=r"queries is a tensor of .*; use queries\.float\(\)"):
                to_numbers("queries", tensor)
