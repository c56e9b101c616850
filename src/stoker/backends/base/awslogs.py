"""The log of one container: read from CloudWatch page by page, and completed from the copy in the artifact store.

CloudWatch has lines as events, without empty ones, some seconds after they were written; a very long line is several.
The container leaves a copy of all lines at its end. Both have the same lines in the same order: the number of those
taken says what is missing.
"""

from __future__ import annotations

import json
import logging
from typing import Final

from stoker.backends.base.aws import AwsClient, AwsError
from stoker.core.protocol import MARK

log = logging.getLogger(__name__)

ENDED: Final = (MARK + json.dumps({"batch": "end"})).encode()
"""The last line of the container's program."""
PAGES: Final = 10
"""Pages of one stream that are read at one look; a page has up to 10,000 lines."""
CUT: Final = range(262_115, 262_119)
"""Bytes of an event whose line goes on in the next one: Docker's log driver and Fargate's cut lines at 262,118 bytes,
before a character that would be cut. https://github.com/moby/moby/blob/v28.0.0/daemon/logger/awslogs/cloudwatchlogs.go"""


class StreamReader:
    """How much of a log was read, and what was not taken yet."""

    def __init__(self) -> None:
        self.ended = False
        """Whether all of it is known."""
        self._token = ""
        self._refused = False
        self._part = b""
        """The beginning of a line that goes on in the next event."""
        self._count = 0
        self._lines: list[bytes] = []

    def read(self, client: AwsClient, group: str, stream: str) -> None:
        """Read what is new of the log stream; the lines of one that may not be read come from the copy."""
        if self.ended or self._refused:
            return
        for _ in range(PAGES):
            try:
                events, token = client.log_events(group, stream, self._token)
            except AwsError as error:
                if not error.denied:
                    raise
                log.warning("the log %s of %s comes at the end of the job: %s", stream, group, error)
                self._refused = True
                return
            for event in events:
                text = str(event.get("message") or "").encode()
                self._part += text
                if len(text) not in CUT:
                    self._add([self._part])
                    self._part = b""
            if token == self._token:
                return
            self._token = token

    def complete(self, copy: bytes) -> None:
        """Take the lines that are missing from the copy, which has all of them."""
        lines = [line for line in copy.split(b"\n") if line]
        self._part = b""
        self._add(lines[self._count :])
        self.ended = True

    def take(self) -> list[bytes]:
        """The lines that were read since the last call."""
        lines, self._lines = self._lines, []
        return lines

    def give(self, lines: list[bytes]) -> None:
        """Put lines of an earlier stream before those of this one; they do not count as its own."""
        self._lines = [*lines, *self._lines]

    def _add(self, lines: list[bytes]) -> None:
        for line in lines:
            if line == ENDED:
                self.ended = True
            elif line:
                self._count += 1
                self._lines.append(line)
