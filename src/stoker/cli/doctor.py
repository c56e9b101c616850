"""`stoker doctor`: check this machine, the configuration and the store, with a fix for each problem."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Final, Iterator

import attrs
import click

from stoker import stacks
from stoker.backends.registry import BACKENDS
from stoker.cli.options import json_option
from stoker.cli.output import paint, print_json
from stoker.core.devices import Inventory
from stoker.core.errors import EXIT_INFRASTRUCTURE, StokerError
from stoker.core.findings import Check
from stoker.core.status import NO_GPU_BUILD
from stoker.core.words import memory_text
from stoker.devices import builds
from stoker.devices.probe import probe
from stoker.store.records import RunFilter
from stoker.store.schema import MIGRATIONS
from stoker.store.store import open_store
from stoker.vendors.builds import hardware_of
from stoker.vendors.registry import VENDORS, unfit

NEEDED: Final = ("attrs", "click", "cloudpickle", "fsspec", "nvidia-ml-py", "psutil", "pyyaml")
OPTIONAL: Final = ("numpy", "pandas", "polars", "pyarrow", "scipy", "scikit-learn", "matplotlib", "psycopg")
"""Packages whose values have serializers, or that an extra brings."""
NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "lustre", "gpfs", "beegfs", "ceph", "fuse.sshfs"}
)
"""File systems on which SQLite's write-ahead log does not work: it shares memory between processes of one machine."""
MIN_FREE: Final = 10**9
"""Bytes. With less free space, the next large artifact may not fit."""
OLDEST_SQLITE: Final = (3, 24)
"""The first version with INSERT … ON CONFLICT DO UPDATE."""


@click.command("doctor")
@json_option
def command(*, as_json: bool) -> int:
    """Check this machine, the configuration and the store; exit code 4 if there is a problem."""
    checks = [*machine(), *accelerators(), *configuration(), *home(), *packages(), *platforms(), *clouds()]
    problems = [check for check in checks if check.problem]
    if as_json:
        print_json({"ok": not problems, "checks": [attrs.asdict(check) for check in checks]})
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            mark = paint("✗", "31") if check.problem else paint("✓", "32")
            click.echo(f"{mark} {check.name:<{width}}  {check.found}")
            if check.problem:
                click.echo(f"  {'':<{width}}  {check.problem}")
            if check.fix:
                click.echo(f"  {'':<{width}}  fix: {check.fix}")
        click.echo(f"{len(problems)} problems" if len(problems) != 1 else "1 problem")
    return EXIT_INFRASTRUCTURE if problems else 0


def stoker_version() -> str:
    """The installed version."""
    return _version("stoker") or "unknown (not installed)"


def machine() -> Iterator[Check]:
    """Checks of Python and the operating system."""
    import sqlite3

    yield Check(name="stoker", found=stoker_version())
    yield Check(name="python", found=f"{platform.python_version()} at {sys.executable}")
    supported = sys.platform in ("linux", "darwin")
    yield Check(
        name="platform",
        found=platform.platform(),
        problem="" if supported else f"Stoker does not know {sys.platform}",
        fix="" if supported else "use Linux or macOS; on Windows, WSL",
    )
    enough = sqlite3.sqlite_version_info >= OLDEST_SQLITE
    yield Check(
        name="sqlite",
        found=sqlite3.sqlite_version,
        problem="" if enough else f"Stoker needs {'.'.join(map(str, OLDEST_SQLITE))} or later",
        fix="" if enough else "use a newer Python, or a PostgreSQL database",
    )


def accelerators() -> Iterator[Check]:
    """Checks of the accelerators, the driver, and whether installed frameworks can use them."""
    try:
        inventory = probe()
    except StokerError as error:
        yield Check(name="devices", found="", problem=_error_text(error), fix=error.fix)
        inventory = Inventory()
    else:
        counted = Counter(device.model + (f"/{device.slice}" if device.slice else "") for device in inventory.devices)
        found = ", ".join(f"{count} × {name}" for name, count in counted.items()) or "no accelerators"
        yield Check(name="devices", found=found + (" (simulated)" if inventory.simulated else ""))
    if inventory.driver:
        cuda = "" if inventory.cuda is None else f", CUDA up to {inventory.cuda[0]}.{inventory.cuda[1]}"
        yield Check(name="driver", found=f"NVIDIA {inventory.driver}{cuda}")
    for finding in inventory.findings:
        what = f"{finding.where}: {finding.what}" if finding.where else finding.what
        bad = finding.level == "error"
        yield Check(
            name=finding.code,
            found="" if bad else what,
            problem=f"{what} ({finding.why})" if bad else "",
            fix=finding.fix,
        )
    yield from frameworks(inventory)


