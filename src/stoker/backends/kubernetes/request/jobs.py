"""From jobs to the objects that the API server is sent: pure.

A step is a Job with one pod, the elements of a fan-out that are alike are one Indexed Job, and a gang is an Indexed Job
whose pods start together, also as the only Job of a JobSet. What the pods are told is in a Secret that the Job owns,
and Stoker's worker in config maps that all runs of a namespace share. Stoker makes further attempts itself: a Job never
starts a pod a second time.
https://kubernetes.io/docs/concepts/workloads/controllers/job/
"""

from __future__ import annotations

import base64
import contextlib
import functools
import getpass
import gzip
import hashlib
import importlib.util
import json
import math
import os
import py_compile
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, Iterator, Mapping, Sequence

import attrs

from stoker.backends.base.adoption import job_kind
from stoker.backends.base.backend import settings_of
from stoker.backends.base.leasing import requested_lease, samples_file
from stoker.backends.base.messages import (
    boot_spec,
    gang_task,
    is_below,
    least_nodes,
    nodes_of,
    request_digest,
    with_copies,
)
from stoker.backends.kubernetes.request import pod as podprogram
from stoker.backends.kubernetes.request.accelerators import accelerator_request
from stoker.backends.kubernetes.request.check import image_environment, image_of
from stoker.backends.kubernetes.request.claims import MOUNT, claim_mount, claim_store
from stoker.backends.kubernetes.request.pods import (
    GANG_LABEL,
    JOB_SETS,
    KUEUE,
    MANAGED_BY,
    PodMount,
    PodRequest,
    admission,
    companions,
    pod_template,
    program,
)
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core.codec import to_json
from stoker.core.plan import Job, Site, StepPlan
from stoker.core.protocol import NODE_ID, Topology
from stoker.core.resources import ResourceSettings
from stoker.core.values import IdentityKey

TOPOLOGY: Final = Topology(node="JOB_COMPLETION_INDEX", nodes="STOKER_NODES", address="STOKER_NODE_ADDR")
"""The variables of a gang's pods: the index from the Job controller, the address from the API (`status.podIP`)."""
GRACE: Final = 30.0
"""Seconds between SIGTERM and SIGKILL that a pod gets, as Kubernetes itself gives them."""
MARGIN: Final = 2.0
"""Seconds of them in which Stoker's worker hands over the result of a step that it has ended."""
CHECKPOINTS: Final = "/tmp/stoker-checkpoints"
"""Of a pod that does not see the driver's folders."""
WORKER_LABEL: Final = "stoker/worker"
"""The label of config maps with Stoker's worker."""
DOCUMENT: Final = "/stoker/job"
WORKER: Final = "/stoker/worker"
MESSAGE: Final = "/dev/termination-log"
JOBS: Final = "jobs"
PROGRAM: Final = "pod.py"
"""The key of the Secret in which the document is."""
PART: Final = 1_000_000
"""Bytes of one config map: the API takes a mebibyte with all around it."""
_LEVEL: Final = 6
"""Of gzip. Python's usual 9 takes three times as long for Stoker's own files, and makes them 1 % smaller."""
COMPILED: Final = frozenset({"core", "worker", "vendors", "store", "devices", "attr", "attrs"})
"""Folders that every worker imports from."""
ELEMENTS: Final = 1000
"""Elements of one Indexed Job at most: their names are an annotation, of which the API takes 256 KiB."""
DOCUMENT_SIZE: Final = 700_000
"""Bytes of a document at most; a Secret holds a mebibyte in base64."""
RUN: Final = "stoker/run"
ELEMENTS_OF: Final = "stoker/jobs"
"""The annotation with the key, kind, attempt and request of each job, in the order of the indexes."""
SET: Final = "stoker/jobset"
"""The label of what belongs to a JobSet: its name. A JobSet's Job has one of its own."""
TOKEN: Final = "stoker/token"
"""The annotation by which a driver knows that a Job is what it sent."""
_NAME: Final = 50
"""Letters of a name at most: a pod's has the index and five letters behind it, in 63."""
TPU_WORKER: Final = "TPU_WORKER_ID"
TPU_HOSTS: Final = "TPU_WORKER_HOSTNAMES"
_REPLICATED: Final = "node"
"""The name of a JobSet's only Job, which stands in the name of its pods."""
_SUFFIX: Final = f"-{_REPLICATED}-0"
_JOB_SETS: Final = f"{JOB_SETS}/v1alpha2"
"""https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/"""
_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
"""As in the names that Kubernetes makes: no word comes of them."""


