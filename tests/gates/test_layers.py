"""The layers: `lint-imports` decides on our own modules, a table on third parties'."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import grimp
import pytest
from tests.gates.references import DOTTED, all_references, circles

from stoker.core.plugins import resolve

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

STANDARD = sys.stdlib_module_names | {"tomllib"}
"""Python 3.10 has no tomllib; `stoker.stacks` takes tomli there."""
EVERYWHERE = ("stoker",)
THIRD_PARTIES: dict[str, tuple[str, ...]] = {
    "attr": EVERYWHERE,
    "attrs": EVERYWHERE,
    "IPython": ("stoker.run.driver", "stoker.report", "stoker.flows.runner"),
    "amdsmi": ("stoker.vendors.amd",),
    "click": ("stoker.cli",),
    "cloudpickle": ("stoker.plan", "stoker.store"),
    "PIL": ("stoker.store",),
    "cryptography": ("stoker.client.namedsecrets",),  # Fernet: no encryption of our own
    "docker": ("stoker.backends.docker.engines",),
    "fsspec": (
        "stoker.store",
        "stoker.backends.ray.platform",
        "stoker.backends.aws_batch.driverjob",
        "stoker.backends.base.mailprogram",
        "stoker.backends.base.storeprogram",
    ),
    "huggingface_hub": ("stoker.nodecache.hub",),  # in a process of its own, where a step has data of the hub
    "jax": ("stoker.launchers.jax",),
    "jinja2": ("stoker.ui",),
    "keyring": ("stoker.worker.secrets", "stoker.client.namedsecrets"),  # where the driver reads a password
    "libcst": ("stoker.migrate",),
    "markdown_it": ("stoker.report.cards",),
    "numpy": ("stoker.store", "stoker.plan"),
    "optuna": ("stoker.engine.sweeps",),  # the TPE sampler, where a sweep asks for it
    "packaging": (
        "stoker.plan",
        "stoker.images",
        "stoker.flows.parsers",
    ),  # never in a worker: it travels with attrs alone
    "pandas": ("stoker.store", "stoker.client.metrics"),
    "polars": ("stoker.store",),
    "psutil": (
        "stoker.client",
        "stoker.run.driver",
        "stoker.devices",
        "stoker.report.machine",
        "stoker.system.portable",
    ),
    "psycopg": ("stoker.store",),
    "pyarrow": ("stoker.store",),
    "pynvml": ("stoker.vendors.nvidia",),
    "ray": ("stoker.backends.ray.job", "stoker.backends.ray.node"),  # the cluster's own, where these run
    "requests": ("stoker.backends.docker.engines",),  # what `docker` stands on: its errors come through
    "starlette": ("stoker.ui",),
    "tomli": ("stoker.stacks", "stoker.images", "stoker.flows.parsers"),
    "torch": ("stoker.store", "stoker.worker.health"),  # the user's own, in a process of its own
    "transformers": ("stoker.integrations.huggingface.callback",),  # the user's own, whose trainer calls it
    "uvicorn": ("stoker.ui",),
    "urllib3": ("stoker.backends.docker.engines",),
    "botocore": ("stoker.backends.aws.api", "stoker.flows.secretsources"),
    "yaml": (
        "stoker.plan",
        "stoker.backends.kubernetes.api.access",
        "stoker.backends.kubeflow.requests",
        "stoker.backends.base.byhand",
        "stoker.flows.parsers",
        "stoker.migrate.skyfile",  # tasks of SkyPilot, which are YAML
        "stoker.migrate.project",  # run configurations of ZenML, which are YAML
        "stoker.integrations.zenml.parts",  # run configurations, which ZenML has as YAML
    ),
}
"""Every package that Stoker may import, also inside functions, and the folders that may. A new row is a decision: what
the package saves in lines, and what it costs in milliseconds, megabytes and pins inside somebody's image."""


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("stoker", include_external_packages=True, cache_dir=None)


def test_layers(repository: Path) -> None:
    finished = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr


HOOKS = {
    ("stoker.core.standins", "stoker.flow"),
    ("stoker.core.standins", "stoker.integrations.zenml"),
}
"""What the import system is told to load in place of another module, when a user's file imports that."""


@pytest.fixture(scope="module")
def references(repository: Path) -> dict[str, set[str]]:
    found = all_references(repository / "src")
    return {module: {one for one in others if (module, one) not in HOOKS} for module, others in found.items()}


def test_a_name_in_a_text_is_an_import(repository: Path, references: dict[str, set[str]]) -> None:
    """`"stoker.launchers.mpi:LAUNCHER"` ties two folders together as an import does, and the linter does not see it."""
    layer = {name: number for number, row in enumerate(reversed(layers(repository))) for name in row}
    wrong = []
    for module, others in references.items():
        for other in others - {module}:
            if "." not in module:
                continue  # the public faces name what users import
            here, there = module.split(".")[1], other.split(".")[1]
            if here not in (there, "__main__") and layer[here] <= layer[there]:
                wrong.append(f"{module} refers to {other}, which is not below it")
    assert not wrong, "\n".join(sorted(wrong))


