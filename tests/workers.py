"""How the tests are dealt out to several workers of pytest-xdist: hooks that `tests/conftest.py` takes over.

Tests that share something expensive, a server or what is made once for their file, go to one worker as a group; all
others go one at a time to whoever is free. What they share is seen from the fixtures that they use.

Only workers collect the tests, and whoever deals them out knows no more than their names: the first worker leaves the
groups in a file. (The way of `--dist loadgroup`, to write them into the names, is blocked since pytest 9.2:
https://github.com/pytest-dev/pytest-xdist/issues/1386)
"""

from __future__ import annotations

import functools
import inspect
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

LONG = ("slurm", "containers", "ray", "distributed", "images", "reliability", "engine", "flows", "gates", "cli")
"""Folders with long tests, the longest first: whoever begins with those is not left with one at the end."""
GROUPS = "stoker_groups"
"""What a worker is told: the file for the groups."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a worker: groups before single tests, and long ones before short ones."""
    told: dict[str, Any] = getattr(config, "workerinput", {})
    if GROUPS not in told:
        return
    groups = grouped(items)
    items.sort(key=lambda item: (item not in groups, _rank(item), item.get_closest_marker("slow") is None))
    if told["workerid"] == "gw0":
        Path(told[GROUPS]).write_text(json.dumps({item.nodeid: group for item, group in groups.items()}))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker where to leave the groups; only `--dist loadgroup` asks for them."""
    config: pytest.Config = node.config
    if config.getoption("dist") == "loadgroup":
        node.workerinput[GROUPS] = str(_file(config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Who deals out the tests: by group, in the workers' order."""
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    config.option.loadscopereorder = False  # a group with many tests is not one that takes long
    groups = functools.cache(lambda: json.loads(_file(config).read_text()))

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return str(groups().get(nodeid, nodeid))

    return ByGroup(config, log)


def grouped(items: list[pytest.Item]) -> dict[pytest.Item, str]:
    """The group of each test that has one. Two that share nothing are in one group if a third shares with both."""
    above: dict[str, str] = {}

    def group(name: str) -> str:
        while name in above:
            name = above[name]
        return name

    shared = {item: names for item in items if (names := _shared(item))}
    for first, *others in shared.values():
        for other in others:
            if group(other) != group(first):
                above[group(other)] = group(first)
    return {item: group(names[0]) for item, names in shared.items()}


def _shared(item: pytest.Item) -> list[str]:
    """What a test shares: its file's fixtures, servers, and what a mark `xdist_group` names."""
    found = [str(mark.args[0]) for mark in item.iter_markers("xdist_group")]
    fixtures: dict[str, Any] = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
    for name, definitions in fixtures.items():
        scope, made = definitions[-1].scope, definitions[-1].func
        if scope == "module":
            found.append(item.nodeid.partition("::")[0])
        # What a session has to end is a server; what it only makes is cheap. One with an underscore is for all tests.
        elif scope == "session" and inspect.isgeneratorfunction(made) and not name.startswith("_"):
            found.append(f"{made.__module__}.{name}")
    return found


def _rank(item: pytest.Item) -> int:
    folder = item.nodeid.partition("/")[2].partition("/")[0]
    return LONG.index(folder) if folder in LONG else len(LONG)


_FOLDER = pytest.StashKey[Path]()


def _file(config: pytest.Config) -> Path:
    """The file for the groups, in a folder that goes when the process ends that deals out."""
    if _FOLDER not in config.stash:
        folder = tempfile.TemporaryDirectory(prefix="stoker-groups-")
        config.add_cleanup(folder.cleanup)
        config.stash[_FOLDER] = Path(folder.name)
    return config.stash[_FOLDER] / "groups.json"
