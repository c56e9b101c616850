"""Tables of what releases of packages with device code need, and the check that all of them share.

A row says what a range of releases of one distribution brings and needs; its facts come from the release's own wheel
(the targets in its fatbins, its Requires-Dist, the files in it) or from the publisher's documentation, and `source`
says which. `releases_component` makes a component of a table: it looks up the step's version and compares the row with
the step's chips, driver, torch and CUDA libraries.
"""

from __future__ import annotations

import functools
import re
from typing import Final, Iterable, Iterator, Literal, Mapping, Sequence

import attrs
from packaging.specifiers import SpecifierSet

from stoker.core.findings import Finding
from stoker.core.imagenames import cuda_of_tag
from stoker.core.receipt import Fact, UnknownFact
from stoker.plan.components.base import (
    Evidence,
    ProofComponent,
    driver_text,
    first_cuda,
    no_facts,
    only_ptx_text,
    problem_finding,
    runs_cuda,
)
from stoker.plan.components.cudalibraries import provided
from stoker.plan.packages import FrameworkPackage
from stoker.plan.requirements import satisfies
from stoker.plan.rules import PlanFacts, StepDistribution
from stoker.plan.rules_device import compat_package_runs
from stoker.vendors.builds import Build, Hardware, Version, dotted, numbers
from stoker.vendors.nvidia.builds import archs_of, covers, runs
from stoker.vendors.registry import VENDORS

LIBRARIES: Final = "STK222"
NO_CODE: Final = "STK223"
OTHER_TORCH: Final = "STK224"
NO_COMPILER: Final = "STK225"
OTHER_VENDOR: Final = "STK226"
NO_WHEEL: Final = "STK227"

NVIDIA: Final = "nvidia"


@attrs.frozen(kw_only=True)
class Release:
    """What a range of releases of one distribution needs to compute on a device."""

    versions: str
    """A version specifier: ">=1.19,<1.27"."""
    source: str
    """Where the facts are written: an address, or the parts of which wheel."""
    cuda: Version = ()
    """The CUDA that it was built for, with one number where only the major version matters; empty if it uses torch's
    build alone, or no CUDA."""
    archs: str = ""
    """The chips that it has code for, as in `vendors.nvidia.builds.TORCH`: "60 70 80 PTX80"."""
    archs_by_cuda: Mapping[str, str] = attrs.field(factory=dict)
    """The CUDA of torch, "12.4" → the chips of the part that it loads then."""
    nearest: bool = False
    """Whether it loads the part for another minor version of torch's CUDA if it has none for its own."""
    least: Version = ()
    """The lowest compute capability that its publisher supports."""
    newest: Version = ()
    """The highest compute capability that it is known to work on, if its PTX is not known to work on newer ones."""
    libraries: Literal["own", "torch", "outside"] = "own"
    """Whose CUDA libraries it loads: those in its wheel or of the distributions that it requires, those of torch, or
    those of the image and of other distributions."""
    cudnn: int = 0
    """The major version of cuDNN that it loads from outside."""
    bringing: frozenset[str] = frozenset()
    """Extras that require the libraries from outside: "and-cuda"."""
    broken_image: str = ""
    """Where it is written that its publisher's image of just this release finds no device."""
    torch: str = ""
    """The versions of torch that it requires: "==2.4.0"."""
    pythons: tuple[Version, Version] | None = None
    """The oldest and the newest Python that it has wheels for; None if that is not known."""
    compiled: bool = False
    """Whether it is published as source, and compiled against torch when it is installed."""
    vendors: tuple[str, ...] = (NVIDIA,)
    """The vendors whose devices it can use."""
    optional: bool = False
    """Whether it uses a device only if it is told to, so that one that does not fit refuses nothing."""


def releases_component(name: str, table: Mapping[str, Sequence[Release]]) -> ProofComponent:
    """A component for the distributions of a table: canonical name → its rows."""
    check = functools.partial(check_releases, table=table)
    return ProofComponent(name=name, distributions=frozenset(table), check=check)


def check_releases(
    facts: PlanFacts, items: Sequence[StepDistribution], table: Mapping[str, Sequence[Release]]
) -> Iterator[Evidence]:
    """What is known of each distribution's release."""
    for item in items:
        row = release_of(facts, item, table[item.name])
        yield from judge_release(facts, item, row) if row is not None else [no_facts(item)]


