"""What `stoker run` writes for CI: a JUnit file, a summary in Markdown, annotations of lines, and how a run differs
from the last good one of a branch."""

from __future__ import annotations

import os
import re
import socket
import xml.etree.ElementTree as ET
from datetime import timezone
from pathlib import Path
from typing import Any, Final, Iterator, Mapping, Sequence

from stoker.client import Client, Run
from stoker.client.attempts import Failure
from stoker.core.errors import InfrastructureError
from stoker.core.status import STEP_GOOD
from stoker.core.values import frozen
from stoker.core.words import bounded, time_text
from stoker.report.streams import echo
from stoker.store.records import RunFilter
from stoker.ui.compare import Comparison, compare

_NO_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 has no way to write: https://www.w3.org/TR/xml/#charsets"""
_LONGEST: Final = 8000
"""Characters of a traceback: a job's summary may have a MiB in all."""


@frozen(kw_only=True)
class Wanted:
    """What CI is to get."""

    junit: str = ""
    summary: bool | str = False
    """A file; True for stdout."""
    branch: str = ""

    @classmethod
    def of(cls, options: Mapping[str, Any], place: str) -> Wanted:
        """What the options of a command line ask for; a summary also where GitHub has a place for one."""
        summary = options.get("summary", bool(place))
        summary = place or True if summary is True else summary
        return cls(junit=options.get("junit", ""), summary=summary, branch=options.get("compare", ""))


def write(wanted: Wanted, client: Client, ids: Sequence[str], problem: BaseException | None, *, name: str) -> None:
    """Write what CI is to get of the runs that began, and of what ended the program before or outside of them."""
    runs = [client.run(id) for id in ids]
    outside = "" if problem is None or getattr(problem, "run", None) is not None else str(problem)
    if wanted.junit:
        _write(Path(wanted.junit), junit_text(runs, outside, name=name))
    compared = [_compared(client, run, wanted.branch) for run in runs] if wanted.branch else []
    lines = [line for run in runs for line in summary_lines(run)]
    lines += [f"## {name}", "", "```", *outside.splitlines(), "```"] if outside and not runs else []
    for run, (found, against) in zip(runs, compared):
        lines += comparison_lines(run, found, against)
    if wanted.summary:
        text = "\n".join(lines) + "\n"
        if isinstance(wanted.summary, str):
            _write(Path(wanted.summary), text, append=True)
        else:
            echo(text.rstrip())
    elif wanted.branch:
        echo("\n".join(line for pair, run in zip(compared, runs) for line in comparison_lines(run, *pair)))
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for run in runs:
            for line in line_annotations(run):
                echo(line)


def junit_text(runs: Sequence[Run], problem: str, *, name: str) -> str:
    """A JUnit file: each run is a suite, each step a case, in the elements that Jenkins' schema knows.
    https://github.com/jenkinsci/xunit-plugin/blob/master/src/main/resources/org/jenkinsci/plugins/xunit/types/model/xsd/junit-10.xsd
    """
    root = ET.Element("testsuites")
    for run in runs:
        _suite(root, run)
    if problem and not runs:
        suite = ET.SubElement(root, "testsuite", name=_xml(name), tests="1", failures="0", errors="1", skipped="0")
        case = ET.SubElement(suite, "testcase", name="plan", classname=_xml(name), time="0.000")
        error = ET.SubElement(case, "error", message=_xml(problem.splitlines()[0]), type="refused")
        error.text = _xml(problem)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(root: ET.Element, run: Run) -> None:
    steps = list(run.steps.values())
    failed = [step for step in steps if step.status not in (*STEP_GOOD, "skipped", "pending", "cancelled")]
    suite = ET.SubElement(
        root,
        "testsuite",
        name=_xml(run.pipeline),
        tests=str(len(steps)),
        failures=str(len(failed)),
        errors="1" if run.error else "0",
        skipped=str(sum(step.status in ("skipped", "pending", "cancelled") for step in steps)),
        time=f"{run.active_seconds or 0.0:.3f}",
        timestamp=run.created.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S"),
        hostname=socket.gethostname(),
    )
    properties = ET.SubElement(suite, "properties")
    facts = {"run": run.id, "stack": run.stack, "status": run.status, "revision": run.revision, "branch": run.branch}
    for key, value in facts.items():
        ET.SubElement(properties, "property", name=key, value=_xml(value))
    for step in steps:
        case = ET.SubElement(
            suite, "testcase", name=_xml(step.key), classname=_xml(run.pipeline), time=f"{step.seconds or 0.0:.3f}"
        )
        if step in failed:
            failure = step.failure
            words = step.message or (failure.message if failure is not None else step.status)
            entry = ET.SubElement(case, "failure", message=_xml(words), type=_xml(step.cause or step.status))
            entry.text = _xml(_failure_text(failure) if failure is not None else words)
        elif step.status not in STEP_GOOD:
            ET.SubElement(case, "skipped", message=_xml(step.message or step.status))
        elif step.cached_from:
            ET.SubElement(case, "system-out").text = _xml(f"cached: its result is that of run {step.cached_from}")
    if run.error:
        ET.SubElement(suite, "system-err").text = _xml(run.error)


