"""What changes the digest of a step's code, and what must not: one line of a table for each."""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.plan.digest import read_function_code

BASE = '''
import functools
import math

import helpers
from helpers import Base, deep, scale
from stoker import step

LR = 0.1
TABLE = {"a": [1, 2], "b": {3, 4}}
unused = 1


class Model(Base):
    """A model."""

    rate = 0.5

    def __init__(self, size=3):
        self.size = size

    def fit(self, x):
        return x * self.rate + self.size + deep(x)

    @staticmethod
    def static(x):
        return x + 7

    @property
    def prop(self):
        return 8


def make(n):
    def inner(x):
        return x + n

    return inner


add = make(2)
part = functools.partial(scale, factor=3)


@functools.lru_cache
def cached(x):
    return x + 9


@step
def other(x):
    return x - 1


@step
def train(x: int, n: int = 3) -> float:
    """Train."""
    total = 0
    for i in range(n):
        if x in {"p", "q"} and i > 1:
            total += i
    try:
        total = Model().fit(x)
    except ValueError:
        total = [y + LR for y in range(3)]
    import lazy
    return (total, TABLE, scale(x), helpers.table["k"], add(x), part(x), cached(x), other(x), math.pi, lazy.value)
'''

HELPERS = """
import numbers_of_mine

table = {"k": 1, "l": 2}
not_used = 5


class Base:
    def shared(self):
        return 1


def scale(x, factor=2):
    return x * factor


def deep(x):
    return numbers_of_mine.deeper(x)


def never(x):
    return x
"""

NUMBERS = """
CONST = 4

def deeper(x):
    return x + CONST

def far(x):
    return x
"""

LAZY = """
import lazier
value = lazier.value
"""

LAZIER = '''
value = 1
def f():
    """Doc."""
    return 1
'''

FILES = {"flow": BASE, "helpers": HELPERS, "numbers_of_mine": NUMBERS, "lazy": LAZY, "lazier": LAZIER}

SAME: dict[str, tuple[str, str, str]] = {
    "a comment": ("flow", "    total = 0\n", "    # nothing yet\n    total = 0  # really\n"),
    "blank lines": ("flow", "    total = 0\n", "\n\n    total = 0\n\n"),
    "another docstring": ("flow", '    """Train."""', '    """Train\n\n    a model."""'),
    "no docstring": ("flow", '    """Train."""\n', ""),
    "no docstring of a class": ("flow", '    """A model."""\n\n', ""),
    "a wrapped call": ("flow", "range(n)", "range(\n        n,\n    )"),
    "a wrapped condition": (
        "flow",
        'x in {"p", "q"} and i > 1',
        '(\n            x in {"p", "q"}\n            and i > 1\n        )',
    ),
    "another quote": ("flow", '{"p", "q"}', "{'p', 'q'}"),
    "an annotation": ("flow", "x: int, n: int = 3) -> float", "x: str, n: int = 3) -> int"),
    "more lines above": ("flow", "LR = 0.1", "\n\n\nLR = 0.1"),
    "a constant that is not used": ("flow", "unused = 1", "unused = 2"),
    "a function that is not used": ("helpers", "def never(x):\n    return x", "def never(x):\n    return x + 1"),
    "a constant of a module that is not used": ("helpers", "not_used = 5", "not_used = 6"),
    "a comment in a helper": ("helpers", "    return x * factor", "    # more\n    return x * factor"),
    "a function next to a far helper": ("numbers_of_mine", "def far(x):\n    return x", "def far(x):\n    return 0"),
    "a comment in a module that is imported inside": ("lazy", "import lazier", "# why\nimport lazier"),
    "the order of a set": ("flow", '"b": {3, 4}', '"b": {4, 3}'),
    "a docstring of a nested module's function": ("lazier", '    """Doc."""\n', '    """Other."""\n'),
    "an option of the step": ("flow", "@step\ndef train", "@step(retry=3)\ndef train"),
}

