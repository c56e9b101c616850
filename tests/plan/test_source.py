"""Where a worker finds a step's function: in a script, a module, a package, a notebook; and what it could not find."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import pickle
import subprocess
import sys
import types
from pathlib import Path
from typing import Any, Callable

import pytest

from stoker import pipeline, step
from stoker.core.errors import SourceError
from stoker.core.usercode import script_module
from stoker.plan.source import locate, pickled

FILE = """
    import json
    import sys
    from dataclasses import dataclass
    from stoker import step
    from stoker.plan.digest import read_function_code
    from stoker.plan.source import locate

    @step
    def train(x: int) -> int:
        return x

    if __name__ == "__main__":
        import attrs
        code = read_function_code(train.function).digest
        where = attrs.asdict(locate(train.function, "here"), filter=lambda field, value: field.name != "caller")
        print(json.dumps({**where, "code": code}))
"""


@step
def train(x: int) -> int:
    """A step in a module."""
    return x


def told(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@step
@told
def below(x: int) -> int:
    return x


@told
@step
def above(x: int) -> int:
    return x


@pipeline
def flow() -> None:
    train(1)


def plain() -> None: ...


def replaced() -> None: ...


first = replaced


def replaced() -> None: ...  # type: ignore[no-redef]


gone = plain
renamed = train.with_options(retry=2)


def run(project: Any, *argv: str, **options: Any) -> dict[str, Any]:
    return json.loads(project.command([sys.executable, *argv], **options).stdout)  # type: ignore[no-any-return]


def test_a_function_of_a_module() -> None:
    source = locate(train.function, "here")
    assert (source.kind, source.qualname, source.path) == ("module", "train", os.path.abspath(__file__))
    assert source.module == __name__
    expected = Path(__file__).parents[__name__.count(".")]
    assert source.root == str(expected)


@pytest.mark.parametrize(
    "found", [train, renamed, below, flow, plain], ids=["train", "renamed", "below", "flow", "plain"]
)
def test_what_stands_for_a_function_is_unwrapped(found: Any) -> None:
    assert locate(getattr(found, "function", found), "here") == locate(found, "here")


def test_a_decorator_above_a_step_keeps_the_step_findable() -> None:
    assert locate(above, "here").qualname == "above"


def test_builtins_need_no_folder() -> None:
    assert locate(print, "here").module == "builtins"
    assert locate(json.dumps, "here").root == os.path.dirname(os.path.dirname(json.__file__))


def test_a_lambda() -> None:
    with pytest.raises(SourceError, match=r"here: a lambda has no name.*\n  fix: define it with def at module level"):
        locate(lambda: None, "here")


def test_a_nested_function() -> None:
    def inner() -> None: ...

    words = "'inner' is defined inside 'test_a_nested_function', where a worker cannot find it"
    with pytest.raises(SourceError, match=words) as caught:
        locate(inner, "here")
    assert "hand over what it needs as parameters" in caught.value.fix


def test_a_function_whose_name_means_another() -> None:
    with pytest.raises(SourceError, match=r"'replaced' of module .* is another object by now") as caught:
        locate(first, "here")
    assert "give the two different names" in caught.value.fix


def test_a_function_that_was_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys.modules[__name__], "plain")
    with pytest.raises(SourceError, match="has no 'plain': a worker cannot find the function"):
        locate(gone, "here")


def test_a_module_that_is_none() -> None:
    module = types.ModuleType("by_hand")
    exec("def f(): pass", module.__dict__)
    with pytest.raises(SourceError, match="'f' is of module 'by_hand', which is not imported"):
        locate(module.f, "here")
    sys.modules["by_hand"] = module
    try:
        with pytest.raises(SourceError, match="module 'by_hand' was not imported from a file"):
            locate(module.f, "here")
    finally:
        del sys.modules["by_hand"]


def test_what_has_no_name() -> None:
    with pytest.raises(SourceError, match="partial has no name by which a worker could find it"):
        locate(functools.partial(plain), "here")


def test_a_file_that_a_tool_loaded_under_another_name(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text("def f(): pass\n")
    spec = importlib.util.spec_from_file_location("loaded_by_a_tool", tmp_path / "flow.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["loaded_by_a_tool"] = module
    try:
        spec.loader.exec_module(module)
        source = locate(module.f, "here")
    finally:
        del sys.modules["loaded_by_a_tool"]
    assert (source.kind, source.module, source.path) == ("script", "loaded_by_a_tool", str(tmp_path / "flow.py"))


def test_a_script(project: Any) -> None:
    project.write({"train.py": FILE, "my-train.py": FILE, "numbers.py": FILE})
    found = run(project, "train.py")
    assert found["kind"] == "script"
    assert found["module"] == "train"
    assert found["path"] == str(project.folder / "train.py")
    assert found["root"] == str(project.folder)
    assert run(project, "my-train.py")["module"] == "my_train"
    assert run(project, "numbers.py")["module"] == "script_numbers"


def test_python_m(project: Any) -> None:
    project.write({"pkg/__init__.py": "", "pkg/sub/__init__.py": "", "pkg/sub/train.py": FILE, "pkg/__main__.py": FILE})
    found = run(project, "-m", "pkg.sub.train")
    assert (found["kind"], found["module"], found["root"]) == ("module", "pkg.sub.train", str(project.folder))
    assert run(project, "-m", "pkg")["module"] == "pkg.__main__"


def test_a_folder_with_a_main(project: Any) -> None:
    project.write({"app/__main__.py": FILE})
    found = run(project, "app")
    assert (found["kind"], found["module"]) == ("script", "script_main")


def test_packages_with_and_without_an_init(project: Any) -> None:
    ask = """
        import json, attrs
        from stoker.plan.source import locate
        from {name} import f
        print(json.dumps(attrs.asdict(locate(f, "here"), filter=lambda field, value: field.name != "caller")))
    """
    project.write(
        {
            "pkg/__init__.py": "from .inner import f",
            "pkg/inner.py": "from .deep.other import f",
            "pkg/deep/other.py": "def f(): pass",
            "init/__init__.py": "def f(): pass",
            "one.py": ask.format(name="pkg"),
            "two.py": ask.format(name="init"),
        }
    )
    found = run(project, "one.py")
    assert (found["module"], found["root"]) == ("pkg.deep.other", str(project.folder))
    found = run(project, "two.py")
    assert (found["module"], found["root"]) == ("init", str(project.folder))


INTERACTIVE = """
from stoker import step
from stoker.plan.digest import read_function_code
from stoker.plan.source import locate, pickled
def make(n):
    @step
    def inner(x):
        return x + n
    return inner

