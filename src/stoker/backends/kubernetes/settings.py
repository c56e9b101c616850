"""The settings of the kubernetes backend: which cluster, and what the pod of a step is to be.

The words of Metaflow's `@kubernetes` (https://docs.metaflow.org/api/step-decorators/kubernetes) and of ZenML's
Kubernetes settings keep their names: `ALIASES` has the second name of a field. A field that is not given is `UNSET`, so
that a default never beats what somebody wrote. How they become a pod is `backends.kubernetes.request.pods`.
"""

from __future__ import annotations

import json
import re
from typing import Any, Callable, ClassVar, Final, Iterable, Literal, Mapping

import attrs

from stoker.backends.kubernetes.objects import amount
from stoker.core import imagenames, units
from stoker.core.accelerators import VENDORS, Accelerator, model, vendor_name
from stoker.core.errors import SettingsError, did_you_mean, nearest
from stoker.core.resources import parse_extended
from stoker.core.settings import fields_given
from stoker.core.units import (
    FLAG_FIX,
    UNSET,
    WHOLE_RUN,
    not_one_of,
    parse_count,
    parse_mapping,
    parse_positive_count,
    parse_python,
    parse_text,
    strict,
)
from stoker.core.words import shown

QOS: Final = ("Burstable", "Guaranteed")
PULL_POLICIES: Final = ("IfNotPresent", "Always", "Never")
"""https://kubernetes.io/docs/concepts/containers/images/#image-pull-policy"""
PULL_TIMEOUT: Final = 600.0
"""Seconds: a kubelet tries again after 10 s, 20 s, 40 s and so on, up to five minutes, which are some six tries."""
Placement = Literal["STRICT_SPREAD", "SPREAD", "PACK"]
PLACEMENTS: Final[tuple[Placement, ...]] = ("STRICT_SPREAD", "SPREAD", "PACK")
QUEUEING: Final = ("kueue", "volcano", "coscheduling")
AUTO: Final = "auto"
Reuse = Literal["auto"]
"""The value of `reuse` by which a pod takes further steps where that changes nothing for them."""
MIG: Final = ("mixed", "single")
"""https://docs.nvidia.com/datacenter/cloud-native/kubernetes/latest/index.html"""
_TOLERATION: Final = ("key", "operator", "value", "effect", "tolerationSeconds", "toleration_seconds")
"""https://kubernetes.io/docs/reference/generated/kubernetes-api/v1.36/#toleration-v1-core"""
_TAINT: Final = ("key", "value", "effect")
_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "operator": ("Exists", "Equal", "Lt", "Gt"),
    "effect": ("NoSchedule", "PreferNoSchedule", "NoExecute"),
}
"""What a field of a toleration or a taint may say."""
_RESOURCES: Final = ("requests", "limits", "claims")
_LABEL: Final = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
"""The value of a label, and the name in its key.
https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set"""
DNS_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#dns-label-names"""
_POOL: Final = ("name", "labels", "taints", "nodes", "cpu_count", "memory", "disk", "accelerators", "extended")
_AMOUNTS: Final = ("requests", "limits", "overhead")
"""The fields of the API's objects that map resources to quantities."""
_AMOUNT: Final = ("sizeLimit", "divisor", "storage")
"""Those that are one quantity."""
_TEMPLATE: Final = ("metadata", "spec")
_POD_SETTINGS: Final[Mapping[str, str]] = {
    "node_selector": "node_selectors",
    "scheduler": "scheduler_name",
    "security_context": "container_security_context",
    "pod_security_context": "security_context",
    "pod_resources": "resources",
    "pod_spec": "additional_pod_spec_args",
}
"""A field here → the field of ZenML's `KubernetesPodSettings`, where that has another name."""


def parse_flag_word(value: Any) -> Any:
    """A yes or a no, also as the command line writes it."""
    words = {"true": True, "false": False, "1": True, "0": False}
    if value is UNSET or value is None or isinstance(value, bool):
        return value
    if str(value).lower() in words:
        return words[str(value).lower()]
    raise SettingsError(f"{value!r} is neither true nor false", fix=FLAG_FIX)


def parse_listed_texts(value: Any) -> Any:
    """Texts, or one text with commas."""
    if value is UNSET or value is None:
        return value
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    items = list(value) if isinstance(value, Iterable) and not isinstance(value, Mapping) else [None]
    if not all(isinstance(item, str) for item in items):
        raise SettingsError(f"{value!r} is not a list of texts", fix='write ["a", "b"]')
    return tuple(items)


