"""The type of a launcher, and functions that launchers share.

A launcher is one `Launcher` value in a file of its own, registered by a row of `launchers.registry` or by an entry
point in the group `stoker.launchers`. Its command is a pure function, called in the job, where addresses and ports are
known.
"""

from __future__ import annotations

import inspect
import re
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Concatenate,
    Final,
    Iterable,
    Iterator,
    Literal,
    Mapping,
    ParamSpec,
    Sequence,
)

import attrs

from stoker.core import units
from stoker.core.errors import SettingsError, nearest
from stoker.core.findings import Finding
from stoker.core.settings import LIMITS, OUTPUTS, OWN, Launch, Outputs
from stoker.core.units import UNSET
from stoker.launchers.arguments import Argument, argument_value, argument_words

if TYPE_CHECKING:
    from datetime import timedelta

    Duration = float | str | timedelta | None

Argv = tuple[str, ...]
LOOPBACK: Final = "127.0.0.1"
COUNTS: Final = ("num_processes", "processes_per_node")
"""Options of every launcher: the number of ranks in all, and on each node."""
SCRIPT: Final = "what is launched is Stoker's worker, which calls the step"
"""Why a launcher's argument for the program cannot be given."""


@attrs.frozen(kw_only=True)
class Node:
    """One node of a gang."""

    rank: int = 0
    """Its number; node 0 is the head."""
    nodes: int = 1
    """Nodes of the gang."""
    head: str = LOOPBACK
    """The address of node 0, as seen from this node."""
    address: str = LOOPBACK
    """This node's own address."""
    port: int = 0
    """A free port of the head; 0 where a launcher on a single node finds one itself."""
    rendezvous: str = "stoker"
    """A name that is unique to run, step and attempt."""
    processes: int = 1
    """Ranks of each node."""
    devices: tuple[str, ...] = ()
    """The names by which this node's devices are chosen (`CUDA_VISIBLE_DEVICES`)."""
    hosts: tuple[str, ...] = (LOOPBACK,)
    """The addresses of all nodes, the head's first."""
    cpu: bool = False
    """Whether the ranks compute on CPUs."""
    python: str = "python"
    """The interpreter that runs the launcher of a program that is not Python."""

    @property
    def world_size(self) -> int:
        """Ranks on all nodes."""
        return self.nodes * self.processes

    @property
    def endpoint(self) -> str:
        """Where nodes meet, as `host:port`; an IPv6 address in brackets."""
        return f"{bracket_address(self.head)}:{self.port}"


@attrs.frozen(kw_only=True)
class NodeCommand:
    """What a node runs to start its ranks."""

    argv: Argv
    """The command; empty where another node's launcher starts the ranks here."""
    environment: Mapping[str, str] = attrs.field(factory=dict)
    """Variables that the command needs."""
    ranks: tuple[Mapping[str, str], ...] = ()
    """Variables of each rank on this node, where Stoker itself starts `argv` once for each rank."""


@attrs.frozen(kw_only=True)
class Place:
    """The rank of a process; a single process is rank 0 of 1."""

    rank: int = 0
    """Among all ranks."""
    local_rank: int = 0
    """Among the ranks of its node."""
    world_size: int = 1
    """Ranks on all nodes."""
    local_world_size: int = 1
    """Ranks of its node."""
    node: int = 0
    """The number of its node."""

    @property
    def is_main(self) -> bool:
        """Whether its result is the step's."""
        return self.rank == 0


@attrs.frozen(kw_only=True)
class RankVariables:
    """The variables by which a rank learns its place; "" for none."""

    rank: str
    """Its number among all ranks."""
    world_size: str
    """Ranks on all nodes."""
    local_rank: str = ""
    """Its number on its node."""
    local_world_size: str = ""
    """Ranks of its node."""
    node: str = ""
    """The number of its node."""
    tasks_per_node: str = ""
    """Ranks of every node, as Slurm writes them: "2(x3),1"."""
    mark: str = ""
    """A variable that must be set too, because other launchers use the same names; empty for none."""


