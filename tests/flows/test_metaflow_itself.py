"""Files that were written for Metaflow, unchanged: `from metaflow import …` by the hook, wherever their code runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

FLOW = """
import metaflow
from metaflow import Parameter, step
from metaflow.metaflow_current import current
from shared import Base, double

class Unchanged(Base):
    n = Parameter("n", default=2)

    @step
    def start(self):
        import subprocess, sys
        program = "import metaflow.client as m; from metaflow import Task; print(m.__name__, m.Task is Task)"
        self.child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        self.items = range(self.n)
        self.next(self.each, foreach="items")

    @step
    def each(self):
        from metaflow import Run
        assert Run is metaflow.Run and current.step_name == "each"
        self.value = double(self.input)
        self.next(self.join)

    @step
    def join(self, inputs):
        self.total = sum(task.value for task in inputs)
        self.merge_artifacts(inputs, include=["child"])
        self.next(self.end)

    @step
    def end(self):
        print("total", self.total, self.child.strip())

if __name__ == "__main__":
    Unchanged()
"""
SHARED = """
from metaflow import FlowSpec

class Base(FlowSpec):
    pass

def double(x):
    import metaflow
    assert metaflow.FlowSpec is FlowSpec
    return 2 * x
"""
ON = "stoker: `import metaflow` means stoker.flow here"
SAID = "total 2 stoker.flow.client True"


def test_a_file_runs_unchanged_by_the_module_and_by_the_command(project: Any) -> None:
    project.write({"flow.py": FLOW, "shared.py": SHARED})
    ran = project.command([sys.executable, "-W", "error", "-m", "stoker.flow", "flow.py", "run", "--n", "2"])
    assert SAID in ran.stderr and ran.stderr.count(ON) == 1 and "total" not in ran.stdout
    module = project.command([sys.executable, "-m", "stoker.flow", "-m", "flow", "check"])
    assert "it can run" in module.stdout
    usage = project.command([sys.executable, "-m", "stoker.flow", "flow.py", "--help"])
    assert "Usage: python -m stoker.flow flow.py COMMAND" in usage.stdout
    again = project.stoker("run", "flow.py")
    assert SAID in again.stderr and again.stderr.count(ON) == 1
    # Nothing but the run's own record says in these that the code was written for Metaflow.
    rerun = project.stoker("rerun", "latest")
    assert SAID in rerun.stderr and rerun.stderr.count(ON) == 1
    resumed = project.command([sys.executable, "-m", "stoker.flow", "flow.py", "resume", "join"])
    assert SAID in resumed.stderr
    assert "No module named 'metaflow'" in project.run("flow.py", "run", code=1).stderr


def test_a_program_turns_it_on_and_its_runner_runs_the_file(project: Any) -> None:
    project.write(
        {
            "flow.py": FLOW,
            "shared.py": SHARED,
            "use.py": """
            from stoker.integrations.metaflow import install
            install()
            install()
            from metaflow import Flow, Runner
            import stoker.flow, stoker.flow.client, metaflow.client
            assert metaflow is stoker.flow and metaflow.client is stoker.flow.client
            assert stoker.flow.__spec__.name == "stoker.flow" == stoker.flow.__name__
            with Runner("flow.py", show_output=False) as runner:
                run = runner.run(n=3)
                assert run.status == "successful", run.stderr
                assert Flow("Unchanged").latest_run.data.total == 6 == run.run.data.total
            """,
        }
    )
    assert project.run("use.py").stderr.count(ON) == 1


def test_it_wins_over_an_installed_metaflow_and_says_so(project: Any, tmp_path: Path) -> None:
    installed = tmp_path / "site-packages"
    (installed / "metaflow").mkdir(parents=True)
    (installed / "metaflow" / "__init__.py").write_text("raise RuntimeError('the other one')", encoding="utf-8")
    project.write({"flow.py": FLOW, "shared.py": SHARED})
    ran = project.command([sys.executable, "-m", "stoker.flow", "flow.py", "run"], env={"PYTHONPATH": str(installed)})
    assert SAID in ran.stderr and f"{ON}, and not {installed / 'metaflow'}" in ran.stderr


def test_what_it_cannot_be_is_refused_in_a_sentence(project: Any) -> None:
    project.write(
        {
            "late.py": "import json, sys\nsys.modules['metaflow'] = json\n"
            "from stoker.integrations.metaflow import install\ninstall()",
            "extended.py": "from metaflow_extensions.own import deco",
        }
    )
    late = project.run("late.py", code=1)
    assert "metaflow is imported already, from" in late.stderr and "before the first import" in late.stderr
    extended = project.command([sys.executable, "-m", "stoker.flow", "extended.py"], code=1)
    assert "extensions of Metaflow are not loaded here" in extended.stderr
    missing = project.command([sys.executable, "-m", "stoker.flow", "no.py", "run"], code=2)
    assert "there is no file no.py" in missing.stderr
