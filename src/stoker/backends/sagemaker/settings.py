"""The settings of the SageMaker backend: which account, and what the training job of a step is to be.

A field that is not given is `UNSET`, so that a default never beats what somebody wrote. How they become a training job
is `backends.sagemaker.requests`.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final, Mapping

import attrs

from stoker.backends.aws.api import AwsSettings
from stoker.backends.base.overlays import parse_overlay
from stoker.backends.kubernetes.settings import parse_flag_word, parse_listed_texts, parse_pairs
from stoker.core.errors import SettingsError
from stoker.core.units import UNSET, not_one_of, parse_positive_count, parse_python, parse_text, strict

ACCESS: Final = ("Platform", "Vpc")
"""https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_TrainingImageConfig.html"""
LONGEST_RUN: Final = 28 * 86400
"""Seconds: https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_StoppingCondition.html"""
PENDING: Final = (1800, 28 * 86400)
"""Seconds that a job may be asked to wait for its capacity, from the same page."""
KEPT: Final = 3600
"""Seconds for which a job may keep its instances: https://docs.aws.amazon.com/sagemaker/latest/dg/train-warm-pools.html"""
RETRIES: Final = 30
"""https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_RetryStrategy.html"""
_JOB: Final[Mapping[str, str]] = {
    "TrainingJobName": "nothing: it follows from the run, the attempt and the request",
    "AlgorithmSpecification.TrainingImage": "image of these settings, or docker settings of the step",
    "AlgorithmSpecification.AlgorithmName": "the step's function",
    "AlgorithmSpecification.ContainerEntrypoint": "the step's function",
    "AlgorithmSpecification.ContainerArguments": "the step's function",
    "EnableManagedSpotTraining": "resources=ResourceSettings(spot=True)",
    "EnableNetworkIsolation": "subnets and security_groups of a VPC without a way out but to S3: the step itself reads "
    "and writes the artifact store",
    "Environment": 'environment of the step: @step(environment={"NAME": "text"})',
    "ResourceConfig.InstanceType": "instance_type",
    "ResourceConfig.InstanceCount": "resources=ResourceSettings(nodes=…)",
    "ResourceConfig.InstanceGroups": "resources=ResourceSettings(nodes=…): the nodes of a step are alike",
    "ResourceConfig.InstancePreferences": "instance_type: the type of a step is known before it begins",
    "ServerlessJobConfig": "nothing: it trains AWS's own models, and runs no function of a step",
    "StoppingCondition.MaxRuntimeInSeconds": "timeout of the step, or max_runtime",
}
"""A field of CreateTrainingJob that no overlay has → what to write."""
_ROLE: Final = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@\-_/]+")
_TYPE: Final = re.compile(r"ml\.[a-z0-9-]+\.[a-z0-9]+")


def parse_role(value: Any) -> Any:
    """`role`: an ARN."""
    text = parse_text(value)
    if isinstance(text, str) and not _ROLE.fullmatch(text):
        raise SettingsError(
            f"{text!r} is not the ARN of a role", fix='write it whole: "arn:aws:iam::123456789012:role/NAME"'
        )
    return text


def parse_instance_type(value: Any) -> Any:
    """`instance_type`: SageMaker's name, which begins with "ml."."""
    text = parse_text(value)
    if not isinstance(text, str):
        return text
    name = text.strip().lower()
    if not _TYPE.fullmatch(name):
        close = f"ml.{name}" if _TYPE.fullmatch(f"ml.{name}") and not name.startswith("ml.") else "ml.g5.xlarge"
        raise SettingsError(f"{text!r} is no instance type of SageMaker", fix=f'write "{close}"')
    return name


def parse_job(value: Any) -> Any:
    """`overlay`: part of the arguments of CreateTrainingJob."""
    return parse_overlay(value, _JOB)


def parse_access(value: Any) -> Any:
    """`repository_access`, in whatever letters."""
    if value is None or value is UNSET:
        return value
    for word in ACCESS:
        if str(value).lower() == word.lower():
            return word
    raise not_one_of(value, ACCESS)


