"""The small values that people write in settings: sizes, durations, counts; and `UNSET` for what they did not write.

Each parser takes what a person may write and returns the one form used inside (bytes, seconds), or raises a
`SettingsError` that says what was wrong and what to write. Knows no setting by name.
"""

from __future__ import annotations

import functools
import math
import re
from typing import TYPE_CHECKING, Any, Callable, Final, Iterable, Mapping, Sequence, TypeVar

import attrs

from stoker.core.errors import SettingsError, did_you_mean, nearest
from stoker.core.values import lazy_pattern, when_made
from stoker.core.words import shown

if TYPE_CHECKING:
    from datetime import timedelta

T = TypeVar("T")

DECIMAL: Final[Mapping[str, int]] = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
BINARY: Final[Mapping[str, int]] = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}
SIZES: Final[Mapping[str, int]] = {
    **{unit.lower(): factor for unit, factor in {**DECIMAL, **BINARY}.items()},
    # Kubernetes writes "16Gi" and "16G", without the B.
    **{unit[:-1].lower(): factor for unit, factor in {**DECIMAL, **BINARY}.items() if unit != "B"},
}
DURATIONS: Final[Mapping[str, float]] = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
WORDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("day", "days"), "d"),
    **dict.fromkeys(("hour", "hours", "hr", "hrs"), "h"),
    **dict.fromkeys(("minute", "minutes", "min", "mins"), "m"),
    **dict.fromkeys(("second", "seconds", "sec", "secs"), "s"),
}
_SIZE = lazy_pattern(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([a-z]*)", re.IGNORECASE)
_DURATION = lazy_pattern(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([a-z]+)\s*", re.IGNORECASE)
_NUMBER = lazy_pattern(r"[0-9]+(\.[0-9]+)?|\.[0-9]+")
_VERSION = lazy_pattern(r"[0-9]+(\.[0-9]+){0,2}")
_FLAGS: Final = {**dict.fromkeys(("true", "yes", "on", "1"), True), **dict.fromkeys(("false", "no", "off", "0"), False)}
_MOST_DIGITS: Final = 300
"""Digits of a number that is written as text: a float holds no more, and Python converts no more than 4300."""
LEAST_SIZE: Final = 10**6
"""Bytes of memory, shared memory or disk below which a request is a mistake: Python alone takes 8 MB."""
_GIGABYTES: Final = 64
"""A smaller number without a unit means gigabytes."""
_MEGABYTES: Final = 2048
"""A number without a unit from here on means megabytes, as `free -m`, Slurm and Metaflow count memory."""
FLAG_FIX: Final = "write true or false; in Python True or False"
_SIZE_FIX = 'write a size such as "16GB", "512MB", "1.5GiB", or a number of bytes'
_DURATION_FIX = 'write a duration such as "2h", "1h30m", "90s", "500ms", or a number of seconds'


class _Unset:
    """The type of `UNSET`; false in a condition, itself after a copy."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNSET"

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        return "UNSET"


UNSET: Final[Any] = _Unset()
"""Not given: the value of weaker layers holds. `None` is given, and takes back the value of weaker layers."""


WHOLE_RUN: Final[Mapping[str, bool]] = {"whole_run": True}
"""Metadata of a backend's setting that holds for a whole run, and is refused where it is given for one step."""


def whole_run_fields(kind: type[attrs.AttrsInstance]) -> tuple[str, ...]:
    """The fields of a settings class that can only be given for a whole run."""
    return tuple(field.name for field in attrs.fields(kind) if field.metadata.get("whole_run"))


def value_or(value: T | None, default: T) -> T:
    """The value, or `default` where nothing is asked: neither `UNSET` nor `None`."""
    return default if value is None or value is UNSET else value


def one_of(value: Any, *words: str) -> None:
    """Refuse a value that was given and is none of the words."""
    if value is not None and value is not UNSET and value not in words:
        raise not_one_of(value, words)


def not_one_of(value: Any, words: Sequence[str]) -> SettingsError:
    """The error about a value that is none of the words, which it lists once."""
    return SettingsError(f"{shown(value)} is not one of {', '.join(words)}{did_you_mean(value, words)}")


def size(value: float | str) -> int:
    """Bytes from "16GB", "16GiB", "16Gi", "1.5 GB" or a number of bytes."""
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is None or len(match[1]) > _MOST_DIGITS:
            raise SettingsError(f"{shown(value)} is not a size", fix=_SIZE_FIX)
        amount, unit = match.groups()
        factor = SIZES.get(unit.lower() or "b")
        if factor is None:
            units = {*DECIMAL, *BINARY}
            raise SettingsError(f"{shown(value)} has an unknown unit '{unit}'{nearest(unit, units)}", fix=_SIZE_FIX)
        whole = round(float(amount) * factor) if "." in amount else int(amount) * factor
    else:
        whole = _whole(_finite(value, "a size", _SIZE_FIX), value, "a size", _SIZE_FIX)
    if whole <= 0:
        raise SettingsError(f"{shown(value)} is not a size: it must be more than nothing", fix=_SIZE_FIX)
    return whole


def useful_size(value: float | str) -> int:
    """Bytes of memory or disk from what `size` takes, at least `LEAST_SIZE`: 16 is not 16 GB, but 16 bytes."""
    whole = size(value)
    if whole >= LEAST_SIZE:
        return whole
    written = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    amount = written[1] if written is not None else f"{whole}"
    meant = ("GB",) if float(amount) < _GIGABYTES else ("MB",) if float(amount) >= _MEGABYTES else ("MB", "GB")
    meanings = " or ".join(f'"{amount}{unit}"' for unit in meant)
    raise SettingsError(
        f"{shown(value)} is {size_text(whole)}, which is too little for any use", fix=f"write {meanings}"
    )


def size_text(count: int) -> str:
    """The shortest exact way to write a number of bytes: 16000000000 → "16GB", 17179869184 → "16GiB"."""
    for unit, factor in sorted({**DECIMAL, **BINARY}.items(), key=lambda row: -row[1]):
        if count % factor == 0 and count >= factor:
            return f"{count // factor}{unit}"
    return f"{count}B"


def duration(value: float | str | timedelta) -> float:
    """Seconds from "2h", "90s", "1h30m", "500ms", a number of seconds or a timedelta; never negative."""
    total = getattr(value, "total_seconds", None)
    if total is not None:
        value = float(total())
    if not isinstance(value, str):
        seconds = _finite(value, "a duration", _DURATION_FIX)
    elif _is_number(value):
        seconds = float(value.strip())
    else:
        seconds = _seconds_of(value)
    if seconds < 0:
        raise SettingsError(f"{shown(value)} is not a duration: it is negative", fix=_DURATION_FIX)
    return seconds


def positive_duration(value: float | str | timedelta) -> float:
    """Seconds, more than none."""
    seconds = duration(value)
    if not seconds:
        raise SettingsError(f"{shown(value)} leaves no time at all", fix=_DURATION_FIX)
    return seconds


def duration_text(seconds: float) -> str:
    """A duration as a person writes it: 5400.0 → "1h 30m", 0.5 → "500ms"."""
    thousandths = round(seconds * 1000)
    if abs(thousandths - seconds * 1000) > 1e-6:
        return f"{seconds!r}s"
    words = []
    for unit, factor in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        amount, thousandths = divmod(thousandths, factor)
        if amount:
            words.append(f"{amount}{unit}")
    return " ".join(words) or "0s"


def number(value: float | str) -> float:
    """A number above zero; digits in a string are taken too."""
    fix = "write a number above 0, such as 4 or 0.5"
    if isinstance(value, str) and _is_number(value):
        value = float(value.strip())
    parsed = _finite(value, "a number", fix)
    if parsed <= 0:
        raise SettingsError(f"{shown(value)} is not above 0", fix=fix)
    return parsed


def count(value: float | str, *, least: int = 0) -> int:
    """A whole number of at least `least`; digits in a string are taken too."""
    fix = f"write a whole number, {least} or more"
    if isinstance(value, str) and _is_number(value):
        value = float(value.strip()) if "." in value else int(value.strip())
    parsed = _whole(_finite(value, "a whole number", fix), value, "a whole number", fix)
    if parsed < least:
        raise SettingsError(f"{shown(value)} is less than {least}", fix=fix)
    return parsed


def parse_text(value: str | None) -> str | None:
    """A field's text, which is not blank. Like every `parse_…` here it passes `UNSET` and `None` on."""
    raw: Any = value
    if raw is None or raw is UNSET or (isinstance(raw, str) and raw.strip()):
        return value
    fix = f'write "{raw}" in quotes' if type(raw) is int else ""
    raise SettingsError(f"{shown(value)} is not a text", fix=fix)


def parse_texts(value: Iterable[str] | None) -> tuple[str, ...] | None:
    """A list of texts; a single text is not taken for a list of letters."""
    raw: Any = value
    if raw is None or raw is UNSET:
        return raw
    if isinstance(raw, (str, Mapping)) or not isinstance(raw, Iterable):
        text = raw if isinstance(raw, str) else "…" if isinstance(raw, Mapping) else str(raw)
        raise SettingsError(f"{shown(value)} is not a list of texts", fix=f"write [{shown(text)}]")
    texts = tuple(raw)
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            raise SettingsError(f"{shown(text)} in the list is not a text")
    return texts


def parse_mapping(value: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A mapping by text."""
    raw: Any = value
    if raw is None or raw is UNSET:
        return value
    if not isinstance(raw, Mapping) or not all(isinstance(key, str) for key in raw):
        raise SettingsError(
            f"{shown(value)} does not map names to values", fix='write { name = "value" }, or in Python a dict'
        )
    return dict(raw)


def parse_flag(value: bool | None) -> bool | None:
    """True or False, not a text that says so."""
    if value is None or value is UNSET or isinstance(value, bool):
        return value
    raise SettingsError(f"{shown(value)} is neither true nor false", fix=FLAG_FIX)


def parse_verify(value: bool | str | None) -> bool | str | None:
    """`verify`: whether a certificate is checked, or the file of those that are trusted."""
    if not isinstance(value, str):
        return parse_flag(value)
    if value.strip().lower() in _FLAGS:
        flag = "true" if _FLAGS[value.strip().lower()] else "false"
        raise SettingsError(
            f"{shown(value)} is read as a file", fix=f"write {flag}, in Python {flag.title()}, without quotes"
        )
    return parse_text(value)


def parse_python(value: str | None) -> str | None:
    """`python`, `executable`: a program, by its name or its path; not a version alone."""
    text = parse_text(value)
    if isinstance(text, str) and _VERSION.fullmatch(text.strip()):
        version = ".".join(text.strip().split(".")[:2])
        raise SettingsError(f"{shown(value)} is a version, not a program", fix=f'write "python{version}", or a path')
    return text


def parse_number(value: float | str | None) -> float | None:
    """A number above zero."""
    return value if value is None or value is UNSET else number(value)


def parse_count(value: int | str | None) -> int | None:
    """A whole number, zero or more."""
    return value if value is None or value is UNSET else count(value)


def parse_positive_count(value: int | str | None) -> int | None:
    """A whole number, one or more."""
    return value if value is None or value is UNSET else count(value, least=1)


def parse_size(value: float | str | None) -> int | None:
    """Bytes from what `useful_size` takes."""
    return value if value is None or value is UNSET else useful_size(value)


def no_field(cls: type[Any], name: str, fields: Iterable[str]) -> SettingsError:
    """The error about a keyword that is no field of a class: with what to write instead, or with the nearest field.

    A class has what to write instead of names that people know from elsewhere in `INSTEAD`.
    """
    instead: Mapping[str, str] = getattr(cls, "INSTEAD", {})
    if name in instead:
        return SettingsError(f"{cls.__name__} has no field '{name}'", fix=instead[name])
    return SettingsError(f"{cls.__name__} has no field '{name}'{nearest(name, fields)}")


def by_own_names(cls: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of a class with the fields' own names for the others that the class has for them in `ALIASES`."""
    aliases: Mapping[str, str] = getattr(cls, "ALIASES", {})
    renamed: dict[str, Any] = {}
    for name, value in values.items():
        own = aliases.get(name, name)
        if own in renamed and renamed[own] is not UNSET:
            raise SettingsError(f"{cls.__name__}: {own} is given twice, once as '{name}'", fix="remove one of the two")
        renamed[own] = value
    return renamed


def strict(cls: type[T]) -> type[T]:
    """Class decorator over `values.frozen`: a keyword that is no field is a `SettingsError` (`no_field`).

    An error of a field's converter gets the field's name in front. A class may have other names of its fields in
    `ALIASES`.
    """
    when_made(cls, functools.partial(_check_keywords, cls))
    return cls


def _check_keywords(cls: type[Any]) -> None:
    """Give a class of attrs an `__init__` that checks its keywords."""
    fields: dict[str, attrs.Attribute[Any]] = {field.name: field for field in attrs.fields(cls)}
    positional = [name for name, field in fields.items() if not field.kw_only]
    plain: Callable[..., None] = cls.__init__
    aliases: Mapping[str, str] = getattr(cls, "ALIASES", {})

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        for name, value in zip(positional, args):
            kwargs.setdefault(name, value)
        if len(args) > len(positional):
            raise SettingsError(
                f"{cls.__name__}: give its fields by name", fix=f"{cls.__name__}({next(iter(fields))}=…)"
            )
        if aliases:
            kwargs = by_own_names(cls, kwargs)
        for name, value in kwargs.items():
            if name not in fields:
                raise no_field(cls, name, fields)
            convert: Any = fields[name].converter
            if convert is not None:
                try:
                    kwargs[name] = convert(value)
                except SettingsError as error:
                    raise SettingsError(f"{name}: {error.message}", where=error.where, fix=error.fix) from None
        plain(self, **kwargs)

    # For inspect.signature and editors; functools.wraps would do the same.
    init.__wrapped__ = plain  # type: ignore[attr-defined]
    init.__name__ = "__init__"
    cls.__init__ = init


def _seconds_of(text: str) -> float:
    seconds = 0.0
    smallest = math.inf
    position = 0
    while position < len(text.strip()):
        match = _DURATION.match(text.strip(), position)
        if match is None or len(match[1]) > _MOST_DIGITS:
            raise SettingsError(f"{shown(text)} is not a duration", fix=_DURATION_FIX)
        amount, word = match.groups()
        unit = WORDS.get(word.lower(), word.lower())
        factor = DURATIONS.get(unit)
        if factor is None:
            raise SettingsError(
                f"{shown(text)} has an unknown unit '{word}'{nearest(word, DURATIONS)}", fix=_DURATION_FIX
            )
        if factor >= smallest:
            raise SettingsError(
                f"{shown(text)} is not a duration: its units must go from large to small", fix=_DURATION_FIX
            )
        smallest = factor
        # Milliseconds are divided, not multiplied: 0.001 is no exact float, and 999 * 0.001 is not 0.999.
        seconds += float(amount) / 1000 if unit == "ms" else float(amount) * factor
        position = match.end()
    if not position:
        raise SettingsError(f"{shown(text)} is not a duration", fix=_DURATION_FIX)
    return seconds


def _finite(value: Any, what: str, fix: str) -> float:
    """The number itself; bool is none, nor are nan, infinities and other types."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SettingsError(f"{shown(value)} is not {what}", fix=fix)
    if not _is_finite(value):
        raise SettingsError(f"{shown(value)} is not {what}: it must be finite", fix=fix)
    return value


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text.strip()) is not None and len(text.strip()) <= _MOST_DIGITS


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int that is larger than every float
        return False


def _whole(number: float, value: object, what: str, fix: str) -> int:
    if number != int(number):
        raise SettingsError(f"{shown(value)} is not {what}: it is not whole", fix=fix)
    return int(number)
