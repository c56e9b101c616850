"""Command lines for pipelines: what a word means is the signature's business."""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Optional

import pytest

from stoker.core.errors import ParameterError
from stoker.core.request import REQUEST, NotTheDriver, RunRequest
from stoker.pipelines.scripts import parse
from stoker.run import commandline
from stoker.run.commandline import COMMAND_LINE, RUN_OPTIONS, CommandLine, request, split
from stoker.run.start import pipeline


class Mode(enum.Enum):
    FAST = "fast"
    EXACT = "exact"


def training(
    data: str,
    *,
    lr: float = 0.1,
    n_epochs: int = 3,
    fast: bool = False,
    rates: list[float] = [0.1],  # noqa: B006 never changed
    limit: Optional[int] = None,  # as older code writes it
    mode: Mode = Mode.FAST,
    kind: Literal["a", "b"] = "a",
    pair: tuple[int, str] = (1, "x"),
    out: Path = Path("out"),
    maybe: bool | None = None,
    anything=1,
    plain_flag=False,
):
    """Train a model.

    More about it.
    """


PIPELINE = pipeline(training)


def parameters(*argv: str) -> dict[str, Any]:
    found, rest = parse(PIPELINE.signature, argv)
    assert rest == []
    return found


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--lr", "0.01"], {"lr": 0.01}),
        (["--lr=0.01"], {"lr": 0.01}),
        (["--lr", "-1"], {"lr": -1.0}),
        (["--lr=1", "--lr=2"], {"lr": 2.0}),
        (["--n-epochs", "4"], {"n_epochs": 4}),
        (["--n_epochs", "4"], {"n_epochs": 4}),
        (["--data", "a b"], {"data": "a b"}),
        (["--data="], {"data": ""}),
        (["--data=--strange"], {"data": "--strange"}),
        (["--data", "a=b"], {"data": "a=b"}),
        (["--fast"], {"fast": True}),
        (["--fast", "--lr", "1"], {"fast": True, "lr": 1.0}),
        (["--no-fast"], {"fast": False}),
        (["--no_fast"], {"fast": False}),
        (["--fast", "false"], {"fast": False}),
        (["--fast", "TRUE"], {"fast": True}),
        (["--fast=no"], {"fast": False}),
        (["--maybe"], {"maybe": True}),
        (["--maybe=none"], {"maybe": None}),
        (["--plain-flag"], {"plain_flag": True}),
        (["--no-plain-flag"], {"plain_flag": False}),
        (["--rates", "0.1,0.3"], {"rates": [0.1, 0.3]}),
        (["--rates", "[0.1, 0.3]"], {"rates": [0.1, 0.3]}),
        (["--rates", "0.1", "0.3", "--lr", "1"], {"rates": [0.1, 0.3], "lr": 1.0}),
        (["--rates", "0.1", "--rates", "0.3"], {"rates": [0.1, 0.3]}),
        (["--pair", "4,b"], {"pair": (4, "b")}),
        (["--limit", "7"], {"limit": 7}),
        (["--limit", "none"], {"limit": None}),
        (["--mode", "EXACT"], {"mode": Mode.EXACT}),
        (["--mode", "exact"], {"mode": Mode.EXACT}),
        (["--kind", "b"], {"kind": "b"}),
        (["--out", "there"], {"out": Path("there")}),
        (["--anything", "0.5"], {"anything": 0.5}),
        (["--anything", "word"], {"anything": "word"}),
        ([], {}),
    ],
)
def test_parameters(argv: list[str], expected: dict[str, Any]) -> None:
    assert parameters(*argv) == expected


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--learn"], "pipeline 'training' has no parameter for --learn"),
        (["--n-epoch", "4"], "did you mean '--n-epochs'"),
        (["--stak", "gpu"], "did you mean '--stack'"),
        (["--nothing-like-it"], "known: --anything"),
        (["--lr"], "--lr needs a value"),
        (["--lr", "--fast"], "write --lr=--fast if that is the value"),
        (["--lr", "abc"], "--lr: expected float, got 'abc'"),
        (["--lr="], "--lr: expected float, got ''"),
        (["--n-epochs", "1.5"], "--n-epochs: expected int"),
        (["--fast=maybe"], "--fast: expected bool"),
        (["--no-fast=1"], "--no-fast takes no value"),
        (["--no-lr"], "has no parameter for --no-lr"),
        (["--mode", "slow"], "--mode: expected one of FAST, EXACT"),
        (["--kind", "c"], "--kind: expected one of a, b"),
        (["--rates", "1,x"], "--rates: expected list"),
        (["--rates", "1", "x"], "--rates: expected float, got 'x'"),
    ],
)
def test_mistakes(argv: list[str], message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        parse(PIPELINE.signature, argv, [option.flag for option in RUN_OPTIONS])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("argv", "rest"),
    [
        (["data.csv"], ["data.csv"]),
        (["--fast", "data.csv"], ["data.csv"]),
        (["--lr", "1", "--", "--fast"], ["--fast"]),
        (["-v"], ["-v"]),
    ],
)
def test_what_is_no_option_is_left(argv: list[str], rest: list[str]) -> None:
    assert parse(PIPELINE.signature, argv)[1] == rest


