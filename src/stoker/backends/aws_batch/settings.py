"""The settings of the AWS Batch backend: which account and queues, and what the job definition of a step is to be.

The words of Metaflow's `@batch` (https://docs.metaflow.org/api/step-decorators/batch) keep their names: `ALIASES` has
the second name of a field. A field that is not given is `UNSET`, so that a default never beats what somebody wrote. How
they become a job definition is `backends.aws_batch.definitions`.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final, Iterable, Mapping

import attrs

from stoker.backends.aws.api import AwsSettings
from stoker.backends.base.overlays import parse_overlay
from stoker.backends.kubernetes.settings import parse_fields, parse_flag_word, parse_listed_texts, parse_pairs
from stoker.core.errors import SettingsError, nearest
from stoker.core.units import (
    UNSET,
    WHOLE_RUN,
    not_one_of,
    parse_count,
    parse_number,
    parse_positive_count,
    parse_python,
    parse_text,
    strict,
    useful_size,
)

PLATFORMS: Final = ("EC2", "FARGATE")
LOG_DRIVERS: Final = ("awslogs", "fluentd", "gelf", "journald", "json-file", "splunk", "syslog", "awsfirelens")
"""https://docs.aws.amazon.com/batch/latest/APIReference/API_LogConfiguration.html"""
ULIMITS: Final = (
    *("core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice"),
    *("nofile", "nproc", "rss", "rtprio", "rttime", "sigpending", "stack"),
)
"""https://docs.aws.amazon.com/AmazonECS/latest/APIReference/API_Ulimit.html"""
_RULE: Final = ("onExitCode", "onReason", "onStatusReason", "action")
"""https://docs.aws.amazon.com/batch/latest/APIReference/API_EvaluateOnExit.html"""
_CONDITIONS: Final = {
    "onExitCode": r"\d*\*?",
    "onReason": r"[A-Za-z0-9.:\s]*\*?",
    "onStatusReason": r"[A-Za-z0-9.:\s]*\*?",
}
"""The characters that a condition may have."""
_RULES: Final = 4
"""AWS Batch takes five; the last one is Stoker's, and ends what no other names."""
_EFS: Final = ("path", "root", "access_point", "iam", "encrypted", "read_only")
_CONTAINER: Final[Mapping[str, str]] = {
    "image": "image of these settings, or docker settings of the step",
    "command": "the step's function",
    "environment": 'environment of the step: @step(environment={"NAME": "text"})',
    "resourceRequirements": "resources=ResourceSettings(cpu_count=…, memory=…, gpu_count=…)",
    "vcpus": "resources=ResourceSettings(cpu_count=…)",
    "memory": "resources=ResourceSettings(memory=…)",
    "instanceType": "instance_type of a step on several nodes",
}
"""A field of the container that no overlay has → what to write."""
_QUEUE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}|arn:aws[a-z-]*:batch:.+")
"""https://docs.aws.amazon.com/batch/latest/APIReference/API_CreateJobQueue.html"""
_SHARE: Final = re.compile(r"[A-Za-z0-9]{1,255}\*?")
"""https://docs.aws.amazon.com/batch/latest/APIReference/API_SubmitJob.html"""
_ROLE: Final = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]*[\w+=,.@-]|[\w+=,.@-]{1,64}", re.ASCII)
"""The ARN of a role, or its name: https://docs.aws.amazon.com/IAM/latest/APIReference/API_CreateRole.html"""
_EFS_ID: Final = re.compile(r"fs-[0-9a-f]{8,40}")


def parse_swappiness(value: Any) -> Any:
    """0 to 100 (https://docs.aws.amazon.com/batch/latest/APIReference/API_LinuxParameters.html)."""
    return _at_most(parse_count(value), 100)


def parse_priority(value: Any) -> Any:
    """0 to 9999 (https://docs.aws.amazon.com/batch/latest/APIReference/API_SubmitJob.html)."""
    return _at_most(parse_count(value), 9999)


def parse_attempts(value: Any) -> Any:
    """1 to 10 (https://docs.aws.amazon.com/batch/latest/APIReference/API_RetryStrategy.html)."""
    return _at_most(parse_positive_count(value), 10)


def parse_platform(value: Any) -> Any:
    """`platform`, in capitals."""
    return value if value is None or value is UNSET else _one_of(str(value).upper(), PLATFORMS)


def parse_driver(value: Any) -> Any:
    """`log_driver`."""
    return value if value is None or value is UNSET else _one_of(value, LOG_DRIVERS)


