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

    # Names of Metaflow's own that flows read all the same.

    @property
    def _graph(self) -> Any:
        """The flow's steps as `flows.graphs.Node`s by name."""
        from stoker.flows import graphs

        kind: type = type(self)
        return graphs.graph_of(kind)

    @property
    def _graph_info(self) -> dict[str, Any]:
        """What `current.graph` is."""
        from stoker.flows import graphs

        kind: type = type(self)
        return graphs.info_of(kind)

    @property
    def _current_step(self) -> str:
        """The name of the step that runs."""
        return self._running("_current_step").step_name()

    @property
    def _foreach_stack(self) -> list[Any]:
        """The foreachs around this task as `flows.graphs.ForeachFrame`s, outermost first."""
        from stoker.flows import graphs

        task = self._running("_foreach_stack")
        return graphs.frames_of(type(self), task.step_name(), task.stack())

    @classmethod
    def __stoker_program__(cls) -> FlowDefinition | None:
        from stoker.flows.definition import FlowDefinition, is_flow

        return FlowDefinition(cls) if is_flow(cls) else None
