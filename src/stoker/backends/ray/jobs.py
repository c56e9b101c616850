"""A client of Ray's Jobs API and of the rest of its dashboard, over one connection; Ray itself is not imported.

https://docs.ray.io/en/latest/cluster/running-applications/job-submission/openapi.html
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import ssl
import urllib.parse
from typing import Any, Final, Mapping

from stoker.backends.base.platforms import Away
from stoker.backends.base.secrets import missing_source
from stoker.backends.ray.settings import PORT, RaySettings
from stoker.core.errors import BackendError

TIMEOUT: Final = 60.0
"""Seconds for one answer: the dashboard itself gives up after 60 on a job agent that does not come."""
CURRENT: Final = "ray/ray_current_cluster"
"""Where Ray leaves the address of the cluster on this machine, below RAY_TMPDIR or /tmp."""
OVER: Final = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
"""States of a Ray job from which it does not come back."""
_AGAIN: Final = frozenset({429, 502, 503, 504})
_NO_AGENT: Final = "No available agent"
"""How the dashboard says, with status 500, that its node is not ready yet."""


def address_of(settings: RaySettings, environment: Mapping[str, str]) -> str:
    """Where the dashboard is: as the settings say, else as Ray's own client finds it. `BackendError` where "auto" finds
    nothing.

    An address of Ray's other services ("ray://", or a bare "host:port") is taken for the same host's dashboard.
    """
    address = settings.get("address") or environment.get("RAY_API_SERVER_ADDRESS") or environment.get("RAY_ADDRESS")
    if address is None or address == "local":
        return f"http://127.0.0.1:{PORT}"
    if address == "auto":
        folder = environment.get("RAY_TMPDIR") or "/tmp"
        try:
            with open(os.path.join(folder, CURRENT), encoding="utf-8") as file:
                address = file.read().strip()
        except OSError:
            raise BackendError(
                f"no Ray cluster runs on this machine: there is no {folder}/{CURRENT}",
                fix="start one (ray start --head), or give its address to RaySettings or RAY_ADDRESS",
            ) from None
    if address.startswith(("http://", "https://")):
        return str(address).rstrip("/")
    host = urllib.parse.urlsplit(address if "://" in address else f"ray://{address}").hostname
    return f"http://{f'[{host}]' if host and ':' in host else host}:{PORT}"


def is_loopback(address: str) -> bool:
    """Whether an address is this machine's own."""
    return urllib.parse.urlsplit(address).hostname in ("127.0.0.1", "localhost", "::1")


def headers_of(settings: RaySettings, environment: Mapping[str, str]) -> dict[str, str]:
    """The headers of every request, with the token as Ray finds it: https://docs.ray.io/en/latest/ray-security/token-auth.html"""
    headers = {}
    for name, text in settings.get("headers", {}).items():
        if text is not None:
            headers[name] = environment.get(text.removeprefix("env:"), "") if text.startswith("env:") else text
    if any(name.lower() == "authorization" for name in headers):
        return headers
    token = _token(settings, environment)
    return {**headers, "Authorization": f"Bearer {token}"} if token else headers


def _token(settings: RaySettings, environment: Mapping[str, str]) -> str:
    source = settings.get("token")
    if source:
        missing = missing_source(source)
        if missing:
            raise BackendError(f"the token of the Ray cluster is not there: {missing}")
        if source.startswith("env:"):
            return environment.get(source.removeprefix("env:"), "").strip()
        return _content(os.path.expanduser(source))
    if environment.get("RAY_AUTH_MODE", "token").lower() != "token":
        return ""
    if environment.get("RAY_AUTH_TOKEN"):
        return environment["RAY_AUTH_TOKEN"].strip()
    return _content(environment.get("RAY_AUTH_TOKEN_PATH") or os.path.expanduser("~/.ray/auth_token"))


