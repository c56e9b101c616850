"""The pages over a store in PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import Project
from tests.servers import postgres
from tests.ui.conftest import Server

PIPELINE = """
from stoker import log_metrics, pipeline, step

@step
def count(number: int) -> list:
    print("counting to", number)
    log_metrics({"number": number})
    return list(range(number))

@pipeline
def counting(number: int = 3):
    count(number)

if __name__ == "__main__":
    counting()
"""


@pytest.mark.xdist_group("postgresql")
def test_every_page_reads_from_postgresql(tmp_path: Path) -> None:
    programs = postgres.binaries()
    if programs is None:
        pytest.skip("no PostgreSQL server is installed (Debian: apt-get install postgresql)")
    project = Project(tmp_path / "project", tmp_path / "home")
    with postgres.running(programs) as uri:
        stack = f'[stacks.team]\ndatabase = "{uri}"\n'
        project.write({"count.py": PIPELINE, "stoker.toml": stack})
        for number in (3, 4):
            project.stoker("run", "count.py", "--stack", "team", "--number", str(number), "--quiet")
        server = Server(project, "--stack", "team")
        try:
            runs = [run["id"] for run in server.get("/api/v1/runs", status="succeeded", text="COUNT").json()["runs"]]
            assert len(runs) == 2
            assert [run["id"] for run in server.get("/api/v1/runs", before=runs[0]).json()["runs"]] == runs[1:]
            for path in (
                "/runs?pipeline=counting&stack=team&since=1h",
                f"/runs/{runs[0]}",
                f"/runs/{runs[0]}/step?key=count",
                f"/runs/{runs[0]}/artifact?key=count&name=output",
                f"/compare?run={runs[1]}&run={runs[0]}",
            ):
                answer = server.get(path)
                assert answer.code == 200, answer.text
                assert "count" in answer.text
        finally:
            server.stop()
