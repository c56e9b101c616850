"""The read API for notebooks and scripts, and what a called pipeline returns: runs, steps, outputs, logs.

    run = Client().run("latest")
    run.steps["train"].outputs["model"].load()

A `Run` and its steps show the store at the time when they were read; `Run.refresh` reads them again. This folder knows
the store and its address, nothing of how runs are executed.
"""

from stoker.client.attempts import Attempt, Failure
from stoker.client.client import Client
from stoker.client.metrics import Usage
from stoker.client.names import ArtifactVersion, ModelVersion
from stoker.client.outputs import Output, Outputs
from stoker.client.runs import Event, Run
from stoker.client.steps import Step, Steps

__all__ = [
    "ArtifactVersion",
    "Attempt",
    "Client",
    "Event",
    "Failure",
    "ModelVersion",
    "Output",
    "Outputs",
    "Run",
    "Step",
    "Steps",
    "Usage",
]
