"""What stands behind ZenML's names, and says once in a program, on stderr, what Stoker does otherwise."""

from __future__ import annotations

import os
import sys
import zlib
from typing import Final

_SAID: Final = "STOKER_ZENML_SAID"
"""The variable with checksums of what has been said already, which processes that start here inherit."""


def note(sentence: str) -> None:
    """Say a sentence unless this program has said it."""
    said, mark = os.environ.get(_SAID, "").split(), f"{zlib.crc32(sentence.encode()):08x}"
    if mark not in said:
        os.environ[_SAID] = " ".join([*said, mark])
        sys.stderr.write(f"stoker: {sentence}\n")
