"""A launcher of another distribution, added as docs/dev/adding/launcher.md says and used in every way there is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.engine.conftest import Lab

from stoker.backends.base import machine
from stoker.core.errors import SettingsError
from stoker.core.plugins import entry_points
from stoker.core.resources import ResourceSettings
from stoker.launchers.base import Launcher
from stoker.launchers.options import check, parse_launch, resolve_launch
from stoker.launchers.registry import LAUNCHERS
from stoker.settings.options import layer_of


@pytest.fixture
def lab(follow: Callable[[str], Lab]) -> Lab:
    """A project that has the page's scripts, where the distribution is installed."""
    return follow("launcher")


@pytest.fixture
def fleet(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, with its distribution known to this process."""
    monkeypatch.syspath_prepend(tmp_path / "site")
    entry_points.cache_clear()
    import fleet  # type: ignore[import-not-found]

    yield fleet
    entry_points.cache_clear()
    del sys.modules["fleet"]


def value_of(lab: Lab, step: str) -> Any:
    return lab["training"].steps[step].output.load()


def test_steps_run_in_its_ranks(lab: Lab) -> None:
    lab.run("train.py")
    assert value_of(lab, "train") == ["rank 0 of 2", "rank 1 of 2"]
    assert value_of(lab, "settle") == "settled by 2"
    lab.run(
        *("stoker", "run", "train.py", "--set", "steps.settle.launch.launcher=fleet"),
        *("--set", "steps.settle.launch.ranks=3"),
    )
    assert value_of(lab, "settle") == "settled by 3"


def test_a_flow_has_its_decorator_and_its_word(lab: Lab) -> None:
    text = lab.run("flow.py", "run")
    assert "flow rank 0" in text
    assert "flow rank 1" in text


def test_typos_on_the_command_line_are_refused(lab: Lab) -> None:
    text = lab.run("stoker", "run", "train.py", "--set", "steps.settle.launch.launcher=fleat", code=2)
    assert "there is no launcher called 'fleat'" in text
    assert "did you mean 'fleet'?" in text
    text = lab.run("stoker", "run", "train.py", "--set", "steps.settle.launch.ordr=rising", code=2)
    assert "fleet has no argument 'ordr'" in text
    assert "did you mean 'order'?" in text


def test_what_is_written_is_checked_by_its_table(fleet: Any) -> None:
    assert isinstance(LAUNCHERS.load("fleet"), Launcher)
    assert "fleet" in LAUNCHERS.names()
    by_value = layer_of("x", {"launch": fleet.Fleet(ranks=2, order="rising")}).values["launch"]
    by_words = layer_of("x", {"launch": {"launcher": "fleet", "ranks": "2", "order": "rising"}}).values["launch"]
    assert by_value == by_words
    with pytest.raises(SettingsError, match=r"fleet has no argument 'rank'.*did you mean 'ranks'"):
        fleet.Fleet(rank=2)
    with pytest.raises(SettingsError, match="'rizing' is not one of rising, falling"):
        parse_launch({"launcher": "fleet", "order": "rizing"})
    with pytest.raises(SettingsError, match="first is not yours to give: each node learns its place"):
        fleet.Fleet(first=1)
    with pytest.raises(SettingsError, match=r"no launcher called 'fleat'.*did you mean 'fleet'"):
        parse_launch("fleat")


def test_its_checks_are_heard(fleet: Any) -> None:
    launch = resolve_launch(parse_launch(fleet.Fleet(order="rising")))
    assert launch is not None
    findings = list(check(launch, ResourceSettings(nodes=2), where="step 'train'"))
    assert [(finding.code, finding.what) for finding in findings] == [("STK135", "order='rising' on 2 nodes")]


def test_a_missing_package_is_named_with_what_brings_it(fleet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = resolve_launch(parse_launch("fleet"))
    assert machine._missing(launch) is None
    needy = attrs.evolve(fleet.LAUNCHER, package="package_that_nobody_has", requirement="fleet[gpu]")
    monkeypatch.setattr(fleet, "LAUNCHER", needy)
    assert machine._missing(launch) == ("the package 'package_that_nobody_has'", "pip install 'fleet[gpu]'")
