"""Clusters and managed jobs of SkyPilot that execute the steps of Stoker's runs: launched, used again, taken down.

What is launched for a step is a `SkyMachine`: a cluster, or a managed job, of one node or several. Each node runs a
program that takes orders from a mailbox in the artifact store (`backends.base.mailboxes`), so that the next step that
asks for the same starts where the last one ended, in a fraction of a second. A machine goes when no step that may still
run asks for its like, when the run ends, when its program has waited in vain for the driver (`patience`), and by its
autostop.

The driver learns how a step is from its mailbox; SkyPilot itself, whose command takes seconds, is asked in another
thread, seldom, whether the machine is still there.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Mapping, Sequence

import attrs

from stoker.backends.base import mailboxes
from stoker.backends.base.adoption import EarlierJobs, about
from stoker.backends.base.backend import settings_of
from stoker.backends.base.leasing import samples_file
from stoker.backends.base.mailboxes import Letter, LetterNews, OrderInfo
from stoker.backends.base.messages import nodes_of
from stoker.backends.base.platforms import JobReport
from stoker.backends.base.statuses import failed
from stoker.backends.skypilot import requests
from stoker.backends.skypilot.command import (
    GONE,
    WAITING,
    SkyCommand,
    SkyLaunch,
    cause_of_launch,
    last_lines,
    state_of_cluster,
    state_of_managed,
)
from stoker.backends.skypilot.settings import CLUSTERS, SkypilotSettings
from stoker.core.codec import from_json, parse_json, to_json
from stoker.core.errors import SettingsError, StokerError
from stoker.core.orders import MailState
from stoker.core.plan import Job, JobStatus, Site, StepPlan
from stoker.core.status import CANCELLED, PREEMPTED
from stoker.store import notes

ASK: Final = (10.0, 15.0, 30.0, 60.0)
"""Seconds between two questions to SkyPilot, longer while nothing changes."""
AGAIN: Final = 5
"""How often a job is sent once more whose machine was taken away, within one attempt of its step."""
RECORD: Final = "machine.json"
"""What a later driver must know of a machine, in the machine's folder."""
LAST_WORDS: Final = 10.0
"""Seconds after a machine is known to be gone in which its last notes may still come."""


@attrs.frozen(kw_only=True)
class MachineRecord:
    """A cluster or a managed job, for a later driver."""

    version: int = 1
    name: str
    managed: bool
    nodes: int
    shape: str
    """`requests.shape_of` of its task."""
    own: bool = True
    """Whether the run has made it; a cluster that the settings name is left to its autostop."""


@attrs.define(kw_only=True, eq=False)
class SkyMachine:
    """A cluster or a managed job, with the mailboxes of its nodes."""

    record: MachineRecord
    root: str
    """Its folder in the artifact store."""
    launch: SkyLaunch | None = None
    """The command that launches it, while that runs."""
    next: int = 0
    """The number of its next order."""
    up: bool = False
    """Whether the programs of all nodes wait for orders."""
    state: str = WAITING
    cause: str = ""
    words: str = ""
    gone_at: float = 0.0
    """When it was first seen to be gone, on the monotonic clock; 0: it is there."""
    busy: SkypilotHandle | None = None
    """The job that it executes, or will once it is up."""
    down: bool = False
    """Whether it was told to go."""

    @property
    def boxes(self) -> list[str]:
        """The mailbox of each node."""
        return [f"{self.root}/{node}" for node in range(self.record.nodes)]

    @property
    def usable(self) -> bool:
        """Whether it may take an order, now or when it is up."""
        return not self.down and not self.gone_at

    def lose(self, cause: str, words: str) -> None:
        """It is gone."""
        self.state, self.cause, self.words = GONE, cause, words
        self.gone_at = self.gone_at or time.monotonic()


