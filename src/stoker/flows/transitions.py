"""The static graph of a flow, read from its step methods' source, and everything that can be wrong with it.

A step says where it goes by its last statement, `self.next(…)`. Read, not run: what it says is known before anything
starts. Every problem has the line where it stands.
"""

from __future__ import annotations

import ast
import inspect
from typing import Any, Callable, Final, Mapping

import attrs

from stoker.core.errors import GraphError, nearest
from stoker.core.graph import STEP_MARK, FlowGraph, FlowStep, StepKind
from stoker.core.usercode import source_line

_FORMS: Final = ("foreach", "num_parallel", "condition")
_NEXT: Final = "self.next(self.another_step)"


def is_step(function: Any) -> bool:
    """Whether `@step` was put on a function."""
    return hasattr(function, STEP_MARK)


def steps_of(kind: type) -> dict[str, Callable[..., Any]]:
    """The step methods of a class, those that it inherits first, in the order in which they are written."""
    steps: dict[str, Callable[..., Any]] = {}
    for base in reversed(kind.__mro__):
        for name, value in vars(base).items():
            if is_step(value):
                steps[name] = value
            else:
                steps.pop(name, None)
    return steps


def step_of(kind: type, name: str) -> FlowStep:
    """One step of a class, as its source says."""
    return _read(name, steps_of(kind)[name], kind)


def call_next(flow: Any, step: FlowStep, way: Any) -> None:
    """Call `self.next(…)` in the stead of a step that did not run: as its source says, or with other words for it."""
    words = dict(way) if isinstance(way, dict) else {}
    if not words and step.kind == "foreach":
        words = {"foreach": step.name_of}
    if not words and step.kind == "parallel":
        raise GraphError(
            f"step '{step.name}' is skipped, and only it knows on how many nodes the next one runs",
            where=step.next_at,
            fix='yield {"num_parallel": 4}',
        )
    if step.kind == "switch":
        cases = {case: getattr(flow, target) for case, target in step.cases.items()}
        flow.next(cases, condition=words.get("condition", step.name_of))
        return
    flow.next(*(getattr(flow, target) for target in step.targets), **words)


def definition_line(name: str, function: Callable[..., Any], kind: type) -> int:
    """The line of a step's `def`."""
    method = _method(name, inspect.unwrap(function), kind)
    return method.line + method.tree.lineno - 1


def graph_of(kind: type) -> FlowGraph:
    """The graph of a flow's class; `GraphError` where a method cannot be read. Not yet checked."""
    functions = steps_of(kind)
    steps = {name: _read(name, function, kind) for name, function in functions.items()}
    options_by_step = {name: getattr(function, STEP_MARK) for name, function in functions.items()}
    where = place_of_class(kind)
    only = next(iter(steps)) if len(steps) == 1 else ""
    return FlowGraph(
        name=kind.__name__,
        steps=steps,
        start=only or _step_with_role(options_by_step, "start", where),
        end=only or _step_with_role(options_by_step, "end", where),
        where=where,
        doc=inspect.getdoc(kind) or "" if kind.__doc__ else "",
    )


def _step_with_role(options_by_step: Mapping[str, Mapping[str, Any]], role: str, where: str) -> str:
    """The first or last step: the one that is called so, or that `@step(start=True)` names."""
    names = [name for name, options in options_by_step.items() if options.get(role)]
    if len(names) > 1:
        raise GraphError(f"several steps say {role}=True: {', '.join(names)}", where=where, fix="leave it at one")
    return names[0] if names else role


def place_of_class(kind: type) -> str:
    try:
        return source_line(inspect.getfile(kind), inspect.getsourcelines(kind)[1])
    except (OSError, TypeError):
        return kind.__name__


# Reading one method


@attrs.frozen
class _Method:
    """A step method's syntax tree and its place."""

    name: str
    file: str
    line: int
    tree: ast.FunctionDef

    def at(self, node: ast.AST) -> str:
        """Where a part of it stands."""
        return source_line(self.file, self.line + getattr(node, "lineno", 1) - 1)


