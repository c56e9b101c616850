"""`current.card`: what a step puts on its page. It is kept with the task's outputs when the task is done."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Sequence

from stoker.core.cards import Document, document_of
from stoker.core.errors import UsageError, nearest


class TaskCard:
    """The components of a task's card, in the order in which they were appended.

    `ids` are those of the step's `@card(id=…)`: `current.card["id"]` is a part of the same page.
    """

    def __init__(self, ids: Sequence[str]) -> None:
        self._parts: Mapping[str, list[Document]] = {"": [], **{id: [] for id in ids}}
        self._place = ""

    def append(self, component: Any) -> None:
        """Put one more component on it: `current.card.append(Markdown("# It went well"))`."""
        # As it is now, so that what is changed afterwards does not change what is shown.
        self._parts[self._place].append(document_of(component))

    def extend(self, components: Iterable[Any]) -> None:
        """Put several on it."""
        for component in components:
            self.append(component)

    def clear(self) -> None:
        """Take everything off that was put there."""
        self._parts[self._place].clear()

    def refresh(self, *args: Any, **options: Any) -> None:
        """Refused: a page is made of what is kept, which is when the task is done."""
        raise UsageError("current.card.refresh(): cards are shown when the task is done", fix="leave the call out")

    def __len__(self) -> int:
        return len(self._parts[self._place])

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, id: str) -> TaskCard:
        if id not in self._parts:
            raise UsageError(
                f"the step has no @card(id={id!r}){nearest(id, self._parts)}", fix=f'write @card(id="{id}")'
            )
        part = TaskCard(())
        part._parts, part._place = self._parts, id
        return part

    def documents(self) -> list[Document]:
        """All of it, part after part; a part with an id has it as its heading."""
        found: list[Document] = []
        for id, documents in self._parts.items():
            if id and documents:
                found.append({"kind": "heading", "text": id})
            found += documents
        return found
