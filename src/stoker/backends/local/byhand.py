"""The script by which a person runs a step of this machine by hand: `worker.boot` in a process of its own."""

from __future__ import annotations

import shlex
import sys
from typing import Any, Final, Iterator, Mapping

import attrs

from stoker.backends.base.byhand import document_lines, input_lines, split_variables, stop, subshell
from stoker.backends.base.leasing import requested_lease
from stoker.backends.base.messages import boot_spec, is_below, nodes_of
from stoker.core.codec import to_json
from stoker.core.plan import Job, Site

GRACE: Final = 9.0
"""Seconds between SIGTERM, which Ctrl-C sends, and SIGKILL."""


def script(job: Job, request: Mapping[str, Any], site: Site) -> str:
    """The script, with the inputs and the step that were rendered. Nothing is leased: a step that asks for devices gets
    those that are visible in the shell."""
    return subshell(_lines(job, request["message"], site))


def _lines(job: Job, message: Mapping[str, Any], site: Site) -> Iterator[str]:
    yield from input_lines(job.key, message["inputs"])
    if nodes_of(job) > 1:
        yield stop(f"missing: {job.key} runs as {nodes_of(job)} nodes, which only a run starts together")
    if job.step.environment:
        yield stop(f"missing: the packages of {job.key} are installed into an environment when a run begins")
    yield 'here=$(mktemp -d "${TMPDIR:-/tmp}/stoker-by-hand-XXXXXX")'
    lease = requested_lease(job, samples="")
    # The interpreter has its own folders by itself.
    own = tuple(
        entry for entry in site.path if not is_below(entry, sys.prefix) and not is_below(entry, sys.base_prefix)
    )
    site = attrs.evolve(site, package="", path=own)
    spec = to_json(
        boot_spec(attrs.evolve(job, secrets={}), site, checkpoints=site.checkpoints, grace=GRACE, lease=lease)
    )
    whole = {**spec, "job": {**spec["job"], "inputs": message["inputs"]}, "step": message["steps"]["0"]}
    document, variables = split_variables(whole)
    yield from variables
    yield from document_lines('"$here"/job.json', document)
    yield f'{shlex.quote(sys.executable)} -m stoker.worker.boot "$here"/job.json'
    yield 'echo "its result is in $here/result.json"'
