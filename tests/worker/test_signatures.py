"""Every row of the table of failures, on the words that frameworks and platforms really print."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from stoker.core.protocol import StepError
from stoker.core.status import CAUSES, RETRIED_IF_NAMED, RETRYABLE
from stoker.worker.failure import Ending, exceptions_in, explain_failure
from stoker.worker.signatures import (
    XIDS,
    Signature,
    find_signature,
    general,
    general_words,
    of_xid,
    own_rows,
    reported,
    xid_in,
)

WORDS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("failures.yaml").read_text(encoding="utf-8"))
ROWS = own_rows()
RAISED: dict[str, list[str]] = WORDS["raised"]

UNKNOWN = (
    "ValueError: the model is no good",
    "KeyError: KeyError: 'memory'",
    "AssertionError: expected 3 GPUs",
    "FileNotFoundError: [Errno 2] No such file or directory: 'gpu.txt'",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
    "OSError: could not open libcuda documentation",
    "TimeoutError: timed out",
    "RuntimeError: expected scalar type Half but found Float",
)
"""What must stay the step's own error."""

ELSEWHERE = {
    "exited": "test_how_a_process_ended",
    "cancelled": "test_a_cause_that_says_all_is_kept",
    "stopped": "test_a_trial_that_does_badly_ends_and_gives_its_device_back (engine/test_sweeps.py)",
    "unserializable": "test_an_error_of_ours_brings_its_own_advice",
    "input-error": "test_a_cause_that_says_all_is_kept",
    "damaged-input": "test_a_lost_input_is_computed_again (engine/test_damage.py)",
    "worker-lost": "test_a_cause_that_says_all_is_kept",
    "refused": "test_a_cause_that_says_all_is_kept",
    "setup-failed": "test_a_line_before_the_worker_that_fails_is_the_cause (slurm/test_slurm_causes.py)",
    "hang": "test_ranks_that_do_nothing_hang (distributed/test_hang.py)",
    "not-started": "test_a_launcher_that_does_not_start_its_ranks_has_a_deadline (distributed/test_worlds.py)",
    "rank-left": "test_the_culprit_is_named (distributed/test_failures.py)",
    "wrong-world": "test_a_world_of_one_fails_where_it_is_made (distributed/test_worlds.py)",
    "gang-incomplete": "test_a_gang_that_is_not_complete_starts_no_user_code (distributed/test_gangs.py)",
    "idle-gpu": "test_an_idle_device_fails_a_step_that_wants_it (engine/test_devices.py)",
}
"""Causes that no row gives → the test (of test_explained.py, where no file is named) that shows them."""


@pytest.mark.parametrize(
    ("name", "text"), [pytest.param(name, text, id=name) for name, texts in RAISED.items() for text in texts]
)
def test_a_row_knows_its_examples_and_no_row_of_another_cause_does(name: str, text: str) -> None:
    row = next(row for row in ROWS if row.name == name)
    assert row.seen_in(text)
    others = {other.name for other in ROWS if other.seen_in(text) and other.cause != row.cause}
    assert not others
    found = find_signature([text], "")
    assert found is not None and found[0].name == name
    assert found[1] and len(found[1]) <= 240 and "\n" not in found[1]


def test_every_row_has_examples_and_a_name_of_its_own() -> None:
    names = [row.name for row in ROWS]
    assert len(names) == len(set(names))
    assert set(names) == set(RAISED)


def test_every_row_says_why_and_what_to_do() -> None:
    for row in ROWS:
        assert row.cause in CAUSES
        for text in (row.why, row.advice):
            assert len(text) > 10 and not text.endswith("."), row.name


@pytest.mark.parametrize("text", UNKNOWN)
def test_what_is_unknown_is_not_claimed(text: str) -> None:
    assert find_signature([text], text) is None


def test_every_cause_is_reached() -> None:
    assert {row.cause for row in ROWS} | set(ELSEWHERE) == CAUSES
    assert not {row.cause for row in ROWS} & set(ELSEWHERE)


def test_every_cause_can_be_explained_without_more() -> None:
    for cause in CAUSES:
        why, _ = general(cause)
        assert why, cause
    assert set(general_words()) <= CAUSES and set(RETRYABLE) == CAUSES


