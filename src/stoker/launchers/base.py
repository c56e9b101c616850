"""What a launcher is: one value that has everything Stoker knows of it, and what launchers share.

A launcher is a file with a `Launcher` in it, named by a row of `launchers.registry` or by an entry point in the group
`stoker.launchers`. Its command is a pure function, called in the job, where addresses and ports are real.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Callable, Final, Iterable, Iterator, Literal, Mapping, Sequence

import attrs

from stoker.core import units
from stoker.core.errors import SettingsError, nearest
from stoker.core.findings import Finding
from stoker.core.launch import OUTPUTS, OWN, Launch, Outputs
from stoker.core.units import UNSET
from stoker.launchers.arguments import Argument, argument_value, argument_words

if TYPE_CHECKING:
    from datetime import timedelta

    Duration = float | str | timedelta | None

Argv = tuple[str, ...]
LOOPBACK: Final = "127.0.0.1"
COUNTS: Final = ("num_processes", "processes_per_node")
"""Words that every launcher understands: how many ranks in all, and how many on each node."""
SCRIPT: Final = "what is launched is Stoker's worker, which calls the step"
"""Why a launcher's argument for the program to start is not given by people."""


@attrs.frozen(kw_only=True)
class Node:
    """The place of one node in its gang, and what it has."""

    rank: int = 0
    """Its number; node 0 is the head."""
    nodes: int = 1
    """Nodes of the gang."""
    head: str = LOOPBACK
    """The address of node 0, as seen from this node."""
    address: str = LOOPBACK
    """This node's own address."""
    port: int = 0
    """A free port of the head; 0 lets a launcher on a single node find one."""
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
    """What runs the launcher of a program that is not Python; a worker that is has its own."""

    @property
    def world_size(self) -> int:
        """Ranks on all nodes."""
        return self.nodes * self.processes

    @property
    def endpoint(self) -> str:
        """Where nodes meet, as `host:port`; an IPv6 address in brackets."""
        return f"{bracketed(self.head)}:{self.port}"


@attrs.frozen(kw_only=True)
class Started:
    """What a node runs: one command that starts its ranks."""

    argv: Argv
    """The command; empty where another node's launcher starts the ranks here."""
    environment: Mapping[str, str] = attrs.field(factory=dict)
    """Variables that it needs."""
    ranks: tuple[Mapping[str, str], ...] = ()
    """Variables of each rank on this node where Stoker itself starts them, `argv` once for each."""


@attrs.frozen(kw_only=True)
class Place:
    """Which rank a process is; alone, rank 0 of 1."""

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
        """Whether it speaks for the step as a whole."""
        return self.rank == 0


@attrs.frozen(kw_only=True)
class RankVariables:
    """The variables by which a rank learns its place; "" for what is not said."""

    rank: str
    """Its number among all."""
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
    """A variable without which these are not meant, because others share their names."""


# https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
TORCH: Final = RankVariables(
    rank="RANK",
    world_size="WORLD_SIZE",
    local_rank="LOCAL_RANK",
    local_world_size="LOCAL_WORLD_SIZE",
    node="GROUP_RANK",
)
"""What torchrun sets, and whatever stands on it."""


@attrs.frozen(kw_only=True)
class HeadProgram:
    """A program on the head that starts the ranks of all nodes."""

    program: str
    """Its name on PATH."""
    by_ssh: bool = False
    """Whether it reaches the other nodes by ssh, for which Stoker stands in where it has started them itself."""
    versions: re.Pattern[str] | None = None
    """What `--version` says of one that can do so for several nodes of one machine; None for any."""


@attrs.frozen(kw_only=True)
class Layout:
    """A launch on the hardware that its step asks for: what a launcher's checks look at."""

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
    """The compute capability of an NVIDIA model, None for one that is not known; None where nobody can say."""

    @property
    def world_size(self) -> int:
        """Ranks on all nodes."""
        return self.nodes * self.processes


Check = Callable[[Layout], Iterator[Finding]]


@attrs.frozen(kw_only=True)
class FlowWords:
    """What a launcher is called in a flow, whose steps start programs in ranks by it."""

    current: str
    """The word of `current`: "torch" for `current.torch.run("train.py")`. The decorator has the launcher's name."""
    title: str
    """What starts the ranks, in the decorator's documentation."""


