"""The decorators of steps and flows by their names in Metaflow: what each takes, read and checked where it stands.

A decorator only notes what it was given; what that means for a step is `flows.settings`. A value that makes no sense is
an error at the decorator's line, not later on a cluster. Decorators of platforms (`@slurm`) and of launchers
(`@torchrun`) are described by the values that register these.
"""

from __future__ import annotations

import functools
import os
import re
from typing import Any, Callable, Final, Iterable, Iterator, Mapping, NamedTuple

import attrs

from stoker.backends.base.backend import ACCELERATORS, RESOURCES, FlowDecorator
from stoker.backends.registry import BACKENDS
from stoker.core.data import HUB, parse_data
from stoker.core.errors import SettingsError, UsageError, nearest
from stoker.core.packages import CHANNELS, PackageSettings
from stoker.core.resources import ResourceSettings
from stoker.core.settings import Layer, fields_given
from stoker.core.units import UNSET, whole_run_fields
from stoker.core.usercode import caller
from stoker.core.words import shown
from stoker.flows.parameters import fill_configs, is_unpacked, needs_configs
from stoker.flows.secretsources import check_secrets
from stoker.launchers.registry import LAUNCHERS
from stoker.run.attached import resource_words
from stoker.settings.options import layer_from

NOTES: Final = "__stoker_flow_notes__"
"""The attribute in which a method or a class has what its decorators noted."""
WHOLE: Final = "__stoker_flow_notes_whole__"
"""The same of a class as its mutators made it: with what its bases noted, as far as they left it."""


@attrs.frozen(kw_only=True)
class Note:
    """One decorator as it was written: its name, what it was given, checked, and its place."""

    name: str
    values: Mapping[str, Any] = attrs.field(factory=dict)
    where: str = ""


@attrs.frozen(kw_only=True)
class DecoratorKind:
    """What a decorator takes, and where it may stand."""

    words: Mapping[str, Any]
    """Its words with their defaults; `UNSET` where a word has none."""
    of_flow: bool = False
    """Whether it belongs on a flow's class, not on a step."""
    many: bool = False
    """Whether a step may have several of it."""
    check: Callable[[Mapping[str, Any]], None] | None = None
    """Raises `SettingsError` for values that make no sense together."""
    help: str = ""
    """Its docstring, and its line in the documentation."""
    for_worker: bool = False
    """Whether the worker looks at its words."""


def notes_of(target: Any) -> tuple[Note, ...]:
    """What decorators noted on a method; on a class with those of its bases, nearest first."""
    if isinstance(target, type):
        if WHOLE in vars(target):
            return tuple(vars(target)[WHOLE])
        return tuple(note for base in target.__mro__ for note in vars(base).get(NOTES, ()))
    return tuple(getattr(target, NOTES, ()))


_TPUS: Final = 'a TPU slice is asked for by its generation and chips: @resources(accelerators="tpu-v5e:8")'
_INSTEAD: Final[Mapping[str, str]] = dict.fromkeys(("tpu", "tpus", "tpu_type", "tpu_count", "tpu_topology"), _TPUS)
"""Words that no decorator takes, and that look like others → what to write."""


def make_note(name: str, words: Mapping[str, Any], where: str) -> Note:
    """A note of a decorator, its words and values checked."""
    name = BACKENDS.canonical(name)
    kind = KINDS[name]
    unknown = [word for word in words if word not in kind.words and not is_unpacked(word)]
    if unknown:
        fix = _INSTEAD.get(unknown[0], "")
        hint = "" if fix else nearest(unknown[0], kind.words)
        raise SettingsError(f"@{name} takes no '{unknown[0]}'{hint}", where=where, fix=fix)
    values = {**{word: value for word, value in kind.words.items() if value is not UNSET}, **words}
    if kind.check is not None and not needs_configs(values):
        try:
            kind.check(values)
        except SettingsError as error:
            raise SettingsError(f"@{name}: {error.message}", where=where, fix=error.fix) from None
    return Note(name=name, values=values, where=where)


def resolve_note(note: Note, configs: Mapping[str, Any]) -> Note:
    """A note with the values of configs in it, checked now."""
    return make_note(note.name, fill_configs(note.values, configs), note.where) if needs_configs(note.values) else note


