"""`stoker doctor --prove STACK`: run small pipelines on a stack, break them, and write a signed page of what held.

A trial is what a user would do: `stoker run`, `stoker resume`, `stoker cancel`, each a process of its own, whose driver
is killed where the trial says so. Nothing is counted as held that was not seen to hold.
"""

from __future__ import annotations

import getpass
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Callable, Final, Iterator, Literal

import attrs

from stoker import stacks
from stoker.client import Client, Run
from stoker.core.errors import EXIT_PREFLIGHT, UsageError
from stoker.core.status import HOST_OOM, RUN_DONE
from stoker.core.version import VERSION
from stoker.core.words import time_text

STEPS: Final = Path(__file__).with_name("proof.txt")
"""A file as a user would write it, and not a module of Stoker: it imports what users import."""
NAMESPACE: Final = "stoker-proof"
"""What the signature is for: a signature of `ssh-keygen -Y` holds in one namespace only (ssh-keygen(1))."""
SETTLING: Final = 60.0
"""Seconds within which a cancelled run's driver has ended, beside what the platform takes."""
LAST_WORDS: Final = 5.0
"""Seconds for reading what a driver that has ended wrote: without any, nothing of it would be read."""
Verdict = Literal["held", "failed", "refused", "unknown"]


@attrs.frozen
class Outcome:
    """What one trial came to: `held`; `failed`; `refused` before it began; `unknown`, where nothing was proved."""

    verdict: Verdict
    words: str


@attrs.frozen(kw_only=True)
class Trial:
    """A row of the page."""

    name: str
    title: str
    outcome: Outcome
    seconds: float
    run: str
    """The run's id; empty where none began."""


def check_key(key: Path | None) -> Path:
    """The SSH key to sign with: one that is given, or one of Stoker's own, which is made; `UsageError` where there is
    no key, or no `ssh-keygen`."""
    if shutil.which("ssh-keygen") is None:
        raise UsageError("the page cannot be signed: there is no ssh-keygen", fix="install OpenSSH's client")
    if key is not None:
        if not key.is_file():
            raise UsageError(f"there is no key {key}", fix="name the private key, or leave --key out")
        return key
    own = stacks.load().home / "proof" / "id_ed25519"
    if not own.is_file():
        own.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        comment = f"stoker {getpass.getuser()}@{socket.gethostname()}"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(own)], check=True)
    return own


