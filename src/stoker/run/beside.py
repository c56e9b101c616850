"""Runs commands beside a running step: finds the attempt in the store, its place by its backend, its process there."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import zlib
from typing import Any, Callable, Final, Iterable, Iterator, Mapping, Sequence

from stoker import stacks
from stoker.backends.base.backend import NOT_HERE, Beside, RunningAttempt
from stoker.backends.registry import BACKENDS
from stoker.client import Client, Step
from stoker.client.keys import element_of
from stoker.core.codec import from_json
from stoker.core.devices import Device
from stoker.core.errors import NotFound, UsageError
from stoker.core.protocol import JOB
from stoker.core.values import frozen
from stoker.plan import plandoc
from stoker.store.rows import EventRow
from stoker.worker import besidescript
from stoker.worker.beside import name_of
from stoker.worker.processes import MARK
from stoker.worker.rankstate import STACKS

NOT_RUNNING: Final = "STK346"
"""The step does not run."""
WHICH: Final = "STK347"
"""The step is a fan-out or has several ranks, and it is not said which is meant, or there is none of that number."""
NO_PROCESS: Final = "STK348"
"""The attempt runs, and its process is not found in its place."""
NO_PORT: Final = "STK349"
"""A port cannot be forwarded: nothing listens there, or the port of this machine is taken."""
GONE: Final = 97
"""The exit code of the shell line that found no process."""

# Finds the process of a name, or of the first rank, and hands over to its own Python. Python finds its library by its
# own path, for which the link in /proc does where an image has no readlink.
_FIND: Final = """
for want in {names}; do for d in /proc/[0-9]*; do
{{ read -r n < "$d/comm"; }} 2>/dev/null || continue
case "$n" in $want) ;; *) continue ;; esac
[ -x "$d/exe" ] || continue
exe=$(readlink "$d/exe" 2>/dev/null) || exe="$d/exe"
exec "$exe" -I -c "$0" "$1" "${{d#/proc/}}"
done; done; exit {gone}
"""
_UNPACK: Final = 'import base64,zlib;exec(zlib.decompress(base64.urlsafe_b64decode("{}")))'
"""A third of the script: on some platforms the command stands in a URL, of which proxies take 8 kB."""


@frozen(kw_only=True)
class RunningStep:
    """A running attempt, and the places in which its processes are."""

    attempt: RunningAttempt
    job: str
    places: tuple[Beside, ...]

    def words(self, place: Beside, order: Mapping[str, Any], *, rank: int | None, terminal: bool) -> list[str]:
        """The command of this machine that has the process's place do something."""
        names = [name_of(self.job, rank or 0)]
        if not rank:  # a step's only process is its rank 0
            names.append(name_of(self.job))
        if rank is None and order["op"] == "dump":  # of a place without rank 0, any can tell of all that are there
            names.append(f"{name_of(self.job)}-*")
        with open(besidescript.__file__, "rb") as file:
            script = _UNPACK.format(base64.urlsafe_b64encode(zlib.compress(file.read(), 9)).decode())
        line = _FIND.format(names=" ".join(map(shlex.quote, names)), gone=GONE)
        document = {"name": name_of(self.job), "signal": int(STACKS), "gone": [MARK], **order}
        document["environment"] = dict(place.environment)
        return place.words(["sh", "-c", line, script, json.dumps(document)], terminal=terminal)


def reach(client: Client, run_id: str, key: str) -> RunningStep:
    """A step of a run, or an element of a fan-out, as it runs now; a `UsageError` or `NotFound` in words where not."""
    run = client.run(run_id)
    step = run.steps[key]
    if step.count is not None:
        raise UsageError(
            f"'{key}' is a fan-out of {step.count:,}, whose elements run by themselves ({WHICH})",
            fix=f'name one: "{key}[0]"',
        )
    attempt = _attempt_of(step)
    if run.status != "running" or step.status not in ("running", "pending") or not attempt:
        raise NotFound(
            f"step '{key}' of run {run.id} does not run: it is {step.status} ({NOT_RUNNING})",
            fix=f"see what runs with `stoker watch {run.id}`",
        )
    row = client.store.records.run(run.id)
    plan = plandoc.load(client.store.records.plan(run.id))
    parent = element_of(key)[0] if step.index is not None else key
    planned = next((one for one in plan.steps if one.key in (key, parent)), None)
    name = planned.backend if planned is not None else stacks.ORCHESTRATOR
    stack = stacks.load(run.stack)
    part = stack.part(name)
    backend = BACKENDS.load(part.flavor)
    placement = step.placement
    known = {} if placement is None else placement.as_dict()
    if backend.beside is None:
        where = f" (it is {known['job']}{', on ' + known['node'] if known.get('node') else ''})" if known else ""
        raise UsageError(
            f"{backend.title} gives Stoker no way into its jobs{where} ({NOT_HERE})",
            fix=f"read what it writes: stoker logs {run.id} {key} --follow; or use the platform's own tools",
        )
    settings = planned.settings.environment if planned is not None else {}
    events = [
        event
        for event in client.store.records.events(run.id)
        if event.key == key and event.data.get("attempt") == attempt
    ]
    found = RunningAttempt(
        run=run.id,
        key=key,
        attempt=attempt,
        host=str(row.driver.get("host", "")),
        placement=known,
        identity={name: value for event in events if event.kind == JOB for name, value in event.data.items()},
        devices=_visibility(events),
        environment={name: value for name, value in settings.items() if not value.startswith("secret:")},
    )
    options = plan.settings.backend.get(name, part.options)
    places = tuple(backend.beside(options, found))
    return RunningStep(attempt=found, job=f"{run.id}/{key}/{attempt}", places=places)