def summary_lines(run: Run) -> Iterator[str]:
    """A run in Markdown: its steps with durations, and why those failed that did."""
    took = "" if run.active_seconds is None else f" in {time_text(run.active_seconds)}"
    yield f"## {_cell(run.pipeline)}: {run.status}{took}"
    yield ""
    facts = [f"run `{run.id}`", f"stack `{run.stack}`"]
    facts += [f"commit `{run.revision[:12]}`"] if run.revision else []
    facts += [f"started by {_cell(run.cause)}"] if run.cause else []
    yield f"{' · '.join(facts)} · `stoker show {run.id}`"
    yield ""
    yield "| step | status | took | |"
    yield "|---|---|--:|---|"
    for step in run.steps.values():
        seconds = "" if step.seconds is None or step.status == "cached" else time_text(step.seconds)
        title = step.key if step.count is None else f"{step.key} ×{step.count:,}"
        remark = f"{step.cause}: {step.message}".strip(": ") if step.cause else ""
        yield f"| {_cell(title)} | {step.status} | {seconds} | {_cell(bounded(remark, 200))} |"
    if run.error:
        yield from ("", f"**{_cell(run.error)}**")
    for step in run.steps.values():
        failure = step.failure
        if failure is not None:
            yield from ("", f"### {_cell(step.key)} failed: {_cell(failure.cause)}", "")
            if failure.why:
                yield f"**why**: {_cell(failure.why)}  "
            if failure.advice:
                yield f"**fix**: {_cell(failure.advice)}  "
            body = bounded((failure.traceback or failure.message).rstrip(), _LONGEST)
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", body)), default=0))
            yield from ("", f"{fence}text", body, fence)
    yield ""


def _compared(client: Client, run: Run, branch: str) -> tuple[Comparison | None, str]:
    """How a run differs from the last good one of its pipeline on a branch; without one, why there is none."""
    found = client.store.records.runs(RunFilter(pipeline=run.pipeline, status="succeeded", branch=branch, limit=2))
    other = next((row for row in found if row.id != run.id), None)
    if other is None:
        return None, f"no other run of '{run.pipeline}' has succeeded on branch '{branch}' in this store"
    return compare(client.store, client.run(other.id), run), branch


def comparison_lines(run: Run, found: Comparison | None, words: str) -> Iterator[str]:
    """What differs, in Markdown; `words` is the branch, or why nothing is compared."""
    if found is None:
        yield from (f"### Compared: {_cell(words)}", "")
        return
    before = found.left
    commit = f", commit `{before.revision[:12]}`" if before.revision else ""
    yield f"### Compared with {_cell(words)}: run `{before.id}`{commit}"
    yield ""
    rows = [
        (f"{name} of {step}", left, right, change) for step, name, left, right, change in found.metrics if left != right
    ]
    rows += [
        (f"{step} took", left or was, right or now, change)
        for step, was, now, left, right, change in found.steps
        if left != right or was != now
    ]
    times = [before.active_seconds, run.active_seconds]
    if times[0] and times[1] is not None:
        shown = [time_text(one) for one in times if one is not None]
        rows.append(("the run took", shown[0], shown[1], f"{(times[1] - times[0]) / times[0]:+.0%}"))
    rows += [(f"parameter {name}", left, right, "") for name, left, right in found.parameters]
    rows += [(name, left, right, "") for name, left, right in found.settings]
    costs = [sum(one.seconds * len(one.devices) for one in each.receipts.values()) for each in (before, run)]
    if any(costs):
        rows.append(("accelerator time", time_text(costs[0]), time_text(costs[1]), ""))
    rows += [(f"code of {name}", "", "changed", "") for name, _ in found.code]
    yield from (f"| | {_cell(words)} | this run | change |", "|---|--:|--:|--:|")
    for row in rows:
        yield f"| {' | '.join(map(_cell, row))} |"
    yield ""


def line_annotations(run: Run) -> Iterator[str]:
    """GitHub's annotations of the lines of the user's code that failed.
    https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands#setting-an-error-message"""
    for step in run.steps.values():
        failure = step.failure
        if failure is None:
            continue
        path, _, line = (failure.place or "").rpartition(":")
        place = f" file={_property(_relative(path))},line={line}," if path and line.isdecimal() else " "
        words = "\n".join(filter(None, (failure.message, failure.why, failure.advice and f"fix: {failure.advice}")))
        yield f"::error{place}title={_property(f'{run.pipeline}: {step.key}')}::{_message(words)}"


def _failure_text(failure: Failure) -> str:
    parts = [failure.traceback or failure.message, failure.why and f"why: {failure.why}"]
    parts.append(failure.advice and f"fix: {failure.advice}")
    return bounded("\n".join(filter(None, parts)), _LONGEST)


def _relative(path: str) -> str:
    """A path as the repository has it: annotations are shown at paths below the workspace."""
    root = os.environ.get("GITHUB_WORKSPACE") or os.getcwd()
    return os.path.relpath(path, root) if os.path.isabs(path) and path.startswith(root) else path


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")


def _cell(text: str) -> str:
    """A text in a cell of Markdown: one line, and nothing in it is Markdown or HTML."""
    line = " ".join(text.split())
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", line.replace("&", "&amp;").replace("<", "&lt;"))


def _xml(text: str) -> str:
    return _NO_XML.sub("\ufffd", text)


def _write(path: Path, text: str, *, append: bool = False) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if append else "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except OSError as error:
        raise InfrastructureError(f"{path} cannot be written: {error.strerror}", fix="name another file") from error
