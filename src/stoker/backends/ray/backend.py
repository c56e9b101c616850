"""Ray: a run is one Ray job, whose program in the cluster runs each step as a task as it becomes ready.

What is sent is decided in `tasks`, and here what is refused: `check` asks nobody; `prove` asks the cluster what its
nodes have, since Ray itself never refuses: what no node can give waits for ever there, without a word. `platform` sends
and follows it, asking the dashboard (`jobs`) and hearing what the program tells (`log`). The program is
`backends.ray.job`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from typing import Any, Final, Iterable, Iterator, Literal, Mapping, Sequence

from stoker.backends.base.backend import settings_of
from stoker.backends.base.platforms import Away, own_visibility, ranks_elsewhere
from stoker.backends.base.watched import Watched
from stoker.backends.ray import tasks as raytasks
from stoker.backends.ray.jobs import ASKED, Jobs, is_loopback, resources_of, version_numbers
from stoker.backends.ray.platform import RayPlatform
from stoker.backends.ray.settings import RaySettings
from stoker.backends.ray.tasks import DOCUMENT, fraction_of, kinds_of, ray_request
from stoker.backends.ray.words import NODE_LABEL, amount_text, label_values
from stoker.core.errors import BackendError
from stoker.core.findings import Check, Finding, Reporter
from stoker.core.hosts import is_folder_elsewhere
from stoker.core.plan import Job, Site, StepPlan, reporter_of
from stoker.core.resources import describe
from stoker.core.units import size_text
from stoker.core.words import count_text, shown

NO_CONTAINER: Final = "STK180"
CANNOT: Final = "STK181"
FRACTION: Final = "STK182"
COUNTED: Final = "STK183"
NODES_OWN: Final = "STK184"
FAR_STORE: Final = "STK185"
FAR_CHECKPOINTS: Final = "STK186"
OTHER_PYTHON: Final = "STK187"
NEVER_FITS: Final = "STK188"
NO_CLUSTER: Final = "STK189"
OLDEST: Final = (2, 10)
"""The first Ray that gives a worker of any accelerator's kind its devices by number (get_accelerator_ids)."""
NOT_LEFT_OUT: Final = "STK264"
WITH_LABELS: Final = (2, 49)
"""The first whose tasks select nodes by labels: https://docs.ray.io/en/latest/ray-core/scheduling/labels.html"""
OLDEST_PYTHON: Final = (3, 10)


def check(step: StepPlan, options: Mapping[str, Any], site: Site, *, shares: bool) -> Iterator[Finding]:
    """Field by field; `shares`: the nodes see this machine's folders."""
    settings = settings_of(step, RaySettings, options)
    report = reporter_of(step)
    if step.settings.docker is not None:
        why = "the nodes' own Python runs it: Ray's containers would lack Stoker's worker"
        fix = "docker=null where the nodes have what it needs, or RaySettings(runtime_env={'pip': […]})"
        yield report.error(NO_CONTAINER, "asks for a container image", why, fix)
    packages = step.settings.packages
    if packages is not None and not packages.empty:
        why = "what the nodes' Python has is not known here, and Ray makes environments by words of its own"
        lines = ", ".join(f"'{line}'" for line in packages.requirements)
        fix = f"packages=null, and where they are missing RaySettings(runtime_env={{'pip': [{lines}]}})"
        yield report.error(NO_CONTAINER, f"asks for {packages.text}", why, fix)
    yield from _devices(step, settings, report)
    yield from _translated(step, report)
    yield from own_visibility(step, "Ray chooses the step's devices; another choice could be somebody else's")
    nodes = step.settings.resources.get("nodes", 1)
    yield from ranks_elsewhere(step, nodes, CANNOT, "Ray is neither to it")
    if is_folder_elsewhere(site.artifacts) or (not shares and "://" not in site.artifacts):
        what = f"runs on a Ray cluster that does not see the artifact store {site.artifacts}"
        why = "a step loads its inputs from there and saves its outputs there"
        fix = "name a remote store in the stack: artifact_store = 's3://…'; or shares_files=true where the nodes see it"
        yield report.error(FAR_STORE, what, why, fix)
    elif not shares and (step.settings.retry.times or step.settings.retry.on_oom):
        what = f"copies its checkpoints to {site.artifacts} while it runs, and a further attempt gets them from there"
        yield report.info(FAR_CHECKPOINTS, what, "the cluster's nodes do not see this machine's folders")


