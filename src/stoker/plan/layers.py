"""Merge layers of settings, weakest first, into the settings of one step, with the origin of each value.

Merging is per given field: mappings merge recursively, everything else is replaced. Run files and `--set` are parsed
here into the same layers that decorators make. The planner checks the names of steps.
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
from stoker.core.units import size_text, whole_run_fields
from stoker.core.values import frozen
from stoker.settings.options import (
    OPTIONS,
    check_level,
    component_settings,
    layer_from,
    settings_class,
    step_settings,
)
from stoker.stacks import ORCHESTRATOR, Component, Stack

_MOST_YAML: Final = 4_000_000
"""Characters of a run file; PyYAML takes a second for 50,000."""
ATOMIC: Final = frozenset({"cache_key"})
"""Options whose mappings are one value and are replaced as a whole."""
PLATFORM: Final = "platform."
"""Prefix of the key of settings for the component of a flavor, orchestrator or step operator; steps run there."""
PART: Final = "part."
"""The same of settings that say nothing of where steps run."""
RUN_KEYS: Final = ("parameters", "stack", "settings", "steps")
"""Keys of a run file besides options."""


@frozen(kw_only=True)
class RunFile:
    """The contents of a run file, or of the command line's assignments."""

    origin: str
    """The path of the file, or "--set"."""
    parameters: Mapping[str, Any] = attrs.field(factory=dict)
    """The pipeline's arguments by name."""
    stack: str | None = None
    layers: tuple[Layer, ...] = ()
    """Layers for every step."""
    steps: Mapping[str, tuple[Layer, ...]] = attrs.field(factory=dict)
    """Layers for single steps, by name or key."""


IMPLIED_BY: Final = "one for each process, by "
"""How the origin of a number of GPUs begins that a launch asks for."""


def resolve(layers: Sequence[Layer], stack: Stack) -> tuple[StepSettings, dict[str, str]]:
    """A step's settings, and for each dotted field its origin with the origins that it overrides.

    `layers` are all layers, weakest first, the stack's included.
    """
    layers = [_platform_layer(layer, stack) for layer in layers]
    name = _step_operator(layers, stack)
    part = "orchestrator" if name is None else "step_operator"
    component = stack.parts[name or ORCHESTRATOR]
    values, backend, origins, ranks = _merge_layers(layers, stack, part, component, level="step")
    pypi = (values.get("packages") or {}).get("pypi")
    if pypi:
        from stoker.plan.requirements import check_versions

        check_versions(pypi, origins)
    if values.get("packages"):
        registration = BACKENDS.load(component.flavor)
        parent_image = registration.parent_image
        if registration.image_engine is not None or parent_image is not None:
            from stoker.plan.environments import MergedSettings, with_image_packages

            values, origins = with_image_packages(MergedSettings(values=values, origins=origins, ranks=ranks))
        docker = values.get("docker")
        if docker and parent_image is not None and not {"parent_image", "dockerfile"} & docker.keys():
            parent = parent_image({**component.options, **backend})
            values["docker"] = {**docker, **({"parent_image": parent} if parent else {})}
    words = BACKENDS.load(component.flavor).resources
    if words is not None:
        values, origins = _with_platform_words(values, origins, words({**component.options, **backend}), part)
    try:
        settings = step_settings({**values, "step_operator": name}, {part: backend} if backend else {})
    except SettingsError as error:
        raise _with_origins(error, origins) from None
    return _with_implied_devices(settings, origins)


