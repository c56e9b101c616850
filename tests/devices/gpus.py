"""Two GPUs that a whole run finds, leases, proves and watches, though there are none: both NVIDIA libraries are fakes.

What they answer stands in two files, see fake_nvml.c and fake_cuda.c; a torch that fits them hides the installed one.
"""

from __future__ import annotations

import os
import shutil
import textwrap
from pathlib import Path

import attrs
from tests.devices.conftest import compiled
from tests.devices.test_compat import TWO, UUIDS, VERSION, distribution, fake_cuda, package

GB = 10**9
WORKS = "utilisation = 0,90\nprocess = STEP:2000000000\n"
"""A GPU on which the step computes."""
IMPORTED = "raise SystemExit('it was imported')"
IDLES = "utilisation = 0\nprocess = STEP:2000000000\n"

TORCH = """
    import os
    from types import SimpleNamespace

    __version__ = "2.9.0+cu130"
    version = SimpleNamespace(cuda="13.0", hip=None)

    def available():
        assert os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"
        {available}

    cuda = SimpleNamespace(
        is_available=available,
        device_count=lambda: {count},
        get_arch_list=lambda: {archs},
    )
"""


def fake_torch(available: str = "return True", count: int = 2, archs: str = "['sm_80', 'sm_90']") -> str:
    """The module of a torch that answers what the gate asks: `available` are lines, the others expressions."""
    return textwrap.dedent(TORCH).format(available=available, count=count, archs=archs)


class Gpus:
    """A folder with libraries, scenarios and packages, and the environment in which a process finds them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = folder / "site"
        self.site.mkdir(parents=True)
        compiled(fake_cuda(folder))
        self.answer()
        self.torch("2.9.0+cu130", "13.0")

    @property
    def environment(self) -> dict[str, str]:
        """For a driver and all that it starts. A step says by writing its pid to the file STEP which one it is."""
        return {
            "LD_LIBRARY_PATH": str(self.folder),
            "FAKE_NVML_SCENARIO": str(self.folder / "nvml"),
            "FAKE_CUDA_SCENARIO": str(self.folder / "cuda"),
            "FAKE_NVML_STEP": str(self.folder / "step"),
            "PYTHONPATH": str(self.site),
        }

    def answer(self, *gpus: str, driver: str = "580.95.05", number: int = 13000, cuda: str = "") -> Gpus:
        """What the driver says of each GPU, and of itself; `cuda` are more lines for CUDA's library."""
        (self.folder / "step").unlink(missing_ok=True)
        parts = [f"driver = {driver}\ncuda = {number}\n"]
        for index, uuid in enumerate(UUIDS):
            told = gpus[index] if index < len(gpus) else ""
            name = "name = NVIDIA H100 80GB HBM3\ncapability = 9.0\nused = 500000000\npower = 300000\n"
            parts.append(f"[gpu]\nuuid = {uuid}\nmemory = {80 * GB}\n{name}{told}\n")
        (self.folder / "nvml").write_text("".join(parts))
        (self.folder / "cuda").write_text(TWO.replace("13000", str(number)) + cuda)
        return self

    def torch(self, version: str, cuda: str | None, body: str = IMPORTED) -> Gpus:
        """Install a torch that only has its files, and does when it is imported what the body says."""
        for before in self.site.glob("torch*"):
            shutil.rmtree(before)
        package(self.site, "torch", {"torch/version.py": VERSION.format(version, cuda, None)})
        (self.site / "torch/__init__.py").write_text(body)
        distribution(self.site, "torch", version)
        return self


@attrs.frozen
class Gpu:
    """A GPU of a `Rig`, with lines for what else NVML says of it; with slices (profile, UUID, bytes) in MIG mode."""

    uuid: str
    lines: str = ""
    slices: tuple[tuple[str, str, int], ...] | None = None
    name: str = "NVIDIA H100 80GB HBM3"


def gpus_of(count: int, *lines: str) -> list[Gpu]:
    """Some GPUs, the first of them with these lines."""
    more = [*lines, *[""] * count][:count]
    return [Gpu(f"GPU-{number:08x}-0000-4000-8000-000000000000", text) for number, text in enumerate(more, 1)]


class Rig(Gpus):
    """GPUs on which something happens only if a process uses them through CUDA's library, as `CUDA` does: contexts,
    memory and work of real processes are what NVML tells. What is changed is seen at once by whoever looks.
    """

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "FAKE_GPU_USES": str(self.folder / "uses")}

    def holds(
        self, *gpus: Gpu, driver: str = "580.95.05", number: int = 13000, cuda: str = "", memory: int = 80 * GB
    ) -> Rig:
        """Let the machine have these GPUs; `cuda` are more lines for CUDA's library."""
        (self.folder / "uses").mkdir(exist_ok=True)
        parts, visible, slices = [f"driver = {driver}\ncuda = {number}\n"], [], []
        for index, gpu in enumerate(gpus):
            mig = f"mig = {int(gpu.slices is not None)}\n"
            text = f"name = {gpu.name}\nuuid = {gpu.uuid}\nmemory = {memory}\ncapability = 9.0\nused = {GB // 2}\n"
            parts.append(f"[gpu]\n{gpu.lines}\n{text}{mig}")
            for profile, uuid, size in gpu.slices or ():
                slices.append(
                    f"[slice]\nof = {index}\nname = {gpu.name} MIG {profile}\nuuid = {uuid}\nmemory = {size}\n"
                )
                visible.append(uuid)
            visible += [gpu.uuid] if gpu.slices is None else []
        uuids = "".join(f"uuid = {uuid}\n" for uuid in visible)
        for name, scenario in (
            ("cuda", f"version = {number}\nmemory = {memory}\n{uuids}{cuda}\n"),
            ("nvml", "".join([*parts, *slices])),
        ):
            (self.folder / f"{name}.new").write_text(scenario)
            os.replace(self.folder / f"{name}.new", self.folder / name)
        return self


CUDA = """
    import ctypes
    import time


    class Cuda:
        \"\"\"The first device that this process sees, used as a framework does.\"\"\"

        def __init__(self):
            self.library = ctypes.CDLL("libcuda.so.1")
            device, context, digits = ctypes.c_int(), ctypes.c_void_p(), (ctypes.c_ubyte * 16)()
            self.call("cuInit", 0)
            self.call("cuDeviceGet", ctypes.byref(device), 0)
            self.call("cuDeviceGetUuid_v2", digits, device)
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self.call("cuCtxSetCurrent", context)
            self.digits = bytes(digits).hex()

        def call(self, name, *arguments):
            number = getattr(self.library, name)(*arguments)
            if number:
                text = ctypes.c_char_p()
                self.library.cuGetErrorString(number, ctypes.byref(text))
                raise RuntimeError(f"CUDA error: {text.value.decode()}")

        def take(self, size):
            self.call("cuMemAlloc_v2", ctypes.byref(ctypes.c_ulonglong()), ctypes.c_size_t(size))

        def used(self):
            free, size = ctypes.c_size_t(), ctypes.c_size_t()
            self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(size))
            return size.value - free.value

        def work(self, seconds):
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                self.call("cuLaunchKernel", None, 1, 1, 1, 1, 1, 1, 0, None, None, None)
                self.call("cuCtxSynchronize")
"""
"""A module that uses a device through CUDA's library."""
