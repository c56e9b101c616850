"""What people return crosses into containers and out of them, equal and of its type."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from tests.servers.containers import Engine
from tests.store.zoo import difference, made

ROOT = str(Path(__file__).parents[2])
SYSTEM = ("/usr/share/zoneinfo", f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}")
NAMES = ("python/subclasses-inside", "pandas/DataFrame", "torch/version", "torch/StepLR", "torch/TensorDataset")
SCRIPT = """
    import sys
    sys.path.insert(0, {root!r})
    import json
    from typing import Any

    from stoker import pipeline, step
    from stoker.config import DockerSettings
    from tests.store.zoo import difference, made

    HERE = {{
        "environment": {{"PYTHONPATH": "/here/site-packages"}},
        "settings": {{"docker": DockerSettings(parent_image={image!r}, skip_build=True)}},
    }}


    @step(**HERE)
    def make(name: str) -> Any:
        return made(name)


    @step(**HERE)
    def compare(name: str, value: Any) -> str:
        return difference(made(name), value)


    @pipeline
    def every(names: list[str]):
        for number, name in enumerate(names):
            value = make.with_options(id=f"make-{{number}}")(name)
            compare.with_options(id=f"compare-{{number}}")(name, value)


    if __name__ == "__main__":
        every(json.loads(sys.argv[1]))
"""
STACK = """
    stack = "box"
    [stacks.box.orchestrator]
    flavor = "docker"
    mounts = {mounts}
"""


@pytest.mark.filterwarnings("ignore")  # libraries deprecate what they saved themselves
def test_it_crosses_into_containers_and_out_of_them(
    engine: Engine, base_image: str, project: Any, long_form: bool
) -> None:
    chosen = NAMES if long_form else NAMES[:2]
    # The image has a Python of this machine and little else: packages and what they load come from here.
    seen = {sysconfig.get_path("purelib"): "/here/site-packages", ROOT: ROOT, **{path: path for path in SYSTEM}}
    mounts = [f"{here}:{there}:ro" for here, there in seen.items()]
    script = SCRIPT.format(root=ROOT, image=base_image)
    project.write({"every.py": script, "stoker.toml": STACK.format(mounts=json.dumps(mounts))})
    project.run("every.py", json.dumps(chosen), env=engine.environment, timeout=280)
    (run,) = project.client().runs()
    found = {name: run.steps[f"compare-{number}"].output.load() for number, name in enumerate(chosen)}
    assert {name: text for name, text in found.items() if text} == {}
    here = {
        name: difference(made(name), run.steps[f"make-{number}"].output.load()) for number, name in enumerate(chosen)
    }
    assert {name: text for name, text in here.items() if text} == {}
