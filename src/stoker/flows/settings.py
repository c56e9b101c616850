"""What a step's decorators come to: layers of settings, and what only a flow's engine and worker look at.

One rule for resources, on every backend: for each of them the largest that any decorator of the step asks for. Only
what was written counts; nobody's default ever beats it. Words that have no order must agree.
"""

from __future__ import annotations

from typing import Any, Callable, Final, Iterable, Mapping, Sequence

import attrs

from stoker.backends.registry import BACKENDS, refusal
from stoker.core.errors import SettingsError, UsageError
from stoker.core.resources import ResourceSettings
from stoker.core.settings import Layer, fields_given
from stoker.core.units import size_text, whole_run_fields
from stoker.core.words import memory_text
from stoker.flows.decorators import (
    BASES,
    FIELDS,
    KINDS,
    Note,
    PackageWords,
    check_branch,
    data_of,
    make_note,
    notes_of,
    packages_layer,
    platform,
    resolve_note,
    seconds_of,
)
from stoker.flows.parameters import needs_configs
from stoker.flows.user_decorators import suggest
from stoker.plan.layers import PART
from stoker.run.attached import HARDWARE, SHORT, resource_words, words_of
from stoker.settings.options import component_settings, layer_from

_LARGEST: Final = ("cpu_count", "gpu_count", "memory", "disk", "shared_memory", "gpu_memory")


@attrs.frozen(kw_only=True, eq=False)
class FlowStepOptions:
    """What a step's decorators ask for."""

    layers: tuple[Layer, ...]
    """Settings of the step, weakest first."""
    notes: tuple[Note, ...] = ()
    """The decorators as they were written."""
    catch: str | None = None
    """The attribute that gets a caught failure; "" catches without an attribute, None does not catch."""
    placed: bool = False
    """Whether a decorator names the platform of the step."""

    def note(self, name: str) -> Note | None:
        """What a decorator noted; None where the step does not have it."""
        return next((note for note in self.notes if note.name == name), None)


def of_step(
    kind: type,
    name: str,
    function: Callable[..., Any],
    *,
    attached: Sequence[str] = (),
    without: Iterable[str] = (),
    configs: Mapping[str, Any] | None = None,
) -> FlowStepOptions:
    """A step's options from its own decorators, those of the class that count for it, and those of `--with`."""
    notes = [resolve_note(note, configs or {}) for note in notes_of(function) if note.name not in without]
    have = {note.name for note in notes}
    for text in attached:
        note = parse_note(text)
        if note.name not in have:
            notes.append(note)
    placed = [note for note in notes if platform(note.name) is not None]
    if len(placed) > 1:
        raise UsageError(
            f"step '{name}' is to run on {' and on '.join(_title(note.name) for note in placed)}",
            where=placed[-1].where,
            fix="keep one of the two decorators",
        )
    above = [resolve_note(note, configs or {}) for note in notes_of(kind) if note.name in BASES]
    above = [note for note in reversed(above) if not {note.name, BASES[note.name]} & set(without)]
    layers = tuple(
        layer
        for layer in (_resources(name, notes), _packages(name, [*above, *notes]), *map(_layer, notes))
        if layer is not None
    )
    catch = next((note for note in notes if note.name == "catch"), None)
    return FlowStepOptions(
        layers=layers,
        notes=tuple(notes),
        catch=None if catch is None else catch.values.get("var") or "",
        placed=bool(placed),
    )


def of_flow(kind: type, environment: str | None = None) -> tuple[Layer, ...]:
    """Settings of every step of a flow; a run of a flow runs every step, unless a step says `@cache`.

    `environment` is where the packages of steps come from, as the command line says.
    """
    layers = [Layer(origin=f"flow {kind.__name__}", values={"cache": False})]
    if environment is not None:
        packages = {"packages": {"environment": environment}}
        layers.append(layer_from(f"--environment={environment}", (packages,)))
    return tuple(layers)


