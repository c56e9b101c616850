"""The settings of the slurm backend, beside a step's resources.

`backends.slurm.script` writes the script of a job. Options of sbatch without a field here are in a table, so that a
typo is refused before anything is submitted.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Callable, ClassVar, Final, Iterable, Iterator, Literal, Mapping

import attrs

from stoker.backends.base.overlays import parse_mounts
from stoker.backends.slurm import values
from stoker.core import units
from stoker.core.accelerators import Accelerator
from stoker.core.errors import SettingsError, did_you_mean, nearest
from stoker.core.hosts import folder_elsewhere, folder_uri, parse_host, ssh_address
from stoker.core.units import (
    UNSET,
    WHOLE_RUN,
    one_of,
    parse_flag,
    parse_mapping,
    parse_number,
    parse_positive_count,
    parse_python,
    parse_text,
    parse_texts,
    strict,
)
from stoker.core.words import table_lines

if TYPE_CHECKING:
    from datetime import timedelta

GpusAs = Literal["gres", "gpus-per-node"]
Reuse = Literal["auto"]
Container = Literal["apptainer", "singularity", "pyxis"]
CONTAINERS: Final[tuple[Container, ...]] = ("apptainer", "singularity", "pyxis")
SHARED: Final[tuple[str, ...]] = ("user", "mcs", "topo")
"""Values of `exclusive` beside true and false: https://slurm.schedmd.com/sbatch.html#OPT_exclusive"""
LONGEST_WARNING: Final = 65535
"""Seconds: https://slurm.schedmd.com/sbatch.html#OPT_signal"""
MAIL_TYPES: Final = (
    "NONE",
    "BEGIN",
    "END",
    "FAIL",
    "REQUEUE",
    "ALL",
    "INVALID_DEPEND",
    "STAGE_OUT",
    "TIME_LIMIT",
    "TIME_LIMIT_90",
    "TIME_LIMIT_80",
    "TIME_LIMIT_50",
    "ARRAY_TASKS",
)
"""https://slurm.schedmd.com/sbatch.html#OPT_mail-type"""
NAME_FIELDS: Final = ("pipeline", "step", "run")
"""What may stand in braces in a job's name."""
AUTO: Final = "auto"
"""The value of `reuse` by which a job takes further steps where that changes nothing for them."""
IDLE_AFTER: Final = 30.0
"""Default seconds without a step after which a job that takes further steps leaves."""
FEATURE: Final = "feature/"
"""Prefix in `gres_types` of a kind that is a feature of nodes, not a type of GPU."""
OF_ITS_OWN: Final = "gres/"
"""Prefix in `gres_types` of a kind that is another GRES than `gpu`, as in Slurm's TRES: "gres/shard"."""

DRIVER_MEMORY: Final = 1 << 30
"""Default memory of a detached run's driver, in bytes: a driver of ten thousand steps uses 200 MB."""


def _options() -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """The tables of `options.txt`: OPTIONS, ELSEWHERE and SHORT."""
    options: dict[str, str] = {}
    elsewhere: dict[str, str] = {}
    short: dict[str, str] = {}
    for line in table_lines(__file__, "options.txt"):
        names, _, text = line.partition(" ")
        name, _, letter = names.removesuffix(":").partition(",")
        (elsewhere if names.endswith(":") else options)[name] = text
        if letter:
            short[letter] = name
    return options, elsewhere, short


OPTIONS, ELSEWHERE, SHORT = _options()
"""Further options of sbatch that settings may have; others → what to write instead; short names, as scripts have them.
"""


def _instead() -> Iterator[tuple[str, str]]:
    """What to write for names that are no fields: sbatch's own options, as scripts have them, and other schedulers'."""
    further = {name: f'options = {{ "{name}" = … }} of SlurmSettings' for name in OPTIONS}
    known = {**further, **ELSEWHERE}
    for name, fix in known.items():
        yield name, fix
        yield name.replace("-", "_"), fix
    for name, long_name in SHORT.items():
        yield name, known[long_name]
    for name in ("walltime", "wall_time"):
        yield name, ELSEWHERE["time"]
    for name in ("memory", "cpus", "cpu_count", "gpu_count", "accelerators", "disk"):
        yield name, f"{name if name != 'cpus' else 'cpu_count'}=… of ResourceSettings, which is the step's: resources=…"
    yield "queue", "partition=… of SlurmSettings"
    yield "user", 'host = "ssh://me@login"'
    yield "prolog", "setup=[…] has the lines of a shell that run before the step"