def frameworks(inventory: Inventory) -> Iterator[Check]:
    """The build of each framework, and whether it fits the driver and the devices; none is imported."""
    installed = {build.framework: build for build in builds.builds()}
    targets = {
        kind: hardware_of(devices, driver=inventory.driver, cuda=inventory.cuda, machine=platform.machine())
        for kind in dict.fromkeys(device.kind for device in inventory.devices)
        if not inventory.simulated and (devices := [one for one in inventory.devices if one.kind == kind])
    }
    for name in builds.FRAMEWORKS:
        build = installed.get(name)
        if build is None:
            yield Check(name=name, found="not installed (optional)")
            continue
        problems = [unfit(build, target) for target in targets.values()]
        problem = problems[0] if problems and all(problems) else None
        problem_text, fix = (problem.sentence, problem.fix) if problem is not None else ("", "")
        vendor = next((one for one in map(VENDORS.load, targets) if one.runtime_title), None)
        if problem is not None and problem.cause == NO_GPU_BUILD and vendor is not None:
            problem_text = f"this {name} cannot use the {vendor.title} devices"
            fix = f"install {name} again, in a build for {vendor.runtime_title}"
        yield Check(name=name, found=builds.words(build), problem=problem_text, fix=fix)


def configuration() -> Iterator[Check]:
    """Checks of the stacks, and of the current stack's store."""
    try:
        all_stacks = stacks.stacks()
        current = stacks.load()
    except StokerError as error:
        yield Check(name="stacks", found="", problem=_error_text(error), fix=error.fix or "correct the file")
        return
    names = ", ".join(f"{stack.name} (current)" if stack.name == current.name else stack.name for stack in all_stacks)
    yield Check(name="stacks", found=names)
    database = stacks.masked(current.database)
    file = _sqlite_file(current.database)
    if file is not None and not file.exists():
        yield Check(name="database", found=f"{database}, made by the first run")
        return
    try:
        store = open_store(current.database, current.artifact_store, str(current.home))
        store.records.runs(RunFilter(limit=1))
        store.close()
    except StokerError as error:
        yield Check(name="database", found=database, problem=_error_text(error), fix=error.fix or "see the message")
        return
    yield Check(name="database", found=f"{database}, version {len(MIGRATIONS)}")


def home() -> Iterator[Check]:
    """Checks of Stoker's home: writable, with free space, on a local disk."""
    folder = stacks.home()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        fix = "set STOKER_HOME to a folder of yours, or change the permissions"
        yield Check(name="home", found=str(folder), problem=f"{existing} cannot be written to", fix=fix)
        return
    yield Check(name="home", found=str(folder) + ("" if existing == folder else ", made when it is needed"))
    free = shutil.disk_usage(existing).free
    low = free < MIN_FREE
    yield Check(
        name="disk",
        found=f"{memory_text(free)} free",
        problem="there is little space left" if low else "",
        fix="`stoker gc --older-than 30d`, or set STOKER_HOME to another disk" if low else "",
    )
    kind = file_system(existing)
    remote = kind in NETWORK_FILE_SYSTEMS
    yield Check(
        name="file system",
        found=kind or "unknown",
        problem="SQLite is not safe on a network file system" if remote else "",
        fix='set STOKER_HOME to a local disk, or give the stack a database = "postgresql://…"' if remote else "",
    )


def packages() -> Iterator[Check]:
    """Checks of required and optional packages."""
    for name in NEEDED:
        version = _version(name)
        missing = "" if version else "it is not installed"
        yield Check(name=name, found=version or "", problem=missing, fix="" if version else f"pip install {name}")
    for name in OPTIONAL:
        yield Check(name=name, found=_version(name) or "not installed (optional)")


def platforms() -> Iterator[Check]:
    """The checks of each backend, those of other distributions too."""
    for name in BACKENDS.names():
        try:
            backend = BACKENDS.load(name)
        except StokerError as error:
            yield Check(name=name, found="", problem=_error_text(error), fix=error.fix)
            continue
        yield from backend.doctor()


def clouds() -> Iterator[Check]:
    """Platforms without a backend, by their configuration on this machine; no secret is read."""
    folder = Path.home()
    config_files = (os.environ.get("KUBECONFIG") or str(folder / ".kube/config")).split(os.pathsep)
    signs = {
        "kubernetes": [*filter(os.path.exists, config_files), *_set_variables("KUBERNETES_SERVICE_HOST")],
        "aws": [
            *(str(path) for name in ("credentials", "config") if (path := folder / ".aws" / name).exists()),
            *_set_variables("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"),
        ],
        "skypilot": [str(folder / ".sky")] if (folder / ".sky").exists() else [],
    }
    for name, evidence in signs.items():
        yield Check(name=name, found=", ".join(evidence) or "nothing to reach it with (optional)")


def file_system(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """The type of a path's file system, such as "ext4"; empty if it is not known."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    name, longest = "", -1
    resolved = path.resolve()
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        # Blanks in mount points are written as octal numbers.
        mounted = Path(fields[1].replace("\\040", " "))
        if len(mounted.parts) >= longest and (mounted == resolved or mounted in resolved.parents):
            name, longest = fields[2], len(mounted.parts)
    return name


def _sqlite_file(database: str) -> Path | None:
    scheme, mark, rest = database.partition("://")
    return Path(rest.removeprefix("/") if rest.startswith("//") else rest) if mark and scheme == "sqlite" else None


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _set_variables(*variables: str) -> list[str]:
    return [name for name in variables if os.environ.get(name)]


def _error_text(error: StokerError) -> str:
    return f"{error.where}: {error.message}" if error.where else error.message
