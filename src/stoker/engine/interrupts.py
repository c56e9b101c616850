"""Ctrl-C and SIGTERM end a run gracefully, a second one ends it now; SIGHUP, of a lost terminal, only asks.

Ctrl-C in a pipe (`… 2>&1 | tee log`) ends the reader too, and a closed terminal sends SIGHUP more than once: neither
means that the steps' grace is over.

A driver whose platform starts it again is told by SIGUSR1 that it leaves its run to the next start. SIGTERM says
nothing to it: platforms send it before they end a job, and before they start it again.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import Any, Callable, Final, Iterator, Protocol

from stoker.core.observer import Observer

_HANGUP: Final = getattr(signal, "SIGHUP", None)


class Stoppable(Protocol):
    """A run that can be stopped."""

    def stop(self) -> None:
        """Ask once for a graceful end, twice for one at once; safe in a signal handler."""

    def stop_gently(self) -> None:
        """Ask for a graceful end, unless one was asked for; safe in a signal handler."""

    def post(self, work: Any) -> None:
        """Have something done in the thread that may write to the terminal."""


@contextlib.contextmanager
def interrupts(
    runner: Stoppable,
    observer: Observer,
    *,
    computing: Callable[[], bool],
    on_hangup: Callable[[], None] | None = None,
    on_leave: Callable[[], None] | None = None,
) -> Iterator[None]:
    """Within the context, signals stop the runner; without effect in another thread than the main one.

    While `computing`, this thread runs the user's code: a second signal interrupts that, too. `on_hangup` is called at
    SIGHUP instead of a stop, `on_leave` at SIGUSR1; with it SIGTERM is ignored. A SIGHUP that is ignored, as under
    `nohup`, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    count = 0

    def stop_run(number: int, frame: Any) -> None:
        nonlocal count
        count += 1
        text = "stopping: steps that run are asked to end (again: at once)" if count == 1 else "stopping at once"
        runner.post(lambda: observer.message(text))
        runner.stop()
        if count > 1 and computing():
            raise KeyboardInterrupt

    def hang_up(number: int, frame: Any) -> None:
        if on_hangup is not None:
            on_hangup()
            return
        runner.post(lambda: observer.message("stopping: the terminal is gone, and steps that run are asked to end"))
        runner.stop_gently()

    handlers: dict[int, Callable[[int, Any], None]] = {signal.SIGINT: stop_run, signal.SIGTERM: stop_run}
    if on_leave is not None:
        leave = on_leave
        handlers[signal.SIGUSR1] = lambda number, frame: leave()
        handlers[signal.SIGTERM] = lambda number, frame: None  # unlike SIG_IGN, not handed down to other programs
    if _HANGUP is not None and signal.getsignal(_HANGUP) != signal.SIG_IGN:
        handlers[_HANGUP] = hang_up
    with replaced(handlers):
        yield


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Within the context, SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does: this process runs the steps."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [number for number in (signal.SIGTERM, _HANGUP) if number is not None]
    asked = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    with replaced(dict.fromkeys(asked, signal.default_int_handler)):
        yield


@contextlib.contextmanager
def replaced(handlers: dict[int, Any]) -> Iterator[None]:
    """Within the context, signals have these handlers."""
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
