"""From a job to the exact request that an engine is sent, as plain data: nothing here talks to an engine.

The request is a body of Docker's API (https://docs.docker.com/reference/api/engine/version/v1.41/), which podman takes
too. Beside it goes the job's document, which `worker.boot` reads inside the container. What only this machine knows
(devices' files, users) is handed in as `EngineFacts`.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final, Iterable, Mapping, Sequence

import attrs

from stoker.backends.base.adoption import job_kind
from stoker.backends.base.messages import boot_spec, gang_task, nodes_of, request_digest
from stoker.backends.base.mounts import Mount
from stoker.backends.docker.settings import RUN_OPTIONS, SHARED_MEMORY, ContainerSettings
from stoker.core.bootspec import BootSpec
from stoker.core.plan import Job, Site
from stoker.core.protocol import GangTask
from stoker.vendors.base import ContainerNeeds
from stoker.vendors.registry import VENDORS, by_vendor, environment_of

if TYPE_CHECKING:
    from stoker.core.devices import Lease

LABEL: Final = "stoker"
"""Every container, network and image of Stoker has labels below this one; `stoker gc` selects by it."""
HOME_LABEL: Final = f"{LABEL}.home"
"""The home that a container belongs to: `stoker gc` leaves those of others alone."""
INSIDE: Final = "/run/stoker"
"""Where the job's document is in a container that shares no folder with this machine."""
BUNDLE: Final = f"{INSIDE}/worker"
"""Where Stoker's worker is in such a container, if its image was not built by Stoker."""
STOP_SECONDS: Final = 10
"""What `docker stop` waits by itself between SIGTERM and SIGKILL; the step is told a second less."""
NONE: Final = "void"
"""NVIDIA_VISIBLE_DEVICES of a container without devices: images say "all", and a default runtime would obey.
https://github.com/NVIDIA/nvidia-container-toolkit/blob/main/cmd/nvidia-container-runtime/README.md"""
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
        folder = site.scratch if facts.shares_files else f"{site.artifacts}/gangs"
        gang = gang_task(job, folder, token=token)
    requests = []
    for node in range(nodes):
        lease = leases[node] if leases else None
        name = container_name(job, node)
        document_path = f"{site.scratch}/containers/{name}/job.json" if facts.shares_files else f"{INSIDE}/job.json"
        spec = document(job, site=site, facts=facts, lease=lease, gang=gang)
        body = _body(job, node, site=site, settings=settings, facts=facts, lease=lease, files=files)
        marks = {**labels(job, node), HOME_LABEL: site.scratch, f"{LABEL}.place": document_path}
        requests.append(
            ContainerRequest(
                name=name,
                body={**body, "Cmd": [document_path], "Labels": marks},
                spec=spec,
                document_path=document_path,
            )
        )
    return requests


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
    return boot_spec(job, site, checkpoints=checkpoints, grace=STOP_SECONDS - 1.0, lease=lease, gang=gang)


def _body(
    job: Job,
    node: int,
    *,
    site: Site,
    settings: ContainerSettings,
    facts: EngineFacts,
    lease: Lease | None,
    files: ContainerNeeds,
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "Image": job.step.image,
        "Entrypoint": [settings.get("python", "python3"), "-m", "stoker.worker.boot"],
        "Env": [
            f"{name}={text}" for name, text in sorted(_environment(job, node, site, settings, facts, lease).items())
        ],
        "StopSignal": "SIGTERM",
        "StopTimeout": STOP_SECONDS,
        "Tty": False,
        "HostConfig": _host(job, site, settings, facts, lease, files),
    }
    user = settings.get("user") or ("0:0" if facts.rootless else facts.user)
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
    site: Site,
    settings: ContainerSettings,
    facts: EngineFacts,
    lease: Lease | None,
    files: ContainerNeeds,
) -> dict[str, Any]:
    """What the container gets of its machine."""
    resources = job.step.settings.resources if job.kind == "step" else None
    host: dict[str, Any] = {
        "AutoRemove": False,  # it holds the exit code until somebody has asked for it
        "LogConfig": {"Type": "json-file", "Config": {}},  # the one that each engine can read back from the beginning
        "Mounts": [_mount(one) for one in _mounts(site, settings, facts)],
        "ShmSize": SHARED_MEMORY,
    }
    if settings.get("network"):
        host["NetworkMode"] = settings.network
    for name, value in settings.get("run_options", {}).items():
        if value is not None:
            host[RUN_OPTIONS[name][0]] = _option(name, value)
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


def _mounts(site: Site, settings: ContainerSettings, facts: EngineFacts) -> Iterable[Mount]:
    """Stoker's folders at their own paths, where the engine sees them, and the mounts of the settings."""
    if facts.shares_files:
        ours = [site.scratch, site.checkpoints, facts.cache]
        if "://" not in site.artifacts:
            ours.append(site.artifacts)
        for folder in dict.fromkeys(filter(None, ours)):
            yield Mount(folder, folder)
        if site.bundle:
            yield Mount(site.bundle, site.bundle, True)
        if not site.package:
            for folder in dict.fromkeys([site.folder, *(source.root for source in site.sources if source.root)]):
                yield Mount(folder, folder)
    for text in settings.get("mounts", ()):
        yield Mount.parse(text)


def _mount(mount: Mount) -> dict[str, Any]:
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
