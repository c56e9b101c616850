"""Programs whose steps ask for what the tests name."""

from __future__ import annotations

from typing import Final

ORDINARY: Final = (
    'cpu_count=2, memory="4GiB"',
    'accelerators="A100:8"',
    'gpu_count=1, gpu_memory="24GB"',
    'accelerators=["H100:8", "A100:8"]',
)
"""What steps ask of a platform every day."""


def asking(*requests: str) -> str:
    """A pipeline with a step for each of some arguments of `ResourceSettings`."""
    steps = "".join(
        f"@step(resources=ResourceSettings({request}))\ndef step{number}() -> int:\n    return 1\n\n"
        for number, request in enumerate(requests)
    )
    calls = ", ".join(f"step{number}()" for number in range(len(requests)))
    return (
        "from stoker import pipeline, step\nfrom stoker.config import ResourceSettings\n\n"
        f'{steps}@pipeline\ndef training():\n    {calls}\n\nif __name__ == "__main__":\n    training()\n'
    )
