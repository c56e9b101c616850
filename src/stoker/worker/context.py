"""A running step's facts about itself: `from stoker import context`.

The worker, or the program of one rank, enters a document around the step's function:

    {"run", "key", "attempt", "element", "checkpoints", "metrics", "artifacts", "rank", "local_rank", "world_size",
     "local_world_size", "node", "nodes", "devices": [<core.devices.Device>]}

Without a rank in it the step is rank 0 of 1; without an element, the key's own index counts ("train[3]"). Below
"checkpoints" each step has its folder (`store.checkpoints`): that of Stoker's home on this machine, and on another one
a folder that the backend keeps, or one of the node's that `worker.checkpointer` copies to the artifact store: then
"copier" is the address at which that program listens. "metrics" is the folder of what steps log of themselves,
"artifacts" the address of the artifact store.

Processes that the step forks have the context too. This module knows neither the engine nor the backend.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any, Final, Iterator, Mapping

import attrs

from stoker.core.codec import to_json
from stoker.core.errors import BackendError, StoreError, UsageError
from stoker.core.protocol import WorkerJob
from stoker.core.values import frozen
from stoker.worker.notice import Notice

if TYPE_CHECKING:
    from pathlib import Path

    from stoker.core.cadence import Cadence
    from stoker.core.devices import Lease

_ALONE: Final[Mapping[str, int]] = {
    "rank": 0,
    "local_rank": 0,
    "world_size": 1,
    "local_world_size": 1,
    "node": 0,
    "nodes": 1,
}
_ASKED: Final = 4
"""How often the program that copies checkpoints is asked: as often as it is started."""


@frozen(kw_only=True)
class StepDevice:
    """An accelerator that the step holds."""

    kind: str
    """The vendor: "nvidia", "amd", "neuron", "tpu", "apple", or the name of another one."""
    model: str
    uuid: str
    memory: int
    """Bytes that the step may use; 0 where the driver does not tell."""
    simulated: bool
    """Whether it is only pretended (`--simulate`)."""


class Context:
    """The step that runs in this process: true while there is one. Outside a step every property is a `UsageError`."""

    __slots__ = ("_cadence", "_document", "_notice", "_restored")

    def __init__(self) -> None:
        self._document: Mapping[str, Any] | None = None
        self._notice: Notice | None = None
        self._cadence: Cadence | None = None
        """When checkpoints are due, once the step has asked."""
        self._restored = False
        """Whether the checkpoints of earlier attempts are in the folder, where they come from elsewhere."""

    @property
    def run_id(self) -> str:
        """The run's id."""
        return str(self._read("run", "run_id"))

    @property
    def step(self) -> str:
        """The step's key in its run; an element's ends in its index: "train[3]"."""
        return str(self._read("key", "step"))

    @property
    def attempt(self) -> int:
        """1 at the first try."""
        return int(self._read("attempt"))

    @property
    def element(self) -> int | None:
        """Which element of a fan-out this is, from 0; None for a step that was not mapped."""
        document = self._step("element")
        element = document.get("element")
        return _index_of(document["key"]) if element is None else int(element)

    @property
    def rank(self) -> int:
        """The number of this process among all that run the step, from 0."""
        return int(self._read("rank"))

    @property
    def local_rank(self) -> int:
        """The number of this process on its node, from 0."""
        return int(self._read("local_rank"))

    @property
    def world_size(self) -> int:
        """How many processes run the step."""
        return int(self._read("world_size"))

    @property
    def local_world_size(self) -> int:
        """How many processes run the step on this node."""
        return int(self._read("local_world_size"))

    @property
    def node(self) -> int:
        """The number of this node among the step's, from 0."""
        return int(self._read("node"))

    @property
    def nodes(self) -> int:
        """How many nodes run the step."""
        return int(self._read("nodes"))

    @property
    def is_main(self) -> bool:
        """Whether this is the main process of the step: rank 0."""
        return int(self._read("rank", "is_main")) == 0

    @property
    def devices(self) -> tuple[StepDevice, ...]:
        """The accelerators that the step holds on this node; none for a step on the CPU."""
        names = [field.name for field in attrs.fields(StepDevice)]
        devices = self._step("devices").get("devices", ())
        return tuple(StepDevice(**{name: device[name] for name in names}) for device in devices)

    @property
    def checkpoint_dir(self) -> Path:
        """A folder that every attempt of this step of this run gets again, also after `stoker resume`; it exists.

        All ranks have the same one, each element of a fan-out its own. It is kept until the run is deleted.
        """
        document = self._step("checkpoint_dir")
        if document.get("copier") and not self._restored:
            self._await_restored(document)
        return self._checkpoint_folder(document)

    def checkpoint_saved(self) -> None:
        """Say that all that is in `checkpoint_dir` is complete: this node's copy of it begins now, and a later change
        of the folder does not touch it.

        Without the call, what came by renaming is complete at once, and what is written in place once it has been left
        alone for 5 seconds (`worker.settled`). Where every node sees the folder, nothing is copied, and the call does
        nothing. Raises `UsageError` outside a step.
        """
        document = self._step("checkpoint_saved")
        if self._cadence is not None and (text := self._cadence.saved(time.monotonic())):
            sys.stderr.write(f"{text}\n")
        if document.get("copier"):
            try:
                self._ask_copier(document, "saved")
            except (OSError, BackendError):
                return  # the step's log says why nothing is copied any more; the step goes on

    def checkpoint_due(self) -> bool:
        """Whether the step is to save a checkpoint now, by its `checkpoint_every`, or because it should stop; ask it
        between two units of work, and call `checkpoint_saved` after each checkpoint.

        With "auto" the interval is the one for which the step takes the least time (`core.cadence.best_interval`). Of a
        step with ranks, rank 0 alone may ask: ranks that ask for themselves would not agree. Raises `UsageError` for
        another rank, and for a step without `checkpoint_every`.
        """
        document = self._step("checkpoint_due")
        if self.rank:
            fix = "let rank 0 ask, `if context.is_main`, and broadcast its answer"
            raise UsageError(f"context.checkpoint_due() is asked by rank {self.rank}", fix=fix)
        if self._cadence is None:
            from stoker.core.cadence import Cadence, LossRate

            asked = document.get("cadence")
            if asked is None:
                where = f"step '{document['key']}'"
                fix = 'give the step checkpoint_every="auto", or a time such as "10m"'
                raise UsageError("nothing says how often a checkpoint is due", where=where, fix=fix)
            every = LossRate(**asked) if isinstance(asked, dict) else asked
            self._cadence = Cadence(every=every, began=time.monotonic())
        return self._cadence.due(time.monotonic(), ending=self.should_stop)

    def _await_restored(self, document: Mapping[str, Any]) -> None:
        """Wait until the folder has what earlier attempts saved; raises `StoreError` where that cannot be read."""
        where = f"step '{document['key']}'"
        try:
            error = self._ask_copier(document, "restore")
        except (OSError, BackendError) as failure:
            raise StoreError(
                f"the program that copies the checkpoints does not answer: {failure}",
                where=where,
                fix="the step's log says why it ended; run again (`stoker resume`)",
            ) from failure
        if error:
            fix = "check the store's address, the credentials and the network, and run again (`stoker resume`)"
            raise StoreError(error, where=where, fix=fix)
        self._restored = True

    def _ask_copier(self, document: Mapping[str, Any], op: str) -> str:
        """Ask the program that copies the checkpoints, once more where it died and was started again."""
        import socket

        from stoker.core import wire

        for left in reversed(range(_ASKED)):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.connect(document["copier"])
                answer = b""
                with contextlib.suppress(ConnectionResetError, BrokenPipeError):  # it died while it was asked
                    connection.sendall(wire.packed({"op": op}))
                    answer = b"".join(iter(lambda: connection.recv(wire.DATAGRAM_LIMIT), b""))
            if answer or not left:
                break
        return str(wire.unpacked(answer)["error"])

    def _checkpoint_folder(self, document: Mapping[str, Any]) -> Path:
        from stoker.store.checkpoints import Checkpoints

        if not document.get("checkpoints"):
            raise UsageError(
                "whoever runs this step keeps no checkpoints",
                where=f"step '{document['key']}'",
                fix="run it in a pipeline, or enter a document with a folder under 'checkpoints'",
            )
        return Checkpoints(document["checkpoints"]).create(document["run"], document["key"])

    @property
    def should_stop(self) -> bool:
        """Whether the step is asked to end: by its timeout, a cancelled run, a machine that is taken away, or a
        platform that warns before its limit of the job's time.

        A step that reads this before it is asked is left to end by itself until just before the grace is over. One that
        never did is interrupted at once.
        """
        self._step("should_stop")
        return self._notice is not None and self._notice.look()

    @property
    def grace_left(self) -> float | None:
        """Seconds until a step that should stop is killed; None while it should not, or where the time is not known."""
        self._step("grace_left")
        return None if self._notice is None else self._notice.seconds_left()

    def document_for(self, caller: str) -> Mapping[str, Any]:
        """The whole document, for a function of Stoker's that serves a step; raises `UsageError` outside one."""
        if self._document is None:
            raise UsageError(
                f"{caller} is called where no step runs",
                fix=f"call it inside a step's function while a run calls it; code that also runs elsewhere asks "
                f"`if context: {caller}(...)`, with `from stoker import context`",
            )
        return self._document

    def _read(self, name: str, property_name: str = "") -> Any:
        document = self._step(property_name or name)
        return document[name] if name in document else _ALONE[name]

    def _step(self, property_name: str) -> Mapping[str, Any]:
        if self._document is None:
            raise UsageError(
                f"context.{property_name} is asked for where no step runs",
                fix="read it inside a step's function while a run calls it; code that also runs elsewhere asks "
                "`if context:` first",
            )
        return self._document

    def __bool__(self) -> bool:
        return self._document is not None

    def __repr__(self) -> str:
        if self._document is None:
            return "<context: no step runs here>"
        position = f"rank {self.rank} of {self.world_size}"
        return f"<context: step '{self.step}' of run {self.run_id}, attempt {self.attempt}, {position}>"

    def __reduce__(self) -> str:
        # A function that is pickled with its globals means the context where it will run. Its digest, too, must not
        # depend on what runs at the moment.
        return "context"