def attach_note(target: Any, note: Note) -> Any:
    """Leave a note on a method or a class."""
    kind = KINDS[note.name]
    if kind.of_flow is not isinstance(target, type) or not callable(target):
        belongs = "a flow's class" if kind.of_flow else "a step"
        raise UsageError(f"@{note.name} belongs on {belongs}", where=note.where)
    notes = vars(target).get(NOTES, ()) if isinstance(target, type) else getattr(target, NOTES, ())
    if not kind.many and any(existing.name == note.name for existing in notes):
        raise UsageError(f"@{note.name} is there twice", where=note.where, fix="remove one of the two")
    setattr(target, NOTES, (note, *notes))
    return target


@functools.cache
def decorator(name: str) -> Callable[..., Any]:
    """The decorator of a name, bare or with words; the same one each time."""

    def decorate(target: Any = None, /, **words: Any) -> Any:
        if target is not None and not callable(target):
            example = ", ".join(f"{word}=…" for word in list(KINDS[name].words)[:3])
            raise UsageError(
                f"@{name}({target!r}): it takes words with names", where=caller(), fix=f"write @{name}({example})"
            )
        note = make_note(name, words, caller())
        if target is not None:
            return attach_note(target, note)
        return lambda decorated: attach_note(decorated, note)

    decorate.__name__ = decorate.__qualname__ = name
    decorate.__doc__ = KINDS[name].help
    return decorate


# Packages, platforms and secrets


FIELDS: Final[Mapping[str, str]] = {"pypi": "pypi", "conda": "conda", "uv": "pypi"}
"""decorator → the field that has its packages"""
BASES: Final[Mapping[str, str]] = {"pypi_base": "pypi", "conda_base": "conda"}
"""decorator of a class → the one of a step that it stands for"""
WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "pypi": ("packages", "python", "disabled", "index_url", "extra_indices", "sources"),
    "conda": ("packages", "libraries", "python", "disabled", "channels", "sources"),
}
"""field → the words that its decorators take"""


class PackageWords(NamedTuple):
    """What one decorator says: its name, its words, and its place."""

    name: str
    words: Mapping[str, Any]
    where: str


def package_fields(name: str, words: Mapping[str, Any]) -> dict[str, Any]:
    """A decorator's words as fields of `PackageSettings`, checked; what was not given is not there."""
    field = FIELDS[BASES.get(name, name)]
    fields: dict[str, Any] = {} if words.get("disabled") is None else {"disabled": words["disabled"]}
    if words.get("python") is not None:
        fields["python"] = _lowest_python(words["python"])
    packages = {**_mapping(words, "libraries"), **_mapping(words, "packages")}
    if packages:
        fields[field] = packages
    if field == "conda":
        channels = [*_texts(words, "channels"), *_texts(words, "sources")]
        if channels:
            fields["channels"] = [*channels, *(name for name in CHANNELS if name not in channels)]
    else:
        more = [*_texts(words, "extra_indices"), *_texts(words, "sources")]
        if more:
            fields["extra_index_urls"] = more
        if words.get("index_url") is not None:
            fields["index_url"] = words["index_url"]
    return fields_given(PackageSettings(**fields))


_PYTHON_RANGE: Final = re.compile(r"(?:==?|~=|>=)?\s*(\d+\.\d+(?:\.\d+)?)(?:\.\*)?(?:\s*,\s*<[\s=\d.]+)?")


def _lowest_python(version: Any) -> Any:
    """The lowest version of a range such as ">=3.10,<3.12" or "3.10.*"; what is none stays."""
    found = _PYTHON_RANGE.fullmatch(version.strip()) if isinstance(version, str) else None
    return version if found is None else found[1]


