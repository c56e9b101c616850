"""The programs of one Ray cluster that run the steps of runs: started, given orders, found again, followed and ended.

A run has one program, which takes the run's steps as they become ready (`backends.ray.job`). It outlives its driver:
the next one finds it by its metadata, hears from its journal which steps it has taken, and adopts those that went well
or still run.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Final, Iterable, Mapping, Sequence

import attrs

from stoker.backends.base.adoption import EarlierJobs
from stoker.backends.base.mailboxes import archive
from stoker.backends.base.messages import nodes_of
from stoker.backends.base.platforms import Away, JobReport
from stoker.backends.base.statuses import failed, of_boot
from stoker.backends.ray import orders as rayorders
from stoker.backends.ray import tasks as raytasks
from stoker.backends.ray.jobs import ASKED, OVER, DashboardLog, Jobs, JournalFile, RecordSource
from stoker.backends.ray.settings import RaySettings
from stoker.core.codec import from_json
from stoker.core.errors import BackendError
from stoker.core.plan import Job, JobStatus, Site
from stoker.core.protocol import SealedSecrets, StepResult
from stoker.core.status import CANCELLED, REFUSED, WORKER_LOST
from stoker.store import notes
from stoker.store.filesystems import url_to_fs
from stoker.worker.secrets import seal

ASK: Final = (1.0, 2.0, 5.0, 10.0)
"""Seconds between two questions for the states of all Ray jobs, longer while they run: what happens in a job is told by
its program, so that this only finds those whose program is gone."""
MISSING: Final = 60.0
"""Seconds for which the dashboard may not mention a job that it had taken, before that counts as lost."""
NODE: Final = 20.0
"""Seconds between two questions for the node of a program that runs."""
LAST_WORDS: Final = 5.0
"""Seconds after a Ray job's end in which the rest of its log may still come."""
TOGETHER: Final = 2000
"""Steps in one order at most: some 3 kB each, and a package is read into the dashboard's memory."""
QUICK: Final = 0.01
"""Seconds between two looks at a program's journal at least."""
SHARE: Final = 0.05
"""A journal is looked at once in this part of the time in which nothing has happened."""
SLOW: Final = 1.0
"""Seconds between two looks at most."""


@attrs.define(kw_only=True, eq=False)
class RayProgram:
    """A Ray job whose program runs steps of one run, and what is known of them, by their number."""

    id: str
    run: str
    folder: str
    source: RecordSource
    steps: int = 0
    """How many it was sent."""
    taken: set[int] = attrs.field(factory=set)
    """Those that it has taken and that are not over; they may run."""
    taken_steps: int = 0
    """How many it has taken."""
    running: set[int] = attrs.field(factory=set)
    waiting: dict[int, str] = attrs.field(factory=dict)
    """Why steps wait."""
    facts: dict[int, Mapping[str, str]] = attrs.field(factory=dict)
    """The node on which each step began, and Ray's id of its task there."""
    results: dict[int, Mapping[str, Any]] = attrs.field(factory=dict)
    """The "over" records of steps that ended and are not reported yet."""
    output: dict[int, list[tuple[int, str, bytes]]] = attrs.field(factory=dict)
    """What was not reported yet: node, stream, bytes."""
    noted: bool = False
    """Whether nodes of a gang may have left notes in the artifact store."""
    earlier: bool = False
    """Whether an earlier driver started it, and its steps are not known yet."""
    names: list[Mapping[str, Any]] = attrs.field(factory=list)
    """The steps of the earlier driver that it has taken."""
    ends: dict[int, float] = attrs.field(factory=dict)
    """Steps that were asked to end, with their grace in seconds."""
    orders: int = 0
    """How many orders it has taken, its document included."""
    queue: list[dict[str, Any]] = attrs.field(factory=list)
    """Orders that are not sent yet; the first of them may be on its way."""
    posted: str = ""
    """The token of an order in the cluster's store that it has not taken yet; there is one at a time."""
    fence: str = ""
    """The token of an order whose answer shows that no order of an earlier driver is left; empty when it has come."""
    up: bool = False
    """Whether the program has said that it is there."""
    done: bool = False
    """Whether the program has written its last record: it takes nothing more."""
    closing: bool = False
    """Whether it was told that nothing more will come."""
    state: str = "PENDING"
    """As the dashboard reports it."""
    message: str = ""
    last_seen: float = attrs.field(factory=time.monotonic)
    """When the dashboard last mentioned the job, on the monotonic clock."""
    listed: bool = False
    """Whether the dashboard has mentioned the job."""
    misses: int = 0
    """How often in a row it has not."""
    check_node_at: float = attrs.field(factory=lambda: time.monotonic() + NODE)
    """When to ask for its program's node, on the monotonic clock."""
    node_gone: bool = False
    """Whether that node was gone at the last question."""
    over_at: float = 0.0
    """When the job was first seen to be over, on the monotonic clock; 0: not yet."""

    @property
    def over(self) -> bool:
        """Whether nothing more comes of it."""
        return self.done or self.state in OVER

    @property
    def all_end(self) -> bool:
        """Whether each of its steps is over, or was told to end at once."""
        untaken = range(self.taken_steps, self.steps)
        return all(self.ends.get(number) == 0.0 for number in (*self.taken, *untaken))


