"""A client of a Kubernetes API server: objects are plain dicts, as the API has them.

Requests go over one connection, one at a time. What goes on, a watch or a followed log, is a `Stream` with a connection
of its own, which never blocks, so that one thread reads hundreds of them.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import select
import socket
import ssl
import threading
import time
import urllib.parse
from typing import Any, Final, Iterator, Mapping, Protocol, Sequence

from stoker.backends.base.platforms import Answers, Away
from stoker.backends.kubernetes.api.access import Access, context_of
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core.codec import parse_json
from stoker.core.errors import BackendError, SettingsError

TIMEOUT: Final = 30.0
"""Seconds for an answer, and for a connection to be made."""
BUSY: Final = 4
"""How often a request is repeated that the server puts off with 429 and a time to wait."""
LONGEST_WAIT: Final = 3.0
"""Seconds that such a wait takes at most."""
WATCH: Final = 290
"""Seconds after which the server ends a watch: one that is silent for longer has lost its connection.
https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes"""
PAGE: Final = 250
"""Objects in one answer to a list that may be long: a pod carries its program, some 20 kB."""
ITEMS: Final = 500
"""The same for a list of small objects: a node has some 15 kB."""
ABANDONED: Final = 0.3
"""Seconds for a request that was broken off to end."""
_LOG_IN: Final = (
    "the kubeconfig's login is not accepted, or has expired: log in again as for kubectl (`kubectl auth whoami` asks "
    "the same server), or name another context or kubeconfig in the stack"
)
_LAME: Final = frozenset({500, 502, 503, 504})
_PIECE: Final = 1 << 17


class ApiError(BackendError):
    """The API server refuses a request: `status` of the answer, `reason` such as "Forbidden", the server's `words`,
    and `details`."""

    def __init__(
        self, status: int, reason: str, message: str, details: Mapping[str, Any], *, request: str = ""
    ) -> None:
        super().__init__(
            f"the Kubernetes API server refuses {request or 'a request'} ({status} {reason}): {message}",
            fix=_LOG_IN if status == 401 else "",
        )
        self.status = status
        self.reason = reason
        self.words = message
        self.details = details


class Cluster:
    """A client of one API server. Requests are made by one thread at a time.

    Errors: `ApiError` for what the server refuses, `Away` where no answer comes.
    """

    def __init__(
        self,
        settings: KubernetesSettings,
        environment: Mapping[str, str],
        *,
        patience: float = TIMEOUT,
        named: bool = True,
    ) -> None:
        """`named`: a kubeconfig must name the cluster now; otherwise once it is asked, as rendering never does."""
        self._settings = settings
        self._environment = environment
        who = "the Kubernetes API server"
        with contextlib.nullcontext() if named else contextlib.suppress(SettingsError):
            who += f" at {self.access.place.server}"
        self.answers = Answers(who)
        self._patience = patience
        self._abandoned = threading.Event()
        self._connection: http.client.HTTPConnection | None = None
        self._streams: set[Stream] = set()
        self._in_use = threading.RLock()

    @functools.cached_property
    def access(self) -> Access:
        """How the server is reached; `SettingsError` where no kubeconfig names one."""
        return Access(context_of(self._settings, self._environment), self._environment)

    @property
    def namespace(self) -> str:
        """The namespace of settings or kubeconfig."""
        return self.access.place.namespace

    @functools.cached_property
    def _server(self) -> urllib.parse.SplitResult:
        return urllib.parse.urlsplit(self.access.place.server)

    # Objects

    def get(self, path: str, **params: Any) -> dict[str, Any]:
        """An object or a list."""
        return self.ask("GET", path, params)

    def create(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Create an object; the object as the server has it."""
        params = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        return self.ask("POST", path, params, body)

    def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Change fields of an object (a JSON merge patch)."""
        return self.ask("PATCH", path, {}, body)

    def delete(self, path: str, *, grace: float | None = None, version: str = "") -> dict[str, Any]:
        """Delete an object and what it owns; `grace`: seconds for pods to end, None for their own. With `version` only
        as it was at that resourceVersion: `ApiError` 409 where it has changed."""
        body: dict[str, Any] = {"propagationPolicy": "Background"}
        if version:
            body["preconditions"] = {"resourceVersion": version}
        if grace is not None:
            body["gracePeriodSeconds"] = int(grace)
        return self.ask("DELETE", path, {}, body)

    def log(
        self, namespace: str, pod: str, *, container: str = "", since: str = "", follow: bool = False
    ) -> Iterator[bytes]:
        """The log of a pod's container in pieces, each line behind its time."""
        stream = self.open_log(namespace, pod, container=container, since=since, follow=follow)
        try:
            yield from self._pieces(stream, silent=follow)
        finally:
            stream.close()

    def _pieces(self, stream: Stream, *, silent: bool = True) -> Iterator[bytes]:
        """What comes, until the server ends it; `silent`: nothing may come for longer than an answer takes."""
        while True:
            data = stream.read()
            if data is None:
                return
            if stream.status not in (None, 200):
                raise self.failure(stream.error())
            if data:
                yield data
            else:
                poller = select.poll()  # `select.select` refuses the thousandth descriptor
                poller.register(stream.fileno(), select.POLLIN)
                if not poller.poll(self._patience * 1000) and not silent:
                    raise self.away(f"nothing came for {self._patience:g} s")

    def open_watch(self, path: str, *, resource_version: str, **params: Any) -> Stream:
        """A watch as a stream of lines of JSON."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": WATCH,
            **params,
        }
        return self.stream(path, query)

    def open_log(
        self, namespace: str, pod: str, *, container: str = "", since: str = "", follow: bool = True
    ) -> Stream:
        """A log as a stream; `since` is a time such as "2026-11-21T04:53:50Z"."""
        query = {"timestamps": "true", "follow": "true" if follow else "", "container": container, "sinceTime": since}
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log"
        return self.stream(path, {name: value for name, value in query.items() if value})

    def inquire(self, path: str, **params: Any) -> Inquiry:
        """Ask for an object or a list, and wait for nothing; `Away` where no connection can be made."""
        return Inquiry(self.stream(path, params), self, self._patience)

    def inquire_log(self, namespace: str, pod: str, *, container: str = "") -> Inquiry:
        """Ask for what there is of the log of a pod's container, each line behind its time, and wait for nothing."""
        return Inquiry(self.open_log(namespace, pod, container=container, follow=False), self, self._patience)

    # Requests

    def ask(
        self, method: str, path: str, params: Mapping[str, Any], body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The object that a request answers with."""
        with self.answers.question(f"{method} {path}"), self._in_use:
            return self._ask(method, path, params, body)

    def _ask(self, method: str, path: str, params: Mapping[str, Any], body: Mapping[str, Any] | None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        renewed, waits, repeated = False, 0, False
        while True:
            status, headers, text = self._exchange(method, self._target(path, params), data)
            if status == 401 and self.access.renewable and not renewed:
                renewed = True
                self.access.renew()
                self._drop()
                continue
            if status == 429 and waits < BUSY:
                waits += 1
                self._wait(headers.get("retry-after", "1"))
                continue
            if status in _LAME and method == "GET" and not repeated:
                repeated = True
                self._wait("0.2")
                continue
            return self._answer(status, text, f"{method} {path}")

    def _answer(self, status: int, text: str, request: str) -> dict[str, Any]:
        if status >= 400:
            raise self.failure(_refusal(status, text, request))
        try:
            answer = parse_json(text)
        except SettingsError:
            answer = None
        if not isinstance(answer, dict):
            raise BackendError(
                f"what answers at {self.access.place.server} is no Kubernetes API server",
                fix="see which server the context of the kubeconfig names",
            )
        return answer

    def _wait(self, seconds: str) -> None:
        """Wait as the server asks; broken off by `abandon`."""
        length = float(seconds) if seconds.replace(".", "", 1).isdecimal() else 1.0
        if self._abandoned.wait(min(length, LONGEST_WAIT)):
            raise self.away("it is not asked any more")

    def _target(self, path: str, params: Mapping[str, Any]) -> str:
        query = urllib.parse.urlencode({name: value for name, value in params.items() if value is not None})
        return f"{self._server.path}{path}{'?' if query else ''}{query}"

    def _exchange(self, method: str, target: str, data: bytes | None) -> tuple[int, Mapping[str, str], str]:
        """Status, headers in small letters and text of an answer; `Away` where none comes."""
        headers = {"Accept": "application/json", **self.access.headers()}
        if data is not None:
            kind = "merge-patch+json" if method == "PATCH" else "json"
            headers["Content-Type"] = f"application/{kind}"
        for again in (True, False):
            if self._abandoned.is_set():
                raise self.away("it is not asked any more")
            connection = self._connection = self._connection or self._connect()
            try:
                connection.request(method, target, data, headers)
                with connection.getresponse() as answer:
                    text = answer.read().decode("utf-8", "replace")
                    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, text
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                # The server closes a kept connection when it likes. Whatever is asked may be asked twice: what is
                # created has a name, so that the second time is a conflict.
                if again and not isinstance(error, (TimeoutError, ConnectionRefusedError)):
                    continue
                raise self.away(str(error) or type(error).__name__) from error
        raise AssertionError("a second failure is raised")

    def _connect(self) -> http.client.HTTPConnection:
        host, context = self._server.hostname or "", self.access.tls()
        port = self._server.port or (80 if context is None else 443)
        proxy = self.access.proxy
        there = (host, port) if proxy is None else (proxy.host, proxy.port)
        connection: http.client.HTTPConnection
        if context is None:
            connection = http.client.HTTPConnection(*there, timeout=self._patience)
        else:
            connection = named = _NamedConnection(*there, timeout=self._patience, context=context)
            named.server_name = self.access.server_name or host
        if proxy is not None:
            connection.set_tunnel(host, port, headers=proxy.headers())
        return connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def failure(self, error: ApiError) -> BackendError:
        """A refusal, or the error of a server that is not able to answer."""
        lame = error.status in _LAME or error.status == 429
        return self.away(f"status {error.status}: {error.words[:200]}") if lame else error

    def away(self, why: str) -> Away:
        """The error of a server that does not answer."""
        place = self.access.place
        fix = f"see whether `kubectl --context {place.context} get namespaces` answers"
        return Away(f"the Kubernetes API server at {place.server} does not answer: {why}", fix=fix)

    # Streams

    def stream(self, path: str, params: Mapping[str, Any]) -> Stream:
        """Begin a request whose answer goes on; `Away` where no connection can be made."""
        with self.answers.question(f"GET {path}"), self._in_use:
            sock = self._begun(self._target(path, params), {"Accept": "application/json, */*"})
            stream = Stream(sock, path, self._streams.discard)
            self._streams.add(stream)
            return stream

    def ask_upgrade(self, path: str, params: Sequence[tuple[str, str]], headers: Mapping[str, str]) -> socket.socket:
        """A connection on which the server was asked for another protocol, and has not answered yet; `Away` where none
        can be made. Reads and writes fail that take longer than the client's patience."""
        with self.answers.question(f"GET {path}"), self._in_use:
            return self._begun(f"{self._server.path}{path}?{urllib.parse.urlencode(params)}", headers)

    def upgrade_refusal(self, path: str, status: int, body: bytes) -> BackendError:
        """The error of an answer to an upgrade that is none."""
        return self.failure(_refusal(status, body.decode("utf-8", "replace"), f"GET {path}"))

    def _begun(self, target: str, headers: Mapping[str, str]) -> socket.socket:
        """A connection of its own to which the head of a request without a body was sent."""
        if self._abandoned.is_set():
            raise self.away("it is not asked any more")
        lines = [f"GET {target} HTTP/1.1", f"Host: {self._server.netloc.rpartition('@')[2]}"]
        lines += [f"{name}: {value}" for name, value in {**self.access.headers(), **headers}.items()]
        connection = self._connect()
        try:
            connection.connect()
            sock: socket.socket = connection.sock
            sock.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
            return sock
        except OSError as error:
            connection.close()
            raise self.away(str(error) or type(error).__name__) from error

    # The end

    def abandon(self) -> None:
        """Break off the request that waits for an answer, from another thread: it raises `Away`, as all later ones."""
        self._abandoned.set()
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)
        if self._in_use.acquire(timeout=ABANDONED):
            try:
                self.close()
            finally:
                self._in_use.release()

    def close(self) -> None:
        """Close all connections."""
        self._drop()
        for stream in list(self._streams):
            stream.close()