def test_other_keywords_go_to_a_pipeline_that_takes_them() -> None:
    def open_ended(lr: float, **others: int):
        pass

    assert parse(pipeline(open_ended).signature, ["--lr", "1", "--depth", "3"])[0] == {"lr": 1.0, "depth": 3}
    assert "any other --name value" in commandline.help_text(pipeline(open_ended), "stoker run t.py")


def test_options_are_taken_out_of_the_arguments() -> None:
    options, rest = split(
        ["--lr", "0.1", "--stack", "gpu", "--set", "a=1", "--set=b=2", "--no-cache", "--rates", "1", "2", "--quiet"],
        RUN_OPTIONS,
    )
    assert options == {"stack": "gpu", "set": ["a=1", "b=2"], "no-cache": True, "quiet": True}
    assert rest == ["--lr", "0.1", "--rates", "1", "2"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--stack"], "--stack needs a value"),
        (["--stack", "--lr"], "--stack needs a value"),
        (["--quiet=yes"], "--quiet takes no value"),
    ],
)
def test_mistaken_options(argv: list[str], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        split(argv, RUN_OPTIONS)


def test_a_request_has_everything() -> None:
    options, rest = split(
        """--stack gpu --config run.yaml --set cache=false --tag a --tag b --name nightly --failure-mode continue
        --no-cache --debug --quiet --lr 1""".split(),
        RUN_OPTIONS,
    )
    assert request(PIPELINE, RUN_OPTIONS, options, rest) == RunRequest(
        stack="gpu",
        parameters={"lr": 1.0},
        cache=False,
        debug=True,
        run_file="run.yaml",
        assignments=("cache=false", "failure_mode=continue"),
        tags=("a", "b"),
        name="nightly",
        quiet=True,
    )


def test_every_option_reaches_the_request() -> None:
    """A row of the table that `request` forgets would be silently ignored."""
    nothing = request(PIPELINE, RUN_OPTIONS, {}, [])
    for option in RUN_OPTIONS:
        options, _ = split([option.flag, "word"] if option.value else [option.flag], RUN_OPTIONS)
        assert request(PIPELINE, RUN_OPTIONS, options, []) != nothing, option


def test_a_positional_argument_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"unexpected argument 'data\.csv'"):
        request(PIPELINE, RUN_OPTIONS, {}, ["data.csv"])


@pytest.mark.parametrize(("flag", "name"), [("--name", "name"), ("--no-cache", "cache")])
def test_a_parameter_that_is_called_like_an_option(flag: str, name: str) -> None:
    def confusing(name: str = "", cache: bool = True):
        pass

    options, rest = split([flag, "x"] if name == "name" else [flag], RUN_OPTIONS)
    with pytest.raises(ParameterError) as caught:
        request(pipeline(confusing), RUN_OPTIONS, options, rest)
    assert f"--set parameters.{name}=" in str(caught.value)


def test_help() -> None:
    text = commandline.help_text(PIPELINE, "stoker run train.py")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[:3] == ["Usage: stoker run train.py [OPTIONS] [PARAMETERS]", "", "Train a model."]
    for line in (
        "Parameters of pipeline 'training':",
        "--data str required",
        "--lr float default: 0.1",
        "--n-epochs int default: 3",
        "--fast / --no-fast default: False",
        "--rates list[float] default: [0.1]",
        "--limit int | None default: None",
        "--anything VALUE default: 1",
        "--stack NAME where to run and to keep things, from stoker.toml",
    ):
        assert line in lines
    assert any(line.startswith("--mode") and line.endswith("default: FAST") for line in lines)
    assert any(line.startswith("--set KEY=VALUE") and line.endswith("may be given again") for line in lines)


