"""What SkyPilot is asked for: tasks against its own schemas and golden files, conflicts, and what it may cost."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.backends.fields import SKYPILOT
from tests.backends.test_every_field import SITE, job_of

from stoker import config
from stoker.backends.skypilot import catalog, requests
from stoker.backends.skypilot.backend import SkypilotBackend
from stoker.backends.skypilot.settings import SkypilotSettings, resources_of
from stoker.core.accelerators import Accelerator
from stoker.core.errors import SettingsError
from stoker.core.findings import Finding
from stoker.core.packages import PackageSettings
from stoker.core.plan import StepPlan
from stoker.core.resources import ResourceSettings
from stoker.core.settings import Layer, StepSettings
from stoker.integrations.skypilot import flavors
from stoker.plan.layers import resolve

HERE = Path(__file__).parent
RESOURCES, TASK = (json.loads((HERE / "schemas" / f"{name}.json").read_text()) for name in ("resources", "task"))

CASES: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the-seeds": ({}, {"cpus": "2", "memory": "16", "accelerators": "V100:2", "cloud": "aws"}),
    "resources": (
        {"cpu_count": 2, "memory": "16GB", "accelerators": "V100:2", "disk": "100GB", "spot": True, "nodes": 2},
        {},
    ),
    "alternatives": ({"accelerators": ["H100:8", "A100-80GB:8"]}, {"infra": "gcp/us-central1"}),
    "any-gpu": ({"gpu_count": 2}, {}),
    "gpu-memory": ({"gpu_memory": "40GB", "gpu_vendor": "nvidia"}, {"retry_until_up": True}),
    "tpu": ({"accelerators": "tpu-v5e:8"}, {"cloud": "gcp", "accelerator_args": {"runtime_version": "v2-alpha"}}),
    "tpu-slice": ({"accelerators": "tpu-v5e:4", "nodes": 4}, {}),
    "tpu-by-cores": ({"accelerators": "tpu-v4:4"}, {}),
    "container": (
        {"shared_memory": "8GiB"},
        {"image_id": "docker:team/train:1", "docker_run_args": ["--ipc=host"], "envs": {"A": "b"}},
    ),
    "all": (
        {},
        {
            "infra": "aws/us-east-1",
            "instance_type": "p3.8xlarge",
            "job_recovery": {"strategy": "EAGER_NEXT_REGION", "max_restarts_on_errors": 2},
            "disk_size": 256,
            "disk_tier": "high",
            "network_tier": "best",
            "local_disk": "nvme:1000+",
            "ports": ["8080", "9000-9010"],
            "labels": {"team": "ml"},
            "any_of": [{"use_spot": True}, {"use_spot": False}],
            "max_hourly_cost": 20,
            "idle_minutes_to_autostop": 5,
            "down": False,
            "setup_commands": ["sudo apt-get install -y git"],
            "file_mounts": {"/data": "s3://bucket/data"},
            "resources_settings": {"priority_class": "high"},
            "task_settings": {"volumes": {"/mnt": "disk"}},
        },
    ),
}


def rendered(
    resources: Mapping[str, Any], settings: Mapping[str, Any], *, packages: PackageSettings | None = None
) -> dict[str, Any]:
    """The task that would be launched, and the command; the program's own text is left out."""
    step = StepSettings(
        resources=ResourceSettings(**resources),
        backend={"orchestrator": dict(settings)} if settings else {},
        packages=packages,
    )
    backend = SkypilotBackend(SITE, {})
    try:
        request: Any = backend.render(job_of(SKYPILOT, step))
    finally:
        backend.close()
    return {"command": request["command"], "task": {**request["task"], "run": "PROGRAM"}}


