"""Intel's Gaudi: what hl-smi tells of it, which comes with the driver.

Its processes are told their cards by module. Nothing here has seen a card: hl-smi is asked, and its answers are read,
as its guide says (https://docs.habana.ai/en/latest/Management_and_Monitoring/Embedded_System_Tools_Guide/System_Management_Tools_Guide.html).
"""

from __future__ import annotations

import contextlib
import csv
import os
import shutil
from pathlib import Path
from typing import Final, Mapping, Sequence

import attrs

from stoker.core import status
from stoker.core.accelerators import model
from stoker.core.devices import Device, Inventory
from stoker.core.errors import SettingsError
from stoker.core.words import count_text
from stoker.vendors.base import DeviceRow, GateRequest, GateResult, Limit, Vendor, names_in, numbers_in, text_of
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

VISIBLE: Final = "HABANA_VISIBLE_MODULES"
"""https://docs.habana.ai/en/latest/Orchestration/Multiple_Tenants_on_HPU/Multiple_Workloads_Single_Docker.html"""
PCI_VENDOR: Final = "0x1da3"
_ASKED: Final = "module_id,uuid,name,memory.total"
_MEASURED: Final = "uuid,utilization.aip,memory.used,power.draw,temperature.aip"
_FORMAT: Final = "csv,noheader,nounits"
_COLUMNS: Final = ("u", "m", "w", "c")
"""What hl-smi measures behind the UUID, in its order."""


def probe(environment: Mapping[str, str], root: Path = Path("/")) -> Inventory:
    """The cards that hl-smi lists."""
    command = shutil.which("hl-smi", path=environment.get("PATH"))
    if command is None:
        chips = (root / "sys/bus/pci/devices").glob("*")
        if not any(text_of(chip / "vendor") == PCI_VENDOR for chip in chips):
            return Inventory()
        what, fix = (
            "there are Gaudi cards, but no hl-smi",
            "install habanalabs-firmware-tools, and see that it is on PATH",
        )
        return Inventory(findings=(unreadable(what, "Stoker asks hl-smi what they are", fix),))
    try:
        rows = _rows(output([command, "-Q", _ASKED, "-f", _FORMAT], environment))
        devices = [_device(*row) for row in rows]
    except ToolError as error:
        why = str(error)
    except (ValueError, TypeError) as error:
        why = f"what it prints is not what it should be: {words_of(error)}"
    else:
        uuids = {one.uuid for one in devices}  # the cards of one machine are joined by their own ports
        joined = (attrs.evolve(one, links=tuple(sorted(uuids - {one.uuid}))) for one in devices)
        return Inventory(devices=tuple(sorted(joined, key=lambda one: one.index)))
    return Inventory(findings=(tool_failure("hl-smi", why, "see what `hl-smi` says, and update the driver"),))


def visibility(devices: Sequence[Device]) -> Mapping[str, str]:
    """The modules of real cards; no value for "none" is documented."""
    modules = ",".join(str(device.index) for device in devices if not device.simulated)
    return {VISIBLE: modules} if modules else {}


def prove(request: GateRequest) -> GateResult:
    """Whether there are as many device files as cards, and the process is told these cards."""
    files = [*names_in(request.root / "dev/accel", r"accel\d+")] or [*names_in(request.root / "dev", r"hl\d+")]
    if len(files) < len(request.devices):
        cause = status.NO_GPU if files else status.NO_DRIVER
        sentence = f"{len(files)} of {len(request.devices)} leased Gaudi cards have a device file"
        fix = (
            "install habanalabs-dkms; start a container with --runtime=habana, a pod with habana.ai/gaudi in its limits"
        )
        return GateResult.absent(cause, sentence, fix)
    leased, value = visibility(request.devices).get(VISIBLE, ""), request.environment.get(VISIBLE, "")
    if leased != value:
        sentence = f"the modules {leased} were leased, and {VISIBLE} is {value!r}"
        return GateResult.absent(status.NO_GPU, sentence, f"leave {VISIBLE} as Stoker sets it")
    return GateResult(
        facts={"devices": f"{count_text(len(request.devices), 'card')} leased; unproved: that they answer"}
    )


def meter(devices: Sequence[Device]) -> GaudiMeter:
    """A meter of cards; `OSError` where hl-smi is not there."""
    command = shutil.which("hl-smi")
    if command is None:
        raise OSError("hl-smi is not on PATH (it comes with habanalabs-firmware-tools)")
    return GaudiMeter(command, devices)


class GaudiMeter:
    """Asks hl-smi again and again, and never waits for it: a sample has what the last finished question told.

    It does not tell whose memory is in use.
    """

    def __init__(self, command: str, devices: Sequence[Device]) -> None:
        self._held = {device.uuid for device in devices}
        self._question = Question([command, "-Q", _MEASURED, "-f", _FORMAT], os.environ)

    def sample(
        self, now: float, tree: frozenset[int], last: bool = False
    ) -> tuple[dict[str, DeviceRow], list[DeviceRow]]:
        """A row for each card if an answer has come since the last sample."""
        rows: dict[str, DeviceRow] = {}
        events: list[DeviceRow] = []
        answer = self._question.answer()
        if answer is not None:
            text, why = answer
            if why:
                events = [{"failed": uuid, "why": f"hl-smi: {why}"} for uuid in sorted(self._held)]
                self._held = set()
            else:
                rows = {
                    uuid: measured(dict(zip(_COLUMNS, values))) for uuid, *values in _rows(text) if uuid in self._held
                }
        if last:
            self._question.close()
        elif self._held:
            self._question.ask()
        return rows, events


def select_modules(devices: Sequence[Device], value: str) -> list[Device]:
    """The cards whose modules a list such as "0,3" names."""
    named = numbers_in(value)
    return [one for one in devices if one.index in named]


VENDOR: Final = Vendor(
    name="gaudi",
    title="Intel Gaudi",
    example="Gaudi2",
    probe=probe,
    visibility=visibility,
    limits=(Limit(variable=VISIBLE, select=select_modules),),
    simulation=None,
    prove=prove,
    meter=meter,
)


def _rows(text: str) -> list[list[str]]:
    return [[part.strip() for part in row] for row in csv.reader(text.splitlines()) if row]


def _device(module: str, uuid: str, name: str, memory: str) -> Device:
    kind = name
    with contextlib.suppress(SettingsError):
        kind = model(name).name
    return Device(
        kind="gaudi",
        index=int(module),
        uuid=uuid,
        name=name,
        model=kind,
        memory=int(number(memory, MEMORY) or 0),
    )
