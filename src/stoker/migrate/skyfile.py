"""A task of SkyPilot's as a step on SkyPilot; a file with several, which run one after another, as a pipeline of them.

https://docs.skypilot.co/en/latest/reference/yaml-spec.html
"""

from __future__ import annotations

import re
import shlex
from typing import Any, Final, Mapping

import yaml

from stoker.core.errors import SourceError
from stoker.migrate.scripts import (
    ON_EACH_NODE,
    CallText,
    Notes,
    Options,
    ScriptStep,
    Translation,
    accepted,
    asked,
    identifier,
    programs,
    rank_script,
)

_TASK: Final = re.compile(r"^(run|setup|resources|num_nodes|file_mounts|workdir)\s*:", re.MULTILINE)
_NO_TASK: Final = re.compile(r"^(apiVersion|kind)\s*:", re.MULTILINE)
_FIELDS: Final = frozenset(
    {
        *("infra", "cloud", "region", "zone", "instance_type", "accelerator_args", "job_recovery", "disk_tier"),
        *("ports", "network_tier", "local_disk", "labels", "any_of", "ordered", "image_id", "max_hourly_cost"),
    }
)
"""Words of `resources` that are fields of SkypilotSettings."""
_OLD: Final[Mapping[str, str]] = {"spot_recovery": "job_recovery", "gpus": "accelerators"}
_ELSEWHERE: Final[Mapping[str, str]] = {
    "service": "a step ends: what serves is no step; `sky serve up` goes on to serve it",
    "volumes": 'what the program reads: artifact_store="s3://…" of the stack, or file_mounts of SkypilotSettings',
    "inputs": "arguments of the step",
    "outputs": "what the step returns",
    "experimental": "task_settings={…} of SkypilotSettings",
    "config": "task_settings={…} of SkypilotSettings",
    "event_callback": "on_success=…, on_failure=… of the step",
    "pool": "steps that ask for the same share clusters: clusters=… of SkypilotSettings",
    "mounts": "file_mounts of SkypilotSettings",
    "secrets_file": "environment={NAME: Secret.env(NAME)} of the step",
    "estimate_runtime": "timeout=… of the step",
}
"""Other words of a task → what to write."""
_VARIABLES: Final[Mapping[str, str]] = {
    "SKYPILOT_NODE_RANK": "$RANK",
    "SKYPILOT_NUM_NODES": "$WORLD_SIZE",
    "SKYPILOT_NODE_IPS": "$MASTER_ADDR",
}
"""Variables of SkyPilot's on several nodes → what says the same here."""


def is_task(text: str) -> bool:
    """Whether a file of YAML is a task."""
    return _TASK.search(text) is not None and _NO_TASK.search(text) is None


def translate(text: str, path: str) -> Translation:
    """The tasks of a file as steps, and a pipeline of them."""
    notes = Notes()
    try:
        documents = [one for one in yaml.safe_load_all(text) if one]
    except yaml.YAMLError as error:
        raise SourceError(f"is not YAML: {error}", where=path) from None
    for document in documents:
        if not isinstance(document, dict):
            raise SourceError("is no task: it is not a mapping", where=path)
    stem = re.split(r"[./]", path)[-2]
    named = documents[0] if len(documents) > 1 and not {"run", "setup", "resources"} & set(documents[0]) else {}
    for key in set(named) - {"name", "execution"}:
        notes.by_hand(_line_of(text, key), key, "the run ends when its steps have; cancel those that wait by hand")
    if named.get("execution", "serial") != "serial":
        line = _line_of(text, "execution")
        notes.by_hand(line, "execution", f"{named['execution']}: call steps that wait for none without after=")
    tasks = [document for document in documents if document is not named]
    steps = [_step(task, notes, text, stem if len(tasks) == 1 else f"{stem}_{at}") for at, task in enumerate(tasks, 1)]
    names = [one.name for one in steps]
    for at, one in enumerate(steps):
        if names.index(one.name) != at:
            one.name = f"{one.name}_{at + 1}"
    pipeline = identifier(str(named.get("name") or ""), "pipeline") if named else ""
    return programs(path, "SkyPilot", steps, notes, name=f"{pipeline}_pipeline" if pipeline else "")


def _line_of(text: str, word: str) -> int:
    lines = enumerate(text.splitlines(), 1)
    return next((number for number, line in lines if re.match(rf"\s*-?\s*['\"]?{re.escape(word)}(\W|$)", line)), 1)


