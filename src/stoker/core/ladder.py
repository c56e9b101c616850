"""A ladder: the changes to a request that ran out of memory, rung by rung, as a person writes and the engine climbs it.

Pure: which rung helps against which cause, and what it makes of a request. The engine knows whether a backend takes the
new request, and a step's arguments.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Final, Iterable, Mapping, Sequence

import attrs

from stoker.core import units
from stoker.core.errors import SettingsError, nearest
from stoker.core.status import GPU_OOM, HOST_OOM, SHM_TOO_SMALL
from stoker.core.units import UNSET, size_text, strict
from stoker.core.values import frozen

if TYPE_CHECKING:
    from stoker.core.resources import ResourceSettings

SCALED: Final = ("memory", "gpu_memory", "shared_memory")
"""Resources that running out of memory can be cured with."""
HELPS: Final[Mapping[str, frozenset[str]]] = {
    GPU_OOM: frozenset({"halve", "gpu_memory", "alternative"}),
    HOST_OOM: frozenset({"halve", "memory"}),
    SHM_TOO_SMALL: frozenset({"shared_memory"}),
}
"""cause → the kinds of rungs that can help against it; `/dev/shm` does not grow with the container's memory."""
_FORMS: Final = '"halve batch_size", "halve batch_size 3 times least 8", "scale memory 2" or "alternative"'


def parse_parameter(value: str) -> str:
    """A parameter of the step's function."""
    raw: Any = value
    if isinstance(raw, str) and raw.strip().isidentifier():
        return raw.strip()
    raise SettingsError(f"{value!r} is not a parameter's name", fix='write it as in the function: "batch_size"')


def parse_least(value: int | str) -> int:
    """The smallest value that makes sense."""
    return units.count(value, least=1)


def parse_resource(value: str) -> str:
    """What is multiplied."""
    if value not in SCALED:
        raise SettingsError(f"{value!r} is no memory that can be scaled{nearest(str(value), SCALED)}")
    return value


def parse_scale_factor(value: float | str) -> float:
    """What it is multiplied by."""
    factor = units.number(value)
    if factor <= 1:
        raise SettingsError(f"{value!r} would not make it more", fix="write a factor above 1, such as 2 or 1.5")
    return factor


@strict
@frozen
class Halve:
    """`Halve("batch_size")`: the step's whole-number parameter is halved, `times` times, but not below `least`."""

    parameter: str = attrs.field(converter=parse_parameter)
    least: int = attrs.field(default=1, converter=parse_least)
    times: int = attrs.field(default=1, converter=parse_least, kw_only=True)

    @property
    def kind(self) -> str:
        """The word for it in `HELPS`."""
        return "halve"

    def __str__(self) -> str:
        times = f" {self.times} times" if self.times > 1 else ""
        return f"halve {self.parameter}{times}" + (f" least {self.least}" if self.least > 1 else "")


@strict
@frozen
class Scale:
    """`Scale("memory", 2)`: twice as much of a resource that the step asks for."""

    resource: str = attrs.field(converter=parse_resource)
    factor: float = attrs.field(default=2.0, converter=parse_scale_factor)

    @property
    def kind(self) -> str:
        """The word for it in `HELPS`."""
        return self.resource

    def __str__(self) -> str:
        # Digits only, and all of them: this text is read again.
        factor = int(self.factor) if self.factor == int(self.factor) else self.factor
        return f"scale {self.resource} {factor!r}"


@strict
@frozen
class Alternative:
    """`Alternative()`: the next entry of the step's `accelerators=[…]`, which are best written from small to large."""

    kind: ClassVar[str] = "alternative"

    def __str__(self) -> str:
        return "alternative"


Rung = Halve | Scale | Alternative
_KINDS: Final[tuple[type[Rung], ...]] = (Halve, Scale, Alternative)


def parse_ladder(value: str | Rung | Mapping[str, Any] | Iterable[str | Rung | Mapping[str, Any]]) -> tuple[Rung, ...]:
    """Rungs from what a person writes: values, texts, or tables of their fields; one alone is a ladder too."""
    raw: Any = value
    if raw is UNSET:
        return raw  # type: ignore[no-any-return]
    if isinstance(raw, (str, Mapping, *_KINDS)):
        raw = [raw]
    if not isinstance(raw, Iterable):
        raise SettingsError(f"{raw!r} is not a ladder of rungs", fix=f"write a list of {_FORMS}")
    return tuple(rung(item) for item in raw)


