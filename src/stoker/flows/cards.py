"""Cards of a running task: `current.card`, the classes that make pages, and how a task renders them.

A card of the types "default" and "blank" is its components, which stand on the page that every task has. Another type
is a class, `MetaflowCard`, whose `render` makes HTML of the finished task; that stands there, too, in a closed frame.
What goes wrong with a card is told on it and in the task's log, and never fails the task.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import itertools
import json
import os
import re
import select
import signal
import sys
import threading
import time
import traceback
import warnings
from typing import TYPE_CHECKING, Any, Callable, Final, Iterable, Iterator, Mapping, Sequence

import attrs

from stoker.core.cards import LARGEST, CardComponent, Document, Error, document_of
from stoker.core.errors import StokerError, nearest
from stoker.flows.cardtypes import MetaflowCard, card_class, import_failures, imports_of
from stoker.flows.exceptions import MetaflowException

if TYPE_CHECKING:
    from types import FrameType

OWN_TYPES: Final = frozenset({"default", "blank"})
"""Types of cards that are their components alone."""
_REFRESH: Final = 1.0
"""Seconds between two refreshes of cards: what a person who looks at them can follow."""
_DAY: Final = 86_400.0
_ID: Final = re.compile(r"[A-Za-z0-9_]+")
_SILENT: Final = ("METAFLOW_CARD_NO_WARNING", "STOKER_CARD_NO_WARNING")


def _yes(word: Any) -> bool:
    return str(word) == "True"  # a text where it comes from the command line


@attrs.frozen(kw_only=True)
class CardSpec:
    """What one `@card` says."""

    type: str = "default"
    id: str | None = None
    options: Mapping[str, Any] = attrs.field(factory=dict)
    timeout: float = attrs.field(default=45, converter=float)
    """Seconds that rendering may take."""
    save_errors: bool = attrs.field(default=True, converter=_yes)
    """Whether a card that fails is kept as a card that says so."""
    customize: bool = attrs.field(default=False, converter=_yes)
    """Whether `current.card.append` means this one of several."""


def missing_class(kind: str) -> str:
    """That there is no class of a type of cards, and why it may be missing."""
    failures = "; ".join(import_failures(kind))
    why = f"; these could not be imported: {failures}" if failures else ": import the module of its class"
    return f"there is no card of the type '{kind}'{why}"


def messages(step: str, values: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """What to say of a step's `@card`s before a run begins: of those whose class is in a package that fails."""
    kinds = dict.fromkeys(str(one.get("type", "default")) for one in values)
    return tuple(
        f"{step}: @card: {missing_class(kind)}" for kind in kinds if kind not in OWN_TYPES and import_failures(kind)
    )


_numbers = itertools.count()
"""For the ids of components that were given none: one counter, because a component may stand on several cards."""


class Components:
    """The components of one card, in their order and by their ids."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._by_id: dict[str, CardComponent] = {}
        self._warn = warn
        self.changed = time.time()
        """When one was added or taken away."""

    def append(self, component: Any, id: str | None = None) -> None:
        """Add one, with an id where it is to be found again."""
        problem = _problem(component)
        if problem:
            self._warn(f"this is left out: {problem}")
            return
        component.component_id = id or component.component_id or f"{type(component).__name__.lower()}_{next(_numbers)}"
        self._by_id[component.component_id] = component
        self.changed = time.time()

    def extend(self, components: Iterable[Any]) -> None:
        """Add several."""
        for component in components:
            self.append(component)

    def clear(self) -> None:
        """Take all away."""
        self._by_id.clear()
        self.changed = time.time()

    def keys(self) -> list[str]:
        """Their ids."""
        return list(self._by_id)

    def values(self) -> list[CardComponent]:
        """All of them."""
        return list(self._by_id.values())

    def __getitem__(self, id: str) -> CardComponent:
        if id not in self._by_id:
            self._warn(f"the card has no component '{id}'{nearest(id, self._by_id)}")
            return _Nothing()
        return self._by_id[id]

    def __setitem__(self, id: str, component: Any) -> None:
        if id in self._by_id:
            raise MetaflowException(
                f"the card has a component '{id}': call its update(), or give the new one another id"
            )
        self.append(component, id)

    def __delitem__(self, id: str) -> None:
        if id not in self._by_id:
            raise KeyError(f"the card has no component '{id}'{nearest(id, self._by_id)}")
        del self._by_id[id]
        self.changed = time.time()

    def __contains__(self, id: object) -> bool:
        return id in self._by_id

    def __iter__(self) -> Iterator[CardComponent]:
        return iter(self.values())

    def __len__(self) -> int:
        return len(self._by_id)


class _Nothing(CardComponent):
    """Stands for a component that is not there."""

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Change nothing."""


