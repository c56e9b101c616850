"""An artifact store on a claim of the cluster, "pvc://CLAIM/FOLDER": nothing but a kubeconfig is needed.

The pods of steps mount the claim and open its folder as plain files. This machine reaches it through a small pod that
mounts it too, by exec over the API server (`execution`): it is started when it is needed, and ends when nobody uses it.
What the pod must have besides, such as an image that nodes may pull, is in the query of the URI (`complete`), so that
every process that knows the store can start it.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import logging
import os
import threading
import time
from typing import Any, BinaryIO, Callable, Final, Iterator, Mapping, Sequence, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

import attrs

from stoker.backends.kubernetes.api.client import ApiError, Cluster, delete, events_about, existing
from stoker.backends.kubernetes.api.execution import Execution
from stoker.backends.kubernetes.explain.pending import why_pending
from stoker.backends.kubernetes.explain.refusals import refusal_of
from stoker.backends.kubernetes.objects import is_deleted, phase
from stoker.backends.kubernetes.request import storepod
from stoker.backends.kubernetes.request.check import OWN_IMAGE
from stoker.backends.kubernetes.request.pod import CLAIM
from stoker.backends.kubernetes.request.pods import CONTAINER, PodMount, PodRequest, pod_template, program, run_variable
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core.codec import parse_json, parse_object
from stoker.core.errors import Away, BackendError, DiskFull, SettingsError
from stoker.core.resources import ResourceSettings
from stoker.store.transport import Reach

log = logging.getLogger(__name__)

SCHEME: Final = "pvc"
MOUNT: Final = "/stoker/claim"
"""Where pods have the claim."""
STATE: Final = "/stoker/sessions"
"""Where the store's pod has the lock of its sessions."""
PROGRAM: Final = "STOKER_STORE_PROGRAM"
"""The variable of the pod with the text of its program."""
LABEL: Final = "stoker/store"
"""The label of stores' pods: the claim."""
IDLE: Final = 60.0
"""Seconds without a session after which the pod ends by itself."""
SILENCE: Final = 900.0
"""Seconds without a question after which a session ends whose client may be gone."""
START: Final = 300.0
"""Seconds in which the pod must run: a node may have to be added for it, and an image be pulled."""
PATIENCE: Final = 60.0
"""Seconds for which a question is repeated that gets no further."""
ENDS: Final = 3
"""How often the pod may end before it runs."""
PIECE: Final = 4 << 20
"""Bytes of a file in one question."""
CALL: Final = 30.0
"""Seconds for an answer."""
_FIELDS: Final = (
    # Fields of the settings that decide where the pod may be and whether it starts.
    "context", "kubeconfig", "namespace", "image", "executable", "image_pull_policy", "image_pull_secrets",
    "service_account", "node_selector", "affinity", "tolerations", "priority_class", "labels", "annotations",
    "host_network", "pod_security_context", "security_context", "runtime_class", "scheduler",
)  # fmt: skip

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class ClaimStore:
    """What the URI of a store on a claim says."""

    claim: str
    folder: str
    """In the claim, without slashes around it; empty for all of it."""
    options: Mapping[str, Any] = attrs.field(factory=dict)
    """Settings of the stack."""

    @property
    def path(self) -> str:
        """The folder as the store's pod has it."""
        return f"{MOUNT}/{self.folder}".rstrip("/")

    @property
    def path_in_steps(self) -> str:
        """The folder as the document of a step's pod names it: the pod's program knows where the claim is."""
        return CLAIM + self.folder


def claim_store(uri: str) -> ClaimStore | None:
    """The claim and the folder of "pvc://CLAIM/FOLDER"; None for another URI, `SettingsError` for a wrong one."""
    scheme, _, rest = uri.partition("://")
    if scheme != SCHEME:
        return None
    place, _, query = rest.partition("?")
    claim, _, folder = place.partition("/")
    parts = [part for part in folder.split("/") if part]
    if not claim or claim != quote(claim) or ".." in parts or not folder.isprintable():
        raise SettingsError(f"{uri!r} names no folder of a claim", fix='write "pvc://CLAIM" or "pvc://CLAIM/FOLDER"')
    options = {}
    for name, text in parse_qsl(query):
        if name not in _FIELDS:
            raise SettingsError(f"{uri!r} sets '{name}', which the pod of a store does not have")
        options[name] = parse_json(text)
    return ClaimStore(claim=claim, folder="/".join(parts), options=options)


