"""Serializers of data frames as Arrow IPC files: every Arrow type and pandas index, loaded without decoding.

Only frames that load as the same frame are saved so; a frame with columns of arbitrary Python objects is pickled.
"""

from __future__ import annotations

import sys
from typing import Any, BinaryIO, Final, Mapping

from stoker.core.errors import MissingPackage
from stoker.store.serializers.base import Stored


class Pandas:
    """pandas data frames, where pyarrow is installed."""

    name: Final = "pandas"

    def fits(self, value: Any) -> bool:
        pandas = sys.modules["pandas"]
        if type(value) is not pandas.DataFrame or value.attrs or not _has_pyarrow():
            return False
        columns = [value.iloc[:, index] for index, kind in enumerate(value.dtypes) if kind.kind == "O"]
        if not value.columns.is_unique or not all(map(_is_exact, (*columns, *_index_levels(value.index)))):
            return False
        try:
            back = _table(value.iloc[:0]).to_pandas()
        except Exception:  # Arrow raises many errors for types that it does not know
            return False
        same = back.dtypes.equals(value.dtypes) and back.columns.equals(value.columns)
        return bool(
            same
            and back.columns.names == value.columns.names
            and type(back.columns) is type(value.columns)
            and back.index.names == value.index.names
            and type(back.index) is type(value.index)
        )

    def save(self, value: Any, file: BinaryIO) -> Mapping[str, Any]:
        _write(_table(value), file)
        meta: dict[str, Any] = {"shape": list(value.shape)}
        frequency = getattr(value.index, "freqstr", None)
        if frequency is not None and value.index.dtype.kind == "M":
            meta["freq"] = frequency  # Arrow does not know it
        return meta

    def load(self, stored: Stored) -> Any:
        import pandas as pd

        frame = _read(stored).to_pandas()
        for index, kind in enumerate(frame.dtypes):
            if isinstance(kind, pd.CategoricalDtype):  # the only columns that Arrow leaves read-only
                frame.isetitem(index, frame.iloc[:, index].copy())
        if "freq" in stored.meta:
            frame.index.freq = stored.meta["freq"]
        return frame


class Polars:
    """polars data frames."""

    name: Final = "polars"

    def fits(self, value: Any) -> bool:
        polars = sys.modules["polars"]
        return type(value) is polars.DataFrame and not any(_contains_type(kind, polars.Object) for kind in value.dtypes)

    def save(self, value: Any, file: BinaryIO) -> Mapping[str, Any]:
        value.write_ipc(file)
        return {"shape": list(value.shape)}

    def load(self, stored: Stored) -> Any:
        import polars as pl

        path = stored.path()
        if path is not None:
            return pl.read_ipc(path)
        with stored.open() as file:
            return pl.read_ipc(file)


class PyArrow:
    """Arrow tables and record batches; big ones are mapped, not read."""

    name: Final = "pyarrow"

    def fits(self, value: Any) -> bool:
        return True

    def save(self, value: Any, file: BinaryIO) -> Mapping[str, Any]:
        batch = type(value).__name__ == "RecordBatch"
        _write(value, file)
        return {"shape": [value.num_rows, value.num_columns], **({"batch": True} if batch else {})}

    def load(self, stored: Stored) -> Any:
        table = _read(stored)
        if not stored.meta.get("batch"):
            return table
        import pyarrow as pa

        batches = table.to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


PANDAS: Final = Pandas()
POLARS: Final = Polars()
PYARROW: Final = PyArrow()


def _has_pyarrow() -> bool:
    if "pyarrow" in sys.modules:
        return True
    import importlib.util

    return importlib.util.find_spec("pyarrow") is not None


def _is_exact(column: Any) -> bool:
    """Whether a column's values load as the same Python objects."""
    if column.dtype.kind != "O" or str(column.dtype) != "object":
        return True
    # A column of objects: Arrow returns the same texts if pandas keeps texts as objects (before 3), but lists become
    # arrays, and integers beside None become floats. A NaN becomes None, the only missing value that Arrow has.
    texts_are_objects = sys.modules["pandas"].Series(["x"]).dtype == object
    return texts_are_objects and bool(len(column)) and set(map(type, column)) <= {str, type(None)}


def _index_levels(index: Any) -> list[Any]:
    return [index.get_level_values(level) for level in range(index.nlevels)]


def _contains_type(kind: Any, target: Any) -> bool:
    inner = getattr(kind, "inner", None)
    fields = getattr(kind, "fields", ())
    return bool(
        kind == target
        or (inner is not None and _contains_type(inner, target))
        or any(_contains_type(field.dtype, target) for field in fields)
    )


def _table(frame: Any) -> Any:
    import pyarrow as pa

    return pa.Table.from_pandas(frame)


def _write(table: Any, file: BinaryIO) -> None:
    import pyarrow as pa

    with pa.PythonFile(file, mode="w") as target, pa.ipc.new_file(target, table.schema) as writer:
        writer.write(table)


def _read(stored: Stored) -> Any:
    try:
        import pyarrow as pa
    except ModuleNotFoundError as error:
        raise MissingPackage(
            f"a saved {stored.artifact.type} needs the package 'pyarrow' to be loaded", fix="pip install pyarrow"
        ) from error
    path = stored.path()
    if path is not None:
        with pa.memory_map(path) as file, pa.ipc.open_file(file) as reader:
            return reader.read_all()
    with stored.open() as file:
        return pa.ipc.open_file(pa.BufferReader(file.read())).read_all()