@pytest.mark.parametrize("name", CASES)
def test_tasks_are_as_they_were_and_in_skypilots_schemas(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [one for one in os.environ if one.startswith(("AWS_", "FSSPEC_"))]:
        monkeypatch.delenv(variable)
    document = rendered(*CASES[name])
    jsonschema.validate(document["task"], TASK)
    jsonschema.validate(document["task"]["resources"], RESOURCES)
    golden = HERE / "golden" / f"{name}.json"
    text = json.dumps(document, indent=2) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert golden.read_text() == text


INDEX, MORE = "https://wheels.example/simple", "https://more.example/simple"
STORE = (
    "\npython3 -c 'import importlib.util as u; raise SystemExit(u.find_spec('\"'\"'s3fs'\"'\"') is None)'"
    " || python3 -m pip install --quiet s3fs"
)
"""The end of `setup` where the artifact store is on S3."""
PACKAGES = PackageSettings(pypi={"torch": "2.9.0"}, index_url=INDEX, extra_index_urls=[MORE])


@pytest.mark.parametrize(
    ("words", "place", "value"),
    [
        ({"settings": {"secrets": ["HF_TOKEN"]}}, "secrets", {"HF_TOKEN": None}),
        ({"settings": {"setup_commands": ["make deps", "make data"]}}, "setup", f"set -e\nmake deps\nmake data{STORE}"),
        (
            {"packages": PACKAGES},
            "setup",
            f"set -e\npython3 -m pip install --quiet --index-url {INDEX} --extra-index-url {MORE} torch==2.9.0{STORE}",
        ),
        (
            {"packages": PackageSettings(pypi={"torch": "2.9.0"}), "settings": {"setup_commands": ["make deps"]}},
            "setup",
            f"set -e\nmake deps\npython3 -m pip install --quiet torch==2.9.0{STORE}",
        ),
        ({"resources": {"accelerators": "tpu-v6e:4"}}, "resources/accelerators", "tpu-v6e-4:1"),
        ({"resources": {"accelerators": "tpu-v6e:4", "nodes": 4}}, "resources/accelerators", "tpu-v6e-16:1"),
        ({"resources": {"accelerators": "tpu-v6e:4", "nodes": 4}}, "num_nodes", 1),
        ({"resources": {"accelerators": "tpu-v6e:4"}}, "envs/PJRT_DEVICE", "TPU"),
        (
            {
                "resources": {"accelerators": "tpu-v5p:4"},
                "settings": {"accelerator_args": {"runtime_version": "v2-alpha-tpuv5"}},
            },
            "resources",
            {"accelerators": "tpu-v5p-8:1", "accelerator_args": {"runtime_version": "v2-alpha-tpuv5"}},
        ),
    ],
)
def test_what_becomes_of_secrets_commands_packages_and_tpus(
    words: dict[str, Any], place: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in SkyPilot's schemas, as the guide says."""
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    document = rendered(words.get("resources", {}), words.get("settings", {}), packages=words.get("packages"))
    jsonschema.validate(document["task"], TASK)
    jsonschema.validate(document["task"]["resources"], RESOURCES)
    part: Any = document["task"]
    for name in place.split("/"):
        part = part[name]
    assert {name: part[name] for name in value} == value if isinstance(value, dict) else part == value
    assert "hf_0123456789" not in json.dumps(document)
    given = [word for at, word in enumerate(document["command"]) if document["command"][at - 1] == "--secret"]
    assert given == list(document["task"].get("secrets", {}))


@pytest.mark.parametrize(
    ("settings", "more", "word", "fix"),
    [
        ({"secrets": ["HF_TOKEN"]}, {}, "asks SkyPilot to carry HF_TOKEN", "export HF_TOKEN=…"),
        ({"task_settings": {"secrets": {"A": None}}}, {}, "secrets is the step's own", "secrets of these settings"),
        ({}, {"packages": PackageSettings(conda={"numpy": "2"})}, "packages of conda", "docker="),
        ({}, {"packages": PackageSettings(pypi={"a": "1"}, python="3.12")}, "asks for Python 3.12", "python3.12"),
    ],
)
def test_what_machines_cannot_be_given_is_refused(
    settings: dict[str, Any], more: dict[str, Any], word: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    backend = SkypilotBackend(SITE, {})
    try:
        (refused,) = [one for one in backend.check(step_plan({}, settings, **more)) if one.level == "error"]
    finally:
        backend.close()
    assert refused.code == "STK320" and word in refused.what and fix in refused.fix


WHOLE = ("sky", "api_server", "shares_files", "max_run_cost")


# Both ways of asking


STACK = config.Stack(name="sky", orchestrator=config.Component(flavor="skypilot"))


def resolved(resources: Mapping[str, Any], settings: Mapping[str, Any]) -> StepSettings:
    values = {"resources": dict(resources)} if resources else {}
    layer = Layer(origin="train.py:3", values={**values, "orchestrator.skypilot": dict(settings)}, level="step")
    return resolve([layer], STACK)[0]


def test_skypilots_words_are_resources_too() -> None:
    """So that the rest of Stoker knows of devices, nodes and spot machines, whichever way they were asked for."""
    settings = resolved(
        {}, {"cpus": "2", "memory": "16", "accelerators": "V100:2", "num_nodes": 2, "use_spot": True, "disk_size": 50}
    )
    asked = settings.resources
    assert (asked.cpu_count, asked.memory, asked.gpus_per_node, asked.nodes) == (2, 16 * 10**9, 2, 2)
    assert asked.spot is True and asked.disk == 50 * 10**9
    assert resolved({}, {"accelerators": "NewChip:4"}).resources.gpus_per_node == 4
    assert resources_of({"memory": "4x"}) == {}


@pytest.mark.parametrize(
    ("resources", "settings", "field"),
    [
        ({"cpu_count": 4.0}, {"cpus": "2"}, "cpus for 2"),
        ({"memory": 32 * 10**9}, {"memory": "16"}, "memory for 16GB"),
        ({"accelerators": (Accelerator.parse("H100:8"),)}, {"accelerators": "V100:2"}, "accelerators for V100:2"),
        ({"nodes": 4}, {"num_nodes": 2}, "num_nodes for 2"),
        ({"spot": False}, {"use_spot": True}, "use_spot for True"),
    ],
)
def test_asking_for_different_things_in_both_ways_is_refused(
    resources: dict[str, Any], settings: dict[str, Any], field: str
) -> None:
    with pytest.raises(SettingsError, match=field):
        resolved(resources, settings)


def test_the_same_in_both_ways_is_fine() -> None:
    asked = {"accelerators": (Accelerator.parse("V100"),), "gpu_count": 2, "cpu_count": 2.0}
    assert resolved(asked, {"accelerators": "V100:2", "cpus": "2+"}).resources.gpus_per_node == 2


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("V100", "V100"),
        ({"V100": 2}, "V100:2"),
        ({"H100:8": None}, "H100:8"),  # a set with one member, as YAML has it
        ({"L4": 1, "T4": None}, {"L4:1": None, "T4:1": None}),
        ({"T4:4": None, "L4:1": None}, {"L4:1": None, "T4:4": None}),
        ({"T4:4", "L4:1"}, {"L4:1": None, "T4:4": None}),
        (["T4:4", "L4:1"], ["T4:4", "L4:1"]),
    ],
)
def test_a_list_of_accelerators_has_an_order_and_a_mapping_has_none(words: Any, asked: Any) -> None:
    """As in SkyPilot, which takes the first of a list that is to be had, and of a mapping or a set the cheapest."""
    document = requests.resources_document(ResourceSettings(), SkypilotSettings(accelerators=words))
    assert document == {"accelerators": asked}
    jsonschema.validate(document, RESOURCES)
    again = SkypilotSettings(accelerators=document["accelerators"])
    assert requests.resources_document(ResourceSettings(), again) == document
    assert resources_of({"accelerators": words})["accelerators"][0] == "accelerators"


@pytest.mark.parametrize(
    ("words", "value", "kept"),
    [
        ("memory", "16GB+", "16+"),
        ("memory", "1TB", "1024"),
        ("memory", 16.5, "16.5"),
        ("memory", "4x", "4x"),
        ("cpus", "8+", "8+"),
        ("gpus", "H100:8", "H100:8"),
        ("spot_recovery", "failover", "failover"),
    ],
)
def test_amounts_and_names_as_skypilot_takes_them(words: str, value: Any, kept: str) -> None:
    assert kept in requests.resources_document(ResourceSettings(), SkypilotSettings(**{words: value})).values()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cpus", "4x"),
        ("cpus", True),
        ("memory", "16GiB"),
        ("memory", "4GBx"),
        ("disk_size", "100+"),
        ("disk_tier", "none"),
        ("autostop", {"idle_minutes": 5}),
        ("accelerators", {"L4:1": 2}),
        ("accelerators", "V100:two"),
        ("accelerators", "V100 2"),
        ("accelerators", "2xV100"),
        ("infra", "awss/us-east-1"),
        ("infra", "aws:us-east-1"),
        ("cloud", "kubernets"),
        ("cloud", "amazon"),
        ("infra", "Google/us-central1"),
        ("ports", "80a"),
        ("ports", ["9010-9000"]),
        ("ports", 70000),
        ("cluster_name", "My Cluster"),
        ("cluster_name", "8gpus"),
    ],
)
def test_words_that_skypilot_refuses(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=name) as caught:
        SkypilotSettings(**{name: value})
    assert caught.value.fix or "one of" in caught.value.message or "did you mean" in caught.value.message


