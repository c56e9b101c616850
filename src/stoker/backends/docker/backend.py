"""A container engine: one container for each step, on Docker or podman, here or where DOCKER_HOST says.

`requests` builds what is sent, `attempt` sends and follows it, `engines` talks to the engine. A container outlives its
driver: a later driver with the same job finds it by its labels and adopts it, if it still runs or went well.
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
from stoker.backends.base.backend import NO_SERVICES, Services, settings_of
from stoker.backends.base.channel import Channel
from stoker.backends.base.leasing import claim_document
from stoker.backends.base.machine import machine_capacity
from stoker.backends.base.messages import nodes_of
from stoker.backends.base.secrets import contents, credentials
from stoker.backends.base.statuses import failed
from stoker.backends.docker import requests as containers
from stoker.backends.docker.attempt import ContainerAttempt, ContainerJob
from stoker.backends.docker.check import check
from stoker.backends.docker.engines import Engine, engine_address, need_package
from stoker.backends.docker.requests import LABEL, NO_FILES, ContainerRequest, EngineFacts
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
"""Seconds in which containers must be removed when the driver closes."""
_SLOTS_PER_CPU: Final = 8
_PULL: Final = "missing"
"""When an image is pulled, by default."""


class DockerBackend:
    """Runs jobs in containers of one engine."""

    name = "docker"
    packages_in: Literal["image", "environment"] = "image"

    def __init__(self, site: Site, options: Mapping[str, Any], services: Services = NO_SERVICES) -> None:
        need_package()
        self._site = site
        self._options = dict(options)
        settings = ContainerSettings(**options)
        self._engine = Engine(engine_address(options))
        shares = self._engine.address.startswith("unix://")
        self._facts = EngineFacts(
            shares_files=settings.get("shares_files", shares),
            user=f"{os.getuid()}:{os.getgid()}",
            cache=_cache_folder(site) if settings.get("shares_files", shares) else "",
        )
        self._capacity: Capacity | None = None
        self._leasing = services.leasing
        self._jobs: dict[str, Job] = {}
        self._attempts: dict[str, ContainerAttempt] = {}
        self._deferred: deque[str] = deque()
        self._leaving: list[ContainerAttempt] = []
        self._earlier: EarlierJobs[list[Mapping[str, Any]]] | None = None
        self._channel = Channel(over=self._forget)

    # Deciding

    def capacity(self) -> Capacity:
        """What the engine's machine has, and the devices that are leased there."""
        if self._capacity is None:
            self._capacity = machine_capacity() if self._facts.shares_files else self._remote_capacity()
        return self._capacity if self._leasing is None else attrs.evolve(self._capacity, devices=self._leasing.room())

    def _remote_capacity(self) -> Capacity:
        info = self._engine.info()
        cpus = int(info.get("NCPU") or 1)
        return Capacity(cpus=float(cpus), memory=int(info.get("MemTotal") or 1 << 62), slots=cpus * _SLOTS_PER_CPU)

    def check(self, step: StepPlan) -> Iterable[Finding]:
        """What a container cannot give a step, and how it takes the other fields; makes no call to the engine."""
        settings = settings_of(step, ContainerSettings, self._options)
        local = self._facts.shares_files
        if self._leasing is not None and local:
            yield from self._leasing.check(step)
        yield from check(
            step, settings, self._site, machine_capacity() if local else None, leases=self._leasing is not None
        )

    def render(self, job: Job) -> Mapping[str, Any]:
        """The requests that create the containers, with their documents; also the claim of devices, when the image is
        pulled, and whether failed containers stay."""
        return self.render_leased(job, self._leasing.leases(job) if self._leasing is not None else [])

    def render_leased(self, job: Job, leases: Sequence[Lease]) -> Mapping[str, Any]:
        """The same for a job that holds these devices."""
        settings = settings_of(job.step, ContainerSettings, self._options)
        requests = self._requests(job, settings, leases)
        return {
            "engine": self._engine.address,
            "containers": [{"name": one.name, "request": one.body, "document": to_json(one.spec)} for one in requests],
            "network": containers.network_name(requests[0].name) if containers.needs_network(job, settings) else "",
            "secrets": sorted(settings.get("secrets", {})),
            "credentials": sorted(credentials(self._site.artifacts, os.environ)),
            "claim": claim_document(job),
            "pull": settings.get("pull", _PULL),
            "keep": settings.get("keep", False),
        }

    def _requests(self, job: Job, settings: ContainerSettings, leases: Sequence[Lease]) -> list[ContainerRequest]:
        return containers.container_requests(job, site=self._site, settings=settings, facts=self._facts, leases=leases)

    # Doing

    def submit(self, job: Job) -> str:
        """Create the job's containers, or adopt earlier ones; later polls report what becomes of them."""
        if job.name in self._jobs:
            return job.name
        self._jobs[job.name] = job
        if job.behind and self._attempts:
            self._deferred.append(job.name)  # it starts when another container is over
            return job.name
        self._dispatch(job)
        return job.name

    def _dispatch(self, job: Job) -> None:
        try:
            orphans = self._adopt_orphans(job)
            if orphans:
                self._begin(job, [], orphans)
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
        """Start the thread that creates and follows the job's containers."""
        settings = settings_of(job.step, ContainerSettings, self._options)
        devices = [device for lease in leases for device in lease.held]
        secrets = {f"{SECRETS}/{name}": data for name, data in contents(settings.get("secrets", {})).items()}
        variables = credentials(self._site.artifacts, os.environ)
        if variables:
            secrets[CREDENTIALS] = json.dumps(variables).encode()
        if self._facts.shares_files:
            for folder in filter(None, [self._site.scratch, self._site.checkpoints, self._facts.cache]):
                os.makedirs(folder, exist_ok=True)
        requests = containers.container_requests(
            job,
            site=self._site,
            settings=settings,
            facts=self._facts,
            leases=leases,
            files=device_files(devices) if devices else NO_FILES,
            token=os.urandom(16).hex(),
        )
        first_name = orphans[0]["Names"][0].lstrip("/") if orphans else containers.container_name(job)
        container_job = ContainerJob(
            requests=requests,
            lease=leases[0] if leases else _lease_of(orphans),
            adopted=[one["Id"] for one in orphans],
            adopted_documents=[_document_path(one) for one in orphans],
            network=containers.network_name(first_name) if containers.needs_network(job, settings) else "",
            secrets=secrets,
            owner=_owner(requests[0].body.get("User", "")),
            bundle=self._site.bundle if containers.brings_worker(job, self._site) else "",
            shares_files=self._facts.shares_files,
            pull=settings.get("pull", _PULL),
            keep=settings.get("keep", False),
            memory=job.step.settings.resources.get("memory", 0),
        )
        name = job.name
        attempt = self._attempts[name] = ContainerAttempt(
            self._engine, container_job, name, self._channel, hand_over=self._hand_over
        )
        if orphans and container_job.lease and self._leasing is not None:
            self._leasing.adopt(job, container_job.lease)
        if container_job.lease:
            self._channel.put(name, JobStatus(state="running", lease=container_job.lease))
        attempt.start()

    # Orphans

    def _adopt_orphans(self, job: Job) -> list[Mapping[str, Any]]:
        """The containers of this job that an earlier driver created, by node, if they can be adopted; else none."""
        if self._earlier is None:
            security = " ".join(map(str, self._engine.info().get("SecurityOptions") or ()))
            self._facts = attrs.evolve(self._facts, rootless="rootless" in security, selinux="selinux" in security)
            self._earlier = EarlierJobs()
            self._earlier.add(_group_by_job(self._engine.find({f"{LABEL}.run": job.run})))
        adopted, others = self._earlier.adopt(job, lambda nodes: self._is_worth_adopting(job, nodes))
        for nodes in others:
            for one in nodes:
                self._engine.remove(one["Id"])
        return adopted or []

    def _is_worth_adopting(self, job: Job, nodes: Sequence[Mapping[str, Any]]) -> bool:
        """Whether all of a job's containers are there, and the first one still runs or went well."""
        if len(nodes) != nodes_of(job) or nodes[0]["State"] == "created":
            return False
        end = self._engine.end(nodes[0]["Id"])
        return end is not None and (end.running or end.code == 0)

    # News

    def _hand_over(self, name: str, pid: int) -> None:
        """Tie a job's lease to its container, which outlives its driver."""
        if self._leasing is not None and pid and self._facts.shares_files:
            self._leasing.hand_over(name, pid)

    def wakeups(self) -> Iterable[int]:
        """Descriptors that are readable when there is news."""
        return self._channel.wakeups()

    def poll(self, ids: Iterable[str]) -> Mapping[str, JobStatus]:
        """What is new of each job since the last call."""
        self._channel.receive()
        if self._leasing is not None:
            self._leasing.retry(start=self._start_leased, tell=self._channel.put, refuse=self._channel.put)
        return self._channel.take()

    def _forget(self, name: str) -> None:
        self._jobs.pop(name, None)
        attempt = self._attempts.pop(name, None)
        if attempt is not None:
            # It still removes its containers; only close() waits for that.
            self._leaving = [one for one in self._leaving if one.thread.is_alive()] + [attempt]
        if self._leasing is not None:
            self._leasing.release(name)
        if attempt is not None and self._deferred:
            job = self._jobs[self._deferred.popleft()]
            try:
                self._dispatch(job)
            except BackendError as error:
                self._channel.put(job.name, failed(REFUSED, str(error)))

    def cancel(self, id: str, *, grace: float) -> None:
        """End a job's containers; a job that still waits is over at once."""
        attempt = self._attempts.get(id)
        if attempt is not None:
            attempt.cancel(grace)
        elif id in self._jobs:
            with contextlib.suppress(ValueError):
                self._deferred.remove(id)
            self._channel.put(id, failed(CANCELLED))

    def close(self) -> None:
        """End and remove every container of this driver, and those of the run that were not adopted."""
        attempts = list(self._attempts.values())
        for attempt in attempts:
            attempt.cancel(0.0)
        for attempt in (*attempts, *self._leaving):
            attempt.thread.join(_LEAVE)
        with contextlib.suppress(BackendError):
            for nodes in [] if self._earlier is None else self._earlier.take_remaining():
                for one in nodes:
                    self._engine.remove(one["Id"])
        if self._leasing is not None:
            self._leasing.release_all()
        self._engine.close()
        self._channel.close()


