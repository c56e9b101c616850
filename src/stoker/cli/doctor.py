"""`stoker doctor`: check this machine, the configuration and the store, with a fix for each problem.

`stoker explain STK203`: what a finding means and how to fix it, without a network. The texts come from docs/findings.md
and from rules of other distributions. The file beside this module is a link to the page, which a wheel contains as a
file.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import stat
import sys
import time
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Final, Iterator, Mapping, Sequence

import attrs
import click

from stoker import stacks
from stoker.backends.base.backend import ProbeRequest
from stoker.backends.registry import BACKENDS
from stoker.cli.output import completes, json_option, paint, print_json
from stoker.client.placements import LeftOut, recently_left_out
from stoker.core.devices import Inventory
from stoker.core.errors import EXIT_INFRASTRUCTURE, NotFound, StokerError, UsageError, nearest
from stoker.core.findings import Check
from stoker.core.status import NO_GPU_BUILD
from stoker.core.version import VERSION
from stoker.core.words import count_text, memory_text, time_text
from stoker.devices import builds
from stoker.devices.probe import probe
from stoker.plan.preflight import third_party_rules
from stoker.report.streams import echo
from stoker.store.access import is_shared
from stoker.store.blobs import Blobs
from stoker.store.check import last_check, lost
from stoker.store.database import MIGRATIONS
from stoker.store.records import RunFilter
from stoker.store.store import open_store
from stoker.system import system
from stoker.vendors.builds import hardware_of
from stoker.vendors.registry import VENDORS, by_vendor, unfit

NEEDED: Final = ("attrs", "click", "cloudpickle", "fsspec", "nvidia-ml-py", "psutil", "pyyaml")
OPTIONAL: Final = ("numpy", "pandas", "polars", "pyarrow", "scipy", "scikit-learn", "matplotlib", "psycopg")
"""Packages whose values have serializers, or that an extra brings."""
NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "lustre", "gpfs", "beegfs", "ceph", "fuse.sshfs"}
)
"""File systems on which SQLite's write-ahead log does not work: it shares memory between processes of one machine."""
MIN_FREE: Final = 10**9
"""Bytes. With less free space, the next large artifact may not fit."""
PATIENCE: Final = 60.0
"""Seconds for which `--stack` waits until a platform starts a small job."""
PROOF_PATIENCE: Final = 900.0
"""Seconds that a command of `--prove` may take: an image may have to be pulled first."""
WIDTH: Final = 14
"""Columns of the names of checks that are printed as they come."""
LOOKED_AT: Final = 10_000
"""Outputs whose files are looked for: that takes 0.1 s."""
OLDEST_SQLITE: Final = (3, 24)
"""The first version with INSERT … ON CONFLICT DO UPDATE."""


@click.command("doctor")
@click.option(
    "--stack",
    "stack_name",
    metavar="NAME",
    help="Probe this stack's platforms and its artifact store.",
    shell_complete=completes("stacks"),
)
@click.option(
    "--wait",
    "patience",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="With --stack: how long to wait until a platform with a queue starts a small job (60); with --prove: how long "
    "each command may take (900).",
)
@click.option("--prove", "proved", metavar="STACK", help="Run small pipelines on a stack, and break some of them.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="With --prove: the page; proof-STACK.md if not given."
)
@click.option("--key", type=click.Path(path_type=Path), help="With --prove: the SSH key that signs the page.")
@json_option
def command(
    *,
    stack_name: str | None,
    patience: float | None,
    proved: str | None,
    output: Path | None,
    key: Path | None,
    as_json: bool,
) -> int:
    """Check this machine, the configuration and the store; exit code 4 if there is a problem.

    With --stack the platforms of one stack are asked, and its artifact store is written to and read: on Slurm a job of
    one minute looks at a node. Nothing of it stays there.

    With --prove pipelines run there: a chain and a fan-out, two nodes that meet, a GPU that computes, a driver that is
    killed, a step that takes too much memory, a run that is cancelled. What held becomes a page, which is signed.
    """
    if proved is not None:
        if stack_name is not None:
            raise UsageError("--prove and --stack are two things", fix=f"stoker doctor --prove {proved}")
        return _prove(stacks.load(proved), patience or PROOF_PATIENCE, output, key, as_json=as_json)
    if output is not None or key is not None:
        raise UsageError("--output and --key are for --prove", fix="stoker doctor --prove STACK")
    patience = patience or PATIENCE
    checks: list[Check] = []
    for check in every_check() if stack_name is None else stack_checks(stacks.load(stack_name), patience):
        checks.append(check)
        if stack_name is not None and not as_json:
            print_check(check, WIDTH)
    problems = [check for check in checks if check.problem]
    if as_json:
        print_json({"ok": not problems, "checks": [attrs.asdict(check) for check in checks]})
        return EXIT_INFRASTRUCTURE if problems else 0
    if stack_name is None:
        width = max(len(check.name) for check in checks)
        for check in checks:
            print_check(check, width)
    echo(f"{len(problems)} problems" if len(problems) != 1 else "1 problem")
    return EXIT_INFRASTRUCTURE if problems else 0


