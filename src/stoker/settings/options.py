"""Every option that a person may give, and how it is parsed, whichever way it came.

One table, `OPTIONS`, parses every option alike, whether it came from a decorator's keyword, a `settings=` dict, TOML,
YAML or `--set`. The values are in `core.settings`; merging layers is `plan.layers`. Knows no file format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Final, Iterable, Mapping

import attrs

from stoker.core import units
from stoker.core.data import DataCache, parse_data
from stoker.core.docker import DockerSettings, parse_environment
from stoker.core.errors import SettingsError, nearest
from stoker.core.ladder import single
from stoker.core.packages import PackageSettings
from stoker.core.plugins import entry_points
from stoker.core.resources import WATCHED, Monitor, ResourceSettings, check_complete
from stoker.core.secret import Secret
from stoker.core.settings import COMPONENTS, NO_RETRY, TRACKED, Launch, Layer, Level, Retry, StepSettings, fields_given
from stoker.core.units import (
    UNSET,
    by_own_names,
    no_field,
    not_one_of,
    parse_flag,
    parse_mapping,
    parse_positive_count,
    whole_run_fields,
)
from stoker.core.values import frozen
from stoker.core.words import shown

if TYPE_CHECKING:
    from stoker.backends.base.backend import Backend
    from stoker.core.plugins import Registry


@frozen(kw_only=True)
class Option:
    """How one option is parsed into its plain form; `kind` is the class of values that may stand for it."""

    parse: Callable[[Any], Any]
    level: Level = "step"
    kind: type | None = None


def _fields_of(kind: type, *, short: str = "") -> Option:
    """An option made of fields: an object of `kind`, a mapping, or a plain value for its field `short`."""

    def parse(value: Any) -> Any:
        if value is None or isinstance(value, kind):
            return value if value is None else fields_given(value)
        if isinstance(value, Mapping):
            return fields_given(kind(**parse_mapping(value) or {}))
        if short and not attrs.has(type(value)):
            return fields_given(kind(**{short: value}))
        raise SettingsError(
            f"{_value_text(value)} is not {kind.__name__}",
            fix=f'write its fields: {{"{attrs.fields(kind)[0].name}": …}}, or in Python {kind.__name__}(…)',
        )

    return Option(parse=parse, kind=kind)


def _choice(*words: str) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        if value not in words:
            raise not_one_of(value, words)
        return value

    return parse


def _or_none(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else parse(value)


def _flag(value: Any) -> Any:
    if value is None:
        raise SettingsError("None is neither true nor false", fix=units.FLAG_FIX)
    return parse_flag(value)


def _cache(value: Any) -> Any:
    return value if value == "strict" else _flag(value)


def _checkpoint_every(value: Any) -> Any:
    return value if value is None or value == "auto" else units.positive_duration(value)


def _json(value: Any) -> Any:
    import json

    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise SettingsError(
            f"{shown(value)} cannot be written as JSON: {error}", fix="give text, numbers or lists"
        ) from None


def _tracked(value: Any) -> Any:
    """The libraries whose calls are logged as metrics; one may stand without a list."""
    names = [value] if isinstance(value, str) else list(value or ()) if isinstance(value, (list, tuple)) else None
    if value is not None and names is None:
        raise SettingsError(f"{_value_text(value)} is no list of libraries", fix='write track="tensorboard"')
    for name in names or ():
        if name not in TRACKED:
            fix = f"write {' or '.join(map(repr, TRACKED))}; log_metrics logs what another library is told"
            raise SettingsError(f"{_value_text(name)} cannot be tracked{nearest(str(name), TRACKED)}", fix=fix)
    return tuple(dict.fromkeys(names or ()))


def _operator(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value or None
    if isinstance(value, str) and value:
        return value
    fix = 'write step_operator="name" and settings={"step_operator": …}'
    raise SettingsError(f"{_value_text(value)} is not the name of a step operator", fix=fix)


def _launch(value: Any) -> Any:
    from stoker.launchers.options import parse_launch  # most steps have no launcher, and starting does not pay for it

    return parse_launch(value)


def _resolved_launch(values: Mapping[str, Any] | None) -> Launch | None:
    if values is None:
        return None
    from stoker.launchers.options import resolve_launch

    return resolve_launch(values)


def _deadline(value: Any) -> Any:
    from stoker.core.costs import parse_deadline  # few runs have one

    return parse_deadline(value)


def _budget(value: Any) -> Any:
    from stoker.core.costs import parse_budget

    return parse_budget(value)


def _environment(value: Any) -> Any:
    """A step's environment variables; a `Secret` is kept as the text of its reference."""
    if isinstance(value, Mapping):
        value = {name: str(text) if isinstance(text, Secret) else text for name, text in value.items()}
    return parse_environment(value)


