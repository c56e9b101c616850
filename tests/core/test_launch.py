"""How a launch is written: by its constructors, as plain values, over several layers; and what is refused."""

from __future__ import annotations

import inspect
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.config import MPI, Accelerate, Command, DeepSpeed, Jax, Launch, Torchrun
from stoker.core.codec import from_json, to_json
from stoker.core.errors import SettingsError
from stoker.core.settings import StepSettings, fields_given, plain
from stoker.launchers.arguments import Argument, argument_value, argument_words
from stoker.launchers.options import parse_launch, resolve_launch, weaker_launch
from stoker.settings.options import layer_from, layer_of, step_settings


def test_a_value_holds_what_was_given() -> None:
    launch = Accelerate(num_processes=4, mixed_precision="bf16", outputs="all", hang_after="2m")
    assert plain(launch) == {
        "launcher": "accelerate",
        "num_processes": 4,
        "processes_per_node": None,
        "outputs": "all",
        "hang_after": 120.0,
        "arguments": {"mixed_precision": "bf16"},
    }


@pytest.mark.parametrize("constructor", [MPI, Accelerate, DeepSpeed, Jax, Torchrun])
def test_a_constructor_shows_its_options_and_travels(constructor: Any) -> None:
    options = ["outputs", "hang_after", "gang_timeout", "start_timeout", "one_world", "launch_arguments"]
    assert list(inspect.signature(constructor).parameters) == options
    assert pickle.loads(pickle.dumps(constructor)) is constructor
    with pytest.raises(TypeError):
        constructor("all")


def test_a_resolved_value_has_defaults() -> None:
    launch = resolve_launch(parse_launch("torchrun"))
    assert launch == Launch(
        launcher="torchrun",
        num_processes=None,
        processes_per_node=None,
        outputs="main",
        hang_after=600.0,
        gang_timeout=600.0,
        start_timeout=300.0,
        one_world=True,
        command=None,
        arguments={},
    )


@pytest.mark.parametrize(
    "way",
    [
        Torchrun(processes_per_node=2, max_restarts=1),
        {"launcher": "torchrun", "processes_per_node": 2, "max_restarts": 1},
        {"launcher": "torchrun", "processes_per_node": "2", "arguments": {"max_restarts": "1"}},
        {"launcher": "torchrun", "nproc_per_node": 2, "max_restarts": 1},
        Torchrun(nproc_per_node=2, max_restarts=1),
    ],
)
def test_every_way_in_makes_the_same_layer(way: Any) -> None:
    values = layer_of("train.py:1 @step", {"launch": way}).values
    assert values == layer_from("x", ({}, {"launch": way})).values
    assert values["launch"] == {
        "launcher": "torchrun",
        "processes_per_node": 2,
        "num_processes": None,
        "arguments": {"max_restarts": 1},
    }
    json.dumps(values)


def test_a_step_keeps_what_all_layers_say() -> None:
    settings = step_settings({"launch": {"launcher": "accelerate", "num_processes": 2, "arguments": {"cpu": True}}})
    assert settings.launch is not None
    assert (settings.launch.launcher, settings.launch.num_processes) == ("accelerate", 2)
    assert settings.launch.arguments == {"cpu": True}
    again = from_json(StepSettings, json.loads(json.dumps(to_json(settings))), strict=False)
    assert again == settings
    # A run that is resumed takes its recorded settings for a layer.
    assert step_settings({"launch": fields_given(settings.launch)}) == settings


def test_no_launch_is_none() -> None:
    assert step_settings({}).launch is None
    assert step_settings({"launch": None}).launch is None
    assert step_settings({"launch": {"hang_after": 5.0}}).launch is None, "only a default for who launches"


def test_arguments_without_a_launcher_wait_for_one() -> None:
    values = parse_launch({"num_processes": 2, "mixed_precision": "bf17"})
    assert values is not None
    with pytest.raises(SettingsError, match="no launcher"):
        resolve_launch(values)
    with pytest.raises(SettingsError, match="did you mean 'bf16'"):
        resolve_launch({**values, "launcher": "accelerate"})