def complete(options: Mapping[str, Any], uri: str) -> str:
    """The URI of a stack's artifact store with what its pod needs of the orchestrator's settings."""
    store = claim_store(uri)
    if store is None:
        return uri
    settings = KubernetesSettings(**options)
    taken = {name: settings.get(name) for name in _FIELDS}
    given = {name: value for name, value in {**taken, **store.options}.items() if value not in (None, "", (), {})}
    query = urlencode({name: json.dumps(value, sort_keys=True) for name, value in sorted(given.items())})
    return f"{SCHEME}://{store.claim}{'/' if store.folder else ''}{store.folder}{'?' if query else ''}{query}"


def claim_mount(store: ClaimStore) -> PodMount:
    """The claim as a pod has it."""
    source = {"persistentVolumeClaim": {"claimName": store.claim}}
    return PodMount(name="stoker-claim", source=source, path=MOUNT, read_only=False)


def store_pod(store: ClaimStore) -> dict[str, Any]:
    """The pod of a store: the same for all that reach it alike. Pure."""
    settings = KubernetesSettings(**store.options)
    request = PodRequest(
        resources=ResourceSettings(),
        settings=settings,
        image=str(settings.get("image") or OWN_IMAGE),
        environment={PROGRAM: program(storepod)},
        command=(*run_variable(settings, PROGRAM), "keep", STATE, str(IDLE)),
        mounts=[
            claim_mount(store),
            PodMount(name="stoker-state", source={"emptyDir": {}}, path=STATE, read_only=False),
        ],
        labels={"app.kubernetes.io/managed-by": "stoker", LABEL: store.claim[:63]},
        grace=5.0,
    )
    template = pod_template(request)
    digest = hashlib.sha256(json.dumps([store.claim, template], sort_keys=True).encode()).hexdigest()[:8]
    name = f"stoker-store-{store.claim[:40].rstrip('.-')}-{digest}"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template.get("metadata", {}), "name": name},
        "spec": template["spec"],
    }


@attrs.frozen(kw_only=True)
class ClaimFile:
    """What is known of a file on a claim."""

    size: int
    """Bytes."""
    age: float
    """Seconds since it was written, by the clock of the pod's node."""