class _NamedConnection(http.client.HTTPSConnection):
    """A connection to a server whose certificate has another name than its address."""

    server_name = ""

    def connect(self) -> None:
        """Connect, and check the certificate's name."""
        http.client.HTTPConnection.connect(self)
        context: ssl.SSLContext = self._context  # type: ignore[attr-defined]
        self.sock = context.wrap_socket(self.sock, server_hostname=self.server_name)


class Stream:
    """The answer to one request, read as it comes, without ever blocking.

    `status` is None until the answer begins. Its socket is readable when `read` has something (`fileno`).
    """

    def __init__(self, sock: socket.socket, path: str, over: Any) -> None:
        self.status: int | None = None
        self.path = path
        self.last_heard = time.monotonic()
        """When anything came last, on the monotonic clock."""
        self.broken = False
        """Whether it ended before the server said that it was complete."""
        self._sock = sock
        self._over = over
        self._raw = b""
        self._chunked = False
        self._left: int | None = None
        """Bytes of the chunk or the body that are still to come; None where none has begun, or the end is the
        connection's."""
        self._complete = False
        self._body = b""
        """The beginning of a refusal."""
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # of a connection that is gone already: reading tells
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
                if hasattr(socket, name) and sock.family in (socket.AF_INET, socket.AF_INET6):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def fileno(self) -> int:
        """The descriptor to wait for; -1 for a closed one."""
        return self._sock.fileno()

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._sock.close()
        self._over(self)

    def read(self) -> bytes | None:
        """What has come since the last call; None once there is no more."""
        if self._complete or self._sock.fileno() < 0:
            return None
        pieces, ended = [self._raw], False
        while True:
            try:
                data = self._sock.recv(_PIECE)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            except OSError:
                data = b""
            if not data:
                ended = True
                break
            self.last_heard = time.monotonic()
            pieces.append(data)
        self._raw = b"".join(pieces)
        body = self._parse()
        if self.status is not None and self.status != 200:
            self._body = (self._body + body)[: 1 << 16]
        if ended and not self._complete:
            self.broken = self._chunked or self.status is None or bool(self._left)
            self._complete = True
        return None if self._complete and not body else body

    def error(self) -> ApiError:
        """The refusal that came in place of a stream, as far as it has been read."""
        return _refusal(self.status or 0, self._body.decode("utf-8", "replace"), f"GET {self.path}")

    def _parse(self) -> bytes:
        """The part of the body that is complete in what was read."""
        if self.status is None:
            head, empty_line, rest = self._raw.partition(b"\r\n\r\n")
            if not empty_line:
                return b""
            self._raw = rest
            self.status, fields = _parse_head(head)
            self._chunked = fields.get("transfer-encoding", "").lower() == "chunked"
            length = fields.get("content-length", "")
            self._left = int(length) if length.isdecimal() and not self._chunked else None
            self._complete = self.status == 204 or (self._left == 0 and not self._chunked)
        return self._unchunk() if self._chunked else self._plain()

    def _plain(self) -> bytes:
        body, self._raw = self._raw, b""
        if self._left is not None:
            self._left -= len(body)
            self._complete = self._complete or self._left <= 0
        return body

    def _unchunk(self) -> bytes:
        # The place in what was read moves on, so that each byte is copied once, however many chunks there are.
        pieces, raw, place = [], self._raw, 0
        while not self._complete:
            if self._left is None:
                end = raw.find(b"\r\n", place)
                if end < 0:
                    break
                line, place = raw[place:end], end + 2
                if not line:  # the end of the chunk before
                    continue
                try:
                    self._left = int(line.partition(b";")[0], 16)
                except ValueError:
                    self._complete = self.broken = True
                    break
                if self._left == 0:
                    self._complete = True
                    break
            piece = raw[place : place + self._left]
            pieces.append(piece)
            place += len(piece)
            self._left -= len(piece)
            if self._left:
                break
            self._left = None
        self._raw = raw[place:]
        return b"".join(pieces)