def _problem(component: Any) -> str:
    """Why a value is no component that can be shown; empty for one that is."""
    try:
        document_of(component)
    except StokerError as error:
        return "; fix: ".join(filter(None, (error.message, error.fix)))
    except Exception as error:  # of a component of the user's
        return f"{type(component).__name__}: {type(error).__name__}: {error}"
    return ""


class TaskCard:
    """One card of a running task."""

    def __init__(self, spec: CardSpec, cards: TaskCards, hash: str) -> None:
        self.spec = spec
        self._hash = hash
        self.kind = None if spec.type in OWN_TYPES else card_class(spec.type)
        self._cards = cards
        self._components = Components(cards.warn)
        self._user_data: Any = {}
        self._sequence = 0
        self._drawn_at = -1.0
        self._html: str | None = None
        self._data: Document | None = None

    @property
    def is_editable(self) -> bool:
        """Whether `current.card.append` may mean it."""
        return self.spec.type in OWN_TYPES or (self.kind is not None and self.kind.ALLOW_USER_COMPONENTS)

    @property
    def components(self) -> Components:
        """What stands on it, by id; a list that is assigned to it takes the place of all that."""
        return self._components

    @components.setter
    def components(self, components: Iterable[Any]) -> None:
        self._components = Components(self._cards.warn)
        self._components.extend(components)

    def append(self, component: Any, id: str | None = None) -> None:
        """Put one more component on it."""
        self.components.append(component, id)

    def extend(self, components: Iterable[Any]) -> None:
        """Put several on it."""
        self.components.extend(components)

    def clear(self) -> None:
        """Take everything off that was put there."""
        self.components.clear()

    def refresh(self, data: Any = None, force: bool = False) -> None:
        """Show it as it is now, while the task runs; what was shown last is there, too, if the task is killed.

        Call it as often as you like: at most once a second something is kept, with `force` at each call. A class's
        `render_runtime` and `refresh` are given `data`, a JSON value.
        """
        if data is not None:
            try:
                self._user_data = json.loads(json.dumps(data))
            except (TypeError, ValueError) as error:
                self._cards.warn(f"refresh: its data is no JSON value: {error}")
        if not self._cards.may_refresh(force):
            return
        if self.kind is not None and self.kind.RUNTIME_UPDATABLE:
            with self._cards.guard(self):
                self._draw_while_running(self.kind, force)
        self._cards.keep()

    def _draw_while_running(self, kind: type[MetaflowCard], force: bool) -> None:
        task = self._cards.task(finished=False)
        if force or self._drawn_at != self.components.changed:
            self._sequence += 1
            self._drawn_at = self.components.changed
            data = self._latest("render_runtime", self._sequence)
            made = self._make(kind, data)
            self._html = self._with_token(made, _text_of(made.render_runtime(task, data)), task, data)
        data = self._latest("refresh", self._sequence)
        with contextlib.suppress(NotImplementedError):
            self._data = self._update(self._make(kind, data), task, data)

    def finish(self) -> None:
        """Render it, now that the task is over."""
        if self.spec.type in OWN_TYPES:
            return
        with self._cards.guard(self, alarm=False):
            if self.kind is None:
                raise MetaflowException(missing_class(self.spec.type))
            self._html, self._data = in_child(functools.partial(self._finished, self.kind), self.spec.timeout)

    def _finished(self, kind: type[MetaflowCard]) -> tuple[str, Document | None]:
        """The page of the task that is over, and what a refresh says then."""
        task = self._cards.task(finished=True)
        data = self._latest("render", "final")
        made = self._make(kind, data)
        html = self._with_token(made, _text_of(made.render(task)), task, data)
        if not kind.RUNTIME_UPDATABLE:
            return html, None
        data = self._latest("refresh", "final")
        with contextlib.suppress(NotImplementedError):
            return html, self._update(self._make(kind, data), task, data)
        return html, None

    def fail(self, text: str) -> None:
        """Let it say that it has failed, unless it is to be left out then."""
        self._html = None
        if self.spec.save_errors:
            self.components.append(Error(text, f"the card of the type '{self.spec.type}' has failed"), "error")
        else:
            self.components.clear()

    def _make(self, kind: type[MetaflowCard], data: Document) -> MetaflowCard:
        given = {
            "options": dict(self.spec.options),
            "components": [component.render() for component in self.components],
            "graph": self._cards.graph,
            "flow": self._cards.flow,
        }
        if not self.spec.options:
            del given["options"]
        accepted = inspect.signature(kind.__init__).parameters
        takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in accepted.values())
        made = kind(**{name: value for name, value in given.items() if takes_all or name in accepted})
        made.runtime_data = data
        return made

    def _latest(self, mode: str, sequence: int | str) -> Document:
        updatable = [component for component in self.components if component.REALTIME_UPDATABLE]
        return {
            "user": self._user_data,
            "components": {str(component.component_id): component.render() for component in updatable},
            "render_seq": sequence,
            "component_update_ts": self.components.changed,
            "mode": mode,
        }

    def _update(self, made: MetaflowCard, task: Any, data: Document) -> Document:
        shown = json.loads(json.dumps(made.refresh(task, data)))
        return {"data": shown, "reload_token": _token(made, task, data)}

    def _with_token(self, made: MetaflowCard, text: str, task: Any, data: Document) -> str:
        token = MetaflowCard.RELOAD_POLICY_TOKEN
        return text.replace(token, _token(made, task, data)) if token in text else text

    def document(self) -> Document | None:
        """It as JSON; None while there is nothing of it."""
        shown = {"kind": "card", "type": self.spec.type, "id": self.spec.id}
        if self._html is not None:
            content: Document = {"html": self._html, "data": self._data}
        else:
            parts = [component.document() for component in self.components]
            if not parts and self.spec.type not in OWN_TYPES:
                return None
            content = {"parts": parts}
        return {**shown, **content, "hash": self._hash}

    def __iter__(self) -> Iterator[CardComponent]:
        return iter(self.components)

    def __len__(self) -> int:
        return len(self.components)

    def __bool__(self) -> bool:
        return True


