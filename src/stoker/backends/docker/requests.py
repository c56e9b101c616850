"""From a job to the exact request that an engine is sent, as plain data: nothing here talks to an engine.

The request is a body of Docker's API (https://docs.docker.com/reference/api/engine/version/v1.41/), which podman takes
too. Beside it goes the job's document, which `worker.boot` reads inside the container. What only this machine knows
(devices' files, users) is handed in as `EngineFacts`.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any, Final, Iterable, Mapping, Sequence

import attrs

from stoker.backends.base.adoption import job_kind
from stoker.backends.base.messages import boot_spec, gang_task, nodes_of, request_digest, with_copies
from stoker.backends.base.overlays import Mount
from stoker.backends.docker.jobfiles import (
    CHECKPOINTS_LABEL,
    CONTAINER_LABEL,
    GANG,
    WORKER,
    JobFiles,
    WarmFiles,
    job_files,
    warm_files,
    warm_name,
)
from stoker.backends.docker.settings import RUN_OPTIONS, SHARED_MEMORY, ContainerSettings
from stoker.core.codec import to_json
from stoker.core.orders import BootSpec, PoolSpec
from stoker.core.plan import Job, Site, StepPlan
from stoker.core.protocol import GangTask
from stoker.core.units import UNSET
from stoker.nodecache.cache import FOLDER, place_of
from stoker.store.checkpoints import SHARED, Checkpoints
from stoker.vendors.base import ContainerNeeds
from stoker.vendors.registry import VENDORS, by_vendor, environment_of

if TYPE_CHECKING:
    from stoker.core.devices import Lease

LABEL: Final = "stoker"
"""Every container, network and image of Stoker has labels below this one; `stoker gc` selects by it."""
HOME_LABEL: Final = f"{LABEL}.home"
"""The home that a container belongs to: `stoker gc` leaves those of others alone."""
ENGINE_LABEL: Final = f"{LABEL}.engine"
"""The engine's address: whoever cleans up later asks there, also where no stack names it any more."""
STORE_LABEL: Final = f"{LABEL}.store"
"""The folder of the store's blobs in which a container's folders are."""
INSIDE: Final = "/run/stoker"
"""Where the job's document is in a container that shares no folder with this machine."""
BUNDLE: Final = f"{INSIDE}/worker"
"""Where Stoker's worker is in such a container, if its image was not built by Stoker."""
STOP_SECONDS: Final = 10
"""What `docker stop` waits by itself between SIGTERM and SIGKILL; the step is told a second less."""
IDLE_AFTER: Final = 60.0
"""Seconds for which a container that takes several jobs waits for the next one, where nobody says."""
SHAPE_LABEL: Final = f"{LABEL}.shape"
"""Of a container that takes several jobs: `WarmRequest.shape`."""
TEMPORARY: Final = ("/tmp", "/var/tmp", "/dev/shm")
"""Folders of a container that hold nothing of a job when the next one begins."""
_LONGEST_NAME: Final = 120


@attrs.frozen(kw_only=True)
class EngineFacts:
    """What a request depends on besides the job: the engine and this machine."""

    shares_files: bool = True
    """Whether the engine sees this machine's folders."""
    rootless: bool = False
    """Whether the engine's root is the user who runs it."""
    selinux: bool = False
    """Whether SELinux keeps containers from files without a label of theirs."""
    user: str = "0:0"
    """The user who runs the driver, as uid:gid."""
    cache: str = ""
    """The folder in which blobs of a remote store are cached; empty: none."""
    store: str = ""
    """The folder of the store's blobs on this machine, or of their copies from a remote store; empty: none."""
    engine: str = ""
    """The engine's address."""
    groups: tuple[str, ...] = ()
    """Groups in which the driver's user is and to which a shared store belongs, by number."""


NO_FILES: Final = ContainerNeeds()


