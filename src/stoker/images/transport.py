"""Requests to an image registry: HTTPS (HTTP for loopback), tokens and passwords, redirects, errors with a fix.

https://github.com/opencontainers/distribution-spec/blob/main/spec.md and
https://distribution.github.io/distribution/spec/auth/token/ are the protocols.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from email.message import Message
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, Callable, Final, Iterator, Mapping, Sequence

import attrs

from stoker.core.errors import BackendError
from stoker.core.imagenames import HUB
from stoker.images.credentials import Action, Credentials, account_text, credentials, login_advice, needed
from stoker.images.registries import ImageReference

SECONDS: Final = 30.0
"""Seconds that a registry may take to answer."""
LONGEST: Final = 120.0
"""Seconds that the body of an answer may take: 16 MiB at the 1 Mbit/s of a slow line."""
_CHUNK: Final = 1 << 16
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
"""https://www.rfc-editor.org/rfc/rfc6750#section-2.1, and whatever else a header's value may have."""
LARGEST: Final = 16 << 20
"""Bytes. No manifest or configuration is larger: registries refuse manifests over 4 MiB."""
CERTIFICATES: Final = "/etc/docker/certs.d"
"""Where engines look for a folder of each registry with the certificate of its authority."""
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
        """The body, parsed as JSON; `ValueError` for one that is not, or that is nested too deeply."""
        try:
            return json.loads(self.body)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None


class Connection:
    """Requests about one repository, for one action; a granted token is used again."""

    def __init__(
        self,
        reference: ImageReference,
        action: Action,
        environ: Mapping[str, str] | None = None,
        *,
        account: Callable[[ImageReference], Credentials | None] | None = None,
    ) -> None:
        """`account` finds the login; without it, it is that of docker or podman."""
        self.reference = reference
        self.action: Action = action
        self._environ = os.environ if environ is None else environ
        self._schemes = _schemes(reference)
        self._account = account or functools.partial(credentials, environ=self._environ)
        self._authorization = ""
        self._logins: list[Credentials | None] = []
        handlers: list[urllib.request.BaseHandler] = [_Redirects()]
        folders = certificate_folders(reference.server, self._environ)
        if folders:
            handlers.append(urllib.request.HTTPSHandler(context=_tls_context(folders)))
        if reference.loopback:
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    def ask(self, method: str, path: str, *, accept: str = "*/*", missing_ok: bool = False) -> RegistryAnswer | None:
        """The answer to a request below `/v2/REPOSITORY/`, or to a full URL; None for a 404 if `missing_ok`."""
        try:
            return self._send_authorized(method, path, accept)
        except urllib.error.HTTPError as error:
            if error.code == 404 and missing_ok:
                error.close()
                return None
            with contextlib.closing(error):
                raise self._refusal(error) from error

    def credentials(self) -> Credentials | None:
        """The login for the registry; None if there is none."""
        if not self._logins:
            self._logins.append(self._account(self.reference))
        return self._logins[0]

    @contextlib.contextmanager
    def stream(self, path: str) -> Iterator[IO[bytes]]:
        """The body of the answer to a request below `/v2/REPOSITORY/` while it comes; after `ask` has been granted."""
        request = self._request("GET", f"{self._schemes[0]}://{self.reference.server}/v2/{self.reference.path}/{path}")
        try:
            with self._opener.open(request, timeout=SECONDS) as response:
                yield response
        except urllib.error.HTTPError as error:
            with contextlib.closing(error):
                raise self._refusal(error) from error
        except (OSError, HTTPException) as error:
            raise self._no_answer(error) from error

    def _request(self, method: str, url: str, accept: str = "*/*") -> urllib.request.Request:
        headers = {"Accept": accept, "User-Agent": "stoker"}
        if self._authorization:
            headers["Authorization"] = self._authorization
        data = b"" if method in ("POST", "PUT") else None
        return urllib.request.Request(url, data=data, headers=headers, method=method)

    def _send_authorized(self, method: str, path: str, accept: str) -> RegistryAnswer:
        try:
            return self._send(method, path, accept)
        except urllib.error.HTTPError as error:
            challenge = error.headers.get_all("WWW-Authenticate") or []
            if error.code != 401 or not challenge:
                raise
            # Try again with an authorization; an expired token is replaced in the same way.
            try:
                before, self._authorization = self._authorization, self._authorize(challenge)
            except (BackendError, urllib.error.HTTPError):
                error.close()
                raise
            if not self._authorization or self._authorization == before:
                raise
            error.close()
        return self._send(method, path, accept)

    def _send(self, method: str, path: str, accept: str) -> RegistryAnswer:
        problem: Exception | None = None
        for scheme in list(self._schemes):
            url = path if "://" in path else f"{scheme}://{self.reference.server}/v2/{self.reference.path}/{path}"
            try:
                answer = self._open(self._request(method, url, accept))
            except urllib.error.HTTPError as error:
                # A server with TLS answers plain HTTP so; the next scheme is HTTPS.
                if error.code == 400 and scheme == "http" and len(self._schemes) > 1:
                    error.close()
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
            body = self._body(response) if request.get_method() != "HEAD" else b""
            return RegistryAnswer(status=response.status, headers=response.headers, body=body, url=response.url)

    def _body(self, response: Any) -> bytes:
        """The body of an answer; an error for one that is larger than `LARGEST` or takes longer than `LONGEST`."""
        chunks, size, started = [], 0, time.monotonic()
        while chunk := response.read1(_CHUNK):
            size += len(chunk)
            chunks.append(chunk)
            if size > LARGEST:
                raise BackendError(
                    f"the answer is larger than {LARGEST >> 20} MiB, which no manifest is", where=str(self.reference)
                )
            if time.monotonic() - started > LONGEST:
                raise RegistryUnreachable(
                    f"{self.reference.server} has not ended its answer after {LONGEST:.0f} s",
                    where=str(self.reference),
                    fix="try again later; a proxy on the way may hold the answer back",
                )
        length = response.headers.get("Content-Length", "")
        if length.isdecimal() and size < int(length):
            raise RegistryUnreachable(
                f"{self.reference.server} hung up after {size} of {length} bytes",
                where=str(self.reference),
                fix="try again later",
            )
        return b"".join(chunks)

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
            token = document.get("token") or document["access_token"]
            if not isinstance(token, str) or not _TOKEN.fullmatch(token):
                raise ValueError("the token is no text that a header can have")
            return token
        except urllib.error.HTTPError:
            raise
        except (OSError, HTTPException) as error:
            raise self._no_answer(error) from error
        except (ValueError, KeyError, AttributeError) as error:
            raise BackendError(f"{realm} answered without a token", where=str(self.reference)) from error

    def _no_answer(self, problem: Exception | None) -> RegistryUnreachable:
        reason = getattr(problem, "reason", problem)
        fix = "look whether this machine reaches it: a proxy (HTTPS_PROXY), a firewall, the name"
        if "CERTIFICATE" in str(reason).upper():
            fix = f"{authority_advice(self.reference)}; or name a file with it in SSL_CERT_FILE, for Stoker alone"
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
            message = f"{self.reference.registry} does not let us {self.action} {account_text(account)}{suffix}"
            advice = login_advice(self.reference, account, self._environ)
            fix = f"who {verb} it needs {needed(self.reference, self.action)}; {advice}"
        elif error.code == 404:
            message = f"there is no such image at {self.reference.registry}, or it is hidden from us{suffix}"
            advice = login_advice(self.reference, account, self._environ)
            fix = f"look at the name; a private image needs a login first: {advice}"
        elif error.code == 429:
            wait = retry_after(error.headers.get("Retry-After", ""), time.time())
            message = f"{self.reference.registry} has had too many requests from this address{suffix}"
            fix = f"wait{f' {wait:.0f} s' if wait is not None else ''}"
            fix += f", or {login_advice(self.reference, account, self._environ)}" if account is None else ""
            if self.reference.registry == HUB and account is None:
                fix += " (Docker Hub allows more to those who are logged in)"
        elif error.code >= 500:
            message, fix = f"{self.reference.registry} failed with HTTP {error.code}{suffix}", "try again later"
        else:
            message, fix = f"{self.reference.registry} answered HTTP {error.code}{suffix}", ""
        return RegistryRefused(message, status=error.code, codes=codes, where=where, fix=fix)


