"""AMD's GPUs: found and measured through amdsmi, which comes with ROCm, and computed on with ROCm.

A virtual environment has none of ROCm's packages: a Python without amdsmi asks the command amd-smi. Its versions
differ: the GPUs are a list, or the list "gpu_data" of an object, and a number stands alone or with its unit.
https://rocm.docs.amd.com/projects/amdsmi/en/latest/how-to/amdsmi-cli-tool.html
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, Callable, Final, Iterable, Mapping, Sequence

from stoker.core import status
from stoker.core.accelerators import model
from stoker.core.devices import Device, Inventory
from stoker.core.errors import BackendError, SettingsError
from stoker.system import system
from stoker.vendors.base import (
    ContainerNeeds,
    DeviceRow,
    GateRequest,
    GateResult,
    HealthReport,
    Limit,
    Meter,
    PlatformImage,
    Platforms,
    Vendor,
    in_container,
    jax_platforms,
    named_devices,
    tensorflow_gpus,
    torch_gpus,
)
from stoker.vendors.builds import Build, Hardware, Problem
from stoker.vendors.tools import (
    MEMORY,
    Question,
    ToolError,
    measured,
    number,
    output,
    tool_failure,
    unreadable,
    words_of,
)

SLOW: Final = 1.0
"""Seconds between two readings of slowly changing values."""
TOPOLOGY: Final = "sys/class/kfd/kfd/topology/nodes"
"""A folder a node; `properties` has `unique_id` (decimal) and `drm_render_minor`; CPUs have no SIMD units.
https://github.com/torvalds/linux/blob/v6.6/drivers/gpu/drm/amd/amdkfd/kfd_topology.c"""
_UUID: Final = re.compile(r"GPU-([0-9a-f]{16})", re.IGNORECASE)
"""ROCr's: the unique id in hexadecimal."""


# amdsmi has called its enumeration AmdSmiIoLinkType and AmdSmiLinkType; the number is the same.
_XGMI = 2

# The part that is the model in names like AMD Instinct MI300X VF or AMD INSTINCT MI250X (MCM) OAM AC MBA.
_MODEL: Final = re.compile(
    r"\b(MI\d{2,3}[AX]?|RX\s?\d{4}\s?(?:XTX|XT|GRE)?|Pro\s?[VW]\d{3,4}|Radeon\s?VII|AI\s?PRO\s?R\d{4})\b", re.IGNORECASE
)

# "LLVM target name" of https://rocm.docs.amd.com/en/latest/reference/gpu-specs.html, and for the V520 and the MI25 of
# https://llvm.org/docs/AMDGPUUsage.html#processors.
GFX: Final[Mapping[str, str]] = {
    "MI25": "gfx900",
    "MI50": "gfx906",
    "MI60": "gfx906",
    "MI100": "gfx908",
    "MI210": "gfx90a",
    "MI250": "gfx90a",
    "MI250X": "gfx90a",
    "MI300A": "gfx942",
    "MI300X": "gfx942",
    "MI308X": "gfx942",
    "MI325X": "gfx942",
    "MI350X": "gfx950",
    "MI355X": "gfx950",
    "RadeonProV520": "gfx1011",
    "RadeonProV620": "gfx1030",
    "RadeonProV710": "gfx1101",
    "RadeonProW6800": "gfx1030",
    "RadeonProW7700": "gfx1101",
    "RadeonProW7800": "gfx1100",
    "RadeonProW7900": "gfx1100",
    "RadeonAIProR9700": "gfx1201",
    "RadeonVII": "gfx906",
    "RX5700XT": "gfx1010",
    "RX6700XT": "gfx1031",
    "RX6800": "gfx1030",
    "RX6800XT": "gfx1030",
    "RX6900XT": "gfx1030",
    "RX6950XT": "gfx1030",
    "RX7600": "gfx1102",
    "RX7600XT": "gfx1102",
    "RX7700XT": "gfx1101",
    "RX7800XT": "gfx1101",
    "RX7900GRE": "gfx1100",
    "RX7900XT": "gfx1100",
    "RX7900XTX": "gfx1100",
    "RX9060XT": "gfx1200",
    "RX9070": "gfx1201",
    "RX9070XT": "gfx1201",
}
"""model → the name of its instruction set, for which ROCm's libraries and wheels are built"""