DIFFERENT: dict[str, tuple[str, str, str]] = {
    "a number in the body": ("flow", "total = 0", "total = 1"),
    "an operator": ("flow", "i > 1", "i >= 1"),
    "what a try covers": (
        "flow",
        "        total = Model().fit(x)\n    except ValueError:",
        "        pass\n    except ValueError:",
    ),
    "which error is caught": ("flow", "except ValueError", "except TypeError"),
    "a default": ("flow", "n: int = 3", "n: int = 4"),
    "a parameter": ("flow", "n: int = 3)", "n: int = 3, m=1)"),
    "a constant": ("flow", "LR = 0.1", "LR = 0.2"),
    "the type of a constant": ("flow", "LR = 0.1", 'LR = "0.1"'),
    "a constant deep in a container": ("flow", '"b": {3, 4}', '"b": {3, 5}'),
    "a constant in a set in the body": ("flow", '{"p", "q"}', '{"p", "r"}'),
    "a method": ("flow", "return x * self.rate", "return x + self.rate"),
    "a method that is not called": ("flow", "return x + 7", "return x + 6"),
    "a property": ("flow", "return 8", "return 80"),
    "a class's constant": ("flow", "rate = 0.5", "rate = 0.6"),
    "a constructor's default": ("flow", "size=3", "size=4"),
    "a base class in another module": ("helpers", "return 1", "return 2"),
    "a closure": ("flow", "make(2)", "make(3)"),
    "a function with a closure": ("flow", "return x + n", "return x - n"),
    "an argument of a partial": ("flow", "factor=3", "factor=4"),
    "a decorated helper": ("flow", "return x + 9", "return x + 90"),
    "another step that is called": ("flow", "return x - 1", "return x - 2"),
    "a helper": ("helpers", "return x * factor", "return x / factor"),
    "a helper's default": ("helpers", "factor=2", "factor=5"),
    "a helper of a method of a class": ("numbers_of_mine", "return x + CONST", "return x - CONST"),
    "a constant of that helper": ("numbers_of_mine", "CONST = 4", "CONST = 5"),
    "an attribute of a module": ("helpers", '"k": 1', '"k": 11'),
    "a module that is imported inside": ("lazy", "value = lazier.value", "value = lazier.value + 1"),
    "a module that this one imports": ("lazier", "value = 1", "value = 2"),
}


def _write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Any]:
    """Digests of `flow.train` of some files, as a process that has just started would compute them."""
    made = 0

    def module(files: dict[str, str]) -> Any:
        nonlocal made
        made += 1
        folder = tmp_path / f"files{made}"
        _write(folder, files)
        for name in FILES:
            sys.modules.pop(name, None)
        sys.path[:] = [str(folder), *(entry for entry in sys.path if not entry.startswith(str(tmp_path)))]
        importlib.invalidate_caches()
        return importlib.import_module("flow")

    before = list(sys.path)
    yield module
    sys.path[:] = before
    for name in FILES:
        sys.modules.pop(name, None)


def _changed(change: tuple[str, str, str]) -> dict[str, str]:
    name, old, new = change
    assert FILES[name].count(old) == 1 or old == "return 1", f"{old!r} must stand in {name} once"
    return {**FILES, name: FILES[name].replace(old, new, 1)}


@pytest.mark.parametrize("change", SAME.values(), ids=SAME)
def test_the_same(change: tuple[str, str, str], fresh: Any) -> None:
    before = read_function_code(fresh(FILES).train.function).digest
    module = fresh(_changed(change))
    assert read_function_code(module.train.function).digest == before, {
        part.label for part in read_function_code(module.train).parts
    }


@pytest.mark.parametrize("change", DIFFERENT.values(), ids=DIFFERENT)
def test_different(change: tuple[str, str, str], fresh: Any) -> None:
    before = read_function_code(fresh(FILES).train.function).digest
    assert read_function_code(fresh(_changed(change)).train.function).digest != before


def test_reached_says_what_changed(fresh: Any) -> None:
    before = read_function_code(fresh(FILES).train).parts
    after = read_function_code(fresh(_changed(DIFFERENT["a constant of that helper"])).train).parts
    assert [part.label for part in before] == [part.label for part in after]
    different = [old.label for old, new in zip(before, after) if old.digest != new.digest]
    assert different == ["numbers_of_mine.deeper → CONST"]
    labels = [part.label for part in before]
    assert "flow.train → LR" in labels
    assert "import lazier" in labels
    assert labels[0] == "flow.train"


def test_a_step_and_its_function_have_one_digest(fresh: Any) -> None:
    module = fresh(FILES)
    assert read_function_code(module.train).digest == read_function_code(module.train.function).digest
    assert read_function_code(module.train).digest != read_function_code(module.other).digest


