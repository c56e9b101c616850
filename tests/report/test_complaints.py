"""Which lines of a distributed step are shown while it runs: all of rank 0, and of the others what complains."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import pytest

from stoker.core.plan import LogLine
from stoker.report.progress import Block, classify, complains, lines_to_show


def said(*texts: str, rank: int | None = 3, stream: str = "stderr") -> list[LogLine]:
    return [LogLine(time=0.0, stream=stream, text=text, rank=rank) for text in texts]


def shown(text: str) -> list[str]:
    """What is shown of what rank 3 writes to stderr."""
    lines, _ = lines_to_show(said(*text.splitlines()), {})
    return [line.text for line in lines]


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: no",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "RuntimeError: CUDA error: device-side assert triggered",
        "2026-05-01 10:00:00,123 - train - ERROR - the loss is not a number",
        "node-01:189884:189884 [3] plugin/net.cc:334 NCCL WARN Failed to initialize any NET plugin",
        "[E1122 15:04:05.123456789 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout",
        "[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)",
        "E0101 10:00:00.000000 123 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1)",
        "2026-05-01 10:00:00.123456: E external/local_xla/xla/stream_executor/cuda/cuda_driver.cc:152] no device",
        "ncclUnhandledCudaError: Call to CUDA function failed.",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "/pytorch/aten/src/ATen/native/cuda/Loss.cu:245: block: [0,0,0] Assertion `t >= 0` failed.",
        "Fatal Python error: Segmentation fault",
        "error: the file is not there",
        "thread 'main' panicked at src/main.rs:2:5:",
    ],
)
def test_complaints(text: str) -> None:
    assert complains(text)
    assert shown(text) == [text]
    assert shown(f"[rank3]: {text}") == [f"[rank3]: {text}"]
    assert shown(f"[default1]:[rank3]:{text}") == [f"[default1]:[rank3]:{text}"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "epoch 3: loss 0.21",
        "  file.py",
        "0 errors",
        "mean_absolute_error: 0.25",
        " 42%|████▏     | 42/100 [00:01<00:01, 55.11it/s, error=0.1]",
        "/usr/lib/a.py:12: FutureWarning: this will be a ValueError in version 3",
        "[W1122 15:04:05.123456789 socket.cpp:204] The hostname of the client socket cannot be retrieved",
        "I0101 10:00:00.000000 123 api.py:869] Starting",
        "2026-05-01 10:00:00,123 - train - WARNING - slow",
        "node-01:3873285:3873285 [0] NCCL INFO Using network IB",
        "CUDA 13.0 is there",
    ],
)
def test_what_is_no_complaint(text: str) -> None:
    assert not complains(text)
    assert shown(text) == []


def test_only_the_beginning_of_a_line_is_looked_at() -> None:
    assert shown("x" * 1000 + " ValueError: no") == []


def test_a_traceback_is_shown_to_its_end() -> None:
    """A real one, chained, whose last lines do not look like complaints by themselves."""
    program = textwrap.dedent(
        """
        import sys

        class Stop(BaseException):
            pass

        print("before", file=sys.stderr)
        try:
            try:
                {}["a"]
            except KeyError:
                raise Stop("this is said")
        except Stop:
            import traceback
            traceback.print_exc()
        print("after", file=sys.stderr)
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    found = shown(done.stderr)
    assert found == [text for text in done.stderr.splitlines() if text and text not in ("before", "after")]
    assert found.count("Traceback (most recent call last):") == 2
    assert "__main__.Stop: this is said" in found or "Stop: this is said" in found


def test_torchs_prefix_is_no_part_of_a_traceback() -> None:
    """Torch's hook puts the rank before each line: then indentation begins behind it."""
    lines = [
        "[rank3]: Traceback (most recent call last):",
        '[rank3]:   File "/a.py", line 1, in <module>',
        "[rank3]:     train()",
        "[rank3]:     ~~~~~^^",
        "[rank3]: Stop: here",
        "[rank3]: not this",
    ]
    assert shown("\n".join(lines)) == lines[:-1]


def test_an_indented_traceback_ends_where_it_began() -> None:
    lines = [
        "   | Traceback (most recent call last):",
        '   File "/a.py"',
        "      x = 1",
        "   Stop: here",
        "   not this",
    ]
    lines[0] = lines[0].replace("| ", "")
    lines[1] = "  " + lines[1]
    assert shown("\n".join(lines)) == lines[:-1]


def test_a_group_of_exceptions() -> None:
    lines = [
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "/a.py", line 1, in <module>',
        "  | ExceptionGroup: two (2 sub-exceptions)",
        "  +-+---------------- 1 ----------------",
        "    | Stop: one",
        "    +---------------- 2 ----------------",
        "    | Stop: two",
        "    +------------------------------------",
        "not this",
        "    nor this",
    ]
    assert shown("\n".join(lines)) == lines[:-2]


def test_the_stacks_of_a_process_that_died() -> None:
    program = "import faulthandler, os, signal; faulthandler.enable(); os.kill(os.getpid(), signal.SIGSEGV)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    found = shown(done.stderr + "not this\n")
    assert found[0] == "Fatal Python error: Segmentation fault"
    assert found[1].endswith("(most recent call first):")
    assert '  File "<string>", line 1 in <module>' in found
    assert "not this" not in found
    native = [
        "Exception raised from check at Work.cpp:1 (most recent call first):",
        "frame #0: a() + 0x8",
        "frame #1: b()",
    ]
    assert shown("\n".join([*native, "not this"])) == native


def test_a_traceback_goes_on_in_the_next_batch_rank_by_rank() -> None:
    first, open = lines_to_show(
        [*said("Traceback (most recent call last):", rank=1), *said("  nothing", rank=2), *said("all", rank=0)], {}
    )
    assert [(line.rank, line.text) for line in first] == [(1, "Traceback (most recent call last):"), (0, "all")]
    assert open == {1: Block(kind="traceback")}
    second, open = lines_to_show([*said("  line 1", rank=2), *said("  line 1", "Stop", "quiet", rank=1)], open)
    assert [(line.rank, line.text) for line in second] == [(1, "  line 1"), (1, "Stop")]
    assert open == {}


def test_the_blocks_before_are_left_as_they_were() -> None:
    before = {3: Block(kind="traceback")}
    lines_to_show(said("Stop"), before)
    assert before == {3: Block(kind="traceback")}


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({"rank": None}, True),
        ({"rank": 0}, True),
        ({"rank": 1}, False),
        ({"rank": None, "stream": "stdout"}, True),
        ({"rank": 0, "stream": "stdout"}, True),
        ({"rank": 1, "stream": "stdout"}, False),
    ],
)
def test_who_is_seen_without_complaining(fields: dict[str, Any], seen: bool) -> None:
    assert bool(lines_to_show(said("epoch 1", **fields), {})[0]) is seen


def test_on_stdout_nobody_complains_but_nccl() -> None:
    warn = "node-01:1:1 [3] net.cc:334 NCCL WARN Failed to initialize any NET plugin"
    found, open = lines_to_show(
        said("ValueError: printed", "Traceback (most recent call last):", "  x", warn, stream="stdout"), {}
    )
    assert [line.text for line in found] == [warn]
    assert open == {}


def test_a_blank_line_ends_a_traceback_unseen() -> None:
    assert classify("", Block(kind="traceback")) == (False, None)
    assert classify("   ", Block(kind="traceback")) == (False, None)
