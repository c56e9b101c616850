"""What pages with many variants show: elements of a fan-out, or runs, as an address chooses them."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

from attrs import evolve

from stoker.client.variants import Choice, Variant, chosen_variants
from stoker.core.errors import UsageError
from stoker.report.variantfigures import MOST, View, variants_part


def variant_values(
    variants: Sequence[Variant],
    query: Mapping[str, str],
    *,
    noun: str,
    title: str,
    address: Callable[[Mapping[str, Any]], str],
    page_of: Callable[[Variant], str],
) -> dict[str, Any]:
    """The values of the template variants_part.html; `address` makes that of the page with more in its query."""
    choice, problem = Choice.parse(query), ""
    try:
        found = chosen_variants(variants, choice)
    except UsageError as error:
        found, problem = list(variants), str(error)
    if choice.start >= len(found):
        choice = evolve(choice, start=0)

    def address_of(other: Choice) -> str:
        return address(other.as_dict())

    start, end = choice.start, choice.start + MOST
    view = View(choice=choice, noun=noun, title=title, address=address_of, page_of=page_of)
    return {
        "address": address({**choice.as_dict(), "variants": 1}),
        "choice": choice,
        "problem": problem,
        "noun": noun,
        "number": len(found),
        "total": len(variants),
        "figures": variants_part(variants, found, view),
        "all": address(evolve(choice, filter="", start=0).as_dict()),
        "failed": address(evolve(choice, filter="status=failed", start=0).as_dict()),
        "running": address(evolve(choice, filter="status=running", start=0).as_dict()),
        "earlier": address(evolve(choice, start=max(0, start - MOST)).as_dict()) if start else "",
        "later": address(evolve(choice, start=end).as_dict()) if end < len(found) else "",
    }