def nothing_newer() -> Mapping[str, Argument]:
    """For a launcher whose installed version cannot be asked."""
    return {}


def no_program(launch: Launch) -> str:
    """For a launcher that needs no program on PATH."""
    return ""


def each_node(arguments: Mapping[str, Any]) -> HeadProgram | None:
    """For a launcher that every node runs for its own ranks."""
    return None


@attrs.frozen(kw_only=True)
class Launcher:
    """One way to start ranks: everything that Stoker knows of it. Called, it gives what a node runs."""

    name: str
    """What a person writes, such as `launch="torchrun"`."""
    command: Callable[[Argv, Node, Mapping[str, Any]], Started] = attrs.field(repr=False)
    """What a node runs, from the worker's argv, the node and the launcher's own arguments.

    Pure: argv in, argv out. It reads no environment and opens no file.
    """
    arguments: Mapping[str, Argument] = attrs.field(factory=dict, repr=False)
    """Its arguments by their Python names, known without asking anybody."""
    newer: Callable[[], Mapping[str, Argument]] = attrs.field(default=nothing_newer, repr=False)
    """Arguments of the version that is installed here; asking may take seconds."""
    package: str = ""
    """The package that has to be importable where ranks are started; empty for none."""
    brought_by: frozenset[str] = attrs.field(factory=frozenset, repr=False)
    """Distributions that require the package, itself among them."""
    requirement: str = ""
    """What `pip install` takes to bring the package, such as "stoker[accelerate]"; empty for the package's name."""
    program: Callable[[Launch], str] = attrs.field(default=no_program, repr=False)
    """The program that has to be on PATH where ranks are started; empty for none."""
    head: Callable[[Mapping[str, Any]], HeadProgram | None] = attrs.field(default=each_node, repr=False)
    """The program that starts the ranks of all nodes; None where every node starts its own."""
    variables: tuple[RankVariables, ...] = attrs.field(default=(TORCH,), repr=False)
    """By which a rank learns its place: the first whose rank and size are set; none for those of any launcher."""
    join: Callable[[Mapping[str, str]], None] | None = attrs.field(default=None, repr=False)
    """Called in every rank with its variables before the step, where ranks have to find each other first."""
    checks: tuple[Check, ...] = attrs.field(default=(), repr=False)
    """What it says of a launch before anything runs, besides what holds for every launcher."""
    port: str = ""
    """The argument that fixes the port where ranks meet; empty for none."""
    finds_port: bool = False
    """Whether it finds a free port by itself on a single node, without a moment in which another may take it."""
    on_cpus: str = ""
    """The argument that puts ranks on CPUs; empty for none."""
    devices: str = ""
    """The argument by which a person says that each rank has a GPU of its own, so that the step asks for as many where
    its resources name no accelerator; empty for none."""
    restarts: str = ""
    """The argument that says how often it starts failed ranks again; empty where it never does."""
    crowded: bool = False
    """Whether more ranks than devices are usual."""
    shares_out: bool = False
    """Whether a rank may have several devices of a node."""
    takes_command: bool = False
    """Whether it runs a command of the user's own, which stands under `command`."""
    one_per_node: bool = False
    """Whether each node has one rank, whatever devices it has."""
    flow: FlowWords | None = None
    """Its words in flows; None where flows do not have it."""

    def __call__(self, argv: Sequence[str], node: Node, arguments: Mapping[str, Any]) -> Started:
        return self.command(tuple(argv), node, arguments)

    def launch(
        self,
        *,
        outputs: Outputs = UNSET,
        hang_after: Duration = UNSET,
        gang_timeout: Duration = UNSET,
        **arguments: Any,
    ) -> Launch:
        """The value for `launch=`: everything checked, only what was given."""
        own = {"outputs": outputs, "hang_after": hang_after, "gang_timeout": gang_timeout}
        return launch_of(self, own, arguments)

    def uses_cpus(self, launch: Launch) -> bool:
        """Whether a launch says that its ranks compute on CPUs."""
        return bool(self.on_cpus and (launch.arguments or {}).get(self.on_cpus))

    def implied_devices(self, launch: Launch, *, nodes: int) -> int:
        """The GPUs of each node that a launch's own arguments ask for; 0 where they ask for none."""
        if not self.devices or not (launch.arguments or {}).get(self.devices):
            return 0
        return launch.processes_per_node or (launch.num_processes or 0) // nodes

    def processes_per_node(self, launch: Launch, *, nodes: int, devices: int, cpu: bool = False) -> int:
        """The ranks of each node: as asked for, else one for each device, else one.

        A number in all that does not divide by the nodes is refused by `check`; here it is rounded down.
        """
        if self.one_per_node:
            return 1
        if launch.processes_per_node:
            return launch.processes_per_node
        if launch.num_processes:
            return max(1, launch.num_processes // nodes)
        return 1 if cpu else max(1, devices)


# What a person writes


def launch_of(launcher: Launcher, own: Mapping[str, Any], arguments: Mapping[str, Any]) -> Launch:
    """The value that a launcher's constructor makes: everything checked, only what was given."""
    given = {name: value for name, value in {**own, **arguments}.items() if value is not UNSET}
    return Launch(**launch_fields({**given, "launcher": launcher.name}, lambda _: launcher))


def launch_fields(values: Mapping[str, Any], load: Callable[[str], Launcher]) -> dict[str, Any]:
    """The fields of a `Launch` from a mapping of words, arguments among them or under `arguments`.

    `load` finds the launcher of a name. What is said without a launcher's name is checked when all layers are merged.
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
    # Stoker's own words first: a launcher's word for the same is held against them.
    for word, value in sorted({**outer, **inner}.items(), key=lambda item: item[0] not in OWN):
        try:
            if word in OWN:
                fields[word] = _own_value(word, value)
            elif launcher is None:
                arguments[word] = value
            else:
                _put(launcher, word, value, fields, arguments)
        except SettingsError as error:
            message = error.message if word in error.message else f"{word}: {error.message}"
            raise SettingsError(message, where=error.where, fix=error.fix) from None
    if launcher is not None:
        _check_command(launcher, outer.get("command"))
    counted = [word for word in COUNTS if word in fields]
    if len(counted) == 1 and fields[counted[0]] is not None:
        # Whoever says how many in all takes back what a weaker layer says of each node, and the other way round.
        fields[next(word for word in COUNTS if word != counted[0])] = None
    return {**fields, "arguments": arguments} if arguments else fields


def argument_named(launcher: Launcher, name: str) -> Argument:
    """What a launcher's argument takes; an unknown one is an error with the nearest."""
    argument = launcher.arguments.get(name) or launcher.newer().get(name)
    if argument is None:
        # Not the words that Stoker fills in: naming one would lead on to another refusal.
        own = [word for word in OWN if word not in {"launcher", "command"}]
        known = [word for word, other in launcher.arguments.items() if not other.owned]
        raise SettingsError(f"{launcher.name} has no argument '{name}'{nearest(name, [*known, *own])}")
    return argument


def _check_command(launcher: Launcher, command: Any) -> None:
    if launcher.takes_command and command is None:
        fix = 'write Command(["my-launcher", …])'
        raise SettingsError(f"launcher '{launcher.name}' needs a command", fix=fix)
    if not launcher.takes_command and command is not None:
        fix = 'write Command(["my-launcher", …])'
        raise SettingsError(f"command: {launcher.name} runs a command of its own", fix=fix)


def _put(launcher: Launcher, name: str, value: Any, fields: dict[str, Any], arguments: dict[str, Any]) -> None:
    """One argument into its place: into Stoker's own word for it, or among the launcher's."""
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
        fields[argument.means] = None if parsed is None else _own_value(argument.means, parsed)
    else:
        arguments[name] = parsed


def _parsed_argument(launcher: Launcher, argument: Argument, name: str, value: Any) -> Any:
    """The argument's plain value; one that the table refuses may be new in the version that is installed."""
    try:
        return argument_value(argument, value)
    except SettingsError:
        choice = argument.kind == "text" and argument.choices
        newer = launcher.newer().get(name) if choice else None
        if newer is None or newer.choices == argument.choices:
            raise
        return argument_value(newer, value)


def _own_value(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in COUNTS:
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
    command = tuple(value)
    if not command or not all(isinstance(word, str) and word and "\0" not in word for word in command):
        raise SettingsError(f"{value!r} is not a list of words", fix='write ["my-launcher", "--option"]')
    return command


# What a launcher's command is made of


@attrs.frozen
class Target:
    """A command taken apart: `python -m module …`, `python script …`, or any other program."""

    kind: Literal["module", "script", "program"]
    name: str
    rest: Argv = ()
    python: Argv = ()


def target_of(argv: Argv) -> Target:
    """What a command runs; options of the interpreter itself, such as `-u`, stay with it."""
    if not argv:
        raise ValueError("there is nothing to launch")
    program = argv[0].rpartition("/")[2]
    if not program.startswith(("python", "pypy")):
        return Target("program", argv[0], argv[1:])
    index = 1
    while index < len(argv) and argv[index].startswith("-") and argv[index] not in {"-m", "-c", "-"}:
        # -W and -X are followed by a word of their own where none is joined to them.
        index += 2 if argv[index] in {"-W", "-X"} else 1
    if index >= len(argv) or argv[index] in {"-c", "-"}:
        return Target("program", argv[0], argv[1:])
    if argv[index] == "-m":
        return Target("module", argv[index + 1], argv[index + 2 :], argv[:index])
    return Target("script", argv[index], argv[index + 1 :], argv[:index])


def words(table: Mapping[str, Argument], arguments: Mapping[str, Any]) -> list[str]:
    """Arguments as they stand on the command line, in the table's order; ones that it lacks come last, as texts."""
    line: list[str] = []
    for name in [*(name for name in table if name in arguments), *(name for name in arguments if name not in table)]:
        line += argument_words(name, table.get(name) or shape(arguments[name]), arguments[name])
    return line


def known(
    table: Mapping[str, Argument], given: Mapping[str, Any], newer: Callable[[], Mapping[str, Argument]]
) -> Mapping[str, Argument]:
    """The table, and what the installed version adds if an argument is not in it."""
    return table if all(name in table for name in given) else {**newer(), **table}


def shape(value: Any) -> Argument:
    """How an argument of a newer version is written, from its value."""
    if isinstance(value, bool):
        return Argument("flag")
    if isinstance(value, Mapping):
        return Argument("pairs")
    return Argument("texts" if isinstance(value, (list, tuple)) else "text")


def bracketed(address: str) -> str:
    """An address as it stands before a port."""
    return f"[{address}]" if ":" in address and not address.startswith("[") else address


def refused(what: str, *, why: str = "", fix: str = "", code: str = "STK135") -> Finding:
    """An error for a launcher's check; STK135 is for arguments that do not go together."""
    return Finding(code=code, level="error", what=what, why=why, fix=fix)


# Where a rank finds itself


def place_by(variables: Iterable[RankVariables], environment: Mapping[str, str]) -> Place:
    """The place by the first variables that are set; rank 0 of 1 where none are."""
    for names in variables:
        if names.mark and names.mark not in environment:
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
        # Nothing is said of nodes: all ranks are on this one.
        local_size = size if local is None or local == rank else local + 1
    if local is None:
        local = rank % local_size
    if node is None:
        node = (rank - local) // local_size
    return Place(rank=rank, local_rank=local, world_size=size, local_world_size=local_size, node=node)


def _tasks_of_node(environment: Mapping[str, str], names: RankVariables) -> int | None:
    """The ranks on this node as Slurm writes them for all nodes: "2(x3),1" is 2 on three nodes and 1 on the fourth."""
    text = environment.get(names.tasks_per_node, "") if names.tasks_per_node else ""
    node = _number(environment, names.node)
    counts: list[int] = []
    for part in filter(None, text.split(",")):
        number, _, times = part.partition("(x")
        if not number.isdigit() or not (times.rstrip(")") or "1").isdigit():
            return None
        counts += [int(number)] * int(times.rstrip(")") or 1)
    return counts[node] if node is not None and node < len(counts) else None


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "") if name else ""
    return int(text) if text.isdigit() else None
