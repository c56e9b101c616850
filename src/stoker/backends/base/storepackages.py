"""The packages by which Python opens artifact stores, for places that Stoker's own installation does not reach."""

from __future__ import annotations

from typing import Final

_PACKAGES: Final = {
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), "adlfs"),
}
"""Protocol of an artifact store → the package, which brings fsspec."""


def store_package(store: str) -> str:
    """The package by which Python opens an artifact store; empty for a folder, and where fsspec knows the protocol."""
    return _PACKAGES.get(store.partition("://")[0], "") if "://" in store else ""
