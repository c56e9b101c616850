"""docs/flows.md says of every name of Metaflow's what became of it, and tells the truth."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import stoker.flow
from stoker.core.errors import RefusedName
from stoker.migrate.metaflow import HOMES, homes_of

METAFLOW = """
FlowSpec step current Parameter JSONType JSONTypeClass IncludeFile Config ConfigValue config_expr user_step_decorator
UserStepDecorator USER_SKIP_STEP StepMutator FlowMutator resources kubernetes batch retry catch timeout environment
secrets card cards parallel pytorch_parallel pypi conda pypi_base conda_base project schedule trigger trigger_on_finish
exit_hook airflow_external_task_sensor airflow_s3_key_sensor Metaflow Flow Run Step Task DataArtifact namespace
get_namespace default_namespace metadata get_metadata default_metadata inspect_spin Runner NBRunner Deployer
DeployedFlow NBDeployer S3 datatools parallel_map parallel_imap_unordered profile package_sources namespaced_event_name
yaml_parser requirements_txt_parser pyproject_toml_parser conda_environment_yml_parser
""".split()
"""What `from metaflow import …` has in 2.19.39: the names that its `__init__` imports, and those that its table of
plugins adds, without those that it calls internal."""
EXTENSIONS = """
checkpoint Checkpoint gpu_profile torchrun accelerate deepspeed mpi uv metaflow_ray model load_model huggingface_hub
tensorboard nim
""".split()
ROW = re.compile(r"^\| `(\w+)` \| (works|works differently|not here) \|(.*)\|$", re.MULTILINE)
OWN = re.compile(r"^\| `(\w+)` \| ([^|]+) \|$", re.MULTILINE)


@pytest.fixture
def page(repository: Path) -> str:
    return (repository / "docs" / "flows.md").read_text(encoding="utf-8")


def test_every_name_stands_there_once(page: str) -> None:
    names = [name for name, _, _ in ROW.findall(page)]
    assert sorted(names) == sorted([*METAFLOW, *EXTENSIONS])
    assert "2.19.39" in page


def test_the_table_tells_the_truth(page: str) -> None:
    here = {name for name, state, _ in ROW.findall(page) if state != "not here"}
    own = {name for name, _ in OWN.findall(page.partition("Stoker's own:")[2])}
    assert here | own == set(stoker.flow.__all__)
    assert not here & own


def test_what_differs_or_is_missing_says_how(page: str) -> None:
    silent = [name for name, state, told in ROW.findall(page) if state != "works" and len(told.split()) < 2]
    assert not silent


def test_every_name_is_there_and_described() -> None:
    for name in stoker.flow.__all__:
        found = getattr(stoker.flow, name)
        assert found is not None and found.__doc__, name
    assert set(stoker.flow.__all__) <= set(dir(stoker.flow))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = stoker.flow.no_such_name


@pytest.mark.parametrize("module", sorted(HOMES))
def test_every_served_module_has_the_names_of_its_table(module: str) -> None:
    served = importlib.import_module(f"stoker.flow.{module}")
    assert set(homes_of(module)) == set(served.__all__) <= set(dir(served))
    assert all(hasattr(served, name) for name in served.__all__)


def test_names_that_are_not_here_say_what_is() -> None:
    with pytest.raises(RefusedName, match=r"metaflow\.Deployer is not here: there is no deployer"):
        exec("from stoker.flow import Deployer")
    with pytest.raises(RefusedName, match=r"metaflow\.client\.nothing is not here"):
        exec("from stoker.flow.client import nothing")
    from stoker.flow import client

    assert client.__name__ == "stoker.flow.client"
    # Whoever looks through all modules, as pickle does, catches nothing else.
    for module in (client, stoker.flow):
        with pytest.raises(AttributeError, match=r"metaflow\.(client\.)?Deployer is not here"):
            _ = module.Deployer
    with pytest.raises(ModuleNotFoundError, match=r"stoker\.flow\.nothing"):
        exec("import stoker.flow.nothing")
