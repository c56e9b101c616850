"""SkyPilot as a backend: clusters and managed jobs on any cloud, which the steps of a run share.

What is asked for is decided in `requests`, and here what is refused. `check` asks nobody; `prove` looks for SkyPilot's
command, and reads the user's own SkyPilot catalog: for the choice that is shown in the plan, and the limits on what it
may cost. `platform` launches and follows what was asked for.

Outside of a run: what `stoker doctor --stack` and `stoker stacks setup` find, what runs left, and how commands run
beside a step: by ssh, for which SkyPilot names each of its machines.
https://docs.skypilot.co/en/latest/examples/interactive-development.html#ssh: the head is called as the cluster, and
the others CLUSTER-worker1 and so on. Containers of SkyPilot's are what such a login leads into.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from typing import Any, Collection, Final, Iterable, Iterator, Literal, Mapping, Sequence

from stoker.backends.base.backend import (
    Beside,
    LeftJob,
    Leftover,
    ProbeRequest,
    RunningAttempt,
    Sweep,
    no_way,
    settings_of,
)
from stoker.backends.base.messages import credentials
from stoker.backends.base.platforms import own_visibility, ranks_elsewhere
from stoker.backends.base.watched import Watched
from stoker.backends.skypilot import catalog, requests
from stoker.backends.skypilot.catalog import Offer
from stoker.backends.skypilot.command import SkyCommand, find_command
from stoker.backends.skypilot.platform import SkypilotPlatform, end_names
from stoker.backends.skypilot.requests import MAILBOX, PREFIX, prefix_of
from stoker.backends.skypilot.settings import SkypilotSettings
from stoker.core.codec import to_json
from stoker.core.costs import age_text
from stoker.core.errors import Away, BackendError, SettingsError
from stoker.core.findings import Check, Finding, Reporter
from stoker.core.hosts import Address
from stoker.core.orders import JOB, MailOrder, order_folder, order_note
from stoker.core.plan import Job, Site, StepPlan, reporter_of
from stoker.core.units import duration_text, size_text, value_or
from stoker.ssh.connection import Ssh

CANNOT: Final = "STK320"
TRANSLATED: Final = "STK321"
STORE: Final = "STK322"
CHOICE: Final = "STK323"
COST: Final = "STK324"
CHECKPOINTS: Final = "STK325"
PRICE_UNKNOWN: Final = "STK326"
NO_COMMAND: Final = "STK327"


def check(step: StepPlan, options: Mapping[str, Any], site: Site) -> Iterator[Finding]:
    """Field by field."""
    settings = settings_of(step, SkypilotSettings, options)
    report = reporter_of(step)
    try:
        requests.task_of(step, site, options)
    except SettingsError as error:
        why = "SkyPilot would refuse it, or choose one of the two"
        yield report.error(CANNOT, error.message, why, error.fix or "remove one of the two")
        return
    yield from _resources(step, settings, report)
    yield from _image(step, settings, site, report)
    yield from own_visibility(step, "SkyPilot chooses the step's devices; another choice could be somebody else's")
    nodes = requests.nodes_asked(step, settings)
    yield from ranks_elsewhere(step, nodes, CANNOT, "a task of SkyPilot's has neither for it")
    if settings.get("cluster_name") and requests.is_managed(step, options):
        what = f"names the cluster {settings.get('cluster_name')} and is a managed job"
        yield report.error(CANNOT, what, "a managed job has a cluster of its own", "remove one of the two")
    if not settings.get("shares_files"):
        if "://" not in site.artifacts:
            what = f"runs on machines that do not see the artifact store {site.artifacts}"
            why = "a step loads its inputs from there, saves its outputs there, and takes its orders from there"
            fix = "name a remote store in the stack: artifact_store = 's3://…'; or shares_files=true where they see it"
            yield report.error(STORE, what, why, fix)
        elif step.settings.retry.times or requests.is_managed(step, options):
            what = (
                f"copies its checkpoints to {site.artifacts} while it runs, and a further attempt gets them from there"
            )
            yield report.info(CHECKPOINTS, what, "a machine's disk goes with it")


def _resources(step: StepPlan, settings: SkypilotSettings, report: Reporter) -> Iterator[Finding]:
    resources = step.settings.resources
    if resources.get("share"):
        what = f"asks for {size_text(resources.get('gpu_memory'))} of a shared GPU"
        yield report.refused(CANNOT, what, "SkyPilot gives whole accelerators of its machines", "resources.share=false")
    if resources.get("extended"):
        names = ", ".join(sorted(resources.get("extended")))
        fix = "remove it, or write SkyPilot's own words: SkypilotSettings(resources_settings={…})"
        yield report.error(CANNOT, f"asks for {names}", "no machine of SkyPilot's catalogs is described so", fix)
    yield from _translated(step, settings, report)


def _translated(step: StepPlan, settings: SkypilotSettings, report: Reporter) -> Iterator[Finding]:
    resources = step.settings.resources
    gpus, words = resources.gpus_per_node, settings.get("accelerators")
    kinds = resources.get("accelerators", ())
    if gpus and words is None and not kinds and not settings.get("instance_type"):
        what = f"may run on any accelerator: SkyPilot is asked for {requests.any_accelerator(resources)}"
        yield report.translated(TRANSLATED, what, "SkyPilot chooses by memory, and takes the cheapest")
    if resources.get("shared_memory") and not requests.image_of(step, settings):
        what = f"asks for {size_text(resources.get('shared_memory'))} of shared memory"
        why = "outside of containers /dev/shm is half of the machine's memory: ask for a machine with twice as much"
        yield report.translated(TRANSLATED, what, why)
    if step.settings.accelerator_policy == "prefer" and gpus:
        what = "would do without an accelerator, and gets a machine with one"
        yield report.translated(TRANSLATED, what, "SkyPilot finds a machine or none")


def _image(step: StepPlan, settings: SkypilotSettings, site: Site, report: Reporter) -> Iterator[Finding]:
    docker = step.settings.docker
    if docker is not None and docker.skip_build is not True and not step.image and site.registry == "":
        why = "machines of a cloud get images from a registry alone"
        fix = "name one in the stack: container_registry = '…'; or docker.skip_build=true for an image that is there"
        yield report.error(CANNOT, "asks for an image that is to be built, and the stack has no registry", why, fix)
    packages = step.settings.packages
    if packages is not None and packages.specifications and not requests.image_of(step, settings):
        what = "asks for packages of conda"
        yield report.error(CANNOT, what, "machines install packages by pip", "ask for them in an image: docker=…")
    python = value_or(packages.python, "") if packages is not None else ""
    if python and not requests.image_of(step, settings) and not settings.get("executable"):
        why = "a machine has the Python of its image, and packages are installed into that"
        fix = f"executable='python{python}' where machines have it, or an image: docker=…"
        yield report.error(CANNOT, f"asks for Python {python}", why, fix)


def missing_secrets(step: StepPlan, options: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[Finding]:
    """The variables of `secrets` that the driver does not have."""
    names = settings_of(step, SkypilotSettings, options).get("secrets", ())
    missing = [name for name in names if name not in environment]
    if missing:
        what = f"asks SkyPilot to carry {', '.join(missing)}"
        why = "the driver's environment has no such variable"
        yield reporter_of(step).error(CANNOT, what, why, f"export {missing[0]}=…, or take it out of `secrets`")


# What it costs


def offer_of(step: StepPlan, options: Mapping[str, Any]) -> tuple[list[Offer], int]:
    """What the user's catalog offers for a step, SkyPilot's choice first, and the number of machines."""
    settings = settings_of(step, SkypilotSettings, options)
    resources = requests.resources_document(step.settings.resources, settings)
    return catalog.offers(resources), requests.machines_asked(step, settings)


def prove(steps: Sequence[StepPlan], options: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether SkyPilot's command is here, the choice and its price for each step, and what is dearer than allowed."""
    settings = SkypilotSettings(**options)
    try:
        find_command(str(settings.get("sky", "sky")), os.environ)
    except BackendError as error:
        for step in {step.name: step for step in steps}.values():
            why = "clusters and managed jobs are launched by that command"
            yield reporter_of(step).error(NO_COMMAND, error.message, why, error.fix)
    total, unbounded = 0.0, list[str]()
    seen = set()
    for step in steps:
        try:
            offers, nodes = offer_of(step, options)
        except SettingsError:
            continue  # `check` says so
        price = offers[0].price * nodes if offers else None
        attempts = step.settings.retry.times + 1
        if price is None or step.settings.timeout is None:
            unbounded.append(f"{step.name} has no {'known price' if price is None else 'timeout'}")
        else:
            total += price * attempts * step.settings.timeout / 3600
        alike = (step.name, id(step.settings))
        if alike not in seen:
            seen.add(alike)
            yield from _step_cost(step, settings_of(step, SkypilotSettings, options), offers, nodes)
    limit = settings.get("max_run_cost")
    if limit is None or not steps:
        return
    report = reporter_of(steps[0])
    if unbounded:
        what = f"what the run may cost is not known: {'; '.join(dict.fromkeys(unbounded))}"
        fix = "give each step a timeout, and let SkyPilot load its catalog (`sky gpus list`); or remove max_run_cost"
        yield report.error(COST, what, f"max_run_cost is ${limit:g}", fix)
    elif total > limit:
        what = f"the run may cost ${total:.2f}: the sum of price, attempts and timeout over its steps"
        yield report.error(COST, what, f"max_run_cost is ${limit:g}", "shorten timeouts, or allow more")


