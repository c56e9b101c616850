"""The words for where a run, a step and an attempt stand, and why an attempt ended.

Strings on the wire and in the store; nothing here knows how they change: that is `engine.machine`.
"""

from __future__ import annotations

from typing import Final, Literal

RunStatus = Literal["running", "succeeded", "failed", "cancelled"]
"""A run whose driver died still says "running" in its row; `client` shows it as "interrupted"."""

StepStatus = Literal["pending", "running", "succeeded", "cached", "failed", "skipped", "cancelled"]
"""`skipped`: something upstream failed, or the run stopped before the step began."""

JobState = Literal["queued", "running", "succeeded", "failed", "unknown"]
"""What a platform says of a job. What it does not mention is `unknown`, never `succeeded`."""

STEP_DONE: Final = frozenset({"succeeded", "cached", "failed", "skipped", "cancelled"})
STEP_GOOD: Final = frozenset({"succeeded", "cached"})
RUN_DONE: Final = frozenset({"succeeded", "failed", "cancelled"})

# Why an attempt ended. A cause is a fact about one attempt; whether it is tried again is the retry policy's.
USER_ERROR: Final = "user-error"  # the step's code raised
CRASHED: Final = "crashed"  # the process died by a signal of its own making: SIGSEGV, SIGABRT, SIGBUS, …
KILLED: Final = "killed"  # SIGKILL from outside; the kernel's OOM killer looks the same without more evidence
EXITED: Final = "exited"  # the process left by os._exit or sys.exit before the step returned
TIMED_OUT: Final = "timed-out"  # the step's own timeout
CANCELLED: Final = "cancelled"  # a person or a failing run ended it
UNSERIALIZABLE: Final = "unserializable"  # the step returned what cannot be kept
IMPORT_ERROR: Final = "import-error"  # the worker could not import the step
INPUT_ERROR: Final = "input-error"  # the worker could not load an input
WORKER_LOST: Final = "worker-lost"  # the machinery that held the worker went away
REFUSED: Final = "refused"  # the backend would not take the job

CAUSES: Final = frozenset(
    {
        USER_ERROR,
        CRASHED,
        KILLED,
        EXITED,
        TIMED_OUT,
        CANCELLED,
        UNSERIALIZABLE,
        IMPORT_ERROR,
        INPUT_ERROR,
        WORKER_LOST,
        REFUSED,
    }
)
NEVER_RETRIED: Final = frozenset({CANCELLED, REFUSED})
"""Trying again cannot help: a person stopped it, or the same request meets the same refusal."""