def _group_by_job(containers: Iterable[Mapping[str, Any]]) -> Iterator[EarlierJob[list[Mapping[str, Any]]]]:
    """Earlier jobs from the labels of their containers, each with its containers by node."""
    jobs: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for one in sorted(containers, key=lambda one: int(one["Labels"][f"{LABEL}.node"])):
        marks = [one["Labels"].get(f"{LABEL}.{name}", "") for name in ("run", "key", "kind", "attempt", "request")]
        jobs.setdefault(tuple(marks), []).append(one)
    for (run, key, kind, attempt, digest), nodes in jobs.items():
        yield EarlierJob(run=run, key=key, kind=kind, attempt=int(attempt), digest=digest, handle=nodes)


def _document_path(orphan: Mapping[str, Any]) -> str:
    """The path of an orphan's document."""
    return str(orphan["Labels"].get(f"{LABEL}.place", ""))


def _lease_of(orphans: Sequence[Mapping[str, Any]]) -> Lease | None:
    """The lease in an orphan's document; None where it has no devices or the document is gone."""
    for one in orphans[:1]:
        with contextlib.suppress(OSError, ValueError), open(_document_path(one), encoding="utf-8") as file:
            lease = json.load(file)["job"].get("accelerators")
            return None if lease is None else from_json(Lease, lease, strict=False)
    return None


