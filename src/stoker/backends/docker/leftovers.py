"""What dead drivers and old runs left in a container engine, for `stoker gc`: containers, networks, images.

Only what has Stoker's labels, and of containers and networks only those of one home: others' may be in use.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Collection, Final, Iterator, Mapping, Sequence

import attrs

from stoker.backends.base.backend import LeftJob, Leftover, Sweep
from stoker.backends.docker.engines import Engine, engine_address
from stoker.backends.docker.jobfiles import (
    CONTAINER_LABEL,
    ORDER_LABEL,
    clear,
    files_of_labels,
    job_files,
    labels_of,
    name_of,
    present_job,
    present_result,
    saved_results,
    settle,
    take_order_back,
    was_begun,
    went_well,
    write_result,
)
from stoker.backends.docker.requests import ENGINE_LABEL, HOME_LABEL, LABEL, STORE_LABEL
from stoker.backends.docker.warm import remove_dead
from stoker.core.errors import BackendError
from stoker.core.protocol import RESULT
from stoker.core.words import count_text
from stoker.images.build import LABEL as IMAGE_LABEL

IMAGE_AGE: Final = 86400.0
"""Seconds for which an image that no plan names is kept: a run that is about to begin has just built it."""
_OVER: Final = frozenset({"exited", "created", "dead", "stopped", "configured", "initialized"})
"""States of a container in which nothing runs; the last three are podman's."""
_LOOK: Final = 0.2


def sweep_engines(parts: Sequence[Mapping[str, Any]], sweep: Sweep) -> Iterator[Leftover]:
    """What went of each kind, or would go, on the engines of stacks and on those that folders of containers name.

    One that does not answer is named and left.
    """
    engines = _addresses(parts, sweep.scratch)
    needed = sweep.needed() if engines else ()
    containers = images = size = 0
    present: set[str] = set()
    all_answer = True
    for address in engines:
        engine = Engine(address)
        try:
            present.update(name_of(one) for one in _ours(engine, sweep.scratch))
            unneeded = find_unneeded(
                engine, sweep, image_label=IMAGE_LABEL, needed=needed, before=sweep.now - IMAGE_AGE
            )
            for text in unneeded.left:
                sweep.say(text)
            unneeded = unneeded if sweep.dry_run else remove(engine, unneeded, sweep.scratch)
        except BackendError as error:
            sweep.say(f"not looked into: {error}")
            all_answer = False
            continue
        finally:
            engine.close()
        containers += len(unneeded.containers)
        images += len(unneeded.images)
        size += unneeded.size
    if all_answer and not sweep.dry_run:
        sweep_folders(sweep, present)
    yield Leftover(kind="containers", noun="container", rest="of steps that are over", count=containers)
    yield Leftover(kind="images", noun="image", rest="that no plan names", count=images, size=size)


def sweep_folders(sweep: Sweep, present: Collection[str]) -> None:
    """Remove the folders of containers that are gone, but for results that a resumed run may adopt."""
    folder = f"{sweep.scratch}/containers"
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        labels = labels_of(sweep.scratch, name)
        if _takes_several(labels) and name not in present and labels.get(f"{LABEL}.run", "") not in sweep.running:
            settle(files_of_labels(name, labels, sweep.scratch), sweep.scratch)
    results = {one.name: one for one in saved_results(sweep.scratch)}
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        labels = labels_of(sweep.scratch, name)
        run = labels.get(f"{LABEL}.run", "")
        saved = results.get(name)
        adoptable = run in sweep.resumable and saved is not None and went_well(saved.data)
        if name not in present and labels and run not in sweep.running and not adoptable:
            clear(job_files(name, scratch=sweep.scratch, store=labels.get(STORE_LABEL, "")))


# What runs without a driver left


