"""Receipts as rows. A module of its own, so that only runs with devices pay for its imports."""

from __future__ import annotations

import json
import zlib
from typing import Any, Final, Sequence, get_args

import attrs

from stoker.core.codec import from_json, parse_json, parse_object, to_json
from stoker.core.errors import SettingsError, StoreError
from stoker.core.receipt import Receipt, Track, Verdict
from stoker.core.words import shown
from stoker.store.rows import json_text

_VERDICTS: Final = frozenset(get_args(Verdict))
_MOST_TRACKS: Final = 1 << 28
"""Bytes of an attempt's tracks: `devices.samples` thins them to a few megabytes for the longest run."""


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
    try:
        # A newer version may have written a verdict that this one does not know.
        verdict = verdict if isinstance(verdict, str) and verdict in _VERDICTS else "unknown"
        document = {**parse_object(receipt), "verdict": verdict}
        return ReceiptRow(
            run_id=run_id,
            key=key,
            number=number,
            receipt=from_json(Receipt, document, strict=False),
            tracks=() if tracks is None else from_json(tuple[Track, ...], parse_json(_inflate(tracks)), strict=False),
        )
    except (SettingsError, TypeError, zlib.error) as error:
        text = error.message if isinstance(error, SettingsError) else str(error)
        raise StoreError(
            f"the receipt of attempt {shown(number)} of step {shown(key)} of run {shown(run_id)} cannot be read: {text}"
        ) from None


def _inflate(data: bytes) -> bytes:
    """The bytes of compressed tracks; a few bytes of a spoiled store do not become gigabytes."""
    decompressor = zlib.decompressobj()
    text = decompressor.decompress(data, _MOST_TRACKS)
    if decompressor.unconsumed_tail:
        raise SettingsError(f"its tracks are longer than {_MOST_TRACKS:,} bytes")
    if not decompressor.eof:
        raise SettingsError("its tracks are cut off")
    return text
