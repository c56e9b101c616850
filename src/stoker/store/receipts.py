"""Receipts as rows. A module of its own, so that only runs with devices pay for its imports."""

from __future__ import annotations

import json
import zlib
from typing import Any, Final, Sequence, get_args

import attrs

from stoker.core.codec import from_json, to_json
from stoker.core.receipt import Receipt, Track, Verdict
from stoker.store.rows import json_text, parse_object

_VERDICTS: Final = frozenset(get_args(Verdict))


@attrs.frozen(kw_only=True, slots=True)
class ReceiptRow:
    """The receipt of one attempt."""

    run_id: str
    key: str
    number: int
    """The attempt's number."""
    receipt: Receipt
    tracks: tuple[Track, ...] = ()
    """Measurements over time; empty if the query left them out."""

    def columns(self) -> tuple[Any, ...]:
        """The columns; the verdict has its own, so that queries can select by it."""
        tracks = zlib.compress(
            json.dumps(to_json(self.tracks), separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
        )
        receipt = json_text(to_json(self.receipt))
        return self.run_id, self.key, self.number, self.receipt.verdict, receipt, tracks


def receipt_row(values: Sequence[Any]) -> ReceiptRow:
    """The receipt for the columns that a query returned; the tracks may be None."""
    run_id, key, number, verdict, receipt, tracks = values
    # A newer version may have written a verdict that this one does not know.
    document = {**parse_object(receipt), "verdict": verdict if verdict in _VERDICTS else "unknown"}
    lines = json.loads(zlib.decompress(tracks)) if tracks is not None else []
    return ReceiptRow(
        run_id=run_id,
        key=key,
        number=number,
        receipt=from_json(Receipt, document, strict=False),
        tracks=tuple(from_json(Track, line, strict=False) for line in lines),
    )
