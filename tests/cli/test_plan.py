"""`stoker plan FILE`: what would happen, and nothing happens."""

from __future__ import annotations

from typing import Any


def squeezed(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_plan_is_that_of_the_call(stoker: Any) -> None:
    finished = stoker("plan", "train.py", "--lr", "0.25")
    lines = squeezed(finished.stdout)
    assert lines[0].startswith("training: 4 steps on stack 'local'")
    for line in (
        "needs 1 CPU",
        "on orchestrator (local)",
        "retry 1 time",
        "timeout 5m",
        "inputs data ← load, lr ← 0.25",
        "inputs count ← 3",
        "inputs number ← each of load",
    ):
        assert line in lines
    assert stoker.json("runs") == []
    assert "status" not in finished.stdout, "the main block ends at the call"


def test_every_setting_says_where_it_is_from(stoker: Any) -> None:
    finished = stoker("plan", "train.py", "--explain", "--set", "steps.train.resources.cpu_count=2")
    found = next(line for line in squeezed(finished.stdout) if line.startswith("resources.cpu_count"))
    assert found.startswith("resources.cpu_count = 2")
    assert "--set" in found
    assert "(over train.py:12 @step)" in found
    assert "timeout = 5m train.py:12 @step" in squeezed(finished.stdout)
    assert "no setting was given" in finished.stdout
    whole = stoker("plan", "train.py", "--explain", "--set", "failure_mode=continue").stdout
    assert "failure_mode continue" in squeezed(whole) and "failure_mode = " not in whole


def test_json_is_the_plan(stoker: Any) -> None:
    made = stoker.json("plan", "train.py")
    assert [step["key"] for step in made["steps"]] == ["load", "train", "square", "check"]
    assert made["pipeline"] == "training"


def test_a_refused_plan_is_exit_code_3(stoker: Any) -> None:
    finished = stoker("plan", "train.py", "--set", "steps.train.resources.gpu_count=8", code=3)
    assert "needs 1 CPU, 8 GPUs" in squeezed(finished.stdout)
    assert "STK" in finished.stdout
    assert "error" in finished.stdout
    assert stoker("run", "train.py", "--set", "steps.train.resources.gpu_count=8", code=3).stdout == ""


def test_mistakes_are_exit_code_2(stoker: Any) -> None:
    stoker.project.write({"stoker.toml": "[stacks.strict]\nrequire_proof = true\n"})
    assert "below [stacks.strict.settings]" in stoker("plan", "train.py", "--stack", "strict", code=2).stderr
    stoker.project.write({"stoker.toml": "[stacks.strict.settings]\nrequire_proof = true\n"})
    stoker("plan", "train.py", "--stack", "strict")
    stoker.project.write(
        {"other.py": "from stoker import pipeline, step\n@step\ndef a(): ...\n@pipeline\ndef p(): a()\n"}
    )
    assert "train.py" in stoker("plan", code=2).stderr, "of two files one must be named"
    assert "no parameter for --lrr" in stoker("plan", "train.py", "--lrr", "1", code=2).stderr
    assert "there is no step 'x'" in stoker("plan", "train.py", "--set", "steps.x.timeout=3", code=2).stderr


def test_a_dynamic_pipeline_has_no_steps_yet(stoker: Any) -> None:
    text = """
        from stoker import pipeline, step


        @step
        def add(number: int) -> int:
            return number + 1


        @pipeline(dynamic=True)
        def counting(until: int):
            number = 0
            while number < until:
                number = add(number)


        if __name__ == "__main__":
            counting(until=1)
    """
    stoker.project.write({"dynamic.py": text})
    assert stoker("plan", "dynamic.py").stdout.startswith("counting: dynamic on stack 'local'")
    stoker("run", "dynamic.py", "--until", "3")
    assert [step["key"] for step in stoker.json("show", "latest")["steps"]] == ["add", "add_2", "add_3"]


def test_a_file_that_calls_nothing(stoker: Any) -> None:
    text = stoker.project.folder.joinpath("train.py").read_text().partition("if __name__")[0]
    stoker.project.write({"quiet.py": text})
    assert "needs count" in stoker("plan", "quiet.py", code=2).stderr
    assert "count ← 2" in stoker("plan", "quiet.py", "--count", "2").stdout
