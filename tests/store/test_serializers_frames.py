"""Data frames: values, types, index and column names as they were."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from stoker.core.artifact import StoredArtifact, from_wire
from stoker.store import artifacts
from stoker.store.blobs import Blobs


def round_trip(value: Any, blobs: Blobs) -> tuple[Any, StoredArtifact]:
    saved = artifacts.save(value, blobs)
    return artifacts.load(from_wire(json.loads(json.dumps(saved.wire()))), blobs), saved


def numbers(rows: int = 10) -> Any:
    return pd.DataFrame({"x": np.arange(rows), "y": np.linspace(0, 1, rows)})


EXACT = {
    "numbers": numbers(),
    "large": numbers(200_000),
    "texts": pd.DataFrame({"t": ["a", None, "ß"], "x": [1, 2, 3]}),
    "named index": numbers().set_index("x"),
    "text index": pd.DataFrame({"x": [1, 2]}, index=["a", "b"]),
    "several levels": pd.DataFrame({"a": [1, 1, 2], "b": ["x", "y", "x"], "c": [1.0, 2, 3]}).set_index(["a", "b"]),
    "steps in the range": numbers().iloc[2:8:2],
    "dates": pd.DataFrame({"d": pd.date_range("2020", periods=4, tz="Europe/Berlin")}),
    "date index": pd.DataFrame({"x": range(4)}, index=pd.date_range("2020", periods=4, freq="h")),
    "durations": pd.DataFrame({"d": pd.to_timedelta([1, 2], unit="s")}),
    "categories": pd.DataFrame({"c": pd.Categorical(["lo", "hi"], categories=["lo", "mid", "hi"], ordered=True)}),
    "nullable": pd.DataFrame({"i": pd.array([1, None], dtype="Int64"), "b": pd.array([True, None], dtype="boolean")}),
    "periods": pd.DataFrame({"p": pd.period_range("2020-01", periods=3, freq="M")}),
    "no rows": numbers().iloc[:0],
    "small types": pd.DataFrame({"i": np.array([1, 2], "i1"), "f": np.array([1, 2], "f4"), "b": [True, False]}),
}


@pytest.mark.parametrize("name", EXACT)
def test_a_pandas_frame_comes_back_as_it_was(blobs: Blobs, name: str) -> None:
    loaded, saved = round_trip(EXACT[name], blobs)
    pd.testing.assert_frame_equal(loaded, EXACT[name])
    assert saved.serializer == "pandas"
    assert saved.meta["shape"] == list(EXACT[name].shape)
    for place in range(loaded.shape[1] if len(loaded) else 0):
        loaded.iloc[0, place] = loaded.iloc[-1, place]  # it may be changed


with_attrs = numbers()
with_attrs.attrs["from"] = "here"

PICKLED = {
    "objects": pd.DataFrame({"o": [1, "a", [2]]}),
    "texts as objects": pd.DataFrame({"t": pd.Series(["a", None, "ß"], dtype=object)}),
    "lists": pd.DataFrame({"o": [[1, 2], [3]]}),
    "dicts": pd.DataFrame({"o": [{"a": 1}, {"b": 2}]}),
    "integers beside None": pd.DataFrame({"o": pd.Series([1, None], dtype=object)}),
    "nan among texts": pd.DataFrame({"o": pd.Series(["a", float("nan")], dtype=object)}),
    "two columns of one name": pd.DataFrame([[1, 2]], columns=["a", "a"]),
    "column levels": pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([("a", "x"), ("a", "y")])),
    "attrs": with_attrs,
    "no rows of objects": pd.DataFrame({"o": pd.Series([], dtype=object)}),
    "dates of Python": pd.DataFrame({"o": [datetime.date(2020, 1, 1)]}),
    "complex": pd.DataFrame({"c": np.array([1 + 2j])}),
    "sparse": pd.DataFrame({"s": pd.arrays.SparseArray([0, 0, 1])}),
    "no columns": pd.DataFrame(index=range(3)),
    "numbers as names": pd.DataFrame(np.zeros((2, 3))),
}


@pytest.mark.parametrize("name", PICKLED)
def test_what_arrow_would_change_is_pickled_or_exact(blobs: Blobs, name: str) -> None:
    value = PICKLED[name]
    loaded, _ = round_trip(value, blobs)
    pd.testing.assert_frame_equal(loaded, value)
    assert type(loaded.columns) is type(value.columns)
    assert loaded.attrs == value.attrs
    for left, right in zip(loaded.to_numpy().ravel(), value.to_numpy().ravel()):
        assert type(left) is type(right)


def test_a_series_and_an_index_come_back(blobs: Blobs) -> None:
    series = pd.Series([1.5, 2], name="x", index=["a", "b"])
    loaded, _ = round_trip(series, blobs)
    pd.testing.assert_series_equal(loaded, series)
    index, _ = round_trip(pd.RangeIndex(5), blobs)
    assert index.equals(pd.RangeIndex(5))


def test_a_frame_of_a_derived_class_keeps_its_class(blobs: Blobs) -> None:
    loaded, saved = round_trip(Derived({"x": [1]}), blobs)
    assert type(loaded) is Derived
    assert saved.serializer == "pickle"


class Derived(pd.DataFrame):  # type: ignore[misc]
    """As geopandas has it."""


def test_without_pyarrow_a_frame_is_pickled(tmp_path: Any) -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import importlib.util, warnings\n"
        "real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'pyarrow' else real(name, *rest)\n"
        "import pandas as pd; from stoker.store import artifacts; from stoker.store.blobs import Blobs\n"
        "blobs = Blobs(sys.argv[1]); del sys.modules['pyarrow']\n"
        "saved = artifacts.save(pd.DataFrame({'x': [1]}), blobs)\n"
        "print(saved.serializer, artifacts.load(saved, blobs)['x'][0])"
    )
    made = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert made.stdout.split() == ["pickle", "1"], made.stderr


# polars


POLARS = {
    "numbers": pl.DataFrame({"x": [1, 2, None], "y": [0.5, None, 1.0]}),
    "large": pl.DataFrame({"x": range(200_000), "t": ["text"] * 200_000}),
    "texts": pl.DataFrame({"t": ["a", None, "ß"]}),
    "nested": pl.DataFrame({"l": [[1, 2], [], None], "s": [{"a": 1}, {"a": 2}, {"a": None}]}),
    "dates": pl.DataFrame({"d": [datetime.datetime(2020, 1, 1)], "n": [datetime.date(2020, 1, 1)]}),  # noqa: DTZ001
    "categories": pl.DataFrame({"c": pl.Series(["a", "b", "a"], dtype=pl.Categorical)}),
    "enum": pl.DataFrame({"c": pl.Series(["a", "b"], dtype=pl.Enum(["b", "a"]))}),
    "empty": pl.DataFrame({"x": []}, schema={"x": pl.Int32}),
    "nothing": pl.DataFrame(),
}


@pytest.mark.parametrize("name", POLARS)
def test_a_polars_frame_comes_back_as_it_was(blobs: Blobs, name: str) -> None:
    loaded, saved = round_trip(POLARS[name], blobs)
    assert loaded.schema == POLARS[name].schema
    assert loaded.equals(POLARS[name], null_equal=True)
    assert saved.serializer == "polars"
    assert saved.meta == {"shape": list(POLARS[name].shape)}
    assert artifacts.save(POLARS[name], blobs).digest == saved.digest


def test_polars_frames_with_objects_are_pickled(blobs: Blobs) -> None:
    series, saved = round_trip(pl.Series("x", [1, 2]), blobs)
    assert saved.serializer == "pickle"
    assert series.equals(pl.Series("x", [1, 2]))
    lazy, _ = round_trip(pl.DataFrame({"x": [1]}).lazy(), blobs)
    assert lazy.collect().equals(pl.DataFrame({"x": [1]}))


# pyarrow


def test_an_arrow_table_comes_back_as_it_was(blobs: Blobs) -> None:
    for rows in (0, 3, 200_000):
        table = pa.table({"x": pa.array(range(rows)), "d": pa.array(["a"] * rows).dictionary_encode()})
        table = table.replace_schema_metadata({"from": "here"})
        loaded, saved = round_trip(table, blobs)
        assert loaded.equals(table, check_metadata=True)
        assert saved.serializer == "pyarrow"


def test_an_arrow_batch_comes_back_as_one(blobs: Blobs) -> None:
    for rows in (0, 3, 200_000):
        batch = pa.RecordBatch.from_pydict({"x": pa.array(range(rows), pa.int64())})
        loaded, _ = round_trip(batch, blobs)
        assert type(loaded) is pa.RecordBatch
        assert loaded.equals(batch)


def test_a_large_arrow_table_is_mapped(blobs: Blobs) -> None:
    saved = artifacts.save(pa.table({"x": pa.array(range(500_000))}), blobs)
    before = pa.total_allocated_bytes()
    loaded = artifacts.load(saved, blobs)
    assert pa.total_allocated_bytes() - before < 100_000
    assert loaded.num_rows == 500_000
