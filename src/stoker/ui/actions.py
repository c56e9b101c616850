"""What changes a run or a model: command lines of `stoker`, each in a process of its own, as if somebody typed it.

So the pages can do what the command line can, with the same checks and the same words, and no code of a user's is
imported into the server.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Final, Iterable, Literal, Mapping, Sequence

import attrs

from stoker.core.errors import NotFound, UsageError
from stoker.core.registry import checked_name
from stoker.report import markup

Action = Literal["cancel", "resume", "rerun", "promote", "tag"]
ACTIONS: Final[tuple[Action, ...]] = ("cancel", "resume", "rerun")
"""What can be done to a run."""
_KEPT: Final = 50
"""Commands whose output can be looked at; the oldest that has ended goes first."""
_LONGEST_OUTPUT: Final = 100_000
"""Characters of a command's output that are shown: the last ones."""
_LONGEST_VALUE: Final = 100_000
"""Bytes of a setting or a parameter: Linux takes no longer word of a command line than 128 KiB."""


_PLAIN: Final = re.compile(r"[A-Za-z_/][\w./@+-]*(?: [\w./@+-]+)*")
"""Texts of letters that need no quotes in YAML, but for the words below."""
_NO_TEXT: Final = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})


@attrs.frozen(kw_only=True)
class Rerun:
    """A new run like another one, changed as asked."""

    parameters: Mapping[str, str] = attrs.field(factory=dict)
    """Those that differ from the other run's, as they are written after `--set`."""
    settings: tuple[str, ...] = ()
    """`KEY=VALUE`, as after `--set`."""
    start: str = ""
    """The step from which it runs again; empty for a whole run."""
    original: bool = False
    """Whether it runs the code as it was."""
    cache: bool = True
    tags: tuple[str, ...] = ()


def cancel_words(run: str, *, now: bool = False, stack: str | None = None) -> list[str]:
    """The words of the command that cancels a run."""
    return ["cancel", run, *(["--now"] if now else []), *_stack(stack)]


def resume_words(run: str, *, stack: str | None = None) -> list[str]:
    """The words of the command that goes on with a run."""
    return ["resume", run, *_stack(stack)]


def rerun_words(run: str, change: Rerun, *, stack: str | None = None) -> list[str]:
    """The words of the command that starts a run again, without waiting for its end."""
    words = ["rerun", run, "--detach"]
    for name, value in change.parameters.items():
        words.append(f"--set=parameters.{name}={value}")
    words += [f"--set={setting}" for setting in change.settings]
    words += [f"--from={change.start}"] if change.start else []
    words += ["--code=original"] if change.original else []
    words += [] if change.cache else ["--no-cache"]
    words += [f"--tag={tag}" for tag in change.tags]
    return [*words, *_stack(stack)]


def rerun_of(form: Mapping[str, str], shown: Mapping[str, str]) -> Rerun:
    """What a form asks for, without parameters that are as they were `shown`. `UsageError` for what is no setting."""
    parameters = {
        name: given.strip()
        for name, text in shown.items()
        if (given := form.get(f"parameter.{name}")) is not None and given.strip() != text.strip()
    }
    settings = []
    for line in form.get("settings", "").splitlines():
        setting = line.strip()
        if not setting or setting.startswith("#"):
            continue
        key, equals, _ = setting.partition("=")
        if not equals or not key.strip() or key.startswith("-"):
            raise UsageError(
                f"'{setting}' is no setting", fix="write KEY=VALUE, such as steps.train.resources.gpu_count=1"
            )
        settings.append(setting)
    change = Rerun(
        parameters=parameters,
        settings=tuple(settings),
        start=form.get("from", "").strip(),
        original=form.get("code") == "original",
        cache="no_cache" not in form,
        tags=tuple(tag.strip() for tag in form.get("tags", "").split(",") if tag.strip()),
    )
    _check_words((*change.parameters.values(), *change.settings, *change.tags, change.start))
    return change


def promote_words(
    name: str, version: int, stage: str, *, why: str = "", force: bool = False, stack: str | None = None
) -> list[str]:
    """The words of the command that gives a version of a model a stage. `UsageError` for what is no stage."""
    checked_name(stage, "a stage")
    _check_words((why,))
    options = [*([f"--why={why}"] if why else []), *(["--force"] if force else []), *_stack(stack)]
    return ["models", "promote", *options, *_arguments(f"{name}@{version}", stage)]


