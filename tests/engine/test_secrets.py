"""A secret reaches the step, and nothing else: whole runs, with everything searched that they leave behind."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.conftest import SPAWN

VALUE = "hf_Very-Secret_0123456789"
MASKED = "***env:HF_TOKEN***"
SCRIPT = """
import base64, os, sys
from stoker import Secret, pipeline, step
from stoker.config import Command

@step(environment={"HF": Secret.env("HF_TOKEN")}, cache=False)
def use(token: str, other: str = Secret.env("HF_TOKEN")) -> int:
    assert type(token) is str and token == other == os.environ["HF"]
    print("token", token, base64.b64encode(token.encode()).decode())
    sys.stderr.write("in pieces " + token[:9]); sys.stderr.flush()
    sys.stderr.write(token[9:] + "\\n")
    print("x" * 70000 + " " + token)
    sys.stdout.write(token * 60_000 + "\\n")  # longer than a line may be: it is cut
    return len(token)

TWO = Command([sys.executable, "spawn.py"], num_processes=2)

@step(cache=False, environment={"HF": "secret:env:HF_TOKEN"}, launch=TWO)
def ranks(token: str) -> int:
    print("rank has", token, os.environ["HF"])
    sys.stdout.write(token * 60_000 + "\\n")
    return 1

@step(cache=False)
def fail(token: str):
    try:
        raise KeyError(token)
    except KeyError:
        raise ValueError(f"bad {token}")

@step
def cached(token: str) -> int:
    return 1

@pipeline
def steps(token: str = Secret.env("HF_TOKEN"), way: str = "use"):
    use(token)
    if way == "ranks":
        ranks(token)
    if way == "fail":
        fail(token)
    if way == "cached":
        cached(token)
    print(f"the driver has {token}")

if __name__ == "__main__":
    steps()
"""


def written(folder: Path) -> list[str]:
    """The files below a folder that contain the value."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and VALUE.encode() in path.read_bytes():
            found.append(str(path))
    return found


