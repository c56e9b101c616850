"""What the platforms of AWS have in common: a job's log, how it ended, what its containers left, and who ends it.

A job is known to AWS by a name or an id, and lies in the artifact store as a folder (`jobs`): so a driver finds what a
killed one sent, also where the request got no answer.

CloudWatch has lines as events, without empty ones, some seconds after they were written; a very long line is several.
The container leaves a copy of all lines at its end. Both have the same lines in the same order: the number of those
taken says what is missing.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import re
import time
from typing import Any, Final, Generic, Iterable, Literal, Mapping, Sequence, TypeVar

import attrs

from stoker.backends.aws.api import AwsClient, AwsError
from stoker.backends.aws.jobs import DOCUMENT, JobPlaces, packed
from stoker.backends.base.adoption import EarlierJobs
from stoker.backends.base.mailboxes import asked, bring_worker, keep_samples
from stoker.backends.base.platforms import JobReport
from stoker.backends.base.statuses import failed, of_boot, read_result
from stoker.core.codec import parse_json
from stoker.core.errors import BackendError
from stoker.core.plan import Job, JobStatus, Site
from stoker.core.protocol import MARK, WorkerEvent
from stoker.core.status import CANCELLED, REFUSED, WORKER_LOST
from stoker.store import notes

log = logging.getLogger(__name__)

AGAIN: Final = 16
"""How often a job is sent again whose instance was taken away or failed, before it counts as failed."""
LAST_WORDS: Final = 15.0
"""Seconds after the end of a killed container in which CloudWatch may still get its last lines."""
UNSEEN: Final = 60.0
"""Seconds for which AWS may not know a job that was just sent, or has lost one."""
READ: Final = 20
"""Log streams that are read at one look: the account has 25 GetLogEvents a second.
https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/cloudwatch_limits_cwl.html"""
MARKED: Final = MARK.encode()
ENDED: Final = (MARK + json.dumps({"batch": "end"})).encode()
"""The last line of the container's program."""
PAGES: Final = 10
"""Pages of one stream that are read at one look; a page has up to 10,000 lines."""
CUT: Final = range(262_115, 262_119)
"""Bytes of an event whose line goes on in the next one: Docker's log driver and Fargate's cut lines at 262,118 bytes,
before a character that would be cut. https://github.com/moby/moby/blob/v28.0.0/daemon/logger/awslogs/cloudwatchlogs.go"""


# How jobs end

Outcome = Literal["succeeded", "failed", "cancelled", "interrupted"]
Object = Mapping[str, Any]
"""A job as the service describes it."""


@attrs.frozen(kw_only=True)
class AwsEnd:
    """How a job ended."""

    state: Outcome
    """"interrupted": the platform took its instance away or failed, and the step's code is not to blame."""
    cause: str = ""
    """A word of `core.status`; empty of "succeeded"."""
    message: str = ""
    """What happened and what to do, in words."""
    exit_code: int | None = None
    free: bool = False
    """Whether the end uses up none of the user's retries: the job is sent again."""
    later: bool = False
    """Whether it is sent again after a pause: what it lacks may be there later."""
    part: int | None = None
    """Which node or element decided, of a job with several."""
    moment: float | None = None
    """When it ended, in seconds since the epoch, where AWS says it."""
    source: str = ""
    """The page that the reading follows; empty where the exit code alone decided."""


@attrs.frozen(kw_only=True)
class EndRow:
    """One way in which a job ends, known by words of AWS's."""

    pattern: re.Pattern[str]
    """Found in the reason that AWS gives."""
    cause: str
    message: str
    """In words; "{words}" stands for the reason, and the names of the pattern's groups for what was found."""
    source: str
    free: bool = False
    later: bool = False

    def end(self, message: str) -> AwsEnd:
        """The end of a job that this row fits, in words. The step's code is not to blame for one that is free."""
        state: Outcome = "interrupted" if self.free else "failed"
        return AwsEnd(
            state=state, cause=self.cause, message=message, free=self.free, later=self.later, source=self.source
        )


def end_row(pattern: str, cause: str, message: str, source: str, *, free: bool = False, later: bool = False) -> EndRow:
    """A row, whose pattern is found in letters of any case."""
    compiled = re.compile(pattern, re.IGNORECASE | re.DOTALL)
    return EndRow(pattern=compiled, cause=cause, message=message, source=source, free=free, later=later)


