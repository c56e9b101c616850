"""Caching from end to end, in real runs: code that an input refers to, names, and look-ups."""

from __future__ import annotations

import shutil
import sys
from typing import Any

PROGRAM = """
import importlib
import {helpers} as helpers
from stoker import pipeline, step

@step
def {load}(): return [helpers.Model(n) for n in range(2)]

@step
def first(models): return models[0]

@step
def each(model): return model.predict()

@step
def evaluate(model): return [model.predict()]

@step(cache={cache!r})
def named(name): return importlib.import_module(name).__name__

@pipeline
def flow():
    models = {load}()
    each.map(models)
    evaluate(first(models))
    named("json")

if __name__ == "__main__":
    run = flow()
    print(*(f"{{key}}={{step.status}}" for key, step in run.steps.items()))
"""
HELPERS = """
class Model:
    def __init__(self, n): self.tags = {{"a", "b", "c", "d", str(n)}}
    def predict(self): return {result}
"""


def test_what_runs_again_and_what_does_not(project: Any) -> None:
    def statuses(seed: int, result: int = 1, helpers: str = "helpers", load: str = "load", cache: Any = True) -> Any:
        program = PROGRAM.format(helpers=helpers, load=load, cache=cache)
        project.write({"flow.py": program, f"{helpers}.py": HELPERS.format(result=result)})
        finished = project.command([sys.executable, "flow.py"], env={"PYTHONHASHSEED": str(seed)})
        words = dict(word.split("=") for word in finished.stdout.split())
        return {key.replace(load, "load"): status for key, status in words.items()}, finished.stderr

    first, _ = statuses(1)
    assert set(first.values()) == {"succeeded"}
    second, messages = statuses(2)
    assert set(second.values()) == {"cached"}, second
    assert "named: is cached although it looks up code by name at flow.py:" in messages
    renamed, _ = statuses(3, load="read")
    assert set(renamed.values()) == {"cached"}, renamed
    # Of another length: Python takes a module's old bytecode where its source has the same size and second.
    # `load` reaches the class; what it returns has the same content, and the class's code is read for those after it.
    changed, _ = statuses(4, result=20)
    assert {key for key, status in changed.items() if status == "cached"} == {"named"}, changed
    strict, messages = statuses(5, result=20, cache="strict")
    assert {key for key, status in strict.items() if status != "cached"} == {"named"}, strict
    assert "although" not in messages


def test_the_plan_says_which_look_ups_no_key_can_know(project: Any) -> None:
    project.write({"flow.py": PROGRAM.format(helpers="helpers", load="load", cache=True)})
    project.write({"helpers.py": HELPERS.format(result=1)})
    plan = project.stoker("plan", "flow.py").stdout
    assert "STK191 info" in plan
    assert "is cached although it looks up code by name at flow.py:" in plan
    project.write({"flow.py": PROGRAM.format(helpers="helpers", load="load", cache="strict")})
    assert "is not cached because it looks up code by name" in project.stoker("plan", "flow.py").stdout


FLOW = """
import importlib
from stoker.flow import FlowSpec, cache, step

class Lookups(FlowSpec):
    def named(self): return importlib.import_module(self.module).__name__

    @cache
    @step
    def start(self):
        self.module = "json"
        self.result = self.named()
        self.next(self.end)

    @step
    def end(self): print(self.result)

if __name__ == "__main__":
    Lookups()
"""
DYNAMIC = """
import importlib
from stoker import pipeline, step

@step
def named(name): return importlib.import_module(name).__name__

@step
def plain(name): return name

@pipeline(dynamic=True, cache={cache!r})
def flow():
    {body}

if __name__ == "__main__":
    flow()
"""


def test_look_ups_of_flows_and_dynamic_pipelines(project: Any) -> None:
    project.write({"lookups.py": FLOW})
    plan = project.stoker("plan", "lookups.py").stdout
    assert plan.count("STK191 info") == 1, plan
    assert "step 'start': is cached although it looks up code by name at lookups.py:5" in plan
    for _ in range(2):
        finished = project.command([sys.executable, "lookups.py", "run"])
    assert "is cached although it looks up code by name at lookups.py:5" in finished.stderr + finished.stdout
    project.write({"flow.py": DYNAMIC.format(body="named('json')", cache=True)})
    plan = project.stoker("plan", "flow.py").stdout
    assert "pipeline 'flow': has steps whose code looks up code by name at flow.py:5" in plan, plan
    # Nothing is cached, or only the body looks up code, which runs each time.
    for program in (
        DYNAMIC.format(body="named('json')", cache=False),
        DYNAMIC.format(body="plain(importlib.import_module('js' + 'on').__name__)", cache=True),
    ):
        project.write({"flow.py": program})
        assert "STK191" not in project.stoker("plan", "flow.py").stdout


GONE = """
import importlib
from stoker import pipeline, step

@step
def load(): return importlib.import_module("".join(["mod", "els"])).Model()

@step
def first(model): return 1

@step
def second(model): return 2

@pipeline
def flow():
    model = load()
    first(model)
    second(model)

if __name__ == "__main__":
    flow()
"""


