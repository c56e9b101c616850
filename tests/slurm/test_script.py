"""What sbatch is given, to the letter; and what the script does, run by a shell."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.servers.slurm import Cluster

from stoker.backends.slurm import script as slurm
from stoker.backends.slurm.script import docker_address, enroot_address
from stoker.backends.slurm.settings import ELSEWHERE, OPTIONS
from stoker.config import SlurmSettings
from stoker.core.accelerators import MODELS, Accelerator
from stoker.core.codec import to_json
from stoker.core.plan import Job, Site, StepPlan
from stoker.core.protocol import FunctionSource, HookFacts
from stoker.core.settings import DockerSettings, ResourceSettings, StepSettings
from stoker.images.dockerfile import definition
from stoker.images.spec import spec_of

GOLDEN = Path(__file__).parent / "golden"
SITE = Site(
    artifacts="/home/me/.stoker/artifacts",
    scratch="/home/me/.stoker/scratch",
    path=("/home/me/project", "/usr/lib/python3.11"),
    folder="/home/me/project",
    checkpoints="/home/me/.stoker/checkpoints",
    package="c0de" * 16,
    code_root="/home/me/project",
    bundle="/home/me/.stoker/wheels/bundle-1",
)
FAR = attrs.evolve(SITE, artifacts="s3://bucket/store")
FOLDER = "/shared/me/slurm"
IMAGE = DockerSettings(
    parent_image="nvcr.io/nvidia/pytorch:25.01-py3",
    skip_build=True,
    runtime_environment={"HF_HOME": "/cache", "GONE": None},
)


def job(name: str = "train", *, key: str = "", attempt: int = 1, hook: bool = False, **settings: Any) -> Job:
    source = FunctionSource(
        kind="script", module="train", qualname=name, path="/home/me/project/train.py", root="/home/me/project"
    )
    step = StepPlan(
        key=key or name,
        name=name,
        source=source,
        outputs=(),
        unpack=False,
        inputs={},
        settings=StepSettings(**settings),
        backend="orchestrator",
        code="1234",
        where="train.py:7",
    )
    made = Job(name=f"run1/{step.key}/{attempt}", run="run1", key=step.key, attempt=attempt, step=step, inputs={})
    told = HookFacts(run="run1", pipeline="training", step=step.key, status="succeeded")
    return attrs.evolve(made, name=f"{made.name}/hook", kind="hook", hook=source, told=told) if hook else made


def built_there(image: str) -> Job:
    """A job whose node builds its image."""
    made = job(docker=DockerSettings(requirements=["six"]))
    return attrs.evolve(made, step=attrs.evolve(made.step, image=image))


def settings(**given: Any) -> SlurmSettings:
    return SlurmSettings(**{"python": "/opt/python/bin/python3", **given})


def script(one: Job, site: Site = SITE, folder: str = FOLDER, **given: Any) -> str:
    return slurm.script([one], site, settings(**given), folder=folder, token="t0ken")


def document(one: Job, site: Site = SITE, **given: Any) -> dict[str, Any]:
    return to_json(slurm.specification(one, site, settings(**given), folder=FOLDER, token="t0ken", secret="s3cret"))


def options(one: Job, **given: Any) -> list[str]:
    return slurm.arguments([one], settings(**given), folder=FOLDER, token="t0ken")


BIG = job(
    resources=ResourceSettings(cpu_count=7.5, memory="64GB", disk="1GiB", accelerators="A100-80GB:2"),
    timeout=3600.0,
    environment={"SECRET_WORD": "plugh"},
)
GANG = job(resources=ResourceSettings(nodes=4, cpu_count=16, gpu_count=8))
CONTAINED = job(resources=ResourceSettings(gpu_count=1), docker=IMAGE)
DEFINITION = definition(
    spec_of(
        DockerSettings(
            parent_image="python:3.11-slim",
            apt_packages=["git"],
            requirements=["six==1.16"],
            environment={"WORD": "it's `$5`"},
            python_package_installer="pip",
        ),
        root=Path(),
        python="3.11",
    )
)
EVERYTHING = SlurmSettings(
    python="/opt/python/bin/python3",
    partition=["gpu", "long"],
    account="lab",
    qos="high",
    constraint="ib",
    reservation="tuesday",
    nodelist="n[1-4]",
    exclude="n3",
    time_limit="1d2h",
    warn_before="5m",
    requeue=True,
    exclusive="user",
    mail_type="end,fail",
    mail_user="me@example.org",
    job_name="{run}.{pipeline}:{step}",
    comment="for the paper",
    modules=["cuda/12.4", "python/3.11"],
    setup=["ulimit -l unlimited", "export NCCL_DEBUG='WARN'"],
    gpus_as="gpus-per-node",
    gres_types={"A100-80GB": "a100_80"},
    options={"nice": 100, "contiguous": True, "hold": False, "switches": "1@10:00"},
)
CASES: dict[str, tuple[list[Job], Site, SlurmSettings]] = {
    "plain": ([job(environment={"WORD": "a b"})], SITE, SlurmSettings(python="/opt/python/bin/python3")),
    "devices": ([BIG], SITE, EVERYTHING),
    "array": ([job(key=f"train[{index}]") for index in range(3)], SITE, settings(max_array=100)),
    "gang": ([GANG], SITE, settings(warn_before="90s", time_limit="30m")),
    "hook": ([job(hook=True, resources=ResourceSettings(gpu_count=8, nodes=2))], SITE, settings(partition="cpu")),
    "far": ([BIG], FAR, SlurmSettings(host="ssh://me@login")),
    "apptainer": ([CONTAINED], SITE, SlurmSettings(container="apptainer", mounts=["/data:/mnt/data:ro"])),
    "pyxis": ([CONTAINED], FAR, SlurmSettings(host="ssh://me@login", container="pyxis", mounts=["/data"])),
    "definition": (
        [built_there(DEFINITION)],
        SITE,
        SlurmSettings(container="apptainer", modules=["apptainer"]),
    ),
    "gang-in-images": (
        [job(resources=ResourceSettings(nodes=2, accelerators="MI300X:8"), docker=IMAGE)],
        SITE,
        SlurmSettings(container="singularity", python="/opt/conda/bin/python"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_script_is_this_one(case: str) -> None:
    jobs, site, given = CASES[case]
    told = to_json(slurm.specification(jobs[0], site, given, folder=FOLDER, token="t0ken", secret="s3cret"))
    text = slurm.script(jobs, site, given, folder=FOLDER, token="t0ken")
    text += "\n# job.json\n" + "".join(f"# {line}\n" for line in json.dumps(told, indent=1, sort_keys=True).split("\n"))
    path = GOLDEN / f"{case}.sh"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()
    strange = slurm.script(jobs, site, given, folder="/a folder/with $signs `and` %percents", token="t0ken")
    checked = subprocess.run(["bash", "-n"], input=strange, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_the_script_of_workers_is_this_one() -> None:
    given = SlurmSettings(python="/opt/python/bin/python3", modules="cuda/12.4", partition="gpu")
    first = job(key="train[3]", resources=ResourceSettings(cpu_count=4))
    text = slurm.worker_script(first, 20, SITE, given, folder=FOLDER, token="t0ken", pool=f"{FOLDER}/run1/p00l")
    path = GOLDEN / "workers.sh"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_steps_of_one_shape_ask_for_the_same() -> None:
    usual = slurm.shape(job(), SlurmSettings())
    assert slurm.shape(job("other", key="other[3]", environment={"A": "b"}), SlurmSettings()) == usual
    pickled = job()
    pickled = attrs.evolve(
        pickled, step=attrs.evolve(pickled.step, source=attrs.evolve(pickled.step.source, kind="pickled"))
    )
    different = [
        (job(timeout=60.0), SlurmSettings()),
        (job(resources=ResourceSettings(cpu_count=2)), SlurmSettings()),
        (job(), SlurmSettings(partition="gpu")),
        (pickled, SlurmSettings()),
    ]
    assert len({usual, *(slurm.shape(*one) for one in different)}) == 5


def test_an_arrays_parallelism() -> None:
    jobs = [job(key=f"train[{number}]") for number in range(30)]
    given = SlurmSettings(array_parallelism=4)
    assert "--array=0-29%4" in slurm.arguments(jobs, given, folder=FOLDER, token="t0ken")
    assert not [one for one in slurm.arguments(jobs[:1], given, folder=FOLDER, token="t0ken") if "--array" in one]


def test_what_the_step_is_told_is_not_for_everybody_to_read() -> None:
    assert "plugh" not in script(BIG)
    assert document(BIG)["environment"] == {"SECRET_WORD": "plugh"}
    made = to_json(
        slurm.specification(
            BIG, FAR, settings(), folder=FOLDER, token="t", environment={"AWS_SECRET_ACCESS_KEY": "xyzzy"}
        )
    )
    assert made["environment"]["AWS_SECRET_ACCESS_KEY"] == "xyzzy"


def test_the_interpreter_is_the_drivers_own_where_its_folders_are_seen() -> None:
    own = slurm.script([job()], SITE, SlurmSettings(), folder=FOLDER, token="t")
    assert f"exec {shlex.quote(sys.executable)} -m stoker.worker.boot" in own
    assert "PYTHONPATH" not in own, "it has Stoker"
    far = slurm.script([job()], FAR, SlurmSettings(host="ssh://login"), folder=FOLDER, token="t")
    assert "exec python3 -m stoker.worker.boot" in far
    assert f'export PYTHONPATH={FOLDER}/bundle-1"${{PYTHONPATH:+:$PYTHONPATH}}"' in far
    assert slurm.bundle_path(FAR, SlurmSettings(host="ssh://login"), FOLDER) == f"{FOLDER}/bundle-1"


def test_a_folder_that_nobody_shares_keeps_checkpoints_for_every_attempt() -> None:
    far = SlurmSettings(host="ssh://login")
    places = {
        to_json(slurm.specification(job(attempt=attempt), FAR, far, folder=FOLDER, token=f"t{attempt}"))["checkpoints"]
        for attempt in (1, 2)
    }
    assert places == {f"{FOLDER}/checkpoints"}
    assert document(job())["checkpoints"] == SITE.checkpoints


# Options


def test_what_is_asked_is_rounded_up_to_what_slurm_counts() -> None:
    found = options(job(resources=ResourceSettings(cpu_count=0.5, memory="1MiB", disk="1.5MiB")))
    assert {"--cpus-per-task=1", "--mem=1M", "--tmp=2M"} <= set(found)


@pytest.mark.parametrize(
    ("seconds", "text"), [(1, "0-00:00:01"), (90.5, "0-00:01:31"), (3600, "0-01:00:00"), (93784, "1-02:03:04")]
)
def test_times_are_written_as_slurm_reads_them(seconds: float, text: str) -> None:
    assert slurm.time_text(seconds) == text


def test_the_limit_is_longer_than_the_steps_own_timeout() -> None:
    assert not [one for one in options(job()) if one.startswith("--time=")]
    assert "--time=0-01:05:00" in options(job(timeout=3600.0))
    assert "--time=0-00:10:00" in options(job(timeout=3600.0), time_limit="10m")
    assert not [one for one in options(job(timeout=60.0, hook=True)) if one.startswith("--time=")]


@pytest.mark.parametrize(
    ("wanted", "given", "expected"),
    [
        ({"gpu_count": 2}, {}, ["--gres=gpu:2"]),
        ({"gpu_count": 2}, {"gpus_as": "gpus-per-node"}, ["--gpus-per-node=2"]),
        ({"accelerators": "H100:4"}, {}, ["--gres=gpu:h100:4"]),
        ({"accelerators": "H100"}, {"gpus_as": "gpus-per-node"}, ["--gpus-per-node=h100:1"]),
        (
            {"accelerators": "H100"},
            {"gres_types": {"H100": "nvidia_h100_80gb_hbm3"}},
            ["--gres=gpu:nvidia_h100_80gb_hbm3:1"],
        ),
        ({"accelerators": "H100"}, {"gres_types": {"H100": "gres/gpu"}}, ["--gres=gpu:1"]),
        ({"accelerators": "A100-80GB/1g.10gb:3"}, {}, ["--gres=gpu:a100_1g.10gb:3"]),
        ({"accelerators": "A100-80GB/1g.10gb"}, {"gres_types": {"A100-80GB": "a100l"}}, ["--gres=gpu:a100l_1g.10gb:1"]),
        ({"accelerators": "A100-80GB/1g.10gb"}, {"gres_types": {"A100-80GB/1g.10gb": "1g"}}, ["--gres=gpu:1g:1"]),
        ({"accelerators": "trainium:16"}, {"gres_types": {"trainium": "gres/neuron"}}, ["--gres=neuron:16"]),
        ({"accelerators": "trainium"}, {"gres_types": {"trainium": "gres/neuron:trn1"}}, ["--gres=neuron:trn1:1"]),
        (
            {"accelerators": "A100"},
            {"gres_types": {"A100": "gres/shard"}, "gpus_as": "gpus-per-node"},
            ["--gres=shard:1"],
        ),
        ({"accelerators": "H100"}, {"gres_types": {"H100": "feature/h100"}}, ["--gres=gpu:1", "--constraint=h100"]),
        (
            {"accelerators": "H100"},
            {"gres_types": {"H100": "feature/h100"}, "constraint": "ib&big"},
            ["--gres=gpu:1", "--constraint=ib&big&h100"],
        ),
        (
            {"accelerators": ["H100:2", "A100:2"]},
            {"gres_types": {"H100": "feature/h100", "A100": "feature/a100"}},
            ["--gres=gpu:2", "--constraint=h100|a100"],
        ),
        (
            {"accelerators": ["H100:2", "A100:2"], "nodes": 2},
            {"gres_types": {"H100": "feature/h100", "A100": "feature/a100"}},
            ["--gres=gpu:2", "--constraint=[h100|a100]"],
        ),
        ({"accelerators": ["H100:2", "A100:4"]}, {}, ["--gres=gpu:h100:2"]),
        ({"gpu_memory": "70GB"}, {"gres_types": {"T4": "t4", "H200": "h200", "H100": "h100"}}, ["--gres=gpu:h100:1"]),
        (
            {"gpu_vendor": "amd", "gpu_count": 2},
            {"gres_types": {"H100": "h100", "MI300X": "mi300"}},
            ["--gres=gpu:mi300:2"],
        ),
        ({"extended": {"neuron": 8, "fpga:u250": 1}}, {}, ["--gres=fpga:u250:1,neuron:8"]),
        ({"extended": {"lic": 1}, "gpu_count": 1}, {"gpus_as": "gpus-per-node"}, ["--gres=lic:1", "--gpus-per-node=1"]),
    ],
)
def test_accelerators_are_asked_for_by_the_sites_names(
    wanted: dict[str, Any], given: dict[str, Any], expected: list[str]
) -> None:
    found = options(job(resources=ResourceSettings(**wanted)), **given)
    assert [one for one in found if one.startswith(("--gres", "--gpus", "--constraint"))] == expected


def test_every_kind_has_a_name_or_is_known_to_have_none() -> None:
    for name, model in MODELS.items():
        found = slurm.site_name(Accelerator(name=name), {})
        assert (found is None) == (model.vendor in ("tpu", "neuron"))
        assert found is None or (found.guess and found.type and found.type == found.type.lower())


# Groups


def test_alike_jobs_are_one_group_and_others_are_not() -> None:
    one = slurm.group(job(key="train[0]"), settings())
    assert one == slurm.group(job(key="train[1]", attempt=2), settings())
    others = [
        slurm.group(job(key="train[1]"), settings(partition="gpu")),
        slurm.group(job(key="train[1]", resources=ResourceSettings(cpu_count=2)), settings()),
        slurm.group(job(key="train[1]", timeout=60.0), settings()),
        slurm.group(job("other", key="train[1]"), settings()),
        slurm.group(job(key="train[1]", hook=True), settings()),
        slurm.group(job(key="train[1]", docker=IMAGE), settings()),
        slurm.group(attrs.evolve(job(key="train[1]"), run="run2"), settings()),
    ]
    assert len({one, *others}) == 1 + len(others)


def test_a_gang_is_never_a_task_of_an_array() -> None:
    gangs = [job(key=f"train[{index}]", resources=ResourceSettings(nodes=2)) for index in range(2)]
    assert slurm.group(gangs[0], settings()) != slurm.group(gangs[1], settings())


# Containers


@pytest.mark.parametrize(
    ("image", "docker", "enroot"),
    [
        ("pytorch/pytorch:2.8.0", "docker://pytorch/pytorch:2.8.0", "pytorch/pytorch:2.8.0"),
        ("nvcr.io/nvidia/pytorch:25.01", "docker://nvcr.io/nvidia/pytorch:25.01", "nvcr.io#nvidia/pytorch:25.01"),
        ("localhost:5000/ml:1", "docker://localhost:5000/ml:1", "localhost:5000#ml:1"),
        ("docker://ghcr.io/a/b", "docker://ghcr.io/a/b", "ghcr.io#a/b"),
        ("/shared/image.sif", "/shared/image.sif", "/shared/image.sif"),
        ("oras://ghcr.io/a/b:1", "oras://ghcr.io/a/b:1", "oras://ghcr.io/a/b:1"),
    ],
)
def test_an_image_is_named_as_each_program_takes_it(image: str, docker: str, enroot: str) -> None:
    assert docker_address(image) == docker
    assert enroot_address(image) == enroot


@pytest.mark.parametrize(
    ("wanted", "flags"),
    [({"gpu_count": 1}, "--nv"), ({"accelerators": "H100"}, "--nv"), ({"accelerators": "MI300X"}, "--rocm"), ({}, "")],
)
def test_a_container_gets_the_driver_of_the_steps_devices(wanted: dict[str, Any], flags: str) -> None:
    made = script(job(docker=IMAGE, resources=ResourceSettings(**wanted)), container="apptainer")
    found = {word for word in made.split() if word in ("--nv", "--rocm")}
    assert found == ({flags} if flags else set())


# Run by a shell


def run(text: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    path = folder / "script.sh"
    path.write_text(text)
    return subprocess.run(
        ["bash", path], capture_output=True, text=True, check=False, env={**os.environ, **environment}, timeout=120
    )


def laid_out(one: Job, folder: Path, **given: Any) -> tuple[str, Path]:
    """A job's script and its own folder, with its document, below a folder whose name has all that shells mind."""
    home = str(folder / "a folder $HOME `date` *")
    site = attrs.evolve(SITE, artifacts=str(folder / "artifacts"), package="", path=(), folder=str(folder), bundle="")
    here = Path(slurm.submission_folder(home, one.run, "t0ken", 0))
    here.mkdir(parents=True)
    source = attrs.evolve(one.step.source, path=str(folder / "train.py"), root=str(folder), module="train")
    one = attrs.evolve(one, step=attrs.evolve(one.step, source=source, outputs=()))
    (folder / "train.py").write_text("import os\n\n\ndef train():\n    print('word', os.environ['WORD'])\n")
    told = to_json(slurm.specification(one, site, SlurmSettings(**given), folder=home, token="t0ken"))
    (here / slurm.DOCUMENT).write_text(json.dumps(told))
    return slurm.script([one], site, SlurmSettings(**given), folder=home, token="t0ken"), here