def label_text(text: str) -> str:
    """A text as the value of a label. https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/"""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:63].strip("_.-")


def job_name(jobs: Sequence[Job], salt: int = 0) -> str:
    """The name of a Job: pipeline, step and element for people, and letters that are the job's own."""
    job = jobs[0]
    element = re.search(r"\[(\d+)\]$", job.key) if len(jobs) == 1 else None
    words = [job.pipeline, job.step.name, element[1] if element else "", "hook" if job.kind == "hook" else ""]
    # A gang may be a JobSet.
    return named(words, token_of(jobs, salt), room=_NAME - (len(_SUFFIX) if nodes_of(job) > 1 else 0))


def named(words: Sequence[str], token: str, *, room: int = _NAME) -> str:
    """A name of so many letters at most with the words, and letters that a token in hexadecimal digits makes."""
    text = re.sub(r"[^a-z0-9]+", "-", "-".join(filter(None, words)).lower()).strip("-")
    if not text[:1].isalpha():
        text = f"s-{text}".strip("-")
    number = int(token, 16)
    letters = ""
    for _ in range(5):
        number, place = divmod(number, len(_LETTERS))
        letters += _LETTERS[place]
    return f"{text[: room - 6].rstrip('-')}-{letters}"


def is_jobset(job: Job, options: Mapping[str, Any]) -> bool:
    """Whether a job is sent as a JobSet: a gang whose settings say so."""
    return nodes_of(job) > 1 and bool(settings_of(job.step, KubernetesSettings, options).get("jobset"))


def collection(namespace: str, kind: str) -> str:
    """Where the API has the objects of a namespace that are a "Job" or a "JobSet"."""
    version, plural = (_JOB_SETS, "jobsets") if kind == "JobSet" else ("batch/v1", "jobs")
    return f"/apis/{version}/namespaces/{namespace}/{plural}"


def name_of_job(body: Mapping[str, Any]) -> str:
    """The name of the Job that a body is, or that the controller makes of a JobSet."""
    name = str(body["metadata"]["name"])
    return name + _SUFFIX if body.get("kind") == "JobSet" else name


