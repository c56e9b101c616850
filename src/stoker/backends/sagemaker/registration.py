"""The SageMaker backend, as it is registered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Mapping, NoReturn

from stoker.backends.aws.api import complete_region, image_of_settings, usual_region
from stoker.backends.base.backend import (
    RESOURCES,
    Backend,
    FlowDecorator,
    RunningAttempt,
    StackSetup,
    later,
    no_way,
    of_parts,
)
from stoker.backends.sagemaker.settings import SagemakerSettings

if TYPE_CHECKING:
    from stoker.backends.base.pulling import Puller


def puller(options: Mapping[str, Any]) -> Puller | None:
    """SageMaker, with the rights of the job's role."""
    from stoker.backends.base.pulling import Puller

    role = SagemakerSettings(**options).get("role", "the job's role")
    return Puller(
        who="SageMaker",
        fix="let SagemakerSettings(role='…') pull from {registry}, which is ECR, or a private registry in the job's "
        "VPC (repository_access='Vpc')",
        unseen=f"the rights of {role} are AWS's to say",
    )


def beside(options: Mapping[str, Any], attempt: RunningAttempt) -> NoReturn:
    """Refused: what leads into a training job is a program of AWS's, with a protocol of its own."""
    name = str(attempt.identity.get("name") or "NAME")
    raise no_way(
        attempt,
        "Systems Manager alone leads into its container, which a job must ask for, and which AWS's own plugin speaks",
        fix="ask for it, SagemakerSettings(remote_debug=True), give the role the rights of ssmmessages, and call "
        f"`aws ssm start-session --target sagemaker-training-job:{name}_algo-1`",
    )


SETUP: Final = StackSetup(
    questions={
        "region": "The region of the training jobs",
        "profile": "The profile of ~/.aws; empty for the environment's credentials",
        "role": "The ARN of the role of training jobs, which pulls images and reads and writes the artifact store",
        "image": "The image of steps that name none, in ECR and in this region",
    },
    complete=complete_region,
    suggest=lambda answers: {"profile": "", "role": "", "image": ""},  # each account's own
    usual=usual_region,
    name=lambda region: f"sagemaker-{region}",
    store="The artifact store, a bucket in this region: s3://BUCKET/PREFIX",
    prepare=later("stoker.backends.sagemaker.client:prepare"),
)


SAGEMAKER: Final = Backend(
    name="sagemaker",
    title="SageMaker",
    settings=SagemakerSettings,
    open=later("stoker.backends.sagemaker.backend:SagemakerBackend", takes=2),
    sends_code=True,
    decorator=FlowDecorator(
        name="sagemaker",
        title="SageMaker",
        settings=SagemakerSettings,
        help='Run the step as a training job of SageMaker: `@sagemaker(gpu=1, instance_type="ml.g5.xlarge")`.',
        resources=(*RESOURCES, "trainium"),
    ),
    puller=puller,
    parent_image=image_of_settings(SagemakerSettings),
    probe=later("stoker.backends.sagemaker.client:probe"),
    setup=SETUP,
    left_jobs=of_parts("stoker.backends.sagemaker.client:left_jobs"),
    end_left=of_parts("stoker.backends.sagemaker.client:end_left"),
    leftovers=of_parts("stoker.backends.sagemaker.client:sweep_accounts"),
    end_recorded=later("stoker.backends.sagemaker.client:end_recorded"),
    beside=beside,
)
