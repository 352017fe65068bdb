# SPDX-License-Identifier: Apache-2.0
"""Pictures and tables of captures."""

import base64
import re
import struct
import xml.etree.ElementTree as ElementTree
import zlib

import numpy as np
import pytest

import attnd
from captures import FOLDER, compute_weights, recorded_layers
from programs import ROOT

FILE = ROOT / "docs/examples/tiny-gpt2/capture.safetensors"


@pytest.fixture
def captured():
    return attnd.open(FILE)


def read_cells(svg):
    """Returns the shares of the largest weight, of 255, that the first image of a picture has."""
    data = base64.b64decode(re.search(r'base64,([^"]*)"', svg)[1])
    width, height = struct.unpack(">II", data[16:24])
    begin = data.index(b"IDAT") + 4
    lines = np.frombuffer(zlib.decompress(data[begin:]), np.uint8).reshape(height, width + 1)
    return lines[:, 1:]


def test_picture_has_each_weight_and_its_labels_scale_and_title(captured):
    picture = captured.show(1, head=2)
    svg = picture.svg()
    weights = compute_weights(**captured.request(1))[2]
    assert np.abs(read_cells(svg) / 255 - weights / weights.max()).max() < 1 / 255
    texts = [node.text for node in ElementTree.fromstring(svg).iter() if node.tag.endswith("text")]
    assert texts[0] == "weights of layer 1, head 2" and f"{weights.max():.3g}" in texts and "0" in texts
    assert "".join(texts[1:63]) == "".join(captured.tokens) * 2


def test_page_of_a_picture_loads_nothing_and_cannot_be_broken_by_a_label(captured):
    captured.tokens[3] = "</script><b>\x00"
    picture = captured.show()
    page = picture.html()
    assert page.count("</script>") == 1 and not re.search("(src|href)=.?https?:", page) and "Picture" in repr(picture)
    assert picture._repr_html_().startswith("<iframe srcdoc=") and "<script" not in picture._repr_html_()
    ElementTree.fromstring(picture.svg())


def test_picture_is_saved_by_the_end_of_its_name(captured, tmp_path):
    picture = captured.show(0, -1)
    for name, begin in (("a.svg", b"<svg"), ("a.html", b"<!doctype"), ("a.png", b"\x89PNG")):
        picture.save(tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(begin)
    with pytest.raises(attnd.Error, match=r"a.jpg ends in .jpg; name a file .svg, .png or .html"):
        picture.save(tmp_path / "a.jpg")
    with pytest.raises(attnd.Error, match="there is no head 4; weights of layer 0 has 4, which begin at 0"):
        captured.show(0, 4)


def test_long_text_is_drawn_in_blocks():
    rows = np.random.default_rng(0).normal(size=(600, 2, 8)).astype(np.float32)
    picture = attnd.Captured({"5": [{"queries": rows, "keys": rows, "causal": True}]}).show()
    assert picture.weights.shape == (2, 200, 200) and picture.rows[1] == "3"
    assert picture.title == "blocks of layer 5, 3 x 3 tokens"


def test_table_has_the_heads_of_all_layers(captured):
    targets = [None, *([place // 2, place // 2 + 1] for place in range(1, 31))]
    table = captured.heads(targets=targets)
    assert len(table) == 8
    for row in table:
        weights = compute_weights(**captured.request(row["layer"]))[row["head"]]
        entropy = -np.sum(weights * np.log(np.where(weights > 0, weights, 1)), -1).mean()
        wanted = {"self": np.diag(weights).mean(), "previous": np.diag(weights, -1).mean(), "first": weights[:, 0].mean(),
                  "target": weights[range(1, 31), np.arange(1, 31) // 2].mean(), "entropy": entropy}
        for name, number in wanted.items():
            assert abs(row[name] - number) < 1e-4, name
    assert table.sort("target")["target"][0] == table["target"].max()


def test_table_of_recorded_layers_of_every_family_is_finite():
    for name, request, *_ in recorded_layers(FOLDER):
        table = attnd.Captured({name.split()[1]: [request]}).heads()
        assert np.isfinite(table["entropy"]).all(), name
