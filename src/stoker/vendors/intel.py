"""Intel's GPUs (Max, Flex, Arc Pro): what xpu-smi tells of them, of Intel's XPU Manager.

A card is one device, whatever number of stacks it has. Nothing here has seen a card: xpu-smi is asked, and its answers
are read, as its guide says (https://github.com/intel/xpumanager/blob/master/doc/smi_user_guide.md).
"""

from __future__ import annotations

import contextlib
import csv
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final, Mapping, Sequence

from stoker.core import status
from stoker.core.accelerators import model
from stoker.core.devices import Device, Inventory
from stoker.core.errors import SettingsError
from stoker.core.words import count_text
from stoker.vendors.base import (
    DeviceRow,
    GateRequest,
    GateResult,
    Limit,
    Vendor,
    in_container,
    names_in,
    numbers_in,
    text_of,
)
from stoker.vendors.builds import Build, Hardware, Problem
from stoker.vendors.tools import (
    MEMORY,
    ToolError,
    measured,
    number,
    output,
    tool_failure,
    unreadable,
    words_of,
)

MASK: Final = "ZE_AFFINITY_MASK"
HIERARCHY: Final = "ZE_FLAT_DEVICE_HIERARCHY"
CARDS: Final = "COMPOSITE"
"""The value by which the mask counts cards. Without it, it counts stacks, of which a Max 1550 has two.
https://oneapi-src.github.io/level-zero-spec/level-zero/latest/core/PROG.html#environment-variables"""
ORDER: Final = "ZE_ENABLE_PCI_ID_DEVICE_ORDER"
"""With "1" cards are numbered by their PCI addresses, as in the same page."""
PCI_VENDOR: Final = "0x8086"
PROCESSORS: Final = "0000:00:02.0"
"""Where the graphics of an Intel processor is. It has a number of Level Zero's, and is handed out to nobody."""
SEVERAL: Final = frozenset({"Max1550"})
"""Models with more than one stack."""
_ASKED: Final = "1,2,4,11,16"
"""Device ID, name, UUID, PCI address and memory of `xpu-smi discovery --dump`."""
_MEASURED: Final = "0,1,2,3,8,18,30"
"""What `xpu-smi dump` measures, a column each: `_COLUMNS`."""
_COLUMNS: Final = ("u", "w", "f", "c", "j", "m", "errors")
_PROPERTIES: Final = 5
_STACK: Final = re.compile(r"[0-9]{1,4}\.[0-9]{1,4}")
_MODEL: Final = re.compile(r"\b(Max|Flex)\s?(\d{3,4})\b")


def probe(environment: Mapping[str, str], root: Path = Path("/")) -> Inventory:
    """The cards that xpu-smi lists and that have a device file."""
    nodes = _nodes(root)
    command = shutil.which("xpu-smi", path=environment.get("PATH"))
    if command is None:
        if not set(nodes) - {PROCESSORS}:
            return Inventory()
        what, fix = "there are Intel GPUs, but no xpu-smi", "install xpu-smi, of Intel's XPU Manager"
        return Inventory(findings=(unreadable(what, "Stoker asks xpu-smi what they are", fix),))
    # xpu-smi itself numbers what Level Zero shows it.
    plain = {name: text for name, text in environment.items() if name not in (MASK, HIERARCHY)}
    try:
        rows = _rows(output([command, "discovery", "--dump", _ASKED], plain))
        devices = [_device(nodes.index(row[3]), row) for row in rows if row[3] in nodes and row[3] != PROCESSORS]
    except ToolError as error:
        why = str(error)
    except (ValueError, TypeError) as error:
        why = f"what it prints is not what it should be: {words_of(error)}"
    else:
        counted = {one.model for one in devices} & SEVERAL
        if counted and MASK in environment and environment.get(HIERARCHY) != CARDS:
            what = f"{MASK} counts stacks, of which {', '.join(counted)} has two: its cards are not used"
            why = "Stoker hands out whole cards"
            return Inventory(findings=(unreadable(what, why, f"set {HIERARCHY}={CARDS}, with the numbers of cards"),))
        return Inventory(devices=tuple(sorted(devices, key=lambda one: one.index)))
    return Inventory(findings=(tool_failure("xpu-smi", why, "see what `xpu-smi discovery` says"),))