def test_help_of_a_pipeline_without_anything() -> None:
    def bare():
        pass

    assert "Pipeline 'bare' takes none." in commandline.help_text(pipeline(bare), "stoker run t.py")


# The command line of a process


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a text as the program `python train.py …`; `ask` in it is what the command line asks of a pipeline."""

    def run(text: str, *argv: str) -> Any:
        path = tmp_path / "train.py"
        path.write_text(text, encoding="utf-8")
        main = ModuleType("__main__")
        main.__dict__.update(__file__=str(path), ask=_from_stoker())
        monkeypatch.setitem(sys.modules, "__main__", main)
        monkeypatch.setattr(sys, "argv", ["train.py", *argv])
        exec(compile(text, str(path), "exec"), main.__dict__)
        return main.__dict__["found"]

    return run


def _from_stoker() -> Any:
    """A function whose frame looks like one of Stoker's: one of this file would be taken for the caller."""
    names: dict[str, Any] = {"__name__": "stoker.pipelines.functional", "read_call": commandline.read_call}
    exec("def ask(): return read_call(pipeline, given)[1]", names)
    names.update(pipeline=PIPELINE, given={})
    return names["ask"]


def test_a_script_is_asked(script: Any) -> None:
    found = script("found = ask()", "--lr", "0.5", "--tag", "x")
    assert found == RunRequest(parameters={"lr": 0.5}, tags=("x",))


@pytest.mark.parametrize(
    "line",
    [
        "import argparse",
        "import click  # later",
        "from absl import app",
        "import sys; print(sys.argv)",
        "# arguments = parse_args()",
    ],
)
def test_a_script_that_reads_its_command_line_itself_is_left_alone(line: str, script: Any) -> None:
    text = f"if False:\n    {line}\n    pass\nfound = ask()"
    assert script(text, "--lr", "0.5") == RunRequest()


@pytest.mark.parametrize("argv", [[], ["data.csv"], ["-v"]])
def test_without_long_options_nothing_is_read(argv: list[str], script: Any) -> None:
    assert script("found = ask()", *argv) == RunRequest()


def test_only_the_script_itself_is_asked(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = ModuleType("some_helper")
    helper.__dict__["ask"] = _from_stoker()
    exec("def call(): return ask()", helper.__dict__)
    monkeypatch.setitem(sys.modules, "some_helper", helper)
    assert script("import some_helper\nfound = some_helper.call()", "--lr", "0.5") == RunRequest()


def test_a_request_that_is_there_wins(script: Any) -> None:
    asked = RunRequest(stack="gpu")
    token = REQUEST.set(asked)
    try:
        assert script("found = ask()", "--lr", "0.5") is asked
    finally:
        REQUEST.reset(token)


def test_a_mistake_ends_the_script(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        script("found = ask()", "--learn", "0.5")
    assert caught.value.code == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: pipeline 'training' has no parameter for --learn")
    assert printed.out == ""


def test_help_ends_the_script(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        script("found = ask()", "--help")
    assert caught.value.code == 0
    assert "Usage: python train.py" in capsys.readouterr().out


@pytest.fixture
def line() -> Any:
    """Set the command line that `stoker run` would set."""
    tokens = []

    def put(**fields: Any) -> CommandLine:
        found = CommandLine(**fields)
        tokens.append(COMMAND_LINE.set(found))
        return found

    yield put
    for token in reversed(tokens):
        COMMAND_LINE.reset(token)


def test_the_command_line_waits_for_the_pipeline(line: Any) -> None:
    given = line(words=["--stack", "gpu", "--lr", "2"])
    assert commandline.read_call(PIPELINE, {"data": "x"})[1] == RunRequest(stack="gpu", parameters={"lr": 2.0})
    assert given.calls == [(PIPELINE, {"data": "x"})]


def test_another_pipeline_than_the_wanted_one_ends_the_script(line: Any) -> None:
    given = line(wanted="other")
    with pytest.raises(NotTheDriver):
        commandline.read_call(PIPELINE, {})[1]
    assert given.calls == []


def test_planning_stops_at_the_call(line: Any) -> None:
    given = line(planning=True)
    with pytest.raises(NotTheDriver):
        commandline.read_call(PIPELINE, {"lr": 3})[1]
    assert given.calls == [(PIPELINE, {"lr": 3})]