def job_spec(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The specification of a Job, or of the only one of a JobSet."""
    spec: Mapping[str, Any] = body["spec"]
    return spec["replicatedJobs"][0]["template"]["spec"] if body.get("kind") == "JobSet" else spec


def token_of(jobs: Sequence[Job], salt: int = 0) -> str:
    """The same for the same jobs, so that sending them twice starts them once."""
    text = "\n".join([*sorted(f"{job.name} {request_digest(job)}" for job in jobs), str(salt)])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def meetings(artifacts: str) -> str:
    """The folder of an artifact store in which the nodes of gangs find each other, with a folder for each run."""
    return f"{artifacts.removeprefix('file://')}/kubernetes"


def shared_folders(site: Site) -> list[str]:
    """The folders of this machine that pods see where files are shared."""
    folders = [site.artifacts.removeprefix("file://"), site.checkpoints]
    return sorted({folder for folder in folders if folder and "://" not in folder})


# The document


def entry(
    job: Job,
    site: Site,
    settings: KubernetesSettings,
    *,
    shares: bool,
    environment: Mapping[str, str],
    checkpoints: str = CHECKPOINTS,
) -> dict[str, Any]:
    """One job in the document; `environment` opens the artifact store, and `checkpoints` is the folder of them in a pod
    that sees no other."""
    lease = requested_lease(job, samples=samples_file(job, site, "kubernetes"))
    nodes, gang = nodes_of(job), None
    store = claim_store(site.artifacts)
    checkpoints = site.checkpoints if shares else checkpoints
    if store is not None:
        site, checkpoints = attrs.evolve(site, artifacts=store.path_in_steps), f"{store.path_in_steps}/checkpoints"
    if nodes > 1:
        folder = f"{meetings(site.artifacts)}/{job.run}"
        gang = gang_task(job, folder, TOPOLOGY, token=token_of([job]))
        gang = attrs.evolve(gang, timeout=float(settings.get("hostname_resolution_timeout", gang.timeout)))
    spec = boot_spec(
        job,
        site,
        checkpoints=checkpoints,
        grace=max(1.0, settings.get("grace_period", GRACE) - MARGIN),
        lease=lease,
        gang=gang,
        environment=environment,
    )
    return {"nodes": nodes, "spec": to_json(spec if shares or store is not None else with_copies(spec))}


def packed(entries: Sequence[Mapping[str, Any]]) -> bytes:
    """The document as the pods read it: the same bytes for the same entries."""
    return gzip.compress(json.dumps(entries, separators=(",", ":")).encode(), _LEVEL, mtime=0)


def waves(entries: Sequence[Mapping[str, Any]]) -> Iterator[slice]:
    """The entries in pieces, each of which fits into one Secret and one Job."""
    pieces = [slice(at, min(at + ELEMENTS, len(entries))) for at in range(0, len(entries), ELEMENTS)]
    while pieces:
        piece = pieces.pop(0)
        size = piece.stop - piece.start
        if size > 1 and len(packed(entries[piece])) > DOCUMENT_SIZE:
            middle = piece.start + size // 2
            pieces[:0] = [slice(piece.start, middle), slice(middle, piece.stop)]
        else:
            yield piece


# Objects


def labels_of_run(job: Job) -> dict[str, str]:
    """The labels of all objects of a job's run."""
    return {MANAGED_BY: "stoker", RUN: label_text(job.run), "stoker/user": label_text(user_name())}


def labels_of(job: Job) -> dict[str, str]:
    """The labels of all objects of a job."""
    return {
        **labels_of_run(job),
        "stoker/step": label_text(job.step.name),
        "stoker/attempt": str(job.attempt),
        "stoker/request": request_digest(job),
    }


def secret(name: str, jobs: Sequence[Job], document: bytes, *, jobset: bool = False) -> dict[str, Any]:
    """The Secret with the program of the pods of a Job, and what they are told; `jobset`: one of the same name owns
    it."""
    labels = {**labels_of(jobs[0]), **({SET: name} if jobset else {})}
    return secret_of(name, labels, {PROGRAM: program(podprogram).encode(), JOBS: document})


def helpers(
    job: Job, site: Site, options: Mapping[str, Any], *, name: str, shares: bool
) -> list[tuple[str, dict[str, Any]]]:
    """Further objects that must be there before the Job: their place in the API of a namespace, and themselves.

    The Secret owns them, which is there before the Job and goes with it.
    """
    request = pod_request(job, site, options, name=name, shares=shares)
    objects = []
    for body in companions(request):
        metadata = {**body["metadata"], "labels": {**body["metadata"].get("labels", {}), **labels_of(job)}}
        objects.append((f"{body['apiVersion']}/{body['kind'].lower()}s", {**body, "metadata": metadata}))
    return objects


def owner_of(thing: Mapping[str, Any]) -> dict[str, str]:
    """A reference to a Job or a JobSet as the owner of what goes with it; a Job of a list does not say its kind."""
    metadata = thing["metadata"]
    kind, version = thing.get("kind", "Job"), thing.get("apiVersion", "batch/v1")
    return {"apiVersion": version, "kind": kind, "name": metadata["name"], "uid": metadata["uid"]}


def owner_patch(thing: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a Job or a JobSet the owner of its Secret, which goes with it."""
    return {"metadata": {"ownerReferences": [owner_of(thing)]}}


def service(thing: Mapping[str, Any], job: Job) -> dict[str, Any]:
    """The headless Service by which the pods of a gang have names: JOB-0.JOB, JOB-1.JOB, and so on.

    A pod has its name before it is ready: ranks look for each other before anything else.
    https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
    """
    name = thing["metadata"]["name"]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels_of(job), "ownerReferences": [owner_of(thing)]},
        "spec": {"clusterIP": "None", "selector": {GANG_LABEL: token_of([job])}, "publishNotReadyAddresses": True},
    }


@functools.lru_cache(maxsize=2)
def worker_parts(bundle: str) -> tuple[bytes, ...]:
    """The folder of Stoker's worker as a compressed archive in pieces, the same bytes for the same files.

    It has the bytecode of what every worker imports, for this Python: each pod would spend most of a second on it. The
    archive is made once and kept beside the folder.
    """
    path = Path(f"{bundle}-{sys.implementation.cache_tag}.gz")
    try:
        whole = path.read_bytes()
    except OSError:
        whole = _archive(Path(bundle))
        with contextlib.suppress(OSError):  # another user's folder: it is made again the next time
            descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=".archive-")
            with os.fdopen(descriptor, "wb") as file:
                file.write(whole)
            os.replace(beside, path)
    return tuple(whole[at : at + PART] for at in range(0, len(whole), PART))


def _archive(root: Path) -> bytes:
    """A line of JSON with the names and sizes of files, and their contents one after the other, compressed."""
    files: list[tuple[str, bytes]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root)
            if not path.is_file() or "__pycache__" in name.parts:
                continue
            files.append((name.as_posix(), path.read_bytes()))
            if path.suffix == ".py" and not COMPILED.isdisjoint(name.parts):
                compiled = f"{scratch}/compiled"
                mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
                with contextlib.suppress(py_compile.PyCompileError):  # written for another version of Python
                    py_compile.compile(str(path), compiled, name.as_posix(), doraise=True, invalidation_mode=mode)
                    files.append((importlib.util.cache_from_source(name.as_posix()), Path(compiled).read_bytes()))
    index = json.dumps([(name, len(content)) for name, content in files]).encode()
    return gzip.compress(index + b"\n" + b"".join(content for _, content in files), _LEVEL, mtime=0)


@functools.lru_cache(maxsize=2)
def worker_names(bundle: str) -> tuple[str, ...]:
    """The names of the config maps with Stoker's worker; none where the images have it."""
    if not bundle:
        return ()
    digest = hashlib.sha256(b"".join(worker_parts(bundle))).hexdigest()[:16]
    return tuple(f"stoker-worker-{digest}-{number}" for number in range(len(worker_parts(bundle))))


def worker_maps(bundle: str) -> list[dict[str, Any]]:
    """The config maps with Stoker's worker: what they hold does not change, and runs share them."""
    return part_maps(bundle, worker_names(bundle), {MANAGED_BY: "stoker", WORKER_LABEL: "true"})


def part_maps(bundle: str, names: Sequence[str], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Config maps with the parts of Stoker's worker."""
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": dict(labels)},
            "immutable": True,
            "binaryData": {f"part-{number:03d}": base64.b64encode(part).decode()},
        }
        for number, (name, part) in enumerate(zip(names, worker_parts(bundle), strict=True))
    ]


def secret_of(name: str, labels: Mapping[str, str], files: Mapping[str, bytes]) -> dict[str, Any]:
    """A Secret with files."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": dict(labels)},
        "type": "Opaque",
        "data": {key: base64.b64encode(data).decode() for key, data in files.items()},
    }


def user_name() -> str:
    """Who starts the run, as its objects are labelled."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        return str(os.getuid())


def pod_request(job: Job, site: Site, options: Mapping[str, Any], *, name: str, shares: bool) -> PodRequest:
    """What the pods of a Job follow from."""
    settings, store = settings_of(job.step, KubernetesSettings, options), claim_store(site.artifacts)
    is_step = job.kind == "step"
    return PodRequest(
        resources=job.step.settings.resources if is_step else ResourceSettings(),
        settings=settings,
        image=image_of(job.step, settings),
        environment=image_environment(job.step),
        command=(
            *(settings.get("executable", "python3"), f"{DOCUMENT}/{PROGRAM}", f"{DOCUMENT}/{JOBS}", WORKER, MESSAGE),
            *(() if store is None else (MOUNT,)),
        ),
        labels={**labels_of(job), GANG_LABEL: token_of([job])},
        mounts=[
            PodMount(name="stoker-job", source={"secret": {"secretName": name}}, path=DOCUMENT),
            *_mounts(site, settings, shares=shares),
        ],
        grace=GRACE,
        nodes=nodes_of(job),
        avoid=job.avoid,
        name=name,
    )


def _mounts(site: Site, settings: KubernetesSettings, *, shares: bool) -> Iterator[PodMount]:
    """Stoker's worker, and what pods see of this machine's folders and of the claim."""
    if site.bundle:
        sources = [{"configMap": {"name": one}} for one in worker_names(site.bundle)]
        yield PodMount(name="stoker-worker", source={"projected": {"sources": sources}}, path=WORKER)
    for number, folder in enumerate(_host_folders(site, settings) if shares else ()):
        source = {"hostPath": {"path": folder, "type": "DirectoryOrCreate"}}
        yield PodMount(name=f"stoker-folder-{number}", source=source, path=folder, read_only=False)
    store = claim_store(site.artifacts)
    if store is not None:
        yield claim_mount(store)


def _host_folders(site: Site, settings: KubernetesSettings) -> list[str]:
    """The shared folders that no volume of the settings brings."""
    brought = [
        *settings.get("persistent_volume_claims", {}).values(),
        *settings.get("host_paths", {}).values(),
        *(mount.get("mountPath", "") for mount in settings.get("volume_mounts", ())),
    ]
    return [folder for folder in shared_folders(site) if not any(is_below(folder, path) for path in brought if path)]


def template(request: PodRequest) -> dict[str, Any]:
    """The pods of a Job, which learn their node's name; those of a gang how many they are, and their own address."""
    pod = pod_template(request)
    variables = pod["spec"]["containers"][0].setdefault("env", [])
    variables.append({"name": NODE_ID, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}})
    if request.nodes > 1:
        variables.append({"name": "STOKER_NODES", "value": str(request.nodes)})
        variables.append({"name": "STOKER_NODE_ADDR", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
        pod["spec"].setdefault("subdomain", request.name)
    accelerators = accelerator_request(request.resources, request.settings)
    if accelerators is not None and accelerators.vendor == "tpu":
        given = {entry["name"] for entry in variables}
        variables += [entry for entry in _tpu_environment(request) if entry["name"] not in given]
    return pod


def _tpu_environment(request: PodRequest) -> list[dict[str, Any]]:
    """What torch-xla reads to choose a TPU, and on the hosts of a slice what libtpu, JAX and torch-xla read to find the
    others. GKE adds the latter itself where its webhook knows the Job.
    https://cloud.google.com/kubernetes-engine/docs/how-to/tpus#tpu-environment-variables
    """
    variables: list[dict[str, Any]] = [{"name": "PJRT_DEVICE", "value": "TPU"}]
    if request.nodes > 1:
        index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
        variables.append({"name": TPU_WORKER, "valueFrom": index})
        variables.append({"name": TPU_HOSTS, "value": _host_names(request.name, request.name, request.nodes)})
    return variables


def _host_names(job: str, subdomain: str, nodes: int) -> str:
    """The names of the pods of an Indexed Job, which a headless Service resolves, in their order."""
    return ",".join(f"{job}-{index}.{subdomain}" for index in range(nodes))


def manifest(
    jobs: Sequence[Job], site: Site, options: Mapping[str, Any], *, name: str, salt: int = 0, shares: bool
) -> dict[str, Any]:
    """The Job of one job, the Indexed Job of alike ones, or the JobSet of a gang."""
    job, nodes = jobs[0], nodes_of(jobs[0])
    elements = [
        {"key": one.key, "kind": job_kind(one), "attempt": one.attempt, "digest": request_digest(one)} for one in jobs
    ]
    annotations = {ELEMENTS_OF: json.dumps(elements, separators=(",", ":")), TOKEN: token_of(jobs, salt)}
    count = nodes if nodes > 1 else len(jobs)
    request = pod_request(job, site, options, name=name, shares=shares)
    admitted = admission(request)
    spec: dict[str, Any] = {"backoffLimit": 0, "template": template(request)}
    life: dict[str, Any] = {} if admitted.suspend is None else {"suspend": admitted.suspend}
    if request.settings.get("ttl") is not None:
        life["ttlSecondsAfterFinished"] = math.ceil(request.settings.get("ttl"))
    if count > 1:
        spec.update(completionMode="Indexed", completions=count, parallelism=count)
    if len(jobs) > 1 or least_nodes(job):
        # One element's failure is not the others', nor a node's that of a gang that goes on without it. https://kubernetes.io/docs/concepts/workloads/controllers/job/#backoff-limit-per-index
        del spec["backoffLimit"]
        spec["backoffLimitPerIndex"] = 0
    labels = {**labels_of(job), **admitted.labels}
    if is_jobset(job, options):
        return _jobset(name, labels, annotations, spec, life)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {**spec, **life},
    }


def _jobset(
    name: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    spec: Mapping[str, Any],
    life: Mapping[str, Any],
) -> dict[str, Any]:
    """A JobSet with one Job, which gets the labels by which Stoker finds it. It never starts again by itself."""
    ours = {key: text for key, text in labels.items() if not key.startswith(KUEUE)}  # it admits the whole set
    subdomain = spec["template"]["spec"].pop("subdomain")  # of the Service that the controller makes
    for entry in spec["template"]["spec"]["containers"][0]["env"]:
        if entry["name"] == TPU_HOSTS and entry.get("value") == _host_names(name, subdomain, spec["completions"]):
            entry["value"] = _host_names(f"{name}{_SUFFIX}", subdomain, spec["completions"])
    template = {"metadata": {"labels": {**ours, SET: name}, "annotations": dict(annotations)}, "spec": dict(spec)}
    return {
        "apiVersion": _JOB_SETS,
        "kind": "JobSet",
        "metadata": {"name": name, "labels": {**labels, SET: name}, "annotations": dict(annotations)},
        "spec": {
            "failurePolicy": {"maxRestarts": 0},
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": subdomain},
            "replicatedJobs": [{"name": _REPLICATED, "replicas": 1, "template": template}],
            **life,
        },
    }


def alike(job: Job, site: Site, options: Mapping[str, Any], *, shares: bool) -> str:
    """Equal for jobs that may be elements of one Indexed Job."""
    if nodes_of(job) > 1 or job.kind != "step":
        return job.name
    return _pod_text(
        IdentityKey(job.step), job.run, job.attempt, job.avoid, IdentityKey(site), IdentityKey(options), shares=shares
    )


@functools.lru_cache(maxsize=64)
def _pod_text(
    step: IdentityKey[StepPlan],
    run: str,
    attempt: int,
    avoid: tuple[str, ...],
    site: IdentityKey[Site],
    options: IdentityKey[Mapping[str, Any]],
    *,
    shares: bool,
) -> str:
    """The pods of a step's jobs, but for what tells these jobs apart."""
    job = Job(name="", run=run, key="", attempt=attempt, step=step.value, inputs={}, avoid=avoid)
    pod = template(pod_request(job, site.value, options.value, name="", shares=shares))
    del pod["metadata"]["labels"][GANG_LABEL]
    return json.dumps([step.value.name, pod], sort_keys=True, default=str)


def without_token(body: Mapping[str, Any]) -> dict[str, Any]:
    """A Job, or a JobSet, that no driver takes for one of its own."""
    metadata = {key: value for key, value in body["metadata"].items() if key != "annotations"}
    if body["kind"] != "JobSet":
        return {**body, "metadata": metadata}
    (only,) = body["spec"]["replicatedJobs"]
    only = {**only, "template": without_token({"kind": "Job", **only["template"]})}
    del only["template"]["kind"]
    return {**body, "metadata": metadata, "spec": {**body["spec"], "replicatedJobs": [only]}}
