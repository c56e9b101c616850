"""`stoker`: run the named command, and turn its errors into a message and an exit code.

A command is a row in `COMMANDS` and stands in a module beside this one, which is imported only when it is called:
`stoker --help` imports none. Other distributions register commands as entry points of "stoker.commands",
which are read if a name is not in the table, and by `--help`. Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import Any, Final, Iterator, Mapping, Sequence

import click

from stoker.cli.output import ScriptFailed
from stoker.core.errors import (
    EXIT_INFRASTRUCTURE,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    InfrastructureError,
    StokerError,
    nearest,
)
from stoker.core.plugins import Registry, resolve
from stoker.core.usercode import raised_by_user, replaced_functions, replaced_text, user_traceback
from stoker.core.version import VERSION
from stoker.core.words import shown
from stoker.report import streams
from stoker.report.streams import echo, flush_or_drop, open_missing, say

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "init": ("stoker.cli.init:command", "make a small project that runs, with its test"),
    "run": (
        "stoker.cli.rerun:command",
        "run a pipeline of a file, or the project's, as `python FILE` would",
    ),
    "plan": ("stoker.cli.plan:command", "show what a run would do, and with which settings, without running it"),
    "simulate": ("stoker.cli.simulate:command", "predict start, end, wait and cost of steps on a cluster of a file"),
    "build": ("stoker.cli.build:command", "build the images in which a pipeline's steps run"),
    "image": ("stoker.cli.build:image", "look into an image without pulling it: CUDA, Python, frameworks, size"),
    "runs": ("stoker.cli.runs:runs", "list runs, newest first"),
    "show": ("stoker.cli.show:show", "show a run: its steps, why it failed, what it made"),
    "watch": ("stoker.cli.show:watch", "show a run as it goes on, from another terminal"),
    "top": ("stoker.cli.devices:top", "show devices, leases and running steps with what they use, live"),
    "exec": ("stoker.cli.beside:execute", "run a command, or a shell, beside a running step"),
    "dump": ("stoker.cli.beside:dump", "print where a running step stands: the stacks of all its ranks"),
    "forward": ("stoker.cli.beside:forward", "reach a port at which a running step listens"),
    "why": ("stoker.cli.show:why_command", "say why a step ran or was cached: what of its key changed, with a diff"),
    "gpu": ("stoker.cli.report:command", "show what steps did with their accelerators, with charts"),
    "metrics": ("stoker.cli.metrics:command", "show what steps logged of themselves, or compare two runs"),
    "card": ("stoker.cli.report:card", "make a page of a step: how it went, its accelerators, what it wrote"),
    "report": ("stoker.cli.report:report", "make a page of a run: graph, times, failures, metrics, results, logs"),
    "logs": ("stoker.cli.logs:command", "print what steps wrote"),
    "artifacts": ("stoker.cli.names:artifacts", "list named artifacts, what a run's steps made, or who made a digest"),
    "models": ("stoker.cli.names:models", "list, show, promote, compare and export models"),
    "pull": ("stoker.cli.runs:pull_command", "fetch what a run's steps made, a named artifact, or a model"),
    "schedule": ("stoker.cli.schedule:command", "run pipelines at set times, and say what was missed"),
    "advise": ("stoker.cli.advise:command", "show what steps might ask for instead, by what they used, as a diff"),
    "watch-for": ("stoker.cli.watchfor:command", "start a pipeline for each new version of an artifact or model"),
    "cancel": ("stoker.cli.rerun:cancel", "ask a run to stop"),
    "resume": ("stoker.cli.rerun:resume_command", "go on with a run where it stopped"),
    "rerun": ("stoker.cli.rerun:rerun_command", "start a new run like another one, as a whole or from a step on"),
    "ui": ("stoker.cli.ui:command", "show runs, steps, logs, metrics and devices in a browser"),
    "stacks": ("stoker.cli.stacks:stacks_command", "list where runs can run and where things are kept"),
    "devices": ("stoker.cli.devices:command", "list this machine's accelerators, and what is wrong with them"),
    "explain": ("stoker.cli.doctor:explain", "explain a finding, such as STK203"),
    "doctor": ("stoker.cli.doctor:command", "check this machine, the configuration and the store"),
    "config": ("stoker.cli.config:command", "print the JSON schema of stoker.toml, for an editor"),
    "completion": ("stoker.cli.completion:command", "print the script by which bash, zsh or fish completes commands"),
    "migrate": ("stoker.cli.migrate:command", "rewrite a file from ZenML or Metaflow to Stoker"),
    "secret": ("stoker.cli.secret:command", "keep values by name that are written down nowhere else"),
    "store": ("stoker.cli.store:store", "check the store: read every artifact, and set damaged ones aside"),
    "gc": ("stoker.cli.store:gc", "remove old runs and what nothing needs any more"),
}
"""Name → (its location, what it does)."""
PARTS: Final[Registry[click.Command]] = Registry(
    group="stoker.commands",
    noun="command",
    kind=click.Command,
    builtin={name: (where, "") for name, (where, _) in COMMANDS.items()},
)
_UNWRITABLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
"""Errors of a write to a stdout that takes nothing: a full disk, a limit, a lost terminal or file server."""
EXIT_PIPE: Final = 141
"""128 + SIGPIPE: a shell's exit code for a closed pipe, as in `stoker logs … | head`."""


