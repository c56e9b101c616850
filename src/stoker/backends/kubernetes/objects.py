"""Reads objects of the API as they come, plain dicts: conditions, containers, times, owners, quantities. Pure."""

from __future__ import annotations

import datetime
import functools
import re
import time
from decimal import Decimal
from typing import Any, Collection, Final, Iterable, Iterator, Mapping, Sequence

Object = Mapping[str, Any]
"""An object of the API, or a part of one."""

INDEX: Final = "batch.kubernetes.io/job-completion-index"
"""Label and annotation of an Indexed Job's pod: https://kubernetes.io/docs/reference/labels-annotations-taints/"""
_DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
_QUANTITY: Final = re.compile(r"([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?")
"""https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/"""
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, **{letter: 3 * power for power, letter in enumerate("kMGTPE", 1)}}
_BINARY: Final = {f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", 1)}
_FINEST: Final = -9
"""The power of ten below which the API rounds a quantity, away from zero."""
_MOST_BINARY: Final = 2**63 - 1
"""The most that the API makes of a quantity with a binary suffix."""
_LONGEST: Final = 1000
"""Letters of a quantity, and powers of ten in one, beyond which it is no number that anybody has."""
_TIME: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt]([0-9]{2}:[0-9]{2}:)([0-9]{2})(?:\.([0-9]+))?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
"""https://www.rfc-editor.org/rfc/rfc3339#section-5.6"""


def uid(item: Object) -> str:
    """An object's uid; its name where it has none, as in a template."""
    metadata = item.get("metadata") or {}
    return str(metadata.get("uid") or metadata.get("name") or "")


def name(item: Object) -> str:
    """An object's name."""
    return str((item.get("metadata") or {}).get("name", ""))


def condition(item: Object, kind: str) -> Object | None:
    """The condition of a kind if it holds; None where it is absent, false or unknown."""
    found = stated_condition(item, kind)
    return found if found is not None and found.get("status") == "True" else None


def denied_condition(item: Object, kind: str) -> Object | None:
    """The condition of a kind if it is said not to hold."""
    found = stated_condition(item, kind)
    return found if found is not None and found.get("status") == "False" else None


def stated_condition(item: Object, kind: str) -> Object | None:
    """The condition of a kind, whatever it says."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind), None)


def phase(pod: Object) -> str:
    """A pod's phase; "" where it has none yet."""
    return str((pod.get("status") or {}).get("phase", ""))


def is_deleted(item: Object) -> bool:
    """Whether an object is being deleted."""
    return bool((item.get("metadata") or {}).get("deletionTimestamp"))


def is_taken(pod: Object) -> bool:
    """Whether the cluster ends a pod, or has ended it: a step that it asks to end leaves a result all the same.

    https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions and the reasons of a pod's
    status, such as Evicted, by which a kubelet says that it ended a pod.
    """
    return condition(pod, "DisruptionTarget") is not None or bool((pod.get("status") or {}).get("reason"))


def has_ended(pod: Object, gone: Collection[str]) -> bool:
    """Whether nothing of a pod runs any more, as far as the API knows."""
    return uid(pod) in gone or phase(pod) in ("Succeeded", "Failed")


def index_of(pod: Object) -> int | None:
    """The completion index of an Indexed Job's pod."""
    metadata = pod.get("metadata") or {}
    text = (metadata.get("labels") or {}).get(INDEX) or (metadata.get("annotations") or {}).get(INDEX)
    return int(text) if text is not None and str(text).isdecimal() else None


def node_of(pod: Object) -> str:
    """The name of the node to which a pod is bound; "" for none."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def main_name(pod: Object) -> str:
    """The name of the container that decides: the annotation's, else the first one."""
    annotated = ((pod.get("metadata") or {}).get("annotations") or {}).get(_DEFAULT_CONTAINER)
    containers = (pod.get("spec") or {}).get("containers") or ()
    return str(annotated or (containers[0].get("name", "") if containers else ""))


def main_container(pod: Object) -> Object:
    """The specification of the container that decides; empty where there is none."""
    wanted = main_name(pod)
    return next((each for each in (pod.get("spec") or {}).get("containers") or () if each.get("name") == wanted), {})


def main_status(pod: Object) -> Object | None:
    """The status of the container that decides; None before the kubelet has reported one."""
    wanted = main_name(pod)
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((each for each in statuses if each.get("name") == wanted), None)


def container_statuses(pod: Object) -> Iterator[Object]:
    """The statuses of all containers, those that initialise first."""
    status = pod.get("status") or {}
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def failed_init(pod: Object) -> Object | None:
    """The status of the first init container that ended with another code than 0; sidecars do not count."""
    sidecars = {
        each.get("name")
        for each in (pod.get("spec") or {}).get("initContainers") or ()
        if each.get("restartPolicy") == "Always"
    }
    for each in (pod.get("status") or {}).get("initContainerStatuses") or ():
        ended = (each.get("state") or {}).get("terminated")
        if ended and ended.get("exitCode") and each.get("name") not in sidecars:
            return each  # type: ignore[no-any-return]
    return None


