"""`StokerLogger`: a logger of Lightning that logs metrics of the step.

    trainer = Trainer(logger=StokerLogger())

Lightning must be installed where the step runs; `pytorch_lightning`, its other name, does too.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, Mapping

from stoker.worker.context import context
from stoker.worker.metrics import log_metadata, log_metrics

if TYPE_CHECKING:
    Logger = object
else:
    _NAME = "lightning.pytorch" if importlib.util.find_spec("lightning") else "pytorch_lightning"
    Logger = importlib.import_module(f"{_NAME}.loggers.logger").Logger

__all__ = ["StokerLogger"]


class StokerLogger(Logger):
    """Logs what modules log, and their hyperparameters as facts."""

    @property
    def name(self) -> str:
        """The step's key."""
        return context.step

    @property
    def version(self) -> str:
        """The run's id and the attempt."""
        return f"{context.run_id}-{context.attempt}"

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log numbers."""
        log_metrics(metrics, step=step)

    def log_hyperparams(self, params: Any, *arguments: Any, **keywords: Any) -> None:
        """Log the hyperparameters that are numbers or texts as facts."""
        given = params if isinstance(params, Mapping) else vars(params)
        log_metadata({str(name): value for name, value in given.items() if isinstance(value, (bool, int, float, str))})
