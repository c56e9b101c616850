"""`stoker migrate`: files of tests/cli/migrate, as people write them for ZenML and Metaflow, and small pieces."""

from __future__ import annotations

import ast
import difflib
import io
import json
import os
import re
import shutil
import stat
import sys
import textwrap
import tokenize
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import stoker
import stoker.config
import stoker.flow
from stoker.cli import migrate
from stoker.core.errors import NotFound, SourceError, StokerError, UsageError
from stoker.integrations.zenml.parts.settings import options_of, read_run_configuration
from stoker.migrate import metaflow as migration_metaflow
from stoker.migrate import zenml as migration_zenml
from stoker.migrate.names import fate_of
from stoker.migrate.rewrite import Migration, migrate_source
from stoker.migrate.served import move_imports, move_requirements
from stoker.pipelines.functional import PipelineOptions

FILES = Path(__file__).parent / "migrate"
LEFT = {
    "metaflow_alias.py": [],
    "metaflow_batch.py": ["Deployer"],
    "metaflow_gpu.py": [],
    "zenml_accelerate.py": [],
    "zenml_bare.py": [],
    "zenml_cleanup.py": [],
    "zenml_cuda.py": [],
    "zenml_image.py": [],
    "zenml_kubernetes.py": [],
    "zenml_operator.py": [],
    "zenml_resources.py": [],
    "zenml_skypilot.py": [],
}
"""file → names that are left to do by hand"""
WHOLE = [name for name, left in LEFT.items() if not left]
ROW = re.compile(r"^\| `(\w+)` \| (works|works differently|not here) \|(.*)\|$", re.MULTILINE)


def of(text: str) -> Migration:
    return migrate_source(textwrap.dedent(text).lstrip("\n").encode(), "pipeline.py")


def code(text: str) -> str:
    return of(text).after.decode()


def left(text: str) -> list[tuple[int, str]]:
    return [(note.line, note.name) for note in of(text).by_hand]


def modules(source: bytes) -> set[str]:
    """The packages that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module).partition(".")[0])
    return found


def comments(source: bytes) -> list[str]:
    return sorted(
        token.string for token in tokenize.tokenize(io.BytesIO(source).readline) if token.type == tokenize.COMMENT
    )


@pytest.fixture
def migration(project: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`stoker migrate …` in the project's folder, and in this process, which has libcst already."""

    def call(*words: str, code: int = 0) -> Any:
        with monkeypatch.context() as patch:
            patch.chdir(project.folder)
            done = CliRunner().invoke(migrate.command, words, catch_exceptions=False, standalone_mode=False)
        assert (done.return_value or 0) == code, done.output
        return done

    return call


def test_every_file_is_looked_at() -> None:
    assert sorted(path.name for path in FILES.glob("*.py")) == sorted(LEFT)


@pytest.mark.parametrize("name", LEFT)
def test_a_file(name: str) -> None:
    before = (FILES / name).read_bytes()
    done = migrate_source(before, name)
    assert [note.name for note in done.by_hand] == LEFT[name]
    kept = modules(done.after) & {"zenml", "metaflow", "gpu_profile"}
    assert bool(kept) == any(not note.name.startswith("current.") for note in done.by_hand)
    assert comments(done.after) == comments(before)
    again = migrate_source(done.after, name)
    assert again.after == done.after


def test_a_file_of_neither_stays_as_it_is() -> None:
    before = (FILES / "zenml_bare.py").read_bytes()
    done = migrate_source(before, "zenml_bare.py")
    assert done.after == before and not done.notes and not done.frameworks


def test_migrated_files_import(project: Any) -> None:
    sources = {name: (FILES / name).read_bytes() for name in WHOLE}
    project.write({name: migrate_source(source, name).after.decode() for name, source in sources.items()})
    project.write({"torch.py": "", "all.py": "".join(f"import {name.removesuffix('.py')}\n" for name in sources)})
    project.run("all.py")


