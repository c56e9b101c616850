"""A program that submits functions by submitit as a dynamic pipeline, which calls them as steps on Slurm.

The function around the executor becomes the pipeline, the executor the options of its steps, and a job what such a call
returns. The rest of the file stays as it is.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Final, Mapping, Sequence

import attrs

from stoker.core.errors import SourceError
from stoker.migrate.sbatch import Directive, Sheet, hardware, take
from stoker.migrate.scripts import CallText, CodeText, Notes, Options, Translation, code_of, named_imports

_EXECUTORS: Final = ("AutoExecutor", "SlurmExecutor", "LocalExecutor", "DebugExecutor")
_PLAIN: Final[Mapping[str, str]] = {
    "timeout_min": "time",
    "mem_gb": "mem",
    "nodes": "nodes",
    "cpus_per_task": "cpus-per-task",
    "gpus_per_node": "gpus-per-node",
    "tasks_per_node": "ntasks-per-node",
    "name": "job-name",
    "num_gpus": "gpus-per-node",
}
"""Parameters that submitit has for every cluster → sbatch's option."""
_FIELDS: Final[Mapping[str, str]] = {
    "setup": "setup",
    "array_parallelism": "array_parallelism",
    "job_name": "job_name",
    "signal_delay_s": "warn_before",
    "mail_type": "mail_type",
    "python": "python",
}
"""Parameters for Slurm that are fields of SlurmSettings; sbatch's options are in `migrate.sbatch`."""
_RESOURCES: Final[Mapping[str, tuple[str, str]]] = {
    "time": ("time_limit", 'f"{{{}}}m"'),
    "mem": ("memory", 'f"{{{}}}GiB"'),
    "nodes": ("nodes", "{}"),
    "cpus-per-task": ("cpu_count", "{}"),
    "gpus-per-node": ("gpu_count", "{}"),
}
"""Option → what it is called here, and how an expression becomes its value."""
_GONE: Final = "\0"
"""Marks a line that is taken out."""
_JOBS: Final[Mapping[str, str]] = {
    "job_id": "`stoker show` and run.steps have the job of each step",
    "stdout": "`stoker logs`, or run.steps[…].logs() after the run",
    "stderr": "`stoker logs`, or run.steps[…].logs() after the run",
    "results": '.result(); with launch=…(outputs="all") it is the list of all ranks\' values',
    "awaitable": ".result()",
    "cancel": "`stoker cancel`",
    "done": ".result() waits; `stoker watch` shows what is done",
    "state": "`stoker watch`",
    "paths": "`stoker logs`",
    "exception": "a failed step raises RunFailed in .result()",
    "get_logs_path": "`stoker logs`",
}
"""What a job of submitit's has and what a step returns does not → what to do instead."""
_HELPERS: Final[Mapping[str, str]] = {
    "clean_env": "a step has the variables of its `environment` only",
    "TorchDistributedEnvironment": "launch=Torchrun(…) sets these variables: leave the call out",
    "DelayedSubmission": 'context.checkpoint_dir, and retry=Retry(…, on=["timed-out", "preempted"])',
    "Checkpointable": 'context.checkpoint_dir, and retry=Retry(…, on=["timed-out", "preempted"])',
    "monitor_jobs": "`stoker watch`; .result() of each waits",
    "as_completed": "call .result() of each; `stoker watch` shows what is done",
    "CommandFunction": "subprocess.run([…], check=True) in a step",
    "JobEnvironment": "`context`: rank, world_size, local_rank, node",
    "FunctionSequence": "a step that calls the functions",
    "RsyncSnapshot": "the code is sent along as it was when the run began",
}
"""Other names of submitit's → what to do instead."""


@attrs.define
class _Program:
    """A program that is rewritten."""

    text: str
    notes: Notes
    edits: list[tuple[ast.expr, str]] = attrs.field(factory=list)
    steps: dict[str, str] = attrs.field(factory=dict)
    """Function of the file → the step of it."""
    generic: bool = False
    slurm: bool = False
    """Whether steps run on Slurm."""

    def source(self, node: ast.AST) -> str:
        return ast.get_source_segment(self.text, node) or ""


