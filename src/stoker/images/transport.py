"""Requests to an image registry: HTTPS (HTTP for loopback), tokens and passwords, redirects, errors with a fix.

https://github.com/opencontainers/distribution-spec/blob/main/spec.md and
https://distribution.github.io/distribution/spec/auth/token/ are the protocols. Image layers are never read.
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
from stoker.images.credentials import Action, Credentials, credentials, login, needed
from stoker.images.reference import ImageReference

SECONDS: Final = 30.0
"""Seconds that a registry may take to answer."""
LARGEST: Final = 16 << 20
"""Bytes. No manifest or configuration is larger: registries refuse manifests over 4 MiB."""
INSECURE_FILE: Final = "/etc/docker/daemon.json"
"""Where Docker's daemon lists registries without TLS: https://docs.docker.com/reference/cli/dockerd/."""


class RegistryRefused(BackendError):
    """A registry refused a request; `status` is HTTP's, `codes` are the registry's own."""

    def __init__(
        self, message: str, *, status: int = 0, codes: tuple[str, ...] = (), where: str = "", fix: str = ""
    ) -> None:
        super().__init__(message, where=where, fix=fix)
        self.status = status
        self.codes = codes


class RegistryUnreachable(BackendError):
    """A registry did not answer: the network, its name or its certificate is wrong."""


@attrs.frozen(kw_only=True)
class RegistryAnswer:
    """A registry's answer."""

    status: int
    headers: Message
    body: bytes
    url: str

    def json(self) -> Any:
        """The body, parsed as JSON."""
        return json.loads(self.body)