def parse_run_seconds(value: Any) -> Any:
    """1 to 28 days in seconds."""
    return _within(parse_positive_count(value), 1, LONGEST_RUN)


def parse_pending(value: Any) -> Any:
    """30 minutes to 28 days in seconds."""
    return _within(parse_positive_count(value), *PENDING)


def parse_kept(value: Any) -> Any:
    """1 to 3600 seconds."""
    return _within(parse_positive_count(value), 1, KEPT)


def parse_attempts(value: Any) -> Any:
    """1 to 30."""
    return _within(parse_positive_count(value), 1, RETRIES)


def _within(number: Any, least: int, most: int) -> Any:
    if isinstance(number, int) and not isinstance(number, bool) and not least <= number <= most:
        raise SettingsError(f"{number!r} is not between {least} and {most}", fix=f"write {least} to {most}")
    return number


@strict
@attrs.frozen(kw_only=True)
class SagemakerSettings(AwsSettings):
    """How a step runs as a training job of SageMaker; the names are those of CreateTrainingJob, in lower case."""

    ALIASES: ClassVar[Mapping[str, str]] = {
        "execution_role": "role",
        "role_arn": "role",
        "image_uri": "image",
        "training_image": "image",
        "subnet_ids": "subnets",
        "security_group_ids": "security_groups",
        "volume_size_in_gb": "volume_size",
        "max_run": "max_runtime",
        "max_runtime_in_seconds": "max_runtime",
        "experiment_name": "experiment",
        "aws_profile": "profile",
        "processor_role": "role",
        "keep_alive_period_in_seconds": "keep_alive",
        "max_retry_attempts": "retry_attempts",
        "encrypt_inter_container_traffic": "encrypt_traffic",
    }
    """Another name of a field → the field: SageMaker's own, those of its Python SDK, and ZenML's."""
    INSTEAD: ClassVar[Mapping[str, str]] = {
        "instance_count": "resources=ResourceSettings(nodes=…)",
        "use_spot_instances": "resources=ResourceSettings(spot=True)",
        "use_spot": "resources=ResourceSettings(spot=True)",
        "hyperparameters": "the step's own parameters",
        "environment": 'the step\'s environment: @step(environment={"NAME": "text"})',
        "entry_point": "the step's function",
        "source_dir": "the step's function",
        "checkpoint_s3_uri": "context.checkpoint(): a step's checkpoints are copied to the artifact store",
        "input_data_s3_uri": "an input of the step: artifacts come from the artifact store; or a channel of your own: "
        'overlay={"InputDataConfig": [{"ChannelName": "images", …}]}',
        "input_data_s3_mode": 'overlay={"InputDataConfig": [{"ChannelName": "images", "InputMode": "FastFile", …}]}',
        "output_data_s3_uri": "an output of the step: it is kept in the artifact store",
        "output_data_s3_mode": "context.checkpoint(), for what is kept while the step runs",
        "estimator_args": "overlay={…} in the words of CreateTrainingJob, or the field here",
        "processor_args": "overlay={…} in the words of CreateTrainingJob, or the field here",
        "use_training_step": "nothing: every step is a training job",
        "synchronous": "nothing: the driver follows its jobs; `stoker run --detach` leaves them to another one",
        "pipeline_tags": "tags",
        "processor_tags": "tags",
        "bucket": "artifact_store of the stack: s3://BUCKET/PREFIX",
        "aws_access_key_id": "profile, or the environment's credentials: none are written into stacks",
        "aws_secret_access_key": "profile, or the environment's credentials: none are written into stacks",
        "aws_auth_role_arn": "profile, one of ~/.aws/config with role_arn",
        "scheduler_role": "nothing: whoever starts the program starts its jobs",
        "enable_network_isolation": "a VPC without a way out but to S3: subnets=…, security_groups=…; the step itself "
        "reads and writes the artifact store",
        "cpu": "resources=ResourceSettings(cpu_count=…)",
        "gpu": "resources=ResourceSettings(gpu_count=…)",
        "memory": "resources=ResourceSettings(memory=…)",
        "disk": "resources=ResourceSettings(disk=…), or volume_size",
        "timeout": "timeout of the step: @step(timeout=3600)",
    }
    """A name that people know from elsewhere → what to write."""

    # What it runs as
    role: str | None = attrs.field(default=UNSET, converter=parse_role)
    """`RoleArn`: pulls the image, writes the log, and is the step's right to the artifact store."""
    image: str | None = attrs.field(default=UNSET, converter=parse_text)
    """The image of a step that has no `docker` settings, in ECR and in this region."""
    executable: str | None = attrs.field(default=UNSET, converter=parse_python)
    """The interpreter in the image; "python3" without it."""
    repository_access: str | None = attrs.field(default=UNSET, converter=parse_access)
    """`TrainingRepositoryAccessMode`: "Vpc" for a private registry in the job's VPC; ECR without it."""
    repository_credentials: str | None = attrs.field(default=UNSET, converter=parse_text)
    """`TrainingRepositoryCredentialsProviderArn`: the Lambda function with the login of such a registry."""
    # Where it runs
    instance_type: str | None = attrs.field(default=UNSET, converter=parse_instance_type)
    """`InstanceType`; without it the smallest that holds what the step asks for."""
    volume_size: int | None = attrs.field(default=UNSET, converter=parse_positive_count)
    """`VolumeSizeInGB`; without it what the step's `disk` asks for, 30 at least."""
    volume_kms_key: str | None = attrs.field(default=UNSET, converter=parse_text)
    """`VolumeKmsKeyId`: encrypts the volume."""
    output_kms_key: str | None = attrs.field(default=UNSET, converter=parse_text)
    """`KmsKeyId` of the output that SageMaker itself writes."""
    keep_alive: int | None = attrs.field(default=UNSET, converter=parse_kept)
    """`KeepAlivePeriodInSeconds`: the instances stay for the next alike job so long, and cost what they cost."""
    training_plan: str | None = attrs.field(default=UNSET, converter=parse_text)
    """`TrainingPlanArn`: reserved capacity."""
    subnets: tuple[str, ...] | None = attrs.field(default=UNSET, converter=parse_listed_texts)
    """`VpcConfig.Subnets`."""
    security_groups: tuple[str, ...] | None = attrs.field(default=UNSET, converter=parse_listed_texts)
    """`VpcConfig.SecurityGroupIds`."""
    encrypt_traffic: bool | None = attrs.field(default=UNSET, converter=parse_flag_word)
    """`EnableInterContainerTrafficEncryption`, between the nodes of a gang."""
    # How long
    max_runtime: int | None = attrs.field(default=UNSET, converter=parse_run_seconds)
    """`MaxRuntimeInSeconds` of a step without a timeout; five days without it, the usual quota."""
    max_wait: int | None = attrs.field(default=UNSET, converter=parse_run_seconds)
    """`MaxWaitTimeInSeconds` of a spot step: waiting and running together; a day more than it may run without it."""
    max_pending: int | None = attrs.field(default=UNSET, converter=parse_pending)
    """`MaxPendingTimeInSeconds`: how long it may wait for its capacity."""
    retry_attempts: int | None = attrs.field(default=UNSET, converter=parse_attempts)
    """`RetryStrategy.MaximumRetryAttempts`: how often SageMaker itself starts again after an error of its own."""
    # Beside it
    tags: Mapping[str, str] | None = attrs.field(default=UNSET, converter=parse_pairs)
    """`Tags`."""
    experiment: str | None = attrs.field(default=UNSET, converter=parse_text)
    """`ExperimentConfig.ExperimentName`, of SageMaker Experiments."""
    remote_debug: bool | None = attrs.field(default=UNSET, converter=parse_flag_word)
    """`EnableRemoteDebug`: a person may open a shell in the container by Systems Manager."""
    overlay: Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_job)
    """Part of the arguments of CreateTrainingJob in the API's words, merged in last: what no other field has, such as
    {"InputDataConfig": [{"ChannelName": "images", …}]} or {"AlgorithmSpecification": {"MetricDefinitions": […]}}."""
