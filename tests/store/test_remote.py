"""Blobs behind fsspec: uploaded whole, fetched once, never half."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import fsspec
import pytest

from stoker.core.errors import MissingPackage, StoreError
from stoker.store import filesystems
from stoker.store.blobs import Blobs
from stoker.store.check import sweep
from stoker.store.filesystems import fix_of, url_to_fs
from stoker.store.remote import Remote, cache_folder
from stoker.store.store import open_store


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    yield
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]


@pytest.fixture(params=["memory://bucket/some/where", "local://"])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    """A store in memory, whose uploads are whole by themselves, and one that needs a rename."""
    uri: str = request.param
    return Blobs(uri if uri.startswith("memory") else f"{uri}{tmp_path}/far")


def test_bytes_come_back_without_the_cache(remote: Blobs) -> None:
    data = os.urandom(100_000)
    digest = remote.put(data)
    assert remote.exists(digest)
    assert remote.size(digest) == len(data)
    assert remote.read(digest, len(data)) == data
    os.unlink(remote.path(digest))
    assert remote.read(digest, len(data)) == data
    assert list(remote.digests()) == [digest]
    assert os.listdir(f"{remote.folder}/tmp") == []


def test_it_is_fetched_once(remote: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = remote.put(b"x")
    os.unlink(remote.path(digest))
    first = remote.path(digest)
    monkeypatch.setattr(Remote, "get", None)
    assert remote.path(digest) == first
    assert remote.read(digest) == b"x"


def test_a_missing_object_is_a_store_error(remote: Blobs) -> None:
    with pytest.raises(StoreError, match="is not in"):
        remote.read("f" * 64)
    with pytest.raises(StoreError, match="is not in"):
        remote.size("f" * 64)
    assert not remote.exists("f" * 64)
    assert list(remote.digests()) == []
    remote.delete("f" * 64)


def test_an_upload_that_fails_keeps_nothing_here(remote: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    assert remote._remote is not None

    def put_file(*_: Any, **__: Any) -> None:
        raise RuntimeError("no credentials")

    monkeypatch.setattr(remote._remote._files, "put_file", put_file)
    with pytest.raises(StoreError, match="no credentials"):
        remote.put(b"x")
    assert not remote.exists("f" * 64)
    assert os.listdir(f"{remote.folder}/tmp") == []
    assert not os.path.exists(f"{remote.folder}/objects")


def test_an_unknown_protocol_is_an_error() -> None:
    with pytest.raises(StoreError, match="nosuch"):
        Blobs("nosuch://bucket")


def test_a_missing_file_system_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def url_to_fs(uri: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", url_to_fs)
    with pytest.raises(MissingPackage, match=r"Install s3fs.*\n  fix: pip install s3fs$"):
        Blobs("s3://bucket")


def test_a_file_system_is_made_anew_when_its_environment_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystems, "_environments", {})  # as in a process that has used fsspec itself before
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:0")
    others, _ = fsspec.core.url_to_fs("s3://bucket/name")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    first, path = url_to_fs("s3://bucket/name")
    assert first is not others
    monkeypatch.setenv("UNRELATED", "1")
    assert (url_to_fs("s3://bucket/other")[0], path) == (first, "bucket/name")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:2")
    second, _ = url_to_fs("s3://bucket/name")
    assert second is not first
    assert url_to_fs("simplecache::s3://bucket/name")[0].fs is second
    assert url_to_fs("/tmp/name")[1] == "/tmp/name"


def test_old_objects_are_renewed_by_a_put_and_swept_without(tmp_path: Path) -> None:
    store = open_store(artifact_uri="memory://bucket", home=str(tmp_path / "home"))
    kept, lost = store.blobs.put(b"kept"), store.blobs.put(b"lost")
    assert store.blobs._remote is not None
    files = store.blobs._remote._files
    for entry in files.store.values():
        entry.modified = entry.modified.replace(year=2001)
    store.blobs.put(b"kept")
    assert sweep(store).blobs == 1
    assert list(store.blobs.digests()) == [kept]
    assert not os.path.exists(f"{store.blobs.folder}/objects/{lost[:2]}/{lost[2:]}")
    assert sweep(store, older_than=0.0, now=time.time() + 1).blobs == 1
    store.close()


NAIVE = datetime(2001, 1, 1)  # noqa: DTZ001  # as some file systems tell it


@pytest.mark.parametrize("moment", [None, "2001-01-01", NAIVE, IsADirectoryError(), NotImplementedError()])
def test_of_an_object_without_a_known_date_nothing_is_removed_and_a_put_renews_it(
    moment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(artifact_uri="memory://bucket", home=str(tmp_path / "home"))
    digest = store.blobs.put(b"x")
    assert store.blobs._remote is not None
    files = store.blobs._remote._files

    def modified(key: str) -> Any:
        if isinstance(moment, Exception):
            raise moment
        return moment

    monkeypatch.setattr(files, "modified", modified)
    before = [entry.modified for entry in files.store.values()]
    assert store.blobs.put(b"x") == digest
    assert [entry.modified for entry in files.store.values()] > before
    assert sweep(store, older_than=0.0, now=time.time() + 1).blobs == 0 and store.blobs.exists(digest)
    store.close()


@pytest.mark.parametrize("facts", [{}, {"size": None}, {"size": "4 bytes"}])
def test_the_bytes_of_an_object_without_a_size_are_counted(
    facts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(artifact_uri="memory://bucket", home=str(tmp_path / "home"))
    digest = store.blobs.put(b"four")
    assert store.blobs._remote is not None
    monkeypatch.setattr(store.blobs._remote._files, "info", lambda key: facts)
    assert store.blobs.put(b"four") == digest
    assert store.blobs.size(digest) == 4
    os.unlink(store.blobs.local_file(digest))
    assert store.blobs.holds(digest, 4)
    result = sweep(store, older_than=0.0, now=time.time() + 1)
    assert (result.blobs, result.bytes) == (1, 4)
    store.close()


def test_where_copies_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STOKER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder("s3://a").startswith(str(tmp_path / "xdg" / "stoker"))
    assert cache_folder("s3://a") != cache_folder("s3://b")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "temporary"))
    assert cache_folder("s3://a").startswith(str(tmp_path / "temporary"))


PROFILES = """
[profile sso]
sso_session = x
sso_account_id = 1
sso_role_name = r
region = us-east-1
[sso-session x]
sso_start_url = https://a.example/start
sso_region = us-east-1
[profile half]
aws_access_key_id = AKIA
"""


@pytest.mark.parametrize(
    ("profile", "fix"),
    [
        ("", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ("half", "`aws configure`"),
        ("none", "`aws configure list-profiles`"),
        ("sso", "`aws sso login`"),
    ],
)
def test_without_credentials_the_fix_names_them(
    profile: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The errors are s3fs's own; it looks for credentials before it calls anybody."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    (tmp_path / "config").write_text(PROFILES)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    if profile:
        monkeypatch.setenv("AWS_PROFILE", profile)
    with pytest.raises(StoreError) as caught:
        Blobs("s3://bucket/stoker").put(b"x")
    assert fix in caught.value.fix, caught.value


@pytest.mark.parametrize(
    ("uri", "error", "fix"),
    [
        ("s3://bucket", FileNotFoundError("The specified bucket does not exist"), "aws s3 mb"),
        ("s3://bucket", PermissionError("Access Denied"), "aws sts get-caller-identity"),
        ("s3://bucket", OSError("connection reset"), "AWS_PROFILE"),
        ("gs://bucket", OSError("Anonymous caller"), "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://container", ValueError("Must provide either a connection_string"), "AZURE_STORAGE_ACCOUNT_NAME"),
        ("ftp://host", OSError("refused"), "check the address"),
    ],
)
def test_what_a_person_does_about_a_store(uri: str, error: Exception, fix: str) -> None:
    assert fix in fix_of(uri, error)
