"""What a step says of AWS Batch beside its resources: the words of `@batch`, checked, for the backend that renders.

Words are Metaflow's (https://docs.metaflow.org/api/step-decorators/batch). `trainium` and `inferentia` are accelerators
and stand among the resources. A field that is not given is `UNSET`.
"""

from __future__ import annotations

from typing import Any, Mapping

import attrs

from stoker.core.errors import SettingsError
from stoker.core.kubernetes import given_flag, given_mapping, given_pairs, given_text, given_texts, given_whole
from stoker.core.units import UNSET, strict


def given_swappiness(value: Any) -> Any:
    """0 to 100 (https://docs.aws.amazon.com/batch/latest/APIReference/API_LinuxParameters.html)."""
    found = given_whole(value)
    if isinstance(found, int) and found > 100:
        raise SettingsError(f"{value!r} is more than 100", fix="write 0 to 100")
    return found


def given_volumes(value: Any) -> Any:
    """Paths, or a mapping that says where they are mounted."""
    if isinstance(value, Mapping):
        return given_mapping(value)
    return given_texts(value)


@strict
@attrs.frozen(kw_only=True)
class BatchSettings:
    """The words of `@batch` that are no resources. `max_swap` and sizes of tmpfs are MiB, `ephemeral_storage` GiB."""

    image: str | None = attrs.field(default=UNSET, converter=given_text)
    queue: str | None = attrs.field(default=UNSET, converter=given_text)
    iam_role: str | None = attrs.field(default=UNSET, converter=given_text)
    execution_role: str | None = attrs.field(default=UNSET, converter=given_text)
    max_swap: int | None = attrs.field(default=UNSET, converter=given_whole)
    swappiness: int | None = attrs.field(default=UNSET, converter=given_swappiness)
    aws_batch_tags: Mapping[str, str] | None = attrs.field(default=UNSET, converter=given_pairs)
    use_tmpfs: bool | None = attrs.field(default=UNSET, converter=given_flag)
    tmpfs_tempdir: bool | None = attrs.field(default=UNSET, converter=given_flag)
    tmpfs_size: int | None = attrs.field(default=UNSET, converter=given_whole)
    tmpfs_path: str | None = attrs.field(default=UNSET, converter=given_text)
    efa: int | None = attrs.field(default=UNSET, converter=given_whole)
    host_volumes: Any = attrs.field(default=UNSET, converter=given_volumes)
    efs_volumes: Any = attrs.field(default=UNSET, converter=given_volumes)
    ephemeral_storage: int | None = attrs.field(default=UNSET, converter=given_whole)
    log_driver: str | None = attrs.field(default=UNSET, converter=given_text)
    log_options: tuple[str, ...] | None = attrs.field(default=UNSET, converter=given_texts)
    executable: str | None = attrs.field(default=UNSET, converter=given_text)
    privileged: bool | None = attrs.field(default=UNSET, converter=given_flag)
