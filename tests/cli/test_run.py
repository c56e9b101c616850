"""`stoker run FILE` does what `python FILE` does, takes parameters, and says whose an exception is."""

from __future__ import annotations

import inspect
import json
import re
import sys
from typing import Any

import pytest

from stoker.core.usercode import replaced_functions

TWO = """
    from stoker import pipeline, step


    @step
    def one() -> int:
        return 1


    @pipeline
    def first():
        one()


    @pipeline
    def second(count: int = 1):
        one()
"""


def test_the_main_block_runs_with_the_command_line_on_top(stoker: Any) -> None:
    finished = stoker("run", "train.py", "--lr", "2", "--tag", "nightly", "--name", "tuesday")
    assert finished.stdout == "status succeeded\n"
    assert "train │ training with 2.0" in finished.stderr
    (run,) = stoker.json("runs")
    assert run["parameters"] == {"count": 3, "lr": 2.0, "broken": False}
    assert run["tags"] == ["nightly"]
    assert run["pipeline"] == "tuesday"


def test_a_tag_with_a_control_character_is_refused_before_anything_runs(stoker: Any) -> None:
    refused = stoker("run", "train.py", "--tag", "a\x1b]52;c;QQ==\x07", code=2)
    assert r"a tag holds a control character: 'a\x1b]52;c;QQ==\x07'" in refused.stderr
    assert stoker.json("runs") == []


def test_the_script_by_itself_takes_the_same(stoker: Any) -> None:
    finished = stoker.project.run("train.py", "--lr", "2", "--count=4", "--quiet")
    assert finished.stdout == "status succeeded\n"
    (run,) = stoker.json("runs")
    assert run["parameters"] == {"count": 4, "lr": 2.0, "broken": False}
    finished = stoker.project.run("train.py", "--lern", "2", code=2)
    assert "has no parameter for --lern, did you mean '--lr'" in finished.stderr
    finished = stoker.project.run("train.py", "--help")
    assert "--lr float" in finished.stdout
    assert len(stoker.json("runs")) == 1


def test_both_ways_find_the_same_in_the_cache(stoker: Any) -> None:
    stoker.project.run("train.py")
    assert "4 cached" in stoker("run", "train.py").stderr
    assert "cached" not in stoker("run", "train.py", "--no-cache").stderr


def test_a_failed_step_is_exit_code_1(stoker: Any) -> None:
    finished = stoker("run", "train.py", "--broken", code=1)
    assert "the model is no good" in finished.stderr
    assert finished.stderr.count("Traceback") == 1, "the step's own"
    assert "error: run " in finished.stderr
    assert "status" not in finished.stdout


def test_settings_and_their_mistakes(stoker: Any) -> None:
    stoker.project.write({"run.yaml": "parameters:\n  lr: 4\n  count: 5\n"})
    stoker("run", "train.py", "--config", "run.yaml", "--lr", "3", "--failure-mode", "continue")
    (run,) = stoker.json("runs")
    assert run["parameters"] == {"count": 5, "lr": 3.0, "broken": False}
    assert run["failure_mode"] == "continue"
    for argv, message in (
        (["--lr", "abc"], "error: --lr: expected float, got 'abc'"),
        (["--set", "steps.trian.timeout=3"], "there is no step 'trian'"),
        (["--set", "nonsense=1"], "nonsense"),
        (["--failure-mode", "sometimes"], "'sometimes' is not one of fail_fast, continue"),
        (["--stack", "gpu"], "there is no stack called 'gpu'"),
        (["--config", "none.yaml"], "the run file cannot be read"),
        (["stray"], "unexpected argument 'stray'"),
    ):
        assert message in stoker("run", "train.py", *argv, code=2).stderr
    assert len(stoker.json("runs")) == 1


def test_a_file_without_a_call(stoker: Any) -> None:
    stoker.project.write({"two.py": TWO, "one.py": TWO.rpartition("@pipeline")[0], "none.py": "value = 1\n"})
    stoker("run", "one.py")
    finished = stoker("run", "two.py", code=2)
    assert "two.py has several pipelines: first, second\n  fix: name one: two.py:first" in finished.stderr
    stoker("run", "two.py:second", "--count", "7")
    stoker("run", "two.py", "--pipeline", "first")
    assert "has no pipeline 'secnod', did you mean 'second'?" in stoker("run", "two.py:secnod", code=2).stderr
    assert "none.py has no pipeline" in stoker("run", "none.py", code=2).stderr
    assert [run["pipeline"] for run in stoker.json("runs")] == ["first", "second", "first"]


