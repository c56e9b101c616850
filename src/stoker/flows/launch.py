"""`current.torch.run("train.py")` and its like: a program in ranks on the nodes of a `num_parallel`, from a step.

Every node's task runs the launcher for its own node; the launchers are those of `launchers`, and where the nodes meet
is what the gang's agent put into the environment. mpirun runs on node 0 and reaches the others by `mpigang`.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
from typing import Any, Final, Mapping, Sequence

import attrs

from stoker.core.errors import MissingPackage, RunFailed, UsageError
from stoker.core.units import UNSET
from stoker.core.words import dashed_name
from stoker.launchers.base import LOOPBACK, Argv, Launcher, Node, launch_of
from stoker.launchers.registry import LAUNCHERS
from stoker.worker import mpigang
from stoker.worker.cluster import free_port
from stoker.worker.context import context

_PLACE: Final = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
"""Variables with the task's own rank; its ranks get theirs from their launcher."""


ALL_STARTED: Final = 90.0
"""Seconds that the nodes of a `num_parallel` wait for each other at mpirun, unless `all_nodes_started_timeout` says it:
the default of the extension, https://github.com/outerbounds/metaflow-mpi"""
_COUNTS: Final = ("-n", "-np", "--np", "-c")
"""Options of mpirun that say how many ranks there are in all."""

Arguments = Mapping[str, Any] | Sequence[str] | None
"""Options or arguments: a mapping's names become options."""


class Launching:
    """Starts ranks by one launcher. `options` are those of the step's decorator, `token` is the gang's secret."""

    def __init__(self, launcher: Launcher, options: Mapping[str, Any], token: str = "") -> None:
        self._launcher = launcher
        self._options = options
        self._token = token

    def run(
        self,
        entrypoint: str,
        entrypoint_args: Arguments = None,
        nproc_per_node: int | None = None,
        **arguments: Any,
    ) -> None:
        """Run a Python script, or a module by its dotted name, in ranks, and wait; `RunFailed` if one of them failed.

        As many ranks as the node has accelerators, or one, unless `nproc_per_node` says it. What else the launcher
        takes is said by its names, or as `torchrun_args` and its like; what it does not take is a `SettingsError`.
        """
        launcher = self._launcher
        options = {name: arguments.pop(f"{name}_args", None) for name in LAUNCHERS.names()}
        wrong = next((name for name, value in options.items() if value and name != launcher.name), None)
        if wrong is not None:
            raise UsageError(f"{wrong}_args is not for {launcher.name}", fix=f"write {launcher.name}_args")
        package = launcher.package
        if package and importlib.util.find_spec(package) is None:
            fix = f"pip install '{launcher.requirement}'" if launcher.requirement else f"pip install {package}"
            raise MissingPackage(f"@{launcher.name} needs the package '{package}'", fix=fix)
        launch = launch_of(launcher, {}, {**_options(options[launcher.name]), **arguments})
        processes = None if launch.processes_per_node is UNSET else launch.processes_per_node
        if processes is None and launch.num_processes is not UNSET and launch.num_processes is not None:
            processes = -(-launch.num_processes // context.nodes)
        node = self._node(nproc_per_node or processes)
        shape = (entrypoint,) if entrypoint.endswith(".py") or os.path.exists(entrypoint) else ("-m", entrypoint)
        argv = (sys.executable, *shape, *_words(entrypoint_args))
        settings = {} if launch.arguments is UNSET else launch.arguments
        command = launcher(argv, node, settings)
        _run(command.argv, command.ranks or ({},), command.environment, launcher.name)

    def _node(self, processes: int | None) -> Node:
        """This node, with so many ranks."""
        count = processes or self._options.get("nproc_per_node")
        return Node(
            rank=context.node,
            nodes=context.nodes,
            head=os.environ.get("MASTER_ADDR", LOOPBACK),
            port=int(os.environ.get("MASTER_PORT") or 0) or free_port(LOOPBACK),
            rendezvous=dashed_name(f"{context.run_id}-{context.step}"),
            processes=int(count or len(context.devices) or 1),
            devices=tuple(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))),
            cpu=not context.devices,
            python=sys.executable,
        )


