"""What a step's author put on its card: read from the store, and as a page of its own for a frame."""

from __future__ import annotations

import logging
from typing import Any, Mapping, Sequence

from stoker.client.metrics import metrics_of
from stoker.core.artifact import from_wire
from stoker.core.errors import StokerError
from stoker.core.flow import CARD, GANG
from stoker.report import cards
from stoker.report.design import document
from stoker.report.markup import element
from stoker.store import artifacts
from stoker.store.store import Store

log = logging.getLogger(__name__)


def components(store: Store, run: str, key: str, *, node: int | None = None) -> list[Mapping[str, Any]]:
    """The components that a task put on its card; for a whole `num_parallel`, those of every node."""
    outputs = {row.name: row.artifact for row in store.records.outputs(run, key)}
    if not outputs:
        return _refreshed(store, run, key, node=node)
    if GANG not in outputs:
        return list(artifacts.load(outputs[CARD], store.blobs)) if CARD in outputs else []
    gang = outputs[GANG]
    parts = artifacts.items(gang, store.blobs) if gang.serializer == "list" else [gang]
    card_parts: list[Mapping[str, Any]] = []
    for index, part in enumerate(parts):
        wire = artifacts.load(part, store.blobs).get(CARD) if node in (None, index) else None
        if wire is not None:
            if node is None:
                card_parts.append({"kind": "heading", "text": f"node {index}"})
            card_parts += artifacts.load(from_wire(wire), store.blobs)
    return card_parts


def _refreshed(store: Store, run: str, key: str, *, node: int | None) -> list[Mapping[str, Any]]:
    """The components as of the last `refresh` of a task that runs, or that did not succeed."""
    numbers = [number for one, number in store.records.metric_attempts(run) if one == key]
    card_parts: list[Mapping[str, Any]] = []
    for number, wire in sorted(metrics_of(store.records, run, key, max(numbers, default=0)).cards.items()):
        if node not in (None, number):
            continue
        try:
            shown = artifacts.load(from_wire(wire), store.blobs)
        except (StokerError, LookupError, TypeError, ValueError) as error:
            # Nothing holds what a failed task showed once: the store may have been cleaned up.
            log.debug("the card of %s is gone: %s", key, error)
            continue
        if number:
            card_parts.append({"kind": "heading", "text": f"node {number}"})
        card_parts += shown
    return card_parts


def card_page(components: Sequence[Mapping[str, Any]], *, title: str, state: str) -> str:
    """The components alone as a page, whose scripts may run: for a frame without the origin of the page around it."""
    body = element("main", None, *(element("section", None, cards.component(one)) for one in components))
    return document(title, body, state=state, policy=cards.FRAMES)
