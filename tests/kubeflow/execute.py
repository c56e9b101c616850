"""Executes a pipeline by KFP's own local runner: `python execute.py PIPELINE.yaml`.

KFP runs only components on this machine whose command names its executor, since others need an image. Ours are programs
for Python alone, so that this one check is left out; everything else is KFP's.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import warnings


def main() -> None:
    """The program."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGTERM, _end)
    from kfp import components, local
    from kfp.local.subprocess_task_handler import SubprocessTaskHandler

    SubprocessTaskHandler.validate_not_container_component = lambda self, command: None
    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=tempfile.mkdtemp())
    pipeline = components.load_component_from_file(sys.argv[1])
    pipeline()


def _end(number: int, frame: object) -> None:
    """Kubernetes would end the pods: everything in this group gets the signal."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    sys.exit(143)


if __name__ == "__main__":
    main()
