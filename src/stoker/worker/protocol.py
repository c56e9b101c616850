"""What the program of a job (`worker.boot`) and the backend that started it agree on: names of files, marks in output.

A module without imports: the program of a job reads it before anything else is there.
"""

from __future__ import annotations

from typing import Final

MARK: Final = "\x1estoker "
"""Begins a line of standard output that is a message of Stoker's, as JSON."""
UP_VERSION: Final = 1
"""The version of the first message, by which a job says that it is up."""
RESULT: Final = "result.json"
"""The file beside a job's document that says how the job ended."""
CREDENTIALS: Final = "/run/stoker/environment.json"
"""Inside a container: variables that neither the engine nor the image may show."""