@attrs.frozen(kw_only=True)
class ContainerRequest:
    """One container of a job."""

    name: str
    body: Mapping[str, Any]
    """The body of the request that creates it."""
    spec: BootSpec
    """The job's document."""
    document_path: str
    """Where the document is inside the container."""
    files: JobFiles | None
    """Its folders on this machine; None where the engine does not see them."""
    checkpoints: tuple[str, ...] = ()
    """The folders on this machine in which the step keeps checkpoints."""
    samples: str = ""
    """The file on this machine with the samples of its devices; empty without any."""
    follows_image: bool = False
    """Whether the container runs as the user whom its image names (`USER`), if that is not root: nobody asked for
    another one."""


def container_requests(
    job: Job,
    *,
    site: Site,
    settings: ContainerSettings,
    facts: EngineFacts,
    leases: Sequence[Lease] = (),
    files: ContainerNeeds = NO_FILES,
    token: str = "",
) -> list[ContainerRequest]:
    """The containers of a job, by node."""
    nodes = nodes_of(job)
    gang = None
    if nodes > 1:
        head = _files_of(job, 0, site, facts)
        gang = gang_task(job, f"{site.artifacts}/gangs" if head is None else f"{head.notes}/{GANG}", token=token)
    requests = []
    for node in range(nodes):
        lease = leases[node] if leases else None
        name = container_name(job, node)
        own_files = _files_of(job, node, site, facts)
        document_path = f"{INSIDE}/job.json" if own_files is None else own_files.document
        spec = document(job, site=site, facts=facts, lease=lease, gang=gang)
        body = _body(job, node, site=site, settings=settings, facts=facts, lease=lease, files=files)
        marks = {**labels(job, node), HOME_LABEL: site.scratch, f"{LABEL}.place": document_path}
        if facts.engine:
            marks[ENGINE_LABEL] = facts.engine
        if facts.store:
            marks[STORE_LABEL] = facts.store
        requests.append(
            ContainerRequest(
                name=name,
                body={**body, "Cmd": [document_path], "Labels": marks},
                spec=spec,
                document_path=document_path,
                files=own_files,
                checkpoints=tuple(_checkpoints(job, site)) if facts.shares_files else (),
                samples=lease.samples if lease is not None and facts.shares_files else "",
                follows_image=not asked_user(job, settings),
            )
        )
    return requests


@attrs.frozen(kw_only=True)
class WarmRequest:
    """A container that takes jobs of one shape, one after another, and what one of those jobs adds."""

    name: str
    body: Mapping[str, Any]
    """The body of the request that creates it."""
    shape: str
    """Equal for jobs that may run in the same container."""
    files: WarmFiles
    pool: PoolSpec
    spec: BootSpec
    """The job's document."""
    marks: Mapping[str, str]
    """The job's labels, which stand in its folder."""
    checkpoints: str
    """The folder on this machine in which the step keeps checkpoints; empty without any."""
    follows_image: bool
    """As of `ContainerRequest`."""


