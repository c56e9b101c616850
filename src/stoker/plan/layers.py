"""Layers of settings, weakest first, become the settings of one step; each value knows where it came from.

Merging is per field that was given: mappings recursively, everything else is replaced. Run files and `--set` are read
here into the same layers that decorators make. Knows no step by name: the planner checks the names.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any, Final, Iterable, Iterator, Mapping, Sequence

import attrs

from stoker.backends.registry import BACKENDS
from stoker.core.errors import SettingsError, nearest
from stoker.core.settings import Layer, Level, PipelineSettings, StepSettings
from stoker.core.units import whole_run_fields
from stoker.settings.options import (
    OPTIONS,
    check_level,
    component_settings,
    layer_from,
    settings_class,
    step_settings,
)
from stoker.stacks import Component, Stack

ATOMIC: Final = frozenset({"cache_key"})
"""Options whose mappings are one value: half of an old key and half of a new one is neither."""
PLATFORM: Final = "platform."
"""Begins the key of settings for whichever part of a stack is of that flavor."""
RUN_KEYS: Final = ("parameters", "stack", "settings", "steps")
"""What a run file may hold besides options."""


@attrs.frozen(kw_only=True)
class RunFile:
    """What a run file, or the command line's assignments, ask for. `steps` has layers by the steps' names or keys."""

    origin: str
    parameters: Mapping[str, Any] = attrs.field(factory=dict)
    stack: str | None = None
    layers: tuple[Layer, ...] = ()
    steps: Mapping[str, tuple[Layer, ...]] = attrs.field(factory=dict)


def resolve(layers: Sequence[Layer], stack: Stack) -> tuple[StepSettings, dict[str, str]]:
    """A step's settings, and for each dotted field the place that it comes from and those that it overrides.

    `layers` are all of them, weakest first, the stack's own included.
    """
    layers = [_on_a_part(layer, stack) for layer in layers]
    name = _operator(layers, stack)
    part = "orchestrator" if name is None else "step_operator"
    component = stack.orchestrator if name is None else stack.step_operators[name]
    values, backend, origins, ranks = _merged(layers, stack, part, component, level="step")
    pypi = (values.get("packages") or {}).get("pypi")
    if pypi:
        from stoker.plan.requirements import check_versions

        check_versions(pypi, origins)
    if values.get("packages") and BACKENDS.load(component.flavor).image_engine is not None:
        from stoker.plan.imagepackages import Told, laid_in

        values, origins = laid_in(Told(values=values, origins=origins, ranks=ranks))
    try:
        settings = step_settings({**values, "step_operator": name}, {part: backend} if backend else {})
    except SettingsError as error:
        raise _explained(error, origins) from None
    return settings, origins


def resolve_pipeline(
    layers: Sequence[Layer], stack: Stack, *, had: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[PipelineSettings, dict[str, str]]:
    """The settings of a run as a whole, and where each comes from; all its backends are made with them.

    The first of `layers` is the stack's own. `had` are the options that the run's backends had in an earlier session,
    by the names under which steps call them: they are laid over the stack's, and under the other layers.
    """
    layers = [_on_a_part(layer, stack) for layer in layers]
    values, backend, origins, _ = _merged(
        _with_had(layers, "orchestrator", stack.orchestrator, (had or {}).get("orchestrator")),
        stack,
        "orchestrator",
        stack.orchestrator,
        level="pipeline",
    )
    plain = {name: value for name, value in values.items() if OPTIONS[name].level == "pipeline"}
    kept = {name: place for name, place in origins.items() if name.partition(".")[0] in (*plain, "orchestrator")}
    backends = {"orchestrator": backend} if backend else {}
    for name, component in stack.step_operators.items():
        own = [_of_flavor(layer, component.flavor) for layer in layers]
        whole = _with_had(own, "step_operator", component, (had or {}).get(name))
        _, options, _, _ = _merged(whole, stack, "step_operator", component, level="pipeline")
        if options:
            backends[name] = options
    return PipelineSettings(**plain, backend=backends), kept


def check_whole_run(
    settings: StepSettings, origins: Mapping[str, str], run: Mapping[str, Mapping[str, Any]], stack: Stack
) -> None:
    """Refuse for a step what its backend has otherwise for the whole run, of those fields that cannot change.

    `run` is `PipelineSettings.backend`. A pipeline inside another one gives its steps settings that no backend is made
    with.
    """
    name = settings.step_operator
    part = "orchestrator" if name is None else "step_operator"
    component = stack.orchestrator if name is None else stack.step_operators[name]
    kind = settings_class(component.flavor)
    mine, theirs = settings.backend.get(part, {}), run.get(name or "orchestrator", {})
    for field in whole_run_fields(kind):
        if mine.get(field) != theirs.get(field):
            place = next((at for path, at in origins.items() if f"{path}.".startswith(f"{part}.{field}.")), "")
            raise SettingsError(
                f"'{part}.{component.flavor}': {field} is for a whole run, and {_value(mine, field)} here where the "
                f"run has {_value(theirs, field)}",
                where=place,
                fix="give it to the outermost @pipeline or to the stack",
            )


def _value(options: Mapping[str, Any], field: str) -> str:
    return repr(options[field]) if field in options else "nothing"


def _with_had(
    layers: Sequence[Layer], part: str, component: Component, had: Mapping[str, Any] | None
) -> Sequence[Layer]:
    if had is None:
        return layers
    recorded = Layer(origin="the run as it was started", values={f"{part}.{component.flavor}": had})
    return (*layers[:1], recorded, *layers[1:])


def _of_flavor(layer: Layer, flavor: str) -> Layer:
    """A layer with those settings for whichever step operator that one of this flavor has a field for."""
    given, kind = layer.values.get("step_operator.*"), settings_class(flavor)
    if given is None:
        return layer
    fields = {field.name for field in attrs.fields(kind)}
    own = {name: value for name, value in given.items() if name in fields}
    return attrs.evolve(layer, values={**layer.values, "step_operator.*": own})


def merge(weak: Mapping[str, Any], strong: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings in one; where both speak, mappings merge and otherwise `strong` wins."""
    merged = dict(weak)
    for name, value in strong.items():
        under = merged.get(name)
        both = isinstance(value, Mapping) and isinstance(under, Mapping) and name not in ATOMIC
        merged[name] = merge(under, value) if both and under is not None else value
    return merged


