"""A type of ours, with values that steps hand to each other."""

from __future__ import annotations

import attrs


@attrs.frozen
class Curve:
    """Points of a measurement."""

    name: str
    points: tuple[float, ...]