def _step(task: Options, notes: Notes, text: str, usual: str) -> ScriptStep:
    sky: Options = {}
    resources: Options = {}
    options: Options = {"step_operator": "skypilot"}
    for key, value in (task.get("resources") or {}).items():
        _take(key, value, sky, resources, notes, _line_of(text, key))
    environment: Options = {}
    for kind in ("envs", "secrets"):
        given = task.get(kind) or {}
        for name, content in ((one, None) for one in given) if isinstance(given, list) else given.items():
            if content in (None, "") or kind == "secrets":
                sky["secrets"] = [*sky.get("secrets", ()), name]
                message = "SkyPilot takes it from your variable of this name when the run begins"
                notes.differs(_line_of(text, name), name, message)
            else:
                environment[name] = str(content).lower() if isinstance(content, bool) else str(content)
    if environment:
        options["environment"] = environment
    if task.get("setup"):
        sky |= accepted(notes, _line_of(text, "setup"), "setup", "skypilot", {"setup_commands": [task["setup"]]})
    if task.get("file_mounts"):
        mounts = {"file_mounts": task["file_mounts"]}
        sky |= accepted(notes, _line_of(text, "file_mounts"), "file_mounts", "skypilot", mounts)
    for key in task:
        if key not in ("name", "resources", "envs", "secrets", "setup", "file_mounts", "workdir", "run", "num_nodes"):
            notes.by_hand(_line_of(text, key), key, _ELSEWHERE.get(key, "SkyPilot's tasks have no such word here"))
    script, launch = rank_script(str(task.get("run") or ":"), notes, lambda line: _line_of(text, line.strip()))
    script = _workdir(task.get("workdir"), notes, _line_of(text, "workdir")) + script
    nodes = int(task.get("num_nodes") or 1)
    if nodes > 1:
        resources["nodes"] = nodes
        launch = launch or CallText("Command", {"processes_per_node": 1}, [list(ON_EACH_NODE)])
    script = _variables(script, nodes, resources, sky, notes, text)
    if sky:
        options["settings"] = {"step_operator.skypilot": CallText("SkypilotSettings", sky)}
    if resources:
        options["resources"] = CallText("ResourceSettings", resources)
    if launch is not None:
        options["launch"] = launch
    return ScriptStep(name=identifier(str(task.get("name") or usual), "step"), script=script, options=options)


def _workdir(value: Any, notes: Notes, line: int) -> str:
    """The line that enters the folder of the program, from where the pipeline is started."""
    if isinstance(value, dict):
        notes.by_hand(line, "workdir", "start the pipeline in a clone of it: the code is sent along as it is there")
    elif value is not None:
        message = "the code is sent along as it was when the run began"
        notes.not_needed(line, "workdir", message)
        if str(value).strip("./"):
            return f"cd {shlex.quote(str(value))}\n"
    return ""


def _take(key: str, value: Any, sky: Options, resources: Options, notes: Notes, line: int) -> None:
    """Carry a word of `resources`, or note it."""
    key = _OLD.get(key, key)
    if value is None:
        notes.not_needed(line, key, "it has no value")
    elif key == "accelerators" and isinstance(value, str) and re.fullmatch(r"[\w.-]+(:\d+)?", value):
        known = asked(Notes(), line, key, {"accelerators": value})
        resources |= known
        sky |= {} if known else accepted(notes, line, key, "skypilot", {key: value})  # one that the catalog lacks
    elif key == "use_spot":
        resources |= asked(notes, line, key, {"spot": value})
    elif key in ("cpus", "memory", "accelerators", "disk_size") or key in _FIELDS:
        sky |= accepted(notes, line, key, "skypilot", {key: value})
    elif key == "autostop":
        _autostop(value, sky, notes, line)
    else:
        notes.by_hand(line, key, "resources_settings={…} of SkypilotSettings, if this release of SkyPilot has it")


def _autostop(value: Any, sky: Options, notes: Notes, line: int) -> None:
    if isinstance(value, dict):
        minutes = value.get("idle_minutes")
        if "down" in value:
            sky |= accepted(notes, line, "autostop", "skypilot", {"down": value["down"]})
    else:
        minutes = value
    if isinstance(minutes, str) and re.fullmatch(r"\d+[mh]", minutes):
        minutes = int(minutes[:-1]) * (60 if minutes.endswith("h") else 1)
    if value is False:
        notes.by_hand(line, "autostop", "false: nothing lives for ever here; give idle_minutes_to_autostop")
    elif minutes is not None and value is not True:
        sky |= accepted(notes, line, "autostop", "skypilot", {"idle_minutes_to_autostop": minutes})


def _variables(script: str, nodes: int, resources: Options, sky: Options, notes: Notes, text: str) -> str:
    """The script, with SkyPilot's variables of nodes set where it reads them."""
    lines = ""
    for name, value in _VARIABLES.items():
        if name in script:
            alone = {"$RANK": "0", "$WORLD_SIZE": "1", "$MASTER_ADDR": "127.0.0.1"}[value]
            lines += f'export {name}="{value if nodes > 1 else alone}"\n'
    if "SKYPILOT_NODE_IPS" in script and nodes > 1:
        message = "holds the address of the first node only, which is what programs take of it to meet"
        notes.differs(_line_of(text, "run"), "SKYPILOT_NODE_IPS", message)
    if "SKYPILOT_NUM_GPUS_PER_NODE" in script:
        named = str(resources.get("accelerators") or sky.get("accelerators") or "")
        count = re.search(r":(\d+)$", named)
        lines += f'export SKYPILOT_NUM_GPUS_PER_NODE="{count[1] if count else int(bool(named))}"\n'
    others = sorted(set(re.findall(r"SKYPILOT_\w+", script)) - {*_VARIABLES, "SKYPILOT_NUM_GPUS_PER_NODE"})
    if others:
        message = f"{', '.join(others)}: Stoker's own are STOKER_RUN_ID and those of docs/guide/context.md"
        notes.by_hand(_line_of(text, "run"), others[0], message)
    return lines + script