def parse_architecture(value: Any) -> Any:
    """`cpu_architecture`, in capitals."""
    return value if value is None or value is UNSET else _one_of(str(value).upper(), ("X86_64", "ARM64"))


def parse_share(value: Any) -> Any:
    """`share_identifier`: letters and digits, and * at the end."""
    text = parse_text(value)
    if isinstance(text, str) and not _SHARE.fullmatch(text):
        raise SettingsError(f"{text!r} is no share identifier", fix="write letters and digits alone, 255 at most")
    return text


def parse_role(value: Any) -> Any:
    """`iam_role` and `execution_role`: the ARN of a role, or its name."""
    text = parse_text(value)
    if isinstance(text, str) and not _ROLE.fullmatch(text):
        fix = f'write "arn:aws:iam::123456789012:role/{text.rpartition("/")[2] or "step"}", with your account\'s number'
        raise SettingsError(f"{text!r} is neither the ARN nor the name of a role", fix=fix)
    return text


def parse_options(value: Any) -> Any:
    """`log_options`: "key:value" texts, or a mapping."""
    if isinstance(value, Mapping):
        value = [f"{key}:{text}" for key, text in value.items()]
    texts = parse_listed_texts(value)
    for text in texts or ():
        if not all(part.strip() for part in text.partition(":")):
            raise SettingsError(f"{text!r} is no option of a log driver", fix='write "awslogs-group:/team/steps"')
    return texts


def parse_queues(value: Any) -> Any:
    """`queues`: names, or a mapping from names to the instance types (or "FARGATE") of their compute environments; as
    one text "gpu=p4d.24xlarge+p5.48xlarge, cpu=FARGATE"."""
    if value is None or value is UNSET:
        return value
    if isinstance(value, Mapping):
        queues = {str(name): parse_listed_texts(types) or () for name, types in value.items()}
    else:
        parts = (text.partition("=") for text in parse_listed_texts(value))
        queues = {
            name.strip(): tuple(each.strip() for each in types.split("+") if each.strip()) for name, _, types in parts
        }
    for name in queues:
        parse_queue(name)
    return queues


def parse_queue(value: Any) -> Any:
    """`queue`: its name, or its ARN."""
    text = parse_text(value)
    if isinstance(text, str) and not _QUEUE.fullmatch(text):
        fix = f'write "{text.replace(":", "=", 1)}" in queues' if text.count(":") == 1 else "write its name, or its ARN"
        raise SettingsError(f"{text!r} is no name of a queue", fix=fix)
    return text


def parse_folders(value: Any) -> Any:
    """`host_volumes`: folders of the instance, each at its own path in the container, or a mapping to others."""
    if value is None or value is UNSET:
        return value
    if not isinstance(value, Mapping):
        value = {folder: folder for folder in parse_listed_texts(value)}
    pairs = {str(folder): str(path) for folder, path in value.items()}
    for path in (*pairs, *pairs.values()):
        if not path.startswith("/"):
            raise SettingsError(
                f"{path!r} is not the full path of a folder", fix='write "/data", or {"/data": "/data"}'
            )
    return pairs


def parse_file_systems(value: Any) -> Any:
    """`efs_volumes`: ids of file systems (mounted at /mnt/ID), or a mapping to paths or to mappings with `path`,
    `root`, `access_point`, `iam`, `encrypted` and `read_only`."""
    if value is None or value is UNSET:
        return value
    if not isinstance(value, Mapping):
        value = {name: f"/mnt/{name}" for name in parse_listed_texts(value)}
    volumes: dict[str, dict[str, Any]] = {}
    for name, place in value.items():
        if not _EFS_ID.fullmatch(str(name)):
            raise SettingsError(
                f"{name!r} is no file system of EFS", fix='write its id, such as "fs-0123456789abcdef0"'
            )
        fields = {"path": place} if isinstance(place, str) else dict(place) if isinstance(place, Mapping) else {}
        _check_keys(fields, "file system", _EFS)
        fields.setdefault("path", f"/mnt/{name}")
        if not str(fields["path"]).startswith("/"):
            raise SettingsError(f"{name} is mounted at {fields['path']!r}, which is no full path", fix='write "/data"')
        volumes[str(name)] = {
            key: part if key in ("path", "root", "access_point") else parse_flag_word(part)
            for key, part in fields.items()
        }
    return volumes


