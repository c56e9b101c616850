"""How many jobs may be sent to a cluster's queue now: by the settings, and by limits that the site enforces.

A site tells its limits only by refusing a submission. The largest number of jobs that fits is found by halving, and
what does not fit waits until own jobs have left. Pure, except that the caller passes the time.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from stoker.backends.slurm.settings import SlurmSettings
from stoker.core.words import count_text

PROBE: Final = 60.0
"""Seconds after a refusal in which a further job is not tried: other jobs of the same user may have left since."""
BUSY: Final = 10.0
"""Seconds for which nothing is sent to a controller that takes no jobs of anybody's now."""
_MINUTE: Final = 60.0
_MANY: Final = 1 << 30


class QueueLimits:
    """The limits of one run's submissions. `live` is how many jobs of the run are in the queue, tasks counted singly;
    times are of the monotonic clock."""

    def __init__(self, settings: SlurmSettings) -> None:
        self._most: int | None = settings.get("max_submit")
        self._rate: float | None = settings.get("submit_rate")
        self._ceiling: int | None = None
        """The most jobs that the site may still take: one more was refused."""
        self._probe_at = float("inf")
        self._probing = False
        self._busy_until = float("-inf")
        self._limit = ""
        """The site's word for its limit."""
        self._submissions: deque[float] = deque()

    def room(self, live: int, now: float) -> int:
        """How many jobs the next submission may have; 0 where none may go now."""
        if now < self._busy_until or self._too_fast(now):
            return 0
        room = _MANY if self._most is None else self._most - live
        if self._ceiling is not None:
            span = self._ceiling - live
            self._probing = span < 1 and now >= self._probe_at
            room = min(room, 1 if self._probing else (span + 1) // 2)
        return max(0, room)

    def accepted(self, now: float) -> None:
        """Note a submission that was taken."""
        self._submissions.append(now)
        if self._probing:
            self._probing, self._ceiling = False, None  # the limit that was known no longer holds

    def refused(self, count: int, live: int, now: float, limit: str) -> None:
        """Note that the site took no further `count` jobs; `limit` is its word for the limit, empty where the whole
        cluster takes none."""
        self._submissions.append(now)
        self._probing = False
        if not limit:
            self._busy_until = now + BUSY
            return
        self._limit, self._ceiling, self._probe_at = limit, live + count - 1, now + PROBE

    def reason(self, live: int, now: float) -> str:
        """A word for the limit that holds; empty where none does."""
        if now < self._busy_until:
            return "MaxJobCount"
        if self._too_fast(now):
            return "submit_rate"
        if self._most is not None and live >= self._most:
            return "max_submit"
        return self._limit if self._ceiling is not None and live >= self._ceiling else ""

    def message(self, waiting: int, live: int, now: float) -> str:
        """Why `waiting` steps are not in the queue; empty where no limit holds."""
        reason = self.reason(live, now)
        steps = f"{count_text(waiting, 'step')} {'waits' if waiting == 1 else 'wait'}"
        if not reason:
            return ""
        if reason == "MaxJobCount":
            return f"the cluster's queue is full, it takes no jobs now: {steps}"
        if reason == "submit_rate":
            return f"submit_rate={self._rate:g} lets no further submission go within this minute: {steps}"
        if reason == "max_submit":
            return f"max_submit={self._most} lets the run have no more jobs in the queue: {steps}"
        most = (
            f"{count_text(self._ceiling or 0, 'job')} in the queue" if self._ceiling else "no further job in the queue"
        )
        return f"the site lets you have {most} now ({reason}): {steps}"

    def _too_fast(self, now: float) -> bool:
        while self._submissions and self._submissions[0] <= now - _MINUTE:
            self._submissions.popleft()
        return self._rate is not None and len(self._submissions) >= self._rate
