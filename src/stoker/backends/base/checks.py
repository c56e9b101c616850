"""What several platforms refuse of a step in the same words."""

from __future__ import annotations

from typing import Iterable, Iterator

from stoker.backends.base.leasing import OWN_VISIBILITY
from stoker.core.findings import Finding
from stoker.core.plan import StepPlan, reporter_of
from stoker.launchers.registry import launcher_named
from stoker.vendors.table import NO_DEVICES


def own_visibility(step: StepPlan, why: str, names: Iterable[str] = NO_DEVICES) -> Iterator[Finding]:
    """Variables of the step's environment that choose devices, which the platform does."""
    for name in sorted(set(step.settings.environment) & set(names)):
        what, fix = f"sets {name} in its environment", "remove it, and ask for gpu_count"
        yield reporter_of(step).error(OWN_VISIBILITY, what, why, fix)


def ranks_elsewhere(step: StepPlan, nodes: int, code: str, lacks: str) -> Iterator[Finding]:
    """A launcher whose program starts ranks on other nodes, which it cannot reach: `lacks` says why."""
    launch = step.settings.launch
    head = None if launch is None else launcher_named(launch.launcher).head(launch.arguments or {})
    if head is not None and nodes > 1:
        what = f"starts its ranks on several nodes by {head.program}"
        why = f"{head.program} reaches other nodes by ssh or a scheduler, and {lacks}"
        yield reporter_of(step).error(code, what, why, "use torchrun, or resources.nodes=1")
