"""`stoker watch-for`: start a pipeline for each new version of an artifact, or each version that a stage gets."""

from __future__ import annotations

import os
import shlex
import time
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
from stoker.store.schedules import EXPIRES, Schedules

VERSION: Final = "{version}"
"""In a parameter: the number of the version that was seen."""
OPTIONS: Final = (
    RunOption(name="run", value="FILE", help="the file, and behind a colon the pipeline, that is run; then parameters"),
    RunOption(name="once", help="end after one run, with its exit code"),
    RunOption(name="every", value="TIME", help="how often to look; 10s if not given"),
    RunOption(name="claim-expires", value="TIME", help="when another watcher takes up a start that died; 10m"),
    RunOption(name="stack", value="NAME", help="whose store is watched, and where the pipeline runs"),
    HELP,
)
_USAGE: Final = "Usage: stoker watch-for artifact:NAME|model:NAME@STAGE --run FILE[:PIPELINE] [PARAMETERS] [OPTIONS]"
_FIX: Final = "write artifact:NAME, or model:NAME@STAGE such as model:churn@production"


@frozen(kw_only=True)
class WatchTarget:
    """What is watched: the versions of an artifact, or those that a stage of a model gets."""

    name: str
    stage: str = ""

    @classmethod
    def parse(cls, text: str) -> WatchTarget:
        """Read "artifact:clean" or "model:churn@production"."""
        kind, _, rest = text.partition(":")
        name, at, stage = rest.partition("@")
        if kind == "artifact" and not at:
            return cls(name=checked_name(name, "an artifact"))
        if kind == "model" and stage:
            return cls(name=checked_name(name, "a model"), stage=checked_name(stage, "a stage"))
        raise UsageError(f"'{text}' cannot be watched", fix=_FIX)

    @property
    def text(self) -> str:
        """As it is written."""
        return f"model:{self.name}@{self.stage}" if self.stage else f"artifact:{self.name}"

    def seen(self, client: Client, after: int) -> Iterator[tuple[int, str, int, float]]:
        """(place, occasion, version, time) of what came after a place, in order."""
        registry = client.store.registry
        if self.stage:
            for one in sorted(registry.promotions(self.name), key=lambda row: row.number):
                if one.number > after and one.stage == self.stage:
                    yield one.number, f"version {one.version} by promotion {one.number}", one.version, one.time
        else:
            for made in reversed(registry.versions(self.name)):
                if made.version > after:
                    yield made.version, f"version {made.version}", made.version, made.created


@click.command("watch-for", cls=Unparsed, add_help_option=False)
def command(words: list[str]) -> int:
    """Start a pipeline for each new version of an artifact, or each version that a stage gets."""
    options, rest = commandline.split(words, OPTIONS)
    if options.get("help"):
        echo("\n".join([_USAGE, "", *_HELP, "", commandline.options_text(OPTIONS)]))
        return 0
    if not rest or rest[0].startswith("-"):
        raise UsageError("nothing to watch is named", fix=_FIX)
    if not options.get("run"):
        raise UsageError("no file is named that is to be run", fix=f"stoker watch-for {rest[0]} --run train.py")
    watched = WatchTarget.parse(rest[0])
    parameters = rest[1:]
    target = targets.parse(options["run"])
    program = targets.choose(targets.load(target), target)
    program, request = commandline.read(program, [word.replace(VERSION, "1") for word in parameters])
    stack = stacks.load(options.get("stack") or request.stack or program.stack).name
    client = Client(stack)
    watch = VersionWatch(
        client,
        watched,
        file=f"{target.path}:{program.name}",
        words=parameters,
        source=" ".join([watched.text, "runs", program.name, shlex.join(parameters)]).strip(),
        stack=stack,
        expires=duration(options.get("claim-expires", EXPIRES)),
    )
    every = duration(options.get("every", 10.0))
    say(f"watching {watched.text}, from {watch.beginning or 'the first version'} on")
    while True:
        for code in watch.look():
            if options.get("once"):
                return code
        time.sleep(every)


_HELP: Final = (
    "  What is new when the first watcher starts counts as seen. Each later version starts one run, however many",
    f"  watchers there are, and also where none ran when it came. {VERSION} in a parameter is the version's number.",
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
        for _, occasion, version, moment in self._watched.seen(self._client, self.beginning):
            if occasion in self._done:
                continue
            words = [word.replace(VERSION, str(version)) for word in self._words]
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
