"""What `@pypi`, `@conda` and `@uv` of steps and classes come to: which word goes before, and where each comes from."""

# A decorator of a flow takes any words and returns what it decorates, which its type does not say.
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import json
from typing import Any

import pytest

from stoker.core.errors import SettingsError
from stoker.flow import FlowSpec, conda, conda_base, pypi, pypi_base, step, uv
from stoker.flows.definition import FlowDefinition


@pypi_base(packages={"six": "1.14.0", "tiny": "1"}, python="3.11", sources=["https://base"])
class Base(FlowSpec):
    @step
    def start(self) -> None:
        self.next(self.own)

    @pypi(packages={"Six": "1.15.0"}, extra_indices=["https://a"], sources=["https://b"], index_url="https://i")
    @step
    def own(self) -> None:
        self.next(self.without)

    @pypi(disabled=True)
    @step
    def without(self) -> None:
        self.next(self.mixed)

    @conda(libraries={"ffmpeg": "5", "old": "1"}, packages={"ffmpeg": "6"}, channels=["bioconda"])
    @uv(packages={"tiny": "2"})
    @step
    def mixed(self) -> None:
        self.next(self.end)

    @step
    def end(self) -> None:
        pass


@conda_base(packages={"ffmpeg": "7"}, disabled=True)
@pypi_base(packages={"tiny": "3"})
class Derived(Base):
    pass


def asked(flow: FlowDefinition, name: str) -> Any:
    """What a step's layers say of packages."""
    return next(layer for layer in flow.options[name].layers if "packages" in layer.values)


def test_a_step_goes_before_its_class() -> None:
    flow = FlowDefinition(Base)
    base = {"pypi": {"six": "1.14.0", "tiny": "1"}, "python": "3.11", "extra_index_urls": ["https://base"]}
    assert asked(flow, "start").values["packages"] == base
    own = asked(flow, "own")
    assert own.values["packages"] == {
        **base,
        "pypi": {"six": "1.15.0", "tiny": "1"},
        "extra_index_urls": ["https://a", "https://b"],
        "index_url": "https://i",
    }
    assert own.origins["packages.pypi.six"].endswith("@pypi")
    assert own.origins["packages.pypi.tiny"].endswith("@pypi_base")
    assert asked(flow, "without").values["packages"] == {**base, "disabled": True}
    mixed = asked(flow, "mixed").values["packages"]
    assert mixed["conda"] == {"ffmpeg": "6", "old": "1"} and mixed["channels"] == ["bioconda", "conda-forge"]
    assert mixed["pypi"] == {"six": "1.14.0", "tiny": "2"}


def test_a_class_goes_before_its_base() -> None:
    found = asked(FlowDefinition(Derived), "start").values["packages"]
    assert found["pypi"] == {"six": "1.14.0", "tiny": "3"}
    assert found["disabled"] is True, "one kind that is disabled is enough"
    enabled = asked(FlowDefinition(Derived, without=["conda"]), "start").values["packages"]
    assert "disabled" not in enabled and "conda" not in enabled
    nothing = FlowDefinition(Derived, without=["pypi", "conda_base"])
    assert not any("packages" in layer.values for layer in nothing.options["start"].layers)


def test_environments_are_of_the_whole_flow() -> None:
    layers = FlowDefinition(Base, environment="pypi").layers
    assert [layer.values for layer in layers if "packages" in layer.values] == [{"packages": {"environment": "pypi"}}]
    assert not any("packages" in layer.values for layer in FlowDefinition(Base).layers)
    with pytest.raises(SettingsError, match="not one of local, pypi, conda, uv"):
        _ = FlowDefinition(Base, environment="docker").layers


def test_channels_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    class Channels(FlowSpec):
        @conda(packages={"ffmpeg": ""})
        @step
        def start(self) -> None:
            self.next(self.end)

        @step
        def end(self) -> None:
            pass

    monkeypatch.setenv("CONDA_CHANNELS", "one, two")
    found = asked(FlowDefinition(Channels), "start")
    assert found.values["packages"]["channels"] == ["one", "two"]
    assert found.origins["packages.channels"] == "CONDA_CHANNELS"


def test_two_pythons_are_refused_with_both_places() -> None:
    class Pythons(FlowSpec):
        @conda(python="3.10")
        @pypi(python="3.12")
        @step
        def start(self) -> None:
            self.next(self.end)

        @step
        def end(self) -> None:
            pass

    with pytest.raises(SettingsError, match=r"(?s)step 'start': python is 3.1\d at .*@(pypi|conda) and 3.1\d at .*@"):
        _ = FlowDefinition(Pythons).options


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"packages": ["six"]}, "does not map"),
        ({"packages": {"six": 1.15}}, "not a text"),
        ({"python": "three"}, "not a version of Python"),
        ({"sources": "https://a"}, "not a list"),
        ({"package": {}}, "did you mean 'packages'"),
        ({"channels": ["a"]}, "takes no 'channels'"),
    ],
)
def test_what_makes_no_sense_is_an_error_at_its_line(words: Any, told: str) -> None:
    with pytest.raises(SettingsError, match="(?s)@pypi.*" + told) as caught:
        pypi(**words)
    assert "test_packages.py:" in str(caught.value)


FLOW = """
from stoker.flow import Config, FlowSpec, conda, pypi, pypi_base, step

@pypi_base(packages={"six": "1.14.0"})
class Boxed(FlowSpec):
    needs = Config("needs", default_value={"tiny": "1.0"})

    @pypi(packages=needs, python="3.12")
    @step
    def start(self):
        self.next(self.end)

    @pypi(disabled=True)
    @step
    def end(self):
        pass

if __name__ == "__main__":
    Boxed()
"""
STACK = """
stack = "box"
[stacks.box]
orchestrator = {flavor = "docker"}
"""


def test_on_a_stack_of_containers_they_are_in_the_image(project: Any) -> None:
    pytest.importorskip("docker")
    project.write({"boxed.py": FLOW, "stoker.toml": STACK, "other.toml": ""})
    for words in ((), ("--environment=pypi",)):
        document = json.loads(project.stoker("plan", "boxed.py", *words, "--json").stdout)
        start, end = document["steps"]
        assert start["settings"]["docker"] == {"python_version": "3.12", "requirements": ["six==1.14.0", "tiny==1.0"]}
        assert end["settings"]["docker"] is None and not start["environment"]
    shown = project.stoker("plan", "boxed.py", "--render").stdout
    assert "FROM python:3.12-slim" in shown and "six==1.14.0" in shown and "tiny==1.0" in shown
    both = ("--set", "docker.python_version='3.11'")
    assert '"python_version": "3.11"' in project.stoker("plan", "boxed.py", *both, "--json").stdout, "it is stronger"
    project.write({"stoker.toml": STACK + "[stacks.box.settings.docker]\nrequirements = ['six==1.16.0']\n"})
    refused = project.stoker("plan", "boxed.py", code=2).stderr
    assert "docker.requirements says six==1.16.0, and packages.pypi.six says six==1.14.0" in refused
    assert "stoker.toml:5" in refused and "boxed.py:3 @pypi_base" in refused
