"""What Slurm makes of each field: every one is in the script, or something is said of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import pytest
from tests.slurm.test_script import FAR, FOLDER, IMAGE, SITE, job

from stoker.backends.slurm import script as slurm
from stoker.backends.slurm.check import check
from stoker.config import SlurmSettings
from stoker.core.codec import to_json
from stoker.core.data import DataCache
from stoker.core.docker import DockerSettings
from stoker.core.findings import Finding
from stoker.core.packages import PackageSettings
from stoker.core.plan import Job, Site
from stoker.core.resources import Monitor, ResourceSettings
from stoker.core.settings import Retry, StepSettings
from stoker.launchers.options import resolve_launch


def found(one: Job, site: Site = SITE, **given: Any) -> list[Finding]:
    return list(check(one.step, SlurmSettings(**given), site))


def sent(one: Job, site: Site = SITE, **given: Any) -> str:
    """All that Slurm and the worker are given."""
    settings = SlurmSettings(**given)
    folder = settings.get("folder", FOLDER)
    told = to_json(slurm.specification(one, site, settings, folder=folder, token="t"))
    return slurm.script([one], site, settings, folder=folder, token="t") + json.dumps(told, sort_keys=True)


def codes(findings: Iterable[Finding]) -> list[tuple[str, str]]:
    return [(finding.code, finding.level) for finding in findings]


# Each option of a step, one at a time; resources and SlurmSettings are held by tests/backends/test_every_field.py

STEP: Mapping[str, tuple[Any, str]] = {
    # field → a value, and where it shows: what Slurm or the worker is given, what is said, or whose it is
    "resources": (ResourceSettings(cpu_count=2), "sent"),
    "docker": (IMAGE, "STK159"),
    "packages": (PackageSettings(pypi={"six": "1.16.0"}), "plan.environments compares them"),
    "retry": (Retry(times=3), "the engine's"),
    "timeout": (60.0, "sent"),
    "cache": (False, "the engine's"),
    "cache_key": ("x", "the engine's"),
    "cache_expires": (60.0, "the engine's"),
    "isolation": ("fresh", "each job is a process of its own"),
    "accelerator_policy": ("prefer", "STK166"),
    "health_check": ("quick", "sent"),
    "on_idle_gpu": ("stop", "sent"),
    "monitor": (Monitor(0.5, idle_below=1.0, idle_for=60.0), "sent"),
    "checkpoint_every": (60.0, "sent"),
    "track": (("tensorboard",), "sent"),
    "previews": (False, "sent"),
    "environment": ({"A": "b"}, "sent"),
    "launch": (resolve_launch({"launcher": "torchrun"}), "sent"),
    "step_operator": ("gpu", "the planner's"),
    "backend": ({"orchestrator": {"partition": "gpu"}}, "settings_of reads it"),
    "data": ({"words": {"uri": "/words"}}, "the planner's"),
    "data_cache": (DataCache(size="1GB"), "sent with what the planner makes of data"),
}


@pytest.mark.parametrize("name", [field.name for field in attrs.fields(StepSettings)])
def test_each_setting_of_a_step_is_sent_or_spoken_of_or_somebody_elses(name: str) -> None:
    value, expected = STEP[name]
    base: dict[str, Any] = {} if name == "resources" else {"resources": ResourceSettings(gpu_count=1)}
    before, after = job(**base), job(**{**base, name: value})
    if expected == "sent":
        assert sent(after) != sent(before)
    elif expected.startswith("STK"):
        assert expected in dict(codes(found(after)))
    else:
        assert found(after) == found(before)


# Single rules


def test_a_plain_step_has_nothing_to_be_said_of() -> None:
    assert found(job()) == []
    assert found(job(resources=ResourceSettings(cpu_count=4, memory="8GB", accelerators="H100:2", nodes=2))) == []
    assert found(job(), FAR, host="ssh://login") == []


@pytest.mark.parametrize(
    ("wanted", "given", "expected"),
    [
        ({"cpu_count": 0.5}, {}, [("STK150", "translated")]),
        ({"cpu_count": 2.0}, {}, []),
        ({"accelerators": "A100-80GB"}, {}, [("STK152", "translated")]),
        ({"accelerators": "A100-80GB"}, {"gres_types": {"A100-80GB": "a100"}}, []),
        ({"accelerators": "A100-80GB/1g.10gb"}, {}, [("STK152", "translated")]),
        ({"accelerators": ["H100:2", "A100:2"]}, {}, [("STK152", "translated")]),
        ({"accelerators": ["H100:2", "H100:2"]}, {}, []),
        (
            {"accelerators": ["H100:2", "A100:2"]},
            {"gres_types": {"H100": "feature/h100", "A100": "feature/a100"}},
            [],
        ),
        (
            {"accelerators": ["H100:2", "A100:2"]},
            {"gres_types": {"H100": "feature/h100", "A100": "feature/a100"}, "constraint": "ib"},
            [("STK158", "error")],
        ),
        (
            {"accelerators": "H100"},
            {"gres_types": {"H100": "feature/h100"}, "constraint": "a|b"},
            [("STK158", "error")],
        ),
        ({"accelerators": "H100"}, {"gres_types": {"H100": "feature/h100"}, "constraint": ["a", "b"]}, []),
        ({"accelerators": "trainium"}, {}, [("STK151", "error")]),
        ({"accelerators": "tpu-v5e"}, {"gres_types": {"tpu-v5e": "gres/tpu"}}, []),
        ({"gpu_memory": "70GB"}, {"gres_types": {"H100": "h100"}}, [("STK152", "translated")]),
        ({"gpu_memory": "90GB"}, {"gres_types": {"H100": "h100"}}, [("STK151", "error")]),
        ({"gpu_memory": "10GB", "share": True}, {"gres_types": {"H100": "gres/shard"}}, [("STK153", "error")]),
        ({"gpu_vendor": "nvidia"}, {"gres_types": {"H100": "h100"}}, [("STK152", "translated")]),
        ({"spot": True}, {"qos": "preempt"}, [("STK154", "translated")]),
        ({"spot": True}, {"partition": "spot"}, [("STK154", "translated")]),
        ({"spot": True}, {}, [("STK154", "error")]),
        ({"extended": {"neuron": 2.5}}, {}, [("STK155", "error")]),
        ({"extended": {"example.com/fpga": 1}}, {}, [("STK155", "error")]),
        ({"extended": {"gpu": 1}}, {}, [("STK155", "error")]),
        ({"extended": {"fpga:u250": 1}}, {}, []),
        ({"shared_memory": "8GB"}, {}, [("STK156", "translated")]),
        ({"shared_memory": "8GB", "memory": "4GB"}, {}, [("STK156", "error")]),
    ],
)
def test_resources(wanted: dict[str, Any], given: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert codes(found(job(resources=ResourceSettings(**wanted)), **given)) == expected


@pytest.mark.parametrize(
    ("docker", "given", "expected"),
    [
        (IMAGE, {"container": "apptainer"}, []),
        (IMAGE, {}, ["STK159"]),
        (DockerSettings(requirements=["six"]), {"container": "apptainer"}, ["STK262"]),
        (DockerSettings(requirements=["six"], dockerfile="D"), {"container": "singularity"}, ["STK157"]),
        (DockerSettings(requirements=["six"]), {"container": "pyxis"}, ["STK157"]),
        (DockerSettings(skip_build=True), {"container": "apptainer"}, ["STK157"]),
        (
            DockerSettings(skip_build=True, parent_image="a/b", apt_packages=["git"]),
            {"container": "pyxis"},
            ["STK157"],
        ),
        (DockerSettings(skip_build=True, parent_image="a/b", user="1000"), {"container": "pyxis"}, ["STK157"]),
        (DockerSettings(skip_build=True, parent_image="a/b", image_tag="x"), {"container": "pyxis"}, []),
        (IMAGE, {"container": "apptainer", "mounts": ["data:/data"]}, ["STK160"]),
        (IMAGE, {"container": "apptainer", "folder": "/shared/a:b"}, ["STK160"]),
        (None, {"container": "apptainer", "mounts": ["data:/data"], "folder": "/shared/a:b"}, []),
    ],
)
def test_images(docker: DockerSettings | None, given: dict[str, Any], expected: list[str]) -> None:
    assert [code for code, _ in codes(found(job(docker=docker), **given))] == expected


@pytest.mark.parametrize(
    ("store", "given", "expected"),
    [
        ("/home/me/artifacts", {}, []),
        ("/home/me/artifacts", {"host": "ssh://login"}, ["STK161"]),
        ("/home/me/artifacts", {"host": "ssh://login", "shares_files": True}, []),
        ("/home/me/artifacts", {"shares_files": False}, ["STK161"]),
        ("s3://bucket/store", {"host": "ssh://login"}, []),
        ("ssh://login/~/.stoker/slurm/artifacts", {"host": "ssh://login"}, []),
        ("ssh://login/data/store", {"host": "ssh://login", "shares_files": True}, []),
        ("ssh://other/data/store", {"host": "ssh://login"}, ["STK161"]),
        ("ssh://login/data/store", {}, ["STK161"]),
        ("memory://store", {}, ["STK161"]),
        ("memory://store", {"host": "ssh://login"}, ["STK161"]),
    ],
)
def test_the_artifact_store_is_one_that_nodes_reach(store: str, given: dict[str, Any], expected: list[str]) -> None:
    assert [code for code, _ in codes(found(job(), attrs.evolve(SITE, artifacts=store), **given))] == expected


@pytest.mark.parametrize(
    ("timeout", "given", "expected"),
    [
        (3600.0, {"time_limit": "30m"}, [("STK163", "translated")]),
        (3600.0, {"time_limit": "2h"}, []),
        (3600.0, {"warn_before": "1h"}, [("STK164", "error")]),
        (None, {"time_limit": "5m", "warn_before": "5m"}, [("STK164", "error")]),
        (None, {"warn_before": "5m"}, []),
        (None, {"requeue": True}, [("STK165", "translated"), ("STK369", "info")]),
    ],
)
def test_times(timeout: float | None, given: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert codes(found(job(timeout=timeout), **given)) == expected


@pytest.mark.parametrize(
    ("packages", "given", "expected"),
    [
        ({"pypi": {"six": "1.16.0"}}, {}, []),
        ({"pypi": {"six": "1.16.0"}}, {"python": "/opt/python/bin/python3"}, ["STK162"]),
        ({"pypi": {"six": "1.16.0"}}, {"host": "ssh://login"}, ["STK162"]),
        ({"pypi": {"six": "1.16.0"}, "disabled": True}, {"host": "ssh://login"}, []),
    ],
)
def test_packages(packages: dict[str, Any], given: dict[str, Any], expected: list[str]) -> None:
    one = job(packages=PackageSettings(**packages))
    assert [code for code, _ in codes(found(one, FAR, **given))] == expected


def test_which_devices_a_step_sees_is_not_its_own_to_say() -> None:
    said = found(job(environment={"CUDA_VISIBLE_DEVICES": "0"}))
    assert codes(said) == [("STK112", "error")]
    assert "CUDA_VISIBLE_DEVICES" in said[0].what


def test_every_refusal_says_why_and_what_to_do() -> None:
    worst = job(
        resources=ResourceSettings(
            cpu_count=0.5, gpu_memory="1TB", spot=True, extended={"a/b": 1}, shared_memory="1GB"
        ),
        docker=DockerSettings(requirements=["six"]),
        packages=PackageSettings(pypi={"six": "1"}),
        timeout=60.0,
        environment={"CUDA_VISIBLE_DEVICES": "0"},
    )
    said = found(worst, host="ssh://login", warn_before="1h", requeue=True)
    assert {"STK151", "STK154", "STK155", "STK157", "STK161", "STK162", "STK164"} <= {one.code for one in said}
    for finding in said:
        assert finding.what and finding.why and finding.where == "train.py:7 step 'train'"
        assert finding.fix or finding.level == "translated"


def test_a_fix_names_the_settings_of_the_part_that_the_step_runs_on() -> None:
    one = job(resources=ResourceSettings(spot=True), backend={"step_operator": {"account": "lab"}})
    assert "--set steps.train.step_operator.slurm.qos=NAME" in found(one)[0].fix


@pytest.mark.parametrize(
    ("docker", "given", "expected"),
    [
        (DockerSettings(requirements=["six"]), {"container": "apptainer"}, []),
        (DockerSettings(requirements=["six"], apt_packages=["git"]), {"container": "pyxis"}, []),
        (DockerSettings(requirements=["six"]), {}, ["STK159"]),
        (DockerSettings(requirements=["six"], user="1000"), {"container": "apptainer"}, ["STK157"]),
        (DockerSettings(skip_build=True), {"container": "apptainer"}, ["STK157"]),
    ],
)
def test_images_that_a_stacks_registry_takes(
    docker: DockerSettings, given: dict[str, Any], expected: list[str]
) -> None:
    site = attrs.evolve(SITE, registry="ghcr.io/team")
    assert [code for code, _ in codes(found(job(docker=docker), site, **given))] == expected


@pytest.mark.parametrize(
    ("wanted", "given", "why"),
    [
        ({}, {}, ""),
        ({}, {"exclusive": True, "options": {"licenses": "matlab:1", "hold": False}}, ""),
        ({"resources": ResourceSettings(nodes=2)}, {}, "several nodes"),
        ({"docker": IMAGE}, {"container": "apptainer"}, "an image"),
        ({}, {"requeue": True}, "requeue=true"),
        ({}, {"mail_type": "END"}, "mail_type"),
        ({}, {"options": {"dependency": "afterok:12"}}, "dependency"),
        ({}, {"options": {"begin": "now+1hour"}}, "begin"),
    ],
)
def test_reuse_that_cannot_be_is_refused(wanted: dict[str, Any], given: dict[str, Any], why: str) -> None:
    findings = [one for one in found(job(**wanted), reuse=True, **given) if one.code == "STK251"]
    assert bool(findings) == bool(why)
    assert all(why in one.why and "reuse=auto" in one.fix for one in findings)
    assert "STK251" not in [one.code for one in found(job(**wanted), reuse="auto", **given)]
