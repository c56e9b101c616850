"""Where the client looks for flows and runs in this process, in which namespace and in the store of which stack;
the tags of runs, which make namespaces; the paths that people write; and what a run that was found is read from."""

from __future__ import annotations

import json
from typing import Any, Final, Iterable, Mapping

import attrs

from stoker.client.client import Client
from stoker.client.runs import Run
from stoker.core.artifact import StoredArtifact, from_wire
from stoker.core.errors import NotFound, UsageError
from stoker.core.graph import CONSTANTS
from stoker.core.printable import check_names
from stoker.core.words import count_text, shown
from stoker.flows.exceptions import (
    MetaflowInvalidPathspec,
    MetaflowNamespaceMismatch,
    MetaflowNotFound,
    MetaflowTaggingError,
)
from stoker.flows.parameters import username
from stoker.store.rows import StepRow

_here: dict[str, str | None] = {}
"""What was chosen in this process: "namespace", "stack"."""
SPIN_SUFFIX: Final = ".spin"
"""What the name of a flow ends in, for runs of one task on its own that were kept."""
_OF_STACK: Final = "stack@"


def default_namespace() -> str:
    """Go back to one's own namespace, `user:` and the name; returns it."""
    _here.pop("namespace", None)
    return str(get_namespace())


def get_namespace() -> str | None:
    """The namespace in which flows and runs are looked for; None is everybody's."""
    return _here["namespace"] if "namespace" in _here else f"user:{username()}"


def namespace(ns: str | None) -> str | None:
    """Look in another namespace from now on; None is everybody's."""
    if ns == "":
        raise UsageError("an empty text is no namespace", fix='write namespace("user:ann") or namespace(None)')
    _here["namespace"] = ns
    return get_namespace()


def metadata(ms: str) -> str:
    """Read the store of another stack from now on: `metadata("team")`, or what `get_metadata()` returned."""
    stack = ms.removeprefix(_OF_STACK)
    if "@" in stack or "/" in stack:
        raise UsageError(
            f"metadata({ms!r}) is none of Stoker's: runs are found in the database of a stack",
            fix='write metadata("NAME") with the name of a stack; `stoker stack list` has them',
        )
    Client(stack).store.close()  # that there is none is told here, and not by whatever comes next
    _here["stack"] = stack
    return get_metadata()


def get_metadata() -> str:
    """Where runs are looked for: `stack@` and the stack's name."""
    from stoker import stacks

    return f"{_OF_STACK}{stacks.load(_here.get('stack')).name}"


def default_metadata() -> str:
    """Go back to the active stack's store; returns what `get_metadata` does."""
    _here.pop("stack", None)
    return get_metadata()


def client() -> Client:
    """A client of the store that was chosen."""
    return Client(_here.get("stack"))


_TRIES: Final = 200
"""How often tags are set again when somebody else changed them in between."""
_MOST: Final = 50
"""Tags that people may give a run, as many as Metaflow takes."""
_LONGEST: Final = 500
"""Characters of a tag, as many as Metaflow takes."""


def system_tags_of(run: Run) -> tuple[str, ...]:
    """The tags that a run got by itself, which come first and stay there: a flow's namespace, those of a project."""
    tags = run.tags
    if not tags or not (run._row.dynamic or tags[0].startswith("user:")):
        return ()
    pair = tuple(tag.partition(":")[0] for tag in tags[1:3])
    return tags[:3] if pair == ("project", "project_branch") else tags[:1]


