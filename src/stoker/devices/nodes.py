"""The receipts of a gang's nodes as one: what they held together, and the worst that is to be said of any."""

from __future__ import annotations

from typing import Final, Iterable, Sequence, TypeVar

import attrs

from stoker.core.receipt import Receipt, Verdict

Number = TypeVar("Number", int, float)

WORST_FIRST: Final[tuple[Verdict, ...]] = ("wrong-device", "idle", "cpu-fallback", "unknown", "used")


def together(receipts: Sequence[Receipt]) -> Receipt:
    """One receipt for all nodes, the head's first. A sum of which one node lacks its part is None."""
    head = receipts[0]
    if len(receipts) == 1:
        return head
    return attrs.evolve(
        head,
        verdict=min((receipt.verdict for receipt in receipts), key=WORST_FIRST.index),
        evidence=tuple(f"node {node}: {text}" for node, one in enumerate(receipts) for text in one.evidence),
        devices=tuple(use for receipt in receipts for use in receipt.devices),
        cpus_mean=_sum(receipt.cpus_mean for receipt in receipts),
        cpus_peak=_sum(receipt.cpus_peak for receipt in receipts),
        memory_mean=_sum(receipt.memory_mean for receipt in receipts),
        memory_peak=_sum(receipt.memory_peak for receipt in receipts),
        energy=_sum(receipt.energy for receipt in receipts),
        advice=tuple(dict.fromkeys(text for receipt in receipts for text in receipt.advice)),
        fallback=next((receipt.fallback for receipt in receipts if receipt.fallback), ""),
        stopped=next((receipt.stopped for receipt in receipts if receipt.stopped), ""),
        left_idle=next((receipt.left_idle for receipt in receipts if receipt.left_idle), ""),
        whole=all(receipt.whole for receipt in receipts),
    )


def _sum(parts: Iterable[Number | None]) -> Number | None:
    known = list(parts)
    told = [part for part in known if part is not None]
    return sum(told[1:], told[0]) if told and len(told) == len(known) else None
