"""Values of Python's own types: exactly as they were, small ones inline, with errors that point at the trouble."""

from __future__ import annotations

import enum
import json
import math
import os
import pickle
import subprocess
import sys
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core import plugins
from stoker.core.artifact import INLINE_LIMIT, StoredArtifact, from_wire
from stoker.core.errors import MissingPackage, SerializationError, StoreError
from stoker.store import artifacts
from stoker.store.blobs import Blobs
from stoker.store.serializers import registry
from stoker.store.serializers.base import Stored


@attrs.define
class Point:
    x: int
    y: Any = None


class Pair(NamedTuple):
    left: int
    right: str


class Color(enum.IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


class Locked:
    def __init__(self) -> None:
        self.name = "locked"
        self.lock = threading.Lock()


class Slotted:
    __slots__ = ("fine", "handle")

    def __init__(self) -> None:
        self.fine = 1
        self.handle = threading.Lock()


class Raising:
    def __reduce__(self) -> Any:
        raise ZeroDivisionError("no state today")


class BadLoad:
    def __getstate__(self) -> Any:
        return {"x": 1}

    def __setstate__(self, state: Any) -> None:
        raise ValueError("from another age")


def round_trip(value: Any, blobs: Blobs) -> tuple[Any, StoredArtifact]:
    """The value as another process gets it: through the wire."""
    saved = artifacts.save(value, blobs)
    document = json.loads(json.dumps(saved.wire()))
    assert from_wire(document) == saved
    return artifacts.load(from_wire(document), blobs), saved


def same(left: Any, right: Any) -> bool:
    """Equal in type, order and every bit that a program can see."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return math.isnan(left) == math.isnan(right) and (math.isnan(left) or repr(left) == repr(right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


@pytest.mark.parametrize(
    ("value", "serializer"),
    [
        (0, "json"),
        (-(10**30), "json"),
        pytest.param(10**5000, "pickle", id="huge"),
        (True, "json"),
        (None, "json"),
        (0.1, "json"),
        (-0.0, "json"),
        (math.inf, "json"),
        (math.nan, "json"),
        (5e-324, "json"),
        ("", "str"),
        ("hällo\0\n", "str"),
        ("half \ud800", "pickle"),
        (b"\0\xff", "bytes"),
        (bytearray(b"x"), "pickle"),
        ([], "json"),
        ({}, "json"),
        ([1, [2.5, {"a": None, "": [True, False]}], "x"], "json"),
        ({"loss": math.nan, "épochs": [1, 2]}, "json"),
        (["\ud83d", "\ude00"], "pickle"),
        (["\ud83d\ude00"], "pickle"),
        ((1, 2), "pickle"),
        ([(1, 2)], "pickle"),
        ({1: 2}, "pickle"),
        ({"a": {2: 3}}, "pickle"),
        ({1, 2}, "pickle"),
        (Color.RED, "pickle"),
        ([Color.RED], "pickle"),
        (Text("x"), "pickle"),
        ({Text("x"): 1}, "pickle"),
        ([10**5000], "pickle"),
        (1 + 2j, "pickle"),
        (range(5), "pickle"),
        (Pair(1, "x"), "pickle"),
        (Point(1, [Point(2)]), "pickle"),
        (OrderedDict(a=1), "pickle"),
        (defaultdict(int, a=1), "pickle"),
        (int, "pickle"),
    ],
    ids=lambda value: value if value in ("json", "str", "bytes", "pickle") else "",
)
def test_a_value_comes_back_as_it_was(blobs: Blobs, value: Any, serializer: str) -> None:
    loaded, saved = round_trip(value, blobs)
    assert same(loaded, value)
    assert saved.serializer == serializer
    assert saved.type == f"{type(value).__module__}.{type(value).__qualname__}"
    assert saved.inline is not None
    assert saved.size == len(saved.inline)
    assert not Path(blobs.folder).exists(), "a small value makes no file"


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
anything = st.recursive(
    plain | st.binary() | st.complex_numbers(allow_nan=False),
    lambda inner: st.tuples(inner, inner) | st.lists(inner) | st.dictionaries(st.integers() | st.text(), inner),
    max_leaves=10,
)


@given(value=plain)
def test_plain_values_round_trip(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    loaded, _ = round_trip(value, Blobs(str(tmp_path_factory.getbasetemp() / "plain")))
    assert same(loaded, value)


@given(value=anything, limit=st.sampled_from([0, 10, INLINE_LIMIT]))
def test_any_values_round_trip(tmp_path_factory: pytest.TempPathFactory, value: Any, limit: int) -> None:
    blobs = Blobs(str(tmp_path_factory.getbasetemp() / "any"))
    saved = artifacts.save(value, blobs, inline_limit=limit)
    assert (saved.inline is None) == (saved.size > limit)
    assert same(artifacts.load(saved, blobs), value)


@pytest.mark.parametrize("value", ["x" * 10_000, b"y" * 10_000, list(range(10_000)), (1,) * 10_000])
def test_a_large_value_is_a_blob(blobs: Blobs, value: Any) -> None:
    loaded, saved = round_trip(value, blobs)
    assert loaded == value
    assert saved.inline is None
    assert list(blobs.digests()) == [saved.digest]
    assert artifacts.save(value, blobs) == saved, "equal values have equal digests"


def test_the_limit_is_the_largest_inline_value(blobs: Blobs) -> None:
    assert artifacts.save("x" * INLINE_LIMIT, blobs).inline is not None
    assert artifacts.save("x" * (INLINE_LIMIT + 1), blobs).inline is None
    assert artifacts.save(3, blobs, inline_limit=0).inline is None


def test_a_deep_value_is_pickled(blobs: Blobs) -> None:
    value: Any = []
    for _ in range(300):
        value = [value]
    loaded, saved = round_trip(value, blobs)
    assert saved.serializer == "pickle"
    assert loaded == value


def test_a_circle_is_pickled(blobs: Blobs) -> None:
    value: list[Any] = [1]
    value.append(value)
    loaded, _ = round_trip(value, blobs)
    assert loaded[1] is loaded


def test_what_pickle_cannot_say_is_saved_with_its_code(blobs: Blobs) -> None:
    factor = 3

    class Local:
        value = 7

    loaded, saved = round_trip({"f": lambda x: x * factor, "c": Local()}, blobs)
    assert saved.serializer == "cloudpickle"
    assert loaded["f"](2) == 6
    assert loaded["c"].value == 7


# What cannot be saved


@pytest.mark.parametrize(
    ("make", "path", "kind"),
    [
        (threading.Lock, None, "lock"),
        (lambda: {"model": Locked()}, "['model'].lock", "lock"),
        (lambda: [1, (2, Locked())], "[1][1].lock", "lock"),
        (Slotted, ".handle", "lock"),
        (lambda: {"gen": (x for x in ())}, "['gen']", "generator"),
        (lambda: Point(1, {"deep": [Raising()]}), ".y['deep'][0]", "Raising"),
        (lambda: {"f": sys.stdout.__class__ and open("/dev/null", "rb")}, "['f']", "BufferedReader"),  # noqa: SIM115
    ],
)
def test_the_message_points_at_what_cannot_be_saved(
    blobs: Blobs, make: Any, path: str | None, kind: str, recwarn: pytest.WarningsRecorder
) -> None:
    value = make()
    with pytest.raises(SerializationError) as caught:
        artifacts.save(value, blobs)
    if isinstance(value, dict) and "f" in value:
        value["f"].close()
    text = str(caught.value)
    assert kind in text
    if path:
        assert f"cannot be saved: {path} is a" in text
    assert ("keep " if kind in ("generator", "BufferedReader") else "leave it out") in caught.value.fix
    assert not list(blobs.digests())


def test_a_value_that_fails_after_megabytes_leaves_nothing(blobs: Blobs) -> None:
    with pytest.raises(SerializationError, match=r"\[1\]"):
        artifacts.save([b"x" * 3_000_000, threading.Lock()], blobs)
    assert not list(blobs.digests())
    assert not list(Path(blobs.folder, "tmp").iterdir())


def test_a_large_value_with_trouble_is_searched_only_so_far(blobs: Blobs) -> None:
    value: list[Any] = [{"a": 1} for _ in range(5000)]
    value.append(threading.Lock())
    with pytest.raises(SerializationError, match="list cannot be saved"):
        artifacts.save(value, blobs)


# What cannot be loaded


def test_a_value_whose_own_code_fails_is_explained(blobs: Blobs) -> None:
    saved = artifacts.save(BadLoad(), blobs)
    with pytest.raises(SerializationError, match="BadLoad cannot be loaded: ValueError: from another age"):
        artifacts.load(saved, blobs)


def test_a_missing_module_of_the_user_is_explained(blobs: Blobs, tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text("class Thing: pass\n")
    code = (
        "import sys, json; from stoker.store import artifacts; from stoker.store.blobs import Blobs\n"
        "import theirs; print(json.dumps(artifacts.save(theirs.Thing(), Blobs(sys.argv[1])).wire()))"
    )
    made = subprocess.run(
        [sys.executable, "-c", code, blobs.folder], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    with pytest.raises(SerializationError, match="no module 'theirs' here") as caught:
        artifacts.load(from_wire(json.loads(made.stdout)), blobs)
    assert "importable" in caught.value.fix


@pytest.mark.parametrize(
    ("serializer", "package", "distribution"),
    [
        ("numpy", "numpy", "numpy"),
        ("torch", "torch", "torch"),
        ("pandas", "pandas", "pandas"),
        ("pandas", "pyarrow", "pyarrow"),
        ("polars", "polars", "polars"),
        ("pyarrow", "pyarrow", "pyarrow"),
    ],
)
def test_a_missing_library_is_named(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch, serializer: str, package: str, distribution: str
) -> None:
    saved = StoredArtifact(digest=blobs.put(b"x"), serializer=serializer, type="some.Type", size=1)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackage, match=f"needs the package '{distribution}'") as caught:
        artifacts.load(saved, blobs)
    assert caught.value.fix == f"pip install {distribution}"


def test_a_pickle_of_a_missing_library_is_named(blobs: Blobs) -> None:
    data = pickle.dumps(Point(1), protocol=5).replace(__name__.encode(), b"x" * len(__name__))
    saved = StoredArtifact(
        digest=blobs.put(data),
        serializer="pickle",
        type="xgboost.core.Booster",
        size=len(data),
        meta={"package": "x" * len(__name__), "version": "1"},
    )
    with pytest.raises(MissingPackage, match="needs the package 'xxx"):
        artifacts.load(saved, blobs)


def test_another_version_is_named(blobs: Blobs) -> None:
    saved = artifacts.save(BadLoad(), blobs)
    other = attrs.evolve(saved, meta={"package": "attrs", "version": "0.0.1"})
    pytest.importorskip("attrs")
    here = getattr(sys.modules["attrs"], "__version__", None)
    with pytest.raises(SerializationError) as caught:
        artifacts.load(other, blobs)
    assert ("saved with attrs 0.0.1" in str(caught.value)) == (here is not None)


def test_a_missing_blob_stays_a_store_error(blobs: Blobs) -> None:
    for serializer in ("json", "pickle", "numpy", "list"):
        with pytest.raises(StoreError, match="f" * 64):
            artifacts.load(StoredArtifact(digest="f" * 64, serializer=serializer, type="x", size=1), blobs)


def test_an_unknown_serializer_is_explained(blobs: Blobs) -> None:
    with pytest.raises(SerializationError, match="no serializer 'numpi' here, did you mean 'numpy'"):
        artifacts.load(StoredArtifact(digest="f" * 64, serializer="numpi", type="x", size=1), blobs)


# Lists of artifacts


def test_elements_are_artifacts_of_their_own(blobs: Blobs) -> None:
    values = [1, "two", b"3" * 10_000, (4,), [5]]
    whole = artifacts.save_split(iter(values), blobs)
    assert (whole.serializer, whole.meta) == ("list", {"count": 5})
    parts = artifacts.items(from_wire(json.loads(json.dumps(whole.wire()))), blobs)
    assert [part.serializer for part in parts] == ["json", "str", "bytes", "pickle", "json"]
    assert [artifacts.load(part, blobs) for part in parts] == values
    assert artifacts.load(whole, blobs) == values
    assert artifacts.gather(parts, blobs) == whole


def test_a_list_of_lists_nests(blobs: Blobs) -> None:
    inner = [artifacts.save_split(range(count), blobs) for count in (0, 3)]
    assert artifacts.load(artifacts.gather(inner, blobs), blobs) == [[], [0, 1, 2]]


def test_a_list_saved_whole_has_elements_too(blobs: Blobs) -> None:
    whole = artifacts.save([1, [2], "3"], blobs)
    assert [artifacts.load(part, blobs) for part in artifacts.items(whole, blobs)] == [1, [2], "3"]


@pytest.mark.parametrize("value", [{"a": 1}, (1, 2), "text", 3])
def test_what_is_no_list_has_no_elements(blobs: Blobs, value: Any) -> None:
    with pytest.raises(SerializationError, match="not a list of elements"):
        artifacts.items(artifacts.save(value, blobs), blobs)


@pytest.mark.parametrize("value", ["text", b"bytes", {"a": 1}, 3, None])
def test_what_is_no_list_cannot_be_split(blobs: Blobs, value: Any) -> None:
    with pytest.raises(SerializationError, match="a fan-out needs a list of elements"):
        artifacts.save_split(value, blobs)


# Serializers of other people


class Shouting:
    name = "shouting"

    def fits(self, value: Point) -> bool:
        return value.y == "loud"

    def save(self, value: Point, file: BinaryIO) -> Mapping[str, Any]:
        file.write(b"!" * value.x)
        return {"volume": value.x}

    def load(self, stored: Stored) -> Point:
        with stored.open() as file:
            assert stored.path() is None or len(file.read()) == stored.artifact.size
        return Point(stored.meta["volume"], "loud")


@pytest.fixture
def _clean_registry() -> Iterator[None]:
    tables: list[dict[Any, Any]] = [
        registry._registered,
        registry._loaded,
        registry._choices,
        registry._offers,
    ]
    before = [dict(table) for table in tables]
    registry._offers.clear()
    yield
    for table, content in zip(tables, before):
        table.clear()
        table.update(content)


@pytest.mark.usefixtures("_clean_registry")
@pytest.mark.parametrize("kind", [Point, f"{__name__}.Point"])
def test_a_registered_serializer_keeps_its_type(blobs: Blobs, kind: type | str) -> None:
    artifacts.register(kind, Shouting())
    for size in (3, 100_000):
        loaded, saved = round_trip(Point(size, "loud"), blobs)
        assert loaded == Point(size, "loud")
        meta = {"volume": size, "code": [f"{__name__}:Point"]}
        assert (saved.serializer, saved.meta, saved.size) == ("shouting", meta, size)
    assert artifacts.save(Point(3, "quiet"), blobs).serializer == "pickle"


@pytest.fixture
def shapes(tmp_path: Path, request: pytest.FixtureRequest) -> list[str]:
    """Where a distribution lies that brings a type and its serializer, as pip installs it from a wheel or editable."""
    site = tmp_path / "site-packages"
    code = site if request.param == "wheel" else tmp_path / "checkout" / "src"
    info = site / "shapes-1.0.dist-info"
    for folder in (info, code / "shapes"):
        folder.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shapes\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[stoker.serializers]\nshapes.Square = shapes.keep:SQUARE\n")
    (code / "shapes" / "__init__.py").write_text(
        "class Square:\n    def __init__(self, side): self.side = side\n\nclass Circle(dict): pass\n"
    )
    (code / "shapes" / "keep.py").write_text(
        "from shapes import Square\n\n"
        "class Keeper:\n"
        "    name = 'square'\n"
        "    def fits(self, value): return True\n"
        "    def save(self, value, file): return {'side': value.side}\n"
        "    def load(self, stored): return Square(stored.meta['side'])\n\n"
        "SQUARE = Keeper()\n"
    )
    return [str(site), str(code)]


@pytest.mark.parametrize("shapes", ["wheel", "editable"], indirect=True)
def test_an_entry_point_serves_a_type_however_it_is_installed(shapes: list[str], blobs: Blobs) -> None:
    save = (
        "import json, shapes, sys; from stoker.store import artifacts; from stoker.store.blobs import Blobs\n"
        "saved = [artifacts.save(value, Blobs(sys.argv[1])) for value in (shapes.Square(3), shapes.Circle(r=1))]\n"
        "print(json.dumps([saved[0].wire(), *(one.serializer for one in saved)]))"
    )
    load = (
        "import json, sys; from stoker.store import artifacts; from stoker.store.blobs import Blobs\n"
        "from stoker.core.artifact import from_wire\n"
        "print(artifacts.load(from_wire(json.loads(sys.argv[2])), Blobs(sys.argv[1])).side)"
    )

    def run(code: str, *arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(shapes)}
        command = [sys.executable, "-c", code, blobs.uri, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout

    square, *names = json.loads(run(save))
    assert names == ["square", "pickle"]
    # Another process has only the serializer's name.
    assert run(load, json.dumps(square)) == "3\n"


@pytest.mark.usefixtures("_clean_registry")
def test_entry_points_are_asked_for_only_where_nothing_of_ours_fits(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Entry:
        name = f"{__name__}.Point"

        def load(self) -> Any:
            return Shouting()

    asked: list[str] = []
    monkeypatch.setattr(plugins, "entry_points", lambda group: asked.append(group) or (Entry(),))
    for value in (1, "x", [1, {2}], {"a": b""}, range(3), OrderedDict(), Decimal("1.5")):
        artifacts.save(value, blobs)
    assert asked == [], "a type of Python's own costs no scan"
    saved = artifacts.save(Point(2, "loud"), blobs)
    assert saved.serializer == "shouting"
    assert set(asked) == {"stoker.serializers"}
    asked.clear()
    assert artifacts.save(Point(3, "loud"), blobs).serializer == "shouting"
    assert artifacts.save(Point(3, "quiet"), blobs).serializer == "pickle"
    assert asked == [], "what is known of a type is kept"


def test_saving_imports_nothing_heavy() -> None:
    code = (
        "import sys, tempfile; from stoker.store import artifacts; from stoker.store.blobs import Blobs\n"
        "blobs = Blobs(tempfile.mkdtemp())\n"
        "for value in (1, 'x', b'x' * 9999, [1, (2, 3)], {'a': {1, 2}}, range(3)):\n"
        "    artifacts.load(artifacts.save(value, blobs), blobs)\n"
        "print([name for name in ('numpy', 'torch', 'pandas', 'polars', 'pyarrow', 'fsspec', 'cloudpickle',"
        " 'importlib.metadata', 'sqlite3') if name in sys.modules])"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout.strip() == "[]"