def _devices(step: StepPlan, settings: RaySettings, report: Reporter) -> Iterator[Finding]:
    wanted = step.settings.resources
    gpus = wanted.gpus_per_node
    if settings.get("gpu_fraction") and gpus != 1:
        what = f"asks for {gpus} GPUs and gpu_fraction={settings.get('gpu_fraction'):g}"
        yield report.error(CANNOT, what, "it is a part of one GPU", "resources.gpu_count=1, or remove gpu_fraction")
        return
    kinds = kinds_of(step, settings)
    for kind, known in kinds:
        if kind.slice:
            why = "Ray counts whole devices, and does not know a slice from another"
            fix = "have the operator count slices as a resource of their own: RaySettings(resources={'mig-1g.10gb': 1})"
            yield report.error(CANNOT, f"asks for a MIG slice, {kind}", why, fix)
        elif known is None:
            why = "Ray has no name for it by itself"
            fix = f"say what the cluster calls it: RaySettings(accelerators={{'{kind.name}': '…'}})"
            yield report.error(CANNOT, f"asks for {kind}", why, fix)
    if gpus and wanted.get("share") and not wanted.get("accelerators"):
        what = f"asks for {size_text(wanted.get('gpu_memory'))} of a shared GPU of any kind"
        why = "Ray counts parts of a GPU, not its memory: how large a part that is depends on the GPU"
        yield report.error(
            CANNOT, what, why, "name the kind: resources.accelerators='A100'; or RaySettings(gpu_fraction=0.5)"
        )
        return
    if gpus and not kinds and (wanted.get("gpu_vendor") or wanted.get("gpu_memory")):
        why = "no accelerator that Ray has a name for is like that"
        yield report.error(CANNOT, f"asks for {describe(wanted)}", why, "name the kind: resources.accelerators='A100'")
        return
    part = fraction_of(step, settings)
    if part is not None and part < 1:
        what = f"takes {part:g} of a GPU; other steps use the same one"
        yield report.translated(
            FRACTION, what, "Ray counts the parts, and keeps nobody from taking more memory or time"
        )
    if len(kinds) > 1:
        names = ", ".join(known.type for _, known in kinds if known is not None)
        why = "Ray takes one kind for a task: it is chosen when the step is sent, and then waited for"
        yield report.translated(CANNOT, f"may run on {names}: on the first of these that the cluster has", why)


def _translated(step: StepPlan, report: Reporter) -> Iterator[Finding]:
    wanted = step.settings.resources
    if wanted.get("memory"):
        what = f"asks for {size_text(wanted.get('memory'))} of memory, which Ray counts"
        why = "nothing ends a step that takes more, unless its node runs out of memory"
        yield report.translated(COUNTED, what, why)
    for name, text in (("shared_memory", "shared memory"), ("disk", "disk")):
        if wanted.get(name):
            what = f"asks for {size_text(wanted.get(name))} of {text}; what its node has is not known"
            yield report.translated(NODES_OWN, what, "Ray does not count it: see that the nodes have as much")
    if wanted.get("spot"):
        why = "to choose them, select the nodes' label: RaySettings(labels={'ray.io/market-type': 'spot'})"
        yield report.translated(NODES_OWN, "asks for spot machines; it runs on the cluster's own nodes", why)


