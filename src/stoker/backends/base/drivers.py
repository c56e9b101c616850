"""What a driver is told that a platform starts without anything of this machine's: its stack, and variables with what
opens its database and its artifact store."""

from __future__ import annotations

import ipaddress
import json
import os
import re
from typing import Any, Final, Mapping
from urllib.parse import parse_qs, urlsplit

from stoker.backends.base.backend import LEFT, DriverStart
from stoker.core.errors import EXIT_INFRASTRUCTURE
from stoker.core.secret import Secret
from stoker.worker import secrets

_POSTGRES: Final = (
    "PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGPASSWORD", "PGSSLMODE", "PGCHANNELBINDING",
    "PGOPTIONS", "PGCONNECT_TIMEOUT", "PGTARGETSESSIONATTRS",
)  # fmt: skip
"""Variables of libpq that are no paths of this machine. https://www.postgresql.org/docs/current/libpq-envars.html"""
_STOKER: Final = ("STOKER_RECONNECT", "STOKER_OFFLINE")
"""Variables of Stoker's own that hold for the driver, too."""
_READERS: Final[dict[str, str]] = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs",
}  # fmt: skip
"""Protocol of the artifact store → the package that reads it."""
_REFERENCE: Final = re.compile(r"secret:[a-z][a-z0-9_-]*:[^\s#\"']+(?:#[\w.-]+)?")
"""A secret in a stack, such as its registry's password."""


def document(start: DriverStart, *, image: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """What the program of a driver's container reads; `environment` has what is the platform's own."""
    facts = start.facts
    postgres = not facts.database.startswith("sqlite:")
    variables = {
        **{name: os.environ[name] for name in _STOKER if name in os.environ},
        **({name: os.environ[name] for name in _POSTGRES if name in os.environ} if postgres else {}),
        **start.variables,
        **{name: text for name, text in start.environment.items() if name != "STOKER_HOME"},
        **environment,
    }
    references = dict.fromkeys((*facts.secrets, *_REFERENCE.findall(start.stack)))
    values = {reference: start.read_secret(Secret.parse(reference)) for reference in references}
    if values:
        variables[secrets.BROUGHT] = json.dumps(values)
    reader = _READERS.get(facts.artifacts.partition("://")[0])
    return {
        "image": image,
        "words": list(start.words),
        "environment": variables,
        "stacks": start.stack,
        "bundle": os.path.basename(start.code.bundle),
        "output": os.path.relpath(start.output, facts.home),
        "requires": [*(["psycopg"] if postgres else ()), *([reader] if reader else ())],
        "again": [LEFT, EXIT_INFRASTRUCTURE],
    }


def loopback(database: str) -> str:
    """Which address of this machine alone a database has; empty for one that others may reach."""
    parts = urlsplit(database)
    named = [host.rpartition("@")[2] for host in parts.netloc.split(",")] if parts.netloc else []
    named = [*(re.sub(r":\d*$", "", host) for host in named), *parse_qs(parts.query).get("host", ())]
    named = [host for host in named if host] or [os.environ.get("PGHOSTADDR") or os.environ.get("PGHOST", "")]
    for host in named:
        if not host or host.startswith(("/", "%2F")) or host == "localhost":
            return host or "a socket of this machine"
        try:
            if ipaddress.ip_address(host.strip("[]")).is_loopback:
                return host
        except ValueError:  # a name
            continue
    return ""
