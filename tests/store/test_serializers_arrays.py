"""Arrays and tensors: bit for bit, mapped, private, and independent of a device."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stoker.core.artifact import StoredArtifact, from_wire
from stoker.store import artifacts
from stoker.store.blobs import Blobs
from stoker.store.serializers.pickles import PROTOCOL


def round_trip(value: Any, blobs: Blobs) -> tuple[Any, StoredArtifact]:
    saved = artifacts.save(value, blobs)
    return artifacts.load(from_wire(json.loads(json.dumps(saved.wire()))), blobs), saved


def big(dtype: str) -> np.ndarray[Any, Any]:
    return np.arange(600_000).astype(dtype)


ARRAYS = {
    "empty": np.zeros((0, 3)),
    "nothing in it": np.zeros((2, 0), dtype="S0"),
    "small": np.arange(10, dtype="i2").reshape(2, 5),
    "c order": big("f4").reshape(600, 1000),
    "fortran order": np.asfortranarray(big("f8").reshape(600, 1000)),
    "negative stride": big("i8")[::-1],
    "transposed axes": big("f8").reshape(6, 100, 1000).transpose(1, 0, 2),
    "half": (big("i8") % 100).astype("f2"),
    "dates": big("M8[s]"),
    "texts": np.array(["a", "ß", "ccc"] * 50_000),
    "bytes": np.array([b"a", b"bb"] * 200_000),
    "records": np.zeros(50_000, dtype=[("x", "f8"), ("y", "i4", (2,)), ("z", "S3")]),
    "a large scalar": np.zeros((), dtype="V300000"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_comes_back_as_it_was(blobs: Blobs, name: str) -> None:
    array = ARRAYS[name]
    loaded, saved = round_trip(array, blobs)
    assert type(loaded) is np.ndarray
    assert loaded.dtype == array.dtype
    assert loaded.shape == array.shape
    assert np.array_equal(loaded, array)
    assert loaded.flags.writeable
    assert loaded.flags.f_contiguous == array.flags.f_contiguous or not array.flags.f_contiguous
    assert saved.serializer == "numpy"
    assert saved.meta == {"shape": list(array.shape), "dtype": str(array.dtype)}
    assert artifacts.save(array.copy(order="K"), blobs).digest == saved.digest
    assert (saved.inline is not None) == (saved.size <= 4096)


@given(
    array=arrays.arrays(
        dtype=st.one_of(arrays.scalar_dtypes(), arrays.array_dtypes()),
        shape=arrays.array_shapes(min_dims=0, min_side=0),
    )
)
def test_any_array_comes_back(tmp_path_factory: pytest.TempPathFactory, array: np.ndarray[Any, Any]) -> None:
    blobs = Blobs(str(tmp_path_factory.getbasetemp() / "arrays"))
    loaded, _ = round_trip(array, blobs)
    assert loaded.dtype == array.dtype
    assert loaded.shape == array.shape
    assert loaded.tobytes() == array.tobytes()


def test_a_file_of_numpy_itself_has_the_same_bytes(blobs: Blobs, tmp_path: Path) -> None:
    array = big("f8")
    saved = artifacts.save(array, blobs)
    assert np.array_equal(np.load(blobs.path(saved.digest)), array)


def test_changes_to_a_loaded_array_stay_private(blobs: Blobs) -> None:
    saved = artifacts.save(big("f8"), blobs)
    first, second = artifacts.load(saved, blobs), artifacts.load(saved, blobs)
    first[:] = -1
    assert second[7] == 7
    assert artifacts.load(saved, blobs)[7] == 7
    assert hashlib.sha256(blobs.read(saved.digest)).hexdigest() == saved.digest


def test_a_loaded_array_outlives_its_blob(blobs: Blobs) -> None:
    saved = artifacts.save(big("f8"), blobs)
    loaded = artifacts.load(saved, blobs)
    blobs.delete(saved.digest)
    assert loaded.sum() == big("f8").sum()


def test_a_mapped_array_is_saved_again_as_an_array(blobs: Blobs, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", big("f8"))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    saved = artifacts.save(mapped, blobs)
    assert saved.serializer == "numpy"
    assert saved.digest == artifacts.save(big("f8"), blobs).digest


@pytest.mark.parametrize(
    "value",
    [
        np.array([1, "a", None], dtype=object),
        np.ma.masked_array([1, 2, 3], mask=[0, 1, 0]),
        np.float32(1.5),
        np.datetime64("2020-01-01"),
        np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    ],
    ids=["objects", "masked", "float32", "datetime64", "recarray"],
)
def test_what_npy_cannot_say_is_pickled(blobs: Blobs, value: Any) -> None:
    loaded, saved = round_trip(value, blobs)
    assert saved.serializer == "pickle"
    assert type(loaded) is type(value)
    assert repr(loaded) == repr(value)


MEMORY = """
import sys
from pathlib import Path
import numpy as np
from stoker.store import artifacts
from stoker.store.blobs import Blobs
blobs = Blobs(sys.argv[1])
array = np.ones(25_000_000)
def peak():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
before = peak()
saved = artifacts.save(array, blobs)
loaded = artifacts.load(saved, blobs)
print((peak() - before) / 1024)
"""


def test_a_large_array_is_not_copied(tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert float(made.stdout) < 50, "200 MB of array needed that many MB more"


# Tensors


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return type(left) is type(right) and left.dtype == right.dtype and bool(torch.equal(left, right))
    if isinstance(left, dict):
        return type(left) is type(right) and list(left) == list(right) and all(equal(left[k], right[k]) for k in left)
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and len(left) == len(right) and all(map(equal, left, right))
    return bool(left == right)


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(50, 500), torch.nn.BatchNorm1d(500), torch.nn.Linear(500, 3))


TENSORS = {
    "small": torch.arange(6).reshape(2, 3),
    "big": torch.arange(200_000, dtype=torch.float64).reshape(200, 1000),
    "state dict": model().state_dict(),
    "checkpoint": {
        "epoch": 3,
        "model": model().state_dict(),
        "best": (0.5, [torch.ones(2)]),
        "name": "x",
        "none": None,
    },
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_come_back_as_they_were(blobs: Blobs, name: str) -> None:
    value = TENSORS[name]
    loaded, saved = round_trip(value, blobs)
    assert equal(loaded, value)
    assert saved.serializer == "torch"
    assert saved.meta["plain"] is True, "loaded without running pickled code"
    assert artifacts.save(value, blobs).digest == saved.digest


def test_a_tensor_tells_its_shape(blobs: Blobs) -> None:
    meta = artifacts.save(torch.zeros(2, 3, dtype=torch.int8), blobs).meta
    assert (meta["shape"], meta["dtype"]) == ([2, 3], "int8")


def test_gradients_are_still_wanted(blobs: Blobs) -> None:
    leaf = torch.ones(3, requires_grad=True)
    loaded, _ = round_trip(leaf, blobs)
    assert loaded.requires_grad
    parameter, _ = round_trip(torch.nn.Parameter(torch.ones(3)), blobs)
    assert type(parameter) is torch.nn.Parameter


def test_changes_to_a_loaded_tensor_stay_private(blobs: Blobs) -> None:
    saved = artifacts.save(TENSORS["big"], blobs)
    first = artifacts.load(saved, blobs)
    first.zero_()
    assert artifacts.load(saved, blobs)[0, 7] == 7
    assert hashlib.sha256(blobs.read(saved.digest)).hexdigest() == saved.digest


def test_a_part_of_a_large_tensor_does_not_drag_the_rest_along(blobs: Blobs) -> None:
    whole = torch.arange(1_000_000.0)
    for value in (whole[:10], {"part": whole[:10]}, [(whole[:10],)], OrderedDict(a=whole[:10])):
        loaded, saved = round_trip(value, blobs)
        assert saved.size < 10_000
        assert equal(loaded, value)


def test_shared_storage_stays_shared(blobs: Blobs) -> None:
    whole = torch.arange(100_000.0)
    loaded, saved = round_trip({"a": whole, "b": whole[:10]}, blobs)
    assert saved.size < 600_000
    loaded["a"][3] = -1
    assert loaded["b"][3] == -1


def test_a_state_dict_keeps_what_is_beside_its_entries(blobs: Blobs) -> None:
    state = model().state_dict()
    loaded, _ = round_trip(state, blobs)
    assert loaded._metadata == state._metadata


def test_a_module_comes_back_whole(blobs: Blobs) -> None:
    network = model().eval()
    loaded, saved = round_trip(network, blobs)
    assert saved.serializer == "torch"
    assert saved.meta["plain"] is False
    x = torch.ones(4, 50)
    assert torch.equal(loaded(x), network(x))
    assert not loaded.training


def test_a_module_of_a_local_class_comes_back(blobs: Blobs) -> None:
    class Local(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))
            self.act = lambda x: x * 2

        def forward(self, x: Any) -> Any:
            return self.act(x * self.weight)

    loaded, saved = round_trip(Local(), blobs)
    assert saved.serializer == "cloudpickle"
    assert torch.equal(loaded(torch.ones(3)), torch.full((3,), 2.0))


def test_a_device_that_is_not_here_does_not_matter(blobs: Blobs) -> None:
    """A tensor on a device of its own kind loads on the CPU, also from inside other objects."""
    if torch.cuda.is_available():
        device = torch.device("cuda")
    else:
        pytest.skip("needs a GPU to save from")
    tensor = torch.arange(1000.0, device=device)
    inside = {"box": Box(tensor, torch.nn.Parameter(tensor))}
    saved = [artifacts.save(value, blobs).wire() for value in (tensor, {"a": tensor}, inside, model().to(device))]
    code = (
        "import sys, json; sys.path.insert(0, sys.argv[2])\n"
        "from stoker.store import artifacts; from stoker.store.blobs import Blobs\n"
        "from stoker.core.artifact import from_wire\n"
        "for wire in json.loads(sys.argv[3]): print(artifacts.load(from_wire(wire), Blobs(sys.argv[1])))"
    )
    made = subprocess.run(
        [sys.executable, "-c", code, blobs.folder, str(Path(__file__).parent), json.dumps(saved)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr


class Box:
    """A user's object with tensors inside."""

    def __init__(self, *content: Any) -> None:
        self.content = content