def tag_words(
    kind: Literal["artifact", "model"],
    name: str,
    version: int,
    tag: str,
    options: Sequence[str] = (),
    *,
    stack: str | None = None,
) -> list[str]:
    """The words of the command that tags a version, or with "remove" takes a tag away. `UsageError` for what is no
    tag."""
    checked_name(tag, "a tag")
    return [
        f"{kind}s",
        "tag",
        *(f"--{option}" for option in options),
        *_stack(stack),
        *_arguments(f"{name}@{version}", tag),
    ]


def _arguments(*words: str) -> list[str]:
    """Words that a command takes for no option."""
    return [*(["--"] if any(word.startswith("-") for word in words) else []), *words]


def _check_words(texts: Iterable[str]) -> None:
    """`UsageError` for a text that no command line takes."""
    for text in texts:
        if "\0" in text or len(text.encode("utf-8", "replace")) > _LONGEST_VALUE:
            raise UsageError("a value is too long for a command line, or has a NUL", fix="write it to a run file")


def value_text(value: Any) -> str:
    """A parameter as it is written after `--set`, where text needs no quotes unless it reads as something else."""
    if isinstance(value, str):
        return value if _reads_as_text(value) else json.dumps(value, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False)


def _reads_as_text(value: str) -> bool:
    """Whether a text without quotes is no number, truth or structure of YAML."""
    return _PLAIN.fullmatch(value) is not None and value.lower() not in _NO_TEXT


def command_text(words: Sequence[str]) -> str:
    """A command as somebody would type it."""
    return shlex.join(["stoker", *words])


def _stack(stack: str | None) -> list[str]:
    return [f"--stack={stack}"] if stack else []


class StartedCommand:
    """A command that was started."""

    def __init__(
        self, id: str, action: Action, page: str, words: Sequence[str], folder: str, *, retry: str, user: str
    ) -> None:
        self.id = id
        self.action = action
        self.page = page
        """The page of the run or the version that it changes."""
        self.retry = retry
        """The page that asks about it."""
        self.text = command_text(words)
        self.started = time.time()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as somebody may look
        # In a session of its own: it goes on when the server ends, and no Ctrl-C of the server's terminal reaches it.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "stoker", *words],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "NO_COLOR": "1", **({"STOKER_USER": user} if user else {})},
            start_new_session=True,
        )

    @property
    def run(self) -> str:
        """The run that it changes; empty for a version of a model."""
        return self.page.rpartition("/")[2] if self.action in ACTIONS else ""

    @property
    def kind(self) -> str:
        """What it changes: "runs", "models" or "artifacts"."""
        return self.page.split("/")[1]

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    @property
    def output(self) -> str:
        """What it wrote so far, the end of much."""
        size = os.fstat(self._output.fileno()).st_size
        data = os.pread(self._output.fileno(), _LONGEST_OUTPUT, max(0, size - _LONGEST_OUTPUT))
        return "\n".join(markup.plain(line) for line in data.decode("utf-8", "replace").splitlines())

    def close(self) -> None:
        """Forget its output."""
        self._output.close()


class StartedCommands:
    """The commands that a server started."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._commands: dict[str, StartedCommand] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def start(
        self, action: Action, page: str, words: Sequence[str], *, retry: str = "", user: str = ""
    ) -> StartedCommand:
        """Start a command that changes what has a page.

        `retry` asks about it, by default the page of the action; `user` is who does it, by default this process's user.
        """
        with self._lock:
            ended = [one for one in self._commands.values() if one.code is not None]
            for old in ended[: max(0, len(self._commands) - _KEPT + 1)]:
                old.close()
                del self._commands[old.id]
            id = f"{next(self._numbers)}-{os.urandom(4).hex()}"
            retry = retry or f"{page}/{action}"
            command = StartedCommand(id, action, page, words, self._folder, retry=retry, user=user)
            self._commands[command.id] = command
            return command

    def __getitem__(self, id: str) -> StartedCommand:
        command = self._commands.get(id)
        if command is None:
            raise NotFound("this server started no such command, or has forgotten it", fix="look at the run itself")
        return command