def visibility(devices: Sequence[Device]) -> Mapping[str, str]:
    """The numbers of cards, as Level Zero has them with these variables; no value for "none" is documented."""
    numbers = ",".join(str(device.index) for device in devices if not device.simulated)
    return {MASK: numbers, HIERARCHY: CARDS, ORDER: "1"} if numbers else {}


def prove(request: GateRequest) -> GateResult:
    """Whether the device file of each card opens, and the process is told these cards."""
    closed = []
    for device in request.devices:
        names = names_in(request.root / "sys/bus/pci/devices" / device.uuid / "drm", r"renderD\d+")
        files = [request.root / "dev/dri" / name for name in names]
        if not any(file.exists() for file in files):
            inside = in_container(request.environment, request.root)
            return GateResult.absent(
                status.NO_GPU if inside else status.NO_DRIVER,
                f"the Intel GPU at {device.uuid} has no device file" + (" in this container" if inside else ""),
                "start the container with --device /dev/dri; in a pod ask for gpu.intel.com/xe or gpu.intel.com/i915"
                if inside
                else "see that the kernel's driver i915 or xe has it (`lspci -k`)",
            )
        closed += [str(file) for file in files if not os.access(file, os.R_OK | os.W_OK)]
    if closed:
        fix = f"add the user to the group that owns it, usually render (`ls -l {closed[0]}`)"
        return GateResult.absent(status.DRIVER_BROKEN, f"this user may not open {', '.join(closed)}", fix)
    for name, value in visibility(request.devices).items():
        if request.environment.get(name) != value:
            sentence = f"{name} is {request.environment.get(name, '')!r} instead of {value!r}"
            return GateResult.absent(status.NO_GPU, sentence, f"leave {name} as Stoker sets it")
    return GateResult(
        facts={"devices": f"{count_text(len(request.devices), 'card')} leased, which open; unproved: that they answer"}
    )


def unfit(build: Build, hardware: Hardware) -> Problem | None:
    """Why a build cannot use the cards: it is for the CPU, or for another maker's GPUs."""
    if not (build.cpu or build.cuda or build.rocm):
        return None
    fix = f"install {build.framework} in a build for Intel's GPUs" + (
        ": PyTorch's own index has them, with +xpu in their versions" if build.framework == "torch" else ""
    )
    return Problem(cause=status.NO_GPU_BUILD, sentence=f"{build.words}, and the step holds Intel GPUs", fix=fix)


def torch_cards(torch: Any, devices: Sequence[Device]) -> tuple[str, Problem | None]:
    """Whether torch was built for them. It is not asked how many it sees: Level Zero does not survive a fork then."""
    built = getattr(torch.version, "xpu", None)
    if built:
        return f"it is built for XPU {built}; unproved: how many it sees", None
    sentence = f"torch {torch.__version__} is not built for Intel's GPUs"
    fix = "install torch in a build for XPU: PyTorch's own index has them, with +xpu in their versions"
    return "", Problem(cause=status.NO_GPU_BUILD, sentence=sentence, fix=fix)


def meter(devices: Sequence[Device]) -> IntelMeter:
    """A meter of cards; `OSError` where xpu-smi does not answer."""
    command = shutil.which("xpu-smi")
    if command is None:
        raise OSError("xpu-smi is not on PATH (it is of Intel's XPU Manager)")
    plain = {name: text for name, text in os.environ.items() if name not in (MASK, HIERARCHY)}
    try:
        numbers = {row[3]: row[0] for row in _rows(output([command, "discovery", "--dump", _ASKED], plain))}
    except (ToolError, ValueError) as error:
        raise OSError(f"xpu-smi does not answer: {error}") from error
    return IntelMeter(command, plain, {numbers[one.uuid]: one.uuid for one in devices if one.uuid in numbers})


