"""`python flow.py card list|view|get`: the pages of tasks, and the cards that stand on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Iterable, Mapping

from stoker.cli import report
from stoker.cli.output import table
from stoker.core import receipt as words
from stoker.core.errors import UsageError, nearest
from stoker.core.words import count_text
from stoker.flows.cardclient import Card, get_cards
from stoker.flows.client import Task
from stoker.flows.exceptions import CardNotPresentException
from stoker.report.streams import echo

VERBS: Final = ("list", "view", "get")
ELSEWHERE: Final[Mapping[str, str]] = {
    "server": "`stoker ui` shows the cards of all runs, also while they run",
    "create": "a task makes its cards itself; `card view` writes one to a file",
}
FLAGS: Final = frozenset({"as-json", "follow-resumed", "no-follow-resumed"})
OPTIONS: Final = frozenset({"output", "file", "type", "id", "hash"})


def verb_of(arguments: list[str]) -> tuple[str, list[str]]:
    """The command behind `card`, and its arguments; without one, `list`."""
    verb = arguments[0] if arguments else "list"
    if verb in ELSEWHERE:
        raise UsageError(f"there is no `card {verb}`", fix=ELSEWHERE[verb])
    if verb in VERBS:
        return verb, arguments[1:]
    if len(arguments) > 1:
        raise UsageError(f"there is no `card {verb}`{nearest(verb, VERBS)}", fix="write card list STEP")
    return "list", arguments


def run(
    verb: str, path: str, found: Iterable[Task], file: str | None, flags: set[str], wanted: Mapping[str, str]
) -> None:
    """List the cards of tasks, or write one; without `type`, `id` or `hash` the page of the task, with all of them."""
    tasks = list(found)
    if verb == "list":
        _list(tasks, file, flags, wanted)
        return
    if len(tasks) != 1:
        some = f"/{tasks[0].id}" if tasks else ""
        raise UsageError(
            f"{path} has {count_text(len(tasks), 'task')}, and a page is of one", fix=f"write card {verb} {path}{some}"
        )
    task = tasks[0]
    if wanted:
        card = _one(task, _cards(task, flags, wanted), verb, wanted)
        text, name = card.get(), card.path
    else:
        of = task._run
        text, name = report.step_page(of._store, of, task._row.key, node=task.node), report.file_name(of, task.id)
    # Metaflow's `get` prints where it is given no file.
    report.write(text, file or (report.STDOUT if verb == "get" else None), name=name)


def _cards(task: Task, flags: set[str], wanted: Mapping[str, str]) -> list[Card]:
    """The cards of a task that are wanted; of a hash the first five letters are enough."""
    try:
        cards = list(get_cards(task, follow_resumed="no-follow-resumed" not in flags))
    except CardNotPresentException:
        return []
    return [
        card
        for card in cards
        if wanted.get("type", card.type) == card.type
        and wanted.get("id", card.id) == card.id
        and card.hash.startswith(wanted.get("hash", ""))
    ]


def _one(task: Task, cards: list[Card], verb: str, wanted: Mapping[str, str]) -> Card:
    if not cards:
        raise CardNotPresentException(task.pathspec, **{f"card_{name}": word for name, word in wanted.items()})
    if len(cards) > 1:
        listed = ", ".join(f"{card.type} {card.hash[:5]}" for card in cards)
        raise UsageError(
            f"{task.pathspec} has {count_text(len(cards), 'such card')}: {listed}",
            fix=f"write card {verb} … --hash {cards[0].hash[:5]}",
        )
    return cards[0]


def _list(tasks: list[Task], file: str | None, flags: set[str], wanted: Mapping[str, str]) -> None:
    cards = {task: _cards(task, flags, wanted) for task in tasks}
    if "as-json" not in flags:
        rows = [row for task, some in cards.items() for row in _rows(task, some)]
        echo(table(("task", "status", "card", "id", "hash", "accelerators"), rows))
        return
    documents: Any = [{"pathspec": task.pathspec, "cards": list(map(_document, some))} for task, some in cards.items()]
    text = json.dumps(documents[0] if len(documents) == 1 else documents, indent=2)
    if file is None or file == report.STDOUT:
        echo(text)
    else:
        Path(file).write_text(text, encoding="utf-8")


def _document(card: Card) -> dict[str, Any]:
    return {"id": card.id, "hash": card.hash, "type": card.type, "filename": card.path}


def _rows(task: Task, cards: list[Card]) -> Iterable[tuple[str, ...]]:
    receipt = task._run.steps[task._row.key].receipt
    about = "" if receipt is None else words.summary(receipt)
    own = [(card.type, card.id or "", card.hash[:5]) for card in cards] or [("", "", "")]
    for number, columns in enumerate(own):
        yield (*((task.id, task._row.status) if not number else ("", "")), *columns, "" if number else about)