def warm_request(
    job: Job, number: int, *, site: Site, settings: ContainerSettings, facts: EngineFacts, shape: str = ""
) -> WarmRequest:
    """The container of this number of a run that may take a job; `shape` is computed where it is not given."""
    name = warm_name(job.run, number)
    files = warm_files(name, scratch=site.scratch, store=facts.store, checkpoints=site.checkpoints)
    body = _body(
        job, 0, site=site, settings=settings, facts=facts, lease=None, files=NO_FILES, mounts=tuple(files.mounts())
    )
    body["Entrypoint"] = [*body["Entrypoint"][:-1], "stoker.worker.pool"]
    pool = PoolSpec(
        idle_after=settings.get("idle_after", IDLE_AFTER),
        preload=site.preload,
        imports=site.worker_imports,
        emptied=_emptied(settings),
    )
    follows_image = not asked_user(job, settings)
    if not shape:
        parts = [body, to_json(pool), follows_image, brings_worker(job, site), settings.get("pull")]
        text = json.dumps(parts, sort_keys=True).replace(f"{name}/", "/")
        shape = hashlib.sha256(text.encode()).hexdigest()[:32]
    place = {HOME_LABEL: site.scratch}
    if facts.engine:
        place[ENGINE_LABEL] = facts.engine
    if facts.store:
        place[STORE_LABEL] = facts.store
    own_labels = {LABEL: "pool", f"{LABEL}.run": job.run, SHAPE_LABEL: shape, CHECKPOINTS_LABEL: site.checkpoints}
    checkpoints = next(iter(_checkpoints(job, site)), "")
    return WarmRequest(
        name=name,
        body={**body, "Cmd": [files.pool, WORKER], "Labels": {**own_labels, **place}},
        shape=shape,
        files=files,
        pool=pool,
        spec=document(job, site=site, facts=facts, lease=None, gang=None),
        marks={
            **labels(job),
            **place,
            f"{LABEL}.place": files.job.document,
            CONTAINER_LABEL: container_name(job),
            CHECKPOINTS_LABEL: checkpoints,
        },
        checkpoints=checkpoints,
        follows_image=follows_image,
    )


def _emptied(settings: ContainerSettings) -> tuple[str, ...]:
    """The folders of a container that a step's leftovers are removed from: those that no mount brings along."""
    mounted = [Mount.parse(text).target.rstrip("/") for text in settings.get("mounts", ())]
    return tuple(
        folder
        for folder in TEMPORARY
        if not any(f"{folder}/".startswith(f"{target}/") for target in mounted)
        and not (folder == "/dev/shm" and settings.get("run_options", {}).get("ipc_mode"))
    )


def own_container(step: StepPlan, settings: ContainerSettings, *, shares_files: bool, store: str) -> str:
    """Why a step gets a container of its own; empty where it may share one with other steps."""
    options = settings.get("run_options", {})
    reasons = (
        (step.settings.resources.gpus_per_node, "it asks for devices, which a container gets when it is created"),
        (step.settings.resources.get("nodes", 1) > 1, "it runs on several nodes"),
        (step.settings.launch is not None, "it starts ranks, which listen on ports"),
        (step.settings.isolation == "fresh", 'isolation="fresh" asks for a place of its own'),
        (step.shares_checkpoints, "it shares its checkpoints with other runs"),
        (settings.get("secrets"), "its secrets are put into the container before it starts"),
        (settings.get("keep"), "keep=true leaves its container for you, with what it did there"),
        (
            options.get("read_only") and "://" in store,
            "its root is read-only, and the credentials of the artifact store are put into it",
        ),
        (options.get("pid_mode"), "run_options.pid_mode: what it leaves running could not be told from others'"),
        (not shares_files, "the container engine does not see this machine's folders"),
    )
    return next((why for holds, why in reasons if holds), "")


def _files_of(job: Job, node: int, site: Site, facts: EngineFacts) -> JobFiles | None:
    """The folders of a node's container on this machine; None on an engine that does not see them."""
    if not facts.shares_files:
        return None
    return job_files(container_name(job, node), scratch=site.scratch, store=facts.store)


def _checkpoints(job: Job, site: Site) -> Iterable[str]:
    """The folders in which a step keeps checkpoints; none where there are none."""
    if site.checkpoints:
        yield str(Checkpoints(site.checkpoints).path(job.run, job.key))
        if job.step.shares_checkpoints:
            yield f"{site.checkpoints}/{SHARED}"


def asked_user(job: Job, settings: ContainerSettings) -> str:
    """The user that the settings name for a job's container: those of the container, else those of its image."""
    docker = job.step.settings.docker
    named = None if docker is None or docker.user is UNSET else docker.user
    return str(settings.get("user") or named or "")


