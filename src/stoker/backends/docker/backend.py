"""A container engine: one container for each step, on Docker or podman, here or where DOCKER_HOST says.

What is sent is decided in `containers`, sending and following it is `attempt`, the engine itself `engines`. A container
outlives its driver: the next one that has the same to do finds it by its labels, takes over what it has done, and
follows it if it still runs.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import deque
from pathlib import Path
from typing import Any, Final, Iterable, Iterator, Literal, Mapping, Sequence

import attrs

from stoker.backends.base.adoption import EarlierJob, EarlierJobs
from stoker.backends.base.backend import NO_SERVICES, Services
from stoker.backends.base.channel import Channel
from stoker.backends.base.leasing import claim_document
from stoker.backends.base.machine import room
from stoker.backends.base.messages import nodes_of
from stoker.backends.base.statuses import failed
from stoker.backends.docker import requests as containers
from stoker.backends.docker.attempt import Attempt, Order
from stoker.backends.docker.check import check
from stoker.backends.docker.engines import Engine, engine_address, need_package
from stoker.backends.docker.requests import LABEL, NO_FILES, Facts, Part
from stoker.backends.docker.secrets import contents, credentials
from stoker.backends.docker.settings import SECRETS, ContainerSettings
from stoker.core.codec import from_json, to_json
from stoker.core.devices import Device, Lease
from stoker.core.errors import BackendError
from stoker.core.findings import Finding
from stoker.core.plan import Capacity, Job, JobStatus, Site, StepPlan
from stoker.core.protocol import CREDENTIALS
from stoker.core.status import CANCELLED, REFUSED
from stoker.vendors.base import ContainerNeeds
from stoker.vendors.registry import by_vendor

_LEAVE: Final = 30.0
"""Seconds that containers get to be gone when the driver closes."""
_SLOTS_PER_CPU: Final = 8
_PULL: Final = "missing"
"""When an image is fetched, where nobody says."""


class DockerBackend:
    """Runs jobs in containers of one engine."""

    name = "docker"
    packages_in: Literal["image", "environment"] = "image"

    def __init__(self, site: Site, options: Mapping[str, Any], services: Services = NO_SERVICES) -> None:
        need_package()
        self._site = site
        self._options = dict(options)
        given = ContainerSettings(**options)
        self._engine = Engine(engine_address(options))
        shares = self._engine.address.startswith("unix://")
        self._facts = Facts(
            shares_files=given.get("shares_files", shares),
            user=f"{os.getuid()}:{os.getgid()}",
            cache=_cache(site) if given.get("shares_files", shares) else "",
        )
        self._capacity: Capacity | None = None
        self._leasing = services.leasing
        self._jobs: dict[str, Job] = {}
        self._attempts: dict[str, Attempt] = {}
        self._behind: deque[str] = deque()
        self._leaving: list[Attempt] = []
        self._earlier: EarlierJobs[list[Mapping[str, Any]]] | None = None
        self._channel = Channel(over=self._forget)

    # Deciding

    def capacity(self) -> Capacity:
        """What the engine's machine has, and the devices that are handed out there."""
        if self._capacity is None:
            self._capacity = room() if self._facts.shares_files else self._far()
        return self._capacity if self._leasing is None else attrs.evolve(self._capacity, devices=self._leasing.room())

    def _far(self) -> Capacity:
        info = self._engine.info()
        cpus = int(info.get("NCPU") or 1)
        return Capacity(cpus=float(cpus), memory=int(info.get("MemTotal") or 1 << 62), slots=cpus * _SLOTS_PER_CPU)

    def check(self, step: StepPlan) -> Iterable[Finding]:
        """What a container cannot give a step, and how it takes the rest; the engine is not asked."""
        settings = ContainerSettings(**{**self._options, **next(iter(step.settings.backend.values()), {})})
        near = self._facts.shares_files
        if self._leasing is not None and near:
            yield from self._leasing.check(step)
        yield from check(step, settings, self._site, room() if near else None, leases=self._leasing is not None)

    def render(self, job: Job) -> Mapping[str, Any]:
        """The bodies of the requests that make the containers, and the documents that are read inside; beside them what
        decides before and after: the devices that are claimed, when the image is pulled, whether failed ones stay."""
        return self.render_leased(job, self._leasing.leases(job) if self._leasing is not None else [])

    def render_leased(self, job: Job, leases: Sequence[Lease]) -> Mapping[str, Any]:
        """The same for a job that holds these devices."""
        settings = containers.settings_of(job, self._options)
        made = self._parts(job, settings, leases)
        return {
            "engine": self._engine.address,
            "containers": [{"name": one.name, "request": one.body, "document": to_json(one.spec)} for one in made],
            "network": containers.network_name(made[0].name) if containers.own_network(job, settings) else "",
            "secrets": sorted(settings.get("secrets", {})),
            "credentials": sorted(credentials(self._site.artifacts, os.environ)),
            "claim": claim_document(job),
            "pull": settings.get("pull", _PULL),
            "keep": settings.get("keep", False),
        }

    def _parts(self, job: Job, settings: ContainerSettings, leases: Sequence[Lease], *, token: str = "") -> list[Part]:
        return containers.parts(job, site=self._site, settings=settings, facts=self._facts, leases=leases, token=token)

    # Doing

    def submit(self, job: Job) -> str:
        """Have the job's containers made, or found again; what becomes of that is news of a later poll."""
        if job.name in self._jobs:
            return job.name
        self._jobs[job.name] = job
        if job.behind and self._attempts:
            self._behind.append(job.name)  # it was to stand in a worker's line: here it waits until a container is over
            return job.name
        self._place(job)
        return job.name

    def _place(self, job: Job) -> None:
        try:
            found = self._orphans_of(job)
            if found:
                self._begin(job, [], found)
            elif self._leasing is not None and self._leasing.wants(job):
                self._leasing.request(job, start=self._start_leased, tell=self._channel.put)
            else:
                self._begin(job, [])
        except BaseException:  # raised again: the engine of the run knows nothing of a job that was refused
            self._jobs.pop(job.name, None)
            raise

    def _start_leased(self, job: Job) -> None:
        assert self._leasing is not None  # it granted the devices
        self._begin(job, self._leasing.leases(job))

    def _begin(self, job: Job, leases: Sequence[Lease], orphans: Sequence[Mapping[str, Any]] = ()) -> None:
        """Start the thread that makes and follows the job's containers."""
        settings = containers.settings_of(job, self._options)
        held = [device for lease in leases for device in lease.held]
        secret = {f"{SECRETS}/{name}": data for name, data in contents(settings.get("secrets", {})).items()}
        known = credentials(self._site.artifacts, os.environ)
        if known:
            secret[CREDENTIALS] = json.dumps(known).encode()
        if self._facts.shares_files:
            for folder in filter(None, [self._site.scratch, self._site.checkpoints, self._facts.cache]):
                os.makedirs(folder, exist_ok=True)
        made = containers.parts(
            job,
            site=self._site,
            settings=settings,
            facts=self._facts,
            leases=leases,
            files=device_files(held) if held else NO_FILES,
            token=os.urandom(16).hex(),
        )
        network = orphans[0]["Names"][0].lstrip("/") if orphans else containers.container_name(job)
        order = Order(
            parts=made,
            lease=leases[0] if leases else _lease(orphans),
            adopted=[one["Id"] for one in orphans],
            places=[_place(one) for one in orphans],
            network=containers.network_name(network) if containers.own_network(job, settings) else "",
            secrets=secret,
            owner=_owner(made[0].body.get("User", "")),
            bundle=self._site.bundle if containers.brings_worker(job, self._site) else "",
            shares_files=self._facts.shares_files,
            pull=settings.get("pull", _PULL),
            keep=settings.get("keep", False),
            memory=job.step.settings.resources.get("memory", 0),
        )
        name = job.name
        attempt = self._attempts[name] = Attempt(self._engine, order, name, self._channel, hand_over=self._hand_over)
        if orphans and order.lease and self._leasing is not None:
            self._leasing.adopt(job, order.lease)
        if order.lease:
            self._channel.put(name, JobStatus(state="running", lease=order.lease))
        attempt.start()

    # Orphans

    def _orphans_of(self, job: Job) -> list[Mapping[str, Any]]:
        """Containers of this very job that a driver that is gone had made, one a node, if they can be taken over."""
        if self._earlier is None:
            said = " ".join(map(str, self._engine.info().get("SecurityOptions") or ()))
            self._facts = attrs.evolve(self._facts, rootless="rootless" in said, selinux="selinux" in said)
            self._earlier = EarlierJobs()
            self._earlier.add(_earlier(self._engine.find({f"{LABEL}.run": job.run})))
        adopted, others = self._earlier.adopt(job, lambda nodes: self._worth_taking(job, nodes))
        for nodes in others:
            for one in nodes:
                self._engine.remove(one["Id"])
        return adopted or []

    def _worth_taking(self, job: Job, nodes: Sequence[Mapping[str, Any]]) -> bool:
        """Whether all of a job's containers are there, and the first one still runs or went well."""
        if len(nodes) != nodes_of(job) or nodes[0]["State"] == "created":
            return False
        end = self._engine.end(nodes[0]["Id"])
        return end is not None and (end.running or end.code == 0)

    # News

    def _hand_over(self, name: str, pid: int) -> None:
        """Let a job's lease live as long as its container, which outlives its driver."""
        if self._leasing is not None and pid and self._facts.shares_files:
            self._leasing.hand_over(name, pid)

    def wakeups(self) -> Iterable[int]:
        """Readable when a thread has told something."""
        return self._channel.wakeups()

    def poll(self, ids: Iterable[str]) -> Mapping[str, JobStatus]:
        """What is new since the last call."""
        self._channel.receive()
        if self._leasing is not None:
            self._leasing.retry(start=self._start_leased, tell=self._channel.put, refuse=self._channel.put)
        return self._channel.take()

    def _forget(self, name: str) -> None:
        self._jobs.pop(name, None)
        attempt = self._attempts.pop(name, None)
        if attempt is not None:
            # It takes its containers away, which nobody need wait for before the end.
            self._leaving = [one for one in self._leaving if one.thread.is_alive()] + [attempt]
        if self._leasing is not None:
            self._leasing.release(name)
        if attempt is not None and self._behind:
            job = self._jobs[self._behind.popleft()]
            try:
                self._place(job)
            except BackendError as error:
                self._channel.put(job.name, failed(REFUSED, str(error)))

    def cancel(self, id: str, *, grace: float) -> None:
        """Have a job's containers end; a job that waits for devices leaves the line."""
        attempt = self._attempts.get(id)
        if attempt is not None:
            attempt.cancel(grace)
        elif id in self._jobs:
            with contextlib.suppress(ValueError):
                self._behind.remove(id)
            self._channel.put(id, failed(CANCELLED))

    def close(self) -> None:
        """End and remove every container of this driver's, and those of the run that nobody took over."""
        attempts = list(self._attempts.values())
        for attempt in attempts:
            attempt.cancel(0.0)
        for attempt in (*attempts, *self._leaving):
            attempt.thread.join(_LEAVE)
        with contextlib.suppress(BackendError):
            for nodes in [] if self._earlier is None else self._earlier.take_left():
                for one in nodes:
                    self._engine.remove(one["Id"])
        if self._leasing is not None:
            self._leasing.release_all()
        self._engine.close()
        self._channel.close()


