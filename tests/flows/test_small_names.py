"""What Metaflow has beside flows: exit hooks, secrets by their sources' names, parsers, several CPUs, notebooks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import botocore.session
import nbformat
import pytest
from nbclient import NotebookClient
from tests.servers import s3 as servers
from tests.servers.s3 import s3_server  # noqa: F401

from stoker.core.errors import SettingsError
from stoker.flow import (
    conda_environment_yml_parser,
    namespaced_event_name,
    parallel_imap_unordered,
    parallel_map,
    profile,
    pyproject_toml_parser,
    requirements_txt_parser,
    yaml_parser,
)
from stoker.flow.integrations import ArgoEvent
from stoker.flow.multicore_utils import MulticoreException
from stoker.flow.plugins.pypi.parsers import ParserValueError
from stoker.flow.plugins.secrets.secrets_func import get_secret
from stoker.flows.secretsources import read_secrets

HOOKED = """
from stoker.flow import FlowSpec, Parameter, exit_hook, package_sources, schedule, step, trigger, trigger_on_finish
from stoker.flow import airflow_s3_key_sensor, namespaced_event_name

def good(run):
    print("good", run.successful, run.data.x, run.pathspec.partition("/")[0])

def bad():
    print("bad")

def breaks(run):
    raise ValueError("in a hook")

@trigger(event={"name": namespaced_event_name("data"), "parameters": {"fail": "f"}})
@schedule(daily=True)
@airflow_s3_key_sensor(bucket_key="a/b")
@package_sources("../shared")
@exit_hook(on_success=[breaks, "good"], on_error=[bad])
@exit_hook(on_error=["bad"])
class Hooked(FlowSpec):
    fail = Parameter("fail", default=False)

    @step
    def start(self):
        self.x = 1
        self.next(self.end)

    @step
    def end(self):
        assert not self.fail

if __name__ == "__main__":
    Hooked()
