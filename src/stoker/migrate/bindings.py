"""What the names in a source file are bound to: the first pass of a migration."""

from __future__ import annotations

from typing import Final

import libcst as cst
from libcst import metadata

from stoker.migrate.imports import binding_of, module_of
from stoker.migrate.names import is_source_module

_CONTEXT_NAMES: Final = ("context", "step_context", "stoker_context")


class Bindings(cst.CSTVisitor):
    """Collects the bindings of a module; read its attributes after the visit."""

    METADATA_DEPENDENCIES = (metadata.QualifiedNameProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.flows = False
        """Whether the module imports Metaflow."""
        self.pipelines = False
        """Whether the module imports ZenML."""
        self.modules: dict[str, str] = {}
        """Name that an `import` binds → its module."""
        self.steps: set[str] = set()
        """Functions that are ZenML's steps."""
        self.instances: dict[str, str] = {}
        """Name that only ever holds the result of a call → the call: "Client" or "get_step_context"."""
        self.context = _CONTEXT_NAMES[0]
        """A name that is free for `stoker.context`."""
        self.names: set[str] = set()
        """Every name in the module."""
        self._ambiguous: set[str] = set()
        """Names that are also bound to something else, and so are no instances."""

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        """Note which framework is imported, and the names that are bound."""
        self._note_framework(module_of(node))
        if not isinstance(node.names, cst.ImportStar):
            self.names.update(alias.evaluated_alias or alias.evaluated_name for alias in node.names)
        return False

    def visit_Import(self, node: cst.Import) -> bool:
        """Note the modules that are bound to names."""
        for alias in node.names:
            name, full = binding_of(alias)
            self.names.add(name)
            self._note_framework(full)
            if is_source_module(full, flows=False):
                self.modules[name] = full if alias.asname is not None else name
        return False

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        """Note functions that are decorated as steps."""
        for decorator in node.decorators:
            function = decorator.decorator
            while isinstance(function, cst.Call):
                function = function.func
            name = self._qualified(function)
            if name.startswith("zenml.") and name.endswith(".step"):
                self.steps.add(node.name.value)

    def visit_Name(self, node: cst.Name) -> None:
        """Note every name."""
        self.names.add(node.value)

    def visit_Param(self, node: cst.Param) -> None:
        """A parameter may hold anything."""
        self._ambiguous.add(node.name.value)

    def visit_Assign(self, node: cst.Assign) -> None:
        """Note instances, as in `client = Client()`."""
        function = self._qualified(node.value.func) if isinstance(node.value, cst.Call) else ""
        kind = function.rpartition(".")[2] if function.startswith("zenml.") else ""
        for target in node.targets:
            if not isinstance(target.target, cst.Name):
                continue
            name = target.target.value
            if kind in ("Client", "get_step_context"):
                if self.instances.setdefault(name, kind) != kind:
                    self._ambiguous.add(name)
            else:
                self._ambiguous.add(name)

    def leave_Module(self, original_node: cst.Module) -> None:
        """Decide what depends on the whole module."""
        del original_node
        self.instances = {name: kind for name, kind in self.instances.items() if name not in self._ambiguous}
        self.context = next((name for name in _CONTEXT_NAMES if name not in self.names), "the_step_context")

    def _note_framework(self, module: str) -> None:
        root = module.partition(".")[0]
        self.flows = self.flows or root == "metaflow"
        self.pipelines = self.pipelines or root == "zenml"

    def _qualified(self, node: cst.CSTNode) -> str:
        return qualified_name(self.get_metadata(metadata.QualifiedNameProvider, node, set()), flows=self.flows)


def qualified_name(names: object, *, flows: bool) -> str:
    """The first of a name's possible meanings that comes from ZenML or Metaflow; empty if none does."""
    assert isinstance(names, (set, frozenset))
    for name in sorted(names, key=lambda one: str(one.name)):
        full = str(name.name)
        if name.source == metadata.QualifiedNameSource.IMPORT and is_source_module(
            full.rpartition(".")[0] or full, flows=flows
        ):
            return full
    return ""
