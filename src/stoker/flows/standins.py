"""Small names of Metaflow's that programs import and that mean little here."""

from __future__ import annotations

import os
from typing import Any, Callable, Final, Mapping, TypeVar

from stoker.core.version import VERSION
from stoker.flows.mutators import FlowMutator
from stoker.flows.parameters import username

metaflow_version: Final = "2.19.39"
"""The release of Metaflow whose names and behaviour are here."""
__version__: Final = metaflow_version


CONFIGURATION: Final[Mapping[str, str | None]] = {
    "DATASTORE_SYSROOT_AZURE": None,
    "DATASTORE_SYSROOT_GS": None,
    "DATASTORE_SYSROOT_LOCAL": None,
    "DATASTORE_SYSROOT_S3": None,
    "DATATOOLS_S3ROOT": None,
    "DEFAULT_DATASTORE": "local",
    "DEFAULT_ENVIRONMENT": "local",
    "DEFAULT_METADATA": "local",
    "DEFAULT_SECRETS_ROLE": None,
    "KUBERNETES_NAMESPACE": "default",
    "OTEL_ENDPOINT": None,
    "S3_ENDPOINT_URL": None,
    "SERVICE_AUTH_KEY": None,
    "SERVICE_URL": None,
    "TEMPDIR": ".",
    "UI_URL": None,
}
"""Names of Metaflow's configuration that flows read, each with its value where no variable STOKER_… or METAFLOW_… gives
one. They say where Metaflow would keep things; Stoker's own stands in `stoker.toml`."""
Render = TypeVar("Render", bound=Callable[..., Any])


def __getattr__(name: str) -> Any:
    if name in CONFIGURATION:
        variables = (f"STOKER_{name}", f"METAFLOW_{name}")
        return next((os.environ[one] for one in variables if os.environ.get(one)), CONFIGURATION[name])
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def with_default_component_id(render: Render) -> Render:
    """A decorator of `render` in Metaflow; a component has its id here when it is put on a card."""
    return render


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
