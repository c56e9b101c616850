"""From a run's steps to the body of the request that starts it on Kubeflow Pipelines: pure.

The steps become KFP's intermediate representation, and its platform's, as plain dicts: each step is one container task.
What its pod is to be is decided for Kubernetes (`kubernetes.request.pods`), and translated here, so that nothing is
dropped: what KFP has no words for is named by `inexpressible`, and refused.

https://github.com/kubeflow/pipelines/blob/master/api/v2alpha1/pipeline_spec.proto
https://github.com/kubeflow/pipelines/blob/master/kubernetes_platform/proto/kubernetes_executor_config.proto
"""

from __future__ import annotations

import inspect
import json
import re
from typing import Any, Final, Iterable, Iterator, Mapping, Sequence

import attrs

from stoker.backends.base import mailprogram
from stoker.backends.base.backend import Leftover, Sweep, settings_of
from stoker.backends.base.leasing import requested_lease, samples_file
from stoker.backends.base.messages import boot_spec, with_copies
from stoker.backends.kubeflow.settings import FANOUT, PATIENCE, KubeflowSettings
from stoker.backends.kubernetes.objects import amount
from stoker.backends.kubernetes.request.check import image_of
from stoker.backends.kubernetes.request.pods import PodRequest, pod_template
from stoker.backends.kubernetes.settings import DNS_LABEL
from stoker.core.orders import BootSpec
from stoker.core.plan import Job, Site, StepPlan, source_keys
from stoker.core.units import UNSET
from stoker.core.words import dashed_name
from stoker.store import notes

SCHEMA: Final = "2.1.0"
SDK: Final = "kfp-2.17.3"
"""The version of KFP's SDK whose output this equals; endpoints decide by it what a document may have."""
BACKOFF: Final = "5s"
LONGEST: Final = 50
"""Characters of a task's name: KFP makes names of pods of it, which have 63."""
SLOT: Final = "slot"
"""The parameter that tells the pods of a fan-out apart."""
_COUNTED: Final = ("cpu", "memory")
_IGNORED: Final = frozenset(
    # What a Job needs said, and KFP says of all its pods in the same way.
    {"restartPolicy", "enableServiceLinks", "containers", "volumes"}
)
_POD: Final = frozenset(
    {"nodeSelector", "tolerations", "affinity", "imagePullSecrets", "activeDeadlineSeconds", "securityContext"}
)
_CONTAINER: Final = frozenset(
    {"name", "image", "imagePullPolicy", "command", "args", "env", "resources", "volumeMounts", "securityContext"}
)
_IGNORED_IN_CONTAINER: Final = frozenset({"terminationMessagePolicy"})
_SECURITY: Final = ("runAsUser", "runAsGroup", "runAsNonRoot")
"""Fields that a pod and its containers have alike; what a pod says is said of the step's container here."""
_VOLUMES: Final[Mapping[str, tuple[str, ...]]] = {
    "emptyDir": ("medium", "sizeLimit"),
    "persistentVolumeClaim": ("claimName",),
    "secret": ("secretName", "optional"),
    "configMap": ("name", "optional"),
    "ephemeral": ("volumeClaimTemplate",),
}
"""A kind of volume → its fields."""
_NAMED_AFTER: Final[Mapping[str, str]] = {
    "persistentVolumeClaim": "claimName",
    "secret": "secretName",
    "configMap": "name",
}
"""A kind of volume that KFP's driver calls as the object in it is called, whatever name it has here → the field with
that name. https://github.com/kubeflow/pipelines/blob/master/backend/src/v2/driver/k8s.go"""
_CLAIM: Final = ("accessModes", "resources", "storageClassName")
"""What the claim of an ephemeral volume may say."""
_READ_ONLY: Final = ("secret", "configMap")
"""Volumes that no container writes to, whatever a mount says."""
_SOURCES: Final = ("secretKeyRef", "configMapKeyRef", "fieldRef")


