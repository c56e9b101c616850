"""Bad luck by order: slow answers, refusals, broken connections, old lists."""

from __future__ import annotations

import random
import re
from typing import Literal

from attrs import define, field
from tests.kubernetes.server.failures import Refused
from tests.kubernetes.server.objects import Object

Kind = Literal["latency", "too-many-requests", "server-error", "reset", "stale-list", "drop-watch"]


@define(kw_only=True)
class Fault:
    """One kind of bad luck, for the requests that it concerns."""

    kind: Kind
    method: str = ".*"
    """Expression that the request's method matches in full; a watch is "WATCH", a log "LOG"."""
    path: str = ".*"
    """Expression that the request's path matches in full."""
    seconds: float = 0.0
    """How long an answer is held back ("latency"), what `Retry-After` says ("too-many-requests"), or how old a list is
    ("stale-list", in a number of changes) or a watch becomes before it breaks."""
    share: float = 1.0
    """The share of the requests that it hits. Two hits are at most `2 / share` requests apart: whoever makes as many
    meets it for certain."""
    times: int | None = None
    """How many requests it hits; None for all."""
    status: int = 500
    """The status of a "server-error"."""
    hits: int = 0
    """How many requests it has hit."""
    ahead: int = 0
    """The number of requests up to and with the next that it hits; 0 where that is not drawn yet."""

    def concerns(self, method: str, path: str) -> bool:
        """Whether it may hit such a request."""
        left = self.times is None or self.hits < self.times
        return left and bool(re.fullmatch(self.method, method) and re.fullmatch(self.path, path))


@define(eq=False)
class Faults:
    """The bad luck in force."""

    draw: random.Random = field(factory=lambda: random.Random(0))
    _faults: list[Fault] = field(factory=list)

    def add(self, fault: Fault) -> None:
        """Put one more into force."""
        self._faults.append(fault)

    def clear(self) -> list[Object]:
        """End all; what each had hit."""
        hits: list[Object] = [{"kind": each.kind, "path": each.path, "hits": each.hits} for each in self._faults]
        self._faults.clear()
        return hits

    def hit(self, kind: Kind, method: str, path: str) -> Fault | None:
        """The fault of that kind that hits this request; it is counted."""
        for fault in self._faults:
            if fault.kind != kind or not fault.concerns(method, path):
                continue
            fault.ahead = (fault.ahead or self._gap(fault.share)) - 1
            if not fault.ahead:
                fault.hits += 1
                return fault
        return None

    def _gap(self, share: float) -> int:
        """The number of requests up to the next hit: between 1 and `2 / share`, on average `1 / share`."""
        return 1 + int(self.draw.random() * (2 / share - 1))


def too_many_requests(seconds: float) -> Refused:
    """429 by priority and fairness."""
    return Refused(
        429,
        "too many requests, please try again later",
        "TooManyRequests",
        {"retryAfterSeconds": int(seconds)},
        {"Retry-After": str(int(seconds))},
    )


def server_error(code: int) -> Refused:
    """A failure of the server's own, as while its store has no leader."""
    if code == 503:
        return Refused(503, "apiserver is shutting down", "ServiceUnavailable", headers={"Retry-After": "1"})
    return Refused(code, "etcdserver: request timed out", "InternalError" if code == 500 else "Timeout")