def probe(environment: Mapping[str, str], root: Path = Path("/")) -> Inventory:
    """AMD's GPUs, as amdsmi lists them, or the command amd-smi where this Python has no amdsmi."""
    try:
        amdsmi = _amdsmi()
        if amdsmi is None:
            return _by_command(environment, root)
        amdsmi.amdsmi_init()
    except Exception as error:  # amdsmi's own code: without its library it raises KeyError, with others what they like
        return _unread(root, error)
    try:
        return Inventory(devices=_devices(amdsmi))
    except Exception as error:  # as above
        return Inventory(findings=(tool_failure("amdsmi", words_of(error), "see whether `amd-smi list` works"),))
    finally:
        with contextlib.suppress(Exception):
            amdsmi.amdsmi_shut_down()


def model_of(name: str) -> str:
    """The model that a driver's name stands for; the name itself where no model is known by it."""
    plain = " ".join(name.split())
    part = _MODEL.search(plain)
    for spelling in (plain, *((part[1], f"Radeon{part[1]}") if part else ())):
        try:
            return model(spelling).name
        except SettingsError:
            pass
    return name


def visibility(devices: Sequence[Device]) -> Mapping[str, str]:
    """ROCm takes its own UUIDs, and HIP counts among what ROCr leaves.

    https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html
    """
    if not devices:
        return {"ROCR_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    return {"ROCR_VISIBLE_DEVICES": ",".join(device.uuid for device in devices)}


def meter(devices: Sequence[Device]) -> Meter:
    """A meter of AMD's GPUs; `OSError` where amdsmi does not work, or there is neither it nor its command."""
    program = "" if importlib.util.find_spec("amdsmi") is not None else command(os.environ)
    if program:
        return CommandMeter(program, os.environ, devices)
    try:
        # Where its library is missing, it prints so on stdout.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            import amdsmi

            amdsmi.amdsmi_init()
        return AmdMeter(amdsmi, devices)
    except Exception as error:  # amdsmi's own code: without its library it raises KeyError, with others what they like
        raise OSError(f"amdsmi does not answer: {type(error).__name__}: {error}") from error


class AmdMeter:
    """Measures AMD's GPUs, which it finds by their number in the order of the probe.

    https://rocm.docs.amd.com/projects/amdsmi/en/latest/reference/amdsmi-py-api.html. Activity is that of the graphics
    and compute engine over about a second.
    """

    def __init__(self, amdsmi: Any, devices: Sequence[Device]) -> None:
        self._amdsmi = amdsmi
        handles = list(amdsmi.amdsmi_get_processor_handles())
        self._events: list[DeviceRow] = []
        self._held: dict[str, Any] = {}
        for one in devices:
            if 0 <= one.index < len(handles):
                self._held[one.uuid] = handles[one.index]
            else:
                self._events.append({"failed": one.uuid, "why": "the driver does not know it"})
        self._never: set[tuple[str, str]] = set()
        self._answered: set[tuple[str, str]] = set()
        self._errors: dict[str, float] = {}
        self._slow_at = 0.0

    def sample(
        self, now: float, tree: frozenset[int], last: bool = False
    ) -> tuple[dict[str, DeviceRow], list[DeviceRow]]:
        """A row for each GPU; see `vendors.base.Meter`."""
        slow = last or now >= self._slow_at
        if slow:
            self._slow_at = now + SLOW * 0.99
        rows = {uuid: self._row(uuid, handle, tree, slow) for uuid, handle in self._held.items()}
        events, self._events = self._events, []
        return rows, events

    def _row(self, uuid: str, handle: Any, tree: frozenset[int], slow: bool) -> DeviceRow:
        smi = self._amdsmi
        row: DeviceRow = {}
        _put_number(row, "u", self._query(uuid, smi.amdsmi_get_gpu_activity, handle), "gfx_activity")
        _put_number(row, "m", self._query(uuid, smi.amdsmi_get_gpu_vram_usage, handle), "vram_used", factor=2**20)
        power = self._query(uuid, smi.amdsmi_get_power_info, handle)
        # Older chips report the mean, newer ones the present power; unknown values are "N/A".
        _put_number(row, "w", power, "current_socket_power", "average_socket_power")
        if not slow:
            return row
        kinds, metrics = smi.AmdSmiTemperatureType, smi.AmdSmiTemperatureMetric
        degrees = self._query(uuid, smi.amdsmi_get_temp_metric, handle, kinds.HOTSPOT, metrics.CURRENT)
        _put_number(row, "c", {"now": degrees}, "now")
        clock = self._query(uuid, smi.amdsmi_get_clock_info, handle, smi.AmdSmiClkType.GFX)
        _put_number(row, "f", clock, "clk", "cur_clk")
        energy = self._query(uuid, smi.amdsmi_get_energy_count, handle)
        if isinstance(energy, Mapping):
            # Units of `counter_resolution` microjoules; the accumulator was called "power" before ROCm 6.2.
            counted = _number(energy.get("energy_accumulator", energy.get("power")))
            resolution = _number(energy.get("counter_resolution"))
            if counted is not None and resolution is not None:
                row["j"] = round(counted * resolution * 1e-6, 3)
        self._watch_errors(uuid, handle)
        self._add_own_processes(row, self._query(uuid, smi.amdsmi_get_gpu_process_list, handle), tree)
        return row

    def _watch_errors(self, uuid: str, handle: Any) -> None:
        """Tell of uncorrectable errors of memory that were counted since the last look."""
        count = _uncorrectable(self._amdsmi, lambda call: self._query(uuid, call, handle))
        if count is not None and count > self._errors.setdefault(uuid, count):
            self._errors[uuid] = count
            self._events.append({"ecc": uuid})

    @staticmethod
    def _add_own_processes(row: DeviceRow, processes: Any, tree: frozenset[int]) -> None:
        """Add the tree's processes to a row, except with versions that answer with handles instead of dictionaries."""
        if not isinstance(processes, list) or not all(isinstance(one, Mapping) and "pid" in one for one in processes):
            return
        if not all(system.stat_of(one["pid"]) for one in processes):  # pids of another namespace
            return
        sizes = [_number(one.get("mem")) for one in processes if one["pid"] in tree]
        row["n"] = len(sizes)
        if None not in sizes:
            row["o"] = int(sum(memory for memory in sizes if memory is not None))

    def _query(self, uuid: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """The result of a call, None where it fails. A call that has failed before it ever succeeded is not
        repeated.
        """
        key = (uuid, call.__name__)
        if key in self._never:
            return None
        try:
            answer = call(*arguments)
        except Exception as error:  # amdsmi's own code: each unknown value is an error of its own
            if key not in self._answered:
                self._never.add(key)
            elif call.__name__ == "amdsmi_get_gpu_activity":
                self._events.append({"failed": uuid, "why": f"{type(error).__name__}: {error}"})
                self._answered.discard(key)
            return None
        self._answered.add(key)
        return answer


def prove(request: GateRequest) -> GateResult:
    """Whether /dev/kfd opens, and amdsmi lists the devices that were leased."""
    node = request.root / "dev/kfd"
    if not node.exists():
        inside = in_container(request.environment, request.root)
        return GateResult.absent(
            status.NO_GPU if inside else status.NO_DRIVER,
            "there is no /dev/kfd, AMD's driver for computing" + (", in this container" if inside else ""),
            "start the container with --device /dev/kfd --device /dev/dri"
            if inside
            else "install amdgpu and ROCm, and see what `rocminfo` says",
        )
    if not os.access(node, os.R_OK | os.W_OK):
        fix = "add the user to the groups render and video (`ls -l /dev/kfd`)"
        return GateResult.absent(status.DRIVER_BROKEN, "this user may not open /dev/kfd", fix)
    visible: Sequence[Device] = probe(request.environment, request.root).devices
    for limit in LIMITS:
        if limit.variable in request.environment:
            visible = limit.select(visible, request.environment[limit.variable])
    if not visible:
        return GateResult(facts={"devices": "unproved: /dev/kfd opens, and there is no amdsmi here to ask which"})
    missing = [one.uuid for one in request.devices if one.uuid not in {other.uuid for other in visible}]
    if missing or len(visible) != len(request.devices):
        suffix = f": {', '.join(missing)} is missing" if missing else ""
        fix = "leave ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES as Stoker sets them"
        return GateResult.absent(
            status.NO_GPU, f"{len(visible)} of {len(request.devices)} leased devices are visible{suffix}", fix
        )
    return GateResult(facts={"devices": f"{len(visible)} visible, as leased", "memory": "unproved: it is not asked"})


def health(devices: Sequence[Device]) -> HealthReport:
    """The GPUs whose memory has had errors that were not corrected, since the driver was loaded."""
    try:
        amdsmi = _amdsmi()
        if amdsmi is None:
            return HealthReport(facts=("nothing counted: there is no amdsmi in this Python",))
        amdsmi.amdsmi_init()
    except Exception as error:  # amdsmi's own code: without its library it raises KeyError, with others what they like
        return HealthReport(facts=(f"nothing counted: {words_of(error)}",))
    try:
        handles = list(amdsmi.amdsmi_get_processor_handles())
        counts = {
            one.uuid: _uncorrectable(amdsmi, lambda call, one=one: _query(call, handles[one.index]))  # type: ignore[misc]
            for one in devices
            if one.index < len(handles)
        }
    except Exception as error:  # as above
        return HealthReport(facts=(f"nothing counted: {words_of(error)}",))
    finally:
        with contextlib.suppress(Exception):
            amdsmi.amdsmi_shut_down()
    faults = {
        uuid: f"{count:.0f} uncorrectable ECC errors since the driver was loaded: reset it "
        "(`amd-smi reset --gpureset`) or restart the machine"
        for uuid, count in counts.items()
        if count
    }
    known = all(count is not None for count in counts.values()) and counts
    return HealthReport(faults=faults, facts=("no errors counted",) if known else ("unknown: its errors of memory",))


def unfit(build: Build, hardware: Hardware) -> Problem | None:
    """Why a build cannot use the devices: it is for the CPU, or for CUDA."""
    if build.rocm or not (build.cpu or build.cuda):
        return None
    fix = f"install {build.framework} in a build for your ROCm" + (
        ": PyTorch's own index has them, one for each version of ROCm" if build.framework == "torch" else ""
    )
    return Problem(cause=status.NO_GPU_BUILD, sentence=f"{build.words}, and the step holds AMD GPUs", fix=fix)


def container(devices: Sequence[Device], root: Path = Path("/")) -> ContainerNeeds:
    """/dev/kfd and the render node of each GPU, with the groups that own them.

    https://rocm.docs.amd.com/projects/install-on-linux/en/latest/how-to/docker.html
    """
    paths = tuple(dict.fromkeys(["/dev/kfd", *_render_nodes(devices, root)]))
    groups = {str(os.stat(root / path.lstrip("/")).st_gid) for path in paths if (root / path.lstrip("/")).exists()}
    return ContainerNeeds(files=paths, groups=tuple(sorted(groups - {"0"})))


LIMITS: Final = (
    # ROCr filters first, HIP counts among what it leaves.
    Limit(variable="ROCR_VISIBLE_DEVICES", select=named_devices, empty_hides=True),
    Limit(variable="HIP_VISIBLE_DEVICES", select=named_devices, empty_hides=True),
)
_IMAGES: Final[Mapping[str, str]] = {
    # https://hub.docker.com/r/rocm/pytorch/tags
    "rocm6.2": "rocm/pytorch:rocm6.2_ubuntu22.04_py3.10_pytorch_release_2.3.0",
    "rocm7.1": "rocm/pytorch:rocm7.1_ubuntu24.04_py3.12_pytorch_release_2.8.0",
}

VENDOR: Final = Vendor(
    name="amd",
    title="AMD",
    example="MI300X",
    probe=probe,
    visibility=visibility,
    limits=LIMITS,
    prove=prove,
    frameworks={"torch": torch_gpus, "tensorflow": tensorflow_gpus, "jax": jax_platforms("rocm", "gpu")},
    unfit=unfit,
    health=health,
    meter=meter,
    runtime="rocm",
    runtime_title="ROCm",
    container=container,
    apptainer=("--rocm",),  # https://apptainer.org/docs/user/latest/gpu.html
    platforms=Platforms(
        names=tuple(_IMAGES),
        find=lambda written: PlatformImage(image=_IMAGES[written]) if written in _IMAGES else None,
    ),
)


def _amdsmi() -> Any:
    if importlib.util.find_spec("amdsmi") is None:
        return None
    # Where its library is missing, the import prints so on stdout.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        import amdsmi

    return amdsmi


def _unread(root: Path, error: Exception | None = None) -> Inventory:
    """No devices; a finding where the kernel has GPUs for computing (/dev/kfd) all the same."""
    if not (root / "dev/kfd").exists():
        return Inventory()
    if error is not None:
        fix = "see whether `amd-smi list` works, and that the user is in the groups render and video"
        return Inventory(findings=(tool_failure("amdsmi", words_of(error), fix),))
    what, why = "there are AMD GPUs, but neither amdsmi nor amd-smi", "Stoker asks one of them what they are"
    fix = "put amd-smi on PATH, or install the package of your ROCm: pip install /opt/rocm/share/amd_smi"
    return Inventory(findings=(unreadable(what, why, fix),))


def _by_command(environment: Mapping[str, str], root: Path) -> Inventory:
    """The GPUs that the command lists. It does not tell how they are joined."""
    program = command(environment)
    if not program or not (root / "dev/kfd").exists():
        return _unread(root)
    try:
        asics = listed_asics(program, environment)
    except ToolError as error:
        why = str(error)
    except (ValueError, TypeError, KeyError) as error:
        why = f"what it prints is not what it should be: {words_of(error)}"
    else:
        uuids = _distinct([_uuid_of(None, None, asic) for asic, _ in asics])
        return Inventory(
            devices=tuple(_device(index, uuids[index], asic, memory, ()) for index, (asic, memory) in enumerate(asics))
        )
    return Inventory(findings=(tool_failure("amd-smi", why, "see whether `amd-smi static` works"),))


def _distinct(uuids: list[str]) -> list[str]:
    """UUIDs, or numbers where they do not tell the GPUs apart."""
    if "" in uuids or len(set(uuids)) < len(uuids):
        # Partitions of one GPU share its serial number; ROCR_VISIBLE_DEVICES takes numbers as well.
        return [str(index) for index in range(len(uuids))]
    return uuids


def _device(index: int, uuid: str, asic: Mapping[str, Any], memory: int, links: tuple[str, ...]) -> Device:
    name = str(asic.get("market_name") or "AMD GPU")
    return Device(kind="amd", index=index, uuid=uuid, name=name, model=model_of(name), memory=memory, links=links)


def _uncorrectable(amdsmi: Any, ask: Callable[[Callable[..., Any]], Any]) -> float | None:
    """The errors of memory that were not corrected; None where that is not told."""
    call = getattr(amdsmi, "amdsmi_get_gpu_total_ecc_count", None)
    answer = ask(call) if call is not None else None
    return _number(answer.get("uncorrectable_count")) if isinstance(answer, Mapping) else None


def _devices(amdsmi: Any) -> tuple[Device, ...]:
    handles = list(amdsmi.amdsmi_get_processor_handles())
    asics = [_query(amdsmi.amdsmi_get_gpu_asic_info, handle) or {} for handle in handles]
    uuids = _distinct([_uuid_of(amdsmi, handle, asic) for handle, asic in zip(handles, asics)])
    devices = []
    for index, (handle, asic, uuid) in enumerate(zip(handles, asics, uuids)):
        memory = _query(amdsmi.amdsmi_get_gpu_memory_total, handle, amdsmi.AmdSmiMemoryType.VRAM)
        links = []
        for other, other_handle in zip(uuids, handles):
            link = None if other == uuid else _query(amdsmi.amdsmi_topo_get_link_type, handle, other_handle)
            if link is not None and int(link["type"]) == _XGMI:
                links.append(other)
        devices.append(_device(index, uuid, asic, int(memory or 0), tuple(links)))
    return tuple(devices)


def _uuid_of(amdsmi: Any, handle: Any, asic: Mapping[str, Any]) -> str:
    """The UUID as ROCR_VISIBLE_DEVICES takes it: "GPU-" and the 16 digits of the chip's serial number."""
    enumerated = getattr(amdsmi, "amdsmi_get_gpu_enumeration_info", None)  # since ROCm 6.4
    uuid = str((_query(enumerated, handle) or {}).get("hip_uuid", "")) if enumerated is not None else ""
    if uuid.startswith("GPU-"):
        return uuid
    try:
        return f"GPU-{int(str(asic.get('asic_serial')), 16):016x}"
    except ValueError:
        return ""


def _query(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except Exception:  # amdsmi's own code: unknown values raise different errors in each version
        return None


def _render_nodes(cards: Iterable[Device], root: Path) -> list[str]:
    gpus = list(_gpus(root))
    nodes = []
    for card in cards:
        match = _UUID.fullmatch(card.uuid)
        if match is not None:
            unique_id = int(match.group(1), 16)
            minors = [minor for unique, minor in gpus if unique == unique_id and minor is not None]
        else:  # GPUs without an id of their own are numbered as the kernel lists them
            minors = [minor for _, minor in gpus[card.index : card.index + 1] if minor is not None]
        if not minors:
            raise BackendError(
                f"the kernel does not list the GPU {card.uuid} in /{TOPOLOGY}, so that no file of it is known",
                fix="see whether `amd-smi list` and `ls /dev/dri` agree",
            )
        nodes.append(f"/dev/dri/renderD{minors[0]}")
    return nodes


def _gpus(root: Path) -> Iterable[tuple[int | None, int | None]]:
    """(unique id, number of the render node) of each GPU, in the kernel's order; None for what it does not tell."""
    folder = root / TOPOLOGY
    nodes = sorted((path for path in folder.glob("*") if path.name.isdecimal()), key=lambda path: int(path.name))
    for node in nodes:
        try:
            rows = (line.split() for line in (node / "properties").read_text().splitlines())
            facts = {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdecimal()}
        except OSError:
            continue  # another user's GPU, in a container that has some of them
        if facts.get("simd_count"):
            yield facts.get("unique_id"), facts.get("drm_render_minor")


def _put_number(row: DeviceRow, name: str, answer: Any, *keys: str, factor: float = 1) -> None:
    """Put the first of the keys that has a number into a row."""
    for key in keys:
        number = _number(answer.get(key)) if isinstance(answer, Mapping) else None
        if number is not None:
            row[name] = round(number * factor, 3)
            return


def _number(value: Any) -> float | None:
    """A number; None for an unknown value, which is "N/A" or has all bits set."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value in {0xFFFF, 0xFFFFFFFF, 2**64 - 1}:
        return None
    return value


FOLDER: Final = "/opt/rocm/bin"
"""Where ROCm has its commands, which are not always on PATH."""
_STATIC: Final = ("static", "--asic", "--vram", "--json")
_METRIC: Final = ("metric", "--json")
_MEASURED: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "u": (("usage", "gfx_activity"),),
    "m": (("mem_usage", "used_vram"),),
    # Older versions know the mean, newer ones the present power.
    "w": (("power", "socket_power"), ("power", "current_socket_power"), ("power", "average_socket_power")),
    "c": (("temperature", "hotspot"),),
    "f": (("clock", "gfx_0", "clk"), ("clock", "gfx", "clk")),
    "j": (("energy", "total_energy_consumption"),),
    "errors": (("ecc", "total_uncorrectable_count"),),
}
"""Key of a row → where `amd-smi metric` has it, the first that is there."""


def command(environment: Mapping[str, str]) -> str:
    """The command; empty where there is none."""
    return shutil.which("amd-smi", path=f"{environment.get('PATH', '')}:{FOLDER}") or ""


def listed_asics(program: str, environment: Mapping[str, str]) -> list[tuple[Mapping[str, Any], int]]:
    """What amdsmi calls the ASIC's information, and the bytes of memory, of each GPU in amd-smi's order.

    Raises `ToolError` where the command fails, and `ValueError` or `TypeError` for an answer that is none.
    """
    rows = gpus(output([program, *_STATIC], environment))
    # A GPU of which nothing is told is there nevertheless: without it, the others would have other numbers.
    return [(dict(row.get("asic") or {}), int(number(_at(row, ("vram", "size")), MEMORY) or 0)) for row in rows]


def gpus(text: str) -> list[Mapping[str, Any]]:
    """The GPUs of an answer, in the order of their numbers."""
    answer = json.loads(text)
    rows = answer.get("gpu_data") if isinstance(answer, Mapping) else answer
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) and "gpu" in row for row in rows):
        raise ValueError(text.strip()[:200] or "nothing")
    return sorted(rows, key=lambda row: int(row["gpu"]))


class CommandMeter:
    """Asks amd-smi again and again, and never waits for it: a sample has what the last finished question told.

    A question takes about a second. It does not tell whose memory is in use.
    """

    def __init__(self, program: str, environment: Mapping[str, str], devices: Sequence[Device]) -> None:
        self._held = {device.index: device.uuid for device in devices}
        self._question = Question([program, *_METRIC], environment)
        self._errors: dict[str, float] = {}

    def sample(
        self, now: float, tree: frozenset[int], last: bool = False
    ) -> tuple[dict[str, DeviceRow], list[DeviceRow]]:
        """A row for each GPU if an answer has come since the last sample."""
        rows: dict[str, DeviceRow] = {}
        events: list[DeviceRow] = []
        answer = self._question.answer()
        if answer is not None:
            text, why = answer
            try:
                found = gpus(text) if not why else []
            except ValueError as error:
                why = f"it prints {error}"
            if why:
                events = [{"failed": uuid, "why": f"amd-smi: {why}"} for _, uuid in sorted(self._held.items())]
                self._held = {}
            else:
                for row in found:
                    uuid = self._held.get(int(row["gpu"]))
                    if uuid is not None:
                        rows[uuid] = _row(row)
                        errors = rows[uuid].pop("errors", None)
                        if errors is not None and errors > self._errors.setdefault(uuid, errors):
                            self._errors[uuid] = errors
                            events.append({"ecc": uuid})
        if last:
            self._question.close()
        elif self._held:
            self._question.ask()
        return rows, events


def _row(gpu: Mapping[str, Any]) -> DeviceRow:
    """A GPU's row; what amd-smi does not know ("N/A") is left out."""
    row: DeviceRow = {}
    for key, places in _MEASURED.items():
        for place in places:
            row = {**measured({key: _at(gpu, place)}), **row}
    return row


def _at(row: Any, place: Sequence[str]) -> Any:
    for name in place:
        row = row.get(name) if isinstance(row, Mapping) else None
    return row
