"""How a `Curve` is kept: eight bytes for each point, and its name beside them."""

from __future__ import annotations

import array
from typing import Any, BinaryIO, Mapping

from acme.values import Curve
from stoker.store.serializers.base import Stored


class CurveSerializer:
    """Turns curves into bytes and back."""

    name = "acme-curve"
    """Kept with every value that it saves; it never changes."""

    def fits(self, value: Any) -> bool:
        """Whether this very value comes back as it was: a subclass may have more than points."""
        return type(value) is Curve

    def save(self, value: Any, file: BinaryIO) -> Mapping[str, Any]:
        """Write the points; what is returned is kept as JSON."""
        file.write(array.array("d", value.points).tobytes())
        return {"curve": value.name}

    def load(self, stored: Stored) -> Any:
        """The curve again."""
        with stored.open() as file:
            points = array.array("d", file.read())
        return Curve(name=str(stored.meta["curve"]), points=tuple(points))


CURVE = CurveSerializer()