def left_jobs(parts: Sequence[Mapping[str, Any]], scratch: str, runs: Collection[str]) -> list[LeftJob]:
    """Containers of these runs that run or have ended well, and results of containers that are gone."""
    jobs: dict[str, LeftJob] = {}
    for address in _addresses(parts, scratch):
        with contextlib.closing(Engine(address)) as engine:
            for one in _containers_of(engine, scratch, runs):
                run, name = one["Labels"].get(f"{LABEL}.run", ""), _job_name(one, scratch)
                if _works(one, scratch):
                    jobs[name] = LeftJob(run=run, name=name, running=True)
                elif result := _result_of(engine, one):
                    jobs[name] = LeftJob(run=run, name=name, running=False, result=result.decode("utf-8", "replace"))
    for saved in saved_results(scratch):
        run = str(saved.labels.get(f"{LABEL}.run", ""))
        if run in runs and saved.name not in jobs and went_well(saved.data):
            text = saved.data.decode("utf-8", "replace")
            jobs[saved.name] = LeftJob(run=run, name=saved.name, running=False, result=text)
    return list(jobs.values())


def end_left(parts: Sequence[Mapping[str, Any]], scratch: str, run: str, grace: float) -> list[LeftJob]:
    """End the containers of a run that still run, all at once, and remove those that are over; results are kept.

    Returns those that ran.
    """
    ended = []
    for address in _addresses(parts, scratch):
        with contextlib.closing(Engine(address)) as engine:
            containers = _containers_of(engine, scratch, {run})
            for one in containers:
                _take_back_order(one, scratch)
            going = [one for one in containers if _works(one, scratch)]
            names = [_job_name(one, scratch) for one in going]
            for one in going:
                engine.kill(one["Id"], "SIGTERM" if grace > 0 else "SIGKILL")
            deadline = time.monotonic() + grace
            while time.monotonic() < deadline and any(_runs(engine, one) for one in going):
                time.sleep(_LOOK)
            for one in containers:
                engine.kill(one["Id"], "SIGKILL")
                _remove_container(engine, one, scratch)
            ended += [LeftJob(run=run, name=name, running=True) for name in names]
    return ended


def _addresses(parts: Sequence[Mapping[str, Any]], scratch: str) -> list[str]:
    """The engines of stacks, and those that ran containers whose folders are there."""
    folder = f"{scratch}/containers"
    names = os.listdir(folder) if os.path.isdir(folder) else ()
    found = [labels_of(scratch, name).get(ENGINE_LABEL, "") for name in names]
    return list(dict.fromkeys([*map(engine_address, parts), *filter(None, found)]))


def _containers_of(engine: Engine, scratch: str, runs: Collection[str]) -> list[Mapping[str, Any]]:
    return [one for one in _ours(engine, scratch) if one["Labels"].get(f"{LABEL}.run", "") in runs]


def _ours(engine: Engine, scratch: str) -> list[Mapping[str, Any]]:
    """The containers of one home: those of one step, and those that take several."""
    return [one for kind in ("step", "pool") for one in engine.find({LABEL: kind, HOME_LABEL: scratch})]


def _takes_several(labels: Mapping[str, str]) -> bool:
    return labels.get(LABEL) == "pool"


def _works(container: Mapping[str, Any], scratch: str) -> bool:
    """Whether a container runs a step."""
    if container["State"] in _OVER or not _takes_several(container["Labels"]):
        return container["State"] not in _OVER
    files = files_of_labels(name_of(container), container["Labels"], scratch)
    labels = present_job(files)
    return bool(labels) and was_begun(files, int(labels.get(ORDER_LABEL, -1))) and not present_result(files)


def _take_back_order(container: Mapping[str, Any], scratch: str) -> None:
    """Let no worker begin a step that a container was told of and that nobody began."""
    if _takes_several(container["Labels"]):
        files = files_of_labels(name_of(container), container["Labels"], scratch)
        labels = present_job(files)
        if labels:
            take_order_back(files, int(labels.get(ORDER_LABEL, -1)))


def _job_name(container: Mapping[str, Any], scratch: str) -> str:
    """The name of a container of its own for the step that is in a container."""
    name = name_of(container)
    if not _takes_several(container["Labels"]):
        return name
    return present_job(files_of_labels(name, container["Labels"], scratch)).get(CONTAINER_LABEL, name)


def _runs(engine: Engine, container: Mapping[str, Any]) -> bool:
    end = engine.end(container["Id"])
    return end is not None and end.running


