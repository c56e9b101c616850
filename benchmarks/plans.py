"""What a plan of a step in a container takes: `python -m benchmarks.plans` prints a table.

Each plan is a process of its own: the first in an empty home, the second beside it, one in an empty home with
`--offline`, and one whose registry is a server here that accepts connections and never answers. The index is the usual
one, with a cache that is empty for the first row of each block; the registry is whatever the machine reaches.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BLOCKS = {
    "GPU image": 'parent_image="pytorch/pytorch:1.12.1-cuda11.3-cudnn8-runtime"',
    "GPU image, torchvision": 'parent_image="pytorch/pytorch:1.12.1-cuda11.3-cudnn8-runtime", '
    'requirements=["torchvision"], python_package_installer_args={"system": None}',
    "GPU image, accelerate, torchvision": 'parent_image="pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime", '
    'requirements=["accelerate", "torchvision"], python_package_installer_args={"system": None}',
    "torch==2.8.0": 'requirements=["torch==2.8.0"]',
}
PROGRAM = """
from stoker import pipeline, step
from stoker.config import DockerSettings

@step
def train() -> int:
    return 1

@pipeline(settings={"docker": DockerSettings(BLOCK)})
def training():
    train()
"""


def seconds(folder: Path, home: Path, *words: str) -> float:
    """The seconds of one plan, the whole process."""
    environment = {**os.environ, "STOKER_HOME": str(home), "UV_CACHE_DIR": str(folder / "cache")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # with it every start would compile everything again
    environment.pop("STOKER_OFFLINE", None)
    command = [sys.executable, "-m", "stoker", "plan", "train.py", "--with", "docker", *words]
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return time.perf_counter() - started


def main() -> None:
    """Measure each block three times and print the medians."""
    print("| block | first | second | `--offline`, empty home |\n|---|--:|--:|--:|")
    for name, block in BLOCKS.items():
        rows = []
        for _ in range(3):
            with tempfile.TemporaryDirectory() as made:
                folder = Path(made)
                (folder / "train.py").write_text(PROGRAM.replace("BLOCK", block), encoding="utf-8")
                offline = seconds(folder, folder / "other", "--offline")
                rows.append((seconds(folder, folder / "home"), seconds(folder, folder / "home"), offline))
        print(f"| {name} | {' | '.join(f'{statistics.median(row):.2f} s' for row in zip(*rows, strict=True))} |")
    with tempfile.TemporaryDirectory() as made, socket.create_server(("127.0.0.1", 0), backlog=64) as deaf:
        folder = Path(made)
        image = f'parent_image="127.0.0.1:{deaf.getsockname()[1]}/team/image:1"'
        (folder / "train.py").write_text(PROGRAM.replace("BLOCK", image), encoding="utf-8")
        first, second = seconds(folder, folder / "home"), seconds(folder, folder / "home")
        print(f"| a registry that never answers | {first:.2f} s | {second:.2f} s | |")


if __name__ == "__main__":
    main()
