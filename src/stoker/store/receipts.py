"""Receipts as rows: read and written where a step held devices, so that no other run's start pays for them."""

from __future__ import annotations

import json
import zlib
from typing import Any, Final, Sequence, get_args

import attrs

from stoker.core.codec import from_json, to_json
from stoker.core.receipt import Receipt, Track, Verdict
from stoker.store.rows import parsed, text

_VERDICTS: Final = frozenset(get_args(Verdict))


@attrs.frozen(kw_only=True, slots=True)
class ReceiptRow:
    """What one try at a step did with its accelerators, and the tracks of its charts where they are asked for."""

    run_id: str
    key: str
    number: int
    receipt: Receipt
    tracks: tuple[Track, ...] = ()

    def columns(self) -> tuple[Any, ...]:
        """As columns; the verdict has one of its own, so that a query can ask for it."""
        tracks = zlib.compress(
            json.dumps(to_json(self.tracks), separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
        )
        receipt = text(to_json(self.receipt))
        return self.run_id, self.key, self.number, self.receipt.verdict, receipt, tracks


def receipt_row(values: Sequence[Any]) -> ReceiptRow:
    """The receipt of columns, as a query returned them; the tracks may be None, which is none."""
    run_id, key, number, verdict, receipt, tracks = values
    # A verdict that only a newer version knows says nothing to this one.
    document = {**parsed(receipt), "verdict": verdict if verdict in _VERDICTS else "unknown"}
    lines = json.loads(zlib.decompress(tracks)) if tracks is not None else []
    return ReceiptRow(
        run_id=run_id,
        key=key,
        number=number,
        receipt=from_json(Receipt, document, strict=False),
        tracks=tuple(from_json(Track, line, strict=False) for line in lines),
    )
