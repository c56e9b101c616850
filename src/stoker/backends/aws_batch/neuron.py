"""The program that begins a container with AWS's accelerators: takes devices for it alone, then becomes its command.

    python3 -c PROGRAM COUNT TOTAL CORES FOLDER -- COMMAND…

AWS Batch counts GPUs, and no Neuron devices: each container of an instance would get the same ones. Therefore each
container sees all TOTAL devices of its instance, a file for each lies in FOLDER, which is the instance's own, and the
program locks COUNT of them (`flock`). The kernel lets go of a lock when the last process of the container is gone,
however it ended. What it took is in NEURON_RT_VISIBLE_CORES, which Neuron's runtime obeys: it counts cores, of which a
device, a chip, has CORES. The container engine refuses a container whose instance has fewer than TOTAL.

The program's text is the argument itself, so that any image with Python 3.10 runs it: it uses the standard library
only.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from typing import Callable

VISIBLE = "NEURON_RT_VISIBLE_CORES"
"""https://awsdocs-neuron.readthedocs-hosted.com/en/latest/neuron-runtime/guides/configuration-guide.html"""
PAUSE = 1.0
"""Seconds between two looks where too few devices are free."""
MINUTES = 60
"""Pauses between two lines that say so."""


def main(words: list[str]) -> None:
    """Take devices and become the command; ends the process where that is impossible."""
    split = words.index("--")
    count, total, cores = map(int, words[: split - 1])
    folder, command = words[split - 1], words[split + 1 :]
    try:
        devices = take(folder, total, count)
    except OSError as error:
        sys.exit(f"stoker: Neuron devices cannot be taken: {error}; the container must run as root")
    numbers = core_numbers(cores)
    os.environ[VISIBLE] = ",".join(numbers(device) for device in devices)
    os.environ.pop("NEURON_RT_NUM_CORES", None)  # a number beside the cores themselves means nothing
    say(f"Neuron devices {', '.join(map(str, devices))}: cores {os.environ[VISIBLE]}")
    os.execvp(command[0], command)


def take(folder: str, total: int, count: int) -> list[int]:
    """Lock devices, neighbours if there are, for this process and what it becomes; waits until so many are free."""
    os.makedirs(folder, exist_ok=True)
    waits = 0
    while True:
        turn = open_file(folder, "turn")
        fcntl.flock(turn, fcntl.LOCK_EX)  # one container chooses at a time: two that each hold a half would wait
        try:
            free = {}
            for number in range(total):
                file = open_file(folder, f"neuron{number}")
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    os.close(file)
                else:
                    free[number] = file
            chosen = choose(sorted(free), count)
            for number, file in free.items():
                if number in chosen:
                    os.set_inheritable(file, True)
                else:
                    os.close(file)
        finally:
            os.close(turn)
        if chosen:
            return chosen
        if waits % MINUTES == 0:
            say(f"waits for {count} Neuron devices; {len(free)} of {total} are free")
        waits += 1
        time.sleep(PAUSE)


def choose(free: list[int], count: int) -> list[int]:
    """So many of the free devices: neighbours, at a multiple of their number if there are such; none if too few."""
    blocks = [list(range(first, first + count)) for first in free if set(range(first, first + count)) <= set(free)]
    aligned = [block for block in blocks if block[0] % count == 0]
    return next(iter((*aligned, *blocks)), free[:count] if len(free) >= count else [])


def core_numbers(cores: int) -> Callable[[int], str]:
    """The function from a device's number to its cores, as neuron-ls numbers them where the image has it."""
    listed = {}
    command = shutil.which("neuron-ls")
    if command:
        try:
            answer = subprocess.run([command, "-j"], capture_output=True, timeout=60, check=True).stdout
            for entry in json.loads(answer):
                device, own = int(entry["neuron_device"]), int(entry["nc_count"])
                ids = entry.get("neuroncore_ids") or range(device * own, (device + 1) * own)
                listed[device] = [int(core) for core in ids]
        except (OSError, subprocess.SubprocessError, ValueError, TypeError, KeyError):
            listed = {}

    def text(device: int) -> str:
        own = listed.get(device) or list(range(device * cores, (device + 1) * cores))
        return f"{own[0]}-{own[-1]}" if len(own) > 1 else str(own[0])

    return text


def say(text: str) -> None:
    """A line for the step's log."""
    sys.stderr.write(f"stoker: {text}\n")
    sys.stderr.flush()


def open_file(folder: str, name: str) -> int:
    """The descriptor of a file in the instance's folder."""
    return os.open(os.path.join(folder, name), os.O_RDWR | os.O_CREAT, 0o666)


if __name__ == "__main__":
    main(sys.argv[1:])