def test_the_script_of_one_node_becomes_the_worker(tmp_path: Path) -> None:
    text, here = laid_out(job(environment={"WORD": "plugh"}), tmp_path)
    for name in ("result.json", "result-1.json", "samples.jsonl", "warned"):
        (here / name).write_text("of an earlier start")
    done = run(text, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "word plugh" in done.stdout
    assert json.loads((here / "result.json").read_text())["ok"] is True
    assert {path.name for path in here.iterdir()} == {"job.json", "result.json"}


def test_what_comes_before_the_worker_is_done_before_it(tmp_path: Path) -> None:
    lines = ["export WORD=prolog", "# a comment", "true | cat"]
    text, _ = laid_out(job(), tmp_path, setup=lines, modules=["cuda/12.4", "python/3.11"])
    module = '() { echo "module $*"; }'
    done = run(text, tmp_path, **{"BASH_FUNC_module%%": module})
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.split("\n") if line.startswith(("module", "word"))]
    assert said == ["module load cuda/12.4 python/3.11", "word prolog"]


@pytest.mark.parametrize("given", [{"modules": ["cuda/99"]}, {"setup": ["module load cuda/99", "echo not this"]}])
def test_a_line_that_fails_ends_the_job_and_is_named(given: dict[str, Any], tmp_path: Path) -> None:
    text, here = laid_out(job(environment={"WORD": "x"}), tmp_path, **given)
    done = run(text, tmp_path, **{"BASH_FUNC_module%%": "() { return 3; }"})
    assert done.returncode == 3
    assert "before the step began, this failed" in done.stderr
    assert "not this" not in done.stdout
    assert not (here / "result.json").exists()