def parse_pairs(value: Any) -> Any:
    """A mapping of texts, or "key=value,key=value"."""
    if value is UNSET or value is None:
        return value
    if isinstance(value, str):
        parts = [part.partition("=") for part in value.split(",") if part.strip()]
        if not all(equals for _, equals, _ in parts):
            raise SettingsError(f"{value!r} is not key=value", fix='write {"pool": "gpu"} or "pool=gpu"')
        return {key.strip(): text.strip() for key, _, text in parts}
    if not isinstance(value, Mapping):
        raise SettingsError(f"{value!r} does not map names to texts", fix='write {"pool": "gpu"}')
    for key, text in value.items():
        if text is None or isinstance(text, (Mapping, list, tuple)):
            raise SettingsError(f"{key}: {text!r} is not a text", fix='write {"pool": "gpu"}')
    # A label that YAML or TOML writes as true is "true" at a node.
    return {str(key): str(text).lower() if isinstance(text, bool) else str(text) for key, text in value.items()}


def parse_labels(value: Any) -> Any:
    """Labels, as the API takes them."""
    pairs = parse_pairs(value)
    for key, text in (pairs or {}).items():
        if not _LABEL.fullmatch(key.rpartition("/")[2]) or not key.rpartition("/")[2]:
            raise SettingsError(f"{key!r} is no key of a label", fix='write "team" or "example.com/team"')
        if not _LABEL.fullmatch(text):
            fix = "a label's value has up to 63 letters, digits, '-', '_' and '.'; other texts are annotations"
            raise SettingsError(f"{key}: {text!r} is no value of a label", fix=fix)
    return pairs


def parse_namespace(value: Any) -> Any:
    """`namespace`, as the API takes its name."""
    text = parse_text(value)
    if isinstance(text, str) and not DNS_LABEL.fullmatch(text):
        fix = "write up to 63 small letters, digits and dashes; `kubectl get namespaces` lists those of the cluster"
        raise SettingsError(f"{text!r} is no name of a namespace", fix=fix)
    return text


def parse_image(value: Any) -> Any:
    """`image`: a text that no node can take for an image's name would be refused only when the pod is there."""
    text = parse_text(value)
    if isinstance(text, str) and imagenames.parse(text) is None:
        why = ": a repository has no capital letters" if text.lower() != text and imagenames.parse(text.lower()) else ""
        raise SettingsError(f"'{text}' names no image{why}", fix="write REGISTRY/NAME:TAG, such as python:3.11-slim")
    return text


def parse_port(value: Any) -> Any:
    """`port`."""
    port = parse_positive_count(value)
    if isinstance(port, int) and port > 65535:
        raise SettingsError(f"{port} is no port", fix="write a number up to 65535")
    return port


def parse_place(value: Any) -> Any:
    """A full path."""
    text = parse_text(value)
    if isinstance(text, str) and not text.startswith("/"):
        raise SettingsError(f"{text!r} is no full path", fix=f'write "/{text}"')
    return text


def parse_amounts(value: Any) -> Any:
    """Resources and how many of each."""
    pairs = parse_pairs(value)
    for name, text in (pairs or {}).items():
        _check_quantity(text, name)
    return pairs


def parse_pod_resources(value: Any) -> Any:
    """`pod_resources`."""
    mapping = parse_object(value)
    if mapping:
        _known(mapping, "container's resources", _RESOURCES)
    return mapping


def parse_qos(value: Any) -> Any:
    """A class of service."""
    return _one_of(value, QOS)


def parse_policy(value: Any) -> Any:
    """When an image is pulled."""
    return _one_of(value, PULL_POLICIES)


def parse_placement(value: Any) -> Any:
    """`placement`."""
    return _one_of(value, PLACEMENTS)


def parse_queueing(value: Any) -> Any:
    """`queueing`."""
    return _one_of(value, QUEUEING)


def parse_reuse(value: Any) -> Any:
    """`reuse`."""
    if value == AUTO:
        return value
    try:
        return parse_flag_word(value)
    except SettingsError:
        raise SettingsError(f"{value!r} is not one of {AUTO}, true, false", fix=f'write "{AUTO}"') from None


def parse_idle_after(value: Any) -> Any:
    """`idle_after`."""
    return value if value is None or value is UNSET else units.positive_duration(value)


def parse_mig(value: Any) -> Any:
    """`mig_strategy`."""
    return _one_of(value, MIG)