@pytest.fixture(autouse=True)
def _written() -> Iterator[None]:
    """A module of the user's own that is in no file, as a notebook's is."""
    sys.modules["written"] = types.ModuleType("written")
    yield
    del sys.modules["written"]


def _defined(text: str, name: str = "f", **names: Any) -> Any:
    scope: dict[str, Any] = {"__name__": "written", **names}
    exec(text, scope)
    return scope[name]


def digest(text: str, **names: Any) -> str:
    return read_function_code(_defined(text, **names)).digest


class Awkward:
    """Cannot be pickled, and answers to every name."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.stream = open(os.devnull)  # noqa: SIM115

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def close(self) -> None:
        self.stream.close()


def test_functions_that_call_each_other() -> None:
    text = "def f(x): return g(x)\ndef g(x): return f(x) + {}\n"
    assert digest(text.format(1)) == digest(text.format(1))
    assert digest(text.format(1)) != digest(text.format(2))


def test_a_recursive_closure_and_super() -> None:
    text = """
def make():
    def inner(x): return inner(x - 1) if x else {}
    return inner
class A:
    def __init__(self): super().__init__(); self.make = make
    def again(self): return A()
g = make()
def f(): return A(), g
"""
    assert digest(text.format(1)) == digest(text.format(1))
    assert digest(text.format(1)) != digest(text.format(2))


def test_closures_of_one_factory_are_told_apart() -> None:
    text = "def make(n):\n  return lambda x: x + n\na = make({})\nb = make({})\ndef f(): return a(1) - b(2)\n"
    assert digest(text.format(1, 2)) != digest(text.format(2, 1))


def test_values_of_every_kind() -> None:
    np = pytest.importorskip("numpy")
    text = "def f(): return VALUE"
    array = np.arange(6).reshape(2, 3)
    awkward, other = Awkward(0.1), Awkward(0.2)
    values: list[Any] = [
        1,
        1.0,
        True,
        None,
        "1",
        b"1",
        (1,),
        [1],
        {1},
        {1: 2},
        {2: 1},
        array,
        array.T,
        array.astype(float),
        np.float32(1),
        range(3),
        range(4),
        Path("a"),
        Path("b"),
        len,
        print,
        Awkward,
        np,
        np.sum,
        np.mean,
        awkward,
        other,
        lambda: 1,
        lambda: 2,
        os,
        sys,
        ...,
    ]
    digests = [digest(text, VALUE=value) for value in values]
    assert len(set(digests)) == len(values)
    assert digests == [digest(text, VALUE=value) for value in values]
    assert digest(text, VALUE=array) == digest(text, VALUE=array.copy())
    awkward.close()
    other.close()


def test_a_value_that_holds_itself() -> None:
    items: list[Any] = [1]
    items.append(items)
    holder = Awkward.__new__(Awkward)
    holder.__dict__["me"] = holder
    assert digest("def f(): return V", V=items) == digest("def f(): return V", V=items)
    assert digest("def f(): return V", V=holder) == digest("def f(): return V", V=holder)


def test_an_object_of_an_own_class_counts_with_its_class_and_state() -> None:
    text = """
class Model:
    def __init__(self): self.size = {}
    def fit(self): return {}
