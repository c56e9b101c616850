"""Previews: what a value looks like, of every serializer, and nothing of a file is ever run."""

from __future__ import annotations

import os
import pickle
import zipfile
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from stoker.core.secret import Secret
from stoker.store import artifacts
from stoker.store.blobs import Blobs
from stoker.store.previews import LARGEST, PARTS, Preview, preview, tensors_of


def shown(value: Any, blobs: Blobs) -> Preview:
    return preview(artifacts.save(value, blobs), blobs)


def test_plain_values_are_shown_as_text(blobs: Blobs) -> None:
    assert shown(3, blobs).text == "3" and shown("<b>", blobs).text == "<b>"
    assert shown({"loss": [1, 2]}, blobs).text == '{\n  "loss": [\n    1,\n    2\n  ]\n}'
    long = shown("x" * 5_000, blobs)
    assert len(long.text) == 2_000 and long.more == "3,000 more characters"


def test_lists_of_records_and_of_numbers(blobs: Blobs) -> None:
    table = shown([{"name": f"n{one}", "loss": one / 3} for one in range(12)], blobs)
    assert table.headers == ("name", "loss") and table.rows[1] == ("n1", "0.333333") and table.more == "2 more rows"
    numbers = shown([float(one) for one in range(100)], blobs)
    assert numbers.histogram is not None and sum(numbers.histogram.counts) == 100
    assert shown([{"a": 1}, {"b": 2}], blobs).rows == () and shown([1, 2], blobs).histogram is None


def test_arrays_have_statistics_and_a_histogram(blobs: Blobs) -> None:
    array = np.concatenate([np.arange(1000.0), [np.nan, np.inf]])
    made = shown(array, blobs)
    assert made.words == "0 to 999, mean 499.5, deviation 288.7; 2 are no finite numbers"
    assert made.histogram is not None and len(made.histogram.counts) == PARTS and sum(made.histogram.counts) == 1000
    assert "of 1,000,000 of its elements" in shown(np.arange(2_000_000).reshape(2, -1).T, blobs).words
    for odd in (np.zeros(0), np.array([np.nan]), np.zeros(5), np.array(["a", "b"]), np.array([1.5e308, -1.5e308])):
        assert shown(odd, blobs).histogram is None
    assert shown(np.array([True, False]), blobs).text == "True, False"


@pytest.mark.parametrize("form", [(40, 30), (40, 30, 1), (40, 30, 3), (40, 30, 4), (600, 20, 3)])
def test_an_array_of_the_form_of_a_picture_is_one(form: tuple[int, ...], blobs: Blobs, tmp_path: Path) -> None:
    from PIL import Image

    array = np.random.default_rng(1).integers(0, 255, form, dtype=np.uint8)
    picture = shown(array, blobs).picture
    assert picture is not None
    (tmp_path / "a.png").write_bytes(picture.data)
    with Image.open(tmp_path / "a.png") as read:
        back = np.asarray(read)
    step = -(-max(form[:2]) // 256)
    assert np.array_equal(back, array[::step, ::step].squeeze())


def test_frames_have_rows_and_kinds_of_columns(blobs: Blobs) -> None:
    data = {"step": range(30), "loss": [1 / (one + 1) for one in range(30)], "name": ["x" * 200] * 30}
    for frame in (pd.DataFrame(data), pl.DataFrame(data), pa.table({key: list(one) for key, one in data.items()})):
        made = shown(frame, blobs)
        assert made.words.startswith("30 rows, ") and len(made.rows) == 10 and made.more == "20 more rows"
        assert (
            made.headers[0] == "step (int64)" and made.rows[2][:2] == ("2", "0.333333") and len(made.rows[0][2]) == 80
        )
    wide = shown(pd.DataFrame({f"c{one}": [one] for one in range(40)}), blobs)
    assert len(wide.headers) == 12 and wide.more == "28 more columns"
    assert shown(pd.DataFrame({"a": []}), blobs).rows == ()


class Net(torch.nn.Module):  # type: ignore[misc]  # torch is untyped
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))


def test_a_model_s_tensors_are_listed_without_torch(blobs: Blobs) -> None:
    for value in (Net().state_dict(), Net(), {"model": Net().state_dict(), "epoch": 3}):
        made = shown(value, blobs)
        assert made.words == "7 tensors with 53 elements of float32, int64: 216 B"
        assert made.rows[0][0].endswith("body.0.weight") and made.rows[0][1:] == ("4×8", "float32", "128 B")
    tensor = shown(torch.arange(100, dtype=torch.float32).reshape(10, 10), blobs)
    assert tensor.words.startswith("0 to 99, mean 49.5") and tensor.histogram is not None
    turned = shown(torch.arange(6).reshape(2, 3).t(), blobs)
    assert turned.rows == (("tensor", "3×2", "int64", "48 B"),)
    assert shown(torch.zeros(3, dtype=torch.bfloat16), blobs).rows[0][2] == "bfloat16"


class Runs:
    def __reduce__(self) -> Any:
        return os.system, ("touch ran",)


def test_what_is_pickled_is_never_run(blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown(Runs(), blobs).words.startswith("pickled: ")
    with zipfile.ZipFile("model.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"weights": Runs(), "more": [Runs(), OrderedDict(a=Runs())]}))
    with open("model.pt", "rb") as file:
        assert tensors_of(file) == []
    assert not Path("ran").exists()


@pytest.mark.parametrize("data", [b"", b"no zip", b"PK\x03\x04", pickle.dumps(1)])
def test_damaged_files_are_said_in_words(data: bytes, blobs: Blobs) -> None:
    for serializer in ("torch", "numpy", "pandas", "json"):
        stored = attrs.evolve(artifacts.save(data, blobs), serializer=serializer)
        made = preview(stored, blobs)
        assert made.words.startswith("cannot be ") or made.text, made


def test_files_and_folders(blobs: Blobs, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("one\ntwo\n")
    assert shown(tmp_path / "log.txt", blobs) == Preview(text="one\ntwo\n", words="the file log.txt")
    (tmp_path / "data.bin").write_bytes(b"\x00\xff" * 10)
    assert shown(tmp_path / "data.bin", blobs).words == "bytes that are no text"
    picture = b"\x89PNG\r\n\x1a\n" + zlib.compress(b"x")
    (tmp_path / "plot.png").write_bytes(picture)
    made = shown(tmp_path / "plot.png", blobs)
    assert made.picture is not None and made.picture.data == picture and made.picture.media == "image/png"
    assert shown(picture, blobs).picture == made.picture
    folder = shown(tmp_path, blobs)
    assert ("log.txt", "8 B") in folder.rows and folder.words.startswith("the folder ")


def test_secrets_lists_and_large_values(blobs: Blobs) -> None:
    assert "reference" in shown(Secret("env", "TOKEN"), blobs).words
    parts = [artifacts.save(one, blobs) for one in range(14)]
    made = preview(artifacts.gather(parts, blobs), blobs)
    assert made.words == "14 elements" and len(made.rows) == 10 and made.more == "4 more elements"
    large = attrs.evolve(artifacts.save(np.zeros(10_000), blobs), size=LARGEST + 1)
    assert preview(large, blobs).words.startswith("larger than 268 MB")
    gone = attrs.evolve(artifacts.save(np.zeros(10_000), blobs), digest="0" * 64)
    assert preview(gone, blobs).words.startswith("cannot be read: ")
