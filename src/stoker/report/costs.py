"""What a run cost: the hours of its jobs times the price that its plan found for their machines. Pure.

A price is known where a platform lists it (`Finding.price`); of any other machine nobody here knows what it costs.
"""

from __future__ import annotations

import time
from typing import Final, Iterable, Mapping, Sequence

from stoker.client.keys import element_of
from stoker.client.placements import Placement
from stoker.core.plan import Plan, reporter_of

UNKNOWN: Final = "unknown"
_HOUR: Final = 3600.0


def prices_of(plan: Plan | None) -> dict[str, float]:
    """Step → US dollars an hour of the machines of one attempt, for the steps whose price is known."""
    if plan is None:
        return {}
    listed = {one.where: one.price for one in plan.findings if one.price is not None}
    places = {step.key: reporter_of(step).where for step in plan.steps}
    return {key: listed[place] for key, place in places.items() if place in listed}


def cost_text(
    prices: Mapping[str, float],
    placements: Mapping[str, Sequence[Placement]],
    held: Iterable[str],
    *,
    now: float | None = None,
) -> str:
    """The cost of attempts in words; empty where nothing was held that costs.

    `placements` are the attempts of each step and element on platforms, `held` the steps and elements that held
    accelerators: of those without a price, the cost is unknown.
    """
    moment = time.time() if now is None else now
    total, known = 0.0, False
    for key, attempts in placements.items():
        price = prices.get(element_of(key)[0])
        if price is None:
            continue
        for one in attempts:
            if one.started is not None:
                ended = moment if one.ended is None else one.ended.timestamp()
                total += price * max(0.0, ended - one.started.timestamp()) / _HOUR
                known = True
    others = {element_of(key)[0] for key in held} - set(prices)
    if not known:
        return UNKNOWN if others else ""
    return f"${total:,.2f}" + (f", of {', '.join(sorted(others)[:3])} {UNKNOWN}" if others else "")
