"""How the ranks of a distributed step are started, as a value: which launcher, and with which arguments.

A layer holds `{"launcher": "accelerate", "num_processes": 4, "arguments": {"mixed_precision": "bf16"}}` or a part of
that. The launchers themselves, and what may be written for each, are in `launchers`.
"""

from __future__ import annotations

from typing import Any, Final, Literal, Mapping

import attrs

from stoker.core.units import UNSET
from stoker.core.values import frozen

Outputs = Literal["main", "all"]
OUTPUTS: Final[tuple[Outputs, ...]] = ("main", "all")


@frozen(kw_only=True)
class Launch:
    """How a step's ranks are started. Made by `Accelerate(…)` and its like; a field not given is `UNSET`.

    Where neither number is given, each accelerator gets one rank, and a node without any runs one.
    """

    launcher: str = UNSET
    """The launcher's name."""
    num_processes: int | None = UNSET
    """Ranks on all nodes."""
    processes_per_node: int | None = UNSET
    """Ranks on each node."""
    outputs: Outputs = UNSET
    """"main": rank 0's return value is the step's; "all": a list of every rank's."""
    hang_after: float | None = UNSET
    """Seconds in which no rank does anything, after which the step is ended; None for no limit."""
    gang_timeout: float | None = UNSET
    """Seconds that nodes wait for each other; None for no limit."""
    start_timeout: float | None = UNSET
    """Seconds within which the launcher must have started all ranks of a node; None for no limit."""
    one_world: bool = UNSET
    """Whether all ranks form one world: a framework that counts another number of ranks fails the step."""
    command: tuple[str, ...] | None = UNSET
    """The words of a launcher of the user's own."""
    arguments: Mapping[str, Any] = attrs.field(default=UNSET)
    """The launcher's own arguments by their Python names."""


# 10 minutes is NCCL's own limit for one collective (torch.distributed's default timeout with NCCL,
# https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group); nodes of one gang may be
# minutes apart while images are pulled. A launcher imports torch before it starts ranks, which takes up to two minutes
# from a cold network disk; ranks report before they import any framework.
DEFAULTS: Final = Launch(
    launcher="single",
    num_processes=None,
    processes_per_node=None,
    outputs="main",
    hang_after=600.0,
    gang_timeout=600.0,
    start_timeout=300.0,
    one_world=True,
    command=None,
    arguments={},
)
"""What a step on several nodes is started by that names no launcher: itself, once on each."""
LIMITS: Final = ("hang_after", "gang_timeout", "start_timeout")
"""Durations of which None says that there is no limit."""
OWN: Final = tuple(field.name for field in attrs.fields(Launch) if field.name != "arguments")
"""Words of Stoker's own; all others are the launcher's."""


def plain(launch: Launch) -> dict[str, Any]:
    """The fields that were given, as a layer holds them."""
    fields = attrs.asdict(launch, recurse=False, filter=lambda _, value: value is not UNSET)
    if fields.get("command") is not None:
        fields["command"] = list(fields["command"])
    if "arguments" in fields:
        fields["arguments"] = dict(fields["arguments"])
    return fields
