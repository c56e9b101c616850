"""A first look through the code: what its names are bound to, as far as a migration has to know."""

from __future__ import annotations

from typing import Final

import libcst as cst
from libcst import metadata

from stoker.migrate.imports import bound, module_of
from stoker.migrate.names import is_ours

_CONTEXT_NAMES: Final = ("context", "step_context", "stoker_context")


class Bindings(cst.CSTVisitor):
    """`modules` are names that an `import` binds, with their module; `steps` functions that are ZenML's steps.

    `made` are names that hold nothing but what a call of `Client` or `get_step_context` returns. `flows` and
    `pipelines` say whether Metaflow and ZenML are imported at all. `context` is a name that is free for
    `stoker.context`; `names` are those that are written anywhere.
    """

    METADATA_DEPENDENCIES = (metadata.QualifiedNameProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.flows = False
        self.pipelines = False
        self.modules: dict[str, str] = {}
        self.steps: set[str] = set()
        self.made: dict[str, str] = {}
        self.context = _CONTEXT_NAMES[0]
        self.names: set[str] = set()
        self._otherwise: set[str] = set()

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        """Which of the two frameworks is used."""
        self._seen(module_of(node))
        if not isinstance(node.names, cst.ImportStar):
            self.names.update(alias.evaluated_alias or alias.evaluated_name for alias in node.names)
        return False

    def visit_Import(self, node: cst.Import) -> bool:
        """Names of modules."""
        for alias in node.names:
            name, full = bound(alias)
            self.names.add(name)
            self._seen(full)
            if is_ours(full, flows=False):
                self.modules[name] = full if alias.asname is not None else name
        return False

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        """Steps."""
        for decorator in node.decorators:
            function = decorator.decorator
            while isinstance(function, cst.Call):
                function = function.func
            name = self._qualified(function)
            if name.startswith("zenml.") and name.endswith(".step"):
                self.steps.add(node.name.value)

    def visit_Name(self, node: cst.Name) -> None:
        """Every name that is written anywhere."""
        self.names.add(node.value)

    def visit_Param(self, node: cst.Param) -> None:
        """A parameter may hold anything."""
        self._otherwise.add(node.name.value)

    def visit_Assign(self, node: cst.Assign) -> None:
        """`client = Client()`."""
        made = self._qualified(node.value.func) if isinstance(node.value, cst.Call) else ""
        kind = made.rpartition(".")[2] if made.startswith("zenml.") else ""
        for target in node.targets:
            if not isinstance(target.target, cst.Name):
                continue
            name = target.target.value
            if kind in ("Client", "get_step_context"):
                if self.made.setdefault(name, kind) != kind:
                    self._otherwise.add(name)
            else:
                self._otherwise.add(name)

    def leave_Module(self, original_node: cst.Module) -> None:
        """What can only be told when everything was seen."""
        del original_node
        self.made = {name: kind for name, kind in self.made.items() if name not in self._otherwise}
        self.context = next((name for name in _CONTEXT_NAMES if name not in self.names), "the_step_context")

    def _seen(self, module: str) -> None:
        root = module.partition(".")[0]
        self.flows = self.flows or root == "metaflow"
        self.pipelines = self.pipelines or root == "zenml"

    def _qualified(self, node: cst.CSTNode) -> str:
        return qualified_name(self.get_metadata(metadata.QualifiedNameProvider, node, set()), flows=self.flows)


def qualified_name(names: object, *, flows: bool) -> str:
    """Of what a name may be, that which was imported from ZenML or Metaflow; empty if nothing was."""
    assert isinstance(names, (set, frozenset))
    for name in sorted(names, key=lambda one: str(one.name)):
        full = str(name.name)
        if name.source == metadata.QualifiedNameSource.IMPORT and is_ours(full.rpartition(".")[0] or full, flows=flows):
            return full
    return ""
