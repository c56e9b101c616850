"""What is taken of a person's settings for Slurm, and what is refused with which words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest

from stoker import config, stacks
from stoker.backends.slurm.settings import ELSEWHERE, MAIL_TYPES, OPTIONS
from stoker.config import SlurmSettings, Stack
from stoker.core.errors import SettingsError
from stoker.core.settings import fields_given
from stoker.core.units import UNSET
from stoker.plan.layers import resolve
from stoker.settings.options import flavor_of, layer_of

TAKEN: Mapping[str, tuple[Any, Any]] = {
    "host": ("ssh://me@login:2222", "ssh://me@login:2222"),
    "shares_files": (True, True),
    "folder": ("~/slurm/", "~/slurm"),
    "python": ("/opt/python/bin/python3", "/opt/python/bin/python3"),
    "partition": (["gpu", "long"], "gpu,long"),
    "account": ("lab", "lab"),
    "qos": ("high", "high"),
    "constraint": (["h100", "ib"], "h100&ib"),
    "reservation": ("tuesday", "tuesday"),
    "nodelist": ("n[1-4]", "n[1-4]"),
    "exclude": (["n1", "n2"], "n1,n2"),
    "time_limit": ("4h", 14400.0),
    "warn_before": (timedelta(minutes=5), 300.0),
    "requeue": (True, True),
    "exclusive": ("user", "user"),
    "mail_type": (["end", "fail"], "END,FAIL"),
    "mail_user": ("me@example.org", "me@example.org"),
    "job_name": ("{pipeline}-{step}", "{pipeline}-{step}"),
    "comment": ("for the paper", "for the paper"),
    "modules": ("cuda/12.4 python/3.11", ("cuda/12.4", "python/3.11")),
    "setup": ("ulimit -l unlimited", ("ulimit -l unlimited",)),
    "conda": ("~/envs/torch/", "~/envs/torch"),
    "venv": ("/shared/env/", "/shared/env"),
    "gpus_as": ("gpus-per-node", "gpus-per-node"),
    "gres_types": ({"h100-80gb": "h100", "trn1": "gres/neuron"}, {"H100": "h100", "trainium": "gres/neuron"}),
    "container": ("apptainer", "apptainer"),
    "mounts": (["/data:/data:ro"], ("/data:/data:ro",)),
    "options": ({"--time_min": "1h", "contiguous": True}, {"time-min": "1h", "contiguous": True}),
    "poll": ("5s", 5.0),
    "max_array": ("100", 100),
    "reuse": ("auto", "auto"),
    "idle_after": ("1m", 60.0),
    "max_jobs": ("4", 4),
    "array_parallelism": (20, 20),
    "max_submit": (100, 100),
    "submit_rate": ("6", 6.0),
    "driver": ({"partition": "long", "time_limit": "30d"}, {"partition": "long", "time_limit": 2592000.0}),
}
"""field → what a person writes, and what is kept of it"""


@pytest.mark.parametrize("name", [field.name for field in attrs.fields(SlurmSettings)])
def test_each_field_takes_what_people_write(name: str) -> None:
    written, kept = TAKEN[name]
    settings = SlurmSettings(**{name: written})
    assert getattr(settings, name) == kept
    # A layer keeps plain values, from which the settings are made once more when layers are merged.
    assert SlurmSettings(**fields_given(settings)) == settings
    assert getattr(SlurmSettings(), name) is UNSET
    assert getattr(SlurmSettings(**{name: None}), name) is None, "None takes back what weaker layers say"


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ({"time_limit": "1-12"}, 129600.0),
        ({"time_limit": "1-00:30"}, 88200.0),
        ({"time_limit": "2-00:00:01"}, 172801.0),
        ({"time_limit": "04:00:00"}, 14400.0),
        ({"time_limit": "30:00"}, 1800.0),
        ({"venv": "~/env/bin/activate"}, "~/env"),
        ({"options": {"H": True, "L": "matlab:1"}}, {"hold": True, "licenses": "matlab:1"}),
        ({"options": {"mem": 0}}, {"mem": "0"}),
    ],
)
def test_words_of_sbatch_mean_what_they_mean_there(written: dict[str, Any], kept: Any) -> None:
    assert getattr(SlurmSettings(**written), next(iter(written))) == kept


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"partiton": "gpu"}, "did you mean 'partition'"),
        ({"host": "login.example.org"}, "ssh://login.example.org"),
        ({"folder": "slurm"}, "not a path from the root"),
        ({"folder": "/a\\b"}, "letters that Slurm does not take"),
        ({"folder": "/a\nb"}, "letters that Slurm does not take"),
        ({"partition": "a b"}, "not a name"),
        ({"partition": ""}, "partition: '' is not a text"),
        ({"partition": []}, "empty"),
        ({"account": "a'b"}, "not a name"),
        ({"time_limit": "4 fortnights"}, "unknown unit"),
        ({"time_limit": 0}, "no time at all"),
        ({"time_limit": "00:00:00"}, "no time at all"),
        ({"time_limit": "90"}, 'write "90m" for minutes'),
        ({"time_limit": 90}, 'write "90m" for minutes'),
        ({"python": "3.11.4"}, 'write "python3.11", or a path'),
        ({"time_limit": "1:2:3:4"}, "not a duration"),
        ({"warn_before": "1d"}, "longer than Slurm can warn"),
        ({"requeue": "yes"}, "write true or false"),
        ({"exclusive": "users"}, "did you mean 'user'"),
        ({"mail_type": "ENDS"}, "did you mean 'END'"),
        ({"modules": ["a b"]}, "not the name of a module"),
        ({"setup": ["", "x"]}, "not a text"),
        ({"prolog": ["x"]}, "no field 'prolog'"),
        ({"gres": "gpu:2"}, "gpu_count"),
        ({"cpus_per_task": 4}, "cpu_count"),
        ({"t": "1:00:00"}, "time_limit=… of SlurmSettings"),
        ({"walltime": "1:00:00"}, "time_limit=… of SlurmSettings"),
        ({"nice": 10}, 'options = { "nice" = … }'),
        ({"options": {"-p": "gpu"}}, "partition=… of SlurmSettings"),
        ({"options": {"mem": "4G"}}, "options = { mem = 0 }"),
        ({"options": "--nice=10"}, "write { name"),
        ({"conda": "envs/torch"}, "not a path from the root"),
        ({"venv": "env"}, "not a path from the root"),
        ({"gpus_as": "gpu-per-node"}, "did you mean 'gpus-per-node'"),
        ({"gres_types": {"H1000": "h100"}}, "did you mean 'H100'"),
        ({"gres_types": {"H100:2": "h100"}}, 'name the kind alone: "H100"'),
        ({"gres_types": {"H100": "gpu:h100"}}, 'write "h100"'),
        ({"gres_types": {"H100": "h100 a100"}}, "not a type of GRES"),
        ({"container": "docker"}, "apptainer, singularity, pyxis"),
        ({"mounts": ["a:b:c:d"]}, "not a mount"),
        ({"options": {"contigous": True}}, "did you mean 'contiguous'"),
        ({"options": {"array": "0-3"}}, ".map"),
        ({"options": {"gres": "gpu:1"}}, "gpu_count"),
        ({"options": {"contiguous": 1}}, "neither true nor false"),
        ({"options": {"mincpus": "many"}}, "not a whole number"),
        ({"options": {"begin": True}}, "not a text"),
        ({"options": {"wckey": "a\nb"}}, "not a text"),
        ({"options": {"time-min": "1h", "time_min": "2h"}}, "twice"),
        ({"poll": "0s"}, "no time at all"),
        ({"max_array": 0}, "less than 1"),
        ({"driver": {"partiton": "long"}}, "did you mean 'partition'"),
        ({"driver": {"time_limit": "ever"}}, "driver: time_limit"),
        ({"driver": {"memory": "much"}}, "driver: memory"),
        ({"driver": {"qos": "a b"}}, "not a name"),
    ],
)
def test_what_makes_no_sense_is_refused_with_words(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError) as refused:
        SlurmSettings(**wrong)
    text = f"{refused.value} {refused.value.fix}"
    assert words in text
    assert next(iter(wrong)) in text, "the field is named"


@pytest.mark.parametrize("name", sorted(ELSEWHERE))
def test_an_option_that_stoker_sets_is_refused_with_its_place(name: str) -> None:
    with pytest.raises(SettingsError) as refused:
        SlurmSettings(options={name: "x"})
    assert refused.value.fix == ELSEWHERE[name]
    assert name not in OPTIONS


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_every_further_option_is_taken(name: str) -> None:
    value: Any = {"flag": True, "number": 2, "text": "x", "either": "1"}[OPTIONS[name]]
    assert SlurmSettings(options={name: value}).get("options") == {name: value}
    assert SlurmSettings(options={name: None}).get("options") == {name: None}


def test_mail_types_are_slurms_own() -> None:
    for kind in MAIL_TYPES:
        assert SlurmSettings(mail_type=kind.lower()).mail_type == kind


# In a stack


STACK = """
[stacks.cluster]
orchestrator = {flavor = "slurm", partition = "gpu", host = "ssh://me@login", gres_types = {H100 = "h100"}}
artifact_store = "s3://bucket/store"
"""


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    (tmp_path / "stoker.toml").write_text(STACK)
    monkeypatch.chdir(tmp_path)
    return config.load("cluster")


def test_a_stack_says_where_and_a_step_says_how(stack: Stack) -> None:
    assert flavor_of(SlurmSettings()) == "slurm"
    step = layer_of(
        "train.py:3", {"orchestrator.slurm": SlurmSettings(partition="a100", time_limit="8h")}, level="step"
    )
    settings, origins = resolve([step], stack)
    merged = SlurmSettings(**settings.backend["orchestrator"])
    assert (merged.partition, merged.time_limit, merged.host) == ("a100", 28800.0, "ssh://me@login")
    assert merged.get("gres_types") == {"H100": "h100"}
    assert "over" in origins["orchestrator.partition"]


def test_a_stacks_mistake_is_shown_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stoker.toml").write_text('[stacks.cluster.orchestrator]\nflavor = "slurm"\npartiton = "gpu"\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match="partition") as refused:
        config.load("cluster")
    assert refused.value.where == "stoker.toml:3"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ('host = "ssh://me@login:22"', "ssh://me@login:22/~/.stoker/slurm/artifacts"),
        ('host = "ssh://login", folder = "/scratch/$USER/runs/"', "ssh://login/scratch/$USER/runs/artifacts"),
        ('host = "ssh://login", shares_files = true', ""),
        ("poll = 2", ""),
    ],
)
def test_a_stack_behind_a_login_node_has_its_store_there(
    options: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    text = f'[stacks.far]\norchestrator = {{flavor = "slurm", {options}}}\n'
    (tmp_path / "stoker.toml").write_text(text)
    stack = stacks.load("far", tmp_path)
    assert stack.artifact_store == (expected or f"file://{tmp_path}/home/artifacts")
    (tmp_path / "stoker.toml").write_text(f'{text}artifact_store = "ssh://login"\n')
    with pytest.raises(SettingsError, match="names no folder") as caught:
        stacks.load("far", tmp_path)
    assert caught.value.where.endswith("stoker.toml:3")