def parse_ulimits(value: Any) -> Any:
    """`ulimits`: name → the soft and hard limit, or both in a list; -1 for none."""
    if value is None or value is UNSET:
        return value
    if not isinstance(value, Mapping):
        raise SettingsError(f"{value!r} does not map names to limits", fix='write {"nofile": 65536, "memlock": -1}')
    limits: dict[str, tuple[int, int]] = {}
    for name, limit in value.items():
        _one_of(name, ULIMITS)
        parts = [limit] if isinstance(limit, (int, str)) else list(limit) if isinstance(limit, Iterable) else []
        numbers = [int(part) for part in parts if re.fullmatch(r"-?\d+", str(part).strip())]
        if len(numbers) != len(parts) or len(numbers) not in (1, 2) or min(numbers) < -1:
            raise SettingsError(f"{name}: {limit!r} is no limit", fix="write a number, or [soft, hard]; -1 is no limit")
        soft, hard = numbers[0], numbers[-1]
        if hard != -1 and (soft == -1 or soft > hard):
            raise SettingsError(
                f"{name}: the soft limit {soft} is above the hard one, {hard}", fix="write [soft, hard]"
            )
        limits[name] = (soft, hard)
    return limits


def parse_secrets(value: Any) -> Any:
    """`secrets`: variable → the ARN of a secret of Secrets Manager or of a parameter of Systems Manager."""
    pairs = parse_pairs(value)
    for name, arn in (pairs or {}).items():
        if not name or not arn:
            raise SettingsError(
                f"the secret {name!r} names nothing", fix='write {"HF_TOKEN": "arn:aws:secretsmanager:…"}'
            )
    return pairs


def parse_rules(value: Any) -> Any:
    """`retry_rules`: up to four of Batch's own rules, in order."""
    if value is None or value is UNSET:
        return value
    if isinstance(value, (str, Mapping)) or not isinstance(value, Iterable):
        raise SettingsError(f"{value!r} is no list of rules", fix='write [{"onExitCode": "75", "action": "RETRY"}]')
    rules = []
    for entry in value:
        if not isinstance(entry, Mapping):
            raise SettingsError(f"{entry!r} is no rule", fix='write {"onExitCode": "75", "action": "RETRY"}')
        _check_keys(entry, "rule", _RULE)
        rule = {key: str(text) for key, text in entry.items()}
        if len(rule) < 2 or "action" not in rule:
            raise SettingsError(
                f"{entry!r} lacks an action or a condition", fix='write {"onReason": "…", "action": "RETRY"}'
            )
        for key, pattern in _CONDITIONS.items():
            if not re.fullmatch(pattern, rule.get(key, "*")):
                text = f"{rule[key]!r} is no {key}"
                raise SettingsError(text, fix="write letters, digits, dots, colons and blanks, and * at the end alone")
        rules.append({**rule, "action": _one_of(rule["action"].upper(), ("RETRY", "EXIT"))})
    if len(rules) > _RULES:
        raise SettingsError(f"there are {len(rules)} rules", fix=f"write {_RULES} at most")
    return tuple(rules)


def parse_container(value: Any) -> Any:
    """`overlay`: part of the container's properties."""
    return parse_overlay(value, _CONTAINER)


def parse_driver_fields(value: Any) -> Any:
    """`driver`: cpu_count a number, memory in bytes, the rest names."""
    return parse_fields(value, _DRIVER)


_DRIVER: Final = {
    "image": parse_text,
    "queue": parse_queue,
    "iam_role": parse_role,
    "cpu_count": parse_number,
    "memory": useful_size,
}


def _at_most(number: Any, most: int) -> Any:
    if isinstance(number, int) and not isinstance(number, bool) and number > most:
        raise SettingsError(f"{number!r} is more than {most}", fix=f"write a number up to {most}")
    return number


def _one_of(value: Any, words: tuple[str, ...]) -> Any:
    if value in words:
        return value
    raise not_one_of(value, words)


def _check_keys(entry: Mapping[str, Any], noun: str, names: tuple[str, ...]) -> None:
    for name in entry:
        if name not in names:
            raise SettingsError(f"a {noun} has no '{name}'{nearest(str(name), names)}")