@attrs.frozen(kw_only=True)
class Project:
    """What `@project`, `--branch` and `--production` say of a flow's runs."""

    name: str
    """The project's name."""
    branch: str
    """The branch as Metaflow writes it: "user.NAME", "test.BRANCH", "prod" or "prod.BRANCH"."""
    production: bool
    """Whether the run belongs to the production branch."""

    @property
    def tags(self) -> tuple[str, str]:
        """The tags of its runs."""
        return f"project:{self.name}", f"project_branch:{self.branch}"


def project_of(
    kind: type, user: str, *, branch: str | None, production: bool | None, configs: Callable[[], Mapping[str, Any]]
) -> Project | None:
    """The project of a flow; `branch` and `production` are those of the command line. None without `@project`.

    `configs` are asked for where the decorator has a value of one.

    `SettingsError` where decorator and command line say different things.
    """
    note = next((note for note in notes_of(kind) if note.name == "project"), None)
    if note is None:
        return None
    if needs_configs(note.values):
        note = resolve_note(note, configs())
    for option, given in (("branch", branch), ("production", production or None)):
        written = note.values.get(option)
        if written and given and written != given:
            raise SettingsError(
                f"--{option} {given} and @project({option}={written!r}) differ", where=note.where, fix="leave one out"
            )
    branch = note.values.get("branch") or branch
    is_production = bool(note.values.get("production") or production)
    check_branch(branch)
    if is_production:
        branch_name = f"prod.{branch}" if branch else "prod"
    else:
        branch_name = f"test.{branch}" if branch else f"user.{user}"
    return Project(name=note.values["name"], branch=branch_name, production=is_production)


def parse_note(text: str) -> Note:
    """A decorator of the command line: "resources:gpu=2,memory=8GB", or only its name."""
    name, words, where = _decorator_of(text)
    return make_note(name, {word: value for word, value in words.items() if word not in _run_words(name)}, where)


def run_layers(attached: Iterable[str]) -> tuple[Layer, ...]:
    """What decorators of the command line say of platforms for the whole run, such as `kubernetes:context=lab`."""
    layers = []
    for name, words, where in map(_decorator_of, attached):
        options = {word: value for word, value in words.items() if word in _run_words(name)}
        if options:
            try:
                layers.append(Layer(origin=where, values={f"{PART}{name}": component_settings(name, options)}))
            except SettingsError as error:
                raise SettingsError(error.message, where=where, fix=error.fix) from None
    return tuple(layers)


def _run_words(name: str) -> frozenset[str]:
    """The words of a platform's decorator that hold for a whole run: a step's own decorator takes none of them."""
    decorator = platform(name)
    return frozenset() if decorator is None else frozenset(whole_run_fields(decorator.settings))


def _decorator_of(text: str) -> tuple[str, Mapping[str, Any], str]:
    """The decorator that a text of the command line names, its words, and where it stands."""
    name, colon, words = text.partition(":")
    name = BACKENDS.canonical(name)
    names = [name for name, kind in KINDS.items() if not kind.of_flow]
    where = f"--with {text}"
    if name not in names:
        if refusal(name):
            raise UsageError(refusal(name), where=where)
        raise UsageError(f"there is no decorator '{name}'{suggest(name, names)}", where=where)
    return name, words_of(name, words, where) if colon else {}, where


def fit_to_machine(
    options: FlowStepOptions, step: str, cpus: float, memory: int
) -> tuple[FlowStepOptions, tuple[str, ...]]:
    """The options for a run on this machine, where `@resources` asks for no more than there is; and what to say of it.

    A GPU that the machine has is leased. One that it lacks makes the step run on the CPU, and its receipt says so.
    """
    resources_layer = next((layer for layer in options.layers if "resources" in layer.values), None)
    if resources_layer is None:
        return options, ()
    requests = resources_layer.values["resources"]
    origin = f"{resources_layer.origin}, a hint on this machine"
    less: dict[str, Any] = {}
    messages = []
    for name, room, amount in (("cpu_count", cpus, f"{cpus:g} CPUs"), ("memory", memory, memory_text(memory))):
        if name in requests and requests[name] > room:
            less[name] = room
            asks = f"{requests[name]:g} CPUs" if name == "cpu_count" else size_text(requests[name])
            messages.append(f"{step}: @resources asks for {asks}; this machine has {amount}, and the step gets that")
    for name, amount in (("shared_memory", "shared memory"), ("disk", "disk")):
        if requests.get(name):
            less[name] = None
            messages.append(f"{step}: @resources asks for {amount}; on this machine it is everybody's")
    values: dict[str, Any] = {"accelerator_policy": "prefer"}
    if less:
        values["resources"] = less
    layer = Layer(origin=origin, values=values, level="step")
    return attrs.evolve(options, layers=(*options.layers, layer)), tuple(messages)


