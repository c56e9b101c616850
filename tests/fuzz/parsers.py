"""Every parser of Stoker's that reads what others wrote, with inputs for it and the errors by which it may refuse.

A new parser is one more entry of `PARSERS`.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import enum
import fractions
import functools
import io
import json
import sqlite3
import tempfile
import uuid
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import attrs
import pytest
from hypothesis import strategies as st
from tests.fuzz.inputs import VALUES, documents, encoded, json_texts, texts

from stoker import stacks
from stoker.backends.base.channel import Reader
from stoker.backends.slurm import states, values
from stoker.backends.slurm.cluster import parse_facts
from stoker.cli import main as commands
from stoker.core import accelerators, artifact, imagenames, ladder, plan, settings, units, wire
from stoker.core.codec import from_json, to_json
from stoker.core.errors import ParameterError, SettingsError, StokerError, StoreError, UsageError
from stoker.core.findings import Finding
from stoker.core.graph import StepOutput
from stoker.core.orders import BootSpec
from stoker.core.protocol import MARK, FunctionSource, StepError, StepResult, StepTask, WorkerEvent, WorkerJob
from stoker.core.receipt import Receipt, Track
from stoker.core.request import RunRequest
from stoker.core.resources import ResourceSettings
from stoker.core.settings import Retry, StepSettings
from stoker.devices.probe import parse_simulation
from stoker.flows.parameters import Config, JSONType, Parameter
from stoker.images import dockerfile, registries, requirements
from stoker.pipelines import params
from stoker.plan import plandoc
from stoker.plan.layers import assignments, run_file
from stoker.run.attached import attached_settings
from stoker.run.commandline import RUN_OPTIONS, split
from stoker.settings.options import OPTIONS, layer_from
from stoker.store import receipts, rows
from stoker.store.batch import RowBatch
from stoker.store.checkpoints import Checkpoints
from stoker.store.logs import Logs
from stoker.store.store import open_store


@attrs.frozen(kw_only=True)
class Parser:
    """One parser."""

    inputs: st.SearchStrategy[Any]
    parse: Callable[[Any], object]
    refusals: tuple[type[Exception], ...] = (SettingsError,)
    """The errors that may end it; every other one is a defect."""
    share: float = 1.0
    """How many inputs of a hundred it gets, as a fraction: less where one costs more than a millisecond or two."""


@functools.cache
def scratch() -> Path:
    """A folder for the files that parsers read."""
    folder = tempfile.TemporaryDirectory(prefix="stoker-fuzz-")
    _FOLDERS.append(folder)
    return Path(folder.name)


_FOLDERS: Final[list[tempfile.TemporaryDirectory[str]]] = []


def _file(name: str, data: str | bytes) -> Path:
    path = scratch() / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass"))
    return path


# What people write

_ASSIGNMENTS = texts(
    "steps.train.resources.gpu_count=4",
    "parameters.lr=1e-3",
    "retry={times: 3, on: [oom], delay: 2s}",
    "orchestrator.local.max_workers=2",
    "launch.launcher=torchrun",
    "environment.A=1",
    "settings.docker.parent_image=python:3.11",
    "resources.accelerators=[A100:2]",
    "stack=local",
    "cache_key={a: [1, 2]}",
    "steps.train.settings.timeout=2h",
)
_ATTACHED = texts(
    "local", "slurm:partition=gpu,gpu=2", 'ray:cpu=2,memory="4GB"', "resources:gpu=1", "docker:gpu=2,cpu=1"
)
_YAML = """
stack: local
parameters: {lr: 0.1, names: [a, b], when: 2025-06-01}
settings:
  resources: {cpu_count: 2, memory: 4GB, accelerators: ["A100:2"], extended: {"x/y": 1}}
  retry: {times: 2, on: [oom, preempted], delay: 2s, on_oom: [{halve: batch_size}]}
