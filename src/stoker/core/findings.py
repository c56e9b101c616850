"""What preflight and `stoker doctor` report: findings about a plan, and checks of an environment.

A finding's code never changes its meaning; the documentation explains each code. STK1xx are about the request itself.
"""

from __future__ import annotations

from typing import Iterable, Literal

import attrs

Level = Literal["error", "translated", "info"]
"""`error` stops the run; `translated` says what the platform gets in place of the request's own words."""


@attrs.frozen(kw_only=True)
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

    def text(self) -> str:
        """The finding as a person reads it: one line, and one more for each of why and fix."""
        head = f"{self.code} {self.level}: " + (f"{self.where}: " if self.where else "") + self.what
        lines = [head]
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


@attrs.frozen(kw_only=True)
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

    def info(self, code: str, what: str, why: str) -> Finding:
        """A fact that stops nothing."""
        return Finding(code=code, level="info", where=self.where, what=what, why=why)


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that stop a run."""
    return [finding for finding in findings if finding.level == "error"]


@attrs.frozen(kw_only=True)
class Check:
    """One line of `stoker doctor`."""

    name: str
    found: str
    """What there is, in words."""
    problem: str = ""
    """What is wrong with it; empty if all is well."""
    fix: str = ""
    """How to mend a problem; without one a hint at most."""