@attrs.define(kw_only=True, eq=False)
class RayHandle:
    """A job as a step of a program; one that its program has left behind becomes a step of another program."""

    job: Job
    program: RayProgram
    number: int
    """Of its step in the program."""
    attempt: int = 0
    """The number of the attempt as which an earlier driver sent it; 0 for one of this driver."""

    @property
    def memory(self) -> int:
        """The step's memory limit in bytes; 0: none."""
        return int(self.job.step.settings.resources.get("memory", 0))


@attrs.frozen(kw_only=True)
class UnsentProgram:
    """A program that is being started; kept until the cluster has confirmed it."""

    program: RayProgram
    token: str
    handles: Sequence[RayHandle]
    """Of its first steps."""
    followed: bool
    """Whether the handles are known to the caller: they were steps of another program."""


class RayPlatform:
    """Starts programs on one cluster, gives them orders, finds, follows and ends their steps."""

    def __init__(self, site: Site, options: Mapping[str, Any], jobs: Jobs, *, shares: bool) -> None:
        self._site = site
        self._options = options
        self._settings = RaySettings(**options)
        self._jobs = jobs
        self.answers = jobs.answers
        self._shares = shares
        self._programs: list[RayProgram] = []
        self._earlier: EarlierJobs[tuple[RayProgram, int]] = EarlierJobs()
        self._loaded: set[str] = set()
        self._unheard: list[RayProgram] = []
        """Programs of earlier drivers that have not told yet which steps they have taken."""
        self._handles: dict[RayProgram, dict[int, RayHandle]] = {}
        self._unsent: UnsentProgram | None = None
        self._package = ""
        self._halves: dict[str, list[str]] = {}
        """Where second halves of secrets lie, by the names of the jobs."""
        self._next_ask = 0.0
        self._calm = 0

    def gather(self) -> float:
        """Seconds to wait for further jobs before those that were submitted are sent: none for a program that runs."""
        return 0.0 if any(program.up and not program.over for program in self._programs) else 0.05

    def pause(self, quiet: float) -> float:
        """Seconds until the next look, if nothing has changed for `quiet` seconds."""
        return max(QUICK, min(SHARE * quiet, SLOW))

    # Finding

    def find(self, jobs: Sequence[Job]) -> Mapping[str, RayHandle]:
        """Handles of jobs that an earlier driver sent, and that still run, wait, or went well."""
        for run in {job.run for job in jobs} - self._loaded:
            self._load(run)
            self._loaded.add(run)
        self._hear()
        handles: dict[str, RayHandle] = dict(self._confirm(jobs))
        if self._unheard:
            return handles
        for job in jobs:
            if job.name in handles:
                continue
            adopted, others = self._earlier.adopt(job, lambda one: _is_worth_adopting(*one))
            if adopted is not None:
                program, number = adopted.handle
                handles[job.name] = self._follow(program, number, job, attempt=adopted.attempt)
            for program, number in others:
                self._end_in(program, {number: 0.0})
        return handles

    def _confirm(self, jobs: Sequence[Job]) -> Mapping[str, RayHandle]:
        """Handles of the jobs whose request got no answer and was taken all the same."""
        if self._unsent is None or self._jobs.job(self._unsent.program.id) is None:
            return {}
        return self._started(self._unsent, jobs)

    def _load(self, run: str) -> None:
        """Find the programs of earlier drivers of a run; those that live are asked what they have taken."""
        for one in self._jobs.jobs():
            metadata = one.get("metadata") or {}
            if metadata.get("stoker.run") != run or metadata.get("stoker.home") != self._site.scratch:
                continue
            if self._shares and not os.path.isdir(metadata["stoker.folder"]):
                continue  # its driver had read it to its end
            program = self._program(one["submission_id"], run, metadata["stoker.folder"])
            program.state, program.earlier, program.noted = one["status"], True, True
            self._read(program)
            if not program.over:
                program.fence = os.urandom(8).hex()
                program.queue.append({"token": program.fence, "steps": []})
            self._unheard.append(program)

    def _hear(self) -> None:
        """Take over what the programs of earlier drivers have told by now."""
        if not self._unheard:
            return
        for program in self._unheard:
            self._read(program)
            self._flush(program)
        self._poll_states(self._unheard)
        for program in list(self._unheard):
            if program.fence and not program.over:
                continue
            self._unheard.remove(program)
            program.steps, program.earlier = program.taken_steps, False
            self._programs.append(program)
            for number, step in enumerate(program.names):
                self._earlier.note(program.run, step, (program, number))

    def _program(self, id: str, run: str, folder: str) -> RayProgram:
        source: RecordSource = JournalFile(f"{folder}/journal") if self._shares else DashboardLog(self._jobs, id)
        return RayProgram(id=id, run=run, folder=folder, source=source)

    def _follow(self, program: RayProgram, number: int, job: Job, *, attempt: int = 0) -> RayHandle:
        handle = RayHandle(job=job, program=program, number=number, attempt=attempt)
        self._handles.setdefault(program, {})[number] = handle
        return handle

    # Sending

    def send(self, jobs: Sequence[Job]) -> Mapping[str, RayHandle]:
        """Give jobs to the run's program; where there is none, start it. A program whose request got no answer is
        started again first, unchanged: the cluster knows by its id whether it was."""
        if self._unheard:
            return {}
        if self._unsent is None:
            jobs = jobs[:TOGETHER]
            program = self._open_program(jobs[0].run)
            if program is not None:
                handles = [self._follow(program, program.steps + number, job) for number, job in enumerate(jobs)]
                self._order(program, handles)
                return {handle.job.name: handle for handle in handles}
            self._unsent = self._prepare(jobs)
        unsent = self._unsent
        if self._jobs.job(unsent.program.id) is None:
            self._start(unsent)
        return self._started(unsent, jobs)

    def _open_program(self, run: str) -> RayProgram | None:
        programs = (one for one in self._programs if one.run == run and not one.over and not one.closing)
        return next(programs, None)

    def _order(self, program: RayProgram, handles: Sequence[RayHandle]) -> None:
        """Have a program run further steps, whose numbers follow those that it has."""
        shared: dict[str, Any] = {"folder": program.folder, "shares": self._shares, "package": self._package}
        jobs = [handle.job for handle in handles]
        steps = raytasks.entries(jobs, self._site, self._options, sealed=self._seal(jobs, program.folder), **shared)
        program.noted = program.noted or any(nodes_of(job) > 1 or job.secrets for job in jobs)
        program.queue.append({"token": os.urandom(8).hex(), "first": program.steps, "steps": steps})
        program.steps += len(steps)
        with contextlib.suppress(Away):  # it is sent again at the next look
            self._flush(program)

    def _flush(self, program: RayProgram) -> None:
        """Send a program's orders; in the cluster's store, one after the other has been taken."""
        if program.over:
            program.queue.clear()
        while program.queue and not program.posted:
            order = program.queue[0]
            if self._shares:
                try:
                    rayorders.append(f"{program.folder}/{rayorders.FILE}", order)
                except OSError as error:
                    raise Away(f"{program.folder}/{rayorders.FILE} cannot be written: {error.strerror}") from error
            else:
                if not program.up:
                    return  # how many orders it has taken is not known before
                name = rayorders.package_of(program.id, program.orders)
                self._jobs.put_package(name, json.dumps(order).encode())
                program.posted = order["token"]
            del program.queue[0]

    def _started(self, unsent: UnsentProgram, jobs: Sequence[Job]) -> Mapping[str, RayHandle]:
        """Handles of the jobs of a program that the cluster has; those that nobody wants any more are ended."""
        self._unsent = None
        program = unsent.program
        self._programs.append(program)
        self._next_ask, self._calm = 0.0, 0
        wanted_names = {job.name for job in jobs}
        wanted = [handle for handle in unsent.handles if unsent.followed or handle.job.name in wanted_names]
        self._handles[program] = {handle.number: handle for handle in wanted}
        unwanted = {handle.number: 0.0 for handle in unsent.handles if handle not in wanted}
        if unwanted:
            self._end_in(program, unwanted)
        return {handle.job.name: handle for handle in wanted}

    def _prepare(self, jobs: Sequence[Job], handles: Sequence[RayHandle] = ()) -> UnsentProgram:
        """A program for jobs, under an id that the cluster does not know yet: what it knows is over, or was found
        before. `handles` are those of the jobs, where they have some already."""
        run, token, again = jobs[0].run, raytasks.token_of(jobs), 0
        while self._jobs.job(id := raytasks.submission_id(run, token, again)) is not None:
            again += 1
        program = self._program(id, run, f"{self._root()}/{run}/{token}" + (f"-{again}" if again else ""))
        program.steps = len(jobs)
        for number, handle in enumerate(handles):
            handle.program, handle.number = program, number
        fresh = handles or [RayHandle(job=job, program=program, number=number) for number, job in enumerate(jobs)]
        return UnsentProgram(program=program, token=token, handles=fresh, followed=bool(handles))

    def _start(self, unsent: UnsentProgram) -> None:
        program = unsent.program
        package = "" if self._shares else self._uploaded_package()
        shared: dict[str, Any] = {"folder": program.folder, "shares": self._shares}
        jobs = [handle.job for handle in unsent.handles]
        program.noted = any(nodes_of(job) > 1 or job.secrets for job in jobs)
        sealed = self._seal(jobs, program.folder)
        steps = raytasks.entries(jobs, self._site, self._options, package=package, sealed=sealed, **shared)
        shared |= {"id": program.id, "run": program.run}
        document = raytasks.document(steps, self._site, self._options, token=unsent.token, **shared)
        body = raytasks.request(self._site, self._settings, package=package, **shared)
        try:
            data = json.dumps(document).encode()
            if self._shares:
                write_file(program.folder, rayorders.FILE, b"")
                write_file(program.folder, raytasks.DOCUMENT, data)
            else:
                self._jobs.put_package(rayorders.package_of(program.id, 0), data)
            self._jobs.submit(body)
        except BackendError as error:
            if not isinstance(error, Away):
                self._unsent = None
                remove_folder(program.folder)
            raise

    def _seal(self, jobs: Sequence[Job], folder: str) -> dict[str, SealedSecrets]:
        """What stands for the secrets of jobs in what the cluster is sent; the other halves are written."""
        sealed = {}
        for job in jobs:
            if not job.secrets:
                continue
            sealed[job.name], other = seal(job.secrets, folder)
            place = sealed[job.name].place
            try:
                write_file(folder, place.rpartition("/")[2], other) if self._shares else notes.put(place, other)
            except Exception as error:  # whatever the store's own library raises
                raise Away(f"{place} cannot be written: {type(error).__name__}: {error}") from error
            self._halves.setdefault(job.name, []).append(place)
        return sealed

    def _root(self) -> str:
        return f"{self._site.scratch}/ray" if self._shares else f"{self._site.artifacts}/ray"

    def _uploaded_package(self) -> str:
        """The URI of Stoker's worker in the cluster, uploaded if it is not there."""
        if not self._package:
            name = f"_ray_pkg_stoker_{Path(self._site.bundle).name.partition('-')[2]}.zip"
            if not self._jobs.has_package(name):
                self._jobs.put_package(name, archive(Path(self._site.bundle)))
            self._package = f"gcs://{name}"
        return self._package

    # Following

    def look(self, handles: Mapping[str, RayHandle]) -> Mapping[str, JobReport]:
        """What is new of jobs, from their journals and, in one call for all, from the dashboard."""
        programs = list(dict.fromkeys(handle.program for handle in handles.values()))
        away: Away | None = None
        for program in programs:
            try:
                self._read(program)
                self._flush(program)
            except Away as error:
                away = error
        if away is None:
            try:
                self._poll_states(programs)
                self._send_again(handles.values())
            except Away as error:
                away = error
        updates = {name: update for name, handle in handles.items() if (update := self._update(handle)) is not None}
        if away is not None and not updates:
            raise away
        return updates

    def _read(self, program: RayProgram) -> None:
        """Read the records of a program."""
        if program.done:
            return
        for record in program.source.read():
            number = record.get("step", -1)
            if "data" in record:
                piece = (record["node"], record["stream"], record["data"].encode("latin-1"))
                program.output.setdefault(number, []).append(piece)
            elif "on" in record:
                program.running.add(number)
                if record.get("task"):
                    program.facts.setdefault(number, {"node": record["on"], "task": record["task"]})
            elif "waiting" in record:
                program.waiting[number] = record["waiting"]
            elif "samples" in record:
                self._keep_samples(*record["samples"])
            elif "over" in record:
                program.results[number] = record["over"]
                program.taken.discard(number)
            elif "taken" in record:
                self._note_taken(program, record)
            elif "up" in record:
                program.up = True
            elif record.get("done"):
                program.done = True
                program.source.close()

    def _note_taken(self, program: RayProgram, record: Mapping[str, Any]) -> None:
        """Note that a program has taken an order."""
        token, first, steps = record["token"], record["first"], record["steps"]
        program.orders = record["taken"] + 1
        program.taken.update(range(first, first + len(steps)))
        program.taken_steps = max(program.taken_steps, first + len(steps))
        program.queue = [order for order in program.queue if order["token"] != token]
        if program.earlier:
            program.names += steps
        if token == program.fence:
            program.fence = program.posted = ""
        elif program.fence and program.posted == program.fence:
            # An order of the earlier driver had this number: it is asked again under the next one.
            program.queue.insert(0, {"token": program.fence, "steps": []})
            program.posted = ""
        elif token == program.posted:
            program.posted = ""

    def _keep_samples(self, path: str, text: str) -> None:
        """Write the samples of a node without shared folders to this machine's scratch."""
        if os.path.dirname(path) == self._site.scratch:
            os.makedirs(self._site.scratch, exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)

    def _poll_states(self, programs: Sequence[RayProgram]) -> None:
        """Ask the dashboard for the states of all Ray jobs, where it is time to."""
        now = time.monotonic()
        waiting = [program for program in programs if not program.done]
        if not waiting or now < self._next_ask:
            return
        reported = {job["submission_id"]: job for job in self._jobs.jobs()}
        pending = any(program.state == "PENDING" for program in waiting)
        self._calm = 0 if pending else min(self._calm + 1, len(ASK) - 1)
        self._next_ask = now + ASK[self._calm]
        for program in waiting:
            job = reported.get(program.id)
            if job is None:
                self._calm = 0
                program.misses += 1
                if (program.listed and program.misses > 1) or now > program.last_seen + MISSING:
                    program.state = "FAILED"
                    program.message = (
                        "the Ray cluster no longer knows the job: its head was restarted, and remembers no job without "
                        "fault tolerance of its control service (GCS)"
                    )
                continue
            program.listed, program.misses = True, 0
            program.last_seen, program.state, program.message = now, job["status"], job.get("message") or ""
            if program.state == "RUNNING" and now >= program.check_node_at:
                self._check_node(program, str(job.get("driver_node_id") or ""), now)
            if program.state in OVER:
                # Its last words are read after its end was seen: what is there now is all.
                program.over_at = program.over_at or now
                program.source.close()
                self._read(program)

    def _check_node(self, program: RayProgram, node: str, now: float) -> None:
        """Note the end of a program whose node is gone: Ray may call its job running for minutes after a restart."""
        program.check_node_at = now + NODE
        if not node or self._jobs.is_alive(node):
            program.node_gone = False
        elif not program.node_gone:  # a control service that has just started may not have heard of it yet
            program.node_gone, program.check_node_at, self._next_ask = True, now, now + ASK[1]
        else:
            program.state, program.message = "FAILED", f"its program's node {node} is gone: was the head restarted?"

    def _send_again(self, handles: Iterable[RayHandle]) -> None:
        """Give the steps that a program had not taken when it left to another one."""
        if self._unsent is not None:
            if self._unsent.followed:
                self._restart(self._unsent)
            return
        left = [
            handle
            for handle in handles
            if handle.program.done
            and handle.number >= handle.program.taken_steps
            and handle.number not in handle.program.ends
        ]
        for run in dict.fromkeys(handle.job.run for handle in left):
            moved = [handle for handle in left if handle.job.run == run][:TOGETHER]
            for handle in moved:
                del self._handles[handle.program][handle.number]
            program = self._open_program(run)
            if program is None:
                self._unsent = self._prepare([handle.job for handle in moved], moved)
                self._restart(self._unsent)
                return
            for number, handle in enumerate(moved, program.steps):
                handle.program, handle.number = program, number
                self._handles.setdefault(program, {})[number] = handle
            self._order(program, moved)

    def _restart(self, unsent: UnsentProgram) -> None:
        if self._jobs.job(unsent.program.id) is None:
            self._start(unsent)
        self._started(unsent, ())

    def _update(self, handle: RayHandle) -> JobReport | None:
        program, number = handle.program, handle.number
        output = program.output.pop(number, ())
        result = program.results.get(number)
        if result is not None:
            return JobReport(output=output, status=_status(result, handle))
        untaken = program.done and number >= program.taken_steps
        if untaken:
            return JobReport(status=failed(CANCELLED)) if number in program.ends else None
        patience = 0.0 if self._shares else LAST_WORDS
        if program.over and time.monotonic() > program.over_at + patience:
            return JobReport(output=output, status=self._status_without_result(handle))
        if number in program.running:
            return JobReport(running=True, output=output, facts=program.facts.get(number, {}))
        message = program.waiting.get(number, "")
        if not message and program.state == "PENDING":
            message = f"Ray starts its job: {program.message}" if program.message else "Ray starts its job"
        # How much is free changes all the time: what is waited for does not.
        reason = message.partition(":")[0]
        return JobReport(message=message, reason=reason, output=output) if message or output else None

    def _status_without_result(self, handle: RayHandle) -> JobStatus:
        """The status of a job whose program ended without reporting it."""
        program = handle.program
        if handle.number in program.ends:
            return failed(CANCELLED)
        if program.state == "STOPPED":
            return failed(CANCELLED, f"somebody stopped the Ray job {program.id}")
        words = " ".join(program.message.split())[-1000:]
        message = f"the Ray job {program.id} ended: {words or 'Ray does not say why'}"
        return failed(WORKER_LOST if program.up else REFUSED, message)

    # Ending

    def end(self, handles: Mapping[str, RayHandle], *, grace: float) -> None:
        """Ask jobs to end."""
        by_program: dict[RayProgram, dict[int, float]] = {}
        for handle in handles.values():
            by_program.setdefault(handle.program, {})[handle.number] = grace
        for program, ends in by_program.items():
            self._end_in(program, ends)

    def _end_in(self, program: RayProgram, ends: Mapping[int, float]) -> None:
        """Ask steps of a program to end; a Ray job that has not begun, and has nothing else to do, is stopped."""
        fresh = {
            number: grace
            for number, grace in ends.items()
            if number not in program.results and grace < program.ends.get(number, float("inf"))
        }
        if program.over or not fresh:
            return
        program.ends.update(fresh)
        graces = {str(number): grace for number, grace in fresh.items()}
        program.queue.append({"token": os.urandom(8).hex(), "first": program.steps, "steps": [], "ends": graces})
        self._flush(program)
        if program.all_end and not program.up:
            program.closing = True
            self._jobs.stop(program.id)

    def forget(self, handle: RayHandle) -> None:
        """A job is over; with the last one of a program that has left, the program's files are removed."""
        program, number = handle.program, handle.number
        for place in self._halves.pop(handle.job.name, ()):
            with contextlib.suppress(BackendError):  # it says nothing by itself, and goes with the program's folder
                remove_half(place)
        followed = self._handles.get(program, {})
        followed.pop(number, None)
        program.running.discard(number)
        for known in (program.output, program.results, program.facts, program.waiting, program.ends):
            known.pop(number, None)
        if program.over and not followed and not any(one is program for one, _ in self._earlier.remaining()):
            self._remove(program)

    def _remove(self, program: RayProgram) -> None:
        self._programs = [one for one in self._programs if one is not program]
        self._handles.pop(program, None)
        program.source.close()
        if self._shares or program.noted:
            remove_folder(program.folder)

    def identity(self, handle: RayHandle) -> Mapping[str, Any]:
        """The Ray job of its program."""
        id = handle.program.id
        return {
            "job": f"step {handle.number} of the Ray job {id}",
            "id": id,
            "url": f"{self._jobs.address}/#/jobs/{id}",
        }

    def adopted_attempt(self, handle: RayHandle) -> int:
        """The attempt as which an earlier driver sent the job."""
        return handle.attempt

    def doubtful(self) -> Sequence[Mapping[str, Any]]:
        """The Ray job whose request got no answer."""
        unsent = self._unsent
        return [] if unsent is None else [{"job": f"the Ray job {unsent.program.id}", "id": unsent.program.id}]

    def abandon(self) -> None:
        """Break off the request that waits for an answer."""
        self._jobs.abandon()

    def close(self) -> None:
        """Tell the programs that nothing more will come, end what nobody wants, and close connections."""
        for program in [*self._unheard, *self._programs]:
            with contextlib.suppress(BackendError):
                self._close_program(program)
            with contextlib.suppress(BackendError):  # what stays is found by `stoker gc`
                self._remove(program)
        self._jobs.close()

    def _close_program(self, program: RayProgram) -> None:
        """Have a program end all that still runs, and leave."""
        if program.over:
            return
        busy = bool(program.taken or program.steps > program.taken_steps or program in self._unheard)
        program.closing, program.posted = True, ""
        program.queue.append({"token": os.urandom(8).hex(), "steps": [], "all": 0.0, "close": True})
        self._flush(program)
        if busy or program.queue:
            self._jobs.stop(program.id)


