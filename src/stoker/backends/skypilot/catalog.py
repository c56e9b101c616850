"""What machines cost and have, from the user's own SkyPilot catalog: CSV files that SkyPilot has downloaded.

Nothing is downloaded here: without a catalog the answer is that nothing is known. The files are
`~/.sky/catalogs/v8/CLOUD/vms.csv` with the columns InstanceType, AcceleratorName, AcceleratorCount, vCPUs, MemoryGiB,
Price, SpotPrice, Region, AvailabilityZone (https://github.com/skypilot-org/skypilot-catalog).
"""

from __future__ import annotations

import csv
import functools
import logging
import os
import re
import time
from pathlib import Path
from typing import Any, Final, Mapping

import attrs

from stoker.backends.skypilot.settings import parse_accelerator_words, parse_cpus, parse_memory

log = logging.getLogger(__name__)

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


def written(cloud: str, now: float) -> tuple[str, int]:
    """The day on which SkyPilot last wrote a cloud's catalog, as ISO 8601 has it, and how many days ago that is."""
    place = folder()
    assert place is not None  # an offer of it was found
    changed = (place / cloud / "vms.csv").stat().st_mtime
    return time.strftime("%Y-%m-%d", time.localtime(changed)), int((now - changed) // 86_400)


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
    words = parse_accelerator_words(kinds) or ()
    wanted = [words] if isinstance(words, str) else list(words)
    spots = (bool(resources.get("use_spot")),)
    found = []
    for file in sorted(place.glob(f"{cloud if cloud not in ('', '*') else '*'}/vms.csv")):
        for row in _rows(file, file.stat().st_mtime_ns):
            if region not in ("", "*", row.get("Region", "").lower()):
                continue
            if zone not in ("", "*", row.get("AvailabilityZone", "").lower()):
                continue
            if resources.get("instance_type") not in (None, row.get("InstanceType")):
                continue
            cpus = number(row.get("vCPUs", ""))
            if not _enough(cpus, parse_cpus(resources.get("cpus"))):
                continue
            if not _enough(number(row.get("MemoryGiB", "")), parse_memory(resources.get("memory")), cpus):
                continue
            if wanted and not any(_has(row, one) for one in wanted):
                continue
            if not wanted and not resources.get("instance_type") and row.get("AcceleratorName"):
                continue
            found += [offer for spot in spots if (offer := _offer(file.parent.name, row, spot)) is not None]
    return sorted(set(found), key=lambda offer: (offer.price, str(offer)))


PLACE: Final = ("cloud", "region", "zone")


@functools.lru_cache(maxsize=32)
def _rows(file: Path, changed: int) -> list[dict[str, str]]:
    """The rows of a file, none of one that cannot be read; `changed` is when it was written."""
    try:
        with open(file, newline="", encoding="utf-8", errors="replace") as lines:
            return [{name: text or "" for name, text in row.items() if name} for row in csv.DictReader(lines)]
    except (OSError, csv.Error) as error:
        log.warning("SkyPilot's catalog %s tells nothing: %s", file, error)
        return []


def _offer(cloud: str, row: Mapping[str, str], spot: bool) -> Offer | None:
    """The machine of a row; None where the row does not say what it costs.

    That is so without a price, with one of 0, as of spot machines that a cloud has not, and of GCP's GPUs, whose rows
    have no machine: that one costs as well. The row of a TPU is the whole.
    """
    price = number(row.get("SpotPrice" if spot else "Price", ""))
    count, name = number(row.get("AcceleratorCount", "")), row.get("AcceleratorName", "")
    instance = row.get("InstanceType") or (name if name.startswith("tpu-") else "")
    if not price or not instance:
        return None
    return Offer(
        cloud=cloud,
        region=row.get("Region", ""),
        instance=instance,
        price=price,
        accelerator=f"{name}:{count:g}" if name and count else name,
        spot=spot,
    )


def _has(row: Mapping[str, str], accelerator: str) -> bool:
    """Whether a machine has an accelerator in SkyPilot's words: "V100:2", or "40GB+:1" for any with so much memory."""
    match = _ACCELERATOR.fullmatch(accelerator)
    assert match is not None  # `parse_accelerator_words` has read it
    if number(row.get("AcceleratorCount", "")) != float(match["count"] or 1):
        return False
    if match["memory"] is None:
        return row.get("AcceleratorName", "").lower() == match["name"].lower()
    has = gpu_memory(row)
    return has is not None and (has >= float(match["memory"]) if match["more"] else has == float(match["memory"]))


_ACCELERATOR: Final = re.compile(
    r"(?:(?:[^:\s]+:)?(?P<memory>[0-9.]+)GB(?P<more>\+?)|(?P<name>[^:\s]+))(?::(?P<count>[0-9]+(?:\.[0-9]+)?))?",
    re.IGNORECASE,
)
""" "V100", "V100:2", "40GB+:1", "nvidia:40GB"."""
_INFO: Final = re.compile(r"'Count': '?([0-9.]+)'?,.*'SizeInMiB': ([0-9.]+)\}.*'TotalGpuMemoryInMiB': ([0-9.]+)")


def gpu_memory(row: Mapping[str, str]) -> float | None:
    """GB of one accelerator, from the catalog's GpuInfo; None where it does not say, or says the same of one and of
    all of several: that is the one in some catalogs, and all in others."""
    match = _INFO.search(row.get("GpuInfo", ""))
    count, one, total = map(number, match.groups()) if match is not None else (None, None, None)
    if not count or not one or (count > 1 and one == total):
        return None
    return round(one / 1024)


def _enough(has: float | None, wanted: str | None, cpus: float | None = None) -> bool:
    """Whether so much is what is wanted: "4", "4+", or "4x" for at least so many times the CPUs."""
    if wanted is None:
        return True
    least = float(wanted.rstrip("+x"))
    if wanted.endswith("x"):
        return has is not None and cpus is not None and has >= least * cpus
    return has is not None and (has >= least if wanted.endswith("+") else has == least)


_NUMBER: Final = re.compile(r"[0-9]{1,15}(?:\.[0-9]+)?")


def number(text: str) -> float | None:
    """A number of a catalog; None for an empty field, and for what is no number."""
    return float(text) if _NUMBER.fullmatch(text) else None