timeout: 2h
environment: &env {A: "1", B: 2}
packages: {pypi: {numpy: ">=1.26"}, python: "3.11"}
docker: {parent_image: "python:3.11", requirements: [numpy], build_args: {A: b}}
launch: {launcher: torchrun, num_processes: 2, hang_after: 10m, nnodes: 2}
monitor: {interval: 1s}
steps:
  train: {resources: {gpu_count: 1}, step_operator: null, environment: *env}
  evaluate: {settings: {timeout: 60}}
"""
_TOML = """
stack = "gpu"
[stacks.gpu]
orchestrator = {flavor = "local", max_workers = 4}
step_operators.big = {flavor = "slurm", partition = "gpu"}
database = "sqlite:///a.db"
artifact_store = "file:///data"
container_registry = "registry.example.com/ml"
[stacks.gpu.settings]
resources.cpu_count = 2
timeout = "2h"
environment = {A = "1"}
"""
_REQUIREMENTS = texts(
    "numpy>=1.26",
    "torch==2.3.0+cu121 ; python_version < '3.12'",
    "pkg[extra1,extra2] @ https://example.com/pkg-1.0-py3-none-any.whl",
    "--extra-index-url https://user:word@example.com/simple",
    "-e .",
    "-r other.txt",
    "git+https://example.com/a/b.git@main#egg=b",
    "numpy --hash=sha256:00",
    "./local-1.0.tar.gz",
)
_PROJECT = """
[project]
name = "a"
dependencies = ["numpy>=1"]
[project.optional-dependencies]
x = ["y"]
"""
_DOCKERFILE = """ARG BASE=python:3.11
FROM --platform=linux/amd64 ${BASE} AS build
RUN pip install numpy \\
    && true
