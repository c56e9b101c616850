"""What a plan asks of the outside: side by side, within a budget, remembered with its time, or left out.

A question has a *key*, which names what is asked, and a *place*, which is who answers. Answers are kept by key, for as
long as the question says; that a place gave no answer is kept by place, for some minutes, so that no plan waits for it
again. A question without an answer raises `NoAnswer`: what depends on it is unknown, and is said.
"""

from __future__ import annotations

import contextlib
import contextvars
import hashlib
import json
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Final, Iterator, Mapping, Sequence

from stoker.core.errors import InfrastructureError, SettingsError
from stoker.core.units import positive_duration

if TYPE_CHECKING:
    from concurrent.futures import Future

OFFLINE: Final = "STOKER_OFFLINE"
"""With this variable a plan asks no package index, and no registry but those on this machine."""
SECONDS: Final = "STOKER_PLAN_SECONDS"
"""The variable with the seconds that a plan waits for what it asks, all together."""
BUDGET: Final = 5.0
"""Those seconds where the variable does not say."""
LEAST: Final = 1.0
"""Seconds for a question that comes up when the budget is spent, because its words are the answer to another."""
SILENT_SECONDS: Final = 300.0
"""How long a place that gave no answer is not asked again."""
FOLDER: Final = "answers"
"""The folder below Stoker's home."""
KEPT_SECONDS: Final = 30 * 86400.0
"""How long a file of an answer is kept at most."""
_SHOWN_AFTER: Final = 0.5
_WAYS: Final = frozenset(
    {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "PIP_CLIENT_CERT"}
    | {"UV_NATIVE_TLS", "UV_SYSTEM_CERTS", "PIP_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}
)
"""Variables that say how a place is reached: who changes one wants it asked again."""


class NoAnswer(InfrastructureError):
    """A place gave no answer, or was not asked."""


class Questions:
    """The questions of one session.

    `folder` is where answers are kept; without one, none is. `offline` says why nothing is asked that is not on this
    machine, empty where it is; `strict` says that of what is here only an engine is asked. `anew` asks although there
    is an answer, `patient` waits as long as each question itself. `show` is told what is waited for, and the empty text
    at the end.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        offline: str = "",
        strict: bool = False,
        anew: bool = False,
        patient: bool = False,
        show: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.offline = offline
        self.strict = bool(offline) and strict
        self._folder = None if folder is None else folder / FOLDER
        self._anew = anew
        self._budget: float | None = None if patient else _budget()
        self._end = 0.0
        self._lock = threading.Lock()
        self._asked: dict[str, Future[Any]] = {}
        self._show, self._waiting = show, list[str]()

    def begin(self) -> None:
        """Begin to count the budget again, for another plan."""
        self._end = 0.0

    def be_patient(self) -> None:
        """Wait for each answer as long as its own limits say: what is built needs it."""
        with self._lock:
            self._budget = None
            self._asked.clear()

    @property
    def seconds(self) -> float | None:
        """The seconds that are left for an answer; None for no limit."""
        with self._lock:
            if self._budget is None:
                return None
            now = time.monotonic()
            self._end = self._end or now + self._budget
            return max(self._end - now, LEAST)

    def ask(
        self,
        who: str,
        ask: Callable[[], Any],
        *,
        key: Sequence[Any],
        place: Sequence[Any],
        valid: Callable[[Any], float] = lambda answer: 0.0,
        nearby: bool = False,
    ) -> Any:
        """The answer to a question, a value of JSON where `valid` says for how many seconds it is kept.

        `ask` is called in a thread of its own, once for all who ask the same at once, and raises `NoAnswer` where
        nobody answers; its other exceptions are answers, which are not kept. A place that is `nearby`, on this
        machine, is asked also with `offline`. `who` is the place in words.
        """
        name, home = _digest(key), _digest([list(place), _ways()])
        with self._lock:
            future = self._asked.get(name)
        if future is None:
            kept = self._read(name, answer=object, valid=float)
            if kept is not None and 0 <= time.time() - kept["asked"] < kept["valid"]:
                return kept["answer"]
            if self.offline and not nearby:
                raise NoAnswer(f"{who} is not asked: {self.offline}")
            self._refuse_silent(home)
            future = self._start(name, ask)
        self._wait(future, who)
        if future.done():
            try:
                answer = future.result()
            except NoAnswer as error:
                self._keep(home, {"silent": error.message, "waited": None})
                raise
            seconds = valid(answer)
            if seconds:
                self._keep(name, {"answer": answer, "valid": float(seconds)})
            return answer
        waited = BUDGET if self._budget is None else self._budget
        text = f"{who} had no answer after {waited:g} s"
        self._keep(home, {"silent": text, "waited": float(waited)})
        raise NoAnswer(text)

    def _refuse_silent(self, home: str) -> None:
        """Raise what a place said that gave no answer a moment ago, unless this session would wait longer for it."""
        kept = self._read(home, silent=str, waited=(float, type(None)))
        if kept is None or not 0 <= time.time() - kept["asked"] < SILENT_SECONDS:
            return
        waited = kept["waited"]
        if self._budget is not None and (waited is None or self._budget <= waited):
            raise NoAnswer(kept["silent"])

    def _start(self, name: str, ask: Callable[[], Any]) -> Future[Any]:
        from concurrent.futures import Future  # most plans ask nobody

        with self._lock:
            if name in self._asked:
                return self._asked[name]
            future = self._asked[name] = Future[Any]()
        context = contextvars.copy_context()

        def answer() -> None:
            try:
                future.set_result(context.run(ask))
            except BaseException as error:  # it is raised again where the answer is waited for
                future.set_exception(error)

        # Not of a pool: Python waits for a pool's threads when it ends, and these may hang.
        threading.Thread(target=answer, name=f"stoker-question-{name[:8]}", daemon=True).start()
        return future

    def _wait(self, future: Future[Any], who: str) -> None:
        """Wait for an answer, until the time is up."""
        from concurrent.futures import wait

        left = self.seconds
        if not wait((future,), _SHOWN_AFTER if left is None else min(left, _SHOWN_AFTER)).done:
            with self._shown(who):
                wait((future,), None if left is None else max(left - _SHOWN_AFTER, 0))

    @contextlib.contextmanager
    def _shown(self, who: str) -> Iterator[None]:
        with self._lock:
            self._waiting.append(who)
            self._tell()
        try:
            yield
        finally:
            with self._lock:
                self._waiting.remove(who)
                self._tell()

    def _tell(self) -> None:
        names = list(dict.fromkeys(self._waiting))
        self._show(f"waiting for {', '.join(names)}" if names else "")

    def _read(self, name: str, **kinds: type | tuple[type, ...]) -> Mapping[str, Any] | None:
        """What is kept, with values of these kinds; None where it is absent, of another version, or damaged."""
        if self._folder is None or self._anew:
            return None
        try:
            kept = json.loads((self._folder / f"{name}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        kinds["asked"] = float
        whole = isinstance(kept, dict) and all(
            key in kept and isinstance(kept[key], kind) for key, kind in kinds.items()
        )
        return kept if whole else None

    def _keep(self, name: str, entry: Mapping[str, Any]) -> None:
        if self._folder is None:
            return
        with contextlib.suppress(OSError):  # a full disk: it is asked again
            self._folder.mkdir(parents=True, exist_ok=True)
            oldest = time.time() - KEPT_SECONDS
            for path in self._folder.iterdir():
                if path.stat().st_mtime < oldest:
                    path.unlink()
            partial = self._folder / f".{name}.{os.getpid()}.{threading.get_ident()}"
            partial.write_text(json.dumps({"asked": time.time(), **entry}), encoding="utf-8")
            partial.replace(self._folder / f"{name}.json")


def offline_reason() -> str:
    """Why a plan asks nothing that is not on this machine, by the environment; empty if it asks."""
    return f"{OFFLINE} is set" if os.environ.get(OFFLINE) else ""


def _budget() -> float:
    """The seconds of a plan; a `SettingsError` for a text of the environment that is no time."""
    try:
        return positive_duration(os.environ.get(SECONDS) or BUDGET)
    except SettingsError as error:
        raise SettingsError(error.message, where=SECONDS, fix=error.fix) from None


def _ways() -> Sequence[tuple[str, str]]:
    return sorted((name, text) for name, text in os.environ.items() if name.upper() in _WAYS)


def _digest(words: Sequence[Any]) -> str:
    """A name for a file: neither a proxy's password nor a private image's name is readable in it."""
    return hashlib.sha256(json.dumps(words, sort_keys=True, default=str).encode()).hexdigest()
