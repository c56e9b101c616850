"""Leaves out faulty places for the rest of a run: nodes or devices on which an attempt ended by their fault.

An attempt that a faulty device ended is tried again in another place; that uses up no retry. What is left out is an
event of the run, so that a later driver knows it, and `stoker devices` and `stoker doctor` name it.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Final, Mapping, Sequence

from stoker.backends.base.backend import LeavesOut, RunningBackend, capability
from stoker.core.observer import Observer
from stoker.core.plan import JobStatus
from stoker.core.protocol import LEFT_OUT
from stoker.core.status import FAULTY_MACHINE, FAULTY_PLACE, REFUSED_PLACE
from stoker.core.values import lazy_pattern
from stoker.engine.execution import StepExecution
from stoker.engine.recorder import Recorder

if TYPE_CHECKING:
    from stoker.core.devices import Lease

_ONE_NODE: Final = lazy_pattern(r"[\w.-]+")
"""A node's name, and not a list such as "n[1-2]"."""
_SHOWN: Final = "`stoker devices`, `stoker doctor`"
_THEN: Final = "then `stoker resume`, or run elsewhere"


class FaultyPlaces:
    """The places that one run leaves out, by backend."""

    def __init__(self, recorder: Recorder, backends: Mapping[str, RunningBackend], observer: Observer) -> None:
        self._recorder = recorder
        self._leaving = {
            name: leaving
            for name, backend in backends.items()
            if (leaving := capability(backend, LeavesOut)) is not None
        }
        self._observer = observer
        self._places: dict[str, list[str]] | None = None

    def of(self, execution: StepExecution) -> tuple[str, ...]:
        """The places where a step must not run; empty for a step without devices."""
        step = execution.step
        if not step.settings.resources.gpus_per_node or step.backend not in self._leaving:
            return ()
        return tuple(self._known().get(step.backend, ()))

    def note(self, key: str, attempt: int, execution: StepExecution, status: JobStatus, facts: dict[str, Any]) -> bool:
        """Leave out the place of an attempt that ended by its fault, and say so; whether another may do.

        Where there is no other, the place is named, too, but stays: the attempt's own cause is the step's.
        """
        error = facts.get("error") or {}
        cause = facts["cause"]
        by_gate = error.get("type") == "GateError"
        if cause not in FAULTY_PLACE and not (by_gate and cause in REFUSED_PLACE):
            return False
        backend = execution.step.backend
        leaving = self._leaving.get(backend)
        if leaving is None or not execution.step.settings.resources.gpus_per_node:
            return False
        kind = leaving.leaves_out
        if kind == "device" and cause in FAULTY_MACHINE:
            return False  # its other devices have the same driver
        text = " ".join([str(facts.get("message", "")), str(error.get("evidence", ""))])
        known = self._known().setdefault(backend, [])
        names = _nodes(status, execution, error) if kind == "node" else _devices(status, text)
        places = [name for name in names if name not in known]
        if not places:
            return bool(names)  # another attempt found it faulty when this one was on its way there
        others = leaving.has_other_place(execution.step, [*known, *places])
        data = {"backend": backend, "kind": kind, "places": places, "cause": cause, "attempt": attempt}
        host = _host_of(places[0], status, execution) if kind == "node" else socket.gethostname()
        more = {"host": host, "message": facts.get("message", ""), "stays": not others}
        self._recorder.record_event(LEFT_OUT, key, {**data, **more})
        named = ", ".join(places) + (f" ({host})" if kind == "node" and host else "")
        if others:
            known += places
            self._observer.message(f"{key}: {kind} {named} is left out for the rest of this run: {cause}")
        advice = (
            _advice(kind, named) if others else f"no other {kind} is left beside {named}; see to it ({_SHOWN}), {_THEN}"
        )
        facts["error"] = {**error, "advice": "; ".join(filter(None, (error.get("advice", ""), advice)))}
        return others

    def _known(self) -> dict[str, list[str]]:
        if self._places is None:
            self._places = {}
            for data in self._recorder.left_out():
                if data.get("stays"):
                    continue
                self._places.setdefault(str(data.get("backend")), []).extend(map(str, data.get("places", ())))
        return self._places


def _advice(kind: str, named: str) -> str:
    if kind == "node":
        return f"the node {named} is left out for the rest of this run; have its devices looked at"
    return f"the device {named} is left out for the rest of this run; see {_SHOWN}"


def _nodes(status: JobStatus, execution: StepExecution, error: Mapping[str, Any]) -> list[str]:
    """The node on which an attempt failed; none where it is one of several and nobody knows which."""
    if error.get("machine"):
        return [str(error["machine"])]
    nodes = execution.step.settings.resources.get("nodes", 1)
    number = _failed_node(error, nodes)
    leases = [] if status.lease is None else list(_each(status.lease))
    if number is not None and len(leases) == nodes and (name := leases[number].node or leases[number].host):
        return [name]
    name = str(execution.facts.get("place", {}).get("node", ""))
    return [name] if nodes == 1 and _ONE_NODE.fullmatch(name) else []


def _host_of(node: str, status: JobStatus, execution: StepExecution) -> str:
    """The host name of a node that its platform calls otherwise; empty where that is its name, or is not known."""
    leases = [] if status.lease is None else list(_each(status.lease))
    known = next((lease.host for lease in leases if lease.node == node), "")
    host = known or str(execution.facts.get("place", {}).get("node", ""))
    return host if host != node and _ONE_NODE.fullmatch(host) else ""


def _failed_node(error: Mapping[str, Any], nodes: int) -> int | None:
    if nodes == 1:
        return 0
    if type(error.get("node")) is int:
        return int(error["node"])
    rank, world_size = error.get("rank"), error.get("world_size")
    if type(rank) is int and type(world_size) is int and world_size % nodes == 0:
        return rank * nodes // world_size
    return None


def _devices(status: JobStatus, text: str) -> Sequence[str]:
    """The devices that a text names among those of an attempt; all of them where it names none."""
    held = [] if status.lease is None else [device for one in _each(status.lease) for device in one.held]
    named = [device.uuid for device in held if device.uuid in text]
    return named or [device.uuid for device in held]


def _each(lease: Lease) -> Sequence[Lease]:
    return (lease, *lease.others)
