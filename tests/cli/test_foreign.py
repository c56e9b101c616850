"""`stoker migrate` of files for other schedulers: what is written, what is said, and that it plans and runs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from stoker.backends.slurm.settings import ELSEWHERE, OPTIONS
from stoker.migrate.foreign import translation_of
from stoker.migrate.sbatch import translate

FILES = Path(__file__).parent / "foreign"
SCRIPTS = sorted(path.name for path in FILES.iterdir() if path.suffix != ".txt")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_file(name: str) -> None:
    """The pipeline, and below it what is said of the file's lines."""
    made = translation_of((FILES / name).read_bytes(), name.removesuffix(".in"))
    assert made is not None
    notes = [f"{one.line}: {one.level}: {one.name}: {one.message}" for one in sorted(made.notes, key=lambda n: n.line)]
    text = made.text + "\n".join(["", *(f"# {note}" for note in notes), ""])
    golden = FILES / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_plans(name: str, project: Any) -> None:
    target = name.removesuffix(".in")
    project.write({"stoker.toml": '[stacks.local]\nstep_operators.skypilot = {flavor="skypilot", shares_files=true}\n'})
    shutil.copy(FILES / name, project.folder / target)
    done = project.stoker("migrate", target, "--write", "--output", "made.py", code=None)
    assert done.returncode == (": by hand: " in done.stderr)
    project.stoker("plan", "made.py", "--offline", env={"HF_TOKEN": "hf_0123456789"})
    project.stoker("migrate", target, "--write", "--output", "made.py", code=2)


EACH = """
#!/bin/bash
#SBATCH --array=2-3
#SBATCH -J each --mem=1M
echo $SLURM_ARRAY_TASK_ID $1 > $SLURM_ARRAY_TASK_ID.txt
"""


def test_a_script_runs_here(project: Any) -> None:
    project.write({"each.slurm": EACH})
    project.stoker("migrate", "each.slurm", "--write")
    project.stoker("run", "each.py", "--words", "a,b", "--set", "steps.each.step_operator=null")
    assert [(project.folder / f"{number}.txt").read_text() for number in (2, 3)] == ["2 a\n", "3 a\n"]


PROGRAM = """
import submitit
from operator import sub

def add(a, b=0):
    return a + b

def main(count: int = 2):
    executor = submitit.LocalExecutor(folder="log")
    executor.update_parameters(cpus_per_task=1)
    with executor.batch():
        jobs = [executor.submit(add, number, b=1) for number in range(count)]
    jobs += executor.map_array(sub, [5, 6], [1, 1])
    print("got", [job.result() for job in jobs])

if __name__ == "__main__":
    main()
"""


def test_a_program_with_submitit_runs_here(project: Any) -> None:
    project.write({"grid.py": PROGRAM})
    project.stoker("migrate", "grid.py", "--write", "--output", "made.py")
    assert "got [1, 2, 4, 5]" in project.run("made.py").stdout


VALUES = {
    **dict.fromkeys(("mail-type", "signal", "array"), "x"),
    "array": "1-3",
    "mail-type": "END",
    "signal": "USR1@60",
    "exclusive": "",
    "time": "30",
    "chdir": "there",
    "gres": "gpu:2",
    "export": "A=1",
}
"""Options whose values are not just anything → one that they take; numbers for all others."""


@pytest.mark.parametrize("name", sorted({**OPTIONS, **ELSEWHERE}))
def test_no_option_of_sbatch_is_dropped(name: str) -> None:
    value = VALUES.get(name, "2")
    given = f"--{name}={value}" if value and OPTIONS.get(name) != "flag" else f"--{name}"
    without = translate("#!/bin/bash\n#SBATCH --comment=c\npython train.py\n", "a.sh")
    made = translate(f"#!/bin/bash\n#SBATCH --comment=c\n#SBATCH {given}\npython train.py\n", "a.sh")
    assert made.notes or made.text != without.text
    assert {note.line for note in made.notes} <= {3}


@pytest.mark.parametrize("given", ["--imgae=x", "-Z 3", "--gres=gpu:strange:2", "--mem=much", "--time=soon"])
def test_what_slurm_would_not_take_is_said(given: str) -> None:
    made = translate(f"#!/bin/bash\n#SBATCH {given}\npython train.py\n", "a.sh")
    assert [(note.line, note.level) for note in made.notes] == [(2, "by hand")]


def test_json(project: Any) -> None:
    shutil.copy(FILES / "ranks.slurm", project.folder)
    document = json.loads(project.stoker("migrate", "ranks.slurm", "--json").stdout)
    assert document["from"] == ["Slurm"] and not document["written"]
    assert 'launch=MPI(ntasks=4, program="srun")' in document["text"]
    assert not (project.folder / "ranks.py").exists()


def test_programs_for_kfp_run_here(project: Any) -> None:
    shutil.copy(FILES / "training.py.in", project.folder / "training.py")
    project.stoker("migrate", "training.py", "--write", "--output", "made.py")
    project.write({"look.py": LOOK})
    assert "[0.5, 0.2, 3, 5]" in project.run("look.py").stdout


LOOK = """
from made import training

if __name__ == "__main__":
    run = training(rows=5)
    best = run.steps["best"].load()
    written = run.steps["train"][1].outputs["model"].load().read_text()
    halves = run.steps["split"].outputs
    print([best, round(float(written) / 5, 3), halves["high"].load(), run.steps["load_it"].outputs["count"].load()])
"""

PODS = """
from kfp import dsl, kubernetes

@dsl.component(base_image="python:3.12", packages_to_install=["pandas"])
def train(rate: float):
    print(rate)

@dsl.pipeline
def training(rate: float = 0.1, secret: str = "hub"):
    task = train(rate=rate).set_accelerator_type("NVIDIA_TESLA_T4").set_accelerator_limit(2)
    kubernetes.mount_pvc(task, pvc_name="data", mount_path="/data")
    kubernetes.use_secret_as_env(task, "hub", {"token": "HF_TOKEN"})
    kubernetes.use_secret_as_env(task, secret_name=secret, secret_key_to_env={"token": "OTHER"})
    kubernetes.add_toleration(task, key="team", operator="Equal", value="ml")
    made = dsl.importer(artifact_uri="gs://bucket/x", artifact_class=dsl.Dataset)
"""


def test_pods_of_kfp(project: Any) -> None:
    project.write({"pods.py": PODS})
    done = project.stoker("migrate", "pods.py", code=1)
    for words in (
        '@step(settings={"docker": DockerSettings(requirements=["pandas"], parent_image="python:3.12")})',
        'accelerators="T4:2"',
        'persistent_volume_claims={"data": "/data"}',
        'env={"HF_TOKEN": {"valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}}',
        'tolerations=[{"key": "team", "operator": "Equal", "value": "ml"}]',
    ):
        assert words in done.stdout
    left = [line for line in done.stderr.splitlines() if ": by hand: " in line]
    assert [line.split(":")[1] for line in left] == ["12", "14", "14"]
    assert "use_secret_as_env" in left[0] and "write a step that fetches it" in left[1]


def test_other_files_are_left_alone() -> None:
    assert translation_of(b"kind: Pod\napiVersion: v1\nresources: 3\n", "a.yaml") is None
    assert translation_of(b"echo hello\n", "a.sh") is None
    assert translation_of(b"\xff", "a.sh") is None