def parse_seconds(value: Any) -> Any:
    """Seconds, or a duration such as "5m"."""
    return value if value is None or value is UNSET else units.duration(value)


def parse_tolerations(value: Any) -> Any:
    """`tolerations`, each key checked."""
    return _records(value, "toleration", _TOLERATION, 'write [{"key": …, "operator": "Exists"}]')


def parse_object(value: Any) -> Any:
    """An object as the API has it: JSON."""
    mapping = parse_mapping(_plain(value))
    return mapping if mapping is None or mapping is UNSET else _as_json(mapping)


def parse_named(value: Any) -> Any:
    """A list of the API's objects, each with a name."""
    if value is None or value is UNSET:
        return value
    objects = _objects(value, 'write [{"name": …}]')
    for entry in objects:
        if not isinstance(entry.get("name"), str) or not entry["name"]:
            raise SettingsError(f"{entry!r} has no name", fix='write {"name": "data", …}')
    return objects


def parse_sources(value: Any) -> Any:
    """`env_from`: the API's list."""
    return value if value is None or value is UNSET else _objects(value, 'write [{"secretRef": {"name": …}}]')


def parse_variables(value: Any) -> Any:
    """`env`: the API's list, or a mapping from names to texts and `valueFrom` objects."""
    if value is None or value is UNSET:
        return value
    if isinstance(value, Mapping):
        value = [
            {"name": str(name), **(part if isinstance(part, Mapping) else {"value": str(part)})}
            for name, part in value.items()
        ]
    return parse_named(value)


def parse_folders(value: Any) -> Any:
    """`host_paths`: a folder to where it is mounted; a list mounts each where it is on the node."""
    if value is None or value is UNSET:
        return value
    if not isinstance(value, (str, Mapping)) and isinstance(value, Iterable):
        value = {folder: folder for folder in value}
    elif isinstance(value, str) and "=" not in value:
        value = {part.strip(): part.strip() for part in value.split(",") if part.strip()}
    pairs = parse_pairs(value)
    for folder in (*pairs, *pairs.values()):
        if not str(folder).startswith("/"):
            raise SettingsError(f"{folder!r} is not the full path of a folder", fix='write "/shared"')
    return pairs


def parse_claims(value: Any) -> Any:
    """`persistent_volume_claims`: claims by name, and where each is mounted."""
    pairs = parse_pairs(value)
    for claim, place in (pairs or {}).items():
        if not place.startswith("/"):
            raise SettingsError(
                f"the claim '{claim}' is mounted at {place!r}, which is no full path", fix='write "/data"'
            )
    return pairs


def parse_kinds(value: Any) -> Any:
    """`accelerators`: names of the catalog → the labels of the nodes that have them."""
    if isinstance(value, (str, list, tuple)):
        asked = value if isinstance(value, str) else "H100:8"
        fix = f'ask by resources=ResourceSettings(accelerators="{asked}"), in a flow @resources(accelerators="{asked}")'
        raise SettingsError(f"{value!r} are no labels of nodes", fix=fix)
    mapping = parse_mapping(value)
    if mapping is None or mapping is UNSET:
        return mapping
    return {model(name).name: parse_pairs(labels) for name, labels in mapping.items()}


def parse_resource_names(value: Any) -> Any:
    """`resource_names`: vendors → the extended resource that a pod asks for."""
    pairs = parse_pairs(value)
    if not pairs:
        return pairs
    for vendor, name in pairs.items():
        if vendor_name(vendor) not in VENDORS:
            raise SettingsError(f"there is no vendor '{vendor}'{nearest(vendor, VENDORS)}")
        if "/" not in name:
            raise SettingsError(f"{name!r} is no extended resource", fix='write "nvidia.com/gpu"')
    return {vendor_name(vendor): name for vendor, name in pairs.items()}


def parse_pools(value: Any) -> Any:
    """`pools`: groups of nodes that an autoscaler may add."""
    if value is None or value is UNSET:
        return value
    parsers: Mapping[str, Callable[[Any], Any]] = {
        "labels": parse_pairs,
        "taints": lambda entries: _records(entries, "taint", _TAINT, 'write [{"key": …, "effect": "NoSchedule"}]'),
        "nodes": parse_count,
        "cpu_count": units.parse_number,
        "memory": units.parse_size,
        "disk": units.parse_size,
        "accelerators": lambda text: str(text if isinstance(text, Accelerator) else Accelerator.parse(text)),
        "extended": parse_extended,
    }
    pools = []
    for entry in _objects(value, 'write [{"name": "h100", "accelerators": "H100:8", "nodes": 4}]'):
        _known(entry, "pool", _POOL)
        if not entry.get("name"):
            raise SettingsError(f"the pool {entry!r} has no name", fix='write {"name": "h100", …}')
        fields = {}
        for name, part in entry.items():
            try:
                fields[name] = parsers[name](part) if name in parsers else part
            except SettingsError as error:
                raise SettingsError(f"{entry['name']}: {name}: {error.message}", fix=error.fix) from None
        pools.append({name: part for name, part in fields.items() if part is not None})
    return tuple(pools)


