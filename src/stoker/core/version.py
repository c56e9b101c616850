"""The version of Stoker."""

from typing import Final

VERSION: Final = "0.1.0"