def prove(steps: Iterable[StepPlan], options: Mapping[str, Any], jobs: Jobs, *, shares: bool) -> Iterator[Finding]:
    """What the cluster's nodes can never give, asked of the cluster; one error where it does not answer."""
    steps = list(steps)
    report = reporter_of(steps[0]) if steps else Reporter(where="ray", step="")
    try:
        version, nodes, python = jobs.version(), jobs.nodes(), jobs.python()
        autoscales = jobs.autoscales()
    except BackendError as error:
        why = "" if not isinstance(error, Away) else "steps are sent there"
        yield report.error(NO_CLUSTER, error.message, why, error.fix)
        return
    known = version_numbers(version.get("ray_version"))
    if not known:
        what = f"runs on a cluster whose version of Ray is not known: it says {shown(version.get('ray_version'))}"
        yield report.info(NO_CLUSTER, what, f"Stoker needs Ray {'.'.join(map(str, OLDEST))} or later")
    elif known < OLDEST:
        what = f"runs on a cluster with Ray {version.get('ray_version')}"
        fix = f"have the cluster upgraded to Ray {'.'.join(map(str, OLDEST))} or later"
        yield report.error(NO_CLUSTER, what, "it is too old", fix)
        return
    if known and known < WITH_LABELS and any(step.settings.resources.gpus_per_node for step in steps):
        what = f"runs on Ray {version.get('ray_version')}, which cannot leave out a node whose devices are faulty"
        why = "a task is kept from a node by labels, which Ray 2.49 introduced; further attempts may go there again"
        yield report.info(NOT_LEFT_OUT, what, why)
    named = all(settings_of(step, RaySettings, options).get("python") for step in steps)
    yield from _python(python, report, named=named)
    seen = set()
    for step in steps:
        alike = (step.name, id(step.settings))
        if alike not in seen:
            seen.add(alike)
            yield from _fits(step, settings_of(step, RaySettings, options), nodes, known, autoscales=autoscales)


def has_other_place(step: StepPlan, options: Mapping[str, Any], jobs: Jobs, avoid: Sequence[str]) -> bool:
    """Whether a step fits on nodes beside those to avoid; asks the cluster, and is true where it does not answer."""
    settings = settings_of(step, RaySettings, options)
    selected = settings.get("labels", {}).get(NODE_LABEL, "!")
    if not selected.startswith("!") and not set(label_values(selected)) - set(avoid):
        return False
    try:
        nodes, known, autoscales = jobs.nodes(), jobs.release(), jobs.autoscales()
    except BackendError:
        return True
    findings = _fits(step, settings, nodes, known, autoscales=autoscales, avoid=avoid)
    return all(finding.level != "error" for finding in findings)


def probe(options: Mapping[str, Any]) -> Iterator[Check]:
    """What a cluster with these settings says of itself, for `stoker doctor --stack`."""
    jobs = None
    try:
        jobs = Jobs(RaySettings(**options), os.environ)
        version, nodes, python = str(jobs.version().get("ray_version", "")), jobs.nodes(), jobs.python()
    except BackendError as error:
        yield Check(name="dashboard", found="", problem=error.message, fix=error.fix)
        return
    finally:
        if jobs is not None:
            jobs.close()
    old = bool(numbers := version_numbers(version)) and numbers < OLDEST
    least = ".".join(map(str, OLDEST))
    yield Check(
        name="dashboard",
        found=f"{jobs.address}, Ray {version or 'of unknown version'}",
        problem=f"Stoker needs Ray {least} or later" if old else "",
        fix=f"have the cluster upgraded to Ray {least} or later" if old else "",
    )
    totals: dict[str, float] = {}
    for node in nodes:
        for name, amount in (resources_of(node) or {}).items():
            if not name.startswith(("node:", "memory", "object_store")):
                totals[name] = totals.get(name, 0) + amount
    things = ", ".join(f"{amount:g} {name}" for name, amount in sorted(totals.items()))
    yield Check(
        name="nodes",
        found=f"{count_text(len(nodes), 'node')}, {things}" if nodes else "",
        problem="" if nodes else "no node is alive",
        fix="" if nodes else "start one: ray start --address=…",
    )
    for finding in _python(python, Reporter(where="ray", step=""), named=bool(RaySettings(**options).get("python"))):
        bad = finding.level == "error"
        text = f"{finding.what}; {finding.why}"
        yield Check(
            name="python", found="" if bad else f"{python}; {finding.why}", problem=text if bad else "", fix=finding.fix
        )
        return
    yield Check(name="python", found=python or "not told by the cluster")


def _python(version: str, report: Reporter, *, named: bool) -> Iterator[Finding]:
    theirs, ours = version_numbers(version), sys.version_info[:2]
    if not theirs or theirs == ours:
        return
    if theirs < OLDEST_PYTHON:
        what = f"runs on a cluster with Python {version}"
        why, fix = "Stoker's worker needs Python 3.10 or later", "RaySettings(python=…) with one that the nodes have"
        yield report.error(OTHER_PYTHON, what, why, fix)
        return
    what = f"runs on a cluster with Python {version}; this is {ours[0]}.{ours[1]}"
    if named:
        why = "RaySettings(python=…) names another interpreter on the nodes: what it is, is not known here"
        yield report.info(OTHER_PYTHON, what, why)
        return
    why = "functions and values travel pickled between both, and one may not read what the other wrote"
    own = f"python{ours[0]}.{ours[1]}"
    fix = f"run Python {theirs[0]}.{theirs[1]} here, or name one that the nodes have: RaySettings(python='{own}')"
    yield report.error(OTHER_PYTHON, what, why, fix)


