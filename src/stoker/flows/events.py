"""Names for deployed flows that mean little to a run: events of Argo, and the names that `@trigger` waits for."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from stoker.core.errors import UsageError
from stoker.core.usercode import caller
from stoker.flows.current import current
from stoker.flows.exceptions import MetaflowException

_URL = "METAFLOW_ARGO_EVENTS_WEBHOOK_URL"


class ArgoEventException(MetaflowException):
    """An event could not be published."""

    headline = "Argo Event Exception"


class ArgoEvent:
    """A message to Argo Events, which may start flows that Metaflow has deployed there.

    `publish` sends it to `url`, or to METAFLOW_ARGO_EVENTS_WEBHOOK_URL; `safe_publish` sends nothing outside of Argo.
    """

    def __init__(
        self,
        name: str | Callable[[], str],
        url: str | None = None,
        payload: Mapping[str, Any] | None = None,
        access_token: str | None = None,
    ) -> None:
        self._name = name() if callable(name) else name
        self._url = url or os.environ.get(_URL)
        self._payload = dict(payload or {})
        self._token = access_token

    def add_to_payload(self, key: str, value: Any) -> ArgoEvent:
        """Set a value of the message; the event itself."""
        self._payload[key] = str(value)
        return self

    def safe_publish(self, payload: Mapping[str, Any] | None = None, ignore_errors: bool = True) -> str | None:
        """Send it where the step runs on Argo, which is nowhere here; says so in standard error."""
        return self.publish(payload, force=False, ignore_errors=ignore_errors)

    def publish(
        self, payload: Mapping[str, Any] | None = None, force: bool = True, ignore_errors: bool = True
    ) -> str | None:
        """Send it, and return its id; a failure is told in standard error unless `ignore_errors` is False."""
        try:
            if not force and not os.environ.get("ARGO_WORKFLOW_TEMPLATE"):
                raise ArgoEventException("nothing is published outside of Argo; .publish() does it anyway")
            if self._url is None:
                raise ArgoEventException(f"nobody said where to: set {_URL}, or ArgoEvent(…, url='https://…')")
            return self._send(self._url, payload or {})
        except (OSError, ValueError, ArgoEventException) as error:
            message = f"Argo event {self._name} was not published: {error}"
            if not ignore_errors:
                raise ArgoEventException(message) from error
            sys.stderr.write(f"{message}\n")
            return None

    def _send(self, url: str, payload: Mapping[str, Any]) -> str:
        import urllib.request

        id = str(uuid.uuid4())
        told = {
            "name": self._name,
            "id": id,
            "timestamp": int(time.time()),
            "utc_date": datetime.now(timezone.utc).strftime("%Y%m%d"),
            "generated-by-metaflow": True,
        }
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        body = json.dumps({"name": self._name, "payload": {**told, **self._payload, **payload}}).encode()
        request = urllib.request.Request(url, method="POST", headers=headers, data=body)
        with urllib.request.urlopen(request, timeout=60):
            return id


def namespaced_event_name(name: str) -> Callable[[], str]:
    """What gives the name of an event within the project and branch of the flow that runs, when it is called."""
    if not isinstance(name, str):
        raise UsageError(f"{name!r} is not the name of an event", where=caller(), fix='write "name"')

    def full_name(context: Any = None) -> str:
        del context
        project = branch = None
        if current.is_running_flow:
            project, branch = current.project_name, current.branch_name
        parts = [re.sub(r"[^\w.\-]", "", part) for part in (project, branch) if part]
        return ".".join(["mfns", *(parts if len(parts) == 2 else ()), name])

    return full_name