def _earlier(containers: Iterable[Mapping[str, Any]]) -> Iterator[EarlierJob[list[Mapping[str, Any]]]]:
    """Jobs by the labels of their containers, each with those of its nodes in their order."""
    jobs: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for one in sorted(containers, key=lambda one: int(one["Labels"][f"{LABEL}.node"])):
        marks = [one["Labels"].get(f"{LABEL}.{name}", "") for name in ("run", "key", "kind", "attempt", "request")]
        jobs.setdefault(tuple(marks), []).append(one)
    for (run, key, kind, attempt, digest), nodes in jobs.items():
        yield EarlierJob(run=run, key=key, kind=kind, attempt=int(attempt), digest=digest, handle=nodes)


def _place(orphan: Mapping[str, Any]) -> str:
    """Where an orphan's document is."""
    return str(orphan["Labels"].get(f"{LABEL}.place", ""))


def _lease(orphans: Sequence[Mapping[str, Any]]) -> Lease | None:
    """The devices that an orphan was given, as its document says."""
    for one in orphans[:1]:
        with contextlib.suppress(OSError, ValueError), open(_place(one), encoding="utf-8") as file:
            lease = json.load(file)["job"].get("accelerators")
            return None if lease is None else from_json(Lease, lease, strict=False)
    return None


