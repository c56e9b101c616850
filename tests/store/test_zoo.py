"""Whatever people return comes back equal and of its type, or is refused with the path to what cannot be saved."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import textwrap
import tracemalloc
from pathlib import Path
from typing import Any, Callable

import attrs
import numpy as np
import pytest
from PIL import Image
from tests.store.zoo import REFUSED, difference, zoo

from stoker.core.errors import SerializationError
from stoker.flows import cli_show
from stoker.store import artifacts
from stoker.store.blobs import Blobs
from stoker.store.serializers import pickles

SCRIPT = """
    import sys
    sys.path.insert(0, {root!r})
    import warnings
    from typing import Any

    from stoker import pipeline, step
    from stoker.config import Torchrun
    from tests.store.zoo import difference, made


    @step
    def make(name: str) -> Any:
        return made(name)


    @step(isolation="fresh")
    def make_fresh(name: str) -> Any:
        return made(name)


    @step(launch=Torchrun(nproc_per_node=2))
    def make_on_ranks(name: str) -> Any:
        return made(name)


    @step
    def compare(name: str, value: Any) -> str:
        return difference(made(name), value)


    WAYS = {{"warm": make, "fresh": make_fresh, "rank": make_on_ranks, "parameter": lambda name: made(name)}}


    @pipeline
    def every(names: dict[str, list[str]]):
        for way, chosen in names.items():
            for number, name in enumerate(chosen):
                compare.with_options(id=f"compare-{{way}}-{{number}}")(name, WAYS[way](name))


    if __name__ == "__main__":
        import json
        every(json.loads(sys.argv[1]))
"""
ROOT = str(Path(__file__).parents[2])
WAYS = {
    "fresh": ["torch/TensorDataset", "python/subclasses-inside"],
    "rank": ["torch/version"],
    "parameter": ["torch/StepLR", "torch/version", "python/subclasses-inside"],
}
"""How values come from elsewhere than a warm worker, and some that do: each costs a process of its own."""


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(f"file://{tmp_path}")


@pytest.mark.filterwarnings("ignore")  # libraries deprecate what they saved themselves
def test_there_are_enough() -> None:
    assert len(zoo()) >= 250


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "family", ["python", "numpy", "pandas", "frames", "scipy", "sklearn", "torch", "figures", "records"]
)
def test_it_comes_back_equal_and_of_its_type(family: str, blobs: Blobs) -> None:
    rows = {name: make for name, make in zoo().items() if name.startswith(f"{family}/")}
    assert rows
    found = {}
    for name, make in rows.items():
        value = make()
        artifact = artifacts.save(value, blobs)
        # As another process gets it: the description crosses as JSON.
        wire = json.loads(json.dumps(artifact.wire()))
        found[name] = difference(make(), artifacts.load(artifacts.from_wire(wire), blobs))
    assert {name: text for name, text in found.items() if text} == {}


WITHOUT_ARROW = """
import sys, warnings
warnings.simplefilter("ignore")
sys.modules["pyarrow"] = None
sys.path.insert(0, sys.argv[1])
from tests.store.zoo import difference, zoo
from stoker.store import artifacts
from stoker.store.blobs import Blobs
blobs = Blobs("file://" + sys.argv[2])
rows = {name: make for name, make in zoo().items() if name.startswith("pandas/")}
assert len(rows) > 25
for name, make in rows.items():
    found = difference(make(), artifacts.load(artifacts.save(make(), blobs), blobs))
    assert not found, (name, found)
