"""`resume` starts a new run: what its origin says, and what lies in its folders, stays as it is, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stoker.flow import Flow, Run, namespace

TOTAL = """
from pathlib import Path
from stoker.flow import FlowSpec, IncludeFile, Parameter, catch, checkpoint, current, step

def note(text):
    with open("ran", "a") as file:
        file.write(text + chr(10))

class Total(FlowSpec):
    n = Parameter("n", default=3)
    text = IncludeFile("text", default="text.txt")

    @step
    def start(self):
        note("start")
        self.items = list(range(self.n))
        self.next(self.piece, foreach="items")

    @catch(var="failure")
    @step
    def piece(self):
        note(f"piece {self.input}")
        self.x = self.input * 2
        if self.input == 1:
            raise ValueError("is caught")
        self.next(self.join)

    @checkpoint
    @step
    def join(self, inputs):
        note("join")
        place = Path(current.checkpoint.directory, "seen")
        self.seen = place.read_text() if current.checkpoint.is_loaded else ""
        place.write_text(self.seen + "x")
        current.checkpoint.save()
        if Path("broken").exists():
            raise RuntimeError("broken")
        self.total = sum(found.x for found in inputs if not found.failure) + OFFSET
        self.origin = current.origin_run_id
        self.next(self.end)

    @step
    def end(self):
        note("end " + self.text)

if __name__ == "__main__":
    Total()
"""


def _all_of(project: Any, run: str) -> dict[str, Any]:
    """Every row of a run, and every file of its logs and checkpoints."""
    database = project.client().store.records.database
    tables = dict.fromkeys(("plans", "steps", "outputs", "attempts", "receipts", "events"), "run_id")
    rows: dict[str, Any] = {
        table: database.rows(f"SELECT * FROM {table} WHERE {column} = ? ORDER BY 1, 2", (run,))
        for table, column in {"runs": "id", **tables}.items()
    }
    files = sorted(path for path in project.home.rglob("*") if run in path.parts and path.is_file())
    return {**rows, **{str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}}


def _ran(project: Any) -> list[str]:
    path = Path(project.folder, "ran")
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


def test_a_resume_is_a_new_run_and_its_origin_stays_as_it_was(project: Any) -> None:
    project.write({"total.py": TOTAL.replace("OFFSET", "0"), "text.txt": "old"}).run("total.py", "run")
    namespace(None)
    first = Flow("Total").latest_run
    assert first is not None and first.data is not None and first.data.total == 4
    assert sorted(_ran(project)) == ["end old", "join", "piece 0", "piece 1", "piece 2", "start"]
    before = _all_of(project, first.id)
    assert len(before["steps"]) == 7 and any(name.endswith("seen") for name in before)

    # The join is edited; parameters stay what they were, also the content of a file that has changed since.
    project.write({"total.py": TOTAL.replace("OFFSET", "100"), "text.txt": "new"})
    project.run("total.py", "resume", "join", "--tag", "second", "--run-id-file", "id")
    assert _ran(project) == ["join", "end old"]
    second = Flow("Total").latest_successful_run
    assert second is not None and second.data is not None
    assert (project.folder / "id").read_text() == second.id != first.id
    assert (second.data.total, second.data.origin, second.data.seen) == (104, first.id, "")
    assert second.origin_run_id == first.id and second.origin_pathspec == first.pathspec
    assert first.origin_run_id is None and "second" in second.tags
    piece = {task.id: (task.origin_pathspec, task._row.status) for task in second["piece"]}
    assert piece["piece[1]"] == (f"{first.pathspec}/piece/piece[1]", "cached")
    assert second["piece"]["piece[1]"].data.failure is not None, "what was caught is taken as well"
    assert second["join"].task is not None and second["join"].task.origin_pathspec is None
    assert _all_of(project, first.id) == before
    shown = project.stoker("show", second.id).stdout
    assert f"repeats    {first.id}" in shown
    statuses = {step.key: step.status for step in project.client().run(second.id).steps.values()}
    assert statuses == {"start": "cached", "piece": "cached", "join": "succeeded", "end": "succeeded"}
    statuses = {step.key: step.status for step in project.client().run(first.id).steps.values()}
    assert set(statuses.values()) == {"succeeded"}, statuses

    # A step that breaks makes the new run a failed one, and no other.
    (project.folder / "broken").touch()
    project.run("total.py", "resume", "join", "--origin-run-id", first.id, code=1)
    third = Flow("Total").latest_run
    assert third is not None and third.status == "failed" and third.origin_run_id == first.id
    latest = Flow("Total").latest_successful_run
    assert latest is not None and latest.id == second.id and _ran(project) == ["join"]
    # Without a step a failed run is repeated from where it stopped: with its checkpoints, as a run of its own.
    failed = _all_of(project, third.id)
    (project.folder / "broken").unlink()
    project.run("total.py", "resume")
    fourth = Flow("Total").latest_run
    assert fourth is not None and fourth.data is not None and _ran(project) == ["join", "end old"]
    assert (fourth.origin_run_id, fourth.data.total, fourth.data.seen) == (third.id, 104, "x")
    assert _all_of(project, first.id) == before and _all_of(project, third.id) == failed
    # Of a run that has succeeded all is taken, and nothing runs; from its start on all of it runs.
    project.run("total.py", "resume", "--resume-identifier", "mine")
    fifth = Flow("Total").latest_run
    assert fifth is not None and fifth.data is not None and _ran(project) == []
    assert (fifth.origin_run_id, fifth.data.total) == (fourth.id, 104) and _all_of(project, third.id) == failed
    project.run("total.py", "resume", "start", "--origin-run-id", fourth.id)
    assert sorted(_ran(project)) == ["end old", "join", "piece 0", "piece 1", "piece 2", "start"]
    # `stoker resume` leaves it as it is, and so do those that ask for its end.
    whole = _all_of(project, fourth.id)
    project.stoker("resume", fourth.id)
    project.stoker("cancel", fourth.id)
    assert _all_of(project, fourth.id) == whole
    # The origin may go; what was taken from it stays.
    project.client().delete(first.id)
    project.stoker("gc")
    assert Run(second.pathspec)["piece"]["piece[2]"].data.x == 4
    for words, message in (
        (["--clone-only"], "only copied"),
        (["--run-id", "7"], "--run-id-file"),
        (["join", "end"], "unexpected argument"),
        (["nowhere"], "no step 'nowhere'"),
    ):
        assert message in project.run("total.py", "resume", *words, code=2).stderr
