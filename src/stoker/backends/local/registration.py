"""The backends of this machine: worker processes, and the driver's own process for a debugger."""

from __future__ import annotations

from typing import Any, Final, Mapping

from stoker.backends.base.backend import Backend, RunningBackend, Services
from stoker.backends.local.settings import LocalSettings, local_capacity
from stoker.core.plan import Site


def open_local(site: Site, options: Mapping[str, Any], services: Services) -> RunningBackend:
    """Runs jobs in processes of this machine."""
    from stoker.backends.local.backend import LocalBackend

    return LocalBackend(site, options, services)


def open_inline(site: Site, options: Mapping[str, Any], services: Services) -> RunningBackend:
    """Runs jobs in the driver's own process."""
    from stoker.backends.local.inline import InlineBackend

    return InlineBackend(site, options, services)


LOCAL: Final = Backend(name="local", title="Local", settings=LocalSettings, open=open_local, room=local_capacity)
INLINE: Final = Backend(name="inline", title="Inline", settings=LocalSettings, open=open_inline)