def test_a_migrated_pipeline_with_everything_runs(project: Any, migration: Any) -> None:
    shutil.copy(FILES / "zenml_operator.py", project.folder / "train.py")
    project.write({"stoker.toml": '[stacks.local]\nstep_operators.big = "local"\n'})
    migration("train.py", "--write")
    project.stoker("run", "train.py")
    run = project.client().run("latest")
    assert run.steps["train"].load() == 4
    assert list(run.steps["load"].outputs) == ["count"]
    assert run.steps["report"].status == "succeeded"


@pytest.mark.parametrize(
    ("above", "after"),
    [
        ("@launch(num_processes=2)\n@step", '@step(resources={"gpu_count": 2})'),
        ("@step()\n@launch(num_processes=2, multi_gpu=True)", '@step(resources={"gpu_count": 2})'),
        ("@launch(num_processes=2)\n@step(\n    name='a',\n)", "name='a', resources={\"gpu_count\": 2},\n)"),
        (
            "@launch(num_processes=2)\n@step(settings={'docker': None})",
            "{'docker': None}, resources={\"gpu_count\": 2})",
        ),
        ("@launch(num_processes=2, cpu=True)\n@step", "@step\ndef"),
        ("@launch(num_processes=2)\n@step(settings={'resources': {'gpu_count': 1}})", "{'gpu_count': 1}})\ndef"),
    ],
)
def test_ranks_get_the_gpus_that_they_took(above: str, after: str) -> None:
    head = "from zenml import step\nfrom zenml.integrations.huggingface.steps import run_with_accelerate as launch\n"
    done = of(f"{head}{above}\ndef train(): ...\n")
    assert after in done.after.decode()
    assert not done.by_hand


@pytest.mark.parametrize("arguments", ["", "num_processes=n", "num_processes=8, num_machines=2"])
def test_gpus_that_nobody_counted_are_left(arguments: str) -> None:
    head = "from zenml import step\nfrom zenml.integrations.huggingface.steps import run_with_accelerate\n"
    assert left(f"{head}@run_with_accelerate({arguments})\n@step\ndef train(): ...\n") == [(5, "train")]


def test_a_migrated_flow_runs(project: Any, migration: Any) -> None:
    shutil.copy(FILES / "metaflow_alias.py", project.folder / "flow.py")
    migration("flow.py", "--write")
    finished = project.run("flow.py", "run")
    assert "items [0, 1]" in finished.stdout + finished.stderr


def test_nothing_is_changed_without_write(project: Any, migration: Any) -> None:
    shutil.copy(FILES / "zenml_cuda.py", project.folder / "train.py")
    before = (project.folder / "train.py").read_bytes()
    shown = migration("train.py")
    assert (project.folder / "train.py").read_bytes() == before
    assert '+    python_package_installer="uv",' in shown.stdout
    assert "-    PythonPackageInstaller," in shown.stdout
    assert "train.py: would be migrated from ZenML; --write does it; nothing left to do by hand" in shown.stderr


def test_what_is_left_has_lines_and_an_exit_code(project: Any, migration: Any) -> None:
    shutil.copy(FILES / "metaflow_batch.py", project.folder / "flow.py")
    shown = migration("flow.py", code=1)
    assert "flow.py:4: by hand: Deployer: there is no deployer" in shown.stderr
    written = migration("flow.py", "--write", code=1)
    assert "--- flow.py" not in written.stdout
    lines = (project.folder / "flow.py").read_text().splitlines()
    for line, name in re.findall(r"flow\.py:(\d+): by hand: (\S+):", written.stderr):
        assert name in lines[int(line) - 1]


def test_json(project: Any, migration: Any) -> None:
    shutil.copy(FILES / "metaflow_batch.py", project.folder / "flow.py")
    document = json.loads(migration("flow.py", "--json", "--diff", code=1).stdout)
    assert document["from"] == ["Metaflow"] and document["changed"] and not document["written"]
    assert any(line.startswith("+from stoker.flow import") for line in document["diff"].splitlines())
    note = next(note for note in document["notes"] if note["level"] == "by hand")
    assert (note["line"], note["name"]) == (4, "Deployer")
    written = json.loads(migration("flow.py", "--json", "--write", code=1).stdout)
    assert written["written"] and "diff" not in written


