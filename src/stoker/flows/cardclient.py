"""Cards as scripts, the command line and cards themselves see them: `get_cards(task)`."""

from __future__ import annotations

import functools
import html
import tempfile
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping

from stoker.core.artifact import from_wire
from stoker.core.cards import Document
from stoker.core.errors import nearest
from stoker.flows.client import Step, Task
from stoker.flows.current import current
from stoker.flows.exceptions import CardNotPresentException
from stoker.report.cards import card_page, kept_cards
from stoker.store import artifacts
from stoker.store.blobs import Blobs


class Card:
    """One card of a task: `get()` is its HTML."""

    def __init__(
        self,
        document: Mapping[str, Any],
        task: str,
        *,
        look: Callable[[], Sequence[Mapping[str, Any]]],
        from_resumed: bool = False,
        origin: str | None = None,
    ) -> None:
        """`look` finds the documents of the task's cards as they are now."""
        self._document = document
        self._look = look
        self._task = task
        self.type: str = document["type"]
        self.hash: str = document["hash"]
        self.id: str | None = document["id"]
        self.from_resumed = from_resumed
        self.origin_pathspec = origin

    @property
    def path(self) -> str:
        """A name for its file: task, type and hash."""
        name = "-".join(filter(None, (self._task.replace("/", "-"), self.type, self.id, self.hash)))
        return f"{name}.html"

    def get(self) -> str:
        """Its HTML, as it was shown last."""
        newest = self._newest()
        if newest.get("html") is not None:
            return str(newest["html"])
        return card_page(newest.get("parts", ()), title=f"{self.type} of {self._task}", state="succeeded")

    def get_data(self) -> Mapping[str, Any] | None:
        """What its class made of the data of the last `refresh`: {"data", "reload_token"}; None for other cards."""
        found: Mapping[str, Any] | None = self._newest().get("data")
        return found

    def _newest(self) -> Mapping[str, Any]:
        """Its document as it is now."""
        return next((one for one in self._look() if one["hash"] == self.hash), self._document)

    def view(self) -> None:
        """Open it in a browser."""
        with tempfile.NamedTemporaryFile("w", suffix=".html", encoding="utf-8", delete=False) as file:
            file.write(self.get())
        webbrowser.open(Path(file.name).as_uri())

    def _repr_html_(self) -> str:
        text = html.escape(self.get(), quote=True)
        return f'<iframe sandbox="allow-scripts" srcdoc="{text}" style="width:100%;height:480px;border:0"></iframe>'

    def __str__(self) -> str:
        return f"<Card of type '{self.type}', hash {self.hash}>"

    __repr__ = __str__


class CardContainer(Sequence[Card]):
    """The cards of a task, in the order of its `@card`s; a notebook shows them."""

    def __init__(self, cards: list[Card]) -> None:
        self._cards = cards

    def __len__(self) -> int:
        return len(self._cards)

    def __getitem__(self, index: Any) -> Any:
        return self._cards[index]

    def __iter__(self) -> Iterator[Card]:
        return iter(self._cards)

    def _repr_html_(self) -> str:
        return "".join(f"<h4>{html.escape(str(card))}</h4>{card._repr_html_()}" for card in self)

    def __repr__(self) -> str:
        return f"CardContainer({self._cards})"


def get_cards(
    task: str | Task, id: str | None = None, type: str | None = None, follow_resumed: bool = True
) -> CardContainer:
    """The cards of a task, also of one that runs; `CardNotPresentException` where there is none that is asked for.

    With `follow_resumed` a task that took its result from the run that it repeats has that task's cards.
    """
    pathspec = task if isinstance(task, str) else task.pathspec
    origin = None
    if _of_this_task(pathspec) is None:
        found = Task(pathspec) if isinstance(task, str) else task
        origin = found.origin_pathspec
        run, key, node = found._run, found._row.key, found.node

        def look() -> Sequence[Mapping[str, Any]]:
            return kept_cards(run._store, run.id, key, node=node)

    else:

        def look() -> Sequence[Mapping[str, Any]]:
            return _of_this_task(pathspec) or ()

    documents = look() if origin is None or follow_resumed else ()
    cards = [Card(one, pathspec, look=look, from_resumed=origin is not None, origin=origin) for one in documents]
    wanted = [card for card in cards if id in (None, card.id) and type in (None, card.type)]
    if not wanted:
        raise CardNotPresentException(pathspec, card_type=type, card_id=id)
    return CardContainer(wanted)


def _of_this_task(pathspec: str) -> list[Document] | None:
    """What the task that runs in this process has shown of its cards; None for another task."""
    running = current._task
    if running is None or running.cards is None or current.pathspec != pathspec:
        return None
    kept: list[Document] = running.cards.kept
    return kept


class TaskOfCard:
    """The task of a card, as its class is given it: what it has made, and of all else what the store says."""

    def __init__(self, pathspec: str, wires: Callable[[], Mapping[str, Any]], blobs: Blobs, *, finished: bool) -> None:
        self.pathspec = pathspec
        self.id = pathspec.rpartition("/")[2]
        self.finished = finished
        self.successful = finished
        self.exception = None
        self._all_wires = wires
        self._blobs = blobs

    @functools.cached_property
    def _wires(self) -> Mapping[str, Any]:
        return {name: wire for name, wire in self._all_wires().items() if not name.startswith("_")}

    @property
    def path_components(self) -> list[str]:
        """Flow, run, step and task."""
        return self.pathspec.split("/")

    @property
    def parent(self) -> Step:
        """Its step, as far as it is recorded."""
        return Step(self.pathspec.rpartition("/")[0])

    @property
    def artifacts(self) -> list[ArtifactOfCard]:
        """Its artifacts, not loaded."""
        return list(self)

    @property
    def data(self) -> _Values:
        """Its artifacts as attributes."""
        return _Values(self)

    def __iter__(self) -> Iterator[ArtifactOfCard]:
        return (self[name] for name in self._wires)

    def __getitem__(self, name: str) -> ArtifactOfCard:
        if name not in self._wires:
            raise KeyError(f"task {self.pathspec} has no artifact '{name}'{nearest(name, self._wires)}")
        return ArtifactOfCard(name, self._wires[name], self._blobs)

    def __contains__(self, name: object) -> bool:
        return name in self._wires

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(Task(self.pathspec), name)


class ArtifactOfCard:
    """An artifact of the task of a card."""

    def __init__(self, name: str, wire: Mapping[str, Any], blobs: Blobs) -> None:
        self.id = name
        self._artifact = from_wire(wire)
        self._blobs = blobs
        self.sha, self.size, self.type = self._artifact.digest, self._artifact.size, self._artifact.type

    @property
    def data(self) -> Any:
        """The value."""
        return artifacts.load(self._artifact, self._blobs)


class _Values:
    def __init__(self, task: TaskOfCard) -> None:
        self._task = task

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._task:
            raise AttributeError(f"the task has no artifact '{name}'{nearest(name, self._task._wires)}")
        return self._task[name].data

    def __contains__(self, name: object) -> bool:
        return name in self._task
