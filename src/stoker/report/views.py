"""Chooses how the process that drives a run shows it: as a notebook's table, or on a terminal."""

from __future__ import annotations

import sys

from stoker.report.terminal import Terminal


def view_of(*, verbose: bool) -> Terminal:
    """The view of a run that this process drives: a table in a notebook, else the terminal's."""
    if not verbose or not in_notebook():
        return Terminal(verbose=verbose)
    from stoker.report.notebook import NotebookView  # only where a notebook shows it

    return NotebookView()


def in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this process, which VS Code and Colab use, too."""
    loaded = sys.modules.get("IPython")
    if loaded is None:
        return False
    shell = loaded.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config
