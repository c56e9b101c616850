"""`Runner("flow.py").run(lr=0.1)`: a flow's file run as `python flow.py run` would, from a program or a notebook."""

from __future__ import annotations

import ast
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, AsyncIterator, Final

from stoker.core.errors import NotFound, RunFailed, UsageError
from stoker.core.values import frozen
from stoker.flows import client as flows
from stoker.flows.client import Task
from stoker.report.streams import write

_LOOK: Final = 0.05
"""Seconds between looks at a process, or at what it wrote."""
_MANY: Final = {"tags": "tag", "decospecs": "with", "tag": "tag"}
_STREAMS: Final = ("stdout", "stderr")


class Runner:
    """Runs the flow of a file, as often as one likes; a context manager, which ends what still runs."""

    def __init__(
        self,
        flow_file: str,
        show_output: bool = True,
        profile: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        **options: Any,
    ) -> None:
        if profile is not None:
            raise UsageError("Runner takes no profile here", fix="name a stack: Runner(…, stack='NAME')")
        self.flow_file = flow_file
        self.show_output = show_output
        self._env = {**os.environ, **(env or {})}
        self._cwd = cwd
        self._options = options
        self._folder = Path(tempfile.mkdtemp(prefix="stoker-runner-"))
        self._removed = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._count = 0
        self._runs: list[ExecutingRun] = []

    def run(self, **parameters: Any) -> ExecutingRun:
        """Run the flow to its end."""
        return self._run_blocking("run", [], parameters)

    def resume(self, step: str | None = None, **options: Any) -> ExecutingRun:
        """Start a run with the results of the flow's last one, or of `origin_run_id`, and run what is left."""
        return self._run_blocking("resume", [step] if step else [], options)

    def spin(self, pathspec: str, **options: Any) -> ExecutingRun:
        """Run one task of an earlier run on its own: "train", or "RUN/train/train[1]".

        Options are those of `python flow.py spin`; with `persist=True` it is kept, and `.task` is the task.
        """
        return self._run_blocking("spin", [pathspec], options)

    async def async_run(self, **parameters: Any) -> ExecutingRun:
        """Start the flow, and return when its run has begun."""
        return await self._start_async("run", [], parameters)

    async def async_resume(self, step: str | None = None, **options: Any) -> ExecutingRun:
        """Go on with a run, and return when that has begun."""
        return await self._start_async("resume", [step] if step else [], options)

    async def async_spin(self, pathspec: str, **options: Any) -> ExecutingRun:
        """Start a task on its own, and return when it has begun."""
        return await self._start_async("spin", [pathspec], options)

    def cleanup(self) -> None:
        """End what still runs, and remove what was written of it."""
        for run in self._runs:
            run.end()
        self._removed()

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cleanup()

    async def __aenter__(self) -> Runner:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cleanup()

    def _start(self, command: str, words: Sequence[str], options: Mapping[str, Any]) -> ExecutingRun:
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir()
        argv = [sys.executable, self.flow_file, command, *words, f"--run-id-file={folder / 'id'}"]
        argv += [word for name, value in {**self._options, **options}.items() for word in _words(name, value)]
        with open(folder / "stdout", "wb") as out, open(folder / "stderr", "wb") as err:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=self._env, cwd=self._cwd
            )
        run = ExecutingRun(process, folder, self)
        self._runs.append(run)
        return run

    def _run_blocking(self, command: str, words: Sequence[str], options: Mapping[str, Any]) -> ExecutingRun:
        run = self._start(command, words, options)
        positions = dict.fromkeys(_STREAMS, 0)
        while True:
            over = run.process.poll() is not None
            if self.show_output:
                for name in _STREAMS:
                    text = run.read_output(name, positions[name])
                    positions[name] += len(text)
                    getattr(sys, name).write(text.decode("utf-8", "replace"))
            if over:
                return run
            time.sleep(_LOOK)

    async def _start_async(self, command: str, words: Sequence[str], options: Mapping[str, Any]) -> ExecutingRun:
        run = self._start(command, words, options)
        while run.run_id is None and run.process.poll() is None:  # noqa: ASYNC110 another process writes it
            await asyncio.sleep(_LOOK)
        if run.run_id is None:
            raise RunFailed(f"{self.flow_file} did not begin a run: {run.stderr.strip()[-2000:]}")
        return run


