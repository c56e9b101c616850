"""examples/plugin, installed by pip as a folder that is edited and from its wheel: each of its parts is used."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import textwrap
from pathlib import Path

import attrs
import pytest

TYPO = "AcmeSettings has no field 'open_file', did you mean 'open_files'"


@attrs.frozen
class Installed:
    """An environment with the plugin in it, and a copy of the plugin's folder."""

    python: str
    folder: Path
    home: Path

    def run(self, *argv: str, code: int = 0) -> str:
        """`python argv…` in the folder; "stoker" as the first word is that program. All that it printed."""
        line = [self.python, *argv]
        if argv[0] == "stoker":
            line = [self.python, "-m", *argv]
        environment = {**os.environ, "STOKER_HOME": str(self.home)}
        finished = subprocess.run(
            line,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert finished.returncode == code, finished.stdout
        return finished.stdout

    def write(self, name: str, text: str) -> None:
        """A file of the folder."""
        (self.folder / name).write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")


@pytest.fixture(scope="module", params=[pytest.param("editable", marks=pytest.mark.long), "wheel"])
def plugin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Installed:
    """The plugin, installed into an environment that has this one's packages beneath."""
    root = tmp_path_factory.mktemp(request.param)
    folder = root / "plugin"
    shutil.copytree(repository / "examples" / "plugin", folder)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root / "venv")], check=True)
    [packages] = (root / "venv").glob("lib/python*/site-packages")
    beneath = site.getsitepackages()[0]
    (packages / "beneath.pth").write_text(f"import site; site.addsitedir({beneath!r})\n")
    python = str(root / "venv" / "bin" / "python")
    what = ["--editable", str(folder)]
    if request.param == "wheel":
        # The wheel is built of a copy, so that nothing of the folder can be imported by accident.
        pip(python, "wheel", "--no-deps", "--wheel-dir", str(root / "wheels"), str(folder))
        shutil.rmtree(folder / "src")
        what = [str(next((root / "wheels").glob("stoker_acme-*.whl")))]
    pip(python, "install", "--no-deps", *what)
    return Installed(python=python, folder=folder, home=root / "home")


def pip(python: str, *argv: str) -> None:
    """Run pip in an environment; what builds the wheel is among this environment's packages."""
    line = [python, "-m", "pip", "--disable-pip-version-check", argv[0], "--no-build-isolation", *argv[1:]]
    finished = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert finished.returncode == 0, finished.stdout


def test_backend_launcher_and_serializer_run_a_pipeline(plugin: Installed) -> None:
    shown = plugin.run("train.py").splitlines()[-1]
    ranks = "['rank 0 of 2 got 3 points', 'rank 1 of 2 got 3 points']"
    assert shown == f"acme-curve {ranks} 2 ranks, at most 256 files"


def test_the_backend_is_a_line_of_doctor(plugin: Installed) -> None:
    assert any(line.split()[1:] == ["acme", "/bin/sh"] for line in plugin.run("stoker", "doctor").splitlines())


@pytest.mark.parametrize("place", ["decorator", "stoker.toml", "--set"])
def test_a_mistyped_setting_is_refused_with_a_suggestion(plugin: Installed, place: str) -> None:
    files = {name: (plugin.folder / name).read_text(encoding="utf-8") for name in ("train.py", "stoker.toml")}
    argv = ["train.py"]
    try:
        if place == "decorator":
            plugin.write("train.py", files["train.py"].replace('"open_files"', '"open_file"'))
        elif place == "stoker.toml":
            plugin.write("stoker.toml", files["stoker.toml"].replace("open_files", "open_file"))
        else:
            argv += ["--set", "orchestrator.acme.open_file=256"]
        assert TYPO in plugin.run(*argv, code=2)
    finally:
        for name, text in files.items():
            plugin.write(name, text)


def test_the_rule_refuses_and_explains(plugin: Installed) -> None:
    plugin.write(
        "gpus.py",
        """
        from stoker import pipeline, step
        from stoker.config import ResourceSettings

        @step(resources=ResourceSettings(gpu_count=1), cache=False)
        def train() -> int:
            return 1

        @pipeline(stack="local")
        def training():
            train()

        if __name__ == "__main__":
            training()
        """,
    )
    refused = plugin.run("stoker", "run", "gpus.py", "--simulate", "1xL4", code=3)
    assert "ACME101 error" in refused and 'fix: add a limit, such as timeout="2h"' in refused
    plugin.run("stoker", "run", "gpus.py", "--simulate", "1xL4", "--set", "steps.train.timeout=2h")
    assert "At Acme every step with a GPU has a time limit" in plugin.run("stoker", "explain", "ACME101")


def test_the_command_is_found_and_listed(plugin: Installed) -> None:
    assert plugin.run("stoker", "acme-hello", "--name", "Ada") == "Acme greets Ada\n"
    assert "acme-hello" in plugin.run("stoker", "--help")
    assert "did you mean 'acme-hello'" in plugin.run("stoker", "acme-helo", code=2)


def test_devices_of_the_vendor_are_leased_shown_and_accounted_for(plugin: Installed) -> None:
    plugin.write(
        "anvils.py",
        """
        import os

        from stoker import pipeline, step
        from stoker.config import ResourceSettings

        @step(resources=ResourceSettings(accelerators="Anvil:2"), timeout="2h", cache=False)
        def forge() -> int:
            return len(os.environ["ACME_VISIBLE_ANVILS"].split(","))

        @pipeline(stack="local")
        def forging():
            forge()

        if __name__ == "__main__":
            run = forging()
            receipt = run.steps["forge"].receipt
            print(run.steps["forge"].output.load(), [device.model for device in receipt.devices])
        """,
    )
    assert plugin.run("anvils.py", "--simulate", "2xAnvil").splitlines()[-1] == "2 ['Anvil', 'Anvil']"
    assert "Anvil" in plugin.run("stoker", "devices", "--simulate", "2xAnvil")
    assert "STK103" in plugin.run("anvils.py", code=3)
    assert "did you mean 'Anvil'" in plugin.run(
        "anvils.py", "--set", "steps.forge.resources.accelerators=Anvl:2", code=2
    )


def test_the_cause_explains_a_failure_and_says_that_it_is_tried_again(plugin: Installed) -> None:
    plugin.write(
        "tokens.py",
        """
        from stoker import context, pipeline, step
        from stoker.config import Retry

        class AcmeError(Exception):
            pass

        @step(retry=Retry(1, on="tokens-spent", delay=0), cache=False)
        def simulate() -> int:
            if context.attempt == 1:
                raise AcmeError("no token is left")
            return context.attempt

        @pipeline(stack="local")
        def simulating():
            simulate()

        if __name__ == "__main__":
            run = simulating()
            failure = run.steps["simulate"].attempts[0].failure
            print(run.steps["simulate"].output.load(), failure.cause, failure.why)
        """,
    )
    shown = plugin.run("tokens.py").splitlines()[-1]
    assert shown == "2 tokens-spent every token of Acme's simulator is in use"