def release_of(facts: PlanFacts, item: StepDistribution, rows: Iterable[Release]) -> Release | None:
    """The row about a distribution's release.

    A release that is not pinned is known only if torch is, and the row requires just that torch: an installer takes the
    newest release that fits the pin.
    """
    if item.version:
        return next((row for row in rows if satisfies(item.version, SpecifierSet(row.versions))), None)
    torch = facts.package("torch")
    if torch is None or not torch.build.version or not torch.sure:
        return None
    fitting = [row for row in rows if row.torch and satisfies(torch.build.release, SpecifierSet(row.torch))]
    return fitting[-1] if fitting and "==" in fitting[-1].torch else None


def judge_release(facts: PlanFacts, item: StepDistribution, row: Release) -> Iterator[Evidence]:
    """Whether a release can use the devices that the step could get."""
    evidence = list(_judge(facts, item, row))
    if row.optional and any(isinstance(one, Finding) for one in evidence):
        if facts.packages:
            return  # another package computes on the device; this one is not made to
        for one in evidence:
            yield UnknownFact(component=item.name, reason=one.what) if isinstance(one, Finding) else one
        return
    yield from evidence


def _judge(facts: PlanFacts, item: StepDistribution, row: Release) -> Iterator[Evidence]:
    local = re.match(r"cu(\d+)", item.version.partition("+")[2])
    if local is not None and row.cuda:
        row = attrs.evolve(row, cuda=numbers(cuda_of_tag(local[1])))  # another build than that of the usual index
    others = [held for held in facts.targets if held.kind not in row.vendors]
    if others:
        yield other_vendor(facts, item, row, others)
        return
    if not any(held.kind == NVIDIA for held in facts.targets):
        for held in facts.targets:
            title = VENDORS.load(held.kind).title
            yield UnknownFact(component=item.name, reason=f"no facts for {item.title} on devices of {title}")
        return
    if row.pythons is not None:
        yield from python_fits(facts, item, row.pythons, row.source)
    torch = facts.package("torch")
    if row.torch:
        yield from _torch_fits(facts, item, row, torch)
    archs = row.archs
    if row.archs_by_cuda:
        chosen = list(_part_for_torch(facts, item, row, torch))
        yield from (one for one in chosen if not isinstance(one, str))
        archs = next((one for one in chosen if isinstance(one, str)), "")
    if row.libraries == "torch" and torch is not None and torch.build.cuda:
        cuda: Version = torch.build.cuda
    else:
        cuda = row.cuda
    yield from chips_fit(facts, item, attrs.evolve(row, archs=archs, cuda=cuda))
    if row.cuda:
        yield from driver_fits(facts, item, row.cuda)
    if row.libraries == "outside":
        yield from libraries_fit(facts, item, row)
    elif row.libraries == "torch":
        yield from _same_cuda_as_torch(facts, item, row, torch)


def chips_fit(facts: PlanFacts, item: StepDistribution, row: Release) -> Iterator[Evidence]:
    """Whether its code runs on every chip that the step could get: a finding only if it runs on none of them."""
    lacking: list[str] = []
    fitting: list[Fact | UnknownFact] = []
    for held in facts.targets:
        for chip, model in held.chips.items():
            name = f"sm_{chip[0]}{chip[1]} ({model})"
            way = covers(archs_of(row.archs), chip, row.cuda or None) if row.archs else ""
            if row.least and chip < row.least:
                lacking.append(f"{item.title} needs sm_{row.least[0]}{row.least[1]} or newer, and the device is {name}")
            elif row.archs and not way:
                lacking.append(f"{item.title} has no code for {name}, but for {row.archs}")
            elif row.newest and chip > row.newest and way != "code":
                reason = f"{item.title} was built for chips up to sm_{row.newest[0]}{row.newest[1]}, not for {name}"
                fitting.append(UnknownFact(component=item.name, reason=reason))
            elif way == "ptx" and (first := first_cuda(chip, row.cuda)):
                reason = only_ptx_text(item.title, name, row.cuda, first)
                fitting.append(UnknownFact(component=item.name, reason=reason))
            elif way == "ptx" and _older_than(held, row.cuda):
                reason = f"{item.title} has only PTX for {name}, which {driver_text(held)} may not compile"
                fitting.append(UnknownFact(component=item.name, reason=reason))
            elif way or row.least:
                fitting.append(
                    Fact(component=item.name, fact=f"{item.title} {_runs_by(way, row, name)}", source=row.source)
                )
    if lacking and not fitting:
        fix = "take a release of it that supports the device, or ask for another device"
        yield problem_finding(facts, NO_CODE, lacking[0], why=f"source: {row.source}", fix=fix)
        return
    yield from fitting
    yield from (UnknownFact(component=item.name, reason=reason) for reason in lacking)


def _older_than(held: Hardware, cuda: Version) -> bool:
    """Whether a driver is older than a CUDA of which the minor version is known."""
    return bool(len(cuda) > 1 and held.cuda and tuple(held.cuda) < tuple(cuda)[:2])


