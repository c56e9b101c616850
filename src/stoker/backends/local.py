"""This machine: warm worker processes forked from a server that has imported the user's module.

A step with `isolation="fresh"` gets a process of its own that ends with it. Every other step runs in a warm worker, one
at a time; short elements of a fan-out may stand in line behind each other. When a worker dies, the job that it was
running has failed, and those that it had not read are sent again.
"""

from __future__ import annotations

import selectors
import sys
import time
from typing import Any, Iterable, Iterator, Mapping

from stoker.backends.forked import ForkServer, Line, documents
from stoker.backends.machine import check, room
from stoker.core.errors import BackendError
from stoker.core.findings import Finding
from stoker.core.plan import Capacity, Job, JobStatus, LogLine, Site, StepPlan


class LocalBackend:
    """Runs jobs in processes on this machine."""

    name = "local"

    def __init__(self, site: Site, options: Mapping[str, Any]) -> None:
        self._site = site
        self._room = room(options)
        self._server: ForkServer | None = None
        self._selector = selectors.DefaultSelector()
        self._lines: dict[int, Line] = {}
        self._idle: list[Line] = []
        self._jobs: dict[str, Job] = {}
        self._line_of: dict[str, Line] = {}
        self._news: dict[str, JobStatus] = {}
        self._logs: dict[str, list[LogLine]] = {}
        self._steps: dict[str, int] = {}
        self._count = 0

    # Deciding

    def capacity(self) -> Capacity:
        """The machine's CPUs and memory, or what the stack's settings leave of them."""
        return self._room

    def check(self, step: StepPlan) -> Iterable[Finding]:
        """What this machine cannot give a step."""
        return check(step, self._room)

    def render(self, job: Job) -> Mapping[str, Any]:
        """The command of the fork server and the message that a worker is sent."""
        return {
            "command": [sys.executable, "-m", "stoker.runtime.forkserver"],
            "message": {**job_message(job, 0), "steps": {"0": step_document(job.step)}},
        }

    # Doing

    def submit(self, job: Job) -> str:
        """Give the job to an idle worker, to a new one, or, if it may, into the line of a busy one."""
        if job.name in self._jobs:
            return job.name
        self._jobs[job.name] = job
        try:
            self._send(self._line_for(job), job)
        except BackendError:
            # It went away since the last poll: what it held is told to the engine, and another one takes its place.
            self._server_is_gone()
            self._place(job)
        return job.name

    def _place(self, job: Job) -> None:
        try:
            self._send(self._line_for(job), job)
        except BackendError as error:
            # Lost, not refused: the engine submits it again, and counts how often. In the middle of a poll this is no
            # moment to give up all lines; the poll will hear by itself that the fork server is gone.
            self._forget(job.name, JobStatus(state="unknown", lost=True, message=str(error)))

    def _line_for(self, job: Job) -> Line:
        if job.step.settings.isolation == "fresh" and job.kind == "step":
            return self._forked(once=True, environment=job.step.settings.environment)
        if self._idle:
            return self._idle.pop()
        lines = [line for line in self._lines.values() if self._takes_more(line)] if job.behind else []
        return min(lines, key=_length) if lines else self._forked(once=False, environment={})

    def _takes_more(self, line: Line) -> bool:
        return bool(line.jobs) and not line.once and self._jobs[line.jobs[-1]].marked

    def _forked(self, *, once: bool, environment: Mapping[str, str]) -> Line:
        if self._server is None:
            self._server = ForkServer(self._site)
            self._selector.register(self._server.fileno(), selectors.EVENT_READ, None)
        self._count += 1
        line = Line(self._count, once=once)
        try:
            self._server.fork(line, environment)
        except BackendError:
            line.let_go()
            line.close()
            raise
        self._lines[line.number] = line
        self._selector.register(line.results, selectors.EVENT_READ, line)
        for output in line.outputs:
            self._selector.register(output.descriptor, selectors.EVENT_READ, line)
        return line

    def _send(self, line: Line, job: Job) -> None:
        number = self._steps.setdefault(job.step.key, len(self._steps))
        message = job_message(job, number)
        if number not in line.steps:
            message["steps"] = {str(number): step_document(job.step)}
        line.send(job.name, message, self._site.scratch)
        self._line_of[job.name] = line

    def wakeups(self) -> Iterable[int]:
        """One descriptor that stands for every worker's."""
        return (self._selector.fileno(),)

    def poll(self, ids: Iterable[str]) -> Mapping[str, JobStatus]:
        """What is new since the last call."""
        gone = False
        for key, _ in self._selector.select(0):
            line: Line | None = key.data
            if line is None:
                gone = self._hear()
            elif line.number in self._lines:
                self._read(line)
        if gone:
            self._server_is_gone()
        self._share()
        news, self._news = self._news, {}
        for name, lines in self._logs.items():
            status = news.get(name)
            if status is None:
                news[name] = JobStatus(state="running", lines=tuple(lines))
            else:
                # Built by hand: attrs.evolve costs ten times as much, and this runs for every step.
                news[name] = _with_lines(status, tuple(lines))
        self._logs = {}
        return news

    def _read(self, line: Line, *, over: bool = False) -> None:
        """Results first, then output: whatever a finished job wrote is in the pipes by the time its result is."""
        finished: list[dict[str, Any]] = []
        while True:
            try:
                data = line.results.recv(1 << 18)
            except BlockingIOError:
                break
            if not data:
                self._unwatch(line.results.fileno())
                break
            finished.extend(line.frames.feed(data))
            if len(data) < 1 << 18:
                break
        for output in line.outputs:
            if not output.read(self._logs, all=over or bool(finished)):
                self._unwatch(output.descriptor)
        for result in finished:
            if "began" in result:
                self._news[result["job"]] = JobStatus(state="running", started=result["began"])
            else:
                self._finish(line, result)

    def _finish(self, line: Line, result: dict[str, Any]) -> None:
        name = result["job"]
        job = self._jobs.pop(name, None)
        if job is None:
            return
        line.jobs.popleft()
        del self._line_of[name]
        line.steps.add(self._steps[job.step.key])
        if not job.marked:
            for output in line.outputs:
                output.end(self._logs)
        line.retired = bool(result.get("retired"))
        if line.retired:
            self._send_elsewhere(line)
        elif not line.jobs and not line.once:
            self._idle.append(line)
        self._news[name] = JobStatus(
            state="succeeded" if result["ok"] else "failed",
            result=result,
            cause=result.get("cause", ""),
            started=result["start"],
            ended=result["end"],
            usage={"cpu": result["cpu"], **({"peak": result["peak"]} if "peak" in result else {})},
        )

    def _share(self) -> None:
        """Idle workers take what stands unread in others' lines."""
        if not self._idle:
            return
        longest = max((line for line in self._lines.values() if len(line.jobs) > 1), key=_length, default=None)
        if longest is not None:
            for name in self._taken_back(longest):
                self._again(name)

    def _taken_back(self, line: Line) -> list[str]:
        """The jobs that stood unread in a line; a worker that had not even read its first one is idle then."""
        names = line.take_back()
        if names and not line.jobs and not line.once and not line.retired:
            self._idle.append(line)
        return names

    def _again(self, name: str) -> None:
        self._line_of.pop(name, None)
        self._place(self._jobs[name])

    def _send_elsewhere(self, line: Line) -> None:
        for name in line.take_back():
            self._again(name)

    def _hear(self) -> bool:
        """Take in what the fork server says; whether it is gone."""
        server = self._server
        if server is None:
            return False
        messages, there = server.heard()
        for message in messages:
            if message["op"] == "exited":
                line = self._lines.get(message["worker"])
                if line is not None:
                    self._worker_exited(line, message)
        return not there

    def _worker_exited(self, line: Line, message: Mapping[str, Any]) -> None:
        self._read(line)
        unread = line.take_back()
        # The job that was running goes first, so that what the worker wrote last is still its own.
        if line.jobs:
            self._fail(line, line.jobs[0], message)
        elif unread:
            # It died before it read a job. That may be the job's doing, so the engine counts how often it happens.
            self._forget(unread.pop(0), JobStatus(state="unknown", lost=True))
        self._drop(line)
        for name in unread:
            self._again(name)

    def _fail(self, line: Line, name: str, message: Mapping[str, Any]) -> None:
        line.jobs.popleft()
        for output in line.outputs:
            output.end(self._logs)
        self._forget(
            name,
            JobStatus(
                state="failed",
                exit_code=message["code"] if message["signal"] is None else -message["signal"],
                ended=time.time(),
                usage={"peak": message["peak"]},
            ),
        )

    def _forget(self, name: str, status: JobStatus) -> None:
        self._jobs.pop(name, None)
        self._line_of.pop(name, None)
        self._news[name] = status

    def _drop(self, line: Line) -> None:
        del self._lines[line.number]
        if line in self._idle:
            self._idle.remove(line)
        for descriptor in (line.results.fileno(), *(output.descriptor for output in line.outputs)):
            self._unwatch(descriptor)
        line.close()

    def _unwatch(self, descriptor: int) -> None:
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)

    def _server_is_gone(self) -> None:
        """Everything that ran is lost with it; the next job starts another one, without importing ahead."""
        server, self._server = self._server, None
        if server is None:
            return
        self._selector.unregister(server.fileno())
        words = server.last_words()
        server.close()
        message = "the process that held the workers went away" + (f": {words}" if words else "")
        for line in list(self._lines.values()):
            self._read(line, over=True)
            unread = line.take_back()
            if line.jobs:
                name = line.jobs[0]
                for output in line.outputs:
                    output.end(self._logs)
                self._forget(name, JobStatus(state="failed", cause="worker-lost", message=message, ended=time.time()))
            for name in [*list(line.jobs)[1:], *unread]:
                self._forget(name, JobStatus(state="unknown", lost=True, message=message))
            self._drop(line)

    def logs(self, id: str, *, follow: bool = False) -> Iterator[LogLine]:
        """Nothing more than what `poll` brought."""
        return iter(())

    def cancel(self, id: str, *, grace: float) -> None:
        """End a job's process and all it started; a job still in line is only taken out of it."""
        line = self._line_of.get(id)
        if line is None or self._server is None:
            return
        if line.jobs[0] != id:
            for name in self._taken_back(line):
                if name == id:
                    self._forget(name, JobStatus(state="failed", cause="cancelled", ended=time.time()))
                else:
                    self._again(name)
            if id not in self._line_of:
                return
        self._server.end(line.number, grace=grace)

    def close(self) -> None:
        """End every worker."""
        if self._server is not None:
            self._selector.unregister(self._server.fileno())
            self._server.close()
            self._server = None
        for line in list(self._lines.values()):
            self._drop(line)
        self._selector.close()


def _length(line: Line) -> int:
    return len(line.jobs)


def _with_lines(status: JobStatus, lines: tuple[LogLine, ...]) -> JobStatus:
    return JobStatus(
        state=status.state,
        result=status.result,
        cause=status.cause,
        message=status.message,
        exit_code=status.exit_code,
        started=status.started,
        ended=status.ended,
        lost=status.lost,
        lines=lines,
        usage=status.usage,
    )


def job_message(job: Job, number: int) -> dict[str, Any]:
    """What a worker is told of a job; `number` stands for its step."""
    message: dict[str, Any] = {"job": job.name, "step": number, "inputs": job.inputs}
    if job.marked:
        message["mark"] = True
    if job.kind == "step" and job.step.settings.timeout is not None:
        message["timed"] = True
    if job.kind == "hook":
        message["kind"] = "hook"
        message["hook"] = documents([job.hook])[0]
        message["told"] = dict(job.told)
    return message


def step_document(step: StepPlan) -> dict[str, Any]:
    """What a worker is told of a step, once."""
    return {
        "name": step.name,
        "source": documents([step.source])[0],
        "outputs": [output.name for output in step.outputs],
        "unpack": step.unpack,
        "split": list(step.split),
        "environment": dict(step.settings.environment),
    }