def test_none_takes_back_and_is_no_limit() -> None:
    launch = resolve_launch({"launcher": "torchrun", "hang_after": None, "arguments": {"max_restarts": None}})
    assert launch is not None
    assert launch.hang_after is None
    assert launch.arguments == {}


def test_the_number_in_all_takes_back_the_number_on_each_node() -> None:
    strong = parse_launch({"num_processes": 2})
    weak = plain(Torchrun(nproc_per_node=4))
    launch = resolve_launch({**weak, **(strong or {})})
    assert launch is not None
    assert (launch.num_processes, launch.processes_per_node) == (2, None)


@pytest.mark.parametrize("word", ["gpu", "auto", "xpu"])
def test_as_many_as_there_are(word: str) -> None:
    assert plain(Torchrun(nproc_per_node=word))["processes_per_node"] is None


def test_another_launcher_takes_no_arguments_of_the_first() -> None:
    weak = plain(Torchrun(nproc_per_node=4, max_restarts=2, hang_after=60))
    assert weaker_launch(weak, plain(Accelerate())) == {"launcher": "torchrun", "hang_after": 60.0}
    assert weaker_launch(weak, {"num_processes": 2}) == weak
    assert weaker_launch(weak, plain(Torchrun())) == weak


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Accelerate(num_proceses=2), "did you mean 'num_processes'"),
        (lambda: Accelerate(mixed_precision="bf17"), "mixed_precision: 'bf17' is not one of .* mean 'bf16'"),
        (lambda: Accelerate(cpu="yes"), "cpu: 'yes' is neither true nor false"),
        (lambda: Accelerate(num_processes=0), "num_processes: 0 is less than 1"),
        (lambda: Accelerate(num_processes=True), "num_processes: True is not a whole number"),
        (lambda: Accelerate(machine_rank=1), "machine_rank is not yours to give"),
        (lambda: Accelerate(gpu_ids="0,1"), "gpu_ids is not yours to give: the step runs on the devices"),
        (lambda: Accelerate(aws_secret_access_key="x"), "a command line can be read"),
        (lambda: Accelerate(outputs="some"), "outputs: 'some' is not one of main and all"),
        (lambda: Accelerate(hang_after=0), "hang_after: 0 leaves no time"),
        (lambda: Torchrun(start_timeout="0s"), "start_timeout: '0s' leaves no time"),
        (lambda: Torchrun(one_world="sometimes"), "one_world: "),
        (lambda: Accelerate(hang_after="soon"), "hang_after: 'soon' is not a duration"),
        (lambda: Torchrun(nproc_per_node="cpu"), "nproc_per_node: 'cpu' is not a whole number"),
        (lambda: Torchrun(nproc_per_node=2, num_gpus=2), "torchrun has no argument 'num_gpus'"),
        (lambda: Torchrun(nproc_per_node=2, processes_per_node=4), "disagree"),
        (lambda: Torchrun(rdzv_id="a"), "unique to the run"),
        (lambda: DeepSpeed(hostfile="h"), "without ssh or a host file"),
        (lambda: Jax(process_id=1), "process_id is not yours to give"),
        (lambda: MPI(host="a,b"), "the nodes are those that the step was given"),
        (lambda: MPI(program="aprun"), "'aprun' is not one of mpirun, mpiexec, srun"),
        (lambda: Command("launch -n 2"), "'launch -n 2' is not a list of words"),
        (lambda: Command([]), "is not a list of words"),
        (lambda: parse_launch("torchrunn"), "there is no launcher called 'torchrunn', did you mean 'torchrun'"),
        (lambda: parse_launch(3), "3 says not how ranks are started"),
        (lambda: parse_launch({"launcher": 3}), "launcher: 3 is not a name"),
        (lambda: parse_launch({"launcher": "command"}), "needs a command"),
        (lambda: parse_launch({"launcher": "mpi", "command": ["a"]}), "runs a command of its own"),
        (lambda: parse_launch({"arguments": 3}), "arguments: 3 does not map"),
        (lambda: parse_launch({"outputs": "all", "arguments": {"outputs": "all"}}), "outputs is given twice"),
    ],
)
def test_refusals_say_what_to_write(make: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        make()


def test_the_place_of_a_refusal() -> None:
    with pytest.raises(SettingsError) as caught:
        layer_from("x.toml:3", ({"launch": {"launcher": "torchrun", "max_restart": 1}},))
    assert str(caught.value).startswith("x.toml:3: launch: torchrun has no argument 'max_restart', did you mean")


def test_a_command_stays_a_list() -> None:
    launch = Command(["./start", "-v"], num_processes=4)
    assert parse_launch(["./start", "-v"]) == {"launcher": "command", "command": ["./start", "-v"]}
    settings = step_settings({"launch": plain(launch)})
    assert settings.launch is not None
    assert settings.launch.command == ("./start", "-v")


VALUES = {
    "num_processes": st.integers(1, 512),
    "mixed_precision": st.sampled_from(["no", "fp16", "bf16", "fp8"]),
    "cpu": st.booleans(),
    "monitor_interval": st.floats(0.01, 100),
    "rdzv_conf": st.dictionaries(st.sampled_from(["timeout", "join_timeout"]), st.integers(1, 900)),
    "role": st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=9),
    "fsdp_offload_params": st.booleans(),
    "env": st.lists(st.sampled_from(["A=1", "B=two words"])),
    "outputs": st.sampled_from(["main", "all"]),
    "hang_after": st.one_of(st.none(), st.floats(0.5, 1e6)),
    "start_timeout": st.one_of(st.none(), st.floats(0.5, 1e6)),
    "one_world": st.booleans(),
}


