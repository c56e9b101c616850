"""Logs what steps tell other libraries as metrics, too: TensorBoard, MLflow, Weights & Biases (`track=` of a step).

The libraries' own methods are wrapped while the step runs, as soon as it imports them. A call does what it always does;
what of it is no number is passed over.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from typing import Any, Callable, Final, Iterator, Mapping, Sequence

import attrs

from stoker.core.errors import UsageError
from stoker.worker.context import context
from stoker.worker.imports import call_on_import
from stoker.worker.metrics import log_metadata, log_metrics

Arguments = Mapping[str, Any]
BACK: Final = "stoker.step"
"""The tag of MLflow's run, and the entry of a W&B run's config, with the run and the step as "RUN/STEP"."""


@attrs.frozen
class Tracked:
    """A method of a library, and what its calls say."""

    module: str
    owner: str
    """The class."""
    method: str
    log: Callable[[Arguments], None]
    """Gets the arguments by name, `self` among them, before the call."""


def _scalar(call: Arguments) -> None:
    _log({call["tag"]: call["scalar_value"]}, call.get("global_step"))


def _scalars(call: Arguments) -> None:
    numbers = {f"{call['main_tag']}/{name}": value for name, value in call["tag_scalar_dict"].items()}
    _log(numbers, call.get("global_step"))


def _hparams(call: Arguments) -> None:
    _note(call["hparam_dict"])
    _log(call["metric_dict"], call.get("global_step"))


def _mlflow_metric(call: Arguments) -> None:
    _mlflow_run(call)
    _log({call["key"]: call["value"]}, call.get("step"))


def _mlflow_batch(call: Arguments) -> None:
    _mlflow_run(call)
    for metric in call.get("metrics") or ():
        _log({metric.key: metric.value}, metric.step)
    _note({one.key: one.value for one in call.get("params") or ()})


def _mlflow_parameter(call: Arguments) -> None:
    _mlflow_run(call)
    _note({call["key"]: call["value"]})


def _mlflow_run(call: Arguments) -> None:
    """Note where MLflow has the run that is told something: its server's address, or its store, and the run's id; and
    there, of which step it is."""
    client, run = call["self"], call["run_id"]
    if _link("mlflow", f"{client.tracking_uri} {run}"):
        with contextlib.suppress(Exception):  # of the library's: what it is told is logged all the same
            client.set_tag(run, BACK, f"{context.run_id}/{context.step}")


def _wandb(call: Arguments) -> None:
    run = call["self"]
    if _link("wandb", getattr(run, "url", None) or f"offline {run.id}"):
        with contextlib.suppress(Exception):
            run.config.update({BACK: f"{context.run_id}/{context.step}"}, allow_val_change=True)
    step = call.get("step")
    _log(_flat(call["data"]), getattr(call["self"], "step", None) if step is None else step)


def _flat(data: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}/")
        else:
            yield f"{before}{name}", value


_links: Final[dict[str, str]] = {}
"""What was noted last of each library, in the step that runs."""


def _link(library: str, place: str) -> bool:
    """Note where a library has its run; False where that is noted."""
    if _links.get(library) == place:
        return False
    _links[library] = place
    _note({library: place})
    return True


LIBRARIES: Final[Mapping[str, Sequence[Tracked]]] = {
    # https://docs.pytorch.org/docs/stable/tensorboard.html, https://tensorboardx.readthedocs.io/en/latest/tensorboard.html
    "tensorboard": [
        Tracked(module, "SummaryWriter", method, log)
        for module in ("torch.utils.tensorboard.writer", "tensorboardX.writer")
        for method, log in (("add_scalar", _scalar), ("add_scalars", _scalars), ("add_hparams", _hparams))
    ],
    # `mlflow.log_metric` and the others call these: https://mlflow.org/docs/latest/api_reference/python_api/mlflow.client.html
    "mlflow": [
        Tracked("mlflow.tracking.client", "MlflowClient", method, log)
        for method, log in (
            ("log_metric", _mlflow_metric),
            ("log_batch", _mlflow_batch),
            ("log_param", _mlflow_parameter),
        )
    ],
    # `wandb.log` is the current run's: https://docs.wandb.ai/ref/python/experiments/run/
    "wandb": [Tracked("wandb.sdk.wandb_run", "Run", "log", _wandb)],
}
"""The word in `track=` → the methods that are wrapped."""


@contextlib.contextmanager
def tracking(words: Sequence[str]) -> Iterator[None]:
    """Log what the libraries are told while this lasts."""
    _links.clear()
    wrapped: list[tuple[type, str, Any]] = []
    methods: dict[str, list[Tracked]] = {}
    for word in words:
        for tracked in LIBRARIES[word]:
            methods.setdefault(tracked.module, []).append(tracked)

    def wrap(module: str) -> None:
        for tracked in methods[module]:
            owner = getattr(sys.modules[module], tracked.owner, None)
            method = None if owner is None else vars(owner).get(tracked.method)
            if owner is not None and callable(method):
                wrapped.append((owner, tracked.method, method))
                setattr(owner, tracked.method, _wrapper(method, tracked.log))

    for module in methods:
        if sys.modules.get(module) is not None:
            wrap(module)
    end = call_on_import(methods, wrap)
    try:
        yield
    finally:
        end()
        for owner, name, method in reversed(wrapped):
            setattr(owner, name, method)


def _wrapper(method: Callable[..., Any], log: Callable[[Arguments], None]) -> Callable[..., Any]:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(*arguments: Any, **keywords: Any) -> Any:
        # Whatever is wrong with what is made of the call, the call is the user's, and is made.
        with contextlib.suppress(Exception):
            log(signature.bind(*arguments, **keywords).arguments)
        return method(*arguments, **keywords)

    return call


def _log(numbers: Any, step: Any) -> None:
    for name, value in dict(numbers).items():
        with contextlib.suppress(UsageError):  # a text or a picture
            log_metrics({str(name): value}, step=step)


def _note(facts: Mapping[str, Any]) -> None:
    for name, fact in facts.items():
        with contextlib.suppress(UsageError):
            log_metadata({str(name): fact})