OPTIONS: Final[Mapping[str, Option]] = {
    "resources": _fields_of(ResourceSettings),
    "docker": _fields_of(DockerSettings),
    "packages": _fields_of(PackageSettings),
    "retry": _fields_of(Retry, short="times"),
    "timeout": Option(parse=_or_none(units.positive_duration)),
    "cache": Option(parse=_cache),
    "cache_key": Option(parse=_json),
    "cache_expires": Option(parse=_or_none(units.positive_duration)),
    "isolation": Option(parse=_choice("warm", "fresh")),
    "accelerator_policy": Option(parse=_choice("require", "prefer")),
    "health_check": Option(parse=_choice("off", "quick")),
    "on_idle_gpu": Option(parse=_choice("warn", "fail", "stop", "ignore")),
    "monitor": _fields_of(Monitor, short="interval"),
    "checkpoint_every": Option(parse=_checkpoint_every),
    "track": Option(parse=_tracked),
    "previews": Option(parse=_flag),
    "environment": Option(parse=_environment),
    "data": Option(parse=parse_data),
    "data_cache": _fields_of(DataCache, short="folder"),
    "launch": Option(parse=_launch, kind=Launch),
    "step_operator": Option(parse=_operator),
    "failure_mode": Option(parse=_choice("fail_fast", "continue"), level="pipeline"),
    "on_hangup": Option(parse=_choice("stop", "detach"), level="pipeline"),
    "max_parallel": Option(parse=parse_positive_count, level="pipeline"),
    "require_proof": Option(parse=_flag, level="pipeline"),
    "deadline": Option(parse=_deadline, level="pipeline"),
    "budget": Option(parse=_budget, level="pipeline"),
}
"""Every option by its name. `step_operator` is the name of one; a mapping under that key is the operator's settings."""


def layer_of(
    origin: str, settings: Mapping[str, Any] | None = None, *, level: Level = "pipeline", **options: Any
) -> Layer:
    """The layer of a decorator from its `settings` and its keywords; an option that is `UNSET` was not given."""
    raw: Any = settings
    if raw is not None and not isinstance(raw, Mapping):
        raise SettingsError(
            f"settings={_value_text(raw)} is not a mapping", where=origin, fix='write {"resources": {"cpu_count": 4}}'
        )
    return layer_from(origin, (raw or {}, options), level=level)


def layer_from(
    origin: str,
    sources: Iterable[Mapping[str, Any]],
    *,
    level: Level = "pipeline",
    origins: Mapping[str, str] | None = None,
    also: Iterable[str] = (),
) -> Layer:
    """The layer of one place, whose options stand in any of `sources`; `also` are words that a typo may have meant."""
    values: dict[str, Any] = {}
    places = origins or {}
    for source in sources:
        for key, value in source.items():
            if value is UNSET:
                continue
            where = places.get(str(key), origin)
            try:
                for name, plain in _entries(key, value, level, also):
                    if name in values:
                        raise SettingsError(f"{key} is given twice", fix="remove one of the two")
                    values[name] = plain
            except SettingsError as error:
                raise _with_location(error, str(key), where, places) from None
            except Exception as error:  # whatever a value's own converter raises for a value that nobody foresaw
                raise SettingsError(f"{key}: {shown(value)} is refused: {error}", where=where) from error
    return Layer(origin=origin, values=values, origins=dict(places), level=level)


