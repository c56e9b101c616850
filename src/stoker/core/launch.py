"""How the ranks of a distributed step are started: which launcher, with which arguments, as a person asks for it.

The launchers themselves, and the tables of their arguments, are found by name in `core.plugins`. A layer holds
`{"launcher": "accelerate", "num_processes": 4, "arguments": {"mixed_precision": "bf16"}}` or a part of that; what a
layer says without a launcher's name is checked when all layers are merged.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Iterable, Literal, Mapping, Protocol

import attrs

from stoker.core import plugins, units
from stoker.core.errors import SettingsError, UsageError, nearest
from stoker.core.launch_arguments import Argument, given_argument
from stoker.core.units import UNSET

if TYPE_CHECKING:
    from datetime import timedelta

    Duration = float | str | timedelta | None

Outputs = Literal["main", "all"]
OUTPUTS: Final[tuple[Outputs, ...]] = ("main", "all")

COMMON: Final[Mapping[str, Argument]] = {
    "num_processes": Argument("int"),
    "processes_per_node": Argument("int"),
}
"""Words that every launcher understands: how many ranks in all, and how many on each node."""


OPEN_MPI: Final = re.compile(r"\((?:Open MPI|OpenRTE)\) 4\.")
"""What `mpirun --version` says of an MPI that can start ranks on several nodes of one machine without ssh: Open MPI 4.
Open MPI 5 has another runtime, whose ranks lose each other there. mpiexec calls itself by the runtime's name."""


class Launcher(Protocol):
    """What a name in the table of launchers stands for, as far as its settings go; `launchers.base` has the rest."""

    @property
    def arguments(self) -> Mapping[str, Argument]:
        """Every argument that is known without asking anybody."""

    def newer(self) -> Mapping[str, Argument]:
        """Arguments of the version that is installed here; asking may take seconds."""


@attrs.frozen(kw_only=True)
class Launch:
    """How a step's ranks are started. Made by `Accelerate(…)` and its like; a field not given is `UNSET`.

    `num_processes` is the number of ranks in all, `processes_per_node` that on each node; where neither is given, each
    accelerator gets one rank, and a node without any runs one. `outputs`: rank 0's return value is the step's, or a
    list of all by rank. After `hang_after` seconds in which no rank does anything, the step is ended; None waits for
    ever. `gang_timeout` is how long nodes wait for each other.
    """

    launcher: str = UNSET
    num_processes: int | None = UNSET
    processes_per_node: int | None = UNSET
    outputs: Outputs = UNSET
    hang_after: float | None = UNSET
    gang_timeout: float | None = UNSET
    command: tuple[str, ...] | None = UNSET
    arguments: Mapping[str, Any] = attrs.field(default=UNSET)


# 10 minutes is NCCL's own limit for one collective (torch.distributed's default timeout with NCCL,
# https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group); nodes of one gang may be
# minutes apart while images are pulled.
DEFAULTS: Final = Launch(
    num_processes=None,
    processes_per_node=None,
    outputs="main",
    hang_after=600.0,
    gang_timeout=600.0,
    command=None,
    arguments={},
)
OWN: Final = tuple(field.name for field in attrs.fields(Launch) if field.name != "arguments")
"""Words of Stoker's own; all others are the launcher's."""


def Accelerate(  # noqa: N802  a value by its name, as in Retry(3)
    *,
    outputs: Outputs = UNSET,
    hang_after: Duration = UNSET,
    gang_timeout: Duration = UNSET,
    **launch_arguments: Any,
) -> Launch:
    """Ranks by `accelerate launch`, which takes every argument by its Python name.

    `num_processes` is the number of ranks on all machines, as Accelerate has it. Several processes with `cpu=True` are
    several ranks that talk through gloo; the command itself would start one.
    """
    own = {"outputs": outputs, "hang_after": hang_after, "gang_timeout": gang_timeout}
    return launch_of("accelerate", own, launch_arguments)


def Torchrun(  # noqa: N802
    *,
    outputs: Outputs = UNSET,
    hang_after: Duration = UNSET,
    gang_timeout: Duration = UNSET,
    **launch_arguments: Any,
) -> Launch:
    """Ranks by `torchrun`; its `nproc_per_node` counts the ranks of each node, `num_processes` all of them."""
    own = {"outputs": outputs, "hang_after": hang_after, "gang_timeout": gang_timeout}
    return launch_of("torchrun", own, launch_arguments)


def DeepSpeed(  # noqa: N802
    *,
    outputs: Outputs = UNSET,
    hang_after: Duration = UNSET,
    gang_timeout: Duration = UNSET,
    **launch_arguments: Any,
) -> Launch:
    """Ranks by DeepSpeed's launcher, without ssh; its `num_gpus` counts the ranks of each node."""
    own = {"outputs": outputs, "hang_after": hang_after, "gang_timeout": gang_timeout}
    return launch_of("deepspeed", own, launch_arguments)