@attrs.define(kw_only=True, eq=False)
class SkypilotHandle:
    """A job; without a machine it waits for one."""

    job: Job
    shape: str
    machine: SkyMachine | None = None
    letters: list[Letter] = attrs.field(factory=list)
    """An order for each node."""
    attempt: int = 0
    """The number of the attempt as which an earlier driver sent it; 0 for one of this driver."""
    ended: bool = False
    """Whether it was told to end."""
    again: int = 0
    """How often it was sent once more."""
    news: str = ""
    """Why it was sent once more, until that is reported."""


class SkypilotPlatform:
    """Launches machines, gives them orders, finds, follows and ends jobs."""

    def __init__(self, site: Site, options: Mapping[str, Any], sky: SkyCommand, *, secrets: Mapping[str, str]) -> None:
        self._site = site
        self._options = options
        self._settings = SkypilotSettings(**options)
        self._shares = bool(self._settings.get("shares_files"))
        self._sky = sky
        self._secrets = secrets
        """Variables that open the artifact store, for the machines."""
        self.answers = sky.answers
        self._machines: list[SkyMachine] = []
        self._handles: list[SkypilotHandle] = []
        self._earlier: EarlierJobs[tuple[SkyMachine, list[Letter], MailState | None]] = EarlierJobs()
        self._loaded = False
        self._worker = False
        """Whether Stoker's worker is in the artifact store."""
        self._lock = threading.Lock()
        self._expected: dict[str, str] = {}
        """Steps that may still run → the shape of their task."""
        self._asker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="stoker-sky")
        self._question: Future[list[tuple[SkyMachine, str, str, str]]] | None = None
        self._next_ask = 0.0
        self._calm = 0
        self._abandoned = False

    # Called by the run's loop

    def expect(self, steps: Sequence[StepPlan]) -> None:
        """Steps that may still run."""
        shapes = {step.key: self._shape(step) for step in steps}
        with self._lock:
            self._expected.update(shapes)

    def settle(self, key: str) -> None:
        """A step is settled; machines that no further step asks for are taken down at the next look."""
        with self._lock:
            self._expected.pop(key, None)

    def _shape(self, step: StepPlan) -> str:
        """The shape of a step's task; empty where its settings are refused."""
        try:
            return requests.shape_of(self._task(step), managed=requests.is_managed(step, self._options))
        except SettingsError:
            return ""

    def _task(self, step: StepPlan) -> dict[str, Any]:
        return requests.task_of(step, self._site, self._options, secrets=tuple(self._secrets))

    # Finding

    def find(self, jobs: Sequence[Job]) -> Mapping[str, SkypilotHandle]:
        """Handles of jobs that an earlier driver sent, and that still run, wait, or went well."""
        if not self._loaded:
            self._load(jobs[0].run)
            self._loaded = True
        handles = {}
        for job in jobs:
            adopted, others = self._earlier.adopt(job, self._is_worth_adopting)
            if adopted is not None:
                machine, letters, _ = adopted.handle
                handle = SkypilotHandle(
                    job=job,
                    shape=machine.record.shape,
                    machine=machine,
                    letters=[Letter(box=one.box, number=one.number) for one in letters],
                    attempt=adopted.attempt,
                )
                machine.busy = handle
                self._handles.append(handle)
                handles[job.name] = handle
            for _, letters, state in others:
                if state is None or not state.over:
                    for letter in letters:
                        mailboxes.ask_end(letter, 0.0)
        return handles

    def _is_worth_adopting(self, order: tuple[SkyMachine, list[Letter], MailState | None]) -> bool:
        """Whether a job of an earlier driver may still go well, or has."""
        machine, letters, state = order
        if state is None or not state.over:
            return machine.usable and machine.busy is None
        return mailboxes.went_well(letters[0])

    def _load(self, run: str) -> None:
        """Read what an earlier driver of the run left, and ask SkyPilot which of its machines are there."""
        root = requests.root_of(self._site, run)
        for name in sorted(mailboxes.asked("machines", lambda: notes.names(root))):
            text = mailboxes.asked("machine", lambda name=name: notes.get(f"{root}/{name}/{RECORD}"))  # type: ignore[misc]
            if text is not None:
                record = from_json(MachineRecord, parse_json(text), strict=False)
                self._machines.append(SkyMachine(record=record, root=f"{root}/{name}"))
        if not self._machines:
            return
        for machine, state, cause, words in self._states(list(self._machines)):
            if state == GONE:
                machine.lose(cause, words)
            machine.state = state
        for machine in self._machines:
            self._load_orders(machine, run)

    def _load_orders(self, machine: SkyMachine, run: str) -> None:
        for letter, info, state in mailboxes.orders(machine.boxes[0]):
            machine.next = max(machine.next, letter.number + 1)
            letters = [Letter(box=box, number=letter.number) for box in machine.boxes]
            if info is None:
                machine.down = True  # an order that only says that nothing more comes
                continue
            if not machine.usable and (state is None or not state.over):
                for one in letters:  # should it come up after all, it does not begin
                    mailboxes.ask_end(one, 0.0)
            self._earlier.note(run, attrs.asdict(info), (machine, letters, state))

    # Sending

    def send(self, jobs: Sequence[Job]) -> Mapping[str, SkypilotHandle | JobStatus]:
        """Queue jobs for machines; those that are free take them at once."""
        self._upload_worker()
        sent: dict[str, SkypilotHandle | JobStatus] = {}
        for job in jobs:
            handle = SkypilotHandle(job=job, shape=self._shape(job.step))
            self._handles.append(handle)
            sent[job.name] = handle
        self._assign()
        return sent

    def _upload_worker(self) -> None:
        """Leave Stoker's worker in the artifact store, unless it is there."""
        if self._worker:
            return
        mailboxes.bring_worker(self._site.bundle, requests.worker_place(self._site))
        self._worker = True

    def _assign(self) -> None:
        """Give waiting jobs to free machines of their shape, and launch machines for the others."""
        for handle in self._handles:
            if handle.machine is not None or handle.ended:
                continue
            like = [one for one in self._machines if one.usable and one.record.shape == handle.shape]
            free = [one for one in like if one.busy is None]
            machine = next((one for one in free if one.up), free[0] if free else None)
            if machine is None and len(like) < self._most(handle.job.step):
                machine = self._launch(handle)
            if machine is not None:
                self._order(handle, machine)

    def _most(self, step: StepPlan) -> int:
        settings = settings_of(step, SkypilotSettings, self._options)
        return 1 if settings.get("cluster_name") else int(settings.get("clusters", CLUSTERS))

    def _launch(self, handle: SkypilotHandle) -> SkyMachine:
        """Launch a cluster or a managed job for a job: recorded first, so that a later driver knows of it."""
        job = handle.job
        settings = settings_of(job.step, SkypilotSettings, self._options)
        managed = requests.is_managed(job.step, self._options)
        own = settings.get("cluster_name")
        number = len(self._machines)
        name = str(own or f"{requests.prefix_of(job.run)}{handle.shape}-{number}")
        root = f"{requests.root_of(self._site, job.run)}/{handle.shape}-{number}"
        record = MachineRecord(
            name=name,
            managed=managed,
            nodes=requests.nodes_asked(job.step, settings),
            shape=handle.shape,
            own=not own,
        )
        text = json.dumps(to_json(record)).encode()
        mailboxes.asked("machine", lambda: notes.put(f"{root}/{RECORD}", text))
        task = requests.named_task(self._task(job.step), name, str(settings.get("task_name", "")), root)
        folder = Path(self._site.scratch) / "skypilot"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.json"
        path.write_text(json.dumps(task, indent=1))
        words = requests.launch_words(
            name, str(path), settings, managed=managed, secrets=tuple(task.get("secrets", ()))
        )
        launch = self._sky.launch(words, folder / f"{name}.log", self._secrets)
        machine = SkyMachine(record=record, root=root, launch=launch, words="SkyPilot looks for its machine")
        self._machines.append(machine)
        return machine

    def _order(self, handle: SkypilotHandle, machine: SkyMachine) -> None:
        """Give a job to a machine: an order for each node, the first node's last."""
        job = handle.job
        info = OrderInfo(**about(job))
        letters = [Letter(box=box, number=machine.next) for box in machine.boxes]
        folder = f"{machine.root}/gang-{machine.next}"
        document = requests.job_document(job, self._site, folder, shares=self._shares)
        for letter in reversed(letters):
            mailboxes.send(letter, document, info)
        machine.next += 1
        machine.busy, handle.machine, handle.letters = handle, machine, letters

    # Following

    def look(self, handles: Mapping[str, SkypilotHandle]) -> Mapping[str, JobReport]:
        """What is new of jobs, from their mailboxes, and now and then from SkyPilot."""
        self._look_at_launches()
        self._look_at_states()
        self._release()
        self._assign()
        starting = {one: one.boxes for one in self._machines if one.usable and not one.up}
        if starting:
            there = mailboxes.are_up([box for boxes in starting.values() for box in boxes])
            for machine, boxes in starting.items():
                machine.up = there.issuperset(boxes)
        news = mailboxes.look([letter for handle in handles.values() for letter in handle.letters])
        reports = {}
        for name, handle in handles.items():
            report = self._report(handle, [news.get(letter) for letter in handle.letters])
            if report is not None:
                reports[name] = report
        if any(one.output or one.status is not None for one in reports.values()):
            self._calm = 0
        return reports

    def _look_at_launches(self) -> None:
        """Which of the commands that launch something have ended, and how."""
        for machine in self._machines:
            launch = machine.launch
            if launch is None:
                continue
            code = launch.code
            if code is None:
                lines = [line for line in launch.text().splitlines() if line.strip()]
                machine.words = lines[-1].strip() if lines else machine.words
                continue
            if code and not machine.down:
                text = launch.text()
                cause, fix = cause_of_launch(text)
                machine.lose(cause, f"SkyPilot could not launch it: {last_lines(text)}" + (f"; {fix}" if fix else ""))
            machine.launch = None
            launch.close()

    def _look_at_states(self) -> None:
        """Take SkyPilot's answer, and ask again when it is time."""
        if self._question is not None and self._question.done():
            question, self._question = self._question, None
            for machine, state, cause, words in question.result():
                if state == GONE and machine.launch is None:
                    machine.lose(cause, words)
                elif state != machine.state or words != machine.words:
                    machine.state, machine.words = state, words
            self._next_ask = time.monotonic() + ASK[min(self._calm, len(ASK) - 1)]
            self._calm += 1
        watched = [one for one in self._machines if one.usable and one.busy is not None and one.launch is None]
        if watched and self._question is None and time.monotonic() >= self._next_ask:
            self._question = self._asker.submit(self._states, watched)

    def _states(self, machines: Sequence[SkyMachine]) -> list[tuple[SkyMachine, str, str, str]]:
        """State, cause and words of machines, asked of SkyPilot."""
        clusters = [one for one in machines if not one.record.managed]
        managed = [one for one in machines if one.record.managed]
        states = []
        if clusters:
            known = {str(one.get("name")): one for one in self._sky.clusters(refresh=True)}
            states += [(one, *state_of_cluster(known.get(one.record.name))) for one in clusters]
        if managed:
            jobs: dict[str, Mapping[str, Any]] = {}
            for job in self._sky.managed_jobs():  # the latest of a name is the first
                jobs.setdefault(str(job.get("job_name") or job.get("task_name")), job)
            states += [(one, *state_of_managed(jobs.get(one.record.name))) for one in managed]
        return states

    def _report(self, handle: SkypilotHandle, news: Sequence[LetterNews | None]) -> JobReport | None:
        machine = handle.machine
        if machine is None:
            if handle.ended:
                return JobReport(status=failed(CANCELLED))
            return JobReport(message=handle.news or "waits until one of the clusters is free", reason="clusters")
        first = news[0] if news else None
        if first is None:
            return self._unclaimed(handle, machine)
        output = [
            (node, stream, data) for node, one in enumerate(news) if one is not None for stream, data in one.output
        ]
        status = None
        if first.state.over:
            if first.result is None and first.state.lost:
                return self._lost(handle, machine, PREEMPTED, "its machine was taken away", output)
            if self._all_over(news, machine):
                if first.result is not None:
                    path = samples_file(handle.job, self._site, "skypilot")
                    mailboxes.keep_samples(handle.job, path, map(mailboxes.samples, handle.letters))
                status = mailboxes.status_of(handle.job, first, ended=handle.ended)
        elif machine.gone_at and time.monotonic() - machine.gone_at > LAST_WORDS:
            return self._lost(handle, machine, machine.cause, machine.words, output)
        if status is not None:
            self._free(handle)
        facts = {"node": first.state.host, **_login_of(machine.record)}
        return JobReport(running=True, facts=facts, output=output, status=status)

    def _all_over(self, news: Sequence[LetterNews | None], machine: SkyMachine) -> bool:
        """Whether no node of a gang writes any more: the machine must be free for the next step."""
        return bool(machine.gone_at) or all(one is not None and one.state.over for one in news)

    def _lost(
        self,
        handle: SkypilotHandle,
        machine: SkyMachine,
        cause: str,
        words: str,
        output: Sequence[tuple[int, str, bytes]],
    ) -> JobReport:
        """A job whose machine is gone: sent once more, since that is no fault of the step's, or over."""
        self._free(handle)
        if handle.ended:
            return JobReport(running=True, output=output, status=failed(CANCELLED))
        if handle.again < AGAIN and nodes_of(handle.job) == machine.record.nodes:
            handle.again += 1
            handle.machine, handle.letters = None, []
            handle.news = f"{words}; it is sent again"
            return JobReport(message=handle.news, reason=f"again {handle.again}", output=output)
        return JobReport(running=True, output=output, status=failed(cause, words))

    def _unclaimed(self, handle: SkypilotHandle, machine: SkyMachine) -> JobReport | None:
        """What is known of a job that no program has taken."""
        if handle.ended and not machine.up:
            self._free(handle)
            return JobReport(status=failed(CANCELLED))
        if machine.gone_at:
            self._free(handle)
            if handle.attempt or machine.up:
                return self._lost(handle, machine, machine.cause, machine.words, ())
            return JobReport(status=failed(machine.cause, machine.words))
        words = machine.words or ("its program has not asked for it yet" if machine.up else "its machine is set up")
        return JobReport(message=words, reason="launching")

    def _free(self, handle: SkypilotHandle) -> None:
        machine = handle.machine
        if machine is not None and machine.busy is handle:
            machine.busy = None

    # Ending

    def end(self, handles: Mapping[str, SkypilotHandle], *, grace: float) -> None:
        """Ask jobs to end; one that no machine has taken is never begun."""
        for handle in handles.values():
            handle.ended = True
            for letter in handle.letters:
                mailboxes.ask_end(letter, grace)

    def forget(self, handle: SkypilotHandle) -> None:
        """Remove the files of a job that is over and read."""
        self._free(handle)
        if handle in self._handles:
            self._handles.remove(handle)
        for letter in handle.letters:
            mailboxes.clear(letter)

    def _release(self) -> None:
        """Let machines go that no step asks for any more: each costs money while it waits."""
        with self._lock:
            wanted = set(self._expected.values())
        wanted |= {handle.shape for handle in self._handles if handle.machine is None}
        idle = [
            one
            for one in self._machines
            if one.usable and one.busy is None and one.record.shape not in wanted and one.up and self._goes(one)
        ]
        if idle:
            self._take_down(idle)

    def _goes(self, machine: SkyMachine) -> bool:
        """Whether a machine is this run's own to take down."""
        return machine.record.managed or (machine.record.own and bool(self._settings.get("down", True)))

    def _take_down(self, machines: Sequence[SkyMachine]) -> None:
        """Have the programs end, and SkyPilot take the machines down, in the other thread."""
        for machine in machines:
            machine.down = True
        self._asker.submit(self._end_machines, list(machines))

    def _end_machines(self, machines: Sequence[SkyMachine]) -> None:
        for machine in machines:
            with contextlib.suppress(StokerError):  # its program leaves when it has waited long enough
                for box in machine.boxes:
                    mailboxes.dismiss(box, machine.next, 0)
        with contextlib.suppress(StokerError):  # autostop takes it down, and `stoker gc` names it
            self._sky.down([one.record.name for one in machines if not one.record.managed and self._goes(one)])
        for machine in machines:
            if machine.record.managed and (not machine.up or machine.busy is not None):
                with contextlib.suppress(StokerError):
                    self._sky.cancel_jobs(machine.record.name)

    def identity(self, handle: SkypilotHandle) -> Mapping[str, Any]:
        """The machine by which another process ends the job."""
        machine = handle.machine
        if machine is None:
            return {"job": "a job that waits for a cluster", "name": "", "managed": False}
        kind = "managed job" if machine.record.managed else "cluster"
        return {"job": f"SkyPilot's {kind} {machine.record.name}", **_identity(machine.record)}

    def adopted_attempt(self, handle: SkypilotHandle) -> int:
        """The attempt as which an earlier driver sent the job."""
        return handle.attempt

    def doubtful(self) -> Sequence[Mapping[str, Any]]:
        """Machines that are being launched for nobody any more."""
        idle = [one for one in self._machines if one.usable and one.busy is None]
        return [{"job": f"SkyPilot's {one.record.name}", **_identity(one.record)} for one in idle]

    def abandon(self) -> None:
        """Ask nothing more."""
        self._abandoned = True
        self._sky.abandon()
        self._asker.shutdown(wait=False, cancel_futures=True)
        for machine in self._machines:
            if machine.launch is not None:
                machine.launch.close()

    def close(self) -> None:
        """Take down all that the run has launched."""
        machines = [one for one in self._machines if not one.down]  # one that is lost may be stopped, and cost its disk
        if machines:
            self._take_down(machines)
        self._asker.shutdown(wait=True)
        for machine in self._machines:
            if machine.launch is not None:
                machine.launch.close()


def _login_of(record: MachineRecord) -> dict[str, str]:
    """The cluster as ssh calls it, and how many machines it has; nothing of a managed job."""
    return {} if record.managed else {"cluster": record.name, "machines": str(record.nodes)}


def _identity(record: MachineRecord) -> dict[str, Any]:
    return {"name": record.name if record.own or record.managed else "", "managed": record.managed}


def end_names(sky: SkyCommand, names: Mapping[str, bool]) -> list[str]:
    """Take down clusters, and cancel managed jobs, by their names → whether they are managed; those that were there."""
    ended = []
    clusters = [name for name, managed in names.items() if not managed]
    if clusters:
        known = {str(one.get("name")) for one in sky.clusters()}
        there = [name for name in clusters if name in known]
        sky.down(there)
        ended += [f"SkyPilot's cluster {name}" for name in there]
    if len(clusters) < len(names):
        unfinished = {str(one.get("job_name")) for one in sky.managed_jobs(unfinished=True)}
        for name in names:
            if names[name] and name in unfinished:
                sky.cancel_jobs(name)
                ended.append(f"SkyPilot's managed job {name}")
    return ended