def test_an_input_whose_class_is_gone_is_reported_once(project: Any) -> None:
    project.write({"flow.py": GONE, "models.py": "class Model: ...\n"})
    there = project.command([sys.executable, "flow.py"])
    assert "cannot be found any more" not in there.stderr
    (project.folder / "models.py").unlink()
    gone = project.command([sys.executable, "flow.py"], code=1)
    assert gone.stderr.count("an input refers to models.Model, which cannot be found any more") == 1, gone.stderr
    run = project.client().runs()[0]
    assert run.steps["load"].status == "cached"
    assert {run.steps[name].status for name in ("first", "second")} <= {"failed", "cancelled", "skipped"}


FOLLOWED = """
import sys
import pkg
import json
from stoker import pipeline, step
from pkg.base import Base

class Hidden:
    def __init__(self, value): self.value = value
    def __reduce__(self): return (Hidden, (0,))

HIDDEN = [Hidden({hidden})]
setattr(json, "".join(["ex", "tra"]), pkg.base.extra)

@step
def submodule(name): return getattr(pkg, name).value()

@step
def patched(name): return getattr(json, name)()

@step
def subclasses(): return [kind.value() for kind in Base.__subclasses__()]

@step
def hidden(): return HIDDEN[0].value

@step
def unknown(kind="x"): return [one.__name__ for one in type(pkg.base.One()).__mro__[1].__subclasses__()]

@step(cache=True)
def wanted(): return [one.__name__ for one in type(pkg.base.One()).__mro__[1].__subclasses__()]

@pipeline
def flow():
    submodule("other"), patched("extra"), subclasses(), hidden(), unknown(), wanted()

if __name__ == "__main__":
    print(*(f"{{key}}={{step.status}}" for key, step in flow().steps.items()))
"""
BASE = """
class Base: ...
class One(Base):
    @staticmethod
    def value(): return {one}
def extra(): return {extra}
"""


def test_code_that_is_found_without_its_name_counts(project: Any) -> None:
    def ran(one: int = 1, extra: int = 1, other: int = 1, hidden: int = 1) -> set[str]:
        project.write(
            {"flow.py": FOLLOWED.format(hidden=hidden), "pkg/__init__.py": "import pkg.base\nimport pkg.other\n"}
        )
        project.write({"pkg/base.py": BASE.format(one=one, extra=extra)})
        project.write({"pkg/other.py": f"def value(): return {other}\n"})
        words = dict(word.split("=") for word in project.command([sys.executable, "flow.py"]).stdout.split())
        return {key for key, status in words.items() if status != "cached"}

    assert len(ran()) == 6
    assert ran() == {"unknown"}
    assert "unknown" in ran(hidden=20) and "hidden" in ran(hidden=30)
    assert ran(hidden=30) == {"unknown"}
    assert {"subclasses"} <= ran(hidden=30, one=20)
    assert {"patched"} <= ran(hidden=30, one=20, extra=30)
    assert {"submodule", "unknown"} <= ran(hidden=30, one=20, extra=30, other=40)
    plan = project.stoker("plan", "flow.py").stdout
    line = next(n for n, text in enumerate(FOLLOWED.strip().splitlines(), 1) if text.startswith("def unknown"))
    assert f"step 'unknown': is not cached because it looks up code by name at flow.py:{line}" in plan, plan
    assert "step 'wanted': is cached although it looks up code by name" in plan
    why = project.stoker("why", project.client().runs()[0].id, "unknown").stdout
    assert f"it looks up code by name at flow.py:{line}, which no cache key can know" in why, why


TARGET = """
import sys
from stoker import pipeline, step

@step(cache=True)
def packaged() -> int:
    import lib.deep
    return lib.deep.answer()

@step(cache=True)
def own() -> int:
    import beside
    return beside.answer()

@pipeline
def flow():
    packaged()
    own()

if __name__ == "__main__":
    print(*(step.status for step in flow().steps.values()))
"""


def test_a_package_in_a_folder_of_the_path_counts_by_its_version(project: Any) -> None:
    """`pip install --target vendored` puts packages where a person's own modules lie, too; their records part them."""

    def statuses(version: str, inside: int, beside: int, *, leave: bool = False) -> list[str]:
        answer = "def answer():\n    return {}\n"
        for record in project.folder.glob("vendored/*.dist-info"):
            if not leave:
                shutil.rmtree(record)
        info = f"vendored/lib-{version}.dist-info"
        project.write(
            {
                "flow.py": TARGET,
                "vendored/lib/__init__.py": "",
                "vendored/lib/deep.py": answer.format(inside),
                f"{info}/METADATA": f"Metadata-Version: 2.1\nName: lib\nVersion: {version}\n",
                f"{info}/RECORD": "lib/__init__.py,,\nlib/deep.py,,\n",
                "vendored/beside.py": answer.format(beside),
            }
        )
        finished = project.command([sys.executable, "flow.py"], env={"PYTHONPATH": str(project.folder / "vendored")})
        return finished.stdout.split()

    assert statuses("1", inside=1, beside=1) == ["succeeded", "succeeded"]
    assert statuses("1", inside=20, beside=1) == ["cached", "cached"]
    assert statuses("1", inside=20, beside=300) == ["cached", "succeeded"]
    assert statuses("2", inside=20, beside=300) == ["succeeded", "cached"]
    # `pip install --target --upgrade` leaves the metadata of what it replaces: the files count then.
    assert statuses("3", inside=4000, beside=300, leave=True) == ["succeeded", "cached"]
    assert statuses("3", inside=50000, beside=300, leave=True) == ["succeeded", "cached"]
    assert statuses("3", inside=50000, beside=300, leave=True) == ["cached", "cached"]
