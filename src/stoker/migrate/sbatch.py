"""A script for `sbatch` as a step on Slurm.

Which options `sbatch` has is in `backends.slurm.settings`: each is carried, named as not needed, or left by hand, and
so is one that Slurm does not have.
"""

from __future__ import annotations

import math
import re
import shlex
from typing import Any, Callable, Final, Iterator, Mapping

import attrs

from stoker.backends.slurm import values
from stoker.backends.slurm.settings import ELSEWHERE, OPTIONS, SHORT
from stoker.core.accelerators import Accelerator
from stoker.core.errors import SettingsError, nearest
from stoker.migrate.scripts import (
    CallText,
    Notes,
    Options,
    ScriptStep,
    Translation,
    accepted,
    asked,
    identifier,
    logical_lines,
    prepares,
    programs,
    rank_script,
    shell_words,
    with_line,
)

DIRECTIVE: Final = re.compile(r"#SBATCH\s+(.*)")
NOT_NEEDED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("output", "error", "open-mode"), "`stoker logs` has what the step writes"),
    **dict.fromkeys(("parsable", "quiet", "verbose", "wait"), "Stoker follows the job by itself"),
    **dict.fromkeys(("help", "usage", "version", "test-only", "ignore-pbs"), "it is about the call of sbatch"),
    "no-requeue": "Stoker submits jobs so",
    "input": "the step reads nothing from a terminal",
}
"""Options of sbatch that a step does without → why."""
FIELDS: Final[Mapping[str, str]] = {
    **{name: name for name in ("partition", "account", "qos", "reservation", "nodelist", "exclude", "constraint")},
    "time": "time_limit",
    "mail-user": "mail_user",
    "comment": "comment",
}
"""Options that are fields of SlurmSettings."""
_FLAGS: Final = frozenset(
    {
        *("requeue", "no-requeue", "parsable", "quiet", "verbose", "wait", "help", "usage", "version", "test-only"),
        *("ignore-pbs", "exclusive", "no-kill"),
        *(name for name, kind in OPTIONS.items() if kind in ("flag", "either")),
    }
)
"""Options that take a value behind `=` or none."""
_OLD: Final[Mapping[str, str]] = {"workdir": "chdir", "share": "oversubscribe", "cores": "cpus-per-task"}
_LETTERS: Final[Mapping[str, str]] = {**SHORT, "Q": "quiet", "v": "verbose", "V": "version", "h": "help"}
_COUNTED: Final = frozenset(
    {
        *("nodes", "ntasks", "ntasks-per-node", "tasks-per-node", "cpus-per-task", "cpus-per-gpu", "tmp"),
        *("mem", "mem-per-cpu", "mem-per-gpu", "gpus", "gpus-per-node", "gpus-per-task", "gres"),
        *("array", "job-name", "chdir", "signal", "mail-type", "export", "exclusive", "requeue"),
    }
)
"""Options that are carried together, or in a way of their own."""
_MODULE: Final = re.compile(r"\s*(?:module\s+(?:load|add)|ml(?:\s+load)?)\s+(?P<names>[\w./@+ -]+?)\s*(?:#.*)?")
_PASSED: Final = re.compile(r"\s*(#.*|$|(set|export|echo|date|hostname|pwd)\b.*|module\s+(purge|list).*|ml\s+purge.*)")
_SLURM_VARIABLES: Final = re.compile(r"\$\{?(SLURM_\w+)")


@attrs.frozen
class Directive:
    """An option of a script, and the line that gives it."""

    line: int
    name: str
    value: str


@attrs.define
class Sheet:
    """What is being read from a script's directives."""

    notes: Notes
    slurm: Options = attrs.field(factory=dict)
    resources: Options = attrs.field(factory=dict)
    options: Options = attrs.field(factory=dict)
    given: dict[str, Directive] = attrs.field(factory=dict)

    def number(self, name: str, usual: int | None = None) -> int | None:
        """An option that is a number; one that is none is noted."""
        directive = self.given.get(name)
        if directive is None:
            return usual
        match = re.match(r"\d+", directive.value)
        if match is None:
            self.notes.by_hand(directive.line, name, f"{directive.value!r} is not a number")
            return usual
        return int(match[0])


