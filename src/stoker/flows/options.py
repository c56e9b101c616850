"""The options of a flow's runs that pipelines do not have, by Metaflow's words, and those that mean more in a flow."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Callable, Collection, Final, Mapping

import attrs

from stoker.core.errors import UsageError
from stoker.core.request import RunOption, RunRequest
from stoker.flows.parameters import variable_of
from stoker.pipelines.params import FALSE, TRUE

Apply = Callable[[RunRequest, Any], RunRequest]


def of_flow(name: str, configs: Collection[str], *, has_project: bool) -> tuple[RunOption, ...]:
    """The options of a flow's runs; `configs` are the names of its `Config`s."""

    def attributes(run: str) -> str:
        return json.dumps({"flow_name": name, "run_id": run})

    return (
        RunOption(
            name="with", value="DECORATOR", many=True, help="a decorator for every step that lacks it: resources:gpu=1"
        ),
        RunOption(name="without", value="DECORATOR", many=True, help="leave a decorator out, such as kubernetes"),
        RunOption(
            name="environment",
            value="KIND",
            help="packages of steps: of this Python (local), or made for them by pypi, conda or uv",
        ),
        RunOption(
            name="config",
            value="[NAME] FILE",
            many=True,
            help="the file of a Config of the flow; without a name a YAML file with parameters and settings",
            apply=_run_file(configs),
            pair=lambda word: word in configs,
        ),
        RunOption(
            name="config-value",
            value="NAME JSON",
            many=True,
            help="the content of a Config of the flow",
            pair=lambda word: True,
        ),
        RunOption(name="max-workers", value="N", help="how many tasks may run at once", apply=_max_workers),
        RunOption(
            name="max-num-splits",
            value="N",
            help="refuse a foreach with more elements; without it there is no limit",
        ),
        RunOption(name="namespace", value="NAME", help="the namespace that the run belongs to; user:NAME by default"),
        RunOption(
            name="run-id-file",
            value="FILE",
            help="write the run's id there as soon as it begins",
            apply=_written_when_it_begins(lambda run: run),
        ),
        RunOption(
            name="runner-attribute-file",
            value="FILE",
            help="write flow and run there as JSON as soon as it begins",
            apply=_written_when_it_begins(attributes),
        ),
        *(PROJECT if has_project else ()),
        RunOption(name="max-log-size", value="MB", help="taken for Metaflow's sake: logs are kept whole"),
        *(RunOption(name=word, help="taken for Metaflow's sake: no linter is run") for word in ("pylint", "no-pylint")),
        RunOption(name="no-quiet", help="taken for Metaflow's sake: it is so without --quiet"),
        *(
            RunOption(
                name=word,
                value="WHERE",
                help="taken for Metaflow's sake, only 'local': the store is that of the stack",
            )
            for word in ("metadata", "datastore")
        ),
        *(
            RunOption(name=word, value="NAME", help="taken for Metaflow's sake: the run's record is in the store")
            for word in ("event-logger", "monitor")
        ),
    )


PROJECT: Final = (
    RunOption(name="branch", value="NAME", help="the branch of the @project that the run belongs to"),
    RunOption(name="production", help="the run belongs to the production branch of the @project"),
)
"""The options of flows with `@project`."""
_OF_RUN: Final = ("max-workers", "max-num-splits", "namespace", "run-id-file", "tag")
"""Options that environment variables give as they give parameters: `STOKER_RUN_MAX_WORKERS`."""


_OF_PROGRAM: Final = ("quiet", "metadata", "datastore", "environment", "event-logger", "monitor")
"""Options that may stand before the command, and that `STOKER_QUIET` and its like, or `STOKER_DEFAULT_…`, give."""
NOT_HERE: Final[Mapping[str, str]] = {
    "--datastore-root": "where artifacts lie is the stack's to say: artifact_store in stoker.toml, and --stack NAME",
    "--package-suffixes": "leave it out: the code that a step imports goes with the run, whatever its files are called",
    "--force-rebuild-environments": "leave it out: what a step's packages ask for decides whether one is made anew",
    "--no-force-rebuild-environments": "leave it out",
    "--coverage": "write coverage run FILE run --debug: all steps run in that process",
    "--local-config-file": "write --config NAME FILE for a Config of the flow",
}
"""Options of Metaflow's before the command that are refused, and what to do instead."""


