"""Draws what a machine does as lines: for a terminal that is drawn again and again, or once for a pipe. Pure."""

from __future__ import annotations

from typing import Callable, Final, Iterator, Sequence

from stoker.backends.base.backend import NodeDevices, PlatformNode
from stoker.core.words import count_text, memory_text, time_text
from stoker.report.live import columns_of, cut, pad
from stoker.report.machine import DeviceUse, MachineUse, StackNodes, StepUse
from stoker.report.rankuse import RankUse, slowest_text

Paint = Callable[[str, str], str]
"""A text in an ANSI colour."""
_BAR: Final = 10
_ELASTIC: Final = "step"
"""The column that is cut for the sake of the figures behind it."""
_LEAST_NAME: Final = 20
"""Columns of a name that is cut."""
_NO_LIMIT: Final = 1_000_000
_RIGHT: Final = frozenset(
    {"util", "cpus", "memory", "power", "temp", "index", "time", "processes", "nodes", "rank", "waits", "batches"}
)
"""Columns of figures."""
_LEAST: Final = 3
"""Lines of a section that are shown however low the terminal is."""


def draw(use: MachineUse, *, paint: Paint, width: int = _NO_LIMIT, height: int = _NO_LIMIT) -> list[str]:
    """The lines, each of at most `width` columns; where `height` is too low, sections end with how many are missing."""
    sections = [section for section in _sections(use) if section[1]]
    used = 1 + sum(2 + len(rows) for _, rows, _ in sections)
    lines = [cut(_host(use), width)]
    for number, (headers, rows, noun) in enumerate(sections):
        over = max(0, used - height)
        room = max(_LEAST, len(rows) - over - 1) if over else len(rows)
        # The largest section gives way first: the others are short.
        shown = rows if len(rows) <= room or len(rows) < max(len(one[1]) for one in sections[number:]) else rows[:room]
        used -= len(rows) - len(shown)
        lines.append("")
        lines += _table(headers, shown, width=width, paint=paint)
        if len(shown) < len(rows):
            lines.append(paint(cut(f"… and {count_text(len(rows) - len(shown), f'more {noun}')}", width), "2"))
    for one in use.steps:
        if text := slowest_text(one.ranks):
            lines.append(paint(cut(f"{one.run} {one.key}: {text}", width), "33"))
    for attempt, why in use.waiting:
        lines.append(paint(cut(f"{attempt} waits: {why}", width), "33"))
    lines += [paint(cut(f"{one.part}: {one.problem}", width), "31") for one in use.nodes if one.problem]
    if use.problem:
        lines.append(paint(cut(f"steps are not known: {use.problem}", width), "31"))
    return lines[:height]


Section = tuple[Sequence[str], list[tuple[str, ...]], str]
"""Headers, rows, and what a row is."""


def _sections(use: MachineUse) -> Iterator[Section]:
    headers: Sequence[str] = ("index", "device", "util", "", "memory", "power", "temp", "leased to")
    yield headers, [_device_row(one) for one in use.devices], "device"
    index = {one.device.uuid: f"{one.device.model} {one.device.index}" for one in use.devices}
    headers = ("run", "step", "time", "cpus", "memory", "processes", "devices", "on")
    yield headers, [_step_row(one, index) for one in use.steps], "step"
    headers = ("rank", "cpus", "memory", "waits", "batches", "devices", "in", "of")
    busy = {
        one.device.uuid: index[one.device.uuid] + ("" if one.utilization is None else f" {one.utilization:.0f} %")
        for one in use.devices
    }
    yield headers, [_rank_row(rank, one, busy) for one in use.steps for rank in one.ranks], "rank"
    headers = ("node", "state", "cpus", "memory", "accelerators", "in", "of")
    yield headers, [_node_row(node, part) for part in use.nodes for node in part.nodes], "node"


