"""Objects that steps return, by the library that they come from: each comes back equal and of its type, or is refused.

A row makes its object anew at each call, always the same one, so that a step elsewhere can make its own to compare.
`REFUSED` are those that no process can hand to another. Libraries that are not installed have no rows.
"""

from __future__ import annotations

import collections
import contextlib
import copyreg
import datetime as dt
import decimal
import enum
import fractions
import functools
import importlib
import io
import ipaddress
import math
import operator
import pathlib
import random
import re
import socket
import subprocess
import sys
import threading
import types
import typing
import uuid
import weakref
import zoneinfo
from typing import Any, Callable

import attrs

Make = Callable[[], Any]


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Mode(str, enum.Enum):
    FAST = "fast"


class Flags(enum.Flag):
    A = 1
    B = 2


class Text(str):  # noqa: SLOT000 as torch's version is
    """A text with attributes."""


class Whole(int):
    pass


class Real(float):
    pass


class Table(dict):  # type: ignore[type-arg]
    pass


class Row(list):  # type: ignore[type-arg]
    pass


class Pair(typing.NamedTuple):
    left: int
    right: str


class Plain:
    def __init__(self) -> None:
        self.words, self.table = ["a"], {"b": (1, 2)}


class Slots:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = [1]


class Reduced:
    """Rebuilds itself by a function, as objects of C libraries do."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        return Reduced, (self.value,)


class Increment:
    def __call__(self, x: int) -> int:
        return x + 1


@attrs.frozen
class Frozen:
    a: int = 1
    b: tuple[int, ...] = (2,)


def _dataclass() -> Any:
    return importlib.import_module("tests.store.zoo_dataclasses").Config(lr=0.1, layers=[1, 2])


def _nested(depth: int) -> Any:
    value: Any = "end"
    for _ in range(depth):
        value = [value]
    return value


def _cycle() -> list[Any]:
    value: list[Any] = [1]
    value.append(value)
    return value


def _builtins() -> dict[str, Make]:
    zone = zoneinfo.ZoneInfo("Europe/Berlin")
    return {
        "None": lambda: None,
        "True": lambda: True,
        "zero": lambda: 0,
        "minus-zero": lambda: -0.0,
        "huge-int": lambda: 10**5000,
        "negative-int": lambda: -(2**63) - 1,
        "nan": lambda: math.nan,
        "inf": lambda: -math.inf,
        "tiny-float": lambda: 5e-324,
        "complex": lambda: 1 + 2j,
        "str": lambda: "naïve ☃",
        "empty-str": lambda: "",
        "surrogate": lambda: "\ud800",
        "nul": lambda: "a\0b",
        "long-str": lambda: "ab" * 200_000,
        "bytes": lambda: b"\0\xff" * 10,
        "long-bytes": lambda: bytes(range(256)) * 4000,
        "bytearray": lambda: bytearray(b"abc"),
        "list": lambda: [1, "a", None, 2.5],
        "tuple": lambda: (1, (2, 3)),
        "empty-tuple": lambda: (),
        "dict": lambda: {"a": {"b": [1]}},
        "int-keys": lambda: {1: "a", 2: "b"},
        "tuple-keys": lambda: {(1, 2): 3},
        "none-key": lambda: {None: 1, True: 2},
        "set": lambda: {1, 2, 3},
        "frozenset": lambda: frozenset({"a"}),
        "nested-50": lambda: _nested(50),
        "nested-150": lambda: _nested(150),
        "cycle": _cycle,
        "range": lambda: range(3, 30, 4),
        "slice": lambda: slice(1, None, 2),
        "Ellipsis": lambda: ...,
        "NotImplemented": lambda: NotImplemented,
        "type": lambda: int,
        "function": lambda: _cycle,
        "builtin-function": lambda: len,
        "method": lambda: Plain.__init__,
        "lambda": lambda: lambda x: x + 1,
        "closure": lambda: functools.partial(operator.add, 1),
        "callable": Increment,
        "enum": lambda: Color.RED,
        "int-enum": lambda: Level.HIGH,
        "str-enum": lambda: Mode.FAST,
        "flag": lambda: Flags.A | Flags.B,
        "str-subclass": lambda: Text("2.1.0"),
        "int-subclass": lambda: Whole(3),
        "float-subclass": lambda: Real(0.5),
        "dict-subclass": lambda: Table(a=1),
        "list-subclass": lambda: Row([1]),
        "subclasses-inside": lambda: {"a": Text("x"), "b": [Whole(1), Real(2.0)], "c": Table(d=Row())},
        "namedtuple": lambda: Pair(1, "a"),
        "plain-object": Plain,
        "slots": Slots,
        "reduce": lambda: Reduced(3),
        "attrs": Frozen,
        "dataclass": _dataclass,
        "simple-namespace": lambda: types.SimpleNamespace(a=1, b=[2]),
        "mapping-proxy-copy": lambda: dict(types.MappingProxyType({"a": 1})),
        "exception": lambda: ValueError("no", 3),
        "exception-with-cause": lambda: KeyError("x"),
        "datetime": lambda: dt.datetime(2026, 3, 1, 12, 30, 1, 7),  # noqa: DTZ001
        "datetime-zone": lambda: dt.datetime(2026, 7, 1, tzinfo=zone),
        "datetime-utc": lambda: dt.datetime(2026, 7, 1, tzinfo=dt.timezone.utc),
        "fold": lambda: dt.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=zone),
        "date": lambda: dt.date(1, 1, 1),
        "time": lambda: dt.time(23, 59, 59, 999999),
        "timedelta": lambda: dt.timedelta(days=-1, microseconds=1),
        "timezone": lambda: dt.timezone(dt.timedelta(hours=5, minutes=30)),
        "zoneinfo": lambda: zone,
        "decimal": lambda: decimal.Decimal("0.1000"),
        "decimal-nan": lambda: decimal.Decimal("sNaN"),
        "fraction": lambda: fractions.Fraction(1, 3),
        "uuid": lambda: uuid.UUID(int=7),
        "path": lambda: pathlib.PurePosixPath("/a/b"),
        "ip": lambda: ipaddress.ip_network("10.0.0.0/8"),
        "regex": lambda: re.compile(r"a+(?P<b>c)", re.IGNORECASE),
        "OrderedDict": lambda: collections.OrderedDict(b=1, a=2),
        "defaultdict": lambda: collections.defaultdict(list, {"a": [1]}),
        "Counter": lambda: collections.Counter("hello"),
        "deque": lambda: collections.deque([1, 2], maxlen=3),
        "ChainMap": lambda: collections.ChainMap({"a": 1}, {"b": 2}),
        "StringIO": lambda: io.StringIO("text"),
        "BytesIO": lambda: io.BytesIO(b"bytes"),
        "Random": lambda: random.Random(3),
        "partial-method": lambda: operator.itemgetter(1, 2),
        "attrgetter": lambda: operator.attrgetter("a.b"),
        "iterator-of-list": lambda: iter([1, 2, 3]),
        "zip": lambda: list(zip([1], [2])),
        "version_info": lambda: tuple(sys.version_info),
        "generic-alias": lambda: list[int],
        "union": lambda: typing.Optional[int],
        "TypeVar-free": lambda: typing.Callable[[int], str],
    }


def _numpy() -> dict[str, Make]:
    import numpy as np

    structured = [("a", "<i4"), ("b", "<f8", (2,))]
    rows: dict[str, Make] = {
        f"scalar-{name}": (lambda name=name: getattr(np, name)(1)) for name in ("int8", "uint64", "float16", "float64")
    }
    return rows | {
        "bool": lambda: np.bool_(True),
        "complex64": lambda: np.complex64(1 + 1j),
        "longdouble": lambda: np.longdouble("0.1"),
        "str_": lambda: np.str_("abc"),
        "bytes_": lambda: np.bytes_(b"abc"),
        "datetime64": lambda: np.datetime64("2026-01-01T00:00", "ns"),
        "NaT": lambda: np.datetime64("NaT"),
        "timedelta64": lambda: np.timedelta64(3, "D"),
        "void": lambda: np.zeros(1, structured)[0],
        "array": lambda: np.arange(6.0).reshape(2, 3),
        "large": lambda: np.arange(300_000, dtype=np.float32),
        "fortran": lambda: np.asfortranarray(np.arange(6).reshape(2, 3)),
        "strided": lambda: np.arange(20)[::3],
        "zero-dimensional": lambda: np.array(3.5),
        "empty": lambda: np.empty((0, 4), dtype=np.int16),
        "big-endian": lambda: np.arange(3, dtype=">i4"),
        "structured": lambda: np.zeros(2, structured),
        "record": lambda: np.rec.array([(1, 2.0)], dtype=[("x", "i4"), ("y", "f8")]),
        "object": lambda: np.array([1, "a", None], dtype=object),
        "unicode": lambda: np.array(["a", "bcd"]),
        "nan-array": lambda: np.array([np.nan, -0.0, np.inf]),
        "masked": lambda: np.ma.masked_array([1, 2], mask=[0, 1]),
        "matrix": lambda: np.asmatrix([[1, 2]]),
        "memmap-copy": lambda: np.array([1, 2]).view(np.ndarray),
        "dtype": lambda: np.dtype(structured),
        "dtype-class": lambda: np.float32,
        "ufunc": lambda: np.add,
        "Generator": lambda: np.random.default_rng(3),
        "RandomState": lambda: np.random.RandomState(3),
        "poly": lambda: np.polynomial.Polynomial([1, 2, 3]),
        "poly1d": lambda: np.poly1d([1, 2]),
        "finfo": lambda: float(np.finfo(np.float32).eps),
        "dict-of-arrays": lambda: {"x": np.ones(3), "y": {"z": np.zeros(2)}},
        "list-of-arrays": lambda: [np.ones(2), np.ones(3)],
        "scalars-inside": lambda: {"loss": np.float64(0.5), "n": np.int64(3)},
        "StringDType": lambda: np.array(["a", "b"], dtype=np.dtypes.StringDType()),
    }


def _pandas() -> dict[str, Make]:
    import numpy as np
    import pandas as pd

    def frame() -> Any:
        return pd.DataFrame({"a": [1, 2], "b": ["x", None], "c": [1.5, np.nan]})

    return {
        "DataFrame": frame,
        "empty": lambda: pd.DataFrame(),
        "no-columns": lambda: pd.DataFrame(index=[1, 2]),
        "index": lambda: frame().set_index("a"),
        "multi-index": lambda: frame().set_index(["a", "b"]),
        "multi-columns": lambda: pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([("a", 1), ("a", 2)])),
        "int-columns": lambda: pd.DataFrame([[1, 2]], columns=[0, 1]),
        "duplicate-columns": lambda: pd.DataFrame([[1, 2]], columns=["a", "a"]),
        "categorical": lambda: pd.DataFrame({"c": pd.Categorical(["a", "b"], categories=["b", "a"], ordered=True)}),
        "zoned": lambda: pd.DataFrame({"t": pd.date_range("2026-01-01", periods=2, tz="Europe/Berlin")}),
        "timedelta": lambda: pd.DataFrame({"t": pd.to_timedelta([1, 2], unit="s")}),
        "nullable": lambda: pd.DataFrame({"n": pd.array([1, None], dtype="Int64")}),
        "string": lambda: pd.DataFrame({"s": pd.array(["a", None], dtype="string")}),
        "boolean": lambda: pd.DataFrame({"b": pd.array([True, None], dtype="boolean")}),
        "period": lambda: pd.DataFrame({"p": pd.period_range("2026-01", periods=2, freq="M")}),
        "interval": lambda: pd.DataFrame({"i": pd.interval_range(0, 2)}),
        "sparse": lambda: pd.DataFrame({"s": pd.arrays.SparseArray([0, 0, 1])}),
        "object-mixed": lambda: pd.DataFrame({"o": [1, "a", [2]]}, dtype=object),
        "Series": lambda: pd.Series([1, 2], name="s", index=["x", "y"]),
        "Index": lambda: pd.Index([1, 2, 3], name="i"),
        "RangeIndex": lambda: pd.RangeIndex(5),
        "MultiIndex": lambda: pd.MultiIndex.from_product([[1, 2], ["a"]]),
        "DatetimeIndex": lambda: pd.date_range("2026-01-01", periods=3, freq="D"),
        "Timestamp": lambda: pd.Timestamp("2026-01-01", tz="UTC"),
        "Timedelta": lambda: pd.Timedelta("1D"),
        "NA": lambda: pd.NA,
        "NaT": lambda: pd.NaT,
        "Period": lambda: pd.Period("2026-01"),
        "Categorical": lambda: pd.Categorical(["a"]),
        "attrs": lambda: _with_attrs(frame()),
        "groups": lambda: dict(list(frame().groupby("a"))),
    }


def _with_attrs(frame: Any) -> Any:
    frame.attrs = {"source": "here"}
    return frame


def _frames() -> dict[str, Make]:
    import polars as pl
    import pyarrow as pa

    return {
        "polars-DataFrame": lambda: pl.DataFrame({"a": [1, None], "b": ["x", "y"]}),
        "polars-nested": lambda: pl.DataFrame({"l": [[1, 2], []], "s": [{"x": 1}, {"x": 2}]}),
        "polars-categorical": lambda: pl.DataFrame({"c": ["a", "b"]}, schema={"c": pl.Categorical}),
        "polars-LazyFrame": lambda: pl.DataFrame({"a": [1]}).lazy().filter(pl.col("a") > 0),
        "polars-Series": lambda: pl.Series("s", [1, 2]),
        "polars-Expr": lambda: pl.col("a") + 1,
        "polars-dtype": lambda: pl.Int32,
        "polars-empty": lambda: pl.DataFrame(),
        "arrow-Table": lambda: pa.table({"a": [1, 2], "b": ["x", None]}),
        "arrow-RecordBatch": lambda: pa.record_batch({"a": [1, 2]}),
        "arrow-Array": lambda: pa.array([1, None]),
        "arrow-ChunkedArray": lambda: pa.chunked_array([[1], [2]]),
        "arrow-Schema": lambda: pa.schema([("a", pa.int32())], metadata={"k": "v"}),
        "arrow-type": lambda: pa.decimal128(10, 2),
        "arrow-scalar": lambda: pa.scalar(3),
    }


def _scipy() -> dict[str, Make]:
    import numpy as np
    from scipy import interpolate, optimize, sparse, spatial, stats

    return {
        "csr": lambda: sparse.csr_matrix(np.eye(3)),
        "coo-array": lambda: sparse.coo_array(np.eye(2)),
        "lil": lambda: sparse.lil_matrix((2, 2)),
        "OptimizeResult": lambda: optimize.OptimizeResult(x=np.ones(2), success=True),
        "spline": lambda: interpolate.CubicSpline([0, 1, 2], [0, 1, 4]),
        "KDTree": lambda: spatial.KDTree(np.arange(6.0).reshape(3, 2)).data,
        "Rotation": lambda: spatial.transform.Rotation.from_euler("z", 90, degrees=True).as_matrix(),
        "frozen-distribution": lambda: stats.norm(1, 2).args,
        "TtestResult": lambda: tuple(stats.ttest_1samp([1.0, 2.0, 3.0], 0.0)),
    }


def _sklearn() -> dict[str, Make]:
    import numpy as np
    from sklearn import (
        cluster,
        compose,
        datasets,
        ensemble,
        linear_model,
        metrics,
        model_selection,
        neighbors,
        pipeline,
        preprocessing,
        svm,
        tree,
    )

    x, y = np.arange(24.0).reshape(12, 2) % 7, np.arange(12) % 2
    numbers = preprocessing.StandardScaler
    columns = [("n", numbers(), [0]), ("o", preprocessing.OneHotEncoder(handle_unknown="ignore"), [1])]
    return {
        "unfitted": lambda: linear_model.LogisticRegression(C=2.0),
        "LogisticRegression": lambda: linear_model.LogisticRegression().fit(x, y),
        "SVC": lambda: svm.SVC(probability=False).fit(x, y),
        "tree": lambda: tree.DecisionTreeClassifier(random_state=0).fit(x, y),
        "forest": lambda: ensemble.RandomForestClassifier(3, random_state=0).fit(x, y),
        "boosting": lambda: ensemble.GradientBoostingRegressor(n_estimators=2, random_state=0).fit(x, y),
        "hist-boosting": lambda: ensemble.HistGradientBoostingClassifier(max_iter=2, random_state=0).fit(x, y),
        "KMeans": lambda: cluster.KMeans(2, n_init=1, random_state=0).fit(x),
        "neighbors": lambda: neighbors.KNeighborsClassifier(1).fit(x, y),
        "pipeline": lambda: pipeline.make_pipeline(numbers(), linear_model.Ridge()).fit(x, y),
        "columns": lambda: compose.ColumnTransformer(columns).fit(x),
        "lambda-transformer": lambda: preprocessing.FunctionTransformer(np.log1p),
        "search": lambda: (
            model_selection.GridSearchCV(linear_model.Ridge(), {"alpha": [1]}, cv=2).fit(x, y).best_params_
        ),
        "Bunch": lambda: datasets.make_blobs(4, random_state=0)[0],
        "iris": lambda: datasets.load_iris(),
        "split": lambda: list(model_selection.KFold(2).split(x)),
        "report": lambda: metrics.classification_report(y, y, output_dict=True),
        "confusion": lambda: metrics.confusion_matrix(y, y),
        "label-encoder": lambda: preprocessing.LabelEncoder().fit(["a", "b"]),
    }


def _torch() -> dict[str, Make]:
    import torch
    from torch import nn, optim
    from torch.utils import data

    def seeded(make: Make) -> Make:
        def made() -> Any:
            torch.manual_seed(0)
            return make()

        return made

    def trained(kind: Any, **words: Any) -> Any:
        model = nn.Linear(2, 1)
        optimizer = kind(model.parameters(), **words)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        return optimizer

    def scheduler(kind: Any, *values: Any, **words: Any) -> Any:
        return kind(optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1), *values, **words)

    def tensors() -> Any:
        return data.TensorDataset(torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 0]))

    schedulers: dict[str, Make] = {
        "StepLR": lambda: scheduler(optim.lr_scheduler.StepLR, 2),
        "CosineAnnealingLR": lambda: scheduler(optim.lr_scheduler.CosineAnnealingLR, 10),
        "LambdaLR": lambda: scheduler(optim.lr_scheduler.LambdaLR, operator.neg),
        "OneCycleLR": lambda: scheduler(optim.lr_scheduler.OneCycleLR, 0.1, total_steps=10),
        "ReduceLROnPlateau": lambda: scheduler(optim.lr_scheduler.ReduceLROnPlateau),
        "ExponentialLR": lambda: scheduler(optim.lr_scheduler.ExponentialLR, 0.9),
        "CyclicLR": lambda: scheduler(optim.lr_scheduler.CyclicLR, 0.1, 0.2),
    }
    rows: dict[str, Make] = {
        f"tensor-{kind}": (lambda kind=kind: torch.ones(2, dtype=getattr(torch, kind)))
        for kind in ("float16", "bfloat16", "float64", "int8", "bool", "complex64")
    }
    return {name: seeded(make) for name, make in {**rows, **schedulers}.items()} | {
        "zero-dimensional": lambda: torch.tensor(3.0),
        "empty-tensor": lambda: torch.empty(0, 3),
        "large-tensor": lambda: torch.arange(300_000),
        "strided-tensor": lambda: torch.arange(12).reshape(3, 4).t(),
        "view": lambda: torch.arange(10)[2:5],
        "requires-grad": lambda: torch.ones(2, requires_grad=True),
        "Parameter": lambda: nn.Parameter(torch.ones(2)),
        "sparse-tensor": lambda: torch.eye(3).to_sparse(),
        "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8).dequantize(),
        "shared": lambda: dict.fromkeys("ab", torch.ones(3)),
        "Size": lambda: torch.Size([1, 2]),
        "device": lambda: torch.device("cpu"),
        "dtype": lambda: torch.bfloat16,
        "layout": lambda: torch.strided,
        "memory-format": lambda: torch.channels_last,
        "version": lambda: torch.__version__,
        "finfo": lambda: torch.finfo(torch.float32).max,
        "return-type": lambda: torch.ones(2, 2).max(0),
        "Linear": seeded(lambda: nn.Linear(2, 2)),
        "Sequential": seeded(lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten())),
        "LSTM": seeded(lambda: nn.LSTM(2, 3)),
        "Transformer": seeded(lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)),
        "loss": lambda: nn.CrossEntropyLoss(label_smoothing=0.1),
        "state-dict": seeded(lambda: nn.Linear(2, 2).state_dict()),
        "checkpoint": seeded(lambda: {"model": nn.Linear(2, 1).state_dict(), "epoch": 3, "torch": torch.__version__}),
        "SGD": seeded(lambda: trained(optim.SGD, lr=0.1, momentum=0.9)),
        "AdamW": seeded(lambda: trained(optim.AdamW)),
        "optimizer-state": seeded(lambda: trained(optim.Adam).state_dict()),
        "GradScaler": lambda: torch.amp.GradScaler("cpu", enabled=False).state_dict(),
        "TensorDataset": tensors,
        "Subset": lambda: data.Subset(tensors(), [0, 2]),
        "ConcatDataset": lambda: data.ConcatDataset([tensors(), tensors()]),
        "random_split": seeded(lambda: data.random_split(tensors(), [1, 2])),
        "DataLoader": lambda: data.DataLoader(tensors(), batch_size=2),
        "DataLoader-workers": lambda: data.DataLoader(tensors(), batch_size=2, num_workers=2),
        "SequentialSampler": lambda: data.SequentialSampler(range(4)),
        "RandomSampler": lambda: data.RandomSampler(range(4)),
        "BatchSampler": lambda: data.BatchSampler(data.SequentialSampler(range(4)), 2, False),
        "DistributedSampler": lambda: data.DistributedSampler(range(4), num_replicas=2, rank=0),
        "Generator": lambda: torch.Generator().manual_seed(3),
        "rng-state": lambda: torch.Generator().manual_seed(3).get_state(),
        "distribution": lambda: torch.distributions.Normal(0.0, 1.0),
        "script": seeded(lambda: torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)).state_dict()),
        "pack": lambda: nn.utils.rnn.pad_sequence([torch.ones(1), torch.ones(2)]),
        "PackedSequence": lambda: nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)]),
        "swa": seeded(lambda: optim.swa_utils.AveragedModel(nn.Linear(1, 1))),
    }


def _figures() -> dict[str, Make]:
    import altair
    import matplotlib
    import networkx
    import plotly.graph_objects as go
    from PIL import Image

    matplotlib.use("agg")
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    def figure() -> Any:
        made = Figure()
        made.subplots().plot([1, 2, 3])
        return made

    return {
        "matplotlib-Figure": figure,
        "colormap": lambda: colormaps["viridis"],
        "plotly-Figure": lambda: go.Figure(go.Scatter(x=[1, 2], y=[3, 4])),
        "altair-Chart": lambda: altair.Chart(altair.InlineData([{"a": 1}])).mark_point().encode(x="a:Q"),
        "PIL-RGB": lambda: Image.new("RGB", (4, 3), "red"),
        "PIL-palette": lambda: Image.new("P", (2, 2)),
        "PIL-gray": lambda: Image.new("L", (2, 2), 7),
        "networkx-Graph": lambda: networkx.path_graph(4),
        "networkx-MultiDiGraph": lambda: networkx.MultiDiGraph([(1, 2), (1, 2)]),
    }


def _records() -> dict[str, Make]:
    import pydantic
    import sympy
    import yaml
    from google.protobuf import struct_pb2, timestamp_pb2
    from packaging.version import Version

    class Inside(pydantic.BaseModel):  # defined in a function: no module has it
        a: int = 1

    return {
        "pydantic": lambda: importlib.import_module("tests.store.zoo_dataclasses").Model(a=1, b=["x"]),
        "pydantic-local": lambda: Inside(a=2).model_dump(),
        "protobuf": lambda: struct_pb2.Value(number_value=3.0),
        "protobuf-time": lambda: timestamp_pb2.Timestamp(seconds=3),
        "sympy": lambda: sympy.sqrt(sympy.Symbol("x") + 1),
        "packaging": lambda: Version("1.2.3rc1"),
        "yaml": lambda: yaml.safe_load("a: [1, 2.5, x]"),
        "click-free": lambda: attrs.make_class("Made", ["x"])(1).x,
    }


def _optional() -> dict[str, Make]:
    """Libraries that are not among the tests' own."""
    rows: dict[str, Make] = {}
    with contextlib.suppress(ImportError):
        import jax
        import jax.numpy as jnp

        rows |= {
            "jax-array": lambda: jnp.arange(4.0),
            "jax-bfloat16": lambda: jnp.ones(2, jnp.bfloat16),
            "jax-key": lambda: jax.random.PRNGKey(3),
            "jax-pytree": lambda: {"w": jnp.ones((2, 2)), "b": [jnp.zeros(2)]},
            "jax-dtype": lambda: jnp.float32,
        }
    with contextlib.suppress(ImportError):
        import numpy as np
        import xgboost

        x, y = np.arange(8.0).reshape(4, 2), np.array([0, 1, 0, 1])
        rows |= {
            "xgboost-Classifier": lambda: xgboost.XGBClassifier(n_estimators=2).fit(x, y),
            "xgboost-Booster": lambda: xgboost.train({}, xgboost.DMatrix(x, y), 2),
        }
    with contextlib.suppress(ImportError):
        import lightgbm
        import numpy as np

        x, y = np.arange(80.0).reshape(40, 2), np.arange(40) % 2
        words = {"verbose": -1, "n_estimators": 2, "min_child_samples": 2}
        rows |= {
            "lightgbm-Classifier": lambda: lightgbm.LGBMClassifier(**words).fit(x, y),
            "lightgbm-Booster": lambda: lightgbm.LGBMClassifier(**words).fit(x, y).booster_,
        }
    with contextlib.suppress(ImportError):
        import transformers

        small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}

        def model() -> Any:
            import torch

            torch.manual_seed(0)
            return transformers.BertModel(transformers.BertConfig(vocab_size=10, **small))

        rows |= {
            "transformers-config": lambda: transformers.BertConfig(**small),
            "transformers-model": model,
            "transformers-state": lambda: model().state_dict(),
            "transformers-arguments": lambda: transformers.TrainingArguments("out", use_cpu=True).to_dict(),
            "transformers-generation": lambda: transformers.GenerationConfig(max_length=3),
            "transformers-batch": lambda: transformers.BatchEncoding({"input_ids": [[1, 2]]}),
        }
    with contextlib.suppress(ImportError):
        import tokenizers

        rows["tokenizer"] = lambda: tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[UNK]": 1}, "[UNK]"))
    with contextlib.suppress(ImportError):
        import datasets

        rows |= {
            "datasets-Dataset": lambda: datasets.Dataset.from_dict({"a": [1, 2], "b": ["x", "y"]}),
            "datasets-DatasetDict": lambda: datasets.DatasetDict(train=datasets.Dataset.from_dict({"a": [1]})),
            "datasets-Features": lambda: datasets.Features({"a": datasets.Value("int32")}),
        }
    with contextlib.suppress(ImportError):
        import tensorflow as tf

        rows |= {
            "tensorflow-tensor": lambda: tf.constant([1.0, 2.0]),
            "tensorflow-variable": lambda: tf.Variable([1.0]).numpy(),
            "tensorflow-shape": lambda: tf.TensorShape([1, None]),
            "tensorflow-dtype": lambda: tf.float16,
        }
    with contextlib.suppress(ImportError):
        import xarray

        rows["xarray"] = lambda: xarray.DataArray([[1, 2]], dims=("a", "b"), coords={"b": [3, 4]})
    with contextlib.suppress(ImportError):
        import omegaconf

        rows["omegaconf"] = lambda: omegaconf.OmegaConf.create({"a": {"b": "${c}"}, "c": 1})
    with contextlib.suppress(ImportError):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        rows["optuna-trial"] = lambda: optuna.trial.create_trial(value=1.0)
    with contextlib.suppress(ImportError):
        import torchmetrics

        rows["torchmetrics"] = lambda: torchmetrics.MeanMetric()
    return rows