def test_a_named_pipeline_is_run_though_the_main_block_calls_another(stoker: Any) -> None:
    stoker.project.write(
        {"two.py": TWO + '\n\n    if __name__ == "__main__":\n        first()\n        second(count=3)\n'}
    )
    stoker("run", "two.py:second")
    (run,) = stoker.json("runs")
    assert run["pipeline"] == "second"


def test_a_script_that_reads_its_own_command_line(stoker: Any) -> None:
    text = """
        import argparse
        import sys

        from train import training

        if __name__ == "__main__":
            parser = argparse.ArgumentParser()
            parser.add_argument("--rate", type=float, default=0.25)
            training(count=2, lr=parser.parse_args().rate)
            print(sys.argv[1:], __name__)
    """
    stoker.project.write({"own.py": text})
    assert stoker.project.run("own.py", "--rate", "0.125").stdout == "['--rate', '0.125'] __main__\n"
    assert stoker("run", "own.py", "--lr", "8").stdout == "[] __main__\n"
    assert [run["parameters"]["lr"] for run in stoker.json("runs")] == [8.0, 0.125]


@pytest.mark.parametrize("target", ["parts/deep/train.py", "parts.deep.train", "parts.deep.train:packaged"])
def test_a_file_of_a_package(target: str, stoker: Any) -> None:
    text = """
        from stoker import pipeline, step

        from ..numbers import NUMBER


        @step
        def give() -> int:
            return NUMBER


        @pipeline
        def packaged():
            give()


        if __name__ == "__main__":
            print(packaged().steps["give"].output.load(), __package__)
    """
    init = {"parts/__init__.py": "", "parts/deep/__init__.py": ""}
    stoker.project.write({"parts/deep/train.py": text, "parts/numbers.py": "NUMBER = 42\n", **init})
    assert stoker("run", target).stdout == "42 parts.deep\n"
    program = [sys.executable, "-m", "parts.deep.train", "--quiet"]
    finished = stoker.project.command(program)
    assert finished.stdout == "42 parts.deep\n"
    assert "1 cached" in finished.stderr, "it is the same code"


def test_modules_beside_the_script_are_found_from_elsewhere(stoker: Any) -> None:
    stoker.project.write(
        {
            "code/beside.py": "NUMBER = 7\n",
            "code/job.py": """
                import beside

                from stoker import pipeline, step


                @step
                def give() -> int:
                    return beside.NUMBER


                @pipeline
                def job():
                    give()
            """,
        }
    )
    stoker("run", "code/job.py")
    (step,) = stoker.json("show", "latest")["steps"]
    assert step["status"] == "succeeded"


@pytest.mark.parametrize(
    ("text", "code", "shown"),
    [
        ("raise SystemExit(7)", 7, ""),
        ("import sys; sys.exit('enough')", 1, "enough"),
        ("value = 1 / 0", 2, "ZeroDivisionError: division by zero"),
        ("value = (", 2, "SyntaxError"),
        ("import nothing_like_it", 2, "No module named 'nothing_like_it'"),
        ("from metaflow import FlowSpec", 2, "bad.py has no pipeline"),
        ("import zenml.config", 2, "bad.py has no pipeline"),
        ("raise KeyboardInterrupt", 130, "interrupted"),
        ("from stoker import step\n@step(tiemout=3)\ndef f(): pass\n", 2, "did you mean 'timeout'"),
        (
            "from stoker.config import ResourceSettings\nBIG = ResourceSettings(\n    gpu_type='H100')\n",
            2,
            "bad.py:2: ResourceSettings has no field 'gpu_type'",
        ),
        ("from stoker.config import KubernetesSettings as K\n\nK(queueing='kueu')", 2, "bad.py:3: queueing: 'kueu' is"),
    ],
)
def test_what_the_file_raises(text: str, code: int, shown: str, stoker: Any) -> None:
    stoker.project.write({"bad.py": text})
    finished = stoker("run", "bad.py", code=code)
    assert shown in finished.stderr
    assert "/stoker/" not in finished.stderr and "stoker-crash" not in finished.stderr, "frames of ours are of no use"


def test_help_runs_nothing(stoker: Any) -> None:
    stoker.project.write({"loud.py": TWO.replace("def second", "def loud") + "\n    first()\n    print('called')\n"})
    finished = stoker("run", "loud.py:loud", "--help")
    assert "--count int" in finished.stdout
    assert "default: 1" in finished.stdout
    assert "--stack NAME" in finished.stdout
    assert "called" not in finished.stdout
    assert stoker.json("runs") == []


