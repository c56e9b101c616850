"""Schedules as entries of scrontab: https://slurm.schedmd.com/scrontab.html

Slurm starts each as a small job of the user's, with the options in the `#SCRON` lines before it. The job is the
driver, so nodes have to see this machine's folders, as drivers of detached runs do.
"""

from __future__ import annotations

import math
from typing import Any, Final, Iterator, Mapping

from stoker.backends.base.backend import TimerJob
from stoker.backends.base.logins import login
from stoker.backends.base.timers import Crontab
from stoker.backends.slurm.script import time_text
from stoker.backends.slurm.settings import DRIVER_MEMORY, SlurmSettings
from stoker.core.errors import UsageError

_MIB: Final = 1 << 20
_WHERE: Final = ("partition", "account", "qos", "reservation")
"""Fields that the driver's job takes from the stack unless `driver` has them."""


class Scrontab(Crontab):
    """The user's scrontab on a cluster."""

    def __init__(self, settings: SlurmSettings) -> None:
        super().__init__("scrontab", login=login(settings.get("host")), options=tuple(_options(settings)))
        self._shares = settings.shares

    def check(self, job: TimerJob) -> None:
        """Its jobs also need the files of this machine."""
        if not self._shares:
            raise UsageError(
                "scrontab runs the schedule on the cluster, whose nodes do not see this machine's files",
                fix="add it on the login node, or --on crontab; or set shares_files, if the nodes do see them",
            )
        super().check(job)


def timer(options: Mapping[str, Any]) -> Scrontab:
    """What starts schedules on a cluster, by settings of the stack."""
    return Scrontab(SlurmSettings(**options))


def _options(settings: SlurmSettings) -> Iterator[str]:
    driver: Mapping[str, Any] = settings.get("driver", {})
    for field in _WHERE:
        value = driver[field] if field in driver else settings.get(field)
        if value is not None:
            yield f"--{field}={value}"
    yield "--cpus-per-task=1"
    yield f"--mem={math.ceil((driver.get('memory') or DRIVER_MEMORY) / _MIB)}M"
    limit = driver.get("time_limit")
    if limit is not None:
        yield f"--time={time_text(limit)}"