def parse_pod_settings(value: Any) -> Any:
    """`pod_settings`: fields of ZenML's `KubernetesPodSettings`, each parsed as the field here that it stands for."""
    if value is None or value is UNSET:
        return value
    if not isinstance(value, KubernetesPodSettings):
        value = KubernetesPodSettings(**(parse_mapping(value) or {}))
    return fields_given(value)


def parse_fields(value: Any, fields: Mapping[str, Callable[[Any], Any]]) -> Any:
    """`driver`: a mapping, or "key=value,key=value", of fields that each have a parser of their own."""
    mapping: Any = parse_pairs(value) if isinstance(value, str) else parse_mapping(value)
    if mapping is None or mapping is UNSET:
        return mapping
    settings = {}
    for name, part in mapping.items():
        if name not in fields:
            raise SettingsError(
                f"driver has no '{name}'{did_you_mean(name, fields)}", fix=f"it takes {', '.join(fields)}"
            )
        try:
            settings[name] = None if part is None else fields[name](part)
        except SettingsError as error:
            raise SettingsError(f"driver: {name}: {error.message}", fix=error.fix) from None
    return settings


def parse_driver(value: Any) -> Any:
    """`driver`: cpu_count a number, memory in bytes, ttl in seconds, the rest names."""
    return parse_fields(value, _DRIVER)


_DRIVER: Final[Mapping[str, Callable[[Any], Any]]] = {
    "image": parse_text,
    "service_account": parse_text,
    "cpu_count": units.parse_number,
    "memory": units.useful_size,
    "node_selector": parse_pairs,
    "priority_class": parse_text,
    "ttl": units.duration,
}


def parse_overlay(value: Any) -> Any:
    """`overlay`: part of a pod template."""
    mapping = parse_object(value)
    if mapping:
        _known(mapping, "pod template", _TEMPLATE)
    return mapping


def _one_of(value: Any, known: tuple[str, ...]) -> Any:
    if value is UNSET or value is None or value in known:
        return value
    raise not_one_of(value, known)


def _plain(value: Any) -> Any:
    """Objects of Kubernetes' own client, such as `V1Toleration`, as the API has them; all else as it is.

    Its models say in `attribute_map` what each attribute is called there.
    """
    names = getattr(type(value), "attribute_map", None)
    if isinstance(names, Mapping):
        fields = {theirs: _plain(getattr(value, ours, None)) for ours, theirs in names.items()}
        return {name: part for name, part in fields.items() if part is not None}
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def _objects(value: Any, fix: str) -> tuple[dict[str, Any], ...]:
    return tuple(_as_json(entry) for entry in _entries(value, "object", fix))


def _entries(value: Any, noun: str, fix: str) -> list[Mapping[str, Any]]:
    if isinstance(value, (str, Mapping)) or not isinstance(value, Iterable):
        raise SettingsError(f"{value!r} is not a list of {noun}s", fix=fix)
    entries = [_plain(entry) for entry in value]
    for entry in entries:
        if not isinstance(entry, Mapping):
            raise SettingsError(f"{entry!r} is no {noun}", fix=fix)
    return entries


def _records(value: Any, noun: str, known: tuple[str, ...], fix: str) -> Any:
    if value is UNSET or value is None:
        return value
    records = []
    for entry in _entries(value, noun, fix):
        _known(entry, noun, known)
        for name, words in _WORDS.items():
            if entry.get(name) and entry[name] not in words:
                near = nearest(str(entry[name]), words)
                raise SettingsError(f"{name}: {entry[name]!r} is not one of {', '.join(words)}{near}")
        records.append(dict(entry))
    return tuple(records)


def _known(entry: Mapping[str, Any], noun: str, known: tuple[str, ...]) -> None:
    for name in entry:
        if name not in known:
            raise SettingsError(f"a {noun} has no '{name}'{nearest(str(name), known)}")


