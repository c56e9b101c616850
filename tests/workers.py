"""How the tests are dealt out to several workers of pytest-xdist, and what is said of those that run twice: hooks that
`tests/conftest.py` takes over.

Tests that share something expensive, a server or what is made once for their file, go to one worker as a group; all
others go one at a time to whoever is free. What they share is seen from the fixtures that they use. A server whose
tests together take longer than the rest of the suite runs in several workers (`COPIES`): its tests go file by file, and
first to the workers that have it. A worker that goes on to another group ends the servers that it leaves behind: an
idle Ray cluster takes a seventh of two cores.

Only workers collect the tests, and whoever deals them out knows no more than their names: the first worker that has
collected them leaves the groups in a file. (The way of `--dist loadgroup`, to write them into the names, is blocked
since pytest 9.2: https://github.com/pytest-dev/pytest-xdist/issues/1386)
"""

from __future__ import annotations

import functools
import inspect
import json
import tempfile
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

LONG = (
    *("slurm", "containers", "ray", "kubernetes", "skypilot", "aws_batch", "sagemaker", "kubeflow", "distributed"),
    *("flows", "reliability", "images", "engine", "gates", "cli"),
)
"""Folders with long tests, the longest first: whoever begins with those is not left with one at the end."""
COPIES = {
    "tests.servers.slurm.slurm_cluster": 2,
    "tests.servers.raycluster.ray_cluster": 1,
    "tests.kubernetes.server.cluster.cluster_server": 2,
}
"""Servers that run in several workers, and in how many while there are other tests."""
PROGRAMS = {"project", "lab", "module_lab", "script", "module_script"}
"""Fixtures of folders with programs, each of which is started as a process and starts others."""
GROUPS = "stoker_groups"
"""What a worker is told: the file for the groups."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without `--long` tests marked `long` are left out, and with `--cheap` all that cost much. In a worker: groups
    before single tests, and long ones before short ones."""
    long, cheap = config.getoption("--long", False), config.getoption("--cheap", False)
    left_out = [item for item in items if (not long and item.get_closest_marker("long")) or (cheap and _costs(item))]
    items[:] = [item for item in items if item not in set(left_out)]
    config.hook.pytest_deselected(items=left_out)
    told: dict[str, Any] = getattr(config, "workerinput", {})
    if GROUPS not in told:
        return
    groups = grouped(items)
    config.stash[_SERVERS] = servers_of(groups)
    items.sort(key=lambda item: (item not in groups, _rank(item), item.get_closest_marker("slow") is None))
    file = Path(told[GROUPS])
    if not file.exists():
        servers = {groups[item]: server for item in items for server in _servers(item) if server in COPIES}
        document = {"groups": {item.nodeid: group for item, group in groups.items()}, "servers": servers}
        whole = file.with_suffix(f".{told['workerid']}")
        whole.write_text(json.dumps(document))
        whole.replace(file)


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
    dealt = functools.cache(lambda: json.loads(_file(config).read_text()))
    holders: dict[str, set[Any]] = {server: set() for server in COPIES}

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return str(dealt()["groups"].get(nodeid, nodeid))

        def _assign_work_unit(self, node: Any) -> None:
            servers = dealt()["servers"]
            scope = next_scope(self.workqueue, servers, holders, node)
            if scope in servers:
                holders[servers[scope]].add(node)
            self.workqueue.move_to_end(scope, last=False)
            super()._assign_work_unit(node)

    return ByGroup(config, log)


def next_scope(queue: Iterable[str], servers: Mapping[str, str], holders: Mapping[str, set[Any]], worker: Any) -> str:
    """The first group in the queue that a worker may have: the group's server is nobody's whose copies all run
    elsewhere. When no such group is left, the first of all: one more server is better than a worker without work."""
    first = ""
    for scope in queue:
        first = first or scope
        having = holders[servers[scope]] if scope in servers else set()
        if worker in having or scope not in servers or len(having) < COPIES[servers[scope]]:
            return scope
    return first


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


def servers_of(groups: Mapping[pytest.Item, str]) -> dict[pytest.Item, dict[str, Any]]:
    """For each test of a group the servers that its group uses, by name, with the fixture of each."""
    servers: dict[str, dict[str, Any]] = {}
    for item, group in groups.items():
        fixtures: dict[str, Any] = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
        found = {server: fixtures[server.rpartition(".")[2]][-1] for server in _servers(item)}
        servers.setdefault(group, {}).update(found)
    return {item: servers[group] for item, group in groups.items()}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """In a worker: end the servers of a group when a test follows whose group does not use them."""
    result = yield
    servers = item.config.stash.get(_SERVERS, {})
    if nextitem is not None:
        for server in servers.get(item, {}).keys() - servers.get(nextitem, {}).keys():
            servers[item][server].finish(item._request)  # type: ignore[attr-defined]
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """In a worker: a server that says by `gone()` that it has ended is started anew."""
    for definition in item.config.stash.get(_SERVERS, {}).get(item, {}).values():
        made = definition.cached_result
        if made is not None and hasattr(made[0], "gone") and made[0].gone():
            definition.finish(item._request)  # type: ignore[attr-defined]


def _costs(item: pytest.Item) -> bool:
    """Whether a test is marked slow, runs somebody's programs, or shares something expensive and is no gate."""
    fixtures: dict[str, Any] = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
    shares = _shared(item) and not item.nodeid.startswith("tests/gates/")
    return bool(item.get_closest_marker("slow") or PROGRAMS & fixtures.keys() or shares)


def _shared(item: pytest.Item) -> list[str]:
    """What a test shares: its file's fixtures, servers, and what a mark `xdist_group` names."""
    file = item.nodeid.partition("::")[0]
    shared = [str(mark.args[0]) for mark in item.iter_markers("xdist_group")]
    fixtures: dict[str, Any] = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
    if any(definitions[-1].scope == "module" for definitions in fixtures.values()):
        shared.append(file)
    return [*shared, *(file if server in COPIES else server for server in _servers(item))]


def _servers(item: pytest.Item) -> list[str]:
    """The servers that a test uses. What a session has to end is a server; what it only makes is cheap. A fixture with
    an underscore is for all tests."""
    fixtures: dict[str, Any] = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
    return [
        f"{definitions[-1].func.__module__}.{name}"
        for name, definitions in fixtures.items()
        if definitions[-1].scope == "session"
        and inspect.isgeneratorfunction(definitions[-1].func)
        and not name.startswith("_")
    ]


def _rank(item: pytest.Item) -> int:
    folder = item.nodeid.partition("/")[2].partition("/")[0]
    return LONG.index(folder) if folder in LONG else len(LONG)


_FOLDER = pytest.StashKey[Path]()
_SERVERS = pytest.StashKey[dict[pytest.Item, dict[str, Any]]]()


def _file(config: pytest.Config) -> Path:
    """The file for the groups, in a folder that goes when the process ends that deals out."""
    if _FOLDER not in config.stash:
        folder = tempfile.TemporaryDirectory(prefix="stoker-groups-")
        config.add_cleanup(folder.cleanup)
        config.stash[_FOLDER] = Path(folder.name)
    return config.stash[_FOLDER] / "groups.json"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show how a test failed that passed when it ran once more: nobody else keeps it."""
    failed = {report.nodeid for report in terminalreporter.stats.get("failed", ())}
    tried = [one for one in terminalreporter.stats.get("rerun", ()) if one.nodeid not in failed]
    if tried:
        terminalreporter.section("FAILED AT FIRST", sep="=", yellow=True)
    for report in tried:
        terminalreporter.section(report.nodeid, sep="_", yellow=True)
        terminalreporter.line(report.longreprtext)
