"""Preflight of secrets: each has a value here, before anything costs money, and no plain value looks like one."""

from __future__ import annotations

from typing import Any, Final, Iterator, Mapping

from stoker.backends.base.backend import KeepsSecrets, RunningBackend, capability
from stoker.core.findings import Finding, Reporter
from stoker.core.plan import StepPlan, reporter_of
from stoker.core.secret import PREFIX, looks_secret
from stoker.worker import secrets

MISSING: Final = "STK194"
IN_THE_OPEN: Final = "STK195"


def step_findings(step: StepPlan, backend: RunningBackend) -> Iterator[Finding]:
    """What is wrong with the secrets of a step."""
    environment = step.settings.environment
    inputs = {name: tree for name, tree in step.inputs.items() if "step" not in tree}
    if not environment and not inputs:
        return
    wanted = secrets.references(environment, inputs)
    if wanted:
        yield from _missing(wanted, reporter_of(step))
    if wanted and capability(backend, KeepsSecrets) is None:
        yield reporter_of(step).error(
            MISSING,
            f"{', '.join(sorted(wanted))} cannot reach it on '{step.backend}'",
            "what is sent there can be read by others",
            "run it on another backend, or let the step read the secret where it runs",
        )
    for name, text in environment.items():
        if looks_secret(name, text):
            yield _in_the_open(reporter_of(step), f"the environment variable {name}", f'"{PREFIX}env:{name}"')
    for name, tree in inputs.items():
        if looks_secret(name, _text(tree)):
            yield _in_the_open(reporter_of(step), f"the input '{name}'", f'Secret.env("{name.upper()}")')


def parameter_findings(parameters: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """What is wrong with the secrets among the parameters of a pipeline or a flow, as wires."""
    report = Reporter(where=where, step="")
    trees = {name: {"value": wire} for name, wire in parameters.items()}
    yield from _missing(secrets.references({}, trees), report)
    for name, tree in trees.items():
        if looks_secret(name, _text(tree)):
            spelled = f"--{name} {PREFIX}env:{name.replace('-', '_').upper()}"
            yield _in_the_open(report, f"the parameter '{name}'", spelled)


def _missing(wanted: set[str], report: Reporter) -> Iterator[Finding]:
    for reference in sorted(wanted):
        problem = secrets.problem_of(reference)
        if problem is not None:
            yield report.error(MISSING, problem.message, fix=problem.fix)
        elif secrets.length_of(reference) < secrets.SHORTEST:
            what = f"the value of {reference} is shorter than {secrets.SHORTEST} characters: output is not masked"
            yield report.warning(IN_THE_OPEN, what, "it may be a common word, which would be masked everywhere")


def _in_the_open(report: Reporter, what: str, spelled: str) -> Finding:
    why = "plan, database, logs and JSON output have the value"
    return report.warning(
        IN_THE_OPEN, f"{what} looks like a secret, and is a plain value", why, f"give it as {spelled}"
    )


def _text(tree: Mapping[str, Any]) -> Any:
    wire = tree.get("value", {})
    return wire.get("i") if wire.get("s") == "str" else None