def _refused() -> dict[str, tuple[Make, str]]:
    """What no process can hand to another → the path to the part in it."""
    return {
        "file": (lambda: open(__file__, encoding="utf-8"), ""),
        "file-inside": (lambda: {"log": {"handle": open(__file__, "rb")}}, "['log']['handle']"),
        "lock": (threading.Lock, ""),
        "lock-attribute": (_with_lock, ".guard"),
        "event": (lambda: [threading.Event()], "[0]"),
        "thread": (lambda: threading.Thread(target=print), ""),
        "thread-local": (threading.local, ""),
        "socket": (socket.socket, ""),
        "generator": (lambda: (number for number in range(3)), ""),
        "coroutine": (_coroutine, ""),
        "weakref": (lambda: weakref.ref(Plain), ""),
        "memoryview": (lambda: memoryview(b"abc"), ""),
        "frame": (lambda: sys._getframe(), ""),
        "process": (lambda: subprocess.Popen(["true"]), ""),
        "module-code": (lambda: _cycle.__code__.co_positions(), ""),
        "tuple-of-generator": (lambda: (1, [iter(lambda: 1, 2), (n for n in [1])]), "[1][1]"),
        "scandir": (lambda: __import__("os").scandir("."), ""),
        "sqlite": (lambda: __import__("sqlite3").connect(":memory:"), ""),
        "raises": (_Raises, ""),
    }