# Lines


class StreamReader:
    """How much of a log was read, and what was not taken yet."""

    def __init__(self, stream: str = "") -> None:
        self.stream = stream
        """The log stream; empty where it is not known."""
        self.ended = False
        """Whether all of it is known."""
        self._token = ""
        self._refused = False
        self._part = b""
        """The beginning of a line that goes on in the next event."""
        self._count = 0
        self._lines: list[bytes] = []

    def read(self, client: AwsClient, group: str, stream: str) -> None:
        """Read what is new of the log stream; the lines of one that may not be read come from the copy."""
        if self.ended or self._refused:
            return
        for _ in range(PAGES):
            try:
                events, token = client.log_events(group, stream, self._token)
            except AwsError as error:
                if not error.denied:
                    raise
                log.warning("the log %s of %s comes at the end of the job: %s", stream, group, error)
                self._refused = True
                return
            for event in events:
                text = str(event.get("message") or "").encode()
                self._part += text
                if len(text) not in CUT:
                    self._add([self._part])
                    self._part = b""
            if token == self._token:
                return
            self._token = token

    def complete(self, copy: bytes) -> None:
        """Take the lines that are missing from the copy, which has all of them."""
        lines = [line for line in copy.split(b"\n") if line]
        self._part = b""
        self._add(lines[self._count :])
        self.ended = True

    def take(self) -> list[bytes]:
        """The lines that were read since the last call."""
        lines, self._lines = self._lines, []
        return lines

    def give(self, lines: list[bytes]) -> None:
        """Put lines of an earlier stream before those of this one; they do not count as its own."""
        self._lines = [*lines, *self._lines]

    def _add(self, lines: list[bytes]) -> None:
        for line in lines:
            if line == ENDED:
                self.ended = True
            elif line:
                self._count += 1
                self._lines.append(line)


# Jobs


@attrs.define(kw_only=True, eq=False)
class AwsJob:
    """A job of AWS's, with one job of Stoker's, or several."""

    name: str
    """At AWS."""
    folder: str
    """In the artifact store."""
    nodes: int = 1
    about: Sequence[Mapping[str, Any]] = ()
    """The key, kind, attempt and digest of each of Stoker's jobs."""
    seen: float = attrs.field(factory=time.monotonic)
    """When it was last described, or sent, on the monotonic clock."""


Place = TypeVar("Place", bound=AwsJob)


@attrs.define(kw_only=True, eq=False)
class AwsHandle(Generic[Place]):
    """A job as a job of AWS's, or as one of its parts."""

    job: Job
    place: Place
    index: int = 0
    """Its number among those of the place."""
    attempt: int = 0
    """The number of the attempt as which an earlier driver sent it; 0 for one of this driver."""
    streams: dict[int, StreamReader] = attrs.field(factory=dict)
    """By node."""
    left: list[tuple[int, str, bytes]] = attrs.field(factory=list)
    """What earlier jobs of it wrote, and was not passed on yet."""
    events: list[WorkerEvent] = attrs.field(factory=list)
    """Events that were not passed on yet."""
    running: bool = False
    again: int = 0
    """How often it was sent again, for no fault of the step's."""
    ending: bool = False
    over_since: float = 0.0
    """When its end was first seen, on the monotonic clock; 0: not yet."""
    facts: dict[str, str] = attrs.field(factory=dict)
    row: Mapping[str, Any] = attrs.field(factory=dict)
    """As it was last described."""

    @property
    def text(self) -> str:
        """What people call it."""
        raise NotImplementedError

    @property
    def memory(self) -> int:
        """The step's memory limit in bytes; 0: none."""
        return int(self.job.step.settings.resources.get("memory", 0))


Handle = TypeVar("Handle", bound=AwsHandle[Any])
Client = TypeVar("Client", bound=AwsClient)