def packages_layer(step: str, decorators: Iterable[PackageWords]) -> Layer | None:
    """What a step's decorators come to, weakest first; None where it has none of them.

    A step is without packages of its own where any kind of them is disabled. A Python is that of all kinds.
    """
    merged: dict[str, Any] = {}
    places: dict[str, str] = {}
    pythons: dict[str, tuple[str, str]] = {}
    disabled: dict[str, bool] = {}
    decorator_words = list(decorators)
    for one in decorator_words:
        field, origin = FIELDS[BASES.get(one.name, one.name)], f"{one.where} @{one.name}"
        try:
            fields = package_fields(one.name, one.words)
        except SettingsError as error:
            fix = f"{error.fix}; or leave the decorator out: --without {one.name}"
            raise SettingsError(f"@{one.name}: {error.message}", where=one.where, fix=fix) from None
        if "python" in fields:
            pythons[field] = (fields.pop("python"), origin)
        disabled[field] = fields.pop("disabled", disabled.get(field, False))
        for name, value in fields.items():
            if isinstance(value, Mapping):
                merged[name] = {**merged.get(name, {}), **value}
                places.update({f"packages.{name}.{package}": origin for package in value})
            else:
                merged[name], places[f"packages.{name}"] = value, origin
    if not decorator_words:
        return None
    _take_python(step, pythons, merged, places)
    if any(disabled.values()):
        merged["disabled"] = True
    if merged.get("conda") and "channels" not in merged and os.environ.get("CONDA_CHANNELS"):
        merged["channels"] = [text.strip() for text in os.environ["CONDA_CHANNELS"].split(",") if text.strip()]
        places["packages.channels"] = "CONDA_CHANNELS"
    last = decorator_words[-1]
    return layer_from(f"{last.where} @{last.name}", ({"packages": merged},), level="step", origins=places)


def _take_python(
    step: str, pythons: Mapping[str, tuple[str, str]], merged: dict[str, Any], places: dict[str, str]
) -> None:
    if len({version for version, _ in pythons.values()}) > 1:
        versions = " and ".join(f"{version} at {origin}" for version, origin in pythons.values())
        raise SettingsError(f"step '{step}': python is {versions}", fix="say it once")
    for version, origin in pythons.values():
        merged["python"], places["packages.python"] = version, origin


def _mapping(words: Mapping[str, Any], word: str) -> dict[str, Any]:
    value = words.get(word, UNSET)
    if value is UNSET or value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise SettingsError(f"{word}={value!r} does not map packages to versions", fix='write {"numpy": "1.26.4"}')
    return dict(value)


def _texts(words: Mapping[str, Any], word: str) -> list[str]:
    value = words.get(word, UNSET)
    if value is UNSET or value is None:
        return []
    if isinstance(value, str) or not isinstance(value, (list, tuple)):
        raise SettingsError(f"{word}={value!r} is not a list of texts", fix=f"write {word}=[{value!r}]")
    return list(value)


@functools.cache
def built_in_platforms() -> Mapping[str, FlowDecorator]:
    """Those of Stoker's own backends, by name."""
    decorators = (BACKENDS.load(name).decorator for name in BACKENDS.builtin)
    return {decorator.name: decorator for decorator in decorators if decorator is not None}


def platform(name: str) -> FlowDecorator | None:
    """The decorator of this name, if it is a platform's; looks at other distributions where Stoker has none."""
    name = BACKENDS.canonical(name)
    built_in = built_in_platforms().get(name)
    if built_in is not None:
        return built_in
    return BACKENDS.load(name).decorator if name not in BACKENDS.builtin and name in BACKENDS else None


def platform_names() -> Iterator[str]:
    """The names of all of them, those of other distributions too."""
    yield from built_in_platforms()
    for name, backend in BACKENDS.third_party_parts():
        if backend.decorator is not None:
            yield name


# Repositories of the Hugging Face Hub as data, by what Metaflow's decorator takes


_REPOSITORY: Final = ("repo_id", "repo_type", "revision", "allow_patterns", "ignore_patterns")
_KINDS_OF_REPOSITORY: Final[Mapping[str, str]] = {"model": "", "dataset": "datasets/", "space": "spaces/"}
_LOAD: Final = 'write load=["org/model"], or load={"name": {"repo_id": "org/model", "revision": "v1"}}'


def data_of(load: Any) -> dict[str, Any]:
    """The `data` of a step by `load`; `SettingsError` for what names no repository."""
    return parse_data({name: request for _, name, request in _requests(load)})


def check_load(values: Mapping[str, Any]) -> None:
    """Raise `SettingsError` where `load` is wrong."""
    if not values["load"]:
        raise SettingsError("it says nothing to load", fix=_LOAD)
    data_of(values["load"])


class LoadedRepositories:
    """`current.huggingface_hub`: `loaded` has the path of each repository, by its name or key in `load`."""

    def __init__(self, load: Any, find: Callable[[str], Any]) -> None:
        self.loaded = {key: str(find(name)) for key, name, _ in _requests(load)}

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"current.huggingface_hub has no '{name}': what a step reads stands in @huggingface_hub(load=[…]), so that "
            "a plan knows it"
        )


