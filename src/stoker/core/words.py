"""Figures, names and values as a person reads them, texts as long as a person reads, and tables that a person edits."""

from __future__ import annotations

import math
import os
from typing import Any, Final, Iterator

MESSAGE_LIMIT: Final = 16 * 1024
"""Characters of a message in a row, an event or an error: a person reads no more, and a list of runs reads them all."""
TEXT_LIMIT: Final = 128 * 1024
"""Characters of a traceback in a row: about a thousand frames."""
WHOLE_LIMIT: Final = 64 * 1024 * 1024
"""Characters of an exception in a file of its own, where its traceback is longer than a row's."""

_MARGIN: Final = 200
"""Characters by which a bounded text may be longer than its limit: the words in its middle."""


def table_lines(module: str, file: str) -> Iterator[str]:
    """The lines of a table beside a module (its `__file__`), without empty ones and comments, which begin with `#`."""
    with open(os.path.join(os.path.dirname(module), file), encoding="utf-8") as lines:
        for line in lines:
            if line.strip() and not line.startswith("#"):
                yield line.rstrip("\n")


def time_text(seconds: float) -> str:
    """`"3 ms"`, `"1.2 s"`, `"2 m 05 s"`, `"3 h 07 m"`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} m"


def took_text(seconds: float, waited: float) -> str:
    """How long a run took, and how long it waited besides: `"6.0 s, without 3.5 s of waiting for a place"`."""
    without = f", without {time_text(waited)} of waiting for a place" if waited >= 1.0 else ""
    return time_text(seconds) + without


def memory_text(size: float) -> str:
    """Bytes in powers of 1000: `"412 MB"`, `"1.4 GB"`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}" if unit == "GB" else f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def number_text(value: float) -> str:
    """A measured number in five digits: `"0.37859"`, `"121,665"`, `"7.4e-12"`."""
    size = abs(value)
    if not math.isfinite(value) or size == 0 or not 1e-4 <= size < 1e9:
        return f"{value:.4g}"
    decimals = max(0, 4 - math.floor(math.log10(size)))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def count_text(number: int, noun: str) -> str:
    """`"1 step"`, `"3 steps"`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def attempts_text(number: int, *, of_elements: bool = False) -> str:
    """How often a step was tried: `"2"`, of a fan-out `"up to 2"`; empty for once."""
    return "" if number < 2 else f"up to {number:,}" if of_elements else f"{number:,}"


EXPECTED_START: Final = "; starts about "
"""Stands before the start that a platform expects, in a sentence on why a job waits; what follows changes often."""


def dashed_name(text: str) -> str:
    """A text as a name that files, hosts and command lines take: letters and digits, and dashes for all else."""
    return "".join(letter if letter.isalnum() else "-" for letter in text)


def short(text: str, length: int = 60) -> str:
    """The first line of a text, cut to a length."""
    line = text.partition("\n")[0]
    return line if len(line) <= length else line[: length - 1] + "…"


def bounded(text: str, limit: int = MESSAGE_LIMIT, *, whole: str = "") -> str:
    """The text, or of one longer than `limit` characters its beginning and its end, and how much is left out.

    `whole` names the file that has all of it.
    """
    if len(text) <= limit + _MARGIN:  # a text that was bounded stays as it is
        return text
    place = f", whole in {whole}" if whole else ""
    head, tail = limit * 2 // 3, limit // 3
    middle = f" … {_amount(len(text) - head - tail)} left out{place} … "
    separator = "\n" if "\n" in text[:head] else ""
    return f"{text[:head]}{separator}{middle.strip() if separator else middle}{separator}{text[len(text) - tail :]}"


def shown(value: Any, limit: int = 200) -> str:
    """The `repr` of a value for a message: of at most `limit` characters, whatever the value does."""
    try:
        text = repr(value[: 2 * limit] if isinstance(value, (str, bytes)) and len(value) > 2 * limit else value)
    except Exception as error:  # a foreign __repr__, or an int with more digits than Python converts
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _amount(count: int) -> str:
    """Characters as a person reads them; most are one byte."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} characters"