def component_settings(flavor: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """A backend's own settings, checked by its class."""
    return checked_fields(settings_class(flavor), values)


def default_store(flavor: str, options: Mapping[str, Any]) -> str:
    """The artifact store of a stack that names none, by its orchestrator; empty for the folder of this machine."""
    store_of = _backends().load(flavor).default_store
    return "" if store_of is None else store_of(options)


def complete_store(flavor: str, options: Mapping[str, Any], uri: str) -> str:
    """The URI of a stack's artifact store with what it takes to reach it, by the stack's orchestrator."""
    complete = _backends().load(flavor).complete_store
    return uri if complete is None or not uri else complete(options, uri)


def settings_class(flavor: str) -> type[attrs.AttrsInstance]:
    """The class of a backend's settings."""
    return _backends().load(flavor).settings


def is_backend(name: str) -> bool:
    """Whether a backend has this name."""
    return name in _backends()


def checked_flavor(flavor: str) -> str:
    """The name of a backend, by one of its spellings; a name that no backend has is refused."""
    flavor = _backends().canonical(flavor)
    if flavor not in _backends():
        _refuse_platform(flavor)
        raise SettingsError(f"there is no backend called '{flavor}'{nearest(flavor, _backends().names())}")
    return flavor


def _refuse_platform(name: str) -> None:
    """Refuse a platform that people look for and that has no backend."""
    from stoker.backends.registry import refusal

    if refusal(name):
        raise SettingsError(refusal(name))


def check_level(key: str, flavor: str, level: Level, names: Iterable[str] = ()) -> None:
    """Refuse for one step what a backend can only honour for a whole run: all that it has, or single fields of it."""
    kind = settings_class(flavor)
    of_run = whole_run_fields(kind) if level == "step" else ()
    everything = bool(of_run) and len(of_run) == len(attrs.fields(kind))
    refused = [name for name in names if name in of_run]
    if everything or refused:
        what = f"'{key}'" if everything else f"'{key}': {refused[0]}"
        raise SettingsError(f"{what} is for a whole run, not for one step", fix="give it to @pipeline or to the stack")


def step_settings(values: Mapping[str, Any], backend: Mapping[str, Any] | None = None) -> StepSettings:
    """The resolved settings of a step from merged plain values; None in a field means that nothing is asked."""
    plain = {name: value for name, value in values.items() if name in OPTIONS and OPTIONS[name].level == "step"}
    resources = ResourceSettings(**_without_none(plain.pop("resources", None)))
    check_complete(resources)
    docker, packages = plain.pop("docker", None), plain.pop("packages", None)
    cache = plain.pop("data_cache", None)
    retry = _without_none(plain.pop("retry", None))
    monitor = _without_none(plain.pop("monitor", None))
    if retry.get("on_oom") and "times" not in retry:
        retry["times"] = len(single(Retry(on_oom=retry["on_oom"]).on_oom))
    if "on" in retry and "times" not in retry:
        raise SettingsError("retry: it says after what, but not how often", fix="give times, such as Retry(3, on=…)")
    return StepSettings(
        resources=resources,
        docker=None if docker is None else DockerSettings(**_without_none(docker)),
        packages=None if packages is None else PackageSettings(**_without_none(packages)),
        data_cache=None if cache is None else DataCache(**_without_none(cache)),
        retry=attrs.evolve(NO_RETRY, **retry),
        monitor=attrs.evolve(WATCHED, **monitor),
        environment=_without_none(plain.pop("environment", None)),
        launch=_resolved_launch(plain.pop("launch", None)),
        backend=backend or {},
        **plain,
    )


def _entries(key: Any, value: Any, level: Level, also: Iterable[str]) -> Iterable[tuple[str, Any]]:
    """The entries of a layer that one key makes."""
    component, _, flavor = str(key).partition(".")
    option = OPTIONS.get(str(key))
    if component in COMPONENTS and (flavor or component not in OPTIONS or not _is_name(value)):
        yield from _component(component, flavor, value, level)
        return
    if option is None:
        keys = [
            *OPTIONS,
            *also,
            *COMPONENTS,
            *(f"{part}.{name}" for part in COMPONENTS for name in _backends().names()),
        ]
        raise SettingsError(f"there is no setting '{key}'{nearest(str(key), keys)}")
    if level == "step" and option.level == "pipeline":
        raise SettingsError(f"{key} is for a whole pipeline, not for one step", fix=f"give {key} to @pipeline")
    _refuse_misplaced(str(key), value)
    yield str(key), option.parse(value)


def _is_name(value: Any) -> bool:
    return value is None or isinstance(value, (str, bool))


def _component(component: str, flavor: str, value: Any, level: Level) -> Iterable[tuple[str, Any]]:
    if flavor:
        flavor = checked_flavor(flavor)
    key = f"{component}.{flavor}" if flavor else component
    _refuse_misplaced(key, value)
    if not isinstance(value, Mapping):
        owner = flavor_of(value)
        if owner is None or (flavor and owner != flavor):
            raise SettingsError(
                f"{_value_text(value)} holds no settings for '{key}'", fix="give a mapping of its fields"
            )
        flavor, value = owner, _fields_stated(value)
    plain = dict(parse_mapping(value) or {})
    if not flavor:
        # TOML and --set write "orchestrator.local.cpus" as nested tables.
        for name in [
            name for name in plain if isinstance(plain[name], Mapping) and _backends().canonical(name) in _backends()
        ]:
            yield from _component(component, name, plain.pop(name), level)
        for name in [name for name in plain if isinstance(plain[name], Mapping)]:
            _refuse_platform(name)
        if plain or not value:
            yield f"{component}.*", plain
        return
    check_level(key, flavor, level, plain)
    yield f"{component}.{flavor}", component_settings(flavor, plain)


def flavor_of(value: Any) -> str | None:
    """The backend whose settings class made `value`."""
    kind = type(value)
    if not attrs.has(kind):
        return None
    return next((name for name in _backends_near(kind.__module__) if settings_class(name) is kind), None)


def _backends_near(module: str) -> list[str]:
    """Backends registered in the folder that a module lies in, or by its distribution: others are not imported."""
    folders = {name: target.partition(":")[0].rpartition(".")[0] for name, (target, _) in _backends().builtin.items()}
    built_in = [name for name, folder in folders.items() if module.startswith(f"{folder}.")]
    package = module.partition(".")[0]
    if built_in or package == __name__.partition(".")[0]:
        return built_in
    entries = entry_points(_backends().group)
    return [entry.name for entry in entries if entry.value.partition(":")[0].partition(".")[0] == package]


def checked_fields(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The given fields as the class has them; its own defaults are left out, so that they hide no weaker layer."""
    fields = [field.name for field in attrs.fields(kind)]
    values = by_own_names(kind, values)
    for name in values:
        if name not in fields:
            # Nested tables are how TOML and --set write a backend's name, which may be misspelt.
            names = _backends().names() if isinstance(values[name], Mapping) else ()
            raise no_field(kind, name, [*fields, *names])
    try:
        settings = kind(**values)
    except (TypeError, ValueError) as error:  # what the converters and validators of another distribution's class raise
        raise SettingsError(f"{_refused_field(kind, values)}: {error.args[0] if error.args else error}") from None
    return {name: value for name, value in fields_given(settings).items() if name in values}


def _refused_field(kind: Any, values: Mapping[str, Any]) -> str:
    """The first field whose value the class refuses; the class's own name where they only fail together."""
    for name, value in values.items():
        try:
            kind(**{name: value})
        except (TypeError, ValueError):
            return name
    return str(kind.__name__)


def _fields_stated(value: Any) -> dict[str, Any]:
    """The fields of a backend's settings object that say something: not `UNSET`, and not what they are by default."""
    stated = fields_given(value)
    for field in attrs.fields(type(value)):
        default = field.default
        if isinstance(default, attrs.Factory) and not default.takes_self:  # type: ignore[arg-type]
            default = default.factory()
        if field.name in stated and getattr(value, field.name) == default:
            del stated[field.name]
    return stated


def _refuse_misplaced(key: str, value: Any) -> None:
    """A settings object under another object's key is a mistake that a mapping of fields would hide."""
    part = key.partition(".")[0]
    for name, option in OPTIONS.items():
        if option.kind is not None and isinstance(value, option.kind) and name != key:
            raise SettingsError(f"{_value_text(value)} stands under '{key}'", fix=f"put it under '{name}'")
    owner = flavor_of(value)
    if owner is not None and part not in COMPONENTS:
        raise SettingsError(f"{_value_text(value)} stands under '{key}'", fix=f"put it under 'orchestrator.{owner}'")


def _with_location(error: SettingsError, key: str, where: str, places: Mapping[str, str]) -> SettingsError:
    """The same error with the setting's name in front and the finest place that is known."""
    # The field that is meant stands in front of the message, or in quotes in it.
    fields = [error.message.partition(":")[0], *error.message.split("'")[1::2]]
    location = next((places[at] for field in fields for at in places if _is_field(at, key, field)), where)
    message = error.message if error.message.startswith((key, "there is no setting")) else f"{key}: {error.message}"
    return SettingsError(message, where=error.where or location, fix=error.fix)


def _is_field(dotted: str, key: str, field: str) -> bool:
    """Whether a dotted key is a field of a setting, maybe below the name of a flavor."""
    below = dotted.removeprefix(f"{key}.")
    return below != dotted and (below == field or (key in COMPONENTS and below.partition(".")[2] == field))


def _value_text(value: Any) -> str:
    return type(value).__name__ if attrs.has(type(value)) else shown(value)


def _without_none(values: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (values or {}).items() if value is not None}


def _backends() -> Registry[Backend]:
    """The registry of backends; imported for the first option that names one, since most decorators name none."""
    from stoker.backends.registry import BACKENDS

    return BACKENDS
