"""What SkyPilot prints and its catalogs say, over the whole of their grammars: what is not understood proves nothing.

The states and fields are those of `schemas/answers.json`; the rows of catalogs are real ones, of
https://github.com/skypilot-org/skypilot-catalog, catalogs/v8.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.skypilot.answers import ANSWERS, thinned

from stoker.backends.base.platforms import Away
from stoker.backends.skypilot import catalog
from stoker.backends.skypilot.backend import numbers
from stoker.backends.skypilot.catalog import gpu_memory, number, offers
from stoker.backends.skypilot.command import GONE, UP, WAITING, SkyCommand, state_of_cluster, state_of_managed
from stoker.backends.skypilot.settings import SkypilotSettings, count_of
from stoker.core.errors import SettingsError

SEEDS = st.integers(0, 2**32).map(random.Random)
DIGITS = st.text("0123456789", min_size=1, max_size=12)


@given(DIGITS, st.none() | DIGITS)
def test_every_number_of_a_catalog_has_its_value(digits: str, part: str | None) -> None:
    text = digits if part is None else f"{digits}.{part}"
    assert number(text) == float(text)


@given(st.text(max_size=8) | st.sampled_from(["", "nan", "NaN", "inf", "-1", "1e3", " 1", "1_0", "N/A", "٣", "$2.5"]))
def test_what_is_no_number_of_a_catalog_is_unknown(text: str) -> None:
    found = number(text)
    assert found is None or (text.replace(".", "", 1).isascii() and float(text) == found)


@given(
    st.sampled_from(["V100", "A100-80GB", "40GB+", "nvidia:40GB+", "tpu-v5litepod-8"]), st.none() | st.floats(0.01, 99)
)
def test_every_count_of_accelerators(name: str, count: float | None) -> None:
    text = name if count is None else f"{name}:{count:.3f}"
    assert count_of(text) == (1 if count is None else -int(-float(f"{count:.3f}") // 1))


# Catalogs


LAMBDA = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice
cpu_4x_general,,,4.0,16.0,0.2,us-east-1,,
gpu_8x_v100,V100,8.0,92.0,448.0,6.32,us-east-1,"{'Gpus': [{'Name': 'V100', 'Manufacturer': 'NVIDIA', 'Count': 8.0, \
'MemoryInfo': {'SizeInMiB': 16384}}], 'TotalGpuMemoryInMiB': 16384}",
gpu_1x_a6000,A6000,1.0,14.0,100.0,1.09,us-east-1,"{'Gpus': [{'Name': 'A6000', 'Manufacturer': 'NVIDIA', 'Count': 1.0, \
'MemoryInfo': {'SizeInMiB': 49152}}], 'TotalGpuMemoryInMiB': 49152}",
"""
VAST = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region
2x-H200-32-65536,H200,2,32,64.0,"{'Gpus': [{'Name': 'H200', 'Count': 2, 'MemoryInfo': {'SizeInMiB': 287542}}], \
'TotalGpuMemoryInMiB': 287542}",5.18,0.00,"Michigan, US, NA"
"""
GCP = """InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,SpotPrice
a2-highgpu-8g,96.0,680.0,,,,us-central1,us-central1-a,5.91582,2.958
,,,A100,8,"{'Gpus': [{'Name': 'A100', 'Manufacturer': 'NVIDIA', 'Count': 8.0, 'MemoryInfo': {'SizeInMiB': 40960}}], \
'TotalGpuMemoryInMiB': 327680}",us-central1,us-central1-a,23.47,10.15
,,,tpu-v6e-8,1,tpu-v6e-8,us-central1,us-central1-a,21.6,4.35366
"""
CUDO = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice
ice-lake-a40-compute_2x8v16gb,A40,2.0,8,16,0.7791999999999999,ca-montreal-3,"{'Gpus': [{'Name': 'A40', \
'Manufacturer': 'NVIDIA', 'Count': '2.0', 'MemoryInfo': {'SizeInMiB': 49152}}], 'TotalGpuMemoryInMiB': 98304}",
"""


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cloud, text in {"lambda": LAMBDA, "vast": VAST, "gcp": GCP, "cudo": CUDO}.items():
        (tmp_path / ".sky/catalogs/v8" / cloud).mkdir(parents=True)
        (tmp_path / ".sky/catalogs/v8" / cloud / "vms.csv").write_text(text)
    monkeypatch.setenv(catalog.RUNTIME, str(tmp_path))