def translate(text: str, path: str) -> Translation:
    """The program with a pipeline in place of its executor."""
    notes = Notes()
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise SourceError(f"is not Python: {error.msg}", where=f"{path}:{error.lineno}") from None
    program = _Program(text, notes)
    scopes = _scopes(tree)
    for scope in scopes:
        _rewrite(program, scope, tree)
    if not scopes:
        notes.by_hand(
            1, "submitit", "no executor is made here in a way that is known: executor = submitit.AutoExecutor(…)"
        )
    _leftovers(program, tree)
    made = _written(program, tree, scopes)
    return Translation(text=made, framework="submitit", notes=notes.made)


def _called(node: ast.AST) -> str:
    """The last name of what is called."""
    func = node.func if isinstance(node, ast.Call) else node
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")


def _is_executor(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _called(node.value) in _EXECUTORS


def _scopes(tree: ast.Module) -> list[ast.AST]:
    """The innermost functions that make an executor; the module for one that is made outside of functions."""
    found: list[ast.AST] = []

    def visit(node: ast.AST, scope: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if _is_executor(child) and scope not in found:
                found.append(scope)
            inner = child if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) else scope
            visit(child, inner)

    visit(tree, tree)
    return found


def _rewrite(program: _Program, scope: ast.AST, tree: ast.Module) -> None:
    """Rewrite what a function does with its executors."""
    executors = {
        node.targets[0].id: node
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign) and _is_executor(node) and isinstance(node.targets[0], ast.Name)
    }
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    updates: dict[str, int] = {}
    for made in executors.values():
        program.edits.append((made.value, _options_of_executor(program, made.value)))
    for node in ast.walk(scope):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Name) and node.value.id in executors:
            message = "the executor leaves the function: make it where functions are submitted"
            program.notes.by_hand(node.lineno, node.value.id, message)
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        owner = node.func.value
        if not (isinstance(owner, ast.Name) and owner.id in executors):
            continue
        if node.func.attr == "update_parameters":
            updates[owner.id] = updates.get(owner.id, 0) + 1
            if updates[owner.id] == 2:
                message = "is called again: what is written last replaces the resources and settings before it"
                program.notes.by_hand(node.lineno, "update_parameters", message)
            program.edits.append((node, f"{owner.id}.update({_parameters(program, node)})"))
        elif node.func.attr in ("submit", "map_array") and node.args:
            program.edits.append((node, _submitted(program, node, owner.id, functions)))
        elif node.func.attr != "batch":
            program.notes.by_hand(node.lineno, f"{owner.id}.{node.func.attr}", "a dict of options has nothing like it")


def _options_of_executor(program: _Program, call: ast.expr) -> str:
    """The first options of the steps: on Slurm, unless the program says another cluster."""
    assert isinstance(call, ast.Call)
    options: Options = {"cache": False}
    local = _called(call) in ("LocalExecutor", "DebugExecutor")
    for keyword in call.keywords:
        value = keyword.value
        if keyword.arg == "cluster" and isinstance(value, ast.Constant):
            local = value.value in ("local", "debug")
        elif keyword.arg == "cluster":
            message = f"{program.source(value)}: the steps are on Slurm: step_operator of the pipeline"
            program.notes.differs(call.lineno, "cluster", message)
        elif keyword.arg in ("slurm_max_num_timeout", "max_num_timeout"):
            retry = CallText("Retry", {"on": ["timed-out", "preempted"]}, [CodeText(program.source(value))])
            options["retry"] = retry
            message = "the step begins again from context.checkpoint_dir; `checkpoint` of a class is not called"
            program.notes.differs(call.lineno, keyword.arg, message)
        elif keyword.arg != "folder":
            program.notes.by_hand(call.lineno, str(keyword.arg), "is not carried")
    program.notes.not_needed(call.lineno, "folder", "`stoker logs` has what the steps write")
    program.slurm = program.slurm or not local
    return code_of(options)


