"""Runs a vendor's command, and makes the findings for tools that are missing or fail."""

from __future__ import annotations

import subprocess
from typing import Final, Mapping, Sequence

from stoker.core.findings import Finding

TOOL_FAILED: Final = "STK127"
UNREADABLE: Final = "STK128"

TIMEOUT: Final = 20.0
"""Seconds for a vendor's command. neuron-ls takes 1 s on a machine with 16 chips; one that hangs does so forever."""


class ToolError(Exception):
    """A vendor's command failed."""


def output(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run a command and return what it prints; a `ToolError` where it fails."""
    try:
        finished = subprocess.run(
            list(argv),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ToolError(f"it did not answer within {TIMEOUT:.0f} s") from None
    except OSError as error:
        raise ToolError(f"it cannot be run: {words_of(error)}") from None
    if finished.returncode:
        lines = (finished.stderr or finished.stdout).strip().splitlines()
        raise ToolError(f"it ended with {finished.returncode}" + (f": {lines[-1]}" if lines else ""))
    return finished.stdout


def words_of(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def tool_failure(tool: str, why: str, fix: str) -> Finding:
    """The finding for a tool that is installed and fails."""
    what = f"{tool} fails, and what it would tell of is not found"
    return Finding(code=TOOL_FAILED, level="error", what=what, why=why, fix=fix)


def unreadable(what: str, why: str, fix: str) -> Finding:
    """The finding for devices that exist and cannot be read."""
    return Finding(code=UNREADABLE, level="info", what=what, why=why, fix=fix)