def test_no_circle_counting_names_in_texts(references: dict[str, set[str]]) -> None:
    assert circles(references) == []


def layers(repository: Path) -> list[list[str]]:
    """The folders of each layer as pyproject.toml has them, the highest first."""
    contracts = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    return [[name.strip() for name in row.split("|")] for row in contracts["contracts"][0]["layers"]]


ANSWER = re.compile(r"^\| [^|]+\? \| `([\w/]+)\.py` \| `(\w+)` \|$", re.MULTILINE)
"""A row of the table "Where things happen" of docs/dev/architecture.md."""


def test_things_happen_where_the_architecture_says(repository: Path, references: dict[str, set[str]]) -> None:
    answers = ANSWER.findall((repository / "docs" / "dev" / "architecture.md").read_text(encoding="utf-8"))
    assert len(answers) >= 10
    for path, name in answers:
        tree = ast.parse((repository / "src" / "stoker" / f"{path}.py").read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}, path
        module = f"stoker.{path.replace('/', '.')}"
        users = {other for other, named in references.items() if module in named and other != module}
        assert users, f"nothing uses {module}"


SAME_NAME = ("stoker.flows", "stoker.integrations")
"""Their classes are called as users of Metaflow and ZenML know them, whatever ours are called."""
PUBLIC = {
    "Step": {"stoker.client.steps", "stoker.pipelines.functional"},
    "Artifact": {"stoker.core.registry", "stoker.core.cards"},
}
"""What people call both a function with `@step` and what a run shows of it; the name of an output, and by Metaflow's
name a component of a card."""


def test_a_class_name_means_one_thing(repository: Path) -> None:
    homes: dict[str, set[str]] = {}
    for path in sorted((repository / "src").rglob("*.py")):
        module = ".".join(path.relative_to(repository / "src").with_suffix("").parts)
        if module.startswith(SAME_NAME):
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, set()).add(module)
    several = {
        name: sorted(modules)
        for name, modules in homes.items()
        if len(modules) > 1 and PUBLIC.get(name, set()) != modules
    }
    assert not several, "\n".join(f"{name}: {', '.join(modules)}" for name, modules in several.items())


def test_third_parties_are_imported_where_they_may_be(graph: grimp.ImportGraph) -> None:
    wrong = []
    for module in sorted(graph.modules):
        if module.partition(".")[0] == "stoker":
            continue
        package = module.partition(".")[0]
        if package in STANDARD:
            continue
        for importer in sorted(graph.find_modules_that_directly_import(module)):
            if package not in THIRD_PARTIES:
                wrong.append(f"{importer} imports {package}, which THIRD_PARTIES does not list")
            elif not any(importer == folder or importer.startswith(folder + ".") for folder in THIRD_PARTIES[package]):
                wrong.append(f"{importer} imports {package}, which only {', '.join(THIRD_PARTIES[package])} may")
    assert not wrong, "\n".join(wrong)


def test_core_is_pure(graph: grimp.ImportGraph) -> None:
    """Core travels into other people's images: standard library and attrs only."""
    allowed = {"stoker", "attr", "attrs", *STANDARD}
    wrong = [
        f"{module} imports {imported}"
        for module in sorted(graph.modules)
        if module == "stoker.core" or module.startswith("stoker.core.")
        for imported in sorted(graph.find_modules_directly_imported_by(module))
        if imported.partition(".")[0] not in allowed
    ]
    assert not wrong, "\n".join(wrong)


def test_nobody_below_imports_the_public_face(graph: grimp.ImportGraph) -> None:
    """`stoker/__init__.py` names modules of every layer: importing it from one of them closes a circle."""
    importers = graph.find_modules_that_directly_import("stoker")
    inside = [name for name in sorted(importers) if not name.startswith(("stoker.integrations", "stoker.cli"))]
    assert not inside, f"import the module that defines the name: {inside}"


def test_every_part_by_name_exists() -> None:
    """The linter cannot see `"module:attribute"`. Parts that need an extra may not be loadable here."""
    from stoker.backends.registry import BACKENDS
    from stoker.launchers.registry import LAUNCHERS

    assert dict(BACKENDS.parts()).keys() == set(BACKENDS.names())
    assert dict(LAUNCHERS.parts()).keys() == set(LAUNCHERS.names())


def test_every_function_of_a_registration_by_name_exists(repository: Path) -> None:
    texts = {
        node.value
        for path in (repository / "src/stoker/backends").glob("*/registration.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED.fullmatch(node.value)
    }
    assert texts and all(callable(resolve(text)) for text in texts)