class ClaimFiles:
    """Files in the folder of a claim, by paths relative to it: what `store.transport.Transport` asks for."""

    def __init__(self, uri: str) -> None:
        store = claim_store(uri)
        if store is None:
            raise SettingsError(f"{uri!r} is not on a claim", fix='write "pvc://CLAIM/FOLDER"')
        self._store = store
        self._settings = KubernetesSettings(**store.options)
        self._cluster: Cluster | None = None
        self._session: Execution | None = None
        self._alone = threading.RLock()
        self._process = os.getpid()

    # What store.transport.Transport asks for

    def write(self, source: BinaryIO, path: str, *, part: str) -> None:
        """Write a file; until it is whole it is called `part`, a name that nobody else uses."""
        size = os.fstat(source.fileno()).st_size
        at = 0
        while True:
            source.seek(at)
            data = source.read(min(PIECE, size - at))
            question = {"do": "append", "path": part, "offset": at, "last": at + len(data) >= size}
            try:
                there = int(self._ask(question, data)["size"])
            except Away:
                raise
            except BackendError:
                self._remove_part(part)
                raise
            # A pod that was evicted may have left less than it had said: what is missing is sent again.
            at = there if there < at else at + len(data)
            if at >= size:
                break
        written = int(self._ask({"do": "finish", "part": part, "path": path, "size": size})["size"])
        if written != size:
            self._remove_part(part)
            raise BackendError(
                f"the claim {self._store.claim} has {written} of {size} bytes of {path}",
                fix="see whether something else writes there, and run again: finished steps are kept",
            )

    def read(self, path: str, into: Callable[[bytes], object]) -> bool:
        """Hand on a file's bytes in pieces; False where there is none."""
        at = 0

        def receive() -> bool:
            nonlocal at
            session = self._opened()
            answer = _exchange(session, {"do": "read", "path": path, "offset": at})
            if answer.get("missing"):
                return False
            self._refuse(answer, path)
            end = at + int(answer["bytes"])
            while at < end:
                data = session.read(end - at)
                into(data)
                at += len(data)
            return True

        return self._patiently(receive, progress=lambda: at)

    def look(self, paths: Sequence[str]) -> Mapping[str, ClaimFile]:
        """Those of the files that are there."""
        if not paths:
            return {}
        files = self._ask({"do": "look", "paths": list(paths)})["files"]
        return {path: ClaimFile(size=int(size), age=float(age)) for path, (size, age) in files.items()}

    def renew(self, path: str, size: int) -> bool:
        """Give a file of this size the present time; False where there is none of this size."""
        return bool(self._ask({"do": "renew", "path": path, "size": size})["there"])

    def rename(self, path: str, target: str) -> bool:
        """Move a file; False where there is none."""
        return bool(self._ask({"do": "rename", "path": path, "target": target})["there"])

    def files(self, folder: str) -> Iterator[str]:
        """The paths of all files in a folder; none of a folder that is not there."""
        yield from self._ask({"do": "files", "path": folder})["files"]

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files; those that are gone are fine."""
        self._ask({"do": "remove", "paths": list(paths)})

    def remove_older(self, path: str, seconds: float) -> int | None:
        """Remove a file that was written longer ago than this; its size, or None where it stays or is gone."""
        size = self._ask({"do": "remove_older", "path": path, "seconds": seconds}).get("size")
        return None if size is None else int(size)

    def close(self) -> None:
        """End the session, and the pod if nobody else has one."""
        with self._alone:
            atexit.unregister(self.close)
            session, self._session = self._session, None
            cluster, self._cluster = self._cluster, None
            if cluster is None or self._process != os.getpid():
                return
            try:
                if session is not None:
                    try:
                        last = _exchange(session, {"do": "leave"}).get("last")
                    finally:
                        session.close()
                    if last:
                        cluster.delete(self._pod_path(cluster), grace=1)
            except BackendError as error:  # `Away` too: the pod ends by itself
                log.debug("the pod of %s is left to end by itself: %s", self._store.claim, error)
            finally:
                cluster.close()

    # The session

    def _ask(self, question: Mapping[str, Any], content: bytes = b"") -> dict[str, Any]:
        """The answer to a question that may be asked twice."""

        def ask() -> dict[str, Any]:
            answer = _exchange(self._opened(), {**question, "bytes": len(content)}, content)
            self._refuse(answer, str(question.get("path") or question.get("part") or "files"))
            return answer

        return self._patiently(ask)

    def _remove_part(self, part: str) -> None:
        """Remove what a failed transfer left; where that fails too, `stoker gc` does it."""
        try:
            self._ask({"do": "remove", "paths": [part]})
        except BackendError as error:
            log.debug("%s stays on the claim %s: %s", part, self._store.claim, error)

    def _patiently(self, attempt: Callable[[], T], progress: Callable[[], int] = lambda: 0) -> T:
        """What an attempt returns, repeated over a new session while connections break and bytes moved lately."""
        pause, reached, warned = 0.1, progress(), False
        deadline = time.monotonic() + PATIENCE
        with self._alone:
            while True:
                try:
                    return attempt()
                except Away as error:
                    self._drop()
                    if progress() > reached:
                        reached, pause, deadline = progress(), 0.1, time.monotonic() + PATIENCE
                    if error.lasting or time.monotonic() > deadline:
                        raise
                    if pause > 1.0 and not warned:
                        log.warning("%s; asked again", error.message)
                        warned = True
                time.sleep(pause)
                pause = min(pause * 2, 10.0)

    def _opened(self) -> Execution:
        """The session, in a pod that is started where there is none."""
        if self._process != os.getpid():  # a fork has the connection of its parent
            self._process, self._session, self._cluster = os.getpid(), None, None
        if self._session is None:
            if self._cluster is None:
                self._cluster = Cluster(self._settings, os.environ, patience=CALL)
                atexit.register(self.close)  # a program that ends without closing its store leaves no pod
            self._start_pod(self._cluster)
            command = (*run_variable(self._settings, PROGRAM), "serve", STATE, self._store.path, str(SILENCE))
            namespace, name = self._cluster.namespace, self._pod_path(self._cluster).rpartition("/")[2]
            with self._asking():
                try:
                    self._session = Execution(self._cluster, namespace, name, command, container=CONTAINER)
                except ApiError as error:
                    if error.status not in (400, 404, 409):
                        raise
                    raise Away(f"the pod {name} has just ended: {error.words}") from error
        return self._session

    def _drop(self) -> None:
        """Forget a session that broke."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _pod_path(self, cluster: Cluster) -> str:
        return f"/api/v1/namespaces/{cluster.namespace}/pods/{store_pod(self._store)['metadata']['name']}"

    def _start_pod(self, cluster: Cluster) -> None:
        """Have the pod run; `BackendError` where it cannot."""
        path, body = self._pod_path(cluster), store_pod(self._store)
        deadline, ends, pause = time.monotonic() + START, 0, 0.05
        while True:
            with self._asking(409):  # 409: somebody else made it
                pod = existing(cluster, path)
                if pod is None:
                    cluster.create(path.rpartition("/")[0], body)
            if pod is None:
                continue
            state = phase(pod)
            if is_deleted(pod):
                pass  # it is waited for
            elif state in ("Succeeded", "Failed"):
                ends += state == "Failed"
                if ends > ENDS:
                    raise self._lost(pod)
                with self._asking():
                    delete(cluster, path, grace=1)
                continue
            elif state == "Running":
                return
            reason = None if is_deleted(pod) else why_pending({}, [pod], events_about(cluster, cluster.namespace, pod))
            if (reason is not None and reason.hopeless) or time.monotonic() > deadline:
                words = f": {reason.text}" if reason is not None else ""
                with self._asking():
                    delete(cluster, path, grace=1)
                raise BackendError(
                    f"the pod of the claim {self._store.claim} does not start{words}",
                    fix=(reason.fix if reason is not None else "") or "see `kubectl describe pod` there",
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 1.0)

    @contextlib.contextmanager
    def _asking(self, *fine: int) -> Iterator[None]:
        """Within the block the API server's refusals say what is missing; those with these codes are none."""
        try:
            yield
        except ApiError as error:
            if error.status not in fine:
                words = refusal_of(error.status, error.words)
                what = f"the pod of the claim {self._store.claim} is not reached: {words.message}"
                raise BackendError(what, fix=words.fix) from error

    def _lost(self, pod: Mapping[str, Any]) -> BackendError:
        statuses = (pod.get("status") or {}).get("containerStatuses") or [{}]
        ended = ((statuses[0].get("state") or {}).get("terminated")) or {}
        message = str(ended.get("message") or "").strip().splitlines()
        words = message[-1] if message else str(pod.get("status", {}).get("message") or "nothing says why")
        return BackendError(
            f"the pod of the claim {self._store.claim} fails: {words}",
            fix="see whether its image has Python 3.10 or later, and whether its user may write the claim",
        )

    def _refuse(self, answer: Mapping[str, Any], path: str) -> None:
        """Raise what an answer says that could not be done."""
        code = answer.get("error")
        if code is None:
            return
        message = f"{path} on the claim {self._store.claim}: {answer.get('words', code)}"
        if code in ("ENOSPC", "EDQUOT"):
            raise DiskFull(message, fix="make room with `stoker gc`, or let an administrator enlarge the claim")
        fix = "see whether the pods' user may write there: pod_security_context={'fsGroup': …} of the orchestrator"
        raise BackendError(message, fix=fix)


def _exchange(session: Execution, question: Mapping[str, Any], content: bytes = b"") -> dict[str, Any]:
    """Ask, and read the line of the answer."""
    session.write(json.dumps(question).encode() + b"\n" + content)
    line = session.line()
    try:
        return dict(parse_object(line.decode("utf-8", "replace")))
    except SettingsError:
        raise Away(f"the pod of a store answers {line[:100]!r}") from None


REACH: Final = Reach(open=ClaimFiles)
"""As pyproject.toml registers it in the group "stoker.transports"."""
