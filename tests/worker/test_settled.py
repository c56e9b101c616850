"""Which entries of a checkpoint folder count as complete, and when."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.worker.settled import DOUBT, QUIET, Completeness, FileState, FolderEntry, Renames, open_files, scan


def entry(name: str, *, written: float, size: int = 1) -> FolderEntry:
    state = FileState(path=name, inode=1, size=size, modified=int(written * 1e9), mode=0o600)
    return FolderEntry(name=name, files=(state,), newest=written, arrived=written)


def looked(*entries: FolderEntry, at: float) -> Completeness:
    state = Completeness()
    state.look({one.name: one for one in entries}, at)
    return state


def complete(state: Completeness, now: float, *, held_open: str = "") -> list[str]:
    return [one.name for one in state.complete(now, lambda one: one.name == held_open)]


def test_what_is_written_in_place_is_complete_once_it_is_left_alone() -> None:
    state = looked(entry("a", written=9.0), at=10.0)
    assert complete(state, 10.0 + QUIET - 0.1) == []
    assert complete(state, 10.0 + QUIET) == ["a"]
    state.look({"a": entry("a", written=20.0, size=2)}, 20.0)
    assert complete(state, 20.1) == []  # it is written anew


def test_a_file_that_is_open_for_writing_is_not_complete_however_quiet() -> None:
    state = looked(entry("log", written=1.0), entry("b", written=2.0), at=2.0)
    assert complete(state, 100.0, held_open="log") == ["b"]


def test_what_came_by_renaming_is_complete_at_once_but_never_before_what_it_may_refer_to() -> None:
    state = looked(entry("epoch-7", written=9.0), entry("latest", written=9.5), at=10.0)
    state.renamed("latest")
    assert complete(state, 10.1) == []
    assert complete(state, 10.0 + QUIET) == ["epoch-7", "latest"]
    state = looked(entry("latest", written=9.0), entry("log", written=9.5), at=10.0)
    state.renamed("latest")
    assert complete(state, 10.1) == ["latest"]


def test_a_folder_that_changed_after_its_renaming_counts_as_any_other() -> None:
    state = Completeness()
    state.look({"a": FolderEntry(name="a", files=(), folders=("a",), newest=5.0, arrived=4.0)}, 5.0)
    state.renamed("a")
    assert complete(state, 5.1) == []


def test_what_a_dead_process_may_have_left_half_written_is_never_complete() -> None:
    state = looked(entry("a", written=9.0), at=10.0)
    state.doubt(12.0)
    state.look({"a": entry("a", written=9.0), "b": entry("b", written=12.5)}, 12.5)
    state.renamed("b")
    assert complete(state, 100.0) == ["b"]  # a launcher has started the rank again
    assert complete(state, 12.0 + DOUBT - 0.1) == []  # the step may be about to end: "b" may refer to "a"
    state.look({"a": entry("a", written=200.0), "b": entry("b", written=12.5)}, 200.0)
    assert complete(state, 200.0 + QUIET) == ["b", "a"]


def test_an_end_in_order_completes_all() -> None:
    state = looked(entry("a", written=9.9), at=10.0)
    state.all_complete()
    assert complete(state, 10.0) == ["a"]


def test_the_entries_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-5" / "deep").mkdir(parents=True)
    (tmp_path / "checkpoint-5" / "deep" / "weights").write_text("1")
    (tmp_path / "latest").symlink_to("checkpoint-5")
    (tmp_path / "saved" / "0-a").mkdir(parents=True)
    (tmp_path / "saved" / "1-b").mkdir()
    entries = scan(str(tmp_path))
    assert sorted(entries) == ["checkpoint-5", "latest", "saved/0-a", "saved/1-b"]
    assert entries["checkpoint-5"].folders == ("checkpoint-5", "checkpoint-5/deep")
    assert entries["latest"].links == (("latest", "checkpoint-5"),)
    before = scan(str(tmp_path))
    (tmp_path / "checkpoint-5" / "deep" / "weights").write_text("23")
    after = scan(str(tmp_path))
    assert [name for name in after if after[name] != before[name]] == ["checkpoint-5"]
    assert scan(str(tmp_path / "nowhere")) == {}


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="there is no /proc")
def test_open_files_are_those_open_for_writing(tmp_path: Path) -> None:
    for name in ("read", "written"):
        (tmp_path / name).write_text("x")
    with (tmp_path / "read").open(), (tmp_path / "written").open("a"):
        assert open_files(str(tmp_path)) == {(tmp_path / "written").stat().st_ino}
    assert open_files(str(tmp_path)) == set()


def test_renaming_is_seen_and_a_write_after_it(tmp_path: Path) -> None:
    renames = Renames()
    if renames.descriptor < 0:
        pytest.skip("this system has no inotify")
    folder = str(tmp_path)
    renames.watch(folder)
    (tmp_path / "plain").write_text("x")
    for name in ("a", "b"):
        (tmp_path / ".new").write_text("x")
        os.rename(tmp_path / ".new", tmp_path / name)
    renames.read()
    assert renames.entries == {(folder, "a"), (folder, "b")}
    (tmp_path / "a").write_text("again")
    os.link(tmp_path / "b", tmp_path.parent / "held")  # what a copy does to it
    renames.read()
    assert renames.entries == {(folder, "b")}
    os.close(renames.descriptor)