class _Raises:
    def __reduce__(self) -> Any:
        raise RuntimeError("no handle leaves this process")


def _with_lock() -> Any:
    value = Plain()
    value.guard = threading.Lock()  # type: ignore[attr-defined]
    return value


def _coroutine() -> Any:
    async def nothing() -> None:
        """Never awaited."""

    made = nothing()
    weakref.finalize(made, lambda: None)
    made.close()
    return made


FAMILIES: dict[str, Callable[[], dict[str, Make]]] = {
    "python": _builtins,
    "numpy": _numpy,
    "pandas": _pandas,
    "frames": _frames,
    "scipy": _scipy,
    "sklearn": _sklearn,
    "torch": _torch,
    "figures": _figures,
    "records": _records,
    "optional": _optional,
}
REFUSED = _refused()


@functools.cache
def zoo() -> dict[str, Make]:
    """Every object of the libraries that are here, by "family/name"."""
    made: dict[str, Make] = {}
    for family, rows in FAMILIES.items():
        with contextlib.suppress(ImportError):
            made.update({f"{family}/{name}": make for name, make in rows().items()})
    return made


def made(name: str) -> Any:
    """An object, of which no library is imported but its own."""
    family, _, row = name.partition("/")
    return FAMILIES[family]()[row]()


# Comparing: what has no equality of its own is compared by what it is made of.