FROM ${OTHER:-ubuntu:22.04}
COPY --from=build /a /b
COPY --from=nvidia/cuda:12.1.0-base-ubuntu22.04 /a /b
RUN <<EOF
echo
EOF
"""
_IMAGES = texts(
    "python:3.11",
    "registry.example.com:5000/a/b:1.0@sha256:" + "0" * 64,
    "nvidia/cuda:12.1.0-cudnn8-runtime-ubuntu22.04",
    "pytorch/pytorch:2.3.0-cuda12.1-cudnn8-runtime",
    "localhost/a",
)
_DESCRIBED = texts("4xH100-80GB,1xA10;driver=535.104.05", "2xMI300X", "1xA100-80GB/1g.10gb;cuda=12.2", "16xtrainium")
_LAUNCHES = documents(
    "torchrun",
    ["mpirun", "-n", "4", "{program}"],
    {"launcher": "torchrun", "num_processes": 4, "master_port": 29500, "hang_after": "10m", "rdzv_backend": "c10d"},
    {"launcher": "accelerate", "mixed_precision": "bf16", "num_machines": 2, "deepspeed_config_file": "a.json"},
    {"launcher": "deepspeed", "num_gpus": 2, "arguments": {"a": 1}},
    {"launcher": "mpirun", "processes_per_node": 2, "outputs": "all"},
    {"launcher": "command", "command": ["a", "b"], "gang_timeout": None},
)
_OPTION_VALUES: Final[dict[str, Any]] = {
    "resources": {"cpu_count": 2, "memory": "4GB", "accelerators": ["A100:2"], "nodes": 2, "extended": {"x/y": 1}},
    "docker": {"parent_image": "python:3.11", "requirements": ["numpy"], "environment": {"A": "1"}},
    "packages": {"pypi": {"numpy": ">=1.26"}, "python": "3.11", "environment": "pypi"},
    "retry": {"times": 2, "on": ["oom"], "delay": "2s", "backoff": 2.0, "jitter": 0.1, "on_oom": [{"halve": "b"}]},
    "timeout": "2h",
    "cache": True,
    "cache_key": {"a": [1, 2]},
    "cache_expires": "1d",
    "isolation": "warm",
    "accelerator_policy": "require",
    "on_idle_gpu": "warn",
    "monitor": {"interval": "1s"},
    "environment": {"A": "1", "B": 2},
    "step_operator": "big",
    "failure_mode": "continue",
    "max_parallel": 4,
}
_BACKEND_OPTIONS: Final[dict[str, Any]] = {
    "orchestrator.local": {"max_workers": 4, "cpus": 8},
    "orchestrator.slurm": {"partition": "gpu", "time": "2:00:00", "login": "me@host", "constraint": ["a"]},
    "orchestrator.docker": {"volumes": {"/a": "/b"}, "network": "host"},
    "orchestrator.ray": {"address": "auto", "runtime_env": {"env_vars": {"A": "1"}}},
    "orchestrator.kubernetes": {"namespace": "a", "node_selector": {"a": "b"}},
    "orchestrator.aws_batch": {"job_queue": "q"},
}
_WORDS = texts("1", "0.5", "true", "a,b", "[1, 2]", '{"a": [1]}', "2025-06-01", "a", "/tmp/x", "1+2j", "none")


class Colour(enum.Enum):
    """A type of parameter."""

    RED = 1
    BLUE = "b"


_KINDS: Final[dict[str, Any]] = {
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "bytes": bytes,
    "complex": complex,
    "path": Path,
    "any": Any,
    "optional": int | None,
    "union": int | float | str,
    "literal": Literal["a", 1, True],
    "list": list[int],
    "tuple": tuple[int, str],
    "tuples": tuple[float, ...],
    "set": frozenset[int],
    "dict": dict[str, list[int]],
    "numbers": dict[int, float],
    "nested": list[dict[str, int | None]],
    "annotated": Annotated[list[Path], "x"],
    "date": datetime.date,
    "time": datetime.datetime,
    "decimal": decimal.Decimal,
    "fraction": fractions.Fraction,
    "uuid": uuid.UUID,
    "enum": Colour,
}
_FLOW_KINDS: Final[dict[str, Any]] = {"int": int, "float": float, "bool": bool, "str": str, "json": JSONType}


def _parse_value(pair: tuple[str, Any]) -> None:
    kind, value = pair
    if isinstance(value, str):
        params.parse(value, _KINDS[kind])
    params.from_document(value, _KINDS[kind])


def _parse_flow_value(pair: tuple[str, str]) -> None:
    kind, text = pair
    if kind == "config":
        Config("a").parse_value(text)
    else:
        Parameter("a", type=_FLOW_KINDS[kind]).parse_value(text)


def _parse_option(pair: tuple[str, Any]) -> None:
    key, value = pair
    layer_from("a test", ({key: value},))


def _option_inputs(seeds: dict[str, Any]) -> st.SearchStrategy[Any]:
    return st.one_of(*(st.tuples(st.just(key), documents(seed)) for key, seed in seeds.items()))


def _parse_run_file(data: bytes) -> None:
    run_file(_file("run.yaml", data))


def _parse_stacks(data: bytes) -> None:
    _file("stoker.toml", data)
    for name in [one.name for one in stacks.stacks(scratch())]:
        stacks.load(name, scratch())


def _parse_attached(text: str) -> None:
    attached_settings(RunRequest(attached=(text,)))


def _parse_requirements(data: str) -> None:
    requirements.listed(data.split("\n"), where="a test", folder=scratch())
    requirements.from_file(_file("requirements.txt", data))


def _parse_project(data: bytes) -> None:
    requirements.from_project(_file("pyproject.toml", data))


def _parse_dockerfile(text: str) -> None:
    dockerfile.final_parent(text)
    dockerfile.pin_images(text, dict.fromkeys(dockerfile.base_images(text), "x"))


def _parse_image(text: str) -> None:
    imagenames.parse(text)
    imagenames.facts_of_name(text)
    registries.parse(text)


def _parse_variable(pair: tuple[str, str]) -> None:
    name, value = pair
    try:
        usable = "\0" not in value and value.encode("utf-8", "surrogateescape") is not None
    except UnicodeEncodeError:
        usable = False
    if not usable:
        return  # no environment can have it
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(name, value)
        _run_command(["stacks"])


def _run_command(words: Sequence[str]) -> str:
    """What a command prints; an exit code that is not documented is a defect, as is an error that nobody foresaw."""
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        code = commands.invoke(list(words))
    if code not in (0, 1, 2, 3, 4, 130) or "Traceback" in errors.getvalue():
        raise AssertionError(f"exit {code} of stoker {words!r:.300}\n{errors.getvalue()[-3000:]}")
    return printed.getvalue()


_COMMANDS: Final[tuple[tuple[str, ...], ...]] = (
    ("runs", "--limit", "5", "--since", "2h", "--tag", "x", "--status", "failed", "--pipeline", "p"),
    ("show", "0123", "--elements"),
    ("logs", "0123", "train", "--attempt", "1", "--rank", "0,2", "--tail", "3"),
    ("gpu", "0123", "train"),
    ("artifacts", "0123"),
    ("explain", "STK203"),
    ("stacks", "--json"),
    ("cancel", "0123"),
    ("resume", "0123", "--set", "a=1"),
    ("card", "0123", "train"),
)


def _command_words() -> st.SearchStrategy[list[str]]:
    def change(words: Sequence[str], at: int, text: str) -> list[str]:
        place = 1 + at % (len(words) - 1)
        return [*words[:place], text, *words[place + 1 :]]

    text = texts("0123", "--json", "-1", "--stack", "train[3]", "2h").filter(lambda one: "\0" not in one)
    return st.builds(change, st.sampled_from(_COMMANDS), st.integers(0, 9), text)


# What Stoker's own processes and stores say

_SOURCE = FunctionSource(kind="script", module="train", qualname="train", path="/a/train.py", root="/a")
_WIRE = {"d": "00" * 32, "s": "json", "t": "builtins.int", "n": 1, "i": "1"}
_PICKLED = {"d": "00" * 32, "s": "pickle", "t": "a.B", "n": 4, "m": {"shape": [1]}, "i": "AAAA"}
_STEP = plan.StepPlan(
    key="train",
    name="train",
    source=_SOURCE,
    outputs=(StepOutput(name="model", type="dict"),),
    unpack=True,
    inputs={"x": {"value": _WIRE}, "y": {"list": [{"step": "load", "output": "data"}]}},
    settings=StepSettings(
        resources=ResourceSettings(cpu_count=2, memory="4GB", accelerators="A100:2"), retry=Retry(2), timeout=60.0
    ),
    backend="orchestrator",
    code="c0de",
    mapped=("x",),
    after=("load",),
    hooks={"on_success": _SOURCE},
    origins={"resources.cpu_count": "train.py:3"},
)
_PLAN = plan.Plan(
    pipeline="training",
    steps=(_STEP, attrs.evolve(_STEP, key="other", mapped=())),
    parameters={"lr": _WIRE},
    failure_mode="continue",
    stack="local",
    source=_SOURCE,
    findings=(Finding(code="STK109", level="translated", what="runs here"),),
)
_JOB = WorkerJob(job="r/train/1", step=0, inputs={"x": {"value": _WIRE}}, context={"run": "r"})
_TASK = StepTask(name="train", source=_SOURCE, outputs=("a",), unpack=False, split=(), environment={"A": "1"})
_RESULT = StepResult(
    job="r/train/1", ok=False, outputs={"a": _WIRE}, start=1.0, end=2.0, cause="user-error", error=StepError(type="E")
)
_EVENT = WorkerEvent(kind="lines", lines=((1.0, "stdout", 0, "a"),), note="n", data={"a": 1})
_SPEC = BootSpec(job=_JOB, step=_TASK, blobs="file:///a", environment={"A": "b"})
_RECEIPT = Receipt(verdict="used", evidence=("GPU 0 computed",), asked="1 GPU", started=1.0, seconds=60.0, devices=())
_TRACKS = (Track(name="utilization", uuid="GPU-1", times=(0.5, 1.5), values=(0.0, None), peak=100.0),)
_RUN = rows.RunRow(
    id="0123456789ab",
    pipeline="training",
    status="failed",
    created=1.0,
    started=1.0,
    ended=2.0,
    parameters={"lr": 0.1},
    tags=("a", "b"),
    driver={"host": "h", "pid": 1, "started": 1.0},
)
_OTHER_RUN = "0200000000ab"
_STEP_ROW = rows.StepRow(
    run_id=_RUN.id,
    key="train",
    name="train",
    status="failed",
    cause="user-error",
    inputs={"x": "int:" + "0" * 64},
    attempts=1,
    usage={"cpu": 1.0, "peak": 5},
    started=1.0,
    ended=2.0,
)
_ATTEMPT = rows.AttemptRow(
    run_id=_RUN.id,
    key="train",
    number=1,
    status="failed",
    started=1.0,
    ended=2.0,
    cause="user-error",
    message="no",
    error={"type": "E", "traceback": "x", "place": "a:1"},
    usage={"cpu": 1.0},
    changes=({"what": "memory", "old": 1, "new": 2},),
)
_CHANGED = {"what": "memory", "old": 1, "new": 2, "cause": "oom", "attempt": 1, "rung": "memory"}
_EVENT_ROW = rows.EventRow(run_id=_RUN.id, seq=0, time=1.0, kind="escalated", key="train", data=_CHANGED)
_CACHE_ROW = rows.CacheRow(key="k", run_id=_RUN.id, step_key="train", created=1.0, outputs={"a": _WIRE})
_OUTPUT_ROW = rows.OutputRow(run_id=_RUN.id, key="train", name="model", artifact=artifact.from_wire(_WIRE))
_ROWS: Final[dict[str, tuple[Any, Any]]] = {
    "runs": (rows.RUNS, _RUN),
    "steps": (rows.STEPS, _STEP_ROW),
    "attempts": (rows.ATTEMPTS, _ATTEMPT),
    "cache": (rows.CACHE, _CACHE_ROW),
    "rungs": (rows.RUNGS, rows.RungRow(key="k", run_id=_RUN.id, created=1.0, changes={"used": ["memory"]})),
    "events": (rows.EVENTS, _EVENT_ROW),
}
_CELLS: Final[tuple[Any, ...]] = (
    None, "", "x", "[", "{", '{"a": 1}', '"x"', "1", "null", "NaN", "[" * 100_000, "9" * 5000, '[["a"]]', b"\xff",
    b"x", 1, -1, 2**62, 1.5, 1e308, -1e308, float("inf"), b"\xed\xa0\x80", '{"a": [{}]}', '{"d": 1}', "[null]", "[1]",
    '{"cpu": "x", "peak": "y"}', '{"a": {"d": 1, "s": "json"}}', "running", "\x1b[31m", '{"pid": "x"}', "succeeded",
)  # fmt: skip


def _parse_row(data: tuple[str, int, Any]) -> None:
    kind, column, cell = data
    schema, row = _ROWS[kind]
    values = schema.tuple_of(row)
    values[column % len(values)] = cell
    schema.row_of(values)


def _parse_output_row(data: tuple[int, Any]) -> None:
    column, cell = data
    values = list(rows.output_columns(_OUTPUT_ROW))
    values[column % len(values)] = cell
    rows.output_row(values)


def _parse_receipt(data: tuple[str, bytes | None, bool, Any]) -> None:
    text, tracks, packed, verdict = data
    receipts.receipt_row(("r", "train", 1, verdict, text, zlib.compress(tracks) if packed and tracks else tracks))


@functools.cache
def _store_bytes() -> bytes:
    """The database of a store with two runs, one of which has a row of each kind."""
    home = scratch() / "whole"
    store = open_store(home=str(home))
    batch = RowBatch()
    batch.step(_STEP_ROW)
    batch.attempt(_ATTEMPT)
    batch.output(_OUTPUT_ROW)
    batch.receipt(receipts.ReceiptRow(run_id=_RUN.id, key="train", number=1, receipt=_RECEIPT, tracks=_TRACKS))
    batch.event(_EVENT_ROW)
    batch.remember(_CACHE_ROW)
    store.records.create_run(_RUN, plan=plandoc.dump(_PLAN))
    store.records.create_run(attrs.evolve(_RUN, id=_OTHER_RUN, tags=("good",), status="succeeded"), plan="")
    store.records.write(batch)
    store.close()
    with contextlib.closing(sqlite3.connect(home / "stoker.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return (home / "stoker.db").read_bytes()


_TABLES: Final[dict[str, tuple[str, ...]]] = {
    **{kind: schema.columns for kind, (schema, _) in _ROWS.items()},
    "outputs": rows.OUTPUT_COLUMNS,
    "receipts": rows.RECEIPT_COLUMNS,
    "plans": ("run_id", "plan"),
}
_READERS: Final[tuple[tuple[str, ...], ...]] = (
    ("runs",),
    ("runs", "--json"),
    ("runs", "--tag", "good"),
    ("show", "0123", "--elements"),
    ("show", "0123", "--json"),
    ("gpu", "0123"),
    ("artifacts", "0123"),
    ("logs", "0123"),
    ("card", "0123", "train", "--output", "-"),
    ("doctor",),
    ("gc", "--dry-run"),
    ("resume", "0123"),
    ("cancel", "0123"),
)


def _read_damaged_store(data: tuple[str, int, Any, int]) -> None:
    """A command reads a store of which one cell is spoiled; the list of runs still has the other run."""
    table, column, cell, reader = data
    with tempfile.TemporaryDirectory(dir=scratch()) as folder:
        database = Path(folder, "stoker.db")
        database.write_bytes(_store_bytes())
        name = _TABLES[table][column % len(_TABLES[table])]
        value = "CAST(? AS TEXT)" if isinstance(cell, bytes) else "?"
        where = f" WHERE id = '{_RUN.id}'" if table == "runs" else ""
        with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as connection:
            try:
                connection.execute(f"UPDATE {table} SET {name} = {value}{where}", (cell,))
            except (sqlite3.Error, OverflowError, UnicodeEncodeError):
                return  # the database takes no such value
        words = _READERS[reader % len(_READERS)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("STOKER_HOME", folder)
            printed = _run_command(words)
    assert words != ("runs",) or _OTHER_RUN in printed, f"one bad {table}.{name} hides the other runs"


def _parse_frames(data: tuple[list[Any], list[int], bytes]) -> None:
    messages, cuts, noise = data
    stream = b"".join(wire.framed(one) for one in messages)
    for cut in cuts:
        at = cut % (len(stream) + 1)
        stream = stream[:at] + noise + stream[at + cut % 5 :]
    frames = wire.Frames()
    for start in range(0, len(stream), 97):
        for document in frames.feed(stream[start : start + 97]):
            from_json(StepResult, document, strict=False)


def _parse_datagram(data: bytes) -> None:
    from_json(WorkerJob, wire.received(data), strict=False)


def _read_output(data: bytes) -> None:
    reader = Reader()
    for start in range(0, len(data), 50):
        reader.read("stdout", data[start : start + 50])
    reader.end()


def _read_logs(data: bytes) -> None:
    logs = Logs(str(scratch() / "logs"))
    path = Path(logs.path("r", "train", 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    for line in logs.lines("r", "train", 1):
        assert "\n" not in line.text
    list(logs.lines("r", "train", 1, tail=3, stream="stderr", rank=2))
    logs.ranks("r", "train", 1)
    list(logs.follow("r", "train", 1, done=lambda: True))


def _name_checkpoint(name: str) -> None:
    folder = Checkpoints(str(scratch() / "checkpoints")).create("r", name or "-")  # no step has an empty name
    assert folder.parent == scratch() / "checkpoints" / "r"


def _read_states(text: str) -> None:
    for read in (states.squeue_rows, states.scontrol_rows, states.sacct_rows):
        for row in read(text):
            states.end_status(row, text, memory=1)
    parse_facts(text, text, text, text)
    for read_value in (values.seconds, values.amount, values.mebibytes, values.gres_of, values.tres_of):
        read_value(text)


def _decode(cls: Any) -> Callable[[str], object]:
    return lambda text: from_json(cls, wire.unpacked(text.encode("utf-8", "surrogatepass")), strict=False)


_cells = st.sampled_from((*_CELLS, *(value for value in VALUES if not isinstance(value, (list, dict, bool)))))
_json_cells = json_texts(
    {**_ATTEMPT.error, "rank": 1, "world_size": 2, "failed_ranks": [1], "stacks": {"1": "x"}, "message": "no"},
    list(_ATTEMPT.changes),
    _CHANGED,
    {"a": _WIRE},
    dict(_STEP_ROW.usage),
    dict(_RUN.driver),
    ["a", "b"],
    to_json(_RECEIPT),
    json.loads(plandoc.dump(_PLAN)),
)
_values = st.sampled_from(VALUES)

PARSERS: Final[dict[str, Parser]] = {
    "size": Parser(inputs=st.one_of(texts("16GB", "1.5GiB", "16 Gi"), _values), parse=units.size),
    "duration": Parser(inputs=st.one_of(texts("2h", "1h30m", "90s", "1 day"), _values), parse=units.positive_duration),
    "count": Parser(inputs=st.one_of(texts("4", "1.0"), _values), parse=units.count),
    "number": Parser(inputs=st.one_of(texts("4", "0.5"), _values), parse=units.number),
    "accelerators": Parser(
        inputs=st.one_of(
            texts("A100:2", "H100-80GB", "A100-80GB/1g.10gb:2", "trainium:16", "nvidia:4", "A100:2,H100:1"),
            documents(["A100:2"], {"A100": 2}),
        ),
        parse=accelerators.parse_all,
    ),
    "causes of retries": Parser(
        inputs=st.one_of(texts("oom", "preempted"), documents(["oom"])), parse=settings.parse_causes
    ),
    "ladder": Parser(
        inputs=documents([{"halve": "batch_size", "least": 1}, {"scale": "memory", "by": 2}, "memory*2"]),
        parse=ladder.parse_ladder,
    ),
    "--set": Parser(inputs=st.lists(_ASSIGNMENTS, min_size=1, max_size=2), parse=assignments),
    "--with": Parser(inputs=_ATTACHED, parse=_parse_attached, refusals=(UsageError,)),
    "options of runs": Parser(
        inputs=st.lists(texts("--tag", "--set=a=1", "--name=x", "--no-cache", "-x"), max_size=4),
        parse=lambda words: split(words, RUN_OPTIONS),
        refusals=(ParameterError,),
    ),
    "run file": Parser(inputs=encoded(texts(_YAML)), parse=_parse_run_file, share=0.3),
    "stoker.toml": Parser(inputs=encoded(texts(_TOML)), parse=_parse_stacks, refusals=(UsageError,), share=0.5),
    "settings": Parser(inputs=_option_inputs(_OPTION_VALUES), parse=_parse_option),
    "settings of backends": Parser(inputs=_option_inputs(_BACKEND_OPTIONS), parse=_parse_option),
    "launch": Parser(inputs=_LAUNCHES, parse=OPTIONS["launch"].parse, share=0.4),
    "parameters": Parser(
        inputs=st.tuples(st.sampled_from(sorted(_KINDS)), st.one_of(_WORDS, _WORDS, documents([1, {"a": ["b"]}]))),
        parse=_parse_value,
        refusals=(ParameterError,),
    ),
    "parameters of flows": Parser(
        inputs=st.tuples(st.sampled_from(("config", *sorted(_FLOW_KINDS))), st.one_of(_WORDS, json_texts({"a": [1]}))),
        parse=_parse_flow_value,
        refusals=(ParameterError,),
    ),
    "requirements": Parser(inputs=_REQUIREMENTS, parse=_parse_requirements),
    "pyproject.toml": Parser(inputs=encoded(texts(_PROJECT)), parse=_parse_project),
    "Dockerfile": Parser(inputs=texts(_DOCKERFILE), parse=_parse_dockerfile),
    "image names": Parser(inputs=_IMAGES, parse=_parse_image),
    "simulation": Parser(inputs=_DESCRIBED, parse=parse_simulation),
    "variables": Parser(
        inputs=st.tuples(
            st.sampled_from(("STOKER_HOME", "STOKER_STACK", "STOKER_TRACEBACK", "COLUMNS", "HOME", "TERM")),
            texts("local", "/nonexistent/x", "80"),
        ),
        parse=_parse_variable,
        refusals=(),
        share=0.2,
    ),
    "words of commands": Parser(inputs=_command_words(), parse=_run_command, refusals=(), share=0.2),
    "plan": Parser(inputs=json_texts(json.loads(plandoc.dump(_PLAN))), parse=plandoc.load, refusals=(StoreError,)),
    "rows": Parser(
        inputs=st.tuples(st.sampled_from(sorted(_ROWS)), st.integers(0, 20), _cells),
        parse=_parse_row,
        refusals=(StoreError,),
    ),
    "rows of outputs": Parser(
        inputs=st.tuples(st.integers(0, 9), _cells), parse=_parse_output_row, refusals=(StoreError,)
    ),
    "receipts": Parser(
        inputs=st.tuples(
            json_texts(to_json(_RECEIPT)),
            st.one_of(st.none(), json_texts(to_json(_TRACKS)).map(lambda text: text.encode("utf-8", "surrogatepass"))),
            st.booleans(),
            _cells,
        ),
        parse=_parse_receipt,
        refusals=(StoreError,),
    ),
    "damaged store": Parser(
        inputs=st.tuples(
            st.sampled_from(sorted(_TABLES)), st.integers(0, 20), st.one_of(_cells, _json_cells), st.integers(0, 20)
        ),
        parse=_read_damaged_store,
        refusals=(),
        share=0.1,
    ),
    "artifacts": Parser(inputs=documents(_WIRE, _PICKLED), parse=artifact.from_wire, refusals=(StoreError,)),
    "frames": Parser(
        inputs=st.tuples(
            st.lists(documents(to_json(_RESULT)), max_size=3),
            st.lists(st.integers(0, 5000), max_size=3),
            st.binary(max_size=4),
        ),
        parse=_parse_frames,
        refusals=(StokerError,),
    ),
    "datagrams": Parser(
        inputs=encoded(json_texts(to_json(_JOB), {"file": "/nonexistent"})),
        parse=_parse_datagram,
        refusals=(StokerError,),
    ),
    "documents of jobs": Parser(inputs=json_texts(to_json(_SPEC)), parse=_decode(BootSpec), refusals=(StokerError,)),
    "events of workers": Parser(
        inputs=json_texts(to_json(_EVENT)), parse=_decode(WorkerEvent), refusals=(StokerError,)
    ),
    "output of containers": Parser(
        inputs=encoded(json_texts(to_json(_EVENT)).map(lambda text: f"a\n{MARK}{text}\nb")),
        parse=_read_output,
        refusals=(),
    ),
    "logs": Parser(
        inputs=encoded(texts("1718000000.123456 o loading\n1718000002.654321 o3 epoch 3\n1718000003.0 e end\n")),
        parse=_read_logs,
        refusals=(),
        share=0.4,
    ),
    "names of checkpoints": Parser(
        inputs=texts("train", "train[3]", "a/b", ".."), parse=_name_checkpoint, refusals=(StoreError,)
    ),
    "Slurm's answers": Parser(
        inputs=texts(
            "12_3|RUNNING|2025-06-01T12:00:00|stoker|node[1-3]|Resources",
            "JobId=12 ArrayJobId=12 ArrayTaskId=3 JobState=FAILED ExitCode=1:9 TimeLimit=01:00:00 Reason=None",
            "12|CANCELLED by 1000|0:15|UNLIMITED|node1",
            "main|2|4+|4000|10000|a,b|gpu:h100:4(S:0-1),shard:2K|idle|n[1-2]",
            "PartitionName=main TotalNodes=2 MaxTime=7-00:00:00 MaxNodes=UNLIMITED Default=YES State=UP",
            "MaxArraySize = 1001",
            "01:00:00",
            "cpu=4,mem=2000M,gres/gpu:h100=2",
        ),
        parse=_read_states,
        refusals=(),
    ),
}
