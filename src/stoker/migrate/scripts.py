"""Programs for other schedulers as steps: what their translations have in common.

A script becomes a text in a Python file, which a step runs by the script's own interpreter; what is asked for around it
becomes the step's options. Whatever has no option of its own is in the notes: nothing is left out without a word. Pure:
texts in, texts and notes out.
"""

from __future__ import annotations

import json
import keyword
import re
import shlex
from pathlib import PurePosixPath
from typing import Any, Callable, Final, Iterator, Mapping, Sequence

import attrs

from stoker.core.errors import SettingsError
from stoker.core.resources import ResourceSettings
from stoker.launchers.options import parse_launch
from stoker.migrate.names import Level, MigrationNote
from stoker.settings.options import component_settings

Options = dict[str, Any]
"""Settings by name: what is asked for."""
NAMES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("pipeline", "step", "Secret"), "stoker"),
    **dict.fromkeys(
        ("ResourceSettings", "SlurmSettings", "SkypilotSettings", "KubeflowSettings", "DockerSettings"), "stoker.config"
    ),
    **dict.fromkeys(("MPI", "Torchrun", "Accelerate", "DeepSpeed", "Command", "Retry"), "stoker.config"),
}
"""Name that a translation may use → the module that has it."""
ON_EACH_NODE: Final = (
    *("sh", "-c"),
    'RANK=$STOKER_NODE_RANK WORLD_SIZE=$STOKER_NODES LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 exec "$@"',
    "sh",
)
"""A launcher's command that starts one rank on each node."""
_WIDTH: Final = 120


@attrs.frozen(kw_only=True)
class Translation:
    """A file of another scheduler as a Python file, with notes about its lines."""

    text: str
    framework: str
    notes: Sequence[MigrationNote] = ()


@attrs.define
class Notes:
    """The notes of a translation that is being made."""

    made: list[MigrationNote] = attrs.field(factory=list)

    def by_hand(self, line: int, name: str, message: str) -> None:
        """What somebody has to do."""
        self._add(line, "by hand", name, message)

    def differs(self, line: int, name: str, message: str) -> None:
        """What is carried, and means something a little different."""
        self._add(line, "differs", name, message)

    def not_needed(self, line: int, name: str, message: str) -> None:
        """What nothing has to be done about."""
        self._add(line, "hint", name, f"not needed: {message}")

    def _add(self, line: int, level: Level, name: str, message: str) -> None:
        note = MigrationNote(line=line, level=level, name=name, message=message)
        if note not in self.made:
            self.made.append(note)


@attrs.frozen
class CallText:
    """A call in the text that is written: `ResourceSettings(cpu_count=4)`."""

    name: str
    options: Options = attrs.field(factory=dict)
    words: Sequence[Any] = ()


@attrs.frozen
class CodeText:
    """An expression that is written as it is."""

    text: str


@attrs.define(kw_only=True)
class ScriptStep:
    """A step that runs a script."""

    name: str
    script: str
    interpreter: Sequence[str] = ("bash",)
    options: Options = attrs.field(factory=dict)
    element: str = ""
    """The variable that has the element, where the step is called for each of several."""
    elements: str = ""
    """The code of the elements."""
    takes_words: bool = False
    """Whether the script reads words of its command line."""


def identifier(text: str, usual: str) -> str:
    """A text as a name of Python's."""
    name = re.sub(r"\W+", "_", text).strip("_").lower() or usual
    return f"{usual}_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name


def logical_lines(text: str) -> list[tuple[str, str]]:
    """(what a line says, the line as it is) of a shell's script; one that goes on behind a backslash is one line."""
    found, raw = [], ""
    for line in text.splitlines():
        raw += f"\n{line}" if raw else line
        if not line.endswith("\\"):
            found.append((raw.replace("\\\n", " "), raw))
            raw = ""
    return [*found, (raw.replace("\\\n", " ").rstrip("\\"), raw)] if raw else found


def with_line(script: str, old: str, new: str) -> str:
    """The script with one of its lines, which may go on behind a backslash, replaced."""
    return "\n".join(new if raw == old else raw for _, raw in logical_lines(script))


def accepted(notes: Notes, line: int, name: str, flavor: str, options: Options) -> Options:
    """Settings of a backend that its class takes; what it refuses is noted, with its own words."""
    try:
        component_settings(flavor, options)
    except SettingsError as error:
        notes.by_hand(line, name, f"is refused: {error.message}{f'; {error.fix}' if error.fix else ''}")
        return {}
    return dict(options)


def asked(notes: Notes, line: int, name: str, options: Options) -> Options:
    """The same of resources."""
    try:
        ResourceSettings(**options)
    except SettingsError as error:
        notes.by_hand(line, name, f"is refused: {error.message}{f'; {error.fix}' if error.fix else ''}")
        return {}
    return dict(options)


