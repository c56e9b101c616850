"""What `@gpu_profile` keeps of a task: the receipt's samples as two artifacts, by the names of the original decorator.

They are made from what the monitor wrote, so that also a task that was killed has them, and show only the devices that
the task held. Values are numbers: utilisation in percent, memory in MiB, times in seconds after the start.
"""

from __future__ import annotations

from typing import Any, Final, Mapping

from stoker.store import artifacts
from stoker.store.blobs import Blobs
from stoker.store.receipts import ReceiptRow

_MIB: Final = 2**20
_TRACKS: Final = {"utilization": ("gpu_utilization", 1), "memory": ("memory_used", _MIB)}
"""The receipt's quantity → what it is called here, and in which unit."""


def profile(row: ReceiptRow | None, prefix: str, blobs: Blobs) -> dict[str, Mapping[str, Any]]:
    """The artifacts `<prefix>num_gpus` and `<prefix>data`."""
    data: dict[str, Any] = {"error": None, "driver_version": None, "cuda_version": None, "devices": [], "profile": {}}
    if row is None:
        data["error"] = "the step asked for no accelerator"
    else:
        receipt = row.receipt
        data["error"] = receipt.fallback or None
        data["verdict"] = receipt.verdict
        data["driver_version"] = receipt.proved.get("driver")
        data["cuda_version"] = receipt.proved.get("cuda")
        for use in receipt.devices:
            memory = use.memory // _MIB
            data["devices"].append({"name": use.model, "device_id": use.uuid, "memory": memory})
            own = {track.name: track for track in row.tracks if track.uuid == use.uuid and track.name in _TRACKS}
            times = next((list(track.times) for track in own.values()), [])
            shown: dict[str, Any] = {"timestamp": times, "memory_total": [memory] * len(times)}
            for name, (word, unit) in _TRACKS.items():
                track = own.get(name)
                known = {} if track is None else dict(zip(track.times, track.values))
                found = [known.get(time) for time in times]
                shown[word] = [None if value is None else value / unit for value in found]
            data["profile"][use.uuid] = shown
    kept = {f"{prefix}num_gpus": len(data["devices"]), f"{prefix}data": data}
    return {name: artifacts.save(value, blobs).wire() for name, value in kept.items()}
