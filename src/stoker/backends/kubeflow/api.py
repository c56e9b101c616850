"""A client of Kubeflow Pipelines' API (v2beta1), for plain JSON; KFP's own SDK is not needed.

https://www.kubeflow.org/docs/components/pipelines/reference/api/kubeflow-pipeline-api-spec/
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.client
import http.cookiejar
import json
import os
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Final, Mapping

from stoker.backends.base.messages import missing_source, source_fix
from stoker.backends.base.platforms import Answers, Away
from stoker.backends.kubeflow.settings import KubeflowSettings
from stoker.core.codec import parse_json, parse_object
from stoker.core.errors import BackendError, SettingsError

METADATA: Final = "metadata.google.internal"
"""https://cloud.google.com/compute/docs/instances/verifying-instance-identity"""
METADATA_HOST: Final = "GCE_METADATA_HOST"
"""The variable that names another metadata server, as Google's own libraries read it."""
EARLY: Final = 120.0
"""Seconds before its end at which a token is renewed."""
PROXY_PATIENCE: Final = 10.0
"""Seconds for the metadata server, which is on the same machine."""
SHORT: Final = 600.0
"""Seconds for which a token is used that does not say when it ends: Google's are good for an hour."""
SLOW: Final = 60.0
"""Seconds for gcloud, which asks a server of Google's."""


class ProxyIdentity:
    """Tokens by which Google's Identity-Aware Proxy knows who asks: from gcloud, or from the metadata server of a
    machine. Each is renewed before it ends.

    https://cloud.google.com/iap/docs/authentication-howto
    """

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
            with urllib.request.urlopen(request, timeout=PROXY_PATIENCE) as answer:
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


TIMEOUT: Final = 30.0
"""Seconds for one answer."""
ASKED: Final = 10.0
"""The same while a person waits."""
API: Final = "/apis/v2beta1"
OVER: Final = frozenset({"SUCCEEDED", "FAILED", "CANCELED", "SKIPPED"})
"""States of a run, or a task, from which it does not come back."""
TOKEN_PATH: Final = "KF_PIPELINES_SA_TOKEN_PATH"
"""The variable by which a pod's token is found: https://www.kubeflow.org/docs/components/pipelines/user-guides/core-functions/connect-api/"""
TOKEN_FILE: Final = "/var/run/secrets/kubeflow/pipelines/token"
ENDPOINT: Final = "KF_PIPELINES_ENDPOINT"
"""The variable that names the endpoint where the settings do not, as KFP's own client reads it."""
_AGAIN: Final = frozenset({429, 502, 503, 504})


