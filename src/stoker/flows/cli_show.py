"""The commands of a flow that look: `show`, `dump`, `logs`, `card`, `tag` and `output-dot`."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import reprlib
import shutil
import struct
from collections import deque
from datetime import timezone
from pathlib import Path
from typing import Any, BinaryIO, Callable, ClassVar, Collection, Final, Iterable, Iterator, Mapping, Sequence

from stoker.cli import report
from stoker.cli.output import table, when
from stoker.client.client import TRUST
from stoker.core import receipt as words
from stoker.core.errors import NotFound, SettingsError, UsageError, nearest
from stoker.core.graph import FlowStep
from stoker.core.words import count_text
from stoker.flows import client as flows
from stoker.flows import namespaces, transitions
from stoker.flows.cardclient import Card, get_cards
from stoker.flows.client import DataArtifact, Run, Task
from stoker.flows.decorators import notes_of
from stoker.flows.definition import FlowDefinition
from stoker.flows.exceptions import CardNotPresentException
from stoker.report.streams import echo, say, step_text
from stoker.store import artifacts

_WORDS: Final[Mapping[str, tuple[frozenset[str], frozenset[str]]]] = {
    "show": (frozenset(), frozenset()),
    "dump": (
        frozenset({"private", "no-private", "trust"}),
        frozenset({"max-value-size", "include", "exclude", "file"}),
    ),
    "logs": (
        frozenset({"stdout", "no-stdout", "stderr", "no-stderr", "both", "no-both", "timestamps", "no-timestamps"}),
        frozenset({"attempt"}),
    ),
    "card": (
        frozenset({"as-json", "follow-resumed", "no-follow-resumed"}),
        frozenset({"output", "file", "type", "id", "hash"}),
    ),
    "tag": (
        frozenset({"flat", "hide-system-tags", "group-by-tag", "group-by-run", "my-runs", "all"}),
        frozenset({"run-id", "namespace", "add", "remove"}),
    ),
    "output-dot": (frozenset(), frozenset()),
}
"""command → its flags, its options with a value"""
_MANY: Final = ("add", "remove")
"""Options that may be given more than once."""
_BETWEEN: Final = "\n"
"""Stands between their values: no tag has a line break in it."""
_CARD_VERBS: Final = ("list", "view", "get")
_NO_CARD_VERBS: Final[Mapping[str, str]] = {
    "server": "`stoker ui` shows the cards of all runs, also while they run",
    "create": "a task makes its cards itself; `card view` writes one to a file",
}
_TAG_VERBS: Final = ("list", "add", "remove", "replace")
_MOST: Final = 1000
"""Characters of a value that `dump` prints."""
_PROTOCOL: Final = 3
"""Of the pickle that `dump --file` writes."""
_PIECE: Final = 1 << 20


def command(name: str, flow: FlowDefinition, words: list[str], *, quiet: bool = False) -> int:
    """Run one of them; `quiet` keeps back what is no result."""
    flags, options, arguments = _parse_words(name, words)
    if quiet:
        flags.add("quiet")
    if "trust" in flags:
        os.environ[TRUST] = "1"
    if options.get("namespace") is not None:
        namespaces.namespace(options["namespace"] or None)
    _COMMANDS[name](flow, arguments, flags, options)
    return 0


def _parse_words(name: str, words: list[str]) -> tuple[set[str], dict[str, str], list[str]]:
    known_flags, known_options = _WORDS[name]
    flags: set[str] = set()
    options: dict[str, str] = {}
    arguments: list[str] = []
    line = iter(words)
    for word in line:
        if not word.startswith("--"):
            arguments.append(word)
            continue
        flag, equals, value = word.partition("=")
        key = flag.removeprefix("--").replace("_", "-")
        if key in known_flags:
            flags.add(key)
        elif key in known_options:
            value = value if equals else next(line, "")
            options[key] = f"{options[key]}{_BETWEEN}{value}" if key in _MANY and key in options else value
        else:
            accepted = [f"--{option}" for option in (*known_flags, *known_options)]
            raise UsageError(f"{name} has no option {flag}{nearest(flag, accepted)}")
    return flags, options, arguments


def _show(flow: FlowDefinition, arguments: list[str], flags: set[str], options: Mapping[str, str]) -> None:
    graph = flow.graph
    if graph.doc:
        echo(graph.doc + "\n")
    functions = transitions.steps_of(flow.written)
    notes = {name: notes_of(functions[name]) for name in graph.steps}
    refusal: SettingsError | None = None
    try:
        notes = {name: step_options.notes for name, step_options in flow.options.items()}
    except SettingsError as error:  # it can be shown as it is written
        refusal = error
    for name in graph.order():
        step = graph.steps[name]
        echo(f"Step {name}  {step.where}")
        if step.doc:
            echo("    " + step.doc.strip().partition("\n")[0])
        decorators = [f"@{note.name}" for note in notes[name]]
        if decorators:
            echo("    " + " ".join(decorators))
        echo(f"    => {_way(step)}")
    if refusal is not None:
        say(f"it does not run: {refusal}")


def _way(step: FlowStep) -> str:
    targets = ", ".join(step.targets)
    words = {
        "end": "the end",
        "foreach": f"{targets} for each of self.{step.name_of}",
        "parallel": f"{targets} on several nodes",
        "switch": ", ".join(f"{target} if self.{step.name_of} is {case}" for case, target in step.cases.items()),
    }
    return words.get(step.kind, targets)


def _dot(flow: FlowDefinition, arguments: list[str], flags: set[str], options: Mapping[str, str]) -> None:
    echo(f'digraph "{flow.name}" {{\n  rankdir=LR;')
    for name in flow.graph.order():
        step = flow.graph.steps[name]
        shape = {"switch": "diamond", "foreach": "box3d", "parallel": "box3d"}.get(step.kind, "box")
        echo(f'  "{name}" [shape={"trapezium" if step.join else shape}];')
        labels: dict[str, list[str]] = {}
        for case, target in step.cases.items():
            labels.setdefault(target, []).append(case)
        for target in step.targets:
            label = ", ".join(labels.get(target, ())).replace('"', "'")
            echo(f'  "{name}" -> "{target}"{f" [label={chr(34)}{label}{chr(34)}]" if label else ""};')
    echo("}")


def tasks(flow: FlowDefinition, arguments: list[str], command: str) -> Iterator[Task]:
    """The tasks that [FLOW/][RUN/]STEP[/TASK] names; without a run those of the newest."""
    if len(arguments) != 1:
        raise UsageError(f"{command} takes one path", fix=f"write {command} STEP, or RUN/STEP/TASK")
    parts = arguments[0].split("/")
    if parts[0] == flow.name:
        parts = parts[1:]
    if parts and parts[0] in flow.graph.steps:
        latest = next(flows.Flow(flow.name).runs(), None)
        if latest is None:
            raise NotFound(f"flow {flow.name} has not been run yet")
        run = latest
    else:
        try:
            run = flows.Run(f"{flow.name}/{parts[0]}")
        except NotFound as error:
            close = nearest(parts[0], flow.graph.steps)
            raise NotFound(f"{error.message}, and no step{close}", fix=f"write {command} RUN/STEP") from None
        parts = parts[1:]
    try:
        if not parts:
            for step in reversed(list(run.steps())):
                yield from step.in_order()
        elif len(parts) == 1:
            yield from run[parts[0]].in_order()
        else:
            yield run[parts[0]][parts[1]]
    except KeyError as error:
        raise NotFound(str(error.args[0])) from None


def _dump(flow: FlowDefinition, arguments: list[str], flags: set[str], options: Mapping[str, str]) -> None:
    included, excluded = _names(options.get("include", "")), _names(options.get("exclude", ""))
    most = int(options["max-value-size"]) if options.get("max-value-size", "").isdecimal() else _MOST
    wanted = (
        (
            task,
            [
                artifact
                for artifact in task.every_artifact(private="private" in flags)
                if (not included or artifact.id in included) and artifact.id not in excluded
            ],
        )
        for task in tasks(flow, arguments, "dump")
    )
    if "file" in options:
        _write_pickle(options["file"], wanted)
        if "quiet" not in flags:
            say(f"Artifacts written to {options['file']}")
        return
    for task, chosen in wanted:
        echo(f"{task.pathspec}:")
        for artifact in chosen:
            text = _short_repr(_beginning(artifact, most), most)
            echo(f"  {artifact.id} = {text if len(text) <= most else text[: most - 1] + '…'}")


def _beginning(artifact: DataArtifact, most: int) -> Any:
    """The value; of bytes or a text no more than can be seen, so that one of gigabytes needs little memory."""
    stored = artifact._artifact
    if stored.serializer not in ("bytes", "str") or stored.inline is not None:
        return artifact.data
    with artifact._run.store.blobs.open(stored.digest, stored.size) as content:
        if stored.serializer == "bytes":
            return content.read(most + 1)
        return content.read(4 * (most + 1)).decode("utf-8", "ignore")


def _names(text: str) -> set[str]:
    return {name for name in text.split(",") if name}


def _short_repr(value: Any, most: int) -> str:
    """`repr(value)`, of which what is behind `most` characters may be left out: a text of it all is larger than it."""
    if isinstance(value, (str, bytes, bytearray)) and len(value) > most:
        return repr(value[:most])
    if isinstance(value, (list, tuple, set, frozenset, dict, deque)):
        return _Short(most).repr(value)
    return repr(value)


class _Short(reprlib.Repr):
    """Shows no more of each container, and of each text in it, than can be seen."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.maxlevel = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = most
        self.maxdeque = self.maxarray = self.maxstring = self.maxlong = self.maxother = most

    def repr_bytes(self, x: bytes | bytearray, level: int) -> str:
        """The beginning."""
        return repr(x[: self.maxstring])

    repr_bytearray = repr_bytes

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        """In the order in which it was made."""
        shown = itertools.islice(x.items(), self.maxdict)
        return f"{{{', '.join(f'{self.repr1(key, level - 1)}: {self.repr1(item, level - 1)}' for key, item in shown)}}}"


