"""`FlowSpec`: a pipeline as a class. Called at the end of its file, it reads the program's command line.

The top of this folder: nothing in it imports this module. What runs a flow is imported when a flow is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.core import request
from stoker.core.errors import UsageError
from stoker.core.usercode import caller, definition_line
from stoker.flows.instance import FlowInstance

if TYPE_CHECKING:
    from stoker.flows.definition import FlowDefinition


class FlowSpec(FlowInstance):
    """A flow: subclass it, write steps, and call the class at the end of the file.

    Called, it reads the program's command line: `python flow.py run`.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        init = vars(cls).get("__init__")
        if init is not None and "__init__" not in getattr(init, "__code__", cls.__init__.__code__).co_names:
            raise UsageError(
                f"flow {cls.__name__} has an __init__ of its own, which would keep {cls.__name__}() from running it",
                where=definition_line(init),
                fix="set what all steps see as attributes of the class, and artifacts in its first step",
            )
        if request.WORKER:
            # Before workers are forked, so that none of them has to import what runs a task.
            import stoker.flows.task  # noqa: F401

    def __init__(self, use_cli: bool = True) -> None:
        if request.WORKER:
            raise request.NotTheDriver(f"flow {type(self).__name__} was called while a worker imported {caller()}")
        if use_cli:
            from stoker.flows import cli

            cli.main(type(self))

    @classmethod
    def __stoker_program__(cls) -> FlowDefinition | None:
        from stoker.flows.definition import FlowDefinition, is_flow

        return FlowDefinition(cls) if is_flow(cls) else None