class ExecutingRun:
    """A run that a `Runner` started: its `run`, its output, and waiting for it."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, runner: Runner) -> None:
        self.process = process
        self.runner = runner  # as long as it lives, what was written is there
        self._folder = folder

    @property
    def run_id(self) -> str | None:
        """The run's id; None before it begins."""
        path = self._folder / "id"
        return path.read_text(encoding="utf-8") if path.exists() else None

    @property
    def run(self) -> flows.Run:
        """The run as the client shows it."""
        id = self.run_id
        if id is None:
            raise NotFound("the run has not begun", fix="look at .stderr")
        from stoker.client.client import Client

        return flows.view_of(Client().run(id))

    @property
    def task(self) -> Task:
        """The task that a `spin` ran; `NotFound` where it was not kept."""
        id = self.run_id
        if id is None:
            raise NotFound("the task has not begun", fix="look at .stderr")
        from stoker.client.client import Client

        try:
            stored = Client().run(id)
        except NotFound:
            raise NotFound("nothing of the task was kept", fix="spin(…, persist=True)") from None
        step = next(flows.view_of(stored).steps(), None)
        if step is None:
            raise NotFound("the task has not begun", fix="wait for it")
        return next(step.in_order())

    @property
    def returncode(self) -> int | None:
        """The program's exit code; None while it runs."""
        return self.process.poll()

    @property
    def status(self) -> str:
        """ "running", "successful" or "failed"."""
        code = self.returncode
        return "running" if code is None else "failed" if code else "successful"

    @property
    def stdout(self) -> str:
        """What the program wrote to standard output so far."""
        return self.read_output("stdout").decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """What the program, and the tasks, wrote so far."""
        return self.read_output("stderr").decode("utf-8", "replace")

    async def wait(self, timeout: float | None = None, stream: str | None = None) -> ExecutingRun:
        """Wait for its end; `TimeoutError` when that takes longer. `stream` is printed meanwhile."""
        until = None if timeout is None else time.monotonic() + timeout
        printed = 0
        while True:
            over = self.process.poll() is not None
            if stream is not None:
                text = self.read_output(stream, printed)
                printed += len(text)
                write(text.decode("utf-8", "replace"), sys.stdout)
            if over:
                return self
            if until is not None and time.monotonic() > until:
                raise TimeoutError(f"the run is not over after {timeout} seconds")
            await asyncio.sleep(_LOOK)

    async def stream_log(self, stream: str, position: int | None = None) -> AsyncIterator[tuple[int, str]]:
        """Lines of "stdout" or "stderr" as they come, each with the position behind it."""
        at = position or 0
        while True:
            over = self.process.poll() is not None
            data = self.read_output(stream, at)
            whole = data if over else data[: data.rfind(b"\n") + 1]
            for line in whole.splitlines(keepends=True):
                at += len(line)
                yield at, line.decode("utf-8", "replace").rstrip("\n")
            if over:
                return
            await asyncio.sleep(_LOOK)

    def read_output(self, stream: str, position: int = 0) -> bytes:
        """What a stream has from a position on."""
        if stream not in _STREAMS:
            raise UsageError(f"{stream!r} is no stream", fix='write "stdout" or "stderr"')
        with open(self._folder / stream, "rb") as file:
            file.seek(position)
            return file.read()

    def end(self) -> None:
        """Stop it, if it still runs, as Ctrl-C would."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.wait()

    def __enter__(self) -> ExecutingRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


def _words(name: str, value: Any) -> list[str]:
    """A keyword as an option of the command line."""
    import json

    flag = f"--{_MANY.get(name, name).replace('_', '-')}"
    if value is None:
        return []
    if name in _MANY:
        return [f"{flag}={item}" for item in ([value] if isinstance(value, str) else value)]
    text = json.dumps(value) if isinstance(value, (list, dict)) else str(value)
    return [f"{flag}={text}"]


class NBRunner:
    """Runs a flow of a notebook: a file has its class, and what that needs of the cells.

    The words are those of `Runner`; `base_dir` is where the file is, the working folder by default.
    """

    def __init__(
        self,
        flow: type,
        show_output: bool = True,
        profile: str | None = None,
        env: Mapping[str, str] | None = None,
        base_dir: str | None = None,
        file_read_timeout: int = 3600,
        **options: Any,
    ) -> None:
        del file_read_timeout
        text = flow_file(_cells(), flow.__name__)
        folder = base_dir or os.getcwd()
        with tempfile.NamedTemporaryFile(
            "w", prefix=f"{flow.__name__}_", suffix=".py", dir=folder, delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
        self._file = file.name
        self.runner = Runner(
            file.name,
            show_output=show_output,
            profile=profile,
            env={"JPY_PARENT_PID": "", **(env or {})},
            cwd=folder,
            **options,
        )

    def nbrun(self, **parameters: Any) -> flows.Run:
        """Run the flow to its end, remove the file, and return the run."""
        return self._finish(self.run(**parameters))

    def nbresume(self, **options: Any) -> flows.Run:
        """The same of `resume`."""
        return self._finish(self.resume(**options))

    def run(self, **parameters: Any) -> ExecutingRun:
        """Run the flow to its end."""
        return self.runner.run(**parameters)

    def resume(self, **options: Any) -> ExecutingRun:
        """Start a run with the results of the flow's last one, and run what is left."""
        return self.runner.resume(**options)

    async def async_run(self, **parameters: Any) -> ExecutingRun:
        """Start the flow, and return when its run has begun."""
        return await self.runner.async_run(**parameters)

    async def async_resume(self, **options: Any) -> ExecutingRun:
        """Go on with a run, and return when that has begun."""
        return await self.runner.async_resume(**options)

    def cleanup(self) -> None:
        """End what still runs, and remove the file."""
        self.runner.cleanup()
        if os.path.exists(self._file):
            os.unlink(self._file)

    def _finish(self, run: ExecutingRun) -> flows.Run:
        finished = run.run
        self.cleanup()
        return finished