def _owner(user: str) -> tuple[int, int] | None:
    """The container's user as numbers, if it is given by numbers."""
    parts = user.split(":")
    return (int(parts[0]), int(parts[1])) if len(parts) == 2 and all(part.isdigit() for part in parts) else None


def _cache(site: Site) -> str:
    """Where blobs of a remote store are kept on this machine, so that containers need not fetch them again."""
    if "://" not in site.artifacts:
        return ""
    root = os.environ.get("STOKER_CACHE")
    return root or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "stoker")


def device_files(devices: Iterable[Device], root: Path = Path("/")) -> ContainerNeeds:
    """The files of some devices, and the groups that own them; simulated devices have none.

    Those that a vendor's container toolkit hands in are the engine's affair.
    """
    vendors = by_vendor(device for device in devices if not device.simulated)
    strange = sorted(vendor.name for vendor in vendors if vendor.container is None and not vendor.toolkit)
    if strange:
        raise BackendError(
            f"devices of kind {', '.join(strange)} cannot be handed into a container",
            fix="run the step on a stack whose orchestrator is local",
        )
    needs = [vendor.container(held, root) for vendor, held in vendors.items() if vendor.container is not None]
    return ContainerNeeds(
        files=tuple(path for one in needs for path in one.files),
        groups=tuple(dict.fromkeys(group for one in needs for group in one.groups)),
    )