def _as_json(value: Mapping[str, Any]) -> dict[str, Any]:
    try:
        plain: dict[str, Any] = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{value!r} cannot be written as JSON: {error}", fix="write plain values") from None
    _check_quantities(plain, "")
    return plain


def _check_quantities(value: Any, place: str) -> None:
    """Refuse what stands in an object of the API in the place of a quantity and is none."""
    if isinstance(value, list):
        for number, part in enumerate(value):
            _check_quantities(part, f"{place}[{number}]")
    for name, part in value.items() if isinstance(value, Mapping) else ():
        inner = f"{place}.{name}".lstrip(".")
        if name in _AMOUNTS and isinstance(part, Mapping):
            for resource, text in part.items():
                _check_quantity(text, f"{inner}.{resource}")
        elif name in _AMOUNT and not isinstance(part, (Mapping, list)) and part is not None:
            _check_quantity(part, inner)
        else:
            _check_quantities(part, inner)


def _check_quantity(value: Any, place: str) -> None:
    found = amount(value)
    if found is not None and found >= 0:
        return
    bare = "".join(str(value).split()).rstrip("Bb")
    near = next((text for text in (bare.upper(), bare.title(), bare) if text != value and amount(text) is not None), "")
    fix = f'write "{near}"' if near and found is None else 'write a number such as 2, "500m", "16Gi" or "10G"'
    raise SettingsError(f"{place}: {shown(value)} is no quantity of Kubernetes", fix=fix)


@strict
@attrs.frozen(kw_only=True)
class KubernetesPodSettings:
    """`pod_settings` of `KubernetesSettings`, by the names of ZenML's class of the same name."""

    node_selectors: Mapping[str, str] | None = attrs.field(default=UNSET, converter=parse_labels)
    """`node_selector`."""
    affinity: Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_object)
    """`affinity`."""
    tolerations: tuple[Mapping[str, Any], ...] | None = attrs.field(default=UNSET, converter=parse_tolerations)
    """`tolerations`."""
    resources: Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_pod_resources)
    """`pod_resources`: {"requests": {…}, "limits": {…}}."""
    annotations: Mapping[str, str] | None = attrs.field(default=UNSET, converter=parse_pairs)
    """`annotations`."""
    labels: Mapping[str, str] | None = attrs.field(default=UNSET, converter=parse_labels)
    """`labels`."""
    volumes: tuple[Mapping[str, Any], ...] | None = attrs.field(default=UNSET, converter=parse_named)
    """`volumes`."""
    volume_mounts: tuple[Mapping[str, Any], ...] | None = attrs.field(default=UNSET, converter=parse_named)
    """`volume_mounts`."""
    host_ipc: bool | None = attrs.field(default=UNSET, converter=parse_flag_word)
    """`host_ipc`."""
    scheduler_name: str | None = attrs.field(default=UNSET, converter=parse_text)
    """`scheduler`."""
    image_pull_secrets: tuple[str, ...] | None = attrs.field(default=UNSET, converter=parse_listed_texts)
    """`image_pull_secrets`."""
    env: tuple[Mapping[str, Any], ...] | None = attrs.field(default=UNSET, converter=parse_variables)
    """`env`."""
    env_from: tuple[Mapping[str, Any], ...] | None = attrs.field(default=UNSET, converter=parse_sources)
    """`env_from`."""
    container_security_context: Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_object)
    """`security_context`."""
    security_context: Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_object)
    """`pod_security_context`."""
    additional_pod_spec_args: Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_object)
    """`pod_spec`."""


