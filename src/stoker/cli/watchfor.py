"""`stoker watch-for`: start a pipeline for each new version of an artifact, each version that a stage gets, or each run
of another pipeline that succeeds."""

from __future__ import annotations

import os
import shlex
import time
from datetime import datetime
from typing import Final, Iterator, Sequence

import click

from stoker import stacks
from stoker.cli import target as targets
from stoker.cli.rerun import Unparsed
from stoker.client import Client
from stoker.core.errors import UsageError
from stoker.core.registry import HIGHEST, checked_name
from stoker.core.request import RunOption
from stoker.core.units import duration
from stoker.core.values import frozen
from stoker.report.streams import echo, say
from stoker.run import commandline
from stoker.run.commandline import HELP
from stoker.run.firing import Command, FiringStarter
from stoker.run.program import Program
from stoker.store.schedules import EXPIRES, Schedules

VERSION: Final = "{version}"
"""In a parameter: the number of the version that was seen."""
RUN: Final = "{run}"
"""In a parameter: the id of the run that was seen."""
OPTIONS: Final = (
    RunOption(name="run", value="FILE", help="the file, and behind a colon the pipeline, that is run; then parameters"),
    RunOption(name="once", help="end after one run, with its exit code"),
    RunOption(name="every", value="TIME", help="how often to look; 10s if not given"),
    RunOption(name="claim-expires", value="TIME", help="when another watcher takes up a start that died; 10m"),
    RunOption(name="stack", value="NAME", help="whose store is watched, and where the pipeline runs"),
    HELP,
)
_USAGE: Final = (
    "Usage: stoker watch-for [artifact:NAME|model:NAME@STAGE|run:PIPELINE] --run FILE[:PIPELINE] [PARAMETERS] [OPTIONS]"
)
_FIX: Final = "write artifact:NAME, run:PIPELINE, or model:NAME@STAGE such as model:churn@production"


@frozen(kw_only=True)
class WatchTarget:
    """What is watched: the versions of an artifact, those that a stage of a model gets, or a pipeline's runs."""

    kind: str
    """ "artifact", "model" or "run"."""
    name: str
    stage: str = ""

    @classmethod
    def parse(cls, text: str) -> WatchTarget:
        """Read "artifact:clean", "model:churn@production" or "run:training"."""
        kind, _, rest = text.partition(":")
        name, at, stage = rest.partition("@")
        if kind == "artifact" and not at:
            return cls(kind=kind, name=checked_name(name, "an artifact"))
        if kind == "model" and stage:
            return cls(kind=kind, name=checked_name(name, "a model"), stage=checked_name(stage, "a stage"))
        if kind == "run" and name and not at:
            return cls(kind=kind, name=name)
        raise UsageError(f"'{text}' cannot be watched", fix=_FIX)

    @property
    def text(self) -> str:
        """As it is written."""
        return f"{self.kind}:{self.name}{'@' if self.stage else ''}{self.stage}"

    def place_text(self, place: int) -> str:
        """A place in words."""
        if self.kind != "run":
            return str(place) if place else "the first version"
        return (
            datetime.fromtimestamp(place / 1000).astimezone().isoformat(sep=" ", timespec="seconds")
            if place
            else "the first run"
        )

    @property
    def placeholder(self) -> str:
        """What stands in a parameter for what was seen."""
        return RUN if self.kind == "run" else VERSION

    def seen(self, client: Client, after: int) -> Iterator[tuple[int, str, str, float]]:
        """(place, occasion, version or run, time) of what came after a place, in order."""
        registry = client.store.registry
        if self.kind == "model":
            for one in sorted(registry.promotions(self.name), key=lambda row: row.number):
                if one.number > after and one.stage == self.stage:
                    yield one.number, f"version {one.version} by promotion {one.number}", str(one.version), one.time
        elif self.kind == "artifact":
            for made in reversed(registry.versions(self.name)):
                if made.version > after:
                    yield made.version, f"version {made.version}", str(made.version), made.created
        else:
            runs = client.runs(self.name, status="succeeded", limit=None)
            ended = [(run.ended.timestamp(), run.id) for run in runs if run.ended is not None]
            for moment, id in sorted(ended):
                if (place := int(moment * 1000)) > after:
                    yield place, f"run {id}", id, moment


