"""A look through the code: which of its nodes must change, what is still needed of its imports, and what to say.

Names are resolved by their scopes, so that a parameter called `step` is left alone. Nothing is changed here.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final, Sequence

import libcst as cst
from libcst import metadata
from libcst.helpers import get_full_name_for_node

from stoker.client import Client
from stoker.migrate import calls, metaflow, zenml
from stoker.migrate.bindings import Bindings, qualified_name
from stoker.migrate.calls import Edits
from stoker.migrate.imports import Needed, aliases_of, bound, dotted, module_of
from stoker.migrate.names import Level, Note, fate_of, is_known, is_ours
from stoker.worker.context import Context

_OWN_CONTEXT: Final = frozenset(name for name in dir(Context) if not name.startswith("_"))
_OWN_CLIENT: Final = frozenset(name for name in dir(Client) if not name.startswith("_"))


class Survey(cst.CSTVisitor):
    """Fills `edits`, `needed` and `notes`."""

    METADATA_DEPENDENCIES = (
        metadata.PositionProvider,
        metadata.QualifiedNameProvider,
        metadata.ParentNodeProvider,
    )

    def __init__(self, bindings: Bindings) -> None:
        super().__init__()
        self.bindings = bindings
        self.edits = Edits()
        self.needed = Needed(context=bindings.context, flows=bindings.flows, taken=bindings.names)
        self.notes: list[Note] = []
        self._lines: dict[str, set[int]] = defaultdict(set)
        self._imported: dict[str, int] = {}
        self._alike: dict[str, bool] = {}
        self._replaced: dict[cst.Attribute, str] = {}

    def tell(self, node: cst.CSTNode, level: Level, name: str, told: str) -> None:
        """Say something of a node's line."""
        self.notes.append(Note(line=self._line(node), level=level, name=name, told=told))

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        """Say what becomes of names that are not simply somewhere else."""
        module = module_of(node)
        if not is_ours(module, flows=self.bindings.flows):
            return False
        if isinstance(node.names, cst.ImportStar):
            self.tell(node, "by hand", f"{module}.*", "import the names one by one, and migrate again")
            return False
        for alias in node.names:
            qualified = f"{module}.{alias.evaluated_name}"
            fate = fate_of(qualified)
            if fate.kind == "gone":
                self._imported.setdefault(qualified, self._line(alias))
            elif fate.told and fate.kind == "moved":
                self.tell(alias, "differs", alias.evaluated_name, fate.told)
        return False

    def visit_Import(self, node: cst.Import) -> bool:
        """Nothing inside is a use of a name."""
        for alias in node.names:
            name, full = bound(alias)
            if is_ours(full, flows=self.bindings.flows) and full not in ("zenml", "metaflow") and name != full:
                self.needed.modules.setdefault(name, set())
        return False

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        """A step that Accelerate launches."""
        launch: cst.Call | None = None
        step: cst.Decorator | None = None
        for decorator in node.decorators:
            called = decorator.decorator
            name = self._qualified(called.func if isinstance(called, cst.Call) else called)
            if name.startswith("zenml.") and name.endswith(".run_with_accelerate") and isinstance(called, cst.Call):
                launch = called
            elif name.startswith("zenml.") and name.endswith(".step"):
                step = decorator
        if launch is not None and step is not None:
            calls.launched(node, launch, step, self.edits, self.tell)

    def visit_Call(self, node: cst.Call) -> bool:
        """Calls whose arguments are written differently, or that become something else."""
        qualified = self._qualified(node.func)
        name = qualified.rpartition(".")[2]
        if qualified.startswith("zenml."):
            if name == zenml.CONTEXT and not node.args:
                self._say_context(node, node.func)
                return False
            if name == zenml.UNWRAPPED and (found := calls.named_output(node)) is not None:
                self.edits.expressions[node] = found
                return False
            if name in calls.CALLS:
                calls.CALLS[name](node, self.edits, self.tell)
        elif self.bindings.pipelines and isinstance(node.func, cst.Attribute):
            if node.func.attr.value == "with_options":
                calls.options(node, self.edits, self.tell)
            elif node.func.attr.value == "configure" and self._is_step(node.func.value):
                self.tell(
                    node, "by hand", "configure", "nothing is changed in place: name what `.with_options(…)` returns"
                )
        if isinstance(node.func, cst.Name) and self._is_step(node.func):
            moved = {arg.keyword.value for arg in node.args if arg.keyword is not None} & {"after", "id"}
            if moved:
                self.edits.moved[node] = frozenset(moved)
        return True

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        """`zenml.step`, `PythonPackageInstaller.UV`, `current.card`, `context.step_run.name`."""
        qualified = self._qualified(node)
        member = ".".join(qualified.split(".")[-2:])
        if qualified.startswith("zenml.") and member in zenml.LITERALS:
            self.edits.expressions[node] = cst.SimpleString(zenml.LITERALS[member])
            return False
        read = qualified.removeprefix("metaflow.current.")
        if read != qualified and read in metaflow.CURRENT:
            self.tell(node, "by hand", f"current.{read}", metaflow.CURRENT[read])
        if qualified:
            return self._by_module(node, qualified)
        return self._of_value(node)

    def visit_Name(self, node: cst.Name) -> None:
        """A name that was imported: by another name now, or not here."""
        qualified = self._qualified(node)
        if not qualified:
            return
        if node.value in self.bindings.modules:
            self.needed.old.add(node.value)
            self.tell(node, "by hand", node.value, "the module is used as a whole: use its names")
            return
        self._lines[qualified].add(self._line(node))
        fate = fate_of(qualified)
        if fate.kind in ("member", "call"):
            self.needed.kept.add(qualified)
            self.tell(node, "by hand", node.value, fate.told)
        elif (
            fate.kind == "moved"
            and node.value == qualified.rpartition(".")[2]
            and fate.name not in (node.value, *self.needed.taken)
        ):
            self.edits.expressions[node] = cst.Name(fate.name)

    def visit_While(self, node: cst.While) -> bool:
        """The loop that ZenML's guide has for emptying the CUDA cache."""
        if isinstance(node.test, cst.Call) and get_full_name_for_node(node.test.func) == "gc.collect":
            told = "stays as it is; `from stoker import cleanup_memory` is the same and more, for every kind of device"
            self.tell(node, "hint", "gc.collect", told)
        return True

    def finish(self) -> None:
        """Say what was collected; call it when the whole module was seen."""
        for qualified, line in self._imported.items():
            used = sorted(self._lines[qualified])
            where = f" (used in line{'s' if len(used) > 1 else ''} {', '.join(map(str, used))})" if used else ""
            name = qualified.rpartition(".")[2]
            self.notes.append(Note(line=line, level="by hand", name=name, told=f"{fate_of(qualified).told}{where}"))
        self.needed.aliased = aliases_of(self.needed.modules, self._alike, self.bindings.modules)
        for name in [*self.needed.aliased]:
            if name in self.needed.old:
                del self.needed.aliased[name]
        for node, name in self._replaced.items():
            if name in self.needed.aliased:
                del self.edits.expressions[node]
        self.notes = sorted(set(self.notes), key=lambda note: (note.line, note.name))

    def _by_module(self, node: cst.Attribute, qualified: str) -> bool:
        """An attribute of a module that was imported, whole: `zenml.config.DockerSettings`. Whether to look inside."""
        local = _leftmost(node)
        if local is None:
            return True
        if qualified.startswith("zenml.config.") and fate_of(qualified.rpartition(".")[0]).name == "config":
            self._of_config(node, qualified, local)
        if local not in self.bindings.modules:
            return True
        fate = fate_of(qualified)
        if is_known(qualified) and fate.kind == "moved":
            self.needed.modules.setdefault(local, set()).add(fate.module)
            same = fate.name == qualified.rpartition(".")[2] and qualified.count(".") == 1
            self._alike[local] = self._alike.get(local, True) and same
            self.edits.expressions[node] = dotted(fate.module, fate.name)
            self._replaced[node] = local
            if fate.told:
                self.tell(node, "differs", fate.name, fate.told)
            return False
        if is_known(qualified) or not self._known_inside(node):
            self.needed.old.add(local)
            self.tell(node, "by hand", qualified, fate.told)
            return False
        return True

    def _of_config(self, node: cst.Attribute, qualified: str, local: str) -> None:
        """`config.StepRetryConfig` of `from zenml import config`."""
        if local in self.bindings.modules or not isinstance(node.value, cst.Name):
            return
        fate = fate_of(qualified)
        if fate.kind != "moved":
            self.tell(node, "by hand", node.attr.value, fate.told)
        elif fate.name != node.attr.value:
            self.edits.expressions[node] = node.with_changes(attr=cst.Name(fate.name))

    def _known_inside(self, node: cst.Attribute) -> bool:
        """Whether a table knows one of the names further in."""
        inside = node.value
        while isinstance(inside, cst.Attribute):
            if is_known(self._qualified(inside)):
                return True
            inside = inside.value
        return False

    def _of_value(self, node: cst.Attribute) -> bool:
        """An attribute of a Client or of the step's context, if that is what the value is. Whether to look inside."""
        path = _path(node)
        base = path[0]
        name = self._made_by(base)
        if name == "Client":
            self._of_client(node, base)
        elif name == zenml.CONTEXT:
            return self._of_context(node, path)
        return True

    def _of_client(self, node: cst.Attribute, base: cst.BaseExpression | str) -> None:
        method = node.attr.value
        if node.value is not base or method in _OWN_CLIENT:
            return
        if method in zenml.CLIENT:
            self.edits.expressions[node.attr] = cst.Name(zenml.CLIENT[method])
            self.tell(
                node, "differs", method, f"is `{zenml.CLIENT[method]}` here: docs/guide/client.md has its arguments"
            )
        else:
            self.tell(node, "by hand", f"Client.{method}", "docs/guide/client.md has what there is to read")

    def _of_context(self, node: cst.Attribute, path: Sequence[cst.BaseExpression | str]) -> bool:
        """What is read of the step's context, looked at from its outermost attribute."""
        if self._goes_on(node):
            return True
        read = ".".join(str(name) for name in path[1:])
        inner: cst.BaseExpression = node
        while isinstance(inner, cst.Attribute) and read not in zenml.CONTEXT_PATHS:
            inner, read = inner.value, read.rpartition(".")[0]
        if isinstance(inner, cst.Attribute):
            base = path[0]
            assert isinstance(base, cst.BaseExpression)
            if isinstance(base, cst.Call):
                self._say_context(base, base.func)
                base = self.edits.expressions[base]
            self.edits.expressions[inner] = cst.Attribute(value=base, attr=cst.Name(zenml.CONTEXT_PATHS[read]))
            return False
        if path[1] not in _OWN_CONTEXT:
            name = f"context.{'.'.join(map(str, path[1:]))}"
            self.tell(node, "by hand", name, "docs/guide/context.md has what a step knows of itself")
        return True

    def _say_context(self, node: cst.Call, function: cst.BaseExpression) -> None:
        local = _leftmost(function)
        if local is not None and local in self.bindings.modules:
            self.needed.modules.setdefault(local, set()).add("stoker")
            self._alike[local] = False
            self.edits.expressions[node] = dotted("stoker", "context")
        else:
            self.edits.expressions[node] = cst.Name(self.needed.context)

    def _goes_on(self, node: cst.Attribute) -> bool:
        parent = self.get_metadata(metadata.ParentNodeProvider, node, None)
        return isinstance(parent, cst.Attribute) and parent.value is node

    def _made_by(self, base: cst.BaseExpression | str) -> str:
        """ "Client" or "get_step_context", where an expression is a call of it or a name that holds one."""
        if isinstance(base, cst.Call):
            return self._qualified(base.func).rpartition(".")[2] if self._qualified(base.func) else ""
        if isinstance(base, cst.Name):
            return self.bindings.made.get(base.value, "")
        return ""

    def _is_step(self, node: cst.BaseExpression) -> bool:
        return isinstance(node, cst.Name) and node.value in self.bindings.steps

    def _qualified(self, node: cst.CSTNode) -> str:
        if isinstance(node, cst.Attribute) and _leftmost(node) is None:
            return ""  # libcst would call `get()` in `get().name` by the name of what is called
        names = self.get_metadata(metadata.QualifiedNameProvider, node, set())
        return qualified_name(names, flows=self.bindings.flows)

    def _line(self, node: cst.CSTNode) -> int:
        return int(self.get_metadata(metadata.PositionProvider, node).start.line)


def _leftmost(node: cst.BaseExpression) -> str | None:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node.value if isinstance(node, cst.Name) else None


def _path(node: cst.Attribute) -> Sequence[cst.BaseExpression | str]:
    """`a().b.c` as the expression `a()` and the names `b`, `c`."""
    names: list[str] = []
    value: cst.BaseExpression = node
    while isinstance(value, cst.Attribute):
        names.insert(0, value.attr.value)
        value = value.value
    return [value, *names]