def test_what_has_no_words_of_stokers_keeps_zenmls_names(project: Any, migration: Any) -> None:
    text = (FILES / "zenml_skypilot.py").read_text().replace("SkypilotAWSOrchestrator", "VertexOrchestrator")
    project.write({"train.py": text})
    document = json.loads(migration("train.py", "--json", "--write").stdout)
    assert document["written"] and not document["notes"]
    after = (project.folder / "train.py").read_text()
    assert after == text.replace("from zenml", "from stoker.integrations.zenml")
    project.command([sys.executable, "-c", "import train"])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import zenml\n", "import stoker.integrations.zenml as zenml\n"),
        ("import os, zenml.client as c\n", "import os, stoker.integrations.zenml.client as c\n"),
        ("import zenml.client\n", "import stoker.integrations.zenml.client, stoker.integrations.zenml as zenml\n"),
        ("def f():\n    from zenml.a import (\n        b,  # why\n    )\n", None),
        ("from .zenml import step\nimport zenmlish\n", "from .zenml import step\nimport zenmlish\n"),
    ],
)
def test_imports_move(before: str, after: str | None) -> None:
    moved = move_imports(before.encode(), "a.py").after.decode()
    assert moved == (before.replace("zenml.a", "stoker.integrations.zenml.a") if after is None else after)
    assert move_imports(moved.encode(), "a.py").after.decode() == moved


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("zenml[server]>=0.50,<1  # why\nzenml-plugins\n#zenml\n", "stoker  # why\nzenml-plugins\n#zenml\n"),
        ('dependencies = ["numpy", "zenml[server]==0.8", "a"]\n', 'dependencies = ["numpy", "stoker", "a"]\n'),
        ("git+https://example.org/zenml.git\n", "git+https://example.org/zenml.git\n"),
    ],
)
def test_requirements(before: str, after: str) -> None:
    assert move_requirements(before.encode()).after.decode() == after


def test_a_notebook(project: Any, migration: Any) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["from zenml import step\n"]},
        {"cell_type": "code", "source": ["!zenml init\n", "from zenml import step\n", "import zenml"], "outputs": []},
    ]
    (project.folder / "first.ipynb").write_text(json.dumps({"cells": cells, "nbformat": 4}), encoding="utf-8")
    said = migration(".", "--write", "--no-plan", code=1)
    assert "first.ipynb:2: by hand: !zenml init" in said.stderr
    after = json.loads((project.folder / "first.ipynb").read_text(encoding="utf-8"))["cells"]
    assert after[0] == cells[0]
    moved = ["from stoker.integrations.zenml import step\n", "import stoker.integrations.zenml as zenml"]
    assert after[1]["source"][1:] == moved


def test_a_project_that_stokers_words_say_gets_them(project: Any, migration: Any) -> None:
    project.write(
        {
            "steps/__init__.py": "",
            "steps/one.py": "from zenml import step\n\n@step(enable_cache=False)\ndef one() -> int:\n    return 1\n",
            "pipelines/first.py": """
            from steps.one import one
            from zenml import pipeline

            @pipeline
            def first(text: str, count: int):
                one()
            """,
            "broken.py": "from zenml import (\n",
            ".venv/lib/a.py": "from zenml import step\n",
        }
    )
    shown = migration(".", code=1)
    assert "broken.py:1: by hand: broken.py: cannot be read" in shown.stderr
    (project.folder / "broken.py").unlink()
    said = migration(".", "--write", "--diff")
    assert "+@step(cache=False)" in said.stdout
    assert "pipelines/first.py:first plans" in said.stderr
    assert "2 files migrated, 1 of 1 pipelines plan; nothing left to do by hand" in said.stderr
    assert "zenml" in (project.folder / ".venv" / "lib" / "a.py").read_text()
    assert "0 files migrated, 1 of 1 pipelines plan" in migration(".", "--write").stderr


def test_what_is_no_python_is_refused_with_its_line(project: Any, migration: Any) -> None:
    shutil.copy(FILES / "zenml_unbalanced.txt", project.folder / "train.py")
    with pytest.raises(SourceError, match="is not Python") as refused:
        migration("train.py", "--write")
    assert refused.value.where == "train.py:6"
    assert (project.folder / "train.py").read_bytes() == (FILES / "zenml_unbalanced.txt").read_bytes()


