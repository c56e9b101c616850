"""A component of Kubeflow Pipelines as a step: what it is given, and what it returns.

Its body stays; what it wrote to the path of an output is returned as a `Path`, and metrics are logged.
"""

from __future__ import annotations

import ast
import copy
from typing import Any, Final, Mapping, Sequence

import attrs

from stoker.migrate.scripts import CallText, CodeText, Notes, Options, code_of

GUIDE: Final = "docs/guide/kubeflow.md, Coming from KFP"
_ROLES: Final = ("Input", "Output", "InputPath", "OutputPath")
_METRICS: Final = ("Metrics", "ClassificationMetrics", "SlicedClassificationMetrics")
_ARTIFACTS: Final = ("Artifact", "Dataset", "Model", "HTML", "Markdown", *_METRICS)
_READERS: Final[Mapping[str, str]] = {
    "str": "Path({}).read_text()",
    "int": "int(Path({}).read_text())",
    "float": "float(Path({}).read_text())",
    "bool": 'Path({}).read_text().strip().lower() == "true"',
}
"""Type of a parameter that a component writes to a file → how it is read back."""
INSTEAD: Final[Mapping[str, str]] = {
    "importer": "write a step that fetches it and returns a Path",
    "OneOf": "assign the tasks of all branches to one variable, and use that",
    "Collected": "append the outputs to a list in the loop, and use that",
    "PipelineTaskFinalStatus": "except RunFailed in the pipeline has the error: give it to the step as a text",
    "IfPresentPlaceholder": "write `[…] if x is not None else []`",
    "PIPELINE_JOB_ID_PLACEHOLDER": "context.run_id in a step",
    "PIPELINE_JOB_NAME_PLACEHOLDER": "context.run_id in a step",
    "PIPELINE_TASK_NAME_PLACEHOLDER": "context.step_name in a step",
    "CreatePVC": "a claim that is there, in persistent_volume_claims; results go from step to step without one",
    "DeletePVC": "take it out, with the claim",
    "load_component_from_file": "write a step that does what the component does",
    "load_component_from_url": "write a step that does what the component does",
    "load_component_from_text": "write a step that does what the component does",
    "ignore_upstream_failure": "make the pipeline dynamic, and catch RunFailed where the task before is called",
}
"""Name of KFP's that is not carried → what to do instead."""


@attrs.frozen
class KfpPart:
    """What a function of the program is."""

    name: str
    outputs: Sequence[str]
    """The names of its outputs, in order."""
    unmade: Sequence[str] = ()
    """Outputs of KFP's that are none here: metrics."""


@attrs.define
class KfpProgram:
    """A program that is rewritten."""

    text: str
    notes: Notes = attrs.field(factory=Notes)
    edits: list[tuple[int, int, str]] = attrs.field(factory=list)
    parts: dict[str, KfpPart] = attrs.field(factory=dict)
    starts: list[int] = attrs.field(factory=list)
    dynamic: set[str] = attrs.field(factory=set)
    """Pipelines that are dynamic here."""
    pipelines: set[str] = attrs.field(factory=set)
    tuples: dict[str, ast.ClassDef] = attrs.field(factory=dict)

    def source(self, node: ast.AST) -> str:
        return ast.get_source_segment(self.text, node) or ast.unparse(node)

    def at(self, line: int, column: int = 0) -> int:
        if line > len(self.starts):
            return len(self.text.encode())
        return self.starts[line - 1] + column

    def replace(self, node: Any, new: str) -> None:
        """Put a text in the place of an expression or a statement."""
        start, end = self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)
        self.edits.append((start, end, new))

    def remove(self, node: ast.stmt) -> None:
        """Take a statement out; `pass` stands for it until its block is known to have others."""
        self.replace(node, "pass")

    def insert(self, line: int, new: str) -> None:
        """Put lines in front of a line."""
        self.edits.append((self.at(line), self.at(line), new))