def _step_cost(step: StepPlan, settings: SkypilotSettings, offers: Sequence[Offer], nodes: int) -> Iterator[Finding]:
    report = reporter_of(step)
    limit = settings.get("max_hourly_cost")
    if not offers:
        where = (
            "SkyPilot has no catalog on this machine"
            if catalog.folder() is None
            else "the catalog has no price for such a machine"
        )
        if limit is not None:
            fix = "let SkyPilot load its catalog (`sky gpus list`), or remove max_hourly_cost"
            yield report.error(COST, f"its price is not known: {where}", f"max_hourly_cost is ${limit:g}", fix)
        else:
            yield report.info(PRICE_UNKNOWN, "machine, region and price: unknown", where)
        return
    best = offers[0]
    machines = f"{nodes} × " if nodes > 1 else ""
    more = f" (of {len(offers)})" if len(offers) > 1 else ""
    what = f"{machines}{best}: ${best.price * nodes:.2f} an hour"
    timeout = step.settings.timeout
    if timeout is not None:
        what += f", ${best.price * nodes * timeout / 3600:.2f} at most for one attempt of {duration_text(timeout)}"
    why = f"the first choice{more} by SkyPilot's catalog on this machine; capacity may decide otherwise"
    day, days = catalog.written(best.cloud, time.time())
    yield report.info(CHOICE, f"{what}; {age_text(day, days)}", why, price=best.price * nodes, priced=day)
    if limit is not None and best.price * nodes > limit:
        fix = "ask for less, for spot machines (spot=True), or allow more"
        yield report.error(COST, f"costs ${best.price * nodes:.2f} an hour", f"max_hourly_cost is ${limit:g}", fix)