def test_what_another_attempt_cannot_cure_is_only_tried_again_by_name() -> None:
    assert {"import-error", "unserializable", "no-driver", "no-kernel-image", "no-gpu-build"} <= RETRIED_IF_NAMED
    assert not RETRIED_IF_NAMED & {"user-error", "killed", "crashed", "exited", "timed-out", "gpu-oom", "host-oom"}


@pytest.mark.parametrize("row", [row for row in ROWS if row.printed], ids=lambda row: row.name)
def test_what_a_process_prints_before_it_dies_is_asked(row: Signature) -> None:
    text = RAISED[row.name][-1]
    found = explain_failure(
        StepError(), ["epoch 3", *text.splitlines(), "frame #4: <unknown function>"], Ending(code=1)
    )
    assert found.cause == row.cause


@pytest.mark.parametrize("line", WORDS["warnings"])
def test_a_warning_is_not_why_a_process_died(line: str) -> None:
    assert explain_failure(StepError(), [line], Ending(signal=11)).cause == "crashed"


def test_the_exception_that_a_process_printed_is_found() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in <module>',
        "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.",
        "MemoryError",
        "terminate called after throwing an instance of 'c10::Error'",
        "  what():  CUDA error: device-side assert triggered",
        "loss: 0.3, no Error: really",
    ]
    assert list(exceptions_in(lines)) == [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.",
        "MemoryError: ",
        "CUDA error: device-side assert triggered",
    ]


@pytest.mark.parametrize("number", XIDS)
def test_every_xid_is_a_row(number: int) -> None:
    row = of_xid(number)
    assert row is not None and row.cause in ("gpu-hardware", "illegal-memory-access")
    assert row.seen_in(f"[ 12.3] NVRM: Xid (PCI:0000:05:00): {number}, pid=1234, name=python, Ch 00000008")
    assert not row.seen_in(f"NVRM: Xid (PCI:0000:05:00): {number}9, pid=1234")


def test_the_gravest_xid_is_told() -> None:
    lines = [
        "NVRM: Xid (PCI:0000:05:00): 31, pid=12, name=python, Ch 00000008, MMU Fault",
        "NVRM: Xid (PCI:0000:05:00): 63, Row Remapper: new row marked for remapping",
        "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    ]
    found = xid_in(lines)
    assert found is not None and found[0].name == "xid-79" and found[1] == lines[2]
    assert xid_in(lines[1:2]) is None


UUID = "GPU-11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize(
    ("events", "name", "said"),
    [
        ([{"failed": UUID, "why": "GPU is lost"}, {"xid": 79, "uuid": UUID}], "xid-79", f"Xid 79 of {UUID}"),
        ([{"xid": 13, "uuid": UUID}, {"ecc": UUID}], "ecc", f"a memory error of {UUID} that cannot be corrected"),
        ([{"failed": UUID, "why": "GPU requires reset"}], "gpu-lost", f"of {UUID}: GPU requires reset"),
        ([{"xid": 63, "uuid": UUID}, {"failed": UUID, "why": "Unknown Error"}, {"strays": [UUID]}], "", ""),
    ],
)
def test_what_the_driver_reported_of_a_steps_devices(events: list[Any], name: str, said: str) -> None:
    found = reported(events)
    assert ("" if found is None else found[0].name) == name
    assert found is None or found[1].endswith(said)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (StepError(type="RuntimeError", message="CUDA error: unknown error"), "gpu-hardware"),
        (StepError(type="torch.AcceleratorError", message="CUDA error: unspecified launch failure"), "gpu-hardware"),
        (StepError(type="torch.distributed.DistBackendError", message="NCCL error: remote"), "gpu-hardware"),
        # The GPU may have failed, and the step all the same by itself.
        (StepError(type="KeyError", message="'learning_rate'"), "user-error"),
        (StepError(type="torch.OutOfMemoryError", message="CUDA out of memory."), "gpu-oom"),
    ],
)
def test_a_device_that_failed_explains_an_error_of_cudas(error: StepError, cause: str) -> None:
    lost = reported([{"xid": 79, "uuid": UUID}])
    explained = explain_failure(error, (), Ending(cause="user-error", driver=lost))
    assert (explained.cause, UUID in explained.evidence) == (cause, cause == "gpu-hardware")
    assert explain_failure(error, (), Ending(cause="user-error")).cause != "gpu-hardware"


def test_patterns_are_compiled_when_they_are_needed() -> None:
    assert all(isinstance(row.pattern, str) and re.compile(row.pattern) for row in ROWS)