def last_name(node: ast.AST | None) -> str:
    """The last name of what a decorator, an annotation or a call names."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def kind_of(node: ast.FunctionDef) -> str:
    """ "component", "container_component", "pipeline", or nothing."""
    kinds = ("component", "container_component", "pipeline", "notebook_component")
    return next((name for one in node.decorator_list if (name := last_name(one)) in kinds), "")


def decorator_of(node: ast.FunctionDef) -> ast.expr:
    return next(one for one in node.decorator_list if last_name(one) == kind_of(node))


def keywords_of(call: ast.AST) -> dict[str, ast.expr]:
    return {one.arg: one.value for one in call.keywords if one.arg} if isinstance(call, ast.Call) else {}


def fields_of(annotation: ast.expr | None, tuples: Mapping[str, ast.ClassDef]) -> dict[str, str]:
    """The fields of a NamedTuple that an annotation names, with their annotations."""
    if isinstance(annotation, ast.Call) and last_name(annotation) == "NamedTuple":
        fields = annotation.args[1] if len(annotation.args) > 1 else keywords_of(annotation).get("fields")
        if isinstance(fields, (ast.List, ast.Tuple)):
            pairs = [one.elts for one in fields.elts if isinstance(one, ast.Tuple) and len(one.elts) == 2]
            return {str(key.value): _plain(kind) for key, kind in pairs if isinstance(key, ast.Constant)}
        return {key: _plain(kind) for key, kind in keywords_of(annotation).items() if key != "typename"}
    if isinstance(annotation, ast.Name) and annotation.id in tuples:
        body = tuples[annotation.id].body
        return {
            one.target.id: _plain(one.annotation)
            for one in body
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        }
    return {}


def _plain(annotation: ast.expr) -> str:
    """A parameter's annotation here."""
    return "Path" if last_name(annotation) in _ARTIFACTS else ast.unparse(annotation)


def role_of(annotation: ast.expr | None) -> tuple[str, ast.expr | None]:
    """(Input, Output, InputPath, OutputPath or nothing, of what)."""
    if isinstance(annotation, ast.Subscript) and last_name(annotation) in ("Optional", *_ROLES):
        if last_name(annotation) == "Optional":
            return role_of(annotation.slice)
        return last_name(annotation), annotation.slice
    if last_name(annotation) in ("InputPath", "OutputPath"):
        args = annotation.args if isinstance(annotation, ast.Call) else []
        return last_name(annotation), args[0] if args else None
    return "", annotation


def rewrite_component(program: KfpProgram, node: ast.FunctionDef, tuples: Mapping[str, ast.ClassDef]) -> None:
    """A component's function as a step."""
    notes, container = program.notes, kind_of(node) == "container_component"
    program.replace(decorator_of(node), _step_options(program, node, container))
    arguments = [*node.args.args, *node.args.kwonlyargs]
    roles = {one.arg: role_of(one.annotation) for one in arguments}
    made: dict[str, tuple[str, str]] = {}  # output → (its annotation, its value)
    head: list[str] = []
    unmade = []
    for name, (role, of) in roles.items():
        if role == "Output" and last_name(of) in _METRICS:
            unmade.append(name)
        elif role == "Output":
            head.append(f'{name} = Path(tempfile.mkdtemp()) / "{name}"')
            made[name] = ("Path", name)
        elif role == "OutputPath":
            head.append(f'{name} = str(Path(tempfile.mkdtemp()) / "{name}")')
            kind = last_name(of)
            reader = _READERS.get(kind, "Path({})")
            if kind in ("dict", "list", "Dict", "List"):
                reader = "json.loads(Path({}).read_text())"
            read = kind in _READERS or reader.startswith("json")
            made[name] = (ast.unparse(of) if read and of is not None else "Path", reader.format(name))
        elif role == "InputPath":
            head.append(f"{name} = str({name})")
    named = fields_of(node.returns, tuples)
    single = node.returns is not None and not named and not container
    single = single and not (isinstance(node.returns, ast.Constant) and node.returns.value is None)
    if single and last_name(node.returns) in _ARTIFACTS:
        message = "returns an artifact of KFP's: return its Path"
        notes.by_hand(node.lineno, node.name, message)
    outputs = {**({"Output": _plain(node.returns)} if single and node.returns else named)}
    program.parts[node.name] = KfpPart(node.name, [*outputs, *made], unmade)
    _signature(program, node, roles, {**outputs, **{name: kind for name, (kind, _) in made.items()}})
    _body(program, node, roles, [value for _, value in made.values()], returned=len(outputs), head=head)


