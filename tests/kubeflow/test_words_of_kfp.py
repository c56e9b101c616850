"""The words of KFP in docs/guide/kubeflow.md: KFP compiles the left side of each row, and Stoker the right one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from google.protobuf import json_format
from kfp import compiler, dsl, kubernetes
from kfp.kubernetes import kubernetes_executor_config_pb2
from kfp.pipeline_spec import pipeline_spec_pb2

from stoker.backends.kubeflow.requests import AGAIN

ROW = re.compile(r"\| `((?:task|kubernetes)\..*?)` \| (.*) \|")
CODE = re.compile(r"`([^`]*)`")
BY_DRIVER = frozenset({"activeDeadlineSeconds"})
"""What KFP would do in the pod, and Stoker's driver does."""
STACK = """
stack = "kf"
[stacks.kf]
artifact_store = "memory://kfp"
orchestrator = {flavor = "kubeflow", host = "http://127.0.0.1:9", image = "registry.example/train:1"}
"""


def rows(repository: Path) -> list[tuple[str, list[str]]]:
    """(KFP's line, the arguments of `@step` for it) of each row."""
    text = (repository / "docs" / "guide" / "kubeflow.md").read_text().partition("| KFP | `@step(…)` |")[2]
    text = text.partition("\n\n")[0]
    return [(left, CODE.findall(right.partition("; ")[0].partition(": the")[0])) for left, right in ROW.findall(text)]


def program(table: list[tuple[str, list[str]]]) -> str:
    """A pipeline with a step for each row."""
    lines = [
        "from stoker import pipeline, step",
        "from stoker.config import KubeflowSettings, ResourceSettings",
    ]
    for number, (_, words) in enumerate(table):
        arguments = [word for word in words if not word.startswith("KubeflowSettings")]
        arguments += [f'settings={{"orchestrator": {word}}}' for word in words if word not in arguments]
        lines += [f"@step({', '.join(arguments)})", f"def row_{number}() -> None:", "    pass"]
    calls = [f"    row_{number}()" for number in range(len(table))]
    return "\n".join([*lines, "@pipeline", "def table():", *calls, ""])


def theirs(table: list[tuple[str, list[str]]], folder: Path) -> list[dict[str, Any]]:
    """What KFP's own compiler makes of the left sides."""

    @dsl.container_component  # type: ignore[untyped-decorator]
    def row():  # type: ignore[no-untyped-def]
        return dsl.ContainerSpec(image="registry.example/train:1", command=["true"])

    @dsl.pipeline(name="table")  # type: ignore[untyped-decorator]
    def pipeline():  # type: ignore[no-untyped-def]
        for line, _ in table:
            eval(line, {"task": row(), "kubernetes": kubernetes})

    compiler.Compiler().compile(pipeline, str(folder / "theirs.yaml"))
    return list(yaml.safe_load_all((folder / "theirs.yaml").read_text()))


def ours(project: Any, table: list[tuple[str, list[str]]]) -> list[dict[str, Any]]:
    """What `stoker plan --render` prints of the right sides."""
    project.write({"stoker.toml": STACK, "table.py": program(table)})
    text = project.stoker("plan", "table.py", "--render").stdout
    return list(yaml.safe_load_all(text.partition("cat > pipeline.yaml <<'END'\n")[2].partition("\nEND\n")[0]))


def said(documents: list[dict[str, Any]], task: str) -> dict[str, Any]:
    """What both documents say of a task, in KFP's own messages, so that 1000 and "1000" are the same."""
    spec = json_format.ParseDict(documents[0], pipeline_spec_pb2.PipelineSpec())
    plain = json_format.MessageToDict(spec)
    platform = documents[1]["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    node = plain["root"]["dag"]["tasks"][task]
    executor = plain["components"][node["componentRef"]["name"]]["executorLabel"]
    config = json_format.ParseDict(
        platform.get(executor, {}), kubernetes_executor_config_pb2.KubernetesExecutorConfig()
    )
    for folder in config.empty_dir_mounts:
        folder.volume_name = "any"  # the name asks for nothing
    container = plain["deploymentSpec"]["executors"][executor]["container"]
    return {
        "container": {name: container[name] for name in ("image", "env", "resources") if name in container},
        "platform": json_format.MessageToDict(config),
        "retries": node.get("retryPolicy", {}).get("maxRetryCount", 0),
        "caching": node.get("cachingOptions", {}),
    }


def missing(wanted: Any, found: Any, place: str = "") -> list[str]:
    """The places of what is in `wanted` and not in `found`; an element of a list may stand anywhere in the other."""
    if isinstance(wanted, Mapping):
        lacking = [f"{place}/{name}" for name in wanted if not isinstance(found, Mapping) or name not in found]
        return lacking or [line for name in wanted for line in missing(wanted[name], found[name], f"{place}/{name}")]
    if isinstance(wanted, list):
        ours_too = found if isinstance(found, list) else []
        return [f"{place}[{n}]" for n, one in enumerate(wanted) if all(missing(one, other) for other in ours_too)]
    return [] if wanted == found else [f"{place}: {wanted!r} against {found!r}"]


def test_each_row_asks_for_the_same(project: Any, repository: Path, tmp_path: Path) -> None:
    """Nothing that KFP's line asks for is missing in what the step becomes."""
    table = rows(repository)
    assert len(table) >= 28
    their_documents, our_documents = theirs(table, tmp_path), ours(project, table)
    for number, (line, words) in enumerate(table):
        name = "row" if number == 0 else f"row-{number + 1}"
        wanted, found = said(their_documents, name), said(our_documents, f"row-{number}")
        assert (
            any(wanted[part] for part in ("platform", "retries"))
            or wanted["caching"] == {}
            or (wanted["container"].keys() > {"image"})
        ), f"{line} says nothing"
        for field in BY_DRIVER & wanted["platform"].keys():
            del wanted["platform"][field]
            assert any(word.startswith("timeout=") for word in words), line
        assert found["retries"] == wanted["retries"] + AGAIN, "pods that are lost use up none of the step's own"
        assert missing(wanted["container"], found["container"]) == [], line
        assert missing(wanted["platform"], found["platform"]) == [], line
        assert found["caching"] == {}, "whether a result is taken from a cache is not KFP's to decide"


def test_what_is_not_the_same_is_found() -> None:
    wanted = {"a": [{"b": 1}], "c": "x"}
    assert missing(wanted, {"a": [{"b": 2}, {"b": 1, "d": 3}], "c": "x", "e": 1}) == []
    assert missing(wanted, {"a": [{"b": 2}], "c": "y"}) == ["/a[0]", "/c: 'x' against 'y'"]
    assert missing(wanted, {"c": "x"}) == ["/a"]
