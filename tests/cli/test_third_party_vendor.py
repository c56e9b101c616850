"""The walk-through of docs/dev/adding/vendor.md: a vendor of another distribution, from the probe to the receipt."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.fixture
def toy(stoker: Any, repository: Path, tmp_path: Path) -> Any:
    """`stoker` with the walk-through's distribution on the path, and its step in train.py."""
    page = (repository / "docs/dev/adding/vendor.md").read_text(encoding="utf-8")
    vendor, program = BLOCK.findall(page)
    site = tmp_path / "toy-site"
    information = site / "stoker_toy-1.0.dist-info"
    information.mkdir(parents=True)
    (site / "stoker_toy.py").write_text(vendor)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: stoker-toy\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[stoker.vendors]\ntoy = stoker_toy:VENDOR\n")
    devices = tmp_path / "toys"
    devices.write_text("toy-a\ntoy-b\ntoy-c\n")
    stoker.project.write({"train.py": program})

    def run(*argv: str, real: bool = True, **options: Any) -> Any:
        found = {"TOY_DEVICES": str(devices)} if real else {}
        return stoker(*argv, env={"PYTHONPATH": str(site), **found}, **options)

    run.project = stoker.project  # type: ignore[attr-defined]
    return run


def test_its_devices_are_listed(toy: Any) -> None:
    document = json.loads(toy("devices", "--json").stdout)
    toys = [device for device in document["devices"] if device["kind"] == "toy"]
    assert [(device["uuid"], device["model"]) for device in toys] == [
        ("toy-a", "toy1"), ("toy-b", "toy1"), ("toy-c", "toy1"),
    ]  # fmt: skip
    pretended = json.loads(toy("devices", "--json", "--simulate", "2xtoy1", real=False).stdout)
    assert [device["uuid"][:14] for device in pretended["devices"]] == ["toy-simulated-"] * 2


def test_a_step_holds_proves_and_measures_them(toy: Any) -> None:
    toy("run", "train.py")
    step = toy.project.client().run("latest").steps["train"]
    assert step.load() == "toy-a,toy-b {'toy'}"
    receipt = step.receipt
    assert receipt.proved["devices"] == "2 visible, as leased"
    assert [(use.kind, use.model, use.utilization_peak) for use in receipt.devices] == [("toy", "toy1", 50.0)] * 2
    assert receipt.verdict == "used"


def test_a_step_is_given_pretended_ones(toy: Any) -> None:
    toy("run", "train.py", "--simulate", "2xtoy1", real=False)
    step = toy.project.client().run("latest").steps["train"]
    assert step.load().count("toy-simulated") == 2 and step.receipt.simulated


def test_a_request_for_it_on_a_machine_without_is_refused(toy: Any) -> None:
    finished = toy("run", "train.py", real=False, code=3)
    assert "toy1:2" in finished.stderr