OF_THIS_MACHINE = (
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CA_BUNDLE",
)
"""Variables that name files of this machine."""


class SkypilotBackend(Watched):
    """Runs jobs on machines that SkyPilot finds."""

    name = "skypilot"
    packages_in: Literal["image", "environment"] = "image"

    def __init__(self, site: Site, options: Mapping[str, Any]) -> None:
        self._site = site
        self._options = dict(options)
        settings = SkypilotSettings(**options)
        variables = credentials(site.artifacts, os.environ)
        self._secrets = {name: text for name, text in variables.items() if name not in OF_THIS_MACHINE}
        sky = SkyCommand(settings, os.environ)
        self._machines = SkypilotPlatform(site, self._options, sky, secrets=self._secrets)
        super().__init__(self._machines)

    def check(self, step: StepPlan) -> Iterable[Finding]:
        """What SkyPilot cannot give a step; nobody is asked."""
        yield from check(step, self._options, self._site)
        yield from missing_secrets(step, self._options, os.environ)

    def prove(self, steps: Sequence[StepPlan]) -> Iterator[Finding]:
        """The choice and its price by the user's own catalog, and what is dearer than allowed."""
        yield from prove(steps, self._options)

    def render(self, job: Job) -> Mapping[str, Any]:
        """The task, the command that launches it, and the order that its program takes; of a request that `check`
        refuses, why."""
        try:
            return self._request(job)
        except SettingsError as error:
            return {"refused": error.message}

    def _request(self, job: Job) -> dict[str, Any]:
        settings = settings_of(job.step, SkypilotSettings, self._options)
        task = requests.task_of(job.step, self._site, self._options, secrets=tuple(self._secrets))
        secrets = tuple(task.get("secrets", ()))
        managed = requests.is_managed(job.step, self._options)
        shape = requests.shape_of(task, managed=managed)
        name = str(settings.get("cluster_name") or f"{requests.prefix_of(job.run)}{shape}-0")
        root = f"{requests.root_of(self._site, job.run)}/{shape}-0"
        shares = bool(settings.get("shares_files"))
        order = requests.job_document(job, self._site, f"{root}/gang-0", shares=shares, token=requests.PLACEHOLDER)
        return {
            "command": ["sky", *requests.launch_words(name, "TASK", settings, managed=managed, secrets=secrets)],
            "task": requests.named_task(task, name, str(settings.get("task_name", "")), root),
            "worker": requests.worker_place(self._site),
            "order": to_json(order),
        }

    def by_hand(self, job: Job, request: Mapping[str, Any]) -> str:
        """A script with the task, which SkyPilot's own command launches."""
        from stoker.backends.base.byhand import subshell

        return subshell(_lines_by_hand(job, request, str(SkypilotSettings(**self._options).get("sky", "sky"))))

    def expect(self, steps: Sequence[StepPlan]) -> None:
        """Steps that may still run: clusters like theirs are kept for them."""
        self._machines.expect(steps)

    def settle(self, key: str, *, success: bool) -> None:
        """A step is settled."""
        self._machines.settle(key)