def MPI(  # noqa: N802
    *,
    outputs: Outputs = UNSET,
    hang_after: Duration = UNSET,
    gang_timeout: Duration = UNSET,
    **launch_arguments: Any,
) -> Launch:
    """Ranks by Open MPI's `mpirun`, or with `program="srun"` by Slurm; `np` and `ntasks` count all ranks."""
    own = {"outputs": outputs, "hang_after": hang_after, "gang_timeout": gang_timeout}
    return launch_of("mpi", own, launch_arguments)


def Jax(  # noqa: N802
    *,
    outputs: Outputs = UNSET,
    hang_after: Duration = UNSET,
    gang_timeout: Duration = UNSET,
    **launch_arguments: Any,
) -> Launch:
    """Processes of JAX that find each other; takes the arguments of `jax.distributed.initialize`."""
    own = {"outputs": outputs, "hang_after": hang_after, "gang_timeout": gang_timeout}
    return launch_of("jax", own, launch_arguments)


def Command(  # noqa: N802
    command: Iterable[str],
    *,
    num_processes: int | None = UNSET,
    processes_per_node: int | None = UNSET,
    outputs: Outputs = UNSET,
    hang_after: Duration = UNSET,
    gang_timeout: Duration = UNSET,
) -> Launch:
    """Ranks by a command of your own: each node runs it with Stoker's worker behind it, as `command + worker`.

    It must start the worker once for each rank. The variables `STOKER_NUM_PROCESSES`, `STOKER_PROCESSES_PER_NODE`,
    `STOKER_NODE_RANK`, `STOKER_NODES`, `MASTER_ADDR` and `MASTER_PORT` say what is wanted of it.
    """
    own = {
        "command": command,
        "num_processes": num_processes,
        "processes_per_node": processes_per_node,
        "outputs": outputs,
        "hang_after": hang_after,
        "gang_timeout": gang_timeout,
    }
    return launch_of("command", own, {})


def launch_of(launcher: str, own: Mapping[str, Any], arguments: Mapping[str, Any]) -> Launch:
    """The value that a launcher's constructor makes: everything checked, only what was given."""
    given = {name: value for name, value in {**own, **arguments}.items() if value is not UNSET}
    return Launch(**_checked({**given, "launcher": launcher}))


def plain(launch: Launch) -> dict[str, Any]:
    """The fields that were given, as a layer holds them."""
    found = attrs.asdict(launch, recurse=False, filter=lambda _, value: value is not UNSET)
    if found.get("command") is not None:
        found["command"] = list(found["command"])
    if "arguments" in found:
        found["arguments"] = dict(found["arguments"])
    return found


def given_launch(value: Any) -> dict[str, Any] | None:
    """The option `launch` in its plain form: of a value, a launcher's name, a list for `Command`, or a mapping."""
    if value is None:
        return None
    if isinstance(value, Launch):
        return plain(value)
    if isinstance(value, str):
        return plain(Launch(**_checked({"launcher": value})))
    if isinstance(value, (list, tuple)):
        return plain(Launch(**_checked({"launcher": "command", "command": value})))
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        fix = 'write launch = "torchrun", Accelerate(…), or a mapping with launcher ='
        raise SettingsError(f"{value!r} says not how ranks are started", fix=fix)
    return plain(Launch(**_checked(value)))


def resolved(values: Mapping[str, Any] | None) -> Launch | None:
    """What all layers together ask for, with Stoker's defaults; a launcher's own defaults are left to it."""
    if values is None:
        return None
    kept = {name: value for name, value in values.items() if value is not None}
    if "launcher" not in kept:
        if set(kept) <= {"outputs", "hang_after", "gang_timeout"}:
            # A stack's defaults for whatever steps have a launcher.
            return None
        word = next(iter(sorted({*kept} - {"arguments"})), "") or next(iter(kept["arguments"]), "it")
        raise SettingsError(
            f"launch: {word} is given, but no launcher", fix='give the launcher, such as launch.launcher="torchrun"'
        )
    # `hang_after` may be None, which is no limit; of all other words None takes back what was asked before.
    unlimited: dict[str, Any] = {
        name: None for name in ("hang_after", "gang_timeout") if name in values and values[name] is None
    }
    found = _checked(kept)
    found["arguments"] = {name: value for name, value in found.get("arguments", {}).items() if value is not None}
    for name in COMMON:
        found.setdefault(name, None)
    return attrs.evolve(DEFAULTS, **{**found, **unlimited})


def laid_over(weak: Mapping[str, Any], strong: Mapping[str, Any]) -> dict[str, Any]:
    """A weaker layer's `launch` as far as a stronger one leaves it: another launcher takes none of its arguments."""
    named, before = strong.get("launcher"), weak.get("launcher")
    if before is None or named in {None, before}:
        return _without_counts(weak, strong, before)
    return {name: value for name, value in weak.items() if name not in {"arguments", "command", *COMMON}}


def _without_counts(weak: Mapping[str, Any], strong: Mapping[str, Any], launcher: str | None) -> dict[str, Any]:
    """What is left where the stronger layer counts the ranks in the launcher's own word."""
    table = load_launcher(launcher).arguments if launcher else {}
    words = {*strong, *strong.get("arguments", {})}
    counts = any(word in table and table[word].means in COMMON for word in words)
    return {name: value for name, value in weak.items() if not (counts and name in COMMON)}


