"""The settings of the ray backend: which cluster, how it calls its accelerators, environments on its nodes.

How a step becomes a task is `backends.ray.tasks`; what a cluster has is not known here.
"""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar, Final, Literal, Mapping

import attrs

from stoker.core import units
from stoker.core.accelerators import MODELS, model
from stoker.core.docker import parse_environment
from stoker.core.errors import SettingsError, did_you_mean, nearest
from stoker.core.resources import parse_extended
from stoker.core.units import (
    UNSET,
    WHOLE_RUN,
    parse_flag,
    parse_mapping,
    parse_python,
    parse_text,
    parse_verify,
    strict,
)
from stoker.core.words import table_lines
from stoker.vendors.table import NO_DEVICES

Placement = Literal["STRICT_SPREAD", "SPREAD", "PACK", "STRICT_PACK"]
PLACEMENTS: Final[tuple[Placement, ...]] = ("STRICT_SPREAD", "SPREAD", "PACK", "STRICT_PACK")
"""https://docs.ray.io/en/latest/ray-core/scheduling/placement-group.html#placement-strategy"""
PORT: Final = 8265
"""Of Ray's dashboard and Jobs API, where an address does not say."""

RUNTIME_ENV: Final[Mapping[str, str]] = {
    "conda": "the worker's Python is that of the environment, and so is the step's",
    "config": "how long an environment may take to be made, and the like",
    "env_vars": "variables of the step; not those that Stoker sets",
    "pip": "the worker's Python has the packages, and so has the step's",
    "py_executable": "the interpreter of the worker, and of the step",
    "py_modules": "importable packages, by URIs that the nodes reach; Stoker's worker stands beside them",
    "uv": "the worker's Python has the packages, and so has the step's",
    "working_dir": "a URI that the nodes reach, importable for the step; its working directory is that of the code",
}
"""Keys of a runtime environment that Ray gets as they are, and what becomes of them.
https://docs.ray.io/en/latest/ray-core/handling-dependencies.html#api-reference"""
IMAGE_ELSEWHERE: Final = "give the nodes this image (with KubeRay in their pods), or name packages by pip, uv or conda"
ELSEWHERE: Final[Mapping[str, str]] = {
    "container": IMAGE_ELSEWHERE,
    "excludes": "leave it out: it thins out local folders that Ray uploads, and Stoker sends the code itself",
    "image_uri": IMAGE_ELSEWHERE,
    "java_jars": "leave it out: steps are Python",
    "mpi": 'launch="mpi" of the step',
    "nsight": "profile in the step: nsight follows Ray's worker, and the step is a process of its own",
    "worker_process_setup_hook": "call it in the step: Ray runs it in its worker, and the step is a process of its own",
}
"""Keys that Ray knows too and that are refused, and what to do. Ray's containers would lack Stoker's worker."""
_PACKAGES: Final[Mapping[str, str]] = {
    "pip": '["six==1.16.0"]',
    "uv": '["six==1.16.0"]',
    "conda": '{ dependencies = ["numpy"] }, or the name of an environment of the nodes',
}
"""Keys that make an environment of packages, and how each is written."""
RESOURCES: Final[Mapping[str, str]] = {
    "CPU": "resources=ResourceSettings(cpu_count=…)",
    "GPU": "resources=ResourceSettings(gpu_count=…)",
    "memory": "resources=ResourceSettings(memory=…)",
    "object_store_memory": "Stoker keeps nothing in Ray's object store",
}
"""Ray's own resources, which a step asks for in the words of all platforms."""


@attrs.frozen
class Kind:
    """How Ray counts one kind of accelerator: its resource, how many of that a chip is, and the type's name."""

    type: str
    resource: str = "GPU"
    each: int = 1


KINDS: Final[Mapping[str, Kind]] = {
    name: Kind(type, resource, int(each))
    for line in table_lines(__file__, "kinds.txt")
    for name, type, resource, each in (line.split(" "),)
}
"""Name of the catalog → how Ray counts it."""

_SOURCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|[/~.].*")
_ADDRESS = re.compile(r"auto|(https?|ray)://[^/\s]+(/\S*)?")
_MODULE = re.compile(r"(?P<module>[A-Za-z_][\w.+-]*)://.*")
_LABEL_OPERATOR = re.compile(r"!?in\(.*\)|![\w.-]*|[\w.-]*")


def parse_address(value: str | None) -> str | None:
    """`address`."""
    text = parse_text(value)
    if text and not _ADDRESS.fullmatch(text):
        refuse_module(text)
        fix = f'write where its dashboard is, such as "http://head:{PORT}", or "auto" for the one on this machine'
        raise SettingsError(f"{value!r} is not the address of a Ray cluster", fix=fix)
    return text.rstrip("/") if text else text