_WORD: Final = "[A-Za-z0-9_][A-Za-z0-9_.+-]*"
_TYPE = re.compile(rf"(?:{FEATURE})?{_WORD}|{OF_ITS_OWN}{_WORD}(?::{_WORD})?")
# Quotes and backslashes have a meaning in a line of #SBATCH, and no name has them.
_NAMES = re.compile(r"[^\s'\"\\#]+")


def parse_folder(value: str | None) -> str | None:
    """`folder`: a path from the root or from the home."""
    text = parse_text(value)
    if not text:
        return text
    if not text.startswith(("/", "~/")):
        raise SettingsError(f"{value!r} is not a path from the root", fix='write "/shared/me/slurm" or "~/slurm"')
    if not text.isprintable() or set(text) & set("'\"\\"):
        # sbatch takes a backslash in a path of --output as "replace nothing", and has quotes of its own.
        raise SettingsError(f"{value!r} has letters that Slurm does not take in paths", fix="use another folder")
    return text.rstrip("/") or "/"


def parse_names(value: str | Iterable[str] | None) -> str | None:
    """A name, or several: a list is joined by commas."""
    names: str | None = _names(value, ",")
    return names


def parse_job_name(value: str | None) -> str | None:
    """`job_name`: a line in which only known names stand in braces."""
    text = parse_comment(value)
    for name in re.findall(r"\{([^{}]*)\}", text) if isinstance(text, str) else ():
        if name not in NAME_FIELDS:
            fields = ", ".join(f"{{{field}}}" for field in NAME_FIELDS)
            raise SettingsError(f"there is no {{{name}}} in a job's name{did_you_mean(name, NAME_FIELDS)}: {fields}")
    return text


def parse_comment(value: str | None) -> str | None:
    """`comment`: one line."""
    raw: Any = value
    if raw is not None and raw is not UNSET and not (isinstance(raw, str) and raw.strip() and raw.isprintable()):
        raise SettingsError(f"{raw!r} is not one line of text")
    return value


def parse_features(value: str | Iterable[str] | None) -> str | None:
    """`constraint`: a node must have all features of a list."""
    features: str | None = _names(value, "&")
    return features


def parse_seconds(value: float | str | timedelta | None) -> float | None:
    """A positive time, in seconds."""
    raw: Any = value
    return raw if raw is None or raw is UNSET else units.positive_duration(raw)


def parse_time(value: float | str | timedelta | None) -> float | None:
    """`time_limit`: a positive time, in seconds; also as sbatch takes it, with colons or with days before a dash.

    A whole number without a unit is refused: to sbatch it means minutes, and to all other settings seconds. What was
    parsed once is a float, and taken again.
    """
    raw: Any = value
    text = str(raw).strip() if isinstance(raw, (str, int)) else ""
    if text.isdecimal() and int(text):
        fix = f'write "{text}m" for minutes, or "{text}s"'
        raise SettingsError(f"{value!r} has no unit, and means minutes to sbatch, seconds to Stoker", fix=fix)
    seconds = values.seconds(text) if set(text) & set(":-") else None
    return parse_seconds(value if seconds is None else float(seconds))


def parse_warning(value: float | str | timedelta | None) -> float | None:
    """`warn_before`."""
    seconds = parse_seconds(value)
    if seconds and math.ceil(seconds) > LONGEST_WARNING:
        limit = units.duration_text(LONGEST_WARNING)
        raise SettingsError(f"{value!r} is longer than Slurm can warn before a limit: {limit}", fix='write "5m"')
    return seconds


def parse_exclusive(value: bool | str | None) -> bool | str | None:
    """`exclusive`."""
    raw: Any = value
    if raw is None or raw is UNSET or isinstance(raw, bool) or raw in SHARED:
        return value
    raise units.not_one_of(value, ("true", "false", *SHARED))


def parse_mail_type(value: str | Iterable[str] | None) -> str | None:
    """`mail_type`."""
    text = parse_names(value)
    for kind in text.upper().split(",") if text else ():
        if kind not in MAIL_TYPES:
            raise SettingsError(f"Slurm writes no mail at '{kind}'{nearest(kind, MAIL_TYPES)}")
    return text.upper() if text else text