class MpiLaunching(Launching):
    """`current.mpi`: Open MPI over the nodes of a `num_parallel`, without ssh. Every node calls it."""

    def run(
        self,
        entrypoint: str | None = None,
        entrypoint_args: Arguments = None,
        nproc_per_node: int | None = None,
        *,
        args: Sequence[str] = (),
        program: str | None = None,
        program_args: Sequence[str] = (),
        **arguments: Any,
    ) -> None:
        """Run a program in ranks on all nodes by mpirun, and wait; `RunFailed` if one of them failed.

        `program` is any program, `entrypoint` a Python script or module; `args` are mpirun's own. `-np` among them
        counts the ranks of all nodes; else each node has as many as it has accelerators, or one.
        """
        self._run("mpirun", entrypoint, entrypoint_args, nproc_per_node, args, program, program_args, arguments)

    def exec(self, args: Sequence[str] = (), program: str = "", program_args: Sequence[str] = ()) -> None:
        """The same by `mpiexec`."""
        self._run("mpiexec", None, None, None, args, program, program_args, {})

    def cc(self, args: Sequence[str]) -> None:
        """Compile with `mpicc`, on node 0: the nodes of one machine see the same files."""
        if context.node == 0:
            _run(("mpicc", *args), ({},), {}, "mpicc")

    def broadcast_file(self, filename: str) -> None:
        """Let all nodes have a file: on one machine they do."""
        head = os.environ.get("MASTER_ADDR", LOOPBACK)
        if context.nodes > 1 and not head.startswith("127."):
            raise UsageError("files are not sent to nodes on other machines", fix="write it where all of them read")
        if context.node == 0 and not os.path.exists(filename):
            raise UsageError(f"there is no file {filename} to be sent", fix="make it before")

    def _run(
        self,
        starter: str,
        entrypoint: str | None,
        entrypoint_args: Arguments,
        nproc_per_node: int | None,
        args: Sequence[str],
        program: str | None,
        program_args: Sequence[str],
        arguments: Mapping[str, Any],
    ) -> None:
        if (entrypoint is None) is (not program):
            raise UsageError("mpirun is given no program, or two", fix='write program="./hello", or a script')
        if entrypoint is not None:
            script = entrypoint.endswith(".py") or os.path.exists(entrypoint)
            argv = (sys.executable, *((entrypoint,) if script else ("-m", entrypoint)), *_words(entrypoint_args))
        else:
            argv = (*shlex.split(str(program)), *program_args)
        total, mpirun_options = _split_rank_count(args)
        node = self._node(nproc_per_node or (None if total is None else -(-total // context.nodes)))
        launch = launch_of(self._launcher, {}, arguments)
        settings = {**({} if launch.arguments is UNSET else launch.arguments), "program": starter}
        head_node = attrs.evolve(node, rank=0, hosts=mpigang.hosts(node.nodes))  # mpirun's words are the head's
        launched = self._launcher(argv, head_node, settings)
        count = str(node.world_size if total is None else total)
        ours = len(launched.argv) - len(argv)
        command = (launched.argv[0], "-n", count, *launched.argv[3:ours], *mpirun_options, *argv)
        launched = attrs.evolve(launched, argv=command)
        if context.nodes > 1:
            patience = float(self._options.get("all_nodes_started_timeout", ALL_STARTED))
            launched = mpigang.over_nodes(launched, node, token=self._token, patience=patience)
        _run(launched.argv, ({},), launched.environment, starter)


def launcher_of(word: str) -> Launcher | None:
    """The launcher that a word of `current` stands for, which is also found by its own name; None for another word."""
    flows = [launcher for _, launcher in LAUNCHERS.parts() if launcher.flow is not None]
    return next((one for one in flows if one.flow is not None and word in {one.flow.current, one.name}), None)


def launching(launcher: Launcher, options: Mapping[str, Any], token: str) -> Launching:
    """What starts ranks in a step with the launcher's decorator."""
    return (MpiLaunching if launcher.head({}) is not None else Launching)(launcher, options, token)


def _run(argv: Argv, ranks: Sequence[Mapping[str, str]], more: Mapping[str, str], program: str) -> None:
    """Run a command, once for each rank that is not started by another node, and wait."""
    if not argv:
        return
    environment = {name: value for name, value in os.environ.items() if name not in _PLACE}
    environment |= more
    try:
        running = [subprocess.Popen(argv, env={**environment, **rank_environment}) for rank_environment in ranks]
    except FileNotFoundError:
        raise UsageError(f"there is no program '{argv[0]}' here", fix="install it") from None
    bad = next((code for code in [process.wait() for process in running] if code), 0)
    if bad:
        raise RunFailed(f"{program} ended with exit code {bad}", where=f"node {context.node}", fix="see its log")


def _split_rank_count(args: Sequence[str]) -> tuple[int | None, list[str]]:
    """How many ranks mpirun's options ask for in all, and the other options."""
    if isinstance(args, str):
        raise UsageError(f"args={args!r} is one text", fix=f"write {shlex.split(args)!r}")
    total, options, line = None, [], iter(map(str, args))
    for word in line:
        if word not in _COUNTS:
            options.append(word)
            continue
        number = next(line, "")
        if not number.isdecimal() or int(number) < 1:
            raise UsageError(f"{word} {number} is not a number of ranks", fix=f"write {word} 4")
        total = int(number)
    return total, options


def _options(arguments: Arguments) -> dict[str, Any]:
    """A launcher's options by their Python names: of a mapping, or of words such as "--max-restarts=1"."""
    if isinstance(arguments, str):
        raise UsageError(f"{arguments!r} is one text", fix=f"write {shlex.split(arguments)!r}")
    if arguments is None or isinstance(arguments, Mapping):
        return {name.lstrip("-").replace("-", "_"): value for name, value in (arguments or {}).items()}
    options: dict[str, Any] = {}
    words = list(map(str, arguments))
    while words:
        flag, equals, value = words.pop(0).partition("=")
        if not flag.startswith("-"):
            raise UsageError(f"{flag!r} is no option", fix="write --option=value; the script's own are entrypoint_args")
        follows = not equals and bool(words) and not words[0].startswith("-")
        options[flag.lstrip("-").replace("-", "_")] = value if equals else words.pop(0) if follows else True
    return options


def _words(arguments: Arguments) -> list[str]:
    """The script's own arguments."""
    if arguments is None:
        return []
    if isinstance(arguments, str):
        raise UsageError(f"entrypoint_args={arguments!r} is one text", fix=f"write {shlex.split(arguments)!r}")
    if not isinstance(arguments, Mapping):
        return [str(word) for word in arguments]
    words: list[str] = []
    for name, value in arguments.items():
        if value is None or value is False:
            continue
        words.append(f"--{name}")
        if value is not True:
            words.append(str(value))
    return words
