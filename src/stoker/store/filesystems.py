"""The file systems of fsspec that stores use, as the environment says now, not as it said at the first use; and what to
do where one cannot be reached."""

from __future__ import annotations

import os
import threading
from typing import Any, Final, Mapping

from stoker.core.values import frozen

_PREFIXES: Final = ("AWS_", "AZURE_", "BOTO", "FSSPEC_", "GCE_", "GCSFS_", "GOOGLE_", "OCI", "S3")
"""The first letters of the variables from which file systems take addresses and credentials: those of botocore,
google-auth, azure-identity, OCI's SDK, s3fs, gcsfs and fsspec itself."""
_AWS: Final = (
    "log in by `aws configure` or `aws sso login`, with AWS_PROFILE=NAME for another profile of ~/.aws/config than "
    "default; or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_SESSION_TOKEN where they are temporary"
)
_GOOGLE: Final = (
    "log in by `gcloud auth application-default login`; or set GOOGLE_APPLICATION_CREDENTIALS to the file of a service "
    "account's key"
)
_AZURE: Final = (
    "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_STORAGE_CONNECTION_STRING; or, with the "
    "account's name, log in by `az login`"
)


@frozen
class _ObjectStore:
    """What a kind of object store takes of a person and a machine."""

    package: str
    """The package by which Python opens it; it brings fsspec."""
    login: str
    """How a person gets credentials that the package finds by itself."""


_OBJECT_STORES: Final[Mapping[str, _ObjectStore]] = {
    **dict.fromkeys(("s3", "s3a"), _ObjectStore(package="s3fs", login=_AWS)),
    **dict.fromkeys(("gs", "gcs"), _ObjectStore(package="gcsfs", login=_GOOGLE)),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), _ObjectStore(package="adlfs", login=_AZURE)),
}
"""By the scheme of their URIs."""
_PROFILES: Final = (
    "AWS_PROFILE names no profile of this machine: `aws configure list-profiles` prints those that it has"
)
_EXPIRED: Final = "the login is over or was never made: `aws sso login`, with --profile NAME where AWS_PROFILE is set"
_BUCKET: Final = "correct the bucket's name in artifact_store, or make the bucket: `aws s3 mb s3://NAME`"
_RIGHTS: Final = (
    "`aws sts get-caller-identity` says who you are; that identity needs s3:ListBucket on the bucket, and "
    "s3:GetObject, s3:PutObject and s3:DeleteObject on what is in it. For another identity "
)
_FIXES: Final[Mapping[str, str]] = {
    "NoCredentialsError": _AWS,
    "PartialCredentialsError": _AWS,
    "CredentialRetrievalError": _AWS,
    "ProfileNotFound": _PROFILES,
    "SSOTokenLoadError": _EXPIRED,
    "TokenRetrievalError": _EXPIRED,
    "UnauthorizedSSOTokenError": _EXPIRED,
    "DefaultCredentialsError": _GOOGLE,
    "RefreshError": _GOOGLE,
    "ClientAuthenticationError": _AZURE,
}
"""Errors of botocore, google-auth and azure-core by the names of their classes → what to do: no package of a cloud is
imported for it."""
_environments: dict[Any, tuple[tuple[str, str], ...]] = {}
"""Class of file systems → the variables when it was last asked for one."""
_lock = threading.Lock()


def url_to_fs(uri: str) -> tuple[Any, str]:
    """fsspec's file system of a URI, which may be a chain ("simplecache::s3://…") or a plain path, and the path in it.

    fsspec keeps a file system for as long as the process lives, with the credentials that it found at first. It is made
    anew when a variable has changed since then: whoever sets AWS_PROFILE in a notebook after a failure need not start
    the kernel again.

    Raises:
        ImportError: The package of the file system is not installed.
        ValueError: fsspec knows no such scheme.
    """
    import fsspec

    schemes = [part.partition("://")[0] for part in uri.split("::")] if "://" in uri else ["file"]
    kinds = [fsspec.get_filesystem_class(scheme) for scheme in schemes]
    now = tuple(sorted((name, text) for name, text in os.environ.items() if name.startswith(_PREFIXES)))
    with _lock:
        for kind in kinds:
            if _environments.get(kind) != now:  # also at the first time: others may have asked fsspec before
                kind.clear_instance_cache()
                _environments[kind] = now
        system, path = fsspec.core.url_to_fs(uri)
    return system, path


def store_package(uri: str) -> str:
    """The package by which Python opens an artifact store; empty for a folder, and where fsspec knows the scheme."""
    scheme, separator, _ = uri.partition("://")
    store = _OBJECT_STORES.get(scheme) if separator else None
    return "" if store is None else store.package


def package_fix(uri: str) -> str:
    """What a person does who lacks the package of a URI's file system."""
    package = store_package(uri)
    return f"pip install {package}" if package else "install the package that it names"


def fix_of(uri: str, error: BaseException) -> str:
    """What a person does about an error of the file system of a URI."""
    scheme = uri.partition("://")[0]
    for kind in type(error).__mro__:
        if kind.__name__ in _FIXES:
            return _FIXES[kind.__name__]
    if scheme in ("s3", "s3a") and isinstance(error, FileNotFoundError):
        return _BUCKET
    if scheme in ("s3", "s3a") and isinstance(error, PermissionError):
        return _RIGHTS + _AWS
    if scheme in _OBJECT_STORES:
        return f"check the address and the network. Without credentials, {_OBJECT_STORES[scheme].login}"
    return "check the address, your credentials for it, and the network"
