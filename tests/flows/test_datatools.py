"""`S3` over a folder and over a server of S3: the same answers, in a flow and outside one."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers import s3 as servers
from tests.servers.s3 import s3_server  # noqa: F401

from stoker.flow import S3
from stoker.flow.plugins.datatools.s3 import (
    MetaflowS3InvalidObject,
    MetaflowS3InvalidRange,
    MetaflowS3NotFound,
    MetaflowS3URLException,
    S3GetObject,
    S3PutObject,
)

FLOW = """
import json
from metaflow import S3, FlowSpec, step

class Kept(FlowSpec):
    @step
    def start(self):
        with S3(run=self) as s3:
            self.url = s3.put("model/weights", b"\\0\\1")
            s3.put_many([(f"rows/{n}", json.dumps(n)) for n in range(20)])
        self.next(self.end)

    @step
    def end(self):
        with S3(run=self) as s3:
            assert s3.get("model/weights").blob == b"\\0\\1"
            self.total = sum(json.loads(one.text) for one in s3.get_recursive(["rows"]))
        with S3() as s3:
            assert s3.get(self.url).size == 2

if __name__ == "__main__":
    Kept()
"""


@pytest.fixture(params=["folder", "server"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "there")
        return
    server: servers.S3 = request.getfixturevalue("s3_server")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    yield f"{server.bucket(f'data{abs(hash(tmp_path))}')}/below"


def test_what_is_put_is_there(root: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"of a file")
    with S3(s3root=root, tmproot=str(tmp_path)) as s3:
        assert s3.list_paths() == [] == s3.get_all()
        assert s3.put("a/0.txt", "ä") == f"{root}/a/0.txt"
        s3.put("a/b/1.txt", io.BytesIO(b"one"), content_type="text/plain", metadata={"by": "me"})
        told = s3.put_many([("a/c/2", b"0123456789"), S3PutObject("f/4", value="four")])
        assert told == [("a/c/2", f"{root}/a/c/2"), ("f/4", f"{root}/f/4")]
        assert s3.put_files([("a/c/2", str(tmp_path / "file"))], overwrite=False) == []
        assert s3.put_files([("g", str(tmp_path / "file"))]) == [("g", f"{root}/g")]
        listed = [(one.key, one.exists, one.size) for one in s3.list_paths(["a", "f"])]
        assert listed == [("0.txt", True, 2), ("b", False, None), ("c", False, None), ("4", True, 4)]
        assert [one.key for one in s3.list_recursive(["a"])] == ["0.txt", "b/1.txt", "c/2"]
        assert [one.key for one in s3.get_all()] == ["a/0.txt", "a/b/1.txt", "a/c/2", "f/4", "g"]

        one = s3.get("a/b/1.txt")
        assert (one.text, one.key, one.content_type, one.metadata) == ("one", "a/b/1.txt", "text/plain", {"by": "me"})
        assert one.has_info and one.last_modified is not None and one.range_info is None
        assert [found.blob for found in s3.get_many(["g", "a/0.txt"])] == [b"of a file", "ä".encode()]
        parts = [s3.get(S3GetObject("a/c/2", *part)) for part in ((2, 3), (7, None), (None, -4))]
        assert [part.blob for part in parts] == [b"234", b"789", b"6789"]
        assert tuple(parts[2].range_info) == (10, 6, 4)
        with pytest.raises(MetaflowS3InvalidRange, match="has 10 bytes"):
            s3.get(S3GetObject("a/c/2", 10, 3))

        info = s3.info("a/b/1.txt")
        assert (info.size, info.downloaded, info.metadata) == (3, False, {"by": "me"})
        missing, there = s3.info_many(["no", "g"], return_missing=True)
        assert (missing.exists, missing.key, there.size) == (False, "no", 9)
        assert not s3.get("no", return_missing=True).exists
        with pytest.raises(MetaflowS3NotFound, match=r"there is no .*/no"):
            s3.get("no")
        assert Path(one.path).exists()
    assert not Path(one.path).exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("stoker-s3")] == []


def test_what_makes_no_sense_says_what_to_write(tmp_path: Path) -> None:
    with S3(tmproot=str(tmp_path)) as s3, S3(s3root=str(tmp_path), tmproot=str(tmp_path)) as rooted:
        with pytest.raises(MetaflowS3URLException, match=r"S3\(run=self\)"):
            s3.get("a/b")
        with pytest.raises(MetaflowS3URLException, match="keys are below"):
            rooted.put("s3://bucket/a", "x")
        with pytest.raises(MetaflowS3InvalidObject, match=r"a: a dict is no text"):
            rooted.put("a", {})
        with pytest.raises(MetaflowS3NotFound, match=r"no file .*absent"):
            rooted.put_files([("a", "absent")])


def test_attempts_that_fail_are_told_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TEST_S3_RETRY", "1")
    with S3(s3root=str(tmp_path / "there"), tmproot=str(tmp_path)) as s3:
        s3.put("a", "x")
        assert s3.get("a").text == "x"
    told = capsys.readouterr().err
    assert told.count("attempt 2 in 0.0 s") == 3 and "could not put" in told and "TEST_S3_RETRY" in told


def test_a_run_has_files_beside_its_artifacts(project: Any, tmp_path: Path) -> None:
    project.write({"kept.py": FLOW.replace("metaflow", "stoker.flow")})
    project.run("kept.py", "run")
    from stoker.flow import Flow

    run = Flow("Kept").latest_run
    assert run.data.total == 190
    with S3(run=run, tmproot=str(tmp_path)) as s3:
        assert s3.get("model/weights").blob == b"\0\1"
        assert s3.info("rows/3").url == run.data.url.replace("model/weights", "rows/3")
    project.run("kept.py", "run", env={"METAFLOW_DATATOOLS_S3ROOT": str(tmp_path / "elsewhere")})
    assert (tmp_path / "elsewhere" / "Kept" / Flow("Kept").latest_run.id / "model" / "weights").exists()