_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_TASKS: Final = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")
"""A part of `tasks_per_node`: https://slurm.schedmd.com/sbatch.html#OPT_SLURM_TASKS_PER_NODE"""

# https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
TORCH: Final = RankVariables(
    rank="RANK",
    world_size="WORLD_SIZE",
    local_rank="LOCAL_RANK",
    local_world_size="LOCAL_WORLD_SIZE",
    node="GROUP_RANK",
)
"""The variables of torchrun, and of launchers that use it."""


@attrs.frozen(kw_only=True)
class HeadProgram:
    """A program on the head that starts the ranks of all nodes."""

    program: str
    """Its name on PATH."""
    by_ssh: bool = False
    """Whether it reaches the other nodes by ssh. Stoker replaces ssh where it has started the nodes itself."""
    versions: re.Pattern[str] | None = None
    """Matches the output of `--version` of a program that supports several nodes on one machine; None for any."""


@attrs.frozen(kw_only=True)
class Layout:
    """A launch on the hardware that its step requests, as a launcher's checks see it."""

    launch: Launch
    """Resolved: with Stoker's defaults."""
    arguments: Mapping[str, Any]
    """The launcher's own arguments that were given."""
    nodes: int
    """Nodes of the step."""
    devices: int
    """Accelerators of each node."""
    cpu: bool
    """Whether the ranks compute on CPUs."""
    processes: int
    """Ranks of each node."""
    models: tuple[str, ...] = ()
    """The accelerators' models that the step may get."""
    capability: Callable[[str], tuple[int, int] | None] | None = None
    """Returns an NVIDIA model's compute capability, or None for an unknown model. None where it cannot be asked."""

    @property
    def world_size(self) -> int:
        """Ranks on all nodes."""
        return self.nodes * self.processes


Check = Callable[[Layout], Iterator[Finding]]


@attrs.frozen(kw_only=True)
class FlowWords:
    """A launcher's names in a flow, whose steps start programs in ranks."""

    current: str
    """The attribute of `current`: "torch" for `current.torch.run("train.py")`. The decorator has the launcher's
    name."""
    title: str
    """What starts the ranks, in the decorator's documentation."""


def nothing_newer() -> Mapping[str, Argument]:
    """The default of `newer`: the installed version has no further arguments."""
    return {}


def no_program(launch: Launch) -> str:
    """The default of `program`: none is needed on PATH."""
    return ""


def each_node(arguments: Mapping[str, Any]) -> HeadProgram | None:
    """The default of `head`: every node runs the launcher for its own ranks."""
    return None


def by_their_order(arguments: Mapping[str, Any]) -> bool:
    """The default of `numbers_nodes`: rank 0 is on node 0."""
    return False


def all_nodes(arguments: Mapping[str, Any]) -> int:
    """The default of `least_nodes`: ranks start on all nodes, and end where one goes away."""
    return 0