@pytest.mark.parametrize("source", [b"def f(...):\n    pass\n", b"\xff\xfe", b"a = '\x00'\n", b"# coding: no-such\n"])
def test_what_cannot_be_read_is_refused(source: bytes) -> None:
    with pytest.raises(SourceError):
        migrate_source(source, "train.py")


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        CliRunner().invoke(migrate.command, [str(tmp_path / "none.py")], catch_exceptions=False)


def test_a_link_stays_one_and_a_mode_is_kept(tmp_path: Path) -> None:
    target, link = tmp_path / "target.py", tmp_path / "link.py"
    target.write_bytes(b"from zenml import step\n")
    target.chmod(0o750)
    link.symlink_to(target)
    CliRunner().invoke(migrate.command, [str(link), "--write"], catch_exceptions=False)
    assert link.is_symlink() and target.read_bytes() == b"from stoker import step\n"
    assert stat.S_IMODE(target.stat().st_mode) == 0o750
    assert sorted(path.name for path in tmp_path.glob("*.py")) == ["link.py", "target.py"]


@pytest.mark.parametrize("failing", ["replace", "fsync", "chmod"])
def test_a_file_is_never_half_written(failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "here" / "train.py"
    file.parent.mkdir()
    file.write_bytes(b"from zenml import step\n")

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, full)
        with pytest.raises(UsageError, match="No space left on device"):
            CliRunner().invoke(migrate.command, [str(file), "--write"], catch_exceptions=False)
    assert file.read_bytes() == b"from zenml import step\n"
    assert [path.name for path in file.parent.iterdir()] == ["train.py"]


def test_what_somebody_else_writes_meanwhile_is_not_lost(tmp_path: Path) -> None:
    file = tmp_path / "here" / "train.py"
    file.parent.mkdir()
    file.write_bytes(b"newer\n")
    with pytest.raises(StokerError, match="was changed while"):
        migrate.replace(file, b"migrated\n", expected=b"older\n")
    assert file.read_bytes() == b"newer\n"
    assert [path.name for path in file.parent.iterdir()] == ["train.py"]


