"""Data frames: values, types, index and column names as they were."""

from __future__ import annotations

import datetime
import json
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
    "text index": pd.DataFrame({"x": [1, 2]}, index=["a", "b"]),
    "steps in the range": numbers().iloc[2:8:2],
    "date index": pd.DataFrame({"x": range(4)}, index=pd.date_range("2020", periods=4, freq="h")),
    "categories": pd.DataFrame({"c": pd.Categorical(["lo", "hi"], categories=["lo", "mid", "hi"], ordered=True)}),
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


PICKLED = {
    "texts as objects": pd.DataFrame({"t": pd.Series(["a", None, "ß"], dtype=object)}),
    "lists": pd.DataFrame({"o": [[1, 2], [3]]}),
    "dicts": pd.DataFrame({"o": [{"a": 1}, {"b": 2}]}),
    "integers beside None": pd.DataFrame({"o": pd.Series([1, None], dtype=object)}),
    "nan among texts": pd.DataFrame({"o": pd.Series(["a", float("nan")], dtype=object)}),
    "no rows of objects": pd.DataFrame({"o": pd.Series([], dtype=object)}),
    "dates of Python": pd.DataFrame({"o": [datetime.date(2020, 1, 1)]}),
    "complex": pd.DataFrame({"c": np.array([1 + 2j])}),
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


def test_a_frame_of_a_derived_class_keeps_its_class(blobs: Blobs) -> None:
    loaded, saved = round_trip(Derived({"x": [1]}), blobs)
    assert type(loaded) is Derived
    assert saved.serializer == "pickle"


class Derived(pd.DataFrame):  # type: ignore[misc]
    """As geopandas has it."""


# polars


POLARS = {
    "large": pl.DataFrame({"x": range(200_000), "t": ["text"] * 200_000}),
    "texts": pl.DataFrame({"t": ["a", None, "ß"]}),
    "dates": pl.DataFrame({"d": [datetime.datetime(2020, 1, 1)], "n": [datetime.date(2020, 1, 1)]}),  # noqa: DTZ001
    "enum": pl.DataFrame({"c": pl.Series(["a", "b"], dtype=pl.Enum(["b", "a"]))}),
    "empty": pl.DataFrame({"x": []}, schema={"x": pl.Int32}),
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


def test_a_large_arrow_table_is_mapped(blobs: Blobs) -> None:
    saved = artifacts.save(pa.table({"x": pa.array(range(500_000))}), blobs)
    before = pa.total_allocated_bytes()
    loaded = artifacts.load(saved, blobs)
    assert pa.total_allocated_bytes() - before < 100_000
    assert loaded.num_rows == 500_000
