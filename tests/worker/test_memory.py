"""`cleanup_memory()`: what it frees, what it leaves alone, and that it touches nothing that was not in use."""

from __future__ import annotations

import gc
import subprocess
import sys
import types
from typing import Any

import pytest

from stoker import cleanup_memory
from stoker.worker.memory import Freed


class Ring:
    """Garbage: it holds itself."""

    def __init__(self, size: int = 0) -> None:
        self.ring = self
        self.data = bytearray(b"x" * size)


class Phoenix:
    """Garbage that makes new garbage when it is collected."""

    born = 0

    def __init__(self) -> None:
        self.ring = self
        Phoenix.born += 1

    def __del__(self) -> None:
        if Phoenix.born < 10_000:
            Phoenix()


def test_garbage_is_collected_and_the_hosts_memory_is_told() -> None:
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            Ring(40_000_000)
        freed = cleanup_memory()
    finally:
        gc.enable()
    assert freed.collected >= 3
    if sys.platform == "linux":
        # Other threads of this process take memory meanwhile, and pages that were free before stay with it.
        assert freed.host is not None and freed.host >= 40_000_000
        assert freed.host_before is not None and freed.host_after == freed.host_before - freed.host
        assert "MB of the host's memory" in repr(freed)


def test_garbage_that_makes_garbage_does_not_go_on_for_ever() -> None:
    Phoenix()
    cleanup_memory()
    assert 1 < Phoenix.born < 100
    Phoenix.born = 10_000
    gc.collect()


def test_nothing_is_imported_for_it() -> None:
    program = """
import sys
from stoker import cleanup_memory
before = set(sys.modules)
freed = cleanup_memory()
assert set(sys.modules) == before, set(sys.modules) - before
assert not freed.devices, freed
print(repr(freed))
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.startswith("<Freed ")


def test_a_framework_that_used_no_device_stays_so() -> None:
    pytest.importorskip("torch")
    program = """
import torch
from stoker import cleanup_memory
kept = torch.ones(1000)
freed = cleanup_memory()
assert not torch.cuda.is_initialized() and kept.sum() == 1000
assert not [name for name in freed.devices if name.startswith("torch cuda")], freed
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


# Frameworks as they are on machines with devices: what they hold, and what gives it back


class TorchDevices:
    """Like `torch.cuda`: `empty_cache` leaves of each device what live tensors have."""

    def __init__(self, *, reserved: list[int], allocated: list[int], initialized: bool = True) -> None:
        self.reserved, self.allocated, self.initialized = reserved, allocated, initialized
        self.calls: list[str] = []

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        self.calls.append("device_count")
        return len(self.reserved)

    def memory_reserved(self, index: int) -> int:
        return self.reserved[index]

    def empty_cache(self) -> None:
        self.calls.append("empty_cache")
        self.reserved = list(self.allocated)

    def ipc_collect(self) -> None:
        self.calls.append("ipc_collect")


BRIDGE = "jax._src.xla_bridge"


def module(name: str, **names: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__dict__.update(names)
    return made


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("torch", "jax", BRIDGE, "cupy"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def load(*modules: types.ModuleType) -> None:
        for made in modules:
            monkeypatch.setitem(sys.modules, made.__name__, made)

    return load


def test_torch_gives_back_what_it_holds_but_does_not_use(loaded: Any) -> None:
    cuda = TorchDevices(reserved=[3_000_000_000, 500], allocated=[1_000_000_000, 500])
    loaded(module("torch", cuda=cuda))
    freed = cleanup_memory()
    assert freed.devices == {"torch cuda:0": 2_000_000_000, "torch cuda:1": 0}
    assert cuda.calls == ["device_count", "empty_cache", "ipc_collect"]
    assert "2 GB of torch cuda:0" in repr(freed)


def test_torch_that_has_no_context_yet_gets_none(loaded: Any) -> None:
    cuda = TorchDevices(reserved=[1], allocated=[0], initialized=False)
    xpu = TorchDevices(reserved=[70], allocated=[20])
    loaded(module("torch", cuda=cuda, xpu=xpu))
    assert cleanup_memory().devices == {"torch xpu:0": 50}
    assert not cuda.calls


def test_a_module_that_is_still_being_imported_is_left_alone(loaded: Any) -> None:
    loaded(module("torch"), module("jax"))
    assert cleanup_memory().devices == {}


@pytest.mark.parametrize("available", [True, False])
def test_metal(loaded: Any, available: bool) -> None:
    held = [900]
    mps = module("mps", driver_allocated_memory=lambda: held[0], empty_cache=lambda: held.__setitem__(0, 100))
    backends = module("backends", mps=module("mps", is_available=lambda: available))
    loaded(module("torch", mps=mps, backends=backends))
    assert cleanup_memory().devices == ({"torch mps": 800} if available else {})


class JaxDevice:
    def __init__(self, id: int, platform: str = "gpu") -> None:
        self.id, self.platform, self.used = id, platform, 700

    def memory_stats(self) -> dict[str, int] | None:
        return None if self.platform == "cpu" else {"bytes_in_use": self.used}


def test_jax_forgets_what_it_compiled(loaded: Any) -> None:
    devices = [JaxDevice(0), JaxDevice(1), JaxDevice(0, "cpu")]

    def clear_caches() -> None:
        devices[0].used = 300

    jax = module("jax", local_devices=lambda: devices, clear_caches=clear_caches)
    loaded(jax, module(BRIDGE, backends_are_initialized=lambda: True))
    assert cleanup_memory().devices == {"jax gpu:0": 400, "jax gpu:1": 0}


def test_jax_that_has_not_looked_for_devices_does_not_start_to(loaded: Any) -> None:
    loaded(module("jax"), module(BRIDGE, backends_are_initialized=lambda: False))
    assert cleanup_memory().devices == {}


class CupyPool:
    def __init__(self, size: int) -> None:
        self.size = size
        self.freed = False

    def total_bytes(self) -> int:
        return self.size

    def free_all_blocks(self) -> None:
        self.freed = True
        self.size = 0


def test_cupy_frees_its_pools(loaded: Any) -> None:
    pool, pinned = CupyPool(4096), CupyPool(0)
    loaded(module("cupy", get_default_memory_pool=lambda: pool, get_default_pinned_memory_pool=lambda: pinned))
    assert cleanup_memory().devices == {"cupy": 4096}
    assert pinned.freed


def test_it_says_what_it_does_not_know() -> None:
    assert repr(Freed(collected=1)) == "<Freed 1 object>"
    freed = Freed(host=0, host_before=5_000_000, host_after=6_000_000, devices={"cupy": 12}, collected=3)
    assert repr(freed) == "<Freed 12 B of cupy, 0 B of the host's memory (6 MB in use), 3 objects>"
