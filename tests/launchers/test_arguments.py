"""Each launcher's table against the launcher's own parser, where it is installed."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

import attrs
import pytest

from stoker.core.errors import SettingsError
from stoker.core.settings import Launch
from stoker.core.settings import plain as plainly
from stoker.launchers import accelerate, base, torchrun
from stoker.launchers.accelerate import ARGUMENTS
from stoker.launchers.arguments import Argument, argument_value, argument_words, arguments_of, installed_arguments
from stoker.launchers.base import Launcher, Node
from stoker.launchers.options import resolve_launch
from stoker.launchers.registry import LAUNCHERS, launcher_named

WORKER = ("python3", "-m", "worker", "--job", "7")
RIGHT: dict[str, Any] = {
    "flag": True,
    "switch": False,
    "truth": False,
    "yesno": True,
    "yesnos": [True, False, True],
    "int": 3,
    "float": 0.5,
    "text": "word",
    "texts": ["A=1", "B=2"],
    "names": ["one", "two"],
    "pairs": {"timeout": 5},
    "each": {"btl": "tcp"},
}
WRONG: dict[str, Any] = {**dict.fromkeys(RIGHT, object()), "texts": 3, "names": True, "yesnos": "maybe"}

OPEN = [(name, argument) for name, argument in ARGUMENTS.items() if not argument.owned]


def launch_of(launcher: str, own: dict[str, Any], arguments: dict[str, Any]) -> Launch:
    return base.launch_of(launcher_named(launcher), own, arguments)


def parser_of(target: str) -> argparse.ArgumentParser:
    module, _, function = target.partition(":")
    pytest.importorskip(module.partition(".")[0])
    made: argparse.ArgumentParser = getattr(importlib.import_module(module), function)()
    return made


@pytest.fixture(scope="module")
def accelerates() -> argparse.ArgumentParser:
    return parser_of("accelerate.commands.launch:launch_command_parser")


@pytest.fixture(scope="module")
def torchs() -> argparse.ArgumentParser:
    return parser_of("torch.distributed.run:get_args_parser")


def right(argument: Argument) -> Any:
    return argument.choices[0] if argument.choices and argument.kind == "text" else RIGHT[argument.kind]


def test_every_launcher_is_in_the_table() -> None:
    for name in LAUNCHERS.names():
        launcher = launcher_named(name)
        assert isinstance(launcher, Launcher)
        assert launcher.name == name


def test_the_table_is_complete(accelerates: argparse.ArgumentParser) -> None:
    dests = {action.dest for action in accelerates._actions} - {"help"}
    missing = dests - set(ARGUMENTS)
    assert not missing, f"a newer version has more; add them: {missing}"
    assert set(ARGUMENTS) - dests == set()


def test_choices_are_those_of_the_parser(accelerates: argparse.ArgumentParser) -> None:
    for name, argument in arguments_of(accelerates).items():
        if argument.choices:
            assert set(ARGUMENTS[name].choices) == set(argument.choices), name


@pytest.mark.parametrize(("name", "argument"), OPEN)
def test_a_right_value_reaches_accelerate(name: str, argument: Argument, accelerates: argparse.ArgumentParser) -> None:
    launch = launch_of("accelerate", {}, {name: right(argument)})
    flat = {**plainly(launch), **(plainly(launch).get("arguments") or {})}
    assert flat[name] == argument_value(argument, right(argument))
    found = vars(accelerates.parse_args([*argument_words(name, argument, flat[name]), "script.py"]))[name]
    expected = {
        "names": ",".join(RIGHT["names"]),
        "pairs": "timeout=5",
        "yesno": "true",
        "yesnos": (True, False, True),
    }.get(argument.kind, flat[name])
    assert found in {expected, True} if argument.kind == "yesno" else found == expected


@pytest.mark.parametrize(("name", "argument"), OPEN)
def test_a_wrong_value_is_refused(name: str, argument: Argument) -> None:
    wrong = "no such choice" if argument.choices and argument.kind == "text" else WRONG[argument.kind]
    with pytest.raises(SettingsError, match=name):
        launch_of("accelerate", {}, {name: wrong})


@pytest.mark.parametrize(
    ("launcher", "name"),
    [
        (name, argument)
        for name in sorted(LAUNCHERS.names())
        for argument, row in launcher_named(name).arguments.items()
        if row.owned
    ],
)
def test_what_stoker_gives_is_refused_with_a_reason(launcher: str, name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} is not yours to give: .{{15}}"):
        launch_of(launcher, {}, {name: "x"})


def test_torchruns_table_is_complete(torchs: argparse.ArgumentParser) -> None:
    table = torchrun.ARGUMENTS
    assert {action.dest for action in torchs._actions} - {"help"} == set(table)
    for action in torchs._actions:
        row = table.get(action.dest)
        if row is not None and action.option_strings:
            assert (row.flag or f"--{action.dest}") in action.option_strings
            assert (row.kind == "flag") == (action.nargs == 0)


@pytest.mark.parametrize(
    "name", [name for name, row in torchrun.ARGUMENTS.items() if not row.owned and row.means != "nodes"]
)
def test_a_right_value_reaches_torchrun(name: str, torchs: argparse.ArgumentParser) -> None:
    argument = torchrun.ARGUMENTS[name]
    value = argument_value(argument, right(argument))
    found = getattr(torchs.parse_args([*argument_words(name, argument, value), "script.py"]), name)
    texts = {"names": "one,two", "pairs": "timeout=5"}
    if name.startswith("duplicate_"):
        assert found == ["one", "two"]
    elif name == "nproc_per_node":
        assert found == "3"
    else:
        assert found == texts.get(argument.kind, value)


COMBINATIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "bf16": {"mixed_precision": "bf16", "dynamo_backend": "inductor"},
    "elastic": {"rdzv_backend": "c10d", "max_restarts": 3, "rdzv_conf": {"timeout": 60}},
    "deepspeed": {"use_deepspeed": True, "zero_stage": 3, "zero3_init_flag": True, "gradient_clipping": 1.0},
    "fsdp": {"use_fsdp": True, "fsdp_version": 2, "fsdp_transformer_layer_cls_to_wrap": ["A", "B"]},
    "fsdp1": {"use_fsdp": True, "fsdp_reshard_after_forward": "FULL_SHARD", "fsdp_sync_module_states": False},
    "parallel": {
        "use_fsdp": True,
        "fsdp_version": "2",
        "use_parallelism_config": True,
        "parallelism_config_tp_size": 2,
    },
    "megatron": {"use_megatron_lm": True, "megatron_lm_tp_degree": 2, "megatron_lm_no_load_optim": True},
    "tpu": {"tpu": True, "tpu_use_cluster": False, "downcast_bf16": True, "env": ["A=1", "B=2"]},
    "fp8": {"mixed_precision": "fp8", "fp8_backend": "te", "fp8_override_linear_precision": [True, False, True]},
    "file": {"config_file": "accelerate.yaml"},
    "port": {"main_process_port": 29511},
    "cpu": {"cpu": True},
}
SHAPES = {
    "one": Node(),
    "several": Node(processes=4, devices=("0", "1", "2", "3")),
    "gang": Node(rank=1, nodes=2, processes=2, head="10.0.0.1", address="10.0.0.2", port=4001, rendezvous="run-a-1"),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("combination", COMBINATIONS)
def test_what_is_made_parses_back(combination: str, shape: str, accelerates: argparse.ArgumentParser) -> None:
    node = SHAPES[shape]
    launch = resolve_launch(plainly(launch_of("accelerate", {}, COMBINATIONS[combination])))
    assert launch is not None
    started = accelerate.LAUNCHER(WORKER, node, launch.arguments)
    assert started.argv[:3] == ("python3", "-m", "accelerate.commands.launch")
    parsed = accelerates.parse_args(list(started.argv[3:]))
    assert (parsed.num_processes, parsed.num_machines) == (node.world_size, node.nodes)
    assert (parsed.module, parsed.training_script, parsed.training_script_args) == (True, "worker", ["--job", "7"])
    assert parsed.config_file
    assert parsed.gpu_ids == "all"
    assert parsed.main_process_port == COMBINATIONS[combination].get("main_process_port", node.port)
    if node.nodes > 1:
        assert (parsed.machine_rank, parsed.main_process_ip) == (1, "10.0.0.1")
        assert parsed.deepspeed_multinode_launcher == "standard"
    several = any(getattr(parsed, name) for name in accelerate.PARADIGMS) or combination == "file"
    assert several or node.world_size == 1, "only one process would be started"
    assert sum([parsed.multi_gpu, parsed.cpu, parsed.tpu, parsed.use_deepspeed, parsed.use_fsdp]) <= 1
    for name, value in COMBINATIONS[combination].items():
        if name not in {"cpu", "rdzv_conf"} and isinstance(value, (str, int, float)) and not isinstance(value, bool):
            assert str(getattr(parsed, name)) == str(value), name


def test_newer_arguments_are_asked_for() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--brand_new", type=int)
    parser.add_argument("--newer_flag", action="store_true")
    parser.add_argument("--newer_list", action="append")
    parser.add_argument("--newer_yesno", default="true", type=str)
    parser.add_argument("--mixed_precision", choices=["no", "fp4"])
    parser.add_argument("script")
    rows = arguments_of(parser)
    assert {name: row.kind for name, row in rows.items()} == {
        "brand_new": "int",
        "newer_flag": "flag",
        "newer_list": "texts",
        "newer_yesno": "yesno",
        "mixed_precision": "text",
    }
    launcher = attrs.evolve(accelerate.LAUNCHER, newer=lambda: rows)
    launch = base.launch_of(launcher, {}, {"brand_new": "3", "newer_flag": True, "mixed_precision": "fp4"})
    assert launch.arguments == {"brand_new": 3, "newer_flag": True, "mixed_precision": "fp4"}


def test_a_launcher_that_is_not_installed_has_nothing_newer() -> None:
    assert installed_arguments("package_that_nobody_has:parser", "accelerate") == {}
    assert installed_arguments("argparse:no_such_parser", "") == {}