def _status(over: Mapping[str, Any], handle: RayHandle) -> JobStatus:
    """The status of a job, from the record of its end."""
    if over.get("cause"):
        return failed(over["cause"], over.get("message", ""))
    if over.get("result") is not None:
        return of_boot(from_json(StepResult, over["result"], strict=False), None, memory=handle.memory)
    code = over.get("code")
    why = f"exit code {code}" if code is None or code >= 0 else f"signal {-code}"
    cause = CANCELLED if handle.number in handle.program.ends else WORKER_LOST
    return attrs.evolve(failed(cause, f"Stoker's worker ended without a result: {why}"), exit_code=code)


def _is_worth_adopting(program: RayProgram, number: int) -> bool:
    """Whether a job of an earlier driver went well, or may still."""
    over = program.results.get(number)
    return not program.over if over is None else bool((over.get("result") or {}).get("ok"))


def write_file(folder: str, name: str, data: bytes) -> None:
    """A file of the folder, whole or not at all; readable for nobody else."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    descriptor, beside = tempfile.mkstemp(dir=folder, prefix=".new-")
    with os.fdopen(descriptor, "wb") as plain:
        plain.write(data)
    os.replace(beside, os.path.join(folder, name))


def remove_half(place: str) -> None:
    """Remove the second half of secrets; a `BackendError` where the store does not answer."""
    try:
        notes.remove(place)
    except Exception as error:  # whatever the store's own library raises
        raise BackendError(f"{place} cannot be removed: {type(error).__name__}: {error}") from error


def remove_folder(folder: str) -> None:
    """Remove a folder; one that is gone is ignored."""
    if "://" not in folder:
        shutil.rmtree(folder, ignore_errors=True)
        return
    try:
        system, name = url_to_fs(folder)
        system.rm(name, recursive=True)
    except FileNotFoundError:
        return
    except Exception as error:  # whatever the store's own library raises
        raise BackendError(f"{folder} cannot be removed: {type(error).__name__}: {error}") from error


def end_recorded(options: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Stop Ray jobs that a driver left; returns the names of those that were not over."""
    with contextlib.closing(Jobs(RaySettings(**options), os.environ, patience=ASKED)) as client:
        reported = {one["submission_id"]: one["status"] for one in client.jobs()}
        ids = [id for id in dict.fromkeys(str(job["id"]) for job in jobs) if reported.get(id, "STOPPED") not in OVER]
        for id in ids:
            client.stop(id)
        return [f"the Ray job {id}" for id in ids]
