"""Where a function is found again by a process that is not the user's."""

from __future__ import annotations

from typing import Literal

import attrs


@attrs.frozen(kw_only=True)
class Source:
    """How a process that is not the user's finds a function again.

    `script`: the file at `path` is run as module `module` (never as `__main__`). `module`: `module` is imported with
    `root` on `sys.path`. `pickled`: the function's pickle is the artifact `digest` (notebooks, where there is no file).
    """

    kind: Literal["script", "module", "pickled"]
    module: str
    qualname: str
    path: str = ""
    root: str = ""
    digest: str = ""