def load_launcher(name: str) -> Any:
    """The launcher of a name, as `launchers.base.Launcher`; an unknown name is a `SettingsError`."""
    try:
        return plugins.load("stoker.launchers", name)
    except UsageError as error:
        raise SettingsError(error.message) from None


def argument_named(launcher: str, name: str) -> Argument:
    """What a launcher's argument takes; an unknown one is an error with the nearest."""
    kind: Launcher = load_launcher(launcher)
    found = kind.arguments.get(name) or kind.newer().get(name)
    if found is None:
        # Not the words that Stoker fills in: naming one would lead on to another refusal.
        own = [word for word in OWN if word not in {"launcher", "command"}]
        known = [word for word, argument in kind.arguments.items() if not argument.owned]
        raise SettingsError(f"{launcher} has no argument '{name}'{nearest(name, [*known, *own])}")
    return found


def _checked(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `Launch` from a mapping of words, arguments among them or under `arguments`."""
    inner = values.get("arguments", {})
    if not isinstance(inner, Mapping):
        raise SettingsError(f"arguments: {inner!r} does not map names to values")
    words = {name: value for name, value in values.items() if name != "arguments"}
    twice = sorted({*words} & {*inner})
    if twice:
        raise SettingsError(f"{twice[0]} is given twice", fix="remove one of the two")
    launcher = words.get("launcher")
    if launcher is not None:
        if not isinstance(launcher, str):
            raise SettingsError(f"launcher: {launcher!r} is not a name", fix='write launcher = "accelerate"')
        load_launcher(launcher)
    found: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    # Stoker's own words first: a launcher's word for the same is held against them.
    for name, value in sorted({**words, **inner}.items(), key=lambda item: item[0] not in OWN):
        try:
            if name in OWN:
                found[name] = _own(name, value)
            elif launcher is None:
                arguments[name] = value
            else:
                _put(launcher, name, value, found, arguments)
        except SettingsError as error:
            message = error.message if name in error.message else f"{name}: {error.message}"
            raise SettingsError(message, where=error.where, fix=error.fix) from None
    if launcher == "command" and words.get("command") is None:
        raise SettingsError("launcher 'command' needs a command", fix='write Command(["my-launcher", …])')
    if launcher not in {None, "command"} and words.get("command") is not None:
        raise SettingsError(f"command: {launcher} runs a command of its own", fix='write Command(["my-launcher", …])')
    one_way = [name for name in COMMON if name in found]
    if len(one_way) == 1 and found[one_way[0]] is not None:
        # Whoever says how many in all takes back what a weaker layer says of each node, and the other way round.
        found[next(name for name in COMMON if name != one_way[0])] = None
    return {**found, "arguments": arguments} if arguments else found


def _put(launcher: str, name: str, value: Any, found: dict[str, Any], arguments: dict[str, Any]) -> None:
    """One argument into its place: into Stoker's own word for it, or among the launcher's."""
    argument = argument_named(launcher, name)
    if argument.owned and value is not None:
        raise SettingsError(f"{name} is not yours to give: {argument.owned}", fix="remove it")
    plainly = _plain_argument(launcher, argument, name, value)
    if argument.means in COMMON and (isinstance(plainly, int) or plainly is None):
        if found.get(argument.means, plainly) != plainly:
            raise SettingsError(
                f"{name}={plainly} and {argument.means}={found[argument.means]} disagree",
                fix="give the number of processes once",
            )
        found[argument.means] = None if plainly is None else _own(argument.means, plainly)
    else:
        arguments[name] = plainly


def _plain_argument(launcher: str, argument: Argument, name: str, value: Any) -> Any:
    """The argument's plain value; one that the table refuses may be new in the version that is installed."""
    try:
        return given_argument(argument, value)
    except SettingsError:
        choice = argument.kind == "text" and argument.choices
        newer = load_launcher(launcher).newer().get(name) if choice else None
        if newer is None or newer.choices == argument.choices:
            raise
        return given_argument(newer, value)


def _own(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in COMMON:
        return units.count(value, least=1)
    if name in {"hang_after", "gang_timeout"}:
        return units.positive_duration(value)
    if name == "outputs":
        if value not in OUTPUTS:
            raise SettingsError(f"{value!r} is not one of {' and '.join(OUTPUTS)}", fix='write "main" or "all"')
        return value
    if name == "command":
        return _command(value)
    return value


def _command(value: Any) -> tuple[str, ...]:
    if isinstance(value, (str, Mapping)) or not isinstance(value, Iterable):
        fix = f"write {str(value).split()!r}: no shell reads it" if isinstance(value, str) else "write a list of words"
        raise SettingsError(f"{value!r} is not a list of words", fix=fix)
    words = tuple(value)
    if not words or not all(isinstance(word, str) and word and "\0" not in word for word in words):
        raise SettingsError(f"{value!r} is not a list of words", fix='write ["my-launcher", "--option"]')
    return words