class Connection:
    """Requests about one repository, for one action; a granted token is used again."""

    def __init__(self, reference: ImageReference, action: Action, environ: Mapping[str, str] | None = None) -> None:
        self.reference = reference
        self.action: Action = action
        self._environ = os.environ if environ is None else environ
        self._schemes = _schemes(reference)
        self._authorization = ""
        self._logins: list[Credentials | None] = []
        handlers: list[urllib.request.BaseHandler] = [_Redirects()]
        if reference.loopback:
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    def ask(self, method: str, path: str, *, accept: str = "*/*", missing_ok: bool = False) -> RegistryAnswer | None:
        """The answer to a request below `/v2/REPOSITORY/`, or to a full URL; None for a 404 if `missing_ok`."""
        try:
            return self._send_authorized(method, path, accept)
        except urllib.error.HTTPError as error:
            if error.code == 404 and missing_ok:
                return None
            raise self._refusal(error) from error

    def credentials(self) -> Credentials | None:
        """The login for the registry; None if there is none."""
        if not self._logins:
            self._logins.append(credentials(self.reference, self._environ))
        return self._logins[0]

    def _send_authorized(self, method: str, path: str, accept: str) -> RegistryAnswer:
        try:
            return self._send(method, path, accept)
        except urllib.error.HTTPError as error:
            challenge = error.headers.get_all("WWW-Authenticate") or []
            if error.code != 401 or not challenge:
                raise
            # Try again with an authorization; an expired token is replaced in the same way.
            before, self._authorization = self._authorization, self._authorize(challenge)
            if not self._authorization or self._authorization == before:
                raise
        return self._send(method, path, accept)

    def _send(self, method: str, path: str, accept: str) -> RegistryAnswer:
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
        raise self._no_answer(problem) from problem

    def _open(self, request: urllib.request.Request) -> RegistryAnswer:
        with self._opener.open(request, timeout=SECONDS) as response:
            body = response.read(LARGEST + 1) if request.get_method() != "HEAD" else b""
            if len(body) > LARGEST:
                raise BackendError(
                    f"the answer is larger than {LARGEST >> 20} MiB, which no manifest is", where=str(self.reference)
                )
            return RegistryAnswer(status=response.status, headers=response.headers, body=body, url=response.url)

    def _authorize(self, challenges: list[str]) -> str:
        """The `Authorization` header for a registry's challenge; "" if there is no login for it."""
        account = self.credentials()
        for challenge in challenges:
            scheme, _, rest = challenge.partition(" ")
            if scheme.lower() == "bearer":
                parts = {name.lower(): value for name, value in re.findall(r'(\w+)="([^"]*)"', rest)}
                return "Bearer " + self._token(parts, account)
            if scheme.lower() == "basic" and account is not None and not account.identity:
                return account.basic
        return ""

    def _token(self, parts: Mapping[str, str], account: Credentials | None) -> str:
        actions = "pull" if self.action == "pull" else "pull,push"
        query = {
            "service": parts.get("service", ""),
            # The scope covers the whole action, not only the first request.
            "scope": f"repository:{self.reference.path}:{actions}",
        }
        headers = {"User-Agent": "stoker"}
        realm = parts.get("realm", "")
        if not realm.startswith(("https://", "http://")):
            raise BackendError(f"the registry names '{realm}' as the place to get a token", where=str(self.reference))
        if realm.startswith("http://") and self._schemes != ("http",):
            raise BackendError("the registry wants the password sent without TLS", where=self.reference.registry)
        if account is not None and account.identity:
            # https://distribution.github.io/distribution/spec/auth/oauth/
            form = {**query, "grant_type": "refresh_token", "client_id": "stoker", "refresh_token": account.secret}
            request = urllib.request.Request(realm, urllib.parse.urlencode(form).encode(), headers)
        else:
            if account is not None:
                headers["Authorization"] = account.basic
            request = urllib.request.Request(f"{realm}?{urllib.parse.urlencode(query)}", headers=headers)
        try:
            document = self._open(request).json()
            return str(document.get("token") or document["access_token"])
        except urllib.error.HTTPError:
            raise
        except (OSError, HTTPException) as error:
            raise self._no_answer(error) from error
        except (ValueError, KeyError) as error:
            raise BackendError(f"{realm} answered without a token", where=str(self.reference)) from error

    def _no_answer(self, problem: Exception | None) -> RegistryUnreachable:
        reason = getattr(problem, "reason", problem)
        fix = "look whether this machine reaches it: a proxy (HTTPS_PROXY), a firewall, the name"
        if "CERTIFICATE" in str(reason).upper():
            fix = "name the file with the certificate's authority in SSL_CERT_FILE"
        elif "WRONG_VERSION_NUMBER" in str(reason).upper():
            fix = f'a registry without TLS has to be among "insecure-registries" in {INSECURE_FILE}'
        return RegistryUnreachable(
            f"{self.reference.server} does not answer: {reason}", where=str(self.reference), fix=fix
        )

    def _refusal(self, error: urllib.error.HTTPError) -> RegistryRefused:
        codes, reason = _error_details(error)
        verb = "reads" if self.action == "pull" else "writes"
        account, where = self.credentials(), str(self.reference)
        suffix = f" ({reason})" if reason else ""
        if error.code in (401, 403):
            who = f"as '{account.user}' (from {account.source})" if account and not account.identity else "with a token"
            who = who if account is not None else "without a login"
            message = f"{self.reference.registry} does not let us {self.action} {who}{suffix}"
            fix = f"who {verb} it needs {needed(self.reference, self.action)}; log in with: {login(self.reference)}"
        elif error.code == 404:
            message = f"there is no such image at {self.reference.registry}, or it is hidden from us{suffix}"
            fix = f"look at the name; a private image needs a login first: {login(self.reference)}"
        elif error.code == 429:
            wait = error.headers.get("Retry-After", "")
            message = f"{self.reference.registry} has had too many requests from this address{suffix}"
            fix = f"wait{f' {wait} s' if wait.isdigit() else ''}, or log in: {login(self.reference)}"
            if self.reference.registry == HUB and account is None:
                fix += " (Docker Hub allows more to those who are logged in)"
        elif error.code >= 500:
            message, fix = f"{self.reference.registry} failed with HTTP {error.code}{suffix}", "try again later"
        else:
            message, fix = f"{self.reference.registry} answered HTTP {error.code}{suffix}", ""
        return RegistryRefused(message, status=error.code, codes=codes, where=where, fix=fix)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Removes the token from redirects to other hosts: it is the registry's, and S3 refuses it."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following is not None and following.host != req.host:
            following.remove_header("Authorization")
        return following


def _schemes(reference: ImageReference) -> tuple[str, ...]:
    if reference.loopback or reference.server in _insecure_registries():
        return ("http", "https")
    return ("https",)


def _insecure_registries() -> tuple[str, ...]:
    try:
        with open(INSECURE_FILE, encoding="utf-8") as file:
            document = json.load(file)
        return tuple(str(host) for host in document.get("insecure-registries") or ())
    except (OSError, ValueError, AttributeError):
        return ()


def _error_details(error: urllib.error.HTTPError) -> tuple[tuple[str, ...], str]:
    """The registry's error codes and messages."""
    try:
        document = json.loads(error.read(1 << 16))
        entries = document.get("errors") or [document]
        codes = tuple(str(entry.get("code", "")) for entry in entries)
        words = [str(entry.get("message") or entry.get("details") or "") for entry in entries]
    except (ValueError, AttributeError, OSError, HTTPException):
        return (), ""
    return tuple(filter(None, codes)), "; ".join(filter(None, words))
