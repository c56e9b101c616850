"""Which torch the releases of other packages require: their own pins. A table, without any other module's knowledge.

Read from the Requires-Dist of each release's wheel. An installer that is asked for one of them installs just that
torch, also over one that the image has.
"""

from __future__ import annotations

from typing import Final, Mapping, Sequence

PINS_SOURCE: Final = "Requires-Dist in the metadata of its wheel"

VLLM_TORCH: Final[Sequence[tuple[str, str]]] = (
    (">=0.2.6,<0.4.1", "2.1.2"),
    ("==0.4.1", "2.2.1"),
    (">=0.4.2,<0.5.2", "2.3.0"),
    (">=0.5.2,<0.5.4", "2.3.1"),
    (">=0.5.4,<0.6.4", "2.4.0"),
    (">=0.6.4,<0.8", "2.5.1"),
    (">=0.8,<0.9", "2.6.0"),
    (">=0.9,<0.10", "2.7.0"),
    (">=0.10,<0.10.2", "2.7.1"),
    (">=0.10.2,<0.11.1", "2.8.0"),
    (">=0.11.1,<0.14", "2.9.0"),
    (">=0.14,<0.17", "2.9.1"),
    (">=0.17,<0.20", "2.10.0"),
    (">=0.20,<0.27", "2.11.0"),
    (">=0.27,<0.33", "2.13.0"),
    ("==0.33.0", "2.14.0"),
)
"""Releases of vLLM → the torch that they require."""
XFORMERS_TORCH: Final[Sequence[tuple[str, str]]] = (
    (">=0.0.20,<0.0.22.post1", "2.0.1"),
    ("==0.0.22.post7", "2.1.0"),
    ("==0.0.23", "2.1.1"),
    ("==0.0.23.post1", "2.1.2"),
    ("==0.0.24", "2.2.0"),
    ("==0.0.25", "2.2.1"),
    ("==0.0.25.post1", "2.2.2"),
    ("==0.0.26.post1", "2.3.0"),
    ("==0.0.27", "2.3.1"),
    (">=0.0.27.post1,<0.0.28", "2.4.0"),
    (">=0.0.28,<0.0.28.post2", "2.4.1"),
    ("==0.0.28.post2", "2.5.0"),
    (">=0.0.28.post3,<0.0.29.post2", "2.5.1"),
    (">=0.0.29.post2,<0.0.30", "2.6.0"),
    (">=0.0.30,<0.0.31", "2.7.0"),
    (">=0.0.31,<0.0.32", "2.7.1"),
    (">=0.0.32.post1,<0.0.33", "2.8.0"),
    (">=0.0.33,<0.0.33.post2", "2.9.0"),
    ("==0.0.33.post2", "2.9.1"),
    ("==0.0.34", "2.10.0"),
)
"""Releases of xFormers → the torch that they require."""
TORCH_PINS: Final[Mapping[str, Sequence[tuple[str, str]]]] = {"vllm": VLLM_TORCH, "xformers": XFORMERS_TORCH}
"""Distribution → its releases, as a specifier, and the one version of torch that they require."""
