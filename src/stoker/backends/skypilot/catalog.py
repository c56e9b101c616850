"""What machines cost and have, from the user's own SkyPilot catalog: CSV files that SkyPilot has downloaded.

Nothing is downloaded here: without a catalog the answer is that nothing is known. The files are
`~/.sky/catalogs/v8/CLOUD/vms.csv` with the columns InstanceType, AcceleratorName, AcceleratorCount, vCPUs, MemoryGiB,
Price, SpotPrice, Region, AvailabilityZone (https://github.com/skypilot-org/skypilot-catalog).
"""

from __future__ import annotations

import csv
import functools
import os
from pathlib import Path
from typing import Any, Final, Mapping

import attrs

from stoker.backends.skypilot.settings import count_of

FOLDER: Final = "~/.sky/catalogs"
RUNTIME: Final = "SKY_RUNTIME_DIR"
"""The variable by which SkyPilot keeps its files elsewhere."""
WITHOUT_PRICE: Final = ("kubernetes", "k8s", "slurm", "ssh")
"""Places of one's own, which SkyPilot's catalogs give no price."""


@attrs.frozen(kw_only=True)
class Offer:
    """A machine that a cloud offers in one region."""

    cloud: str
    region: str
    instance: str
    price: float
    """US dollars an hour."""
    cpus: float
    memory: float
    """GiB."""
    accelerator: str = ""
    """ "V100:2"; empty for none."""
    spot: bool = False

    def __str__(self) -> str:
        return f"{self.instance} in {self.cloud}/{self.region}" + (", spot" if self.spot else "")


def folder() -> Path | None:
    """The newest version of the catalog on this machine; None without one."""
    root = os.environ.get(RUNTIME)
    base = Path(root, ".sky/catalogs") if root else Path(FOLDER).expanduser()
    versions = sorted(base.glob("v[0-9]*"), key=lambda path: (len(path.name), path.name)) if base.is_dir() else []
    return next((one for one in reversed(versions) if any(one.glob("*/vms.csv"))), None)


def offers(resources: Mapping[str, Any]) -> list[Offer]:
    """What the catalog has for SkyPilot's `resources`, the cheapest first; alternatives in `ordered` come in order."""
    kinds = resources.get("accelerators")
    wanted = {"ordered": [{"accelerators": kind} for kind in kinds]} if isinstance(kinds, list) else {}
    resources = {**resources, **wanted}  # SkyPilot takes a list in its order
    alternatives = resources.get("ordered") or resources.get("any_of")
    plain = {name: value for name, value in resources.items() if name not in ("ordered", "any_of")}
    if not alternatives:
        return _matching(plain)
    lists = [_matching({**plain, **one}) for one in alternatives]
    if resources.get("ordered"):
        return [offer for found in lists for offer in found]
    return sorted((offer for found in lists for offer in found), key=lambda offer: offer.price)


def _matching(resources: Mapping[str, Any]) -> list[Offer]:
    place = folder()
    if place is None:
        return []
    infra = str(resources.get("infra") or "/".join(filter(None, (resources.get(one) or "" for one in PLACE))))
    cloud, region, zone = (*infra.lower().split("/"), "", "", "")[:3]
    kinds = resources.get("accelerators")
    wanted = [kinds] if isinstance(kinds, str) else list(kinds or ())
    spots = (bool(resources.get("use_spot")),)
    found = []
    for file in sorted(place.glob(f"{cloud if cloud not in ('', '*') else '*'}/vms.csv")):
        for row in _rows(file, file.stat().st_mtime_ns):
            if region not in ("", "*", row["Region"].lower()):
                continue
            if zone not in ("", "*", row.get("AvailabilityZone", "").lower()):
                continue
            if resources.get("instance_type") not in (None, row["InstanceType"]):
                continue
            if not _enough(row["vCPUs"], resources.get("cpus")) or not _enough(
                row["MemoryGiB"], _memory(resources.get("memory"), row["vCPUs"])
            ):
                continue
            if wanted and not any(_has(row, one) for one in wanted):
                continue
            if not wanted and not resources.get("instance_type") and row["AcceleratorName"]:
                continue
            found += [offer for spot in spots if (offer := _offer(file.parent.name, row, spot)) is not None]
    return sorted(set(found), key=lambda offer: (offer.price, str(offer)))


PLACE: Final = ("cloud", "region", "zone")


@functools.lru_cache(maxsize=32)
def _rows(file: Path, changed: int) -> list[dict[str, str]]:
    """The rows of a file; `changed` is when it was written."""
    with open(file, newline="", encoding="utf-8") as lines:
        return [{name: text or "" for name, text in row.items() if name} for row in csv.DictReader(lines)]


def _offer(cloud: str, row: Mapping[str, str], spot: bool) -> Offer | None:
    price = _number(row.get("SpotPrice" if spot else "Price", ""))
    if price is None:
        return None
    count = _number(row.get("AcceleratorCount", "")) or 0
    name = row["AcceleratorName"]
    return Offer(
        cloud=cloud,
        region=row["Region"],
        instance=row["InstanceType"],
        price=price,
        cpus=_number(row["vCPUs"]) or 0.0,
        memory=_number(row["MemoryGiB"]) or 0.0,
        accelerator=f"{name}:{count:g}" if name else "",
        spot=spot,
    )


def _has(row: Mapping[str, str], accelerator: str) -> bool:
    """Whether a machine has an accelerator in SkyPilot's words: "V100:2", or "40GB+:1" for any with so much memory."""
    parts = accelerator.split(":")
    memory = next((part for part in parts if part.rstrip("+").lower().endswith("gb")), "")
    if _number(row["AcceleratorCount"]) != count_of(accelerator):
        return False
    if not memory:
        return row["AcceleratorName"].lower() == parts[0].lower()
    least = _number(memory.rstrip("+").lower().removesuffix("gb")) or 0
    has = _gpu_memory(row)
    return has is not None and (has >= least if memory.endswith("+") else has == least)


def _gpu_memory(row: Mapping[str, str]) -> float | None:
    """GB of one accelerator, from the catalog's GpuInfo; None where it does not say."""
    text = row.get("GpuInfo", "")
    mark = text.find("SizeInMiB")
    digits = "".join(one for one in text[mark:].split(",")[0] if one.isdigit()) if mark >= 0 else ""
    return round(int(digits) / 1024) if digits else None


def _memory(wanted: Any, cpus: str) -> Any:
    """ "4x" as an amount."""
    if isinstance(wanted, str) and wanted.endswith("x"):
        return f"{float(wanted[:-1]) * (_number(cpus) or 0):g}+"
    return wanted


def _enough(has: str, wanted: Any) -> bool:
    if wanted is None:
        return True
    amount, text = _number(has), str(wanted)
    if amount is None:
        return False
    return amount >= float(text[:-1]) if text.endswith("+") else amount == float(text)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