inner = make(2)
print(locate(inner.function, "here").kind, locate((lambda: 0), "here").kind)
import pickle
print(pickle.loads(pickled(inner.function))(1), len(read_function_code(inner.function).digest))
"""


@pytest.mark.parametrize("how", ["-c", "-"])
def test_without_a_file_the_function_itself_travels(how: str, project: Any) -> None:
    if how == "-c":
        finished = project.command([sys.executable, "-c", INTERACTIVE])
    else:
        finished = project.command([sys.executable, "-"], input=INTERACTIVE)
    assert finished.stdout.splitlines() == ["pickled pickled", "3 64"]


def test_a_pickled_function_is_read_in_another_process(project: Any) -> None:
    define = """
import sys
from stoker import step
from stoker.plan.source import pickled
K = 4
@step
def helper(x): return x * K
@step
def inner(x): return helper(x) + 1
open("inner.pickle", "wb").write(pickled(inner))
"""
    project.command([sys.executable, "-c", define])
    read = "import pickle; print(pickle.load(open('inner.pickle', 'rb'))(2))"
    assert project.command([sys.executable, "-c", read]).stdout == "9\n"


def test_pickled_takes_a_step_or_its_function() -> None:
    assert pickle.loads(pickled(plain))() is None


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("train.py", "train"),
        ("/a/b/train.py", "train"),
        ("my-train.py", "my_train"),
        ("1.py", "script_1"),
        ("json.py", "script_json"),
        ("__main__.py", "script_main"),
        ("train", "train"),
        ("a.b.py", "a_b"),
    ],
)
def test_the_module_name_of_a_script(file: str, name: str) -> None:
    assert script_module(file) == name


def test_the_same_digest_as_a_script_and_as_a_module(project: Any) -> None:
    """Another hash seed in each: sets and dicts must not matter."""
    body = """
        import logging
        import json
        import re
        from dataclasses import dataclass, field
        from enum import Enum
        import attrs
        from stoker import step
        from stoker.plan.digest import read_function_code

        log = logging.getLogger(__name__)
        WORDS = {"a", "b", "c", "d"}
        NESTED = {"x": frozenset(WORDS), "y": [WORDS]}
        PATTERN = re.compile("x+")

        class Color(Enum):
            RED = "red"
            BLUE = "blue"

        @dataclass
        class Config:
            lr: float = 0.1
            tags: list = field(default_factory=list)

        @attrs.define
        class Model:
            config: Config = attrs.field(factory=Config)
            def fit(self): return helper(self.config.lr)

        MODEL = Model()
        TABLE = {"helper": lambda x: x + 1, Color.RED: Config}

        def helper(x):
            log.info("x")
            return x in {"p", "q", "r"} or x in WORDS or NESTED or PATTERN or TABLE

        @step
        def train(model: Model):
            return MODEL.fit() + model.fit() + Color.RED.value

        def main():
            print(read_function_code(train.function).digest)

        if __name__ == "__main__":
            main()
    """
    project.write({"train.py": body, "other.py": "import train; train.main()", "pkg/train.py": body})
    digests = set()
    for seed in ("0", "1", "2"):
        for argv in (["train.py"], ["other.py"], ["-m", "train"], ["-m", "pkg.train"]):
            finished = project.command([sys.executable, *argv], env={"PYTHONHASHSEED": seed})
            digests.add(finished.stdout)
    assert len(digests) == 1


def test_the_tests_run_subprocesses_with_this_stoker() -> None:
    found = subprocess.run(
        [sys.executable, "-c", "import stoker; print(stoker.__file__)"], capture_output=True, text=True, check=True
    )
    import stoker

    assert found.stdout.strip() == stoker.__file__