def container_name(job: Job, node: int = 0) -> str:
    """The name of a container, the same for every submission of an attempt.

    A name with characters that an engine refuses, or that is too long, is changed and gets a hash that keeps it unique.
    """
    plain = f"{LABEL}-{job.name.replace('/', '-')}"
    name = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "-" for letter in plain)
    if name != plain or len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}-{hashlib.sha256(job.name.encode()).hexdigest()[:8]}"
    return f"{name}-node-{node}" if node else name


def network_name(container: str) -> str:
    """The name of a gang's network, from the name of its first container."""
    return f"{container}-net"


def needs_network(job: Job, settings: ContainerSettings) -> bool:
    """Whether a gang needs a network of its own: on an engine's default one, containers know no names."""
    return nodes_of(job) > 1 and settings.get("network", "bridge") in ("bridge", "default")


def brings_worker(job: Job, site: Site) -> bool:
    """Whether Stoker's worker comes from outside: the image is used as it is."""
    docker = job.step.settings.docker
    return bool(site.bundle) and docker is not None and docker.skip_build is True


def labels(job: Job, node: int = 0) -> dict[str, str]:
    """The labels by which a later driver finds a container."""
    return {
        LABEL: "step",
        f"{LABEL}.run": job.run,
        f"{LABEL}.key": job.key,
        f"{LABEL}.kind": job_kind(job),
        f"{LABEL}.attempt": str(job.attempt),
        f"{LABEL}.node": str(node),
        f"{LABEL}.job": job.name,
        f"{LABEL}.request": request_digest(job),
    }


def document(job: Job, *, site: Site, facts: EngineFacts, lease: Lease | None, gang: GangTask | None) -> BootSpec:
    """The document that `worker.boot` reads."""
    checkpoints = site.checkpoints if facts.shares_files else "/tmp/stoker-checkpoints"
    # Its secrets are put into the container as a file of its own (`protocol.SECRET_VALUES`).
    job = attrs.evolve(job, secrets={})
    spec = boot_spec(job, site, checkpoints=checkpoints, grace=STOP_SECONDS - 1.0, lease=lease, gang=gang)
    if not facts.shares_files:
        return with_copies(spec)
    if not site.package and site.folder not in code_folders(site):
        return attrs.evolve(spec, folder=".")  # the image's own: nothing of the user's is mounted there
    return spec


def _body(
    job: Job,
    node: int,
    *,
    site: Site,
    settings: ContainerSettings,
    facts: EngineFacts,
    lease: Lease | None,
    files: ContainerNeeds,
    mounts: Sequence[Mount] | None = None,
) -> dict[str, Any]:
    """The body of a request; `mounts` are those of the container's own files, None: of a container of this job."""
    body: dict[str, Any] = {
        "Image": job.step.image,
        "Entrypoint": [settings.get("python", "python3"), "-m", "stoker.worker.boot"],
        "Env": [
            f"{name}={text}" for name, text in sorted(_environment(job, node, site, settings, facts, lease).items())
        ],
        "StopSignal": "SIGTERM",
        "StopTimeout": STOP_SECONDS,
        "Tty": False,
        "HostConfig": _host(job, node, site, settings, facts, lease, files, mounts),
    }
    user = asked_user(job, settings) or ("0:0" if facts.rootless else facts.user)
    if user != "image":
        body["User"] = user
    if nodes_of(job) > 1 and settings.get("network") != "host":
        body["Hostname"] = _host_name(job, node)
        network = network_name(container_name(job)) if needs_network(job, settings) else settings.get("network")
        body["HostConfig"]["NetworkMode"] = network
        body["NetworkingConfig"] = {"EndpointsConfig": {network: {"Aliases": [_host_name(job, node)]}}}
    return body


