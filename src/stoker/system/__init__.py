"""What operating systems do in ways of their own: processes as others see them, their end, messages between them.

`linux` and `portable` have the same names. `STOKER_SYSTEM=portable` chooses the second on Linux, too, as the tests do,
for Stoker and all that it starts. Nothing else in Stoker opens files of /proc, except for programs that only
ever run on Linux: in containers, on clusters, and beside drivers of accelerators that macOS lacks.
"""

from __future__ import annotations

import os
import sys
from typing import Final

LINUX: Final[bool] = sys.platform == "linux" and os.environ.get("STOKER_SYSTEM") != "portable"
"""Whether this is Linux, and may be used as such."""

if LINUX:
    from stoker.system import linux as system
else:
    from stoker.system import portable as system  # type: ignore[no-redef]

from stoker.system.portable import Stat  # noqa: E402  # the same in both

__all__ = ["LINUX", "Stat", "system"]
