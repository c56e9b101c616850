"""`stoker devices`: this machine's accelerators, their leases and processes, and what is wrong with them.

`stoker top`: the same with the running steps and a stack's nodes, as they are now.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from typing import Final, Iterable, Iterator, Mapping, Sequence

import click

from stoker import stacks
from stoker.cli.output import coloured, completes, json_option, paint, print_json, table
from stoker.client import Client
from stoker.core.devices import Device, Entry, Inventory, Process
from stoker.core.errors import EXIT_INFRASTRUCTURE, UsageError
from stoker.core.findings import Finding, errors
from stoker.core.words import count_text, memory_text, short
from stoker.devices.probe import VARIABLE, parse_simulation, probe, processes
from stoker.report.live import columns_of
from stoker.report.machine import (
    MachineWatch,
    NodeWatch,
    by_device,
    document,
    draw,
    entries,
    ledger_of,
    left_out,
    stack_nodes,
    use_document,
    version_text,
)
from stoker.report.streams import control, echo, say, unpainted, write
from stoker.worker.survivors import process_text

HEADERS = ("index", "model", "slice", "memory", "capability", "links", "numa", "leased to", "used by", "uuid", "name")
"""The longest last, since a narrow terminal cuts lines off."""


@click.command("devices")
@json_option
@click.option(
    "--simulate",
    metavar="TEXT",
    help=f'Show the machine that {VARIABLE}=TEXT makes, such as "4xH100-80GB,1xA10;driver=535.104.05".',
)
@click.option(
    "--release", metavar="UUID", help="Take a device out of quarantine although a process of its attempt has not ended."
)
def command(*, as_json: bool, simulate: str | None, release: str | None) -> int:
    """List this machine's accelerators, who holds them and who waits; exit code 4 if a driver is broken.

    Below stand nodes and devices that a run left out within the last week because an attempt failed there. A device is
    in quarantine while its attempt is over and a process of it lives that SIGKILL does not end.
    """
    inventory = probe() if simulate is None else parse_simulation(simulate)
    if release is not None:
        return _release(inventory, release)
    users = by_device(processes(inventory))
    ledger = entries(inventory)
    faulty = left_out()
    if as_json:
        print_json({**document(inventory, users, ledger), "left_out": [one.as_dict() for one in faulty]})
    else:
        for line in lines(inventory, users, ledger):
            echo(line)
        for one in faulty:
            echo(
                paint(f"left out by run {one.run}: {one.kind} {one.place}{f' of {one.host}' if one.host else ''}", "33")
            )
            echo(f"  {one.cause} in attempt {one.attempt} of {one.step}: {one.message}".rstrip(": "))
    return EXIT_INFRASTRUCTURE if errors(inventory.findings) else 0


def _release(inventory: Inventory, uuid: str) -> int:
    """Release a quarantined device; refuses one that is not in quarantine."""
    pids = ledger_of(inventory).dismiss(uuid)
    if not pids:
        raise UsageError(
            f"the device {uuid} is not in quarantine",
            fix="`stoker devices` shows which are; a lease ends with its step: stoker cancel RUN",
        )
    say(f"released {uuid}; still there: {', '.join(map(process_text, pids))}")
    return 0


def lines(inventory: Inventory, users: Mapping[str, Sequence[Process]], ledger: Sequence[Entry]) -> Iterable[str]:
    """The inventory as text: the devices, the driver, who waits, and the findings."""
    if inventory.devices:
        rows = [_row(device, inventory, users.get(device.uuid, ()), ledger) for device in inventory.devices]
        # Empty columns are left out.
        columns = [number for number in range(len(HEADERS)) if any(row[number] for row in rows)]
        headers = [HEADERS[number] for number in columns]
        yield table(headers, [[row[number] for number in columns] for row in rows], right=("index", "memory"))
    else:
        yield "no accelerators"
    facts = [
        count_text(len(inventory.devices), "device") + (" (simulated)" if inventory.simulated else ""),
        f"NVIDIA driver {inventory.driver}" if inventory.driver else "",
        f"CUDA up to {version_text(inventory.cuda)}" if inventory.cuda else "",
    ]
    if inventory.devices or inventory.driver:
        yield ", ".join(fact for fact in facts if fact)
    for entry in ledger:
        if not entry.devices:
            yield f"{_attempt(entry)}: {entry.waits}"
    for entry in ledger:
        if entry.survivors:
            yield from _quarantine_lines(entry)
    for finding in inventory.findings:
        yield from finding_lines(finding)


def _quarantine_lines(entry: Entry) -> Iterable[str]:
    pids = ", ".join(map(process_text, entry.survivors))
    yield paint(f"in quarantine: {', '.join(entry.devices)}", "33")
    yield f"  {_attempt(entry)} is over, and does not end: {pids}"
    yield "  free when that has ended; or: " + "; ".join(f"stoker devices --release {uuid}" for uuid in entry.devices)


def finding_lines(finding: Finding) -> Iterable[str]:
    """A finding's text; its first line is coloured if it is an error."""
    first, *rest = finding.text().splitlines()
    yield paint(first, "31" if finding.level == "error" else "33")
    yield from rest