def test_the_missing_package_names_the_extra(project: Any) -> None:
    project.write({"train.py": "from zenml import step\n"})
    program = "import sys; sys.modules['libcst'] = None; from stoker.cli.main import main; main()"
    refused = project.command([sys.executable, "-c", program, "migrate", "train.py"], code=4)
    assert "pip install 'stoker[migrate]'" in refused.stderr


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from zenml import step as zstep\nzstep()\n", "from stoker import step as zstep\nzstep()\n"),
        ("from zenml.steps import step\n", "from stoker import step\n"),
        ("import zenml\n", "import stoker\n"),
        ("import zenml as z\nz.step\n", "import stoker as z\nz.step\n"),
        (
            "import zenml as z, os\nz.step; z.config.DockerSettings\n",
            "import os\nimport stoker\nimport stoker.config\nstoker.step; stoker.config.DockerSettings\n",
        ),
        ("import zenml.config\nzenml.config.StepRetryConfig(1)\n", "import stoker.config\nstoker.config.Retry(1)\n"),
        ("from zenml import config\nconfig.DockerSettings()\n", "from stoker import config\nconfig.DockerSettings()\n"),
        ("if a: from zenml import step\n", "if a: from stoker import step\n"),
        ("import os; from zenml import step; a = 1\n", "import os; from stoker import step; a = 1\n"),
        (
            "from zenml import step\ndef f(step, other):\n    return step, other.step, g(step=1)\n",
            "from stoker import step\ndef f(step, other):\n    return step, other.step, g(step=1)\n",
        ),
        (
            "from zenml.logger import get_logger\nget_logger(__name__)\ndef f(get_logger):\n    return get_logger\n",
            "from logging import getLogger\ngetLogger(__name__)\ndef f(get_logger):\n    return get_logger\n",
        ),
        (
            "try:\n    from zenml.config import PythonPackageInstaller\nexcept ImportError:\n    raise\n",
            "try:\n    pass\nexcept ImportError:\n    raise\n",
        ),
        (
            "# why\nfrom zenml.config import PythonPackageInstaller\n# next\na = PythonPackageInstaller.PIP\n",
            '# why\n# next\na = "pip"\n',
        ),
        (
            "from zenml.utils.cuda_utils import cleanup_gpu_memory\ncleanup_gpu_memory(force=True)\n",
            "from stoker import cleanup_memory\ncleanup_memory()\n",
        ),
        (
            "from zenml.config import StepRetryConfig\nfrom urllib3 import Retry\nStepRetryConfig(1)\n",
            "from stoker.config import Retry as StepRetryConfig\nfrom urllib3 import Retry\nStepRetryConfig(1)\n",
        ),
        (
            "from zenml import get_step_context\ncontext = get_step_context()\n",
            "from stoker import context as step_context\ncontext = step_context\n",
        ),
        ("from zenml import (step, ArtifactConfig)\nstep()\n", "from stoker import (step,)\nstep()\n"),
        ("from zenml import step, \\\n    pipeline\n", "from stoker import step, \\\n    pipeline\n"),
        ("import metaflow as mf\nmf.FlowSpec\n", "import stoker.flow as mf\nmf.FlowSpec\n"),
        ("import metaflow\nmetaflow.FlowSpec\n", "import stoker.flow\nstoker.flow.FlowSpec\n"),
        ("from metaflow.cards import Markdown\n", "from stoker.flow.cards import Markdown\n"),
        (
            "def f():\n    from metaflow.plugins.datatools import s3\n    return s3\n",
            "def f():\n    from stoker.flow.plugins.datatools import s3\n    return s3\n",
        ),
        (
            "import metaflow.exception\nmetaflow.exception.MetaflowNotFound\n",
            "import stoker.flow.exception\nstoker.flow.exception.MetaflowNotFound\n",
        ),
        ("from metaflow.client import Flow\n", "from stoker.flow import Flow\n"),
        ("from gpu_profile import gpu_profile\n", "from gpu_profile import gpu_profile\n"),
        ("from .zenml import step\n", "from .zenml import step\n"),
        ("from zenmlish import step\n", "from zenmlish import step\n"),
    ],
)
def test_names(before: str, after: str) -> None:
    done = of(before)
    assert done.after.decode() == after
    assert not done.by_hand


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("@step(enable_cache=False)", "@step(cache=False)"),
        ("@step(name='a', enable_step_logs=True)", "@step(name='a')"),
        ("@step(enable_step_logs=True)", "@step()"),
        ("@step(step_operator='big')", "@step(step_operator='big')"),
        ("@step(retry=StepRetryConfig(max_retries=3))", "@step(retry=Retry(times=3))"),
        ("@step(retry=StepRetryConfig(max_retries=3, delay=5))", "@step(retry=Retry(times=3, delay=5, backoff=1))"),
        ("@step(retry=StepRetryConfig(delay=5, backoff=2))", "@step(retry=Retry(delay=5, backoff=2, times=1))"),
        ("@step(retry=StepRetryConfig(max_retries=3, backoff=0))", "@step(retry=Retry(times=3, backoff=1))"),
        ("@step(retry=StepRetryConfig(delay=5))", "@step(retry=Retry(delay=5, times=1, backoff=1))"),
        ("@step(retry=StepRetryConfig())", "@step(retry=Retry(times=1))"),
        (
            "@step(settings={'docker': DockerSettings(requirements=['torch', 'zenml[server]>=0.80'])})",
            "@step(settings={'docker': DockerSettings(requirements=['torch'])})",
        ),
        (
            "@step(settings={'docker': DockerSettings(requirements=['zenml'])})",
            "@step(settings={'docker': DockerSettings(requirements=[])})",
        ),
    ],
)
def test_options(before: str, after: str, project: Any) -> None:
    head = "from zenml import step\nfrom zenml.config import DockerSettings, StepRetryConfig\n\n\n"
    body = "\ndef train() -> int:\n    return 1\n"
    done = of(head + before + body)
    assert not done.by_hand
    assert done.after.decode().split("\n\n\n")[1] == after + body
    exec(compile(done.after, "train.py", "exec"), {"__name__": "train"})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from zenml import *\n", [(1, "zenml.*")]),
        ("from metaflow import *\n", [(1, "metaflow.*")]),
        ("from zenml import Model\nfrom zenml import step\n", [(1, "Model")]),
        ("import zenml\nzenml.log_metadata({})\n", [(2, "zenml.log_metadata")]),
        ("import zenml\nprint(zenml.__version__)\n", [(2, "zenml.__version__")]),
        ("import zenml\nprint(zenml)\n", [(2, "zenml")]),
        ("import metaflow\nmetaflow.Deployer\nmetaflow.FlowSpec\n", [(2, "metaflow.Deployer")]),
        ("from zenml import step\n@step(experiment_tracker='x')\ndef f(): ...\n", [(2, "experiment_tracker")]),
        ("from zenml import step\n@step(\n    rety=1,\n)\ndef f(): ...\n", [(3, "rety")]),
        (
            "from zenml import step\n@step(settings={'orchestrator.nowhere': {}, 'resorces': {}})\ndef f(): ...\n",
            [(2, "orchestrator.nowhere"), (2, "resorces")],
        ),
        ("from zenml.config import DockerSettings as D\nD(\n    copy_files=True)\n", [(3, "copy_files")]),
        ("from zenml.config import ResourceSettings as R\nR(gpus=1)\n", [(2, "gpus")]),
        (
            "from zenml import pipeline\n@pipeline\ndef p(): ...\np.with_options(config_path='a')()\n",
            [(4, "config_path")],
        ),
        ("from zenml import ArtifactConfig\nArtifactConfig(name='a', tags=['b'])\n", [(2, "ArtifactConfig")]),
        ("from zenml.config import PythonPackageInstaller as P\nlist(P)\n", [(2, "P")]),
        ("from zenml.client import Client\nClient().active_stack\n", [(2, "Client.active_stack")]),
        ("from zenml import get_step_context as g\ng().model.name\n", [(2, "context.model.name")]),
        ("from metaflow import current\nprint(current.trigger)\n", [(2, "current.trigger")]),
        ("from metaflow.plugins.x import y\n", [(1, "y")]),
        ("from metaflow import no_such_name\n", [(1, "no_such_name")]),
    ],
)
def test_what_is_left(text: str, found: list[tuple[int, str]]) -> None:
    assert left(text) == found
    assert all(len(note.message.split()) > 2 for note in of(text).by_hand)


