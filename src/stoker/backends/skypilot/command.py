"""SkyPilot's command line, as another program: its answers as JSON, and its refusals as errors.

SkyPilot itself runs in an environment of its own (`pip install skypilot`), and asks its API server, which is on this
machine or elsewhere. A call takes seconds, most of which its imports are.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path
from typing import IO, Any, Final, Mapping, Sequence

import attrs

from stoker.backends.base.platforms import Answers, Away
from stoker.backends.skypilot.settings import SkypilotSettings
from stoker.core.errors import BackendError
from stoker.core.status import NODE_LOST, PREEMPTED, QUOTA, REFUSED, SETUP_FAILED
from stoker.core.words import bounded

ENDPOINT: Final = "SKYPILOT_API_SERVER_ENDPOINT"
"""https://docs.skypilot.co/en/latest/reference/api-server/api-server.html"""
ASKED: Final = 120.0
"""Seconds for an answer: a command starts for 4 s, and the API server may have to be started, for 30."""
SLOW: Final = 60.0
"""Seconds after which a call without an answer counts as silence."""
_AWAY: Final = re.compile(
    r"Could not connect to SkyPilot API server|ApiServerConnectionError|Connection refused|"
    r"(?:Read|Connect)Timeout|Temporary failure in name resolution|502 Bad Gateway|503 Service"
)
_UNCONNECTED: Final = "No SkyPilot API server is connected"
"""What `sky api info` of 0.14 prints, and ends with 0; other commands start a server on this machine."""
_COLOR: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LAST: Final = 6
"""Lines of what SkyPilot printed last, for an error."""


@attrs.define(eq=False)
class SkyLaunch:
    """A command that launches a cluster or a managed job, while it runs and afterwards."""

    process: subprocess.Popen[bytes]
    output: Path
    """What it has printed."""

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self.process.poll()

    def text(self) -> str:
        """What it has printed, without colours."""
        return plain_text(self.output.read_bytes())

    def close(self) -> None:
        """End the command, not what it has asked for: the API server goes on with that."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        with contextlib.suppress(FileNotFoundError):
            self.output.unlink()


class SkyCommand:
    """Calls SkyPilot's command."""

    def __init__(self, settings: SkypilotSettings, environment: Mapping[str, str], *, patience: float = ASKED) -> None:
        self._program = str(settings.get("sky", "sky"))
        self._environment = dict(environment)
        if settings.get("api_server"):
            self._environment[ENDPOINT] = str(settings.get("api_server"))
        self._patience = patience
        self._lock = threading.Lock()
        self._calls: set[subprocess.Popen[bytes]] = set()
        self._abandoned = False
        self.answers = Answers("SkyPilot's API server", slow=SLOW)

    def call(self, *words: str) -> str:
        """What the command prints. `Away` where the API server does not answer; `BackendError` for a refusal."""
        title = " ".join(("sky", *words[:2]))
        with self.answers.question(title):
            process = self._start(words, subprocess.PIPE, subprocess.PIPE)
            try:
                out, err = process.communicate(timeout=self._patience)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                raise Away(f"{title} has not answered within {self._patience:g} s") from None
            finally:
                with self._lock:
                    self._calls.discard(process)
            if process.returncode:
                raise error_of(title, process.returncode, plain_text(out + err))
            return plain_text(out)

    def json(self, *words: str) -> Any:
        """The JSON document that the command prints, behind whatever it prints before."""
        text = self.call(*words, "-o", "json")
        for match in re.finditer(r"^[\[{]", text, re.MULTILINE):
            with contextlib.suppress(ValueError):
                document, end = json.JSONDecoder().raw_decode(text, match.start())
                if not text[end:].partition("\n")[0].strip():  # else a line that begins with a bracket
                    return document
        title = " ".join(("sky", *words[:2]))
        fix = "install SkyPilot 0.11 or later: older ones have no `-o json`"
        if _UNCONNECTED in text:
            fix = "`sky api start` starts one on this machine; `sky api login -e ADDRESS` connects another"
        raise BackendError(f"{title} printed no JSON: {last_lines(text)}", fix=fix)

    def launch(self, words: Sequence[str], output: Path, variables: Mapping[str, str]) -> SkyLaunch:
        """Begin to launch something; its output goes into a file. `variables` are added to its environment."""
        with open(output, "wb") as file:
            process = self._start(words, file, subprocess.STDOUT, variables)
        return SkyLaunch(process=process, output=output)

    def clusters(self, names: Sequence[str] = (), *, refresh: bool = False) -> list[Mapping[str, Any]]:
        """The clusters of these names, all without any; `refresh` asks their clouds."""
        return _records("sky status", self.json("status", *(["--refresh"] if refresh else []), *names), name="name")

    def managed_jobs(self, *, unfinished: bool = False) -> list[Mapping[str, Any]]:
        """The managed jobs that are not over, and the latest others."""
        try:
            document = self.json("jobs", "queue", *(["--skip-finished"] if unfinished else ["--all"]))
        except Away:
            raise
        except BackendError as error:
            if _NO_CONTROLLER.search(error.message):
                return []
            raise
        return _records("sky jobs queue", document)

    def down(self, names: Sequence[str]) -> None:
        """Take clusters down; the API server does it when this has returned."""
        if names:
            try:
                self.call("down", "--yes", "--async", *names)
            except Away:
                raise
            except BackendError as error:
                if "not found" not in error.message.lower() and "does not exist" not in error.message:
                    raise

    def cancel_jobs(self, name: str) -> None:
        """Cancel the managed jobs of a name."""
        try:
            self.call("jobs", "cancel", "--yes", "--name", name)
        except Away:
            raise
        except BackendError as error:
            if not _NO_JOB.search(error.message):
                raise

    def abandon(self) -> None:
        """Break off the calls that wait for an answer."""
        self._abandoned = True
        with self._lock:
            for process in self._calls:
                process.kill()

    def _start(
        self,
        words: Sequence[str],
        stdout: int | IO[bytes],
        stderr: int,
        variables: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        if self._abandoned:
            raise Away("the run has ended")
        program = find_command(self._program, self._environment)
        process = subprocess.Popen(
            [program, *words],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**self._environment, "NO_COLOR": "1", **(variables or {})},
            start_new_session=True,
        )
        if stdout == subprocess.PIPE:
            with self._lock:
                self._calls.add(process)
        return process


