"""What is asked of SkyPilot outside of a run: what `stoker doctor --stack` and `stoker stacks setup` find, what runs
left, and how commands run beside a step: by ssh, for which SkyPilot names each of its machines.

https://docs.skypilot.co/en/latest/examples/interactive-development.html#ssh: the head is called as the cluster, and
the others CLUSTER-worker1 and so on. Containers of SkyPilot's are what such a login leads into.
"""

from __future__ import annotations

import os
import re
from typing import Any, Collection, Final, Iterator, Mapping, Sequence

from stoker.backends.base.backend import Beside, LeftJob, Leftover, ProbeRequest, RunningAttempt, Sweep, no_way
from stoker.backends.skypilot import catalog
from stoker.backends.skypilot.command import SkyCommand
from stoker.backends.skypilot.platform import end_names
from stoker.backends.skypilot.requests import PREFIX, prefix_of
from stoker.backends.skypilot.settings import SkypilotSettings
from stoker.core.errors import Away, BackendError
from stoker.core.findings import Check
from stoker.core.hosts import Address
from stoker.ssh.connection import Ssh

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


# What runs left: clusters and managed jobs, known by their names.


def left_jobs(parts: Sequence[Mapping[str, Any]], scratch: str, runs: Collection[str]) -> Iterator[LeftJob]:
    """Clusters and managed jobs of runs; results lie in the artifact store."""
    for _, names in _machines(parts):
        for run in runs:
            for name in _of_run(names, run):
                yield LeftJob(run=run, name=name, running=True)


def end_left(parts: Sequence[Mapping[str, Any]], scratch: str, run: str, grace: float) -> Iterator[LeftJob]:
    """Take down what a run has left."""
    for sky, names in _machines(parts):
        mine = _of_run(names, run)
        end_names(sky, mine)
        for name in mine:
            yield LeftJob(run=run, name=name, running=True)


def end_recorded(options: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """Take down what a driver left, as it recorded it; what was there."""
    sky = SkyCommand(SkypilotSettings(**options), os.environ)
    return end_names(sky, {str(job["name"]): bool(job["managed"]) for job in jobs if job.get("name")})


def sweep_accounts(parts: Sequence[Mapping[str, Any]], sweep: Sweep) -> Iterator[Leftover]:
    """Take down what runs of this database have left that nobody continues."""
    kept = sweep.kept
    count = 0
    for part in parts:
        try:
            for sky, names in _machines([part]):
                old = {name: names[name] for run in sweep.ours if run not in kept for name in _of_run(names, run)}
                count += len(old)
                if old and not sweep.dry_run:
                    end_names(sky, old)
        except BackendError as error:  # `Away` among them
            sweep.say(error.message)
    yield Leftover(kind="skypilot_machines", noun="cluster", rest="of runs with SkyPilot", count=count)


def _of_run(names: Mapping[str, bool], run: str) -> dict[str, bool]:
    return {name: managed for name, managed in names.items() if name.startswith(prefix_of(run))}


def _machines(parts: Sequence[Mapping[str, Any]]) -> Iterator[tuple[SkyCommand, dict[str, bool]]]:
    """For each API server of the stacks, what it has of Stoker's: name → whether it is a managed job."""
    seen = set()
    for part in parts:
        settings = SkypilotSettings(**part)
        place = (settings.get("sky"), settings.get("api_server"))
        if place in seen:
            continue
        seen.add(place)
        sky = SkyCommand(settings, os.environ)
        names = {str(one.get("name")): False for one in sky.clusters()}
        for job in sky.managed_jobs(unfinished=True):
            names[str(job.get("job_name"))] = True
        yield sky, {name: managed for name, managed in names.items() if name.startswith(PREFIX)}


# Beside a step


def places(options: Mapping[str, Any], attempt: RunningAttempt) -> Iterator[Beside]:
    """The machines of the attempt's cluster; a `UsageError` where it has none that this machine reaches.

    The connections stay open as long as this process.
    """
    cluster = str(attempt.identity.get("cluster", ""))
    if not cluster:
        name = str(attempt.identity.get("name") or "ID")
        raise no_way(
            attempt,
            "ssh reaches clusters, and this job has none yet, or is managed by SkyPilot's controller",
            fix=f"read what it writes: stoker logs {attempt.run} {attempt.key}, or sky jobs logs --name {name}",
        )
    for node in range(int(attempt.identity.get("machines", 1))):
        host = f"{cluster}-worker{node}" if node else cluster
        machine = Ssh(Address(host))
        try:
            argv, terminal = machine.client(), machine.client(terminal=True)
        except Away as error:
            machine.close()
            fix = (
                f"have SkyPilot write the name for ssh here: sky status {cluster}; then see what `ssh {host} true` says"
            )
            raise no_way(attempt, error.message, fix=fix) from None
        yield Beside(where=host, argv=argv, terminal=terminal, inner=(), environment=attempt.environment)