def programs(
    path: str, framework: str, steps: Sequence[ScriptStep], notes: Notes, *, chained: bool = True, name: str = ""
) -> Translation:
    """The file with these steps, one after another, and the pipeline that calls them."""
    body: list[str] = []
    for one in steps:
        body += ["", "", *_text_of(one)]
    pipeline = name or identifier(f"{steps[0].name}_pipeline", "pipeline")
    words = any(one.takes_words for one in steps)
    body += ["", "", "@pipeline", f"def {pipeline}({'words: list[str] = []' if words else ''}) -> None:"]
    before = ""
    for one in steps:
        called = one.name + (f".with_options(after={before})" if before and chained else "")
        call = f"{called}.map({one.elements})" if one.elements else f"{called}()"
        if one.takes_words:
            call = call[:-1] + (", " if one.elements else "") + "words=words)"
        before = f"{one.name}_done"
        body.append(f"    {before} = {call}" if chained and one is not steps[-1] else f"    {call}")
    body += ["", "", 'if __name__ == "__main__":', f"    {pipeline}()", ""]
    code = "\n".join(body)
    head = [f'"""{PurePosixPath(path).name} of {framework} as a pipeline."""', ""]
    modules = ["os"] * ("os.environ" in code) + ["subprocess"] * ("subprocess." in code)
    imports = [f"import {one}" for one in modules] + [""] + list(named_imports(code))
    return Translation(text="\n".join([*head, *imports]) + code, framework=framework, notes=notes.made)


def named_imports(code: str) -> Iterator[str]:
    """The imports of what the code names of Stoker's."""
    for module in dict.fromkeys(NAMES.values()):
        used = sorted(one for one, where in NAMES.items() if where == module and re.search(rf"\b{one}\b", code))
        if used:
            yield f"from {module} import {', '.join(used)}"


def _text_of(one: ScriptStep) -> Iterator[str]:
    constant = f"{one.name}_script".upper()
    yield f"{constant} = {_long_text(one.script)}"
    yield ""
    yield ""
    yield "@step("
    for name, value in {"cache": False, **one.options}.items():
        yield f"    {name}={code_of(value, 4)},"
    yield ")"
    parameters = [f"{one.element.lower()}: int"] * bool(one.elements) + ["words: list[str]"] * one.takes_words
    yield f"def {one.name}({', '.join(parameters)}) -> None:"
    zero = [] if re.search(r"python|perl|Rscript", one.interpreter[-1]) else ['"script"']
    argv = [json.dumps(word) for word in (*one.interpreter, "-c")]
    argv += [constant, *zero, "*words"] if one.takes_words else [constant]
    environment = ""
    if one.elements:
        environment = ", env=environment"
    if environment:
        yield f'    environment = {{**os.environ, "{one.element}": str({one.element.lower()})}}'
    yield f"    subprocess.run([{', '.join(argv)}], check=True{environment})"


def _long_text(text: str) -> str:
    text = "\n" + text.strip("\n") + "\n"
    for quotes in ('"""', "'''"):
        if quotes not in text and not text.endswith(("\\", quotes[0])):
            return f"r{quotes}{text}{quotes}" if "\\" in text else f"{quotes}{text}{quotes}"
    return repr(text)


def code_of(value: Any, indent: int = 0) -> str:
    """A value as Python's code; a call that is too long for a line is written with a line for each argument."""
    short = _code(value)
    if len(short) + indent < _WIDTH - 20 or not isinstance(value, (CallText, dict)):
        return short
    inside = " " * (indent + 4)
    if isinstance(value, dict):
        lines = [f"{json.dumps(key)}: {code_of(part, indent + 4)}" for key, part in value.items()]
        return "{\n" + "".join(f"{inside}{line},\n" for line in lines) + " " * indent + "}"
    lines = [code_of(word, indent + 4) for word in value.words]
    lines += [f"{key}={code_of(part, indent + 4)}" for key, part in value.options.items()]
    return f"{value.name}(\n" + "".join(f"{inside}{line},\n" for line in lines) + " " * indent + ")"


def _code(value: Any) -> str:
    if isinstance(value, CodeText):
        return value.text
    if isinstance(value, CallText):
        words = [*map(_code, value.words), *(f"{key}={_code(part)}" for key, part in value.options.items())]
        return f"{value.name}({', '.join(words)})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_code(key)}: {_code(part)}" for key, part in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_code, value)) + "]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


# Launchers