def with_environment(options: Mapping[str, Any], accepted: Collection[str], configs: Collection[str]) -> dict[str, Any]:
    """The options of a command line, and those that only environment variables give, by Metaflow's names for them.

    `STOKER_DECOSPECS` has decorators for `--with`, `STOKER_QUIET`, `STOKER_ENVIRONMENT` and their like are options of
    the program; `METAFLOW_…` counts where there is none of ours, and so do `…_DEFAULT_DATASTORE` and its like.

    `STOKER_BRANCH` and `STOKER_PRODUCTION`, or `METAFLOW_…`, count for flows with `@project`. `STOKER_FLOW_CONFIG` and
    `STOKER_FLOW_CONFIG_VALUE` are JSON objects: the file, or the content, of each of the flow's `configs`.
    """
    completed = dict(options)
    for name in _OF_PROGRAM:
        variable, text = _first_variable(name.replace("-", "_").upper())
        if text and name in accepted and name not in completed:
            completed[name] = _yes(variable, text) if name == "quiet" else text
    _, attached = _first_variable("DECOSPECS")
    if attached:
        completed["with"] = [*completed.get("with", ()), *attached.split()]
    for name in _OF_RUN:
        _, text = variable_of(name)
        if text and name in accepted and name not in completed:
            completed[name] = text.split() if name == "tag" else text
    for prefix in ("METAFLOW_", "STOKER_"):
        branch, production = os.environ.get(f"{prefix}BRANCH"), os.environ.get(f"{prefix}PRODUCTION")
        if branch and "branch" in accepted and "branch" not in options:
            completed["branch"] = branch
        if production and "production" in accepted and "production" not in options:
            completed["production"] = _yes(f"{prefix}PRODUCTION", production)
    texts = [text for option in ("config", "config-value") for text in options.get(option, ())]
    on_command_line = {str(text).partition("=")[0] for text in texts}
    for option in ("config", "config-value"):
        for name, text in _config_variable(option).items():
            if name in configs and name not in on_command_line:
                completed[option] = [*completed.get(option, ()), f"{name}={text}"]
    return completed


def _first_variable(word: str) -> tuple[str, str]:
    """The environment variable of ours, or of Metaflow's, that says it, and its text; both "" without one."""
    for name in (f"{prefix}{word}" for prefix in ("STOKER_", "STOKER_DEFAULT_", "METAFLOW_", "METAFLOW_DEFAULT_")):
        if os.environ.get(name):
            return name, os.environ[name]
    return "", ""


def _config_variable(option: str) -> dict[str, str]:
    """What an environment variable says of configs: name → file, or content as text."""
    word = f"FLOW_{option.replace('-', '_').upper()}"
    variable = next((name for name in (f"STOKER_{word}", f"METAFLOW_{word}") if os.environ.get(name)), None)
    if variable is None:
        return {}
    try:
        document = json.loads(os.environ[variable])
    except ValueError as error:
        raise UsageError(f"{variable} is not JSON: {error}", fix=f"write {variable}='{{\"NAME\": …}}'") from None
    if not isinstance(document, dict):
        raise UsageError(f"{variable} is not a JSON object", fix=f"write {variable}='{{\"NAME\": …}}'")
    return {str(name): text if isinstance(text, str) else json.dumps(text) for name, text in document.items()}


def _yes(variable: str, text: str) -> bool:
    words = {**dict.fromkeys(TRUE | {"t", "y"}, True), **dict.fromkeys(FALSE | {"f", "n"}, False)}
    if text.lower() not in words:
        raise UsageError(f"{variable}={text}: not a yes or no", fix=f"write {variable}=1, or unset it")
    return words[text.lower()]


def number(name: str, text: Any) -> int:
    """The value of an option that is a number from 1 up."""
    if not str(text).isdecimal() or int(text) < 1:
        raise UsageError(f"--{name} {text}: not a number from 1 up", fix=f"write --{name} 4")
    return int(text)


def check_local(options: Mapping[str, Any]) -> None:
    """Refuse a metadata service or a datastore of Metaflow's."""
    for name in ("metadata", "datastore"):
        if options.get(name, "local") != "local":
            raise UsageError(
                f"--{name}={options[name]}: only 'local' is taken; where things are kept is the stack's to say",
                fix="write artifact_store and database into stoker.toml, and --stack NAME",
            )


def _max_workers(request: RunRequest, text: Any) -> RunRequest:
    count = number("max-workers", text)
    return attrs.evolve(request, assignments=(*request.assignments, f"max_parallel={count}"))


def _run_file(configs: Collection[str]) -> Apply:
    def apply(request: RunRequest, texts: list[str]) -> RunRequest:
        files = [text for text in texts if text.partition("=")[0] not in configs]
        return attrs.evolve(request, run_file=files[-1]) if files else request

    return apply


def _written_when_it_begins(content: Callable[[str], str]) -> Apply:
    """What an option does whose file gets something of the run when that begins."""

    def apply(request: RunRequest, name: str) -> RunRequest:
        on_begin = request.began

        def began(run: str) -> None:
            if on_begin is not None:
                on_begin(run)
            path = Path(name)
            beside = path.with_name(f".{path.name}.{os.getpid()}")
            beside.write_text(content(run), encoding="utf-8")
            beside.replace(path)

        return attrs.evolve(request, began=began)

    return apply
