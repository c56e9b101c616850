"""What preflight and `stoker doctor` report: findings about a plan, and checks of an environment.

A finding's code never changes its meaning; the documentation explains each code. STK1xx are about the request itself.
"""

from __future__ import annotations

from typing import Final, Iterable, Literal, Mapping, Sequence

import attrs

from stoker.core.values import frozen

Level = Literal["error", "warning", "translated", "info"]
"""`error` stops the run; `warning` stops nothing, and is shown where the run begins as well as in the plan;
`translated` says what the platform gets in place of the request's own words."""
_PLACES: Final = 3
"""Places that a merged finding names."""


@frozen(kw_only=True)
class Finding:
    """What preflight says about one place of a plan."""

    code: str
    """Such as "STK101"; stable."""
    level: Level
    what: str
    where: str = ""
    """The step and its place in the user's code."""
    why: str = ""
    fix: str = ""
    price: float | None = None
    """US dollars an hour of the machines of one attempt at the step, where the finding tells it."""
    priced: str = ""
    """The day of that price, as ISO 8601 has it; `why` says where it is from."""

    def text(self) -> str:
        """The finding as a person reads it: one line, and one more for each of why and fix."""
        head = f"{self.code} {self.level}: " + (f"{self.where}: " if self.where else "") + self.what
        lines = [head]
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


@frozen(kw_only=True)
class Reporter:
    """Makes the findings about one step."""

    where: str
    """The place that the findings name."""
    step: str
    """The name under which `--set` reaches the step's settings."""

    def refused(self, code: str, what: str, why: str, setting: str) -> Finding:
        """An error whose fix is a setting that is honoured, or another stack."""
        return self.error(code, what, why, f"--set steps.{self.step}.{setting}, or a stack that has it (--stack)")

    def error(self, code: str, what: str, why: str = "", fix: str = "") -> Finding:
        """An error with a fix in words."""
        return Finding(code=code, level="error", where=self.where, what=what, why=why, fix=fix)

    def translated(self, code: str, what: str, why: str) -> Finding:
        """The request is honoured, in other words than its own."""
        return Finding(code=code, level="translated", where=self.where, what=what, why=why)

    def warning(self, code: str, what: str, why: str = "", fix: str = "") -> Finding:
        """What the person who starts the run should know, although nothing stops it."""
        return Finding(code=code, level="warning", where=self.where, what=what, why=why, fix=fix)

    def info(self, code: str, what: str, why: str, *, price: float | None = None, priced: str = "") -> Finding:
        """A fact that stops nothing, such as what the step's machines cost an hour."""
        return Finding(code=code, level="info", where=self.where, what=what, why=why, price=price, priced=priced)


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """The findings for a person: what holds for several places stands once, with up to three of them."""
    places: dict[Finding, list[str]] = {}
    for finding in findings:
        named = places.setdefault(attrs.evolve(finding, where=""), [])
        if finding.where not in named:
            named.append(finding.where)
    return [attrs.evolve(finding, where=_places_text(named)) for finding, named in places.items()]


def _places_text(places: Sequence[str]) -> str:
    rest = len(places) - _PLACES
    return ", ".join(places[:_PLACES]) + (f" and {rest} more" if rest > 0 else "")


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that stop a run."""
    return [finding for finding in findings if finding.level == "error"]


def warnings(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that a run shows when it begins."""
    return [finding for finding in findings if finding.level == "warning"]


@frozen(kw_only=True)
class Check:
    """One line of `stoker doctor`."""

    name: str
    found: str
    """What there is, in words."""
    problem: str = ""
    """What is wrong with it; empty if all is well."""
    fix: str = ""
    """How to mend a problem; without one a hint at most."""
    sets: Mapping[str, str] = attrs.field(factory=dict)
    """Settings of the stack's part that was probed which would mend it."""