TASK = "task.json"


def _lines_by_hand(job: Job, request: Mapping[str, Any], sky: str) -> Iterator[str]:
    """It leaves the order, and then another one by which the program ends."""
    from stoker.backends.base.byhand import document_lines, input_lines, needs, needs_command, stop

    if "refused" in request:
        yield stop(f"refused: {request['refused']}")
        return
    yield from input_lines(job.key, request["order"]["job"]["inputs"])
    root = request["task"]["envs"][MAILBOX]
    if "://" in root:
        yield stop(
            f"missing: {root}/0/{order_note(0)}, and {JOB} beside it, in the artifact store: a run puts them there"
        )
    else:
        yield needs(request["worker"], "Stoker's worker, which the first run puts there")
        for node in range(request["task"]["num_nodes"]):
            folder = f"{root}/{node}/{order_folder(0)}"
            yield f"mkdir -p {shlex.quote(folder)} {shlex.quote(f'{root}/{node}/{order_folder(1)}')}"
            yield from document_lines(shlex.quote(f"{folder}/{JOB}"), {**request["order"], "package": ""})
            yield from document_lines(shlex.quote(f"{root}/{node}/{order_note(1)}"), to_json(MailOrder(leave=0)))
            yield from document_lines(shlex.quote(f"{root}/{node}/{order_note(0)}"), to_json(MailOrder()))
    yield from document_lines(TASK, request["task"])
    yield needs_command(sky, "pip install skypilot, in an environment of its own")
    words = [sky if word == "sky" else TASK if word == "TASK" else word for word in request["command"]]
    yield shlex.join([word for word in words if word != "--detach-run"])