def _owner(user: str) -> tuple[int, int] | None:
    """uid and gid of the container's user; None where it is a name."""
    parts = user.split(":")
    return (int(parts[0]), int(parts[1])) if len(parts) == 2 and all(part.isdigit() for part in parts) else None


def _cache_folder(site: Site) -> str:
    """The folder of this machine that caches blobs of a remote store for containers; empty for a local store."""
    if "://" not in site.artifacts:
        return ""
    root = os.environ.get("STOKER_CACHE")
    return root or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "stoker")


def device_files(devices: Iterable[Device], root: Path = Path("/")) -> ContainerNeeds:
    """The files of some devices, and the groups that own them; simulated devices have none.

    Devices that a vendor's container toolkit adds are left to the engine.
    """
    vendors = by_vendor(device for device in devices if not device.simulated)
    unsupported = sorted(vendor.name for vendor in vendors if vendor.container is None and not vendor.toolkit)
    if unsupported:
        raise BackendError(
            f"devices of kind {', '.join(unsupported)} cannot be handed into a container",
            fix="run the step on a stack whose orchestrator is local",
        )
    needs = [
        vendor.container(vendor_devices, root)
        for vendor, vendor_devices in vendors.items()
        if vendor.container is not None
    ]
    return ContainerNeeds(
        files=tuple(path for one in needs for path in one.files),
        groups=tuple(dict.fromkeys(group for one in needs for group in one.groups)),
    )
