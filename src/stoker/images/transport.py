"""Requests to an image registry: HTTPS (HTTP for loopback), tokens and passwords, redirects, refusals in words.

https://github.com/opencontainers/distribution-spec/blob/main/spec.md and
https://distribution.github.io/distribution/spec/auth/token/ are what is spoken here. Reads no layer.
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from email.message import Message
from http.client import HTTPException
from typing import IO, Any, Final, Mapping

import attrs

from stoker.core.errors import BackendError
from stoker.core.imagenames import HUB
from stoker.images.credentials import Credentials, credentials
from stoker.images.permissions import Action, login, needed
from stoker.images.reference import Reference

SECONDS: Final = 30.0
"""How long a registry may be silent."""
LARGEST: Final = 16 << 20
"""No manifest or configuration is larger: registries refuse manifests over 4 MiB (the specification's least limit)."""
INSECURE_FILE: Final = "/etc/docker/daemon.json"
"""Where Docker's daemon lists registries without TLS: https://docs.docker.com/reference/cli/dockerd/."""


class Refused(BackendError):
    """A registry answered, and the answer was no; `status` is HTTP's, `codes` are the registry's own."""

    def __init__(
        self, message: str, *, status: int = 0, codes: tuple[str, ...] = (), where: str = "", fix: str = ""
    ) -> None:
        super().__init__(message, where=where, fix=fix)
        self.status = status
        self.codes = codes


class Unreachable(BackendError):
    """No answer came: the network, the name, the certificate."""


@attrs.frozen(kw_only=True)
class Answer:
    """What came back."""

    status: int
    headers: Message
    body: bytes
    url: str

    def json(self) -> Any:
        """The body as a document."""
        return json.loads(self.body)


class Connection:
    """Requests about one repository, for one purpose; a token that was granted is used again."""

    def __init__(self, reference: Reference, action: Action, environ: Mapping[str, str] | None = None) -> None:
        self.reference = reference
        self.action: Action = action
        self._environ = os.environ if environ is None else environ
        self._schemes = _schemes(reference)
        self._authorization = ""
        self._known: list[Credentials | None] = []
        handlers: list[urllib.request.BaseHandler] = [_Redirects()]
        if reference.loopback:
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    def ask(self, method: str, path: str, *, accept: str = "*/*", missing_ok: bool = False) -> Answer | None:
        """The answer to a request below `/v2/REPOSITORY/`, or at a whole address; None where it is not there."""
        try:
            return self._granted(method, path, accept)
        except urllib.error.HTTPError as error:
            if error.code == 404 and missing_ok:
                return None
            raise self._refusal(error) from error

    def credentials(self) -> Credentials | None:
        """Who we are at the registry."""
        if not self._known:
            self._known.append(credentials(self.reference, self._environ))
        return self._known[0]

    def _granted(self, method: str, path: str, accept: str) -> Answer:
        try:
            return self._sent(method, path, accept)
        except urllib.error.HTTPError as error:
            challenge = error.headers.get_all("WWW-Authenticate") or []
            if error.code != 401 or not challenge:
                raise
            # Once more with an authorization; a token that has grown old meanwhile is replaced in the same way.
            before, self._authorization = self._authorization, self._answered(challenge)
            if not self._authorization or self._authorization == before:
                raise
        return self._sent(method, path, accept)

    def _sent(self, method: str, path: str, accept: str) -> Answer:
        problem: Exception | None = None
        for scheme in list(self._schemes):
            url = path if "://" in path else f"{scheme}://{self.reference.server}/v2/{self.reference.path}/{path}"
            headers = {"Accept": accept, "User-Agent": "stoker"}
            if self._authorization:
                headers["Authorization"] = self._authorization
            data = b"" if method in ("POST", "PUT") else None
            try:
                answer = self._open(urllib.request.Request(url, data=data, headers=headers, method=method))
            except urllib.error.HTTPError as error:
                # A server with TLS answers plain HTTP so; the next scheme is HTTPS.
                if error.code == 400 and scheme == "http" and len(self._schemes) > 1:
                    problem = error
                    continue
                self._schemes = (scheme,)
                raise
            except (OSError, HTTPException) as error:
                problem = error
                continue
            self._schemes = (scheme,)
            return answer
        raise self._silence(problem) from problem

    def _open(self, request: urllib.request.Request) -> Answer:
        with self._opener.open(request, timeout=SECONDS) as response:
            body = response.read(LARGEST + 1) if request.get_method() != "HEAD" else b""
            if len(body) > LARGEST:
                raise BackendError(
                    f"the answer is larger than {LARGEST >> 20} MiB, which no manifest is", where=str(self.reference)
                )
            return Answer(status=response.status, headers=response.headers, body=body, url=response.url)

    def _answered(self, challenges: list[str]) -> str:
        """The header's value that meets a registry's challenge; "" where we have nothing to meet it with."""
        known = self.credentials()
        for challenge in challenges:
            scheme, _, rest = challenge.partition(" ")
            if scheme.lower() == "bearer":
                parts = {name.lower(): value for name, value in re.findall(r'(\w+)="([^"]*)"', rest)}
                return "Bearer " + self._token(parts, known)
            if scheme.lower() == "basic" and known is not None and not known.identity:
                return known.basic
        return ""

    def _token(self, parts: Mapping[str, str], known: Credentials | None) -> str:
        wanted = "pull" if self.action == "pull" else "pull,push"
        query = {
            "service": parts.get("service", ""),
            # What is asked for is what is going to be done, whatever the first request was for.
            "scope": f"repository:{self.reference.path}:{wanted}",
        }
        headers = {"User-Agent": "stoker"}
        realm = parts.get("realm", "")
        if not realm.startswith(("https://", "http://")):
            raise BackendError(f"the registry names '{realm}' as the place to get a token", where=str(self.reference))
        if realm.startswith("http://") and self._schemes != ("http",):
            raise BackendError("the registry wants the password sent without TLS", where=self.reference.registry)
        if known is not None and known.identity:
            # https://distribution.github.io/distribution/spec/auth/oauth/
            form = {**query, "grant_type": "refresh_token", "client_id": "stoker", "refresh_token": known.secret}
            request = urllib.request.Request(realm, urllib.parse.urlencode(form).encode(), headers)
        else:
            if known is not None:
                headers["Authorization"] = known.basic
            request = urllib.request.Request(f"{realm}?{urllib.parse.urlencode(query)}", headers=headers)
        try:
            document = self._open(request).json()
            return str(document.get("token") or document["access_token"])
        except urllib.error.HTTPError:
            raise
        except (OSError, HTTPException) as error:
            raise self._silence(error) from error
        except (ValueError, KeyError) as error:
            raise BackendError(f"{realm} answered without a token", where=str(self.reference)) from error

    def _silence(self, problem: Exception | None) -> Unreachable:
        reason = getattr(problem, "reason", problem)
        fix = "look whether this machine reaches it: a proxy (HTTPS_PROXY), a firewall, the name"
        if "CERTIFICATE" in str(reason).upper():
            fix = "name the file with the certificate's authority in SSL_CERT_FILE"
        elif "WRONG_VERSION_NUMBER" in str(reason).upper():
            fix = f'a registry without TLS has to be among "insecure-registries" in {INSECURE_FILE}'
        return Unreachable(f"{self.reference.server} does not answer: {reason}", where=str(self.reference), fix=fix)

    def _refusal(self, error: urllib.error.HTTPError) -> Refused:
        codes, said = _said(error)
        verb = "reads" if self.action == "pull" else "writes"
        known, where = self.credentials(), str(self.reference)
        told = f" ({said})" if said else ""
        if error.code in (401, 403):
            who = f"as '{known.user}' (from {known.source})" if known and not known.identity else "with a token"
            who = who if known is not None else "without a login"
            message = f"{self.reference.registry} does not let us {self.action} {who}{told}"
            fix = f"who {verb} it needs {needed(self.reference, self.action)}; log in with: {login(self.reference)}"
        elif error.code == 404:
            message = f"there is no such image at {self.reference.registry}, or it is hidden from us{told}"
            fix = f"look at the name; a private image needs a login first: {login(self.reference)}"
        elif error.code == 429:
            wait = error.headers.get("Retry-After", "")
            message = f"{self.reference.registry} has had too many requests from this address{told}"
            fix = f"wait{f' {wait} s' if wait.isdigit() else ''}, or log in: {login(self.reference)}"
            if self.reference.registry == HUB and known is None:
                fix += " (Docker Hub allows more to those who are logged in)"
        elif error.code >= 500:
            message, fix = f"{self.reference.registry} failed with HTTP {error.code}{told}", "try again later"
        else:
            message, fix = f"{self.reference.registry} answered HTTP {error.code}{told}", ""
        return Refused(message, status=error.code, codes=codes, where=where, fix=fix)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """A token is for its registry: where blobs lie elsewhere it is not sent along, and S3 would refuse it."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following is not None and following.host != req.host:
            following.remove_header("Authorization")
        return following


def _schemes(reference: Reference) -> tuple[str, ...]:
    if reference.loopback or reference.server in _insecure():
        return ("http", "https")
    return ("https",)


def _insecure() -> tuple[str, ...]:
    try:
        with open(INSECURE_FILE, encoding="utf-8") as file:
            document = json.load(file)
        return tuple(str(host) for host in document.get("insecure-registries") or ())
    except (OSError, ValueError, AttributeError):
        return ()


def _said(error: urllib.error.HTTPError) -> tuple[tuple[str, ...], str]:
    """The registry's own codes and words."""
    try:
        document = json.loads(error.read(1 << 16))
        entries = document.get("errors") or [document]
        codes = tuple(str(entry.get("code", "")) for entry in entries)
        words = [str(entry.get("message") or entry.get("details") or "") for entry in entries]
    except (ValueError, AttributeError, OSError, HTTPException):
        return (), ""
    return tuple(filter(None, codes)), "; ".join(filter(None, words))
