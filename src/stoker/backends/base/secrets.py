"""Secrets of a step as files, and credentials for the artifact store.

They are read when a job is sent and go into its container only: neither into the image, nor into what an engine shows
of the container, nor into the plan.
"""

from __future__ import annotations

import os
from typing import Final, Mapping

from stoker.core.errors import BackendError

CREDENTIALS: Final[Mapping[str, tuple[str, ...]]] = {
    # What each protocol's library reads of its environment.
    # https://boto3.amazonaws.com/v1/documentation/api/latest/guide/configuration.html#using-environment-variables
    # and https://s3fs.readthedocs.io/en/latest/#credentials
    "s3": ("AWS_", "FSSPEC_S3"),
    "s3a": ("AWS_", "FSSPEC_S3"),
    # https://gcsfs.readthedocs.io/en/latest/#credentials
    "gs": ("GOOGLE_", "GCSFS_", "CLOUDSDK_", "FSSPEC_GS", "FSSPEC_GCS"),
    "gcs": ("GOOGLE_", "GCSFS_", "CLOUDSDK_", "FSSPEC_GS", "FSSPEC_GCS"),
    # https://github.com/fsspec/adlfs#setting-credentials
    "az": ("AZURE_", "FSSPEC_AZ", "FSSPEC_ABFS"),
    "abfs": ("AZURE_", "FSSPEC_AZ", "FSSPEC_ABFS"),
    "abfss": ("AZURE_", "FSSPEC_AZ", "FSSPEC_ABFS"),
    # https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
    "hf": ("HF_TOKEN", "HF_ENDPOINT"),
}
"""protocol of the artifact store → beginnings of the variables that open it"""


def credentials(store: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables by which the artifact store is opened; none for one that is a folder."""
    protocol, there, _ = store.partition("://")
    beginnings = CREDENTIALS.get(protocol, (f"FSSPEC_{protocol.upper()}",)) if there else ()
    if not beginnings:
        return {}
    return {name: text for name, text in environment.items() if name.startswith(beginnings)}


def contents(sources: Mapping[str, str]) -> dict[str, bytes]:
    """What each secret's file holds; a source that is not there is a `BackendError` that names it."""
    data = {}
    for name, source in sources.items():
        missing = missing_source(source)
        if missing:
            raise BackendError(f"the secret '{name}' is not there: {missing}", fix=source_fix(source))
        data[name] = _content(source)
    return data


def missing_source(source: str) -> str:
    """Why a secret cannot be read; empty where it can."""
    if source.startswith("env:"):
        variable = source.removeprefix("env:")
        return "" if variable in os.environ else f"the environment variable {variable} is not set"
    path = os.path.expanduser(source)
    return "" if os.access(path, os.R_OK) and os.path.isfile(path) else f"the file {source} cannot be read"


def source_fix(source: str) -> str:
    """What to do where a secret is not at the place that is named."""
    return f"export {source.removeprefix('env:')}=…" if source.startswith("env:") else "name another file, or env:NAME"


def _content(source: str) -> bytes:
    if source.startswith("env:"):
        return os.environ[source.removeprefix("env:")].encode("utf-8", "surrogateescape")
    with open(os.path.expanduser(source), "rb") as file:
        return file.read()
