"""Shell scripts by which a person runs a rendered job without Stoker, to see what a platform makes of it.

A script is a subshell in parentheses without comments, so that bash and zsh take it as it is pasted and a failure does
not close the terminal. What only a run has is checked first, by a line that says what is missing.
"""

from __future__ import annotations

import json
import shlex
from typing import Any, Final, Iterable, Iterator, Mapping

from stoker.core.secret import MASK

_LIST: Final = 3
"""Unknown inputs that are named; the others are counted."""


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
