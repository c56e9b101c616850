"""Figures and names as a person reads them."""

from __future__ import annotations


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


def memory_text(size: float) -> str:
    """Bytes in powers of 1000: `"412 MB"`, `"1.4 GB"`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}" if unit == "GB" else f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def count_text(number: int, noun: str) -> str:
    """`"1 step"`, `"3 steps"`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def dashed_name(text: str) -> str:
    """A text as a name that files, hosts and command lines take: letters and digits, and dashes for all else."""
    return "".join(letter if letter.isalnum() else "-" for letter in text)