def run_file(path: str | Path) -> RunFile:
    """What a YAML file asks for; errors name its lines."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the run file cannot be read: {error}", where=str(path)) from None
    document, lines = _yaml(text, str(path))
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise SettingsError("the run file is not a mapping", where=str(path), fix="write keys such as parameters:")
    return _run_file(document, str(path), {dotted: f"{path}:{line}" for dotted, line in lines.items()})


def assignments(texts: Iterable[str]) -> RunFile:
    """What `--set steps.train.resources.gpu_count=4` and its like ask for, the last one winning."""
    document: dict[str, Any] = {}
    places: dict[str, str] = {}
    for text in texts:
        dotted, equals, written = text.partition("=")
        keys = dotted.strip().split(".")
        place = f"--set {dotted.strip()}"
        if not equals or not all(keys) or not written.strip():
            raise SettingsError(
                f"{text!r} is not an assignment", where="--set", fix="write --set steps.train.resources.gpu_count=4"
            )
        value, _ = _yaml(written, place)
        table = document
        for key in keys[:-1]:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise SettingsError(f"{key} is set to a value and to fields", where=place, fix="remove one of the two")
        table[keys[-1]] = value
        places[dotted.strip()] = place
    return _run_file(document, "--set", places)


def _on_a_part(layer: Layer, stack: Stack) -> Layer:
    """A layer that names a platform by its flavor alone ("platform.slurm"), as settings of the part that is one."""
    key = next((key for key in layer.values if key.startswith(PLATFORM)), "")
    if not key:
        return layer
    flavor = key.removeprefix(PLATFORM)
    values = {name: value for name, value in layer.values.items() if name != key}
    if stack.orchestrator.flavor == flavor:
        return attrs.evolve(layer, values={**values, f"orchestrator.{flavor}": layer.values[key]})
    operators = [name for name, one in stack.step_operators.items() if one.flavor == flavor]
    if len(operators) == 1:
        own = {"step_operator": operators[0], f"step_operator.{flavor}": layer.values[key]}
        return attrs.evolve(layer, values={**values, **own})
    leave = "" if layer.origin.startswith("--with") else f"; or leave it out: --without {flavor}"
    raise SettingsError(
        f"it is to run on {flavor}, of which stack '{stack.name}' has {len(operators) or 'none'}",
        where=layer.origin,
        fix=f'use another stack (--stack), or write orchestrator = {{flavor = "{flavor}"}} in it{leave}',
    )


def _operator(layers: Sequence[Layer], stack: Stack) -> str | None:
    """The name of the step operator that the strongest layer asks for."""
    for layer in reversed(layers):
        if "step_operator" in layer.values:
            asked = layer.values["step_operator"]
            break
    else:
        return None
    where = _place(layer, ("step_operator",))
    known = stack.step_operators
    if asked is True:
        if len(known) == 1:
            return next(iter(known))
        raise SettingsError(
            f"step_operator=True: stack '{stack.name}' has {len(known) or 'no'} step operators, not one",
            where=where,
            fix="name it" + nearest("", known) if known else _operator_fix(stack),
        )
    if asked is None or asked in known:
        return asked  # type: ignore[no-any-return]
    raise SettingsError(
        f"stack '{stack.name}' has no step operator called '{asked}'{nearest(asked, known)}",
        where=where,
        fix=_operator_fix(stack, asked),
    )


def _operator_fix(stack: Stack, name: str = "name") -> str:
    return f"write step_operators.{name} = {{flavor = …}} in [stacks.{stack.name}] of stoker.toml, or use another stack"


class _Pile:
    """Values merged so far, and for each dotted field where it was given, weakest first."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.places: dict[str, list[str]] = {}
        self.ranks: dict[str, int] = {}

    def put(self, given: Mapping[str, Any], layer: Layer, key: str, rank: int = 0) -> None:
        """Lay what a layer gives under one of its keys on top; `rank` is the layer's number."""
        self._let_go(given)
        self.values = merge(self.values, given)
        for path in _leaves(given):
            dotted = ".".join(path)
            # What it, its parts or its whole came from is overridden.
            hidden = [
                one
                for one in self.places
                if one == dotted or one.startswith(f"{dotted}.") or dotted.startswith(f"{one}.")
            ]
            over = [place for one in hidden for place in self.places.pop(one)]
            self.places[dotted] = [*over, _place(layer, (key, *path[1:]))]
            self.ranks[dotted] = rank

    def _let_go(self, given: Mapping[str, Any]) -> None:
        """Another launcher takes none of the arguments that weaker layers gave the one before."""
        weak, strong = self.values.get("launch"), given.get("launch")
        if not isinstance(weak, Mapping) or not isinstance(strong, Mapping):
            return
        from stoker.launchers.options import weaker_launch

        left = weaker_launch(weak, strong)
        self.values = {**self.values, "launch": left}
        gone = tuple(f"launch.{name}" for name in weak if name not in left)
        if gone:
            self.places = {path: places for path, places in self.places.items() if not path.startswith(gone)}