class IntelMeter:
    """Reads what one `xpu-smi dump` prints each second, and never waits for it.

    It does not tell whose memory is in use.
    """

    def __init__(self, command: str, environment: Mapping[str, str], held: Mapping[str, str]) -> None:
        self._held = dict(held)
        """UUID by xpu-smi's number."""
        self._rest = b""
        self._errors: dict[str, float] = {}
        self._dump: subprocess.Popen[bytes] | None = None
        if held:
            pipe = subprocess.PIPE
            argv = [command, "dump", "-d", ",".join(held), "-m", _MEASURED, "-i", "1"]
            self._dump = subprocess.Popen(
                argv, env=dict(environment), stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.STDOUT
            )
            assert self._dump.stdout is not None
            os.set_blocking(self._dump.stdout.fileno(), False)

    def sample(
        self, now: float, tree: frozenset[int], last: bool = False
    ) -> tuple[dict[str, DeviceRow], list[DeviceRow]]:
        """The newest row of each card that was printed since the last sample."""
        rows: dict[str, DeviceRow] = {}
        events: list[DeviceRow] = []
        if self._dump is None:
            return rows, events
        over = self._dump.poll() is not None
        lines = self._read()
        for line in lines:
            words = [word.strip() for word in line.split(",")]
            uuid = self._held.get(words[1]) if len(words) == 2 + len(_COLUMNS) else None
            if uuid is not None:
                rows[uuid] = measured(dict(zip(_COLUMNS, words[2:])))
                errors = rows[uuid].pop("errors", None)
                if errors is not None and errors > self._errors.setdefault(uuid, errors):
                    self._errors[uuid] = errors
                    events.append({"ecc": uuid})
        if over:
            why = f"xpu-smi ended with {self._dump.returncode}" + (f": {lines[-1].strip()}" if lines else "")
            events += [{"failed": uuid, "why": why} for uuid in sorted(self._held.values())]
        if over or last:
            self.close()
        return rows, events

    def close(self) -> None:
        """End xpu-smi."""
        if self._dump is not None:
            self._dump.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._dump.communicate(timeout=0.2)
            self._dump = None

    def _read(self) -> list[str]:
        """The lines that are complete now."""
        assert self._dump is not None and self._dump.stdout is not None
        data = self._rest
        while piece := self._dump.stdout.read():
            data += piece
        whole, _, self._rest = data.rpartition(b"\n")
        return whole.decode("utf-8", "replace").splitlines()


def select_cards(devices: Sequence[Device], value: str) -> list[Device]:
    """The cards that a mask such as "0,3" names; one of which it names a stack ("0.1") is not Stoker's to hand out."""
    named = numbers_in(",".join(item for item in value.split(",") if not _STACK.fullmatch(item.strip())))
    return [one for one in devices if one.index in named]


VENDOR: Final = Vendor(
    name="intel",
    title="Intel",
    example="Max1550",
    probe=probe,
    visibility=visibility,
    limits=(
        Limit(variable=MASK, select=select_cards),
        # It hides nothing, and a step's own would change what the mask counts.
        Limit(variable=HIERARCHY, select=lambda devices, value: devices),
    ),
    simulation=None,
    prove=prove,
    frameworks={"torch": torch_cards},
    unfit=unfit,
    meter=meter,
)


def _nodes(root: Path) -> list[str]:
    """The PCI addresses of Intel's GPUs with a device file of this machine, as Level Zero numbers them."""
    found = []
    for card in (root / "sys/bus/pci/devices").glob("*"):
        if text_of(card / "vendor") == PCI_VENDOR and text_of(card / "class").startswith("0x03"):
            names = names_in(card / "drm", r"renderD\d+")
            found += [card.name for name in names if (root / "dev/dri" / name).exists()]
    return sorted(found)


def _rows(text: str) -> list[list[str]]:
    """The rows of a table with a line of names above."""
    rows = [[part.strip() for part in row] for row in csv.reader(text.splitlines()) if row]
    if not rows or any(len(row) != _PROPERTIES for row in rows):
        raise ValueError(text.strip()[:200] or "nothing")
    return rows[1:]


def model_of(name: str) -> str:
    """The model that a driver's name stands for; the name itself where no model is known by it."""
    found = _MODEL.search(name)
    with contextlib.suppress(SettingsError):
        return model(f"{found[1]}{found[2]}" if found is not None else name).name
    return name


def _device(index: int, row: Sequence[str]) -> Device:
    _, name, _, address, memory = row
    # Two cards of a kind have one UUID with older versions: the address is the card's own.
    return Device(
        kind="intel",
        index=index,
        uuid=address,
        name=name,
        model=model_of(name),
        memory=int(number(memory, MEMORY) or 0),
    )
