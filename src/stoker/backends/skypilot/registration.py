"""The skypilot backend, as it is registered."""

from __future__ import annotations

from typing import Any, Final, Mapping

from stoker.backends.base.backend import Backend, FlowDecorator, StackSetup, later, of_parts, reach
from stoker.backends.base.pulling import Puller
from stoker.backends.skypilot.settings import SkypilotSettings, resources_of


def puller(options: Mapping[str, Any]) -> Puller | None:
    """Who pulls images on SkyPilot's machines."""
    names = "SKYPILOT_DOCKER_USERNAME, SKYPILOT_DOCKER_PASSWORD and SKYPILOT_DOCKER_SERVER"
    return Puller(
        who="Docker on SkyPilot's machines",
        fix=f"give it a login for {{registry}} by the variables {names}: SkypilotSettings(envs={{…}})",
        unseen=f"its login is in {names}, or in the machine's own role",
    )


SETUP: Final = StackSetup(
    questions={
        "sky": "SkyPilot's command: its path, or `sky` where it is on the PATH",
        "infra": "Where to look for machines (aws, gcp/us-central1, k8s/CONTEXT, …); empty for every enabled cloud",
        "api_server": "The address of SkyPilot's API server; empty for the one that `sky api login` has set",
    },
    complete=lambda sky: sky,
    suggest=later("stoker.backends.skypilot.backend:suggest"),
    usual=lambda: "sky",
    name=lambda sky: "sky",
    store="The artifact store that machines of the clouds reach: s3://…, gs://…, az://…",
)


SKYPILOT: Final = Backend(
    name="skypilot",
    title="SkyPilot",
    settings=SkypilotSettings,
    open=later("stoker.backends.skypilot.backend:SkypilotBackend", takes=2),
    resources=resources_of,
    sends_code=True,
    unasked=("STK327",),  # of backends.skypilot.backend, which is imported with a plan
    decorator=FlowDecorator(
        name="skypilot",
        title="SkyPilot",
        settings=SkypilotSettings,
        help='Run the step on a machine that SkyPilot finds: `@skypilot(infra="aws", accelerators="V100:2")`.',
    ),
    puller=puller,
    doctor=lambda: reach("skypilot", commands=("sky",), files=("~/.sky",)),
    probe=later("stoker.backends.skypilot.backend:probe"),
    setup=SETUP,
    leftovers=of_parts("stoker.backends.skypilot.backend:sweep_accounts"),
    left_jobs=of_parts("stoker.backends.skypilot.backend:left_jobs"),
    end_left=of_parts("stoker.backends.skypilot.backend:end_left"),
    end_recorded=later("stoker.backends.skypilot.backend:end_recorded"),
    beside=later("stoker.backends.skypilot.backend:places"),
)
