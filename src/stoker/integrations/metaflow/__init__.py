"""Runs files that were written for Metaflow, and their helper modules, unchanged.

    from stoker.integrations.metaflow import install

    install()

    from metaflow import FlowSpec, step

After `install`, `metaflow` and its modules are `stoker.flow` and those below it, in this process, in the tasks of its
flows and in every Python that it starts. `python -m stoker.flow FILE run` does the same without a change in the file.
"""

from stoker.core.standins import METAFLOW

install = METAFLOW.install

__all__ = ["install"]