def _fits(
    step: StepPlan,
    settings: RaySettings,
    nodes: list[Mapping[str, Any]],
    version: tuple[int, ...],
    *,
    autoscales: bool,
    avoid: Sequence[str] = (),
) -> Iterator[Finding]:
    report = reporter_of(step)
    job = Job(name="", run="", key=step.key, attempt=1, step=step, inputs={}, avoid=tuple(avoid))
    ask = ray_request(job, settings)
    if ask["labels"] and version and version < WITH_LABELS:
        what = f"selects nodes by labels, on Ray {'.'.join(map(str, version))}"
        why = "its tasks do not know labels"
        fix = "have it upgraded to Ray 2.49, or use RaySettings(resources={…}) with a custom resource"
        yield report.error(NEVER_FITS, what, why, fix)
        return
    gang = step.settings.resources.get("nodes", 1)
    together = gang if settings.get("placement", "STRICT_SPREAD") != "STRICT_SPREAD" else 1
    apart = gang if together == 1 else 1
    plain = {"CPU": ask["num_cpus"], "memory": ask["memory"], **ask["resources"]}
    choices = ask["choices"] or [None]
    if ask["prefer"]:
        choices = [*choices, None]
    said = ""
    for choice in choices:
        wanted = {name: amount for name, amount in plain.items() if amount}
        if choice is not None:
            wanted[choice["resource"]] = choice["count"]
            if choice["type"]:
                wanted[f"accelerator_type:{choice['type']}"] = 0.001
        told = [resources_of(one) for one in nodes if _selected(one, ask["labels"])]
        there = [one for one in told if one is not None]
        if len(there) < len(told):
            return  # a node of which that is not known may have it
        fits = [one for one in there if all(one.get(name, 0) >= amount for name, amount in wanted.items())]
        enough = all(sum(one.get(name, 0) for one in there) >= amount * gang for name, amount in wanted.items())
        if len(fits) >= apart and (together == 1 or enough):
            return
        said = said or _short(wanted, there, len(fits), apart)
    if autoscales:
        what = f"asks for {describe(step.settings.resources)}; {said} now"
        yield report.translated(NEVER_FITS, what, "the cluster's autoscaler may start such a node, or wait for ever")
        return
    fix = "ask for less, or have a node added that fits"
    yield report.error(
        NEVER_FITS, f"asks for {describe(step.settings.resources)}", f"{said}: Ray would wait for ever", fix
    )


def _short(wanted: Mapping[str, float], nodes: list[Mapping[str, float]], fits: int, needed: int) -> str:
    """What the cluster lacks for one kind of node."""
    if not nodes:
        return "no node has the labels that it selects"
    for name, amount in wanted.items():
        most = max(one.get(name, 0) for one in nodes)
        if name.startswith("accelerator_type:") and not most:
            return f"no node has an accelerator of type {name.partition(':')[2]}"
        if most < amount:
            return f"the largest node has {amount_text(name, most)}" if most else f"no node has any {_noun(name)}"
    return f"{fits} of {len(nodes)} nodes have as much" + (f", and {needed} are needed" if needed > 1 else "")


def _noun(name: str) -> str:
    return {"GPU": "GPU", "CPU": "CPU"}.get(name, f"of '{name}'")