def test_what_is_left_is_still_imported() -> None:
    assert code("import metaflow as mf\nmf.Deployer\nmf.FlowSpec\n") == (
        "import metaflow as mf\nimport stoker.flow\nmf.Deployer\nstoker.flow.FlowSpec\n"
    )
    assert code("from zenml import get_step_context as g\na = g\ng().step\n") == (
        "from zenml import get_step_context as g\nfrom stoker import context\na = g\ncontext.step\n"
    )
    assert code("from zenml import Model, step\n") == "from zenml import Model\nfrom stoker import step\n"


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_endings_and_marks_stay(ending: str, mark: bytes) -> None:
    text = ending.join(["from zenml import step", "", "é = 1  # ü", "if é:", "\tprint( é )", ""])
    done = migrate_source(mark + text.encode(), "train.py")
    assert done.after == mark + text.replace("zenml", "stoker").encode()


def test_another_encoding_stays() -> None:
    text = "# -*- coding: latin-1 -*-\nfrom zenml import step\nname = 'é'\n"
    assert migrate_source(text.encode("latin-1"), "a.py").after == text.replace("zenml", "stoker").encode("latin-1")


def test_hints_and_differences_are_no_work() -> None:
    done = migrate_source((FILES / "zenml_cleanup.py").read_bytes(), "a.py")
    assert [(note.line, note.level) for note in done.notes] == [(8, "hint")]


def test_the_table_of_flows_is_that_of_the_page(repository: Path) -> None:
    page = (repository / "docs" / "flows.md").read_text(encoding="utf-8")
    rows = {name: (state, told.strip()) for name, state, told in ROW.findall(page)}
    assert rows == dict(migration_metaflow.NAMES), "write the page's rows to migrate/metaflow.json"
    assert list(rows) == list(migration_metaflow.NAMES), "the rows' order says what 'as above' means"