# With Slurm's own programs


def test_every_option_that_this_sbatch_has_is_known(slurm_cluster: Cluster) -> None:
    text = slurm_cluster.run("sbatch", "--help").stdout
    there = {name.rstrip("-") for name in re.findall(r"--([a-z][a-z-]*)", text)}
    fields = {field.name.replace("_", "-") for field in attrs.fields(SlurmSettings)}
    assert "constraint" in there
    assert there <= {*OPTIONS, *ELSEWHERE}, "a table lacks these"
    assert {name.replace("_", "-") for name in slurm._PLAIN} <= fields & there


@pytest.mark.parametrize("form", ["script", "command line"])
def test_slurm_reads_the_options_as_they_are_meant(form: str, slurm_cluster: Cluster, tmp_path: Path) -> None:
    one = job(
        "a job's name",
        resources=ResourceSettings(cpu_count=1.5, memory="1GB", disk="1GiB", accelerators="V100:2", nodes=2),
    )
    given = settings(
        partition="short",
        constraint="v100",
        exclude="n3",
        time_limit="90s",
        warn_before="61s",
        exclusive="user",
        mail_type="FAIL",
        mail_user="me@example.org",
        options={"nice": 7, "contiguous": True, "begin": "now+1hour"},
    )
    home = str(tmp_path / "a folder, with 100%")
    Path(slurm.submission_folder(home, "run1", "t0ken")).mkdir(parents=True)
    path = tmp_path / "script.sh"
    told = slurm.arguments([one], given, folder=home, token="t0ken")
    text = slurm.script([one], SITE, given, folder=home, token="t0ken")
    path.write_text(text if form == "script" else "#!/bin/sh\ntrue\n")
    words = [] if form == "script" else told
    number = slurm_cluster.run("sbatch", "--parsable", *words, str(path)).stdout.strip()
    try:
        shown = slurm_cluster.run("scontrol", "show", "job", number).stdout
    finally:
        slurm_cluster.run("scancel", number)
    for expected in (
        "JobName=stoker/a-job-s-name",
        "Comment=t0ken",
        "Partition=short",
        "NumNodes=2",
        "CPUs/Task=2",
        "MinMemoryNode=954M",
        "MinTmpDiskNode=1G",
        "TresPerNode=gres:gpu:v100:2",
        "Features=v100",
        "ExcNodeList=n3",
        "TimeLimit=00:02:00",
        "Nice=7",
        "Contiguous=1",
        "Requeue=0",
        f"WorkDir={home}/run1/t0ken",
    ):
        assert expected in shown, shown