def _title(name: str) -> str:
    """What the platform of a decorator is called."""
    decorator = platform(name)
    return name if decorator is None else decorator.title


# Resources


def _requested_resources(note: Note) -> dict[str, Any]:
    """A decorator's words for resources, as fields."""
    words = {
        word: value
        for word, value in note.values.items()
        if note.name == "resources" or word in SHORT or word in ("memory", "disk", "shared_memory", "gpu_vendor")
    }
    return fields_given(ResourceSettings(**resource_words(words)))


def _platform_settings(note: Note) -> dict[str, Any]:
    """What a platform's decorator says beside resources."""
    settings = {word: value for word, value in note.values.items() if word not in HARDWARE}
    return {word: value for word, value in settings.items() if value is not None}


def _resources(step: str, notes: Sequence[Note]) -> Layer | None:
    merged: dict[str, Any] = {}
    places: dict[str, str] = {}
    for note in notes:
        if note.name != "resources" and platform(note.name) is None:
            continue
        for field, value in _requested_resources(note).items():
            if field in merged and field not in _LARGEST and merged[field] != value:
                raise SettingsError(
                    f"step '{step}': {field} is {merged[field]!r} at {places[f'resources.{field}']}, here {value!r}",
                    where=note.where,
                    fix="say it once",
                )
            if field not in merged or (field in _LARGEST and value > merged[field]):
                merged[field] = value
                places[f"resources.{field}"] = f"{note.where} @{note.name}"
    if not merged:
        return None
    origin = next(iter(places.values()))
    try:
        ResourceSettings(**merged)
    except SettingsError as error:
        raise SettingsError(f"step '{step}': {error.message}", where=origin, fix=error.fix) from None
    return Layer(origin=origin, values={"resources": merged}, origins=places, level="step")


def _packages(step: str, notes: Sequence[Note]) -> Layer | None:
    """The packages that a step and its class ask for, the class's first."""
    return packages_layer(
        step,
        (
            PackageWords(note.name, note.values, note.where)
            for note in notes
            if note.name in BASES or note.name in FIELDS
        ),
    )


def _layer(note: Note) -> Layer | None:
    """The settings of one decorator that is not about resources."""
    if platform(note.name) is not None:
        settings = component_settings(note.name, _platform_settings(note))
        return Layer(origin=f"{note.where} @{note.name}", values={f"platform.{note.name}": settings}, level="step")
    values = _SETTINGS[note.name](note.values) if note.name in _SETTINGS else {}
    return layer_from(f"{note.where} @{note.name}", (values,), level="step") if values else None


def _retry(values: Mapping[str, Any]) -> dict[str, Any]:
    # Without minutes of its own a retry does not wait: on one machine Metaflow's never does.
    minutes = values.get("minutes_between_retries", 0)
    return {"retry": {"times": values["times"], "delay": minutes * 60.0}}


_SETTINGS: Final[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "retry": _retry,
    "timeout": lambda values: {"timeout": seconds_of(values)},
    "environment": lambda values: {"environment": {name: str(text) for name, text in values["vars"].items()}},
    "huggingface_hub": lambda values: {"data": data_of(values["load"])},
    "gpu_profile": lambda values: {"monitor": {"interval": values["interval"]}},
    "cache": lambda values: {"cache": True},
}
"""Decorators that are settings of a step."""
