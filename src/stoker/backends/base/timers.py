"""What starts a command at the times of a schedule: this machine's crontab, systemd's user timers, or a platform's own.

A timer writes, lists and removes the platform's objects of schedules, each by its mark, and touches no others; putting
one twice changes nothing. Whether the run is started then, and once, is decided by the command itself.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Callable, Final, Mapping, Sequence

from stoker.backends.base.backend import Timer, TimerJob
from stoker.backends.base.logins import NOT_FOUND, Here, Login, Ran
from stoker.core.errors import BackendError, SettingsError
from stoker.store.registry import author

PREFIX: Final = "stoker-"
"""Begins the marks of all schedules."""
PLATFORM: Final = "platform"
"""The target that is the stack's own platform."""


class Crontab:
    """The table of cron, or of what has a command of the same form."""

    def __init__(self, command: str = "crontab", *, login: Login | None = None, options: Sequence[str] = ()) -> None:
        self._command = command
        self._login = login or Here()
        self._options = options
        self._numbers = command != "crontab"
        """Whether fields are written in the form that other readers than cron's take."""

    def check(self, job: TimerJob) -> None:
        """The table has no time zones: it follows the machine's clock."""
        here = local_zone()
        if job.zone != here:
            raise SettingsError(
                f"{self._command} follows this machine's clock, which is {here}, and not {job.zone}",
                fix=f"--zone {here}, or --on systemd",
            )
        self._lines(job)

    def put(self, job: TimerJob) -> str:
        """Write the job's lines behind all others."""
        self.check(job)
        table = self._read()
        kept = _without(table, job.mark)
        text = "".join(f"{line}\n" for line in (*kept, *self._lines(job)))
        self._write(text)
        return f"{self._command} of {_who()}, below '# {job.mark}'"

    def remove(self, mark: str) -> None:
        """Write the table without the job's lines; a table that would be empty is one line fewer, not removed."""
        table = self._read()
        kept = _without(table, mark)
        if kept != table:
            self._write("".join(f"{line}\n" for line in kept))

    def marks(self) -> list[str]:
        """The marks in the table."""
        return [found[1] for line in self._read() if (found := _MARK.match(line))]

    def _lines(self, job: TimerJob) -> list[str]:
        words = [f"{name}={shlex.quote(value)}" for name, value in sorted(job.environment.items())]
        command = f"cd {shlex.quote(job.folder)} && {' '.join(words)} {shlex.join(job.words)}"
        line = f"{command} >>{shlex.quote(job.output)} 2>&1"
        if "\n" in line:
            raise SettingsError(_NO_BREAKS, fix="read them from a file")
        if not self._numbers:
            line = line.replace("%", "\\%")  # cron ends the command at a %
        fields = job.cron.five_fields() if self._numbers else job.cron.text
        options = [f"#SCRON {option}" for option in self._options]
        return [f"# {job.mark}: {job.title}", *options, f"{'# paused: ' if job.paused else ''}{fields} {line}"]

    def _read(self) -> list[str]:
        answer = self._login.run([self._command, "-l"])
        if answer.code == NOT_FOUND:
            raise BackendError(
                f"there is no command {self._command} on this machine",
                fix="--on crontab" if self._numbers else "install cron, or --on systemd",
            )
        if answer.code and not re.search(r"no crontab|can't open|does not exist", answer.err):
            raise _failed(self._command, answer, fix="--on crontab" if self._numbers else "")
        return [] if answer.code else answer.out.splitlines()

    def _write(self, text: str) -> None:
        answer = self._login.run([self._command, "-"], input=text.encode())
        if answer.code:
            raise _failed(self._command, answer)


_NO_BREAKS: Final = "a schedule's folder and parameters have no line breaks"
_MARK: Final = re.compile(rf"# ({PREFIX}[\w.-]+): ")


def _without(table: Sequence[str], mark: str) -> list[str]:
    """The lines of a table but for those of a mark: a comment, options, and the entry."""
    kept, skipping = [], False
    for line in table:
        if line.startswith(f"# {mark}: "):
            skipping = True
        elif not skipping:
            kept.append(line)
        elif not line.startswith("#SCRON"):
            skipping = False
    return kept


