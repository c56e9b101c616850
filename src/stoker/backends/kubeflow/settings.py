"""The settings of the kubeflow backend: which endpoint, who asks, and what the pods of tasks are to be.

The fields of a pod are those of `KubernetesSettings`, by the same names; `kubeflow.requests` says which of them KFP's
platform specification can express. ZenML's `KubeflowOrchestratorSettings` keep their names (`ALIASES`).
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, Mapping

import attrs

from stoker.backends.kubernetes.settings import KubernetesSettings, parse_seconds
from stoker.core.errors import SettingsError
from stoker.core.units import UNSET, WHOLE_RUN, parse_positive_count, parse_text, parse_verify, strict

PATIENCE: Final = 600.0
"""Seconds for which a task waits for its order: so long may a driver be away before its tasks give up their nodes."""
FANOUT: Final = 8
"""Pods of a fan-out, each of which takes one element after another."""


def parse_host(value: Any) -> Any:
    """`host`: the endpoint, with its scheme."""
    text = parse_text(value)
    if text is UNSET or text is None:
        return text
    if not text.startswith(("http://", "https://")):
        fix = f"write https://{text.partition('://')[2] or text}"
        raise SettingsError(f"'{text}' is no address of a web server", fix=fix)
    return text.rstrip("/")


@strict
@attrs.frozen(kw_only=True)
class KubeflowSettings(KubernetesSettings):
    """Where Kubeflow Pipelines answers, and how a step's pod is to be."""

    ALIASES: ClassVar[Mapping[str, str]] = {
        **KubernetesSettings.ALIASES,
        "user_namespace": "namespace",
        "client_username": "username",
        "client_password": "password",
        "kubeflow_hostname": "host",
        "client_id": "iap_client_id",
    }
    """The name that ZenML or the API has for a field → the field."""
    INSTEAD: ClassVar[Mapping[str, str]] = {
        **KubernetesSettings.INSTEAD,
        "client_args": "host, token, username and password of these settings",
        "kubeflow_namespace": "host: the endpoint itself; namespace is that of the user's profile",
    }
    """A name that people know from elsewhere → what to write."""

    host: str | None = attrs.field(default=UNSET, converter=parse_host, metadata=WHOLE_RUN)
    """The endpoint of Kubeflow Pipelines, such as "https://kubeflow.example.org/pipeline"."""
    experiment: str | None = attrs.field(default=UNSET, converter=parse_text, metadata=WHOLE_RUN)
    """The experiment that gets the runs; the pipeline's name where nothing is given. It is made if it is missing."""
    service_account: str | None = attrs.field(default=UNSET, converter=parse_text, metadata=WHOLE_RUN)
    """The service account of all pods of the run; the endpoint's default where nothing is given."""
    pipeline_root: str | None = attrs.field(default=UNSET, converter=parse_text, metadata=WHOLE_RUN)
    """Where KFP keeps what is its own; the endpoint's default where nothing is given."""
    token: str | None = attrs.field(default=UNSET, converter=parse_text, metadata=WHOLE_RUN)
    """A bearer token: "env:NAME", or a file, which is read before each request. In a pod, the service account's
    (https://www.kubeflow.org/docs/components/pipelines/user-guides/core-functions/connect-api/)."""
    iap_client_id: str | None = attrs.field(default=UNSET, converter=parse_text, metadata=WHOLE_RUN)
    """The OAuth client of Google's Identity-Aware Proxy before the endpoint: its tokens come from gcloud, or from the
    metadata server of a machine of Google's."""
    username: str | None = attrs.field(default=UNSET, converter=parse_text, metadata=WHOLE_RUN)
    """Who logs in by Dex's form."""
    password: str | None = attrs.field(default=UNSET, converter=parse_text, metadata=WHOLE_RUN)
    """The password: "env:NAME", or a file."""
    verify: bool | str | None = attrs.field(default=UNSET, converter=parse_verify, metadata=WHOLE_RUN)
    """Whether the endpoint's certificate is checked, or the file of those that are trusted."""
    patience: float | str | None = attrs.field(default=UNSET, converter=parse_seconds, metadata=WHOLE_RUN)
    """How long a task waits for the driver's order before it ends: "10m" where nothing is given."""
    fanout: int | None = attrs.field(default=UNSET, converter=parse_positive_count)
    """Pods of a fan-out: each takes one element after another. 8 where nothing is given."""
