"""What the probe finds: of NVIDIA's GPUs through the real nvidia-ml-py and a fake driver, and of the others.

amdsmi is a module of our own here: the real one cannot be imported without ROCm's library.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.core.devices import Device
from stoker.devices.probe import probe, visible
from stoker.vendors import amd, apple, neuron, tools, tpu

H100S = "driver = 535.104.05\ncuda = 12020\n" + "".join(
    f"""
    [gpu]
    name = NVIDIA H100 80GB HBM3
    uuid = GPU-{index}{index}{index}{index}
    memory = 85520809984
    capability = 9.0
    nvlink = {",".join(str(other) for other in range(4) if other != index)}
    """
    for index in range(4)
)
T4 = "[gpu]\nname = Tesla T4\nuuid = GPU-7777\nmemory = 16106127360\ncapability = 7.5\n"
MIG = """
    driver = 570.124.06
    cuda = 12080
    [gpu]
    name = NVIDIA A100-SXM4-80GB
    uuid = GPU-aaaa
    memory = 85899345920
    capability = 8.0
    mig = 1
    process = 1
    [slice]
    name = NVIDIA A100-SXM4-80GB MIG 1g.10gb+me
    uuid = MIG-a1
    memory = 10200547328
    process = 41:2048
    [slice]
    name = NVIDIA A100-SXM4-80GB
    uuid = MIG-a2
    memory = 20937965568
    attributes = 2:2:19968
    [slice]
    name = NVIDIA A100-SXM4-80GB
    uuid = MIG-a3
    attributes = 3:1:40192
    [slice]
    uuid = MIG-a4
    [gpu]
    name = NVIDIA A100-SXM4-80GB
    uuid = GPU-bbbb
    mig = 0
    [gpu]
    name = NVIDIA A100-SXM4-80GB
    uuid = GPU-cccc
    mig = 1
"""


def codes(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    for finding in found["findings"]:
        assert finding["what"] and finding["why"] and finding["fix"]
    return [(finding["code"], finding["level"], finding["where"]) for finding in found["findings"]]


def test_gpus(machine: Any) -> None:
    found = machine.nvml(f"{H100S}numa = 1\n{T4}").probe()
    assert (found["driver"], found["cuda"], found["findings"]) == ("535.104.05", [12, 2], [])
    first, *_, last = found["devices"]
    assert first == {
        "kind": "nvidia",
        "index": 0,
        "uuid": "GPU-0000",
        "name": "NVIDIA H100 80GB HBM3",
        "model": "H100",
        "memory": 85520809984,
        "capability": [9, 0],
        "slice": "",
        "parent": "",
        "links": ["GPU-1111", "GPU-2222", "GPU-3333"],
        "numa": None,
        "simulated": False,
        "exclusive": True,
        "fault": "",
        "weakness": "",
    }
    assert (last["model"], last["index"], last["links"]) == ("T4", 4, [])
    assert [device["numa"] for device in found["devices"]] == [None, None, None, 1, None]
    assert found["processes"] == []


def test_no_driver(machine: Any) -> None:
    found = machine.probe()
    assert (found["devices"], found["findings"], found["driver"]) == ([], [], "")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("sys/module/nvidia/version", "535.104.05\n"),
        (
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05\nGCC version: 12.2.0\n",
        ),
    ],
)
def test_a_driver_without_its_library(path: str, text: str, machine: Any) -> None:
    found = machine.file(path, text).probe()
    assert codes(found) == [("STK125", "info", "")]
    assert found["driver"] == "535.104.05" and not found["devices"]
    assert "--gpus" in found["findings"][0]["fix"]


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (9, "STK120", "not loaded"),
        (18, "STK121", "different versions"),
        (4, "STK122", "may not use"),
        (15, "STK123", "is lost"),
        (16, "STK123", "must be reset"),
        (17, "STK124", "the NVIDIA driver fails: "),
        (999, "STK124", "the NVIDIA driver fails: Unknown Error"),
    ],
)
def test_a_driver_that_fails_to_start(error: int, code: str, said: str, machine: Any) -> None:
    machine.file("sys/module/nvidia/version", "535.104.05")
    found = machine.nvml(f"init = {error}\n{H100S}").probe()
    assert codes(found) == [(code, "error", "")]
    assert said in found["findings"][0]["what"]
    assert found["devices"] == [] and found["processes"] == []
    assert found["driver"] == "535.104.05"


def test_a_library_that_is_too_old_to_start(machine: Any) -> None:
    assert codes(machine.nvml(H100S, "-DWITHOUT_INIT").probe()) == [("STK124", "error", "")]


def test_a_driver_that_does_not_count(machine: Any) -> None:
    found = machine.nvml(f"count = 999\n{H100S}").probe()
    assert codes(found) == [("STK124", "error", "")] and not found["devices"]


@pytest.mark.parametrize("broken", ["fails = 15", "handle = 15", "lost_after = 3"])
def test_one_gpu_that_is_lost(broken: str, machine: Any) -> None:
    """The others are still there."""
    found = machine.nvml(f"{H100S}{T4}{broken}\n{T4.replace('7777', '8888')}").probe()
    assert codes(found) == [("STK123", "error", "GPU 4")]
    assert [device["index"] for device in found["devices"]] == [0, 1, 2, 3, 5]


def test_a_gpu_without_a_uuid_cannot_be_given_to_anybody(machine: Any) -> None:
    found = machine.nvml(H100S + T4.replace("uuid", "serial")).probe()
    assert codes(found) == [("STK124", "error", "GPU 4")]
    assert len(found["devices"]) == 4


@pytest.mark.parametrize("calls", range(0, 44, 9))
def test_a_driver_that_fails_in_the_middle(calls: int, machine: Any) -> None:
    found = machine.nvml(f"fails_after = {calls}\n{H100S}").probe()
    assert {code for code, _, _ in codes(found)} <= {"STK124"}
    assert len(found["devices"]) + len(found["findings"]) in (1, 4)


def test_what_a_gpu_does_not_tell(machine: Any) -> None:
    """GB10 shares the CPU's memory, and its driver tells none; the scenario has nothing else either."""
    found = machine.nvml("[gpu]\nuuid = GPU-1\n").probe()
    (device,) = found["devices"]
    assert (device["name"], device["memory"], device["capability"]) == ("NVIDIA GPU", 0, None)
    assert (found["driver"], found["cuda"], found["findings"]) == ("", None, [])