MODEL = Model()
def f(): return MODEL.fit()
"""
    base = digest(text.format(1, 2))
    assert base == digest(text.format(1, 2))
    assert len({base, digest(text.format(9, 2)), digest(text.format(1, 9))}) == 3


@pytest.mark.parametrize(
    "declaration",
    [
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n    x: int = {}\n",
        "from dataclasses import *\n@dataclass\nclass C:\n    x: list = field(default_factory=lambda: [{}])\n",
        "import attrs\n@attrs.define\nclass C:\n    x: int = {}\n",
        "import attrs\n@attrs.define\nclass C:\n    x: int = attrs.field(factory=lambda: {})\n",
        "import enum\nclass C(enum.Enum):\n    X = {}\n",
        "from typing import NamedTuple\nclass C(NamedTuple):\n    x: int = {}\n",
        "import functools\nclass C:\n    @functools.cached_property\n    def x(self): return {}\n",
        "import functools\nclass C:\n    @classmethod\n    def x(cls): return {}\n",
        "class C:\n    class D:\n        x = {}\n",
        "class M(type):\n    x = {}\nclass C(metaclass=M): pass\n",
        "import functools\n@functools.singledispatch\ndef C(x): return 0\n@C.register\ndef _(x: int): return {}\n",
        "import contextlib\n@contextlib.contextmanager\ndef C(): yield {}\n",
        "def D(x={}): return x\nC = [D]\n",
        "def D(*, x={}): return x\nC = {{'d': D}}\n",
    ],
)
def test_declarations(declaration: str) -> None:
    text = declaration + "def f(): return C\n"
    assert digest(text.format(1)) == digest(text.format(1))
    assert digest(text.format(1)) != digest(text.format(2))


def test_a_class_that_is_only_in_an_annotation() -> None:
    """Its methods are called on what the step is given, and pickles name classes without saying what they do."""
    text = "class Model:\n    def predict(self): return {}\ndef f(model: Model): return model.predict()\n"
    assert digest(text.format(1)) != digest(text.format(2))
    future = "from __future__ import annotations\n" + text
    assert digest(future.format(1)) != digest(future.format(2))


def test_a_method_named_like_a_function_does_not_reach_it() -> None:
    text = "def train(): return {}\ndef f(model): return model.train()\n"
    assert digest(text.format(1)) == digest(text.format(2))


def test_other_peoples_code_counts_by_its_package() -> None:
    np = pytest.importorskip("numpy")
    assert read_function_code(_defined("def f(): return np.sum", np=np)).packages == ("numpy",)
    assert read_function_code(_defined("def f():\n    import numpy.linalg")).packages == ("numpy",)
    assert read_function_code(_defined("def f(): return len(json)", json=os)).packages == ()
    assert digest("def f(): return s", s=np.sum) == digest("def f(): return s", s=np.sum)
    assert digest("def f(): return s", s=np.sum) != digest("def f(): return s", s=np.mean)


def test_where_a_file_lies_does_not_count(fresh: Any) -> None:
    text = {**FILES, "flow": FILES["flow"].replace("LR = 0.1", "LR = (__name__, __file__) and 0.1")}
    assert read_function_code(fresh(text).train).digest == read_function_code(fresh(text).train).digest


def test_relative_imports_inside_a_function(tmp_path: Path) -> None:
    digests = []
    before = list(sys.path)
    for number, value in enumerate((1, 1, 2)):
        folder = tmp_path / str(number)
        package = folder / "pkg_of_mine"
        (package / "sub").mkdir(parents=True)
        (package / "__init__.py").write_text("raise RuntimeError('nobody imports me for a digest')")
        (package / "sub" / "__init__.py").write_text("")
        (package / "near.py").write_text(f"from .sub import far\nx = {value}\n")
        (package / "sub" / "far.py").write_text("y = 1\n")
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
        function = _defined("def f():\n    from .near import x\n    return x\n", __package__="pkg_of_mine")
        digests.append(read_function_code(function).digest)
        assert "import pkg_of_mine.sub.far" in {part.label for part in read_function_code(function).parts}
        sys.path[:] = before
    assert "pkg_of_mine" not in sys.modules
    assert digests[0] == digests[1] != digests[2]


def test_a_module_that_does_not_exist_is_the_steps_own_problem() -> None:
    text = "def f():\n    import no_such_module_anywhere\n    from ... import x\n"
    assert digest(text) == digest(text)


def test_parts_say_where_their_source_is(fresh: Any) -> None:
    module = fresh(FILES)
    parts = {part.label: part for part in read_function_code(module.train).parts}
    lines = BASE.splitlines()

    def text(label: str) -> tuple[str, str, str]:
        part = parts[label]
        assert os.path.basename(part.file) == "flow.py"
        return part.kind, lines[part.first_line - 1], lines[part.last_line - 1]

    assert text("flow.train")[:2] == ("function", "@step")
    assert text("flow.train")[2].startswith("    return (total")
    assert text("flow.Model") == ("class", "class Model(Base):", "        return 8")
    value = parts["flow.train → LR"]
    assert (value.kind, value.file, value.first_line, value.last_line) == ("value", "", 0, 0)
    assert parts["import lazier"].kind == "module"
    assert parts["import lazier"].file.endswith("lazier.py")
    assert len({part.digest for part in parts.values()}) > 10
