"""Two GPUs that a whole run finds, leases, proves and watches, though there are none: both NVIDIA libraries are fakes.

What they answer stands in two files, see fake_nvml.c and fake_cuda.c; a torch that fits them hides the installed one.
"""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

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
