"""A container engine: containers for steps, on Docker or podman, here or where DOCKER_HOST says.

`requests` builds what is sent, `engines` talks to the engine. `attempt` runs a step in a container of its own, `warm`
in one that takes several, one after another. A container outlives its driver: a later driver with the same job finds it
by its labels and adopts it, if it still runs or went well.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any, Final, Iterable, Iterator, Literal, Mapping, Sequence

import attrs

from stoker.backends.base.adoption import EarlierJob, EarlierJobs
from stoker.backends.base.backend import NO_SERVICES, Services, settings_of
from stoker.backends.base.channel import Channel
from stoker.backends.base.leasing import claim_document
from stoker.backends.base.machine import machine_capacity
from stoker.backends.base.messages import contents, credentials, missing_source, nodes_of
from stoker.backends.base.overlays import Mount
from stoker.backends.base.statuses import failed
from stoker.backends.docker import requests as containers
from stoker.backends.docker.attempt import ContainerAttempt, ContainerJob
from stoker.backends.docker.engines import Engine, engine_address, need_package, room_of
from stoker.backends.docker.jobfiles import (
    CONTAINER_LABEL,
    ORDER_LABEL,
    JobFiles,
    SavedResult,
    WarmFiles,
    clear,
    empty,
    job_files,
    name_of,
    names_of_run,
    ordered,
    present_job,
    present_result,
    saved_results,
    take_order_back,
    warm_files,
    warm_names,
    went_well,
)
from stoker.backends.docker.lifecycle import owner_in
from stoker.backends.docker.requests import LABEL, NO_FILES, SHAPE_LABEL, ContainerRequest, EngineFacts, own_container
from stoker.backends.docker.settings import SECRETS, ContainerSettings
from stoker.backends.docker.warm import WarmAttempt, WarmContainer, WarmContainers, WarmJob, remove_dead
from stoker.core.codec import from_json, parse_object, to_json
from stoker.core.devices import Device, Lease
from stoker.core.errors import BackendError, SettingsError
from stoker.core.findings import Finding, Reporter
from stoker.core.hosts import is_folder_elsewhere
from stoker.core.plan import Capacity, Job, JobStatus, Site, StepPlan, reporter_of
from stoker.core.protocol import ADOPTED, CREDENTIALS, SECRET_VALUES, WorkerEvent
from stoker.core.resources import ResourceSettings, describe
from stoker.core.status import CANCELLED, REFUSED
from stoker.core.units import size_text
from stoker.core.words import memory_text
from stoker.store.access import is_shared
from stoker.store.blobs import Blobs
from stoker.vendors.base import ContainerNeeds
from stoker.vendors.registry import VENDORS, by_vendor

FAR_DEVICES: Final = "STK141"
FAR_STORE: Final = "STK142"
FAR_CHECKPOINTS: Final = "STK143"
SHARED_OVER_MEMORY: Final = "STK144"
NO_SOURCE: Final = "STK145"
NO_NETWORK: Final = "STK146"
FAR_DISK: Final = "STK147"
FAR_READ_ONLY: Final = "STK240"
NOT_SHARED: Final = "STK254"
NOT_HANDED_IN: Final = "STK367"
_NEVER_LESS: Final = "a step is never silently given less than it asks for"


def check(
    step: StepPlan, settings: ContainerSettings, site: Site, room: Capacity | None, *, leases: bool
) -> Iterator[Finding]:
    """Field by field; `room` is what the engine's machine has, None for one that is elsewhere.

    `leases`: devices are handed out, and what of them is wanted is for `leasing` to judge.
    """
    resources = step.settings.resources
    report = reporter_of(step)
    yield from _size(resources, room, report)
    if resources.gpus_per_node and room is None:
        what = f"asks for {describe(resources)}; the container engine is on another machine"
        why = "which devices are there, and who holds them, is only known of this machine"
        yield report.refused(FAR_DEVICES, what, why, "resources.gpu_count=null")
    elif resources.gpus_per_node and not leases:
        why = "nobody hands out devices here: the backend was made without a ledger of them"
        yield report.refused("STK103", f"asks for {describe(resources)}", why, "resources.gpu_count=null")
    elif resources.gpus_per_node and not site.simulate:
        yield from _handed_in(resources, report)
    if resources.get("extended"):
        named = ", ".join(f"{name}={amount:g}" for name, amount in resources.get("extended").items())
        why = "only a cluster's scheduler knows these"
        yield report.refused("STK106", f"asks for extended resources {named}", why, "resources.extended=null")
    if resources.get("spot"):
        what = "asks for a spot machine; it runs on the engine's own"
        yield report.translated("STK109", what, "that machine is never taken away")
    yield from _places(step, settings, site, report, near=room is not None)
    why = own_container(step, settings, shares_files=room is not None, store=site.artifacts)
    if settings.get("reuse", "auto") is True and why:
        fix = "reuse='auto', which gives a step its own container where it needs one, or take back what asks for it"
        yield report.error(NOT_SHARED, "has reuse=true, but needs a container of its own", why, fix)


def _handed_in(resources: ResourceSettings, report: Reporter) -> Iterator[Finding]:
    """Devices that no engine can give a container."""
    kinds = resources.get("accelerators", ())
    name = kinds[0].model.vendor if kinds else resources.get("gpu_vendor", "")
    vendor = VENDORS.load(name) if name in VENDORS else None
    if vendor is not None and vendor.container is None and not vendor.toolkit:
        what = f"asks for {describe(resources)} in a container"
        why = f"Stoker knows no way to hand a {vendor.title} device into one"
        yield report.error(NOT_HANDED_IN, what, why, "run the step on a stack whose orchestrator is local")


def _size(resources: ResourceSettings, room: Capacity | None, report: Reporter) -> Iterator[Finding]:
    nodes = resources.get("nodes", 1)
    each = f" on each of {nodes} nodes" if nodes > 1 else ""
    cpus, memory, shared = (
        resources.get("cpu_count", 0.0),
        resources.get("memory", 0),
        resources.get("shared_memory", 0),
    )
    if room is not None and cpus * nodes > room.cpus:
        what = f"asks for {cpus:g} CPUs{each}; this machine has {room.cpus:g}"
        yield report.refused("STK101", what, _NEVER_LESS, f"resources.cpu_count={room.cpus / nodes:g}")
    if room is not None and memory * nodes > room.memory:
        what = f"asks for {size_text(memory)} of memory{each}; this machine has {memory_text(room.memory)}"
        yield report.refused("STK102", what, _NEVER_LESS, f"resources.memory={size_text(room.memory // 2**30 * 2**30)}")
    if memory and shared > memory:
        what = f"asks for {size_text(shared)} of shared memory and {size_text(memory)} of memory"
        why = "what lies in /dev/shm counts as the container's memory: it would be killed before that is full"
        yield report.refused(SHARED_OVER_MEMORY, what, why, f"resources.memory={size_text(2 * shared)}")
    if room is not None and nodes > room.slots:
        what = f"asks for {nodes} nodes; this machine runs {room.slots} containers at once"
        yield report.refused(
            "STK104", what, "each node is a container of its own here", f"resources.nodes={room.slots}"
        )
    elif nodes > 1:
        what = f"asks for {nodes} nodes; they are containers of one machine"
        why = "everything happens as on several machines but what goes over the cable"
        yield report.translated("STK104", what, why)
    if not resources.get("disk"):
        return
    if room is None:
        what = f"asks for {size_text(resources.get('disk'))} of disk; how much is free at the engine is not known"
        yield report.translated(FAR_DISK, what, "an engine does not tell, and sets no limit")
    elif resources.get("disk") > (free := shutil.disk_usage(".").free):
        what = f"asks for {size_text(resources.get('disk'))} of disk; {memory_text(free)} are free here"
        yield report.refused("STK108", what, _NEVER_LESS, "resources.disk=null")


def _places(
    step: StepPlan, settings: ContainerSettings, site: Site, report: Reporter, *, near: bool
) -> Iterator[Finding]:
    """Where the container finds what it needs."""
    if is_folder_elsewhere(site.artifacts):
        what = f"runs in a container, which does not reach the artifact store {site.artifacts}"
        why = "containers have neither your ssh nor its keys"
        fix = "name another store in the stack: artifact_store = 's3://…', or a folder of this machine"
        yield report.error(FAR_STORE, what, why, fix)
    elif not near and "://" not in site.artifacts:
        what = f"runs on a container engine elsewhere, which does not see the artifact store {site.artifacts}"
        why = "a step loads its inputs from there and saves its outputs there"
        fix = "name a remote store in the stack: artifact_store = 's3://…'; or shares_files=true where it does see it"
        yield report.error(FAR_STORE, what, why, fix)
    if not near and (step.settings.retry.times or step.settings.retry.on_oom):
        what = f"copies its checkpoints to {site.artifacts} while it runs, and a further attempt gets them from there"
        yield report.info(FAR_CHECKPOINTS, what, "the container engine does not see this machine's folders")
    if not near and settings.get("run_options", {}).get("read_only"):
        what = "has a read-only root on a container engine elsewhere"
        why = "its job and its secrets are put into the container's file system there"
        yield report.error(FAR_READ_ONLY, what, why, "run_options.read_only=null, or shares_files=true where it holds")
    for name, source in sorted(settings.get("secrets", {}).items()):
        missing = missing_source(source)
        if missing:
            fix = "set it where the pipeline is started, or name another source"
            what = f"wants the secret '{name}': {missing}"
            yield report.error(NO_SOURCE, what, fix=fix)
    for text in settings.get("mounts", ()):
        source = Mount.parse(text).source
        if near and source.startswith("/") and not os.path.exists(source):
            what, fix = f"wants {source} in its container, which is not there", "make it, or remove it from mounts"
            yield report.error(NO_SOURCE, what, fix=fix)
    if settings.get("network") == "none" and ("://" in site.artifacts or step.settings.resources.get("nodes", 1) > 1):
        needs = "its artifact store" if "://" in site.artifacts else "the other nodes of its gang"
        why = "a container without a network reaches only what is mounted"
        what = f"has network='none', but must reach {needs}"
        yield report.error(NO_NETWORK, what, why, "remove network='none' from its container's settings")


_LEAVE: Final = 30.0
"""Seconds in which containers must be removed when the driver closes."""
_SLOTS_PER_CPU: Final = 8
_PULL: Final = "missing"
"""When an image is pulled, by default."""


class DockerBackend:
    """Runs jobs in containers of one engine."""

    name = "docker"
    keeps_secrets: Literal[True] = True
    leaves_out: Literal["device"] = "device"
    packages_in: Literal["image", "environment"] = "image"

    def __init__(self, site: Site, options: Mapping[str, Any], services: Services = NO_SERVICES) -> None:
        need_package()
        self._site = site
        self._options = dict(options)
        settings = ContainerSettings(**options)
        self._engine = Engine(engine_address(options))
        shares = settings.get("shares_files", self._engine.address.startswith("unix://"))
        self._blobs = Blobs(site.artifacts) if shares else None
        self._facts = EngineFacts(
            shares_files=shares,
            user=f"{os.getuid()}:{os.getgid()}",
            cache=_cache_folder(site) if shares else "",
            store="" if self._blobs is None else self._blobs.folder,
            engine=self._engine.address,
            groups=_shared_groups(site.scratch),
        )
        self._capacity: Capacity | None = None
        self._leasing = services.leasing
        self._jobs: dict[str, Job] = {}
        self._attempts: dict[str, ContainerAttempt | WarmAttempt] = {}
        self._deferred: deque[str] = deque()
        self._ended: list[ContainerAttempt | WarmAttempt] = []
        self._leaving: list[ContainerAttempt | WarmAttempt] = []
        self._warm = WarmContainers(self._engine)
        self._compiles = False
        self._earlier: EarlierJobs[EarlierContainers] | None = None
        self._channel = Channel(over=self._forget)

    # Deciding

    def has_other_place(self, step: StepPlan, avoid: Sequence[str]) -> bool:
        """Whether the engine's machine has devices for a step beside some."""
        return self._leasing is not None and self._leasing.has_others(step, avoid)

    def capacity(self) -> Capacity:
        """What the engine's machine has, and the devices that are leased there."""
        if self._capacity is None:
            self._capacity = machine_capacity() if self._facts.shares_files else self._remote_capacity()
        return self._capacity if self._leasing is None else attrs.evolve(self._capacity, devices=self._leasing.room())

    def _remote_capacity(self) -> Capacity:
        """What the engine says of its machine; what it does not say is no limit."""
        info = self._engine.info()
        cpus, memory = (room_of(info, name) for name in ("NCPU", "MemTotal"))
        return Capacity(cpus=float(cpus or 1 << 16), memory=memory or 1 << 62, slots=(cpus or 1) * _SLOTS_PER_CPU)

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
        rendered = [{"name": one.name, "request": one.body, "document": to_json(one.spec)} for one in requests]
        if self._may_share(job, settings):
            warm = containers.warm_request(job, 1, site=self._site, settings=settings, facts=self._facts)
            document, pool = to_json(warm.spec), to_json(warm.pool)
            rendered = [{"name": warm.name, "request": warm.body, "document": document, "pool": pool}]
        return {
            "engine": self._engine.address,
            "containers": rendered,
            "network": containers.network_name(requests[0].name) if containers.needs_network(job, settings) else "",
            "secrets": sorted(settings.get("secrets", {})),
            "credentials": sorted(credentials(self._site.artifacts, os.environ)),
            "claim": claim_document(job),
            "pull": settings.get("pull", _PULL),
            "keep": settings.get("keep", False),
        }

    def by_hand(self, job: Job, request: Mapping[str, Any]) -> str:
        """A script that runs the containers by the engine's command line."""
        from stoker.backends.docker.byhand import script

        # Who runs one step by hand shares its container with no other.
        own = [self._unshared(job, one) if "pool" in one else one for one in request["containers"]]
        return script(job, {**request, "containers": own}, self._site, self._facts)

    def _unshared(self, job: Job, shared: Mapping[str, Any]) -> Mapping[str, Any]:
        """The container of its own for a job that may share one; values that are masked there stay so."""
        settings = settings_of(job.step, ContainerSettings, self._options)
        [own] = self._requests(job, settings, [])
        body = {**own.body, "Env": shared["request"]["Env"]}
        return {"name": own.name, "request": body, "document": shared["document"]}

    def _requests(self, job: Job, settings: ContainerSettings, leases: Sequence[Lease]) -> list[ContainerRequest]:
        return containers.container_requests(job, site=self._site, settings=settings, facts=self._facts, leases=leases)

    def _may_share(self, job: Job, settings: ContainerSettings) -> bool:
        """Whether a job may run in a container that takes several."""
        if job.kind != "step" or job.secrets or self._blobs is None or settings.get("reuse", "auto") is False:
            return False
        shares, store = self._facts.shares_files, self._site.artifacts
        return not containers.own_container(job.step, settings, shares_files=shares, store=store)

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
            earlier = self._adopt_orphans(job)
            if earlier is not None:
                self._begin(job, [], earlier)
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

    def _begin(self, job: Job, leases: Sequence[Lease], earlier: EarlierContainers | None = None) -> None:
        """Start the thread that creates and follows the job's containers."""
        settings = settings_of(job.step, ContainerSettings, self._options)
        devices = [device for lease in leases for device in lease.held]
        secrets = {f"{SECRETS}/{name}": data for name, data in contents(settings.get("secrets", {})).items()}
        variables = credentials(self._site.artifacts, os.environ)
        if variables:
            secrets[CREDENTIALS] = json.dumps(variables).encode()
        if job.secrets:
            secrets[SECRET_VALUES] = json.dumps(dict(job.secrets)).encode()
        requests = containers.container_requests(
            job,
            site=self._site,
            settings=settings,
            facts=self._facts,
            leases=leases,
            files=device_files(devices) if devices else NO_FILES,
            token=os.urandom(16).hex(),
        )
        orphans = () if earlier is None else earlier.containers
        first_name = containers.container_name(job) if earlier is None else earlier.names[0]
        container_job = ContainerJob(
            requests=requests,
            lease=leases[0] if leases else None if earlier is None else self._lease_of(earlier),
            adopted=[one["Id"] for one in orphans],
            adopted_files=[] if earlier is None else [self._files_of(name) for name in earlier.names],
            result=b"" if earlier is None or earlier.saved is None else earlier.saved.data,
            blobs=self._blobs,
            network=containers.network_name(first_name) if containers.needs_network(job, settings) else "",
            secrets=secrets,
            rootless=self._facts.rootless,
            bundle=self._site.bundle if containers.brings_worker(job, self._site) else "",
            shares_files=self._facts.shares_files,
            pull=settings.get("pull", _PULL),
            keep=settings.get("keep", False),
            memory=job.step.settings.resources.get("memory", 0),
        )
        name = job.name
        make_own = partial(
            ContainerAttempt, self._engine, container_job, name, self._channel, hand_over=self._hand_over
        )
        adopted = None if earlier is None else earlier.warm
        attempt: ContainerAttempt | WarmAttempt
        if adopted is not None or (earlier is None and not leases and self._may_share(job, settings)):
            warm_job = WarmJob(
                request=partial(self._warm_request, job, settings),
                job=container_job,
                name=first_name,
                scratch=self._site.scratch,
                room=self.capacity(),
                adopted=adopted,
            )
            attempt = WarmAttempt(self._engine, warm_job, name, self._channel, containers=self._warm, own=make_own)
        else:
            attempt = make_own()
        self._attempts[name] = attempt
        if container_job.bundle and self._facts.shares_files and not self._compiles:
            self._compiles = True
            threading.Thread(target=_compile, args=(container_job.bundle,), daemon=True).start()
        if earlier is not None and container_job.lease and self._leasing is not None:
            self._leasing.adopt(job, container_job.lease)
        if container_job.lease:
            self._channel.put(name, JobStatus(state="running", lease=container_job.lease))
        attempt.start()

    def _warm_request(self, job: Job, settings: ContainerSettings, number: int, shape: str) -> containers.WarmRequest:
        facts = self._facts
        return containers.warm_request(job, number, site=self._site, settings=settings, facts=facts, shape=shape)

    # Orphans

    def _adopt_orphans(self, job: Job) -> EarlierContainers | None:
        """What an earlier driver left of this job, if it can be adopted: its containers, or their result alone."""
        if self._earlier is None:
            security = " ".join(map(str, self._engine.info().get("SecurityOptions") or ()))
            self._facts = attrs.evolve(self._facts, rootless="rootless" in security, selinux="selinux" in security)
            self._earlier = EarlierJobs()
            present = self._engine.find({LABEL: "step", f"{LABEL}.run": job.run})
            self._earlier.add(_group_by_job(present))
            names = {name_of(one) for one in present}
            self._earlier.add(self._adopt_warm(job.run))
            saved = [one for one in saved_results(self._site.scratch) if one.name not in names and is_run(one, job.run)]
            self._earlier.add(map(_earlier_job, saved))
            # Its driver was killed before the container was there, or somebody removed it before it had a result.
            for name in names_of_run(job.run, self._site.scratch, self._facts.store):
                if name not in names and name not in {one.name for one in saved}:
                    clear(self._files_of(name))
        earlier_job, others = self._earlier.adopt(job, lambda earlier: self._is_worth_adopting(job, earlier))
        for earlier in others:
            self._remove(earlier)
        if earlier_job is None:
            return None
        handle = earlier_job.handle
        if earlier_job.attempt and (handle.containers or os.path.exists(self._files_of(handle.names[0]).output)):
            # Its output is read from the beginning; that of a container of its own that is gone, only the record has.
            noted = WorkerEvent(kind="noted", note=ADOPTED, data={"attempt": earlier_job.attempt})
            self._channel.event(job.name, noted)
        return handle

    def _adopt_warm(self, run: str) -> Iterator[EarlierJob[EarlierContainers]]:
        """The jobs that run in containers of an earlier driver which take several. Containers without one are taken
        over if they run; of those that are over, and of jobs that no worker has begun, nothing stays but results."""
        site = self._site
        present = {name_of(one): one for one in self._engine.find({LABEL: "pool", f"{LABEL}.run": run})}
        for name in sorted({*present, *warm_names(run, site.scratch, self._facts.store)}):
            self._warm.name_after(name)
            one = present.get(name)
            files = warm_files(name, scratch=site.scratch, store=self._facts.store, checkpoints=site.checkpoints)
            labels = present_job(files)
            idle = not labels and not os.path.exists(files.job.notes)
            number = int(labels.get(ORDER_LABEL, -1))
            working = number in ordered(files) and not present_result(files) and not take_order_back(files, number)
            description = None if one is None else self._engine.look(one["Id"])
            if (
                one is None
                or description is None
                or description["State"]["Status"] != "running"
                or not (idle or working)
            ):
                remove_dead(self._engine, "" if one is None else one["Id"], files, site.scratch)
                continue
            container = _adopted_container(self._engine, name, files, description)
            if idle:
                empty(files)  # its driver may have been killed while it did this
            self._warm.adopt(container, busy=working)
            if working:
                handle = EarlierContainers(names=(labels[CONTAINER_LABEL],), containers=(one,), warm=container)
                yield _earlier(_marks(labels), handle)

    def _is_worth_adopting(self, job: Job, earlier: EarlierContainers) -> bool:
        """Whether all of a job's containers are there, and the first one still runs or went well."""
        if earlier.saved is not None:
            return went_well(earlier.saved.data)
        if earlier.warm is not None:
            return True
        nodes = earlier.containers
        if len(nodes) != nodes_of(job) or nodes[0]["State"] == "created":
            return False
        end = self._engine.end(nodes[0]["Id"])
        return end is not None and (end.running or end.code == 0)

    def _remove(self, earlier: EarlierContainers) -> None:
        if earlier.warm is not None:
            self._warm.drop(earlier.warm)
            earlier.warm.remove()
            return
        for one in earlier.containers:
            self._engine.remove(one["Id"])
        for name in earlier.names:
            clear(self._files_of(name))

    def _files_of(self, name: str) -> JobFiles:
        return job_files(name, scratch=self._site.scratch, store=self._facts.store)

    def _lease_of(self, earlier: EarlierContainers) -> Lease | None:
        """The lease in the document of an earlier job; None where it has no devices or the document is gone."""
        with (
            contextlib.suppress(OSError, SettingsError, KeyError, AttributeError),
            open(self._files_of(earlier.names[0]).document, "rb") as file,
        ):
            lease = parse_object(file.read())["job"].get("accelerators")
            return None if lease is None else from_json(Lease, lease, strict=False)
        return None

    # News

    def _hand_over(self, name: str, pid: int) -> None:
        """Tie a job's lease to its container, which outlives its driver."""
        if self._leasing is not None and pid and self._facts.shares_files:
            self._leasing.hand_over(name, pid)

    def wakeups(self) -> Iterable[int]:
        """Descriptors that are readable when there is news."""
        return self._channel.wakeups()

    def poll(self, ids: Iterable[str]) -> Mapping[str, JobStatus]:
        """What is new of each job since the last call; what ended before it is recorded by now."""
        for attempt in self._ended:
            attempt.recorded()
            # It still removes its containers; only close() waits for that.
            self._leaving = [one for one in self._leaving if one.thread.is_alive()] + [attempt]
        self._ended.clear()
        self._channel.receive()
        if self._leasing is not None:
            self._leasing.retry(start=self._start_leased, tell=self._channel.put, refuse=self._channel.put)
        return self._channel.take()

    def _forget(self, name: str) -> None:
        self._jobs.pop(name, None)
        attempt = self._attempts.pop(name, None)
        if attempt is not None:
            self._ended.append(attempt)
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
        for attempt in (*attempts, *self._ended):
            attempt.recorded()
        for attempt in (*attempts, *self._ended, *self._leaving):
            attempt.thread.join(_LEAVE)
        self._warm.close(_LEAVE)
        with contextlib.suppress(BackendError):
            for earlier in [] if self._earlier is None else self._earlier.take_remaining():
                self._remove(earlier)
        if self._leasing is not None:
            self._leasing.release_all()
        self._engine.close()
        self._channel.close()


