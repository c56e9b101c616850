"""`@pipeline`, and what a called pipeline reaches first.

`pipelines` turns functions into graphs and knows nothing of running; here a pipeline gets what a call of it does, which
is to start the fork server, and to import the driver while that boots: its imports take as long. Workers import this
module with the user's, so it loads nothing else of this folder before a pipeline is called.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable, Mapping, ParamSpec, overload

from stoker.pipelines.functional import Pipeline, pipeline_of

if TYPE_CHECKING:
    from typing import Unpack

    from stoker.client import Run
    from stoker.core.request import RunRequest
    from stoker.pipelines.functional import PipelineOptions
    from stoker.run.program import Program


P = ParamSpec("P")


@overload
def pipeline(function: Callable[P, Any], /) -> Pipeline[P]: ...
@overload
def pipeline(**options: Unpack[PipelineOptions]) -> Callable[[Callable[P, Any]], Pipeline[P]]: ...
def pipeline(function: Any = None, /, **options: Any) -> Any:
    """Make a function a pipeline; its options are its steps' defaults; `dynamic=True`: its body sees real values."""
    if function is None:
        return lambda decorated: pipeline_of(decorated, options, call)
    return pipeline_of(function, options, call)


def call(program: Pipeline[...], arguments: Mapping[str, Any]) -> Any:
    """Run a pipeline that the user's code calls, with what the command line says of it."""
    from stoker.run import commandline

    configured, request = commandline.read_call(program, arguments)
    return run(configured, arguments, request)


def run(program: Program, arguments: Mapping[str, Any], request: RunRequest) -> Run:
    """Run a program to its end, or with `detach` to its beginning; see `driver.run`."""
    from stoker.core.errors import UsageError
    from stoker.core.values import seldom_collected
    from stoker.pipelines.scripts import watch_script
    from stoker.report.streams import open_missing
    from stoker.worker import spare

    open_missing()
    watch_script()
    _refuse_ranks(os.environ)
    if request.detach and request.debug:
        raise UsageError("--debug runs every step in this process, which --detach leaves", fix="leave one of them out")
    if not request.debug and not request.detach:
        spare.start(program.worker_imports)
    try:
        with seldom_collected():
            from stoker.run import driver

            if not program.dynamic and not request.debug:
                return driver.run(program, arguments, request)
        return driver.run(program, arguments, request)
    finally:
        spare.discard()


def _refuse_ranks(environment: Mapping[str, str]) -> None:
    """Raise `UsageError` in a program that a launcher of ranks started: each of them would begin a run of its own.

    Rank 0 may be the program that a step starts in one of its ranks. The second rank has no RANK where Lightning's
    Trainer starts its script again for each device: https://lightning.ai/docs/pytorch/stable/common/trainer.html
    """
    names = next((one for one in ("RANK", "LOCAL_RANK") if environment.get(one)), "")
    rank, size = environment.get(names, ""), environment.get("WORLD_SIZE", "")
    if rank.isdecimal() and size.isdecimal() and 0 < int(rank) < int(size):
        from stoker.core.errors import UsageError

        raise UsageError(
            f"this program is rank {rank} of {size} by {names} and WORLD_SIZE: each rank would run the pipeline",
            fix=f"start the program once, and write launch=Torchrun(nproc_per_node={size}) at the step that trains, "
            f"also where its Trainer of Lightning has devices={size}; for a run of its own, unset {names}",
        )
