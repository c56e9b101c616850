"""Executes pipelines by KFP's own local runner, each in a process that is forked from one that has imported it.

KFP runs only components on this machine whose command names its executor, since others need an image. Ours are programs
for Python alone, so that this one check is left out; everything else is KFP's.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import warnings
from multiprocessing.process import BaseProcess
from pathlib import Path


def begin(pipeline: Path, output: Path) -> BaseProcess:
    """Start a process that executes a pipeline with the variables of this one, in a session of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "kfp.components", "kfp.local.subprocess_task_handler"])
    process = context.Process(target=execute, args=(str(pipeline), str(output), dict(os.environ)))
    process.start()
    return process


def execute(pipeline: str, output: str, environment: dict[str, str]) -> None:
    """The program."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGTERM, _end)
    from kfp import components, local
    from kfp.local.subprocess_task_handler import SubprocessTaskHandler

    SubprocessTaskHandler.validate_not_container_component = lambda self, command: None
    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=tempfile.mkdtemp())
    components.load_component_from_file(pipeline)()


def _end(number: int, frame: object) -> None:
    """Kubernetes would end the pods: everything in this group gets the signal."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    sys.exit(143)