def _prove(stack: stacks.Stack, patience: float, output: Path | None, key: Path | None, *, as_json: bool) -> int:
    """Run every trial, and write and sign the page; exit code 4 if one failed."""
    from stoker.cli import prove

    path = output or Path(f"proof-{stack.name}.md")
    signer, began, trials = prove.check_key(key), prove.now(), []
    with prove.Bench(stack, patience) as bench:
        for trial in bench.trials():
            trials.append(trial)
            if not as_json:
                check = Check(name=trial.title, found=f"{trial.outcome.verdict}: {trial.outcome.words}")
                if trial.outcome.verdict == "failed":
                    look = f"stoker show {trial.run}" if trial.run else f"stoker doctor --stack {stack.name}"
                    check = Check(name=trial.title, found="", problem=trial.outcome.words, fix=look)
                print_check(check, max(len(title) for title, _ in prove.TRIALS.values()))
    path.write_text(prove.page(stack, trials, began), encoding="utf-8")
    signature = prove.sign(path, signer)
    failed = [trial for trial in trials if trial.outcome.verdict == "failed"]
    if as_json:
        print_json({"ok": not failed, "page": str(path), "trials": [attrs.asdict(trial) for trial in trials]})
    else:
        echo(f"wrote {path}, signed by {signer}.pub in {signature}")
    return EXIT_INFRASTRUCTURE if failed else 0


def print_check(check: Check, width: int) -> None:
    """Print a check, its name in a column of `width`."""
    mark = paint("✗", "31") if check.problem else paint("✓", "32")
    first, *more = [text for text in (check.found, check.problem) if text] or [""]
    echo(f"{mark} {check.name:<{width}}  {first}".rstrip())
    for text in more:
        echo(f"  {'':<{width}}  {text}")
    if check.fix:
        echo(f"  {'':<{width}}  fix: {check.fix}")


def every_check() -> Iterator[Check]:
    """The checks of this machine."""
    for checks in (machine, accelerators, configuration, home, packages, platforms):
        yield from checks()


def stack_checks(stack: stacks.Stack, patience: float) -> Iterator[Check]:
    """What the platforms of a stack's parts say, and whether its artifact store keeps what is written."""
    request = ProbeRequest(scratch=str(stack.home / "scratch"), store=stack.artifact_store, patience=patience)
    parts = {"": stack.orchestrator, **stack.step_operators}
    for name, part in parts.items():
        backend = BACKENDS.load(part.flavor)
        label = f" of {name}" if name else ""
        if backend.probe is None:
            yield Check(name=f"{backend.title}{label}", found="nothing of it can be probed")
            continue
        for check in backend.probe(part.options, request):
            yield attrs.evolve(check, name=f"{check.name}{label}")
    yield _store_check(stack)


