"""The values that Slurm's commands print and its options take, one parser for each grammar: times, amounts, GRES, TRES.

What is not understood is None: it is not known, and neither 0 nor without a limit. Pure.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

UNLIMITED: Final = float("inf")
NOTHING: Final = frozenset({"", "(null)", "N/A", "NONE", "n/a", "(null type)"})
"""What stands where there is nothing to say."""
_UNLIMITED: Final = frozenset({"UNLIMITED", "INFINITE"})
_UNITS: Final = " KMGTP"
"""The suffixes of amounts, each 1024 times the one before."""
# Slurm's numbers have 64 bits: at most 20 digits.
_AMOUNT: Final = re.compile(r"([0-9]{1,20})(\.[0-9]{1,20})?([KMGTP]?)", re.IGNORECASE)
_TIME: Final = re.compile(r"(?:([0-9]{1,20})-)?([0-9]{1,20})(?::([0-9]{1,20}))?(?::([0-9]{1,20}))?")


@attrs.frozen(kw_only=True)
class Gres:
    """A generic resource of each node of a group."""

    name: str
    """Such as "gpu"."""
    type: str
    """Such as "h100"; empty where it has none."""
    count: float | None
    """None where it is not known."""


def seconds(text: str) -> float | None:
    """The seconds of a time: "30" and "30:00" are minutes, "2:30:00" hours, "7-12" and "7-00:00:00" days; "UNLIMITED".

    Slurm prints times so that it can read them again: https://slurm.schedmd.com/sbatch.html#OPT_time. Its words
    "INVALID", "NOT_SET" and "Partition_Limit" tell none.
    """
    if text.upper() in _UNLIMITED:
        return UNLIMITED
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    days, *parts = match.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is None and len(numbers) < len(parts):
        numbers = [0, *numbers]
    hours, minutes, last = [*numbers, 0, 0][:3]
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + last


def amount(text: str) -> float | None:
    """A number of things: "4", "2K", "1.50K", "UNLIMITED". "4+" is not one: it says how many there are at least.

    sinfo writes 2048 CPUs as "2K": https://slurm.schedmd.com/sinfo.html#OPT_noconvert
    """
    return _amount(text, 0)


def mebibytes(text: str) -> float | None:
    """MiB of memory or disk: "4000", "4000M", "1.5T"; without a suffix they are MiB.
    https://slurm.schedmd.com/sacctmgr.html"""
    return _amount(text, _UNITS.index("M"))


def _amount(text: str, unit: int) -> float | None:
    """An amount in the unit that it is in without a suffix."""
    if text.upper() in _UNLIMITED:
        return UNLIMITED
    match = _AMOUNT.fullmatch(text)
    if match is None:
        return None
    whole, part, suffix = match.groups()
    number = float(f"{whole}{part}") if part else int(whole)
    power = _UNITS.index(suffix.upper()) - unit if suffix else 0
    scaled = number * 1024**power
    return int(scaled) if scaled == int(scaled) else scaled


def gres_of(text: str) -> tuple[Gres, ...]:
    """The resources of a text such as "gpu:h100:4(S:0-1),gpu:a100:2,neuron:16"; `no_consume` is part of no type.

    https://slurm.schedmd.com/gres.conf.html#OPT_Count and https://slurm.schedmd.com/sinfo.html
    """
    entries = []
    for entry in re.split(r",(?![^(]*\))", text):
        name, *words = re.sub(r"\(.*", "", entry.strip()).split(":")
        if name in NOTHING:
            continue
        count: float | None = 1
        if words and re.fullmatch(r"[0-9]+[A-Za-z]?", words[-1]):
            count = amount(words.pop())
        entries.append(Gres(name=name, type=":".join(word for word in words if word != "no_consume"), count=count))
    return tuple(entries)


def tres_of(text: str) -> dict[str, float | None]:
    """The amounts of a text such as "cpu=4,mem=2000M,gres/gpu:h100=2", memory in MiB; "-1" is no limit and left out.

    https://slurm.schedmd.com/tres.html; None for an amount that is not understood.
    """
    amounts: dict[str, float | None] = {}
    for entry in text.split(","):
        name, mark, value = (part.strip() for part in entry.partition("="))
        if mark and value != "-1":
            amounts[name] = mebibytes(value) if name == "mem" or name.startswith("bb/") else amount(value)
    return amounts
