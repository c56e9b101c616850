"""How commands run beside a step in a container: by the engine's own command, in each container of the run that runs.

Which of them has the step's process is seen inside, so that containers that take several steps need nothing more.
"""

from __future__ import annotations

import contextlib
import shutil
from typing import Any, Iterator, Mapping

from stoker.backends.base.beside import NOT_HERE, Beside, RunningAttempt
from stoker.backends.docker.engines import Engine, engine_address
from stoker.backends.docker.jobfiles import name_of
from stoker.backends.docker.requests import LABEL
from stoker.core.errors import UsageError


def places(options: Mapping[str, Any], attempt: RunningAttempt) -> Iterator[Beside]:
    """The containers of the run; a `UsageError` without a command that reaches the engine."""
    address = engine_address(options)
    program = _program(address)
    with contextlib.closing(Engine(address)) as engine:
        found = [one for kind in ("step", "pool") for one in engine.find({LABEL: kind, f"{LABEL}.run": attempt.run})]
    for container in found:
        if container["State"] == "running":
            name = name_of(container)
            yield Beside(
                where=f"container {name}",
                argv=(*program, "exec", "--interactive", name),
                terminal=(*program, "exec", "--interactive", "--tty", name),
                environment=attempt.environment,
            )


def _program(address: str) -> tuple[str, ...]:
    """The words by which an engine's command reaches the engine at an address."""
    for name, option in (("docker", "--host"), ("podman", "--url")):
        path = shutil.which(name)
        if path:
            return path, option, address
    raise UsageError(
        f"neither docker nor podman is on the PATH, by whose command containers of {address} are entered ({NOT_HERE})",
        fix="install Docker's command line (the package docker-cli or docker.io)",
    )