def _write_pickle(path: str, wanted: Iterable[tuple[Task, Iterable[DataArtifact]]]) -> None:
    """Write {RUN/STEP/TASK: {name: value}} without more than one value in memory; the file is whole or as it was.

    The pickle is a dict of dicts, opcode by opcode; each value is a pickle of its own in it, without its end. Protocol
    3 numbers what a value refers to by itself, so that each may start again from 0, and has no frames, which an end
    inside would break. Bytes are copied from where they lie.
    """
    beside = Path(path).with_name(f".{Path(path).name}.part")
    try:
        with beside.open("wb") as file:
            file.write(pickle.PROTO + bytes([_PROTOCOL]) + pickle.EMPTY_DICT)
            for task, chosen in wanted:
                _write_value(task.pathspec.partition("/")[2], file)
                file.write(pickle.EMPTY_DICT)
                for artifact in chosen:
                    _write_value(artifact.id, file)
                    _write_artifact(artifact, file)
                    file.write(pickle.SETITEM)
                file.write(pickle.SETITEM)
            file.write(pickle.STOP)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _write_artifact(artifact: DataArtifact, file: BinaryIO) -> None:
    stored, blobs = artifact._artifact, artifact._task._run._store.blobs
    if stored.serializer != "bytes" or stored.inline is not None:
        _write_value(artifacts.load(stored, blobs), file)
        return
    file.write(pickle.BINBYTES8 + struct.pack("<Q", stored.size))
    with blobs.open(stored.digest, stored.size) as content:
        shutil.copyfileobj(content, file, _PIECE)


