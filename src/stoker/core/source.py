"""Where another process than the user's finds a function."""

from __future__ import annotations

from typing import Literal

from stoker.core.values import frozen


@frozen(kw_only=True)
class FunctionSource:
    """How another process than the user's finds a function."""

    kind: Literal["script", "module", "pickled"]
    """`script` runs the file at `path` as `module`, never as `__main__`; `module` imports `module` with `root` on
    `sys.path`; `pickled` loads the artifact `digest`, for notebooks, which have no file."""
    module: str
    qualname: str
    path: str = ""
    root: str = ""
    digest: str = ""
    argv: tuple[str, ...] = ()
    """The driver's `sys.argv`, which the process gets: a script may read its command line when it is imported."""