def _read(name: str, function: Callable[..., Any], kind: type) -> FlowStep:
    method = _method(name, inspect.unwrap(function), kind)
    arguments = [argument.arg for argument in (*method.tree.args.posonlyargs, *method.tree.args.args)]
    where = source_line(method.file, inspect.unwrap(function).__code__.co_firstlineno)
    if len(arguments) not in (1, 2):
        raise GraphError(
            f"step '{name}' takes {len(arguments)} arguments",
            where=where,
            fix=f"write `def {name}(self):`, or `def {name}(self, inputs):` for a join",
        )
    step = FlowStep(
        name=name, kind="end", join=len(arguments) == 2, where=where, doc=ast.get_docstring(method.tree) or ""
    )
    calls = [node for node in ast.walk(method.tree) if _is_next(node, arguments[0])]
    last = method.tree.body[-1]
    if not calls:
        return step
    final = last.value if isinstance(last, (ast.Expr, ast.Return)) else None
    for call in calls:
        if call is not final:
            raise GraphError(
                f"step '{name}': self.next(…) is not its last statement",
                where=method.at(call),
                fix="end the step with one self.next(…); to choose by a value: "
                "self.next({'a': self.a, 'b': self.b}, condition='attribute')",
            )
    assert isinstance(final, ast.Call)
    return _with_transition(step, final, method, arguments[0])


def _method(name: str, function: Any, kind: type) -> _Method:
    try:
        lines, first = inspect.getsourcelines(function)
        if lines[0][:1].isspace():  # below what it is indented for, because a text in it may begin further left
            lines, first = ["if True:\n", *lines], first - 1
        tree = ast.parse("".join(lines)).body[0]
        tree = tree.body[0] if isinstance(tree, ast.If) else tree
    except (OSError, TypeError, SyntaxError, IndexError) as error:
        raise GraphError(
            f"the source of step '{name}' of {kind.__name__} cannot be read: {error}", fix="define the flow in a file"
        ) from None
    if not isinstance(tree, ast.FunctionDef):
        raise GraphError(f"step '{name}' of {kind.__name__} is not a plain method", fix="write it with `def`")
    return _Method(name, function.__code__.co_filename, first, tree)


def _is_next(node: ast.AST, myself: str) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "next"
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == myself
    )


def _with_transition(step: FlowStep, call: ast.Call, method: _Method, myself: str) -> FlowStep:
    where = method.at(call)
    forms = {keyword.arg: keyword.value for keyword in call.keywords}
    unknown = [name for name in forms if name not in _FORMS]
    if unknown:
        raise GraphError(
            f"step '{step.name}': self.next(…) takes no {unknown[0] or '**'}{nearest(unknown[0] or '', _FORMS)}",
            where=where,
        )
    if len(forms) > 1:
        raise GraphError(
            f"step '{step.name}': self.next(…) has {' and '.join(map(str, forms))}", where=where, fix="give one of them"
        )
    step = attrs.evolve(step, next_at=where)
    if "condition" in forms or any(isinstance(argument, ast.Dict) for argument in call.args):
        return _switch(step, call, forms.get("condition"), myself)
    targets = tuple(_target(argument, myself, step, where) for argument in call.args)
    if not targets:
        raise GraphError(f"step '{step.name}': self.next() names no step", where=where, fix=f"write {_NEXT}")
    if len(set(targets)) < len(targets):
        raise GraphError(f"step '{step.name}': self.next(…) names a step twice", where=where, fix="use foreach=")
    kind: StepKind = "linear" if len(targets) == 1 else "split"
    name_of = ""
    if forms:
        form = next(iter(forms))
        if len(targets) > 1:
            raise GraphError(f"step '{step.name}': {form} takes one step", where=where, fix=f"write {_NEXT}, {form}=…")
        kind = "foreach" if form == "foreach" else "parallel"
        if kind == "foreach":
            name_of = _attribute_name(forms["foreach"], "foreach", step, where)
    return attrs.evolve(step, kind=kind, targets=targets, name_of=name_of)