@pytest.mark.parametrize(
    ("resources", "found"),
    [
        ({"accelerators": "V100:8"}, ["gpu_8x_v100 in lambda/us-east-1 6.32"]),
        ({"accelerators": "V100:8", "cpus": "92", "memory": "4x"}, ["gpu_8x_v100 in lambda/us-east-1 6.32"]),
        ({"accelerators": "V100:8", "use_spot": True}, []),
        ({"accelerators": "H200:2"}, ["2x-H200-32-65536 in vast/Michigan, US, NA 5.18"]),
        ({"accelerators": "H200:2", "use_spot": True}, []),  # $0.00 is no price
        ({"accelerators": "A100:8"}, []),  # the GPUs' price is not the machine's
        ({"accelerators": {"tpu-v6e-8": 1}}, ["tpu-v6e-8 in gcp/us-central1 21.6"]),
        ({"accelerators": "48GB+:1"}, ["gpu_1x_a6000 in lambda/us-east-1 1.09"]),
        ({"accelerators": "48GB+:2"}, ["ice-lake-a40-compute_2x8v16gb in cudo/ca-montreal-3 0.7792"]),
        ({"accelerators": "A40:0.5"}, []),
    ],
)  # fmt: skip
def test_offers_of_real_catalogs(real: None, resources: dict[str, Any], found: list[str]) -> None:
    assert [f"{offer} {offer.price:g}" for offer in offers(resources)] == found


def test_memory_that_may_be_that_of_all(real: None) -> None:
    both = "{{'Gpus': [{{'Count': {0}, 'MemoryInfo': {{'SizeInMiB': {1}}}}}], 'TotalGpuMemoryInMiB': {2}}}"
    assert gpu_memory({"GpuInfo": both.format(2, 287542, 287542)}) is None
    assert gpu_memory({"GpuInfo": both.format(2.0, "143771.0", 287542)}) == 140
    assert gpu_memory({"GpuInfo": "tpu-v6e-8"}) is gpu_memory({}) is None


@pytest.mark.parametrize("words", [{"cpus": "many"}, {"memory": "16 gigs"}, {"accelerators": "8xV100"}])
def test_what_a_person_writes_is_refused(words: dict[str, Any]) -> None:
    for settings in ({"resources_settings": words}, {"any_of": [words]}, {"ordered": [{"infra": "aws"}, words]}):
        with pytest.raises(SettingsError) as error:
            SkypilotSettings(**settings)  # type: ignore[arg-type]
        assert repr(next(iter(words.values()))) in error.value.message and error.value.fix


# What the command prints


@given(SEEDS)
def test_a_cluster_of_which_less_is_told_is_not_gone(dice: random.Random) -> None:
    for status, known in (("UP", UP), ("INIT", WAITING), ("PENDING", WAITING)):
        record = thinned({**ANSWERS["cluster"], "status": status, "init_kind": None}, "StatusResponse", dice)
        assert state_of_cluster(record)[0] in (known, WAITING)


@given(st.text(max_size=12) | st.none())
def test_states_that_are_new(status: str | None) -> None:
    states = ANSWERS["states"]
    if status not in states["ClusterStatus"]:
        state, cause, words = state_of_cluster({"name": "c", "status": status})
        assert (state, cause) == (WAITING, "") and words.startswith("SkyPilot calls its cluster ")
    if status not in states["ManagedJobStatus"]:
        assert state_of_managed({"job_name": "c", "status": status})[:2] == (WAITING, "")


def test_every_state_is_known() -> None:
    for status in ANSWERS["states"]["ClusterStatus"]:
        state, cause, words = state_of_cluster({"name": "c", "status": status})
        assert "calls" not in words and (state == GONE) == bool(cause) == (status in ("STOPPED", "AUTOSTOPPING"))
    for status in ANSWERS["states"]["ManagedJobStatus"]:
        assert "calls" not in state_of_managed({"job_name": "c", "status": status})[2]


@pytest.mark.parametrize(
    "answer", ["{}", '{"clusters": []}', "[1]", '[{"status": "UP"}]', '[{"name": null}]', "[null]"]
)
def test_an_answer_that_is_not_understood_does_not_say_what_is_gone(answer: str, tmp_path: Path) -> None:
    command = tmp_path / "sky"
    command.write_text(f"#!{sys.executable}\nprint({answer!r})\n")
    command.chmod(0o755)
    sky = SkyCommand(SkypilotSettings(sky=str(command)), os.environ)
    with pytest.raises(Away, match="is not understood"):
        sky.clusters()
    if not answer.startswith("[{"):
        with pytest.raises(Away, match="is not understood"):
            sky.managed_jobs()


def test_lines_before_an_answer(tmp_path: Path) -> None:
    command = tmp_path / "sky"
    text = "[1] a job of the shell\n{x} is deprecated\n[] is not it\n" + json.dumps([{"name": "c"}], indent=2)
    command.write_text(f"#!{sys.executable}\nprint({text!r})\n")
    command.chmod(0o755)
    assert SkyCommand(SkypilotSettings(sky=str(command)), os.environ).clusters() == [{"name": "c"}]


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("skypilot, version 0.14.1", (0, 14)), ("skypilot, version 1.0.0.dev20260801", (1, 0)), ("0.9", (0, 9)),
        ("skypilot, version 1.0.0-dev0", (1, 0)), ("skypilot, commit 3f2a", None), ("", None), ("v2.1", None),
    ],
)  # fmt: skip
def test_releases(text: str, release: tuple[int, int] | None) -> None:
    assert numbers(text) == release
