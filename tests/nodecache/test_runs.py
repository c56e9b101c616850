"""Steps with data, through the front door: what is brought, how often, what a plan says of it, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import fsspec
import pytest
from tests.conftest import Project
from tests.distributed.conftest import SPAWN
from tests.nodecache.conftest import WEIGHTS
from tests.servers.aws import AwsServer
from tests.servers.hub import Hub

READ = """
import os
import stoker
from stoker import pipeline, step

NET = {"uri": "hf://org/net", "exclude": "onnx/"}

@step(data={"net": NET, "corpus": "s3://BUCKET/day/", "one": "s3://BUCKET/day/a.txt"})
def read(n: int) -> str:
    from huggingface_hub import hf_hub_download
    weights = stoker.data("net") / "model.safetensors"
    assert os.path.samefile(weights, hf_hub_download("org/net", "model.safetensors", local_files_only=True))
    assert not os.path.exists(stoker.data("net") / "onnx")
    names = sorted(path.name for path in stoker.data("corpus").rglob("*") if path.is_file())
    return f"{len(weights.read_bytes())} {names} {stoker.data('one').read_text()}"

@pipeline
def reads():
    read(1)
    read(2)

if __name__ == "__main__":
    reads()
"""


def downloads(hub: Hub) -> dict[str, int]:
    """How often each file was fetched."""
    counts = {
        path.rpartition("/")[2].rpartition("|")[2]: n for path, n in hub.asked.items() if not path.startswith("/api")
    }
    hub.asked.clear()
    return counts


def test_two_steps_share_what_one_of_them_brings(
    hub: Hub, s3_server: AwsServer, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in s3_server.environment.items():
        monkeypatch.setenv(name, text)
    bucket = s3_server.bucket("two-steps").removeprefix("s3://")
    files = fsspec.filesystem("s3", skip_instance_cache=True)
    for name in ("a.txt", "b.txt", "x/c.txt"):
        files.pipe(f"{bucket}/day/{name}", name.encode())
    project.write({"reads.py": READ.replace("BUCKET", bucket)})
    planned = project.stoker("plan", "reads.py").stdout
    commit = hub.repositories["models/org/net"].commit
    assert f"asks for hf://org/net (commit {commit[:8]}): 5 MB in 6 files" in planned
    assert f"asks for s3://{bucket}/day/: 17 B in 3 files" in planned

    project.run("reads.py")
    outputs = {step.key: step.outputs["output"].load() for step in project.client().runs()[0].steps.values()}
    expected = f"{len(WEIGHTS)} ['a.txt', 'b.txt', 'c.txt'] a.txt"
    assert outputs == {"read": expected, "read_2": expected}
    once = downloads(hub)
    assert once == {"config.json": 1, "model.safetensors": 1, **{f"part-{number}.json": 1 for number in range(4)}}
    noted = [json.loads(row["data"]) for row in project.rows("SELECT data FROM events WHERE kind = 'brought'")]
    assert len(noted) == 2 and all(note["seconds"] > 0 for note in noted)
    assert sum(one["fetched"] for note in noted for one in note["data"]) == len(WEIGHTS) + 2 + 4 + 17, "a.txt is there"

    assert "cached" in project.run("reads.py").stderr and not downloads(hub)
    hub.repositories["models/org/net"].files["part-1.json"] = b"one"
    project.run("reads.py")
    assert downloads(hub) == {"part-1.json": 1}, "equal bytes of the earlier commit are taken from it"
    why = project.stoker("why", project.client().runs()[0].id, "read").stdout
    assert "data net" in why, why


REFUSALS: Mapping[str, str] = {
    "hf://org/gated": "is gated, and this token has no access",
    "hf://org/private": "has no model org/private, or shows it to others only",
    "hf://datasets/org/net": "has no dataset org/net",
    "hf://org/net@v9": "has no revision 'v9'",
    "hf://org/net/weights": "has no weights at main",
    "/not/there": "/not/there is not there",
    "s3://no-such-bucket/x/": "s3://no-such-bucket/x/ is not there",
    "s4://bucket/x/": "s4",
}
ASKS = """
import stoker
from stoker import pipeline, step

@step(data={{"it": "{uri}"}}, environment={environment})
def use() -> int:
    return len(list(stoker.data("it").iterdir()))

@pipeline
def uses():
    use()

if __name__ == "__main__":
    uses()
