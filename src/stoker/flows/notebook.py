"""`NBRunner(F).nbrun()`: runs a flow that cells of a notebook define, as a file beside it."""

from __future__ import annotations

import ast
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.core.errors import UsageError
from stoker.core.values import frozen
from stoker.flows import client as flows
from stoker.flows.runner import ExecutingRun, Runner


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
