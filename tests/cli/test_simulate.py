"""Pretended devices on the command line: asked for in every way, marked wherever they appear, refused when wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

TWO = ("--simulate", "2xL4")
TRAIN = """
    import os

    from stoker import pipeline, step


    @step(resources={"gpu_count": 2}, cache=False)
    def train(broken: bool) -> str:
        if broken and not os.path.exists("mended"):
            raise ValueError("broken")
        return os.environ["CUDA_VISIBLE_DEVICES"]


    @pipeline
    def training(broken: bool = False):
        train(broken)


    if __name__ == "__main__":
        training()
"""
PRETENDED = [f"GPU-simulated-0000-0000-0000-{number:012d}" for number in range(2)]


@pytest.fixture
def gpus(stoker: Any) -> Any:
    stoker.project.write({"gpus.py": TRAIN})
    return stoker


def seen(gpus: Any) -> list[str]:
    found: str = gpus.project.client().run("latest").steps["train"].load()
    return found.split(",")


@pytest.mark.parametrize(
    ("argv", "env"),
    [
        (("run", "gpus.py", *TWO), {}),
        (("run", "gpus.py", "--simulate=2xL4", "--debug"), {}),
        (("run", "gpus.py"), {"STOKER_SIMULATE": "2xL4"}),
        # The option counts, and the variable is not even read.
        (("run", "gpus.py", *TWO), {"STOKER_SIMULATE": "nonsense"}),
    ],
)
def test_ways_to_ask(gpus: Any, argv: tuple[str, ...], env: Mapping[str, str]) -> None:
    gpus(*argv, env=env)
    assert seen(gpus) == PRETENDED


def test_behind_a_script(gpus: Any) -> None:
    gpus.project.run("gpus.py", *TWO)
    assert seen(gpus) == PRETENDED
    refused = gpus.project.run("gpus.py", code=3).stderr
    assert "STK103" in refused and "--simulate 2x" in refused


def test_a_run_goes_on_with_pretended_devices(gpus: Any) -> None:
    gpus("run", "gpus.py", "--broken", *TWO, code=1)
    (gpus.project.folder / "mended").touch()
    assert "STK103" in gpus("resume", "last", code=3).stderr
    gpus("resume", "last", *TWO)
    assert seen(gpus) == PRETENDED and len(gpus.project.client().runs()) == 1


def test_plan_says_whether_it_would_run(gpus: Any) -> None:
    refused = gpus("plan", "gpus.py", code=3).stdout
    for words in ("STK103", "asks for 2 GPUs", "--stack NAME", "--simulate 2x", "train.accelerator_policy=prefer"):
        assert words in refused
    assert "STK" not in gpus("plan", "gpus.py", *TWO).stdout
    (finding,) = gpus.json("plan", "gpus.py", "--simulate", "1xL4", code=3)["findings"]
    assert (finding["code"], finding["level"]) == ("STK103", "error") and finding["fix"]
    (finding,) = gpus.json("plan", "gpus.py", "--set", "accelerator_policy=prefer")["findings"]
    assert (finding["code"], finding["level"]) == ("STK111", "translated")
    assert not gpus.project.client().runs()


def test_pretended_devices_are_marked_wherever_they_appear(gpus: Any) -> None:
    written = gpus("run", "gpus.py", *TWO).stderr
    assert "unknown: 2 × L4 (simulated)" in written
    assert "simulated" in gpus("devices", *TWO).stdout and gpus.json("devices", *TWO)["simulated"]
    assert "simulated" in gpus("doctor", env={"STOKER_SIMULATE": "2xL4"}, code=None).stdout
    assert "simulated" in gpus("show", "last").stdout
    for arguments in (("gpu", "last"), ("gpu", "last", "train")):
        told = gpus(*arguments).stdout
        assert "simulated" in told and "nothing was measured on them" in told
    document = json.dumps(gpus.json("gpu", "last", "train"))
    assert '"simulated": true' in document
    receipt = gpus.project.client().run("last").steps["train"].receipt
    assert receipt.simulated and all(use.simulated for use in receipt.devices)
    assert "simulated" in receipt.proved["devices"]


def test_what_describes_nothing_is_refused(gpus: Any) -> None:
    for text in ("4xH1000", "", "4x", "4xH100;driver=old", "0xH100", "H100:4"):
        told = gpus("plan" if text else "run", "gpus.py", f"--simulate={text}", code=2).stderr
        assert "does not describe simulated accelerators" in told and "Traceback" not in told
    assert not gpus.project.client().runs()


def test_other_machines_have_other_ledgers(gpus: Any) -> None:
    """What one text pretends does not wait for what another one does."""
    gpus("run", "gpus.py", *TWO)
    gpus("run", "gpus.py", "--simulate", "2xH100")
    leases = gpus.project.home.parent / "stoker-leases"
    assert len(list(leases.glob("simulated-*.sqlite"))) == 2
