"""The registration of the slurm backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Mapping

from stoker.backends.base.backend import Backend, FlowDecorator, StackSetup, later, of_parts, reach
from stoker.backends.slurm.settings import SlurmSettings

if TYPE_CHECKING:
    from stoker.backends.base.pulling import Puller


def puller(options: Mapping[str, Any]) -> Puller | None:
    """Who pulls images on the cluster's nodes."""
    if not SlurmSettings(**options).get("container", ""):
        return None
    from stoker.backends.slurm.environment import puller_of

    return puller_of(options)


def default_store(options: Mapping[str, Any]) -> str:
    """A folder of the cluster, where its nodes do not see this machine's folders."""
    settings = SlurmSettings(**options)
    return "" if settings.shares or not settings.get("host") else settings.own_store


SETUP: Final = StackSetup(
    questions={
        "host": "The login node, as you give it to ssh (a name of ~/.ssh/config, or user@host)",
        "partition": "The partition; empty for the cluster's default",
        "account": "The account that jobs are charged to; empty for your default",
        "folder": "A folder that login node and nodes see",
        "python": "The nodes' Python, 3.10 or later",
    },
    complete=lambda host: host if "://" in host else f"ssh://{host}",
    suggest=later("stoker.backends.slurm.probe:suggest"),
)


SLURM: Final = Backend(
    name="slurm",
    title="Slurm",
    settings=SlurmSettings,
    open=later("stoker.backends.slurm.backend:SlurmBackend", takes=2),
    unasked=("STK170", "STK171"),  # of backends.slurm.facts, which is imported when a cluster is asked
    puller=puller,
    default_store=default_store,
    probe=later("stoker.backends.slurm.probe:probe"),
    nodes=later("stoker.backends.slurm.cluster:nodes"),
    setup=SETUP,
    sends_code=True,
    decorator=FlowDecorator(
        name="slurm",
        title="Slurm",
        settings=SlurmSettings,
        help="Run the step on the stack's Slurm cluster: `@slurm(partition='gpu', time_limit='4h', gpu=1)`.",
    ),
    doctor=lambda: reach("slurm", commands=("sbatch",)),
    leftovers=of_parts("stoker.backends.slurm.orphans:leftovers", folder="slurm"),
    has_driver=later("stoker.backends.slurm.orphans:has_driver"),
    timer=later("stoker.backends.slurm.detach:timer"),
    left_jobs=of_parts("stoker.backends.slurm.orphans:left_jobs", folder="slurm"),
    end_left=of_parts("stoker.backends.slurm.orphans:end_left", folder="slurm"),
    end_recorded=later("stoker.backends.slurm.orphans:end_recorded"),
    beside=later("stoker.backends.slurm.byhand:places"),
)