@strict
@attrs.frozen(kw_only=True)
class BatchSettings(AwsSettings):
    """How a step runs on AWS Batch; most fields are those of a job definition, in Metaflow's words."""

    ALIASES: ClassVar[Mapping[str, str]] = {
        "job_queue": "queue",
        "job_role": "iam_role",
        "job_role_arn": "iam_role",
        "execution_role_arn": "execution_role",
        "tags": "aws_batch_tags",
        "retry_attempts": "attempts",
    }
    """Another name of a field → the field."""
    INSTEAD: ClassVar[Mapping[str, str]] = {
        "cpu": "resources=ResourceSettings(cpu_count=…)",
        "vcpus": "resources=ResourceSettings(cpu_count=…)",
        "gpu": "resources=ResourceSettings(gpu_count=…)",
        "memory": "resources=ResourceSettings(memory=…)",
        "disk": "ephemeral_storage on Fargate; on EC2 the disk is that of the compute environment's launch template",
        "shared_memory": "resources=ResourceSettings(shared_memory=…)",
        "inferentia": 'resources=ResourceSettings(accelerators="inferentia2:2"): chips, of several cores each',
        "trainium": 'resources=ResourceSettings(accelerators="trainium:16"): chips, of several cores each',
        "num_parallel": "resources=ResourceSettings(nodes=…)",
        "timeout": "timeout of the step: @step(timeout=3600)",
        "parameters": "the step's own parameters",
        "command": "the step's function",
        "depends_on": "an input of the step: it begins when what it reads is there",
        "ecs_properties": "nothing: a step is one container, whose fields are here and in overlay={…}",
        "eks_properties": "the kubernetes backend, for steps on EKS",
        "array_properties": "step.map(…): a fan-out is an array",
        "node_properties": "resources=ResourceSettings(nodes=…)",
        "consumable_resource_properties": "resources=ResourceSettings(extended={…})",
        "container_properties": "overlay={…}",
        "container_overrides": "overlay={…}",
        "linux_parameters": 'overlay={"linuxParameters": {…}}, or the field here: max_swap, tmpfs_size, efa …',
        "retry_strategy": "attempts and retry_rules; or retry of the step: @step(retry=3)",
        "propagate_tags": "nothing: aws_batch_tags are those of the job, its definition and its ECS task",
    }
    """A name that people know from elsewhere → what to write."""

    # The account
    queues: Mapping[str, tuple[str, ...]] | None = attrs.field(
        default=UNSET, converter=parse_queues, metadata=WHOLE_RUN
    )
    """The stack's queues, among which a step without `queue` gets one: names, or a mapping from each name to the
    instance types of its compute environments ("FARGATE" for Fargate), with which a plan needs no account. Without it
    all queues of the account."""
    # Schedules
    schedule_role: str | None = attrs.field(default=UNSET, converter=parse_role, metadata=WHOLE_RUN)
    """The role by which EventBridge Scheduler submits the drivers of schedules."""
    driver: Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_driver_fields, metadata=WHOLE_RUN)
    """The job in which a schedule's driver runs, where it is not like a step: image, queue, iam_role, cpu_count (0.25),
    memory (1 GiB)."""
    # Where it runs
    queue: str | None = attrs.field(default=UNSET, converter=parse_queue)
    """`jobQueue`; without it the queue of the stack that holds what the step asks for."""
    platform: str | None = attrs.field(default=UNSET, converter=parse_platform)
    """`platformCapabilities`: "EC2" or "FARGATE"; without it that of the queue."""
    instance_type: str | None = attrs.field(default=UNSET, converter=parse_text)
    """`instanceTypes` of a step on several nodes, which AWS Batch takes there alone."""
    share_identifier: str | None = attrs.field(default=UNSET, converter=parse_share)
    """`shareIdentifier`, for a queue with a scheduling policy."""
    scheduling_priority: int | None = attrs.field(default=UNSET, converter=parse_priority)
    """`schedulingPriorityOverride`, 0 to 9999: the higher first among jobs of one share identifier."""
    # What it runs as
    image: str | None = attrs.field(default=UNSET, converter=parse_text)
    """The image of a step that has no `docker` settings."""
    executable: str | None = attrs.field(default=UNSET, converter=parse_python)
    """The interpreter in the image; "python3" without it."""
    iam_role: str | None = attrs.field(default=UNSET, converter=parse_role)
    """`jobRoleArn`: the rights of the step's code, which reads and writes the artifact store."""
    execution_role: str | None = attrs.field(default=UNSET, converter=parse_role)
    """`executionRoleArn`: pulls the image, reads `secrets`, writes the log; Fargate needs it."""
    repository_credentials: str | None = attrs.field(default=UNSET, converter=parse_text)
    """`repositoryCredentials`: the ARN of the secret with the login of a registry other than ECR."""
    secrets: Mapping[str, str] | None = attrs.field(default=UNSET, converter=parse_secrets)
    """`secrets`: variables of the container → ARNs in Secrets Manager or Systems Manager."""
    user: str | None = attrs.field(default=UNSET, converter=parse_text)
    """`user` of the container."""
    privileged: bool | None = attrs.field(default=UNSET, converter=parse_flag_word)
    """`privileged`: whether the container has the rights of the instance."""
    readonly_root: bool | None = attrs.field(default=UNSET, converter=parse_flag_word)
    """`readonlyRootFilesystem`."""
    init_process: bool | None = attrs.field(default=UNSET, converter=parse_flag_word)
    """`linuxParameters.initProcessEnabled`."""
    enable_execute_command: bool | None = attrs.field(default=UNSET, converter=parse_flag_word)
    """`enableExecuteCommand`: a person may open a shell in the container by ECS Exec."""
    ulimits: Mapping[str, tuple[int, int]] | None = attrs.field(default=UNSET, converter=parse_ulimits)
    """`ulimits`: name → limit, or [soft, hard]; -1 is no limit."""
    # Memory, devices, files
    max_swap: int | None = attrs.field(default=UNSET, converter=parse_count)
    """`linuxParameters.maxSwap`, in MiB."""
    swappiness: int | None = attrs.field(default=UNSET, converter=parse_swappiness)
    """`linuxParameters.swappiness`, 0 to 100."""
    use_tmpfs: bool | None = attrs.field(default=UNSET, converter=parse_flag_word)
    """Mount a file system in memory (`linuxParameters.tmpfs`)."""
    tmpfs_tempdir: bool | None = attrs.field(default=UNSET, converter=parse_flag_word)
    """Make it the folder of temporary files (TMPDIR); true where nothing is given."""
    tmpfs_size: int | None = attrs.field(default=UNSET, converter=parse_positive_count)
    """Its size in MiB; half of the container's memory without it."""
    tmpfs_path: str | None = attrs.field(default=UNSET, converter=parse_text)
    """Where it is mounted; "/stoker_temp" without it."""
    efa: int | None = attrs.field(default=UNSET, converter=parse_count)
    """Elastic Fabric Adapters of each node: /dev/infiniband/uverbs0 and so on, with unlimited locked memory."""
    host_volumes: Mapping[str, str] | None = attrs.field(default=UNSET, converter=parse_folders)
    """Folders of the instance: paths, or a mapping that says where they are mounted."""
    efs_volumes: Mapping[str, Mapping[str, Any]] | None = attrs.field(default=UNSET, converter=parse_file_systems)
    """File systems of EFS: their ids, or a mapping that says where and how they are mounted."""
    ephemeral_storage: int | None = attrs.field(default=UNSET, converter=parse_positive_count)
    """`ephemeralStorage` in GiB, for Fargate."""
    # Logs, tags, retries
    log_driver: str | None = attrs.field(default=UNSET, converter=parse_driver)
    """`logConfiguration.logDriver`; Stoker reads the log of "awslogs", the usual one."""
    log_options: tuple[str, ...] | None = attrs.field(default=UNSET, converter=parse_options)
    """`logConfiguration.options`, each as "key:value", or a mapping."""
    aws_batch_tags: Mapping[str, str] | None = attrs.field(default=UNSET, converter=parse_pairs)
    """`tags` of the job, of its definition and of its ECS task."""
    attempts: int | None = attrs.field(default=UNSET, converter=parse_attempts)
    """`retryStrategy.attempts`, 1 to 10: starts that AWS Batch itself makes where `retry_rules` say RETRY."""
    retry_rules: tuple[Mapping[str, str], ...] | None = attrs.field(default=UNSET, converter=parse_rules)
    """`retryStrategy.evaluateOnExit`: up to four rules; what none of them names ends the job."""
    # Fargate
    assign_public_ip: bool | None = attrs.field(default=UNSET, converter=parse_flag_word)
    """`networkConfiguration.assignPublicIp`, for Fargate in a public subnet."""
    platform_version: str | None = attrs.field(default=UNSET, converter=parse_text)
    """`fargatePlatformConfiguration.platformVersion`; the latest without it."""
    cpu_architecture: str | None = attrs.field(default=UNSET, converter=parse_architecture)
    """`runtimePlatform.cpuArchitecture` of Fargate: "X86_64" or "ARM64"."""
    # The rest
    overlay: Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_container)
    """Part of the job definition's `containerProperties` in the API's words, merged into the container last: what no
    other field has, such as {"logConfiguration": {"secretOptions": […]}}."""
