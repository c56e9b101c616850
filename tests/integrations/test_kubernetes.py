"""ZenML's settings for Kubernetes, by the names and from the places that its users import them from."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from stoker.config import KubernetesPodSettings, KubernetesSettings
from stoker.core.errors import SettingsError
from stoker.integrations.kubernetes import flavors, pod_settings


def test_settings_of_zenml() -> None:
    pod = pod_settings.KubernetesPodSettings(
        node_selectors={"pool": "ml"},
        tolerations=[{"key": "gpu", "operator": "Exists"}],
        resources={"limits": {"memory": "8Gi"}},
        env=[{"name": "A", "value": "b"}],
    )
    settings = flavors.KubernetesOrchestratorSettings(pod_settings=pod, service_account_name="zenml", privileged=True)
    assert isinstance(settings, KubernetesSettings) and isinstance(pod, KubernetesPodSettings)
    assert settings.get("node_selector") == {"pool": "ml"}
    assert settings.get("pod_resources") == {"limits": {"memory": "8Gi"}}
    assert settings.get("service_account") == "zenml"
    assert flavors.KubernetesStepOperatorSettings is KubernetesSettings


class V1Toleration:
    """As Kubernetes' own client has it: attributes, and what the API calls them."""

    attribute_map: ClassVar = {
        "effect": "effect",
        "key": "key",
        "operator": "operator",
        "toleration_seconds": "tolerationSeconds",
        "value": "value",
    }

    def __init__(self, **fields: object) -> None:
        for name in self.attribute_map:
            setattr(self, name, fields.get(name))


def test_objects_of_kubernetes_own_client() -> None:
    """ZenML's guides write tolerations and affinities with them."""
    made = V1Toleration(key="gpu", operator="Equal", value="", effect="NoExecute", toleration_seconds=5)
    expected = {"key": "gpu", "operator": "Equal", "value": "", "effect": "NoExecute", "tolerationSeconds": 5}
    settings = KubernetesSettings(pod_settings={"tolerations": [made], "affinity": {"x": [made]}}, tolerations=[made])
    assert settings.get("tolerations") == (expected,)
    assert settings.pod_settings is not None
    assert list(settings.pod_settings["tolerations"]) == [expected]
    assert settings.get("affinity") == {"x": [expected]}


@pytest.mark.parametrize("name", sorted(KubernetesSettings.INSTEAD))
def test_what_is_not_here_says_what_to_write(name: str) -> None:
    with pytest.raises(SettingsError, match=f"no field '{name}'") as refused:
        KubernetesSettings(**{name: 1})
    assert refused.value.fix


def test_a_misspelt_field_of_a_pod() -> None:
    with pytest.raises(SettingsError, match="did you mean 'host_ipc'"):
        KubernetesPodSettings(host_icp=True)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tolerations": [{"key": "gpu", "operator": "exists"}]}, "did you mean 'Exists'"),
        ({"tolerations": [{"key": "gpu", "effect": "NoSchedul"}]}, "did you mean 'NoSchedule'"),
        ({"port": 99999}, "99999 is no port"),
        ({"tmpfs_path": "tmp"}, "'tmp' is no full path"),
        ({"labels": {"team": None}}, "team: None is not a text"),
        ({"labels": {"bad label!": "x"}}, "no key of a label"),
        ({"labels": {"team": "two words"}}, "no value of a label"),
        ({"node_selector": {"pool": "gpu,cpu"}}, "no value of a label"),
        ({"secrets": {"hub": "token"}}, "not a list of texts"),
        ({"pod_resources": {"limit": {"cpu": "1"}}}, "did you mean 'limits'"),
    ],
)
def test_what_the_api_would_refuse_is_refused_at_once(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        KubernetesSettings(**fields)


def test_a_label_that_is_true_is_written_as_nodes_have_it() -> None:
    assert KubernetesSettings(node_selector={"gpu": True}).get("node_selector") == {"gpu": "true"}
