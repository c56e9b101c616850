"""The words of `@batch` beside resources, checked, for a backend to render.

They are Metaflow's (https://docs.metaflow.org/api/step-decorators/batch). A field that is not given is `UNSET`.
"""

from __future__ import annotations

from typing import Any, Mapping

import attrs

from stoker.backends.kubernetes.settings import (
    given_flag,
    given_mapping,
    given_pairs,
    given_text,
    given_texts,
    given_whole,
)
from stoker.core.errors import SettingsError
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
    """How the job of a step on AWS Batch is to be; the fields' own words are those of a job definition."""

    image: str | None = attrs.field(default=UNSET, converter=given_text)
    """The image of the container."""
    queue: str | None = attrs.field(default=UNSET, converter=given_text)
    """`jobQueue`."""
    iam_role: str | None = attrs.field(default=UNSET, converter=given_text)
    """`jobRoleArn`."""
    execution_role: str | None = attrs.field(default=UNSET, converter=given_text)
    """`executionRoleArn`, for Fargate."""
    max_swap: int | None = attrs.field(default=UNSET, converter=given_whole)
    """`linuxParameters.maxSwap`, in MiB."""
    swappiness: int | None = attrs.field(default=UNSET, converter=given_swappiness)
    """`linuxParameters.swappiness`, 0 to 100."""
    aws_batch_tags: Mapping[str, str] | None = attrs.field(default=UNSET, converter=given_pairs)
    """`tags` of the job."""
    use_tmpfs: bool | None = attrs.field(default=UNSET, converter=given_flag)
    """Mount a file system in memory (`linuxParameters.tmpfs`)."""
    tmpfs_tempdir: bool | None = attrs.field(default=UNSET, converter=given_flag)
    """Make it the folder of temporary files."""
    tmpfs_size: int | None = attrs.field(default=UNSET, converter=given_whole)
    """Its size in MiB."""
    tmpfs_path: str | None = attrs.field(default=UNSET, converter=given_text)
    """Where it is mounted."""
    efa: int | None = attrs.field(default=UNSET, converter=given_whole)
    """Elastic Fabric Adapters of the container."""
    host_volumes: Any = attrs.field(default=UNSET, converter=given_volumes)
    """Folders of the host: paths, or a mapping that says where they are mounted."""
    efs_volumes: Any = attrs.field(default=UNSET, converter=given_volumes)
    """File systems of EFS: their ids, or a mapping that says where they are mounted."""
    ephemeral_storage: int | None = attrs.field(default=UNSET, converter=given_whole)
    """`ephemeralStorage` in GiB, for Fargate."""
    log_driver: str | None = attrs.field(default=UNSET, converter=given_text)
    """`logConfiguration.logDriver`."""
    log_options: tuple[str, ...] | None = attrs.field(default=UNSET, converter=given_texts)
    """`logConfiguration.options`, each as "key:value"."""
    executable: str | None = attrs.field(default=UNSET, converter=given_text)
    """The interpreter in the image."""
    privileged: bool | None = attrs.field(default=UNSET, converter=given_flag)
    """Whether the container has the rights of the host."""
