"""Finding a step's function again in another process than the user's: here that is a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from stoker.core.protocol import FunctionSource
from stoker.worker import modules

CHECK = """
import sys
from stoker.core import request
from stoker.core.errors import SourceError
from stoker.core.protocol import FunctionSource
from stoker.worker import modules

def source(kind, module, qualname="one", **fields):
    return FunctionSource(kind=kind, module=module, qualname=qualname, **fields)

def found(*args, **fields):
    return modules.function_of(source(*args, **fields), lambda digest: b"")

def error(*args, **fields):
    try:
        found(*args, **fields)
    except BaseException as problem:
        return type(problem).__name__ + ": " + str(problem)
    return "none"
"""


def check(project: Any, text: str) -> str:
    project.write({"check.py": CHECK + text})
    return str(project.run("check.py").stdout)


def test_a_script_runs_once_under_its_own_name_and_is_main_to_pickles(project: Any) -> None:
    project.write(
        {
            "code/train.py": """
                import sys
                print("imported as", __name__)
                assert __name__ != "__main__"

                class Model: ...

                def one():
                    return 1
                """
        }
    )
    said = check(
        project,
        """
path = "code/train.py"
first = found("script", "train", path=path, root="code")
assert found("script", "train", path=path, root="code") is first and first() == 1
assert sys.modules["__main__"].Model is sys.modules["train"].Model
assert first.__module__ == "train"
assert request.WORKER is False
""",
    )
    assert said == "imported as train\n"


def test_an_import_ends_where_a_pipeline_is_called(project: Any) -> None:
    text = """
        from stoker import pipeline, step

        @step
        def one():
            return 1

        @pipeline
        def whole():
            one()

        try:
            whole()
        except Exception:
            print("swallowed")
        print("went on")

        @step
        def late():
            return 2
        """
    project.write({"bare.py": text, "pkg/__init__.py": "", "pkg/bare.py": text})
    said = check(
        project,
        """
assert found("script", "bare", path="bare.py")() == 1
assert found("module", "pkg.bare")() == 1
print(error("module", "pkg.bare", "late"))
""",
    )
    assert said.startswith("SourceError: pkg.bare has no 'late' here")
    assert "above the call of the pipeline" in said and "went on" not in said and "swallowed" not in said


def test_what_cannot_be_found_is_an_error_that_says_so(project: Any) -> None:
    project.write({"broken.py": "x = 1\nraise OSError('at import')\n", "odd.py": "one = 5\n"})
    said = check(
        project,
        """
for _ in range(2):
    print(error("module", "broken"))
print(error("module", "nowhere_to_be_found"))
print(error("module", "odd"))
print(error("script", "gone", path="gone.py"))
""",
    ).splitlines()
    assert said[0] == said[1] == "OSError: at import", "a failed import leaves nothing half made behind"
    assert said[2].startswith("ModuleNotFoundError")
    assert said[3] == "SourceError: 5 is not a function"
    assert said[4].startswith("SourceError: gone.py: the user's code cannot be read")


def test_a_module_is_found_below_its_root(project: Any) -> None:
    project.write({"src/deep/__init__.py": "", "src/deep/er.py": "class Of:\n    def one(): return 7\n"})
    said = check(project, "print(found('module', 'deep.er', 'Of.one', root='src')(), 'src' in sys.path)\n")
    assert said == "7 True\n"


def test_a_script_runs_as_it_is_now_not_as_it_was_compiled(tmp_path: Path) -> None:
    """Two edits in one second that keep the size look alike to Python's cache of compiled files."""
    path = tmp_path / "train.py"
    source = FunctionSource(kind="script", module="train_as_it_is", qualname="f", path=str(path), root=str(tmp_path))
    for number in (1, 2):
        path.write_text(f"def f():\n    return {number}\n")
        os.utime(path, (1_000_000_000, 1_000_000_000))
        sys.modules.pop("train_as_it_is", None)
        assert modules.function_of(source, lambda digest: b"")() == number
    assert not (tmp_path / "__pycache__").exists()
