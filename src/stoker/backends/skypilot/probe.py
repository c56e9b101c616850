"""What `stoker doctor --stack` and `stoker stacks setup` find of SkyPilot."""

from __future__ import annotations

import os
import re
from typing import Any, Final, Iterator, Mapping

from stoker.backends.base.backend import ProbeRequest
from stoker.backends.skypilot import catalog
from stoker.backends.skypilot.command import SkyCommand
from stoker.backends.skypilot.requests import PREFIX
from stoker.backends.skypilot.settings import SkypilotSettings
from stoker.core.errors import BackendError
from stoker.core.findings import Check

OLDEST: Final = (0, 11)
"""The first release whose commands print JSON."""


def probe(options: Mapping[str, Any], request: ProbeRequest) -> Iterator[Check]:
    """The command and its release, the API server, the enabled clouds, the store, the catalog, and what runs there."""
    settings = SkypilotSettings(**options)
    sky = SkyCommand(settings, os.environ)
    try:
        version = _version(sky)
        release = numbers(version)
        old = release is not None and release < OLDEST
        yield Check(
            name="sky",
            found=version,
            problem="it is too old" if old else "",
            fix='pip install -U "skypilot>=0.11" in its environment' if old else "",
        )
        enabled = sky.json("check")  # starts a server on this machine where none is connected: `api info` does not
        yield Check(name="api server", found=_server(sky.json("api", "info")))
        yield from _clouds(enabled, settings)
        ours = [str(one.get("name")) for one in sky.clusters() if str(one.get("name")).startswith(PREFIX)]
        yield Check(name="clusters", found=", ".join(ours) or "none of Stoker's", problem="")
    except BackendError as error:
        yield Check(name="sky", found="", problem=error.message, fix=error.fix)
        return
    shared = "://" in request.store or bool(settings.get("shares_files"))
    yield Check(
        name="store",
        found=request.store,
        problem="" if shared else "machines of a cloud do not see it",
        fix="" if shared else "artifact_store = 's3://…'",
    )
    place = catalog.folder()
    clouds = sorted(file.parent.name for file in place.glob("*/vms.csv")) if place is not None else []
    yield Check(name="catalog", found=", ".join(clouds) or "none: prices are unknown (`sky gpus list` loads it)")


def _clouds(document: Any, settings: SkypilotSettings) -> Iterator[Check]:
    """The clouds that `sky check` has enabled, in any workspace: workspace → cloud → what it can be used for."""
    workspaces = list(document.values()) if isinstance(document, Mapping) else []
    if not isinstance(document, Mapping) or not all(isinstance(clouds, Mapping) for clouds in workspaces):
        yield Check(name="clouds", found="not known: what `sky check` printed is not understood")
        return
    names = sorted({str(name).lower() for clouds in workspaces for name in clouds})
    wanted = str(settings.get("infra") or settings.get("cloud") or "").partition("/")[0].lower()
    wanted = {"k8s": "kubernetes"}.get(wanted, wanted)
    missing = not names or (wanted not in ("", "*") and not any(name == wanted for name in names))
    yield Check(
        name="clouds",
        found=", ".join(names),
        problem=(f"{wanted or 'no cloud'} is not enabled" if names else "no cloud is enabled") if missing else "",
        fix="`sky check` says what is missing" if missing else "",
    )


def _server(info: Any) -> str:
    """What `sky api info` says of the server."""
    server = info.get("server") if isinstance(info, Mapping) else None
    facts = server if isinstance(server, Mapping) else {}
    words = [str(facts[name]) for name in ("url", "status", "version") if facts.get(name)]
    return ", ".join(words) or "it answers"


def _version(sky: SkyCommand) -> str:
    return next(iter(reversed(sky.call("--version").strip().splitlines())), "it does not say its release")


def numbers(version: str) -> tuple[int, int] | None:
    """The release of "skypilot, version 0.14.1"; None where none is named."""
    match = re.search(r"(?<![\w.])([0-9]+)\.([0-9]+)", version)
    return (int(match[1]), int(match[2])) if match is not None else None


def suggest(answers: Mapping[str, str]) -> Mapping[str, str]:
    """Empty for both: every enabled cloud, and the server that is logged in to. Asks whether SkyPilot answers."""
    SkyCommand(SkypilotSettings(sky=answers.get("sky") or "sky"), os.environ).call("--version")
    return {"infra": "", "api_server": ""}