def _switch(step: FlowStep, call: ast.Call, condition: ast.expr | None, myself: str) -> FlowStep:
    where = step.next_at
    fix = "write self.next({'a': self.a, 'b': self.b}, condition='attribute')"
    if condition is None or len(call.args) != 1 or not isinstance(call.args[0], ast.Dict):
        raise GraphError(f"step '{step.name}': a switch is one dict of steps and a condition", where=where, fix=fix)
    cases: dict[str, str] = {}
    for key, value in zip(call.args[0].keys, call.args[0].values):
        if key is None:
            raise GraphError(f"step '{step.name}': a switch's cases are written out", where=where, fix=fix)
        text = str(key.value) if isinstance(key, ast.Constant) else ast.unparse(key)
        if text in cases:
            raise GraphError(f"step '{step.name}': the case {text!r} is there twice", where=where)
        cases[text] = _target(value, myself, step, where)
    if not cases:
        raise GraphError(f"step '{step.name}': the switch has no cases", where=where, fix=fix)
    name_of = _attribute_name(condition, "condition", step, where)
    targets = tuple(dict.fromkeys(cases.values()))
    return attrs.evolve(step, kind="switch", targets=targets, cases=cases, name_of=name_of)


def _target(argument: ast.expr, myself: str, step: FlowStep, where: str) -> str:
    if isinstance(argument, ast.Attribute) and isinstance(argument.value, ast.Name) and argument.value.id == myself:
        return argument.attr
    text, fix = ast.unparse(argument), _NEXT
    if isinstance(argument, (ast.Constant, ast.Call)):  # "a", or self.a()
        fix = f"self.next({myself}.{text.removeprefix(myself + '.').removesuffix('()').strip(chr(39))})"
    raise GraphError(f"step '{step.name}': self.next(…) is given {text}", where=where, fix=f"write {fix}")


def _attribute_name(value: ast.expr, form: str, step: FlowStep, where: str) -> str:
    if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value.isidentifier():
        return value.value
    raise GraphError(
        f"step '{step.name}': {form}={ast.unparse(value)} is not the name of an attribute",
        where=where,
        fix=f"write {form}='items', and set self.items before",
    )


# What can be wrong


@attrs.frozen
class _Frame:
    """A split that a step is inside of; `branch` is the first step of a static branch, empty for a foreach."""

    split: str
    branch: str = ""

    def __str__(self) -> str:
        return f"branch '{self.branch}' of '{self.split}'" if self.branch else f"the splits of '{self.split}'"


Frames = tuple[_Frame, ...]


def check(graph: FlowGraph) -> None:
    """Raise a `GraphError` for the first thing that cannot run."""
    _check_ends(graph)
    for step in graph.steps.values():
        for target in step.targets:
            if target not in graph.steps:
                near = nearest(target, graph.steps)
                fix = "" if "did you mean" in near else f"put @step on `def {target}(self):`, or name another step"
                problem = f"step '{step.name}' goes to '{target}', which is no step{near}"
                raise GraphError(problem, where=step.next_at, fix=fix)
        if step.kind == "end" and step.name != graph.end:
            raise GraphError(
                f"step '{step.name}' does not say where it goes", where=step.where, fix=f"end it with {_NEXT}"
            )
    frames = _frames(graph, {})
    lost = [step for step in graph.steps.values() if step.name not in frames]
    if lost:
        raise GraphError(
            f"step '{lost[0].name}' is never reached",
            where=lost[0].where,
            fix=f"let another step end with self.next(self.{lost[0].name}), or remove it",
        )
    _check_circles(graph)
    for step in graph.steps.values():
        follower = graph.steps[step.targets[0]] if step.kind == "parallel" else None
        if follower is not None and not (follower.kind == "linear" and graph.steps[follower.targets[0]].join):
            raise GraphError(
                f"step '{follower.name}' runs on the nodes of a num_parallel, and does not go straight to a join",
                where=follower.next_at or follower.where,
                fix="end it with self.next(self.a_step_that_takes_inputs)",
            )


def _check_ends(graph: FlowGraph) -> None:
    for role, name in (("first", graph.start), ("last", graph.end)):
        if name not in graph.steps:
            raise GraphError(
                f"flow {graph.name} has no step '{name}', which is its {role}",
                where=graph.where,
                fix=f"write a method `{name}` with @step",
            )
    start, end = graph.steps[graph.start], graph.steps[graph.end]
    if start.join:
        raise GraphError(f"step '{start.name}' takes inputs, but nothing comes before it", where=start.where)
    if end.targets:
        raise GraphError(
            f"step '{end.name}' is the last, but goes to '{end.targets[0]}'", where=end.next_at, fix="remove self.next"
        )


