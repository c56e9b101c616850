"""Names of Metaflow's beside flows: those that mean little here, such as events of Argo; `parallel_map`, which calls a
function on several CPUs; and `profile`, which says how long a block takes."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from datetime import datetime, timezone
from multiprocessing.connection import Connection, wait
from typing import Any, Final, TypeVar

from stoker.core.errors import UsageError
from stoker.core.usercode import caller
from stoker.core.version import VERSION
from stoker.flows.current import current
from stoker.flows.exceptions import MetaflowException
from stoker.flows.mutators import FlowMutator
from stoker.flows.parameters import username
from stoker.system import system

metaflow_version: Final = "2.19.39"
"""The release of Metaflow whose names and behaviour are here."""
__version__: Final = metaflow_version


CONFIGURATION: Final[Mapping[str, str | None]] = {
    **dict.fromkeys(("DATASTORE_SYSROOT_AZURE", "DATASTORE_SYSROOT_GS", "DATASTORE_SYSROOT_LOCAL")),
    **dict.fromkeys(("DATASTORE_SYSROOT_S3", "DATATOOLS_S3ROOT", "DEFAULT_SECRETS_ROLE", "OTEL_ENDPOINT")),
    **dict.fromkeys(("S3_ENDPOINT_URL", "SERVICE_AUTH_KEY", "SERVICE_URL", "UI_URL")),
    **dict.fromkeys(("DEFAULT_DATASTORE", "DEFAULT_ENVIRONMENT", "DEFAULT_METADATA"), "local"),
    "KUBERNETES_NAMESPACE": "default",
    "TEMPDIR": ".",
}
"""Names of Metaflow's configuration that flows read, each with its value where no variable STOKER_… or METAFLOW_… gives
one. They say where Metaflow would keep things; Stoker's own stands in `stoker.toml`."""
Render = TypeVar("Render", bound=Callable[..., Any])


def __getattr__(name: str) -> Any:
    if name in CONFIGURATION:
        variables = (f"STOKER_{name}", f"METAFLOW_{name}")
        return next((os.environ[one] for one in variables if os.environ.get(one)), CONFIGURATION[name])
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def with_default_component_id(render: Render) -> Render:
    """A decorator of `render` in Metaflow; a component has its id here when it is put on a card."""
    return render


def get_version(public: bool = False) -> str:
    """That release, and Stoker's own unless `public`: "2.19.39+stoker(1.0)"."""
    return metaflow_version if public else f"{metaflow_version}+stoker({VERSION})"


class IncludedFile:
    """What Metaflow keeps of an `IncludeFile` in place of its content.

    Here the content itself is the artifact, so that no artifact is one.
    """

    def __init__(self, descriptor: Mapping[str, Any]) -> None:
        self.descriptor = descriptor


def get_username() -> str:
    """Who runs this: METAFLOW_USER, STOKER_USER, or the system's name for the user."""
    return username()


def is_stringish(x: object) -> bool:
    """Whether a value is a text or bytes."""
    return isinstance(x, (str, bytes))


class package_sources(FlowMutator):  # noqa: N801 the name of a decorator
    """Files that Metaflow puts into a flow's code package; here code travels from where it is, without a package."""

    def init(self, sources: Any, arcname: Any = None, suffixes: Any = None) -> None:
        """Nothing is packed."""


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


A = TypeVar("A")
R = TypeVar("R")


class MulticoreException(MetaflowException):
    """A process of `parallel_map` failed."""


def parallel_imap_unordered(
    func: Callable[[A], R], iterable: Iterable[A], max_parallel: int | None = None, dir: str | None = None
) -> Iterator[R]:
    """The results of a function for each item, as they come, each in a forked process: also of closures and lambdas.

    `max_parallel` is the number of CPUs by default. Results are pickled; nothing is written to `dir`.
    """
    del dir
    limit = max_parallel or system.cpus()
    context = multiprocessing.get_context("fork")
    running: dict[Connection, Any] = {}
    items = iter(iterable)
    try:
        while True:
            while len(running) < limit:
                try:
                    item = next(items)
                except StopIteration:
                    break
                receiver, sender = context.Pipe(duplex=False)
                sys.stdout.flush()
                sys.stderr.flush()
                process = context.Process(target=_call, args=(sender, func, item))
                process.start()
                sender.close()
                running[receiver] = process
            if not running:
                return
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                yield _result(ready, running.pop(ready))
    finally:
        for receiver, process in running.items():
            process.terminate()
            process.join()
            receiver.close()


def parallel_map(
    func: Callable[[A], R], iterable: Iterable[A], max_parallel: int | None = None, dir: str | None = None
) -> list[R]:
    """The same, in the order of the items."""
    numbered = parallel_imap_unordered(
        lambda pair: (pair[0], func(pair[1])), enumerate(iterable), max_parallel=max_parallel, dir=dir
    )
    return [result for _, result in sorted(numbered, key=lambda pair: pair[0])]


def _call(sender: Connection, function: Callable[[Any], Any], item: Any) -> None:
    try:
        sender.send((True, function(item)))
    except BaseException as error:  # whatever it is, the process above is told
        traceback.print_exc()
        sender.send((False, f"{type(error).__name__}: {error}"))
        sys.exit(1)


def _result(receiver: Connection, process: Any) -> Any:
    try:
        good, value = receiver.recv()
    except EOFError:
        good, value = False, "it was ended"
    receiver.close()
    process.join()
    if not good:
        raise MulticoreException(f"a process of parallel_map failed: {value}")
    return value


@contextlib.contextmanager
def profile(label: str, stats_dict: MutableMapping[str, int] | None = None) -> Iterator[None]:
    """Measure a block: its milliseconds are printed, or added to `stats_dict[label]`."""
    if stats_dict is None:
        sys.stdout.write(f"PROFILE: {label} starting\n")
    began = time.time()
    yield
    took = int((time.time() - began) * 1000)
    if stats_dict is None:
        sys.stdout.write(f"PROFILE: {label} completed in {took}ms\n")
    else:
        stats_dict[label] = stats_dict.get(label, 0) + took
