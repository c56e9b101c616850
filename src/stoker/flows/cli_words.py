"""The words of a flow's command line: its commands, their options, and the help that lists them."""

from __future__ import annotations

from typing import Final, Iterable, Mapping

import attrs

from stoker.flows.spec import FlowSpec, parameters_of


@attrs.frozen(kw_only=True)
class Option:
    """An option of a command: `value` is what its value is called, empty for a flag."""

    help: str
    value: str = ""
    many: bool = False


ALL: Final[Mapping[str, Option]] = {
    "quiet": Option(help="show the summary only"),
    "no-pylint": Option(help="taken for Metaflow's sake: no linter is run"),
    "metadata": Option(value="WHERE", help="taken for Metaflow's sake, only 'local': the store is that of the stack"),
    "datastore": Option(value="WHERE", help="taken for Metaflow's sake, only 'local': the store is that of the stack"),
    "environment": Option(
        value="KIND", help="packages of steps: of this Python (local), or made for them by pypi, conda or uv"
    ),
    "with": Option(value="DECORATOR", many=True, help="a decorator for every step that lacks it: resources:gpu=1"),
    "without": Option(value="DECORATOR", many=True, help="leave a decorator out, such as kubernetes"),
    "stack": Option(value="NAME", help="where to run and to keep things, from stoker.toml"),
    "config": Option(value="NAME FILE", many=True, help="the file of a Config of the flow"),
    "config-value": Option(value="NAME JSON", many=True, help="the content of a Config of the flow"),
}
RUN: Final[Mapping[str, Option]] = {
    "max-workers": Option(value="N", help="how many tasks may run at once"),
    "max-num-splits": Option(value="N", help="refuse a foreach with more elements; without it there is no limit"),
    "max-log-size": Option(value="MB", help="taken for Metaflow's sake: logs are kept whole"),
    "tag": Option(value="TAG", many=True, help="a tag to find the run by"),
    "run-id-file": Option(value="FILE", help="write the run's id there as soon as it begins"),
    "runner-attribute-file": Option(value="FILE", help="write flow and run there as JSON as soon as it begins"),
    "namespace": Option(value="NAME", help="the namespace that the run belongs to; user:NAME by default"),
    "set": Option(value="KEY=VALUE", many=True, help="a setting, such as steps.train.resources.gpu_count=2"),
    "simulate": Option(value="DEVICES", help='pretend that this machine has "4xH100-80GB", for example'),
    "failure-mode": Option(value="MODE", help="fail_fast, or continue with what does not depend on a failure"),
    "debug": Option(help="run every task in this process, so that breakpoint() works"),
    "detach": Option(help="plan and check, then let the run go on by itself: the terminal can be closed"),
}
RESUME: Final[Mapping[str, Option]] = {
    **{name: option for name, option in RUN.items() if name != "detach"},
    "origin-run-id": Option(value="RUN", help="the run to go on with; the newest of this flow that did not succeed"),
}
_SPIN_TOO: Final = ("run-id-file", "runner-attribute-file", "max-log-size", "simulate", "debug", "set")
SPIN: Final[Mapping[str, Option]] = {
    **{name: RUN[name] for name in _SPIN_TOO},
    "artifacts-module": Option(value="FILE", help="a Python file whose dict ARTIFACTS has other values for artifacts"),
    "persist": Option(help="keep what it makes and writes, as a run of NAME.spin"),
    "no-persist": Option(help="keep nothing of it, as without --persist"),
    "skip-decorators": Option(help="leave all decorators of the step out"),
    "no-skip-decorators": Option(help="leave only those out that are of no use to a task on its own"),
    "namespace": Option(value="NAME", help="where the newest run is looked for; --namespace= is everybody's"),
}
TWO: Final = ("config", "config-value")
"""Options that take two words, or one as NAME=FILE."""
_HERE: Final = ("run", "resume", "check")
OPTIONS: Final[Mapping[str, Mapping[str, Option]]] = {"run": RUN, "resume": RESUME, "check": RUN, "spin": SPIN}
"""The options of commands that start something, beside those of `ALL`."""
LOOK: Final = ("show", "dump", "logs", "tag", "output-dot", "card")
COMMANDS: Final[Mapping[str, str]] = {
    "run": "run the flow",
    "resume": "go on with a run where it stopped, or from a step on: resume [STEP]",
    "spin": "run one task of an earlier run on its own, as the code is now: spin [RUN/]STEP[/TASK]",
    "check": "check the flow: its steps, and what they ask for",
    "show": "show the steps and where they go",
    "dump": "print what tasks made: dump [RUN/]STEP[/TASK]",
    "logs": "print what tasks wrote: logs [RUN/]STEP[/TASK]",
    "card": "pages of tasks: card list|view|get [RUN/]STEP[/TASK] [--output FILE]",
    "tag": "list, add, remove or replace the tags of a run",
    "output-dot": "print the graph for Graphviz",
    "version": "print the version",
    "help": "print this",
}
ELSEWHERE: Final[Mapping[str, str]] = {
    "package": "code is read where it is; there is no package",
    "kubernetes": "this version has no backend for Kubernetes yet",
    "batch": "this version has no backend for AWS Batch yet",
    "argo-workflows": "there is no deployer; start `python flow.py run` from what you schedule with",
    "step-functions": "there is no deployer; start `python flow.py run` from what you schedule with",
    "airflow": "there is no deployer; start `python flow.py run` from what you schedule with",
    "init": "tasks start by themselves",
    "step": "tasks start by themselves",
}
"""Commands of Metaflow's that are not here, and what to do."""


def help_text(kind: type[FlowSpec], usage: str, name: str = "") -> str:
    """What the command line takes."""
    lines = [f"Usage: {usage} {name or 'COMMAND'} [OPTIONS]", ""]
    doc = (kind.__doc__ or "").strip().partition("\n")[0]
    if doc:
        lines += [f"  {doc}", ""]
    if not name:
        lines += ["Commands:", *_columns(COMMANDS.items()), ""]
    if name in _HERE or not name:
        rows = []
        for found in parameters_of(kind).values():
            default = "required" if found.required else f"default: {found.default!r}"
            shown = default if found.show_default else ""
            rows.append((f"{found.flag} {found.kind}", "  ".join(text for text in (found.help, shown) if text)))
        if rows:
            lines += ["Parameters:", *_columns(rows), ""]
    if name in OPTIONS or not name:
        options = {**OPTIONS[name or "run"], **ALL}
        lines += ["Options:", *_columns((f"--{key} {one.value}".rstrip(), one.help) for key, one in options.items())]
    return "\n".join(lines).rstrip()


def _columns(rows: Iterable[tuple[str, str]]) -> list[str]:
    found = list(rows)
    width = max(len(left) for left, _ in found)
    return [f"  {left.ljust(width)}  {right}".rstrip() for left, right in found]