def find_command(program: str, environment: Mapping[str, str]) -> str:
    """The path of SkyPilot's command; a `BackendError` where it is not here."""
    path = shutil.which(program, path=environment.get("PATH"))
    if path is None:
        below = f", below {os.getcwd()}" if os.sep in program and not os.path.isabs(program) else ""
        raise BackendError(
            f"SkyPilot's command '{program}' is not here{below}",
            fix="install SkyPilot in an environment of its own (python3 -m venv sky; sky/bin/pip install "
            '"skypilot[aws]"), and name its command in the stack: '
            'orchestrator = {flavor = "skypilot", sky = "/path/to/sky/bin/sky"}',
        )
    return path


_NO_CONTROLLER: Final = re.compile(r"No in-progress managed jobs|jobs controller.*(?:not|STOPPED)|ClusterNotUpError")
_NO_JOB: Final = re.compile(r"No managed job|not found|No in-progress managed jobs", re.IGNORECASE)


def _records(title: str, document: Any, name: str = "") -> list[Mapping[str, Any]]:
    """The records of an answer, each with a name. `Away` for an answer that is none: it does not say what is gone."""
    rows: list[Any] = document if isinstance(document, list) else []
    if document != rows or not all(isinstance(one, Mapping) and (not name or one.get(name)) for one in rows):
        raise Away(f"what {title} printed is not understood: {bounded(json.dumps(document), 200)}")
    return rows


def plain_text(data: bytes) -> str:
    """Output as a terminal would show it at last: without colours, and without what was written over."""
    text = _COLOR.sub("", data.decode("utf-8", "replace"))
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))


