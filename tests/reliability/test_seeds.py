"""A sample of the engine's deterministic storm (`make storm-engine`), and that it would find what is wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.reliability.seeds import MUTANTS, first_wrong, play, template

SAMPLE = 60
WITHIN = 60
"""Seeds within which a mutant of the sample is found."""
QUICK = ("submit before the commit", "adopt nothing", "one retry too many")


@pytest.fixture
def home() -> Iterator[str]:
    folder = template()
    yield folder
    shutil.rmtree(folder)


def test_a_sample_of_the_seeds(home: str) -> None:
    assert {seed: wrong for seed in range(SAMPLE) if (wrong := play(seed, home))} == {}


@pytest.mark.parametrize("mutant", QUICK)
def test_what_is_made_wrong_is_found(mutant: str, home: str) -> None:
    assert first_wrong(mutant, home, range(WITHIN)) is not None


def test_all_mutants_can_be_made(home: str) -> None:
    assert [mutant for mutant in MUTANTS if first_wrong(mutant, home, range(0)) is not None] == []


def test_a_seed_is_replayed_exactly() -> None:
    words = [sys.executable, "-m", "tests.reliability.seeds", "--seed", "14", "--trace"]
    traces = [
        subprocess.run(words, env={**os.environ, "PYTHONHASHSEED": hashes}, capture_output=True, text=True, check=True)
        for hashes in ("1", "2")
    ]
    assert traces[0].stdout == traces[1].stdout and "the driver is killed" in traces[0].stdout