OLD = ("-DWITHOUT_P2P", "-DWITHOUT_MIG", "-DWITHOUT_PROCESSES_V3", "-DWITHOUT_CUDA_V2")


@pytest.mark.parametrize("missing", [OLD, OLD[1:], ("-DWITHOUT_PROCESSES",)])
def test_functions_that_old_drivers_lack(missing: tuple[str, ...], machine: Any) -> None:
    found = machine.nvml(f"{H100S}process = 17:100\n", *missing).probe()
    assert found["findings"] == [] and found["cuda"] == [12, 2]
    assert [len(device["links"]) for device in found["devices"]] == [0 if "-DWITHOUT_P2P" in missing else 3] * 4
    known = [{"uuid": "GPU-3333", "pid": 17, "memory": 100}]
    assert found["processes"] == ([] if "-DWITHOUT_PROCESSES" in missing else known)


def test_slices(machine: Any) -> None:
    found = machine.nvml(MIG).probe()
    assert [(one["uuid"], one["slice"], one["parent"], one["index"]) for one in found["devices"]] == [
        ("MIG-a1", "1g.10gb+me", "GPU-aaaa", 0),
        ("MIG-a2", "2g.20gb", "GPU-aaaa", 0),
        ("MIG-a3", "1c.3g.40gb", "GPU-aaaa", 0),
        ("MIG-a4", "", "GPU-aaaa", 0),
        ("GPU-bbbb", "", "", 1),
    ]
    first = found["devices"][0]
    assert (first["model"], first["memory"], first["capability"]) == ("A100-80GB", 10200547328, [8, 0])
    assert first["name"].endswith("MIG 1g.10gb+me")
    assert codes(found) == [("STK126", "info", "GPU 2")]
    assert "-i 2 -mig 0" in found["findings"][0]["fix"]
    assert found["processes"] == [{"uuid": "MIG-a1", "pid": 41, "memory": 2048}]


@pytest.mark.parametrize("what", ["mig_fails = 999", "mig = 1\ncount_fails = 999", "mig = 1\nslice_fails = 999"])
def test_a_gpu_whose_slices_are_not_known_is_not_handed_out(what: str, machine: Any) -> None:
    found = machine.nvml(f"{H100S}{T4}{what}\nprocess = 20:1\n").probe()
    assert [one["uuid"] for one in found["devices"]] == ["GPU-0000", "GPU-1111", "GPU-2222", "GPU-3333"]
    assert codes(found) == [("STK124", "error", "GPU 4")]
    assert "not handed out" in found["findings"][0]["what"] and "(MIG)" in found["findings"][0]["why"]