def _step_options(program: KfpProgram, node: ast.FunctionDef, container: bool) -> str:
    """`step(…)` in place of the decorator."""
    options: Options = {}
    given = keywords_of(decorator_of(node))
    packages, image = given.pop("packages_to_install", None), given.pop("base_image", None)
    if container:
        calls = [one for one in ast.walk(node) if isinstance(one, ast.Call) and last_name(one) == "ContainerSpec"]
        image = keywords_of(calls[0]).get("image") if calls else None
        program.notes.differs(node.lineno, node.name, "the image needs Python, too: a step calls the program")
    docker: Options = {}
    if packages is not None and not (isinstance(packages, ast.List) and not packages.elts):
        docker["requirements"] = CodeText(program.source(packages))
    if image is not None:
        docker["parent_image"] = CodeText(program.source(image))
    if docker:
        message = "the stack has to run steps in images: not on this machine's Python"
        program.notes.differs(node.lineno, node.name, message)
        options["settings"] = {"docker": CallText("DockerSettings", docker)}
    for name, value in given.items():
        if name in ("pip_index_urls", "pip_trusted_hosts"):
            program.notes.by_hand(value.lineno, name, "in DockerSettings: python_package_installer_args")
        elif name in ("install_kfp_package", "kfp_package_path", "output_component_file", "pip_trusted_hosts"):
            program.notes.not_needed(value.lineno, name, "a step needs nothing of KFP's")
        elif name in ("use_venv", "task_config_passthroughs"):
            program.notes.not_needed(value.lineno, name, "the step's image has what it needs")
        else:
            program.notes.by_hand(value.lineno, name, f"is not carried: {GUIDE}")
    if kind_of(node) == "notebook_component":
        program.notes.by_hand(node.lineno, node.name, "write what the notebook does into the step")
    words = ", ".join(f"{name}={code_of(value)}" for name, value in options.items())
    return f"step({words})" if words else "step"


def _signature(
    program: KfpProgram,
    node: ast.FunctionDef,
    roles: Mapping[str, tuple[str, ast.expr | None]],
    outputs: Mapping[str, str],
) -> None:
    """Arguments without outputs, and all outputs as the annotation of what is returned."""
    arguments = copy.deepcopy(node.args)
    positional = arguments.args
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    pairs = [(one, value) for one, value in zip(positional, defaults) if not roles[one.arg][0].startswith("Output")]
    words = []
    required = [one for one in pairs if one[1] is None]
    for one, value in [*required, *(pair for pair in pairs if pair[1] is not None)]:
        words.append(_argument(one, value, roles))
    rest = [
        _argument(one, value, roles)
        for one, value in zip(arguments.kwonlyargs, arguments.kw_defaults)
        if not roles[one.arg][0].startswith("Output")
    ]
    words += ["*", *rest] if rest else []
    if len(outputs) == 1:
        (name, kind), *_ = outputs.items()
        returns = kind if name == "Output" else f'Annotated[{kind}, "{name}"]'
    elif outputs:
        returns = f"tuple[{', '.join(f'Annotated[{kind}, {quoted(name)}]' for name, kind in outputs.items())}]"
    else:
        returns = "None"
    text = f"def {node.name}({', '.join(words)}) -> {returns}:"
    if len(text) > 120:
        lines = "".join(f"    {word},\n" for word in words)
        text = f"def {node.name}(\n{lines}) -> {returns}:"
    program.edits.append((program.at(node.lineno, node.col_offset), _colon(program, node), text))


