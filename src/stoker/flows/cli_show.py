"""The commands of a flow that look: `show`, `dump`, `logs`, `card`, `tag` and `output-dot`."""

from __future__ import annotations

import itertools
import os
import reprlib
from collections import deque
from datetime import timezone
from typing import Any, Callable, Collection, Final, Iterator, Mapping, Sequence

from stoker.cli.output import table, when
from stoker.client.client import TRUST
from stoker.core.errors import NotFound, SettingsError, UsageError, nearest
from stoker.core.flow import FlowStep
from stoker.flows import cli_cards, namespaces, pickles, transitions
from stoker.flows import client as flows
from stoker.flows.client import DataArtifact, Run, Task
from stoker.flows.decorators import notes_of
from stoker.flows.definition import FlowDefinition
from stoker.report.streams import echo, say, step_text

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
    "card": (cli_cards.FLAGS, cli_cards.OPTIONS),
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
_TAG_VERBS: Final = ("list", "add", "remove", "replace")
_MOST: Final = 1000
"""Characters of a value that `dump` prints."""


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
        pickles.write(options["file"], wanted)
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
    verb, path = cli_cards.verb_of(arguments)
    if verb == "list" and not path:  # of the newest run
        path = [run.id for run in itertools.islice(flows.Flow(flow.name).runs(), 1)]
    file = options.get("output") or options.get("file")
    if verb == "get" and len(path) == 2:
        file = path.pop()
    wanted = {name: options[name] for name in ("type", "id", "hash") if name in options}
    cli_cards.run(verb, "/".join(path), tasks(flow, path, f"card {verb}"), file, flags, wanted)


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