def test_zenmls_settings_say_their_cloud() -> None:
    for name in flavors.__all__:
        cloud = name.removeprefix("Skypilot").removesuffix("OrchestratorSettings").lower()
        module = importlib.import_module(f"{flavors.__name__}.skypilot_orchestrator_{cloud}_vm_flavor")
        assert getattr(module, name) is getattr(flavors, name) and module.__spec__ is not None
        settings = getattr(flavors, name)(cpus="2", memory="16", accelerators="V100:2", stream_logs=True)
        assert isinstance(settings, SkypilotSettings)
        assert f"Skypilot{settings.cloud}OrchestratorSettings".lower() == name.lower()
    launch = flavors.SkypilotAWSOrchestratorSettings(launch_settings={"down": False, "retry_until_up": True}, down=True)
    assert launch.down is True and launch.retry_until_up is True
    for words in ({"stream_logs": False}, {"launch_settings": {"fast": True}}):
        with pytest.raises(SettingsError, match=next(iter(words))):
            flavors.SkypilotAWSOrchestratorSettings(**words)


@pytest.mark.parametrize(
    ("settings", "document"),
    [
        ({"cloud": "kubernetes", "infra": "k8s/ctx"}, {"infra": "k8s/ctx"}),
        ({"cloud": "gcp", "region": "us-central1"}, {"cloud": "gcp", "region": "us-central1"}),
        ({"cloud": "aws", "any_of": [{"infra": "aws/us-east-1"}, {"use_spot": True}]}, {"infra": "aws"}),
        ({"any_of": [{"infra": "aws"}, {"infra": "gcp"}]}, {}),
        (
            {"accelerators": {"L4": 1, "T4": 1}, "any_of": [{"infra": "aws"}]},
            {"accelerators": {"L4:1": None, "T4:1": None}},
        ),
        ({"cloud": "aws", "any_of": [{"region": "us-east-1"}]}, {"cloud": "aws"}),
    ],
)
def test_a_place_is_said_in_one_way(settings: dict[str, Any], document: dict[str, Any]) -> None:
    rendered = requests.resources_document(ResourceSettings(), SkypilotSettings(**settings))
    assert {name: rendered[name] for name in rendered if name != "any_of"} == document


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cloud": "aws", "infra": "gcp"}, "cloud='aws' and infra='gcp' disagree"),
        ({"cloud": "aws", "any_of": [{"infra": "gcp"}]}, "cloud='aws' and infra='gcp' disagree"),
        ({"infra": "aws", "region": "us-east-1"}, "region='us-east-1' and infra='aws' both say where"),
        ({"infra": "aws", "any_of": [{"zone": "us-east-1a"}]}, "zone='us-east-1a' and infra='aws' both say where"),
        ({"accelerators": "tpu-v5litepod-16"}, "is a TPU slice of 4 hosts"),
        ({"accelerators": "tpu-v5p-16:1"}, "is a TPU slice of 2 hosts"),
        ({"accelerators": ["T4", "L4"], "any_of": [{"cpus": "4"}]}, "any_of and a list of accelerators are both"),
        (
            {"accelerators": {"T4": 1, "L4": 1}, "ordered": [{"cpus": "4"}]},
            "ordered and a list of accelerators are both",
        ),
        ({"any_of": [{"cpus": "4"}], "ordered": [{"cpus": "8"}]}, "ordered and any_of are both alternatives"),
    ],
)
def test_what_skypilot_refuses_is_refused_before(settings: dict[str, Any], words: str) -> None:
    [error] = [one for one in findings({}, settings) if one.level == "error"]
    assert words in error.what and error.fix


