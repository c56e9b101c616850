"""`stoker doctor --prove STACK`: what held there, as a signed page; also proved in tests/slurm and tests/kubernetes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.waiting import until


def signature_holds(page: Path) -> bool:
    """Whether ssh-keygen finds that the page is what was signed."""
    with page.open() as file:
        words = ["ssh-keygen", "-Y", "check-novalidate", "-n", "stoker-proof", "-s", f"{page}.sig"]
        return subprocess.run(words, stdin=file, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_this_machine(project: Any) -> None:
    said = project.stoker("doctor", "--prove", "local", "--output", "held.md", env={"STOKER_SIMULATE": "1xH100"})
    page = project.folder / "held.md"
    text = page.read_text()
    facts = json.loads(text.partition("```json\n")[2].partition("```")[0])
    verdicts = {trial["name"]: trial["outcome"]["verdict"] for trial in facts["trials"]}
    # Nothing computes on a simulated device, and this machine takes no memory away.
    assert verdicts == {
        **dict.fromkeys(("hello", "gang", "resume", "cancel"), "held"),
        **dict.fromkeys(("receipt", "memory"), "unknown"),
    }, text
    assert "the interrupted step ran again; the finished one did not" in text
    assert "signed by" in said.stdout
    assert signature_holds(page)
    page.write_text(text.replace("**unknown**", "**held**"))
    assert not signature_holds(page)


def test_what_takes_too_long_is_ended(project: Any) -> None:
    """A command that is given no time proves nothing, and nothing of it goes on."""
    project.stoker("doctor", "--prove", "local", "--wait", "1", "--output", "held.md")
    assert "it took longer than --wait allows" in (project.folder / "held.md").read_text()
    assert "running" not in [run.status for run in project.client().runs()]
    home = str(project.home)
    until(lambda: not [one for one in psutil.process_iter(["environ"]) if home in str(one.info["environ"])])


def test_what_the_plan_refuses_is_no_failure(project: Any) -> None:
    """Also where a trial waits for a step to begin: what the driver said is read."""
    project.write({"stoker.toml": '[stacks.gpus.settings]\nresources.accelerators = "H100:1"\n'})
    said = project.stoker("doctor", "--prove", "gpus", "--json", env={"STOKER_SIMULATE": "1xA10"})
    outcomes = {trial["name"]: trial["outcome"] for trial in json.loads(said.stdout)["trials"]}
    for name in ("hello", "resume", "cancel"):
        assert outcomes[name]["verdict"] == "refused" and "STK103" in outcomes[name]["words"], outcomes


def test_nothing_runs_without_a_key(stoker: Any, tmp_path: Path) -> None:
    said = stoker("doctor", "--prove", "local", "--key", str(tmp_path / "none"), code=2)
    assert "there is no key" in said.stderr and "leave --key out" in said.stderr
    said = stoker("doctor", "--prove", "local", code=2, env={"PATH": str(tmp_path)})
    assert "there is no ssh-keygen" in said.stderr
    assert "--prove STACK" in stoker("doctor", "--key", "id", code=2).stderr
    assert stoker.json("runs") == []