"""


def test_what_no_step_could_get_refuses_the_plan(
    hub: Hub, s3_server: AwsServer, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in s3_server.environment.items():
        monkeypatch.setenv(name, text)
    net = hub.repositories["models/org/net"]
    hub.repositories["models/org/gated"] = attrs.evolve(net, gated=True)
    hub.repositories["models/org/private"] = attrs.evolve(net, private=True)
    calls = "".join(f"    use.with_options(data={{'it': {uri!r}}}, name='u{n}')()\n" for n, uri in enumerate(REFUSALS))
    program = ASKS.format(uri="/", environment={}).replace("    use()\n", calls)
    refused = project.write({"uses.py": program}).run("uses.py", code=3).stderr
    assert refused.count("STK372") == len(REFUSALS) == refused.count("fix: ")
    for words in REFUSALS.values():
        assert words in refused


def test_a_token_that_the_step_is_given_opens_what_is_gated(
    hub: Hub, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories["models/org/net"] = attrs.evolve(
        hub.repositories["models/org/net"], gated=True, private=True, readers=frozenset({"hf_of-the-team"})
    )
    monkeypatch.setenv("TEAM", "hf_of-the-team")
    project.write({"uses.py": ASKS.format(uri="hf://org/net", environment={"HF_TOKEN": "secret:env:TEAM"})})
    project.run("uses.py")
    assert downloads(hub)["model.safetensors"] == 1


def test_what_nobody_can_say_is_unknown_and_not_cached(hub: Hub, project: Project) -> None:
    project.write({"uses.py": ASKS.format(uri="hf://org/net", environment={})})
    offline = project.stoker("plan", "uses.py", "--offline").stdout
    assert "STK373" in offline and "not known here: the hub is not asked: --offline" in offline
    for _ in range(2):
        assert "use cached" not in project.run("uses.py", env={"STOKER_OFFLINE": "1"}).stderr
    assert downloads(hub)["model.safetensors"] == 1, "its node asks, and has it the second time"


def test_more_than_a_node_keeps_refuses_the_plan(hub: Hub, project: Project) -> None:
    project.write({"uses.py": ASKS.format(uri="hf://org/net", environment={})})
    refused = project.stoker("run", "uses.py", "--set", "steps.use.data_cache.size=1MB", code=3).stderr
    assert "STK374" in refused and "its node keeps 1MB of data at most" in refused


def test_ranks_of_a_step_find_the_same_data(hub: Hub, project: Project) -> None:
    program = """
    import sys
    import stoker
    from stoker import context, pipeline, step
    from stoker.config import Command

    RANKS = Command([sys.executable, "spawn.py"], num_processes=2, outputs="all")

    @step(data={"net": "hf://org/net"}, launch=RANKS)
    def train() -> str:
        return f"{context.rank} {len((stoker.data('net') / 'model.safetensors').read_bytes())}"

    @pipeline
    def trains():
        train()

    if __name__ == "__main__":
        trains()
    """
    project.write({"trains.py": program, "spawn.py": SPAWN})
    project.run("trains.py")
    run: Any = project.client().runs()[0]
    assert run.steps["train"].outputs["output"].load() == [f"0 {len(WEIGHTS)}", f"1 {len(WEIGHTS)}"]
    assert downloads(hub)["model.safetensors"] == 1


def test_a_folder_is_used_where_it_is(project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "val"
    folder.mkdir()
    (folder / "a").write_text("a")
    project.write({"uses.py": ASKS.format(uri=folder, environment={})})
    project.run("uses.py")
    assert "use cached" in project.run("uses.py").stderr
    (folder / "b").write_text("b")
    project.run("uses.py")
    run: Any = project.client().runs()[0]
    assert run.steps["use"].outputs["output"].load() == 2


def test_a_flow_has_data_by_metaflows_decorator_and_by_settings(hub: Hub, project: Project, tmp_path: Path) -> None:
    (tmp_path / "val").mkdir()
    (tmp_path / "val" / "a").write_text("a")
    program = """
    import os
    import stoker
    from stoker.flow import FlowSpec, current, huggingface_hub, step

    class Tune(FlowSpec):
        @huggingface_hub(load=["org/net"])
        @step
        def start(self):
            self.size = os.path.getsize(os.path.join(current.huggingface_hub.loaded["org/net"], "model.safetensors"))
            self.next(self.end)

        @step
        def end(self):
            print("sizes", self.size, len(os.listdir(stoker.data("val"))))

    if __name__ == "__main__":
        Tune()
    """
    project.write({"tune.py": program})
    output = project.run("tune.py", "run", "--set", f"steps.end.data.val={tmp_path / 'val'}").stderr
    assert f"sizes {len(WEIGHTS)} 1" in output