class Elsewhere(torch.Tensor):
    """Stands for a tensor on another device."""

    copied = 0

    @property
    def device(self) -> Any:
        return torch.device("cuda")

    def cpu(self) -> Any:  # type: ignore[override]
        type(self).copied += 1
        return self.as_subclass(torch.Tensor)


def test_tensors_inside_other_objects_are_pickled_from_the_cpu(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.store.serializers import pickles

    reducers = pickles._reducers(pickles.Buffers())
    elsewhere = torch.ones(3).as_subclass(Elsewhere)
    function, arguments = reducers[torch.Tensor](elsewhere)[:2]
    assert torch.equal(function(*arguments), torch.ones(3))
    assert Elsewhere.copied == 1
    here = torch.ones(3)
    assert reducers[torch.Tensor](here)[0] is here.__reduce_ex__(PROTOCOL)[0]
    box, saved = round_trip(Box(torch.ones(3), torch.nn.Parameter(torch.zeros(2))), blobs)
    assert saved.serializer == "pickle"
    assert torch.equal(box.content[0], torch.ones(3))
    assert type(box.content[1]) is torch.nn.Parameter


def test_an_estimator_remembers_its_version(blobs: Blobs) -> None:
    import sklearn
    from sklearn.linear_model import LogisticRegression

    x, y = np.arange(40).reshape(20, 2), np.arange(20) % 2
    estimator = LogisticRegression().fit(x, y)
    loaded, saved = round_trip(estimator, blobs)
    packages = ["numpy", "sklearn"]
    assert saved.meta == {"package": "sklearn", "version": sklearn.__version__, "packages": packages}
    assert np.array_equal(loaded.predict(x), estimator.predict(x))