def _runs_by(way: str, row: Release, name: str) -> str:
    if way == "code":
        return f"has code for {name}"
    if way == "ptx":
        return f"has PTX, which the driver compiles for {name}"
    return f"supports sm_{row.least[0]}{row.least[1]} and newer, such as {name}"


def python_fits(
    facts: PlanFacts, item: StepDistribution, pythons: tuple[Version, Version], source: str
) -> Iterator[Evidence]:
    """Whether it has a wheel for the image's Python, if it is to be installed there."""
    if item.origin != "requirement" or facts.locked:
        return
    python, (oldest, newest) = facts.python[:2], pythons
    span = f"Python {dotted(oldest)} to {dotted(newest)}"
    if not python:
        reason = f"{item.title} has wheels for {span}, and the Python of {facts.reference} is not known"
        yield UnknownFact(component="python", reason=reason)
    elif oldest <= python <= newest:
        text = f"{item.title} has wheels for Python {dotted(python)}"
        yield Fact(component=item.name, fact=text, source=source)
    else:
        what = f"{item.title} has no wheel for Python {dotted(python)} of {facts.reference}, but for {span}"
        fix = f"take an image with {span}, or another release of {item.name}"
        yield problem_finding(facts, NO_WHEEL, what, why=f"source: {source}", fix=fix)


def driver_fits(facts: PlanFacts, item: StepDistribution, cuda: Version) -> Iterator[Evidence]:
    """Whether the drivers run the CUDA that it was built for: a finding only if none of them does."""
    held_by = [held for held in facts.targets if held.kind == NVIDIA and (held.driver or held.cuda)]
    too_old = [held for held in held_by if not runs(cuda, held.driver, held.cuda)]
    build = Build(framework=item.name, version=item.version, cuda=cuda)
    if too_old and len(too_old) == len(held_by) and not compat_package_runs(facts, build, too_old[0]):
        what = f"{driver_text(too_old[0])} does not run CUDA {dotted(cuda)}, for which {item.title} was built"
        fix = "have the driver updated, or take a release of it for an older CUDA"
        yield problem_finding(facts, LIBRARIES, what, fix=fix)
    else:
        yield from runs_cuda(facts, cuda, item.title)


def other_vendor(facts: PlanFacts, item: StepDistribution, row: Release, others: Sequence[Hardware]) -> Evidence:
    ours = " and ".join(VENDORS.load(name).title for name in row.vendors)
    theirs = VENDORS.load(others[0].kind).title
    what = f"{item.title} computes on devices of {ours} only, and the step could get one of {theirs}"
    if len(others) < len(facts.targets):
        return UnknownFact(component=item.name, reason=what)
    fix = f"ask for a device of {ours}, or take a build of {item.name} for {theirs}"
    return problem_finding(facts, OTHER_VENDOR, what, why=f"source: {row.source}", fix=fix)


def _torch_fits(
    facts: PlanFacts, item: StepDistribution, row: Release, torch: FrameworkPackage | None
) -> Iterator[Evidence]:
    """Whether torch is the one that it was compiled against."""
    if torch is None or not torch.build.version:
        reason = f"{item.title} requires torch{row.torch}, and which torch there will be is not known"
        yield UnknownFact(component=item.name, reason=reason)
    elif satisfies(torch.build.release, SpecifierSet(row.torch)):
        text = f"{item.title} requires torch{row.torch}, and there is torch {torch.build.version}"
        yield Fact(component=item.name, fact=text, source=row.source)
    elif not torch.sure:
        reason = f"{item.title} requires torch{row.torch}, and which torch will be installed is not known"
        yield UnknownFact(component=item.name, reason=reason)
    else:
        what = f"{item.title} requires torch{row.torch}, and there is torch {torch.build.version} from {torch.text}"
        fix = f"require torch{row.torch}, or the release of {item.name} that belongs to torch {torch.build.release}"
        yield problem_finding(facts, OTHER_TORCH, what, why=f"source: {row.source}", fix=fix)


def _part_for_torch(
    facts: PlanFacts, item: StepDistribution, row: Release, torch: FrameworkPackage | None
) -> Iterator[Evidence | str]:
    """The chips of the part that is loaded beside torch, and what is known of it."""
    if torch is None or not torch.build.cuda:
        if torch is None or not torch.build.cpu:
            reason = f"{item.title} loads its part for the CUDA of torch, and that is not known"
            yield UnknownFact(component=item.name, reason=reason)
        return
    wanted = torch.build.cuda[:2]
    part = _part(row, wanted)
    if part:
        text = f"{item.title} has a part for CUDA {part}, for torch {torch.build.version} with CUDA {dotted(wanted)}"
        yield Fact(component=item.name, fact=text, source=row.source)
        yield row.archs_by_cuda[part]
        return
    what = f"{item.title} has no part for CUDA {dotted(wanted)} of torch {torch.build.version}, but for "
    what += ", ".join(row.archs_by_cuda)
    if not torch.sure:
        yield UnknownFact(component=item.name, reason=what)
        return
    fix = f"take a release of {item.name} with a part for CUDA {dotted(wanted)}, or a torch built for one of these"
    yield problem_finding(facts, LIBRARIES, what, why=f"source: {row.source}", fix=fix)


