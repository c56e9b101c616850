"""`@exit_hook`: calls functions when a run is over, in the process that started it, with the run if they take one."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import attrs

from stoker.flows.decorators import notes_of

if TYPE_CHECKING:
    from stoker.core.request import RunRequest
    from stoker.flows.instance import FlowInstance


@contextlib.contextmanager
def calling_hooks(kind: type[FlowInstance], request: RunRequest) -> Iterator[RunRequest]:
    """The request to start a run of a flow with; when the body is left, the hooks for how the run ended are called.

    A run that goes on elsewhere, as with `--detach`, calls none.
    """
    notes = [note for note in notes_of(kind) if note.name == "exit_hook"]
    if not notes or request.detach:
        yield request
        return
    begun: list[str] = []

    def began(id: str) -> None:
        begun.append(id)
        if request.began is not None:
            request.began(id)

    succeeded = False
    try:
        yield attrs.evolve(request, began=began)
        succeeded = True
    finally:
        if begun:
            word = "on_success" if succeeded else "on_error"
            for hook in (hook for note in notes for hook in note.values[word]):
                _call(kind, hook, begun[0])


def _call(kind: type[FlowInstance], hook: Callable[..., Any] | str, id: str) -> None:
    """Call one hook; its failure changes nothing."""
    try:
        function = hook if callable(hook) else _function(kind, hook)
        takes = inspect.signature(function).parameters
        if "run" in takes or any(one.kind is one.VAR_KEYWORD for one in takes.values()):
            from stoker.client import Client
            from stoker.flows.client import view_of

            function(run=view_of(Client().run(id)))
        else:
            function()
    except Exception:  # the user's own function
        name = hook if isinstance(hook, str) else hook.__name__
        sys.stderr.write(f"exit hook {name} of run {id} failed:\n{traceback.format_exc()}")


def _function(kind: type[FlowInstance], name: str) -> Callable[..., Any]:
    """The function of the flow's module, or of another one, that a name means."""
    module, _, attribute = name.rpartition(".")
    home = importlib.import_module(module) if module else sys.modules[kind.__module__]
    return getattr(home, attribute)  # type: ignore[no-any-return]