def _parameters(program: _Program, call: ast.Call) -> str:
    """The arguments of `update_parameters` as options of a step."""
    notes = program.notes
    sheet = Sheet(notes)
    raw: Options = {}
    slurm: Options = {}
    for name, value in _keywords(program, call):
        plain = name.removeprefix("slurm_")
        literal = value.value if isinstance(value, ast.Constant) else None
        option = _PLAIN.get(name, plain.replace("_", "-"))
        if name.startswith(("local_", "debug_")) or plain in ("stderr_to_stdout", "use_srun", "wckey"):
            notes.not_needed(value.lineno, name, "it is about submitit itself")
        elif plain in _FIELDS and plain != "job_name":
            slurm[_FIELDS[plain]] = CodeText(program.source(value))
        elif plain in ("name", "job_name"):
            slurm["job_name"] = CodeText(program.source(value))
        elif literal is not None:
            text = f"{literal!s}G" if name == "mem_gb" else "" if literal is True else str(literal)
            if literal is not False:
                take(sheet, Directive(value.lineno, option, text))
        elif option in _RESOURCES:
            field, form = _RESOURCES[option]
            where = slurm if field == "time_limit" else raw
            form = "{}" if plain in ("mem", "time") and name != "mem_gb" else form
            where[field] = CodeText(form.format(program.source(value)))
        elif option in ("partition", "account", "qos", "constraint", "reservation", "nodelist", "exclude", "comment"):
            slurm[option] = CodeText(program.source(value))
        elif option == "ntasks-per-node":
            raw[option] = program.source(value)
        else:
            notes.by_hand(value.lineno, name, f"{program.source(value)}: write its value as a setting of the step")
    tasks = raw.pop("ntasks-per-node", "")
    each = sheet.number("ntasks-per-node") or 1
    nodes = sheet.number("nodes") or 1
    launch: Any = CallText("MPI", {"ntasks": each * nodes, "program": "srun"}) if each * nodes > 1 else None
    if tasks or (launch is None and "nodes" in raw):
        count = " * ".join(f"({part.text})" for part in (raw.get("nodes"), CodeText(tasks) if tasks else None) if part)
        launch = CallText("MPI", {"ntasks": CodeText(count), "program": "srun"})
    hardware(sheet, launch)
    resources = {**sheet.resources, **raw}
    options: Options = {}
    if resources:
        options["resources"] = CallText("ResourceSettings", resources)
    if {**sheet.slurm, **slurm}:
        options["settings"] = {"step_operator.slurm": CallText("SlurmSettings", {**sheet.slurm, **slurm})}
    if launch is not None:
        options["launch"] = launch
    return ", ".join(f"{name}={code_of(value, 8)}" for name, value in options.items())


def _keywords(program: _Program, call: ast.Call) -> list[tuple[str, ast.expr]]:
    """The parameters that a call gives, also in a literal mapping; those that cannot be seen are noted."""
    found: list[tuple[str, ast.expr]] = []
    for keyword in call.keywords:
        name = (keyword.arg or "").removeprefix("slurm_")
        if (keyword.arg is None or name == "additional_parameters") and isinstance(keyword.value, ast.Dict):
            prefix = "slurm_" if keyword.arg else ""
            for key, value in zip(keyword.value.keys, keyword.value.values):
                if isinstance(key, ast.Constant):
                    found.append((f"{prefix}{key.value!s}", value))
                else:
                    program.notes.by_hand(value.lineno, program.source(value), "write each setting by its name")
        elif keyword.arg is None or name in ("additional_parameters", "srun_args"):
            message = "write each as a setting of the step: resources=…, settings=…"
            program.notes.by_hand(keyword.value.lineno, program.source(keyword.value), message)
        else:
            found.append((keyword.arg, keyword.value))
    return found


