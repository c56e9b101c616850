"""An exception that the user's code raised is theirs, however they call it; a crash is what no user code raised."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest

from stoker.core.usercode import replaced_functions

STEP = """
    import json, os
    from stoker import pipeline, step

    @step
    def a(x: int = 1) -> int:
        return x
"""
MAIN = """
    if __name__ == "__main__":
        p()
"""
HOSTILE = """
    class Hostile(Exception):
        def __str__(self):
            raise RuntimeError("no text")
"""
BODIES = {
    "variable": ("os.environ['HF_TOKEN']", "KeyError: 'HF_TOKEN'"),
    "raised": ("raise ValueError('no data')", "ValueError: no data"),
    "library": ("json.loads('{')", "JSONDecodeError: Expecting property name"),
    "assertion": ("assert a is None, 'what?'", "AssertionError: what?"),
    "hostile": ("raise Hostile()", "<exception str() failed>"),
}
CALLS = [["stoker", "run", "s.py"], ["stoker", "plan", "s.py"], ["python", "s.py"]]


def called(project: Any, words: list[str], code: int) -> Any:
    return project.stoker(*words[1:], code=code) if words[0] == "stoker" else project.run(*words[1:], code=code)


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
@pytest.mark.parametrize("kind", BODIES)
def test_what_a_pipelines_body_raises(kind: str, call: list[str], project: Any) -> None:
    line, message = BODIES[kind]
    body = f"\n    @pipeline\n    def p():\n        a()\n        {line}\n"
    project.write({"s.py": STEP + HOSTILE + body + MAIN})
    said = called(project, call, 2).stderr
    assert message in said
    assert line in said and said.lstrip().startswith("Traceback"), "their lines, from their first one"
    assert "/stoker/" not in said, "and none of Stoker's"
    assert "stoker-crash" not in said


@pytest.mark.parametrize("call", [CALLS[0], CALLS[2]], ids=" ".join)
def test_what_a_dynamic_body_raises(call: list[str], project: Any) -> None:
    body = "\n    @pipeline(dynamic=True)\n    def p():\n        raise ValueError(f'bad {a()}')\n"
    project.write({"s.py": STEP + body + MAIN})
    said = called(project, call, 2).stderr
    assert "ValueError: bad 1" in said and "/stoker/" not in said
    (run,) = project.client().runs()
    assert run.status == "failed"


@pytest.mark.parametrize("words", [["stoker", "run"], ["stoker", "plan"]], ids=" ".join)
@pytest.mark.parametrize(
    ("text", "message"),
    [("import jsn", "No module named 'jsn'"), ("def f(:", "SyntaxError"), ("1 / 0", "ZeroDivisionError")],
)
def test_what_a_file_raises_when_it_is_loaded(words: list[str], text: str, message: str, project: Any) -> None:
    project.write({"s.py": text})
    said = called(project, [*words, "s.py"], 2).stderr
    assert message in said and "stoker-crash" not in said and "/stoker/" not in said


def test_what_a_script_does_by_itself_ends_as_it_always_does(project: Any) -> None:
    project.write({"s.py": STEP + "\n    @pipeline\n    def p():\n        a()\n\n    p()\n    1 / 0\n"})
    assert "ZeroDivisionError" in project.run("s.py", code=1).stderr


def test_a_defect_of_stokers_is_a_crash(project: Any) -> None:
    broken = "\n    import stoker.run.driver\n    stoker.run.driver.view_of = lambda **options: options['no']\n"
    inside = "\n    import stoker.run.driver\n    stoker.run.driver.view_of = len\n"
    body = "\n    @pipeline\n    def p():\n        a()\n"
    project.write({"s.py": STEP + body + inside + MAIN, "theirs.py": STEP + body + broken + MAIN})
    said = project.stoker("run", "s.py", code=4).stderr
    assert "inside Stoker" in said and "stoker-crash" in said
    project.run("s.py", code=4)
    assert "KeyError: 'no'" in project.stoker("run", "theirs.py", code=2).stderr


def test_whose_functions_replace_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled extension of Cython's puts functions of its own into `inspect`: they are nobody's mistake."""
    made: dict[str, Any] = {"__name__": "inspect"}
    exec("def cy_isgenerator(value): return False", made)
    monkeypatch.setattr(inspect, "isgenerator", made["cy_isgenerator"])
    assert not [text for text in replaced_functions() if text.startswith("inspect.")]
    monkeypatch.setattr(json, "dumps", lambda value: "{}")
    assert [text for text in replaced_functions() if text.startswith("json.dumps is <lambda> (test_whose_error.py:")]
