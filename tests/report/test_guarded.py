"""Standard streams that were closed."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, subprocess, sys
from stoker.report.streams import open_missing
open_missing()
code = "import os; [os.fstat(descriptor) for descriptor in (0, 1, 2)]"
sys.exit(subprocess.run([sys.executable, "-S", "-c", code]).returncode)
"""


def test_a_program_that_is_started_has_the_streams_that_were_missing() -> None:
    command = [sys.executable, "-c", PROGRAM]
    assert subprocess.run(["sh", "-c", 'exec "$@" <&- >&-', "sh", *command], check=False).returncode == 0
