"""What the data of a plan's steps is: its commit or digest, and how much is brought, asked before anything runs."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Final, Iterable, Mapping, Sequence

import attrs

from stoker.core.codec import from_json, to_json
from stoker.core.data import StepData, hub_place
from stoker.core.errors import Away, BackendError, MissingPackage, StokerError, UsageError
from stoker.core.findings import Finding
from stoker.core.plan import StepPlan, reporter_of
from stoker.core.questions import KEPT_SECONDS, NoAnswer, Questions
from stoker.core.secret import PREFIX, Secret
from stoker.core.units import size_text, value_or
from stoker.core.words import count_text, memory_text
from stoker.nodecache import program
from stoker.worker.secrets import SecretReader

BRINGS: Final = "STK371"
REFUSED: Final = "STK372"
UNKNOWN: Final = "STK373"
TOO_LARGE: Final = "STK374"
_SIDE_BY_SIDE: Final = 8
_ROUTES: Final = ("HF_ENDPOINT", "HF_TOKEN", "AWS_ENDPOINT_URL", "AWS_PROFILE")
"""Variables of the driver with which the same address may be another place, or another account."""


def with_data(
    steps: Sequence[StepPlan], questions: Questions, secrets: SecretReader, *, far: Callable[[str], bool]
) -> tuple[tuple[StepPlan, ...], list[Finding]]:
    """The steps with what their data is, where they lack it, and the findings about it.

    `far` says of a backend's name whether its steps see another file system than this process.
    """
    asked: dict[tuple[Any, ...], tuple[StepData, Mapping[str, str]]] = {}
    for step in steps:
        for key, one in _lacking(step).items():
            asked.setdefault(key, (one, _environment(step, secrets)))
    if not asked:
        return tuple(steps), []
    with ThreadPoolExecutor(min(len(asked), _SIDE_BY_SIDE)) as pool:  # each waits within the plan's budget
        answers = dict(zip(asked, pool.map(lambda words: _ask(words[0], words[1], questions), asked.values())))
    planned: list[StepPlan] = []
    found: list[Finding] = []
    for step in steps:
        data = dict(step.data)
        for key, one in _lacking(step).items():
            answer = answers[key]
            data[key[0]] = answer if isinstance(answer, StepData) else one
            found += _findings(step, one, answer, far=far(step.backend))
        planned.append(attrs.evolve(step, data=data) if data else step)
    return tuple(planned), list(dict.fromkeys(found))


def _lacking(step: StepPlan) -> dict[tuple[Any, ...], StepData]:
    """What a step asks for that was not asked for yet, by what makes the answer."""
    if step.data or not step.settings.data:
        return {}
    own = tuple(sorted(step.settings.environment.items()))
    found = {name: from_json(StepData, fields, strict=False) for name, fields in step.settings.data.items()}
    return {(name, one, own): one for name, one in found.items()}


def _environment(step: StepPlan, secrets: SecretReader) -> Mapping[str, str]:
    """The variables of this process with those of the step; a secret that is missing has a finding of its own."""
    own = {}
    for name, text in step.settings.environment.items():
        try:
            own[name] = secrets.read(Secret.parse(text)) if text.startswith(PREFIX) else text
        except StokerError:
            continue
    return {**os.environ, **own}


def _ask(data: StepData, environ: Mapping[str, str], questions: Questions) -> StepData | StokerError:
    """What data is, or why that is not known."""
    place = hub_place(data.uri)
    try:
        if data.is_folder:
            return program.source_of(data).listing().describe(data)
        who = "the hub" if place is not None else "/".join(data.uri.split("/")[:3])
        routes = [environ.get(name, "") for name in _ROUTES]
        answer = questions.ask(
            who,
            functools.partial(_describe, data, environ),
            key=["data", to_json(data), hashlib.sha256(json.dumps(routes).encode()).hexdigest()],
            place=["data", who, routes[0], routes[2]],
            valid=lambda answer: KEPT_SECONDS if place is not None and place.is_commit else 0.0,
        )
        return from_json(StepData, answer, strict=False)
    except StokerError as error:
        return error


def _describe(data: StepData, environ: Mapping[str, str]) -> Any:
    try:
        return to_json(program.describe(data, environ))
    except Away as error:
        raise NoAnswer(error.message, fix=error.fix) from error


def _findings(step: StepPlan, data: StepData, answer: StepData | StokerError, *, far: bool) -> Iterable[Finding]:
    report = reporter_of(step)
    if isinstance(answer, StepData):
        assert answer.size is not None and answer.files is not None, "an answer has them"
        size = f"{memory_text(answer.size)} in {count_text(answer.files, 'file')}"
        limit = value_or(step.settings.data_cache.size, None) if step.settings.data_cache is not None else None
        if limit is not None and answer.size > limit:
            what = f"asks for {answer.name}, {size}, and its node keeps {size_text(limit)} of data at most"
            yield report.error(TOO_LARGE, what, fix="give data_cache a larger size, or bring less: include=[…]")
            return
        why = "it is used where it is" if answer.is_folder else "a node that has it brings nothing"
        yield report.info(BRINGS, f"asks for {answer.name}: {size}", why)
    elif _is_refusal(data, answer, far=far):
        yield report.error(REFUSED, f"asks for data that it cannot get: {answer.message}", fix=answer.fix)
    else:
        what = f"asks for {data.uri}, and how much that is is not known here: {answer.message}"
        yield report.info(UNKNOWN, what, "its node asks again when the step begins; the result is not cached")


def _is_refusal(data: StepData, error: StokerError, *, far: bool) -> bool:
    """Whether asking from the step's node gives the same answer: a folder of its own, and what only its account may
    read, a node may have that this process cannot see."""
    if isinstance(error, (UsageError, MissingPackage)):
        return not (far and data.is_folder)
    return isinstance(error, BackendError) and not isinstance(error, Away) and not far