def _row(device: Device, inventory: Inventory, users: Sequence[Process], ledger: Sequence[Entry]) -> list[str]:
    index = {other.uuid: str(other.index) for other in inventory.devices if other.kind == device.kind}
    return [
        str(device.index),
        device.model,
        device.slice,
        memory_text(device.memory) if device.memory else "",
        version_text(device.capability),
        ",".join(index[uuid] for uuid in device.links if uuid in index),
        "" if device.numa is None else str(device.numa),
        short(", ".join(_lessee(entry) for entry in ledger if device.uuid in entry.devices)),
        short(", ".join(_user(user) for user in users)),
        device.uuid,
        device.name if device.name != device.model else "",
    ]


def _user(process: Process) -> str:
    return f"pid {process.pid}" + (f" ({memory_text(process.memory)})" if process.memory else "")


def _attempt(entry: Entry) -> str:
    holder = entry.holder
    return f"run {holder.run} step '{holder.key}' attempt {holder.attempt}"


def _lessee(entry: Entry) -> str:
    holder = entry.holder
    part = f" ({memory_text(entry.memory)})" if entry.memory else ""
    return f"run {holder.run} {holder.key} #{holder.attempt}{part}"


FIRST: Final = 0.5
"""Seconds over which CPU time is measured where it is shown once."""


@click.command("top")
@click.option("--once", is_flag=True, help="Print it once and end, as in a pipe.")
@click.option(
    "--interval", type=click.FloatRange(min=0.2), default=2.0, show_default=True, help="Seconds between two looks."
)
@click.option(
    "--stack",
    "stack_name",
    metavar="NAME",
    help="Whose runs and nodes; the current stack's if not given.",
    shell_complete=completes("stacks"),
)
@json_option
def top(*, once: bool, interval: float, stack_name: str | None, as_json: bool) -> int:
    """Show devices, leases, running steps and what they use; on a terminal until q or Ctrl-C.

    Devices and steps are those of this machine, measured by the steps' own monitors where there is one. Below stand
    steps on the stack's platforms, and the nodes of Slurm, Kubernetes and Ray. In a pipe it is printed once.
    """
    stack = stacks.load(stack_name)
    inventory = probe()
    there = os.path.isdir(stack.home) or bool(stack.database)
    client = Client(stack_name) if there else None
    watch = MachineWatch(inventory, client, str(stack.home / "scratch"))
    try:
        if as_json or once or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
            watch.look(())
            time.sleep(FIRST)
            use = watch.look(processes(inventory), stack_nodes(stack))
            if as_json:
                print_json(use_document(use))
            else:
                width = {"width": shutil.get_terminal_size().columns} if sys.stdout.isatty() else {}
                for line in draw(use, paint=paint, **width):
                    echo(line)
            return 0
        nodes = NodeWatch(stack)
        with _keys() as pressed:
            view = _View()
            while True:
                use = watch.look(processes(inventory), nodes.known())
                size = shutil.get_terminal_size()
                view.show(draw(use, paint=paint, width=size.columns - 1, height=size.lines - 2))
                if pressed(interval) in ("q", "Q", "\x03", "\x04"):
                    return 0
    except KeyboardInterrupt:
        return 0
    finally:
        if client is not None:
            client.close()


class _View:
    """Lines that are drawn over those before."""

    def __init__(self) -> None:
        self._drawn: Sequence[int] = ()

    def show(self, lines: Sequence[str]) -> None:
        """Draw the lines in one write, with how to leave below them."""
        lines = [*lines, paint("q leaves", "2") if coloured() else "q leaves"]
        width = max(1, shutil.get_terminal_size().columns)
        rows = sum(max(1, -(-columns // width)) for columns in self._drawn)  # a narrower terminal has wrapped them
        up = control(f"{rows}F") if rows else ""
        write(up + "".join(f"{line}{control('K')}\n" for line in lines) + control("J"), sys.stdout)
        sys.stdout.flush()
        self._drawn = [columns_of(unpainted(line)) for line in lines]


@contextlib.contextmanager
def _keys() -> Iterator[_KeyReader]:
    """Reads single keys; the terminal is afterwards as before. Without a terminal to type at, it only waits."""
    import termios
    import tty

    if not sys.stdin.isatty():
        yield _KeyReader(None)
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield _KeyReader(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


class _KeyReader:
    """Waits for a key."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def __call__(self, seconds: float) -> str:
        """The key that is pressed within so many seconds; empty without one."""
        import select

        if self._descriptor is None:
            time.sleep(seconds)
            return ""
        ready, _, _ = select.select([self._descriptor], [], [], seconds)
        return os.read(self._descriptor, 64).decode("utf-8", "replace")[:1] if ready else ""
