"""The settings that name an account and its region. botocore is not needed for them."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any, Callable, Final, Mapping

import attrs

from stoker.core.errors import SettingsError
from stoker.core.units import UNSET, WHOLE_RUN, parse_text

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


@attrs.frozen(kw_only=True)
class AwsSettings:
    """The account and region of a backend on AWS."""

    region: str | None = attrs.field(default=UNSET, converter=parse_region, metadata=WHOLE_RUN)
    """The region; without it that of the environment or of the profile."""
    profile: str | None = attrs.field(default=UNSET, converter=parse_text, metadata=WHOLE_RUN)
    """The profile of ~/.aws; without it the environment's."""
    endpoint_url: str | None = attrs.field(default=UNSET, converter=parse_text, metadata=WHOLE_RUN)
    """The address of the services instead of AWS's own, such as a private gateway."""

    def get(self, name: str, default: Any = None) -> Any:
        """The field's value, or `default` where nothing was asked."""
        value = getattr(self, name)
        return default if value is UNSET or value is None else value


def image_of_settings(kind: type[Any]) -> Callable[[Mapping[str, Any]], str]:
    """Says which image settings of this class name."""
    return lambda options: str(kind(**options).get("image", ""))
