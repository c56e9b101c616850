"""What the result of a step that is bound to its inputs is found again by."""

from __future__ import annotations

from typing import Any, Mapping

from stoker.core.plan import StepPlan
from stoker.engine.inputs import digest_of
from stoker.plan.cachekey import cache_key


def result_key(step: StepPlan, inputs: Mapping[str, Any], environment: str) -> str:
    """The cache's key; `environment` is the digest of what steps without an image or an environment of their own have
    in common."""
    return cache_key(
        code=step.code,
        inputs={name: digest_of(tree) for name, tree in inputs.items()},
        outputs=[
            *(output.name for output in step.outputs),
            *(f"split:{name}" for name in step.split),
            *_gathered(step),
        ],
        environment=step.image or step.environment or environment,
        extra=step.settings.cache_key,
    )


def _gathered(step: StepPlan) -> list[str]:
    """Of a step whose value is a list of what its ranks returned: that it is, and how many these are."""
    launch = step.settings.launch
    if launch is None or launch.outputs != "all":
        return []
    resources = step.settings.resources
    asked = (launch.num_processes, launch.processes_per_node, resources.get("nodes", 1), resources.gpus_per_node)
    return [f"ranks:{'/'.join(map(str, asked))}"]
