"""The program inside a container, run as a process: what it reads, what it leaves, how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.containers.box import Box

from stoker.core.codec import from_json
from stoker.core.metrics import MetricBook
from stoker.core.orders import BootSpec
from stoker.core.protocol import MARK, METRICS, WorkerEvent
from stoker.worker.boot import _parts, relocate


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def lines(output: str) -> list[str]:
    return [line for line in output.split("\n") if line and not line.startswith(MARK)]


def test_a_job_runs_in_the_unpacked_package(box: Box) -> None:
    process = box.start(box.spec("fine"))
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert lines(stdout) == ["fine"]
    assert stdout.startswith(f'{MARK}{{"kind":"up","time":')
    assert '"kind":"began"' in stdout
    where = Path(box.result()["outputs"]["output"]["i"])
    assert where.name == box.package.digest[:16]
    assert where.is_relative_to(box.folder)
    assert not where.parent.exists(), "the unpacked code was left behind"


def test_an_error_is_told_with_the_drivers_names(box: Box) -> None:
    process = box.start(box.spec("fails"))
    process.communicate(timeout=60)
    assert process.returncode == 1
    error = box.result()["error"]
    assert error["message"] == "as it should"
    assert str(box.package.root / "inner/steps.py") in error["place"]
    assert "stoker-code-" not in error["traceback"]


def test_a_package_that_is_not_there_is_told_as_a_result(box: Box) -> None:
    process = box.start(box.spec("fine", package="f" * 64))
    process.communicate(timeout=60)
    result = box.result()
    assert process.returncode == 1
    assert result["cause"] == "damaged-input"
    assert "f" * 64 in result["error"]["message"]


def test_a_document_that_is_not_there_is_told_on_stderr(box: Box) -> None:
    process = box.start(box.folder / "none" / "job.json")
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "is not mounted, or another one" in stderr


def test_what_a_step_logs_of_itself_travels_in_short_lines_without_secrets(box: Box) -> None:
    path = box.spec("logs_metrics")
    document = json.loads(path.read_text())
    document["job"]["secrets"] = {"env:TOKEN": "a-secret-value"}
    path.write_text(json.dumps(document))
    stdout, stderr = box.start(path).communicate(timeout=60)
    assert box.result()["ok"], stderr
    events = [json.loads(line.removeprefix(MARK)) for line in stdout.split("\n") if line.startswith(MARK)]
    rows = [row for event in events if event["kind"] == METRICS for row in event["data"]["rows"]]
    book = MetricBook()
    book.add(rows)
    assert book.series["loss", 0].low == book.series["loss", 0].last
    assert list(book.series["number", 0].values) == list(range(500))
    assert book.facts["name"] == "a" and "a-secret-value" not in stdout
    assert max(map(len, stdout.split("\n"))) < 1 << 15
    assert not list(box.folder.glob("stoker-metrics-*"))


def test_paths_below_the_root_are_moved_and_no_others(box: Box) -> None:
    spec = json.loads(box.spec("fine").read_text())
    root = spec["root"]
    spec["path"] = [root, f"{root}/inner", f"{root}-beside", "/usr/lib/python3"]
    here = relocate(from_json(BootSpec, spec, strict=False), "/tmp/here")
    assert here.path[:2] == ("/tmp/here", "/tmp/here/inner")
    assert "/usr/lib/python3" not in here.path[:2]
    assert f"{root}-beside" not in here.path
    assert here.step.source.path == "/tmp/here/inner/steps.py"
    assert here.folder == "/tmp/here"


def test_many_lines_of_ranks_travel_in_pieces() -> None:
    rows = tuple((1.0, "stdout", 0, "x" * 5000) for _ in range(10))
    made = list(_parts(WorkerEvent(kind="lines", job="a", lines=rows)))
    assert [len(one.lines) for one in made] == [3, 3, 3, 1]
    restarted = WorkerEvent(kind="noted", job="a", note="restarted")
    assert list(_parts(restarted)) == [restarted]