@pytest.mark.parametrize(
    ("resources", "infra", "asked"),
    [
        ({"accelerators": "tpu-v5e:8"}, "k8s/ctx", "tpu-v5-lite-podslice:8"),
        ({"accelerators": "tpu-v5p:4"}, "kubernetes", "tpu-v5p-slice:4"),
        ({"accelerators": "tpu-v5p:4", "nodes": 2}, "gcp", "tpu-v5p-16:1"),
        ({"accelerators": "tpu-v6e:1"}, "gcp", "tpu-v6e-1:1"),
        ({"accelerators": "tpu-v5e:16"}, "gcp", 'accelerators="tpu-v5e:4", nodes=4'),
        ({"accelerators": "tpu-v5e:3"}, "gcp", 'accelerators="tpu-v5e:4"'),
        ({"accelerators": "tpu-v6e:8", "nodes": 2}, "gcp", 'accelerators="tpu-v6e:4", nodes=4'),
        ({"accelerators": "tpu-v4:8"}, "gcp", 'accelerators="tpu-v4:4", nodes=2'),
        ({"accelerators": "tpu-v5e:4", "nodes": 4}, "k8s/ctx", "the kubernetes backend does"),
        ({"accelerators": "tpu-v7x:4"}, "gcp", "the kubernetes backend gives tpu-v7x"),
    ],
)
def test_each_host_of_a_slice_is_a_node(resources: dict[str, Any], infra: str, asked: str) -> None:
    """What has more hosts than the step has nodes would wait for them for ever."""
    try:
        document = requests.resources_document(ResourceSettings(**resources), SkypilotSettings(infra=infra))
    except SettingsError as error:
        assert asked in error.fix
    else:
        assert document["accelerators"] == asked


