"""Names that only a script's main block sets are not there where steps run: a step that reads one is refused."""

from __future__ import annotations

from typing import Any

import pytest

SCRIPT = """
import sys
from stoker import pipeline, step

{above}

@step
def train() -> object:
    return {read}

@pipeline
def p():
    train()

{below}
if __name__ == "__main__":
    {main}
    run = p()
    print("got", run.steps["train"].load())
"""

REFUSED = {
    "another value": ("RATE = 1", "RATE", "", "RATE = 5", "RATE (script.py:LINE)"),
    "no value elsewhere": ("", "RATE", "", "RATE = 5", "RATE (script.py:LINE)"),
    "a value that is computed elsewhere": ("RATE = len(sys.argv)", "RATE", "", "RATE = 5", "RATE (script.py:LINE)"),
    "a function that the step calls": ("def f():\n    return RATE", "f()", "", "RATE = 5", "RATE (script.py:LINE)"),
    "a method of a class": (
        *("class Model:\n    def f(self):\n        return RATE", "Model().f()", "", "RATE = 5"),
        "RATE (script.py:LINE)",
    ),
    "an import": ("", "math.pi", "", "import math", "math (script.py:LINE)"),
    "a loop": ("", "RATE", "", "for RATE in range(3): pass", "RATE (script.py:LINE)"),
    "a function that only the block calls": (
        *("RATE = None", "RATE", "def main():\n    global RATE\n    RATE = 5", "main()"),
        "RATE (script.py, main())",
    ),
    "a function of such a function": (
        *("", "RATE", "def inner():\n    global RATE\n    RATE = 5\ndef main():\n    inner()", "main()"),
        "RATE (script.py, inner())",
    ),
}
ALLOWED = {
    "the same value": ("RATE = 5", "RATE", "", "RATE = 5", "5"),
    "a name of the step's own": ("RATE = 1", "[RATE for RATE in (7,)][0]", "", "RATE = 5", "7"),
    "a name that no step reads": ("RATE = 1", "RATE", "", "rate = 5", "1"),
    "a module that is imported above, too": ("import math", "math.floor(2.5)", "", "import math", "2"),
    "a function that the module calls itself": (
        *("def set_rate():\n    global RATE\n    RATE = 3\nset_rate()", "RATE", "", "set_rate()", "3"),
    ),
    "what a step sets for itself": (
        *("CACHE = None\ndef f():\n    global CACHE\n    CACHE = CACHE or 4\n    return CACHE", "f()", "", "pass", "4"),
    ),
    "a class attribute": ("class C:\n    RATE = 2", "C.RATE", "", "RATE = 5", "2"),
}


def script(above: str, read: str, below: str, main: str) -> str:
    """A program whose step returns what it reads, and whose main block begins with `main`."""
    return SCRIPT.format(above=above, read=read, below=below, main=main)


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_before_anything_runs(project: Any, case: str) -> None:
    *parts, told = REFUSED[case]
    text = script(*parts)
    line = 1 + text[: text.index(f"\n    {parts[3]}\n    run = p()") + 1].lstrip("\n").count("\n")
    said = project.write({"script.py": text}).run("script.py", code=3).stderr
    assert f"'train': reads {told.replace('LINE', str(line))}, which the script's main block sets" in said
    assert "STK256" in said and "argument of the step" in said


@pytest.mark.parametrize("case", ALLOWED)
def test_what_steps_find_as_it_is_runs(project: Any, case: str) -> None:
    *parts, value = ALLOWED[case]
    assert f"got {value}" in project.write({"script.py": script(*parts)}).run("script.py").stdout


def test_a_module_that_is_run_as_the_program_has_a_main_block_too(project: Any) -> None:
    project.write({"script.py": script("RATE = 1", "RATE", "", "RATE = 5")})
    assert "reads RATE (script.py:" in project.run("-m", "script", code=3).stderr


def test_in_the_drivers_own_process_and_in_a_dynamic_pipeline(project: Any) -> None:
    text = script("RATE = 1", "RATE", "", "RATE = 5")
    project.write({"script.py": text})
    assert "got 5" in project.run("script.py", "--debug").stdout, "there the block has run"
    project.write({"script.py": text.replace("@pipeline\n", "@pipeline(dynamic=True)\n")})
    assert "STK256" in project.run("script.py", code=None).stderr