OLDEST: Final = (0, 11)
"""The first release whose commands print JSON."""


def probe(options: Mapping[str, Any], request: ProbeRequest) -> Iterator[Check]:
    """The command and its release, the API server, the enabled clouds, the store, the catalog, and what runs there."""
    settings = SkypilotSettings(**options)
    sky = SkyCommand(settings, os.environ)
    try:
        version = _version(sky)
        release = numbers(version)
        old = release is not None and release < OLDEST
        yield Check(
            name="sky",
            found=version,
            problem="it is too old" if old else "",
            fix='pip install -U "skypilot>=0.11" in its environment' if old else "",
        )
        enabled = sky.json("check")  # starts a server on this machine where none is connected: `api info` does not
        yield Check(name="api server", found=_server(sky.json("api", "info")))
        yield from _clouds(enabled, settings)
        ours = [str(one.get("name")) for one in sky.clusters() if str(one.get("name")).startswith(PREFIX)]
        yield Check(name="clusters", found=", ".join(ours) or "none of Stoker's", problem="")
    except BackendError as error:
        yield Check(name="sky", found="", problem=error.message, fix=error.fix)
        return
    shared = "://" in request.store or bool(settings.get("shares_files"))
    yield Check(
        name="store",
        found=request.store,
        problem="" if shared else "machines of a cloud do not see it",
        fix="" if shared else "artifact_store = 's3://…'",
    )
    place = catalog.folder()
    clouds = sorted(file.parent.name for file in place.glob("*/vms.csv")) if place is not None else []
    yield Check(name="catalog", found=", ".join(clouds) or "none: prices are unknown (`sky gpus list` loads it)")


def _clouds(document: Any, settings: SkypilotSettings) -> Iterator[Check]:
    """The clouds that `sky check` has enabled, in any workspace: workspace → cloud → what it can be used for."""
    workspaces = list(document.values()) if isinstance(document, Mapping) else []
    if not isinstance(document, Mapping) or not all(isinstance(clouds, Mapping) for clouds in workspaces):
        yield Check(name="clouds", found="not known: what `sky check` printed is not understood")
        return
    names = sorted({str(name).lower() for clouds in workspaces for name in clouds})
    wanted = str(settings.get("infra") or settings.get("cloud") or "").partition("/")[0].lower()
    wanted = {"k8s": "kubernetes"}.get(wanted, wanted)
    missing = not names or (wanted not in ("", "*") and not any(name == wanted for name in names))
    yield Check(
        name="clouds",
        found=", ".join(names),
        problem=(f"{wanted or 'no cloud'} is not enabled" if names else "no cloud is enabled") if missing else "",
        fix="`sky check` says what is missing" if missing else "",
    )


def _server(info: Any) -> str:
    """What `sky api info` says of the server."""
    server = info.get("server") if isinstance(info, Mapping) else None
    facts = server if isinstance(server, Mapping) else {}
    words = [str(facts[name]) for name in ("url", "status", "version") if facts.get(name)]
    return ", ".join(words) or "it answers"


def _version(sky: SkyCommand) -> str:
    return next(iter(reversed(sky.call("--version").strip().splitlines())), "it does not say its release")


def numbers(version: str) -> tuple[int, int] | None:
    """The release of "skypilot, version 0.14.1"; None where none is named."""
    match = re.search(r"(?<![\w.])([0-9]+)\.([0-9]+)", version)
    return (int(match[1]), int(match[2])) if match is not None else None


def suggest(answers: Mapping[str, str]) -> Mapping[str, str]:
    """Empty for both: every enabled cloud, and the server that is logged in to. Asks whether SkyPilot answers."""
    SkyCommand(SkypilotSettings(sky=answers.get("sky") or "sky"), os.environ).call("--version")
    return {"infra": "", "api_server": ""}