def difference(one: Any, other: Any, path: str = "", seen: set[tuple[int, int]] | None = None) -> str:
    """Where two values differ; empty for equal ones of the same types."""
    seen = set() if seen is None else seen
    if (id(one), id(other)) in seen or one is other:
        return ""
    seen.add((id(one), id(other)))
    if type(one) is not type(other) and f"{type(one)}" != f"{type(other)}":
        return f"{path}: {type(one)} and {type(other)}"
    by_value = _EQUAL.get(type(one).__module__.partition(".")[0])
    if by_value is not None:
        verdict = by_value(one, other)
        if verdict is not None:
            return "" if verdict else f"{path}: {one!r:.200} and {other!r:.200}"
    if isinstance(one, float):
        same = (
            math.isnan(other) if math.isnan(one) else one == other and math.copysign(1, one) == math.copysign(1, other)
        )
        return "" if same else f"{path}: {one!r} and {other!r}"
    if isinstance(one, dict) and type(one) is dict:
        if list(map(repr, one)) != list(map(repr, other)):
            return f"{path}: keys {list(one)!r:.200} and {list(other)!r:.200}"
        return next(
            filter(None, (difference(a, b, f"{path}[{k!r}]", seen) for (k, a), b in zip(one.items(), other.values()))),
            "",
        )
    if type(one) in (list, tuple):
        if len(one) != len(other):
            return f"{path}: {len(one)} and {len(other)} items"
        return next(
            filter(None, (difference(a, b, f"{path}[{n}]", seen) for n, (a, b) in enumerate(zip(one, other)))), ""
        )
    if isinstance(one, (str, bytes, int, set, frozenset, type, types.BuiltinFunctionType, re.Pattern)):
        return "" if one == other else f"{path}: {one!r:.200} and {other!r:.200}"
    if isinstance(one, types.FunctionType):
        return "" if one.__code__.co_code == other.__code__.co_code else f"{path}: other code"
    reduced = [_reduced(value) for value in (one, other)]
    if isinstance(reduced[0], str) or reduced[0] is None:
        return "" if reduced[0] == reduced[1] and reduced[0] is not None else f"{path}: {one!r:.200} and {other!r:.200}"
    return difference(reduced[0], reduced[1], f"{path}<{type(one).__name__}>", seen)


