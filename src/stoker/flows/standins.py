"""Small names of Metaflow's that programs import and that mean little here."""

from __future__ import annotations

from typing import Any, Final, Mapping

from stoker.core.version import VERSION
from stoker.flows.mutators import FlowMutator
from stoker.flows.parameters import username

metaflow_version: Final = "2.19.39"
"""The release of Metaflow whose names and behaviour are here."""
__version__: Final = metaflow_version


def get_version(public: bool = False) -> str:
    """That release, and Stoker's own unless `public`: "2.19.39+stoker(1.0)"."""
    return metaflow_version if public else f"{metaflow_version}+stoker({VERSION})"


class IncludedFile:
    """What Metaflow keeps of an `IncludeFile` in place of its content.

    Here the content itself is the artifact, so that no artifact is one.
    """

    def __init__(self, descriptor: Mapping[str, Any]) -> None:
        self.descriptor = descriptor


def get_username() -> str:
    """Who runs this: METAFLOW_USER, STOKER_USER, or the system's name for the user."""
    return username()


def is_stringish(x: object) -> bool:
    """Whether a value is a text or bytes."""
    return isinstance(x, (str, bytes))


class package_sources(FlowMutator):  # noqa: N801 the name of a decorator
    """Files that Metaflow puts into a flow's code package; here code travels from where it is, without a package."""

    def init(self, sources: Any, arcname: Any = None, suffixes: Any = None) -> None:
        """Nothing is packed."""