def _host(
    job: Job,
    node: int,
    site: Site,
    settings: ContainerSettings,
    facts: EngineFacts,
    lease: Lease | None,
    files: ContainerNeeds,
    mounts: Sequence[Mount] | None,
) -> dict[str, Any]:
    """What the container gets of its machine."""
    own_mounts = _job_mounts(job, node, site, facts, lease) if mounts is None else mounts
    resources = job.step.settings.resources if job.kind == "step" else None
    host: dict[str, Any] = {
        "AutoRemove": False,  # it holds the exit code until somebody has asked for it
        "LogConfig": {"Type": "json-file", "Config": {}},  # the one that each engine can read back from the beginning
        "Mounts": [
            mount_body(one) for one in (*own_mounts, *_data_mounts(job, facts), *_common_mounts(site, settings, facts))
        ],
        "ShmSize": SHARED_MEMORY,
    }
    if settings.get("network"):
        host["NetworkMode"] = settings.network
    for name, value in settings.get("run_options", {}).items():
        if value is not None:
            host[RUN_OPTIONS[name][0]] = _option(name, value)
    if facts.groups:
        host["GroupAdd"] = list(dict.fromkeys([*host.get("GroupAdd", ()), *facts.groups]))
    if host.get("ReadonlyRootfs"):
        # The worker unpacks the code there, and frameworks have their caches there.
        host["Tmpfs"] = {"/tmp": "", **host.get("Tmpfs", {})}
    if facts.selinux and facts.shares_files:
        # To label a home folder anew would lock others out of it.
        # https://docs.docker.com/engine/storage/bind-mounts/#configure-the-selinux-label
        host["SecurityOpt"] = [*host.get("SecurityOpt", ()), "label=disable"]
    if resources is None:
        return host
    if resources.get("cpu_count"):
        host["NanoCpus"] = round(resources.get("cpu_count") * 1e9)
    if resources.get("memory"):
        # Swap would let a step that takes too much crawl on instead of ending with a cause.
        host["Memory"] = host["MemorySwap"] = resources.get("memory")
    if resources.get("shared_memory"):
        host["ShmSize"] = resources.get("shared_memory")
    devices = () if lease is None else [device for device in lease.held if not device.simulated]
    requests = [
        _device_request(vendor.toolkit, [device.uuid for device in vendor_devices], settings)
        for vendor, vendor_devices in by_vendor(devices).items()
        if vendor.toolkit
    ]
    if requests:
        host["DeviceRequests"] = requests
    if files.files:
        host["Devices"] = [
            {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"} for path in files.files
        ]
    if files.groups:
        host["GroupAdd"] = list(dict.fromkeys([*host.get("GroupAdd", ()), *files.groups]))
    return host


def _device_request(kind: str, uuids: Sequence[str], settings: ContainerSettings) -> dict[str, Any]:
    """Devices by UUID, for a vendor's toolkit.

    CDI: https://docs.docker.com/build/building/cdi/, names as `nvidia-ctk cdi` makes them.
    """
    if settings.get("gpus") == "cdi":
        names = [f"{kind}={uuid}" for uuid in uuids]
        return {"Driver": "cdi", "Count": 0, "DeviceIDs": names, "Capabilities": [], "Options": {}}
    needs = [["gpu", "compute", "utility"]]  # "utility" brings NVML, which the gate and the monitor ask
    return {"Driver": "", "Count": 0, "DeviceIDs": list(uuids), "Capabilities": needs, "Options": {}}


def _environment(
    job: Job,
    node: int,
    site: Site,
    settings: ContainerSettings,
    facts: EngineFacts,
    lease: Lease | None,
) -> dict[str, str]:
    step = job.step.settings
    docker = step.docker
    variables: dict[str, str] = {}
    if docker is not None and docker.skip_build is True:  # a built image has them, with what they refer to put in
        for layer in (docker.environment, docker.runtime_environment):
            variables.update({name: text for name, text in (layer or {}).items() if text is not None})
    variables.update(step.environment)
    if brings_worker(job, site):
        bundle = site.bundle if facts.shares_files else BUNDLE
        variables["PYTHONPATH"] = ":".join(filter(None, [bundle, variables.get("PYTHONPATH", "")]))
    if facts.cache:
        variables["STOKER_CACHE"] = facts.cache
    if job.step.data and facts.shares_files:
        variables[FOLDER] = _data_cache(job)
    devices = () if lease is None else lease.held
    variables.update(environment_of(devices))
    real = {device.kind for device in devices if not device.simulated}
    for name, vendor in VENDORS.parts():
        if name not in real:
            variables.update(vendor.hidden_in_containers)
    if nodes_of(job) > 1:
        here, head = (_host_name(job, node), _host_name(job, 0))
        if settings.get("network") == "host":
            here = head = "127.0.0.1"
        position = {"NODE_RANK": str(node), "NODES": str(nodes_of(job)), "HEAD_ADDR": head, "NODE_ADDR": here}
        variables.update({f"STOKER_{name}": text for name, text in position.items()})
    return variables


def _job_mounts(job: Job, node: int, site: Site, facts: EngineFacts, lease: Lease | None) -> Iterable[Mount]:
    """What a container of one job sees of this machine, each at its own path: its job's folders, the step's
    checkpoints, the samples of its devices."""
    own_files = _files_of(job, node, site, facts)
    if own_files is None:
        return
    yield from own_files.mounts()
    if node:
        gang = f"{job_files(container_name(job), scratch=site.scratch, store='').notes}/{GANG}"
        yield Mount(gang, gang)
    if site.checkpoints:
        if job.step.shares_checkpoints:
            yield Mount(site.checkpoints, site.checkpoints, True)
        for folder in _checkpoints(job, site):
            yield Mount(folder, folder)
    if lease is not None and lease.samples:
        yield Mount(lease.samples, lease.samples)


def _data_mounts(job: Job, facts: EngineFacts) -> Iterable[Mount]:
    """This machine's cache of data, and the folders that a step asks for as they are, each at its own path."""
    if job.step.data and facts.shares_files:
        yield Mount(_data_cache(job), _data_cache(job))
        folders = [one.uri for one in job.step.data.values() if one.is_folder]
        yield from (Mount(folder, folder, True) for folder in dict.fromkeys(folders))


def _data_cache(job: Job) -> str:
    return str(place_of(job.step.settings.data_cache, os.environ).folder)


def _common_mounts(site: Site, settings: ContainerSettings, facts: EngineFacts) -> Iterable[Mount]:
    """Code that travels in no package, at its own path; and the mounts of the settings."""
    if facts.shares_files:
        if site.bundle:
            yield Mount(site.bundle, site.bundle, True)
        for folder in code_folders(site):
            yield Mount(folder, folder, True)
    for text in settings.get("mounts", ()):
        yield Mount.parse(text)


def code_folders(site: Site) -> list[str]:
    """The folders of the user's code that a container gets where no package of it was made."""
    roots = () if site.package else (source.root for source in site.sources if source.root)
    return list(dict.fromkeys(roots))


def mount_body(mount: Mount) -> dict[str, Any]:
    """A mount as the API has it."""
    kind = "bind" if mount.source.startswith("/") else "volume"
    return {"Type": kind, "Source": mount.source, "Target": mount.target, "ReadOnly": mount.read_only}


def _option(name: str, value: Any) -> Any:
    """The value of a run option as the API expects it."""
    if name == "extra_hosts":
        return [f"{host}:{address}" for host, address in value.items()]
    if name == "ulimits":
        return [{"Name": limit, "Soft": amount, "Hard": amount} for limit, amount in value.items()]
    if name in ("sysctls", "tmpfs"):
        return {key: str(text) for key, text in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _host_name(job: Job, node: int) -> str:
    """A node's name on its network: short enough for a DNS label, and unique to the attempt."""
    return f"stoker-{hashlib.sha256(job.name.encode()).hexdigest()[:12]}-{node}"