def last_lines(text: str) -> str:
    """The last lines that say something, in one."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" ─-|\t")]
    return bounded("; ".join(lines[-_LAST:]) or "nothing", 1000)


def error_of(title: str, code: int, text: str) -> BackendError:
    """The error of a command that failed."""
    message = f"{title} failed with {code}: {last_lines(text)}"
    if _AWAY.search(text):
        return Away(message)
    if "Authentication required" in text:
        return BackendError(message, fix="log in: sky api login -e ADDRESS")
    return BackendError(message, fix="")


# What its words mean

GONE: Final = "gone"
UP: Final = "up"
WAITING: Final = "waiting"

_LAUNCH: Final[tuple[tuple[re.Pattern[str], str, str], ...]] = (
    # SkyPilot's source: sky/exceptions.py, sky/optimizer.py and sky/backends/cloud_vm_ray_backend.py of 0.14.
    (
        re.compile(r"quota|LimitExceeded|VcpuLimit", re.IGNORECASE),
        QUOTA,
        "ask the cloud for more quota, or name other places: infra, any_of",
    ),
    (
        re.compile(
            r"Failed to provision all possible launchable resources|Failed to acquire resources|"
            r"InsufficientInstanceCapacity|ZONE_RESOURCE_POOL_EXHAUSTED|insufficient capacity|out of capacity",
            re.IGNORECASE,
        ),
        QUOTA,
        "no cloud has such machines just now: retry_until_up=True waits for them, any_of names more places",
    ),
    (
        re.compile(
            r"cloud access is (?:not )?set up|NoCloudAccessError|No enabled cloud|no infra is enabled", re.IGNORECASE
        ),
        REFUSED,
        "`sky check` says what a cloud needs",
    ),
    (
        re.compile(
            r"Catalog (?:and|does)|No (?:resource|launchable resource) (?:satisfying|found)|ResourcesUnavailable|"
            r"ResourcesMismatch|does not contain any instances",
            re.IGNORECASE,
        ),
        REFUSED,
        "no enabled cloud has such a machine: `sky gpus list` shows what there is",
    ),
    (re.compile(r"setup (?:commands? )?failed|FAILED_SETUP|Failed to setup", re.IGNORECASE), SETUP_FAILED, ""),
)
"""What a failed launch prints → its cause, and what to do."""

_CLUSTERS: Final[Mapping[str, str]] = {
    "UP": UP,
    "INIT": WAITING,
    "PENDING": WAITING,
    "AUTOSTOPPING": GONE,
    "STOPPED": GONE,
}
"""SkyPilot's states of a cluster (sky/utils/status_lib.py) → ours; one that is not among them says nothing."""
_MANAGED: Final[Mapping[str, tuple[str, str]]] = {
    "PENDING": (WAITING, "waits for SkyPilot's jobs controller"),
    "SUBMITTED": (WAITING, "its machine is being started"),
    "STARTING": (WAITING, "its machine is being started"),
    "RUNNING": (UP, ""),
    "WINDING_DOWN": (UP, ""),
    "RECOVERING": (WAITING, "its machine was taken away: SkyPilot starts another one"),
    "CANCELLING": (GONE, PREEMPTED),
    "CANCELLED": (GONE, PREEMPTED),
    "SUCCEEDED": (GONE, NODE_LOST),
    "FAILED": (GONE, NODE_LOST),
    "FAILED_SETUP": (GONE, SETUP_FAILED),
    "FAILED_PRECHECKS": (GONE, REFUSED),
    "FAILED_NO_RESOURCE": (GONE, QUOTA),
    "FAILED_CONTROLLER": (GONE, NODE_LOST),
}
"""SkyPilot's states of a managed job (sky/jobs/state.py) → ours, with the words or the cause."""


def cause_of_launch(text: str) -> tuple[str, str]:
    """The cause of a failed launch and what to do, from what SkyPilot printed."""
    for pattern, cause, fix in _LAUNCH:
        if pattern.search(text):
            return cause, fix
    return REFUSED, ""


def state_of_cluster(record: Mapping[str, Any] | None) -> tuple[str, str, str]:
    """State, cause and words of a cluster, from `sky status`; None: SkyPilot does not know it."""
    if record is None:
        return GONE, NODE_LOST, "SkyPilot has no such cluster any more"
    status = str(record.get("status") or "nothing")
    state = GONE if record.get("init_kind") == "unhealthy" else _CLUSTERS.get(status)
    why = str(record.get("init_status_reason") or record.get("last_event") or "")
    if state is None:
        return WAITING, "", f"SkyPilot calls its cluster {status}" + (f": {why}" if why else "")
    if state != GONE:
        return state, "", "" if state == UP else why or "SkyPilot starts its machine"
    cause = PREEMPTED if "[Spot]" in str(record.get("resources_str_full") or record.get("resources_str")) else NODE_LOST
    return GONE, cause, f"its cluster is {status}" + (f": {why}" if why else "")


def state_of_managed(record: Mapping[str, Any] | None) -> tuple[str, str, str]:
    """The same for a managed job, from `sky jobs queue`."""
    if record is None:
        return GONE, NODE_LOST, "SkyPilot has no such managed job"
    status = str(record.get("status") or "nothing")
    state, word = _MANAGED.get(status, (WAITING, f"SkyPilot calls it {status}"))
    why = str(record.get("failure_reason") or record.get("details") or "")
    if state == GONE:
        return GONE, word, f"its managed job is {status}" + (f": {why}" if why else "")
    return state, "", (word + (f": {why}" if why and state == WAITING else "")) if word else ""