def _with_platform_words(
    values: Mapping[str, Any], origins: Mapping[str, str], words: Mapping[str, tuple[str, Any]], part: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """The values with what a platform's own settings ask for as `resources`; what contradicts them is refused."""
    resources, origins = dict(values.get("resources") or {}), dict(origins)
    for name, (field, value) in words.items():
        own = resources.get(name)
        if own is not None and own != value and not (name == "accelerators" and _same_devices(own, value, resources)):
            places = [origins.get(path, "") for path in (f"resources.{name}", f"{part}.{field}")]
            where = " and ".join(dict.fromkeys(filter(None, places)))
            asked, other = (_request_text(name, one) for one in (own, value))
            what = f"resources.{name} asks for {asked}, and {part}'s {field} for {other}"
            raise SettingsError(what, where=where, fix="remove one of the two")
        if own is None:
            resources[name] = value
            origins[f"resources.{name}"] = f"{part}.{field} of {origins.get(f'{part}.{field}', 'the stack')}"
    return {**values, **({"resources": resources} if resources else {})}, origins


def _same_devices(own: Any, words: Any, resources: Mapping[str, Any]) -> bool:
    """Whether both name the same accelerators, of which one has the count elsewhere."""
    count = resources.get("gpu_count") or 1
    return [attrs.evolve(one, count=one.count or count) for one in own] == list(words)


def _request_text(name: str, value: Any) -> str:
    if name in ("memory", "disk"):
        return size_text(value)
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _with_implied_devices(settings: StepSettings, origins: dict[str, str]) -> tuple[StepSettings, dict[str, str]]:
    """The settings with the GPUs that the launch asks for, where the resources name no accelerator."""
    launch, resources = settings.launch, settings.resources
    if launch is None or not launch.arguments or resources.gpus_per_node or resources.get("gpu_count") is not None:
        return settings, origins
    from stoker.launchers.registry import launcher_named

    launcher = launcher_named(launch.launcher)
    count = launcher.implied_devices(launch, nodes=resources.get("nodes", 1))
    if not count:
        return settings, origins
    origin = (
        f"{IMPLIED_BY}{launcher.devices}=True of {origins.get(f'launch.arguments.{launcher.devices}', 'its launch')}"
    )
    settings = attrs.evolve(settings, resources=attrs.evolve(resources, gpu_count=count))
    return settings, {**origins, "resources.gpu_count": origin}


def resolve_pipeline(
    layers: Sequence[Layer], stack: Stack, *, recorded_options: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[PipelineSettings, dict[str, str]]:
    """The settings of a whole run, and their origins; the run's backends are opened with them.

    The first of `layers` is the stack's. `recorded_options` are the options that the run's backends had before it was
    resumed, by their names in `StepPlan.backend`; they override the stack's, and the other layers override them.
    """
    layers = [_platform_layer(layer, stack) for layer in layers]
    values, backend, origins, _ = _merge_layers(
        _with_recorded(layers, "orchestrator", stack.orchestrator, (recorded_options or {}).get("orchestrator")),
        stack,
        "orchestrator",
        stack.orchestrator,
        level="pipeline",
    )
    plain = {name: value for name, value in values.items() if OPTIONS[name].level == "pipeline"}
    kept_origins = {
        name: place for name, place in origins.items() if name.partition(".")[0] in (*plain, "orchestrator")
    }
    backends = {"orchestrator": backend} if backend else {}
    for name, component in stack.step_operators.items():
        own_layers = [_for_flavor(layer, component.flavor) for layer in layers]
        recorded_layers = _with_recorded(own_layers, "step_operator", component, (recorded_options or {}).get(name))
        _, options, _, _ = _merge_layers(recorded_layers, stack, "step_operator", component, level="pipeline")
        if options:
            backends[name] = options
    return PipelineSettings(**plain, backend=backends), kept_origins


def check_whole_run(
    settings: StepSettings, origins: Mapping[str, str], run: Mapping[str, Mapping[str, Any]], stack: Stack
) -> None:
    """Refuse a step's option that differs from the run's, for the options that hold for a whole run.

    `run` is `PipelineSettings.backend`. The steps of a nested pipeline may have options with which no backend was
    opened.
    """
    name = settings.step_operator
    part = "orchestrator" if name is None else "step_operator"
    component = stack.parts[name or ORCHESTRATOR]
    kind = settings_class(component.flavor)
    step_options, run_options = settings.backend.get(part, {}), run.get(name or "orchestrator", {})
    for field in whole_run_fields(kind):
        if step_options.get(field) != run_options.get(field):
            place = next((at for path, at in origins.items() if f"{path}.".startswith(f"{part}.{field}.")), "")
            raise SettingsError(
                f"'{part}.{component.flavor}': {field} is for a whole run, and {_value(step_options, field)} here "
                f"where the run has {_value(run_options, field)}",
                where=place,
                fix="give it to the outermost @pipeline or to the stack",
            )


def _value(options: Mapping[str, Any], field: str) -> str:
    return repr(options[field]) if field in options else "nothing"


def _with_recorded(
    layers: Sequence[Layer], part: str, component: Component, recorded_options: Mapping[str, Any] | None
) -> Sequence[Layer]:
    if recorded_options is None:
        return layers
    recorded = Layer(origin="the run as it was started", values={f"{part}.{component.flavor}": recorded_options})
    return (*layers[:1], recorded, *layers[1:])


def _for_flavor(layer: Layer, flavor: str) -> Layer:
    """A layer whose settings for any step operator are reduced to the fields of one flavor."""
    options, kind = layer.values.get("step_operator.*"), settings_class(flavor)
    if options is None:
        return layer
    fields = {field.name for field in attrs.fields(kind)}
    own_options = {name: value for name, value in options.items() if name in fields}
    return attrs.evolve(layer, values={**layer.values, "step_operator.*": own_options})


def merge(weak: Mapping[str, Any], strong: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two mappings: nested mappings merge, other values of `strong` replace those of `weak`."""
    merged = dict(weak)
    for name, value in strong.items():
        weak_value = merged.get(name)
        both = isinstance(value, Mapping) and isinstance(weak_value, Mapping) and name not in ATOMIC
        merged[name] = merge(weak_value, value) if both and weak_value is not None else value
    return merged


def run_file(path: str | Path) -> RunFile:
    """Read a YAML run file; errors name its lines."""
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
    """Parse `--set` assignments, such as steps.train.resources.gpu_count=4; later ones override earlier ones."""
    document: dict[str, Any] = {}
    places: dict[str, str] = {}
    for text in texts:
        dotted, equals, value_text = text.partition("=")
        keys = dotted.strip().split(".")
        origin = f"--set {dotted.strip()}"
        if not equals or not all(keys) or not value_text.strip():
            raise SettingsError(
                f"{text!r} is not an assignment", where="--set", fix="write --set steps.train.resources.gpu_count=4"
            )
        value, _ = _yaml(value_text, origin)
        table = document
        for key in keys[:-1]:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise SettingsError(f"{key} is set to a value and to fields", where=origin, fix="remove one of the two")
        table[keys[-1]] = value
        places[dotted.strip()] = origin
    return _run_file(document, "--set", places)


def _platform_layer(layer: Layer, stack: Stack) -> Layer:
    """A layer with settings for a flavor ("platform.slurm"), as settings of the component of that flavor."""
    key = next((key for key in layer.values if key.startswith((PLATFORM, PART))), "")
    if not key:
        return layer
    prefix, _, flavor = key.partition(".")
    values = {name: value for name, value in layer.values.items() if name != key}
    name = _part_of(flavor, stack, layer.origin)
    if name == ORCHESTRATOR:
        return attrs.evolve(layer, values={**values, f"orchestrator.{flavor}": layer.values[key]})
    placed = {"step_operator": name} if f"{prefix}." == PLATFORM else {}
    return attrs.evolve(layer, values={**values, **placed, f"step_operator.{flavor}": layer.values[key]})


def with_usual_parts(stack: Stack, layers: Iterable[Layer]) -> Stack:
    """The stack with the backends that layers ask for by name and that none of its parts is of; each has its usual
    settings."""
    names: list[str] = []
    for layer in layers:
        for key, value in layer.values.items():
            if key.startswith((PLATFORM, PART)):
                names.append(key.partition(".")[2])
            elif key == "step_operator" and isinstance(value, str) and value not in stack.parts:
                names.append(BACKENDS.canonical(value))
    if not names:
        return stack
    flavors = {part.flavor for part in stack.parts.values()}
    return stack.with_usual(name for name in names if name not in flavors)


def _part_of(flavor: str, stack: Stack, where: str) -> str:
    """The name of the stack's part of a backend, of which it has one: the orchestrator, or a step operator."""
    parts = [name for name, one in stack.parts.items() if one.flavor == flavor]
    if ORCHESTRATOR in parts or len(parts) == 1:
        return parts[0]
    raise SettingsError(
        f"it is to run on {flavor}, which several step operators of stack '{stack.name}' are: {', '.join(parts)}",
        where=where,
        fix=f'name one: @step(step_operator="{parts[0]}"), or --set step_operator={parts[0]}',
    )


def _step_operator(layers: Sequence[Layer], stack: Stack) -> str | None:
    """The name of the step operator that the strongest layer asks for."""
    for layer in reversed(layers):
        if "step_operator" in layer.values:
            name = layer.values["step_operator"]
            break
    else:
        return None
    where = _place(layer, ("step_operator",))
    operators = stack.step_operators
    if name is True:
        if len(operators) == 1:
            return next(iter(operators))
        raise SettingsError(
            f"step_operator=True: stack '{stack.name}' has {len(operators) or 'no'} step operators, not one",
            where=where,
            fix="name it" + nearest("", operators) if operators else _operator_fix(stack),
        )
    if name is None or name in operators:
        return name  # type: ignore[no-any-return]
    flavor = BACKENDS.canonical(name)
    if flavor in (part.flavor for part in stack.parts.values()):
        found = _part_of(flavor, stack, where)
        return None if found == ORCHESTRATOR else found
    raise SettingsError(
        f"stack '{stack.name}' has no step operator called '{name}'{nearest(name, operators)}",
        where=where,
        fix=_operator_fix(stack, name),
    )


def _operator_fix(stack: Stack, name: str = "name") -> str:
    return f"write step_operators.{name} = {{flavor = …}} in [stacks.{stack.name}] of stoker.toml, or use another stack"


class _MergedOptions:
    """Values merged so far, and for each dotted field where it was given, weakest first."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.places: dict[str, list[str]] = {}
        self.ranks: dict[str, int] = {}

    def put(self, given: Mapping[str, Any], layer: Layer, key: str, rank: int = 0) -> None:
        """Merge the values that a layer gives under one of its keys; `rank` is the layer's number."""
        self._drop_arguments(given)
        self.values = merge(self.values, given)
        for path in _leaves(given):
            dotted = ".".join(path)
            # The origins of the field, of its parts and of what contains it are overridden.
            hidden = [
                one
                for one in self.places
                if one == dotted or one.startswith(f"{dotted}.") or dotted.startswith(f"{one}.")
            ]
            over = [place for one in hidden for place in self.places.pop(one)]
            self.places[dotted] = [*over, _place(layer, (key, *path[1:]))]
            self.ranks[dotted] = rank

    def _drop_arguments(self, given: Mapping[str, Any]) -> None:
        """Drop the arguments that weaker layers gave to another launcher."""
        weak, strong = self.values.get("launch"), given.get("launch")
        if not isinstance(weak, Mapping) or not isinstance(strong, Mapping):
            return
        from stoker.launchers.options import weaker_launch

        left = weaker_launch(weak, strong)
        self.values = {**self.values, "launch": left}
        gone = tuple(f"launch.{name}" for name in weak if name not in left)
        if gone:
            self.places = {path: places for path, places in self.places.items() if not path.startswith(gone)}


def _merge_layers(
    layers: Sequence[Layer], stack: Stack, part: str, component: Component, *, level: Level
) -> tuple[dict[str, Any], dict[str, Any], dict[str, str], dict[str, int]]:
    """The merged options, the component's settings, the origins of both, and the layer's number of each option."""
    options, backend = _MergedOptions(), _MergedOptions()
    stack_layer = Layer(
        origin=f"stack '{stack.name}'", origins={f"{part}.{key}": at for key, at in component.origins.items()}
    )
    backend.put({part: dict(component.options)}, stack_layer, part)
    for rank, layer in enumerate(layers):
        earlier = ""
        for key, value in layer.values.items():
            if "." not in key:
                options.put({key: value}, layer, key, rank)
                continue
            component_options = _component_values(layer, key, stack, part, component, level)
            if component_options is None:
                continue
            if earlier:
                raise SettingsError(
                    f"'{key.removesuffix('.*')}' and '{earlier.removesuffix('.*')}' speak of the same part of the "
                    "stack",
                    where=_place(layer, (key,)),
                    fix="keep one of the two",
                )
            earlier = key
            backend.put({part: component_options}, layer, key)
    places = {**options.places, **backend.places}
    origins = {path: _origin(given_at) for path, given_at in places.items()}
    return options.values, backend.values[part], origins, options.ranks


def _component_values(
    layer: Layer, key: str, stack: Stack, part: str, component: Component, level: Level
) -> dict[str, Any] | None:
    """A layer's checked settings for the component; None if they are for a component that the step does not use."""
    owner, _, flavor = key.partition(".")
    where = _place(layer, (key,))
    components = [stack.orchestrator] if owner == "orchestrator" else list(stack.step_operators.values())
    flavors = [one.flavor for one in components]
    setting = key.removesuffix(".*")
    if not components or (flavor != "*" and flavor not in flavors):
        has = f"its {owner} is '{flavors[0]}'" if owner == "orchestrator" else f"its step operators: {_joined(flavors)}"
        other = "another stack (--stack)" if owner == "orchestrator" else _operator_fix(stack)
        raise SettingsError(
            f"settings for '{setting}', which stack '{stack.name}' does not have; {has}",
            where=where,
            fix=f"remove them, or {'use ' if owner == 'orchestrator' else ''}{other}",
        )
    if owner != part or flavor not in ("*", component.flavor):
        if layer.level == "step" and level == "step":
            runs = "the stack's orchestrator" if part == "orchestrator" else f"a step operator of '{component.flavor}'"
            fix = f"remove them, or {'give step_operator=' if owner == 'step_operator' else 'remove step_operator='}"
            raise SettingsError(f"settings for '{setting}', but the step runs on {runs}", where=where, fix=fix)
        return None
    try:
        check_level(setting, component.flavor, layer.level, layer.values[key])
        return component_settings(component.flavor, layer.values[key])
    except SettingsError as error:
        message = error.message if error.message.startswith(f"'{setting}'") else f"{setting}: {error.message}"
        raise SettingsError(message, where=where, fix=error.fix) from None


def _joined(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names))) or "none"


def _leaves(values: Mapping[str, Any], base: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and name not in ATOMIC:
            yield from _leaves(value, (*base, name))
        else:
            yield (*base, name)


def _origin(places: Sequence[str]) -> str:
    overridden = list(dict.fromkeys(reversed(places[:-1])))
    return f"{places[-1]}  (over {', '.join(overridden)})" if overridden else places[-1]


def _place(layer: Layer, path: tuple[str, ...]) -> str:
    """The most precise origin that a layer has for a field."""
    for key in (path[0], path[0].partition(".")[0]):
        for length in range(len(path) - 1, -1, -1):
            place = layer.origins.get(".".join((key, *path[1 : 1 + length])))
            if place is not None:
                return place
    return layer.origin


def _with_origins(error: SettingsError, origins: Mapping[str, str]) -> SettingsError:
    """The same error with the origins of the fields that it names."""
    words = set(re.findall(r"[a-z_]+", error.message))
    fields = [
        f"{path.rpartition('.')[2]}: {place}" for path, place in origins.items() if path.rpartition(".")[2] in words
    ]
    return SettingsError("; ".join([error.message, *fields]), where=error.where, fix=error.fix)


def _run_file(document: Mapping[str, Any], origin: str, places: Mapping[str, str]) -> RunFile:
    """Parse a run file's document; `places` has the place of each dotted key."""
    parts: dict[str, Any] = {}
    for key in ("parameters", "settings", "steps"):
        table = document.get(key)
        parts[key] = {} if table is None else table
        if not isinstance(parts[key], dict):
            raise SettingsError(f"{key} is not a mapping", where=places.get(key, origin))
    stack = document.get("stack")
    if stack is not None and not isinstance(stack, str):
        raise SettingsError(f"stack: {stack!r} is not a name", where=places.get("stack", origin))
    options = {key: value for key, value in document.items() if key not in RUN_KEYS}
    every = layer_from(origin, (parts["settings"], options), origins=_places_below(places, ()), also=RUN_KEYS)
    steps = {}
    for name, settings in parts["steps"].items():
        where = places.get(f"steps.{name}", origin)
        if not isinstance(settings, dict) or not isinstance(settings.get("settings", {}), dict):
            fix = f"write steps.{name}.resources.gpu_count, for example"
            raise SettingsError(f"steps.{name} is not a mapping", where=where, fix=fix)
        step_options = {key: value for key, value in settings.items() if key != "settings"}
        step_places = _places_below(places, ("steps", str(name)))
        sources = (settings.get("settings", {}), step_options)
        steps[str(name)] = (layer_from(where, sources, level="step", origins=step_places, also=("settings",)),)
    return RunFile(
        origin=origin,
        parameters=parts["parameters"],
        stack=stack,
        layers=(every,) if every.values else (),
        steps=steps,
    )


def _places_below(places: Mapping[str, str], path: tuple[str, ...]) -> dict[str, str]:
    """The places of the keys below a path and below its `settings`, relative to them."""
    start = "".join(f"{part}." for part in path)
    below = {key.removeprefix(start): place for key, place in places.items() if key.startswith(start)}
    return {key.removeprefix("settings."): place for key, place in below.items()}


def _yaml(text: str, where: str) -> tuple[Any, dict[str, int]]:
    """A YAML document and the line of each dotted key; a duplicate key is an error."""
    import yaml

    if len(text) > _MOST_YAML:
        raise SettingsError(f"it has {len(text):,} characters, more than {_MOST_YAML:,}", where=where)
    try:
        loader = _loader()(text)
        try:
            node = loader.get_single_node()
            lines: dict[str, int] = {}
            _walk(node, "", lines, where)
            return (None if node is None else loader.construct_document(node)), lines
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = where if mark is None or where.startswith("--set") else f"{where}:{mark.line + 1}"
        raise SettingsError(f"is not YAML: {getattr(error, 'problem', None) or error}", where=place) from None
    except RecursionError:
        raise SettingsError("it is nested too deeply", where=where) from None
    except (ValueError, TypeError, AttributeError, LookupError) as error:  # PyYAML's, for a date or a tag that is none
        raise SettingsError(f"is not YAML: {error}", where=where) from None


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