class Inquiry:
    """A request whose answer is taken once it has come: whoever asks does not wait."""

    def __init__(self, stream: Stream, cluster: Cluster, patience: float) -> None:
        self._stream = stream
        self._away = cluster.away
        self._failure = cluster.failure
        self._patience = patience
        self._pieces: list[bytes] = []

    def fileno(self) -> int:
        """The descriptor to wait for; -1 once the answer was taken."""
        return self._stream.fileno()

    def take(self) -> bytes | None:
        """The answer; None while it is not there. `ApiError` for a refusal, `Away` where it breaks off, or nothing
        comes for as long as an answer may take."""
        data = self._stream.read()
        if data:
            self._pieces.append(data)
        if data is not None and time.monotonic() < self._stream.last_heard + self._patience:
            return None
        self.close()
        if data is not None:
            raise self._away(f"nothing came for {self._patience:g} s")
        if self._stream.status not in (None, 200, 204):
            raise self._failure(self._stream.error())
        if self._stream.broken:
            raise self._away("the connection ended before an answer came")
        return b"".join(self._pieces)

    def close(self) -> None:
        """Give it up."""
        self._stream.close()


@contextlib.contextmanager
def reached(options: Mapping[str, Any], *, patience: float = TIMEOUT) -> Iterator[Cluster]:
    """Within the block a client of the cluster that settings name; `SettingsError` where no kubeconfig names one."""
    cluster = Cluster(KubernetesSettings(**options), os.environ, patience=patience)
    try:
        yield cluster
    finally:
        cluster.close()


