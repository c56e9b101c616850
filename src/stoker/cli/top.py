"""`stoker top`: this machine's devices, leases and running steps, and a stack's nodes, as they are now."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from typing import Final, Iterator, Sequence

import click

from stoker import stacks
from stoker.cli.options import json_option
from stoker.cli.output import coloured, paint, print_json
from stoker.client import Client
from stoker.devices.probe import probe, processes
from stoker.report.live import columns_of
from stoker.report.machineuse import MachineWatch, NodeWatch, document, stack_nodes
from stoker.report.streams import control, echo, unpainted, write
from stoker.report.top import draw

FIRST: Final = 0.5
"""Seconds over which CPU time is measured where it is shown once."""


@click.command("top")
@click.option("--once", is_flag=True, help="Print it once and end, as in a pipe.")
@click.option(
    "--interval", type=click.FloatRange(min=0.2), default=2.0, show_default=True, help="Seconds between two looks."
)
@click.option("--stack", "stack_name", metavar="NAME", help="Whose runs and nodes; the current stack's if not given.")
@json_option
def command(*, once: bool, interval: float, stack_name: str | None, as_json: bool) -> int:
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
                print_json(document(use))
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