def refuse_module(address: str) -> None:
    """Raise `SettingsError` for an address such as "anyscale://mine", for which Ray's client loads a Python module."""
    match = _MODULE.fullmatch(address)
    near = did_you_mean(match["module"], ("http", "https")) if match is not None else ""
    if match is not None and near and match["module"] not in ("http", "https"):
        raise SettingsError(f"{address!r} begins with '{match['module']}'{near}")
    if match is not None and match["module"] not in ("http", "https", "ray"):
        raise SettingsError(
            f"{address!r} is for the module '{match['module']}' of Ray's own client, which Stoker does not use",
            fix="write the address at which that cluster's dashboard is served, such as "
            '"https://…", with headers={"Authorization": "env:NAME"} for its token',
        )


def parse_source(value: str | None) -> str | None:
    """`token`: where a secret comes from, never the secret."""
    raw: Any = value
    if raw is None or raw is UNSET or (isinstance(raw, str) and _SOURCE.fullmatch(raw)):
        return value
    # The value is not shown: it may be the token itself.
    raise SettingsError("token does not say where the token comes from", fix='write "env:NAME" or a path')


def parse_headers(value: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """`headers`: texts, of which "env:NAME" is read from the environment."""
    found: Any = parse_mapping(value)
    for name, text in (found or {}).items():
        if text is not None and (not isinstance(text, str) or "\n" in text):
            raise SettingsError(f"the header '{name}' is not a text", fix='write a text, or "env:NAME" for a secret')
    return found  # type: ignore[no-any-return]


def parse_resources(value: Mapping[str, float] | None) -> Mapping[str, float] | None:
    """`resources`: custom ones."""
    found = parse_extended(value)
    for name in found or ():
        if name in RESOURCES:
            raise SettingsError(f"resources has no '{name}': it is given elsewhere", fix=RESOURCES[name])
    return found


def parse_labels(value: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """`labels`."""
    found: Any = parse_mapping(value)
    for name, text in (found or {}).items():
        if text is not None and not (isinstance(text, str) and _LABEL_OPERATOR.fullmatch(text)):
            fix = 'write a value, "!value", "in(a,b)" or "!in(a,b)"'
            raise SettingsError(f"{name}={text!r} selects no labels", fix=fix)
    return found  # type: ignore[no-any-return]


def parse_kinds(value: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """`accelerators`: names of the catalog → the type's name in this cluster."""
    found: Any = parse_mapping(value)
    if not found:
        return found  # type: ignore[no-any-return]
    for name, text in found.items():
        if not isinstance(text, str) or not text:
            raise SettingsError(f"{name}={text!r} is not a name of Ray's", fix='write {"H100": "H100"}')
    return {model(name).name: text for name, text in found.items()}


def parse_runtime_env(value: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """`runtime_env`, each key checked."""
    found: Any = parse_mapping(value)
    if found is None or found is UNSET:
        return found
    for name in found:
        if name in ELSEWHERE:
            raise SettingsError(f"runtime_env has no '{name}' here", fix=ELSEWHERE[name])
        if name not in RUNTIME_ENV:
            raise SettingsError(f"runtime_env has no '{name}'{nearest(name, RUNTIME_ENV)}")
    for name in ("working_dir", "py_modules"):
        places = found.get(name) or ()
        for place in [places] if isinstance(places, str) else places:
            if not isinstance(place, str) or "://" not in place:
                raise SettingsError(
                    f"{name}={place!r} is a folder of this machine",
                    fix="leave it out: the pipeline's code is sent along by itself; or name a URI that the nodes reach",
                )
    variables = parse_environment(found.get("env_vars")) or {}
    for name in variables:
        if name.startswith("STOKER_") or name in NO_DEVICES:
            raise SettingsError(f"env_vars sets {name}, which Stoker sets itself", fix="remove it")
    _check_packages(found)
    if variables:
        found = {**found, "env_vars": {name: text for name, text in variables.items() if text is not None}}
    try:
        return json.loads(json.dumps(found, allow_nan=False))  # type: ignore[no-any-return]
    except (TypeError, ValueError) as error:
        raise SettingsError(f"runtime_env cannot be written as JSON: {error}") from None


def _check_packages(found: Mapping[str, Any]) -> None:
    """Refuse what Ray's own client refuses or reads from this machine's files, before anything is sent."""
    makers = [name for name in _PACKAGES if found.get(name)]
    if len(makers) > 1:
        both = " and ".join(makers)
        raise SettingsError(f"runtime_env has {both}: Ray makes an environment by one of them", fix="remove the others")
    for name in makers:
        what = found[name]
        inner = what.get("packages") if isinstance(what, Mapping) and name != "conda" else None
        for given in (what, inner):
            if isinstance(given, str) and (name != "conda" or given.endswith((".yml", ".yaml"))):
                fix = f"write what is in it: {name} = {_PACKAGES[name]}"
                raise SettingsError(f"{name}={given!r} is a file, which the nodes do not have", fix=fix)
        packages = what if inner is None else inner
        texts = isinstance(packages, list) and all(isinstance(text, str) for text in packages)
        if not (isinstance(what, (str, Mapping)) if name == "conda" else texts):
            raise SettingsError(f"{name}={what!r} names no packages", fix=f"write {name} = {_PACKAGES[name]}")
    if not isinstance(found.get("py_executable") or "", str):
        fix = 'write py_executable = "/opt/env/bin/python"'
        raise SettingsError(f"py_executable={found['py_executable']!r} is not a text", fix=fix)


def parse_placement(value: Placement | None) -> Placement | None:
    """`placement`."""
    units.one_of(value, *PLACEMENTS)
    return value


def parse_idle(value: float | str | None) -> float | None:
    """`idle_after`."""
    return value if value is None or value is UNSET else units.duration(value)


def parse_fraction(value: float | str | None) -> float | None:
    """`gpu_fraction`: more than nothing and less than a whole one, in Ray's steps of 0.0001."""
    if value is None or value is UNSET:
        return value
    part = units.number(value)
    if not 0.0001 <= part < 1:
        raise SettingsError(
            f"{value!r} is not a part of one GPU",
            fix="write a number between 0 and 1, such as 0.5; whole ones are resources=ResourceSettings(gpu_count=…)",
        )
    return round(part, 4)


@strict
@attrs.frozen(kw_only=True)
class RaySettings:
    """How a step runs on Ray. A field that is not given is `UNSET`; `None` takes back what weaker layers say."""

    address: str | None = attrs.field(default=UNSET, converter=parse_address, metadata=WHOLE_RUN)
    """Where the cluster's dashboard is, "http://head:8265", or "auto"; without it RAY_API_SERVER_ADDRESS and
    RAY_ADDRESS are read, as Ray's own client does."""
    token: str | None = attrs.field(default=UNSET, converter=parse_source, metadata=WHOLE_RUN)
    """Where the cluster's token comes from, "env:NAME" or a file; without it, where Ray looks."""
    headers: Mapping[str, str] | None = attrs.field(default=UNSET, converter=parse_headers, metadata=WHOLE_RUN)
    """Sent with every request; a value "env:NAME" is read from the environment."""
    verify: bool | str | None = attrs.field(default=UNSET, converter=parse_verify, metadata=WHOLE_RUN)
    """Whether certificates are checked, or the file of those that are trusted."""
    shares_files: bool | None = attrs.field(default=UNSET, converter=parse_flag, metadata=WHOLE_RUN)
    """Whether the nodes see this machine's folders; without it, they do if the address is loopback."""
    python: str | None = attrs.field(default=UNSET, converter=parse_python)
    """The interpreter on the nodes; given to a step, that of its worker, while the program that starts tasks has the
    run's."""
    resources: Mapping[str, float] | None = attrs.field(default=UNSET, converter=parse_resources)
    """Custom resources of Ray's (`resources` of a task), on each node of the step."""
    labels: Mapping[str, str] | None = attrs.field(default=UNSET, converter=parse_labels)
    """Labels by which nodes are selected (`label_selector` of a task)."""
    accelerators: Mapping[str, str] | None = attrs.field(default=UNSET, converter=parse_kinds)
    """Names of the catalog to what the cluster calls them (`accelerator_type` of a task)."""
    runtime_env: Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_runtime_env)
    """Ray's `runtime_env`; keys that cannot reach a step are refused."""
    placement: Placement | None = attrs.field(default=UNSET, converter=parse_placement)
    """How the nodes of a gang are spread: the strategy of their placement group."""
    idle_after: float | str | None = attrs.field(default=UNSET, converter=parse_idle, metadata=WHOLE_RUN)
    """Seconds, or a text such as "5min", for which the run's Ray job waits for further steps; 60 without it."""
    gpu_fraction: float | None = attrs.field(default=UNSET, converter=parse_fraction)
    """The part of its one GPU that a step takes (`num_gpus`), which Ray counts and does not enforce."""

    INSTEAD: ClassVar[Mapping[str, str]] = {
        **{name: f"runtime_env = {{ {name} = … }}" for name in RUNTIME_ENV if name != "config"},
        **ELSEWHERE,
        **{name.lower(): fix for name, fix in RESOURCES.items()},
        "num_cpus": RESOURCES["CPU"],
        "num_gpus": f"{RESOURCES['GPU']}, or gpu_fraction=… for a part of one",
        "accelerator_type": "resources=ResourceSettings(accelerators=…)",
        "label_selector": "labels={…}",
        "placement_group": "placement=…, and resources=ResourceSettings(nodes=…)",
        "scheduling_strategy": "placement=…, and labels={…}",
        "max_retries": "retry=… of the step",
        "retry_exceptions": "retry=… of the step",
        "namespace": "leave it out: Stoker's actors have no names",
        "host": f'address = "http://head:{PORT}"',
        "url": f'address = "http://head:{PORT}"',
        "port": f'address = "http://head:{PORT}"',
    }

    def get(self, name: str, default: Any = None) -> Any:
        """The field's value, or `default` where nothing was asked."""
        value = getattr(self, name)
        return default if value is UNSET or value is None else value


def kind_of(name: str, settings: RaySettings) -> Kind | None:
    """How the cluster counts an accelerator of the catalog; None where Ray has no name for it."""
    named = settings.get("accelerators", {}).get(name)
    known = KINDS.get(name)
    if named is None:
        return known
    vendor = MODELS[name].vendor
    like = known or next((kind for other, kind in KINDS.items() if MODELS[other].vendor == vendor), Kind(named))
    return attrs.evolve(like, type=named)