def _merged(
    layers: Sequence[Layer], stack: Stack, part: str, component: Component, *, level: Level
) -> tuple[dict[str, Any], dict[str, Any], dict[str, str], dict[str, int]]:
    """All layers' options, their settings for the component, the origins of both, and which layer each option is of."""
    options, backend = _Pile(), _Pile()
    own = Layer(origin=f"stack '{stack.name}'", origins={f"{part}.{key}": at for key, at in component.origins.items()})
    backend.put({part: dict(component.options)}, own, part)
    for rank, layer in enumerate(layers):
        seen = ""
        for key, value in layer.values.items():
            if "." not in key:
                options.put({key: value}, layer, key, rank)
                continue
            found = _component_values(layer, key, stack, part, component, level)
            if found is None:
                continue
            if seen:
                raise SettingsError(
                    f"'{key.removesuffix('.*')}' and '{seen.removesuffix('.*')}' speak of the same part of the stack",
                    where=_place(layer, (key,)),
                    fix="keep one of the two",
                )
            seen = key
            backend.put({part: found}, layer, key)
    places = {**options.places, **backend.places}
    origins = {path: _origin(found) for path, found in places.items()}
    return options.values, backend.values[part], origins, options.ranks


def _component_values(
    layer: Layer, key: str, stack: Stack, part: str, component: Component, level: Level
) -> dict[str, Any] | None:
    """Settings of a part of the stack, checked; None where they are of another part than the step runs on."""
    whose, _, flavor = key.partition(".")
    where = _place(layer, (key,))
    there = [stack.orchestrator] if whose == "orchestrator" else list(stack.step_operators.values())
    flavors = [one.flavor for one in there]
    shown = key.removesuffix(".*")
    if not there or (flavor != "*" and flavor not in flavors):
        has = f"its {whose} is '{flavors[0]}'" if whose == "orchestrator" else f"its step operators: {_list(flavors)}"
        other = "another stack (--stack)" if whose == "orchestrator" else _operator_fix(stack)
        raise SettingsError(
            f"settings for '{shown}', which stack '{stack.name}' does not have; {has}",
            where=where,
            fix=f"remove them, or {'use ' if whose == 'orchestrator' else ''}{other}",
        )
    if whose != part or flavor not in ("*", component.flavor):
        if layer.level == "step" and level == "step":
            runs = "the stack's orchestrator" if part == "orchestrator" else f"a step operator of '{component.flavor}'"
            fix = f"remove them, or {'give step_operator=' if whose == 'step_operator' else 'remove step_operator='}"
            raise SettingsError(f"settings for '{shown}', but the step runs on {runs}", where=where, fix=fix)
        return None
    try:
        check_level(shown, component.flavor, layer.level, layer.values[key])
        return component_settings(component.flavor, layer.values[key])
    except SettingsError as error:
        message = error.message if error.message.startswith(f"'{shown}'") else f"{shown}: {error.message}"
        raise SettingsError(message, where=where, fix=error.fix) from None


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names))) or "none"