def _store_check(stack: stacks.Stack) -> Check:
    """Whether the artifact store keeps what is written; what is written is removed again."""
    # What stands behind the question mark says how it is reached, and is the orchestrator's.
    shown_uri = stacks.masked(stack.artifact_store).partition("?")[0]
    data = os.urandom(1024)
    try:
        blobs = Blobs(stack.artifact_store)
        begun = time.monotonic()
        digest = blobs.put(data)
        try:
            if blobs.is_remote:
                os.unlink(blobs.local_file(digest))
            whole = blobs.read(digest) == data
        finally:
            blobs.delete(digest)
            blobs.close()
    except StokerError as error:
        return Check(name="artifact store", found=shown_uri, problem=_error_text(error), fix=error.fix)
    problem = "" if whole else "it returned other bytes than were written"
    took = time_text(time.monotonic() - begun)
    return Check(name="artifact store", found=f"{shown_uri}, written and read in {took}", problem=problem)


def machine() -> Iterator[Check]:
    """Checks of Python and the operating system."""
    import sqlite3

    yield Check(name="stoker", found=VERSION)
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
    yield from _counted_faults(inventory)
    yield from frameworks(inventory)


def _counted_faults(inventory: Inventory) -> Iterator[Check]:
    """Checks of the devices whose driver has counted errors of memory, for which a health check would refuse them."""
    for vendor, devices in by_vendor(one for one in inventory.devices if not one.simulated).items():
        faults = vendor.health(devices).faults
        for device in devices:
            if device.uuid in faults:
                fix = "keep steps off it until then: health_check=quick refuses it, and tries the next"
                found = f"{device.model} {device.index} ({device.uuid})"
                yield Check(name="health", found=found, problem=faults[device.uuid], fix=fix)


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
        store = open_store(current.database, current.artifact_store, str(current.home), shared=current.shared)
        store.records.runs(RunFilter(limit=1))
        missing, checked = lost(store, LOOKED_AT), last_check(store.blobs)
        left_out = recently_left_out(store)
        store.close()
    except StokerError as error:
        yield Check(name="database", found=database, problem=_error_text(error), fix=error.fix or "see the message")
        return
    yield Check(name="database", found=f"{database}, version {len(MIGRATIONS)}")
    yield _artifacts_check(missing, checked)
    yield from map(_left_out_check, left_out)


def _left_out_check(one: LeftOut) -> Check:
    """The check of a node or device that a run has left out within the last week."""
    place = f"{one.kind} {one.place}" + (f" of {one.host}" if one.host else f" ({one.backend})")
    problem = f"run {one.run} left it out: {one.cause} in attempt {one.attempt} of {one.step}: {one.message}"
    see = "`nvidia-smi -q` and `dmesg` there show ECC errors and Xids"
    return Check(name="left out", found=place, problem=problem.rstrip(": "), fix=f"have it looked at: {see}")


def _artifacts_check(missing: Sequence[str], checked: tuple[float, int] | None) -> Check:
    """The check of the artifacts: what is gone now, and what `stoker store check` found when it last read them."""
    found, problem = "never read as a whole: `stoker store check` does", ""
    if checked is not None:
        at, wrong = checked
        found = f"read as a whole {time_text(max(0.0, time.time() - at))} ago"
        problem = f"{count_text(wrong, 'part')} of it damaged or lost then" if wrong else ""
    if missing:
        problem = f"{count_text(len(missing), 'artifact')} of earlier runs lost or cut short, such as {missing[0]}"
    fix = "`stoker store check --repair`, then run the pipelines again" if problem else ""
    return Check(name="artifacts", found=found, problem=problem, fix=fix)


def home() -> Iterator[Check]:
    """Checks of Stoker's home: writable, with free space, on a local disk."""
    folder = stacks.home()
    existing = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    if not os.path.isdir(existing) or not os.access(existing, os.W_OK | os.X_OK):
        fix = "set STOKER_HOME to a folder of yours, or change the permissions"
        yield Check(name="home", found=str(folder), problem=f"{existing} cannot be written to", fix=fix)
        return
    yield Check(name="home", found=str(folder) + ("" if existing == folder else ", made when it is needed"))
    if existing == folder:
        yield _rights(folder)
    free = shutil.disk_usage(existing).free
    low = free < MIN_FREE
    yield Check(
        name="disk",
        found=f"{memory_text(free)} free",
        problem="there is little space left" if low else "",
        fix="`stoker gc --older-than 30d`, or set STOKER_HOME to another disk" if low else "",
    )
    kind = file_system(existing, system.kernel_file("self/mounts").decode("utf-8", "replace"))
    remote = kind in NETWORK_FILE_SYSTEMS
    yield Check(
        name="file system",
        found=kind or "unknown",
        problem="SQLite is not safe on a network file system" if remote else "",
        fix='set STOKER_HOME to a local disk, or give the stack a database = "postgresql://…"' if remote else "",
    )


