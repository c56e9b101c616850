"""What a pod of a pool that has left says in its log of the orders that no driver has taken (`poolpod.leave`). Pure."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any, Final, Mapping, Sequence

import attrs

from stoker.backends.base.statuses import read_result
from stoker.core.codec import parse_json
from stoker.core.errors import SettingsError
from stoker.core.protocol import MARK

MARKED: Final = (MARK + '{"kubernetes"').encode()


@attrs.frozen(kw_only=True)
class LoggedOrder:
    """An order, as its pod knows it."""

    number: int
    mark: Sequence[Any]
    """Key, kind, attempt and request of its job."""
    begun: bool = False
    over: bool = False
    ok: bool = False
    """Whether it went well."""
    code: int | None = None
    """The exit code of its program, negative for a signal."""
    output: bytes = b""
    result: str = ""
    """The result's text; empty where there is none."""
    samples: Mapping[str, str] = attrs.field(factory=dict)
    """What is recorded of its devices, by the name of the file on the driver's machine."""


def logged_orders(log: bytes) -> tuple[dict[int, LoggedOrder], bool]:
    """The orders in a log whose lines stand behind their times, and whether the log has all that the pod wrote."""
    orders: dict[int, LoggedOrder] = {}
    current: LoggedOrder | None = None
    output: list[bytes] = []
    texts: dict[str, list[str]] = {}
    for stamped in log.splitlines(keepends=True):
        line = stamped.partition(b" ")[2]
        if not line.startswith(MARKED):
            output.append(line)
            continue
        try:
            record = parse_json(line[len(MARK.encode()) :])
            kind = record["kubernetes"]
        except (SettingsError, KeyError, TypeError):
            continue
        if kind in ("order", "end"):
            if current is not None:
                orders[current.number] = _whole(current, output, texts)
            output, texts = [], {}
            if kind == "end":
                return orders, True
            current = LoggedOrder(
                number=int(record["number"]),
                mark=record["mark"],
                begun=bool(record["begun"]),
                code=record["code"],
            )
        else:
            texts.setdefault(json.dumps([kind, record.get("name", "")]), []).append(str(record.get("text", "")))
    return orders, False


def _whole(order: LoggedOrder, output: Sequence[bytes], texts: Mapping[str, Sequence[str]]) -> LoggedOrder:
    """An order with what stands behind its record."""
    result, samples = "", {}
    for key, pieces in texts.items():
        kind, name = json.loads(key)
        try:
            text = zlib.decompress(base64.b64decode("".join(pieces), validate=True)).decode()
        except (ValueError, zlib.error):
            continue
        if kind == "result":
            result = text
        elif kind == "samples":
            samples[name] = text
    read = read_result(result) if result else None
    return attrs.evolve(
        order,
        over=order.code is not None,
        ok=read is not None and read.ok,
        output=b"".join(output),
        result=result,
        samples=samples,
    )
