"""What the account's queues can never give to a plan's steps, found by asking it before anything is sent."""

from __future__ import annotations

from typing import Any, Final, Iterator, Mapping, Sequence

from stoker.backends.aws_batch.account import read_account
from stoker.backends.aws_batch.check import QUEUE, choice_of
from stoker.backends.aws_batch.queues import JobQueue, NoQueue, queues_of_settings
from stoker.backends.aws_batch.settings import BatchSettings
from stoker.backends.base.aws import AwsApi
from stoker.backends.base.backend import settings_of
from stoker.core.errors import BackendError
from stoker.core.findings import Finding, Reporter
from stoker.core.plan import StepPlan, reporter_of

UNPROVED: Final = "STK318"


def prove(api: AwsApi, options: Mapping[str, Any], steps: Sequence[StepPlan]) -> Iterator[Finding]:
    """A finding for each step that no queue holds, and for queues that are not what the settings say they are."""
    try:
        queues = read_account(api, BatchSettings(**options)).queues
    except BackendError as error:
        for step in steps:
            what = "what the account's queues hold could not be asked"
            yield reporter_of(step).warning(UNPROVED, what, error.message, error.fix)
        return
    for step in steps:
        yield from prove_step(step, options, queues)


def prove_step(step: StepPlan, options: Mapping[str, Any], queues: Sequence[JobQueue]) -> Iterator[Finding]:
    """The same for one step, by queues that were read."""
    settings, report = settings_of(step, BatchSettings, options), reporter_of(step)
    choice = choice_of(step, settings, queues)
    if choice is None:
        what, why = "gets no queue: the account has none in this region", "a job of AWS Batch is sent to a queue"
        yield report.error(QUEUE, what, why, "create one, or name another `region`")
        return
    if isinstance(choice, NoQueue):
        yield report.error(QUEUE, choice.what, choice.why, choice.fix)
        return
    name = choice.queue.rpartition("/")[2]
    queue = next((each for each in queues if each.name == name), None)
    if queue is None:
        what, why = f"is sent to the queue {name}, which the account has not", "AWS Batch refuses the job"
        yield report.error(QUEUE, what, why, f"name one of {', '.join(each.name for each in queues) or 'its own'}")
        return
    yield from _differences(queue, settings, report)


def _differences(queue: JobQueue, settings: BatchSettings, report: Reporter) -> Iterator[Finding]:
    """Where a queue holds other instance types than the settings say: then the plan was made for others."""
    for written in queues_of_settings(settings):
        if written.name != queue.name:
            continue
        ours = {each.name for environment in written.environments for each in environment.types}
        theirs = {each.name for environment in queue.usable for each in environment.types}
        if written.fargate != queue.fargate or ours != theirs:
            what = f"is sent to {queue.text}, and the stack's settings say {written.text}"
            why = "the job is made for what the account says"
            fix = "write into `queues` of the stack what the account has: `stoker stacks setup batch`"
            yield report.warning(QUEUE, what, why, fix)