def _result_of(engine: Engine, container: Mapping[str, Any]) -> bytes:
    """The result of a container that ended well, or of the step that did in one; empty for any other."""
    if _takes_several(container["Labels"]):
        home = container["Labels"].get(HOME_LABEL, "")
        result = present_result(files_of_labels(name_of(container), container["Labels"], home))
        return result if result and went_well(result) else b""
    end = engine.end(container["Id"])
    if end is None or end.running or end.code != 0:
        return b""
    place = container["Labels"].get(f"{LABEL}.place", "").rpartition("/")[0] + "/" + RESULT
    with contextlib.suppress(OSError), open(place, "rb") as file:
        return file.read()
    return engine.get(container["Id"], place) or b""


def _remove_container(engine: Engine, container: Mapping[str, Any], scratch: str) -> None:
    """Remove a container; the result of one that ended well stays in its folder, for the run that is resumed."""
    labels = container["Labels"]
    if _takes_several(labels):
        remove_dead(engine, container["Id"], files_of_labels(name_of(container), labels, scratch), scratch)
        return
    files = job_files(name_of(container), scratch=scratch, store=labels.get(STORE_LABEL, ""))
    result = _result_of(engine, container)
    if result and not os.access(f"{files.notes}/{RESULT}", os.R_OK):
        write_result(files, labels, result)
    engine.remove(container["Id"])
    if not result:
        clear(files)


@attrs.frozen(kw_only=True)
class Unneeded:
    """What nobody needs; `size` of the images in bytes, layers that they share counted for each."""

    containers: tuple[Mapping[str, Any], ...] = ()
    """As the engine lists them."""
    networks: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    size: int = 0
    left: tuple[str, ...] = ()
    """Lines about what stays because a run may be resumed."""


def find_unneeded(
    engine: Engine, sweep: Sweep, *, image_label: str, needed: Collection[str], before: float
) -> Unneeded:
    """What nobody needs: containers of runs that are over or not known any more; networks of such runs; images with
    `image_label` made before a time that no container has and no plan names.

    Containers of an interrupted run stay, and those of other runs that can be resumed if they run or ended well, unless
    the sweep is to `force` it. `needed` are the hexadecimal digests that plans name.
    """
    containers = []
    left: dict[str, list[bool]] = {}
    for one in _ours(engine, sweep.scratch):
        run = one["Labels"].get(f"{LABEL}.run", "")
        over = not _works(one, sweep.scratch)
        if run in sweep.running:
            continue
        adoptable = run in sweep.resumable and (not over or bool(_result_of(engine, one)))
        needed_later = run in sweep.interrupted and not _takes_several(one["Labels"])
        if run in sweep.known and not sweep.force and (needed_later or adoptable):
            left.setdefault(run, []).append(over)
        else:
            containers.append(one)
    gone = {one["Id"] for one in containers}
    used = {one.get("ImageID", "") for one in engine.find({}) if one["Id"] not in gone}
    networks = [
        id
        for id, labels in engine.networks({LABEL: "network", HOME_LABEL: sweep.scratch})
        if labels.get(f"{LABEL}.run", "") not in {*sweep.running, *left}
    ]
    images = [
        one
        for one in engine.images(image_label)
        if one["Created"] < before and one["Id"] not in used and one["Id"].rpartition(":")[2] not in needed
    ]
    return Unneeded(
        containers=tuple(containers),
        networks=tuple(networks),
        images=tuple(str(one["Id"]) for one in images),
        size=sum(int(one.get("Size") or 0) for one in images),
        left=tuple(_left_text(run, overs) for run, overs in left.items()),
    )


def _left_text(run: str, overs: Sequence[bool]) -> str:
    """A line about the containers of a run that stay."""
    running = len(overs) - sum(overs)
    if len(overs) == 1:
        containers, them = f"1 container of run {run} stays, {'running' if running else 'over'}", "it"
    else:
        state = f"{running} of them running" if running else "all of them over"
        containers, them = f"{count_text(len(overs), 'container')} of run {run} stay, {state}", "them"
    return (
        f"{containers}: its driver is gone, and `stoker resume {run}` adopts {them}; "
        f"`stoker cancel {run}` or `stoker gc --force` ends {them}"
    )


def remove(engine: Engine, unneeded: Unneeded, scratch: str) -> Unneeded:
    """Take it away; what went."""
    for one in unneeded.containers:
        _remove_container(engine, one, scratch)
    for id in unneeded.networks:
        engine.remove_network(id)
    return attrs.evolve(unneeded, images=tuple(id for id in unneeded.images if engine.remove_image(id)))
