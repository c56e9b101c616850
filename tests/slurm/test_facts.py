"""What a cluster has, and what it will never give: asked of a real one, and of what other versions print."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.servers.slurm import Cluster
from tests.servers.sshd import ALIAS, Sshd

from stoker.backends.base.logins import Here, Ran, login
from stoker.backends.base.platforms import Away
from stoker.backends.slurm.cluster import ClusterFacts, cluster_facts, parse_facts, share_facts, take_facts
from stoker.backends.slurm.facts import prove
from stoker.backends.slurm.settings import SlurmSettings
from stoker.backends.slurm.values import Gres
from stoker.core.errors import BackendError
from stoker.core.findings import Finding
from stoker.core.plan import StepPlan
from stoker.core.protocol import FunctionSource
from stoker.core.resources import ResourceSettings
from stoker.core.settings import StepSettings

INFINITE = float("inf")


def step(**resources: Any) -> StepPlan:
    return StepPlan(
        key="train",
        name="train",
        source=FunctionSource(kind="module", module="train", qualname="train"),
        outputs=(),
        unpack=False,
        inputs={},
        settings=StepSettings(resources=ResourceSettings(**resources)),
        backend="orchestrator",
        code="",
        where="train.py:7",
    )


def proved(login: Any, settings: dict[str, Any] | None = None, **resources: Any) -> list[Finding]:
    return list(prove([step(**resources)], {"train": SlurmSettings(**(settings or {}))}, login))


def one(login: Any, settings: dict[str, Any] | None = None, **resources: Any) -> Finding:
    (found,) = proved(login, settings, **resources)
    assert found.where == "train.py:7 step 'train'"
    return found


# A real cluster


def test_what_a_cluster_has(cluster: Cluster) -> None:
    found = cluster_facts(Here())
    assert found.version.startswith(cluster.run("sinfo", "--version").stdout.split()[1].rsplit(".", 1)[0])
    assert not found.routed
    assert found.default is not None and found.default.name == "main"
    main, short = found.partitions["main"], found.partitions["short"]
    assert (main.nodes, main.hidden, main.longest, main.usual) == (4, 0, INFINITE, 3600)
    assert (short.nodes, short.longest) == (2, 1800)
    assert {group.names: group.gres for group in main.groups}["n3"] == (Gres(name="gpu", type="h100", count=4),)
    group = main.groups[0]
    assert (group.nodes, group.cpus, group.memory, group.disk, group.state) == (1, 4, 4000, 10000, "idle")
    assert main.groups[-1].features >= {main.groups[-1].names}


@pytest.mark.parametrize(
    ("settings", "resources"),
    [
        ({}, {}),
        ({}, {"cpu_count": 4, "memory": "4000MiB", "disk": "10000MiB", "gpu_count": 4, "nodes": 4}),
        ({}, {"cpu_count": 0.5, "accelerators": "H100:4", "nodes": 2}),
        ({"partition": "short", "time_limit": "30m"}, {"nodes": 2}),
        ({"partition": ["short", "main"]}, {"accelerators": "V100:1"}),
        ({"constraint": "h100|v100"}, {"gpu_count": 1}),
        ({"gpus_as": "gpus-per-node"}, {"accelerators": "H100:2"}),
        ({"gres_types": {"A100": "feature/h100"}}, {"accelerators": "A100:1"}),
        ({"options": {"overcommit": True}}, {"cpu_count": 4}),
    ],
)
def test_what_the_cluster_can_give_is_no_finding(
    cluster: Cluster, settings: dict[str, Any], resources: dict[str, Any]
) -> None:
    assert proved(Here(), settings, **resources) == []


@pytest.mark.parametrize(
    ("settings", "resources", "code", "what", "fix"),
    [
        ({}, {"cpu_count": 9}, "STK173", "asks for 9 CPUs on a node; those of", "train.resources.cpu_count=4"),
        ({}, {"memory": "64GB"}, "STK173", "asks for 64 GB of memory", "resources.memory=4000MiB"),
        ({}, {"disk": "1TB"}, "STK173", "1 TB of disk on a node", "resources.disk=10000MiB"),
        ({}, {"nodes": 5}, "STK174", "4 nodes of the partition 'main' are all there are", "resources.nodes=4"),
        ({}, {"nodes": 3, "accelerators": "H100:1"}, "STK174", "2 nodes of the partition 'main' would do", "nodes=2"),
        ({}, {"gpu_count": 9}, "STK175", "gpu:9 on a node", "resources.gpu_count=4"),
        ({}, {"accelerators": "H100:8"}, "STK175", "gpu:h100:8", "resources.accelerators=H100:4"),
        ({}, {"accelerators": "A100:1"}, "STK175", "of the type 'a100'", "resources.gpu_count=1"),
        ({"gpus_as": "gpus-per-node"}, {"accelerators": "A100:1"}, "STK175", "of the type 'a100'", "gpu_count=1"),
        ({}, {"extended": {"fpga": 1}}, "STK175", "no node of the partition 'main' has a fpga", "extended=null"),
        ({"gres_types": {"H100": "h100_sxm"}}, {"accelerators": "H100"}, "STK175", "'h100_sxm'", '{ "H100" = "h100" }'),
        ({"partition": "shrot"}, {}, "STK172", "the partition 'shrot'", "train.orchestrator.partition=short"),
        ({"partition": "short"}, {"accelerators": "H100"}, "STK175", "'short' lacks", "orchestrator.partition=main"),
        (
            {"partition": "short", "time_limit": "2h"},
            {},
            "STK177",
            "asks for 2h; the partition 'short' gives 30m",
            "=main",
        ),
        ({"constraint": "h1000"}, {}, "STK176", "the feature 'h1000'", "orchestrator.constraint=null"),
        ({"constraint": "v100&n3"}, {}, "STK173", "no node of the partition 'main' has all of it", "one kind"),
        ({"reservation": "x"}, {}, "STK178", "Slurm refuses it: .*reservation is invalid", "orchestrator.reservation"),
        ({"nodelist": "n9"}, {}, "STK176", "Invalid node name", "orchestrator.nodelist"),
        ({"options": {"licenses": "foo"}}, {}, "STK179", "Invalid license", "orchestrator.options"),
    ],
)
def test_what_the_cluster_will_never_give(
    cluster: Cluster, settings: dict[str, Any], resources: dict[str, Any], code: str, what: str, fix: str
) -> None:
    import re

    found = one(Here(), settings, **resources)
    assert (found.code, found.level) == (code, "error")
    assert re.search(what, found.what), found
    assert fix in found.fix
    assert found.why or "Slurm refuses it" in found.what


def test_the_nearest_names_are_told(cluster: Cluster) -> None:
    assert "'short'" in one(Here(), {"partition": "shrot"}).why
    assert "h100, v100" in one(Here(), accelerators="A100").why
    assert "'main' has it" in one(Here(), {"partition": "short"}, accelerators="H100").why
    assert "gpu:h100:4" in one(Here(), {"constraint": "v100&n3"}, accelerators="H100").why


def test_all_reasons_are_told_at_once(cluster: Cluster) -> None:
    found = proved(Here(), cpu_count=64, memory="1TB")
    assert [finding.code for finding in found] == ["STK173", "STK173"]


def test_nodes_that_are_down_count_as_there(cluster: Cluster) -> None:
    for name in ("n1", "n2"):
        cluster.node_fails(name)
    try:
        (found,) = proved(Here(), accelerators="V100:4", nodes=2)
        assert (found.code, found.level) == ("STK179", "info"), found
        assert "for now" in found.why
    finally:
        for name in ("n1", "n2"):
            cluster.node_returns(name)


@pytest.fixture
def short(cluster: Cluster) -> Iterator[Any]:
    """Changes the partition `short`, for one test."""
    yield lambda *changes: cluster.run("scontrol", "update", "partitionname=short", *changes)
    cluster.run("scontrol", "update", "partitionname=short", "state=up", "allowaccounts=all", "maxnodes=unlimited")


def test_partitions_that_are_closed(short: Any) -> None:
    for state in ("drain", "inactive"):
        short(f"state={state}")
        found = one(Here(), {"partition": "short"})
        assert (found.code, found.level) == ("STK172", "error") and state.upper() in found.why
    short("state=down")
    found = one(Here(), {"partition": "short"})
    assert (found.code, found.level) == ("STK172", "info") and "until it is up" in found.why


def test_partitions_that_let_others_in(short: Any) -> None:
    short("allowaccounts=chem,bio")
    found = one(Here(), {"partition": "short", "account": "physics"})
    assert found.code == "STK178" and "it takes bio, chem" in found.why and "orchestrator.account=bio" in found.fix
    assert one(Here(), {"partition": "short"}).code == "STK178", "Slurm itself refuses it: no account was named"
    short("allowaccounts=all", "maxnodes=1")
    found = one(Here(), {"partition": "short"}, nodes=2)
    assert found.code == "STK174" and "MaxNodes" in found.why


def test_the_partition_that_the_environment_names(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "short")
    assert one(Here(), accelerators="H100").code == "STK175"
    assert proved(Here(), {"partition": "main"}, accelerators="H100") == []


def test_slurm_is_asked_once_for_what_is_alike(cluster: Cluster) -> None:
    asked: list[str] = []

    class Counting(Here):
        def run(self, argv: Any, **rest: Any) -> Ran:
            asked.append(argv[0])
            return super().run(argv, **rest)

    steps = [attrs.evolve(step(cpu_count=1), key=f"train[{number}]") for number in range(40)]
    login = Counting()
    assert list(prove(steps, {one.key: SlurmSettings() for one in steps}, login)) == []
    assert asked.count("sbatch") == 1 and asked.count("sinfo") == 1
    list(prove(steps[:1], {steps[0].key: SlurmSettings()}, login))
    assert asked.count("sinfo") == 1, "what was learnt holds for a while"


def test_a_later_login_of_the_same_cluster_knows_what_the_plan_has_read(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Counting(Printed):
        def run(self, argv: Any, **rest: Any) -> Ran:
            asked.append(argv[0])
            return super().run(argv, **rest)

    first, second, third = Counting(), Counting(), Counting()
    monkeypatch.setenv("SLURM_CONF", "/one/slurm.conf")
    facts = cluster_facts(first)
    share_facts(first, None)
    take_facts(second, None)
    assert cluster_facts(second) is facts and asked.count("sinfo") == 1
    for host, conf in (("ssh://login", "/one/slurm.conf"), (None, "/other/slurm.conf")):
        monkeypatch.setenv("SLURM_CONF", conf)
        take_facts(third, host)
    assert cluster_facts(third) == facts and asked.count("sinfo") == 2


def test_the_controller_does_not_answer(cluster: Cluster) -> None:
    cluster.stop_controller()
    try:
        found = one(Here())
        assert found.code == "STK170" and found.level == "error" and "scontrol ping" in found.fix
        assert "controller does not answer" in found.what
    finally:
        cluster.start_controller()


def test_there_is_no_slurm_here(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "/nowhere")
        with pytest.raises(BackendError, match="no sinfo"):
            cluster_facts(Here())
        found = one(Here())
    assert found.code == "STK171" and 'host = "ssh://' in found.fix


def test_the_login_node_does_not_answer(ssh_server: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_SSH_CONFIG", str(ssh_server.config))
    ssh_server.refuse()
    try:
        far = login(f"ssh://{ALIAS}")
        found = one(far)
        far.close()
    finally:
        ssh_server.admit()
    assert found.code == "STK170" and "Permission denied" in found.what and "ssh-agent" in found.fix


# What others print

NODES = """\
cpu|100|128|515000|0|amd,rome|(null)|mixed|c[001-100]
gpu|4|96|1031000|7000000|h100,nvlink|gpu:nvidia_h100_80gb_hbm3:8(S:0-1)|allocated|g[01-04]
gpu|2|64|515000|0|a100|gpu:a100:3(S:0),gpu:a100_1g.10gb:7(S:1),nvme:no_consume:1K|down*|g[05-06]
cloud|2|8|30000|0|(null)|(null)|idle~|aws-[1-2]
"""
PARTITIONS = """\
PartitionName=cpu AllowGroups=ALL DenyAccounts=guests AllowQos=normal,long AllocNodes=ALL Default=YES QoS=N/A \
DefaultTime=NONE DisableRootJobs=NO MaxNodes=64 MaxTime=7-00:00:00 MinNodes=2 MaxCPUsPerNode=120 MaxMemPerNode=500000 \
State=UP TotalCPUs=12800 TotalNodes=100
PartitionName=gpu AllowGroups=ALL AllowAccounts=ml,phys AllowQos=ALL Default=NO QoS=gpu-limits DefaultTime=01:00:00 \
MaxNodes=UNLIMITED MaxTime=2-00:00:00 MinNodes=0 MaxCPUsPerNode=UNLIMITED MaxCPUsPerSocket=UNLIMITED State=UP \
TotalNodes=6
PartitionName=cloud AllowAccounts=ALL AllowQos=ALL Default=NO QoS=N/A MaxTime=UNLIMITED MaxNodes=UNLIMITED State=UP \
TotalNodes=50
"""
CONFIG = """\
Configuration data as of 2031-01-31
JobSubmitPlugins        = (null)
MaxArraySize            = 10001
SLURM_VERSION           = 25.05.3
"""


class Printed(Here):
    """A cluster of which only the output is there; its sbatch refuses nothing. No real one has so many nodes."""

    def __init__(self, **config: str) -> None:
        text = CONFIG
        for name, value in config.items():
            text += f"{name} = {value}\n"
        self._answers = {"sinfo": NODES, "scontrol": PARTITIONS, "env": "", "sbatch": ""}
        self._config = text

    def run(self, argv: Any, **rest: Any) -> Ran:
        return Ran(code=0, out=self._config if argv[-1] == "config" else self._answers[argv[0]], err="")


def test_what_a_larger_cluster_prints() -> None:
    found = cluster_facts(Printed())
    assert found.version == "25.05.3"
    cpu, gpu, cloud = found.partitions["cpu"], found.partitions["gpu"], found.partitions["cloud"]
    assert (cpu.longest, cpu.usual, cpu.most_nodes, cpu.least_nodes) == (7 * 86400, 7 * 86400, 64, 2)
    assert (cpu.node_cpus, cpu.node_memory) == (120, 500000)
    assert cpu.accounts is None and cpu.denied_accounts == frozenset({"guests"})
    assert cpu.qoses == frozenset({"normal", "long"})
    assert gpu.accounts == frozenset({"ml", "phys"}) and gpu.qos == "gpu-limits"
    assert [group.state for group in gpu.groups] == ["allocated", "down*"]
    assert gpu.groups[1].has("gpu") == 10 and gpu.groups[1].has("gpu", "a100") == 3
    assert gpu.groups[1].has("nvme") == 1024
    assert cpu.groups[0].gres == () and cloud.groups[0].features == frozenset()
    assert cloud.hidden == 48


def test_limits_of_partitions() -> None:
    assert one(Printed(), cpu_count=121, nodes=2).fix.startswith("--set steps.train.resources.cpu_count=120")
    assert one(Printed(), cpu_count=1).fix.startswith("--set steps.train.resources.nodes=2")
    assert one(Printed(), nodes=65).code == "STK174"
    assert proved(Printed(), {"qos": "long"}, nodes=65) == [], "a QOS may lift the limits of its partition"
    assert one(Printed(), {"account": "guests"}, nodes=2).code == "STK178"
    assert one(Printed(), {"qos": "short"}, nodes=2).code == "STK178"


def test_the_sites_name_of_a_gpu_is_proposed() -> None:
    found = one(Printed(), {"partition": "gpu"}, accelerators="H100:8")
    assert 'gres_types = { "H100" = "nvidia_h100_80gb_hbm3" }' in found.fix
    right = {"partition": "gpu", "gres_types": {"H100": "nvidia_h100_80gb_hbm3"}}
    assert proved(Printed(), right, accelerators="H100:8", nodes=4) == []
    assert one(Printed(), right, accelerators="H100:8", cpu_count=97).code == "STK173"


def test_nodes_that_nobody_sees_may_have_anything() -> None:
    assert proved(Printed(), {"partition": "cloud"}, cpu_count=64, gpu_count=8) == []


def test_where_the_site_chooses_the_partition_any_may_do() -> None:
    assert one(Printed(), accelerators="A100:3", cpu_count=64, nodes=2).code == "STK175", "the default one has no GPUs"
    routed = Printed(JobSubmitPlugins="lua")
    assert proved(routed, accelerators="A100:3", cpu_count=64, nodes=2) == []


def test_a_cluster_that_tells_little() -> None:
    found = parse_facts("", "", "")
    assert found == ClusterFacts(partitions={})
    assert found.default is None


def test_a_question_that_was_cut_off_is_asked_once_more(cluster: Cluster) -> None:
    cuts = [1]

    class Cut(Here):
        def run(self, argv: Any, **rest: Any) -> Ran:
            if argv[0] == "sinfo" and cuts:
                raise Away(f"login does not answer: cut {cuts.pop()}")
            return super().run(argv, **rest)

    steps = [step(cpu_count=1)]
    settings = {steps[0].key: SlurmSettings()}
    assert list(prove(steps, settings, Cut())) == [] and not cuts
    cuts += [2, 1]
    assert [finding.code for finding in prove(steps, settings, Cut())] == ["STK170"]


def test_a_package_that_the_store_needs_is_missed_before_anything_runs(cluster: Cluster, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    steps = [step(cpu_count=1)]

    def codes(store: str, python: str, **more: Any) -> list[str]:
        settings = SlurmSettings(shares_files=False, python=python, **more)
        return [finding.code for finding in prove(steps, {steps[0].key: settings}, Here(), store=store)]

    bare = str(tmp_path / "bare" / "bin" / "python")
    assert codes("s3://bucket/store", bare) == ["STK261"]
    assert codes("s3://bucket/store", sys.executable) == [], "it has s3fs"
    assert codes("s3://bucket/store", bare, modules=["s3fs"]) == [], "a module may bring it"
    assert codes("s3://bucket/store", "/no/python") == [], "the login node need not have it"
    assert codes("/scratch/artifacts", bare) == [] and codes("memory://x", bare) == []