@pytest.mark.parametrize(
    ("resources", "settings", "asked"),
    [
        ({"accelerators": "A100-80GB-SXM:8"}, {}, {"A100-80GB:8": None, "A100-80GB-SXM:8": None}),
        ({"accelerators": "RTX-A5000", "gpu_count": 2}, {"infra": "runpod"}, "RTXA5000:2"),
        ({"accelerators": "A6000:2"}, {"any_of": [{"use_spot": True}]}, {"A6000:2": None, "RTXA6000:2": None}),
        ({"accelerators": "A6000:2"}, {"ordered": [{"infra": "aws"}, {"infra": "gcp"}]}, "A6000:2"),
        ({"accelerators": "H100:8"}, {"infra": "k8s/ctx"}, "H100:8"),
        ({"accelerators": "Gaudi:8"}, {"infra": "aws"}, "Gaudi HL-205:8"),
    ],
)
def test_an_accelerator_has_each_name_of_skypilots_catalogs(
    resources: dict[str, Any], settings: dict[str, Any], asked: Any
) -> None:
    document = requests.resources_document(ResourceSettings(**resources), SkypilotSettings(**settings))
    assert document["accelerators"] == asked
    jsonschema.validate(document, RESOURCES)


def test_names_of_skypilots_catalogs_mean_the_accelerator() -> None:
    for name, others in requests.NAMES.items():
        assert [Accelerator.parse(other).name for other in others] == [name] * len(others)


# What it costs


def info(count: int) -> str:
    """What SkyPilot's catalogs say of machines with V100."""
    chip = {"Name": "V100", "Manufacturer": "NVIDIA", "Count": float(count), "MemoryInfo": {"SizeInMiB": 16384}}
    return str({"Gpus": [chip], "TotalGpuMemoryInMiB": 16384 * count})


VMS = f"""InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region,AvailabilityZone,GpuInfo
p3.8xlarge,V100,4.0,32.0,244.0,12.24,3.67,us-east-1,us-east-1a,"{info(4)}"
p3.2xlarge,V100,1,8,61,3.06,0.92,us-east-1,us-east-1a,"{info(1)}"
p3.2xlarge,V100,1,8,61,4.23,,eu-west-1,eu-west-1a,"{info(1)}"
m6i.large,,,2,8,0.096,0.03,us-east-1,us-east-1a,
1x_A6000_SECURE,RTXA6000,1,9,50,0.49,,US,,
gpu_1x_a6000,A6000,1,14,100,0.8,,us-west-1,,
"""