"""


def test_frames_come_back_without_pyarrow(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_ARROW, ROOT, str(tmp_path)], check=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_its_path_and_advice(name: str, blobs: Blobs) -> None:
    make, path = REFUSED[name]
    with pytest.raises(SerializationError) as caught:
        artifacts.save(make(), blobs)
    assert f"cannot be saved: {path}" in str(caught.value) if path else "cannot be saved" in str(caught.value)
    assert caught.value.fix
    del caught
    gc.collect()  # what was left open is closed here, and not in another test


@pytest.mark.filterwarnings("ignore")
def test_advice_that_was_followed(blobs: Blobs) -> None:
    followed: dict[str, Any] = {
        "memoryview": bytes(memoryview(b"abc")),
        "generator": list(range(3)),
        "weakref": REFUSED["weakref"][0]()(),
        "file": Path(__file__),
    }
    for name, value in followed.items():
        with pytest.raises(SerializationError) as caught:
            artifacts.save(REFUSED[name][0](), blobs)
        assert caught.value.fix != pickles.ANEW, name
        artifacts.load(artifacts.save(value, blobs), blobs)
    del caught
    gc.collect()


@pytest.mark.parametrize(
    "make",
    [
        lambda: [f'","{i},[{{\\' for i in range(600_000)],
        lambda: [{"a": i, "b": [str(i)], "c": "},{"} for i in range(60_000)],
        lambda: ["a" * 6_000_000, {"a": [1.5] * 2_000_000}, [], "b"],
        lambda: {"a": ["é"] * 1_000_000, "b": {}},
    ],
    ids=["texts", "dicts", "few", "dict"],
)
def test_a_long_json_value_is_written_and_read_in_parts(make: Callable[[], Any], blobs: Blobs) -> None:
    value = make()
    artifact = artifacts.save(value, blobs)
    assert artifact.serializer == "json"
    assert blobs.read(artifact.digest) == json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    assert artifacts.load(artifact, blobs) == value


@attrs.define
class Holder:
    array: Any


@pytest.mark.filterwarnings("ignore")
def test_large_parts_are_mapped_and_are_this_process_s_own(blobs: Blobs) -> None:
    torch = pytest.importorskip("torch")
    fixed = np.arange(100_000.0)
    fixed.flags.writeable = False
    value = {
        "array": np.arange(100_000.0),
        "again": None,
        "fixed": fixed,
        "columns": np.asfortranarray(np.arange(100_000.0).reshape(100, 1000)),
        "strided": np.arange(200_000.0)[::2],
        "dates": np.arange(100_000).astype("datetime64[s]"),
        "short": torch.utils.data.TensorDataset(torch.arange(300_000).to(torch.bfloat16)),
        "call": lambda: 1,
    }
    value["again"] = value["array"]
    artifact = artifacts.save(value, blobs)
    one, other = artifacts.load(artifact, blobs), artifacts.load(artifact, blobs)
    assert one.pop("call")() == 1
    assert difference({name: part for name, part in value.items() if name != "call"}, one) == ""
    assert one["again"] is one["array"]
    assert one["array"].flags.aligned
    assert not one["fixed"].flags.writeable
    one["array"][:] = one["short"].tensors[0][:] = 7
    assert difference(value["array"], other["array"]) == difference(value["short"], other["short"]) == ""
    assert artifacts.save(value, blobs).digest == artifact.digest


def _peak(function: Callable[[], Any]) -> int:
    """Bytes that Python allocates for a call, at most at one time."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _dataset(size: int) -> Any:
    torch = pytest.importorskip("torch")
    return torch.utils.data.TensorDataset(torch.ones(size // 4))


@pytest.mark.parametrize(
    "make",
    [
        lambda n: np.ones(n // 8),
        lambda n: "a" * n,
        lambda n: bytes(n),
        lambda n: [f'"{i}", [{{é,' * 100 + "😀" for i in range(n // 5000)],  # four bytes a character
        lambda n: Holder(np.ones(n // 8)),
        lambda n: [lambda: 1, np.ones(n // 8)],  # cloudpickle's
        lambda n: {"a": {1, 2}, "b": np.ones(n // 8)},  # a second digest
        _dataset,
        lambda n: {"picture": Image.new("CMYK", (5_000, n // 20_000), (1, 2, 3, 4))},
    ],
    ids=["array", "text", "bytes", "texts", "object", "lambda", "set", "dataset", "picture"],
)
def test_what_is_large_is_not_in_memory_twice(make: Callable[[int], Any], blobs: Blobs) -> None:
    value, size = make(100_000_000), 100_000_000
    artifact = artifacts.save(value, blobs)
    assert _peak(lambda: artifacts.save(value, blobs)) < 0.3 * size
    assert _peak(lambda: artifacts.load(artifact, blobs)) < 1.3 * size
    assert _peak(lambda: cli_show._short_repr(value, 1000)) < 0.2 * size
    assert _peak(lambda: cli_show._short_repr([value, {"a": value}], 1000)) < 1.3 * size


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_it_crosses_from_step_to_step(project: Any, long_form: bool) -> None:
    """Two of each family, and with --long all."""
    project.write({"every.py": textwrap.dedent(SCRIPT).format(root=ROOT)})
    all_names = [name for name in zoo() if not name.startswith("optional/")]
    sample = [name for number, name in enumerate(all_names) if long_form or number % 15 == 7]
    names = {"warm": sample, **WAYS}
    project.run("every.py", json.dumps(names), timeout=600)
    (run,) = project.client().runs()
    compared = {key: one.output.load() for key, one in run.steps.items() if key.startswith("compare")}
    assert len(compared) == sum(map(len, names.values()))
    assert {key: text for key, text in compared.items() if text} == {}