@pytest.fixture
def script(project: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HF_TOKEN", VALUE)
    return project.write({"steps.py": SCRIPT, "spawn.py": SPAWN})


def test_the_value_is_in_the_step_and_nowhere_else(script: Any, tmp_path: Path) -> None:
    for way, code in (("fail", 1), ("cached", 0)):
        ran = script.run("steps.py", "--way", way, code=code)
        assert "the driver has secret:env:HF_TOKEN" in ran.stdout
        assert VALUE not in ran.stdout + ran.stderr and "***env:HF_TOKEN***" in ran.stderr
    run = script.client().runs()[0]
    assert run.parameters["token"] == "secret:env:HF_TOKEN"
    texts = [line.text for line in run.steps["use"].logs()]
    assert masked_values(texts) == 60_004 and sum(map(len, texts)) < 60_004 * len(MASKED) + 100_000
    for command in (("show", "last", "--json"), ("runs", "--json"), ("logs", "last", "use")):
        assert VALUE not in script.stoker(*command).stdout
    planned = script.stoker("plan", "steps.py", "--json").stdout
    assert "secret:env:HF_TOKEN" in planned and VALUE not in planned
    assert VALUE not in script.stoker("plan", "steps.py", "--render", "--explain").stdout
    assert "token ← secret:env:HF_TOKEN" in script.stoker("plan", "steps.py").stdout
    assert written(tmp_path) == []
    # The cache key has the reference: another value is no reason to run again, another version is.
    other = {"HF_TOKEN": "another-value-of-it"}
    assert "cached" in script.run("steps.py", "--way", "cached", env=other).stderr.split("✓ steps")[0]
    again = script.run("steps.py", "--way", "cached", "--token", "secret:env:HF_TOKEN#2").stderr
    assert "≡ cached" not in again


def test_ranks_and_the_drivers_own_process_get_it(script: Any, tmp_path: Path) -> None:
    script.run("steps.py", "--way", "ranks")
    lines = [line.text for line in script.client().runs()[0].steps["ranks"].logs()]
    assert lines.count(f"rank has {MASKED} {MASKED}") == 2 and masked_values(lines) == 2 * 60_002
    ran = script.run("steps.py", "--debug")
    assert VALUE not in ran.stdout + ran.stderr and f"token {MASKED} {MASKED}" in ran.stdout
    assert f"in pieces {MASKED}" in ran.stderr
    assert written(tmp_path) == []


def masked_values(texts: list[str]) -> int:
    """How many masked values lines have, which the log has cut where they are too long; no part of one is left."""
    together = "".join(text.removesuffix("…") for text in texts)
    assert VALUE[:6] not in together and VALUE[-6:] not in together
    return together.count(MASKED)


def test_a_missing_secret_is_refused_before_anything_runs(script: Any) -> None:
    for command in (("steps.py",), ("-m", "stoker", "plan", "steps.py")):
        ran = script.run(*command, env={"HF_TOKEN": ""}, code=3)
        refused = ran.stdout + ran.stderr
        assert "STK194" in refused and "environment variable HF_TOKEN" in refused and "export HF_TOKEN" in refused
    assert not script.client().runs()


def test_a_plain_value_that_looks_like_a_secret_is_said_in_plan_and_run(script: Any) -> None:
    plain = "plain-value-0123"
    ran = script.run("steps.py", "--token", plain, code=1)
    planned = script.stoker("plan", "steps.py", "--token", plain, "--explain").stdout
    for text in (ran.stderr, planned):
        assert "STK195 warning" in text and 'Secret.env("TOKEN")' in text
    shown = planned.partition("steps: ")[2]  # behind what the script itself prints
    assert plain not in shown and "token ← ***" in shown and 'environment.HF = "secret:' in shown


def test_a_secret_inside_of_a_list_is_refused(project: Any) -> None:
    script = """
    from stoker import Secret, pipeline, step

    @step
    def use(tokens: list) -> int:
        return 1

    @pipeline
    def steps():
        use([Secret.env("HOME")])

    if __name__ == "__main__":
        steps()
    """
    refused = project.write({"listed.py": script}).run("listed.py", code=2).stderr
    assert "secret:env:HOME" in refused and "argument of its own" in refused


FLOW = """
import os
from stoker.flow import FlowSpec, Parameter, Secret, environment, step

class Keeps(FlowSpec):
    token = Parameter("token", default=Secret.env("HF_TOKEN"))
    file = Parameter("file", type=str)

    @environment(vars={"HF": Secret.env("HF_TOKEN")})
    @step
    def start(self):
        assert self.token == os.environ["HF"] and type(self.token) is str and self.file == "from-a-file-0123"
        print("flow", self.token, self.file)
        self.next(self.end)

    @step
    def end(self):
        assert "HF" not in os.environ

if __name__ == "__main__":
    Keeps()
"""


def test_a_flow_has_them_as_parameters_and_variables(script: Any, tmp_path: Path) -> None:
    script.write({"keeps.py": FLOW, "secret-file": "from-a-file-0123\n"})
    ran = script.run("keeps.py", "run", "--file", "secret:file:secret-file")
    assert "flow ***env:HF_TOKEN*** ***file:secret-file***" in ran.stderr
    assert written(tmp_path) == [] and VALUE not in script.stoker("show", "last", "--json").stdout
    assert os.environ["HF_TOKEN"] == VALUE


NAMED = """
import contextlib, glob, logging, sys
from stoker import Client, Secret, pipeline, step

@step(environment={"HUB": Secret.named("hub", "token")}, cache=False)
def use(token: str, way: str) -> int:
    import os
    hub, own = Client().secret("hub"), Client().secret("own").value
    assert token == os.environ["HUB"] == hub.secret_values["token"] and hub.secret_values["user"] == "me-of-the-hub"
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        with contextlib.suppress(OSError), open(path, "rb") as file:  # a process may be gone
            assert token.encode() not in file.read()
    print("hub", token, hub)
    sys.stdout.write("own " + own[:9]); sys.stdout.flush(); print(own[9:])
    logging.warning("logged %s", own)
    if way == "fail":
        raise ValueError(f"bad {own}") from KeyError(token)
    return 1

@step(cache=False)
def then(before: int) -> str:
    return Client().secret("own").name

@pipeline
def steps(token: str = Secret.named("hub", "token"), way: str = "use"):
    then(use(token, way))

if __name__ == "__main__":
    steps()
"""
RING = """
import keyrings.alt.file

class Ring(keyrings.alt.file.PlaintextKeyring):
    priority = 5
"""


@pytest.mark.parametrize("place", ["file", pytest.param("keyring", marks=pytest.mark.long)])
def test_a_secret_by_name_is_in_the_step_and_nowhere_else(
    place: str, project: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = {"file": "keyring.backends.fail.Keyring", "keyring": "ring.Ring"}[place]
    rings = tmp_path / "rings"
    rings.mkdir()
    (rings / "ring.py").write_text(RING)
    for name, text in (
        ("PYTHON_KEYRING_BACKEND", backend),
        ("PYTHONPATH", str(rings)),
        ("XDG_DATA_HOME", str(tmp_path / "data")),
        ("XDG_CONFIG_HOME", str(tmp_path / "config")),
    ):
        monkeypatch.setenv(name, text)
    project.write({"named.py": NAMED, "own": f"{VALUE}\n"})
    refused = project.run("named.py", code=3).stderr
    assert "neither this machine has it" in refused and "stoker secret set hub --field token" in refused
    ran = [
        project.stoker("secret", "set", "hub", "--field", "user", "-", input="me-of-the-hub\n"),
        project.stoker("secret", "set", "hub", "--field", "token", "-", input=VALUE),
        project.stoker("secret", "set", "own", "--file", "own"),
    ]
    (project.folder / "own").unlink()
    ran += [project.run("named.py"), project.run("named.py", "--way", "fail", code=1)]
    ran += [project.run("named.py", "--debug", "--way", "fail", code=1)]
    for one in ran[3:]:
        assert "*** <secret hub>" in one.stdout + one.stderr
        assert one.stderr.count("logged ***named:") == 1 and (one.stdout + one.stderr).count("own ***named:") == 1
    assert "ValueError: bad ***named:" in ran[4].stderr
    for command in (
        ("show", "last", "--json"),
        ("logs", "last", "use"),
        ("plan", "named.py", "--json"),
        ("plan", "named.py", "--render", "--explain"),
        ("report", "last", "-o", "run.html"),
        ("secret", "list"),
        ("secret", "list", "--json"),
    ):
        ran.append(project.stoker(*command))
    assert not [one.args for one in ran if VALUE in one.stdout + one.stderr]
    assert written(tmp_path) == []
    where = "the keyring" if place == "keyring" else f"{project.home}/secrets-{os.geteuid()}.json"
    hub, own = json.loads(ran[-1].stdout)
    assert (hub["name"], hub["fields"], hub["where"], own["fields"]) == ("hub", ["token", "user"], where, [])
    kept = [*(tmp_path / "data").rglob("*.cfg"), *project.home.glob("secrets-*.json")]
    assert all(path.stat().st_mode & 0o077 == 0 for path in [*kept, *(tmp_path / "config").rglob("secret.key")])
    for name in ("hub", "own"):
        project.stoker("secret", "rm", name, "--yes")
    assert "no secrets are kept here" in project.stoker("secret", "list").stderr
    assert not any("hub" in path.read_text() for path in kept)