def _write_value(value: Any, file: BinaryIO) -> None:
    start = file.tell()
    try:
        pickle.Pickler(file, _PROTOCOL).dump(value)
    except OverflowError:
        file.seek(start)
        file.truncate()
        _LongPickler(file, _PROTOCOL).dump(value)
    file.seek(-len(pickle.STOP), 1)


_PICKLER: Final[Any] = pickle._Pickler
"""The pickler that is written in Python: the one in C can be taught no other opcodes for texts and bytes."""


class _LongPickler(_PICKLER):  # type: ignore[misc]
    """Writes texts and bytes of 4 GiB and more by opcodes that are not of protocol 3, but that every reader knows."""

    dispatch: ClassVar[dict[type, Any]] = dict(_PICKLER.dispatch)

    def save_bytes(self, obj: bytes) -> None:
        """Bytes of any length."""
        self._save_long(obj, pickle.BINBYTES8, obj)

    def save_str(self, obj: str) -> None:
        """A text of any length."""
        self._save_long(obj, pickle.BINUNICODE8, obj.encode("utf-8", "surrogatepass"))

    def _save_long(self, obj: Any, opcode: bytes, data: bytes) -> None:
        self.write(opcode + struct.pack("<Q", len(data)))
        self.write(data)
        self.memoize(obj)

    dispatch[bytes] = save_bytes
    dispatch[str] = save_str


