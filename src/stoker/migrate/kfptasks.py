"""A pipeline of Kubeflow Pipelines as one of Stoker's: its tasks, what is said of them, and what is around them.

What is said of a task becomes options of the call. A loop is a `.map`; a pipeline with conditions, or with a loop
that is no `.map`, becomes a dynamic one.
"""

from __future__ import annotations

import ast
import copy
import re
from typing import Any, Callable, Final, Mapping, Sequence

import attrs

from stoker.migrate.kfpcomponents import (
    GUIDE,
    INSTEAD,
    KfpPart,
    KfpProgram,
    decorator_of,
    fields_of,
    keywords_of,
    last_name,
    quoted,
    role_of,
)
from stoker.migrate.scripts import CallText, CodeText, Options, code_of, identifier

_BLOCKS: Final = ("If", "Elif", "Else", "Condition", "ParallelFor", "ExitHandler")


@attrs.define
class KfpTask:
    """A task of a pipeline: what it calls, and what is said of it."""

    part: KfpPart
    options: Options = attrs.field(factory=dict)
    resources: Options = attrs.field(factory=dict)
    pod: Options = attrs.field(factory=dict)
    accelerator: str = ""
    count: Any = None
    after: list[str] = attrs.field(factory=list)
    line: int = 0
    mapped: bool = False


