"""Looks at an account as a stack uses it: who asks, training jobs, the role, the image, the artifact store.

Nothing is started.
"""

from __future__ import annotations

from typing import Final, Iterator

from stoker.backends.aws_batch.account import AwsApi, is_denied
from stoker.backends.aws_batch.probe import image_check, role_check, store_check
from stoker.backends.base.backend import Preparation
from stoker.backends.sagemaker.rights import TRUSTED, policies_text
from stoker.backends.sagemaker.settings import SagemakerSettings
from stoker.core.errors import BackendError
from stoker.core.findings import Check

POLICY: Final = "`stoker stacks setup sagemaker` prints the least policy where one is missing"


def checks(api: AwsApi, settings: SagemakerSettings, store: str) -> Iterator[Check]:
    """What a stack with these settings finds; ends at the first thing without which nothing else can be asked."""
    try:
        identity = api.call("sts", "get_caller_identity")
    except BackendError as error:
        yield Check(name="account", found="", problem=error.message, fix=error.fix)
        return
    region = f", {settings.get('region')}" if settings.get("region") else ""
    yield Check(name="account", found=f"{identity.get('Account')}{region}, as {identity.get('Arn')}")
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