def _part(row: Release, wanted: Version) -> str:
    """The part for a CUDA: its own, or else the newest older and then the oldest newer one of the same first number."""
    if dotted(wanted) in row.archs_by_cuda or not row.nearest:
        return dotted(wanted) if dotted(wanted) in row.archs_by_cuda else ""
    same = [one for one in map(numbers, row.archs_by_cuda) if one[0] == wanted[0]]
    older = [one for one in same if one < wanted]
    return dotted(max(older) if older else min(same)) if same else ""


def _same_cuda_as_torch(
    facts: PlanFacts, item: StepDistribution, row: Release, torch: FrameworkPackage | None
) -> Iterator[Evidence]:
    """Whether it was built for the CUDA of torch, whose libraries it loads."""
    if torch is None:
        if not row.torch:
            yield UnknownFact(component=item.name, reason=f"{item.title} loads torch, and which one is not known")
        return
    if not row.cuda or not torch.build.cuda:
        return
    if torch.build.cuda[0] == row.cuda[0]:
        text = f"{item.title} is built for CUDA {dotted(row.cuda)}, as torch {torch.build.version} is"
        yield Fact(component=item.name, fact=text, source=row.source)
    elif torch.sure:
        what = f"{item.title} is built for CUDA {dotted(row.cuda)}, and torch {torch.build.version} for CUDA "
        what += dotted(torch.build.cuda)
        fix = f"require torch in a build for CUDA {row.cuda[0]}, or {item.name} in one for CUDA {torch.build.cuda[0]}"
        yield problem_finding(facts, LIBRARIES, what, why=f"source: {row.source}", fix=fix)
    else:
        reason = f"{item.title} is built for CUDA {dotted(row.cuda)}, and whether torch will be is not known"
        yield UnknownFact(component=item.name, reason=reason)


def libraries_fit(facts: PlanFacts, item: StepDistribution, row: Release) -> Iterator[Evidence]:
    """Whether the CUDA libraries and the cuDNN that it loads are there."""
    if item.extras & row.bringing:
        text = (
            f"{item.name}[{', '.join(sorted(item.extras & row.bringing))}] brings CUDA {dotted(row.cuda)}'s libraries"
        )
        yield Fact(component=item.name, fact=text, source=row.source)
        return
    if item.origin == "image" and row.broken_image:
        reason = f"{item.title} of {facts.reference} is reported to find no device: {row.broken_image}"
        yield UnknownFact(component=item.name, reason=reason)
        return
    if item.origin == "image" and facts.image.distributions is None:
        text = (
            f"{facts.reference} is a publisher's image with {item.title} and the libraries of CUDA {dotted(row.cuda)}"
        )
        yield Fact(component=item.name, fact=text, source="its publisher's naming, as in stoker.core.imagenames")
        return
    there = provided(facts)
    wanted = {"CUDA": row.cuda[0], **({"cuDNN": row.cudnn} if row.cudnn else {})}
    missing = []
    for name, major in wanted.items():
        sources = there.cuda if name == "CUDA" else there.cudnn
        has = " and ".join(f"{name} {one} ({where})" for one, where in sorted(sources.items()))
        if major in sources:
            text = f"{item.title} loads {name} {major}, which {sources[major]} has"
            yield Fact(component=item.name, fact=text, source=row.source)
        elif there.complete:
            missing.append(f"the libraries of {name} {major}, and there is {has or f'no {name}'}")
        else:
            reason = f"{item.title} loads the libraries of {name} {major}, and whether they are there is not known"
            yield UnknownFact(component=item.name, reason=reason + (f": there is {has}" if has else ""))
    if missing:
        extras = f"{item.name}[{','.join(sorted(row.bringing))}], " if row.bringing else ""
        needs = " and ".join(f"{name} {major}" for name, major in wanted.items())
        fix = f"take {extras}a parent image with {needs}, or a release of {item.name} for what is there"
        what = f"{item.title} loads " + "; and ".join(missing)
        yield problem_finding(facts, LIBRARIES, what, why=f"source: {row.source}", fix=fix)
