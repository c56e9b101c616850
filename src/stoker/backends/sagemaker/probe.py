"""Looks at an account as a stack uses it: who asks, training jobs, the role, the image, the artifact store.

Nothing is started.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final, Iterator, Mapping

from stoker.backends.aws_batch.account import is_denied
from stoker.backends.aws_batch.probe import image_check, role_check, store_check
from stoker.backends.base.aws import PERSON_WAITS, AwsApi, account_check
from stoker.backends.base.backend import Preparation, ProbeRequest
from stoker.backends.sagemaker.client import SagemakerClient
from stoker.backends.sagemaker.rights import TRUSTED, policies_text
from stoker.backends.sagemaker.settings import SagemakerSettings
from stoker.core.errors import BackendError
from stoker.core.findings import Check

POLICY: Final = "`stoker stacks setup sagemaker` prints the least policy where one is missing"


def probe(options: Mapping[str, Any], request: ProbeRequest) -> Iterator[Check]:
    """For `stoker doctor --stack`: what `checks` finds, with an answer of AWS while a person waits."""
    settings = SagemakerSettings(**options)
    with contextlib.closing(SagemakerClient(settings, patience=PERSON_WAITS)) as client:
        yield from checks(client, settings, request.store)


def checks(api: AwsApi, settings: SagemakerSettings, store: str) -> Iterator[Check]:
    """What a stack with these settings finds; ends at the first thing without which nothing else can be asked."""
    yield (who := account_check(api, settings))
    if who.problem:
        return
    try:
        api.call("sagemaker", "list_training_jobs", MaxResults=1)
    except BackendError as error:
        fix = f"the account needs sagemaker:ListTrainingJobs; {POLICY}" if is_denied(error) else error.fix
        yield Check(name="training jobs", found="", problem=error.message, fix=fix)
    else:
        yield Check(name="training jobs", found="listed")
    try:
        if settings.get("role"):
            yield role_check(api, "role", str(settings.get("role")), TRUSTED)
        else:
            fix = "name one: role = 'arn:aws:iam::…:role/…'"
            yield Check(name="role", found="", problem="jobs have no role, and do not start without one", fix=fix)
        yield from image_check(api, str(settings.get("image", "")))
        yield from store_check(api, store, POLICY)
    except BackendError as error:  # it went away between two questions
        yield Check(name="account", found="", problem=error.message, fix=error.fix)


def prepare(api: AwsApi, settings: SagemakerSettings, store: str) -> Preparation | None:
    """The least policies where this identity may not list training jobs, or jobs have no role; None otherwise."""
    identity = api.call("sts", "get_caller_identity")
    what = "" if settings.get("role") else "a role of training jobs, with these policies; name it as `role`"
    try:
        api.call("sagemaker", "list_training_jobs", MaxResults=1)
    except BackendError as error:
        if not is_denied(error):
            raise
        what = f"rights for {identity.get('Arn')}: {error.message}"
    if not what:
        return None
    account, region = str(identity.get("Account") or "*"), str(settings.get("region", "*"))
    text = policies_text(settings, account=account, region=region, store=store)
    return Preparation(text=text, what=what, apply=None)