@attrs.frozen(kw_only=True)
class PipelineTask:
    """One step of the pipeline."""

    name: str
    """Unique in the pipeline, of letters, digits and dashes."""
    title: str
    """What people see."""
    template: Mapping[str, Any]
    """The pod's template (`pods.pod_template`)."""
    after: Sequence[str] = ()
    """Names of the tasks that must succeed first."""
    retries: int = 0
    """How often KFP starts another pod where one is lost, or ends with another code than 0."""
    slots: int = 0
    """Pods of a fan-out; 0 for a step that is none."""


def task_names(keys: Sequence[str]) -> dict[str, str]:
    """A name for each step: two steps whose names differ in what KFP does not allow get a number."""
    names: dict[str, str] = {}
    for key in keys:
        name, number = plain_name(key, "step"), 2
        while name in names.values():
            name, number = f"{plain_name(key, 'step')}-{number}", number + 1
        names[key] = name
    return names


def plain_name(text: str, otherwise: str) -> str:
    """A text in small letters, digits and dashes, as names of pods are made of; `otherwise` where nothing is left."""
    return re.sub("[^a-z0-9]+", "-", text.lower())[:LONGEST].strip("-") or otherwise


def pipeline_spec(name: str, description: str, tasks: Sequence[PipelineTask]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pipeline's specification, and that of the platform."""
    components: dict[str, Any] = {}
    executors: dict[str, Any] = {}
    platform: dict[str, Any] = {}
    root: dict[str, Any] = {}
    for task in tasks:
        executor = f"exec-{task.name}"
        executors[executor] = {"container": _container(task)}
        config = _platform(task.template)
        if config:
            platform[executor] = config
        component: dict[str, Any] = {"executorLabel": executor}
        if task.slots:
            component["inputDefinitions"] = {"parameters": {SLOT: {"parameterType": "STRING"}}}
            components[f"comp-{task.name}-element"] = component
            components[f"comp-{task.name}"] = _loop_component(task)
            root[task.name] = _loop(task)
        else:
            components[f"comp-{task.name}"] = component
            root[task.name] = {**_task(task, f"comp-{task.name}"), **_after(task)}
    spec = {
        "pipelineInfo": {"name": name, "description": description},
        "components": components,
        "deploymentSpec": {"executors": executors},
        "root": {"dag": {"tasks": root}},
        "schemaVersion": SCHEMA,
        "sdkVersion": SDK,
    }
    return spec, {"platforms": {"kubernetes": {"deploymentSpec": {"executors": platform}}}} if platform else {}


def document(spec: Mapping[str, Any], platform: Mapping[str, Any]) -> str:
    """Both as the YAML that KFP's own compiler writes, for `pipelines/upload` and people."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes texts of several lines as such, so that a program can be read."""

    def text(dumper: yaml.SafeDumper, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    documents = [dict(spec), *([dict(platform)] if platform else [])]
    return str(yaml.dump_all(documents, Dumper=Dumper, sort_keys=True, allow_unicode=True))


def _task(task: PipelineTask, component: str) -> dict[str, Any]:
    """A task; whether a result is taken from a cache is Stoker's to decide, so that KFP's is off."""
    document: dict[str, Any] = {
        "componentRef": {"name": component},
        "cachingOptions": {},
        "taskInfo": {"name": task.title},
    }
    if task.retries:
        document["retryPolicy"] = {"maxRetryCount": task.retries, "backoffDuration": BACKOFF, "backoffFactor": 1.0}
    return document


def _after(task: PipelineTask) -> dict[str, Any]:
    return {"dependentTasks": list(task.after)} if task.after else {}


def _loop(task: PipelineTask) -> dict[str, Any]:
    return {
        "componentRef": {"name": f"comp-{task.name}"},
        "taskInfo": {"name": task.title},
        "iteratorPolicy": {"parallelismLimit": task.slots},
        "parameterIterator": {
            "itemInput": SLOT,
            "items": {"raw": json.dumps([str(slot) for slot in range(task.slots)])},
        },
        **_after(task),
    }


def _loop_component(task: PipelineTask) -> dict[str, Any]:
    inner = _task(task, f"comp-{task.name}-element")
    inner["inputs"] = {"parameters": {SLOT: {"componentInputParameter": SLOT}}}
    return {
        "dag": {"tasks": {f"{task.name}-element": inner}},
        "inputDefinitions": {"parameters": {SLOT: {"parameterType": "STRING"}}},
    }


# The container


def _container(task: PipelineTask) -> dict[str, Any]:
    container = task.template["spec"]["containers"][0]
    arguments = [*container.get("args", ()), *(["{{$.inputs.parameters['" + SLOT + "']}}"] if task.slots else [])]
    document: dict[str, Any] = {
        "image": container["image"],
        "command": [_literal(part) for part in container["command"]],
        "args": arguments,
    }
    plain = [entry for entry in container.get("env", ()) if "value" in entry]
    if plain:
        document["env"] = [{"name": entry["name"], "value": entry["value"]} for entry in plain]
    resources = _resources(container.get("resources", {}))
    if resources:
        document["resources"] = resources
    return document


def _literal(part: str) -> str:
    """A word of the command; KFP fills in what stands between `{{$` and `}}`, and a program has none of it."""
    if "{{$" in part:
        raise ValueError("a word of a command holds a placeholder of KFP's")
    return part


def _resources(resources: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Resources as the SDK writes them: as numbers for older endpoints, and as they are for newer ones."""
    document: dict[str, Any] = {}
    for kind, word in (("limits", "Limit"), ("requests", "Request")):
        amounts = resources.get(kind, {})
        for name, field, unit in (("cpu", "Cpu", 1), ("memory", "Memory", 10**9)):
            if name not in amounts:
                continue
            number = amount(amounts[name])
            if number is not None:
                document[f"{name}{word}"] = float(number / unit)
            document[f"resource{field}{word}"] = str(amounts[name])
    for name, count in resources.get("limits", {}).items():
        if name not in _COUNTED and name != "ephemeral-storage":
            document["accelerator"] = {
                "type": name,
                "count": str(count),
                "resourceType": name,
                "resourceCount": str(count),
            }
    return document


# The platform


def _platform(template: Mapping[str, Any]) -> dict[str, Any]:
    """The executor's configuration on Kubernetes."""
    spec = template["spec"]
    container = spec["containers"][0]
    config: dict[str, Any] = {}
    if spec.get("nodeSelector"):
        config["nodeSelector"] = {"labels": dict(spec["nodeSelector"])}
    if spec.get("tolerations"):
        config["tolerations"] = [_toleration(one) for one in spec["tolerations"]]
    terms = list(_node_terms(spec.get("affinity", {})))
    if terms:
        config["nodeAffinity"] = terms
    if spec.get("imagePullSecrets"):
        config["imagePullSecret"] = [
            {"secretName": one["name"], **_constant("secretNameParameter", one["name"])}
            for one in spec["imagePullSecrets"]
        ]
    if container.get("imagePullPolicy"):
        config["imagePullPolicy"] = container["imagePullPolicy"]
    metadata = {
        name: dict(template["metadata"][name]) for name in ("labels", "annotations") if template["metadata"].get(name)
    }
    if metadata:
        config["podMetadata"] = metadata
    security = {**(spec.get("securityContext") or {}), **(container.get("securityContext") or {})}
    if security:
        config["securityContext"] = {name: security[name] for name in _SECURITY if name in security}
    if spec.get("activeDeadlineSeconds"):
        config["activeDeadlineSeconds"] = str(spec["activeDeadlineSeconds"])  # an int64 in protobuf's JSON
    _variables(container, config)
    _volumes(spec, container, config)
    return config


def _constant(name: str, value: str) -> dict[str, Any]:
    return {name: {"runtimeValue": {"constant": value}}}


def _toleration(one: Mapping[str, Any]) -> dict[str, Any]:
    toleration = dict(one)
    if "tolerationSeconds" in toleration:
        toleration["tolerationSeconds"] = str(toleration["tolerationSeconds"])  # an int64 in protobuf's JSON
    return toleration


def _node_terms(affinity: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    nodes = affinity.get("nodeAffinity") or {}
    required = nodes.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    yield from (_node_term(term) for term in required.get("nodeSelectorTerms", ()))
    for preferred in nodes.get("preferredDuringSchedulingIgnoredDuringExecution", ()):
        yield {**_node_term(preferred["preference"]), "weight": preferred["weight"]}


def _node_term(term: Mapping[str, Any]) -> dict[str, Any]:
    return {name: [dict(one) for one in term[name]] for name in ("matchExpressions", "matchFields") if term.get(name)}


def _variables(container: Mapping[str, Any], config: dict[str, Any]) -> None:
    """Variables whose values are elsewhere."""
    for entry in container.get("env", ()):
        source = entry.get("valueFrom") or {}
        if "secretKeyRef" in source:
            reference = source["secretKeyRef"]
            config.setdefault("secretAsEnv", []).append(
                {
                    "secretName": reference["name"],
                    **_constant("secretNameParameter", reference["name"]),
                    "keyToEnv": [{"secretKey": reference["key"], "envVar": entry["name"]}],
                    "optional": bool(reference.get("optional", False)),
                }
            )
        elif "configMapKeyRef" in source:
            reference = source["configMapKeyRef"]
            config.setdefault("configMapAsEnv", []).append(
                {
                    "configMapName": reference["name"],
                    **_constant("configMapNameParameter", reference["name"]),
                    "keyToEnv": [{"configMapKey": reference["key"], "envVar": entry["name"]}],
                    "optional": bool(reference.get("optional", False)),
                }
            )
        elif "fieldRef" in source:
            path = source["fieldRef"]["fieldPath"]
            config.setdefault("fieldPathAsEnv", []).append({"name": entry["name"], "fieldPath": path})


def _volumes(spec: Mapping[str, Any], container: Mapping[str, Any], config: dict[str, Any]) -> None:
    volumes = {volume["name"]: volume for volume in spec.get("volumes", ())}
    for mount in container.get("volumeMounts", ()):
        volume, path = volumes[mount["name"]], mount["mountPath"]
        if "emptyDir" in volume:
            entry = {"volumeName": volume["name"], "mountPath": path}
            medium, size = volume["emptyDir"].get("medium"), volume["emptyDir"].get("sizeLimit")
            entry.update({name: value for name, value in (("medium", medium), ("sizeLimit", size)) if value})
            config.setdefault("emptyDirMounts", []).append(entry)
        elif "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]["claimName"]
            entry = {"constant": claim, "mountPath": path, **_constant("pvcNameParameter", claim)}
            if mount.get("subPath"):
                entry["subPath"] = mount["subPath"]
            config.setdefault("pvcMount", []).append(entry)
        elif "secret" in volume:
            name = volume["secret"]["secretName"]
            optional = bool(volume["secret"].get("optional", False))
            entry = {"secretName": name, **_constant("secretNameParameter", name), "mountPath": path}
            config.setdefault("secretAsVolume", []).append({**entry, "optional": optional})
        elif "ephemeral" in volume:
            config.setdefault("genericEphemeralVolume", []).append(_ephemeral(volume, path))
        elif "configMap" in volume:
            name = volume["configMap"]["name"]
            optional = bool(volume["configMap"].get("optional", False))
            entry = {"configMapName": name, **_constant("configMapNameParameter", name), "mountPath": path}
            config.setdefault("configMapAsVolume", []).append({**entry, "optional": optional})


def _ephemeral(volume: Mapping[str, Any], path: str) -> dict[str, Any]:
    template = volume["ephemeral"]["volumeClaimTemplate"]
    claim, metadata = template["spec"], template.get("metadata") or {}
    entry: dict[str, Any] = {
        "volumeName": volume["name"],
        "mountPath": path,
        "accessModes": list(claim["accessModes"]),
        "size": str(claim["resources"]["requests"]["storage"]),
    }
    storage_class = claim.get("storageClassName")
    entry.update({"storageClassName": storage_class} if storage_class else {"defaultStorageClass": True})
    words = {name: dict(metadata[name]) for name in ("labels", "annotations") if metadata.get(name)}
    return {**entry, "metadata": words} if words else entry


# What cannot be said


def badly_named(template: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(what, why) of volumes that KFP would give a name which the API server refuses."""
    spec = template["spec"]
    mounted = {mount["name"] for mount in spec["containers"][0].get("volumeMounts", ())}
    named: dict[str, str] = {}
    wrong = []
    for volume in spec.get("volumes", ()):
        kind = next((name for name in volume if name in _VOLUMES), "")
        if volume["name"] not in mounted or not kind:
            continue
        name = str(volume[kind].get(_NAMED_AFTER[kind], "")) if kind in _NAMED_AFTER else volume["name"]
        if DNS_LABEL.fullmatch(name) is None:
            why = "KFP names the volume after it, and a volume's name has up to 63 small letters, digits and dashes"
            wrong.append((f"mounts {_noun(kind)} '{name}'", why))
        elif named.setdefault(name, kind) != kind:
            what = f"mounts {_noun(named[name])} '{name}' and {_noun(kind)} '{name}'"
            wrong.append((what, "KFP names volumes after what is in them, and two of a pod have different names"))
    return wrong


def _noun(kind: str) -> str:
    return {
        "persistentVolumeClaim": "the claim",
        "secret": "the secret",
        "configMap": "the config map",
        "ephemeral": "the ephemeral volume",
        "emptyDir": "the empty folder",
    }[kind]


def inexpressible(template: Mapping[str, Any]) -> list[str]:
    """What a pod's template asks for that KFP has no words for, by the API's names."""
    spec = template["spec"]
    container = spec["containers"][0]
    missing = [name for name in spec if name not in _IGNORED | _POD and name != "terminationGracePeriodSeconds"]
    missing += [f"affinity.{name}" for name in spec.get("affinity", {}) if name != "nodeAffinity"]
    missing += [name for name in container if name not in _CONTAINER | _IGNORED_IN_CONTAINER]
    for context in (spec.get("securityContext") or {}, container.get("securityContext") or {}):
        missing += [f"securityContext.{name}" for name in context if name not in _SECURITY]
    limits = {**container.get("resources", {}).get("requests", {}), **container.get("resources", {}).get("limits", {})}
    extended = [name for name in limits if name not in _COUNTED and name != "ephemeral-storage"]
    missing += [f"resources.{name}" for name in limits if name == "ephemeral-storage"]
    if len(extended) > 1:  # there is room for one kind of accelerator
        missing += [f"resources.{name}" for name in extended]
    missing += [f"containers[{number}]" for number in range(1, len(spec["containers"]))]
    kinds: dict[str, str] = {}
    for volume in spec.get("volumes", ()):
        kind = kinds[volume["name"]] = next((name for name in volume if name != "name"), "")
        fields = volume.get(kind) or {}
        missing += [f"volumes.{kind}"] if kind not in _VOLUMES else []
        missing += [f"volumes.{kind}.{name}" for name in fields if name not in _VOLUMES.get(kind, fields)]
        if kind == "ephemeral":
            claim = (fields.get("volumeClaimTemplate") or {}).get("spec") or {}
            missing += [f"volumes.ephemeral.{name}" for name in claim if name not in _CLAIM]
            requests = (claim.get("resources") or {}).get("requests") or {}
            if "storage" not in requests or "accessModes" not in claim:
                missing.append("volumes.ephemeral without accessModes and requests.storage")
    missing += [f"metadata.{name}" for name in template.get("metadata") or {} if name not in ("labels", "annotations")]
    for entry in container.get("env", ()):
        missing += [f"env.{name}" for name in entry.get("valueFrom") or {} if name not in _SOURCES]
    for mount in container.get("volumeMounts", ()):
        kind = kinds.get(mount["name"], "")
        said = {"name", "mountPath"} | ({"subPath"} if kind == "persistentVolumeClaim" else set())
        if kind in _READ_ONLY or not mount.get("readOnly"):
            said.add("readOnly")
        missing += [f"volumeMounts.{name}" for name in mount if name not in said]
    return list(dict.fromkeys(missing))


GRACE: Final = 25.0
"""Seconds between SIGTERM and SIGKILL of a step: Kubernetes gives a pod of KFP's 30."""
CHECKPOINTS: Final = "/tmp/stoker-checkpoints"
"""Of a pod that does not see the driver's folders."""
AGAIN: Final = 2
"""Further pods of a task beside those for the step's own retries: nodes are drained and lost."""
LABEL: Final = "stoker/run"


def folder_of(artifacts: str) -> str:
    """The folder of an artifact store with all that tasks of Kubeflow read and write beside artifacts."""
    return f"{artifacts}/kubeflow"


def root_of(site: Site, run: str) -> str:
    """The place of a run's notes in the artifact store."""
    return f"{folder_of(site.artifacts)}/{dashed_name(run)}"


def worker_place(site: Site) -> str:
    """Where the archive with Stoker's worker lies, by its digest."""
    return f"{folder_of(site.artifacts)}/{site.bundle.rstrip('/').rpartition('/')[2]}.zip"


def template_of(step: StepPlan, site: Site, options: Mapping[str, Any], *, run: str, mailbox: str) -> dict[str, Any]:
    """The template of a step's pod, as Kubernetes would get it."""
    # A run there has one service account, which its request names.
    settings = attrs.evolve(settings_of(step, KubeflowSettings, options), service_account=UNSET)
    text = inspect.getsource(mailprogram)
    words = (worker_place(site), mailbox, f"{settings.get('patience', PATIENCE):g}")
    template = pod_template(
        PodRequest(
            resources=step.settings.resources,
            settings=settings,
            image=image_of(step, settings),
            command=(settings.get("executable", "python3"), "-c", text, *words),
            environment=dict(step.settings.environment),
            labels={LABEL: dashed_name(run)},
            grace=GRACE,
        )
    )
    container = template["spec"]["containers"][0]
    container["command"], container["args"] = container["command"][:3], list(words)
    return template


def tasks(
    steps: Sequence[StepPlan], site: Site, options: Mapping[str, Any], *, run: str, root: str
) -> dict[str, PipelineTask]:
    """A task for each step."""
    names = task_names([step.key for step in steps])
    here = {step.key for step in steps}
    made = {}
    for step in steps:
        settings = settings_of(step, KubeflowSettings, options)
        sources = [*step.after, *(key for tree in step.inputs.values() for key in source_keys(tree))]
        made[step.key] = PipelineTask(
            name=names[step.key],
            title=step.key,
            template=template_of(step, site, options, run=run, mailbox=f"{root}/{names[step.key]}"),
            after=tuple(names[key] for key in dict.fromkeys(sources) if key in here and key != step.key),
            retries=step.settings.retry.times + AGAIN,
            slots=settings.get("fanout", FANOUT) if step.mapped else 0,
        )
    return made


def body(
    name: str, pipeline: str, tasks: Iterable[PipelineTask], settings: KubeflowSettings, *, experiment: str = ""
) -> dict[str, Any]:
    """The body of the request that starts the run."""
    spec, platform = pipeline_spec(plain_name(pipeline, "pipeline"), f"{name}, by Stoker", list(tasks))
    document: dict[str, Any] = {
        "display_name": name,
        "pipeline_spec": {"pipeline_spec": spec, "platform_spec": platform} if platform else spec,
    }
    if experiment:
        document["experiment_id"] = experiment
    if settings.get("pipeline_root"):
        document["runtime_config"] = {"pipeline_root": settings.get("pipeline_root")}
    if settings.get("service_account"):
        document["service_account"] = settings.get("service_account")
    return document


def job_document(job: Job, site: Site) -> BootSpec:
    """What `worker.boot` is told of a job in a task's pod."""
    lease = requested_lease(job, samples=samples_file(job, site, "kubeflow"))
    return with_copies(
        boot_spec(attrs.evolve(job, secrets={}), site, checkpoints=CHECKPOINTS, grace=GRACE, lease=lease)
    )


# What runs left


def sweep_store(parts: Sequence[Mapping[str, Any]], sweep: Sweep) -> Iterator[Leftover]:
    """Remove the folders of runs of this database that nobody continues, and with the last of all runs the worker."""
    folder = folder_of(sweep.artifacts)
    over = {dashed_name(run) for run in sweep.ours} - {dashed_name(run) for run in sweep.kept}
    names = notes.names(folder)
    runs = [name for name in names if name in over]
    workers = [name for name in names if name.endswith(".zip")]
    others = len(names) > len(runs) + len(workers)
    if not sweep.dry_run:
        for name in runs:
            notes.remove_tree(f"{folder}/{name}")
        for name in () if others else workers:
            notes.remove(f"{folder}/{name}")
    yield Leftover(kind="kubeflow_runs", noun="folder", rest="of runs on Kubeflow", count=len(runs))