@pytest.mark.parametrize("number", [2, 4, 6])
def test_numbers_without_a_slice_and_other_containers_slices_are_passed_over(number: int, machine: Any) -> None:
    found = machine.nvml(f"{T4}mig = 1\nslice_fails = {number}\n[slice]\nuuid = MIG-a1\n").probe()
    assert [one["uuid"] for one in found["devices"]] == ["MIG-a1"] and found["findings"] == []


def test_processes_are_seen_on_a_gpu_whose_slices_are_not_known(machine: Any) -> None:
    found = machine.nvml(f"{T4}count_fails = 999\nprocess = 20:1\n").probe()
    assert [(one["uuid"], one["pid"]) for one in found["processes"]] == [("GPU-7777", 20)]


def test_processes(machine: Any) -> None:
    found = machine.nvml(f"{H100S}process = 17:1073741824\nprocess = 18\n{T4}fails = 999\n{T4}process = 20:1\n").probe()
    # Where the driver does not tell the memory, it is 0; the GPU that fails is passed over.
    assert found["processes"] == [
        {"uuid": "GPU-3333", "pid": 17, "memory": 1073741824},
        {"uuid": "GPU-3333", "pid": 18, "memory": 0},
        {"uuid": "GPU-7777", "pid": 20, "memory": 1},
    ]


@pytest.mark.parametrize(("value", "left"), [("NoDevFiles", []), ("3,1", ["GPU-1111", "GPU-3333"])])
def test_what_the_environment_hides(value: str, left: list[str], machine: Any) -> None:
    found = machine.nvml(H100S).probe({"CUDA_VISIBLE_DEVICES": value})
    assert [device["uuid"] for device in found["devices"]] == left
    assert codes(found) == [("STK129", "info", "")]


def some(kind: Any, *uuids: str) -> list[Device]:
    return [Device(kind=kind, index=index, uuid=uuid, name="", model="", memory=0) for index, uuid in enumerate(uuids)]


@pytest.mark.parametrize(
    ("kind", "environment", "left"),
    [
        ("nvidia", {"CUDA_VISIBLE_DEVICES": ""}, ""),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "-1"}, ""),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "2"}, "c"),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "0,0"}, "a"),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "1,9,2"}, "b"),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "GPU-"}, ""),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "0,1,2"}, "abc"),
        ("amd", {"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, "c"),
        ("amd", {"ROCR_VISIBLE_DEVICES": "b"}, "b"),
        ("amd", {"HIP_VISIBLE_DEVICES": ""}, ""),
        ("amd", {"CUDA_VISIBLE_DEVICES": "0"}, "abc"),
        ("tpu", {"TPU_VISIBLE_CHIPS": "0,2"}, "ac"),
        ("tpu", {"TPU_VISIBLE_CHIPS": ""}, "abc"),
        ("apple", {"CUDA_VISIBLE_DEVICES": ""}, "abc"),
    ],
)
def test_variables_of_each_vendor(kind: str, environment: dict[str, str], left: str) -> None:
    devices, _ = visible(some(kind, "a", "b", "c"), environment)
    assert "".join(device.uuid for device in devices) == left


@pytest.mark.parametrize(
    ("value", "left"), [("0-1", [0]), ("0,1,2", [0]), ("0-3", [0, 1]), ("4", []), ("2-5", [1, 2]), ("", [0, 1, 2])]
)
def test_neuron_cores(value: str, left: list[int]) -> None:
    """A chip is offered when all of its cores may be used."""
    chips = some("neuron", "neuron-cores:0-1", "neuron-cores:2-3", "neuron-cores:4-5")
    assert [one.index for one in visible(chips, {"NEURON_RT_VISIBLE_CORES": value})[0]] == left


NEURON_LS = """
[{"instance_type": "trn2.48xlarge", "neuron_device": 0, "bdf": "e1:00.0", "connected_to": [12, 1], "nc_count": 4,
  "logical_neuroncore_config": 2, "memory_size": 103079215104, "neuroncore_ids": [0, 1, 2, 3], "neuron_processes": []},
 {"neuron_device": 1, "bdf": "e2:00.0", "connected_to": null, "nc_count": 4, "memory_size": 103079215104}]
"""


