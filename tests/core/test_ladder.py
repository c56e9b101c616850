"""Rungs as they are written, what they make of a request, and the retry settings that hold them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stoker.config import Alternative, Halve, ResourceSettings, Retry, Scale
from stoker.core import ladder
from stoker.core.codec import from_json, to_json
from stoker.core.errors import SettingsError
from stoker.core.ladder import Change
from stoker.core.settings import StepSettings, fields_given
from stoker.core.status import CAUSES
from stoker.settings.options import OPTIONS, layer_from, step_settings


@pytest.mark.parametrize(
    ("written", "meant", "text"),
    [
        ("halve batch_size", Halve("batch_size"), "halve batch_size"),
        ("Halve  batch_size", Halve("batch_size"), "halve batch_size"),
        ("halve n 3 times", Halve("n", times=3), "halve n 3 times"),
        ("halve n least 8", Halve("n", 8), "halve n least 8"),
        ("halve n least 8, 2 times", Halve("n", least=8, times=2), "halve n 2 times least 8"),
        ("scale memory 2", Scale("memory", 2), "scale memory 2"),
        ("scale gpu_memory 1.5", Scale("gpu_memory", 1.5), "scale gpu_memory 1.5"),
        ("scale memory 1000000000", Scale("memory", 1e9), "scale memory 1000000000"),
        ("scale memory 1.3333333333333333", Scale("memory", 4 / 3), "scale memory 1.3333333333333333"),
        ("scale shared_memory", Scale("shared_memory"), "scale shared_memory 2"),
        ("alternative", Alternative(), "alternative"),
        ({"parameter": "n", "least": 2}, Halve("n", 2), "halve n least 2"),
        ({"resource": "memory", "factor": 3}, Scale("memory", 3), "scale memory 3"),
        ({}, Alternative(), "alternative"),
        (Halve("n"), Halve("n"), "halve n"),
    ],
)
def test_every_way_to_write_a_rung(written: Any, meant: Any, text: str) -> None:
    assert ladder.parse_ladder([written]) == ladder.parse_ladder(written) == (meant,)
    assert str(meant) == text
    assert ladder.rung(text) == meant


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("halv x", "did you mean 'halve'"),
        ("halve", "is not a rung"),
        ("halve x 3", "is not a rung"),
        ("halve x least", "is not a rung"),
        ("halve x least none", "least: 'none' is not a whole number"),
        ("halve x least 0", "least: 0 is less than 1"),
        ("halve batch-size", "is not a parameter's name"),
        ("scale disk 2", "no memory that can be scaled"),
        ("scale memry 2", "did you mean 'memory'"),
        ("scale memory 1", "would not make it more"),
        ("scale memory 2 3", "is not a rung"),
        ("alternative 2", "is not a rung"),
        ("", "is not a rung"),
        (3, "is not a ladder"),
        ([3], "is not a rung"),
        ({"factor": 2}, "is not a rung"),
        ({"parameter": "n", "leest": 2}, "did you mean 'least'"),
        (None, "is not a ladder"),
    ],
)
def test_what_is_no_rung_says_what_to_write(written: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        Retry(on_oom=written)
    with pytest.raises(SettingsError, match="on_oom"):
        layer_from("--set", [{"retry": {"on_oom": written}}])


def test_a_layer_holds_texts_and_a_plan_gives_the_rungs_back() -> None:
    asked = Retry(delay="1s", on_oom=[Halve("n", least=4, times=2), Scale("memory", 2), Alternative()])
    plain = OPTIONS["retry"].parse(asked)
    assert plain == {"delay": 1.0, "on_oom": ["halve n 2 times least 4", "scale memory 2", "alternative"]}
    assert json.loads(json.dumps(plain)) == plain
    settings = step_settings({"retry": plain})
    assert settings.retry.on_oom == asked.on_oom
    again = from_json(StepSettings, json.loads(json.dumps(to_json(settings))), strict=True)
    assert again == settings
    assert step_settings({"retry": fields_given(again.retry)}).retry == settings.retry


def test_times_are_the_rungs_unless_they_are_given() -> None:
    assert step_settings({"retry": {"on_oom": ["halve n 3 times", "alternative"]}}).retry.times == 4
    assert step_settings({"retry": {"on_oom": ["halve n"], "times": 2}}).retry.times == 2
    assert step_settings({"retry": {"on_oom": ["halve n"], "on": ["killed"]}}).retry.times == 1
    assert step_settings({"retry": {"on_oom": []}}).retry.times == 0
    with pytest.raises(SettingsError, match="but not how often"):
        step_settings({"retry": {"on_oom": [], "on": ["killed"]}})


def test_a_rung_may_be_used_as_often_as_it_says() -> None:
    rungs = ladder.parse_ladder(["halve n 2 times", "alternative", "halve n"])
    assert ladder.single(rungs) == (Halve("n"), Halve("n"), Alternative(), Halve("n"))


def test_what_a_ladder_is_for() -> None:
    assert ladder.climbed_after(()) == frozenset()
    assert ladder.climbed_after([Halve("n")]) == {"gpu-oom", "host-oom"}
    assert ladder.climbed_after([Scale("memory")]) == {"gpu-oom", "host-oom"}
    assert ladder.climbed_after([Scale("shared_memory")]) == {"gpu-oom", "host-oom", "shm-too-small"}
    assert set(ladder.HELPS) <= CAUSES


def test_halving_ends_at_the_least() -> None:
    assert ladder.halve(Halve("n", 3), 16) == Change(what="n", old=16, new=8)
    assert ladder.halve(Halve("n", 3), 7) == Change(what="n", old=7, new=3)
    assert ladder.halve(Halve("n", 3), 5) == Change(what="n", old=5, new=3)
    assert ladder.halve(Halve("n", 3), 3) == "n is 3 already"
    assert ladder.halve(Halve("n"), 0) == "n is 0 already"
    assert ladder.halve(Halve("n"), None) == "n is not a plain whole number"


def test_a_resource_is_scaled_from_what_is_asked() -> None:
    found = ladder.enlarge(Scale("memory", 1.5), ResourceSettings(memory="4GB", cpu_count=2))
    assert not isinstance(found, str)
    change, resources = found
    assert str(change) == "memory 4GB → 6GB"
    assert resources == ResourceSettings(memory="6GB", cpu_count=2)
    assert ladder.enlarge(Scale("memory", 2), ResourceSettings()) == "no memory is asked for"
    assert ladder.enlarge(Scale("memory", 2), ResourceSettings(memory=None)) == "no memory is asked for"


def test_what_contradicts_itself_is_passed_over_with_the_reason() -> None:
    told = ladder.enlarge(Scale("gpu_memory", 4), ResourceSettings(accelerators="A100", gpu_memory="20GB"))
    assert isinstance(told, str) and "disagree" in told


def test_alternatives_are_taken_in_order() -> None:
    asked = ResourceSettings(accelerators=["L4:1", "A100:1", "H100:2"])
    found = ladder.enlarge(Alternative(), asked)
    assert not isinstance(found, str)
    assert str(found[0]) == "accelerators L4:1 → A100:1"
    assert found[1] == ResourceSettings(accelerators=["A100:1", "H100:2"])
    last = ResourceSettings(accelerators=["H100:2"])
    assert ladder.enlarge(Alternative(), last) == "H100:2 is the last of the accelerators"
    assert ladder.enlarge(Alternative(), ResourceSettings(gpu_count=1)) == "no accelerators are named"


def test_the_net_of_several_changes() -> None:
    changes = [
        Change(what="n", old=64, new=32),
        Change(what="memory", old=10**9, new=2 * 10**9),
        Change(what="n", old=32, new=16),
    ]
    assert [str(change) for change in ladder.net(changes)] == ["n 64 → 16", "memory 1GB → 2GB"]
