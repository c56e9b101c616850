"""The skypilot backend, as it is registered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Iterable, Iterator, Mapping

from stoker.backends.base.accounts import AccountModule, CloudAccounts
from stoker.backends.base.backend import (
    Backend,
    FlowDecorator,
    ProbeRequest,
    RunningBackend,
    Services,
    StackSetup,
)
from stoker.backends.base.pulling import Puller
from stoker.backends.skypilot.settings import SkypilotSettings, resources_of
from stoker.core.findings import Check
from stoker.core.plan import Site

if TYPE_CHECKING:
    from stoker.backends.base.beside import Beside, RunningAttempt


def open_skypilot(site: Site, options: Mapping[str, Any], services: Services) -> RunningBackend:
    """Runs jobs on machines that SkyPilot finds."""
    from stoker.backends.skypilot.backend import SkypilotBackend

    return SkypilotBackend(site, options)


def puller(options: Mapping[str, Any]) -> Puller | None:
    """Who pulls images on SkyPilot's machines."""
    names = "SKYPILOT_DOCKER_USERNAME, SKYPILOT_DOCKER_PASSWORD and SKYPILOT_DOCKER_SERVER"
    return Puller(
        who="Docker on SkyPilot's machines",
        fix=f"give it a login for {{registry}} by the variables {names}: SkypilotSettings(envs={{…}})",
        unseen=f"its login is in {names}, or in the machine's own role",
    )


def doctor() -> Iterator[Check]:
    """Whether SkyPilot's command is here, and what it knows of clouds."""
    from stoker.backends.base.reaching import reach

    yield reach("skypilot", commands=("sky",), files=("~/.sky",))


def probe(options: Mapping[str, Any], request: ProbeRequest) -> Iterator[Check]:
    """SkyPilot's command, its API server, the clouds that it may use, and its catalog."""
    from stoker.backends.skypilot.probe import probe as probe_skypilot

    return probe_skypilot(options, request)


def beside(options: Mapping[str, Any], attempt: RunningAttempt) -> Iterable[Beside]:
    """The machines of a running attempt's cluster."""
    from stoker.backends.skypilot.beside import places

    return places(options, attempt)


def suggest(answers: Mapping[str, str]) -> Mapping[str, str]:
    """What the other settings usually are."""
    from stoker.backends.skypilot.probe import suggest as suggest_settings

    return suggest_settings(answers)


SETUP: Final = StackSetup(
    questions={
        "sky": "SkyPilot's command: its path, or `sky` where it is on the PATH",
        "infra": "Where to look for machines (aws, gcp/us-central1, k8s/CONTEXT, …); empty for every enabled cloud",
        "api_server": "The address of SkyPilot's API server; empty for the one that `sky api login` has set",
    },
    complete=lambda sky: sky,
    suggest=suggest,
    usual=lambda: "sky",
    name=lambda sky: "sky",
    store="The artifact store that machines of the clouds reach: s3://…, gs://…, az://…",
)


def left() -> AccountModule:
    """What takes down the clusters and managed jobs that runs left."""
    from stoker.backends.skypilot import leftovers

    return leftovers


ACCOUNTS: Final = CloudAccounts(left)

SKYPILOT: Final = Backend(
    name="skypilot",
    title="SkyPilot",
    settings=SkypilotSettings,
    open=open_skypilot,
    resources=resources_of,
    sends_code=True,
    unasked=("STK327",),  # of backends.skypilot.check, which is imported with a plan
    decorator=FlowDecorator(
        name="skypilot",
        title="SkyPilot",
        settings=SkypilotSettings,
        help='Run the step on a machine that SkyPilot finds: `@skypilot(infra="aws", accelerators="V100:2")`.',
    ),
    puller=puller,
    doctor=doctor,
    probe=probe,
    setup=SETUP,
    leftovers=ACCOUNTS.leftovers,
    left_jobs=ACCOUNTS.left_jobs,
    end_left=ACCOUNTS.end_left,
    end_recorded=ACCOUNTS.end_recorded,
    beside=beside,
)
