"""The file systems of fsspec that stores use: what the environment says now, not what it said at the first use."""

from __future__ import annotations

import os
import threading
from typing import Any, Final

_READ: Final = ("AWS_", "AZURE_", "BOTO", "FSSPEC_", "GCE_", "GCSFS_", "GOOGLE_", "OCI", "S3")
"""The first letters of the variables from which file systems take addresses and credentials: those of botocore,
google-auth, azure-identity, OCI's SDK, s3fs, gcsfs and fsspec itself."""
_seen: dict[Any, tuple[tuple[str, str], ...]] = {}
"""Class of file systems → the variables when it was last asked for one."""
_lock = threading.Lock()


def url_to_fs(uri: str) -> tuple[Any, str]:
    """fsspec's file system of a URI, which may be a chain ("simplecache::s3://…"), and the path in it.

    fsspec keeps a file system for as long as the process lives, with the credentials that it found at first. It is made
    anew when a variable has changed since then: whoever sets AWS_PROFILE in a notebook after a failure need not start
    the kernel again.

    Raises:
        ImportError: The package of the file system is not installed.
        ValueError: fsspec knows no such scheme.
    """
    import fsspec

    kinds = [fsspec.get_filesystem_class(part.partition("://")[0]) for part in uri.split("::")]
    now = tuple(sorted((name, text) for name, text in os.environ.items() if name.startswith(_READ)))
    with _lock:
        for kind in kinds:
            if _seen.setdefault(kind, now) != now:
                kind.clear_instance_cache()
                _seen[kind] = now
        system, path = fsspec.core.url_to_fs(uri)
    return system, path