def flow_file(cells: Sequence[str], name: str) -> str:
    """A file with the flow `name` as the newest of the cells defines it, and with what that needs of the cells.

    These are the imports, functions, classes and assignments that it names, and that these name; what a cell does
    besides, such as running the flow, is left out.
    """
    pieces = [_Piece.of(cell, node) for cell in cells for node in _parsed(cell).body]
    last = max((at for at, piece in enumerate(pieces) if piece.defines_flow(name)), default=None)
    if last is None:
        raise UsageError(f"no cell of this notebook defines {name}", fix="run the cell of the class, then NBRunner")
    wanted, needed = {last}, set(pieces[last].uses)
    for at in reversed(range(last)):
        piece = pieces[at]
        if piece.names & needed or "*" in piece.names:
            wanted.add(at)
            needed |= piece.uses
    main = f'if __name__ == "__main__":\n    {name}()\n'
    return "\n\n".join([*(pieces[at].text for at in sorted(wanted)), main])


@frozen
class _Piece:
    """A statement of a cell."""

    node: ast.stmt
    text: str
    """Its lines, with its decorators."""
    names: frozenset[str]
    """What it gives a meaning; "*" for all that a module has."""
    uses: frozenset[str]
    """The names that it mentions."""

    @classmethod
    def of(cls, cell: str, node: ast.stmt) -> _Piece:
        first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
        mentioned = [one for one in ast.walk(node) if isinstance(one, ast.Name)]
        names = {one.id for one in mentioned if isinstance(one.ctx, ast.Store)} if _assigns(node) else set()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names = {node.name}
        return cls(
            node=node,
            text="\n".join(cell.splitlines()[first - 1 : node.end_lineno]),
            names=frozenset(names),
            uses=frozenset(one.id for one in mentioned if isinstance(one.ctx, ast.Load)),
        )

    def defines_flow(self, name: str) -> bool:
        """Whether it is the class of a flow."""
        return isinstance(self.node, ast.ClassDef) and self.node.name == name


def _assigns(node: ast.stmt) -> bool:
    return isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign))


def _cells() -> Sequence[str]:
    """The cells that were run, the oldest first."""
    try:
        from IPython import get_ipython
    except ModuleNotFoundError:
        get_ipython = None
    shell: Any = None if get_ipython is None else get_ipython()
    if shell is None:
        raise UsageError("NBRunner runs flows of a notebook, and this is none", fix="Runner('flow.py') runs a file")
    return list(shell.user_ns.get("In", ()))


def _parsed(cell: str) -> ast.Module:
    try:
        return ast.parse(cell)
    except SyntaxError:
        return ast.Module(body=[], type_ignores=[])  # a cell that could not run either
