"""The pages over a store in PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import Project
from tests.servers import postgres
from tests.ui.conftest import Server

PIPELINE = """
from typing import Annotated

from stoker import Artifact, log_metrics, pipeline, step

@step
def count(number: int) -> Annotated[list, Artifact("all/counts", tags=["few"], metadata={"number": 1})]:
    print("counting to", number)
    log_metrics({"number": number})
    return list(range(number))

@pipeline(model="counter")
def counting(number: int = 3):
    count(number)

if __name__ == "__main__":
    counting()
"""

MORE = PIPELINE.replace("all/counts", "more").replace("counting", "more")


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
                f"/runs/{runs[0]}/artifact?key=count&name=all%2Fcounts",
                f"/compare?run={runs[1]}&run={runs[0]}",
                "/artifacts?text=COUNTS&tag=few",
                "/artifacts/all/counts",
                "/models?text=Count",
                "/models/counter?version=1&version=2",
                "/api/v1/models/counter?compare=1",
            ):
                answer = server.get(path)
                assert answer.code == 200, answer.text
                assert "count" in answer.text
            # A list goes on where it was, and a name that no text of PostgreSQL can be is none.
            project.write({"more.py": MORE}).stoker("run", "more.py", "--stack", "team", "--quiet")
            first = server.get("/api/v1/artifacts", limit=1).json()
            rest = server.get("/api/v1/artifacts", before=first["next"]).json()
            assert [one["name"] for one in first["artifacts"] + rest["artifacts"]] == ["more", "all/counts"]
            assert server.get("/models", stage="a\0b").code == 200 and server.get("/models/a%00b").code == 400
        finally:
            server.stop()
