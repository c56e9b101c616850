"""Two steps at once on one GPU: parts of its memory are reserved, and each step's own use is told apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.gpu.conftest import Machine, Note

pytestmark = pytest.mark.gpu

SHARED = """
    import time

    from stoker import context, pipeline, step
    from stoker.config import Monitor, ResourceSettings


    @step(resources=ResourceSettings(gpu_memory="8GB", share=True), monitor=Monitor(0.2), cache=False)
    def work(gigabytes: int) -> dict:
        import torch

        started = time.time()
        kept = torch.ones(gigabytes << 30, dtype=torch.uint8, device="cuda")
        left = torch.randn(2048, 2048, device="cuda")
        until = time.monotonic() + 10.0
        while time.monotonic() < until:
            for _ in range(20):
                left @ left
            torch.cuda.synchronize()
        return {
            "uuid": context.devices[0].uuid,
            "began": started,
            "ended": time.time(),
            "allocated": torch.cuda.max_memory_allocated(),
        }


    @pipeline
    def sharing():
        work.map([2, 5])


    if __name__ == "__main__":
        sharing()
"""


def test_two_share_one(whole: Machine, done: Callable[..., Any], note: Note) -> None:
    """Both are on the one GPU at the same time, and the receipt of each has its own memory beside that of all."""
    if whole.device.memory < 24 * 10**9:
        pytest.skip("the GPU has less than 24 GB")
    elements = list(done(SHARED).steps["work"])
    told = [element.load() for element in elements]
    assert {each["uuid"] for each in told} == {whole.device.uuid}
    assert max(each["began"] for each in told) < min(each["ended"] for each in told)
    for each, element in zip(told, elements):
        (use,) = element.receipt.devices
        assert element.receipt.verdict == "used", element.receipt.evidence
        if use.own_memory_peak is not None:
            assert each["allocated"] <= use.own_memory_peak < each["allocated"] + 2 * 10**9
        note(f"shared_{each['allocated'] >> 30}_gb", own_peak=use.own_memory_peak, peak=use.memory_peak, **each)