class Bench:
    """Runs the trials on one stack, each with a tag of its own to find its run by."""

    def __init__(self, stack: stacks.Stack, patience: float) -> None:
        self.stack = stack
        self._patience = patience
        self._folder = Path(tempfile.mkdtemp(prefix="stoker-proof-"))
        shutil.copy(STEPS, self._folder / "proof.py")
        self._client = Client(stack.name)
        self._nonce = os.urandom(4).hex()
        self._tag = ""
        self._started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def trials(self) -> Iterator[Trial]:
        """Every trial, one after the other."""
        for name, (title, trial) in TRIALS.items():
            self._tag = f"proof-{self._nonce}-{name}"
            began = time.monotonic()
            try:
                outcome = trial(self)
            finally:
                self._leave_nothing()
            run = self.found()
            seconds = time.monotonic() - began
            yield Trial(name=name, title=title, outcome=outcome, seconds=seconds, run=run.id if run else "")

    def _leave_nothing(self) -> None:
        """End what a trial started and did not bring to its end, also where Ctrl-C ended it: jobs cost money."""
        run = self.found()
        if run is not None and run.status not in RUN_DONE:
            self.ends(self._command("cancel", run.id, "--now", "--stack", self.stack.name), SETTLING)
        for process in self._started:
            if process.poll() is None:
                process.terminate()
                process.communicate()
        self._started.clear()

    # What a user does

    def start(self, pipeline: str, *words: str) -> subprocess.Popen[str]:
        """`stoker run` of a pipeline, in a process group of its own, so that the driver alone can be killed."""
        program = f"{self._folder / 'proof.py'}:{pipeline}"
        return self._command("run", program, "--stack", self.stack.name, "--tag", self._tag, *words)

    def ends(self, process: subprocess.Popen[str], seconds: float | None = None) -> tuple[int | None, str]:
        """A command's exit code and what it said; None for the code if it takes longer than the patience."""
        try:
            said, _ = process.communicate(timeout=self._patience if seconds is None else seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            return None, said
        return process.returncode, said

    def finished(self, pipeline: str) -> Run | Outcome:
        """The run of a pipeline that has succeeded; else what the trial came to."""
        code, said = self.ends(self.start(pipeline))
        run = self.found()
        return run if code == 0 and run is not None else not_done(code, said)

    def stoker(self, *words: str) -> tuple[int | None, str]:
        """A command to its end."""
        return self.ends(self._command(*words))

    def found(self) -> Run | None:
        """The trial's run, if there is one yet."""
        return next(iter(self._client.runs(tag=self._tag)), None)

    def waits(self, process: subprocess.Popen[str]) -> Run | None:
        """The run of `long` once its second step runs; None if its driver ends before, or takes too long."""
        until = time.monotonic() + self._patience
        while process.poll() is None and time.monotonic() < until:
            run = self.found()
            if run is not None and "wait" in run.steps and run.steps["wait"].status == "running":
                return run
            time.sleep(0.2)
        return None

    def _command(self, *words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "stoker", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process


def not_done(code: int | None, said: str) -> Outcome:
    """A trial whose run did not succeed: refused in the plan, out of patience, or failed."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if code is None:
        return Outcome("unknown", "it took longer than --wait allows")
    if code == EXIT_PREFLIGHT:
        finding = next((line for line in lines if "STK" in line), lines[-1] if lines else "")
        return Outcome("refused", finding)
    error = next((line for line in reversed(lines) if line.startswith("error:")), lines[-1] if lines else "")
    return Outcome("failed", error)


def prove_hello(bench: Bench) -> Outcome:
    """Outputs reach the next step, in a chain and from a fan-out."""
    run = bench.finished("hello")
    if isinstance(run, Outcome):
        return run
    value = run.steps["total"].load()
    return (
        Outcome("held", "each step got what the one before returned")
        if value == 15
        else Outcome("failed", f"the sum is {value}, not 15")
    )


def prove_gang(bench: Bench) -> Outcome:
    """Two nodes begin together and meet at the address that both were given."""
    run = bench.finished("gang")
    if isinstance(run, Outcome):
        return run
    hosts = run.steps["meet"].load()
    return Outcome("held", f"rank 1 on {hosts[1]} met rank 0 on {hosts[0]}")


def prove_receipt(bench: Bench) -> Outcome:
    """A step that computes on a device has a receipt that says `used`."""
    run = bench.finished("receipt")
    if isinstance(run, Outcome):
        return run
    step = run.steps["compute"]
    receipt, by = step.receipt, step.load()
    if receipt is None:
        return Outcome("failed", "the step has no receipt")
    if receipt.simulated or not by:
        why = "the devices are simulated" if receipt.simulated else "the step has no torch that sees its device"
        return Outcome("unknown", f"{why}: nothing was computed on a device")
    evidence = "; ".join(receipt.evidence)
    return Outcome("held" if receipt.verdict == "used" else "failed", f"{receipt.verdict}, by {by}: {evidence}")


def prove_resume(bench: Bench) -> Outcome:
    """A driver that is killed is taken up again; what had finished does not run once more."""
    process = bench.start("long", "--seconds", "20")
    waiting = bench.waits(process)
    if waiting is None:
        return not_done(*bench.ends(process, LAST_WORDS))
    os.killpg(process.pid, signal.SIGKILL)
    bench.ends(process)
    code, said = bench.stoker("resume", waiting.id, "--stack", bench.stack.name)
    run = bench.found()
    if code != 0 or run is None:
        return not_done(code, said)
    attempts = {name: step.attempt_count for name, step in run.steps.items()}
    if attempts["before"] != 1 or run.steps["after"].load() != 3:
        return Outcome("failed", f"attempts after the kill: {attempts}")
    how = "the job that ran on was adopted" if attempts["wait"] == 1 else "the interrupted step ran again"
    return Outcome("held", f"{how}; the finished one did not run again")


def prove_memory(bench: Bench) -> Outcome:
    """A step that takes twice the memory it asked for is ended, and the cause is told."""
    code, said = bench.ends(bench.start("memory"))
    run = bench.found()
    if run is None or code is None:
        return not_done(code, said)
    failure = run.steps["hungry"].failure
    if failure is None:
        if run.status == "succeeded":
            return Outcome("unknown", "this stack lets a step take more memory than it asked for")
        return not_done(code, said)
    verdict: Verdict = "held" if failure.cause == HOST_OOM else "failed"
    return Outcome(verdict, f"{failure.cause}: {failure.message.splitlines()[0] if failure.message else ''}")


def prove_cancel(bench: Bench) -> Outcome:
    """A run that is cancelled ends its step long before the step would have."""
    process = bench.start("long", "--seconds", "3600")
    waiting = bench.waits(process)
    if waiting is None:
        return not_done(*bench.ends(process, LAST_WORDS))
    asked = time.monotonic()
    code, said = bench.stoker("cancel", waiting.id, "--now", "--stack", bench.stack.name)
    if code != 0:
        os.killpg(process.pid, signal.SIGKILL)
        return not_done(code, said)
    ended, _ = bench.ends(process, SETTLING)
    run = bench.found()
    if ended is None or run is None or run.status != "cancelled":
        return Outcome("failed", f"the run is {run.status if run else 'gone'} after {time_text(SETTLING)}")
    return Outcome("held", f"ended {time_text(time.monotonic() - asked)} after it was asked to")


TRIALS: Final[dict[str, tuple[str, Callable[[Bench], Outcome]]]] = {
    "hello": ("a chain and a fan-out", prove_hello),
    "gang": ("two nodes that meet", prove_gang),
    "receipt": ("a GPU that computes", prove_receipt),
    "resume": ("a killed driver, resumed", prove_resume),
    "memory": ("a step that takes too much memory", prove_memory),
    "cancel": ("a run that is cancelled", prove_cancel),
}


def page(stack: stacks.Stack, trials: list[Trial], began: datetime) -> str:
    """What held, as Markdown, with the same as JSON at its end."""
    facts = {
        "stack": stack.name,
        "orchestrator": stack.orchestrator.flavor,
        "store": stacks.masked(stack.artifact_store).partition("?")[0],
        "stoker": VERSION,
        "python": platform.python_version(),
        "driver": f"{platform.platform()}, {socket.gethostname()}",
        "by": getpass.getuser(),
        "began": began.isoformat(timespec="seconds"),
        "trials": [attrs.asdict(trial) for trial in trials],
    }
    where = f"Steps ran on {facts['orchestrator']}; artifacts are in `{facts['store']}`."
    lines = [
        f"# What held on the stack {stack.name}\n",
        f"{facts['by']} ran `stoker doctor --prove {stack.name}` on {began:%Y-%m-%d %H:%M} UTC,",
        f"with Stoker {VERSION} and Python {facts['python']}, from {facts['driver']}. {where}\n",
        "| trial | verdict | what was seen | took | run |",
        "|---|---|---|--:|---|",
    ]
    for one in trials:
        words = one.outcome.words.replace("|", r"\|")
        lines.append(f"| {one.title} | **{one.outcome.verdict}** | {words} | {time_text(one.seconds)} | `{one.run}` |")
    open_ = [one.title for one in trials if one.outcome.verdict != "held"]
    lines += ["", f"Not proved here: {', '.join(open_)}." if open_ else "Every trial held."]
    lines += ["", "```json", json.dumps(facts, indent=1, ensure_ascii=False), "```", ""]
    return "\n".join(lines)


def sign(path: Path, key: Path) -> Path:
    """Sign a file with an SSH key; returns where the signature is."""
    done = subprocess.run(
        ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise UsageError(
            f"ssh-keygen does not sign with {key}: {done.stderr.strip()}",
            fix="add the key to the agent (ssh-add), or leave --key out",
        )
    return path.with_name(f"{path.name}.sig")


def now() -> datetime:
    """The time, in UTC."""
    return datetime.now(timezone.utc)
