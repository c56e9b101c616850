"""AMD's GPUs by the command amd-smi, for a Python without amdsmi: a virtual environment has none of ROCm's packages.

Versions of the command differ: the GPUs are a list, or the list "gpu_data" of an object, and a number stands alone or
with its unit. https://rocm.docs.amd.com/projects/amdsmi/en/latest/how-to/amdsmi-cli-tool.html
"""

from __future__ import annotations

import json
import shutil
from typing import Any, Final, Mapping, Sequence

from stoker.core.devices import Device
from stoker.vendors.base import DeviceRow
from stoker.vendors.tools import MEMORY, Question, measured, number, output

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


def asics(program: str, environment: Mapping[str, str]) -> list[tuple[Mapping[str, Any], int]]:
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