@attrs.frozen(kw_only=True)
class EarlierContainers:
    """What an earlier driver left of one job."""

    names: tuple[str, ...]
    """Of its containers, by node."""
    containers: tuple[Mapping[str, Any], ...] = ()
    """The containers as the engine lists them, by node; empty where they are gone."""
    saved: SavedResult | None = None
    """The result of containers that are gone."""
    warm: WarmContainer | None = None
    """The running container that takes several jobs, in which this one was begun."""


def _group_by_job(containers: Iterable[Mapping[str, Any]]) -> Iterator[EarlierJob[EarlierContainers]]:
    """Earlier jobs from the labels of their containers, each with its containers by node."""
    jobs: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for one in sorted(containers, key=lambda one: int(one["Labels"][f"{LABEL}.node"])):
        jobs.setdefault(_marks(one["Labels"]), []).append(one)
    for marks, nodes in jobs.items():
        handle = EarlierContainers(names=tuple(map(name_of, nodes)), containers=tuple(nodes))
        yield _earlier(marks, handle)


def _adopted_container(engine: Engine, name: str, files: WarmFiles, description: Mapping[str, Any]) -> WarmContainer:
    """A running container of an earlier driver, from what the engine knows of it."""
    config = description["Config"]
    body = {**config, "HostConfig": description["HostConfig"]}
    shape = config["Labels"].get(SHAPE_LABEL, "")
    container = WarmContainer(engine, files, name, shape, body, description["Id"])
    container.owner = owner_in(engine, container.id, config.get("User") or "", config["Image"])
    return container


def _earlier_job(saved: SavedResult) -> EarlierJob[EarlierContainers]:
    return _earlier(_marks(saved.labels), EarlierContainers(names=(saved.name,), saved=saved))


def _marks(labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(str(labels.get(f"{LABEL}.{name}", "")) for name in ("run", "key", "kind", "attempt", "request"))


def _earlier(marks: tuple[str, ...], handle: EarlierContainers) -> EarlierJob[EarlierContainers]:
    run, key, kind, attempt, digest = marks
    return EarlierJob(run=run, key=key, kind=kind, attempt=int(attempt or 0), digest=digest, handle=handle)


def is_run(saved: SavedResult, run: str) -> bool:
    """Whether a result is of a run."""
    return saved.labels.get(f"{LABEL}.run") == run


def _compile(bundle: str) -> None:
    """Compile Stoker's worker for the containers of later runs, beside this one's."""
    from stoker.images.wheel import compile_bundle

    compile_bundle(Path(bundle))


def _shared_groups(folder: str) -> tuple[str, ...]:
    """The group of a home that several users share; none of any other."""
    with contextlib.suppress(OSError):
        if is_shared(folder):
            return (str(os.stat(folder).st_gid),)
    return ()


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
