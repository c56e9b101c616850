"""Looks at an account as a stack uses it: who asks, queues and what they hold, roles, image, artifact store, log group.

Nothing is started. What may not be looked at is said, and is a problem only where nothing would run without it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import urllib.parse
from typing import Any, Final, Iterator, Mapping

from stoker.backends.aws_batch.account import Account, code_of, is_denied, read_account
from stoker.backends.aws_batch.client import BatchClient
from stoker.backends.aws_batch.definitions import LOG_GROUP, log_group
from stoker.backends.aws_batch.iam import TRUSTED
from stoker.backends.aws_batch.queues import JobQueue
from stoker.backends.aws_batch.settings import BatchSettings
from stoker.backends.base.aws import PERSON_WAITS, AwsApi, account_check
from stoker.backends.base.backend import ProbeRequest
from stoker.core.errors import BackendError
from stoker.core.findings import Check
from stoker.core.imagenames import ECR_HOST

_ECR: Final = re.compile(
    ECR_HOST + r"/(?P<name>[\w./-]{2,}?)(?::(?P<tag>[\w.-]+))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_POLICY: Final = "`stoker stacks setup batch` prints the least policy"


def probe(options: Mapping[str, Any], request: ProbeRequest) -> Iterator[Check]:
    """For `stoker doctor --stack`: what `checks` finds, with an answer of AWS while a person waits."""
    settings = BatchSettings(**options)
    with contextlib.closing(BatchClient(settings, patience=PERSON_WAITS)) as client:
        yield from checks(client, settings, request.store)


def checks(api: AwsApi, settings: BatchSettings, store: str) -> Iterator[Check]:
    """What a stack with these settings finds; ends at the first thing without which nothing else can be asked."""
    yield (who := account_check(api, settings))
    if who.problem:
        return
    try:
        account = read_account(api, settings)
    except BackendError as error:
        fix = f"the account needs batch:DescribeJobQueues and batch:DescribeComputeEnvironments; {_POLICY}"
        yield Check(name="queues", found="", problem=error.message, fix=fix if is_denied(error) else error.fix)
    else:
        yield from queue_checks(account, settings)
    try:
        for field in ("iam_role", "execution_role"):
            if settings.get(field):
                yield role_check(api, field, str(settings.get(field)))
        yield from image_check(api, str(settings.get("image", "")))
        yield from store_check(api, store)
        yield from log_check(api, settings)
    except BackendError as error:  # it went away between two questions
        yield Check(name="account", found="", problem=error.message, fix=error.fix)


def queue_checks(account: Account, settings: BatchSettings) -> Iterator[Check]:
    """A line for each queue, with what it may start, and one for the accelerators of all."""
    named = [*settings.get("queues", {}), *([settings.get("queue")] if settings.get("queue") else [])]
    names = {each.name for each in account.queues}
    for name in dict.fromkeys(str(each).rpartition("/")[2] for each in named):
        if name not in names:
            fix = f"the account has {', '.join(sorted(names)) or 'none'}; or name another `region`"
            yield Check(name=f"queue {name}", found="", problem=f"there is no queue '{name}' for containers", fix=fix)
    if not account.queues and not named:
        fix = "create a compute environment and a queue: https://docs.aws.amazon.com/batch/latest/userguide/"
        yield Check(name="queues", found="", problem="the account has no queue for containers in this region", fix=fix)
    for queue in account.queues:
        yield _queue_check(queue)
    chips: dict[str, int] = {}
    for queue in account.queues:
        for environment in queue.usable if not queue.problem else ():
            for each in environment.types:
                if each.count:
                    chips[each.accelerator] = max(chips.get(each.accelerator, 0), each.count)
    listed = ", ".join(f"{name} (up to {count} on an instance)" for name, count in chips.items())
    yield Check(name="accelerators", found=listed or "none")


def _queue_check(queue: JobQueue) -> Check:
    name = f"queue {queue.name}"
    if queue.problem:
        return Check(name=name, found="", problem=f"{queue.name} {queue.problem}", fix="enable or mend it")
    if not queue.usable:
        text = ", ".join(f"{each.name} {each.problem}" for each in queue.environments) or "it has none"
        problem = f"no compute environment of {queue.name} works: {text}"
        return Check(name=name, found="", problem=problem, fix="enable or mend one of them")
    limits = [f"{each.name} up to {each.vcpus} vCPUs" for each in queue.usable if each.vcpus is not None]
    unknown = [each for environment in queue.usable for each in environment.unknown]
    hint = f"; not known: {', '.join(unknown)}" if unknown and not queue.fargate else ""
    fair = "; needs a share identifier" if queue.fair else ""
    return Check(name=name, found=f"{queue.text}{'; ' if limits else ''}{', '.join(limits)}{hint}{fair}")


def role_check(api: AwsApi, field: str, arn: str, trusted: str = TRUSTED) -> Check:
    """Whether a role is there, and may be taken by a service: by default that of tasks of ECS."""
    name = arn.rpartition("/")[2]
    try:
        role = api.call("iam", "get_role", RoleName=name)["Role"]
    except BackendError as error:
        if is_denied(error):
            return Check(name=field, found=f"{name}, which this identity may not look at")
        return Check(
            name=field, found="", problem=f"the role {name}: {error.message}", fix=f"create it, or name another {field}"
        )
    services = _trusted(role.get("AssumeRolePolicyDocument"))
    if services is None:
        return Check(name=field, found=f"{arn}; whether jobs may take it is not understood from its trust policy")
    if trusted not in services:
        fix = f"let {trusted} take it: sts:AssumeRole in its trust policy"
        return Check(name=field, found="", problem=f"the role {name} cannot be taken by jobs", fix=fix)
    return Check(name=field, found=arn)


def _trusted(document: Any) -> set[str] | None:
    """The services that a trust policy names; None for a policy that says it in other words, such as for everybody.

    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_grammar.html
    """
    if isinstance(document, str):
        try:
            document = json.loads(urllib.parse.unquote(document))
        except ValueError:
            return None
    statements = document.get("Statement") if isinstance(document, Mapping) else None
    services: set[str] = set()
    for each in statements if isinstance(statements, list) else [statements]:
        principal = each.get("Principal") if isinstance(each, Mapping) else None
        if not isinstance(principal, Mapping):
            return None
        names = principal.get("Service", ())
        services |= {names} if isinstance(names, str) else set(names)
    return services


def image_check(api: AwsApi, image: str) -> Iterator[Check]:
    """Whether the image of the settings is in ECR; other registries are asked by the plan."""
    match = _ECR.fullmatch(image)
    if match is None:
        return
    number = {"imageDigest": match["digest"]} if match["digest"] else {"imageTag": match["tag"] or "latest"}
    try:
        api.call(
            "ecr",
            "describe_images",
            registryId=match["account"],
            repositoryName=match["name"],
            imageIds=[number],
        )
    except BackendError as error:
        if is_denied(error):
            yield Check(name="image", found=f"{image}, which this identity may not look at")
        else:
            fix = "push it, or name another `image`"
            yield Check(name="image", found="", problem=f"{image}: {error.message}", fix=fix)
    else:
        yield Check(name="image", found=image)


def store_check(api: AwsApi, store: str, policy: str = _POLICY) -> Iterator[Check]:
    """Whether the bucket of the artifact store can be listed and written."""
    scheme, _, rest = store.partition("://")
    if scheme not in ("s3", "s3a"):
        problem = f"jobs do not see the artifact store {store}"
        if rest and scheme != "file":
            yield Check(name="store", found=f"{store}, which is not looked at from here")
        else:
            yield Check(name="store", found="", problem=problem, fix="artifact_store = 's3://BUCKET/…' of the stack")
        return
    bucket, _, prefix = rest.partition("/")
    key = f"{prefix.strip('/')}/.stoker-probe-{os.urandom(4).hex()}".lstrip("/")
    try:
        api.call("s3", "list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=1)
        api.call("s3", "put_object", Bucket=bucket, Key=key, Body=b"")
        api.call("s3", "delete_object", Bucket=bucket, Key=key)
    except BackendError as error:
        fix = f"it needs s3:ListBucket, s3:GetObject, s3:PutObject and s3:DeleteObject there; {policy}"
        if code_of(error) in ("NoSuchBucket", "404"):
            fix = "create it, in the region of the jobs"
        yield Check(name="store", found="", problem=f"the bucket {bucket}: {error.message}", fix=fix)
    else:
        yield Check(name="store", found=f"{store}, listed and written")


def log_check(api: AwsApi, settings: BatchSettings) -> Iterator[Check]:
    """Whether the log group is there; AWS Batch creates its own, and no other."""
    group = log_group(settings)
    if not group:
        return
    try:
        answer = api.call("logs", "describe_log_groups", logGroupNamePrefix=group)
    except BackendError as error:
        if not is_denied(error):
            raise
        yield Check(name="log group", found=f"{group}, which this identity may not look for")
        return
    there = any(each.get("logGroupName") == group for each in answer.get("logGroups") or ())
    if not there and group != LOG_GROUP:
        fix = f"aws logs create-log-group --log-group-name {group}"
        yield Check(name="log group", found="", problem=f"there is no log group {group}: jobs would not start", fix=fix)
    else:
        yield Check(name="log group", found=group if there else f"{group}, which the first job creates")