def _rights(folder: Path) -> Check:
    """Who may look into the home, by its mode."""
    status = folder.stat()
    group, everybody = bool(status.st_mode & 0o070), bool(status.st_mode & 0o007)
    who = "every user of this machine" if everybody else "its group" if group else "its owner alone"
    closed = not everybody and (not group or is_shared(str(folder)))
    return Check(
        name="access",
        found=f"{who}, mode {stat.S_IMODE(status.st_mode):04o}",
        problem="" if closed else "others can read the artifacts of runs in it",
        fix="" if closed else f"chmod 700 {folder}; or `shared = true` in the stack, before the home is made",
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


def file_system(path: Path, mounts: str) -> str:
    """The type of a path's file system, such as "ext4"; empty if it is not known. `mounts` is the kernel's list."""
    name, longest = "", -1
    resolved = path.resolve()
    for line in mounts.splitlines():
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


def _error_text(error: StokerError) -> str:
    return f"{error.where}: {error.message}" if error.where else error.message


PAGE: Final = "findings.md"
_SECTION: Final = re.compile(r"^## (STK\d{3})$", re.MULTILINE)
_LEVEL: Final = re.compile(r"\*\*(error|warning|translated|info): ")


@click.command("explain")
@click.argument("code", required=False)
@json_option
def explain(*, code: str | None, as_json: bool) -> int:
    """Explain a finding by its code, such as STK203; without one, list them all."""
    findings = all_findings()
    if code is None:
        _list(findings, as_json=as_json)
        return 0
    name = code_of(code)
    if name not in findings:
        fix = "`stoker explain` lists them"
        raise NotFound(f"there is no finding '{code}'{nearest(name, findings)}", fix=fix)
    if as_json:
        print_json({"code": name, "level": level(findings[name]), "text": findings[name]})
    else:
        echo(f"{name}\n\n{findings[name]}")
    return 0


def page() -> str:
    """The page of findings of this version of Stoker."""
    return (Path(__file__).parent / PAGE).read_text(encoding="utf-8")


def all_findings() -> dict[str, str]:
    """Code → its text, of Stoker's findings and those of other distributions' rules."""
    texts = sections(page())
    for rule in third_party_rules():
        for code, text in rule.explains.items():
            texts.setdefault(code, text.strip())
    return texts


def sections(text: str) -> dict[str, str]:
    """Code → its section of the page, without the heading."""
    parts = _SECTION.split(text)
    return {name: body.strip() for name, body in zip(parts[1::2], parts[2::2])}


def code_of(text: str) -> str:
    """The code in its full form: "203" and "stk203" are STK203."""
    code = text.strip().upper()
    return f"STK{code}" if code.isdecimal() else code


def level(section: str) -> str:
    """The level of a finding, from the beginning of its section."""
    match = _LEVEL.match(section)
    return match[1] if match is not None else ""


def headline(section: str) -> str:
    """The sentence in bold at a section's beginning, without the level, on one line."""
    match = re.match(r"\*\*\w+: (.*?)\*\*", section, re.DOTALL)
    return " ".join(match[1].split()).rstrip(".") if match is not None else ""


def _list(findings: Mapping[str, str], *, as_json: bool) -> None:
    if as_json:
        print_json([{"code": name, "level": level(text), "what": headline(text)} for name, text in findings.items()])
        return
    for name, text in findings.items():
        echo(f"{name}  {level(text):<10}  {headline(text)}")
