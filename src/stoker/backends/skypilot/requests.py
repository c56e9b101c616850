"""From a step to SkyPilot's task, and to the orders that the program on its machines takes: pure.

The machines of a task run `backends.base.mailprogram`, which waits for orders in a mailbox of the artifact store, one
for each node. Steps whose tasks are alike (`shape_of`) share clusters, one step after another.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import re
import shlex
from typing import Any, Final, Mapping

import attrs

from stoker.backends.base import mailprogram
from stoker.backends.base.backend import settings_of
from stoker.backends.base.leasing import requested_lease, samples_file
from stoker.backends.base.messages import boot_spec, gang_task, nodes_of, with_copies
from stoker.backends.skypilot.catalog import WITHOUT_PRICE
from stoker.backends.skypilot.settings import IDLE_MINUTES, PATIENCE, SkypilotSettings, alternatives
from stoker.core.accelerators import Accelerator
from stoker.core.errors import SettingsError
from stoker.core.orders import BootSpec
from stoker.core.plan import Job, Site, StepPlan
from stoker.core.resources import ResourceSettings
from stoker.core.units import value_or
from stoker.core.words import dashed_name
from stoker.store.filesystems import store_package

GRACE: Final = 25.0
"""Seconds between SIGTERM and SIGKILL of a step."""
CHECKPOINTS: Final = "/tmp/stoker-checkpoints"
"""Of a machine that does not see the driver's folders."""
PREFIX: Final = "stoker-"
"""The names of clusters and managed jobs begin so."""
GIB: Final = 1 << 30
GB: Final = 10**9
_BY_CORES: Final = ("tpu-v2", "tpu-v3", "tpu-v4", "tpu-v5p")
"""TPUs whose slices are named by their cores, two on a chip; the others' by their chips.
https://cloud.google.com/tpu/docs/system-architecture-tpu-vm"""
_ONE_HOST: Final[Mapping[str, tuple[int, ...]]] = dict.fromkeys(("tpu-v5e", "tpu-v6e"), (1, 4, 8))
"""Chips of a slice with one host, where it is not `_CHIPS`; each host of a larger slice has `_CHIPS`.
https://cloud.google.com/tpu/docs/v5e, https://cloud.google.com/tpu/docs/v6e"""
_CHIPS: Final = 4
_ON_KUBERNETES: Final[Mapping[str, str]] = {
    "tpu-v4": "tpu-v4-podslice",
    "tpu-v5e": "tpu-v5-lite-podslice",
    "tpu-v5p": "tpu-v5p-slice",
    "tpu-v6e": "tpu-v6e-slice",
}
"""TPUs as SkyPilot calls those of a Kubernetes cluster, which are counted by chips; it takes slices of one host there.
https://docs.skypilot.co/en/latest/reference/kubernetes/kubernetes-getting-started.html"""
_OFFERED: Final = ("tpu-v2", "tpu-v3", *_ON_KUBERNETES)
"""TPUs of SkyPilot's catalogs: https://github.com/skypilot-org/skypilot-catalog, v8, common/accelerators.csv"""
NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "A100-80GB": ("A100-80GB", "A100-80GB-SXM"),
    "A4000": ("A4000", "RTXA4000"),
    "A4500": ("RTXA4500",),
    "A5000": ("RTXA5000",),
    "A6000": ("A6000", "RTXA6000"),
    "GTX1660SUPER": ("GTX1660S",),
    "Gaudi": ("Gaudi HL-205",),
    "H100": ("H100", "H100-SXM", "H100-NVLINK"),
    "H200": ("H200", "H200-SXM"),
    "MI25": ("Radeon MI25",),
    "RTX6000-Ada": ("RTX6000-Ada", "RTX6000Ada"),
    "RTXPRO6000": ("RTXPRO6000S", "RTXPRO6000WS"),
    "RadeonProV520": ("Radeon Pro V520",),
}
"""Accelerators that SkyPilot's catalogs have under other names, or under several, as each cloud calls them. A name that
no cloud has is no error to SkyPilot, and takes no offer away:
https://github.com/skypilot-org/skypilot-catalog/blob/master/catalogs/v8/common/accelerators.csv"""
_SLICE: Final = re.compile(r"(tpu-v[0-9a-z]+?)(?:litepod)?-([0-9]+)(?::1)?", re.IGNORECASE)
PLAIN: Final = (
    "instance_type",
    "accelerator_args",
    "job_recovery",
    "disk_tier",
    "network_tier",
    "local_disk",
    "labels",
    "max_hourly_cost",
)
"""Fields that SkyPilot's resources have under the same name."""