def _token(made: MetaflowCard, task: Any, data: Document) -> str:
    if data["render_seq"] == "final":
        return "final"
    if made.RELOAD_POLICY == MetaflowCard.RELOAD_POLICY_ALWAYS:
        return f"render-seq-{data['render_seq']}"
    if made.RELOAD_POLICY == MetaflowCard.RELOAD_POLICY_ONCHANGE:
        return str(made.reload_content_token(task, data))
    return "never"


def _text_of(rendered: Any) -> str:
    if not isinstance(rendered, str):
        raise MetaflowException(f"render returned {type(rendered).__name__} and no text")
    if len(rendered) > LARGEST:
        raise MetaflowException(f"the page has {len(rendered):,} characters, more than a card takes ({LARGEST:,})")
    return rendered.encode("utf-8", "replace").decode("utf-8")


class TaskCards:
    """`current.card`: the cards of a step's `@card`s, and itself the one that `append` means.

    That is the only editable one; of several the one with `customize=True`, or the only one without an id.
    `current.card["id"]` is another. `keep` keeps documents while the task runs, `task` makes what cards are given.
    """

    def __init__(
        self,
        specs: Sequence[CardSpec],
        *,
        pathspec: str,
        keep: Callable[[list[Document]], None],
        task: Callable[[bool], Any],
        graph: Any = None,
        flow: Any = None,
    ) -> None:
        self.graph = graph
        self.flow = flow
        self.kept: list[Document] = []
        """What was shown last."""
        self._keep = keep
        self._task = task
        self._warned: set[str] = set()
        self._refreshed = -_REFRESH
        digests = [hashlib.sha256(f"{pathspec} {number}".encode()).hexdigest() for number in range(len(specs))]
        self._cards = [TaskCard(spec, self, digest[:20]) for spec, digest in zip(specs, digests)]
        self._by_id: dict[str, TaskCard] = {}
        for card in self._cards:
            id = card.spec.id
            if id is not None and not _ID.fullmatch(id):
                self.warn(f"@card(id={id!r}): an id has letters, digits and '_' only; current.card[{id!r}] is not it")
            elif id is not None:
                self._by_id[id] = card
        self._default = self._default_card()

    def _default_card(self) -> TaskCard | None:
        editable = [card for card in self._cards if card.is_editable]
        chosen = [card for card in editable if card.spec.customize]
        nameless = [card for card in editable if card.spec.id is None]
        for group in (editable, chosen, nameless):
            if len(group) == 1:
                return group[0]
        return None

    # What a step calls

    @property
    def components(self) -> Components:
        """The components of the card that `append` means."""
        card = self._chosen("components")
        return Components(self.warn) if card is None else card.components

    @components.setter
    def components(self, components: Iterable[Any]) -> None:
        card = self._chosen("components")
        if card is not None:
            card.components = components

    def append(self, component: Any, id: str | None = None) -> None:
        """Put one more component on the card: `current.card.append(Markdown("# It went well"))`."""
        card = self._chosen("append")
        if card is not None:
            card.append(component, id)

    def extend(self, components: Iterable[Any]) -> None:
        """Put several on it."""
        card = self._chosen("extend")
        if card is not None:
            card.extend(components)

    def clear(self) -> None:
        """Take everything off that was put there."""
        card = self._chosen("clear")
        if card is not None:
            card.clear()

    def refresh(self, data: Any = None, force: bool = False) -> None:
        """Show it as it is now, while the task runs (`TaskCard.refresh`)."""
        card = self._chosen("refresh")
        if card is not None:
            card.refresh(data, force)

    def get(self, type: str | None = None) -> list[TaskCard]:
        """The cards of a type."""
        return [card for card in self._cards if card.spec.type == type]

    def __getitem__(self, id: str) -> Any:
        if id not in self._by_id:
            self.warn(f"the step has no @card(id={id!r}){nearest(id, self._by_id)}; what is put there is not kept")
            return Components(self.warn)
        return self._by_id[id]

    def __setitem__(self, id: str, components: Any) -> None:
        card = self._by_id.get(id)
        if card is None or not isinstance(components, list):
            what = f"the step has no @card(id={id!r})" if card is None else f"current.card[{id!r}] takes a list"
            self.warn(f"{what}; nothing is set")
            return
        card.components = components

    def __contains__(self, id: object) -> bool:
        return id in self._by_id

    def __iter__(self) -> Iterator[CardComponent]:
        return iter(self.components)

    def __len__(self) -> int:
        return len(self.components)

    def __bool__(self) -> bool:
        return True

    def _chosen(self, verb: str) -> TaskCard | None:
        if self._default is None:
            kinds = ", ".join(sorted({card.spec.type for card in self._cards}))
            if any(card.is_editable for card in self._cards):
                self.warn(
                    f"current.card.{verb} could mean several cards: write current.card['id'].{verb}, and @card(id=…)"
                )
            else:
                self.warn(f"current.card.{verb} means no card of this step: those of type {kinds} take no components")
        return self._default

    # What cards call

    def warn(self, text: str) -> None:
        """Say something once in the task's log, unless METAFLOW_CARD_NO_WARNING is set."""
        if text not in self._warned and not any(os.environ.get(name) for name in _SILENT):
            sys.stderr.write(f"[@card WARNING] {text}\n")
            sys.stderr.flush()
        self._warned.add(text)

    def may_refresh(self, force: bool) -> bool:
        """Whether it is time to show something again."""
        now = time.monotonic()
        if not force and now - self._refreshed < _REFRESH:
            return False
        self._refreshed = now
        return True

    def keep(self) -> None:
        """Keep what there is."""
        self.kept = self.documents()
        self._keep(self.kept)

    def task(self, *, finished: bool) -> Any:
        """What a card is given of the task."""
        return self._task(finished)

    @contextlib.contextmanager
    def guard(self, card: TaskCard, *, alarm: bool = True) -> Iterator[None]:
        """Let what a card's class does fail or take too long, without the task."""
        try:
            with imports_of(card.kind), _ends_after(card.spec.timeout if alarm else 0):
                yield
        except (Exception, SystemExit) as error:  # of a card's class
            name = "" if isinstance(error, (_TooSlow, _Failed, MetaflowException)) else f"{type(error).__name__}: "
            self.warn(f"the card of the type '{card.spec.type}' has failed: {name}{error}")
            card.fail(error.trace if isinstance(error, _Failed) else traceback.format_exc())

    # At the end

    @property
    def rendering_time(self) -> float:
        """Seconds that `finish` may take; a card whose timeout is 0 may take as long as it likes, here a day."""
        return sum(card.spec.timeout or _DAY for card in self._cards if card.kind is not None)

    def finish(self) -> list[Document]:
        """Render all cards of the task, which is over; they as documents."""
        for card in self._cards:
            card.finish()
        self.kept = self.documents()
        return self.kept

    def documents(self) -> list[Document]:
        """The cards as JSON, as they are now."""
        return [document for card in self._cards if (document := card.document()) is not None]