class KubeflowApi:
    """A client of one endpoint; used by one thread at a time."""

    def __init__(
        self, settings: KubeflowSettings, environment: Mapping[str, str], *, patience: float = TIMEOUT
    ) -> None:
        self._settings = settings
        self._environment = environment
        self._patience = patience
        self.answers = Answers(f"Kubeflow Pipelines at {named_host(settings, environment)}")
        self.namespace = str(settings.get("namespace", ""))
        self.request_count = 0
        self._abandoned = False
        self._logged_in = False
        client = settings.get("iap_client_id")
        self._proxy = ProxyIdentity(str(client), environment) if client else None

    @functools.cached_property
    def host(self) -> str:
        """Where the API is; `SettingsError` where nothing names it, which a plan says and a rendering leaves open."""
        return address_of(self._settings, self._environment)

    @functools.cached_property
    def _opener(self) -> urllib.request.OpenerDirector:
        """Made with the first call: a plan makes none, and a machine's certificates take 20 ms to read."""
        return urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=_context(self._settings)),
            urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()),
        )

    # Calls

    def health(self) -> Mapping[str, Any]:
        """What the endpoint says of itself: whether it serves several users, and its build."""
        return self._ask("GET", f"{API}/healthz")

    def experiment(self, name: str) -> str:
        """The id of an experiment, which is made if there is none of this name."""
        wanted = {"predicates": [{"operation": "EQUALS", "key": "display_name", "string_value": name}]}
        query = {"filter": json.dumps(wanted), "page_size": "10"}
        if self.namespace:
            query["namespace"] = self.namespace
        answer = self._ask("GET", f"{API}/experiments?{urllib.parse.urlencode(query)}")
        for one in answer.get("experiments") or ():
            if one.get("display_name") == name:
                return self._id(one, "experiment_id")
        body: dict[str, Any] = {"display_name": name}
        if self.namespace:
            body["namespace"] = self.namespace
        return self._id(self._ask("POST", f"{API}/experiments", body), "experiment_id")

    def create_run(self, body: Mapping[str, Any]) -> str:
        """Start a run; its id."""
        return self._id(self._ask("POST", f"{API}/runs", body), "run_id")

    def find_run(self, experiment: str, name: str) -> str:
        """The id of a run by its name; empty where there is none. Names that Stoker gives are used once."""
        wanted = {"predicates": [{"operation": "EQUALS", "key": "display_name", "string_value": name}]}
        query = {"experiment_id": experiment, "filter": json.dumps(wanted), "page_size": "10"}
        answer = self._ask("GET", f"{API}/runs?{urllib.parse.urlencode(query)}")
        found = (run for run in answer.get("runs") or () if run.get("display_name") == name)
        return next((self._id(run, "run_id") for run in found), "")

    def run(self, id: str) -> Mapping[str, Any] | None:
        """A run with its tasks; None where there is none."""
        try:
            return self._ask("GET", f"{API}/runs/{urllib.parse.quote(id)}")
        except MissingError:
            return None

    def terminate(self, id: str) -> None:
        """Have a run end; one that is gone, or over, is fine."""
        with contextlib.suppress(MissingError):
            self._ask("POST", f"{API}/runs/{urllib.parse.quote(id)}:terminate", {})

    def abandon(self) -> None:
        """Ask nothing more."""
        self._abandoned = True

    # Requests

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        with self.answers.question(f"{method} {path.partition('?')[0]}"):
            if self._settings.get("username") and not self._logged_in:
                self._log_in()
            status, kind, text = self._send(method, self.host + path, body)
            if self._settings.get("username") and (status in (401, 403) or "text/html" in kind):
                self._log_in()  # the session has expired
                status, kind, text = self._send(method, self.host + path, body)
        return self._parse(method, path, status, kind, text)

    def _send(self, method: str, url: str, body: Mapping[str, Any] | bytes | None) -> tuple[int, str, str]:
        if self._abandoned:
            raise self._away("it is not asked any more")
        self.request_count += 1
        headers = {"Accept": "application/json"}
        token = self._token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if self._proxy is not None:
            # The proxy takes its own header first, and leaves the other one to the endpoint.
            headers["Proxy-Authorization" if token else "Authorization"] = f"Bearer {self._proxy.token()}"
        data: bytes | None = None
        if isinstance(body, bytes):
            data = body
        elif body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        request = urllib.request.Request(url, data=data, method=method, headers=headers)
        try:
            with self._opener.open(request, timeout=self._patience) as answer:
                return answer.status, answer.headers.get("Content-Type", ""), answer.read().decode("utf-8", "replace")
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode("utf-8", "replace")
            if error.code in _AGAIN:
                raise self._away(f"status {error.code}: {text[:200].strip()}") from error
            return error.code, error.headers.get("Content-Type", ""), text
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise self._away(str(reason) or type(error).__name__) from error

    def _log_in(self) -> None:
        """Log in by the form of Dex, to which the endpoint redirects; the session is a cookie.

        https://www.kubeflow.org/docs/components/pipelines/user-guides/core-functions/connect-api/#kubeflow-platform---outside-the-cluster
        """
        form = urllib.parse.urlencode(
            {"login": self._settings.get("username"), "password": self._secret("password")}
        ).encode()
        request = urllib.request.Request(f"{self.host}{API}/healthz", headers={"Accept": "text/html"})
        try:
            with self._opener.open(request, timeout=self._patience) as page:
                url, kind = page.geturl(), page.headers.get("Content-Type", "")
            if "text/html" not in kind:
                self._logged_in = True  # it wants no session
                return
            parts = urllib.parse.urlsplit(url)
            if parts.path.endswith("/auth"):  # several ways to log in are offered
                url = urllib.parse.urlunsplit(parts._replace(path=f"{parts.path}/local"))
                with self._opener.open(url, timeout=self._patience) as page:
                    url = page.geturl()
            with self._opener.open(
                urllib.request.Request(url, data=form, method="POST"), timeout=self._patience
            ) as page:
                refused = urllib.parse.urlsplit(page.geturl()).path == urllib.parse.urlsplit(url).path
        except urllib.error.HTTPError as error:
            with error:
                if error.code in _AGAIN:
                    raise self._away(f"its login answers with status {error.code}") from error
            raise BackendError(f"the login at {self.host} answers with status {error.code}") from error
        except (OSError, http.client.HTTPException) as error:
            raise self._away(str(getattr(error, "reason", None) or error)) from error
        if refused:
            raise BackendError(
                f"{self.host} does not accept the login of {self._settings.get('username')}",
                fix="KubeflowSettings(username=…, password='env:NAME'), or token='env:NAME'",
            )
        self._logged_in = True

    def _token(self) -> str:
        if self._settings.get("token"):
            return self._secret("token")
        if self._settings.get("username") or self._proxy is not None:
            return ""
        path = self._environment.get(TOKEN_PATH) or TOKEN_FILE
        with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
            return file.read().strip()
        return ""

    def _secret(self, field: str) -> str:
        """The text behind a field that names a variable or a file."""
        source = str(self._settings.get(field, ""))
        missing = missing_source(source) if source else "nothing names it"
        if missing:
            fix = source_fix(source) if source else f"{field}='env:NAME', or a file"
            raise BackendError(f"the {field} of {self.host} is not there: {missing}", fix=fix)
        if source.startswith("env:"):
            return self._environment.get(source.removeprefix("env:"), "").strip()
        with open(os.path.expanduser(source), encoding="utf-8") as file:
            return file.read().strip()

    def _id(self, answer: Mapping[str, Any], field: str) -> str:
        """The id of what an answer describes."""
        if not answer.get(field):
            raise BackendError(f"{self.host} describes something without its {field}: {_words(json.dumps(answer))}")
        return str(answer[field])

    def _away(self, why: str) -> Away:
        return Away(
            f"Kubeflow Pipelines at {self.host} does not answer: {why}",
            fix="give the endpoint's address: KubeflowSettings(host='https://…/pipeline')",
        )

    def _parse(self, method: str, path: str, status: int, kind: str, text: str) -> Mapping[str, Any]:
        place = path.partition("?")[0]
        if status == 404:
            fix = "give the API's address: behind Kubeflow's own gateway it ends in /pipeline"
            raise MissingError(f"{self.host} has no {place}", fix=fix)
        if status in (401, 403) or "text/html" in kind:
            raise BackendError(
                f"{self.host} does not let us in ({status}): {_words(text)}",
                fix="KubeflowSettings(token='env:NAME'), or username= and password='env:NAME' for Dex, or "
                "iap_client_id= for Identity-Aware Proxy",
            )
        if status >= 400:
            raise BackendError(f"{self.host} refuses {method} {place} ({status}): {_words(text)}")
        try:
            answer = parse_json(text or "{}")
        except SettingsError:
            answer = None
        if not isinstance(answer, dict):
            raise BackendError(
                f"what answers at {self.host} is not Kubeflow Pipelines",
                fix="give the API's address: behind Kubeflow's own gateway it ends in /pipeline",
            )
        return answer


class MissingError(BackendError):
    """There is no such object."""


def address_of(settings: KubeflowSettings, environment: Mapping[str, str]) -> str:
    """Where the API is; `SettingsError` where nothing names it."""
    host = named_host(settings, environment)
    if not host:
        raise SettingsError(
            "no endpoint of Kubeflow Pipelines is named",
            fix="name it: --with kubeflow:host=https://…/pipeline, or in the stack KubeflowSettings(host='https://…')",
        )
    return host


def named_host(settings: KubeflowSettings, environment: Mapping[str, str]) -> str:
    """Where the API is; empty where nothing names it."""
    return str(settings.get("host") or environment.get(ENDPOINT) or "").rstrip("/")


def _context(settings: KubeflowSettings) -> ssl.SSLContext:
    verify = settings.get("verify", True)
    context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _words(text: str) -> str:
    """What an error's document says, in short."""
    with contextlib.suppress(SettingsError):
        document = parse_json(text)
        if isinstance(document, dict):
            text = str(document.get("error_details") or document.get("message") or document.get("error") or text)
    return " ".join(text.split())[:500]