def root_of(site: Site, run: str) -> str:
    """The place of a run's notes in the artifact store."""
    return f"{site.artifacts}/skypilot/{dashed_name(run)}"


def worker_place(site: Site) -> str:
    """Where the archive with Stoker's worker lies, by its digest."""
    return f"{site.artifacts}/skypilot/{site.bundle.rstrip('/').rpartition('/')[2]}.zip"


def prefix_of(run: str) -> str:
    """How the names of a run's clusters and managed jobs begin."""
    return f"{PREFIX}{dashed_name(run)}-"


def is_managed(step: StepPlan, options: Mapping[str, Any]) -> bool:
    """Whether a step's machines are a managed job's."""
    settings = settings_of(step, SkypilotSettings, options)
    if settings.get("managed") is not None:
        return bool(settings.get("managed"))
    return bool(is_spot(step.settings.resources, settings)) and not settings.get("cluster_name")


def is_spot(resources: ResourceSettings, settings: SkypilotSettings) -> bool | None:
    """Whether spot machines are asked for; None where nobody says."""
    wanted = resources.get("spot")
    return settings.get("use_spot") if wanted is None else bool(wanted)


# Resources


def resources_document(resources: ResourceSettings, settings: SkypilotSettings) -> dict[str, Any]:
    """SkyPilot's `resources` of a step. `SettingsError` where it has no words for what is asked."""
    document: dict[str, Any] = {**_place(settings)}
    for name in PLAIN:
        if settings.get(name) is not None:
            document[name] = settings.get(name)
    cpus, memory = resources.get("cpu_count"), resources.get("memory")
    if settings.get("cpus") is not None or cpus is not None:
        document["cpus"] = settings.get("cpus") or f"{cpus:g}+"
    if settings.get("memory") is not None or memory is not None:
        document["memory"] = settings.get("memory") or f"{gigabytes(memory or 0)}+"
    disk = resources.get("disk")
    if settings.get("disk_size") is not None or disk is not None:
        document["disk_size"] = settings.get("disk_size") or math.ceil((disk or 0) / GB)
    spot = is_spot(resources, settings)
    if spot is not None:
        document["use_spot"] = spot
    if settings.get("ports"):
        document["ports"] = list(settings.get("ports"))
    document.update(_accelerators(resources, settings, document))
    for name in ("any_of", "ordered"):
        if settings.get(name) is not None:
            kinds = document.get("accelerators", "")
            others = isinstance(kinds, list) or (isinstance(kinds, Mapping) and name == "ordered")
            if "ordered" in document or "any_of" in document or others:
                what = f"{name} and {_other_alternatives(settings, name)} are both alternatives"
                raise SettingsError(what, fix=f"write them all into {name}")
            document[name] = [dict(one) for one in settings.get(name)]
    document.update(settings.get("resources_settings", {}))
    return document


_SHORT: Final[Mapping[str, str]] = {"k8s": "kubernetes"}
_OLDER: Final = ("cloud", "region", "zone")


def _place(settings: SkypilotSettings) -> dict[str, str]:
    """Where to look for machines: `infra`, or `cloud` with `region` and `zone`, its older form. SkyPilot refuses both
    at once, also where one of them is in an alternative."""
    older = {name: settings.get(name) for name in _OLDER if settings.get(name)}
    others = [*settings.get("any_of", ()), *settings.get("ordered", ())]
    places = [*filter(None, [settings.get("infra")]), *(one["infra"] for one in others if one.get("infra"))]
    for infra in places:
        if "cloud" in older and _cloud(infra) != _cloud(older["cloud"]):
            raise SettingsError(f"cloud='{older['cloud']}' and infra='{infra}' disagree", fix="remove cloud")
    if places:
        cloud = older.pop("cloud", "")
        for words in (older, *others):
            for name in (name for name in _OLDER if words.get(name)):
                what = f"{name}='{words[name]}' and infra='{places[0]}' both say where"
                raise SettingsError(what, fix=f"write infra alone, such as infra='{_cloud(places[0])}/{words[name]}'")
        infra = settings.get("infra") or cloud  # an alternative that names none is one of the cloud, too
        return {"infra": infra} if infra else {}
    return older


def _cloud(infra: str) -> str:
    name = infra.partition("/")[0].lower()
    return _SHORT.get(name, name)


def _other_alternatives(settings: SkypilotSettings, name: str) -> str:
    return "any_of" if name == "ordered" and settings.get("any_of") else "a list of accelerators"


