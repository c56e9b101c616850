"""What is asked of an account outside of a run: who asks, what a stack needs there, least policies, what runs left.

Nothing is started. What may not be looked at is said, and is a problem only where nothing would run without it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import urllib.parse
from typing import Any, Callable, Collection, Final, Generic, Iterator, Mapping, Sequence, TypeVar

import attrs

from stoker.backends.aws.api import PERSON_WAITS, AwsApi, AwsClient, AwsSettings, code_of, is_denied
from stoker.backends.base.backend import LeftJob, Sweep
from stoker.core.errors import BackendError, StokerError
from stoker.core.findings import Check
from stoker.core.imagenames import ECR_HOST

ASKED: Final = 5.0
"""Seconds for an answer while a person waits for several."""
_ECR: Final = re.compile(
    ECR_HOST + r"/(?P<name>[\w./-]{2,}?)(?::(?P<tag>[\w.-]+))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


# Checks


def account_check(api: AwsApi, settings: AwsSettings) -> Check:
    """Who asks AWS, and where."""
    try:
        identity = api.call("sts", "get_caller_identity")
    except BackendError as error:
        return Check(name="account", found="", problem=error.message, fix=error.fix)
    region = f", {settings.get('region')}" if settings.get("region") else ""
    return Check(name="account", found=f"{identity.get('Account')}{region}, as {identity.get('Arn')}")


def role_check(api: AwsApi, field: str, arn: str, trusted: str) -> Check:
    """Whether a role is there, and may be taken by the service that is `trusted`."""
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


def store_check(api: AwsApi, store: str, policy: str) -> Iterator[Check]:
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


def account_checks(
    api: AwsApi, settings: AwsSettings, store: str, *, listed: Iterator[Check], own: Iterator[Check], policy: str
) -> Iterator[Check]:
    """What a stack with these settings finds; ends at the first thing without which nothing else can be asked.

    `listed` asks for what every run needs, and `own` for what else a service has; `policy` says who prints policies.
    """
    yield (who := account_check(api, settings))
    if who.problem:
        return
    yield from listed
    try:
        yield from own
        yield from image_check(api, str(settings.get("image", "")))
        yield from store_check(api, store, policy)
    except BackendError as error:  # it went away between two questions
        yield Check(name="account", found="", problem=error.message, fix=error.fix)


# Policies


AwsRight = tuple[Sequence[str], str]
"""Actions, and the ARN on which they are called, with "{region}", "{account}", "{bucket}", "{prefix}" and "{group}"."""
STORE: Final[Sequence[AwsRight]] = (
    (("s3:GetObject", "s3:PutObject", "s3:DeleteObject"), "arn:aws:s3:::{bucket}/{prefix}*"),
    (("s3:ListBucket",), "arn:aws:s3:::{bucket}"),
)
"""What an artifact store takes."""


def policy(
    rights: Sequence[AwsRight],
    *,
    account: str = "*",
    region: str = "*",
    store: str = "",
    group: str = "",
    passed: Sequence[str] | str = (),
    trusted: str = "",
) -> dict[str, Any]:
    """The least policy that gives rights, and that of handing roles to a service, where there are any."""
    scheme, _, rest = store.partition("://")
    bucket, _, prefix = rest.partition("/") if scheme in ("s3", "s3a") else ("*", "", "")
    prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
    places = {"account": account, "region": region, "bucket": bucket or "*", "prefix": prefix, "group": group}
    statements: list[dict[str, Any]] = [
        {"Effect": "Allow", "Action": list(actions), "Resource": resource.format(**places)}
        for actions, resource in rights
    ]
    if passed:
        condition = {"StringEquals": {"iam:PassedToService": trusted}}
        passing = {"Effect": "Allow", "Action": ["iam:PassRole"], "Resource": passed, "Condition": condition}
        statements.append(passing)
    return {"Version": "2012-10-17", "Statement": statements}


def trust_policy(trusted: str) -> dict[str, Any]:
    """Who may take a role of jobs."""
    statement = {"Effect": "Allow", "Principal": {"Service": trusted}, "Action": "sts:AssumeRole"}
    return {"Version": "2012-10-17", "Statement": [statement]}


def policies_text(policies: Mapping[str, Mapping[str, Any]]) -> str:
    """Policies as AWS's console and command line take them, each below a line that says whose it is."""
    return "\n".join(f"# {whose}\n{json.dumps(policy, indent=2)}" for whose, policy in policies.items())


# What runs left


Client = TypeVar("Client", bound=AwsClient)


@attrs.frozen
class Leftovers(Generic[Client]):
    """What runs without a driver left in accounts: their jobs, and results that wait to be adopted.

    Jobs that are over cost nothing.
    """

    client: type[Client]
    settings: type[AwsSettings]
    told_apart: Sequence[str] = ("profile", "region", "endpoint_url")
    """The settings by which one place differs from another."""

    @contextlib.contextmanager
    def asked(self, options: Mapping[str, Any]) -> Iterator[tuple[Client, Any]]:
        """A client that has an answer of AWS while a person waits, and the settings; closed at the end."""
        settings = self.settings(**options)
        with contextlib.closing(self.client(settings, patience=PERSON_WAITS)) as client:
            yield client, settings

    def sweep(self, parts: Sequence[Mapping[str, Any]], sweep: Sweep, clean: Callable[[Client], None]) -> None:
        """`clean` each account; what does not answer is said."""
        for part in parts:
            try:
                for client in self.accounts([part]):
                    clean(client)
            except StokerError as error:
                sweep.say(error.message)

    def accounts(self, parts: Sequence[Mapping[str, Any]]) -> Iterator[Client]:
        """A client of each account that parts of stacks name."""
        seen: list[Sequence[Any]] = []
        for part in parts:
            settings = self.settings(**part)
            place = [settings.get(name) for name in self.told_apart]
            if place not in seen:
                seen.append(place)
                with contextlib.closing(self.client(settings, patience=ASKED)) as client:
                    yield client

    def left_jobs(self, parts: Sequence[Mapping[str, Any]], scratch: str, runs: Collection[str]) -> Iterator[LeftJob]:
        """The jobs of runs that go on, and those that went well."""
        for client in self.accounts(parts):
            for run in runs:
                for name, running in client.left(run):
                    yield LeftJob(run=run, name=name, running=running)

    def end_left(self, parts: Sequence[Mapping[str, Any]], scratch: str, run: str, grace: float) -> Iterator[LeftJob]:
        """End the jobs of a run that go on."""
        for client in self.accounts(parts):
            for name, running in list(client.left(run)):
                if running:
                    client.end(name)
                    yield LeftJob(run=run, name=name, running=True)

    def end_recorded(self, options: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]]) -> Sequence[str]:
        """End jobs that a driver left, as it recorded them; the names of those that were there."""
        with contextlib.closing(self.client(self.settings(**options), patience=ASKED)) as client:
            return list(client.end_identified(jobs))