# What runs left: clusters and managed jobs, known by their names.


def left_jobs(parts: Sequence[Mapping[str, Any]], scratch: str, runs: Collection[str]) -> Iterator[LeftJob]:
    """Clusters and managed jobs of runs; results lie in the artifact store."""
    for _, names in _machines(parts):
        for run in runs:
            for name in _of_run(names, run):
                yield LeftJob(run=run, name=name, running=True)


def end_left(parts: Sequence[Mapping[str, Any]], scratch: str, run: str, grace: float) -> Iterator[LeftJob]:
    """Take down what a run has left."""
    for sky, names in _machines(parts):
        mine = _of_run(names, run)
        end_names(sky, mine)
        for name in mine:
            yield LeftJob(run=run, name=name, running=True)


def end_recorded(options: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """Take down what a driver left, as it recorded it; what was there."""
    sky = SkyCommand(SkypilotSettings(**options), os.environ)
    return end_names(sky, {str(job["name"]): bool(job["managed"]) for job in jobs if job.get("name")})


def sweep_accounts(parts: Sequence[Mapping[str, Any]], sweep: Sweep) -> Iterator[Leftover]:
    """Take down what runs of this database have left that nobody continues."""
    kept = sweep.kept
    count = 0
    for part in parts:
        try:
            for sky, names in _machines([part]):
                old = {name: names[name] for run in sweep.ours if run not in kept for name in _of_run(names, run)}
                count += len(old)
                if old and not sweep.dry_run:
                    end_names(sky, old)
        except BackendError as error:  # `Away` among them
            sweep.say(error.message)
    yield Leftover(kind="skypilot_machines", noun="cluster", rest="of runs with SkyPilot", count=count)


def _of_run(names: Mapping[str, bool], run: str) -> dict[str, bool]:
    return {name: managed for name, managed in names.items() if name.startswith(prefix_of(run))}


def _machines(parts: Sequence[Mapping[str, Any]]) -> Iterator[tuple[SkyCommand, dict[str, bool]]]:
    """For each API server of the stacks, what it has of Stoker's: name → whether it is a managed job."""
    seen = set()
    for part in parts:
        settings = SkypilotSettings(**part)
        place = (settings.get("sky"), settings.get("api_server"))
        if place in seen:
            continue
        seen.add(place)
        sky = SkyCommand(settings, os.environ)
        names = {str(one.get("name")): False for one in sky.clusters()}
        for job in sky.managed_jobs(unfinished=True):
            names[str(job.get("job_name"))] = True
        yield sky, {name: managed for name, managed in names.items() if name.startswith(PREFIX)}


# Beside a step


def places(options: Mapping[str, Any], attempt: RunningAttempt) -> Iterator[Beside]:
    """The machines of the attempt's cluster; a `UsageError` where it has none that this machine reaches.

    The connections stay open as long as this process.
    """
    cluster = str(attempt.identity.get("cluster", ""))
    if not cluster:
        name = str(attempt.identity.get("name") or "ID")
        raise no_way(
            attempt,
            "ssh reaches clusters, and this job has none yet, or is managed by SkyPilot's controller",
            fix=f"read what it writes: stoker logs {attempt.run} {attempt.key}, or sky jobs logs --name {name}",
        )
    for node in range(int(attempt.identity.get("machines", 1))):
        host = f"{cluster}-worker{node}" if node else cluster
        machine = Ssh(Address(host))
        try:
            argv, terminal = machine.client(), machine.client(terminal=True)
        except Away as error:
            machine.close()
            fix = (
                f"have SkyPilot write the name for ssh here: sky status {cluster}; then see what `ssh {host} true` says"
            )
            raise no_way(attempt, error.message, fix=fix) from None
        yield Beside(where=host, argv=argv, terminal=terminal, inner=(), environment=attempt.environment)
