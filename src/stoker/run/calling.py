"""`@pipeline`: makes functions pipelines that run when they are called.

`pipelines` turns functions into graphs and knows nothing of running. Here a pipeline gets what a call of it does.
Workers import this module with the user's, so it loads nothing else of this folder before a pipeline is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Mapping, ParamSpec, overload

from stoker.pipelines.functional import Pipeline, pipeline_of

if TYPE_CHECKING:
    from typing import Unpack

    from stoker.pipelines.options import PipelineOptions

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
    from stoker.run import commandline, start

    configured, request = commandline.read_call(program, arguments)
    return start.run(configured, arguments, request)
