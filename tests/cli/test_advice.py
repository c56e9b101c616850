"""Advice that was followed: each mistake, what is said of it, and the same program when the advice is taken."""

from __future__ import annotations

import platform
from typing import Any

import pytest

FLOW = """
    import threading
    from pathlib import Path
    from stoker.flow import FlowSpec, IncludeFile, Parameter, current, step

    class F(FlowSpec):
        {member}

        @step
        def start(self):
            {line}
            self.next(self.end)

        @step
        def end(self):
            print("done")

    if __name__ == "__main__":
        F()
"""
LAUNCH = """
    from stoker import pipeline, step
    from stoker.config import Accelerate, DeepSpeed, Jax, ResourceSettings, Torchrun

    @step(launch={launch})
    def a() -> int:
        return 1

    @pipeline
    def p():
        a()
"""
FLOWS = {
    "a path as a file's name": (
        {"member": "data = IncludeFile('data/x.txt')"},
        "IncludeFile(\"data\", default='data/x.txt')",
        {"member": "data = IncludeFile(\"data\", default='data/x.txt')"},
    ),
    "bytes as a text": (
        {"member": "data = IncludeFile('data', default='raw.bin')"},
        "is_text=False",
        {"member": "data = IncludeFile('data', default='raw.bin', is_text=False)"},
    ),
    "an encoding that there is not": (
        {"member": "data = IncludeFile('data', default='data/x.txt', encoding='utf-9')"},
        'encoding="utf-8"',
        {"member": "data = IncludeFile('data', default='data/x.txt', encoding='utf-8')"},
    ),
    "an open file": (
        {"line": "self.log = open('data/x.txt')"},
        "keep the file's path as a pathlib.Path",
        {"line": "self.log = Path('data/x.txt')"},
    ),
    "a generator": (
        {"line": "self.rows = (n for n in range(3))"},
        "keep list(…) of it",
        {"line": "self.rows = list(n for n in range(3))"},
    ),
    "a lock": (
        {"line": "self.lock = threading.Lock()"},
        "keep it in a variable of the step instead of self.lock",
        {"line": "lock = threading.Lock()"},
    ),
}


@pytest.mark.parametrize("mistake", FLOWS)
def test_a_flows_advice_works(mistake: str, project: Any) -> None:
    wrong, advice, followed = FLOWS[mistake]
    project.write({"data/x.txt": "text", "wrong.py": FLOW.format(**{"member": "", "line": "", **wrong})})
    (project.folder / "raw.bin").write_bytes(b"\xff\xfe\x00")
    finished = project.run("wrong.py", "run", code=None)
    assert finished.returncode in (1, 2)
    assert advice in finished.stderr
    assert "Traceback" not in finished.stderr.partition("fix:")[0] or "line" in wrong
    project.write({"right.py": FLOW.format(**{"member": "", "line": "", **followed})})
    assert "done" in project.run("right.py", "run").stderr


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (
            "Torchrun(nproc_per_node=2, master_port=69420)",
            "master_port: 69420 is out of range\n  fix: write a number from 0 to 65535",
        ),
        ("Torchrun(nproc_per_node=2, master_port=-1)", "master_port: -1 is out of range"),
        ("Torchrun(max_restarts=-1)", "max_restarts: -1 is out of range\n  fix: write a number 0 or more"),
        ("Torchrun(monitor_interval=-0.5)", "monitor_interval: -0.5 is out of range"),
        ("Accelerate(num_processes=2, main_process_port=70000)", "main_process_port: 70000 is out of range"),
        ("Accelerate(zero_stage=4)", "zero_stage: 4 is out of range\n  fix: write a number from 0 to 3"),
        ("Accelerate(gradient_accumulation_steps=0)", "write a number 1 or more"),
        ("Accelerate(megatron_lm_hidden_dropout=1.5)", "from 0 to 1"),
        ("DeepSpeed(master_port='99999')", "master_port: 99999 is out of range"),
        ("Jax(initialization_timeout=0)", "write a number 1 or more"),
    ],
)
def test_a_launchers_numbers_are_refused_where_they_are_written(launch: str, message: str, project: Any) -> None:
    project.write({"s.py": LAUNCH.format(launch=launch)})
    for said in (project.stoker("plan", "s.py", code=2).stderr, project.run("s.py", code=2).stderr):
        assert message in said
        assert "s.py:4" in said, "and where"
        assert "Traceback" not in said


def test_where_native_code_failed(project: Any) -> None:
    text = """
        import ctypes
        from stoker import pipeline, step
        from stoker.config import Torchrun

        def inner():
            ctypes.string_at(0)

        @step
        def alone() -> None:
            inner()

        @step(launch=Torchrun(nproc_per_node=2))
        def ranks() -> None:
            inner()

        @pipeline
        def one():
            alone()

        @pipeline
        def several():
            ranks()
    """
    project.write({"s.py": text})
    for pipeline in ("one", "several"):
        said = project.stoker("run", f"s.py:{pipeline}", code=1).stderr
        assert "seen: Fatal Python error: Segmentation fault, in string_at" in said
        assert "called in inner (" in said and "s.py:6)" in said
        if platform.machine() == "x86_64" and platform.libc_ver()[0] == "glibc":
            assert "; native: libc.so.6 (+0x" in said and ", called by _ctypes." in said
        assert "faulthandler" not in said, "what is done need not be advised"