class AwsPlatform(Generic[Handle, Place, Client]):
    """Finds, follows and ends jobs; how they are sent and described is each service's own."""

    places: JobPlaces

    def __init__(self, site: Site, options: Mapping[str, Any], client: Client) -> None:
        self._site, self._options, self._client = site, options, client
        self.answers = client.answers
        self._earlier: EarlierJobs[tuple[Place, int, str]] = EarlierJobs()
        """Each with its place there and its state."""
        self._worker_there = False

    # What each service has of its own

    def _load(self, job: Job) -> bool:
        """Find what earlier drivers of a job's run sent, once; false where it has no place here."""
        raise NotImplementedError

    def _is_worth(self, state: str) -> bool:
        """Whether a job in this state runs, waits, or went well."""
        raise NotImplementedError

    def _end_earlier(self, place: Place, index: int, state: str) -> None:
        """End a job of an earlier driver that nobody wants, if it is not over."""
        raise NotImplementedError

    def _follow(self, place: Place, index: int, job: Job, *, attempt: int = 0) -> Handle:
        """The handle of a job."""
        raise NotImplementedError

    def _stop(self, handle: Handle) -> None:
        """Have a job end."""
        raise NotImplementedError

    def _end_of(self, handle: Handle) -> AwsEnd | None:
        """How a job ended, as AWS says it."""
        raise NotImplementedError

    def _end_doubtful(self) -> None:
        """End what was sent without an answer."""
        raise NotImplementedError

    # Finding

    def find(self, jobs: Sequence[Job]) -> Mapping[str, Handle]:
        """Handles of jobs that an earlier driver sent, and that still run, wait, or went well."""
        handles: dict[str, Handle] = {}
        for job in jobs:
            if not self._load(job):
                continue
            adopted, others = self._earlier.adopt(job, lambda one: self._is_worth(one[2]))
            if adopted is not None:
                place, index, _ = adopted.handle
                handles[job.name] = self._follow(place, index, job, attempt=adopted.attempt)
            for one in others:
                self._end_earlier(*one)
        return handles

    def _document_in(self, folder: str) -> Mapping[str, Any] | None:
        """The document of a job; None where all of it is known and its folder is removed."""
        data = asked("job", lambda: notes.get(f"{folder}/{DOCUMENT}"))
        return None if data is None else parse_json(gzip.decompress(data))

    def _add_earlier(self, run: str, place: Place, states: Iterable[str]) -> None:
        """Note the jobs of a place of an earlier driver's, each with its state."""
        for index, (state, one) in enumerate(zip(states, place.about, strict=True)):
            self._earlier.note(run, one, (place, index, state))

    # Sending

    def _leave(self, folder: str, document: Mapping[str, Any]) -> None:
        """Leave the document of a job in the artifact store, with what its container needs besides."""
        if not self._worker_there:
            self._upload_programs()
            self._worker_there = True
        data = packed(document)
        asked("document", lambda: notes.put(f"{folder}/{DOCUMENT}", data))

    def _upload_programs(self) -> None:
        """Leave Stoker's worker in the artifact store, unless it is there."""
        place = self.places.worker(self._site)
        if place:
            bring_worker(self._site.bundle, place)

    def _sent_again(self, handle: Handle, new: Place, end: AwsEnd) -> str:
        """A job was sent once more, in words. It is the same attempt: what happened is no fault of the step's."""
        before = handle.text
        handle.again += 1
        handle.left = self._output(handle)
        handle.place, handle.index = new, 0
        handle.running, handle.over_since = False, 0.0
        handle.streams.clear()
        message = f"{end.message.partition(';')[0]}; it is started again as {handle.text}"
        handle.events.append(WorkerEvent(kind="noted", note="requeued", data={"job": before, "message": message}))
        return message

    # Lines and ends

    def _with_lines(self, handles: Mapping[str, Handle], reports: Mapping[str, JobReport]) -> dict[str, JobReport]:
        """Reports with lines and events, taken when all calls are made: one without an answer ends the look, and what
        was read before it is passed on by the next."""
        return {
            name: attrs.evolve(report, output=self._output(handles[name]), events=_taken(handles[name].events))
            for name, report in reports.items()
        }

    def _output(self, handle: Handle) -> list[tuple[int, str, bytes]]:
        """Take what was read of a job's logs, and of those before it."""
        here, there = (name.removesuffix(".jsonl").encode() for name in self.places.samples(handle.job, self._site))
        pieces = _taken(handle.left)
        for node, reader in handle.streams.items():
            lines = [
                line.replace(here, there) if line.startswith(MARKED) else line
                for line in reader.take()
                if line != ENDED
            ]
            if lines:
                pieces.append((node, "stdout", b"\n".join(lines) + b"\n"))
        return pieces

    def _end(self, handle: Handle, now: float, *, began: bool = True) -> JobStatus | AwsEnd | None:
        """How a job ended, once all that is to come of it is there: from its result, or as AWS tells; None before.

        began: whether its containers did, so that there may be lines of theirs.
        """
        complete = self._is_complete(handle) or self._take_copies(handle)
        if not complete and began and now - handle.over_since < LAST_WORDS:
            return None
        data = self._left_by(handle, "result", 0, "json")
        end = self._end_of(handle)
        free = end is not None and end.free and not handle.ending
        if data is not None:
            result = read_result(data)
            if result.ok or not free:
                path = self.places.samples(handle.job, self._site)[1]
                nodes = range(handle.place.nodes)
                keep_samples(handle.job, path, (self._left_by(handle, "samples", node, "json") for node in nodes))
                status = of_boot(result, None, memory=handle.memory)
                return attrs.evolve(status, cause=CANCELLED) if handle.ending and not result.ok else status
        return failed(CANCELLED) if handle.ending else end

    def _left_by(self, handle: Handle, what: str, node: int, ending: str) -> bytes | None:
        """A file that a node of a job left."""
        path = f"{handle.place.folder}/{what}-{handle.index}-{node}.{ending}"
        return asked(what, lambda: notes.get(path))

    def _is_complete(self, handle: Handle) -> bool:
        """Whether the logs of all nodes have their last line."""
        return len(handle.streams) >= handle.place.nodes and all(one.ended for one in handle.streams.values())

    def _take_copies(self, handle: Handle) -> bool:
        """Take from the artifact store what is missing of logs; whether all of them are complete then."""
        for node in range(handle.place.nodes):
            reader = handle.streams.setdefault(node, StreamReader())
            data = None if reader.ended else self._left_by(handle, "log", node, "gz")
            if data is not None:
                reader.complete(gzip.decompress(data))
        return self._is_complete(handle)

    # Ending

    def end(self, handles: Mapping[str, Handle], *, grace: float) -> None:
        """End jobs; a container gets SIGTERM, and SIGKILL when AWS's time for that is over."""
        for handle in handles.values():
            if not handle.ending or not grace:
                self._stop(handle)
            handle.ending = True

    def adopted_attempt(self, handle: Handle) -> int:
        """The attempt as which an earlier driver sent the job."""
        return handle.attempt

    def abandon(self) -> None:
        """Ask nothing more."""
        self._client.abandon()

    def close(self) -> None:
        """End what nobody wants, and close connections."""
        with contextlib.suppress(BackendError):  # what stays is found by `stoker gc`
            for one in self._earlier.take_remaining():
                self._end_earlier(*one)
            self._end_doubtful()
        self._client.close()


def remove(folder: str) -> None:
    """Remove the folder of a job."""
    asked("removal", lambda: notes.remove_tree(folder))


def without_result(end: AwsEnd, handle: AwsHandle[Any]) -> JobStatus:
    """The status of a job whose worker left no result."""
    if end.state == "succeeded":
        return failed(WORKER_LOST, f"{handle.text} left with exit code 0 and without a result")
    return attrs.evolve(failed(end.cause or WORKER_LOST, end.message), exit_code=end.exit_code)


def lost(handle: AwsHandle[Any], text: str) -> JobReport:
    """A job that AWS does not know any more."""
    return JobReport(
        status=failed(CANCELLED if handle.ending else WORKER_LOST, f"{text}, and nothing says how it ended")
    )


def refusal(error: BackendError) -> JobStatus:
    """The status of a job that was refused."""
    return failed(REFUSED, f"{error.message}; {error.fix}" if error.fix else error.message)


_Piece = TypeVar("_Piece")


def _taken(pieces: list[_Piece]) -> list[_Piece]:
    """What a list has, which is empty then."""
    taken, pieces[:] = list(pieces), []
    return taken