@strict
@attrs.frozen(kw_only=True)
class KubernetesSettings:
    """How a step runs on Kubernetes; most fields are those of a pod, in the API's words."""

    ALIASES: ClassVar[Mapping[str, str]] = {
        "service_account_name": "service_account",
        "step_pod_service_account_name": "service_account",
        "node_selectors": "node_selector",
        "kubernetes_context": "context",
        "kubernetes_namespace": "namespace",
        "priority_class_name": "priority_class",
        "runtime_class_name": "runtime_class",
        "scheduler_name": "scheduler",
        "pod_stop_grace_period": "grace_period",
        "ttl_seconds_after_finished": "ttl",
        "container_security_context": "security_context",
    }
    """The name that ZenML or the API has for a field → the field."""
    INSTEAD: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("active_deadline_seconds", "timeout"), "timeout of the step: @step(timeout=3600)"),
        "synchronous": "start the run with --detach, or leave it out",
        **dict.fromkeys(("max_parallelism", "parallel_step_startup_waiting_period"), "max_parallel of the pipeline"),
        **dict.fromkeys(
            ("backoff_limit_margin", "orchestrator_job_backoff_limit", "pod_failure_max_retries"),
            "retry of the step: @step(retry=3)",
        ),
        "pod_failure_policy": "leave it out: preempted and lost pods are started again by themselves",
        "fail_on_container_waiting_reasons": "leave it out: an image that cannot be pulled fails the step at once",
        **dict.fromkeys(
            ("job_monitoring_interval", "job_monitoring_delay"), "leave it out: the cluster reports changes by itself"
        ),
        "interrupt_check_interval": "leave it out: a cancelled run is known at once",
        "stream_step_logs": "leave it out: what steps print is followed, and kept",
        "pod_failure_retry_delay": "retry of the step: @step(retry=Retry(times=3, delay=60))",
        "pod_failure_backoff": "retry of the step: @step(retry=Retry(times=3, delay=60, backoff=2))",
        "skip_owner_references": "leave it out: a job has no owner, and owns what goes with it",
        "orchestrator_pod_settings": "driver = {image = …, memory = …}, for runs that are started with --detach",
        **dict.fromkeys(
            ("job_name_prefix", "pod_name_prefix"), "leave it out: jobs are named after the pipeline and the step"
        ),
        **dict.fromkeys(
            (
                *("successful_jobs_history_limit", "failed_jobs_history_limit"),
                *("concurrency_policy", "starting_deadline_seconds"),
            ),
            "leave it out: start runs from cron, CI or a scheduler",
        ),
        "prevent_orchestrator_pod_caching": "leave it out: no pod but the steps' is started",
        "always_build_pipeline_image": "leave it out: images of steps are built",
        "api_request_timeout": "leave it out: a cluster that does not answer is said at once, and asked until it does",
        "max_api_retries": "leave it out: a cluster that does not answer is asked until it does",
        "pass_zenml_token_as_secret": "leave it out: there is no server",
        "skip_local_validations": "leave it out: a store that pods do not see is refused in the plan",
        "local": "shares_files=True where pods see this machine's folders",
        "incluster": "leave it out: inside a pod its service account is used",
        **{
            name: f"resources=ResourceSettings({field}=…)"
            for name, field in (
                *(("pod_count", "nodes"), ("cpu", "cpu_count"), ("gpu", "gpu_count")),
                *((name, name) for name in ("memory", "disk", "shared_memory", "gpu_vendor")),
            )
        },
    }
    """A name that people know from elsewhere → what to write."""

    context: str | None = attrs.field(default=UNSET, converter=parse_text, metadata=WHOLE_RUN)
    """The context of the kubeconfig; without it the current one."""
    kubeconfig: str | None = attrs.field(default=UNSET, converter=parse_text, metadata=WHOLE_RUN)
    """The kubeconfig; without it KUBECONFIG or ~/.kube/config, and in a pod its service account."""
    shares_files: bool | None = attrs.field(default=UNSET, converter=parse_flag_word, metadata=WHOLE_RUN)
    """Whether pods see the artifact store's folder at its path here: by `host_paths`, a claim or a volume."""
    pools: tuple[Mapping[str, Any], ...] | None = attrs.field(default=UNSET, converter=parse_pools, metadata=WHOLE_RUN)
    """Groups of nodes that an autoscaler adds when they are needed: each a mapping with `name`, `labels`, `taints`,
    `nodes` (the most), and what a node has: `cpu_count`, `memory`, `disk`, `accelerators`, `extended`."""
    namespace: str | None = attrs.field(default=UNSET, converter=parse_namespace)
    """The namespace of the job; without it that of the context."""
    image: str | None = attrs.field(default=UNSET, converter=parse_image)
    """The image of a step that has no `docker` settings."""
    image_pull_policy: str | None = attrs.field(default=UNSET, converter=parse_policy)
    """`imagePullPolicy`."""
    image_pull_secrets: tuple[str, ...] | None = attrs.field(default=UNSET, converter=parse_listed_texts)
    """`imagePullSecrets`, by name."""
    executable: str | None = attrs.field(default=UNSET, converter=parse_python)
    """The interpreter in the image; "python3" without it."""
    service_account: str | None = attrs.field(default=UNSET, converter=parse_text)
    """`serviceAccountName`."""
    secrets: tuple[str, ...] | None = attrs.field(default=UNSET, converter=parse_listed_texts)
    """Secrets whose entries become environment variables (`envFrom`)."""
    config_maps: tuple[str, ...] | None = attrs.field(default=UNSET, converter=parse_listed_texts)
    """Config maps whose entries become environment variables (`envFrom`)."""
    env: tuple[Mapping[str, Any], ...] | None = attrs.field(default=UNSET, converter=parse_variables)
    """Environment variables with a `valueFrom`: the API's list, or by name."""
    env_from: tuple[Mapping[str, Any], ...] | None = attrs.field(default=UNSET, converter=parse_sources)
    """`envFrom`, as the API has it."""
    node_selector: Mapping[str, str] | None = attrs.field(default=UNSET, converter=parse_labels)
    """`nodeSelector`."""
    affinity: Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_object)
    """`affinity`; what the step's accelerators require of a node is added to each of its terms."""
    tolerations: tuple[Mapping[str, Any], ...] | None = attrs.field(default=UNSET, converter=parse_tolerations)
    """`tolerations`, beside those for the taints that accelerators' nodes usually have."""
    priority_class: str | None = attrs.field(default=UNSET, converter=parse_text)
    """`priorityClassName`."""
    labels: Mapping[str, str] | None = attrs.field(default=UNSET, converter=parse_labels)
    """Labels of the pod."""
    annotations: Mapping[str, str] | None = attrs.field(default=UNSET, converter=parse_pairs)
    """Annotations of the pod."""
    use_tmpfs: bool | None = attrs.field(default=UNSET, converter=parse_flag_word)
    """Mount a file system in memory (`emptyDir` with `medium: Memory`)."""
    tmpfs_tempdir: bool | None = attrs.field(default=UNSET, converter=parse_flag_word)
    """Make it the folder of temporary files (TMPDIR); true where nothing is given."""
    tmpfs_size: int | None = attrs.field(default=UNSET, converter=parse_positive_count)
    """Its size in MiB; half of the step's memory without it."""
    tmpfs_path: str | None = attrs.field(default=UNSET, converter=parse_place)
    """Where it is mounted; "/stoker_temp" without it."""
    persistent_volume_claims: Mapping[str, str] | None = attrs.field(default=UNSET, converter=parse_claims)
    """Claims by name, and where each is mounted."""
    host_paths: Mapping[str, str] | None = attrs.field(default=UNSET, converter=parse_folders)
    """Folders of the node and where each is mounted; a list mounts each at its own path."""
    volumes: tuple[Mapping[str, Any], ...] | None = attrs.field(default=UNSET, converter=parse_named)
    """`volumes`, as the API has them."""
    volume_mounts: tuple[Mapping[str, Any], ...] | None = attrs.field(default=UNSET, converter=parse_named)
    """`volumeMounts`, as the API has them."""
    port: int | None = attrs.field(default=UNSET, converter=parse_port)
    """`containerPort`."""
    host_network: bool | None = attrs.field(default=UNSET, converter=parse_flag_word)
    """`hostNetwork`: the pod has its node's addresses."""
    host_ipc: bool | None = attrs.field(default=UNSET, converter=parse_flag_word)
    """`hostIPC`."""
    privileged: bool | None = attrs.field(default=UNSET, converter=parse_flag_word)
    """`privileged` of the container."""
    security_context: Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_object)
    """`securityContext` of the container."""
    pod_security_context: Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_object)
    """`securityContext` of the pod."""
    runtime_class: str | None = attrs.field(default=UNSET, converter=parse_text)
    """`runtimeClassName`, such as "nvidia"."""
    scheduler: str | None = attrs.field(default=UNSET, converter=parse_text)
    """`schedulerName`."""
    grace_period: float | str | None = attrs.field(default=UNSET, converter=parse_seconds)
    """Seconds that a step has to leave after SIGTERM (`terminationGracePeriodSeconds`)."""
    pod_startup_timeout: float | str | None = attrs.field(default=UNSET, converter=parse_seconds)
    """Seconds for which a job may wait until its pods begin; without it as long as it may still begin."""
    pull_timeout: float | str | None = attrs.field(default=UNSET, converter=parse_seconds)
    """Seconds in which pulling the image may fail before the step fails; ten minutes without it. One that is being
    pulled takes as long as it takes."""
    ttl: float | str | None = attrs.field(default=UNSET, converter=parse_seconds)
    """Seconds after which the cluster removes a finished job (`ttlSecondsAfterFinished`)."""
    reuse: bool | Reuse | None = attrs.field(default=UNSET, converter=parse_reuse)
    """Whether a pod takes further steps whose pods would be equal: "auto" (the default) where it is safe, true to
    refuse the run where it is not, false for a job for each step."""
    idle_after: float | str | None = attrs.field(default=UNSET, converter=parse_idle_after)
    """Seconds without a step after which a pod that takes further steps leaves; 30 by default, 5 with accelerators."""
    queue: str | None = attrs.field(default=UNSET, converter=parse_text)
    """The queue that admits the job; `queueing` says whose."""
    queueing: str | None = attrs.field(default=UNSET, converter=parse_queueing)
    """Whose queue or gang scheduler: "kueue" (with `queue` alone), "volcano" or "coscheduling"."""
    queue_priority: str | None = attrs.field(default=UNSET, converter=parse_text)
    """Kueue's WorkloadPriorityClass, or the PodGroup's priority class."""
    topology: str | None = attrs.field(default=UNSET, converter=parse_text)
    """The label of nodes within one value of which the nodes of a gang are placed, such as a rack's."""
    placement: Placement | None = attrs.field(default=UNSET, converter=parse_placement)
    """How the pods of a gang are spread: over nodes where possible ("SPREAD", the default), "STRICT_SPREAD", "PACK"."""
    jobset: bool | None = attrs.field(default=UNSET, converter=parse_flag_word)
    """Run a step on several nodes as a JobSet (jobset.x-k8s.io), which the cluster's own controller takes apart."""
    compute_pool: str | None = attrs.field(default=UNSET, converter=parse_text)
    """The pool of nodes of that name: one of `pools`, or by the label outerbounds.co/compute-pool."""
    hostname_resolution_timeout: int | None = attrs.field(default=UNSET, converter=parse_count)
    """Seconds for which the nodes of a gang wait for each other."""
    qos: str | None = attrs.field(default=UNSET, converter=parse_qos)
    """The class of service: "Burstable", or "Guaranteed", where the CPUs asked for are the limit too."""
    extended_resources: Mapping[str, str] | None = attrs.field(default=UNSET, converter=parse_amounts)
    """Extended resources and how many of each, beside `ResourceSettings(extended=…)`."""
    efa: int | None = attrs.field(default=UNSET, converter=parse_count)
    """Elastic Fabric Adapters of AWS (`vpc.amazonaws.com/efa`)."""
    accelerators: Mapping[str, Mapping[str, str]] | None = attrs.field(default=UNSET, converter=parse_kinds)
    """Names of the catalog → labels of the nodes that have them, instead of the labels that clusters usually have."""
    resource_names: Mapping[str, str] | None = attrs.field(default=UNSET, converter=parse_resource_names)
    """Vendors → the extended resource by which this cluster counts their devices."""
    mig_strategy: str | None = attrs.field(default=UNSET, converter=parse_mig)
    """How MIG slices are counted: "mixed" (nvidia.com/mig-1g.10gb, the default) or "single" (nvidia.com/gpu)."""
    tpu_topology: str | None = attrs.field(default=UNSET, converter=parse_text)
    """The topology of a TPU slice, such as "2x4"; without it the one with as many chips."""
    device_class: str | None = attrs.field(default=UNSET, converter=parse_text)
    """Ask for accelerators by a claim on this DeviceClass (Dynamic Resource Allocation), such as "gpu.nvidia.com"."""
    driver: Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_driver, metadata=WHOLE_RUN)
    """What the Job that drives a run after `--detach` gets instead of the stack's: image, service_account,
    node_selector, priority_class; and cpu_count, memory, and ttl, the time for which it stays once it is over."""
    pod_settings: Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_pod_settings)
    """Fields of ZenML's `KubernetesPodSettings` under their names; what is given beside them counts more."""
    pod_resources: Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_pod_resources)
    """`resources` of the container as the API has them, over what the step's own say."""
    pod_spec: Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_object)
    """Further fields of the pod's `spec`, in the API's words."""
    overlay: Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_overlay)
    """Part of a pod template, merged into the pod last; the step's container is "step"."""

    def get(self, name: str, default: Any = None) -> Any:
        """The field's value, or that of `pod_settings`, or `default` where nothing was asked."""
        value = getattr(self, name)
        if value is not UNSET and value is not None:
            return value
        theirs = self.pod_settings.get(_POD_SETTINGS.get(name, name)) if value is UNSET and self.pod_settings else None
        return default if theirs is None else theirs