context: Final = Context()
"""The context of this process."""


@contextlib.contextmanager
def enter(
    document: Mapping[str, Any], environment: Mapping[str, str] | None = None, *, notice: Notice | None = None
) -> Iterator[Context]:
    """Enter a document: while this lasts, the context has its facts.

    With the environment of a rank's process, ranks that the document lacks are read from the launcher's variables.
    `notice` shows the step that it should stop; without one it never should.
    """
    if environment is not None:
        document = {**_place_in(environment), **document}
    before = (context._document, context._notice)
    context._document, context._notice = document, notice
    context._restored, context._cadence = False, None
    try:
        yield context
    finally:
        context._document, context._notice = before
        if notice is not None:
            notice.over()


def document_of(job: WorkerJob, checkpoints: str, metrics: str = "", artifacts: str = "") -> dict[str, Any]:
    """The document of a worker's job: run, key and attempt from the job's name, overridden by the job's context."""
    run, _, key_and_attempt = job.job.partition("/")
    key, _, attempt = key_and_attempt.rpartition("/")
    document: dict[str, Any] = {
        "run": run,
        "key": key,
        "attempt": int(attempt) if attempt.isdecimal() else 0,
        "checkpoints": checkpoints,
        "metrics": metrics,
        "artifacts": artifacts,
    }
    if job.accelerators is not None:
        document["devices"] = _devices(job.accelerators)
    document.update(job.context)
    return document


def _devices(lease: Lease) -> list[dict[str, Any]]:
    """The devices of a lease; of a shared one counts the part that the step may use."""
    devices: list[dict[str, Any]] = to_json(lease.held)
    return [{**device, "memory": lease.memory} for device in devices] if lease.memory else devices


def _place_in(environment: Mapping[str, str]) -> dict[str, Any]:
    from stoker.launchers.registry import place_of

    position = place_of(environment)
    return {
        **attrs.asdict(position),
        "nodes": max(position.node + 1, -(-position.world_size // position.local_world_size)),
    }


def _index_of(key: str) -> int | None:
    _, bracket, index = key.removesuffix("]").rpartition("[")
    return int(index) if bracket and key.endswith("]") and index.isdecimal() else None