def _selected(node: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a node's labels are those that are selected: "a", "!a", "in(a,b)", "!in(a,b)"."""
    there = node.get("labels") or {}
    return all((there.get(name) in label_values(text)) != text.startswith("!") for name, text in labels.items())


class RayBackend(Watched):
    """Runs jobs on one Ray cluster."""

    name = "ray"
    keeps_secrets: Literal[True] = True
    leaves_out: Literal["node"] = "node"

    def __init__(self, site: Site, options: Mapping[str, Any]) -> None:
        settings = RaySettings(**options)
        self._site = site
        self._options = dict(options)
        self._jobs = Jobs(settings, os.environ)
        self._shares = bool(settings.get("shares_files", is_loopback(self._jobs.address)))
        super().__init__(RayPlatform(site, self._options, self._jobs, shares=self._shares))

    def check(self, step: StepPlan) -> Iterable[Finding]:
        """What Ray cannot give a step, and how it takes the rest; the cluster is not asked."""
        yield from check(step, self._options, self._site, shares=self._shares)

    def prove(self, steps: Sequence[StepPlan]) -> Iterator[Finding]:
        """What the cluster's nodes can never give; asks the cluster, over a connection of its own."""
        with contextlib.closing(Jobs(RaySettings(**self._options), os.environ)) as jobs:
            yield from prove(steps, self._options, jobs, shares=self._shares)

    def has_other_place(self, step: StepPlan, avoid: Sequence[str]) -> bool:
        """Whether the cluster has another node for a step; asks it, over a connection of its own."""
        with contextlib.closing(Jobs(RaySettings(**self._options), os.environ, patience=ASKED)) as jobs:
            return has_other_place(step, self._options, jobs, avoid)

    def render(self, job: Job) -> Mapping[str, Any]:
        """The request, and the document that the program in the cluster reads; jobs that go together share both."""
        token = raytasks.token_of([job])
        root = self._site.scratch if self._shares else self._site.artifacts
        folder = f"{root}/ray/{job.run}/{token}"
        package = "" if self._shares else "gcs://_ray_pkg_stoker.zip"
        settings = RaySettings(**self._options)
        id = raytasks.submission_id(job.run, token, 0)
        shared: dict[str, Any] = {"folder": folder, "shares": self._shares}
        steps = raytasks.entries([job], self._site, self._options, package=package, sealed={}, **shared)
        shared |= {"id": id, "run": job.run}
        return {
            "address": self._jobs.address,
            "request": raytasks.request(self._site, settings, package=package, **shared),
            "document": raytasks.document(steps, self._site, self._options, token=token, **shared),
        }

    def by_hand(self, job: Job, request: Mapping[str, Any]) -> str:
        """A script that writes the document and submits the Ray job over the dashboard's API."""
        from stoker.backends.base.byhand import subshell

        token = str(RaySettings(**self._options).get("token", ""))
        return subshell(_lines_by_hand(job, request, self._shares, token))


def _lines_by_hand(job: Job, request: Mapping[str, Any], shares: bool, source: str) -> Iterator[str]:
    """`shares`: whether the cluster sees this machine's files, `source`: where the settings say its token is."""
    from stoker.backends.base.byhand import document_lines, file_lines, input_lines, stop

    body, document = request["request"], request["document"]
    folder = body["metadata"]["stoker.folder"]
    yield from input_lines(job.key, document["steps"][0]["spec"]["job"]["inputs"])
    if shares:
        (step,) = document["steps"]
        spec = {**step["spec"], "package": ""}
        yield f"mkdir -p {shlex.quote(folder)}"
        path = shlex.quote(f"{folder}/{DOCUMENT}")
        # The batch's token is no secret, although its name is masked: the name of the Ray job ends with it.
        token = body["submission_id"].rpartition("-")[2]
        yield from document_lines(path, {**document, "token": token, "steps": [{**step, "spec": spec}]})
        # Without the file the program would end its step as one that nobody wants any more.
        yield from file_lines(shlex.quote(document["orders"]), json.dumps({"close": True}))
    else:
        yield stop(
            f"missing: Stoker's worker in the cluster, and {folder}/{DOCUMENT} in the artifact store, which a run puts "
            "there"
        )
    address = shlex.quote(request["address"])
    if source.startswith("env:"):
        name = source.removeprefix("env:")
        yield f'token="${{{name}:?missing: the token of the Ray cluster}}"'
    else:  # as Ray's own client finds it
        path = shlex.quote(os.path.expanduser(source)) if source else '"${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}"'
        yield f'token="${{RAY_AUTH_TOKEN:-$(cat {path} 2>/dev/null || true)}}"'
    header = '${token:+--header "Authorization: Bearer $token"}'
    yield f"curl --fail-with-body --silent --show-error {header} --json @- {address}/api/jobs/ <<'END'"
    yield json.dumps(body, indent=2, ensure_ascii=False)
    yield "END"
    yield f"echo; echo its output: {address}/api/jobs/{body['submission_id']}/logs, its journal: {folder}/journal"
