"""The tables of instance types, against what the EC2 API answered for every type it has (recorded by moto)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import attrs
import moto
import pytest

from stoker.backends.aws.instances import CORES, described, expand, instance_type, table
from stoker.core.accelerators import MODELS

EC2 = Path(moto.__file__).parent / "ec2/resources/instance_types.json.gz"
UNTOLD = {"trn2u.48xlarge"}
"""Types of which the recorded answers tell no accelerators."""


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    answers: dict[str, Any] = json.loads(gzip.decompress(EC2.read_bytes()))
    return answers


def test_the_tables_say_what_the_api_says(answers: dict[str, Any]) -> None:
    compared = 0
    for name, answer in answers.items():
        ours = instance_type(name)
        if ours is None or name in UNTOLD:
            continue
        theirs = described(answer)
        assert theirs is not None
        parts = attrs.evolve(ours, source="", efa=0), attrs.evolve(theirs, source="", efa=0)
        assert parts[0] == parts[1]
        if ours.count:
            assert ours.efa == theirs.efa, name
        compared += 1
    assert compared > 300


def test_every_type_with_accelerators_is_known(answers: dict[str, Any]) -> None:
    read = {name: described(answer) for name, answer in answers.items()}
    assert [name for name, each in read.items() if each and each.count and instance_type(name) is None] == []
    parts = {name for name, each in read.items() if each is None}
    assert parts == {name for name in answers if name.startswith(("g6f.", "gr6f."))}, "parts of a GPU are no GPUs"
    assert all(each.accelerator in MODELS and each.source for each in table().values())


def test_cores_of_neuron_devices(answers: dict[str, Any]) -> None:
    compared = set()
    for name, answer in answers.items():
        for chip in (answer.get("NeuronInfo") or {}).get("NeuronDevices") or ():
            accelerator = table()[name].accelerator
            assert chip["CoreInfo"]["Count"] == CORES[accelerator]
            compared.add(accelerator)
    assert compared >= {"trainium", "trainium2", "inferentia2"}


def test_families_and_unknown_names() -> None:
    types, unknown = expand(["p4d", "p3.2xlarge", "optimal", "m5", "c5.18xlarge", "x99.huge", "m5.77xlarge"])
    names = [each.name for each in types]
    assert names == [
        "p4d.24xlarge",
        "p3.2xlarge",
        "m5.24xlarge",
        "c5.24xlarge",
        "r5.24xlarge",
        "c5.18xlarge",
    ]
    assert unknown == ("x99.huge", "m5.77xlarge")
    assert table()["p4d.24xlarge"].text == "p4d.24xlarge: 8 × A100"
