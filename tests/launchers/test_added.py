"""A launcher of another distribution, added as docs/dev/adding/launcher.md says and used in every way there is."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
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

BLOCK = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def site(tmp_path: Path, repository: Path) -> Path:
    """A folder with the page's distribution in it, as an installer leaves it."""
    page = (repository / "docs" / "dev" / "adding" / "launcher.md").read_text(encoding="utf-8")
    entry = re.search(r'^\[project\.entry-points\."(.+)"\]\n(\w+) = "(.+)"$', page, re.MULTILINE)
    assert entry is not None
    folder = tmp_path / "site"
    about = folder / "fleet-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: fleet\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{entry[1]}]\n{entry[2]} = {entry[3]}\n")
    for name, text in BLOCK.findall(page):
        (folder if name == "fleet.py" else tmp_path).joinpath(name).write_text(text)
    return folder


@pytest.fixture
def lab(tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """A project that has the page's scripts, where the distribution is installed."""
    monkeypatch.setenv("PYTHONPATH", str(site))
    made = Lab(tmp_path)
    for name in ("train.py", "flow.py"):
        made.write(name, (tmp_path / name).read_text())
    yield made
    made.close()


@pytest.fixture
def fleet(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, with its distribution known to this process."""
    monkeypatch.syspath_prepend(site)
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
