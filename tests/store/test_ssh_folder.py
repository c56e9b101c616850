"""Blobs in a folder behind a real OpenSSH server: fetched lazily, whole or absent, with the network cut in between."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.sshd import ALIAS, Sshd, ssh_server  # noqa: F401  # fixture

from stoker.core.errors import Away, BackendError, DamagedArtifact, DiskFull, SettingsError, StoreError
from stoker.core.hosts import folder_elsewhere
from stoker.ssh import connection, files, scripts
from stoker.ssh.connection import Answer
from stoker.ssh.files import SshFiles
from stoker.store import artifacts
from stoker.store.blobs import STALE, Blobs
from stoker.store.check import sweep
from stoker.store.store import open_store

STRANGE = """it's a "strange" `folder` \\ & ünï*"""


@pytest.fixture
def server(ssh_server: Sshd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Sshd:  # noqa: F811
    monkeypatch.setenv("STOKER_SSH_CONFIG", str(ssh_server.config))
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    return ssh_server


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of the other machine."""
    return tmp_path / STRANGE


@pytest.fixture
def far(server: Sshd, root: Path) -> Iterator[Blobs]:
    blobs = Blobs(f"ssh://{ALIAS}{root}")
    yield blobs
    blobs.close()


@pytest.fixture
def transport(server: Sshd, root: Path) -> Iterator[SshFiles]:
    opened = SshFiles(f"ssh://{ALIAS}{root}")
    yield opened
    opened.close()


def test_both_sides_open_the_same_folder(far: Blobs, root: Path) -> None:
    near = Blobs(str(root))
    small, large = os.urandom(1000), os.urandom(3_000_000)
    assert near.read(far.put(small)) == small
    assert near.read(far.put(large)) == large
    digest = near.put(small + b"from a node")
    assert far.size(digest) == 1011 and far.read(digest) == small + b"from a node"
    assert not far.exists("0" * 64)
    assert sorted(far.digests()) == sorted(near.digests())
    near.delete(digest)
    assert far.read(digest) == small + b"from a node", "the copy on this machine"
    assert not list(root.glob("tmp/*")), "nothing half-written stays"
    mode = os.stat(near.local_file(far.put(large))).st_mode
    assert mode & 0o777 == 0o400, "others may not read it"


def test_a_value_is_fetched_when_it_is_asked_for(server: Sshd, root: Path, tmp_path: Path) -> None:
    uri = f"ssh://{ALIAS}{root}"
    artifact = artifacts.save(list(range(100_000)), Blobs(str(root)))
    store = open_store(artifact_uri=uri, home=str(tmp_path / "laptop"))
    cache = Path(store.blobs.folder)
    assert not list(cache.glob("objects/*/*"))
    assert artifacts.load(artifact, store.blobs) == list(range(100_000))
    assert len(list(cache.glob("objects/*/*"))) == 1
    store.close()
    assert not server.sessions(), "no connection is left"
    assert artifacts.load(artifact, store.blobs) == list(range(100_000)), "from this machine"
    assert not server.sessions()


def test_what_is_damaged_over_there_is_not_loaded(far: Blobs, root: Path) -> None:
    near = Blobs(str(root))
    digest = near.put(os.urandom(2_000_000))
    path = Path(near.local_file(digest))
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:1_500_000])
    with pytest.raises(DamagedArtifact, match="is damaged: its bytes have the digest"):
        far.read(digest, 2_000_000)
    assert len(list(root.glob(f"quarantine/{digest}-*"))) == 1
    assert not list(root.glob("sums/*/*")), "the checksums of what was moved away"
    with pytest.raises(DamagedArtifact, match="is not in ssh://"):
        far.read(digest)


class CutSource(io.FileIO):
    """A file whose reader's connection is cut whenever another few megabytes were read."""

    def __init__(self, path: Path, server: Sshd, cuts: int) -> None:
        super().__init__(path, "rb")
        self.server, self.cuts, self.at, self.reads = server, cuts, 0, 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        self.at += 1
        if self.cuts and self.at == 4:
            self.server.cut()
            self.cuts, self.at = self.cuts - 1, 0
        return super().read(size) or b""


def test_an_upload_that_is_cut_goes_on_where_it_was(
    transport: SshFiles, server: Sshd, root: Path, tmp_path: Path
) -> None:
    data = os.urandom(20_000_000)
    (tmp_path / "data").write_bytes(data)
    with CutSource(tmp_path / "data", server, cuts=3) as source:
        transport.write(source, "objects/x", part="tmp/x-1")  # type: ignore[arg-type]
        assert source.cuts == 0
        assert source.reads < 3 * len(data) // connection.PIECE, "not from the beginning each time"
    assert (root / "objects" / "x").read_bytes() == data
    assert not list((root / "tmp").iterdir())


def test_a_download_that_is_cut_goes_on_where_it_was(transport: SshFiles, server: Sshd, root: Path) -> None:
    data = os.urandom(20_000_000)
    root.mkdir()
    (root / "x").write_bytes(data)
    received = bytearray()
    cuts = [4_000_000, 8_000_000, 12_000_000]

    def take(part: bytes) -> None:
        received.extend(part)
        if cuts and len(received) > cuts[0]:
            cuts.pop(0)
            server.cut()

    assert transport.read("x", take)
    assert not cuts and bytes(received) == data
    assert not transport.read("missing", take)


def test_another_writer_of_the_partial_file_is_noticed(transport: SshFiles, root: Path, tmp_path: Path) -> None:
    """As when an earlier connection, believed dead, still wrote what it had: the file is sent from its beginning."""
    data = os.urandom(6_000_000)
    (tmp_path / "data").write_bytes(data)

    class Disturbed(io.FileIO):
        disturbed = False

        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() > 3_000_000 and not self.disturbed:
                self.disturbed = True
                with (root / "tmp" / "x-1").open("ab") as part:
                    part.write(b"a late piece")
            return super().read(size) or b""

    with Disturbed(tmp_path / "data", "rb") as source:
        transport.write(source, "objects/x", part="tmp/x-1")  # type: ignore[arg-type]
        assert source.disturbed
    assert (root / "objects" / "x").read_bytes() == data


def test_a_full_disk_over_there_says_so(server: Sshd, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.strip()}")
    blobs = Blobs(f"ssh://{ALIAS}{folder}/artifacts")
    try:
        kept = blobs.put(b"small" * 1000)
        with pytest.raises(StoreError, match=r"the disk of the artifact store ssh://login.* is full") as caught:
            blobs.put(os.urandom(5_000_000))
        assert isinstance(caught.value.__cause__, DiskFull) and "make room there" in caught.value.fix
        assert not list(folder.glob("artifacts/tmp/*")), "the room is free again"
        assert Blobs(str(folder / "artifacts")).read(kept) == b"small" * 1000
        assert blobs.put(b"again" * 1000)
    finally:
        blobs.close()
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_folder_that_cannot_be_one(far: Blobs, root: Path) -> None:
    root.write_text("a file where the folder should be")
    with pytest.raises(StoreError, match=r"File exists|Not a directory"):
        far.put(b"anything" * 100)
    with pytest.raises(DamagedArtifact, match="is not in"):
        far.read("0" * 64)


def test_clocks_that_differ_remove_nothing_too_early(
    far: Blobs, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh, old = far.put(b"fresh"), far.put(b"old")
    past = time.time() - 7200
    os.utime(Blobs(str(root)).local_file(old), (past, past))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 86400)  # this machine's clock is a day ahead
    assert far.delete_if_older(fresh, now + 86400 - 3600) is None
    assert far.delete_if_older(old, now + 86400 - 3600) == 3
    assert list(far.digests()) == [fresh]
    store = open_store(artifact_uri=far.uri, home=str(tmp_path / "laptop"))
    assert sweep(store, older_than=3600).blobs == 0
    store.close()


def test_what_a_killed_upload_left_is_removed_later(far: Blobs, root: Path) -> None:
    far.put(b"anything")
    for name in ("old", "fresh"):
        (root / "tmp" / name).write_bytes(b"half of it")
    past = time.time() - 2 * STALE
    os.utime(root / "tmp" / "old", (past, past))
    far.clean()
    assert [path.name for path in (root / "tmp").iterdir()] == ["fresh"]


@pytest.mark.parametrize("noise", ["printf 'no newline at its end'", "echo stoker; echo 12345; echo 7 /a"])
def test_a_login_that_prints(far: Blobs, server: Sshd, root: Path, noise: str) -> None:
    bashrc = server.home / ".bashrc"
    bashrc.write_text(f"{noise}\n{noise} >&2\n")
    try:
        digest = far.put(os.urandom(300_000))
        assert Blobs(str(root)).is_whole(digest)
        os.unlink(far.local_file(digest))
        assert len(far.read(digest)) == 300_000
        assert far.size(digest) == 300_000
    finally:
        bashrc.unlink()


def test_a_machine_that_hangs_is_given_up_with_words(
    transport: SshFiles, server: Sshd, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes are stopped: the connection stands, and nothing comes."""
    monkeypatch.setattr(files, "PATIENCE", 0.0)
    monkeypatch.setattr(connection, "STILL", 1.0)
    root.mkdir()
    (root / "x").write_bytes(b"x" * 50_000_000)
    stopped: list[Any] = []

    def stop(part: bytes) -> None:
        if not stopped:
            stopped.extend(process for process in server.sessions() if process.name() == "sshd")
            for process in stopped:
                process.suspend()

    try:
        with pytest.raises(Away, match="nothing came or went for 1 s"):
            transport.read("x", stop)
    finally:
        for process in stopped:
            process.kill()
    assert hashlib.sha256(_read(transport, "x")).digest() == hashlib.sha256(b"x" * 50_000_000).digest()


def _read(transport: SshFiles, path: str) -> bytes:
    received = bytearray()
    assert transport.read(path, received.extend)
    return bytes(received)


def test_a_key_that_is_refused_is_said_at_once(far: Blobs, server: Sshd, root: Path) -> None:
    server.refuse()
    begun = time.monotonic()
    try:
        with pytest.raises(StoreError, match=r"is not reached: .*Permission denied") as caught:
            far.put(b"x")
    finally:
        server.admit()
    assert "ssh -fNM" in caught.value.fix and time.monotonic() - begun < files.PATIENCE
    assert far.read(far.put(b"x")) == b"x"


@pytest.mark.parametrize("uri", ["ssh://login", "ssh://login/", "ssh://login/~", "ssh://login/~/"])
def test_a_uri_without_a_folder(uri: str) -> None:
    with pytest.raises(SettingsError, match="names no folder"):
        folder_elsewhere(uri)


@pytest.mark.parametrize(
    ("out", "err", "code"),
    [
        ("1700000000\n", "stat: illegal option -- c\nusage: stat [-FLnq] [file ...]", 0),
        ("1700000000\n", "sh: 1: stat: not found", 0),
        ("1700000000\n", "stat: cannot statx '/far/x': Input/output error", 0),
        ("", "", 137),
        ("", "", 0),
        ("12 1700000000 /far/x\n", "", 0),
        ("? 1700000000 /far/x\n1700000001\n", "", 0),
        ("12 1700000000 /far/y\n1700000001\n", "", 0),
    ],
)
def test_what_does_not_tell_whether_a_file_is_there_is_an_error(out: str, err: str, code: int) -> None:
    with pytest.raises(BackendError):
        answering(out, err, code).look(["x"])


def test_a_file_that_is_not_there_is_none_beside_words_of_the_client() -> None:
    gone = "stat: cannot statx '/far/y': No such file or directory\n** WARNING: connection is not using x"
    facts = answering("12 1700000000 /far/x\n1700000001\n", gone, 0).look(["x", "y"])
    assert {path: (one.size, one.age) for path, one in facts.items()} == {"x": (12, 1.0)}


def answering(out: str, err: str, code: int) -> SshFiles:
    """The folder of a machine that has one answer."""
    files = SshFiles("ssh://machine/far")
    files._folder = "/far/"
    files._ssh.ask = lambda script: Answer(code=code, out=out.encode(), err=err)  # type: ignore[method-assign]
    return files


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become somebody else")
@pytest.mark.parametrize("script", [scripts.send, scripts.sizes], ids=["send", "sizes"])
def test_what_may_not_be_looked_at_is_not_taken_for_missing(script: Any, tmp_path: Path) -> None:
    """As a login sees it whose rights to a folder were taken away."""
    (tmp_path / "x").write_bytes(b"x")
    tmp_path.chmod(0o700)
    path = str(tmp_path / "x")
    text = script(path, 0) if script is scripts.send else script([path])
    words = ["setpriv", "--reuid=65534", "--clear-groups", "sh"]
    ran = subprocess.run(words, input=text, cwd="/", capture_output=True, text=True, check=False)
    assert "Permission denied" in ran.stderr and ran.returncode != scripts.MISSING
    gone = script("/nowhere/x", 0) if script is scripts.send else script(["/nowhere/x"])
    ran = subprocess.run(words, input=gone, cwd="/", capture_output=True, text=True, check=False)
    assert "Permission denied" not in ran.stderr
    assert ran.returncode == (scripts.MISSING if script is scripts.send else 0)