@attrs.frozen(kw_only=True)
class Launcher:
    """One way to start ranks. Calling it returns a node's command."""

    name: str
    """Its name in settings: `launch="torchrun"`."""
    command: Callable[[Argv, Node, Mapping[str, Any]], NodeCommand] = attrs.field(repr=False)
    """Builds a node's command from the worker's argv, the node and the launcher's own arguments.

    Pure: argv in, argv out. It reads no environment and opens no file.
    """
    arguments: Mapping[str, Argument] = attrs.field(factory=dict, repr=False)
    """Its arguments by Python name."""
    newer: Callable[[], Mapping[str, Argument]] = attrs.field(default=nothing_newer, repr=False)
    """Reads the arguments of the installed version, which may take seconds."""
    package: str = ""
    """The package that must be importable where ranks start; empty for none."""
    brought_by: frozenset[str] = attrs.field(factory=frozenset, repr=False)
    """Distributions that require the package, including its own."""
    requirement: str = ""
    """What `pip install` takes to bring the package, such as "stoker[accelerate]"; empty for the package's name."""
    program: Callable[[Launch], str] = attrs.field(default=no_program, repr=False)
    """The program that must be on PATH where ranks start; empty for none."""
    head: Callable[[Mapping[str, Any]], HeadProgram | None] = attrs.field(default=each_node, repr=False)
    """The program that starts the ranks of all nodes; None where every node starts its own."""
    variables: tuple[RankVariables, ...] = attrs.field(default=(TORCH,), repr=False)
    """The variables by which a rank learns its place: the first entry whose rank and size are set. Empty for those of
    any launcher."""
    join: Callable[[Mapping[str, str]], None] | None = attrs.field(default=None, repr=False)
    """Called in every rank with its variables before the step, where ranks must find each other first."""
    adaptations: Mapping[str, Callable[[Any], None]] = attrs.field(factory=dict, repr=False)
    """By the name of a module: called with it right after a rank has imported it, before user code sees it."""
    checks: tuple[Check, ...] = attrs.field(default=(), repr=False)
    """Its own checks of a launch before anything runs, in addition to those of every launcher."""
    port: str = ""
    """The argument that fixes the port where ranks meet; empty for none."""
    finds_port: bool = False
    """Whether it finds a free port itself on a single node, without a race for it."""
    on_cpus: str = ""
    """The argument that puts ranks on CPUs; empty for none."""
    devices: str = ""
    """The argument that gives each rank a GPU of its own, so that the step requests as many where its resources name no
    accelerator; empty for none."""
    restarts: str = ""
    """The argument for how often it restarts failed ranks; empty where it never does."""
    numbers_nodes: Callable[[Mapping[str, Any]], bool] = attrs.field(default=by_their_order, repr=False)
    """Whether, with these arguments, it numbers the nodes itself: rank 0 may be on any of them."""
    least_nodes: Callable[[Mapping[str, Any]], int] = attrs.field(default=all_nodes, repr=False)
    """With how many nodes the step goes on, by these arguments, where others are missing; 0 where it needs all."""
    crowded: bool = False
    """Whether more ranks than devices are usual."""
    shares_out: bool = False
    """Whether a rank may have several devices of a node."""
    takes_command: bool = False
    """Whether it runs the user's own command, from `command`."""
    one_per_node: bool = False
    """Whether each node has one rank, regardless of its devices."""
    flow: FlowWords | None = None
    """Its names in flows; None where flows do not have it."""

    def __call__(self, argv: Sequence[str], node: Node, arguments: Mapping[str, Any]) -> NodeCommand:
        return self.command(tuple(argv), node, arguments)

    def launch(
        self,
        /,
        *,
        outputs: Outputs = UNSET,
        hang_after: Duration = UNSET,
        gang_timeout: Duration = UNSET,
        start_timeout: Duration = UNSET,
        one_world: bool = UNSET,
        **launch_arguments: Any,
    ) -> Launch:
        """The value for `launch=`: checks all arguments and keeps those that were given."""
        options = {
            "outputs": outputs,
            "hang_after": hang_after,
            "gang_timeout": gang_timeout,
            "start_timeout": start_timeout,
            "one_world": one_world,
        }
        return launch_of(self, options, launch_arguments)

    def uses_cpus(self, launch: Launch) -> bool:
        """Whether the ranks of a launch compute on CPUs."""
        return bool(self.on_cpus and (launch.arguments or {}).get(self.on_cpus))

    def implied_devices(self, launch: Launch, *, nodes: int) -> int:
        """The GPUs of each node that a launch's own arguments request; 0 for none."""
        if not self.devices or not (launch.arguments or {}).get(self.devices):
            return 0
        return launch.processes_per_node or (launch.num_processes or 0) // nodes

    def processes_per_node(self, launch: Launch, *, nodes: int, devices: int, cpu: bool = False) -> int:
        """The ranks of each node: as requested, else one for each device, else one.

        A total that the nodes do not divide is rounded down here; `check` refuses it.
        """
        if self.one_per_node:
            return 1
        if launch.processes_per_node:
            return launch.processes_per_node
        if launch.num_processes:
            return max(1, launch.num_processes // nodes)
        return 1 if cpu else max(1, devices)


Parameters = ParamSpec("Parameters")


def called_as(
    method: Callable[Concatenate[Launcher, Parameters], Launch],
) -> Callable[[Callable[..., Launch]], Callable[Parameters, Launch]]:
    """A decorator of functions that pass on what they are given to a method: they show its parameters."""
    signature = inspect.signature(method)
    signature = signature.replace(parameters=[*signature.parameters.values()][1:])

    def shown(function: Callable[..., Launch]) -> Callable[Parameters, Launch]:
        vars(function)["__signature__"] = signature
        return function

    return shown


constructor: Final = called_as(Launcher.launch)
"""Decorates the function by which people name a launcher and its arguments, as `Torchrun`."""

# Parsing a launch


def launch_of(launcher: Launcher, options: Mapping[str, Any], arguments: Mapping[str, Any]) -> Launch:
    """The `Launch` of a launcher's constructor: checks all arguments and keeps those that were given."""
    stated = {name: value for name, value in {**options, **arguments}.items() if value is not UNSET}
    return Launch(**launch_fields({**stated, "launcher": launcher.name}, lambda _: launcher))


def launch_fields(values: Mapping[str, Any], load: Callable[[str], Launcher]) -> dict[str, Any]:
    """The fields of a `Launch` from a mapping; the launcher's arguments are among its keys or under `arguments`.

    `load` returns the launcher of a name. Arguments without a launcher are checked when all layers are merged.
    """
    inner = values.get("arguments", {})
    if not isinstance(inner, Mapping):
        raise SettingsError(f"arguments: {inner!r} does not map names to values")
    outer = {name: value for name, value in values.items() if name != "arguments"}
    twice = sorted({*outer} & {*inner})
    if twice:
        raise SettingsError(f"{twice[0]} is given twice", fix="remove one of the two")
    name = outer.get("launcher")
    if name is not None and not isinstance(name, str):
        raise SettingsError(f"launcher: {name!r} is not a name", fix='write launcher = "accelerate"')
    launcher = None if name is None else load(name)
    fields: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    # Stoker's own options first: `_add_argument` compares a launcher's word for the same with them.
    for word, value in sorted({**outer, **inner}.items(), key=lambda item: item[0] not in OWN):
        try:
            if word in OWN:
                fields[word] = _parse_option(word, value)
            elif launcher is None:
                arguments[word] = value
            else:
                _add_argument(launcher, word, value, fields, arguments)
        except SettingsError as error:
            message = error.message if word in error.message else f"{word}: {error.message}"
            raise SettingsError(message, where=error.where, fix=error.fix) from None
    if launcher is not None:
        _check_command(launcher, outer.get("command"))
    given_counts = [word for word in COUNTS if word in fields]
    if len(given_counts) == 1 and fields[given_counts[0]] is not None:
        # A total overrides a weaker layer's number for each node, and the other way round.
        fields[next(word for word in COUNTS if word != given_counts[0])] = None
    return {**fields, "arguments": arguments} if arguments else fields


def argument_named(launcher: Launcher, name: str) -> Argument:
    """A launcher's argument; an unknown one is an error with the nearest name."""
    argument = launcher.arguments.get(name) or launcher.newer().get(name)
    if argument is None:
        # Not the options that Stoker fills in: suggesting one would lead to another refusal.
        options = [word for word in OWN if word not in {"launcher", "command"}]
        names = [word for word, other in launcher.arguments.items() if not other.owned]
        raise SettingsError(f"{launcher.name} has no argument '{name}'{nearest(name, [*names, *options])}")
    return argument


def _check_command(launcher: Launcher, command: Any) -> None:
    if launcher.takes_command and command is None:
        fix = 'write Command(["my-launcher", …])'
        raise SettingsError(f"launcher '{launcher.name}' needs a command", fix=fix)
    if not launcher.takes_command and command is not None:
        fix = 'write Command(["my-launcher", …])'
        raise SettingsError(f"command: {launcher.name} runs a command of its own", fix=fix)


def _add_argument(launcher: Launcher, name: str, value: Any, fields: dict[str, Any], arguments: dict[str, Any]) -> None:
    """Parse one argument into Stoker's own option for it, or into the launcher's arguments."""
    argument = argument_named(launcher, name)
    if argument.owned and value is not None:
        raise SettingsError(f"{name} is not yours to give: {argument.owned}", fix="remove it")
    parsed = _parsed_argument(launcher, argument, name, value)
    if argument.means in COUNTS and (isinstance(parsed, int) or parsed is None):
        if fields.get(argument.means, parsed) != parsed:
            raise SettingsError(
                f"{name}={parsed} and {argument.means}={fields[argument.means]} disagree",
                fix="give the number of processes once",
            )
        fields[argument.means] = None if parsed is None else _parse_option(argument.means, parsed)
    else:
        arguments[name] = parsed


def _parsed_argument(launcher: Launcher, argument: Argument, name: str, value: Any) -> Any:
    """The argument's plain value; a choice that the table refuses may be new in the installed version."""
    try:
        return argument_value(argument, value)
    except SettingsError:
        choice = argument.kind == "text" and argument.choices
        newer = launcher.newer().get(name) if choice else None
        if newer is None or newer.choices == argument.choices:
            raise
        return argument_value(newer, value)


def _parse_option(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in COUNTS:
        return units.count(value, least=1)
    if name in LIMITS:
        return units.positive_duration(value)
    if name == "one_world":
        return units.parse_flag(value)
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
    command = tuple(value)
    if not command or not all(isinstance(word, str) and word and "\0" not in word for word in command):
        raise SettingsError(f"{value!r} is not a list of words", fix='write ["my-launcher", "--option"]')
    return command


# Building a command


@attrs.frozen
class Target:
    """A parsed command: `python -m module …`, `python script …`, or any other program."""

    kind: Literal["module", "script", "program"]
    name: str
    """The module, script or program."""
    rest: Argv = ()
    """Its arguments."""
    python: Argv = ()
    """The interpreter and its options; empty for a program."""


def target_of(argv: Argv) -> Target:
    """Parse a command; the interpreter's own options, such as `-u`, stay with it."""
    if not argv:
        raise ValueError("there is nothing to launch")
    program = argv[0].rpartition("/")[2]
    if not program.startswith(("python", "pypy")):
        return Target("program", argv[0], argv[1:])
    index = 1
    while index < len(argv) and argv[index].startswith("-") and argv[index] not in {"-m", "-c", "-"}:
        # -W and -X take the next word as their value.
        index += 2 if argv[index] in {"-W", "-X"} else 1
    if index >= len(argv) or argv[index] in {"-c", "-"}:
        return Target("program", argv[0], argv[1:])
    if argv[index] == "-m":
        return Target("module", argv[index + 1], argv[index + 2 :], argv[:index])
    return Target("script", argv[index], argv[index + 1 :], argv[:index])


def module_command(
    module: str, argv: Argv, node: Node, table: Mapping[str, Argument], arguments: Mapping[str, Any]
) -> Argv:
    """A launcher that is a Python module, its arguments, and the command that it starts as each rank.

    By default such a launcher takes a script; the flags for another target are in its table.
    """
    target = target_of(argv)
    flags = {"script": {}, "module": {"module": True}, "program": {"no_python": True}}[target.kind]
    return (
        *(target.python or (node.python,)),
        *("-m", module),
        *words(table, arguments),
        *words(table, flags),
        target.name,
        *target.rest,
    )


def words(table: Mapping[str, Argument], arguments: Mapping[str, Any]) -> list[str]:
    """Arguments as words of a command line, in the table's order; others come last."""
    command_line: list[str] = []
    for name in [*(name for name in table if name in arguments), *(name for name in arguments if name not in table)]:
        command_line += argument_words(name, table.get(name) or shape(arguments[name]), arguments[name])
    return command_line


def complete_table(
    table: Mapping[str, Argument], arguments: Mapping[str, Any], newer: Callable[[], Mapping[str, Argument]]
) -> Mapping[str, Argument]:
    """The table, with the installed version's arguments if one is not in it."""
    return table if all(name in table for name in arguments) else {**newer(), **table}


def shape(value: Any) -> Argument:
    """The kind of an argument that no table has, by its value."""
    if isinstance(value, bool):
        return Argument("flag")
    if isinstance(value, Mapping):
        return Argument("pairs")
    return Argument("texts" if isinstance(value, (list, tuple)) else "text")


def bracket_address(address: str) -> str:
    """An address as written before a port: IPv6 in brackets."""
    return f"[{address}]" if ":" in address and not address.startswith("[") else address


def refusal(what: str, *, why: str = "", fix: str = "", code: str = "STK135") -> Finding:
    """A finding for a launcher's check; STK135 is for arguments that exclude each other."""
    return Finding(code=code, level="error", what=what, why=why, fix=fix)


# The place of a rank


def place_by(variables: Iterable[RankVariables], environment: Mapping[str, str]) -> Place:
    """The place by the first variables that are set; rank 0 of 1 if none are, and a `SettingsError` for one that is no
    number: as rank 0, each rank would take itself for the main one."""
    for names in variables:
        if names.mark and names.mark not in environment:
            continue
        if not (environment.get(names.rank) and environment.get(names.world_size)):
            continue
        rank, size = _number(environment, names.rank), _number(environment, names.world_size)
        if rank is not None and size is not None and 0 <= rank < size:
            return _complete_place(environment, names, rank, size)
    return Place()


def _complete_place(environment: Mapping[str, str], names: RankVariables, rank: int, size: int) -> Place:
    local_size = _number(environment, names.local_world_size) or _tasks_of_node(environment, names)
    local = _number(environment, names.local_rank)
    node = _number(environment, names.node)
    if local_size is None:
        # Without variables about nodes, all ranks are on this one.
        local_size = size if local is None or local == rank else local + 1
    if local is None:
        local = rank % local_size
    if node is None:
        node = (rank - local) // local_size
    return Place(rank=rank, local_rank=local, world_size=size, local_world_size=local_size, node=node)


def _tasks_of_node(environment: Mapping[str, str], names: RankVariables) -> int | None:
    """The ranks on this node, from Slurm's text for all nodes: "2(x3),1" is 2 on three nodes and 1 on the fourth."""
    text = environment.get(names.tasks_per_node, "") if names.tasks_per_node else ""
    node = _number(environment, names.node)
    counts: list[int] = []
    for part in filter(None, text.split(",")):
        match = _TASKS.fullmatch(part)
        if match is None:
            raise _no_number(names.tasks_per_node, text)
        counts += [int(match[1])] * int(match[2] or 1)
    return counts[node] if node is not None and node < len(counts) else None


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "") if name else ""
    if text and not _NUMBER.fullmatch(text):
        raise _no_number(name, text)
    return int(text) if text else None


def _no_number(name: str, text: str) -> SettingsError:
    fix = f"leave {name} as the launcher sets it, or unset it where no launcher started this process"
    return SettingsError(f"the place of this rank is not known: {name}={text!r} is not understood", fix=fix)
