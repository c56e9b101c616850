"""Deletes Jobs that are over, in a thread of its own: a server may take its time, and news must not wait for that."""

from __future__ import annotations

import logging
import threading
from typing import Callable, Final

from stoker.backends.base.platforms import Away
from stoker.backends.kubernetes.client import Cluster
from stoker.backends.kubernetes.handles import JobObject
from stoker.core.errors import BackendError

log = logging.getLogger(__name__)

AGAIN: Final = 0.5
"""Seconds before a deletion is tried again that got no answer."""
TRIES: Final = 5
"""How often that is tried once the driver leaves, for all Jobs together."""


class Deletions:
    """Jobs that are to be deleted, one after the other, by `delete` with a client of the thread's own."""

    def __init__(self, cluster: Cluster, delete: Callable[[Cluster, JobObject], None]) -> None:
        self._cluster = cluster
        self._delete = delete
        self._waiting: dict[str, JobObject] = {}
        """By their place in the API."""
        self._changed = threading.Condition()
        self._tries: int | None = None
        """How often a deletion without an answer is tried again; None: as long as the driver lives."""
        self._thread: threading.Thread | None = None

    def add(self, place: JobObject) -> None:
        """Have a Job deleted soon."""
        with self._changed:
            self._waiting[place.path] = place
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stoker-delete", daemon=True)
                self._thread.start()
            self._changed.notify()

    def finish(self) -> bool:
        """Wait until all is deleted, or the server does not answer; whether it is. Nothing may be added afterwards."""
        self._end(TRIES)
        if self._thread is not None:
            self._thread.join()
        self._cluster.close()
        return not self._waiting

    def abandon(self) -> None:
        """Break off the request that waits for an answer, and delete no more."""
        self._end(0)
        self._cluster.abandon()

    def _end(self, tries: int) -> None:
        with self._changed:
            self._tries = tries
            self._changed.notify()

    def _run(self) -> None:
        while (place := self._next()) is not None:
            try:
                self._delete(self._cluster, place)
            except Away:
                with self._changed:
                    if self._tries is None:
                        self._changed.wait(AGAIN)
                    else:
                        self._tries -= 1
                continue
            except BackendError as error:
                log.warning("the Job %s/%s is over and stays: %s", place.namespace, place.name, error)
            with self._changed:
                del self._waiting[place.path]

    def _next(self) -> JobObject | None:
        """The Job that has waited longest; None once nothing more comes."""
        with self._changed:
            while self._tries is None and not self._waiting:
                self._changed.wait()
            return next(iter(self._waiting.values()), None) if self._tries is None or self._tries > 0 else None
