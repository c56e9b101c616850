"""What runs without a driver left in accounts: their training jobs, and results that wait to be adopted.

Jobs that are over cost nothing; SageMaker keeps their records for ever.
"""

from __future__ import annotations

from typing import Any, Collection, Final, Iterator, Mapping, Sequence

from stoker.backends.base.backend import LeftJob, Leftover, Sweep
from stoker.backends.sagemaker.client import SagemakerClient
from stoker.backends.sagemaker.platform import end_recorded as end_identified
from stoker.backends.sagemaker.requests import run_prefix
from stoker.backends.sagemaker.settings import SagemakerSettings
from stoker.core.errors import StokerError

ASKED: Final = 5.0
"""Seconds for an answer while a person waits."""


def left_jobs(parts: Sequence[Mapping[str, Any]], scratch: str, runs: Collection[str]) -> Iterator[LeftJob]:
    """The jobs of runs that go on, and those that went well."""
    for client in _accounts(parts):
        for run in runs:
            for row in client.named(run_prefix(run)):
                if row["TrainingJobStatus"] not in ("Failed", "Stopped"):
                    running = row["TrainingJobStatus"] != "Completed"
                    yield LeftJob(run=run, name=str(row["TrainingJobName"]), running=running)


def end_left(parts: Sequence[Mapping[str, Any]], scratch: str, run: str, grace: float) -> Iterator[LeftJob]:
    """End the jobs of a run that go on."""
    for client in _accounts(parts):
        for name in list(client.live(run_prefix(run))):
            client.stop(name)
            yield LeftJob(run=run, name=name, running=True)


def end_recorded(options: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """End jobs that a driver left, as it recorded them; the names of those that were there."""
    client = SagemakerClient(SagemakerSettings(**options), patience=ASKED)
    try:
        return list(end_identified(client, jobs))
    finally:
        client.close()


def sweep_accounts(parts: Sequence[Mapping[str, Any]], sweep: Sweep) -> Iterator[Leftover]:
    """End the jobs of this database's runs that nobody continues."""
    jobs = 0
    ended = tuple(run_prefix(run) for run in set(sweep.ours) - sweep.kept)
    for part in parts:
        try:
            for client in _accounts([part]):
                for name in list(client.live("stoker-")):
                    if name.startswith(ended):
                        jobs += 1
                        if not sweep.dry_run:
                            client.stop(name)
        except StokerError as error:
            sweep.say(error.message)
    yield Leftover(kind="sagemaker_jobs", noun="training job", rest="of runs on SageMaker", count=jobs)


def _accounts(parts: Sequence[Mapping[str, Any]]) -> Iterator[SagemakerClient]:
    """A client of each account."""
    seen = set()
    for part in parts:
        settings = SagemakerSettings(**part)
        place = tuple(settings.get(name) for name in ("profile", "region", "endpoint_url"))
        if place in seen:
            continue
        seen.add(place)
        client = SagemakerClient(settings, patience=ASKED)
        try:
            yield client
        finally:
            client.close()
