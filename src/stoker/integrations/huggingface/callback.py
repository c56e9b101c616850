"""`StokerCallback`: a callback of `transformers.Trainer` that logs what the trainer logs as metrics of the step.

    trainer = Trainer(..., callbacks=[StokerCallback()])

Transformers must be installed where the step runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping

from stoker.worker.metrics import log_metadata, log_metrics

if TYPE_CHECKING:
    TrainerCallback = object
else:
    from transformers import TrainerCallback


class StokerCallback(TrainerCallback):
    """Logs numbers at the trainer's global step, and at the start the arguments that are numbers or texts."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Log the training's arguments as facts."""
        given = args.to_dict()
        log_metadata({name: value for name, value in given.items() if isinstance(value, (bool, int, float, str))})

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **more: Any) -> None:
        """Log the numbers of one of the trainer's logs."""
        numbers = {name: value for name, value in (logs or {}).items() if isinstance(value, (int, float))}
        log_metrics(numbers, step=state.global_step)