def quoted(text: str) -> str:
    return f'"{text}"'


def _argument(one: ast.arg, default: ast.expr | None, roles: Mapping[str, tuple[str, ast.expr | None]]) -> str:
    role, of = roles[one.arg]
    kind = ast.unparse(one.annotation) if one.annotation is not None else ""
    if role in ("Input", "InputPath"):
        several = isinstance(of, ast.Subscript) and last_name(of) in ("List", "list")
        kind = "list[Path]" if several else "Path"
        optional = default is not None and isinstance(default, ast.Constant) and default.value is None
        kind += " | None" if optional else ""
    word = f"{one.arg}: {kind}" if kind else one.arg
    if default is None:
        return word
    return f"{word} = {ast.unparse(default)}" if kind else f"{word}={ast.unparse(default)}"


def _colon(program: KfpProgram, node: ast.FunctionDef) -> int:
    """Where a function's head ends, behind its colon."""
    last = [node.returns] if node.returns is not None else [*node.args.args, *node.args.kwonlyargs]
    ends = [program.at(one.end_lineno or 0, one.end_col_offset or 0) for one in (*last, *node.args.defaults) if one]
    start = max(ends, default=program.at(node.lineno, node.col_offset + len(f"def {node.name}")))
    data = program.text.encode()
    while data[start : start + 1] != b":":
        start = data.index(b"\n", start) + 1 if data[start : start + 1] == b"#" else start + 1
    return start + 1


def _own(node: ast.AST) -> list[ast.AST]:
    """What is in a function, without what is in functions inside it."""
    found: list[ast.AST] = []
    for child in ast.iter_child_nodes(node):
        found.append(child)
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            found += _own(child)
    return found


def _body(
    program: KfpProgram,
    node: ast.FunctionDef,
    roles: Mapping[str, tuple[str, ast.expr | None]],
    made: Sequence[str],
    *,
    returned: int,
    head: Sequence[str],
) -> None:
    """The body: paths of artifacts, metrics, and what is returned."""
    first = node.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and len(node.body) > 1
    start = node.body[1] if documented else first
    indent = " " * start.col_offset
    if head and start.lineno == node.lineno:
        program.notes.by_hand(node.lineno, node.name, "write its body below its head")
    elif head:
        program.insert(start.lineno, "".join(f"{indent}{line}\n" for line in head))
    artifacts = {name for name, (role, _) in roles.items() if role in ("Input", "Output")}
    metrics = {name for name, (role, of) in roles.items() if role == "Output" and last_name(of) in _METRICS}
    done: set[ast.AST] = set()
    for one in _own(node):
        if one in done:
            continue
        if isinstance(one, ast.Assign) and _of_artifact(_base(one.targets[0]), artifacts) == "metadata":
            target = one.targets[0]
            assert isinstance(target, ast.Subscript)
            program.replace(one, f"log_metadata({{{program.source(target.slice)}: {program.source(one.value)}}})")
            program.notes.differs(one.lineno, "metadata", "is of the step, no longer of the artifact")
            done |= set(ast.walk(one))
        elif (
            isinstance(one, ast.Return) and last_name(one.value) == "ContainerSpec" and isinstance(one.value, ast.Call)
        ):
            ends = f"\n{' ' * one.col_offset}return {', '.join(made)}" if made else ""
            program.replace(one, f"{_shell(program, one.value, artifacts)}{ends}")
            done |= set(ast.walk(one))
        elif isinstance(one, ast.Return) and made:
            _returned(program, one, made, returned)
        elif isinstance(one, ast.Call) and _of_artifact(one.func, metrics) == "log_metric":
            words = [*one.args, *(each.value for each in one.keywords)]
            pair = ": ".join(map(program.source, words))
            program.replace(one, f"log_metrics({{{pair}}})")
            done |= set(ast.walk(one))
        elif isinstance(one, ast.Attribute) and _of_artifact(one, artifacts):
            _attribute(program, one, _of_artifact(one, metrics))
    if made and not isinstance(node.body[-1], ast.Return):
        end = node.body[-1].end_lineno or 0
        if returned:
            program.notes.by_hand(end, node.name, "its last line returns nothing")
        program.insert(end + 1, f"{indent}return {', '.join(made)}\n")


