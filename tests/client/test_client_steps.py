"""Steps, attempts, outputs and fan-outs, read back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stoker.cli.show import run_lines
from stoker.client import Client
from stoker.client.runs import run_document
from stoker.core.errors import NotFound, StokerError, UsageError
from stoker.store import artifacts
from stoker.store.batch import RowBatch
from stoker.store.rows import AttemptRow, StepRow
from stoker.ui.runview import lines_of

ERROR = {"type": "ValueError", "message": "no", "traceback": "Traceback …\nValueError: no\n", "place": "train.py:3"}


def test_steps_are_a_mapping_in_the_order_of_the_pipeline(book: Any) -> None:
    id = book.run()
    book.step(id, "train", position=1)
    book.step(id, "load", position=0)
    steps = book.client.run(id).steps
    assert list(steps) == ["load", "train"]
    assert len(steps) == 2
    assert steps["train"] is steps["train"]
    assert "load" in steps and "lode" not in steps
    assert steps.get("lode") is None
    assert [step.key for step in steps.values()] == ["load", "train"]
    assert steps._ipython_key_completions_() == ["load", "train"]
    assert repr(steps) == "<Steps 'load' succeeded, 'train' succeeded>"


def test_an_unknown_step_names_the_nearest(book: Any) -> None:
    id = book.run()
    book.step(id, "train")
    steps = book.client.run(id).steps
    with pytest.raises(NotFound, match="no step 'trian', did you mean 'train'"):
        steps["trian"]
    with pytest.raises(KeyError) as raised:
        steps["train[0]"]
    assert str(raised.value).startswith(f"run {id} has no step 'train[0]'")


def test_facts_of_a_step(book: Any) -> None:
    id = book.run()
    digest = "ab" * 32
    book.step(
        id,
        "train",
        started=10.0,
        ended=11.5,
        attempts=2,
        inputs={"x": f"json:{digest}", "many": f"[json:{digest},json:{digest}]"},
        usage={"cpu": 1.25, "peak": 5_000_000},
        cached_from="",
    )
    step = book.client.run(id).steps["train"]
    assert (step.name, step.status, step.seconds, step.attempt_count) == ("train", "succeeded", 1.5, 2)
    assert step.inputs == {"x": digest, "many": f"[json:{digest},json:{digest}]"}
    assert (step.usage.cpu, step.usage.peak_memory) == (1.25, 5_000_000)
    assert str(step.usage) == "cpu 1.2 s, peak 5 MB"
    assert step.started is not None and step.started.timestamp() == 10.0
    assert step.failure is None
    assert repr(step) == "<Step 'train' succeeded, 1.5 s>"


def test_a_step_that_did_not_run(book: Any) -> None:
    id = book.run()
    book.step(id, "cached", status="cached", ended=5.0, cached_from="other/cached")
    book.step(id, "later", status="pending")
    steps = book.client.run(id).steps
    assert (steps["cached"].seconds, steps["cached"].cached_from) == (None, "other/cached")
    assert (steps["later"].started, steps["later"].ended, steps["later"].usage.cpu) == (None, None, None)


def test_a_running_step_of_a_dead_run_is_interrupted(book: Any) -> None:
    alive = book.run(status="running")
    dead = book.run(status="running", driver={"host": "gone", "pid": 1}, heartbeat=1.0)
    failed = book.run(status="failed", error="the driver's disk is full")
    for id in (alive, dead, failed):
        book.step(id, "train", status="running", started=1.0)
        book.step(id, "next", status="pending")
    status = {id: book.client.run(id).steps["train"].status for id in (alive, dead, failed)}
    assert status == {alive: "running", dead: "interrupted", failed: "interrupted"}
    assert book.client.run(dead).steps["next"].status == "pending"
    with pytest.raises(NotFound, match=f"stoker resume {dead}"):
        book.client.run(dead).steps["train"].load()


# Attempts


def test_attempts_and_their_failures(book: Any) -> None:
    id = book.run()
    book.step(id, "train", attempts=2)
    book.write(
        AttemptRow(
            run_id=id,
            key="train",
            number=1,
            status="failed",
            backend="orchestrator",
            started=1.0,
            ended=2.0,
            cause="user-error",
            message="no",
            error=ERROR,
            usage={"cpu": 0.5},
        ),
        AttemptRow(run_id=id, key="train", number=2, status="succeeded", started=3.0, ended=4.0),
    )
    step = book.client.run(id).steps["train"]
    first, second = step.attempts
    assert (first.number, first.status, first.backend, first.seconds) == (1, "failed", "orchestrator", 1.0)
    assert first.failure is not None
    assert (first.failure.cause, first.failure.type, first.failure.place) == ("user-error", "ValueError", "train.py:3")
    assert first.failure.traceback.startswith("Traceback")
    assert str(first.failure) == "user-error: no"
    assert "Traceback" not in repr(first.failure)
    assert (second.failure, step.failure) == (None, None)
    assert repr(first) == "<Attempt 1 failed after 1.0 s: user-error: no>"
    assert [one["number"] for one in json.loads(json.dumps(step.as_dict()))["attempts"]] == [1, 2]


def test_the_last_attempt_is_why_a_step_failed(book: Any) -> None:
    id = book.run(status="failed")
    book.step(id, "train", status="failed", cause="timed-out", message="too slow", attempts=1)
    book.write(AttemptRow(run_id=id, key="train", number=1, status="failed", cause="killed", exit_code=-15))
    step = book.client.run(id).steps["train"]
    assert step.failure is not None
    assert (step.failure.cause, step.failure.exit_code) == ("timed-out", -15)
    assert (step.cause, step.message) == ("timed-out", "too slow")


def test_a_failure_without_an_attempt(book: Any) -> None:
    id = book.run(status="failed")
    book.step(id, "train", status="failed", cause="input-error", message="the artifact is damaged")
    failure = book.client.run(id).steps["train"].failure
    assert failure is not None
    assert (failure.cause, failure.message, failure.traceback) == ("input-error", "the artifact is damaged", "")


# Outputs


def test_outputs_by_name(book: Any) -> None:
    id = book.run()
    book.step(id, "train", outputs={"model": {"w": 1}, "score": 0.5})
    step = book.client.run(id).steps["train"]
    assert dict(step.outputs.items()).keys() == {"model", "score"}
    assert step.outputs["model"].load() == {"w": 1}
    model = step.outputs["model"]
    assert (model.type, model.serializer, model.shape, model.step, model.run_id) == ("dict", "json", None, "train", id)
    assert repr(model) == "<Output 'model' of 'train': dict, 7 B>"
    assert repr(step.outputs).startswith("<Outputs <Output 'model'")
    with pytest.raises(NotFound, match="no output 'modle', did you mean 'model'"):
        step.outputs["modle"]
    assert "modle" not in step.outputs
    with pytest.raises(NotFound, match="2 outputs: model, score"):
        _ = step.output


def test_the_only_output(book: Any) -> None:
    id = book.run()
    book.step(id, "load", outputs={"output": [1, 2]})
    book.step(id, "nothing")
    steps = book.client.run(id).steps
    assert steps["load"].output.load() == steps["load"].load() == [1, 2]
    with pytest.raises(NotFound, match="returns nothing"):
        steps["nothing"].load()


@pytest.mark.parametrize(
    ("status", "words"), [("failed", "see step.failure"), ("pending", "run.wait"), ("skipped", "stoker resume")]
)
def test_no_output_says_why(book: Any, status: str, words: str) -> None:
    id = book.run(status="running")
    book.step(id, "train", status=status)
    with pytest.raises(NotFound, match=f"it is {status}\n  fix: .*{words}"):
        book.client.run(id).steps["train"].outputs["output"]


def test_arrays_have_a_shape(book: Any) -> None:
    numpy = pytest.importorskip("numpy")
    id = book.run()
    book.step(id, "load", outputs={"output": numpy.zeros((100, 20), dtype="float32")})
    output = book.client.run(id).steps["load"].output
    assert (output.shape, output.dtype) == ((100, 20), "float32")
    assert "100×20 float32" in repr(output)
    assert json.loads(json.dumps(output.as_dict()))["shape"] == [100, 20]
    assert (output.load() == 0).all()


def test_what_cannot_be_loaded_says_so(book: Any) -> None:
    id = book.run()
    book.step(id, "load", outputs={"output": list(range(5000))})
    output = book.client.run(id).steps["load"].output
    book.store.blobs.delete(output.digest)
    with pytest.raises(StokerError, match=output.digest):
        output.load()


# Lineage


def test_an_artifact_and_who_made_it(book: Any) -> None:
    first, second = book.run(), book.run()
    book.step(first, "train", outputs={"model": "weights"})
    book.step(second, "train", status="cached", outputs={"model": "weights"})
    digest = book.client.run(second).steps["train"].output.digest
    for asked in (digest, digest[:10], digest[:10].upper()):
        artifact = book.client.artifact(asked)
        assert (artifact.digest, artifact.run_id, artifact.step, artifact.load()) == (digest, first, "train", "weights")
    assert [(one.run_id, one.name) for one in artifact.producers] == [(first, "model"), (second, "model")]


def test_an_artifact_that_is_not_there_or_ambiguous(book: Any) -> None:
    id = book.run()
    book.step(id, "many", outputs={f"n{number}": number for number in range(40)})
    for asked in ("0" * 64, "zz", ""):
        with pytest.raises(NotFound, match=r"there is no (artifact|output with the digest)"):
            book.client.artifact(asked)
    shared = next(digit for digit in "0123456789abcdef" if begun(book, id, digit) > 1)
    with pytest.raises(NotFound, match="several digests"):
        book.client.artifact(shared)


def begun(book: Any, id: str, digit: str) -> int:
    return sum(row.artifact.digest.startswith(digit) for row in book.store.records.outputs(id, "many"))


# Fan-outs


def test_a_fan_out_is_a_sequence(book: Any) -> None:
    id = book.run()
    book.fan_out(id, "train", ["a", "b", "c"])
    step = book.client.run(id).steps["train"]
    assert len(step) == step.count == 3
    assert [element.key for element in step] == ["train[0]", "train[1]", "train[2]"]
    assert (step[1].key, step[-1].key, step[1].index, step[1].parent) == ("train[1]", "train[2]", 1, "train")
    assert [element.key for element in step[1:]] == ["train[1]", "train[2]"]
    assert step[2].load() == "c"
    assert book.client.run(id).steps["train[2]"].load() == "c"
    assert repr(step) == "<Step 'train' succeeded, 3 elements, 10.0 s>"
    with pytest.raises(NotFound, match="3 elements, and none with the index 3"):
        step[3]
    with pytest.raises(IndexError):
        step[-4]


def test_a_fan_out_as_one_value(book: Any) -> None:
    id = book.run()
    book.fan_out(id, "train", ["a", ["b"], None])
    step = book.client.run(id).steps["train"]
    assert step.outputs["output"].load() == step.load() == ["a", ["b"], None]
    parts = [artifacts.save(value, book.store.blobs) for value in ("a", ["b"], None)]
    assert step.output.digest == artifacts.gather(parts, book.store.blobs).digest, "what the engine would call it"


def test_a_fan_outs_figures_are_its_elements(book: Any) -> None:
    id = book.run()
    book.fan_out(id, "train", ["a", "b", "c"])
    step = book.client.run(id).steps["train"]
    assert step.started is not None and step.started.timestamp() == 10.0
    assert (step.seconds, step.usage.cpu, step.usage.peak_memory) == (10.0, 1.5, 1002)


def test_a_fan_out_over_nothing(book: Any) -> None:
    id = book.run()
    book.fan_out(id, "train", [])
    step = book.client.run(id).steps["train"]
    assert (len(step), list(step), step.load(), step.outputs["model"].load()) == (0, [], [], [])
    assert step


def test_a_fan_out_of_which_some_failed(book: Any) -> None:
    id = book.run(status="failed")
    book.fan_out(id, "train", ["a", "b"], status="failed", cause="user-error")
    book.step(id, "train[1]", parent="train", idx=1, status="failed", cause="user-error", message="no", attempts=1)
    book.write(AttemptRow(run_id=id, key="train[1]", number=1, status="failed", cause="user-error", error=ERROR))
    step = book.client.run(id).steps["train"]
    with pytest.raises(NotFound, match=r"it is failed\n  fix: elements that succeeded"):
        step.load()
    assert step[0].load() == "a"
    assert step.failure is not None
    assert (step.failure.place, step.message) == ("train.py:3", "train[1]: no")


def test_elements_that_have_not_ended(book: Any) -> None:
    id = book.run(status="running")
    book.step(id, "train", status="running", count=3, started=1.0)
    book.step(id, "train[1]", parent="train", idx=1, outputs={"output": 5})
    step = book.client.run(id).steps["train"]
    assert [element.status for element in step] == ["pending", "succeeded", "pending"]
    assert [element.key for element in step] == ["train[0]", "train[1]", "train[2]"]
    assert step[0].outputs == {}
    with pytest.raises(NotFound, match="it is running"):
        step.load()


def test_show_names_failures_that_were_caught(book: Any) -> None:
    id, caught = book.run(), "exited: its failure is kept in 'err'"
    book.step(id, "train", count=2)
    book.step(id, "train[0]", parent="train", idx=0)
    book.step(id, "train[1]", parent="train", idx=1, message=caught)
    book.step(id, "join", message=caught)
    text = "\n".join(run_lines(book.client.run(id), elements=True))
    assert text.count(caught) == 2 and text.count("1 failed, and the failure is kept") == 1


def test_elements_that_were_skipped_did_not_run(book: Any) -> None:
    id = book.run(status="failed")
    book.step(id, "map", status="skipped", count=4)
    book.step(id, "map[0]", parent="map", idx=0, status="skipped")
    book.step(id, "map[1]", parent="map", idx=1, status="cached", cached_from="other/map[1]")
    for index, status in ((2, "succeeded"), (3, "failed")):
        book.step(id, f"map[{index}]", parent="map", idx=index, status=status, attempts=1)
    first, number = book.store.records.first_that_ran(id, "map")
    assert (first.key, number) == ("map[2]", 2)


def test_elements_that_the_driver_says_to_run_are_shown_as_running(book: Any) -> None:
    active = {"train[1]": [1, 5.0], "train[2]": [2, 6.0]}  # the second ended after the driver wrote this
    id = book.run(status="running", active=active)
    book.step(id, "train", status="running", count=4, started=1.0)
    book.step(id, "train[2]", parent="train", idx=2, outputs={"output": 5})
    run = book.client.run(id)
    entry = run_document(run, elements=True)["steps"][0]
    assert (entry["status"], entry["counts"]) == ("running", {"pending": 2, "running": 1, "succeeded": 1})
    assert [one["status"] for one in entry["elements"]] == ["pending", "running", "succeeded", "pending"]
    text = "\n".join(run_lines(run, elements=True))
    assert "train ×4    running" in text and "1 succeeded, 1 running, 2 pending" in text
    assert "train[1]  running" in text and "train[0]  pending" in text

    other = book.run(status="running", active={"train[1]": [1, 5.0]})
    book.step(other, "train", status="running", count=3, started=1.0)
    [line] = lines_of(book.store, book.client.run(other))
    assert (line.status, line.tally) == ("running", "1 running, 2 pending")

    waiting = book.run(status="running", active={})
    book.step(waiting, "train", status="running", count=2, started=1.0)
    assert run_document(book.client.run(waiting), elements=False)["steps"][0]["status"] == "pending"


def test_a_plain_step_has_no_elements(book: Any) -> None:
    id = book.run()
    book.step(id, "load")
    step = book.client.run(id).steps["load"]
    for look in (len, list, lambda one: one[0]):
        with pytest.raises(UsageError, match="not a fan-out"):
            look(step)
    assert step


# Many


def test_ten_thousand_steps_are_one_query(book: Any) -> None:
    id = book.run()
    batch = RowBatch()
    for number in range(10_000):
        batch.step(StepRow(run_id=id, key=f"s{number}", name="s", position=number, status="succeeded"))
    book.store.records.write(batch)
    run = book.client.run(id)
    book.queries.clear()
    assert len(run.steps) == 10_000
    assert run.steps["s9999"].status == "succeeded"
    assert sum(step.status == "succeeded" for step in run.steps.values()) == 10_000
    assert len(book.queries) == 1
    assert len(run.as_dict()["steps"]) == 10_000
    assert len(book.queries) == 2, "and what started the run"
    assert run.steps["s17"].outputs == {}
    assert len(book.queries) == 3


def test_ten_thousand_elements_are_a_few_queries(book: Any) -> None:
    id = book.run()
    parts = range(10_000)
    batch = RowBatch()
    batch.step(StepRow(run_id=id, key="f", name="f", status="succeeded", count=len(parts)))
    book.store.records.write(batch)
    book.fan_out(id, "f", [0])
    batch = RowBatch()
    row = book.store.records.outputs(id, "f[0]")[0]
    batch.step(StepRow(run_id=id, key="f", name="f", status="succeeded", count=len(parts)))
    for index in parts:
        key = f"f[{index}]"
        batch.step(StepRow(run_id=id, key=key, name="f", parent="f", idx=index, status="succeeded"))
        batch.output(type(row)(run_id=id, key=key, name="output", artifact=artifacts.save(index, book.store.blobs)))
    book.store.records.write(batch)
    step = book.client.run(id).steps["f"]
    book.queries.clear()
    assert step[5000].index == 5000
    assert step.load() == list(parts)
    assert sum(element.status == "succeeded" for element in step) == len(parts)
    assert len(book.queries) == 5


def test_as_dict_of_a_step_is_json(book: Any) -> None:
    id = book.run()
    book.fan_out(id, "train", ["a", "b"])
    document = json.loads(json.dumps(book.client.run(id).steps["train"].as_dict()))
    assert document["outputs"]["output"]["serializer"] == "list"
    assert [element["index"] for element in document["elements"]] == [0, 1]
    assert document["usage"] == {"cpu": 1.0, "peak_memory": 1001}
    short = book.client.run(id).steps["train"].as_dict(details=False)
    assert not {"outputs", "attempts", "elements"} & short.keys()
    assert short.items() <= book.client.run(id).steps["train"].as_dict().items()


def test_metadata_from_outside_joins_what_a_step_logged(book: Any) -> None:
    id = book.run()
    book.step(id, "train")
    client = Client(store=book.store)
    client.log_metadata({"note": "by hand"}, run=id)
    client.log_metadata({"checked": True}, run=id, step="train")
    client.log_metadata({"checked": False}, run=id, step="train")
    run = client.run(id)
    assert run.metadata == {"note": "by hand"}
    assert run.steps["train"].metadata == {"checked": False}
    client.delete(id)
    assert book.store.registry.facts("run", id) == {}
    assert book.store.registry.facts("step", f"{id}/train") == {}
