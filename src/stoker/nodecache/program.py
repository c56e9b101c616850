"""The process that asks places of data, and brings what they have: it alone imports their packages, and its end ends
every thread and connection of theirs.

It gets its order on standard input and answers on what was standard output; whatever else is printed is on standard
error. An error is answered by the name of its class.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any, Final, Mapping

import attrs

from stoker.core import errors
from stoker.core.codec import from_json, to_json
from stoker.core.data import StepData, hub_place
from stoker.core.errors import DiskFull, InfrastructureError, StokerError, UsageError
from stoker.nodecache.cache import Brought, Cache
from stoker.nodecache.sources import Source

_START: Final = (
    "import sys; sys.path[:] = sys.argv[1:]; from stoker.nodecache.program import main; raise SystemExit(main())"
)
_QUIET: Final[Mapping[str, str]] = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def describe(data: StepData, environ: Mapping[str, str]) -> StepData:
    """Ask the place of data what lies there now, with the variables of a step.

    `UsageError` where there is no such thing, `BackendError` where it may not be read from here, and `Away` where
    nobody answers.
    """
    return from_json(StepData, _call({"data": to_json(data)}, environ), strict=False)


def bring(data: StepData, cache: Cache, environ: Mapping[str, str], lock: IO[str]) -> Brought:
    """Bring data whose identity is known into a cache, whose entry is locked by a file of this process."""
    order = {"data": to_json(data), "folder": str(cache.folder), "limit": cache.limit}
    return Brought(**_call(order, environ, keep=(lock.fileno(),)))


def source_of(data: StepData) -> Source:
    """The place that data comes from."""
    if hub_place(data.uri) is not None:
        from stoker.nodecache.hub import Hub

        return Hub(data)
    from stoker.nodecache.files import Files

    return Files(data)


def _call(order: Mapping[str, Any], environ: Mapping[str, str], keep: tuple[int, ...] = ()) -> Any:
    """The answer of a process to an order; it ends with this one, by the end of its standard input."""
    with subprocess.Popen(
        [sys.executable, "-c", _START, *filter(None, sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**environ, **_QUIET},
        pass_fds=keep,
    ) as process:
        assert process.stdin is not None and process.stdout is not None, "both are pipes"
        try:
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
            text = process.stdout.read()
        finally:
            process.kill()  # nothing, once it has answered
    try:
        answer = json.loads(text)
    except ValueError:
        what = f"the process that brings data ended with {process.returncode}"
        raise InfrastructureError(what, fix="the step's log says why; try again") from None
    if "error" in answer:
        kind = getattr(errors, answer["error"], InfrastructureError)
        raise kind(answer["message"], fix=answer["fix"])
    return answer


def main() -> int:
    """Do what standard input says, once."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    order = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        answer = _answer(order)
    except (StokerError, OSError) as problem:
        error = problem if isinstance(problem, StokerError) else _of_this_machine(problem)
        answer = {"error": type(error).__name__, "message": error.message, "fix": error.fix}
    answers.write(json.dumps(answer))
    answers.flush()
    os._exit(0)  # packages' threads may hang


def _of_this_machine(error: OSError) -> StokerError:
    kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else InfrastructureError
    return kind(str(error))


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def _answer(order: Mapping[str, Any]) -> Any:
    data = from_json(StepData, order["data"], strict=False)
    source = source_of(data)
    listing = source.listing()
    if "folder" not in order:
        return to_json(listing.describe(data))
    if data.identity != listing.identity:
        what = f"{data.uri} is another one than when the run was planned"
        raise UsageError(what, fix="run again; data that runs share for long gets a name or a commit of its own")
    return attrs.asdict(Cache(Path(order["folder"]), order["limit"]).bring(source, listing, data))