def _logs(flow: FlowDefinition, arguments: list[str], flags: set[str], options: Mapping[str, str]) -> None:
    if arguments[:1] == ["show"] and "show" not in flow.graph.steps:  # Metaflow's word for it
        del arguments[0]
    streams = [name for name in ("stdout", "stderr") if name in flags]
    if not streams and "no-both" not in flags:
        streams = ["stdout", "stderr"]
    for task in tasks(flow, arguments, "logs"):
        if "attempt" in options:
            task = flows.Task(task.pathspec, attempt=int(options["attempt"]))  # noqa: PLW2901
        lines = [line for name in streams for line in task.loglines(name)]
        for time, text in sorted(lines, key=lambda line: line[0]):
            moment = f"{when(time.replace(tzinfo=timezone.utc).timestamp())} " if "timestamps" in flags else ""
            echo(f"{moment}{step_text(text)}")


def _card(flow: FlowDefinition, arguments: list[str], flags: set[str], options: Mapping[str, str]) -> None:
    verb, path = _card_verb(arguments)
    if verb == "list" and not path:  # of the newest run
        path = [run.id for run in itertools.islice(flows.Flow(flow.name).runs(), 1)]
    file = options.get("output") or options.get("file")
    if verb == "get" and len(path) == 2:
        file = path.pop()
    wanted = {name: options[name] for name in ("type", "id", "hash") if name in options}
    _run_card(verb, "/".join(path), tasks(flow, path, f"card {verb}"), file, flags, wanted)


def _card_verb(arguments: list[str]) -> tuple[str, list[str]]:
    """The command behind `card`, and its arguments; without one, `list`."""
    verb = arguments[0] if arguments else "list"
    if verb in _NO_CARD_VERBS:
        raise UsageError(f"there is no `card {verb}`", fix=_NO_CARD_VERBS[verb])
    if verb in _CARD_VERBS:
        return verb, arguments[1:]
    if len(arguments) > 1:
        raise UsageError(f"there is no `card {verb}`{nearest(verb, _CARD_VERBS)}", fix="write card list STEP")
    return "list", arguments


def _run_card(
    verb: str, path: str, found: Iterable[Task], file: str | None, flags: set[str], wanted: Mapping[str, str]
) -> None:
    """List the cards of tasks, or write one; without `type`, `id` or `hash` the page of the task, with all of them."""
    tasks = list(found)
    if verb == "list":
        _list_cards(tasks, file, flags, wanted)
        return
    if len(tasks) != 1:
        some = f"/{tasks[0].id}" if tasks else ""
        raise UsageError(
            f"{path} has {count_text(len(tasks), 'task')}, and a page is of one", fix=f"write card {verb} {path}{some}"
        )
    task = tasks[0]
    if wanted:
        card = _one_card(task, _cards(task, flags, wanted), verb, wanted)
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


def _one_card(task: Task, cards: list[Card], verb: str, wanted: Mapping[str, str]) -> Card:
    if not cards:
        raise CardNotPresentException(task.pathspec, **{f"card_{name}": word for name, word in wanted.items()})
    if len(cards) > 1:
        listed = ", ".join(f"{card.type} {card.hash[:5]}" for card in cards)
        raise UsageError(
            f"{task.pathspec} has {count_text(len(cards), 'such card')}: {listed}",
            fix=f"write card {verb} … --hash {cards[0].hash[:5]}",
        )
    return cards[0]