def _host(use: MachineUse) -> str:
    host = use.host
    parts = [
        f"cpu {host.busy:.0f} % of {count_text(host.cpus, 'core')}",
        f"memory {memory_text(host.memory_used)} of {memory_text(host.memory)}",
        f"load {host.load:.1f}",
        count_text(len(use.devices), "device") + (" (simulated)" if use.inventory.simulated else ""),
        f"{count_text(len(use.steps), 'step')} running",
    ]
    return "  ".join(parts)


def _device_row(use: DeviceUse) -> tuple[str, ...]:
    device = use.device
    percent = use.utilization
    used, whole = use.memory, device.memory
    memory = memory_text(used) if used is not None else "-"
    users = ", ".join(f"pid {pid}" for pid in use.users)
    return (
        str(device.index),
        f"{device.model} {device.slice}".strip(),
        "-" if percent is None else f"{percent:.0f} %",
        "" if percent is None else _bar(percent),
        f"{memory} of {memory_text(whole)}" if whole else memory,
        "-" if use.power is None else f"{use.power:.0f} W",
        "-" if use.temperature is None else f"{use.temperature:.0f} °C",
        ", ".join(use.leases) or (f"no lease: {users}" if users else "free"),
    )


def _bar(percent: float) -> str:
    return ("━" * round(_BAR * min(100.0, max(0.0, percent)) / 100)).ljust(_BAR, "─")


def _step_row(use: StepUse, index: dict[str, str]) -> tuple[str, ...]:
    again = f" #{use.attempt}" if use.attempt > 1 else ""
    return (
        use.run,
        f"{use.pipeline} {use.key}{again}",
        "-" if use.seconds is None else time_text(use.seconds),
        "-" if use.cpus is None else f"{use.cpus:.2f}",
        "-" if use.memory is None else memory_text(use.memory),
        "-" if use.processes is None else str(use.processes),
        ", ".join(index.get(uuid, uuid) for uuid in use.devices),
        use.node or "this machine",
    )


def _rank_row(use: RankUse, step: StepUse, index: dict[str, str]) -> tuple[str, ...]:
    return (
        str(use.rank),
        "-" if use.cpus is None else f"{use.cpus:.2f}",
        "-" if use.memory is None else memory_text(use.memory),
        "-" if use.waits is None else f"{use.waits:.0%}",
        str(use.batches) if use.batches else "",
        ", ".join(index.get(uuid, uuid) for uuid in use.devices),
        use.operation,
        f"{step.run} {step.key}",
    )


def _node_row(node: PlatformNode, part: StackNodes) -> tuple[str, ...]:
    return (
        node.name if node.count == 1 else f"{node.name} ({node.count} nodes)",
        node.state,
        "-" if node.cpus is None else f"{node.cpus:g}",
        "-" if node.memory is None else memory_text(node.memory),
        ", ".join(map(devices_text, node.devices)),
        node.group,
        part.part,
    )


def devices_text(devices: NodeDevices) -> str:
    """ "8 H100, 3 free"."""
    free = "" if devices.free is None else f", {devices.free:g} free"
    return f"{devices.count:g} {devices.model}{free}"


def _table(headers: Sequence[str], rows: Sequence[tuple[str, ...]], *, width: int, paint: Paint) -> Iterator[str]:
    """Aligned columns; those without any text are left out."""
    columns = [number for number in range(len(headers)) if any(row[number] for row in rows)]
    widths = {number: max(columns_of(text[number]) for text in (headers, *rows)) for number in columns}
    over = sum(widths.values()) + 2 * (len(columns) - 1) - width
    for number in (number for number in columns if headers[number] == _ELASTIC and over > 0):
        widths[number] = max(_LEAST_NAME, widths[number] - over)
    for place, row in enumerate((headers, *rows)):
        cells = []
        for number in columns:
            room = widths[number]
            text = cut(row[number], room)
            filled = " " * (room - columns_of(text)) + text if headers[number] in _RIGHT else pad(text, room)
            cells.append(filled)
        line = cut("  ".join(cells).rstrip(), width)
        yield paint(line, "1") if place == 0 else line