def delete(cluster: Cluster, path: str, *, grace: float | None = None) -> bool:
    """Delete an object; whether it was there."""
    try:
        cluster.delete(path, grace=grace)
    except ApiError as error:
        if error.status not in (404, 409):
            raise
        return False
    return True


def existing(cluster: Listing, path: str) -> dict[str, Any] | None:
    """An object at its place in the API; None where it is not there."""
    try:
        return cluster.get(path)
    except ApiError as error:
        if error.status == 404:
            return None
        raise


class Listing(Protocol):
    """What `pages` asks: `Cluster`."""

    def get(self, path: str, **params: Any) -> dict[str, Any]:
        """An object, or a list."""


def pages(cluster: Listing, path: str, *, limit: int = PAGE, **params: Any) -> Iterator[dict[str, Any]]:
    """A list in pages of `limit` objects, the first at the version from which a watch goes on; `ApiError` 410 where
    the server no longer knows what the next page is."""
    token = ""
    while True:
        page = cluster.get(path, **params, limit=limit, **({"continue": token} if token else {}))
        yield page
        token = next_page(page)
        if not token:
            return


def items(cluster: Listing, path: str, **params: Any) -> list[dict[str, Any]]:
    """All objects of a list, page by page."""
    return [one for page in pages(cluster, path, limit=ITEMS, **params) for one in page.get("items") or ()]


