"""`--with BACKEND[:field=value,…]`: every step of a run on one of the stack's backends, with settings and resources.

Words for hardware are the same as those of flows' decorators: `cpu`, `gpu`, `memory`, and the fields of
`ResourceSettings`; a bare number of memory is in MB. All other words are the backend's own settings.
"""

from __future__ import annotations

from typing import Any, Final, Mapping

import attrs

from stoker.backends.registry import BACKENDS, refusal
from stoker.core.errors import SettingsError, UsageError, nearest
from stoker.core.request import RunRequest
from stoker.core.resources import ResourceSettings
from stoker.core.settings import Layer, fields_given
from stoker.core.units import UNSET
from stoker.core.values import lazy_pattern
from stoker.pipelines.params import parse
from stoker.plan.layers import PLATFORM, RunFile
from stoker.settings.options import component_settings, layer_from

SHORT: Final = frozenset({"cpu", "gpu", "trainium", "inferentia"})
"""Words for resources that `ResourceSettings` calls otherwise; their checks say more of a text than JSON would."""
HARDWARE: Final = SHORT | {field.name for field in attrs.fields(ResourceSettings)}
"""Words of a platform that are requests for resources."""
MB: Final = 10**6
"""https://docs.metaflow.org/api/step-decorators/resources: "memory (int, default 4096): Memory size (in MB)"; what it
sends to Kubernetes is decimal, "4096M"."""
MIB: Final = 2**20
"""There, too: "shared_memory: The value for the size (in MiB) of the /dev/shm volume"."""
_RENAMED: Final = {"cpu": "cpu_count", "gpu": "gpu_count"}
_SIZES: Final = {"memory": MB, "disk": MB, "shared_memory": MIB}
_CORES: Final = ("trainium", "inferentia")
_NEXT_WORD: Final = lazy_pattern(r",(?=[\s\w]+=)")
"""The comma before a word, not those inside of a value: `vars={"a": 1, "b": 2},times=3`."""


def attached_settings(request: RunRequest) -> RunFile:
    """What `--environment` and `--with` ask for."""
    layers: list[Layer] = []
    if request.environment is not None:
        packages = {"packages": {"environment": request.environment}}
        layers.append(layer_from(f"--environment={request.environment}", (packages,)))
    places: list[str] = []
    for text in request.attached:
        name, colon, words_text = text.partition(":")
        where = f"--with {text}"
        name = BACKENDS.canonical(name)
        if name not in BACKENDS and name != "resources":
            if refusal(name):
                raise UsageError(refusal(name), where=where)
            raise UsageError(
                f"there is no backend called '{name}'{nearest(name, (*BACKENDS.names(), 'resources'))}",
                where=where,
                fix="write --with BACKEND[:field=value,…]; other settings are --set KEY=VALUE",
            )
        if not words_text and (colon or name == "resources"):
            problem = "nothing stands behind the colon" if colon else "it asks for nothing"
            raise UsageError(problem, where=where, fix=f"write --with {name}:gpu=1")
        words = words_of(name, words_text, where) if colon else {}
        places += [name] if name != "resources" else []
        if len(places) > 1:
            raise UsageError(
                f"every step is to run on {' and on '.join(places)}", where=where, fix="keep one of the two"
            )
        try:
            layers.append(_layer(name, words, where))
        except SettingsError as error:
            raise SettingsError(error.message, where=where, fix=error.fix) from None
    return RunFile(origin="the command line", layers=tuple(layers))


def _layer(name: str, words: Mapping[str, Any], where: str) -> Layer:
    hardware = fields_given(ResourceSettings(**resource_words({w: v for w, v in words.items() if w in HARDWARE})))
    settings = {word: value for word, value in words.items() if word not in HARDWARE}
    values: dict[str, Any] = {"resources": hardware} if hardware else {}
    if name == "resources":
        if settings:
            word = next(iter(settings))
            raise SettingsError(f"resources has no '{word}'{nearest(word, HARDWARE)}")
    else:
        # On the orchestrator also those steps that name an operator; a part that is an operator puts its name there.
        values |= {"step_operator": None, f"{PLATFORM}{name}": component_settings(name, settings)}
    return Layer(origin=where, values=values)


def words_of(name: str, text: str, where: str) -> dict[str, Any]:
    """What stands behind the name's colon, by word; values are JSON, or texts."""
    words: dict[str, Any] = {}
    for part in _NEXT_WORD.split(text):
        word, equals, value = part.partition("=")
        word = word.strip()
        if not equals or not word:
            raise UsageError(f"{part!r} is not word=value", where=where, fix=f"write {name}:{word or 'word'}=VALUE")
        if word in words:
            raise UsageError(f"{word} is given twice", where=where, fix="say it once")
        words[word] = value.strip() if word in SHORT else parse(value.strip(), Any)
    return words


def resource_words(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `ResourceSettings` from what a decorator was given; None asks for nothing."""
    fields: dict[str, Any] = {}
    written: dict[str, str] = {}
    for word, word_value in values.items():
        value: Any = word_value
        if value is None or value is UNSET:
            continue
        name = _RENAMED.get(word, word)
        if word in _CORES:
            name, value = "accelerators", f"{word}:{_core_count(word, value)}"
        elif word in _SIZES:
            value = _size(word, value)
        elif word in _RENAMED and isinstance(value, bool):
            raise SettingsError(f"{word}={value!r} is not a number", fix=f"write {word}=1")
        if name in fields:
            what = f"{word}={word_value!r} says again what {written[name]} says"
            raise SettingsError(what, fix="remove one of the two")
        fields[name], written[name] = value, f"{word}={word_value!r}"
    if fields.get("gpu_vendor") and not fields.get("gpu_count") and not fields.get("accelerators"):
        fields.pop("gpu_vendor")  # of which kind the GPUs are, if there were any
    return fields


def _size(word: str, value: Any) -> Any:
    """Bytes; a bare number is of Metaflow's unit for the word, also as a text, as the command line gives it."""
    number = value
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return value  # with a unit, or a mistake that the settings explain
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number < 2**53:
        raise SettingsError(f"{word}={value!r} is not a size", fix=f'write {word}=4096 (MB) or {word}="4GB"')
    return int(number * _SIZES[word])


def _core_count(word: str, value: Any) -> int:
    try:
        count = int(str(value))
    except ValueError:
        count = 0
    if count < 1 or isinstance(value, bool):
        raise SettingsError(f"{word}={value!r} is not a number of devices", fix=f"write {word}=16")
    return count