def main(argv: Sequence[str] | None = None) -> None:
    """The program: runs a command and exits."""
    open_missing()
    code = invoke(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        flush_or_drop(stream)  # Python does it once more, and a failure there would change the exit code
    sys.exit(code)


def invoke(argv: Sequence[str]) -> int:
    """Run a command and return its exit code."""
    arguments, traced = _without_traceback_option(argv)
    try:
        result = group.main(args=arguments, prog_name="stoker", standalone_mode=False)
        _flush_results()
        return result if isinstance(result, int) else 0
    except (BrokenPipeError, ReaderGone):
        # Python flushes stdout once more when it exits; that must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE
    except (KeyboardInterrupt, click.Abort):
        say("interrupted")
        return EXIT_INTERRUPTED
    except (StokerError, click.ClickException) as error:
        if traced:
            import traceback

            traceback.print_exc()
        say(error.message if isinstance(error, ScriptFailed) else f"error: {_message(error)}")
        return error.exit_code
    except Exception as error:  # the user's code, or a defect of Stoker, which has its own exit code
        if isinstance(error, FileNotFoundError) and _folder_is_gone():
            say("error: the working directory was removed\n  fix: cd to one that is there")
            return EXIT_USAGE
        if raised_by_user(error):
            say(user_traceback(error))
            return EXIT_USAGE
        if replaced := replaced_functions():
            say(f"error: {replaced_text(error, replaced)}")
            return EXIT_USAGE
        say(_report_defect(error, arguments[:1], traced=traced))
        return EXIT_INFRASTRUCTURE


def _folder_is_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _report_defect(error: Exception, command: Sequence[str], *, traced: bool) -> str:
    """Write a crash report, and return the message that names it; the report has no arguments, which may be secret."""
    import platform
    import tempfile
    import traceback

    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    head = f"error: {type(error).__name__} inside Stoker, which should not happen"
    report = (
        f"Stoker {VERSION}, Python {platform.python_version()}, {platform.platform()}\n"
        f"stoker {' '.join(name for name in command if name in PARTS)}\n\n{text}"
    )
    try:
        descriptor, path = tempfile.mkstemp(prefix="stoker-crash-", suffix=".txt")  # of its owner alone
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(report)
    except OSError:
        return f"{text}{head}\n  fix: report the lines above"
    return f"{text if traced else ''}{head}: {shown(str(error), 500)}\n  fix: report what is in {path}"


def _flush_results() -> None:
    """Write the rest of stdout; the results are lost where that fails."""
    error = flush_or_drop(sys.stdout)
    if isinstance(error, BrokenPipeError):
        raise error
    if error is not None:
        raise InfrastructureError(f"stdout cannot be written: {error.strerror}", fix="write to another place")


class ReaderGone(Exception):
    """The reader of stdout is gone; not an OSError, which click turns into exit code 1, that of a failed step."""


class Commands(click.Group):
    """The commands of `COMMANDS`, and those of other distributions."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the options; `--help` prints here."""
        with _detect_closed_pipe():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _detect_closed_pipe():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands' names, in the order of the table."""
        return [*COMMANDS, *(name for name, _ in third_party_commands())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command."""
        return PARTS.load(cmd_name) if cmd_name in PARTS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first argument names; the error for an unknown one suggests the nearest."""
        if args and args[0].startswith("-"):
            raise click.NoSuchOption(args[0], possibilities=None, ctx=ctx)
        if ctx.resilient_parsing and args[:1] in (["run"], ["plan"], ["build"]):
            return args[0], resolve("stoker.cli.completion:file_command")(args[0]), args[1:]
        if args and args[0] not in PARTS:
            raise click.UsageError(f"there is no command '{args[0]}'{nearest(args[0], PARTS.names())}", ctx=ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """The commands that begin so, by the table; options as click finds them."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        from click.shell_completion import CompletionItem

        summaries = {name: summary for name, (_, summary) in COMMANDS.items()}
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return [CompletionItem(name, help=summaries.get(name)) for name in names]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the table, without importing the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])
        more = [(name, f"of the package {package}") for name, package in third_party_commands()]
        if more:
            with formatter.section("Commands of other packages"):
                formatter.write_dl(more)


def third_party_commands() -> list[tuple[str, str]]:
    """(name, distribution) of the commands of other distributions; none is imported.

    The files of entry points are read directly: importing `importlib.metadata` takes as long as all of `stoker --help`.
    """
    packages: dict[str, str] = {}
    for folder in dict.fromkeys(entry or "." for entry in sys.path):
        try:
            distributions = [entry for entry in os.scandir(folder) if entry.name.endswith((".dist-info", ".egg-info"))]
        except OSError:
            continue  # a zip file, or no folder
        for distribution in distributions:
            for name in _entry_points(os.path.join(distribution.path, "entry_points.txt"), PARTS.group):
                packages.setdefault(name, distribution.name.partition("-")[0])
    return sorted((name, package) for name, package in packages.items() if name not in COMMANDS)


def _entry_points(path: str, group: str) -> Iterator[str]:
    """The names in one group of a file of entry points."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError):
        return
    in_group = False
    for line in text.splitlines() if f"[{group}]" in text else ():
        if line.startswith("["):
            in_group = line.strip() == f"[{group}]"
        elif in_group and "=" in line and not line.lstrip().startswith(("#", ";")):
            yield line.partition("=")[0].strip()


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="`stoker COMMAND --help` says more. Exit codes: 0 succeeded, 1 a step failed, 2 wrong usage or settings, "
    "3 the plan was refused, 4 infrastructure failed, 130 interrupted.",
)
@click.option("--version", is_flag=True, help="Show the version and exit.")
@click.option("--traceback", is_flag=True, help="Show Python's traceback with an error (or set STOKER_TRACEBACK=1).")
@click.pass_context
def group(ctx: click.Context, *, version: bool, traceback: bool) -> None:
    """Stoker runs pipelines of ordinary Python functions."""
    del traceback  # taken off the arguments by `invoke`, wherever it stands
    if version:
        echo(VERSION)
        ctx.exit()
    if ctx.invoked_subcommand is None:
        echo(ctx.get_help())


@contextlib.contextmanager
def _detect_closed_pipe() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise ReaderGone from None
    except OSError as error:
        if error.filename is None and error.errno in _UNWRITABLE:
            _flush_results()  # what could not be written may still be there, and fails again
            if _writes_results(error):
                fix = "write to another place, or free space"
                raise InfrastructureError(f"stdout cannot be written: {error.strerror}", fix=fix) from error
            fix = "see which disk is full or fails (df), and --traceback for the place that wrote"
            raise InfrastructureError(f"a file cannot be written: {error.strerror}", fix=fix) from error
        raise


def _writes_results(error: OSError) -> bool:
    """Whether an error comes from the code that writes results, and not from a file without a name in it."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    name = str(frame.tb_frame.f_globals.get("__name__", "")) if frame is not None else ""
    return name.split(".")[0] == "click" or name == streams.__name__


def _without_traceback_option(argv: Sequence[str]) -> tuple[list[str], bool]:
    flag = "--traceback" in argv
    traced = flag or os.environ.get("STOKER_TRACEBACK", "") not in ("", "0")
    return [argument for argument in argv if argument != "--traceback"], traced


def _message(error: StokerError | click.ClickException) -> str:
    if isinstance(error, StokerError):
        return str(error)
    ctx = getattr(error, "ctx", None)
    fix = f"\n  fix: see `{ctx.command_path} --help`" if ctx is not None else ""
    if isinstance(error, click.NoSuchOption):
        options = _options(ctx)
        return f"there is no option '{error.option_name}'{nearest(error.option_name, options) if options else ''}{fix}"
    text = error.format_message()
    missing = error.param if isinstance(error, click.MissingParameter) else None
    if missing is not None and missing.name == "run_id" and ctx is not None:
        fix = f"\n  fix: `{ctx.command_path} latest` for the newest run; `stoker runs` lists all"
    return f"{text[:1].lower()}{text[1:].rstrip('.')}{fix}"


def _options(ctx: click.Context | None) -> list[str]:
    """The long options of the command that was called."""
    params: list[Any] = ctx.command.get_params(ctx) if ctx is not None else []
    return [flag for param in params for flag in (*param.opts, *param.secondary_opts) if flag.startswith("--")]