def is_sbatch(text: str) -> bool:
    """Whether a file is a script with options for sbatch."""
    return any(DIRECTIVE.match(line) for line in text.splitlines())


def translate(text: str, path: str) -> Translation:
    """The script as a step, and a pipeline of it."""
    notes = Notes()
    sheet = Sheet(notes)
    for directive in directives(text, notes):
        take(sheet, directive)
    shebang = text.splitlines()[0][2:].strip() if text.startswith("#!") else "/bin/bash"
    lines = text.splitlines()
    kept = [
        line
        for number, line in enumerate(lines)
        if not DIRECTIVE.match(line) and not (number == 0 and line[:2] == "#!")
    ]
    script = _without_modules("\n".join(kept), sheet, lines)
    script, launch = _ranks(script, sheet, lines)
    hardware(sheet, launch)
    step = _step(script, sheet, shlex.split(shebang), path)
    if launch is not None:
        step.options["launch"] = launch
    array = sheet.given.get("array")
    if array is not None:
        step.element, step.elements = "SLURM_ARRAY_TASK_ID", _elements(sheet, array)
    used = sorted(set(_SLURM_VARIABLES.findall(script)) - {"SLURM_ARRAY_TASK_ID"})
    if used:
        message = "Slurm sets them for a job; one that takes further steps keeps its own, unless reuse=False"
        notes.differs(_line_of(lines, used[0]), ", ".join(used), message)
    return programs(path, "Slurm", [step], notes)


def directives(text: str, notes: Notes) -> Iterator[Directive]:
    """The options in front of the first command, which are those that sbatch reads; later ones are noted."""
    reading = True
    for number, line in enumerate(text.splitlines(), 1):
        match = DIRECTIVE.match(line)
        if match is None:
            if line.startswith("#SBATCH") and line[7:].strip():
                notes.by_hand(number, line.split()[0], "sbatch reads it as a comment: write a space behind #SBATCH")
            reading = reading and (not line.strip() or line.lstrip().startswith("#"))
            continue
        try:
            words = shlex.split(match[1], comments=True)
        except ValueError:
            words = match[1].split()
        if not reading:
            notes.not_needed(
                number, " ".join(words), "it stands below the first command, where sbatch reads no options"
            )
            continue
        while words:
            word = words.pop(0)
            name, value = _option(word, words)
            if name:
                yield Directive(number, name, value)
            else:
                notes.by_hand(number, word, "is no option of sbatch")
                while words and not words[0].startswith("-"):
                    words.pop(0)