_SETUP: Final = re.compile(
    r"\s*(#|$|(export|set|source|\.|cd|conda|mamba|micromamba|module|ml|mkdir|echo|printf|date|hostname|ulimit|unset|"
    r"nvidia-smi|pwd|which|eval|pushd|popd|free|lscpu|env|sleep|trap|wait)\b|[A-Za-z_]\w*\+?=)"
)
"""Lines that prepare for the program, which each rank may run."""
_RUNNERS: Final[Mapping[str, str]] = {
    "torchrun": "Torchrun",
    "torch.distributed.run": "Torchrun",
    "torch.distributed.launch": "Torchrun",
    "accelerate": "Accelerate",
    "deepspeed": "DeepSpeed",
}
"""Program → the launcher that stands for it."""
_PLACED: Final = re.compile(
    r"(nnodes|num_machines|node_rank|machine_rank|master_addr|master_port|main_process_(ip|port)|rdzv_.*|standalone|"
    r"use_env|local_addr|hostfile|num_nodes|multi_gpu|rdzv_conf)"
)
"""Arguments by which ranks find each other, which Stoker sets."""
_SWITCHES: Final = (
    "standalone",
    "use_env",
    "no_python",
    "multi_gpu",
    "cpu",
    "use_deepspeed",
    "use_fsdp",
    "no_local_rank",
)
"""Arguments without a value."""
_PER_LAUNCH: Final[Mapping[str, str]] = {"num_gpus": "num_gpus", "nproc": "nproc_per_node"}


def rank_script(script: str, notes: Notes, line_of: Callable[[str], int]) -> tuple[str, CallText | None]:
    """The script as each rank of a launcher runs it, and the launcher; the script as it is, and None, where it starts
    no ranks, or does more than that. `line_of` says in which line a text stands."""
    programs = [(line, raw) for line, raw in logical_lines(script) if not prepares(line)]
    found = [(line, raw) for line, raw in programs if any(word in line for word in _RUNNERS)]
    if not found:
        return script, None
    line, raw = found[0]
    place = line_of(raw.splitlines()[0])
    split = None if len(programs) > 1 else _launched(line)
    if split is None:
        message = "is left in the script: make a step of it with launch=…, so that Stoker starts and watches its ranks"
        notes.by_hand(place, _RUNNERS[next(word for word in _RUNNERS if word in line)], message)
        return script, None
    name, arguments, rest = split
    options: Options = {}
    for word, value in arguments:
        key = _PER_LAUNCH.get(word, word)
        if _PLACED.fullmatch(key):
            notes.not_needed(place, key, "Stoker says where ranks meet")
            continue
        known = int(value) if isinstance(value, str) and value.isdigit() else value
        if (isinstance(known, str) and "$" in known) or (known in ("gpu", "auto")):
            notes.differs(place, key, f"{value} is left out: there is a rank for each accelerator")
            continue
        try:
            parse_launch({"launcher": name.lower(), key: known})
        except SettingsError as error:
            notes.by_hand(place, key, f"is refused: {error.message}")
            continue
        options[key] = known
    message = "each rank runs the lines before the program, too; the step's Python must have the launcher"
    notes.differs(place, name, message)
    return with_line(script, raw, rest), CallText(name, options)


def _launched(line: str) -> tuple[str, list[tuple[str, Any]], str] | None:
    """(launcher, its arguments, the line without it)."""
    words = shell_words(re.sub(r"\|\|\s*exit(\s+\d+)?\s*$", "", line))
    if words is None or any(word in ("&", "&&", "||", ";", "|") for word in words):
        return None
    for at, word in enumerate(words):
        name = word.rpartition("/")[2]
        if name not in _RUNNERS or (name == "accelerate" and words[at + 1 : at + 2] != ["launch"]):
            continue
        before = words[: at - 2] if words[at - 1 : at] == ["-m"] else words[:at]
        python = words[at - 2] if words[at - 1 : at] == ["-m"] else "python"
        rest = words[at + (2 if name == "accelerate" else 1) :]
        arguments: list[tuple[str, Any]] = []
        while rest and rest[0].startswith("-") and rest[0] != "-m" and rest[0] != "--module":
            key, equals, value = rest.pop(0).lstrip("-").partition("=")
            key = key.replace("-", "_")
            if equals:
                arguments.append((key, value))
            elif key in _SWITCHES or not rest or rest[0].startswith("-"):
                arguments.append((key, True))
            else:
                arguments.append((key, rest.pop(0)))
        module = rest[:1] in (["-m"], ["--module"])
        program = [*before, python, *(["-m", *rest[1:]] if module else rest)]
        return _RUNNERS[name], [one for one in arguments if one[0] != "no_python"], " ".join(program)
    return None


def prepares(line: str) -> bool:
    """Whether a line of a script only prepares for its program."""
    return _SETUP.match(line) is not None


def shell_words(line: str) -> list[str] | None:
    """A line's words with their quotes; None for one that is no simple line."""
    lexer = shlex.shlex(line, posix=False, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, "#"
    try:
        return list(lexer)
    except ValueError:
        return None