def _list_cards(tasks: list[Task], file: str | None, flags: set[str], wanted: Mapping[str, str]) -> None:
    cards = {task: _cards(task, flags, wanted) for task in tasks}
    if "as-json" not in flags:
        rows = [row for task, some in cards.items() for row in _card_rows(task, some)]
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


def _card_rows(task: Task, cards: list[Card]) -> Iterable[tuple[str, ...]]:
    receipt = task._run.steps[task._row.key].receipt
    about = "" if receipt is None else words.summary(receipt)
    own = [(card.type, card.id or "", card.hash[:5]) for card in cards] or [("", "", "")]
    for number, columns in enumerate(own):
        yield (*((task.id, task._row.status) if not number else ("", "")), *columns, "" if number else about)


def _tag(flow: FlowDefinition, arguments: list[str], flags: set[str], options: Mapping[str, str]) -> None:
    verb, tags = (arguments[0], arguments[1:]) if arguments else ("list", [])
    if verb not in _TAG_VERBS:
        raise UsageError(f"there is no `tag {verb}`{nearest(verb, _TAG_VERBS)}")
    if verb == "list":
        _list_tags(flow, tags, flags, options)
        return
    id = options.get("run-id")
    run = flows.Run(f"{flow.name}/{id}") if id else flows.Flow(flow.name).latest_run
    if run is None:
        raise NotFound(f"flow {flow.name} has not been run yet")
    if verb != "replace":
        run.replace_tags(*(((), tags) if verb == "add" else (tags, ())))
    elif len(tags) == 2:
        run.replace_tag(*tags)
    elif tags or not {"add", "remove"} <= options.keys():
        raise UsageError("tag replace takes two tags", fix="write tag replace OLD NEW, or --remove OLD --add NEW")
    else:
        run.replace_tags(*(options[name].split(_BETWEEN) for name in ("remove", "add")))
    _print_tags([run], flags)


def _list_tags(flow: FlowDefinition, ids: list[str], flags: set[str], options: Mapping[str, str]) -> None:
    if "namespace" not in options and "my-runs" not in flags:
        namespaces.namespace(None)
    ids = [*ids, *([options["run-id"]] if "run-id" in options else [])]
    if len(ids) > 1:
        raise UsageError(f"tag list takes one run, not {len(ids)}", fix="write tag list --all for every run")
    runs = flows.Flow(flow.name).runs() if not ids else iter([flows.Run(f"{flow.name}/{ids[0]}")])
    _print_tags(list(runs if flags & {"all", "my-runs"} else itertools.islice(runs, 1)), flags)


def _print_tags(runs: Sequence[Run], flags: set[str]) -> None:
    tags_by_run = {run: run.user_tags if "hide-system-tags" in flags else run.tags for run in runs}
    paths = ", ".join(run.pathspec for run in runs)
    everywhere = sorted({tag for tags in tags_by_run.values() for tag in tags})
    people = {tag for run in runs for tag in run.user_tags}
    if "flat" in flags:
        # Where Metaflow writes it, so that a program reads the same lines from the same stream.
        say("\n".join([f"Tags of {paths}:", *everywhere]))
    elif "group-by-tag" in flags:
        having = {tag: [run.id for run, tags in tags_by_run.items() if tag in tags] for tag in everywhere}
        echo(table(("tag", "from", "runs"), [(tag, _giver(tag, people), " ".join(having[tag])) for tag in everywhere]))
    elif "group-by-run" in flags:
        echo(
            table(
                ("run", "tag", "from"),
                [(run.id, tag, _giver(tag, people)) for run, tags in tags_by_run.items() for tag in sorted(tags)],
            )
        )
    else:
        rows = [(tag, _giver(tag, people)) for tag in everywhere]
        echo(f"{paths}\n{table(('tag', 'from'), rows)}" if rows else paths)


def _giver(tag: str, people: Collection[str]) -> str:
    return "person" if tag in people else "run"


_Command = Callable[[FlowDefinition, list[str], set[str], Mapping[str, str]], None]
_COMMANDS: Final[Mapping[str, _Command]] = {
    "show": _show,
    "dump": _dump,
    "logs": _logs,
    "card": _card,
    "tag": _tag,
    "output-dot": _dot,
}