def _option(word: str, words: list[str]) -> tuple[str, str]:
    """An option's long name and its value, which may be the next word; no name for what is no option."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        name = _OLD.get(name, name).replace("_", "-")
        known = [one for one in {**OPTIONS, **ELSEWHERE} if one.startswith(name)]
        name = name if name in known or len(known) != 1 else known[0]
        if not equals and name not in _FLAGS and words and not words[0].startswith("--"):
            value = words.pop(0)
        return name, value
    if word.startswith("-") and len(word) > 1 and word[1] in _LETTERS:
        name = _LETTERS[word[1]]
        value = word[2:].removeprefix("=")
        if not value and name not in _FLAGS and words:
            value = words.pop(0)
        return name, value
    return "", ""


def take(sheet: Sheet, directive: Directive) -> None:
    """Carry an option, or note it."""
    name, line, notes = directive.name, directive.line, sheet.notes
    if name in NOT_NEEDED:
        notes.not_needed(line, name, NOT_NEEDED[name])
    elif name in FIELDS:
        if name == "time" and directive.value.lower() in ("infinite", "unlimited"):
            notes.not_needed(line, name, "without time_limit the partition's limit holds")
            return
        value = f"{directive.value}m" if name == "time" and directive.value.isdigit() else directive.value
        sheet.slurm |= accepted(notes, line, name, "slurm", {FIELDS[name]: value})
    elif name == "mail-type" and name in sheet.given:
        sheet.given[name] = attrs.evolve(directive, value=f"{sheet.given[name].value},{directive.value}")
    elif name in _COUNTED:
        sheet.given[name] = directive
    elif name == "dependency":
        message = (
            f"{directive.value}: call this step behind the other one in one pipeline: step.with_options(after=…)()"
        )
        notes.by_hand(line, name, message)
    elif name in OPTIONS:
        option: Any = directive.value or True
        sheet.slurm.setdefault("options", {})
        sheet.slurm["options"] |= accepted(notes, line, name, "slurm", {"options": {name: option}}).get("options", {})
    elif name in ELSEWHERE:
        notes.by_hand(line, name, f"{directive.value}: {ELSEWHERE[name]}".removeprefix(": "))
    else:
        known = nearest(name, [*OPTIONS, *ELSEWHERE])
        notes.by_hand(line, name, f"sbatch has no such option{known}")


def hardware(sheet: Sheet, launch: CallText | None) -> None:
    """Nodes, tasks, CPUs, memory and GPUs as resources of the step, which are those of each node."""
    given, notes = sheet.given, sheet.notes
    nodes = sheet.number("nodes", 1) or 1
    tasks = sheet.number("ntasks")
    per_node = sheet.number("ntasks-per-node") or sheet.number("tasks-per-node")
    per_node = per_node or math.ceil((tasks or nodes) / nodes)
    if nodes > 1 and launch is None:
        line = given["nodes"].line
        message = (
            f"ResourceSettings(nodes={nodes}) and launch=… for each program that the script starts on further nodes"
        )
        notes.by_hand(line, "nodes", f"this step has one node: make a step with {message}")
        nodes = 1
    if nodes > 1:
        sheet.resources["nodes"] = nodes
    gpus = _gpus(sheet, nodes, per_node)
    cpus = sheet.number("cpus-per-task")
    if "cpus-per-gpu" in given:
        cpus, per_node = (sheet.number("cpus-per-gpu") or 1), max(gpus, 1)
    count = (cpus or 1) * per_node
    if cpus or per_node > 1:
        sheet.resources["cpu_count"] = count
    for name, factor in (("mem", 1), ("mem-per-cpu", count), ("mem-per-gpu", max(gpus, 1))):
        if name not in given:
            continue
        directive = given[name]
        mebibytes = values.mebibytes(directive.value.upper().removesuffix("B") or directive.value)
        if mebibytes == 0:
            sheet.slurm.setdefault("options", {})
            sheet.slurm["options"]["mem"] = 0
        elif mebibytes is None:
            notes.by_hand(directive.line, name, f"{directive.value!r} is no amount of memory")
        else:
            amount = mebibytes * factor
            text = f"{amount / 1024:g}GiB" if amount % 1024 == 0 else f"{amount:g}MiB"
            sheet.resources |= asked(notes, directive.line, name, {"memory": text})
    if "tmp" in given:
        disk = values.mebibytes(given["tmp"].value)
        size = f"{disk:g}MiB" if disk else given["tmp"].value
        sheet.resources |= asked(notes, given["tmp"].line, "tmp", {"disk": size})


def _gpus(sheet: Sheet, nodes: int, tasks: int) -> int:
    """The GPUs of each node, which are noted down as resources."""
    ways: Mapping[str, Callable[[int], int]] = {
        "gres": lambda count: count,
        "gpus-per-node": lambda count: count,
        "gpus": lambda count: math.ceil(count / nodes),
        "gpus-per-task": lambda count: count * tasks,
    }
    total = 0
    for name, of_node in ways.items():
        directive = sheet.given.get(name)
        if directive is None:
            continue
        for part in directive.value.split(","):
            words = part.split("(")[0].split(":")
            if name == "gres" and words[0].removeprefix("gres/") != "gpu":
                amount = words[-1] if words[-1].isdigit() else "1"
                key = ":".join(words[:-1] if words[-1].isdigit() else words)
                extended = {**sheet.resources.get("extended", {}), key: int(amount)}
                sheet.resources |= asked(sheet.notes, directive.line, part, {"extended": extended})
                continue
            words = words[1:] if name == "gres" or words[0] == "gpu" else words
            count = of_node(int(words[-1])) if words and words[-1].isdigit() else of_node(1)
            model = words[0] if words and not words[0].isdigit() else ""
            total += count
            _add_gpus(sheet, directive, model, count)
    return total


def _add_gpus(sheet: Sheet, directive: Directive, model: str, count: int) -> None:
    if not count:
        return
    if not model:
        sheet.resources["gpu_count"] = count
        return
    try:
        sheet.resources["accelerators"] = str(Accelerator.parse(f"{model}:{count}"))
    except SettingsError:
        sheet.resources["gpu_count"] = count
        message = f"what this site calls {model!r}: name the model (accelerators=…), and gres_types of SlurmSettings"
        sheet.notes.by_hand(directive.line, directive.name, message)


def _step(script: str, sheet: Sheet, interpreter: list[str], path: str) -> ScriptStep:
    """The step, with what is carried in ways of its own."""
    given, notes = sheet.given, sheet.notes
    if "mail-type" in given:
        kinds = ",".join(given["mail-type"].value.replace(" ", ",").upper().split(","))
        sheet.slurm |= accepted(notes, given["mail-type"].line, "mail-type", "slurm", {"mail_type": kinds})
    if "exclusive" in given:
        sheet.slurm |= accepted(
            notes, given["exclusive"].line, "exclusive", "slurm", {"exclusive": given["exclusive"].value or True}
        )
    if "requeue" in given:
        sheet.slurm["requeue"] = True
    if "signal" in given:
        seconds = given["signal"].value.rpartition("@")[2]
        line = given["signal"].line
        sheet.slurm |= accepted(notes, line, "signal", "slurm", {"warn_before": f"{seconds or 60}s"})
        notes.differs(line, "signal", "the step is warned by context.should_stop; no signal reaches the script")
    if "chdir" in given and given["chdir"].value not in (".", "./"):
        script = f"cd {shlex.quote(given['chdir'].value)}\n{script}"
    if "export" in given:
        _export(sheet, given["export"])
    name = given["job-name"].value if "job-name" in given else re.split(r"[./]", path)[-2]
    options: Options = {"step_operator": "slurm"}
    if sheet.slurm:
        options["settings"] = {"step_operator.slurm": CallText("SlurmSettings", sheet.slurm)}
    if sheet.resources:
        options["resources"] = CallText("ResourceSettings", sheet.resources)
    return ScriptStep(
        name=identifier(name, "step"),
        script=script,
        interpreter=interpreter or ["/bin/bash"],
        options={**options, **sheet.options},
        takes_words=bool(re.search(r"\$(\{?[1-9@*#]|\{[1-9])", script)),
    )


def _export(sheet: Sheet, directive: Directive) -> None:
    parts = [part for part in directive.value.split(",") if part]
    given = dict(part.split("=", 1) for part in parts if "=" in part)
    if given:
        sheet.options["environment"] = given
    for part in parts:
        if part.upper() == "ALL":
            message = "a step has the variables of its `environment`; what the script needs of yours stands there"
            sheet.notes.differs(directive.line, "export", f"ALL: {message}")
        elif part.upper() in ("NONE", "NIL"):
            sheet.notes.not_needed(directive.line, "export", "a step has the variables of its `environment` only")
        elif "=" not in part:
            sheet.notes.by_hand(directive.line, "export", f"{part}: environment={{'{part}': …}} of the step")


def _elements(sheet: Sheet, directive: Directive) -> str:
    """The code of an array's indexes."""
    indexes, _, at_once = directive.value.partition("%")
    if at_once.isdigit():
        sheet.slurm["array_parallelism"] = int(at_once)
    ranges = []
    for part in indexes.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part.strip())
        if match is None:
            sheet.notes.by_hand(directive.line, "array", f"{part!r} is no index: write the elements into .map([…])")
            continue
        first, last, stride = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        ranges.append(range(first, last + 1, stride))
    if len(ranges) == 1:
        return f"list({ranges[0]!r})"
    return repr([index for one in ranges for index in one])