def execute(reached: RunningStep, argv: Sequence[str], *, rank: int | None) -> int:
    """Run a command beside the step, with this process's streams; its exit code."""
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    for place in reached.places:
        if place.only_prints and not argv:
            raise _only_prints(reached, place, "a shell")
        words = reached.words(place, {"op": "exec", "argv": list(argv)}, rank=rank, terminal=terminal)
        with signals_passed():
            code = subprocess.run(words, check=False).returncode
        if code != GONE:
            return code if code >= 0 else 128 - code
    raise _no_process(reached, rank)


@contextlib.contextmanager
def signals_passed() -> Iterator[None]:
    """Leave Ctrl-C to the command, which has the same terminal."""
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def forward(reached: RunningStep, port: int, *, local: int, rank: int | None, ready: Callable[[int], None]) -> None:
    """Carry each connection to a port of this machine to a port of the step's place, until an exception ends it.

    `local` 0 takes any free port; `ready` is called with the one that it is.
    """
    place = _place_of(reached, {"op": "knock", "port": port}, port=port, rank=rank)
    words = reached.words(place, {"op": "relay", "port": port}, rank=rank, terminal=False)
    relays: list[subprocess.Popen[bytes]] = []
    try:
        listener = socket.create_server(("127.0.0.1", local))
    except OSError as error:
        raise UsageError(
            f"port {local} of this machine cannot be taken: {error.strerror} ({NO_PORT})",
            fix="choose another: --local 0",
        ) from None
    with listener:
        ready(listener.getsockname()[1])
        try:
            while True:
                connection, _ = listener.accept()
                with connection:
                    relays.append(subprocess.Popen(words, stdin=connection.fileno(), stdout=connection.fileno()))
                relays = [relay for relay in relays if relay.poll() is None]
        finally:
            for relay in relays:
                relay.terminate()
                relay.wait()


def _place_of(reached: RunningStep, order: Mapping[str, Any], *, port: int, rank: int | None) -> Beside:
    """The place in which the process is, if something listens there."""
    for place in reached.places:
        if place.only_prints:
            raise _only_prints(reached, place, "a port")
        words = reached.words(place, order, rank=rank, terminal=False)
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return place
        if done.returncode != GONE:
            why = (done.stderr.strip().splitlines() or ["no reason is given"])[-1]
            raise NotFound(
                f"nothing is reached at port {port} of {place.where}: {why} ({NO_PORT})",
                fix=f"start it in the step, listening at 127.0.0.1:{port}",
            )
    raise _no_process(reached, rank)


def dump(reached: RunningStep, *, rank: int | None) -> str:
    """The Python stacks of all processes of the step, or of one rank."""
    texts = []
    for place in reached.places:
        words = reached.words(place, {"op": "dump"}, rank=rank, terminal=False)
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            texts.append(done.stdout)
        elif done.returncode != GONE:
            raise UsageError(
                f"the stacks of '{reached.attempt.key}' cannot be read on {place.where}: "
                f"{(done.stderr.strip().splitlines() or ['no reason is given'])[-1]} ({NO_PROCESS})",
                fix="try again; read the log",
            )
    if not texts:
        raise _no_process(reached, rank)
    return "".join(texts)


def _attempt_of(step: Step) -> int:
    """The number of the attempt that runs; elements have a row only when they end, so that events tell theirs."""
    if step.index is None or step.attempt_count:
        return step.attempt_count
    return 1 + len(step.attempts)


def _visibility(events: Iterable[EventRow]) -> Mapping[str, str]:
    """The variables by which an attempt's processes see the devices of its lease, by the attempt's events."""
    from stoker.vendors.registry import environment_of

    devices: list[Device] = []
    for event in events:
        if event.kind == "leased":
            devices = [from_json(Device, one, strict=False) for one in event.data.get("devices") or ()]
    return environment_of(devices)


def _only_prints(reached: RunningStep, place: Beside, what: str) -> UsageError:
    return UsageError(
        f"step '{reached.attempt.key}' runs on {place.where}, where {what} cannot be reached: {place.only_prints} "
        f"({NOT_HERE})",
        fix="give a command that only prints: stoker exec RUN STEP -- nvidia-smi; or use stoker dump",
    )


def _no_process(reached: RunningStep, rank: int | None) -> NotFound:
    where = ", ".join(place.where for place in reached.places) or os.uname().nodename
    what = "its process" if rank is None else f"rank {rank}"
    return NotFound(
        f"step '{reached.attempt.key}' runs, but {what} is not found on {where} "
        f"({NO_PROCESS if rank is None else WHICH})",
        fix="it may have just ended, or be another user's; `stoker dump` lists the ranks that are there",
    )