def retry_after(text: str, now: float) -> float | None:
    """Seconds of a Retry-After, which has a number of them or a date; None for what is neither.

    https://www.rfc-editor.org/rfc/rfc9110#section-10.2.3
    """
    text = text.strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return float(text)
    try:
        return max(parsedate_to_datetime(text).timestamp() - now, 0.0)
    except (ValueError, OverflowError):
        return None


def certificate_folders(server: str, environ: Mapping[str, str]) -> list[Path]:
    """The folders in which engines look for the certificates of a registry's authority, and for those of a client.

    https://docs.docker.com/engine/security/certificates/ and
    https://github.com/containers/image/blob/main/docs/containers-certs.d.5.md
    """
    home = Path(environ.get("HOME") or os.path.expanduser("~"))
    parents = [
        *(home / ".config" / "containers" / "certs.d", home / ".config" / "docker" / "certs.d"),
        *(Path("/etc/containers/certs.d"), Path(CERTIFICATES)),
    ]
    return [parent / server for parent in parents if (parent / server).is_dir()]


def authority_advice(reference: ImageReference) -> str:
    """What to do where it is not known who signed a registry's certificate."""
    return (
        f"put the authority's certificate into {CERTIFICATES}/{reference.server}/ca.crt on the engine's machine, where "
        "docker, podman, buildah and Stoker read it"
    )


def _tls_context(folders: Sequence[Path]) -> ssl.SSLContext:
    """What Python trusts, and what is in the folders; a file that cannot be read is left out, as engines do."""
    context = ssl.create_default_context()
    for folder in folders:
        for path in sorted(folder.iterdir()):
            with contextlib.suppress(OSError):  # `ssl.SSLError` is one, too
                if path.suffix == ".crt":
                    context.load_verify_locations(path)
                elif path.suffix == ".cert":
                    context.load_cert_chain(path, path.with_suffix(".key"))
    return context


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
    except (ValueError, AttributeError, TypeError, RecursionError, OSError, HTTPException):
        return (), ""
    return tuple(filter(None, codes)), "; ".join(filter(None, words))
