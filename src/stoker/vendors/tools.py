"""Runs a vendor's command, once or again and again, and makes the findings for tools that are missing or fail."""

from __future__ import annotations

import contextlib
import math
import re
import subprocess
from typing import Any, Final, Mapping, Sequence

from stoker.core.findings import Finding

TOOL_FAILED: Final = "STK127"
UNREADABLE: Final = "STK128"

TIMEOUT: Final = 20.0
"""Seconds for a vendor's command. neuron-ls takes 1 s on a machine with 16 chips; one that hangs does so forever."""


MEMORY: Final[Mapping[str, float]] = {
    "": 2**20,
    "B": 1,
    **{f"{prefix}{unit}": 1024**power for power, prefix in enumerate("KMGT", 1) for unit in ("B", "iB")},
}
"""Units of memory → bytes. The tools count in powers of two, write "MB" for it as well, and mean it without a unit."""
_UNITS: Final[Mapping[str, Mapping[str, float]]] = {
    # The keys of a meter's row that tools tell, and the units of each → factor: see `vendors.base.Meter`.
    "u": {"": 1, "%": 1},
    "m": MEMORY,
    "w": {"": 1, "W": 1, "mW": 0.001},
    "c": {"": 1, "C": 1, "°C": 1},
    "f": {"": 1, "MHz": 1, "GHz": 1000},
    "j": {"": 1, "J": 1},
    "errors": {"": 1},
}
_NUMBER: Final = re.compile(r"(-?[0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([^\s0-9.]*)")


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


def number(value: Any, units: Mapping[str, float]) -> float | None:
    """A number as vendors' tools write it: 75, "75", "4096 MiB", {"value": 75, "unit": "%"}; times its unit's factor.

    None for "N/A", "[Not Supported]" and other texts, and for a unit that is not among these: then it is not known.
    """
    unit = ""
    if isinstance(value, Mapping):
        value, unit = value.get("value"), str(value.get("unit") or "")
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value.strip())
        if match is None or (unit and match[2]):
            return None
        value, unit = float(match[1]), unit or match[2]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or unit not in units or not math.isfinite(value):
        return None
    return value * units[unit]


def measured(values: Mapping[str, Any]) -> dict[str, Any]:
    """A meter's row of what a tool told; what is not known is left out."""
    numbers = {key: number(value, _UNITS[key]) for key, value in values.items()}
    row: dict[str, Any] = {key: value for key, value in numbers.items() if value is not None}
    if "m" in row:
        row["m"] = int(row["m"])
    return row


class Question:
    """A command that is asked again and again, from a loop that does not wait for it."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self._argv, self._environment = list(argv), dict(environment)
        self._process: subprocess.Popen[str] | None = None

    def ask(self) -> None:
        """Start the command, unless it still runs."""
        if self._process is None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                self._argv,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=pipe,
                stderr=pipe,
                text=True,
                errors="replace",
            )

    def answer(self) -> tuple[str, str] | None:
        """What it printed, and why it failed, which is empty where it did not; None while it runs."""
        if self._process is None or self._process.poll() is None:
            return None
        text, errors = self._process.communicate()
        code, self._process = self._process.returncode, None
        lines = (errors or text).strip().splitlines()
        return text, f"it ended with {code}" + (f": {lines[-1]}" if lines else "") if code else ""

    def close(self) -> None:
        """Give up a question that waits."""
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.communicate(timeout=0.2)
            self._process = None


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
