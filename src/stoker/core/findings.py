"""One line of a check: a stable code, how serious, where, what, why, and the fix.

Codes never change their meaning. STK1xx: the request itself. The documentation has a page for each.
"""

from __future__ import annotations

from typing import Iterable, Literal

import attrs

Level = Literal["error", "translated", "info"]
"""`error` stops the run; `translated` says what the platform gets instead of the words asked for."""


@attrs.frozen(kw_only=True)
class Finding:
    """What a check says about one place of a plan."""

    code: str
    level: Level
    what: str
    where: str = ""
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
    """Makes the findings about one step. `where` is the place that they name, `step` the name by which `--set` reaches
    the step's settings."""

    where: str
    step: str

    def refused(self, code: str, what: str, why: str, setting: str) -> Finding:
        """An error whose fix is a setting that is honoured, or another stack."""
        return self.error(code, what, why, f"--set steps.{self.step}.{setting}, or a stack that has it (--stack)")

    def error(self, code: str, what: str, why: str = "", fix: str = "") -> Finding:
        """An error with a fix in words."""
        return Finding(code=code, level="error", where=self.where, what=what, why=why, fix=fix)

    def translated(self, code: str, what: str, why: str) -> Finding:
        """The request is honoured, in another way than asked."""
        return Finding(code=code, level="translated", where=self.where, what=what, why=why)

    def info(self, code: str, what: str, why: str) -> Finding:
        """A fact that stops nothing."""
        return Finding(code=code, level="info", where=self.where, what=what, why=why)


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """Those that stop a run."""
    return [finding for finding in findings if finding.level == "error"]