def parse_lines(value: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """`setup`: lines of a shell, one text for all of them or a list."""
    return parse_texts([value] if isinstance(value, str) else value)


def parse_environment(value: str | None) -> str | None:
    """`conda`: a name, or a path from the root or the home."""
    text = parse_text(value)
    if not text or (_NAMES.fullmatch(text) and "/" not in text and not text.startswith(("-", "~"))):
        return text
    return parse_venv(text)


def parse_venv(value: str | None) -> str | None:
    """`venv`: a path from the root or the home."""
    text = parse_text(value)
    if text and (not text.startswith(("/", "~/")) or not text.isprintable()):
        raise SettingsError(f"{value!r} is not a path from the root", fix='write "/shared/me/env" or "~/env"')
    return text.rstrip("/").removesuffix("/bin/activate") if text else text


def parse_modules(value: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """`modules`."""
    texts = parse_texts(value.replace(",", " ").split() or [value] if isinstance(value, str) else value)
    for text in texts or ():
        if not _NAMES.fullmatch(text):
            raise SettingsError(f"{text!r} is not the name of a module", fix='write ["cuda/12.4", "python/3.11"]')
    return texts


def parse_reuse(value: bool | Reuse | None) -> bool | Reuse | None:
    """`reuse`."""
    raw: Any = value
    if raw is None or raw is UNSET or isinstance(raw, bool) or raw == AUTO:
        return value
    raise SettingsError(f"{raw!r} is not one of {AUTO}, true, false", fix=f'write "{AUTO}"')


def parse_gpus_as(value: GpusAs | None) -> GpusAs | None:
    """`gpus_as`."""
    one_of(value, "gres", "gpus-per-node")
    return value


def parse_container(value: Container | None) -> Container | None:
    """`container`."""
    one_of(value, *CONTAINERS)
    return value


def parse_types(value: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """`gres_types`, by the catalog's own names."""
    mapping: Any = parse_mapping(value)
    types: dict[str, Any] = {}
    for name, text in (mapping or {}).items():
        kind = Accelerator.parse(name)
        if kind.count is not None:
            raise SettingsError(f"{name!r} counts", fix=f'name the kind alone: "{str(kind).partition(":")[0]}"')
        if text is not None and not (isinstance(text, str) and _TYPE.fullmatch(text)):
            fix = f'write "h100", or "{OF_ITS_OWN}shard" for another GRES, or "{FEATURE}h100" for a feature of nodes'
            raise SettingsError(f"{name}: {text!r} is not a type of GRES", fix=fix)
        types[str(kind)] = text
    return mapping if mapping is None or mapping is UNSET else types


def parse_options(value: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """`options`, by sbatch's own names; `_` and `-` are the same."""
    mapping: Any = parse_mapping(value)
    options: dict[str, Any] = {}
    for option_name, option in (mapping or {}).items():
        name = option_name.lstrip("-").replace("_", "-")
        name = SHORT.get(name, name)
        if name in ELSEWHERE and not _is_whole_memory(name, option):
            raise SettingsError(f"options has no '{option_name}': it is given elsewhere", fix=ELSEWHERE[name])
        if name not in OPTIONS and name not in ELSEWHERE:
            raise SettingsError(f"sbatch has no option '{name}'{nearest(name, [*OPTIONS, *ELSEWHERE])}")
        if name in options:
            raise SettingsError(f"options has '{name}' twice", fix="remove one of the two")
        options[name] = None if option is None else _option(name, option)
    return mapping if mapping is None or mapping is UNSET else options


def _is_whole_memory(name: str, value: Any) -> bool:
    """Whether an option asks for all memory of a node, for which `ResourceSettings` have no word: `--mem=0`."""
    return name == "mem" and value is not True and value is not False and str(value).strip() == "0"


def parse_driver(value: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """`driver`: time in seconds, memory in bytes, the rest names as sbatch takes them; `SettingsError` for others."""
    mapping: Any = parse_mapping(value)
    if mapping is None or mapping is UNSET:
        return value
    settings = {}
    for name, text in mapping.items():
        if name not in _DRIVER_FIELDS:
            fix = f"it takes {', '.join(_DRIVER_FIELDS)}"
            raise SettingsError(f"driver has no '{name}'{did_you_mean(name, _DRIVER_FIELDS)}", fix=fix)
        settings[name] = None if text is None else _DRIVER_FIELDS[name](name, text)
    return settings


def _driver_name(name: str, value: Any) -> str:
    if not isinstance(value, str) or not _NAMES.fullmatch(value):
        raise SettingsError(f"driver: {name}={value!r} is not a name", fix="write it without blanks and quotes")
    return value


def _driver_time(name: str, value: Any) -> float:
    try:
        return parse_time(value) or 0.0
    except SettingsError as error:
        raise SettingsError(f"driver: {name}: {error.message}", fix=error.fix) from None


def _driver_memory(name: str, value: Any) -> int:
    try:
        return units.useful_size(value)
    except SettingsError as error:
        raise SettingsError(f"driver: {name}: {error.message}", fix=error.fix) from None


_DRIVER_FIELDS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "partition": _driver_name,
    "account": _driver_name,
    "qos": _driver_name,
    "reservation": _driver_name,
    "time_limit": _driver_time,
    "memory": _driver_memory,
}


@strict
@attrs.frozen(kw_only=True)
class SlurmSettings:
    """How a step's job is submitted. A field that is not given is `UNSET`; `None` takes back what weaker layers say."""

    host: str | None = attrs.field(default=UNSET, converter=parse_host, metadata=WHOLE_RUN)
    """The login node, as "ssh://me@login:22"; without it sbatch is called on this machine."""
    shares_files: bool | None = attrs.field(default=UNSET, converter=parse_flag, metadata=WHOLE_RUN)
    """Whether the nodes see this machine's folders: they do without a host, and do not with one."""
    folder: str | None = attrs.field(default=UNSET, converter=parse_folder, metadata=WHOLE_RUN)
    """A folder that login node and nodes see, for the documents and output of jobs (`--chdir`, `--output`)."""
    python: str | None = attrs.field(default=UNSET, converter=parse_python)
    """The interpreter on the nodes, in the environment, or in the image."""
    partition: str | None = attrs.field(default=UNSET, converter=parse_names)
    """`--partition`; a list is joined by commas."""
    account: str | None = attrs.field(default=UNSET, converter=parse_names)
    """`--account`."""
    qos: str | None = attrs.field(default=UNSET, converter=parse_names)
    """`--qos`."""
    constraint: str | None = attrs.field(default=UNSET, converter=parse_features)
    """`--constraint`; a list is what a node must have all of."""
    reservation: str | None = attrs.field(default=UNSET, converter=parse_names)
    """`--reservation`."""
    nodelist: str | None = attrs.field(default=UNSET, converter=parse_names)
    """`--nodelist`."""
    exclude: str | None = attrs.field(default=UNSET, converter=parse_names)
    """`--exclude`."""
    time_limit: float | None = attrs.field(default=UNSET, converter=parse_time)
    """`--time`, in seconds, as "4h", or as sbatch takes it ("04:00:00"); without it the step's timeout with a margin,
    else the partition's limit."""
    warn_before: float | None = attrs.field(default=UNSET, converter=parse_warning)
    """`--signal`: seconds before the limit at which `context.should_stop` turns true."""
    requeue: bool | None = attrs.field(default=UNSET, converter=parse_flag)
    """`--requeue`: Slurm may start a job again by itself, beside the retries that Stoker counts."""
    exclusive: bool | str | None = attrs.field(default=UNSET, converter=parse_exclusive)
    """`--exclusive`: true, false, or with whom nodes are shared ("user", "mcs", "topo")."""
    mail_type: str | None = attrs.field(default=UNSET, converter=parse_mail_type)
    """`--mail-type`."""
    mail_user: str | None = attrs.field(default=UNSET, converter=parse_names)
    """`--mail-user`."""
    job_name: str | None = attrs.field(default=UNSET, converter=parse_job_name)
    """`--job-name`, in which `{pipeline}`, `{step}` and `{run}` are replaced; without it "{pipeline}/{step}", and for a
    single element of a fan-out "/" and its index behind that."""
    comment: str | None = attrs.field(default=UNSET, converter=parse_comment)
    """The beginning of `--comment`; the token by which Stoker finds the job stands behind it."""
    modules: tuple[str, ...] | None = attrs.field(default=UNSET, converter=parse_modules)
    """Modules that are loaded before the worker begins (`module load`); the first that fails ends the job."""
    setup: tuple[str, ...] | None = attrs.field(default=UNSET, converter=parse_lines)
    """Lines of a shell that run after that; the first that fails ends the job."""
    conda: str | None = attrs.field(default=UNSET, converter=parse_environment)
    """The conda environment in which the step runs, by its name or its path: activated by conda, micromamba or mamba,
    whichever the node has."""
    venv: str | None = attrs.field(default=UNSET, converter=parse_venv)
    """The folder of the virtual environment in which the step runs."""
    gpus_as: GpusAs | None = attrs.field(default=UNSET, converter=parse_gpus_as)
    """Which option asks for GPUs: "gres" (`--gres`) or "gpus-per-node" (`--gpus-per-node`)."""
    gres_types: Mapping[str, str] | None = attrs.field(default=UNSET, converter=parse_types)
    """Names of the catalog to the site's types, `{"H100": "h100"}`, to another GRES, `{"trainium": "gres/neuron"}`, or
    to a feature of nodes, `{"A100": "feature/a100"}`."""
    container: Container | None = attrs.field(default=UNSET, converter=parse_container)
    """What runs images that are there already: "apptainer", "singularity" or "pyxis"."""
    mounts: tuple[str, ...] | None = attrs.field(default=UNSET, converter=parse_mounts)
    """Folders of the nodes in the image, as "/here:/there" or "/here:/there:ro"."""
    options: Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_options)
    """Further long options of sbatch by name (`OPTIONS`)."""
    poll: float | None = attrs.field(default=UNSET, converter=parse_seconds, metadata=WHOLE_RUN)
    """Seconds between two questions to the controller, at least."""
    max_array: int | None = attrs.field(default=UNSET, converter=parse_positive_count, metadata=WHOLE_RUN)
    """The most tasks of one job array (`--array`); without it, the cluster's MaxArraySize."""
    reuse: bool | Reuse | None = attrs.field(default=UNSET, converter=parse_reuse)
    """Whether a job takes further steps that ask for the same: "auto" (the default) where it is safe, true to refuse
    the run where it is not, false for a job for each step."""
    idle_after: float | None = attrs.field(default=UNSET, converter=parse_seconds)
    """Seconds without a step after which a job that takes further steps leaves; 30 by default."""
    max_jobs: int | None = attrs.field(default=UNSET, converter=parse_positive_count)
    """The most jobs at a time that take the steps of one request, waiting ones included."""
    array_parallelism: int | None = attrs.field(default=UNSET, converter=parse_positive_count)
    """The most tasks of an array that run at a time (`--array=…%N`)."""
    max_submit: int | None = attrs.field(default=UNSET, converter=parse_positive_count, metadata=WHOLE_RUN)
    """The most jobs of a run that are in the queue at a time, tasks of arrays counted singly."""
    submit_rate: float | None = attrs.field(default=UNSET, converter=parse_number, metadata=WHOLE_RUN)
    """The most submissions (calls of sbatch) of a run in a minute."""
    driver: Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_driver, metadata=WHOLE_RUN)
    """What the job that drives a run after `--detach` gets: partition, account, qos, reservation, time_limit in seconds
    and memory in bytes, or as texts."""

    INSTEAD: ClassVar[Mapping[str, str]] = dict(_instead())

    def get(self, name: str, default: Any = None) -> Any:
        """The field's value, or `default` where nothing was asked."""
        value = getattr(self, name)
        return default if value is UNSET or value is None else value

    @property
    def shares(self) -> bool:
        """Whether the nodes see this machine's folders."""
        return bool(self.get("shares_files", not self.get("host")))

    @property
    def own_store(self) -> str:
        """The URI of the artifact store in the folder that the nodes see, reached through the login node."""
        return folder_uri(self.host or "", f"{self.folder_in('')}/artifacts")

    def store_on_nodes(self, store: str) -> str:
        """The artifact store as the nodes open it: a folder there, where the store is one behind the login node."""
        host = self.get("host")
        if host is None or not store.startswith("ssh://"):
            return store
        address, path = folder_elsewhere(store)
        return path if address == ssh_address(host) else store

    def folder_in(self, scratch: str) -> str:
        """The folder that login node and nodes see, as it was given; the part "~" is that machine's."""
        default = "~/.stoker/slurm" if self.get("host") else f"{scratch}/slurm"
        return str(self.get("folder", default))


def _names(value: Any, between: str) -> Any:
    if value is None or value is UNSET:
        return value
    texts = (parse_text(value),) if isinstance(value, str) else parse_texts(value)
    for text in texts or ():
        if not text or not _NAMES.fullmatch(text):
            raise SettingsError(f"{text!r} is not a name", fix="write it without blanks and quotes, or a list of names")
    if not texts:
        raise SettingsError("the list of names is empty", fix="leave it out, or set it to None")
    return between.join(text for text in texts if text)


def _option(name: str, value: Any) -> Any:
    """An option's value, checked: a flag is true or false, a number a number, a text printable."""
    kind = OPTIONS.get(name, "text")
    if isinstance(value, bool):
        if kind not in ("flag", "either"):
            raise SettingsError(f"options: {name}={value!r} is not a {kind}", fix=f'write {{"{name}": …}}')
        return value
    if kind == "flag":
        raise SettingsError(f"options: {name}={value!r} is neither true nor false", fix=f'write {{"{name}": true}}')
    if kind == "number":
        try:
            return units.count(value)
        except SettingsError as error:
            raise SettingsError(f"options: {name}: {error.message}", fix=error.fix) from None
    text = str(value) if isinstance(value, (int, float)) else value
    if not isinstance(text, str) or not text.strip() or not text.isprintable() or set(text) & set("'\"\\"):
        raise SettingsError(f"options: {name}={value!r} is not a text", fix="write it without quotes and backslashes")
    return text