def test_neuron(machine: Any) -> None:
    machine.command("neuron-ls", f"test \"$*\" = -j && echo '{NEURON_LS}'")
    machine.file("sys/devices/virtual/dmi/id/product_name", "trn1n.32xlarge\n")
    inventory = neuron.probe({"PATH": str(machine.commands)}, machine.root)
    assert inventory.findings == ()
    first, second = inventory.devices
    assert (first.kind, first.index, first.uuid) == ("neuron", 0, "neuron-cores:0-3")
    assert (first.model, first.name, first.memory) == ("trainium2", "trn2.48xlarge", 103079215104)
    # An older neuron-ls tells neither the machine, which its firmware does, nor the numbers of the cores.
    assert (second.model, second.uuid) == ("trainium", "neuron-cores:4-7")


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'error: no driver' >&2; exit 1", "it ended with 1: error: no driver"),
        ("exit 3", "it ended with 3"),
        ("echo nothing", "what it prints is not what it should be: JSONDecodeError"),
        ("echo '[{}]'", "KeyError"),
        ("echo '[3]'", "TypeError"),
        ("exec sleep 30", "it did not answer within 1 s"),
    ],
)
def test_neuron_ls_fails(script: str, why: str, machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "TIMEOUT", 1.0)
    machine.command("neuron-ls", script)
    inventory = neuron.probe({"PATH": f"{machine.commands}:/usr/bin:/bin"}, machine.root)
    (finding,) = inventory.findings
    assert (finding.code, finding.level) == ("STK127", "error") and why in finding.why


def test_neuron_without_its_tools(machine: Any) -> None:
    assert neuron.probe(machine.environment, machine.root).findings == ()
    machine.file("dev/neuron0")
    (finding,) = neuron.probe(machine.environment, machine.root).findings
    assert (finding.code, finding.level) == ("STK128", "info") and "aws-neuronx-tools" in finding.fix


@pytest.mark.parametrize(
    ("told", "model"),
    [
        ("v5litepod-8", "tpu-v5e"),
        ("v4-8", "tpu-v4"),
        ("v6e-4", "tpu-v6e"),
        ("tpu7x-16", "tpu-v7x"),
        ("v5p-8", "tpu-v5p"),
    ],
)
def test_tpu_by_its_environment(told: str, model: str, machine: Any) -> None:
    for index in range(4):
        machine.file(f"dev/accel{index}")
    machine.file("dev/accelerometer")
    inventory = tpu.probe({"TPU_ACCELERATOR_TYPE": told}, machine.root)
    assert [(one.kind, one.index, one.uuid) for one in inventory.devices] == [("tpu", i, f"tpu-{i}") for i in range(4)]
    assert {(one.model, one.name, len(one.links)) for one in inventory.devices} == {(model, told, 3)}
    assert all(one.memory > 0 for one in inventory.devices) and not inventory.findings


def test_tpu_by_pci(machine: Any) -> None:
    for index, device in enumerate(["0x0063", "0x0063", "0x0042"]):  # the last is a network card
        machine.file(f"sys/bus/pci/devices/0000:0{index}/vendor", "0x1ae0\n")
        machine.file(f"sys/bus/pci/devices/0000:0{index}/device", f"{device}\n")
    assert tpu.probe({}, machine.root).devices == ()
    for name in ("0", "1", "vfio"):
        machine.file(f"dev/vfio/{name}")
    assert [(one.model, one.memory) for one in tpu.probe({}, machine.root).devices] == [("tpu-v5e", 16 * 10**9)] * 2


@pytest.mark.parametrize(("environment", "model"), [({}, "TPU"), ({"TPU_ACCELERATOR_TYPE": "v99-8"}, "v99")])
def test_tpu_of_an_unknown_kind(environment: dict[str, str], model: str, machine: Any) -> None:
    inventory = tpu.probe(environment, machine.file("dev/accel0").root)
    assert [(one.model, one.memory) for one in inventory.devices] == [(model, 0)]
    assert [finding.code for finding in inventory.findings] == ["STK128"]


def test_apple(machine: Any) -> None:
    machine.command(
        "sysctl", '[ "$*" = "-n machdep.cpu.brand_string hw.memsize" ] && printf "Apple M2 Max\\n68719476736\\n"'
    )
    (device,) = apple.probe(machine.environment, system="Darwin", machine="arm64").devices
    assert (device.kind, device.name, device.model, device.exclusive) == (
        "apple",
        "Apple M2 Max",
        "Apple M2 Max",
        False,
    )
    assert device.memory == 64 * 2**30
    machine.command("sysctl", "exit 1")
    assert apple.probe(machine.environment, system="Darwin", machine="arm64").devices[0].name == "Apple GPU"
    assert apple.probe(machine.environment, system="Darwin", machine="x86_64").devices == ()
    assert apple.probe(machine.environment, system="Linux", machine="arm64").devices == ()


