"""Every change of `cases.py`: whether the step runs again or stays cached is what it must be."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.cache.cases import Case, cases

CASES = list(cases())


class Keys:
    """A process that computes keys under one hash seed."""

    def __init__(self, seed: int, *arguments: str) -> None:
        environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONDONTWRITEBYTECODE": "1"}
        program = Path(__file__).with_name("keys.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program), *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def inputs(self, case: Case, files: Mapping[str, str], folder: Path) -> Any:
        """What the step of a program is given."""
        return self._answer(case, files, folder, make=True)["inputs"] if case.makes else {}

    def key(self, case: Case, files: Mapping[str, str], folder: Path, inputs: Any) -> dict[str, Any]:
        """The key of a program's step."""
        return self._answer(case, files, folder, inputs=inputs)

    def _answer(self, case: Case, files: Mapping[str, str], folder: Path, **row: Any) -> dict[str, Any]:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert self._process.stdin is not None and self._process.stdout is not None
        row = {"folder": str(folder), "make": False, "split": "# split" in case.text, **row}
        self._process.stdin.write(json.dumps(row) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert "error" not in answer, f"{case.name}: {answer['error']}"
        return answer

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def processes() -> Iterator[dict[bool, tuple[Keys, Keys]]]:
    """Processes under two hash seeds, for programs without and with large libraries."""
    keys = {False: (Keys(0), Keys(1)), True: (Keys(0, "--libraries"), Keys(1, "--libraries"))}
    yield keys
    for pair in keys.values():
        for process in pair:
            process.close()


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_case(case: Case, processes: dict[bool, tuple[Keys, Keys]], tmp_path: Path) -> None:
    first, second = processes[case.heavy]
    old, new = case.files("before"), case.files("after")
    assert old != new, "the case changes nothing"
    inputs = first.inputs(case, old, tmp_path / "before")
    before = first.key(case, old, tmp_path / "before", inputs)
    remade = second.inputs(case, new, tmp_path / "after") if case.remade else inputs
    again = second.key(case, old, tmp_path / "again", inputs)
    after = second.key(case, new, tmp_path / "after", remade)
    assert again["key"] == before["key"], ("needless", before["of"], again["of"])
    got = "cached" if after["key"] == before["key"] else "runs"
    assert got == case.expected, ("stale" if got == "cached" else "needless", before["of"], after["of"])


EXTENSION = """
import own.{name} as extension
from own.{name} import {function}
def by_module(): return extension.{function}
def by_name(): return {function}
def inside():
    from own.{name} import {function} as function
    return function
def train(): return by_module(), by_name(), inside()
"""


@pytest.mark.parametrize("used", ["by_module()", "by_name()", "inside()"])
def test_an_extension_module_that_is_built_anew(
    used: str, processes: dict[bool, tuple[Keys, Keys]], tmp_path: Path
) -> None:
    name, function = "_psutil_linux", "linux_sysinfo"
    program = EXTENSION.format(name=name, function=function).replace("by_module(), by_name(), inside()", used)
    case = Case(name=f"extension: {used}", text=program, expected="runs")
    spec = importlib.util.find_spec(f"psutil.{name}")
    assert spec is not None and spec.origin is not None
    content = Path(spec.origin).read_bytes()
    keys = []
    for folder, built in (("a", content), ("b", content), ("c", content + b"\0")):
        module = tmp_path / folder / "own" / Path(spec.origin).name
        module.parent.mkdir(parents=True)
        module.write_bytes(built)
        keys.append(processes[False][0].key(case, {"flow.py": program}, tmp_path / folder, {})["key"])
    assert keys[0] == keys[1]
    assert keys[0] != keys[2]


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 250
    assert len({case.name for case in CASES}) == len(CASES)