def waiting(pod: Object) -> Object | None:
    """The first container's waiting state with a reason that is no plain step of the start."""
    for each in container_statuses(pod):
        state = (each.get("state") or {}).get("waiting")
        if state and state.get("reason") not in (None, "", "ContainerCreating", "PodInitializing"):
            return {**state, "container": each.get("name", ""), "image": each.get("image", "")}
    return None


def seconds(text: Any) -> float | None:
    """Seconds since the epoch of a time of the API; None for none, and for a text that is no time."""
    moment = nanoseconds(text)
    return None if moment is None else moment / 1_000_000_000


def nanoseconds(text: Any) -> int | None:
    """Nanoseconds since the epoch of a time such as "2026-11-21T04:53:50.816630166Z"; None for another text."""
    match = _TIME.fullmatch(str(text))
    whole = None if match is None else _whole_seconds(match[1], match[2], match[3], match[5].upper())
    if match is None or whole is None:
        return None
    return whole * 1_000_000_000 + int(f"{match[4] or ''}000000000"[:9])


@functools.lru_cache(maxsize=64)
def _whole_seconds(date: str, clock: str, second: str, zone: str) -> int | None:
    """Seconds since the epoch; of lines that come together it is the same."""
    leap = second == "60"
    try:  # Python 3.10 does not read "Z"
        text = f"{date}T{clock}{'59' if leap else second}{'+00:00' if zone == 'Z' else zone}"
        return int(datetime.datetime.fromisoformat(text).timestamp()) + leap
    except ValueError:
        return None


def clock_text(moment: float) -> str:
    """A time as this machine's clock shows it: "14:03:05"."""
    return time.strftime("%H:%M:%S", time.localtime(moment))


def newest(items: Iterable[Object]) -> Object | None:
    """The object that was made last, by time and then by resourceVersion."""
    return max(items, key=creation, default=None)


def creation(item: Object) -> tuple[float, int]:
    """A key by which objects are sorted as they were made."""
    metadata = item.get("metadata") or {}
    version = str(metadata.get("resourceVersion", ""))
    return seconds(metadata.get("creationTimestamp")) or 0.0, int(version) if version.isdecimal() else 0


def events_of(item: Object, events: Iterable[Object], *reasons: str) -> list[Object]:
    """The events about an object, in order; of certain reasons where some are given."""
    wanted = uid(item)
    return sorted(
        (
            each
            for each in events
            if (each.get("involvedObject") or {}).get("uid") == wanted
            and (not reasons or each.get("reason") in reasons)
        ),
        key=event_time,
    )


def event_time(event: Object) -> float:
    """When an event last happened: schedulers write other fields than kubelets."""
    last = event.get("lastTimestamp") or (event.get("series") or {}).get("lastObservedTime")
    metadata = event.get("metadata") or {}
    return seconds(last or event.get("eventTime") or metadata.get("creationTimestamp")) or 0.0


def first_time(event: Object) -> float:
    """When an event happened for the first time."""
    return seconds(event.get("firstTimestamp") or event.get("eventTime")) or event_time(event)


def event_count(event: Object) -> int:
    """How often an event happened."""
    return int(event.get("count") or (event.get("series") or {}).get("count") or 1)


def amount(quantity: Any) -> Decimal | None:
    """The number that a quantity of the API stands for: "500m" is 0.5, "64Mi" is 67108864; None for what is none."""
    text = str(quantity).strip()
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        return None
    whole, _, fraction = match[2].partition(".")
    unit = match[3] or ""
    digits, power = int(whole + fraction) * _BINARY.get(unit, 1), -len(fraction)
    power += int(unit[1:]) if unit[1:] and unit not in _BINARY else _DECIMAL.get(unit, 0)
    if abs(power) > _LONGEST:
        return None
    if power < _FINEST:
        digits, power = -(-digits // 10 ** (_FINEST - power)), _FINEST
    if unit in _BINARY and digits > _MOST_BINARY * 10**-power:
        digits, power = _MOST_BINARY, 0
    return Decimal(f"{match[1]}{digits}e{power}")


def indexes(text: str) -> list[range]:
    """The indexes of a list as a Job's status writes it: "0,1,3-5"."""
    parts = [part.partition("-") for part in text.split(",") if part]
    return [range(int(first), int(last or first) + 1) for first, _, last in parts]


def has_index(text: str, index: int) -> bool:
    """Whether a list of indexes names one."""
    return any(index in part for part in indexes(text))


def version_numbers(version: Object) -> tuple[int, int] | None:
    """The numbers of a server's version, from what it answers to GET /version: clouds write "29+"; None for none."""
    major, minor = (re.match("[0-9]{1,9}", str(version.get(part, ""))) for part in ("major", "minor"))
    return None if major is None or minor is None else (int(major[0]), int(minor[0]))


def is_default_class(storage: Object) -> bool:
    """Whether a storage class is the one of claims that name none."""
    annotations = (storage.get("metadata") or {}).get("annotations") or {}
    return bool(annotations.get("storageclass.kubernetes.io/is-default-class") == "true")


def joined(texts: Sequence[str], *, last: str = "and") -> str:
    """Words as a person lists them: "a, b and c"."""
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} {last} {texts[-1]}" if texts else ""
