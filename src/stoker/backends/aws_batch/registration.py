"""The batch backend, as it is registered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Mapping, NoReturn

from stoker.backends.aws.api import complete_region, image_of_settings, usual_region
from stoker.backends.aws_batch.settings import BatchSettings
from stoker.backends.base.backend import (
    Backend,
    FlowDecorator,
    RunningAttempt,
    StackSetup,
    later,
    no_way,
    of_parts,
    reach,
)

if TYPE_CHECKING:
    from stoker.backends.base.pulling import Puller


def puller(options: Mapping[str, Any]) -> Puller | None:
    """The instances of the queues, with the job's execution role or their own."""
    from stoker.backends.base.pulling import Puller

    role = BatchSettings(**options).get("execution_role")
    which = f"the rights of {role}" if role else "the rights of the instances' role"
    return Puller(
        who="the queue's instances",
        fix="let BatchSettings(execution_role='…') pull from {registry}, or for another registry than ECR name a "
        "secret with its login: BatchSettings(repository_credentials='…')",
        unseen=f"{which} are AWS's to say",
    )


def beside(options: Mapping[str, Any], attempt: RunningAttempt) -> NoReturn:
    """Refused: what leads into a container of ECS is a program of AWS's, with a protocol of its own."""
    raise no_way(
        attempt,
        "ECS Exec alone leads into its container, which a job must ask for, and which AWS's own plugin speaks",
        fix="ask for it, BatchSettings(enable_execute_command=True), give the job's role the rights of ssmmessages, "
        "and call `aws ecs execute-command --interactive --command sh` with the task of `aws batch describe-jobs`",
    )


SETUP: Final = StackSetup(
    questions={
        "region": "The region of the queues",
        "profile": "The profile of ~/.aws; empty for the environment's credentials",
        "queues": "The queues among which each step gets its own, with what they start",
        "iam_role": "The ARN of the role of steps, which reads and writes the artifact store; empty for the instances'",
        "execution_role": "The ARN of the role by which ECS pulls images and writes logs; Fargate needs one",
        "schedule_role": "The ARN of the role by which EventBridge submits schedules' drivers; empty for none",
        "image": "The image of steps that name none; empty for plain Python",
    },
    complete=complete_region,
    suggest=later("stoker.backends.aws_batch.client:suggest"),
    usual=usual_region,
    name=lambda region: f"batch-{region}",
    store="The artifact store, a bucket that steps reach: s3://BUCKET/PREFIX",
    prepare=later("stoker.backends.aws_batch.client:prepare"),
)


BATCH: Final = Backend(
    name="batch",
    title="AWS Batch",
    settings=BatchSettings,
    open=later("stoker.backends.aws_batch.backend:BatchBackend", takes=2),
    sends_code=True,
    unasked=("STK318",),  # of backends.aws_batch.client, which is imported when an account is asked
    decorator=FlowDecorator(
        name="batch",
        title="AWS Batch",
        settings=BatchSettings,
        help='Run the step on AWS Batch: `@batch(gpu=1, queue="gpus", image="team/train:1")`.',
    ),
    puller=puller,
    parent_image=image_of_settings(BatchSettings),
    doctor=lambda: reach(
        "aws",
        files=("~/.aws/credentials", "~/.aws/config"),
        variables=("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    ),
    probe=later("stoker.backends.aws_batch.client:probe"),
    setup=SETUP,
    left_jobs=of_parts("stoker.backends.aws_batch.client:left_jobs"),
    end_left=of_parts("stoker.backends.aws_batch.client:end_left"),
    leftovers=of_parts("stoker.backends.aws_batch.client:sweep_accounts"),
    end_recorded=later("stoker.backends.aws_batch.client:end_recorded"),
    beside=beside,
    timer=later("stoker.backends.aws_batch.timers:timer"),
)
