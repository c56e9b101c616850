"""Frameworks beside torch, on a real GPU: their work is measured, their build is proved, and a full memory is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.gpu.conftest import Machine, Note, needs

pytestmark = pytest.mark.gpu

HEAD = """
    import time

    from stoker import cleanup_memory, context, pipeline, step
    from stoker.config import Monitor, ResourceSettings

    SECONDS = 5.0
    GPU = dict(resources=ResourceSettings(gpu_count=1), monitor=Monitor(0.2), cache=False)

"""

WORK = {
    "jax": """
    @step(**GPU)
    def work() -> str:
        import jax
        import jax.numpy as jnp

        product = jax.jit(lambda a, b: a @ b)
        left = jnp.ones((4096, 4096), dtype=jnp.bfloat16)
        started = time.monotonic()
        while time.monotonic() < started + SECONDS:
            for _ in range(200):
                done = product(left, left)
            done.block_until_ready()
        return str(jax.devices()[0].platform)
""",
    "cupy": """
    @step(**GPU)
    def work() -> str:
        import cupy

        left = cupy.ones((4096, 4096), dtype=cupy.float32)
        started = time.monotonic()
        while time.monotonic() < started + SECONDS:
            left @ left
            cupy.cuda.Device().synchronize()
        return "gpu" if cupy.cuda.runtime.getDeviceCount() == 1 else "several"
""",
    "triton": """
    import triton
    import triton.language as tl


    @triton.jit
    def doubled(values, count, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        there = at < count
        tl.store(values + at, tl.load(values + at, mask=there) * 2, mask=there)


    @step(**GPU)
    def work() -> str:
        import torch

        values = torch.zeros(1 << 26, device="cuda")
        started = time.monotonic()
        while time.monotonic() < started + SECONDS:
            for _ in range(100):
                doubled[(triton.cdiv(1 << 26, 1024),)](values, 1 << 26, BLOCK=1024)
            torch.cuda.synchronize()
        compiled = torch.compile(lambda x: (x.sin() + 1).sum())  # its compiler is processes of its own
        return "gpu" if float(compiled(values)) == float(1 << 26) else "wrong"
""",
}

FULL = {
    "jax": """
    @step(**GPU)
    def work() -> int:
        import jax
        import jax.numpy as jnp

        total = jax.devices()[0].memory_stats()["bytes_limit"]
        return jnp.ones((2048, total // 1024), dtype=jnp.int8).block_until_ready().size
""",
    "cupy": """
    @step(**GPU)
    def work() -> int:
        import cupy

        total = cupy.cuda.runtime.memGetInfo()[1]
        return cupy.ones(2 * total, dtype=cupy.int8).size
""",
    "numba": """
    @step(**GPU)
    def work() -> int:
        import numba.cuda
        import numpy

        total = numba.cuda.current_context().get_memory_info()[1]
        return numba.cuda.device_array(2 * total, dtype=numpy.int8).size
""",
}

TAIL = """

    @pipeline
    def working():
        work()


    if __name__ == "__main__":
        working()
"""

CLEANUP = """
    @step(**GPU)
    def work() -> list:
        import cupy
        import jax.numpy as jnp

        kept = cupy.ones(1 << 30, dtype=cupy.int8)
        other = jnp.ones(1 << 20)
        cupy.cuda.Device().synchronize()
        pool = cupy.get_default_memory_pool()
        del kept
        before = pool.total_bytes()
        freed = cleanup_memory()
        return [before, pool.total_bytes(), dict(freed.devices)]
"""


@pytest.mark.parametrize("framework", WORK)
def test_work_is_used(framework: str, whole: Machine, done: Callable[..., Any], note: Note) -> None:
    """A loop of products or kernels in each framework is `used`, in the step's own processes, and the gate knew it."""
    needs(framework)
    step = done(HEAD + WORK[framework] + TAIL).steps["work"]
    assert step.load() == "gpu"
    receipt = step.receipt
    assert receipt.verdict == "used", receipt.evidence
    (use,) = receipt.devices
    assert use.utilization_peak > 50
    assert use.own_memory_peak is None or use.own_memory_peak > 64 * 2**20
    note(
        f"used_{framework}",
        utilization_mean=use.utilization_mean,
        first_use=use.first_use,
        own_memory_peak=use.own_memory_peak,
        memory_peak=use.memory_peak,
        seconds=receipt.seconds,
        proved={name: fact for name, fact in receipt.proved.items() if framework in name},
    )


@pytest.mark.parametrize("framework", FULL)
def test_out_of_memory(framework: str, gpu: Machine, done: Callable[..., Any], note: Note) -> None:
    """What each framework says of a full memory is `gpu-oom`, with advice."""
    needs(framework)
    failure = done(HEAD + FULL[framework] + TAIL, code=1).steps["work"].failure
    assert failure.cause == "gpu-oom", failure.message
    assert failure.advice
    note(f"oom_{framework}", type=failure.type, message=failure.message[:200])


def test_cleanup_memory(gpu: Machine, done: Callable[..., Any], note: Note) -> None:
    """`cleanup_memory()` empties CuPy's pool beside JAX, and tells how much came back."""
    needs("cupy", "jax")
    before, after, freed = done(HEAD + CLEANUP + TAIL).steps["work"].load()
    assert before >= 1 << 30
    assert after < 1 << 20
    assert any(amount >= 1 << 30 for name, amount in freed.items() if name.startswith("cupy")), freed
    note("cleanup_cupy", before=before, after=after, freed=freed)