@attrs.define
class KfpPipeline:
    """A pipeline that is rewritten."""

    program: KfpProgram
    node: ast.FunctionDef
    dynamic: bool = False
    tasks: dict[ast.AST, KfpTask] = attrs.field(factory=dict)
    """Call of a component → its task."""
    names: dict[ast.AST, dict[str, KfpTask]] = attrs.field(factory=dict)
    """Statement → the variables that have tasks there."""
    said: set[ast.AST] = attrs.field(factory=set)
    """Calls that say something of a task."""
    items: set[str] = attrs.field(factory=set)
    """Variables of loops."""
    texts: list[str] = attrs.field(factory=list)
    last: dict[str, ast.Assign] = attrs.field(factory=dict)
    """Variable → the statement that gave it its task."""

    def rewrite(self) -> None:
        """Add the edits of the pipeline to those of the program."""
        node, program = self.node, self.program
        blocks = [one for one in ast.walk(node) if isinstance(one, ast.With)]
        self._collect(node.body, {})
        loops = [one for one in blocks if last_name(one.items[0].context_expr) == "ParallelFor"]
        others = [one for one in blocks if last_name(one.items[0].context_expr) in _BLOCKS and one not in loops]
        inner = any(task.part.name in program.dynamic for task in self.tasks.values())
        self.dynamic = bool(others) or inner or not all(map(self._is_map, loops))
        if self.dynamic:
            program.dynamic.add(node.name)
            for task in self.tasks.values():
                task.mapped = False
                if "id" in task.options:
                    task.options["name"] = task.options.pop("id")
            why = "dynamic=True: tasks are called one after another, and it needs a stack that runs dynamic pipelines"
            program.notes.differs(node.lineno, node.name, why)
        for task in self.tasks.values():
            self._accelerators(task)
        options = self._options()
        program.replace(decorator_of(node), f"pipeline({options})" if options else "pipeline")
        if node.returns is not None:
            words: list[ast.arg | ast.expr] = [*node.args.args, *node.args.defaults]
            ends = [program.at(one.end_lineno or 0, one.end_col_offset or 0) for one in words]
            start = max(ends, default=program.at(node.lineno, node.col_offset))
            data = program.text.encode()
            arrow = data.index(b"->", start)
            end = program.at(node.returns.end_lineno or 0, node.returns.end_col_offset or 0)
            program.edits.append((len(data[:arrow].rstrip()), end, ""))
        for one in node.args.args:
            if role_of(one.annotation)[0] and one.annotation is not None:
                program.replace(one.annotation, "Path")
        self._emit(node.body)

    def _options(self) -> str:
        words: list[str] = []
        for name, value in keywords_of(decorator_of(self.node)).items():
            if name in ("name", "display_name"):
                words += [f"name={self.program.source(value)}"] if not words else []
            elif name == "description":
                self.program.notes.not_needed(value.lineno, name, "the docstring says it")
            elif name == "pipeline_root":
                self.program.notes.not_needed(value.lineno, name, "the stack's artifact_store keeps what steps return")
            else:
                self.program.notes.by_hand(value.lineno, name, f"is not carried: {GUIDE}")
        return ", ".join([*words, *(["dynamic=True"] if self.dynamic else [])])

    # What is there

    def _collect(self, body: Sequence[ast.stmt], names: dict[str, KfpTask]) -> None:
        for node in body:
            inner: Sequence[ast.AST] = [node]
            if isinstance(node, ast.With):
                inner = [each for one in node.items for each in (one.context_expr,)]
                call = node.items[0].context_expr
                variable = node.items[0].optional_vars
                if last_name(call) == "ParallelFor" and isinstance(variable, ast.Name):
                    self.items.add(variable.id)
            elif isinstance(node, (ast.If, ast.For, ast.Try)):
                inner = []
            for top in inner:
                for one in ast.walk(top):
                    if (
                        isinstance(one, ast.Call)
                        and isinstance(one.func, ast.Name)
                        and one.func.id in self.program.parts
                    ):
                        self.tasks[one] = KfpTask(self.program.parts[one.func.id], line=one.lineno)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                root = self._root(node.value)
                if root in self.tasks:
                    names[node.targets[0].id] = self.tasks[root]
                    self.last[node.targets[0].id] = node
            for top in inner:
                for one in ast.walk(top):
                    if isinstance(one, ast.Call):
                        self._said_of(one, names)
            self.names[node] = dict(names)
            for block in ("body", "orelse", "finalbody"):
                self._collect(getattr(node, block, []), names)

    @staticmethod
    def _root(node: ast.AST) -> ast.AST:
        """What methods are chained on."""
        while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        return node

    def _task(self, node: ast.AST, names: Mapping[str, KfpTask]) -> KfpTask | None:
        root = self._root(node)
        return names.get(root.id) if isinstance(root, ast.Name) else self.tasks.get(root)

    def _said_of(self, call: ast.Call, names: Mapping[str, KfpTask]) -> None:
        """What a call says of a task."""
        if not isinstance(call.func, ast.Attribute):
            return
        words = dict(enumerate(call.args)) | {one.arg: one.value for one in call.keywords if one.arg}
        task = self._task(call.func.value, names)
        if task is not None:
            self.said.add(call)
            _METHODS.get(call.func.attr, KfpPipeline._unknown)(self, task, call, words)
        elif last_name(call.func.value) == "kubernetes":
            first = words.pop("task", words.pop(0, None))
            task = self._task(first, names) if first is not None else None
            if task is None:
                return
            self.said.add(call)
            shifted = {(key - 1 if isinstance(key, int) else key): value for key, value in words.items()}
            values = {key: _literal(value) for key, value in shifted.items()}
            row = _KUBERNETES.get(call.func.attr)
            made = row(values) if row is not None and None not in values.values() else None
            if made is None:
                self._unknown(task, call, words)
            else:
                _merge(task.options if "timeout" in made else task.pod, made)

    def _unknown(self, task: KfpTask, call: ast.Call, words: Mapping[Any, ast.expr]) -> None:
        assert isinstance(call.func, ast.Attribute)
        message = INSTEAD.get(call.func.attr, f"is not carried: {GUIDE}")
        self.program.notes.by_hand(call.lineno, self.program.source(call).replace("\n", " "), message)

    def _value(self, call: ast.Call, node: ast.expr | None) -> Any:
        """A value as it is written; None, with a note, where it is only known when the pipeline runs."""
        if node is None:
            return None
        literal = _literal(node)
        if literal is not None:
            return int(literal) if isinstance(literal, str) and literal.isdigit() else literal
        parameters = {one.arg for one in (*self.node.args.args, *self.node.args.kwonlyargs)}
        used = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
        if used & (parameters | self.items | set(self.last)):
            message = "is known only while it runs: write it into the call in a dynamic pipeline"
            self.program.notes.by_hand(call.lineno, self.program.source(call).replace("\n", " "), message)
            return None
        return CodeText(self.program.source(node))

    def _accelerators(self, task: KfpTask) -> None:
        """GPUs by their count, or by their model."""
        if not task.accelerator and task.count is None:
            return
        count = 1 if task.count is None else task.count
        kind = re.sub(r"^(nvidia|tesla|[-_])+", "", task.accelerator.lower()).upper().replace("_", "-")
        if task.accelerator in ("", "nvidia.com/gpu", "amd.com/gpu"):
            task.resources["gpu_count"] = count
            if task.accelerator.startswith("amd"):
                task.resources["gpu_vendor"] = "amd"
        elif "/" not in kind and not kind.startswith("TPU") and not isinstance(count, CodeText):
            task.resources["accelerators"] = f"{kind}:{count}"
        else:
            self.program.notes.by_hand(
                task.line, task.accelerator, "say it in ResourceSettings: accelerators, extended"
            )

    # What is written

    def _is_map(self, node: ast.With) -> bool:
        """Whether a loop is one `.map` after another."""
        variable = node.items[0].optional_vars
        if not isinstance(variable, ast.Name) or len(node.items) != 1:
            return False
        elements: set[str] = {variable.id}
        for one in node.body:
            value = one.value if isinstance(one, (ast.Assign, ast.Expr)) else None
            if value is None or (self._root(value) not in self.tasks and value not in self.said):
                return False
            root = self._root(value)
            if root not in self.tasks:
                continue
            assert isinstance(root, ast.Call)
            uses = [self._element(word.value, elements) for word in root.keywords]
            if None in uses or True not in uses or len(root.keywords) != len({w.arg for w in root.keywords}):
                return False
            if self.tasks[root].after or not isinstance(root.func, ast.Name):
                return False
            if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name):
                elements.add(one.targets[0].id)
        for one in node.body:
            root = self._root(one.value)  # type: ignore[attr-defined]
            if root in self.tasks:
                self.tasks[root].mapped = True
        return True

    @staticmethod
    def _element(node: ast.expr, elements: set[str]) -> bool | None:
        """Whether an argument is one of an element; None for one that is made of it."""
        used = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} & elements
        if not used:
            return False
        if isinstance(node, ast.Subscript):
            node = node.value
        plain = node.value if isinstance(node, ast.Attribute) and node.attr in ("output", "outputs") else node
        return True if isinstance(plain, ast.Name) else None

    def _emit(self, body: Sequence[ast.stmt]) -> None:
        for node in body:
            kind = last_name(node.items[0].context_expr) if isinstance(node, ast.With) else ""
            if isinstance(node, ast.With) and kind in _BLOCKS:
                self._block(node, kind)
            elif isinstance(node, (ast.If, ast.For, ast.Try, ast.With)):
                for name in ("body", "orelse", "finalbody"):
                    self._emit(getattr(node, name, []))
            else:
                new = self._statement(node)
                if new != self.program.source(node):
                    self.program.replace(node, new.replace("\n", "\n" + " " * node.col_offset))

    def _block(self, node: ast.With, kind: str) -> None:
        call = node.items[0].context_expr
        assert isinstance(call, ast.Call)
        for item in node.items[1:]:
            name = self.program.source(item.context_expr)
            self.program.notes.by_hand(node.lineno, name, "write it as a block of its own, in this one")
        given = keywords_of(call)
        first = call.args[0] if call.args else given.get(_FIRST.get(kind, "condition"))
        text = self._expression(first, node) if first is not None else ""
        variable = node.items[0].optional_vars
        limit = given.get("parallelism") or (call.args[1] if kind == "ParallelFor" and len(call.args) > 1 else None)
        if limit is not None:
            message = "in a dynamic pipeline the elements are run one after another"
            if not self.dynamic:
                message = f"say fanout = {self.program.source(limit)} in the stack's orchestrator"
            self.program.notes.differs(node.lineno, "parallelism", message)
        if kind == "ParallelFor" and not self.dynamic:
            lines = []
            for one in node.body:
                lines.append(self._statement(one, {variable.id: text} if isinstance(variable, ast.Name) else {}))
            indent = "\n" + " " * node.col_offset
            self.program.replace(node, indent.join(line for line in lines if line != "pass") or "pass")
            return
        heads = {"If": f"if {text}:", "Condition": f"if {text}:", "Elif": f"elif {text}:", "Else": "else:"}
        if kind == "ParallelFor":
            name = variable.id if isinstance(variable, ast.Name) else "_"
            heads[kind] = f"for {name} in {text}:"
        end = call if variable is None else variable
        start = self.program.at(node.lineno, node.col_offset)
        data = self.program.text.encode()
        colon = data.index(b":", self.program.at(end.end_lineno or 0, end.end_col_offset or 0)) + 1
        self.program.edits.append((start, colon, heads.get(kind, "try:")))
        self._emit(node.body)
        if kind == "ExitHandler":
            made = self.last.get(first.id) if isinstance(first, ast.Name) else None
            if made is None:
                self.program.notes.by_hand(node.lineno, "ExitHandler", "write the exit task into a `finally:`")
                return
            self.program.edits = [
                e for e in self.program.edits if e[0] != self.program.at(made.lineno, made.col_offset)
            ]
            self.program.remove(made)
            indent = " " * node.col_offset
            body = self._statement(made)
            self.program.insert((node.end_lineno or 0) + 1, f"{indent}finally:\n{indent}    {body}\n")

    def _statement(self, node: ast.stmt, item: Mapping[str, str] | None = None) -> str:
        """A statement in Stoker's words."""
        if isinstance(node, ast.Expr) and node.value in self.said and self._root(node.value) not in self.tasks:
            return "pass"
        words = _Words(self, self.names.get(node, {}), item or {})
        fields = fields_of(self.node.returns, self.program.tuples)
        value = node.value if isinstance(node, ast.Return) and fields else None
        if isinstance(value, (ast.Call, ast.Tuple)):
            listed = value.args if isinstance(value, ast.Call) else value.elts
            named = {**dict(zip(fields, listed)), **keywords_of(value)}
            pairs = (f"{quoted(name)}: {self.text_of(one, words)}" for name, one in named.items())
            return f"return {{{', '.join(pairs)}}}"
        return self.text_of(node, words)

    def _expression(self, node: ast.expr, at: ast.stmt) -> str:
        return self.text_of(node, _Words(self, self.names.get(at, {}), {}))

    def written(self, text: str) -> ast.expr:
        """A name that stands for a text until the statement is written, so that the text keeps its form."""
        self.texts.append(text)
        return ast.Name(f"_text_{len(self.texts) - 1}_", ast.Load())

    def filled(self, text: str) -> str:
        """The text with all texts that names stand for."""
        while (made := re.sub(r"\b_text_(\d+)_", lambda one: self.texts[int(one[1])], text)) != text:
            text = made
        return text

    def text_of(self, node: Any, words: _Words) -> str:
        """An expression in Stoker's words; as it is written where nothing of it changes."""
        new = ast.unparse(words.visit(_copied(node)))
        return self.program.source(node) if new == ast.unparse(node) else self.filled(new)

    def options_of(self, task: KfpTask) -> str:
        """The options of a task's call."""
        options = dict(task.options)
        if task.resources:
            options["resources"] = CallText("ResourceSettings", task.resources)
        if task.pod:
            message = "KubeflowSettings: on a stack whose orchestrator is kubeflow; take them out for another one"
            self.program.notes.differs(task.line, task.part.name, message)
            options["settings"] = {"orchestrator": CallText("KubeflowSettings", task.pod)}
        if task.after and not self.dynamic:
            names = ", ".join(task.after)
            options["after"] = CodeText(names if len(task.after) == 1 else f"[{names}]")
        return ", ".join(f"{name}={code_of(value)}" for name, value in options.items())


