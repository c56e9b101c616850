"""The backends of this machine: worker processes, and the driver's own process for a debugger."""

from __future__ import annotations

import sys
from typing import Any, Final, Iterator, Mapping

from stoker.backends.base.backend import NOT_HERE, Backend, Beside, ProbeRequest, RunningAttempt, later
from stoker.backends.local.settings import LocalSettings, local_capacity
from stoker.core.errors import UsageError
from stoker.core.findings import Check
from stoker.core.words import memory_text


def beside(options: Mapping[str, Any], attempt: RunningAttempt) -> Iterator[Beside]:
    """This machine, if the run's driver is on it."""
    import socket

    if attempt.host != socket.gethostname():
        raise UsageError(
            f"step '{attempt.key}' runs on {attempt.host or 'another machine'}, not here ({NOT_HERE})",
            fix=f"do it there: ssh {attempt.host or 'HOST'}",
        )
    yield Beside(where="this machine", environment={**attempt.environment, **attempt.devices})


def probe(options: Mapping[str, Any], request: ProbeRequest) -> Iterator[Check]:
    """What this machine gives to steps, and whether a worker's interpreter starts."""
    import subprocess

    room = local_capacity(options)
    yield Check(name="room", found=f"{room.cpus:g} CPUs, {memory_text(room.memory)}, {room.slots} steps at once")
    words = [sys.executable, "-c", "import stoker.worker.forkserver"]
    started = subprocess.run(words, capture_output=True, text=True, timeout=request.patience, check=False)
    last = (started.stderr.strip().splitlines() or ["it says nothing"])[-1]
    yield Check(
        name="worker",
        found="" if started.returncode else sys.executable,
        problem=f"the interpreter of workers ends with code {started.returncode}: {last}" if started.returncode else "",
        fix=f"see what `{sys.executable} -c 'import stoker.worker.forkserver'` says" if started.returncode else "",
    )


LOCAL: Final = Backend(
    name="local",
    title="Local",
    settings=LocalSettings,
    open=later("stoker.backends.local.backend:LocalBackend"),
    room=local_capacity,
    probe=probe,
    beside=beside,
)
INLINE: Final = Backend(
    name="inline", title="Inline", settings=LocalSettings, open=later("stoker.backends.local.inline:InlineBackend")
)