@pytest.fixture
def prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog as SkyPilot keeps it."""
    folder = tmp_path / ".sky/catalogs/v8/aws"
    folder.mkdir(parents=True)
    (folder / "vms.csv").write_text(VMS)
    monkeypatch.setenv(catalog.RUNTIME, str(tmp_path))


def step_plan(resources: Mapping[str, Any], settings: Mapping[str, Any], **more: Any) -> StepPlan:
    asked = StepSettings(
        resources=ResourceSettings(**resources), backend={"orchestrator": dict(settings)} if settings else {}, **more
    )
    return job_of(SKYPILOT, asked).step


def findings(
    resources: Mapping[str, Any], settings: Mapping[str, Any], options: Mapping[str, Any] | None = None, **more: Any
) -> list[Finding]:
    """What the plan says of a step, the catalog's prices included."""
    backend = SkypilotBackend(SITE, {"sky": sys.executable, **(options or {})})
    try:
        step = step_plan(resources, settings, **more)
        return [*backend.check(step), *backend.prove([step])]
    finally:
        backend.close()


def test_the_plan_shows_machine_region_and_price(prices: None) -> None:
    [choice] = findings({"accelerators": "V100:1", "nodes": 2}, {}, timeout=1800.0)
    assert choice.code == "STK323"
    assert choice.what == (
        "2 × p3.2xlarge in aws/us-east-1: $6.12 an hour, $3.06 at most for one attempt of 30m; "
        f"prices of {choice.priced}"
    )
    assert choice.price is not None and abs(choice.price - 6.12) < 0.01
    spot = next(one for one in findings({"accelerators": "V100:1", "spot": True}, {}) if one.code == "STK323")
    assert spot.what == f"p3.2xlarge in aws/us-east-1, spot: $0.92 an hour; prices of {spot.priced}"
    [there] = findings({"accelerators": "V100:1"}, {"infra": "aws/eu-west-1"})
    assert "$4.23" in there.what
    [memory] = [one for one in findings({"gpu_memory": "16GB"}, {}) if one.code == "STK323"]
    assert memory.what.startswith("p3.2xlarge")
    [variant] = findings({"accelerators": "A6000:1"}, {})
    assert variant.what.startswith("1x_A6000_SECURE") and "$0.49" in variant.what
    [plain] = findings({"cpu_count": 2}, {})
    assert plain.what == f"m6i.large in aws/us-east-1: $0.10 an hour; prices of {plain.priced}"


def test_without_the_command_nothing_is_launched(prices: None) -> None:
    codes = {one.code: one for one in findings({"accelerators": "V100:1"}, {}, {"sky": "/nowhere/bin/sky"})}
    assert codes["STK327"].level == "error" and "/nowhere/bin/sky" in codes["STK327"].what
    assert "sky/bin/pip install" in codes["STK327"].fix and "STK323" in codes


def test_without_a_catalog_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(catalog.RUNTIME, str(tmp_path))
    [choice] = findings({"accelerators": "V100:1"}, {})
    assert (choice.code, choice.level) == ("STK326", "info") and "unknown" in choice.what
    [refused] = findings({"accelerators": "V100:1"}, {"max_hourly_cost": 3})
    assert refused.code == "STK324" and refused.level == "error"


def test_what_a_run_may_cost(prices: None) -> None:
    hourly = findings({"accelerators": "V100:1"}, {"max_hourly_cost": 3})
    assert [one.code for one in hourly if one.level == "error"] == ["STK324"]
    assert not [one for one in findings({"accelerators": "V100:1"}, {"max_hourly_cost": 4}) if one.level == "error"]
    whole = findings({"accelerators": "V100:4"}, {}, {"max_run_cost": 12}, timeout=3600.0)
    assert [one.what for one in whole if one.level == "error"] == [
        "the run may cost $12.24: the sum of price, attempts and timeout over its steps"
    ]
    unbounded = findings({"accelerators": "V100:4"}, {}, {"max_run_cost": 12})
    assert ["train has no timeout" in one.what for one in unbounded if one.level == "error"] == [True]
    assert not [
        one
        for one in findings({"accelerators": "V100:4"}, {}, {"max_run_cost": 13}, timeout=3600.0)
        if one.level == "error"
    ]
