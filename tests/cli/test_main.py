"""The command line as a whole: help, mistakes, exit codes, and a machine that gives less than usual."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib
import shlex
from concurrent.futures import ThreadPoolExecutor

from stoker.cli import main as cli
from stoker.cli.main import COMMANDS, invoke
from stoker.core import plugins
from stoker.core.errors import PreflightError, RunFailed, StoreError, UsageError


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--help"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    for name, (_, told) in COMMANDS.items():
        assert f"  {name} " in printed.out
        assert told.split()[0] in printed.out


@pytest.fixture
def hours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The walk-through of docs/dev/adding/command.md, installed beside Stoker."""
    page = Path(__file__).parents[2] / "docs" / "dev" / "adding" / "command.md"
    toml, module = (part.partition("```")[0] for part in re.split(r"```(?:toml|python)\n", page.read_text())[1:])
    (tmp_path / "stoker_hours.py").write_text(module)
    info = tmp_path / "stoker_hours-1.dist-info"
    info.mkdir()
    project = tomllib.loads(toml)["project"]
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = project["entry-points"]["stoker.commands"]
    (info / "entry_points.txt").write_text(
        "[console_scripts]\nother = a:b\n\n[stoker.commands]\n"
        + "".join(f"{name} = {target}\n" for name, target in points.items())
        + "broken = stoker_hours:nothing\nruns = stoker_hours:command\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    plugins.entry_points.cache_clear()
    yield
    plugins.entry_points.cache_clear()
    sys.modules.pop("stoker_hours", None)


@pytest.mark.usefixtures("hours")
def test_a_command_of_another_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--help"]) == 0
    printed = capsys.readouterr()
    assert "Commands of other packages" in printed.out and "hours   of the package stoker_hours" in printed.out
    assert "stoker_hours" not in sys.modules, "help loads no command"
    assert invoke(["hours", "--help"]) == 0
    assert "Usage: stoker hours" in capsys.readouterr().out
    assert invoke(["hours", "training"]) == 2
    assert "no run of 'training' is kept\n  fix: stoker runs" in capsys.readouterr().err
    assert invoke(["huors"]) == 2
    assert "did you mean 'hours'?" in capsys.readouterr().err
    assert invoke(["broken"]) == 2
    assert "the command 'broken' of the package 'stoker-hours' cannot be loaded" in capsys.readouterr().err
    assert invoke(["runs", "--help"]) == 0
    assert "hours" not in capsys.readouterr().out, "a name of Stoker's own is Stoker's"


def test_a_command_of_the_table_needs_no_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins.entry_points.cache_clear()
    monkeypatch.setattr(metadata, "entry_points", lambda **_: pytest.fail("the distributions were scanned"))
    monkeypatch.setattr(cli, "third_party_commands", lambda: pytest.fail("the distributions were listed"))
    assert invoke(["runs", "--help"]) == 0


def test_nothing_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([]) == 0
    assert "Usage: stoker" in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([name, "--help"]) == 0
    printed = capsys.readouterr()
    assert f"Usage: stoker {name}" in printed.out
    assert printed.err == ""


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--version"]) == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["rnu"], "there is no command 'rnu', did you mean 'run'"),
        (["runs", "--limt", "3"], "there is no option '--limt', did you mean '--limit'?"),
        (["--versoin"], "there is no option '--versoin', did you mean '--version'?"),
        (["runs", "--limit", "x"], "invalid value for '--limit'"),
        (["runs", "--status", "done"], "no run is ever 'done'"),
        (["runs", "--since", "soon"], "is not a duration"),
        (["show"], "missing argument 'RUN'\n  fix: `stoker show latest` for the newest run; `stoker runs` lists all"),
        (["show", "latest"], "there are no runs yet"),
        (["show", "x"], "there is no run 'x'"),
        (["run"], "no file is named, and no file here has a pipeline"),
        (["run", "--lr", "1", "train.py"], "write train.py --lr"),
        (["run", "nowhere.py"], "there is no file nowhere.py"),
        (["run", "nowhere"], "there is no file and no module nowhere"),
        (["run", "."], ". is a folder"),
        (["runs", "--stack", "gpu"], "there is no stack called 'gpu'"),
        (["gc", "--older-than", "-1d"], "is not a duration"),
    ],
)
def test_mistakes(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(argv) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert message in printed.err
    assert "Traceback" not in printed.err


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let a command raise something."""

    def put(error: BaseException) -> None:
        def own() -> None:
            raise error

        # As code of Stoker's: what a file of the user's raises is the user's.
        own.__code__ = own.__code__.replace(co_filename=plugins.__file__)
        command = click.Command("runs", callback=own)
        monkeypatch.setattr(plugins, "resolve", lambda target, extra: command)

    return put


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RunFailed("a step failed"), 1),
        (UsageError("wrong"), 2),
        (PreflightError("refused"), 3),
        (StoreError("gone"), 4),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
    ],
)
def test_exit_codes(error: BaseException, code: int, raising: Any, capsys: pytest.CaptureFixture[str]) -> None:
    raising(error)
    assert invoke(["runs"]) == code
    assert "Traceback" not in capsys.readouterr().err


def test_an_error_says_where_and_how_to_mend_it(raising: Any, capsys: pytest.CaptureFixture[str]) -> None:
    raising(UsageError("there is no GPU", where="train.py:14", fix="buy one"))
    invoke(["runs"])
    assert capsys.readouterr().err == "error: train.py:14: there is no GPU\n  fix: buy one\n"


@pytest.mark.parametrize("how", ["option", "behind", "variable"])
def test_a_traceback_is_shown_when_asked_for(
    how: str, raising: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    raising(UsageError("wrong"))
    if how == "variable":
        monkeypatch.setenv("STOKER_TRACEBACK", "1")
    invoke({"option": ["--traceback", "runs"], "behind": ["runs", "--traceback"], "variable": ["runs"]}[how])
    printed = capsys.readouterr().err
    assert "Traceback (most recent call last)" in printed
    assert printed.endswith("error: wrong\n")


def test_a_defect_of_ours_writes_a_crash_report(
    raising: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    raising(ZeroDivisionError("oops"))
    assert invoke(["runs"]) == 4
    printed = capsys.readouterr().err
    assert (
        "error: ZeroDivisionError inside Stoker, which should not happen: 'oops'\n  fix: report what is in" in printed
    )
    assert "Traceback" not in printed
    report = Path(printed.rpartition(" in ")[2].strip())
    assert report.stat().st_mode & 0o777 == 0o600
    assert "\nstoker runs\n" in report.read_text() and "ZeroDivisionError: oops" in report.read_text()
    assert invoke(["--traceback", "runs"]) == 4
    assert "Traceback (most recent call last)" in capsys.readouterr().err
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert invoke(["runs"]) == 4
    printed = capsys.readouterr().err
    assert "ZeroDivisionError: oops" in printed and "report the lines above" in printed


def test_a_reader_that_goes_away_is_no_error(stoker: Any) -> None:
    for argv in (["--help"], ["doctor"]):
        read, write = os.pipe()
        os.close(read)
        try:
            program = [sys.executable, "-c", "from stoker.cli.main import main; main()", *argv]
            ended = subprocess.run(
                program, cwd=stoker.project.folder, stdout=write, stderr=subprocess.PIPE, check=False
            )
        finally:
            os.close(write)
        assert (ended.returncode, ended.stderr) == (141, b"")


def test_nothing_is_written_by_looking(stoker: Any, stoker_home: Path) -> None:
    stoker("--help")
    stoker("run", "train.py", "--help")
    stoker("doctor")
    stoker("stacks")
    assert not stoker_home.exists() or not os.listdir(stoker_home)


WORDS = {
    "init": "init made",
    "run": "run train.py",
    "plan": "plan train.py",
    "build": "build train.py",
    "image": "image inspect :",
    "show": "show latest",
    "why": "why latest train",
    "gpu": "gpu latest",
    "advise": "advise latest",
    "card": "card latest train",
    "logs": "logs latest",
    "artifacts": "artifacts latest",
    "cancel": "cancel latest",
    "resume": "resume latest",
    "rerun": "rerun latest",
    "explain": "explain STK203",
    "completion": "completion bash",
    "config": "config schema",
    "migrate": "migrate train.py",
    "store": "store check",
    "ui": "ui --host nowhere.invalid",  # a server would stay
}
EXTREMES = {
    "no working directory": "mkdir gone && cd gone && rmdir ../gone && {command}",
    "stdout closed": "{command} >&-",
    "all closed": "{command} <&- >&- 2>&-",
    "stdout full": "{command} > /dev/full",
    "20 files": "ulimit -n 20; {command}",
    "no home": "unset HOME STOKER_HOME; {command}",
    "ASCII": "export LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0; {command}",
}
NEEDED = ("run", "show", "doctor")
"""Commands that are tried with every extreme; the others with one each, in turn."""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="has no /dev/full")
def test_a_command_that_gets_too_little_says_so(stoker: Any) -> None:
    stoker("run", "train.py", "--quiet")
    # What the script prints itself is its own: on a full disk that raises in its line.
    text = (stoker.project.folder / "train.py").read_text().replace('print("status", run.status)', "run.status")
    program = f"{shlex.quote(sys.executable)} -c 'from stoker.cli.main import main; main()'"
    lines = {("script", title): f"{shlex.quote(sys.executable)} train.py" for title in EXTREMES}
    for number, name in enumerate(COMMANDS):
        for title in EXTREMES if name in NEEDED else [list(EXTREMES)[number % len(EXTREMES)]]:
            lines[name, title] = f"{program} {WORDS.get(name, name)}"

    def attempt(case: tuple[str, str]) -> tuple[int, str]:
        folder = stoker.project.folder / "-".join(case).replace(" ", "-")
        folder.mkdir()
        (folder / "train.py").write_text(text)
        line = EXTREMES[case[1]].format(command=lines[case])
        env = {"HOME": str(folder)} if case[1] != "no home" else {}
        ended = stoker.project.command(["sh", "-c", f"cd {shlex.quote(str(folder))}; {line}"], code=None, env=env)
        return ended.returncode, ended.stdout + ended.stderr

    with ThreadPoolExecutor(2) as pool:
        for case, (code, words) in zip(lines, pool.map(attempt, lines), strict=True):
            assert code in (0, 1, 2, 3, 4), (case, code, words)
            assert "Traceback" not in words and "inside Stoker" not in words, (case, words)
            assert code == 0 or words or case[1] == "all closed", (case, code)
            if case[1] == "stdout full" and case[0] in ("show", "doctor"):
                assert code == 4 and "stdout cannot be written" in words, (case, code, words)