class Systemd:
    """systemd's timers of a user: https://www.freedesktop.org/software/systemd/man/latest/systemd.timer.html"""

    def __init__(self, *, login: Login | None = None, folder: Path | None = None) -> None:
        self._login = login or Here()
        configured = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        self._folder = folder or Path(configured) / "systemd" / "user"

    def check(self, job: TimerJob) -> None:
        """It can do all that cron can."""
        units(job)

    def put(self, job: TimerJob) -> str:
        """Write both units, and start the timer; what is refused leaves nothing behind."""
        new = not (self._folder / f"{job.mark}.timer").exists()
        self._folder.mkdir(parents=True, exist_ok=True)
        for name, text in units(job).items():
            path = self._folder / name
            beside = path.with_name(f".{name}.{os.getpid()}")
            beside.write_text(text, encoding="utf-8")
            beside.replace(path)
        try:
            self._call("daemon-reload")
            if job.paused:
                self._call("disable", "--now", f"{job.mark}.timer")
            else:
                self._call("enable", "--now", f"{job.mark}.timer")
                self._call("restart", f"{job.mark}.timer")  # the times may be others
        except BackendError:
            if new:
                self._delete(job.mark)
            raise
        return f"systemd timer {job.mark}.timer of {_who()}"

    def remove(self, mark: str) -> None:
        """Stop the timer, and remove both units."""
        if (self._folder / f"{mark}.timer").exists():
            self._call("disable", "--now", f"{mark}.timer")
            self._delete(mark)
            self._call("daemon-reload")

    def marks(self) -> list[str]:
        """The timers that have a unit file."""
        return sorted(path.stem for path in self._folder.glob(f"{PREFIX}*.timer"))

    def _delete(self, mark: str) -> None:
        for kind in ("timer", "service"):
            (self._folder / f"{mark}.{kind}").unlink(missing_ok=True)

    def _call(self, *words: str) -> None:
        answer = self._login.run(["systemctl", "--user", *words])
        if answer.code == NOT_FOUND:
            raise BackendError("there is no command systemctl on this machine", fix="--on crontab")
        if answer.code:
            raise _failed("systemctl --user", answer, fix="loginctl enable-linger, then log in anew; or --on crontab")


def units(job: TimerJob) -> dict[str, str]:
    """The files of a job's timer and of its service."""
    settings = [f"Environment={_quoted(f'{name}={value}')}" for name, value in sorted(job.environment.items())]
    calendar = [f"OnCalendar={event}" for event in job.cron.calendar_events(job.zone)]
    service = [
        "[Unit]",
        f"Description={_plain(job.title)}",
        "",
        "[Service]",
        "Type=oneshot",
        f"WorkingDirectory={_plain(job.folder)}",
        *settings,
        f"ExecStart={' '.join(_quoted(word, argument=True) for word in job.words)}",
        f"StandardOutput=append:{_plain(job.output)}",
        "StandardError=inherit",
    ]
    timer = [
        "[Unit]",
        f"Description={_plain(job.title)}",
        "",
        "[Timer]",
        *calendar,
        "AccuracySec=1s",  # its default is a minute
        "Persistent=false",  # what was missed is said, not made up for
        f"Unit={job.mark}.service",
        "",
        "[Install]",
        "WantedBy=timers.target",
    ]
    return {f"{job.mark}.service": "\n".join(service) + "\n", f"{job.mark}.timer": "\n".join(timer) + "\n"}


def _plain(text: str) -> str:
    if "\n" in text:
        raise SettingsError(_NO_BREAKS, fix="read them from a file")
    return text.replace("%", "%%")


def _quoted(text: str, *, argument: bool = False) -> str:
    """https://www.freedesktop.org/software/systemd/man/latest/systemd.service.html#Command%20lines"""
    text = _plain(text).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + (text.replace("$", "$$") if argument else text) + '"'


MACHINE: Final[Mapping[str, Callable[[], Timer]]] = {"crontab": Crontab, "systemd": Systemd}
"""What this machine may have, for stacks whose platform starts nothing by itself."""


def local_zone() -> str:
    """The name of this machine's time zone; "UTC" where it has none."""
    named = os.environ.get("TZ", "").lstrip(":")
    if named and not named.startswith("/"):
        return named
    try:
        place = os.path.realpath("/etc/localtime")
    except OSError:
        return "UTC"
    zone = place.partition("/zoneinfo/")[2]
    return "UTC" if zone in ("", "Etc/UTC", "UCT", "Zulu") else zone


def _who() -> str:
    return author().partition("@")[0]


def _failed(command: str, answer: Ran, *, fix: str = "") -> BackendError:
    words = (answer.err.strip() or answer.out.strip() or f"it ends with code {answer.code}").splitlines()
    return BackendError(f"{command} refuses: {words[-1]}", fix=fix)