def enclosing(graph: FlowGraph) -> tuple[dict[str, list[tuple[str, str]]], dict[str, str]]:
    """Each step with the splits around it, outermost first, and the first step of its branch of each; and the join of
    each split."""
    joins: dict[str, str] = {}
    frames = _frames(graph, joins)
    steps = {
        name: [(frame.split, frame.branch or graph.steps[frame.split].targets[0]) for frame in frames.get(name, ())]
        for name in graph.steps
    }
    return steps, joins


def _frames(graph: FlowGraph, joins: dict[str, str]) -> dict[str, Frames]:
    """Every reachable step with the splits that it is inside of; a step must be inside of the same from all sides.

    `joins` is filled with the join of each split.
    """
    frames: dict[str, Frames] = {graph.start: ()}
    reached_from: dict[str, str] = {}
    line = [graph.start]
    for name in line:
        step = graph.steps[name]
        for target in step.targets:
            inside = _frames_inside(step, target, frames[name])
            if graph.steps[target].join:
                inside = _frames_after_join(graph, step, target, inside, joins)
            if target not in frames:
                frames[target], reached_from[target] = inside, name
                line.append(target)
            elif frames[target] != inside:
                raise _conflicting_frames(
                    graph.steps[target], step, graph.steps[reached_from.get(target, graph.start)], inside, frames
                )
    if frames.get(graph.end):
        open_ = frames[graph.end][-1]
        raise GraphError(
            f"step '{graph.end}' is reached inside {open_}: they are never joined",
            where=graph.steps[open_.split].next_at,
            fix="let the branches meet in a step that takes `inputs`",
        )
    return frames


def _frames_inside(step: FlowStep, target: str, inside: Frames) -> Frames:
    if step.kind == "split":
        return (*inside, _Frame(step.name, target))
    return (*inside, _Frame(step.name)) if step.kind in ("foreach", "parallel") else inside


def _frames_after_join(graph: FlowGraph, step: FlowStep, target: str, inside: Frames, joins: dict[str, str]) -> Frames:
    """The splits outside a join."""
    if not inside:
        raise GraphError(
            f"step '{target}' takes inputs, but '{step.name}' comes to it from no split",
            where=step.next_at,
            fix=f"write `def {target}(self):`, or split before",
        )
    split = inside[-1].split
    if split == step.name:
        raise GraphError(
            f"step '{step.name}' splits, and goes straight to the join '{target}'",
            where=step.next_at,
            fix="put a step between the two",
        )
    earlier = joins.setdefault(split, target)
    if earlier != target:
        raise GraphError(
            f"the splits of '{split}' are joined in '{earlier}' and in '{target}'",
            where=graph.steps[split].next_at,
            fix="let all of them meet in one step that takes `inputs`",
        )
    return inside[:-1]


def _conflicting_frames(
    step: FlowStep, second: FlowStep, first: FlowStep, inside: Frames, frames_by_step: Mapping[str, Frames]
) -> GraphError:
    there = frames_by_step[step.name]
    if len(inside) == len(there) and inside and inside[-1].split == there[-1].split and not step.join:
        return GraphError(
            f"step '{step.name}' is reached from {there[-1]} and {inside[-1]}, but takes no inputs",
            where=step.where,
            fix=f"write `def {step.name}(self, inputs):`",
        )
    descriptions = [str(frames[-1]) if frames else "no split" for frames in (there, inside)]
    return GraphError(
        f"step '{step.name}' is reached inside {descriptions[0]} from '{first.name}', "
        f"and inside {descriptions[1]} from '{second.name}'",
        where=second.next_at,
        fix="join what is split before steps meet",
    )


def _check_circles(graph: FlowGraph) -> None:
    """A way back is fine where a switch decides on it; any other circle would never end."""
    waiting = dict.fromkeys(graph.steps, 0)
    for step in graph.steps.values():
        if step.kind != "switch":
            for target in step.targets:
                waiting[target] += 1
    free = [name for name, count in waiting.items() if not count]
    for name in free:
        step = graph.steps[name]
        for target in step.targets if step.kind != "switch" else ():
            waiting[target] -= 1
            if not waiting[target]:
                free.append(target)
    circle = [name for name in graph.steps if name not in set(free)]
    if circle:
        raise GraphError(
            f"steps go round in a circle that nothing ends: {', '.join(circle)}",
            where=graph.steps[circle[0]].next_at,
            fix="let a switch decide: self.next({True: self.again, False: self.done}, condition='more')",
        )
