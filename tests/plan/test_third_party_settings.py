"""Settings of a backend of another distribution: checked by its own class wherever they are given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker import config
from stoker.core.errors import SettingsError
from stoker.core.plugins import entry_points
from stoker.plan.layers import assignments, resolve, run_file
from stoker.settings.options import component_settings, layer_of

THEIRS = """
import attrs

from stoker.backends.base.backend import Backend
from stoker.backends.local.backend import LocalBackend
from stoker.core.units import WHOLE_RUN


@attrs.frozen(kw_only=True)
class TheirSettings:
    queue: str = attrs.field(default="usual", validator=attrs.validators.instance_of(str))
    priority: int = attrs.field(default=0, converter=int)
    server: str = attrs.field(default="", metadata=WHOLE_RUN)
    labels: dict = attrs.field(factory=dict)


class TheirBackend(LocalBackend):
    name = "theirs"

    def __init__(self, site, options, services):
        super().__init__(site, {}, services)
        self.options = options

    def render(self, job):
        return {**super().render(job), "theirs": {**self.options, **job.step.settings.backend.get("orchestrator", {})}}


THEIRS = Backend(name="theirs", title="Theirs", settings=TheirSettings, open=TheirBackend)
BARE = Backend(name="bare", title="Bare", open=TheirBackend)
"""
ENTRY = "[stoker.backends]\ntheirs = their_backend:THEIRS\nbare = their_backend:BARE\n"
TOML = """
[stacks.far]
orchestrator = {flavor = "theirs", queue = "slow"}

[stacks.bare]
orchestrator = "bare"
"""


def installed(folder: Path) -> Path:
    """A folder with the distribution in it, as an installer leaves it."""
    about = folder / "their_backend-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: their-backend\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY)
    (folder / "their_backend.py").write_text(THEIRS)
    return folder


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[config.Stack]:
    """A stack whose orchestrator is theirs."""
    monkeypatch.syspath_prepend(installed(tmp_path / "site"))
    monkeypatch.delitem(__import__("sys").modules, "their_backend", raising=False)
    entry_points.cache_clear()
    (tmp_path / "stoker.toml").write_text(TOML)
    yield config.load("far", tmp_path)
    entry_points.cache_clear()


def theirs(stack: config.Stack, *layers: Any) -> dict[str, Any]:
    """What the layers make of the backend's settings."""
    settings, _ = resolve((stack.layer, *layers), stack)
    return dict(settings.backend["orchestrator"])


@pytest.mark.parametrize("text", ["orchestrator.theirs.queue=fast", "orchestrator.queue=fast"])
def test_an_assignment_reaches_the_backend(stack: config.Stack, text: str) -> None:
    layers = assignments([text]).layers
    assert theirs(stack, *layers) == {"queue": "fast"}
    _, origins = resolve((stack.layer, *layers), stack)
    assert origins["orchestrator.queue"].startswith(f"--set {text.partition('=')[0]}  (over ")


def test_what_a_layer_does_not_give_it_leaves_alone(stack: config.Stack) -> None:
    layers = assignments(["orchestrator.theirs.priority=3"]).layers
    assert theirs(stack, *layers) == {"queue": "slow", "priority": 3}


def test_a_field_that_is_a_mapping_is_no_flavor(stack: config.Stack) -> None:
    layers = assignments(["orchestrator.labels.zone=a"]).layers
    assert theirs(stack, *layers)["labels"] == {"zone": "a"}


def test_a_value_of_their_class(stack: config.Stack) -> None:
    from their_backend import TheirSettings

    for key in ("orchestrator", "orchestrator.theirs"):
        layer = layer_of("@step", {key: TheirSettings(queue="fast")}, level="step")
        assert theirs(stack, layer) == {"queue": "fast"}
    with pytest.raises(SettingsError, match="TheirSettings stands under 'resources'"):
        layer_of("@step", {"resources": TheirSettings(queue="fast")}, level="step")