def rung(value: Any) -> Rung:
    """One rung from a value, a text, or a table of its fields."""
    if isinstance(value, _KINDS):
        return value
    if isinstance(value, str):
        return _parse_rung(value)
    if isinstance(value, Mapping):
        if "parameter" in value:
            return Halve(**value)
        if "resource" in value:
            return Scale(**value)
        if not value:
            return Alternative()
    raise SettingsError(f"{value!r} is not a rung", fix=f"write {_FORMS}")


def _parse_rung(text: str) -> Rung:
    words = text.replace(",", " ").split()
    head, arguments = (words[0].lower(), words[1:]) if words else ("", [])
    if head == "alternative" and not arguments:
        return Alternative()
    if head == "scale" and 1 <= len(arguments) <= 2:
        return Scale(*arguments)
    if head == "halve" and arguments:
        fields: dict[str, Any] = {}
        name, *more = arguments
        while len(more) >= 2:
            first, second, *more = more
            if first == "least":
                fields["least"] = second
            elif second == "times":
                fields["times"] = first
            else:
                more = [first]
                break
        if not more:
            return Halve(name, **fields)
    heads = ("halve", "scale", "alternative")
    hint = nearest(head, heads) if head and head not in heads else ""
    raise SettingsError(f"{text!r} is not a rung{hint}", fix=f"write {_FORMS}")


def single(ladder: Iterable[Rung]) -> tuple[Rung, ...]:
    """The ladder with a rung for each time that one may be used."""
    rungs: list[Rung] = []
    for one in ladder:
        rungs += [attrs.evolve(one, times=1)] * one.times if isinstance(one, Halve) else [one]
    return tuple(rungs)


def climbed_after(ladder: Sequence[Rung]) -> frozenset[str]:
    """The causes after which the ladder is climbed: the same request would only fail again."""
    if not ladder:
        return frozenset()
    kinds = {one.kind for one in ladder}
    return frozenset(cause for cause, helping in HELPS.items() if cause != SHM_TOO_SMALL or kinds & helping)


@frozen(kw_only=True)
class Change:
    """What was changed of a request: a parameter or a resource, its value before and after."""

    what: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.what} {self._text(self.old)} → {self._text(self.new)}"

    def _text(self, value: Any) -> str:
        return size_text(value) if self.what in SCALED and isinstance(value, int) else str(value)

    def as_dict(self) -> dict[str, Any]:
        """The change as JSON."""
        return {"what": self.what, "old": self.old, "new": self.new}


def halve(one: Halve, value: int | None) -> Change | str:
    """The parameter's change, or why there is none."""
    if value is None:
        return f"{one.parameter} is not a plain whole number"
    if value <= one.least:
        return f"{one.parameter} is {value} already"
    return Change(what=one.parameter, old=value, new=max(one.least, value // 2))


def enlarge(one: Scale | Alternative, resources: ResourceSettings) -> tuple[Change, ResourceSettings] | str:
    """The change of a request and the changed request, or why there is none."""
    try:
        if isinstance(one, Scale):
            amount = resources.get(one.resource)
            if amount is None:
                return f"no {one.resource} is asked for"
            more = math.ceil(amount * one.factor)
            change = Change(what=one.resource, old=amount, new=more)
            return change, attrs.evolve(resources, **{one.resource: more})
        kinds = resources.get("accelerators", ())
        if len(kinds) < 2:
            return f"{kinds[0]} is the last of the accelerators" if kinds else "no accelerators are named"
        change = Change(what="accelerators", old=str(kinds[0]), new=str(kinds[1]))
        return change, attrs.evolve(resources, accelerators=kinds[1:])
    except SettingsError as error:
        return error.message


def net(changes: Iterable[Change]) -> tuple[Change, ...]:
    """One change for each thing: from what was asked for to what it is now."""
    merged: dict[str, Change] = {}
    for change in changes:
        first = merged.get(change.what)
        merged[change.what] = change if first is None else attrs.evolve(change, old=first.old)
    return tuple(merged.values())