class _TooSlow(Exception):
    """A card's class took too long."""


class _Failed(Exception):
    """A card's class failed in a process of its own."""

    def __init__(self, text: str, trace: str) -> None:
        super().__init__(text)
        self.trace = trace


def in_child(work: Callable[[], tuple[str, Document | None]], seconds: float) -> tuple[str, Document | None]:
    """What a function returns in a forked process, which is killed where it takes longer, whatever it does.

    So nothing that a card's class does can end or change the task. 0 seconds are no limit.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: what hangs then is killed
        pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            try:
                answer: dict[str, Any] = {"made": work()}
            except BaseException as error:  # of a card's class
                answer = {"text": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(json.dumps(answer).encode())
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(0)
    os.close(writer)
    deadline = time.monotonic() + seconds if seconds > 0 else None
    received = bytearray()
    late = False
    try:
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            late = not select.select([reader], [], [], left)[0]
            part = b"" if late else os.read(reader, 1 << 20)
            if not part:
                break
            received += part
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)  # it has said all it had to say, or it is late
        _, status = os.waitpid(pid, 0)
    if late:
        raise _TooSlow(f"it took longer than {seconds:g} s: @card(timeout=…)")
    if not received:
        why = f"it was ended with status {status}" if status else "it ended without an answer"
        raise _Failed(f"its process failed: {why}", f"the process of the card failed: {why}")
    answer = json.loads(received.decode())
    if "made" not in answer:
        raise _Failed(answer["text"], answer["trace"])
    html, data = answer["made"]
    return html, data


@contextlib.contextmanager
def _ends_after(seconds: float) -> Iterator[None]:
    """Raise in what takes longer, where this is the main thread, which alone gets signals."""
    if seconds <= 0 or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise _TooSlow(f"it took longer than {seconds:g} s: @card(timeout=…)")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