@given(st.fixed_dictionaries({}, optional=VALUES))
def test_plain_forms_come_back(arguments: dict[str, Any]) -> None:
    launch = Accelerate(**arguments)
    form = json.loads(json.dumps(plain(launch)))
    assert parse_launch(form) == plain(launch) == parse_launch(launch)
    once = resolve_launch(form)
    assert once is not None
    assert resolve_launch(json.loads(json.dumps(plain(once)))) == once
    assert from_json(Launch, json.loads(json.dumps(to_json(once))), strict=True) == once


@pytest.mark.parametrize(
    ("argument", "value", "words"),
    [
        (Argument("flag"), True, ["--x"]),
        (Argument("flag"), False, []),
        (Argument("switch", flag="--on", off="--off"), False, ["--off"]),
        (Argument("truth"), True, ["--x=True"]),
        (Argument("truth"), False, ["--x="]),
        (Argument("yesno"), "True", ["--x=true"]),
        (Argument("yesno", ("FULL",)), "FULL", ["--x=FULL"]),
        (Argument("yesnos"), [True, False, "true"], ["--x=true,false,true"]),
        (Argument("int"), "-4", ["--x=-4"]),
        (Argument("float"), "1e-3", ["--x=0.001"]),
        (Argument("text"), "-dash", ["--x=-dash"]),
        (Argument("text", ("1", "2")), 2, ["--x=2"]),
        (Argument("texts"), {"A": 1, "B": "b"}, ["--x=A=1", "--x=B=b"]),
        (Argument("names"), "a, b", ["--x=a,b"]),
        (Argument("names"), 3, ["--x=3"]),
        (Argument("pairs"), "a=1,b=2", ["--x=a=1,b=2"]),
        (Argument("each", flag="--mca"), {"btl": "^tcp"}, ["--mca", "btl", "^tcp"]),
        (Argument("int"), None, []),
    ],
)
def test_how_arguments_are_written(argument: Argument, value: Any, words: list[str]) -> None:
    assert argument_words("x", argument, argument_value(argument, value)) == words


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        (Argument("flag"), 1),
        (Argument("yesno"), "maybe"),
        (Argument("int"), 1.5),
        (Argument("int"), float("nan")),
        (Argument("int"), [1]),
        (Argument("float"), float("inf")),
        (Argument("float"), True),
        (Argument("text"), True),
        (Argument("text"), ["a"]),
        (Argument("text", ("a",)), "b"),
        (Argument("texts"), 3),
        (Argument("names"), [""]),
        (Argument("names"), ["a,b"]),
        (Argument("pairs"), "a"),
        (Argument("pairs"), {"a": "1,2"}),
        (Argument("pairs"), {"a": [1]}),
    ],
)
def test_what_arguments_do_not_take(argument: Argument, value: Any) -> None:
    with pytest.raises(SettingsError):
        argument_value(argument, value)
