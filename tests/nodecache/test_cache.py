"""The cache of a node: damaged and interrupted downloads, many processes at once, room, and names of files."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, cast

import attrs
import fsspec
import pytest
from tests.nodecache.conftest import WEIGHTS
from tests.servers.aws import AwsServer
from tests.servers.hub import Hub, Repository
from tests.waiting import until

from stoker.core.data import StepData
from stoker.core.errors import BackendError, DiskFull, UsageError
from stoker.nodecache import cache as caches
from stoker.nodecache import program
from stoker.nodecache.cache import Cache
from stoker.nodecache.sources import DataListing, Source, SourceFile

NET = StepData(uri="hf://org/net")
HOLDER = """
import os, sys
from pathlib import Path
from stoker.core.data import StepData
from stoker.nodecache import program
from stoker.nodecache.cache import Cache

cache = Cache(Path(sys.argv[1]))
data = StepData(uri=sys.argv[2], identity=sys.argv[3], revision=sys.argv[4])
cache.hold(data.identity, lambda lock: program.bring(data, cache, os.environ, lock), lambda: print("waits", flush=True))
print("has", len((cache.files(data.identity) / "model.safetensors").read_bytes()), flush=True)
sys.stdin.read()
"""


def holder(folder: Path, data: StepData) -> subprocess.Popen[str]:
    """A process that brings data, or waits for it, and holds it until its standard input ends."""
    words = [str(folder), data.uri, data.identity, data.revision]
    command = [sys.executable, "-c", HOLDER, *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> list[str]:
    """What a process printed, once it has ended."""
    return process.communicate("")[0].splitlines()


def describe(data: StepData) -> StepData:
    return program.describe(data, os.environ)


@contextlib.contextmanager
def held(cache: Cache, data: StepData) -> Iterator[Path]:
    """Data in a cache, brought if need be."""

    def bring(lock: IO[str]) -> None:
        program.bring(data, cache, os.environ, lock)

    with cache.hold(data.identity, bring, lambda: None):
        yield cache.files(data.identity)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "node")


def test_what_arrives_cut_or_spoilt_is_brought_again(hub: Hub, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "_WAIT", 0.0)
    hub.faults = [("status", 503), ("status", 429), ("cut", 1), ("spoil", None), ("cut", 1_000_000), ("spoil", None)]
    data = describe(NET)
    with held(cache, data) as files:
        assert not hub.faults
        brought = {str(path.relative_to(files)): path.read_bytes() for path in files.rglob("*") if path.is_file()}
        assert brought == hub.repositories["models/org/net"].files
        assert not any(os.stat(path).st_mode & 0o222 for path in (files, *files.rglob("*")))

    hub.repositories["models/org/net"].files["new.json"] = b"new"
    hub.faults = [("spoil", None)] * 9
    with pytest.raises(BackendError, match=r"new\.json arrives damaged: its git is"), held(cache, describe(NET)):
        pass


def test_many_wait_for_one_and_a_killed_one_is_followed_by_another(
    hub: Hub, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "200")  # seconds; the hub is silent while it waits for the gate
    data = describe(NET)
    hub.asked.clear()
    hub.gate.clear()
    first = holder(cache.folder, data)
    until(lambda: any("safetensors" in path for path in hub.asked), "the first one downloads")
    others = [holder(cache.folder, data) for _ in range(6)]
    assert {process.stdout.readline() for process in others if process.stdout} == {"waits\n"}
    first.send_signal(signal.SIGKILL)
    said(first)
    hub.gate.set()
    has = f"has {len(WEIGHTS)}"
    assert [said(process)[-1] for process in others] == [has] * 6
    assert sum(n for path, n in hub.asked.items() if "lfs" in path) == 2, "the killed one's, and one for all others"


def test_what_is_used_stays_and_what_was_used_longest_ago_goes(hub: Hub, cache: Cache) -> None:
    size = 100_000
    for name in "abcd":
        hub.repositories[f"models/org/{name}"] = Repository({"w": os.urandom(size)}, frozenset({"w"}))
    a, b, c, d = (describe(StepData(uri=f"hf://org/{name}")) for name in "abcd")
    small = Cache(cache.folder, 2 * size + 10)
    for data in (a, b):
        with held(small, data):
            pass
    for seconds, data in enumerate((b, a)):
        os.utime(small.entry(data.identity) / caches.RECORD, (seconds, seconds))
    with held(small, b), held(small, c):
        assert small.record(a.identity) is None, "a was used later, but b is in use"
        with pytest.raises(DiskFull, match="all that is in use with it would pass its size of"), held(small, d):
            pass
    with held(small, d):
        assert small.record(b.identity) is None and small.record(c.identity) is not None
    assert sum(path.stat().st_size for path in small.folder.rglob("w")) <= 2 * size


def test_a_full_disk_is_said_before_anything_is_brought(hub: Hub, cache: Cache) -> None:
    data = describe(NET)
    with held(cache, data):
        pass
    listing = DataListing(files=[SourceFile("w", 2**60, "sha256:0")])
    with pytest.raises(DiskFull, match="for which its disk lacks"):
        cache.bring(cast("Source", None), listing, NET)
    assert cache.record(data.identity) is not None, "nothing is removed for what cannot be brought"


def test_what_somebody_changed_is_brought_again(hub: Hub, cache: Cache) -> None:
    data = describe(NET)
    with held(cache, data) as files:
        weights = files / "model.safetensors"
        os.chmod(weights, 0o644)
        weights.write_bytes(b"mine" + WEIGHTS[4:])
        os.utime(weights, (1, 1))  # an hour later would do, too
    with held(cache, data) as files:
        assert (files / "model.safetensors").read_bytes() == WEIGHTS


def test_what_changes_between_plan_and_step_is_not_taken_for_what_was_planned(hub: Hub, cache: Cache) -> None:
    planned = attrs.evolve(describe(NET), revision="")
    hub.repositories["models/org/net"].files["config.json"] = b"{1}"
    with pytest.raises(UsageError, match="is another one than when the run was planned"), held(cache, planned):
        pass


NAMES: Mapping[str, tuple[list[str], str]] = {
    "out": (["../up", "a"], "'../up', which cannot be a file"),
    "both": (["a", "a/b"], "'a', which cannot be a file"),
    "double": (["a//b"], "'a//b', which cannot be a file"),
    "empty": (["a"], "has no file to bring: its patterns leave none"),
}


@pytest.mark.parametrize("case", NAMES)
def test_names_that_are_no_files_here_are_refused(
    s3_server: AwsServer, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    for name, text in s3_server.environment.items():
        monkeypatch.setenv(name, text)
    bucket = s3_server.bucket(f"names-{case}").removeprefix("s3://")
    files = fsspec.filesystem("s3", skip_instance_cache=True)
    names, words = NAMES[case]
    for name in names:
        files.call_s3("put_object", Bucket=bucket, Key=f"day/{name}", Body=b"x")
    with pytest.raises(UsageError, match=words):
        describe(StepData(uri=f"s3://{bucket}/day/", exclude=("a",) if case == "empty" else ()))