def test_a_field_of_a_run_file(stack: config.Stack, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("orchestrator:\n  theirs:\n    queue: fast\n")
    assert theirs(stack, *run_file(tmp_path / "run.yaml").layers) == {"queue": "fast"}


TYPO = "TheirSettings has no field 'queu', did you mean 'queue'"


def test_a_typo_in_a_decorator(stack: config.Stack) -> None:
    with pytest.raises(SettingsError, match=TYPO):
        layer_of("@step", {"orchestrator.theirs": {"queu": "fast"}}, level="step")
    with pytest.raises(SettingsError, match=TYPO):
        theirs(stack, layer_of("@step", {"orchestrator": {"queu": "fast"}}, level="step"))


@pytest.mark.parametrize("text", ["orchestrator.theirs.queu=fast", "steps.train.orchestrator.theirs.queu=fast"])
def test_a_typo_in_an_assignment(stack: config.Stack, text: str) -> None:
    with pytest.raises(SettingsError, match=TYPO) as error:
        assignments([text])
    assert error.value.where == f"--set {text.partition('=')[0]}"


def test_a_typo_in_an_assignment_without_the_flavor(stack: config.Stack) -> None:
    with pytest.raises(SettingsError, match=TYPO):
        theirs(stack, *assignments(["orchestrator.queu=fast"]).layers)


def test_a_typo_in_the_stack(stack: config.Stack, tmp_path: Path) -> None:
    (tmp_path / "stoker.toml").write_text(TOML.replace("queue", "queu"))
    with pytest.raises(SettingsError, match=TYPO) as error:
        config.load("far", tmp_path)
    assert str(error.value.where).endswith("stoker.toml:3")


def test_a_typo_in_the_defaults_of_a_stack(stack: config.Stack, tmp_path: Path) -> None:
    (tmp_path / "stoker.toml").write_text(f'{TOML}\n[stacks.far.settings]\norchestrator.theirs.queu = "fast"\n')
    with pytest.raises(SettingsError, match=TYPO) as error:
        config.load("far", tmp_path)
    assert str(error.value.where).endswith("stoker.toml:9")


@pytest.mark.parametrize(("given", "message"), [({"priority": "much"}, "priority: "), ({"queue": 3}, "queue")])
def test_a_value_that_their_class_refuses(stack: config.Stack, given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        component_settings("theirs", given)


def test_what_holds_for_their_whole_run_is_refused_on_a_step(stack: config.Stack) -> None:
    with pytest.raises(SettingsError, match=r"'orchestrator\.theirs': server is for a whole run"):
        layer_of("@step", {"orchestrator.theirs": {"server": "a"}}, level="step")


def test_a_backend_without_settings_takes_none(stack: config.Stack, tmp_path: Path) -> None:
    assert config.load("bare", tmp_path).orchestrator.flavor == "bare"
    with pytest.raises(SettingsError, match="NoSettings has no field 'other'"):
        assignments(["orchestrator.bare.other=2"])


def test_the_request_has_what_was_set(project: Any) -> None:
    installed(project.folder / "site")
    source = """
        from stoker import pipeline, step

        @step(settings={"orchestrator.theirs": {"priority": 2}})
        def train() -> int:
            return 1

        @pipeline
        def training():
            train()

        if __name__ == "__main__":
            training()
        """
    project.write({"train.py": source, "stoker.toml": TOML})
    path = {"PYTHONPATH": str(project.folder / "site")}
    given = ["--stack", "far", "--set", "orchestrator.theirs.queue=fast"]
    shown = project.stoker("plan", "train.py", *given, "--render", env=path).stdout
    assert '"queue": "fast"' in shown and '"priority": 2' in shown
    project.stoker("run", "train.py", *given, env=path)
    refused = project.stoker("plan", "train.py", "--stack", "far", "--set", "orchestrator.queu=1", env=path, code=2)
    assert TYPO in refused.stderr