def replace_tags(run: Run, removed: Iterable[str], added: Iterable[str]) -> None:
    """Take some tags off a run and then give it others, all or none; tags that it has by itself are not given again."""
    off, on = _texts(removed), check_names(_texts(added), "a tag")
    if not off and not on:
        raise MetaflowTaggingError("there are no tags to remove and none to add", fix="name one")
    records = run.store.records
    for _ in range(_TRIES):
        run.refresh()
        own = system_tags_of(run)
        fixed = sorted(set(own) & set(off))
        if fixed:
            raise MetaflowTaggingError(f"the tag '{fixed[0]}' was not given by a person and stays")
        earlier = run.tags[len(own) :]
        tags = dict.fromkeys([*(tag for tag in earlier if tag not in off), *(tag for tag in on if tag not in own)])
        if len(tags) > max(_MOST, len(earlier)):
            raise MetaflowTaggingError(
                f"run {run.id} would have {count_text(len(tags), 'tag')}, and may have {_MOST}",
                fix="give fewer, or remove some",
            )
        if records.set_tags(run.id, [*own, *tags], expected=run.tags):
            run._row = attrs.evolve(run._row, tags=(*own, *tags))  # not as somebody else left them since
            return
    raise UsageError(f"others change the tags of run {run.id} all the time; these were not set")


def one_or_more(tags: str | Iterable[str]) -> Iterable[str]:
    """What may be one tag as a list of tags."""
    return [tags] if isinstance(tags, (str, bytes)) else tags


def _texts(tags: Iterable[str]) -> list[str]:
    if isinstance(tags, (str, bytes)):
        raise MetaflowTaggingError(f"{shown(tags)} is not a list of tags", fix='write ["tested"]')
    texts = list(tags)
    for tag in texts:
        if not isinstance(tag, str):
            raise MetaflowTaggingError(f"the tag {shown(tag)} is {type(tag).__name__}", fix="write it as a text")
        if not tag or len(tag) > _LONGEST:
            reason = f"has {len(tag)} characters" if tag else "is empty"
            raise MetaflowTaggingError(f"the tag {shown(tag)} {reason}", fix=f"write 1 to {_LONGEST} characters")
        if not tag.isascii() and tag != tag.encode("utf-8", "replace").decode():
            raise MetaflowTaggingError(f"the tag {shown(tag)} is not UTF-8", fix="write characters, not bytes")
    return texts


def stored_run(flow: str, id: str, namespace: str | None) -> Run:
    """A run by its path, if it is in the namespace; also a task's that was run on its own, by the flow's name."""
    try:
        run = client().run(id)
    except NotFound as error:
        raise MetaflowNotFound(error.message, fix=error.fix) from None
    if run.pipeline not in (flow, flow + SPIN_SUFFIX):
        raise MetaflowNotFound(f"run {id} is of '{run.pipeline}', not of '{flow}'")
    if namespace and namespace not in run.tags:
        raise MetaflowNamespaceMismatch(namespace, f"run {id}")
    return run


def parts_of(pathspec: str, kind: str, count: int) -> list[str]:
    """The names in a path of such an object; one with too few or too many is refused."""
    parts = pathspec.split("/")
    if len(parts) != count or not all(parts):
        example = "/".join(("Flow", "RUN", "step", "task", "artifact")[:count])
        raise MetaflowInvalidPathspec(f"{pathspec!r} names no {kind}", fix=f"write {kind}('{example}')")
    return parts


def attempt_number(attempt: Any) -> int | None:
    """The number of an attempt that was chosen, from 0; None for the last one."""
    if attempt is None:
        return None
    try:
        number = int(attempt)
    except (TypeError, ValueError):
        number = -1
    if number < 0:
        raise MetaflowNotFound(f"attempt={attempt!r} is not the number of an attempt", fix="write 0 for the first")
    return number


def rows_by_step(run: Run) -> dict[str, list[StepRow]]:
    """The rows of a run by the step's name, in the order of the flow."""
    rows: dict[str, list[StepRow]] = {}
    for row in run.store.records.all_steps(run.id):
        rows.setdefault(row.name, []).append(row)
    return dict(sorted(rows.items(), key=lambda item: (item[1][0].position, item[0])))


def wired_constants(run: Run) -> Mapping[str, StoredArtifact]:
    """What every task of a run has: the constants of its class, and its parameters."""
    text = run.store.records.plan(run.id)
    plan = json.loads(text) if text else {}
    wires = {**plan.get("program", {}).get(CONSTANTS, {}), **plan.get("parameters", {})}
    return {name: from_wire(wire) for name, wire in wires.items()}