def _leaves(values: Mapping[str, Any], base: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and name not in ATOMIC:
            yield from _leaves(value, (*base, name))
        else:
            yield (*base, name)


def _origin(places: Sequence[str]) -> str:
    over = list(dict.fromkeys(reversed(places[:-1])))
    return f"{places[-1]}  (over {', '.join(over)})" if over else places[-1]


def _place(layer: Layer, path: tuple[str, ...]) -> str:
    """The finest place that a layer knows for a field."""
    for key in (path[0], path[0].partition(".")[0]):
        for length in range(len(path) - 1, -1, -1):
            place = layer.origins.get(".".join((key, *path[1 : 1 + length])))
            if place is not None:
                return place
    return layer.origin


def _explained(error: SettingsError, origins: Mapping[str, str]) -> SettingsError:
    """The same error with the places of the fields that it speaks of."""
    words = set(re.findall(r"[a-z_]+", error.message))
    spoken = [
        f"{path.rpartition('.')[2]}: {place}" for path, place in origins.items() if path.rpartition(".")[2] in words
    ]
    return SettingsError("; ".join([error.message, *spoken]), where=error.where, fix=error.fix)


def _run_file(document: Mapping[str, Any], origin: str, places: Mapping[str, str]) -> RunFile:
    """A document's parts; `places` has a place for each of its dotted keys."""
    parts: dict[str, Any] = {}
    for key in ("parameters", "settings", "steps"):
        found = document.get(key)
        parts[key] = {} if found is None else found
        if not isinstance(parts[key], dict):
            raise SettingsError(f"{key} is not a mapping", where=places.get(key, origin))
    stack = document.get("stack")
    if stack is not None and not isinstance(stack, str):
        raise SettingsError(f"stack: {stack!r} is not a name", where=places.get("stack", origin))
    options = {key: value for key, value in document.items() if key not in RUN_KEYS}
    every = layer_from(origin, (parts["settings"], options), origins=_below(places, ()), also=RUN_KEYS)
    steps = {}
    for name, asked in parts["steps"].items():
        where = places.get(f"steps.{name}", origin)
        if not isinstance(asked, dict) or not isinstance(asked.get("settings", {}), dict):
            fix = f"write steps.{name}.resources.gpu_count, for example"
            raise SettingsError(f"steps.{name} is not a mapping", where=where, fix=fix)
        own = {key: value for key, value in asked.items() if key != "settings"}
        below = _below(places, ("steps", str(name)))
        sources = (asked.get("settings", {}), own)
        steps[str(name)] = (layer_from(where, sources, level="step", origins=below, also=("settings",)),)
    return RunFile(
        origin=origin,
        parameters=parts["parameters"],
        stack=stack,
        layers=(every,) if every.values else (),
        steps=steps,
    )


def _below(places: Mapping[str, str], path: tuple[str, ...]) -> dict[str, str]:
    """The places of the keys under a path, as if they and those under its `settings` stood at the top."""
    start = "".join(f"{part}." for part in path)
    below = {key.removeprefix(start): place for key, place in places.items() if key.startswith(start)}
    return {key.removeprefix("settings."): place for key, place in below.items()}


def _yaml(text: str, where: str) -> tuple[Any, dict[str, int]]:
    """A YAML document and the line of each of its dotted keys; a key that is written twice is an error."""
    import yaml

    loader = _loader()(text)
    try:
        node = loader.get_single_node()
        lines: dict[str, int] = {}
        _walk(node, "", lines, where)
        return (None if node is None else loader.construct_document(node)), lines
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = where if mark is None or where.startswith("--set") else f"{where}:{mark.line + 1}"
        raise SettingsError(f"is not YAML: {getattr(error, 'problem', None) or error}", where=place) from None
    finally:
        loader.dispose()


def _walk(node: Any, base: str, lines: dict[str, int], where: str) -> None:
    if getattr(node, "id", "") != "mapping":
        return
    for key, value in node.value:
        dotted = f"{base}{key.value}"
        line = key.start_mark.line + 1
        if dotted in lines and key.tag != "tag:yaml.org,2002:merge":
            raise SettingsError(f"{dotted} is written twice, first in line {lines[dotted]}", where=f"{where}:{line}")
        lines[dotted] = line
        _walk(value, f"{dotted}.", lines, where)


@functools.cache
def _loader() -> Any:
    """PyYAML's safe loader with the scalars of YAML 1.2: "on" and "no" are texts, "1e-3" is a number, 010 no octal."""
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 PyYAML's own name

    for tag, pattern, first in (
        ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
        ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
        ("int", r"[-+]?(0|[1-9][0-9_]*)|0x[0-9a-fA-F]+", list("-+0123456789")),
        (
            "float",
            r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan",
            list("-+0123456789."),
        ),
        ("merge", r"<<", ["<"]),
    ):
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(rf"(?:{pattern})$"), first)
    return Loader