def test_debug_runs_in_this_process(stoker: Any) -> None:
    text = """
        import os

        from stoker import pipeline, step


        @step
        def pid() -> int:
            return os.getpid()


        @pipeline
        def where():
            pid()


        if __name__ == "__main__":
            print(where().steps["pid"].output.load() == os.getpid())
    """
    stoker.project.write({"where.py": text})
    assert stoker("run", "where.py", "--debug").stdout == "True\n"
    assert stoker("run", "where.py", "--no-cache").stdout == "False\n"


@pytest.mark.parametrize(
    ("command", "init"),
    [
        ("python", "raise SystemExit('nobody imports me')\n"),
        ("run", "raise SystemExit('nobody imports me')\n"),
        ("run", ""),
        ("plan", "from . import missing\n"),
    ],
)
def test_a_script_beside_an_init_file_runs_as_python_runs_it(init: str, command: str, project: Any) -> None:
    """A notebook's folder, or a repository that is cloned as a package: Python does not look at `__init__.py`."""
    source = """
        import helpers
        from stoker import pipeline, step

        @step
        def give() -> int:
            return helpers.NUMBER

        @pipeline
        def scripted():
            give()

        if __name__ == "__main__":
            run = scripted()
            print(run.steps["give"].load(), __package__ or "", __spec__)
        """
    project.write({"parts/__init__.py": init, "parts/helpers.py": "NUMBER = 4\n", "parts/train.py": source})
    if command == "python":
        assert project.run("parts/train.py").stdout == "4  None\n"
    else:
        finished = project.stoker(command, "parts/train.py")
        assert command == "plan" or finished.stdout == "4  None\n"


@pytest.mark.parametrize("folder", [".", "parts"])
def test_a_script_of_a_package_may_import_the_package_by_its_name(folder: str, project: Any) -> None:
    source = """
        from stoker import pipeline, step
        from parts.other import NUMBER

        @step
        def give() -> int:
            import parts.other
            return NUMBER + parts.other.NUMBER

        @pipeline
        def scripted():
            give()

        if __name__ == "__main__":
            print(scripted().steps["give"].load())
        """
    project.write({"parts/__init__.py": "", "parts/other.py": "NUMBER = 4\n", "parts/train.py": source})
    project.folder = project.folder / folder
    assert project.stoker("run", "parts/train.py" if folder == "." else "train.py").stdout == "8\n"


LARGE = """
    import os
    import sys

    import stoker
    from stoker.config import Torchrun


    @stoker.step
    def line() -> None:
        sys.stdout.write("\\x1e" * 3_000_000 + "\\x1e\\x00stoker-end " + "x" * 3_000_000)


    @stoker.step(launch=Torchrun(nproc_per_node=2), environment={"TOKEN": "secret:env:TOKEN"})
    def ranks() -> None:
        raise ValueError(f"of {os.environ['RANK']} " + os.environ["TOKEN"] + "a" * 1_000_000)


    @stoker.pipeline
    def large():
        line()
        ranks()
"""


def test_a_line_and_an_exception_of_megabytes_are_cut_where_they_are_shown_and_whole_in_files(stoker: Any) -> None:
    stoker.project.write({"large.py": LARGE})
    finished = stoker("run", "large.py", "--failure-mode", "continue", code=1, env={"TOKEN": "a-value-to-be-masked"})
    assert len(finished.stderr) < 1_500_000 and "left out, whole in the step's log" in finished.stderr
    logged = stoker("logs", "latest", "line", "--raw").stdout
    assert logged.count("\x1e") == 3_000_001 and logged.count("x") == 3_000_000
    assert re.search(r"98\d\.\d KB left out, whole in the attempt's error\.txt", finished.stderr)
    (path,) = {row.partition("whole: ")[2] for row in stoker("show", "latest").stdout.splitlines() if "whole: /" in row}
    with open(path, encoding="utf-8") as file:
        whole = file.read()
    assert "a" * 1_000_000 in whole and "ValueError: of " in whole and "***env:TOKEN***" in whole
    assert "a-value-to-be-masked" not in whole + finished.stderr


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


@pytest.mark.parametrize(
    ("kind", "call"), [*((kind, CALLS[0]) for kind in BODIES), *(("raised", call) for call in CALLS[1:])]
)
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


def test_a_plan_says_what_a_file_raises_when_it_is_loaded(project: Any) -> None:
    for text, message in (("import jsn", "No module named 'jsn'"), ("def f(:", "SyntaxError"), ("1 / 0", "ZeroDiv")):
        project.write({"s.py": text})
        said = project.stoker("plan", "s.py", code=2).stderr
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
    assert [text for text in replaced_functions() if text.startswith("json.dumps is <lambda> (test_run.py:")]