def _base(node: ast.expr) -> ast.expr:
    return node.value if isinstance(node, ast.Subscript) else node


def _attribute(program: KfpProgram, node: ast.Attribute, of_metrics: str) -> None:
    """What a body reads of an artifact."""
    name = ast.unparse(node.value)
    if of_metrics:
        message = "log_metrics({…}) or log_metadata({…}) take numbers and facts; a plot is a returned value"
        program.notes.by_hand(node.lineno, f"{name}.{node.attr}", message)
    elif isinstance(node.ctx, ast.Store):
        program.notes.by_hand(node.lineno, f"{name}.{node.attr}", f"write {name} = Path(…)")
    elif node.attr in ("path", "uri"):
        program.replace(node, f"str({name})")
        if node.attr == "uri":
            program.notes.differs(node.lineno, f"{name}.uri", "is a path here")
    elif node.attr == "metadata":
        message = "return what the next step needs as an output of its own"
        program.notes.by_hand(node.lineno, f"{name}.metadata", message)
    elif node.attr != "name":
        program.notes.by_hand(node.lineno, f"{name}.{node.attr}", f"a Path has nothing like it: {GUIDE}")


def _shell(program: KfpProgram, call: ast.Call, artifacts: set[str]) -> str:
    """The call of a container's command: paths of artifacts are those of their files, and texts are joined here."""
    given = keywords_of(call)
    for name in sorted(set(given) - {"image", "command", "args"}):
        program.notes.by_hand(given[name].lineno, name, f"is not carried: {GUIDE}")

    class Words(ast.NodeTransformer):
        def visit_Attribute(self, one: ast.Attribute) -> ast.AST:
            if _of_artifact(one, artifacts) in ("path", "uri"):
                return ast.Call(ast.Name("str", ast.Load()), [one.value], [])
            self.generic_visit(one)
            return one

        def visit_Call(self, one: ast.Call) -> ast.AST:
            self.generic_visit(one)
            if last_name(one) == "ConcatPlaceholder" and one.args:
                return ast.parse(f"''.join(map(str, {ast.unparse(one.args[0])}))", mode="eval").body
            return one

    parts = [Words().visit(copy.deepcopy(given[name])) for name in ("command", "args") if name in given]
    listed = all(isinstance(one, ast.List) for one in parts)
    words = (
        [ast.unparse(each) for one in parts for each in one.elts] if listed else [f"*{ast.unparse(o)}" for o in parts]
    )
    return f"subprocess.run([str(word) for word in [{', '.join(words)}]], check=True)"


def _of_artifact(node: ast.AST, artifacts: set[str]) -> str:
    """The attribute of an artifact that an expression is."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in artifacts:
        return node.attr
    return ""


def _returned(program: KfpProgram, node: ast.Return, made: Sequence[str], returned: int) -> None:
    if node.value is None:
        program.replace(node, f"return {', '.join(made)}")
        return
    value = node.value
    start = program.at(value.lineno, value.col_offset)
    end = program.at(value.end_lineno or 0, value.end_col_offset or 0)
    if returned > 1:
        program.edits += [(start, start, "*"), (end, end, f", {', '.join(made)}")]
    else:
        program.edits.append((end, end, f", {', '.join(made)}"))
