"""Paths: the content of a file or a folder, as a read-only copy somewhere else."""

from __future__ import annotations

import io
import os
import socket
import sys
import tarfile
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from stoker.core.artifact import StoredArtifact
from stoker.core.errors import SerializationError, StoreError
from stoker.store import artifacts
from stoker.store.blobs import Blobs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "model"
    (root / "deep" / "er").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "v1.").mkdir()
    (root / "v1." / "inside").write_text("dots")
    (root / "weights.bin").write_bytes(b"w" * 10_000)
    (root / "deep" / "ünïcode name").write_text("text")
    (root / "deep" / "er" / "run.sh").write_text("#!/bin/sh\n")
    (root / "deep" / "er" / "run.sh").chmod(0o755)
    (root / "link").symlink_to("deep/er/run.sh")
    (root / "deep" / "up").symlink_to("../weights.bin")
    (root / "deep" / "dangling").symlink_to("later.txt")
    return root


def tree(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        elif path.is_dir():
            found[name] = "folder"
        else:
            found[name] = (path.read_bytes(), bool(path.stat().st_mode & 0o100))
    return found


def test_a_file_comes_back_with_its_name(blobs: Blobs, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    for size in (5, 5_000_000):
        path.write_bytes(b"x" * size)
        saved = artifacts.save(path, blobs)
        loaded = artifacts.load(saved, blobs)
        assert isinstance(loaded, Path)
        assert loaded != path
        assert loaded.name == "model.onnx"
        assert loaded.read_bytes() == path.read_bytes()
        assert loaded.stat().st_mode & 0o777 == 0o444
        assert artifacts.load(saved, blobs) == loaded, "made once"
        assert saved.serializer == "path"


def test_the_same_content_under_two_names(blobs: Blobs, tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.sh"):
        (tmp_path / name).write_text("same")
    (tmp_path / "c.sh").chmod(0o755)
    saved = [artifacts.save(tmp_path / name, blobs, inline_limit=0) for name in ("a.txt", "b.txt", "c.sh")]
    assert len({one.digest for one in saved}) == 1
    loaded = [artifacts.load(one, blobs) for one in saved]
    assert [path.name for path in loaded] == ["a.txt", "b.txt", "c.sh"]
    assert [os.access(path, os.X_OK) and bool(path.stat().st_mode & 0o100) for path in loaded] == [False, False, True]


def test_a_change_of_the_original_is_not_seen(blobs: Blobs, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("before")
    saved = artifacts.save(path, blobs)
    path.write_text("after")
    assert artifacts.load(saved, blobs).read_text() == "before"


def test_a_folder_comes_back_as_it_was(blobs: Blobs, folder: Path) -> None:
    saved = artifacts.save(folder, blobs)
    loaded = artifacts.load(saved, blobs)
    assert loaded.name == "model"
    assert tree(loaded) == tree(folder)
    assert (loaded / "weights.bin").stat().st_mode & 0o222 == 0
    assert loaded.stat().st_mode & 0o222 == 0
    assert artifacts.load(saved, blobs) == loaded
    assert os.listdir(f"{blobs.folder}/tmp") == []


def test_a_folder_has_the_same_bytes_whenever_and_wherever_it_was_made(
    blobs: Blobs, folder: Path, tmp_path: Path
) -> None:
    first = artifacts.save(folder, blobs)
    for path in folder.rglob("*"):
        os.utime(path, (1.0, 1.0), follow_symlinks=False)
    (folder / "weights.bin").chmod(0o600)
    moved = folder.rename(tmp_path / "elsewhere")
    assert artifacts.save(moved, blobs).digest == first.digest


def test_relative_paths_mean_the_working_folder(blobs: Blobs, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.chdir(folder)
        assert artifacts.load(artifacts.save(Path("."), blobs), blobs).name == "model"
        assert artifacts.load(artifacts.save(Path("weights.bin"), blobs), blobs).stat().st_size == 10_000


def test_a_link_to_a_file_or_folder_is_what_it_points_at(blobs: Blobs, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "to-folder").symlink_to(folder)
    (tmp_path / "to-file").symlink_to(folder / "weights.bin")
    loaded = artifacts.load(artifacts.save(tmp_path / "to-folder", blobs), blobs)
    assert (loaded.name, tree(loaded)) == ("to-folder", tree(folder))
    assert artifacts.load(artifacts.save(tmp_path / "to-file", blobs), blobs).read_bytes() == b"w" * 10_000


def test_links_that_lead_out_are_followed(blobs: Blobs, folder: Path, tmp_path: Path) -> None:
    """As in a download cache, where a snapshot's files are links into a common heap."""
    heap = tmp_path / "heap"
    (heap / "sub").mkdir(parents=True)
    (heap / "blob").write_text("content")
    (heap / "sub" / "file").write_text("inside")
    (folder / "relative").symlink_to("../heap/blob")
    (folder / "absolute").symlink_to(heap / "blob")
    (folder / "whole").symlink_to(heap)
    (folder / "own but absolute").symlink_to(folder / "weights.bin")
    loaded = artifacts.load(artifacts.save(folder, blobs), blobs)
    assert not (loaded / "relative").is_symlink()
    assert (loaded / "relative").read_text() == (loaded / "absolute").read_text() == "content"
    assert (loaded / "whole" / "sub" / "file").read_text() == "inside"
    assert (loaded / "own but absolute").read_bytes() == b"w" * 10_000
    assert (loaded / "link").is_symlink()


@pytest.mark.parametrize(
    ("target", "words"),
    [("/nowhere", "does not exist"), ("../../gone", "does not exist"), ("/", "a folder around it")],
)
def test_links_that_cannot_be_followed_are_refused(blobs: Blobs, folder: Path, target: str, words: str) -> None:
    (folder / "deep" / "bad").symlink_to(target if target != "/" else folder)
    with pytest.raises(SerializationError, match=words) as caught:
        artifacts.save(folder, blobs)
    assert "bad" in str(caught.value)
    assert not list(blobs.digests())


def test_a_path_that_is_not_there_is_refused(blobs: Blobs, tmp_path: Path) -> None:
    with pytest.raises(SerializationError, match="No such file") as caught:
        artifacts.save({"a": tmp_path / "gone"}["a"], blobs)
    assert "str(path)" in caught.value.fix


def test_sockets_are_refused(blobs: Blobs, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, socket.socket(socket.AF_UNIX) as opened:
        patch.chdir(folder)  # a socket's name is short
        opened.bind("sock")
    for path in (folder, folder / "sock"):
        with pytest.raises(SerializationError, match=r"sock.*a socket, a device or a pipe"):
            artifacts.save(path, blobs)


def test_a_file_that_shrinks_meanwhile_is_refused(blobs: Blobs, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.stat

    def stat(path: Any, **options: Any) -> Any:
        found = real(path, **options)
        # After the look at the whole folder, when the file is about to be copied.
        if str(path).endswith("weights.bin") and sys._getframe(1).f_code.co_name == "_pack":
            os.truncate(path, 10)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", stat)
        with pytest.raises(SerializationError, match="cannot be saved"):
            artifacts.save(folder, blobs)
    assert not list(blobs.digests())


def test_paths_inside_other_values_are_only_names(blobs: Blobs, tmp_path: Path) -> None:
    value = [tmp_path / "gone"]
    assert artifacts.load(artifacts.save(value, blobs), blobs) == value


def test_two_loads_at_once_make_one_copy(blobs: Blobs, folder: Path) -> None:
    import threading

    saved = artifacts.save(folder, blobs)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(artifacts.load(saved, blobs))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert os.listdir(f"{blobs.folder}/tmp") == []


def test_the_copy_goes_with_its_blob(blobs: Blobs, folder: Path) -> None:
    saved = artifacts.save(folder, blobs)
    loaded = artifacts.load(saved, blobs)
    blobs.delete(saved.digest)
    assert not loaded.exists()


def evil(blobs: Blobs, *entries: tarfile.TarInfo) -> StoredArtifact:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for entry in entries:
            tar.addfile(entry, io.BytesIO(b"x" * entry.size))
    data = content.getvalue()
    meta = {"name": "m", "kind": "folder"}
    return StoredArtifact(digest=blobs.put(data), serializer="path", type="pathlib.Path", size=len(data), meta=meta)


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, link, size
    return made


@pytest.mark.parametrize(
    "entries",
    [
        [entry("../out", size=1)],
        [entry("/tmp/stoker-test-out", size=1)],
        [entry("a/../../out", size=1)],
        [entry("link", tarfile.SYMTYPE, "../../out")],
        [entry("link", tarfile.SYMTYPE, "/etc")],
        [entry("d", tarfile.SYMTYPE, "."), entry("d/x", size=1)],
        [entry("hard", tarfile.LNKTYPE, "/etc/passwd")],
        [entry("device", tarfile.CHRTYPE)],
    ],
    ids=["up", "absolute", "up inside", "link up", "link absolute", "through a link", "hard link", "device"],
)
def test_a_tar_that_leads_out_is_refused(blobs: Blobs, entries: list[tarfile.TarInfo]) -> None:
    with pytest.raises(StoreError, match="leads out of it"):
        artifacts.load(evil(blobs, *entries), blobs)
    assert os.listdir(f"{blobs.folder}/tmp") == []
    assert not Path("/tmp/stoker-test-out").exists()


@pytest.mark.parametrize("name", ["../x", "", "..", "a/b"])
def test_a_name_that_leads_out_is_refused(blobs: Blobs, name: str) -> None:
    saved = StoredArtifact(
        digest=sha256(b"x").hexdigest(),
        serializer="path",
        type="p",
        size=1,
        meta={"name": name, "kind": "file"},
        inline=b"x",
    )
    with pytest.raises(StoreError, match="a name that is none"):
        artifacts.load(saved, blobs)


@pytest.mark.parametrize("path", ["/tmp", "/", "/tmp/../usr", "~", "TEMP"])
def test_folders_that_nobody_means_as_a_whole_are_refused(path: str, blobs: Blobs) -> None:
    folder = Path(tempfile.gettempdir() if path == "TEMP" else path).expanduser()
    with pytest.raises(SerializationError, match=r"cannot be saved: all that the machine") as caught:
        artifacts.save(folder, blobs)
    assert "str(path)" in caught.value.fix
    assert artifacts.load(artifacts.save(str(folder), blobs), blobs) == str(folder), "the advice, followed"


def test_what_is_no_file_is_found_before_anything_is_copied(blobs: Blobs, folder: Path) -> None:
    os.mkfifo(folder / "zz-last")
    before = sorted(Path(blobs.folder).rglob("*"))
    with pytest.raises(SerializationError, match="zz-last' is a socket, a device or a pipe"):
        artifacts.save(folder, blobs)
    assert sorted(Path(blobs.folder).rglob("*")) == before


def test_a_large_copy_is_announced(
    blobs: Blobs, folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts.save(folder, blobs)
    assert not caplog.records
    monkeypatch.setattr("stoker.store.serializers.files._LARGE", 9_000)
    for path, words in ((folder, "26 kB in 8 files"), (folder / "weights.bin", "10 kB in 1 file")):
        artifacts.save(path, blobs)
        assert f"copying {path} to the artifact store: {words}" in caplog.messages[-1]