_FIRST: Final = {"ParallelFor": "items", "ExitHandler": "exit_task"}


def _copied(node: Any) -> Any:
    """A copy, each part of which knows the one of the program that it is a copy of."""
    copied = copy.deepcopy(node)
    for old, new in zip(ast.walk(node), ast.walk(copied)):
        setattr(new, "origin", old)  # noqa: B010 - a node of ast's has no such attribute
    return copied


def _literal(node: ast.AST) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return None


def _merge(into: Options, more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        if isinstance(value, dict):
            into[name] = {**into.get(name, {}), **value}
        elif isinstance(value, list):
            into[name] = [*into.get(name, []), *value]
        else:
            into[name] = value


class _Words(ast.NodeTransformer):
    """Rewrites what a pipeline says of its tasks."""

    def __init__(self, pipeline: KfpPipeline, names: Mapping[str, KfpTask], item: Mapping[str, str]) -> None:
        self.pipeline, self.names, self.item = pipeline, names, item

    def _origin(self, node: ast.AST) -> ast.AST:
        return getattr(node, "origin", node)

    def _visited(self, node: ast.AST) -> ast.AST:
        made: ast.AST = self.visit(node)
        return made

    def visit_Call(self, node: ast.Call) -> ast.AST:
        origin = self._origin(node)
        if origin in self.pipeline.said and isinstance(node.func, ast.Attribute):
            return self._visited(node.func.value)
        task = self.pipeline.tasks.get(origin)
        if task is None:
            if last_name(node) == "Collected" and node.args and not self.pipeline.dynamic:
                return self._visited(node.args[0])
            self.generic_visit(node)
            return node
        options = self.pipeline.options_of(task)
        words = []
        for one in node.keywords:
            value = self.pipeline.text_of(self._origin(one.value), self)
            used = {each.id for each in ast.walk(self._origin(one.value)) if isinstance(each, ast.Name)}
            mapped = {name for name, each in self.names.items() if each.mapped}
            if task.mapped and used & set(self.item):
                (name,) = used & set(self.item)
                value = f"each({self.item[name]})"
            elif task.mapped and used & mapped and last_name(self._origin(one.value)) != "Collected":
                value = f"each({value})"
            words.append(f"{one.arg}={value}" if one.arg else f"**{value}")
        words = [*(self.pipeline.text_of(self._origin(one), self) for one in node.args), *words]
        call = f"{task.part.name}.with_options({options})" if options else task.part.name
        return self.pipeline.written(f"{call}{'.map' if task.mapped else ''}({', '.join(words)})")

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        task = self.pipeline._task(self._origin(node.value), self.names)
        if node.attr == "output" and task is not None:
            return self._output(node, task, None)
        if node.attr == "outputs" and task is not None:
            if self.pipeline.dynamic and len(task.part.outputs) > 1:
                message = 'return a dict of the outputs that are named: {"x": task[0], …}'
                self.pipeline.program.notes.by_hand(node.lineno, ast.unparse(node), message)
            return self._visited(node.value)
        if isinstance(node.value, ast.Name) and node.value.id in self.pipeline.items:
            message = "the elements have to be dicts: JSON as a text is not read"
            self.pipeline.program.notes.differs(node.lineno, ast.unparse(node), message)
            return self.pipeline.written(f"{node.value.id}[{quoted(node.attr)}]")
        if task is not None and self._origin(node.value) not in self.pipeline.said:
            message = "what a step returned has nothing like it: the value itself is the task's output"
            self.pipeline.program.notes.by_hand(node.lineno, ast.unparse(node), message)
        self.generic_visit(node)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if isinstance(node.value, ast.Attribute) and node.value.attr == "outputs":
            task = self.pipeline._task(self._origin(node.value.value), self.names)
            if task is not None and isinstance(node.slice, ast.Constant):
                return self._output(node.value, task, str(node.slice.value))
        self.generic_visit(node)
        return node

    def _output(self, node: ast.Attribute, task: KfpTask, name: str | None) -> ast.AST:
        value = self.pipeline.filled(ast.unparse(self.visit(node.value)))
        outputs = task.part.outputs
        known = [one for one in outputs if name in (None, one, one.lower())]
        if not known or (name is None and len(outputs) > 1):
            what = "metrics are logged, and are no output" if name in task.part.unmade else "there is no such output"
            self.pipeline.program.notes.by_hand(node.lineno, ast.unparse(node), f"{name or 'output'}: {what}")
        elif len(outputs) > 1:
            plain = self.pipeline.dynamic and task.part.name not in self.pipeline.program.pipelines
            key = str(outputs.index(known[0])) if plain else quoted(known[0])
            value = f"{value}[{key}]"
        return self.pipeline.written(value)


# What is said of a task

_Words_of = Mapping[Any, ast.expr]
_Method = Callable[[KfpPipeline, KfpTask, ast.Call, _Words_of], None]


def _resource(field: str) -> _Method:
    def said(pipeline: KfpPipeline, task: KfpTask, call: ast.Call, words: _Words_of) -> None:
        value = pipeline._value(call, next(iter(words.values()), None))
        if value is None:
            return
        if task.resources.get(field, value) != value:
            pipeline.program.notes.differs(call.lineno, field, "request and limit are the same here: the last one is")
        task.resources[field] = value

    return said


def _option(field: str) -> _Method:
    def said(pipeline: KfpPipeline, task: KfpTask, call: ast.Call, words: _Words_of) -> None:
        value = pipeline._value(call, next(iter(words.values()), None))
        if value is not None:
            task.options[field] = identifier(value, "step") if field == "id" and isinstance(value, str) else value

    return said


def _accelerator(pipeline: KfpPipeline, task: KfpTask, call: ast.Call, words: _Words_of) -> None:
    value = pipeline._value(call, next(iter(words.values()), None))
    if isinstance(value, str):
        task.accelerator = value
    elif value is not None:
        pipeline._unknown(task, call, words)


def _count(pipeline: KfpPipeline, task: KfpTask, call: ast.Call, words: _Words_of) -> None:
    value = pipeline._value(call, next(iter(words.values()), None))
    task.count = value if value is not None else task.count


def _retry(pipeline: KfpPipeline, task: KfpTask, call: ast.Call, words: _Words_of) -> None:
    names = ("num_retries", "backoff_duration", "backoff_factor", "backoff_max_duration")
    given = {names[key] if isinstance(key, int) else key: pipeline._value(call, one) for key, one in words.items()}
    times = given.pop("num_retries", 1)
    fields = {"backoff_duration": "delay", "backoff_factor": "backoff", "backoff_max_duration": "max_delay"}
    more = {fields[name]: value for name, value in given.items() if name in fields and value is not None}
    if times is not None:
        task.options["retry"] = CallText("Retry", more, [times]) if more else times


def _environment(pipeline: KfpPipeline, task: KfpTask, call: ast.Call, words: _Words_of) -> None:
    name, value = words.get("name", words.get(0)), words.get("value", words.get(1))
    key = _literal(name) if name is not None else None
    text = _literal(value) if value is not None else None
    made = text if isinstance(text, str) else pipeline._value(call, value)
    if isinstance(key, str) and made is not None:
        task.options["environment"] = {**task.options.get("environment", {}), key: made}


def _after(pipeline: KfpPipeline, task: KfpTask, call: ast.Call, words: _Words_of) -> None:
    for one in words.values():
        made = pipeline.last.get(one.id) if isinstance(one, ast.Name) else None
        if made is None or made.lineno > task.line:
            message = "call that task in front of this one, and assign it"
            pipeline.program.notes.by_hand(call.lineno, pipeline.program.source(call).replace("\n", " "), message)
        else:
            task.after.append(ast.unparse(one))


def _image(pipeline: KfpPipeline, task: KfpTask, call: ast.Call, words: _Words_of) -> None:
    value = pipeline._value(call, next(iter(words.values()), None))
    if value is not None:
        task.pod["image"] = value


_METHODS: Final[Mapping[str, _Method]] = {
    **dict.fromkeys(("set_cpu_limit", "set_cpu_request"), _resource("cpu_count")),
    **dict.fromkeys(("set_memory_limit", "set_memory_request"), _resource("memory")),
    **dict.fromkeys(("set_accelerator_limit", "set_gpu_limit"), _count),
    **dict.fromkeys(("set_accelerator_type", "add_node_selector_constraint"), _accelerator),
    "set_retry": _retry,
    "set_caching_options": _option("cache"),
    "set_display_name": _option("id"),
    "set_env_variable": _environment,
    "set_container_image": _image,
    "after": _after,
}
"""Method of a task → what it says."""


def _mount(kind: str, name: Any, source: Mapping[str, Any], path: Any) -> Options:
    volume, mount = {"name": name, kind: dict(source)}, {"name": name, "mountPath": path}
    return {"volumes": [volume], "volume_mounts": [mount]}


def _env(source: str, values: Mapping[Any, Any], *names: str) -> Options | None:
    name, keys = _pick(values, 0, names[0]), _pick(values, 1, names[1])
    if not isinstance(keys, dict) or len(values) != 2:
        return None
    return {"env": {to: {"valueFrom": {source: {"name": name, "key": key}}} for key, to in keys.items()}}


def _pick(values: Mapping[Any, Any], number: int, name: str) -> Any:
    return values.get(name, values.get(number))


def _claim(values: Mapping[Any, Any]) -> Options | None:
    name, path = _pick(values, 0, "pvc_name"), _pick(values, 1, "mount_path")
    return {"persistent_volume_claims": {name: path}} if name and path and len(values) == 2 else None


def _toleration(values: Mapping[Any, Any]) -> Options | None:
    names = {"key": "key", "operator": "operator", "value": "value", "effect": "effect"}
    names["toleration_seconds"] = "tolerationSeconds"
    if not set(values) <= set(names):
        return None
    return {"tolerations": [{names[key]: value for key, value in values.items()}]}


def _pair(field: str, key: str, value: str) -> Callable[[Mapping[Any, Any]], Options | None]:
    return lambda values: {field: {_pick(values, 0, key): _pick(values, 1, value)}} if len(values) == 2 else None


def _volume(kind: str, key: str, name: str) -> Callable[[Mapping[Any, Any]], Options | None]:
    def made(values: Mapping[Any, Any]) -> Options | None:
        source, path = _pick(values, 0, name), _pick(values, 1, "mount_path")
        return _mount(kind, source, {key: source}, path) if len(values) == 2 else None

    return made


_KUBERNETES: Final[Mapping[str, Callable[[Mapping[Any, Any]], Options | None]]] = {
    "use_secret_as_env": lambda v: _env("secretKeyRef", v, "secret_name", "secret_key_to_env"),
    "use_config_map_as_env": lambda v: _env("configMapKeyRef", v, "config_map_name", "config_map_key_to_env"),
    "use_field_path_as_env": lambda v: {
        "env": {_pick(v, 0, "env_name"): {"valueFrom": {"fieldRef": {"fieldPath": _pick(v, 1, "field_path")}}}}
    },
    "use_secret_as_volume": _volume("secret", "secretName", "secret_name"),
    "use_config_map_as_volume": _volume("configMap", "name", "config_map_name"),
    "mount_pvc": _claim,
    "add_node_selector": _pair("node_selector", "label_key", "label_value"),
    "add_pod_label": _pair("labels", "label_key", "label_value"),
    "add_pod_annotation": _pair("annotations", "annotation_key", "annotation_value"),
    "add_toleration": _toleration,
    "set_image_pull_policy": lambda v: {"image_pull_policy": _pick(v, 0, "policy")},
    "set_image_pull_secrets": lambda v: {"image_pull_secrets": _pick(v, 0, "secret_names")},
    "set_timeout": lambda v: {"timeout": _pick(v, 0, "seconds")},
}
"""Helper of kfp.kubernetes → the fields of a pod that it sets; None for a use of it that is not carried."""