def _without_modules(script: str, sheet: Sheet, lines: list[str]) -> str:
    """The script without the modules that it loads first of all, which the step's job loads."""
    kept: list[str] = []
    names: list[str] = []
    first = True
    for line in script.splitlines():
        match = _MODULE.fullmatch(line) if first else None
        if match is not None and "-" not in match["names"].split()[0][:1]:
            names += match["names"].split()
            continue
        if first and re.match(r"\s*(module|ml)\s+(purge|list|reset)", line):
            sheet.notes.not_needed(_line_of(lines, line), line.strip(), "the job begins without modules of yours")
            continue
        first = first and _PASSED.fullmatch(line) is not None
        kept.append(line)
    if names:
        sheet.slurm |= accepted(sheet.notes, _line_of(lines, names[0]), "module", "slurm", {"modules": names})
    late = next((line for line in kept if re.match(r"\s*(module|ml)\s+\w", line)), None)
    if late is not None:
        message = "stays in the script, whose shell must know `module`: modules=[…] of SlurmSettings loads before it"
        sheet.notes.differs(_line_of(lines, late), late.strip(), message)
    return "\n".join(kept)


def _ranks(script: str, sheet: Sheet, lines: list[str]) -> tuple[str, CallText | None]:
    """The script as each rank runs it, and what starts the ranks: `srun`, or a launcher of Python's."""
    nodes = sheet.number("nodes", 1) or 1
    each = sheet.number("ntasks-per-node") or sheet.number("tasks-per-node") or 1
    tasks = sheet.number("ntasks") or each * nodes
    said = [(line, raw) for line, raw in logical_lines(script) if not prepares(line)]
    starts = [(line, raw) for line, raw in said if re.match(r"\s*(\w+=\S+\s+)*(time\s+|exec\s+)?srun\b", line)]
    alone = len(said) == len(starts) == 1
    at = _line_of(lines, said[0][1].splitlines()[0]) if alone else 0
    if alone or (starts and tasks == 1):
        for line, raw in starts:
            changed, own = _without_srun(line, sheet, _line_of(lines, raw.splitlines()[0]))
            tasks = own or tasks
            script = with_line(script, raw, changed)
    elif starts:
        message = f'makes {tasks} tasks here: make a step of each such line, with launch=MPI(program="srun", …)'
        sheet.notes.by_hand(_line_of(lines, starts[0][1].splitlines()[0]), "srun", message)
    script, launcher = rank_script(script, sheet.notes, lambda text: at or _line_of(lines, text))
    if launcher is None and alone and tasks > 1:
        launcher = CallText("MPI", {"ntasks": tasks, "program": "srun"})
        sheet.notes.differs(_line_of(lines, "srun"), "srun", "each task runs the lines before the program, too")
    if launcher is not None and re.search(r"\bsrun\b", script):
        message = "what is left of it in the script runs in each rank: take the line out"
        sheet.notes.by_hand(_line_of(lines, "srun"), "srun", message)
    return script, launcher


def _without_srun(line: str, sheet: Sheet, at: int) -> tuple[str, int | None]:
    """A line without `srun` and its options, and the number of tasks if it says one."""
    words = shell_words(line)
    if words is None or "srun" not in words:
        return line, None
    start = words.index("srun")
    rest, tasks, dropped = words[start + 1 :], None, []
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        dropped.append(word)
        name, value = _option(word, rest)
        if name == "ntasks" and value.isdigit():
            tasks = int(value)
    if dropped:
        sheet.notes.differs(
            at, "srun", f"without its options {' '.join(dropped)}: the step's settings are those of its job"
        )
    return " ".join([*words[:start], *rest]), tasks


def _line_of(lines: list[str], text: str) -> int:
    return next(
        (number for number, line in enumerate(lines, 1) if text.strip() in line and not DIRECTIVE.match(line)), 1
    )