def _requests(load: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Of each repository its key in `loaded`, the name of its data, and the request."""
    entries = list(load.items()) if isinstance(load, Mapping) else [("", one) for one in load]
    for key, one in entries:
        words = one if isinstance(one, Mapping) else {"repo_id": one}
        for word in words:
            if word not in _REPOSITORY:
                raise SettingsError(f"load takes no '{word}'{nearest(str(word), _REPOSITORY)}")
        repository, kind = words.get("repo_id"), words.get("repo_type") or "model"
        if not isinstance(repository, str) or kind not in _KINDS_OF_REPOSITORY:
            raise SettingsError(f"{shown(one)} names no repository of the hub", fix=_LOAD)
        revision = f"@{words['revision']}" if words.get("revision") else ""
        uri = f"{HUB}://{_KINDS_OF_REPOSITORY[kind]}{repository}{revision}"
        named = str(key or repository)
        patterns = {"include": words.get("allow_patterns"), "exclude": words.get("ignore_patterns")}
        yield named, re.sub(r"\W", "_", f"hub_{named}"), {"uri": uri, **patterns}


# Checks


def _resources(values: Mapping[str, Any]) -> None:
    ResourceSettings(**resource_words(values))


def _retry(values: Mapping[str, Any]) -> None:
    times, minutes = values["times"], values.get("minutes_between_retries", 0)
    if not _is_number(times, whole=True) or times < 0:
        raise SettingsError(f"times={times!r} is not a number of attempts", fix="write times=3")
    if not _is_number(minutes) or minutes < 0:
        raise SettingsError(f"minutes_between_retries={minutes!r} is not a number", fix="write 2")


def _timeout(values: Mapping[str, Any]) -> None:
    for word, value in values.items():
        if not _is_number(value) or value < 0:
            raise SettingsError(f"{word}={value!r} is not a time", fix="write @timeout(minutes=10)")
    if seconds_of(values) <= 0:
        raise SettingsError("it gives no time", fix="write @timeout(minutes=10)")


def seconds_of(values: Mapping[str, Any]) -> float:
    """The whole time of a `@timeout`."""
    return float(values.get("seconds", 0) + 60 * values.get("minutes", 0) + 3600 * values.get("hours", 0))


def _environment(values: Mapping[str, Any]) -> None:
    variables = values.get("vars")
    if not isinstance(variables, Mapping) or not all(isinstance(name, str) for name in variables):
        raise SettingsError(f"vars={variables!r} does not map names to texts", fix='write vars={"NAME": "value"}')


def _catch(values: Mapping[str, Any]) -> None:
    var = values.get("var")
    if var is not None and (not isinstance(var, str) or not var.isidentifier()):
        raise SettingsError(f"var={var!r} is not the name of an attribute", fix='write var="failure"')


def _check_packages(name: str, values: Mapping[str, Any]) -> None:
    """Check what is written; whether a Python can run a step is asked when a run is planned."""
    if not _PYTHON_RANGE.fullmatch(str(values.get("python") or "3.11")):
        package_fields(name, values)
    package_fields(name, {**values, "python": None})


def _secrets(values: Mapping[str, Any]) -> None:
    check_secrets(values.get("sources") or ())


def _project(values: Mapping[str, Any]) -> None:
    name = values.get("name")
    if not isinstance(name, str) or not name.replace("_", "a").isalnum() or not name.islower():
        raise SettingsError(f"name={name!r} is no project's", fix="use small letters, digits and _")
    check_branch(values.get("branch"))


def check_branch(branch: Any) -> None:
    """Refuse a name that no branch of a project can have."""
    if branch and not re.fullmatch(r"[a-z0-9_]{1,128}", str(branch)):
        raise SettingsError(f"branch={branch!r} is no branch's name", fix="use small letters, digits and _")


def _schedule(values: Mapping[str, Any]) -> None:
    intervals = [word for word in ("hourly", "daily", "weekly", "cron") if values.get(word)]
    if len(intervals) > 1:
        raise SettingsError(f"it says {' and '.join(intervals)}", fix="say one of them")
    times_of(values)


def times_of(values: Mapping[str, Any]) -> str:
    """The five fields of cron that `@schedule(…)` means: every day where it says nothing.

    EventBridge's six are taken, too, as flows of Metaflow's have them: "0 10 ? * 2 *" is Mondays at ten.
    """
    from stoker.core.cron import Cron

    if not values.get("cron"):
        return Cron.parse(next((f"@{word}" for word in ("hourly", "weekly") if values.get(word)), "@daily")).text
    text = str(values["cron"])
    fields = text.removeprefix("cron(").removesuffix(")").split()
    if len(fields) == 6 and fields[5] == "*":
        fields[4] = re.sub(r"(?<!/)\b[1-7]\b", lambda found: str(int(found[0]) - 1), fields[4])
        text = " ".join("*" if field == "?" else field for field in fields[:5])
    return Cron.parse(text).text


def _trigger(values: Mapping[str, Any]) -> None:
    given = [word for word in ("event", "events", "flow", "flows") if values.get(word)]
    if len(given) != 1:
        words = " or ".join(word for word in ("event", "events", "flow", "flows") if word in values)
        raise SettingsError(f"it says {' and '.join(given) or 'nothing to wait for'}", fix=f"say {words}, one of them")


def triggers_of(values: Mapping[str, Any]) -> tuple[str, ...]:
    """What `@trigger(…)` or `@trigger_on_finish(…)` waits for, as `stoker watch-for` takes it.

    An event is a new version of the artifact of its name, or what is written behind "artifact:" or "model:"; a flow is
    named with or without its project and branch.
    """
    found = []
    for kind, words in (("artifact", ("event", "events")), ("run", ("flow", "flows"))):
        for given in [values.get(words[0]), *(values.get(words[1]) or ())]:
            one = given if isinstance(given, Mapping) else {"name": given() if callable(given) else given}
            if one.get("parameters"):
                raise SettingsError(
                    f"@trigger takes parameters from the event {one['name']}, which is an artifact here",
                    fix=f"stoker watch-for artifact:{one['name']} --run FILE --NAME {{version}}, and load the version "
                    "in the flow",
                )
            name = str(one.get("name") or "")
            name = name.rpartition(".")[2] if kind == "run" else name
            if name:
                found.append(name if ":" in name else f"{kind}:{name}")
    return tuple(found)


def _exit_hook(values: Mapping[str, Any]) -> None:
    hooks = [hook for word in ("on_success", "on_error") for hook in values[word]]
    if not hooks:
        raise SettingsError("it has neither on_success nor on_error", fix="write on_success=[function]")
    wrong = next((hook for hook in hooks if not isinstance(hook, str) and not callable(hook)), None)
    if wrong is not None:
        raise SettingsError(f"{wrong!r} is neither a function nor the name of one", fix="write on_success=[function]")


def _profile(values: Mapping[str, Any]) -> None:
    interval, prefix = values["interval"], values["artifact_prefix"]
    if not _is_number(interval) or interval <= 0:
        raise SettingsError(f"interval={interval!r} is not a time in seconds", fix="write interval=1")
    if not isinstance(prefix, str) or not f"{prefix}data".isidentifier():
        raise SettingsError(f"artifact_prefix={prefix!r} begins no attribute's name", fix='write "gpu_profile_"')


def _card(values: Mapping[str, Any]) -> None:
    id = values.get("id")
    if id is not None and (not isinstance(id, str) or not id):
        raise SettingsError(f"id={id!r} is not a name", fix='write id="metrics"')
    kind, options, seconds = values.get("type", "default"), values.get("options", {}), values.get("timeout", 45)
    if not isinstance(kind, str) or not kind:
        raise SettingsError(f"type={kind!r} is not the type of a card's class", fix='write type="default"')
    if not isinstance(options, Mapping):
        raise SettingsError(f"options={options!r} is no dict", fix='write options={"key": "value"}')
    if not str(seconds).replace(".", "", 1).isdecimal():
        raise SettingsError(f"timeout={seconds!r} is no number of seconds", fix="write timeout=45")
    for word in ("save_errors", "customize"):
        if str(values.get(word, True)) not in ("True", "False"):
            raise SettingsError(f"{word}={values[word]!r} is neither True nor False", fix=f"write {word}=True")


def _checkpoint(values: Mapping[str, Any]) -> None:
    policy, folder = values.get("load_policy"), values.get("temp_dir_root")
    if policy not in ("fresh", "eager", "none"):
        raise SettingsError(f"load_policy={policy!r}", fix='write "fresh", "eager" or "none"')
    if folder is not None and not isinstance(folder, str):
        raise SettingsError(f"temp_dir_root={folder!r} is not a folder's name", fix='write "/local/scratch"')


def _ranks(values: Mapping[str, Any]) -> None:
    for word, value in values.items():
        if not _is_number(value, whole=True) or value < 1:
            raise SettingsError(f"{word}={value!r} is not a number from 1 up", fix=f"write {word}=8")


def _is_number(value: Any, *, whole: bool = False) -> bool:
    return isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)


def _unset(words: Iterable[str]) -> dict[str, Any]:
    return dict.fromkeys(words, UNSET)


_SENSOR: Final = _unset(
    ("timeout", "poke_interval", "mode", "exponential_backoff", "pool", "soft_fail", "name", "description")
)
"""Words of every sensor of Airflow's."""
_SETTINGS: Final = tuple(field.name for field in attrs.fields(ResourceSettings))

_OWN: Final[Mapping[str, DecoratorKind]] = {
    "resources": DecoratorKind(
        words=_unset((*RESOURCES, *ACCELERATORS, *_SETTINGS)),
        check=_resources,
        help="Ask for hardware: `@resources(cpu=4, gpu=1, memory=32000)`; a number of memory is MB, texts name theirs.",
    ),
    "retry": DecoratorKind(
        words={"times": 3, "minutes_between_retries": UNSET},
        check=_retry,
        help="Try the step again when it fails, `times` times; it waits only where `minutes_between_retries` is given.",
    ),
    "catch": DecoratorKind(
        words={"var": None, "print_exception": True},
        for_worker=True,
        check=_catch,
        help="Go on when the step has failed for good, with the failure in the attribute `var`; however it failed.",
    ),
    "timeout": DecoratorKind(
        words=_unset(("seconds", "minutes", "hours")),
        check=_timeout,
        help="End the step when it takes longer, whatever it is doing.",
    ),
    "environment": DecoratorKind(words={"vars": {}}, check=_environment, help="Environment variables for the step."),
    "secrets": DecoratorKind(
        words={"sources": (), "role": None, "allow_override": False},
        for_worker=True,
        check=_secrets,
        help="Secrets as environment variables, read where the step runs: `sources=['env:TOKEN', 'file:.env']`.",
    ),
    "card": DecoratorKind(
        words={
            "type": "default",
            "id": None,
            "options": {},
            "timeout": 45,
            "save_errors": True,
            "customize": False,
            "refresh_interval": 1,
            "scope": "task",
            "rank": None,
        },
        for_worker=True,
        many=True,
        check=_card,
        help="Put parts of your own on the step's page: `current.card.append(Markdown('…'))`; every step has a page.",
    ),
    "parallel": DecoratorKind(
        words={}, help="The step runs on the nodes of a `num_parallel`; it says nothing that is new."
    ),
    "pytorch_parallel": DecoratorKind(
        words={}, help="The same as `@parallel`: nodes get torch's variables in any case."
    ),
    **{
        name: DecoratorKind(
            words=_unset(WORDS[field]),
            check=functools.partial(_check_packages, field),
            help=f"Packages that the step needs: in its image, or with `--environment={name}` in an environment made "
            "here.",
        )
        for name, field in FIELDS.items()
    },
    "huggingface_hub": DecoratorKind(
        words={"load": ()},
        for_worker=True,
        check=check_load,
        help="Repositories of the Hugging Face Hub on the step's node: `load=['org/model']`.",
    ),
    "checkpoint": DecoratorKind(
        words={"load_policy": "fresh", "temp_dir_root": None, "show_card": True},
        for_worker=True,
        check=_checkpoint,
        help="A folder that every attempt of the task gets again, with `load_policy='eager'` also other runs.",
    ),
    "gpu_profile": DecoratorKind(
        words={"interval": 1, "include_artifacts": True, "artifact_prefix": "gpu_profile_", "with_card": True},
        check=_profile,
        help="Sample the step's own devices and keep what they did, also of a step that was killed.",
    ),
    **{
        launcher.name: DecoratorKind(
            words={"nproc_per_node": UNSET, "all_nodes_started_timeout": UNSET},
            check=_ranks,
            for_worker=True,
            help=f"Ranks by {launcher.flow.title} in the step, on each node of a `num_parallel`: "
            f"`current.{launcher.flow.current}.run('train.py')`.",
        )
        for _, launcher in LAUNCHERS.parts()
        if launcher.flow is not None
    },
    "cache": DecoratorKind(
        words={}, help="Keep the step's results and find them again while code and inputs are the same."
    ),
    "project": DecoratorKind(
        words={"name": UNSET, "branch": None, "production": False},
        of_flow=True,
        check=_project,
        help="Name the project that the flow belongs to; its runs are tagged with it.",
    ),
    "schedule": DecoratorKind(
        words={"hourly": False, "daily": False, "weekly": False, "cron": None, "timezone": None},
        of_flow=True,
        check=_schedule,
        help="When the flow should run: kept with the flow for whoever deploys it; nothing here starts runs by itself.",
    ),
    "trigger": DecoratorKind(
        words={"event": None, "events": [], "options": {}},
        of_flow=True,
        check=_trigger,
        help="The event that starts the flow, which `stoker watch-for --run FILE` waits for: a version of an artifact.",
    ),
    "trigger_on_finish": DecoratorKind(
        words={"flow": None, "flows": [], "options": {}},
        of_flow=True,
        check=_trigger,
        help="The flow after which this one starts: `stoker watch-for --run FILE` waits for its runs that succeed.",
    ),
    "exit_hook": DecoratorKind(
        words={"on_success": [], "on_error": [], "options": {}},
        of_flow=True,
        many=True,
        check=_exit_hook,
        help="Functions to call when a run is over, with `run` if they take it: `on_success=[…]`, `on_error=[…]`.",
    ),
    "airflow_external_task_sensor": DecoratorKind(
        words={
            **_SENSOR,
            **_unset(("external_dag_id", "external_task_ids", "allowed_states", "failed_states")),
            **_unset(("execution_delta", "check_existence")),
        },
        of_flow=True,
        many=True,
        help="A task of Airflow's that the flow waits for where it is deployed there: kept with the flow.",
    ),
    "airflow_s3_key_sensor": DecoratorKind(
        words={**_SENSOR, **_unset(("bucket_key", "bucket_name", "wildcard_match", "aws_conn_id", "verify"))},
        of_flow=True,
        many=True,
        help="An object that the flow waits for where it is deployed on Airflow: kept with the flow.",
    ),
    **{
        name: DecoratorKind(
            words=_unset(WORDS[field]),
            of_flow=True,
            check=functools.partial(_check_packages, field),
            help=f"`@{field}` for every step of the flow.",
        )
        for name, field in BASES.items()
    },
}
"""The decorators that are no platform's, by name."""


@functools.cache
def _of_platform(decorator: FlowDecorator) -> DecoratorKind:
    """What a platform's decorator takes: words for resources, and settings of its own that one step may have."""
    whole_run = whole_run_fields(decorator.settings)
    step_fields = [field.name for field in attrs.fields(decorator.settings) if field.name not in whole_run]

    def check(values: Mapping[str, Any]) -> None:
        _resources({word: value for word, value in values.items() if word in decorator.resources})
        decorator.settings(**{word: value for word, value in values.items() if word not in decorator.resources})

    return DecoratorKind(words=_unset((*decorator.resources, *step_fields)), check=check, help=decorator.help)


class _Kinds(Mapping[str, DecoratorKind]):
    """Every decorator by its name: those above, and those of platforms, of other distributions' too."""

    def __getitem__(self, name: str) -> DecoratorKind:
        kind = _OWN.get(name)
        if kind is not None:
            return kind
        decorator = platform(name)
        if decorator is None:
            raise KeyError(name)
        return _of_platform(decorator)

    def __iter__(self) -> Iterator[str]:
        yield from platform_names()
        yield from _OWN

    def __len__(self) -> int:
        return sum(1 for _ in self)


KINDS: Final[Mapping[str, DecoratorKind]] = _Kinds()
FOR_WORKER: Final = frozenset(name for name, kind in _OWN.items() if kind.for_worker)
"""Decorators whose words the worker looks at."""
BUILT_IN: Final = frozenset({*_OWN, *built_in_platforms()})
"""The names of Stoker's own decorators."""


def __getattr__(name: str) -> Any:
    """The decorator of this name, also of a launcher that another distribution offers."""
    if name not in KINDS:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    globals()[name] = decorator(name)
    return globals()[name]