def triggered(program: Program) -> WatchTarget:
    """What a flow's decorators wait for."""
    triggers = program.triggers
    if len(triggers) != 1:
        what = f"waits for {len(triggers)} things: {', '.join(triggers)}" if triggers else "has no @trigger"
        raise UsageError(f"nothing to watch is named, and {program.name} {what}", fix=_FIX)
    return WatchTarget.parse(triggers[0])


@click.command("watch-for", cls=Unparsed, add_help_option=False)
def command(words: list[str]) -> int:
    """Start a pipeline for each new version of an artifact or of a model's stage, or after another one's runs."""
    options, rest = commandline.split(words, OPTIONS)
    if options.get("help"):
        echo("\n".join([_USAGE, "", *_HELP, "", commandline.options_text(OPTIONS)]))
        return 0
    named = rest.pop(0) if rest and not rest[0].startswith("-") else ""
    if not options.get("run"):
        raise UsageError("no file is named that is to be run", fix=f"stoker watch-for {named} --run train.py")
    watched = WatchTarget.parse(named) if named else None
    target = targets.parse(options["run"])
    program = targets.choose(targets.load(target), target)
    watched = watched or triggered(program)
    program, request = commandline.read(program, [word.replace(watched.placeholder, "1") for word in rest])
    stack = stacks.load(options.get("stack") or request.stack or program.stack).name
    client = Client(stack)
    watch = VersionWatch(
        client,
        watched,
        file=f"{target.path}:{program.name}",
        words=rest,
        source=" ".join([watched.text, "runs", program.name, shlex.join(rest)]).strip(),
        stack=stack,
        expires=duration(options.get("claim-expires", EXPIRES)),
    )
    every = duration(options.get("every", 10.0))
    say(f"watching {watched.text}, from {watched.place_text(watch.beginning)} on")
    while True:
        for code in watch.look():
            if options.get("once"):
                return code
        time.sleep(every)


_HELP: Final = (
    "  What is new when the first watcher starts counts as seen. Each later version starts one run, however many",
    f"  watchers there are, and also where none ran when it came. {VERSION} in a parameter is the version's number;",
    f"  {RUN} is the id of a run:PIPELINE that succeeded. With nothing to watch, it is what the flow's @trigger names.",
)


class VersionWatch:
    """Starts the runs of what is seen."""

    def __init__(
        self,
        client: Client,
        watched: WatchTarget,
        *,
        file: str,
        words: Sequence[str],
        source: str,
        stack: str,
        expires: float,
    ) -> None:
        self._client = client
        self._watched = watched
        self._file = file
        self._words = words
        self._source = source
        self._stack = stack
        self._expires = expires
        newest = max((place for place, *_ in watched.seen(client, 0)), default=0)
        self._schedules = Schedules(client.store.records.database)
        self.beginning = int(self._schedules.begin(source, str(newest), now=time.time()))
        """The place behind which versions start a run."""
        self._done = {row.occasion for row in self._schedules.firings(source, limit=HIGHEST) if row.is_settled}

    def look(self) -> Iterator[int]:
        """Start a run for each version that none was started for; the runs' exit codes."""
        for _, occasion, seen, moment in self._watched.seen(self._client, self.beginning):
            if occasion in self._done:
                continue
            words = [word.replace(self._watched.placeholder, seen) for word in self._words]
            run = Command(file=self._file, words=words, folder=os.getcwd(), stack=self._stack)
            starter = FiringStarter(self._client.store, run.start, expires=self._expires)
            firing = starter.claim(self._source, occasion, moment)
            if firing is None:  # somebody else's, who may die yet
                other = self._schedules.firing(self._source, occasion)
                self._done |= {occasion} if other is not None and other.is_settled else set()
                continue
            sentence, code = starter.begin(firing)
            self._done.add(occasion)
            say(sentence)
            yield code