def test_advice_repeats_what_stands_above() -> None:
    assert not [name for name in migration_metaflow.NAMES if "as above" in migration_metaflow.advice(name)]
    assert migration_metaflow.advice("DeployedFlow") == migration_metaflow.advice("Deployer")


def test_every_target_is_there() -> None:
    for name, (module, target) in migration_zenml.TARGETS.items():
        assert hasattr(__import__(module, fromlist=[target]), target), name
    for name in migration_metaflow.NAMES:
        fate = fate_of(f"metaflow.{name}")
        assert fate.kind == "gone" or fate.name in stoker.flow.__all__
    for name in migration_zenml.OPTIONS.values():
        assert name in PipelineOptions.__optional_keys__
    assert hasattr(stoker, "context") and hasattr(stoker.config, "Retry")


def test_skypilots_settings_change_their_import_and_nothing_else() -> None:
    before = (FILES / "zenml_skypilot.py").read_text()
    imports = (
        ("from zenml import", "from stoker import"),
        ("from zenml.integrations.skypilot.flavors.skypilot_orchestrator_aws_vm_flavor", IMPORTED),
    )
    for old, new in imports:
        before = before.replace(old, new)
    assert migrate_source((FILES / "zenml_skypilot.py").read_bytes(), "train.py").after.decode() == before
    noted = of(
        """
        from zenml.integrations.skypilot.flavors import SkypilotGCPOrchestratorSettings
        settings = SkypilotGCPOrchestratorSettings(cpus="2", stream_logs=False)
        """
    )
    assert [(note.name, note.level) for note in noted.notes] == [("stream_logs", "by hand")]


IMPORTED = "from stoker.integrations.skypilot.flavors"


def test_a_run_configuration_gets_stokers_words_and_says_what_is_left(project: Any, migration: Any) -> None:
    before = (FILES / "zenml_configuration.yaml").read_text()
    of_another = "enable_cache: true\nport: 80\nsettings: {colour: red}\n"
    project.write({"configs/run.yaml": before, "app.yaml": of_another, "jinja.yaml": "settings: {%- if x %}\n"})
    document = json.loads(migration(".", "--json", "--write").stdout)
    notes = {one["file"]: [(note["line"], note["name"]) for note in one["notes"]] for one in document["files"]}
    assert notes == {
        "configs/run.yaml": [
            (5, "run_name"),
            (11, "required_integrations"),
            (13, "orchestrator.vertex"),
            (15, "license"),
            (23, "rate"),
        ],
        "jinja.yaml": [(1, "jinja.yaml")],
    }
    after = (project.folder / "configs/run.yaml").read_text()
    lines = list(difflib.ndiff(before.splitlines(), after.splitlines()))
    assert [line[2:].strip() for line in lines if line[0] == "-"] == [
        "enable_cache: false  # each time anew",
        "enable_step_logs: true",
        "execution_mode: continue_on_failure",
        "- zenml[server]>=0.80  # the framework",
        "enable_cache: true",
        "retry: {max_retries: 2, delay: 1}",
        "enable_artifact_metadata: false",
        "load: {enable_step_logs: true, enable_cache: true, settings: {docker: {requirements: [zenml, pandas]}}}",
    ]
    assert [line[2:].strip() for line in lines if line[0] == "+"] == [
        "cache: false  # each time anew",
        "failure_mode: continue",
        "cache: true",
        "retry: {times: 2, delay: 1}",
        "load: {cache: true, settings: {docker: {requirements: [pandas]}}}",
    ]
    assert (project.folder / "app.yaml").read_text() == of_another
    ours, theirs = read_run_configuration(project.folder / "configs/run.yaml"), yaml.safe_load(before)
    assert options_of(ours.options_of("train"), step=True)[0]["cache"] is theirs["steps"]["train"]["enable_cache"]
    assert options_of(ours.options_of("train"), step=True)[0]["retry"].times == 2
    assert options_of(ours.options, step=False)[0]["failure_mode"] == "continue"
