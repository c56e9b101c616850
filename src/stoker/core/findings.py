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


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """Those that stop a run."""
    return [finding for finding in findings if finding.level == "error"]
