"""Tokens by which Google's Identity-Aware Proxy knows who asks: from gcloud, or from the metadata server of a machine.

https://cloud.google.com/iap/docs/authentication-howto
"""

from __future__ import annotations

import base64
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Final, Mapping

from stoker.core.codec import parse_object
from stoker.core.errors import BackendError, SettingsError

METADATA: Final = "metadata.google.internal"
"""https://cloud.google.com/compute/docs/instances/verifying-instance-identity"""
METADATA_HOST: Final = "GCE_METADATA_HOST"
"""The variable that names another metadata server, as Google's own libraries read it."""
EARLY: Final = 120.0
"""Seconds before its end at which a token is renewed."""
PATIENCE: Final = 10.0
"""Seconds for the metadata server, which is on the same machine."""
SHORT: Final = 600.0
"""Seconds for which a token is used that does not say when it ends: Google's are good for an hour."""
SLOW: Final = 60.0
"""Seconds for gcloud, which asks a server of Google's."""


class ProxyIdentity:
    """The token for the OAuth client of a proxy, renewed before it ends."""

    def __init__(self, client: str, environment: Mapping[str, str]) -> None:
        self._client = client
        self._environment = environment
        self._token = ""
        self._ends = 0.0

    def token(self) -> str:
        """A token that is valid for a while; `BackendError` where nobody gives one."""
        if time.time() > self._ends - EARLY:
            self._token = self._from_gcloud() or self._from_metadata()
            end = end_of(self._token)
            self._ends = time.time() + SHORT if end is None else end
        return self._token

    def _from_gcloud(self) -> str:
        """By gcloud, as the account that is logged in there; empty where there is no gcloud."""
        program = shutil.which("gcloud", path=self._environment.get("PATH"))
        if program is None:
            return ""
        words = [program, "auth", "print-identity-token", f"--audiences={self._client}"]
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=SLOW, check=False, env=dict(self._environment)
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise self._refused(f"gcloud: {error}") from error
        if done.returncode != 0:
            # Accounts of people give no token for another client: gcloud says which kind of account does.
            raise self._refused(f"gcloud says: {' '.join(done.stderr.split())[-300:]}")
        return done.stdout.strip()

    def _from_metadata(self) -> str:
        host = self._environment.get(METADATA_HOST, METADATA)
        query = urllib.parse.urlencode({"audience": self._client, "format": "full"})
        url = f"http://{host}/computeMetadata/v1/instance/service-accounts/default/identity?{query}"
        request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return str(answer.read().decode("ascii", "replace")).strip()
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(f"the metadata server answers with status {error.code}") from error
        except OSError as error:
            reason = getattr(error, "reason", None) or error
            raise self._refused(f"there is no gcloud here, and no metadata server at {host}: {reason}") from error

    def _refused(self, why: str) -> BackendError:
        return BackendError(
            f"no token for the Identity-Aware Proxy's client {self._client}: {why}",
            fix="gcloud auth activate-service-account --key-file=FILE, or gcloud config set "
            "auth/impersonate_service_account ACCOUNT; or token='env:NAME' with a token of your own",
        )


def end_of(token: str) -> float | None:
    """When a token ends, in seconds since the epoch; None where it does not say.

    https://www.rfc-editor.org/rfc/rfc7519#section-2: a number, with or without a fraction.
    """
    payload = token.split(".")[1] if token.count(".") == 2 else ""
    try:
        claims = parse_object(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        end = claims["exp"]
    except (SettingsError, KeyError, TypeError, ValueError):
        return None
    return float(end) if type(end) in (int, float) and 0 < end < 1e12 else None