"""


def test_exit_hooks_are_called_with_the_run_and_other_decorators_of_deployments_are_noted(project: Any) -> None:
    project.write({"hooked.py": HOOKED})
    ran = project.run("hooked.py", "run")
    assert ran.stdout == "good True 1 Hooked\n"
    assert "exit hook breaks of run" in ran.stderr and "ValueError: in a hook" in ran.stderr
    assert project.stoker("run", "hooked.py", "--fail", "true", code=1).stdout == "bad\nbad\n"
    assert project.run("hooked.py", "resume", code=1).stdout == "bad\nbad\n"
    assert project.run("hooked.py", "run", "--no-such", "1", code=2).stdout == ""
    twice = HOOKED.replace("@schedule", "@trigger_on_finish(flow='A', flows=['B'])\n@schedule")
    project.write({"twice.py": twice})
    assert "it says flow and flows" in project.run("twice.py", "show", code=2).stderr


def test_parsers_make_the_words_of_decorators() -> None:
    assert yaml_parser("a: [1, 2]") == {"a": [1, 2]}
    text = "# all\nnumpy==1.26.4\nrequests[socks]>=2  # why\nlib @ git+https://h/lib\npython==3.11\n-e file:.\n"
    assert requirements_txt_parser(text) == {
        "packages": {"numpy": "1.26.4", "requests[socks]": ">=2", "lib@git+https://h/lib": ""},
        "python": "3.11",
    }
    project = '[project]\nrequires-python = ">=3.10"\ndependencies = ["attrs>=22", "six"]\n'
    assert pyproject_toml_parser(project) == {"packages": {"attrs": ">=22", "six": ""}, "python": ">=3.10"}
    conda = "name: x\nchannels:\n- forge\ndependencies:\n  - python=3.10\n  - numpy>=1.2 # n\n  - ffmpeg\n"
    assert conda_environment_yml_parser(conda) == {"packages": {"numpy": ">=1.2", "ffmpeg": ""}, "python": "3.10"}
    for parser, wrong in (
        (requirements_txt_parser, "six; python_version < '3'"),
        (requirements_txt_parser, "a b"),
        (pyproject_toml_parser, '[project]\ndependencies = ["six=1"]'),
        (conda_environment_yml_parser, "dependencies:\n- pip:\n  - six"),
    ):
        with pytest.raises(ParserValueError):
            parser(wrong)


def test_several_cpus_take_closures_and_tell_failures(capfd: pytest.CaptureFixture[str]) -> None:
    factor = 3
    assert parallel_map(lambda x: (x * factor, os.getpid() != parent), range(9), max_parallel=4) == [
        (x * 3, True) for x in range(9)
    ]
    assert sorted(parallel_imap_unordered(lambda x: x + 1, iter([3, 1]))) == [2, 4]
    with pytest.raises(MulticoreException, match="ZeroDivisionError"):
        parallel_map(lambda x: 1 // x, [1, 0], max_parallel=1)
    assert "ZeroDivisionError" in capfd.readouterr().err
    with pytest.raises(MulticoreException, match="it was ended"):
        parallel_map(lambda x: os.kill(os.getpid(), 9), [1])
    times: dict[str, int] = {}
    with profile("a", stats_dict=times), profile("b"):
        pass
    assert times["a"] >= 0 and "PROFILE: b completed in" in capfd.readouterr().out


parent = os.getpid()


def test_events_are_told_where_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    event = ArgoEvent(namespaced_event_name("data")).add_to_payload("x", 1)
    assert event.safe_publish() is None and event.publish() is None
    told = capsys.readouterr().err
    assert "Argo event mfns.data was not published" in told and "METAFLOW_ARGO_EVENTS_WEBHOOK_URL" in told


def test_secrets_are_named_by_their_sources(
    s3_server: servers.S3,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GIVEN", "x")
    inline = {"type": "inline", "id": "1", "options": {"env_vars": {"A_1": "v"}}}
    assert get_secret(inline) == {"A_1": "v"} and get_secret("env:GIVEN") == {"GIVEN": "x"}
    for wrong, said in (
        ("gcp-secret-manager.x", "not read here"),
        ("vault.x", "no type of secrets"),
        ("plain", "has no type"),
        ({"type": "inline", "options": {"env_vars": {"METAFLOW_X": "v"}}}, "a variable of Stoker's"),
        ({"type": "inline", "options": {"env_vars": {"a-b": "v"}}}, "no variable's name"),
    ):
        with pytest.raises(SettingsError, match=said):
            get_secret(wrong)
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    client = botocore.session.get_session().create_client("secretsmanager")
    client.create_secret(Name="db", SecretString='{"db-user": "me", "port": 1}')
    client.create_secret(Name="key.pem", SecretString="text")
    monkeypatch.setenv("METAFLOW_DEFAULT_SECRETS_BACKEND_TYPE", "aws-secrets-manager")
    assert get_secret("aws-secrets-manager.db") == {"db_user": "me", "port": "1"} == get_secret("db")
    assert get_secret({"id": "key.pem", "options": {"json": False}}) == {"key_pem": "text"}
    with pytest.raises(SettingsError, match="no JSON object"):
        get_secret({"id": "key.pem"})
    with pytest.raises(SettingsError, match=r"cannot be read.*ResourceNotFound"):
        get_secret("absent")
    monkeypatch.setenv("A_1", "another")
    with pytest.raises(SettingsError, match="set to something else already"):
        read_secrets([inline])
    assert read_secrets([inline], allow_override=True) == {"A_1": "v"}


NOTEBOOK = (
    "import math\nfrom stoker.flow import FlowSpec, NBRunner, Parameter, step\nunused = open('no.txt', 'w')",
    "BASE = 2 + int(math.pi)\ndef double(x):\n    return x * BASE",
    """class Celled(FlowSpec):
    n = Parameter("n", default=1)

    @step
    def start(self):
        self.x = double(self.n)
        self.next(self.end)

    @step
    def end(self):
        pass

run = NBRunner(Celled, show_output=False).nbrun(n=4)""",
    "import os\nassert run.data.x == 20, run\nassert not [name for name in os.listdir() if name.startswith('Celled')]",
)


def test_a_flow_of_cells_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in NOTEBOOK])
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    (tmp_path / "no.txt").unlink()
