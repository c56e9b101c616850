"""SkyPilot as a backend: clusters and managed jobs on any cloud, which the steps of a run share.

What is asked for is decided in `requests`, and here what is refused. `check` asks nobody; `prove` looks for SkyPilot's
command, and reads the user's own SkyPilot catalog: for the choice that is shown in the plan, and the limits on what it
may cost. `platform` launches and follows what was asked for.
"""

from __future__ import annotations

import os
import shlex
import time
from typing import Any, Final, Iterable, Iterator, Literal, Mapping, Sequence

from stoker.backends.base.backend import settings_of
from stoker.backends.base.messages import credentials
from stoker.backends.base.platforms import own_visibility, ranks_elsewhere
from stoker.backends.base.watched import Watched
from stoker.backends.skypilot import catalog, requests
from stoker.backends.skypilot.catalog import Offer
from stoker.backends.skypilot.command import SkyCommand, find_command
from stoker.backends.skypilot.platform import SkypilotPlatform
from stoker.backends.skypilot.requests import MAILBOX
from stoker.backends.skypilot.settings import SkypilotSettings
from stoker.core.codec import to_json
from stoker.core.costs import age_text
from stoker.core.errors import BackendError, SettingsError
from stoker.core.findings import Finding, Reporter
from stoker.core.orders import JOB, MailOrder, order_folder, order_note
from stoker.core.plan import Job, Site, StepPlan, reporter_of
from stoker.core.units import duration_text, size_text, value_or

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