def _submitted(program: _Program, call: ast.Call, executor: str, functions: set[str]) -> str:
    """A call that submits a function as one that starts its step."""
    assert isinstance(call.func, ast.Attribute)
    function, words = call.args[0], [program.source(one) for one in call.args[1:]]
    named = [(one.arg, program.source(one.value)) for one in call.keywords]
    if isinstance(function, ast.Name) and function.id in functions:
        step = program.steps.setdefault(function.id, f"{function.id}_step")
        start = f"{step}.with_options(**{executor}).submit"
        if call.func.attr == "map_array":
            return f"[{start}(*values) for values in zip({', '.join(words)})]"
        return (
            f"{start}({', '.join([*words, *(f'{name}={value}' if name else f'**{value}' for name, value in named)])})"
        )
    program.generic = True
    start = f"call.with_options(**{executor}).submit({program.source(function)}, "
    if call.func.attr == "map_array":
        return f"[{start}values, {{}}) for values in zip({', '.join(words)})]"
    options = ", ".join(f'"{name}": {value}' if name else f"**{value}" for name, value in named)
    return f"{start}({''.join(f'{word}, ' for word in words).rstrip(' ')}), {{{options}}})"


def _leftovers(program: _Program, tree: ast.Module) -> None:
    """Note what else of submitit's the program uses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "clean_env":
            program.notes.not_needed(node.lineno, node.attr, _HELPERS[node.attr])
        elif isinstance(node, ast.Attribute) and node.attr in _HELPERS:
            program.notes.by_hand(node.lineno, node.attr, _HELPERS[node.attr])
        elif isinstance(node, ast.Attribute) and node.attr in _JOBS and _is_job(node.value):
            program.notes.by_hand(node.lineno, f".{node.attr}", _JOBS[node.attr])
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "submitit":
            for alias in node.names:
                if alias.name not in _EXECUTORS:
                    message = _HELPERS.get(alias.name, "take the name out")
                    program.notes.by_hand(node.lineno, alias.name, message)


def _is_job(node: ast.expr) -> bool:
    return (
        isinstance(node, (ast.Name, ast.Subscript))
        and re.search(r"(?i)^(job|j$|future)", ast.unparse(node)) is not None
    )


def _written(program: _Program, tree: ast.Module, scopes: Sequence[ast.AST]) -> str:
    """The text with all edits, the imports, the steps and the pipelines."""
    data = program.text.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def place(line: int | None, column: int | None) -> int:
        return starts[(line or 1) - 1] + (column or 0)

    edits = []
    for node, new in program.edits:
        start = place(getattr(node, "lineno", 1), getattr(node, "col_offset", 0))
        edits.append((start, place(getattr(node, "end_lineno", 1), getattr(node, "end_col_offset", 0)), new))
    helpers = _steps_text(program)
    functions = [one for one in scopes if isinstance(one, ast.FunctionDef)]
    for one in functions:
        if one.decorator_list:
            names = ", ".join(map(ast.unparse, one.decorator_list))
            program.notes.by_hand(one.lineno, one.name, f"has decorators ({names}): call the pipeline from it instead")
        if one not in tree.body:
            program.notes.by_hand(
                one.lineno, one.name, "is a method or in a function: a pipeline is a function of the module"
            )
    top = [one for one in functions if one in tree.body]
    for one in top:
        at = place(min([one.lineno, *(each.lineno for each in one.decorator_list)]), 0)
        edits.append((at, at, f"{helpers if one is top[0] else ''}{_decorator(program)}\n"))
    for with_node in [node for node in ast.walk(tree) if isinstance(node, ast.With)]:
        if any(_called(item.context_expr) == "batch" for item in with_node.items):
            last = with_node.items[-1].context_expr
            start = place(with_node.lineno, with_node.col_offset)
            edits.append((start, place(last.end_lineno, last.end_col_offset), "if True"))
            message = "steps that ask for the same are sent as arrays by themselves"
            program.notes.not_needed(with_node.lineno, "batch", message)
    if any(isinstance(one, ast.Module) for one in scopes):
        head = (helpers if not top else "") + _decorator(program)
        edits += _module_pipeline(tree, place, head, data, [one for one, _ in program.edits])
    text = data
    for start, end, new in sorted(edits, key=lambda one: (one[0], one[1]), reverse=True):
        text = text[:start] + new.encode() + text[end:]
    return _with_imports(text.decode())


def _module_pipeline(
    tree: ast.Module, place: Any, helpers: str, data: bytes, replaced: Sequence[ast.expr]
) -> list[tuple[int, int, str]]:
    """The edits that put what the module does with its executor into a pipeline."""
    at = next(number for number, node in enumerate(tree.body) if any(map(_is_executor, ast.walk(node))))
    node = tree.body[at]
    head = f"{helpers}\ndef submitted():"
    tail = '\n\n\nif __name__ == "__main__":\n    submitted()\n'
    if isinstance(node, ast.If):
        end = data.index(b"\n", place(node.test.end_lineno, 0))
        return [(place(node.lineno, 0), end, head), (len(data), len(data), tail)]
    edits = []
    inside = {line for one in replaced for line in range(one.lineno + 1, (one.end_lineno or 0) + 1)}
    for one in ast.walk(ast.Module(body=tree.body[at:], type_ignores=[])):
        if isinstance(one, (ast.Constant, ast.JoinedStr)) and one.end_lineno is not None:
            inside |= set(range(one.lineno + 1, one.end_lineno + 1))  # a text keeps its lines
    lines = data.decode().splitlines()
    for number in range(node.lineno, len(lines) + 1):
        if lines[number - 1].strip() and number not in inside:
            edits.append((place(number, 0), place(number, 0), "    "))
    # The head comes last: what is put at a place later stands in front.
    return [*edits, (place(node.lineno, 0), place(node.lineno, 0), f"{head}\n"), (len(data), len(data), tail)]


def _decorator(program: _Program) -> str:
    where = ', step_operator="slurm"' if program.slurm else ""
    return f"@pipeline(dynamic=True{where})"


def _steps_text(program: _Program) -> str:
    lines = [f"{step} = step({name})" for name, step in program.steps.items()]
    text = "\n".join(lines) + "\n\n\n" if lines else ""
    if program.generic:
        text += "@step\ndef call(function, words: tuple, options: dict):\n    return function(*words, **options)\n\n\n"
    return text


def _with_imports(text: str) -> str:
    """The text with Stoker's imports in place of submitit's, which stays where something of it is left."""
    tree = ast.parse(text)
    lines = text.splitlines()
    ours = list(named_imports(text))
    nodes = [one for one in ast.walk(tree) if isinstance(one, (ast.Import, ast.ImportFrom)) and _is_submitit(one)]
    left = any(isinstance(one, ast.Attribute) and ast.unparse(one).startswith("submitit.") for one in ast.walk(tree))
    top = next((one for one in nodes if one in tree.body), None)
    for node in nodes:
        first, last = node.lineno - 1, node.end_lineno or node.lineno
        names = [ast.unparse(one) for one in node.names if not one.name.startswith("submitit")]
        others = [f"{' ' * node.col_offset}import {', '.join(names)}"] if names and isinstance(node, ast.Import) else []
        kept = lines[first:last] if left else others
        inside = [] if node in tree.body or kept else [" " * node.col_offset + "pass"]
        lines[first:last] = ["\n".join([*kept, *(ours if node is top else inside)]) or _GONE]
        lines[first + 1 : first + 1] = [_GONE] * (last - first - 1)
    if top is None:
        fixed = [one for one in tree.body if isinstance(one, ast.ImportFrom) and one.module == "__future__"]
        fixed += tree.body[:1] if ast.get_docstring(tree) is not None else []  # type: ignore[arg-type]
        at = max([one.end_lineno or 0 for one in fixed], default=0)
        lines[at:at] = ours
    return "\n".join(line for line in lines if line != _GONE) + "\n"


def _is_submitit(node: ast.Import | ast.ImportFrom) -> bool:
    names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
    return any(name.partition(".")[0] == "submitit" for name in names)
