"""The words of `@batch` beside resources, checked, for a backend to render.

They are Metaflow's (https://docs.metaflow.org/api/step-decorators/batch). A field that is not given is `UNSET`.
"""

from __future__ import annotations

from typing import Any, Mapping

import attrs

from stoker.backends.kubernetes.settings import parse_flag_word, parse_listed_texts, parse_pairs
from stoker.core.errors import SettingsError
from stoker.core.units import UNSET, parse_count, parse_mapping, parse_text, strict


def parse_swappiness(value: Any) -> Any:
    """0 to 100 (https://docs.aws.amazon.com/batch/latest/APIReference/API_LinuxParameters.html)."""
    found = parse_count(value)
    if isinstance(found, int) and found > 100:
        raise SettingsError(f"{value!r} is more than 100", fix="write 0 to 100")
    return found


def parse_volumes(value: Any) -> Any:
    """Paths, or a mapping that says where they are mounted."""
    if isinstance(value, Mapping):
        return parse_mapping(value)
    return parse_listed_texts(value)


@strict
@attrs.frozen(kw_only=True)
class BatchSettings:
    """How the job of a step on AWS Batch is to be; the fields' own words are those of a job definition."""

    image: str | None = attrs.field(default=UNSET, converter=parse_text)
    """The image of the container."""
    queue: str | None = attrs.field(default=UNSET, converter=parse_text)
    """`jobQueue`."""
    iam_role: str | None = attrs.field(default=UNSET, converter=parse_text)
    """`jobRoleArn`."""
    execution_role: str | None = attrs.field(default=UNSET, converter=parse_text)
    """`executionRoleArn`, for Fargate."""
    max_swap: int | None = attrs.field(default=UNSET, converter=parse_count)
    """`linuxParameters.maxSwap`, in MiB."""
    swappiness: int | None = attrs.field(default=UNSET, converter=parse_swappiness)
    """`linuxParameters.swappiness`, 0 to 100."""
    aws_batch_tags: Mapping[str, str] | None = attrs.field(default=UNSET, converter=parse_pairs)
    """`tags` of the job."""
    use_tmpfs: bool | None = attrs.field(default=UNSET, converter=parse_flag_word)
    """Mount a file system in memory (`linuxParameters.tmpfs`)."""
    tmpfs_tempdir: bool | None = attrs.field(default=UNSET, converter=parse_flag_word)
    """Make it the folder of temporary files."""
    tmpfs_size: int | None = attrs.field(default=UNSET, converter=parse_count)
    """Its size in MiB."""
    tmpfs_path: str | None = attrs.field(default=UNSET, converter=parse_text)
    """Where it is mounted."""
    efa: int | None = attrs.field(default=UNSET, converter=parse_count)
    """Elastic Fabric Adapters of the container."""
    host_volumes: Any = attrs.field(default=UNSET, converter=parse_volumes)
    """Folders of the host: paths, or a mapping that says where they are mounted."""
    efs_volumes: Any = attrs.field(default=UNSET, converter=parse_volumes)
    """File systems of EFS: their ids, or a mapping that says where they are mounted."""
    ephemeral_storage: int | None = attrs.field(default=UNSET, converter=parse_count)
    """`ephemeralStorage` in GiB, for Fargate."""
    log_driver: str | None = attrs.field(default=UNSET, converter=parse_text)
    """`logConfiguration.logDriver`."""
    log_options: tuple[str, ...] | None = attrs.field(default=UNSET, converter=parse_listed_texts)
    """`logConfiguration.options`, each as "key:value"."""
    executable: str | None = attrs.field(default=UNSET, converter=parse_text)
    """The interpreter in the image."""
    privileged: bool | None = attrs.field(default=UNSET, converter=parse_flag_word)
    """Whether the container has the rights of the host."""
