"""The region of a person's AWS account, as a stack is made. botocore is not needed for it."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any, Final

from stoker.core.errors import SettingsError
from stoker.core.units import UNSET, parse_text

_REGION: Final = re.compile(r"[a-z]{2,}(?:-[a-z]+)+-\d+")


def complete_region(region: str) -> str:
    """A region as the settings take it."""
    if not _REGION.fullmatch(region.strip().lower()):
        raise SettingsError(f"{region!r} is no region of AWS", fix="write one such as eu-west-1")
    return region.strip().lower()


def parse_region(value: Any) -> Any:
    """`region` of a backend's settings."""
    return value if value is None or value is UNSET else complete_region(str(parse_text(value)))


def usual_region() -> str:
    """The region of the environment, or of the profile that it names in ~/.aws/config."""
    import configparser

    named = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if named:
        return named
    # https://docs.aws.amazon.com/sdkref/latest/guide/file-format.html
    profile = os.environ.get("AWS_PROFILE", "default")
    parser = configparser.RawConfigParser()
    with contextlib.suppress(configparser.Error):
        parser.read(os.environ.get("AWS_CONFIG_FILE") or os.path.expanduser("~/.aws/config"), encoding="utf-8")
    section = "default" if profile == "default" else f"profile {profile}"
    region = parser.get(section, "region", fallback="")
    if not region:
        raise SettingsError("no region is named", fix="--region eu-west-1, or AWS_DEFAULT_REGION")
    return region