def _reduced(value: Any) -> Any:
    if isinstance(value, decimal.Decimal):
        return value.as_tuple()
    reducer = copyreg.dispatch_table.get(type(value))
    try:
        parts = reducer(value) if reducer else value.__reduce_ex__(4)
    except Exception:  # only cloudpickle takes it
        parts = vars(value)
    if isinstance(parts, tuple):
        # Iterators are used up by looking at them.
        return tuple(list(part) if n in (3, 4) and part is not None else part for n, part in enumerate(parts))
    return parts


def _numpy_equal(one: Any, other: Any) -> bool | None:
    import numpy as np

    if isinstance(one, np.ndarray) and not isinstance(one, np.ma.MaskedArray) and one.dtype != object:
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        return bool((one == other).all()) if one.dtype.kind == "T" else one.tobytes() == other.tobytes()
    if isinstance(one, np.longdouble):
        return bool(one == other)  # ten of its sixteen bytes count
    if isinstance(one, np.generic):
        return bool(one.dtype == other.dtype and one.tobytes() == other.tobytes())
    if isinstance(one, np.ma.MaskedArray):
        return bool((one.data == other.data).all() and (one.mask == other.mask).all())
    return None


def _pandas_equal(one: Any, other: Any) -> bool | None:
    import pandas as pd

    checks = {
        pd.DataFrame: pd.testing.assert_frame_equal,
        pd.Series: pd.testing.assert_series_equal,
        pd.Index: pd.testing.assert_index_equal,
    }
    for kind, check in checks.items():
        if isinstance(one, kind):
            check(one, other)
            return bool(getattr(one, "attrs", {}) == getattr(other, "attrs", {}))
    if one is pd.NA or one is pd.NaT:
        return one is other
    return (
        None
        if "Block" in type(one).__name__
        else bool((one == other) if not hasattr(one, "equals") else one.equals(other))
    )