def _content(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


class Jobs:
    """A client of the dashboard. Used by one thread at a time; `request_count` counts the requests."""

    def __init__(self, settings: RaySettings, environment: Mapping[str, str]) -> None:
        self.address = address_of(settings, environment)
        self.headers = headers_of(settings, environment)
        self.request_count = 0
        self._verify = settings.get("verify", True)
        self._connection: http.client.HTTPConnection | None = None

    def version(self) -> Mapping[str, Any]:
        """The cluster's Ray, and the name of its session, which is another one after a restart."""
        return self._json("GET", "/api/version")

    def python(self) -> str:
        """The version of the cluster's Python; empty where the cluster does not report it."""
        with contextlib.suppress(BackendError):
            return str(self._json("GET", "/api/v0/cluster_metadata")["data"].get("pythonVersion", ""))
        return ""

    def nodes(self) -> list[Mapping[str, Any]]:
        """The nodes that are alive: https://docs.ray.io/en/latest/ray-observability/reference/doc/ray.util.state.list_nodes.html"""
        answer = self._json("GET", "/api/v0/nodes?detail=True&limit=10000")
        return [one for one in answer["data"]["result"]["result"] if one["state"] == "ALIVE"]

    def autoscales(self) -> bool:
        """Whether nodes come and go by themselves: then what is there says little of what may come."""
        answer = self._json("GET", "/api/cluster_status")["data"].get("clusterStatus") or {}
        types = (answer.get("autoscalerReport") or {}).get("nodeTypeMapping") or {}
        # Without an autoscaler, each node is its own kind: node_<its id>.
        return any(kind != f"node_{node}" for node, kind in types.items())

    def jobs(self) -> list[Mapping[str, Any]]:
        """All jobs that were submitted, in one call."""
        jobs: Any = self._json("GET", "/api/jobs/")
        return [job for job in jobs if job["type"] == "SUBMISSION"]

    def job(self, id: str) -> Mapping[str, Any] | None:
        """One job; None where there is none."""
        status, text = self.ask("GET", f"/api/jobs/{id}")
        return None if status == 404 else self._parse_answer("GET", f"/api/jobs/{id}", status, text)

    def submit(self, body: Mapping[str, Any]) -> None:
        """Start a job. An id that is taken makes it fail: ask first."""
        self._json("POST", "/api/jobs/", body)

    def stop(self, id: str) -> None:
        """Have a job end: SIGTERM, and SIGKILL after 3 seconds. One that is gone is fine."""
        status, text = self.ask("POST", f"/api/jobs/{id}/stop")
        if status != 404:
            self._parse_answer("POST", f"/api/jobs/{id}/stop", status, text)

    def has_package(self, name: str) -> bool:
        """Whether the cluster has a package; if so, it keeps it for some minutes."""
        status, text = self.ask("GET", f"/api/packages/gcs/{name}")
        if status not in (200, 404):
            self._parse_answer("GET", f"/api/packages/gcs/{name}", status, text)
        return status == 200

    def put_package(self, name: str, data: bytes) -> None:
        """Hand a package to the cluster."""
        status, text = self.ask("PUT", f"/api/packages/gcs/{name}", data)
        self._parse_answer("PUT", f"/api/packages/gcs/{name}", status, text or "{}")

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # Requests

    def ask(self, method: str, path: str, data: bytes | None = None) -> tuple[int, str]:
        """Status and text of an answer; `Away` where there is none."""
        self.request_count += 1
        headers = dict(self.headers)
        if data is not None:
            headers["Content-Type"] = "application/json" if data[:1] == b"{" else "application/octet-stream"
        fresh = self._connection is None
        try:
            if self._connection is None:
                self._connection = self.connect()
            prefix = urllib.parse.urlsplit(self.address).path
            self._connection.request(method, prefix + path, data, headers)
            answer = self._connection.getresponse()
            text = answer.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if not fresh and method == "GET":
                return self.ask(method, path, data)  # the server closed the kept connection
            raise self._away(str(error) or type(error).__name__) from error
        if answer.status in _AGAIN or (answer.status == 500 and text.startswith(_NO_AGENT)):
            raise self._away(f"status {answer.status}: {text[:200].strip()}")
        return answer.status, text

    def connect(self) -> http.client.HTTPConnection:
        """A new connection."""
        parts = urllib.parse.urlsplit(self.address)
        if parts.scheme != "https":
            return http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=TIMEOUT)
        context = ssl.create_default_context(cafile=self._verify if isinstance(self._verify, str) else None)
        if self._verify is False:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return http.client.HTTPSConnection(parts.hostname or "", parts.port or 443, timeout=TIMEOUT, context=context)

    def _away(self, why: str) -> Away:
        fix = "start it, or give the address of its dashboard: RaySettings(address=…) or RAY_ADDRESS"
        return Away(f"the Ray cluster at {self.address} does not answer: {why}", fix=fix)

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        status, text = self.ask(method, path, None if body is None else json.dumps(body).encode())
        return self._parse_answer(method, path, status, text)

    def _parse_answer(self, method: str, path: str, status: int, text: str) -> Mapping[str, Any]:
        if status in (401, 403):
            raise BackendError(
                f"the Ray cluster at {self.address} does not let us in: {text[:200].strip()}",
                fix="set RAY_AUTH_TOKEN, or say where the token is: RaySettings(token='env:NAME')",
            )
        if status >= 400:
            last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
            raise BackendError(f"the Ray cluster at {self.address} refuses {method} {path} ({status}): {last[:500]}")
        try:
            answer: Mapping[str, Any] = json.loads(text)
        except ValueError as error:
            fix = "name the address of Ray's dashboard, with the port that `ray start` shows"
            raise BackendError(f"what answers at {self.address} is not Ray", fix=fix) from error
        return answer
