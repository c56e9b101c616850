"""What runs without a driver left in accounts: their jobs, results that wait to be adopted, and job definitions.

Jobs that are over cost nothing, and AWS forgets them itself.
"""

from __future__ import annotations

from typing import Any, Collection, Final, Iterator, Mapping, Sequence

from stoker.backends.aws_batch import jobs as batchjobs
from stoker.backends.aws_batch.client import BatchClient
from stoker.backends.aws_batch.definitions import TAG
from stoker.backends.aws_batch.platform import OVER, REASON
from stoker.backends.aws_batch.platform import end_recorded as end_identified
from stoker.backends.aws_batch.settings import BatchSettings
from stoker.backends.base.backend import LeftJob, Leftover, Sweep
from stoker.core.errors import StokerError

ASKED: Final = 5.0
"""Seconds for an answer while a person waits."""


def left_jobs(parts: Sequence[Mapping[str, Any]], scratch: str, runs: Collection[str]) -> Iterator[LeftJob]:
    """The jobs of runs that go on, and those that went well."""
    for client, queues in _accounts(parts):
        for run in runs:
            for row in _jobs_of(client, queues, run):
                if row.get("status") != "FAILED":
                    yield LeftJob(run=run, name=str(row["jobId"]), running=row.get("status") not in OVER)


def end_left(parts: Sequence[Mapping[str, Any]], scratch: str, run: str, grace: float) -> Iterator[LeftJob]:
    """End the jobs of a run that go on."""
    for client, queues in _accounts(parts):
        for row in _jobs_of(client, queues, run):
            if row.get("status") not in OVER:
                client.end(str(row["jobId"]), REASON)
                yield LeftJob(run=run, name=str(row["jobId"]), running=True)


def end_recorded(options: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """End jobs that a driver left, as it recorded them; the names of those that were there."""
    client = BatchClient(BatchSettings(**options), patience=ASKED)
    try:
        return list(end_identified(client, jobs))
    finally:
        client.close()


def sweep_accounts(parts: Sequence[Mapping[str, Any]], sweep: Sweep) -> Iterator[Leftover]:
    """End the jobs of this database's runs that nobody continues, and deregister definitions that no job uses."""
    jobs = definitions = 0
    kept_tags = {batchjobs.tag_text(run) for run in sweep.kept}
    ours = {batchjobs.tag_text(run) for run in sweep.ours}
    for part in parts:
        try:
            for client, queues in _accounts([part]):
                used: set[str] = set()
                for row in _live_jobs(client, queues):
                    run = str(row["tags"][batchjobs.RUN_TAG])
                    if run in ours and run not in kept_tags:
                        jobs += 1
                        if not sweep.dry_run:
                            client.end(str(row["jobId"]), REASON)
                    else:
                        used.add(str(row["jobDefinition"]))
                for definition in list(client.definitions()):
                    arn = str(definition["jobDefinitionArn"])
                    if (definition.get("tags") or {}).get(TAG) == "definition" and arn not in used:
                        definitions += 1
                        if not sweep.dry_run:
                            client.deregister(arn)
        except StokerError as error:
            sweep.say(error.message)
    yield Leftover(kind="batch_jobs", noun="job", rest="of runs on AWS Batch", count=jobs)
    yield Leftover(kind="batch_definitions", noun="job definition", rest="that no job uses", count=definitions)


def _accounts(parts: Sequence[Mapping[str, Any]]) -> Iterator[tuple[BatchClient, list[str]]]:
    """A client of each account, and the queues of its stack: those of the settings, else all."""
    seen: list[tuple[Any, ...]] = []
    for part in parts:
        settings = BatchSettings(**part)
        place = tuple(settings.get(name) for name in ("profile", "region", "endpoint_url"))
        names = list(dict.fromkeys([*settings.get("queues", {}), *filter(None, [settings.get("queue")])]))
        if (place, names) in seen:
            continue
        seen.append((place, names))
        client = BatchClient(settings, patience=ASKED)
        try:
            yield client, [str(row["jobQueueName"]) for row in client.queues()] or names
        finally:
            client.close()


def _jobs_of(client: BatchClient, queues: Sequence[str], run: str) -> Iterator[Mapping[str, Any]]:
    """The jobs of a run."""
    for queue in queues:
        yield from client.named(queue, f"{batchjobs.run_prefix(run)}*")


def _live_jobs(client: BatchClient, queues: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Stoker's jobs that are not over, of all runs."""
    for queue in queues:
        rows = client.named(queue, "stoker-*")
        for row in client.jobs([str(row["jobId"]) for row in rows if row.get("status") not in OVER]).values():
            if batchjobs.RUN_TAG in (row.get("tags") or {}):
                yield row