def gigabytes(size: int) -> str:
    """Bytes as SkyPilot's number of GB: 16GB and 16GiB are both a machine's "16"."""
    for unit in (GIB, GB):
        if size % unit == 0:
            return str(size // unit)
    return f"{math.ceil(size / GIB * 10) / 10:g}"


def slice_hosts(resources: ResourceSettings) -> int:
    """How many hosts the TPU slice of a step has; 1 for other accelerators. SkyPilot calls such a slice one node, and
    runs a task on each of its hosts, which it numbers as nodes.
    https://docs.skypilot.co/en/latest/reference/tpu.html
    """
    kinds = resources.get("accelerators", ())
    return int(resources.get("nodes", 1)) if kinds and kinds[0].model.vendor == "tpu" else 1


def _accelerators(
    resources: ResourceSettings, settings: SkypilotSettings, document: Mapping[str, Any]
) -> dict[str, Any]:
    """`accelerators`, or `ordered` for alternatives of `ResourceSettings`, the first of which is wanted most.

    Of one accelerator's names SkyPilot takes the cheapest offer, unless the settings have an order of their own.
    """
    words = settings.get("accelerators")
    gpus = resources.gpus_per_node
    kinds: tuple[Accelerator, ...] = resources.get("accelerators", ())
    for text in alternatives(settings):
        _refuse_hosts(text)
    if words is not None:
        if isinstance(words, Mapping):
            return {"accelerators": dict(words)}
        return {"accelerators": words if isinstance(words, str) else list(words)}
    cloud = _cloud(str(document.get("infra") or document.get("cloud") or ""))
    is_cluster = cloud == "kubernetes"
    if len(kinds) == 1:
        text = accelerator_text(kinds[0], gpus, hosts=slice_hosts(resources), is_cluster=is_cluster)
        names = [text] if settings.get("ordered") else _offered_as(text, cloud)
        return {"accelerators": names[0] if len(names) == 1 else dict.fromkeys(names)}
    if kinds:
        hosts = slice_hosts(resources)
        if hosts > 1:
            what = f"alternatives of TPU slices with {hosts} hosts cannot be asked for in one task"
            raise SettingsError(what, fix=f'write one of them: resources.accelerators="{kinds[0]}"')
        texts = [accelerator_text(kind, gpus, is_cluster=is_cluster) for kind in kinds]
        return {"ordered": [{"accelerators": name} for text in texts for name in _offered_as(text, cloud)]}
    if gpus and "instance_type" not in document:
        return {"accelerators": any_accelerator(resources)}
    return {}


def _offered_as(text: str, cloud: str) -> list[str]:
    """ "A6000:2" under each name that SkyPilot's catalogs have for it; a cluster of one's own has the plain name."""
    name, _, count = text.partition(":")
    names = (name,) if cloud in WITHOUT_PRICE else NAMES.get(name, (name,))
    return [f"{one}:{count}" for one in names]


def _refuse_hosts(text: str) -> None:
    """A slice of several hosts in SkyPilot's words: to SkyPilot it is one node, and to a step it is as many nodes."""
    match = _SLICE.fullmatch(text)
    if match is None:
        return
    name = "tpu-v5e" if match[1].lower() == "tpu-v5" else match[1].lower()
    chips = int(match[2]) // (2 if name in _BY_CORES else 1)
    if chips > max(_ONE_HOST.get(name, (_CHIPS,))):
        fix = f'resources=ResourceSettings(accelerators="{name}:{_CHIPS}", nodes={chips // _CHIPS})'
        raise SettingsError(f"accelerators='{text}' is a TPU slice of {chips // _CHIPS} hosts", fix=fix)


def any_accelerator(resources: ResourceSettings) -> str:
    """Accelerators of any kind with enough memory, in SkyPilot's words: "nvidia:40GB+:1"."""
    least = max(1, math.ceil(resources.get("gpu_memory", GB) / GB))
    vendor = f"{resources.get('gpu_vendor')}:" if resources.get("gpu_vendor") else ""
    return f"{vendor}{least}GB+:{resources.gpus_per_node}"


def accelerator_text(kind: Accelerator, gpus: int, *, hosts: int = 1, is_cluster: bool = False) -> str:
    """An accelerator as SkyPilot calls it: "H100:8", and a TPU slice by the size of all its hosts,
    "tpu-v5litepod-16:1"; on a Kubernetes cluster "tpu-v5-lite-podslice:8"."""
    if kind.slice:
        fix = "ask for the whole GPU, or for MIG slices on the kubernetes backend"
        raise SettingsError(f"a MIG slice, {kind}, is nothing that SkyPilot's catalogs have", fix=fix)
    count = kind.count or gpus
    if kind.model.vendor != "tpu":
        return f"{kind.name}:{count}"
    if kind.name not in _OFFERED:
        fix = f"the kubernetes backend gives {kind.name} on GKE; or ask for one of {', '.join(_OFFERED)}"
        raise SettingsError(f"SkyPilot's catalogs have no {kind.name}", fix=fix)
    sizes = _ONE_HOST.get(kind.name, (_CHIPS,)) if hosts == 1 else (_CHIPS,)
    if count not in sizes:
        what = f"no TPU slice has {hosts} host{'s' if hosts > 1 else ''} with {count} chips of {kind.name}"
        nodes = count * hosts // _CHIPS
        larger = next((size for size in sizes if size >= count), 0) if hosts == 1 else 0
        asked = f'accelerators="{kind.name}:{larger or _CHIPS}"' + ("" if larger else f", nodes={nodes}")
        raise SettingsError(what, fix=f"resources=ResourceSettings({asked})")
    if is_cluster and hosts > 1:
        what = "SkyPilot gives no TPU slices of several hosts on Kubernetes"
        raise SettingsError(what, fix="the kubernetes backend does; or infra='gcp'")
    if is_cluster and kind.name in _ON_KUBERNETES:
        return f"{_ON_KUBERNETES[kind.name]}:{count}"
    size = (count * 2 if kind.name in _BY_CORES else count) * hosts
    name = "tpu-v5litepod" if kind.name == "tpu-v5e" else kind.name
    return f"{name}-{size}:1"


# The task


def image_of(step: StepPlan, settings: SkypilotSettings) -> Any:
    """`image_id` of a step; None for the machine's own."""
    docker = step.settings.docker
    ready = value_or(docker.parent_image, "") if docker is not None and docker.skip_build is True else ""
    image = step.image or ready
    own = settings.get("image_id")
    if image and own and own != f"docker:{image}":
        raise SettingsError(f"image_id='{own}' and the step's image {image} disagree", fix="remove one of the two")
    return f"docker:{image}" if image else own


def variables_of(step: StepPlan, settings: SkypilotSettings) -> dict[str, str]:
    """Variables of the task: those of an image that is used as it is, and `envs`."""
    docker = step.settings.docker
    variables: dict[str, str] = {}
    kinds = step.settings.resources.get("accelerators", ())
    if kinds and kinds[0].model.vendor == "tpu":
        variables["PJRT_DEVICE"] = "TPU"  # for torch-xla; the hosts of a slice libtpu learns from Google's metadata
    if docker is not None and docker.skip_build is True:
        for layer in (value_or(docker.environment, {}), value_or(docker.runtime_environment, {})):
            variables.update({name: text for name, text in layer.items() if text is not None})
    return {**variables, **settings.get("envs", {})}


def task_of(step: StepPlan, site: Site, options: Mapping[str, Any], *, secrets: tuple[str, ...] = ()) -> dict[str, Any]:
    """The task without its name and its mailbox, which tell one cluster from the next.

    `secrets` are names of variables whose values go along by SkyPilot's own way, beside those of the settings.
    """
    settings = settings_of(step, SkypilotSettings, options)
    secrets = tuple(dict.fromkeys([*secrets, *settings.get("secrets", ())]))
    resources = resources_document(step.settings.resources, settings)
    image = image_of(step, settings)
    if image is not None:
        resources["image_id"] = image
    if not is_managed(step, options):
        minutes = settings.get("idle_minutes_to_autostop", IDLE_MINUTES)
        resources.setdefault("autostop", {"idle_minutes": minutes, "down": bool(settings.get("down", True))})
    document: dict[str, Any] = {"num_nodes": machines_asked(step, settings), "resources": resources}
    variables = variables_of(step, settings)
    if variables:
        document["envs"] = variables
    if secrets:
        document["secrets"] = dict.fromkeys(secrets)
    if settings.get("file_mounts"):
        document["file_mounts"] = dict(settings.get("file_mounts"))
    docker_words = docker_options(step, settings)
    if docker_words:
        document["config"] = {"docker": {"run_options": docker_words}}
    python = settings.get("executable", "python3")
    packages = step.settings.packages
    lines = list(settings.get("setup_commands", ()))
    if packages is not None and packages.requirements and not image:
        words = [python, "-m", "pip", "install", "--quiet"]
        for option, urls in (
            ("--index-url", filter(None, [value_or(packages.index_url, "")])),
            ("--extra-index-url", value_or(packages.extra_index_urls, ())),
        ):
            words += [word for url in urls for word in (option, url)]
        lines.append(shlex.join([*words, *packages.requirements]))
    if store_package(site.artifacts) and not image:
        lines.append(_store_line(python, store_package(site.artifacts)))
    if lines:
        document["setup"] = "\n".join(["set -e", *lines])
    document["run"] = run_script(python, worker_place(site), settings.get("patience", PATIENCE))
    for name, value in settings.get("task_settings", {}).items():
        if name in ("run", "num_nodes", "resources", "name", "secrets"):
            fix = "resources_settings, num_nodes, task_name and secrets of these settings"
            raise SettingsError(f"task_settings: {name} is the step's own", fix=fix)
        document[name] = {**document.get(name, {}), **value} if isinstance(value, Mapping) else value
    return document


def _store_line(python: str, package: str) -> str:
    """Installs what the program of a machine reads the artifact store by, where that is missing."""
    question = f"import importlib.util as u; raise SystemExit(u.find_spec({package!r}) is None)"
    install = [python, "-m", "pip", "install", "--quiet", package]
    return f"{shlex.join([python, '-c', question])} || {shlex.join(install)}"


def docker_options(step: StepPlan, settings: SkypilotSettings) -> list[str]:
    """Further arguments of `docker run` in the container that SkyPilot starts; it gives it the GPUs itself."""
    words = list(settings.get("docker_run_args", ()))
    shared = step.settings.resources.get("shared_memory")
    if shared and image_of(step, settings):
        words.append(f"--shm-size={shared}")
    return words


def nodes_asked(step: StepPlan, settings: SkypilotSettings) -> int:
    """Machines of a step."""
    return int(step.settings.resources.get("nodes") or settings.get("num_nodes", 1))


def machines_asked(step: StepPlan, settings: SkypilotSettings) -> int:
    """What SkyPilot calls the nodes of a step: the hosts of a TPU slice are one."""
    return nodes_asked(step, settings) // slice_hosts(step.settings.resources)


PLACEHOLDER: Final = "0" * 32
"""The secret of a gang in what is only shown; one that is sent has a secret of its own."""
MAILBOX: Final = "STOKER_MAILBOX"
"""The variable of a task that has the place of its mailboxes."""


def run_script(python: str, worker: str, patience: float) -> str:
    """What each node runs: the waiting program, with a mailbox of its own."""
    text = inspect.getsource(mailprogram)
    words = shlex.join([python, "-c", text, worker])
    return f'exec {words} "${MAILBOX}" {patience:g} "${{SKYPILOT_NODE_RANK:-0}}"\n'


def shape_of(task: Mapping[str, Any], *, managed: bool) -> str:
    """Equal for steps that may share a cluster."""
    text = json.dumps([task, managed], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def named_task(task: Mapping[str, Any], name: str, title: str, mailbox: str) -> dict[str, Any]:
    """The whole task of one cluster or managed job."""
    variables = {**task.get("envs", {}), MAILBOX: mailbox}
    return {"name": title or name, **task, "envs": variables}


def launch_words(
    name: str, path: str, settings: SkypilotSettings, *, managed: bool, secrets: tuple[str, ...] = ()
) -> list[str]:
    """The arguments of SkyPilot's command that launches a task from a file; it reads secrets from its environment."""
    words = [word for secret in secrets for word in ("--secret", secret)]
    if managed:
        return ["jobs", "launch", "--yes", "--detach-run", "--name", name, *words, path]
    if settings.get("retry_until_up"):
        words.append("--retry-until-up")
    return ["launch", "--yes", "--detach-run", "--cluster", name, *words, path]


# Orders


def job_document(job: Job, site: Site, mailbox: str, *, shares: bool, token: str | None = None) -> BootSpec:
    """What `worker.boot` is told of a job on a machine."""
    nodes = nodes_of(job)
    spec = boot_spec(
        attrs.evolve(job, secrets={}),
        site,
        checkpoints=site.checkpoints if shares else CHECKPOINTS,
        grace=GRACE,
        lease=requested_lease(job, samples=samples_file(job, site, "skypilot")),
        gang=gang_task(job, mailbox, "skypilot", token=token) if nodes > 1 else None,
    )
    return spec if shares else with_copies(spec)
