"""Shell scripts by which a person runs a rendered job without Stoker, to see what a platform makes of it.

A script is a subshell in parentheses without comments, so that bash and zsh take it as it is pasted and a failure does
not close the terminal. What only a run has is checked first, by a line that says what is missing.
"""

from __future__ import annotations

import json
import shlex
import sys
from typing import Any, Final, Iterable, Iterator, Mapping

import attrs

from stoker.backends.base.leasing import requested_lease
from stoker.backends.base.messages import boot_spec, is_below, nodes_of
from stoker.core.codec import to_json
from stoker.core.plan import Job, Site
from stoker.core.secret import MASK

_LIST: Final = 3
"""Unknown inputs that are named; the others are counted."""
GRACE: Final = 9.0
"""Seconds between SIGTERM, which Ctrl-C sends, and SIGKILL."""


def subshell(lines: Iterable[str]) -> str:
    """The lines as one command, which ends at the first that fails."""
    return "\n".join(["(", "set -eu", *lines, ")"]) + "\n"


def file_lines(path: str, text: str) -> Iterator[str]:
    """Lines that write a file; `path` is a word of the shell, such as '"$here"/job.json'."""
    mark, taken = "END", set(text.splitlines())
    while mark in taken:
        mark += "_"
    yield f"cat > {path} <<'{mark}'"
    yield text.rstrip("\n")
    yield mark


def yaml_text(document: Any) -> str:
    """A document as people read it: YAML in its own order, texts of several lines as blocks."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes no anchors, which hide what is written twice."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, value: str) -> Any:
        style = "|" if "\n" in value and not any(line != line.rstrip() for line in value.split("\n")) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return str(yaml.dump(document, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1_000)).rstrip("\n")


def document_lines(path: str, document: Any) -> Iterator[str]:
    """Lines that write a JSON document; one with masked values is refused until somebody has put them in."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    yield from file_lines(path, text)
    if MASK in text:
        what = f"write the values of secrets into the document above: {MASK} stands for each"
        yield f"! grep -qF {shlex.quote(MASK)} {path} || {stop(what)}"


def split_variables(document: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """The document of `worker.boot` without masked variables, and lines that take these from the shell's environment,
    which the job has too."""
    step = document["step"]
    variables = {**document.get("environment", {}), **step.get("environment", {})}
    masked = [name for name, text in variables.items() if MASK in text]
    lines = [f': "${{{name}:?missing: a variable of the step, which is secret}}"; export {name}' for name in masked]
    own = {name: text for name, text in step.get("environment", {}).items() if name not in masked}
    whole = {name: text for name, text in document.get("environment", {}).items() if name not in masked}
    return {**document, "step": {**step, "environment": own}, "environment": whole}, lines


def input_lines(key: str, inputs: Mapping[str, Any]) -> Iterator[str]:
    """Lines that stop where inputs of a job are outputs of other steps, which a plan does not have."""
    unknown = [name for name, tree in inputs.items() if _is_reference(tree)]
    if unknown:
        names = ", ".join(unknown[:_LIST]) + (f" and {len(unknown) - _LIST} more" if len(unknown) > _LIST else "")
        yield stop(f"missing: the inputs {names} of {key} are outputs of other steps, which exist once a run made them")


def needs(path: str, what: str) -> str:
    """A line that stops where a file or folder is not there."""
    return f"[ -e {shlex.quote(path)} ] || {stop(f'missing: {path}, {what}')}"


def needs_command(name: str, what: str) -> str:
    """A line that stops where a command is not on the path."""
    return f"command -v {shlex.quote(name)} >/dev/null || {stop(f'missing: {name}: {what}')}"


def stop(text: str) -> str:
    """A command that says what is missing and ends the script."""
    return f"{{ echo {shlex.quote(text)} >&2; exit 1; }}"


def _is_reference(tree: Any) -> bool:
    """Whether an input's tree has an output of a step in it."""
    if isinstance(tree, Mapping):
        if isinstance(tree.get("step"), str) and "output" in tree:
            return True
        return "value" not in tree and any(_is_reference(inner) for inner in tree.values())
    return isinstance(tree, (list, tuple)) and any(_is_reference(inner) for inner in tree)


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