def _torch_equal(one: Any, other: Any) -> bool | None:
    import torch

    if isinstance(one, torch.Tensor):
        if one.is_sparse:
            one, other = one.to_dense(), other.to_dense()
        fields = ("dtype", "requires_grad", "shape")
        return all(getattr(one, f) == getattr(other, f) for f in fields) and bool(torch.equal(one, other))
    if isinstance(one, torch.Generator):
        return bool(torch.equal(one.get_state(), other.get_state()))
    if isinstance(one, (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, str)):
        return bool(one == other)
    if isinstance(one, torch.nn.Module):
        return repr(one) == repr(other) and difference(dict(one.state_dict()), dict(other.state_dict())) == ""
    return None


def _polars_equal(one: Any, other: Any) -> bool | None:
    if hasattr(one, "collect"):
        return bool(one.collect().equals(other.collect()))
    return bool(one.meta.eq(other)) if hasattr(one, "meta") else _equals(one, other)


def _by(function: Callable[[Any], Any]) -> Callable[[Any, Any], bool | None]:
    return lambda one, other: bool(difference(function(one), function(other)) == "")


def _equals(one: Any, other: Any) -> bool | None:
    if hasattr(one, "equals"):
        return bool(one.equals(other))
    return repr(one) == repr(other)


_EQUAL: dict[str, Callable[[Any, Any], bool | None]] = {
    "numpy": _numpy_equal,
    "pandas": _pandas_equal,
    "torch": _torch_equal,
    "polars": _polars_equal,
    "pyarrow": _equals,
    "plotly": lambda one, other: bool(one == other),
    "altair": _by(lambda chart: chart.to_dict()),
    "PIL": _by(lambda image: (image.mode, image.size, image.tobytes())),
    "google": _by(lambda message: message.SerializeToString()),
    "sympy": lambda one, other: bool(one == other),
    "pydantic": lambda one, other: bool(one == other),
    "networkx": _by(lambda graph: (sorted(graph.nodes), sorted(graph.edges))),
    "matplotlib": _by(lambda made: [line.get_ydata() for axes in getattr(made, "axes", ()) for line in axes.lines]),
    "_io": _by(lambda file: file.getvalue()),
    "random": _by(lambda generator: generator.getstate()),
    "builtins": lambda one, other: repr(one) == repr(other) if type(one) in _BY_REPR else None,
    "datetime": lambda one, other: repr(one) == repr(other),
    "zoneinfo": lambda one, other: repr(one) == repr(other),
    "jaxlib": lambda one, other: bool((one == other).all()) and one.dtype == other.dtype,
    "sklearn": lambda one, other: difference(dict(one), dict(other)) == "" if isinstance(one, dict) else None,
    "xgboost": _by(lambda model: bytes(getattr(model, "get_booster", lambda: model)().save_raw())),
    "lightgbm": _by(lambda model: getattr(model, "booster_", model).model_to_string()),
    "transformers": lambda one, other: None if hasattr(one, "state_dict") else repr(one) == repr(other),
    "datasets": lambda one, other: repr(one) == repr(other),
    "tokenizers": _by(lambda tokenizer: tokenizer.to_str()),
    "tensorflow": lambda one, other: repr(one) == repr(other),
    "xarray": lambda one, other: bool(one.identical(other)),
    "omegaconf": lambda one, other: bool(one == other),
    "optuna": _by(lambda trial: (trial.number, trial.values, trial.params)),
}
_BY_REPR = (
    complex,
    range,
    slice,
    bytearray,
    type(...),
    type(NotImplemented),
    KeyError,
    ValueError,
    types.BuiltinFunctionType,
)
