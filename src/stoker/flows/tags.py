"""Tags of runs: which of them a run got by itself, which may be given to it, and how they change."""

from __future__ import annotations

from typing import Final, Iterable

import attrs

from stoker.client.runs import Run
from stoker.core.errors import UsageError
from stoker.core.printable import check_names
from stoker.core.words import count_text, shown
from stoker.flows.exceptions import MetaflowTaggingError

_TRIES: Final = 200
"""How often tags are set again when somebody else changed them in between."""
_MOST: Final = 50
"""Tags that people may give a run, as many as Metaflow takes."""
_LONGEST: Final = 500
"""Characters of a tag, as many as Metaflow takes."""


def system_tags(run: Run) -> tuple[str, ...]:
    """The tags that a run got by itself, which come first and stay there: a flow's namespace, those of a project."""
    tags = run.tags
    if not tags or not (run._row.dynamic or tags[0].startswith("user:")):
        return ()
    pair = tuple(tag.partition(":")[0] for tag in tags[1:3])
    return tags[:3] if pair == ("project", "project_branch") else tags[:1]


def replace(run: Run, removed: Iterable[str], added: Iterable[str]) -> None:
    """Take some tags off a run and then give it others, all or none; tags that it has by itself are not given again."""
    off, on = _texts(removed), check_names(_texts(added), "a tag")
    if not off and not on:
        raise MetaflowTaggingError("there are no tags to remove and none to add", fix="name one")
    records = run.store.records
    for _ in range(_TRIES):
        run.refresh()
        own = system_tags(run)
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