def seen_items(cluster: Listing, path: str, *hidden: int, **params: Any) -> list[dict[str, Any]] | None:
    """The same; None where this account may not see them (403), or the server answers with another of these codes."""
    try:
        return items(cluster, path, **params)
    except ApiError as error:
        if error.status not in (403, *hidden):
            raise
        return None


def events_about(cluster: Listing, namespace: str, *objects: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The events about objects, as far as they may be read."""
    path = f"/api/v1/namespaces/{namespace}/events"
    found: list[dict[str, Any]] = []
    for each in objects:
        found += seen_items(cluster, path, fieldSelector=f"involvedObject.uid={each['metadata']['uid']}") or ()
    return found


def next_page(page: Mapping[str, Any]) -> str:
    """What a list's next page is asked for by (`continue`); empty behind the last one."""
    return str((page.get("metadata") or {}).get("continue") or "")


def head_of(data: bytes) -> tuple[int, Mapping[str, str], bytes] | None:
    """Status and headers of an answer, and what came behind them; None while they are not whole, and `OSError` for what
    is no answer."""
    head, empty_line, rest = data.partition(b"\r\n\r\n")
    if not empty_line:
        if len(data) > _PIECE:
            raise OSError("what came is no answer of an API server")
        return None
    status, fields = _parse_head(head)
    return status, fields, rest


def is_whole(fields: Mapping[str, str], body: bytes) -> bool:
    """Whether all of a refusal's body is there; one of unknown length is whole once the server closes."""
    length = fields.get("content-length", "")
    return len(body) >= (int(length) if length.isdecimal() else _PIECE)


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """The status of an answer, 0 where it has none, and its headers by their names in small letters."""
    first, *lines = head.decode("latin-1").split("\r\n")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    words = first.split(" ", 2)
    return int(words[1]) if len(words) > 1 and words[1].isdecimal() else 0, fields


def _refusal(status: int, text: str, request: str) -> ApiError:
    """The error of an answer, which is a `Status` as a rule."""
    try:
        document = parse_json(text)
    except SettingsError:
        document = None
    if not isinstance(document, dict):
        return ApiError(status, http.client.responses.get(status, ""), text.strip()[:500], {}, request=request)
    message = str(document.get("message") or "")
    return ApiError(status, str(document.get("reason") or ""), message, document.get("details") or {}, request=request)
