"""`STOKER_SIMULATE`: a text becomes a machine, the same one each time, and a wrong text says what is wrong with it."""

from __future__ import annotations

import pytest

from stoker.core.errors import SettingsError
from stoker.devices.probe import parse_simulation, probe, processes

GB = 10**9


def test_a_machine() -> None:
    inventory = parse_simulation("4xH100-80GB,1xA10;driver=535.104.05")
    assert inventory.simulated and inventory.findings == ()
    assert (inventory.driver, inventory.cuda) == ("535.104.05", (12, 2))
    *hoppers, ampere = inventory.devices
    assert [device.index for device in inventory.devices] == [0, 1, 2, 3, 4]
    assert {(one.model, one.name, one.memory, one.capability) for one in hoppers} == {
        ("H100", "NVIDIA H100 80GB HBM3", 80 * GB, (9, 0))
    }
    assert (ampere.model, ampere.kind, ampere.memory, ampere.capability) == ("A10", "nvidia", 24 * GB, (8, 6))
    assert all(device.simulated and device.exclusive for device in inventory.devices)
    uuids = [device.uuid for device in inventory.devices]
    assert uuids[0] == "GPU-simulated-0000-0000-0000-000000000000" and len(set(uuids)) == 5
    for device in hoppers:
        assert sorted((*device.links, device.uuid)) == uuids[:4]
    assert ampere.links == ()
    assert parse_simulation("4xH100-80GB,1xA10;driver=535.104.05") == inventory


@pytest.mark.parametrize(
    ("text", "models"),
    [
        ("H100", ["H100"]),
        (" 2 x h100 , L4 ", ["H100", "H100", "L4"]),
        ("2XT4", ["T4", "T4"]),
        ("2×T4", ["T4", "T4"]),
        ("1xA10,2xA10", ["A10", "A10", "A10"]),
        ("nvidia-h100-80gb", ["H100"]),
    ],
)
def test_ways_to_write_it(text: str, models: list[str]) -> None:
    inventory = parse_simulation(text)
    assert [device.model for device in inventory.devices] == models
    assert [device.index for device in inventory.devices] == list(range(len(models)))
    assert len({device.uuid for device in inventory.devices}) == len(models)
    # What is left out is taken as fitting: nothing is made up for it.
    assert (inventory.driver, inventory.cuda) == ("", None)


def test_devices_of_one_model_are_linked_however_they_are_written() -> None:
    assert [len(device.links) for device in parse_simulation("1xA10,2xL4,2xA10").devices] == [2, 1, 1, 2, 2]


def test_other_vendors() -> None:
    inventory = parse_simulation("2xMI300X,1xtrainium,1xtpu-v5e,1xT4")
    assert [(one.kind, one.index, one.model) for one in inventory.devices] == [
        ("amd", 0, "MI300X"),
        ("amd", 1, "MI300X"),
        ("neuron", 0, "trainium"),
        ("tpu", 0, "tpu-v5e"),
        ("nvidia", 0, "T4"),
    ]
    assert [one.capability for one in inventory.devices] == [None, None, None, None, (7, 5)]


def test_a_model_sold_with_several_memories_has_the_least() -> None:
    assert parse_simulation("GH200").devices[0].memory == 96 * GB


def test_slices() -> None:
    devices = parse_simulation("8xA100-80GB/1g.10gb,1xA100-80GB,5xA100-80GB/1g.20gb").devices
    cut = devices[:8]
    assert {(one.slice, one.memory, one.model, one.links) for one in cut} == {("1g.10gb", 10 * GB, "A100-80GB", ())}
    assert cut[0].uuid.startswith("MIG-simulated-") and cut[0].name == "NVIDIA A100-SXM4-80GB MIG 1g.10gb"
    # Seven of them are one GPU, the eighth is of another; of the larger ones there is room for four.
    assert [one.index for one in devices] == [0] * 7 + [1, 2] + [3] * 4 + [4]
    parents = [one.parent for one in cut]
    assert len(set(parents[:7])) == 1 and parents[7] != parents[0]
    assert not {one.parent for one in devices if one.slice} & {one.uuid for one in devices}
    assert devices[8].links == ()


@pytest.mark.parametrize(
    ("facts", "driver", "cuda"),
    [
        ("driver=580", "580", (13, 0)),
        ("cuda=12.2", "", (12, 2)),
        ("driver = 535.104.05 ; cuda = 12.4", "535.104.05", (12, 4)),
        ("driver=375.26", "375.26", None),
    ],
)
def test_facts(facts: str, driver: str, cuda: tuple[int, int] | None) -> None:
    inventory = parse_simulation(f"1xT4;{facts}")
    assert (inventory.driver, inventory.cuda) == (driver, cuda)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("4xH10", "'4xH10': there is no accelerator called 'H10', did you mean 'H100' or 'H20'?"),
        ("1xT4,4xA100-80TB", "'4xA100-80TB': there is no accelerator called 'A100-80TB', did you mean 'A100-80GB'"),
        ("0xH100", "'0xH100' asks for 0 devices\n  fix: write a number from 1 to 256"),
        ("1000xH100", "'1000xH100' asks for 1000 devices"),
        ("200xH100,200xA10", "more than 256 devices"),
        ("4xH100,", "a name is missing\n  fix: write counts and names, such as"),
        ("4x", "a name is missing"),
        (";driver=535", "a name is missing"),
        ("", "it is empty"),
        ("H100:4", "'H100:4' has its count behind the name\n  fix: write \"4xH100\""),
        ("A100-80GB/1g.10gb:2", 'fix: write "2xA100-80GB/1g.10gb"'),
        ("1xA10/1g.5gb", "A10 cannot be sliced"),
        ("1xA100/1g.50gb", "has no slice '1g.50gb', did you mean '1g.5gb'"),
        ("1xGaudi2", "Gaudi2 cannot be simulated"),
        ("1xtpu-v5p-8", "is a TPU type, whose number counts cores"),
        ("1xT4;drivr=535", "there is no fact 'drivr', did you mean 'driver'?"),
        ("1xT4;535", "'535' is no fact\n  fix: write facts as key=value"),
        ("1xT4;driver=new", "'new' is no version of driver\n  fix: write it as in driver=535.104.05"),
        ("1xT4;cuda=12", "'12' is no version of cuda\n  fix: write it as in cuda=12.2"),
        ("1xT4;cuda=12." + "0" * 5000, "is no version of cuda"),
        ("1xT4;driver=535." + "1" * 5000, "is no version of driver"),
        ("1xT4;cuda=12.1;cuda=12.2", "'cuda' is given twice"),
        ("2xMI300X;driver=535", "no NVIDIA device is simulated\n  fix: remove driver"),
    ],
)
def test_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_simulation(text)
    assert said in str(caught.value)
    assert repr(text) in caught.value.message and caught.value.fix


def test_the_variable_hides_what_is_there() -> None:
    inventory = probe({"STOKER_SIMULATE": "2xL4", "CUDA_VISIBLE_DEVICES": "0"})
    assert inventory == parse_simulation("2xL4")
    assert processes(inventory) == ()
    with pytest.raises(SettingsError):
        probe({"STOKER_SIMULATE": "2xL44"})