AMDSMI = """
print("where amdsmi does not find its library, it prints so")

class AmdSmiException(Exception): pass

class AmdSmiMemoryType:
    VRAM = "vram"

def amdsmi_init(): {init}
def amdsmi_shut_down(): pass
def amdsmi_get_processor_handles(): return [0, 1, 2]
def amdsmi_get_gpu_asic_info(handle):
    return {{"market_name": "AMD Instinct MI300X", "asic_serial": {serial}}}
def amdsmi_get_gpu_memory_total(handle, kind):
    if handle == 2:
        raise AmdSmiException("not supported")
    assert kind == "vram"
    return 205822885888
def amdsmi_topo_get_link_type(handle, other):
    return {{"hops": 1, "type": 2 if 2 not in (handle, other) else 1}}
{more}
"""
SERIAL = '"0xABC%02X" % handle'
ENUMERATION = "def amdsmi_get_gpu_enumeration_info(handle): return {'hip_uuid': f'GPU-hip{handle}'}"


def amdsmi(folder: Path, patch: pytest.MonkeyPatch, init: str = "pass", serial: str = SERIAL, more: str = "") -> None:
    """Put a fake amdsmi into the path of Python, as the real one answers in the version of ROCm 6 and 7."""
    (folder / "amdsmi.py").write_text(AMDSMI.format(init=init, serial=serial, more=more))
    patch.syspath_prepend(folder)
    patch.delitem(sys.modules, "amdsmi", raising=False)
    patch.setattr(sys, "dont_write_bytecode", True)


@pytest.mark.parametrize(
    ("options", "uuids"),
    [
        ({}, ["GPU-00000000000abc00", "GPU-00000000000abc01", "GPU-00000000000abc02"]),
        ({"more": ENUMERATION}, ["GPU-hip0", "GPU-hip1", "GPU-hip2"]),
        # Partitions of one GPU, and a driver that does not tell the number.
        ({"serial": '"0xABC"'}, ["0", "1", "2"]),
        ({"serial": '"N/A"'}, ["0", "1", "2"]),
    ],
)
def test_amd(
    options: dict[str, str],
    uuids: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    amdsmi(tmp_path, monkeypatch, **options)
    inventory = amd.probe({}, tmp_path)
    assert inventory.findings == ()
    assert [device.uuid for device in inventory.devices] == uuids
    assert {(one.kind, one.name, one.model) for one in inventory.devices} == {("amd", "AMD Instinct MI300X", "MI300X")}
    assert [device.memory for device in inventory.devices] == [205822885888, 205822885888, 0]
    assert [device.links for device in inventory.devices] == [(uuids[1],), (uuids[0],), ()]
    assert capfd.readouterr() == ("", "")
    sys.modules.pop("amdsmi", None)


@pytest.mark.parametrize("init", ['raise AmdSmiException("no driver")', 'raise KeyError("libamd_smi.so")'])
def test_amdsmi_fails(init: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: Any) -> None:
    amdsmi(tmp_path, monkeypatch, init=init)
    # Without AMD's kernel driver, an amdsmi that somebody installed says nothing.
    assert amd.probe({}, machine.root).findings == ()
    (finding,) = amd.probe({}, machine.file("dev/kfd").root).findings
    assert (finding.code, finding.level) == ("STK127", "error") and "amd-smi list" in finding.fix
    sys.modules.pop("amdsmi", None)


def test_amd_without_amdsmi(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amd, "_amdsmi", lambda: None)
    assert amd.probe({}, machine.root).findings == ()
    (finding,) = amd.probe({}, machine.file("dev/kfd").root).findings
    assert (finding.code, finding.level) == ("STK128", "info") and "amd_smi" in finding.fix


def test_several_vendors_at_once(machine: Any) -> None:
    machine.nvml(f"{H100S}process = 17:100\n").command("neuron-ls", "exit 1").file("dev/accel0")
    found = machine.probe({"CUDA_VISIBLE_DEVICES": "3"})
    assert [device["kind"] for device in found["devices"]] == ["nvidia", "tpu"]
    assert [code for code, _, _ in codes(found)] == ["STK127", "STK128", "STK129"]
    # Whoever computes on a device that is hidden is nobody's business.
    assert [process["pid"] for process in found["processes"]] == [17]
    assert machine.probe({"CUDA_VISIBLE_DEVICES": "0"})["processes"] == []


def test_the_environment_is_this_process_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "STOKER_SIMULATE", "3xL4")
    assert len(probe().devices) == 3


def test_the_fake_driver_tells_utilisation_over_time(machine: Any) -> None:
    """Nobody here asks for it; whoever watches devices does."""
    machine.nvml(f"{T4}utilisation = 0,50,100\n")
    program = (
        "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)\n"
        "print([n.nvmlDeviceGetUtilizationRates(h).gpu for _ in range(4)])"
    )
    import subprocess

    done = subprocess.run(
        [sys.executable, "-c", program], env=machine.variables(), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[0, 50, 100, 100]"
