"""The gate: each way in which a step's devices or its frameworks are not what it needs, and what is proved otherwise.

A fake libcuda and the fake libnvidia-ml are loaded by real loaders, frameworks are packages with a wheel's metadata.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests import forks
from tests.devices.conftest import compiled
from tests.devices.gpus import fake_torch
from tests.devices.test_compat import TWO, UUIDS, VERSION, distribution, fake_cuda, package

from stoker.core import status
from stoker.worker.gate import GateError

GB = 10**9
PROGRAM = """
import ctypes, json, os, sys, time
from pathlib import Path

from stoker.core.codec import from_json
from stoker.core.devices import Lease
from stoker.worker import gate

# As a process finds them that was started with these variables.
libraries, site = os.environ.pop("LIBRARIES"), os.environ.pop("SITE")
os.environ.update(LD_LIBRARY_PATH=libraries, PYTHONPATH=site)
sys.path.insert(0, site)  # before site-packages, so that it hides a torch that is installed for the tests
for name in os.listdir(libraries):
    if ".so" in name and os.path.getsize(os.path.join(libraries, name)):
        ctypes.CDLL(os.path.join(libraries, name))
if "BEFORE" in os.environ:
    __import__(os.environ["BEFORE"])
lease = from_json(Lease, json.loads(sys.argv[1]), strict=False)

told = {}
began = time.perf_counter()
try:
    proof = gate.prove(lease, root=Path(sys.argv[2]), patience=float(sys.argv[3]))
    told["took"] = time.perf_counter() - began
    told["heavy"] = sorted({"torch", "jax", "tensorflow"} & set(sys.modules))
    gate.watch_imports(lease, proof)
    try:
        exec(compile(sys.argv[4], "user.py", "exec"), {})
    finally:
        told.update(facts=proof.facts, fallback=proof.fallback, refused=str(proof.refused or ""))
except gate.GateError as error:
    told.update(cause=error.cause, message=error.message, fix=error.fix, text=str(error))
print("told:" + json.dumps(told))
"""


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with NVIDIA's two libraries."""
    return compiled(fake_cuda(tmp_path_factory.mktemp("nvidia")))


class Place:
    """Where a step runs: its libraries, its device files, its packages, and the scenarios that the libraries answer."""

    def __init__(self, folder: Path, libraries: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.site = folder / "site"
        self.libraries = libraries
        for made in (self.root / "dev", self.site):
            made.mkdir(parents=True)
        (self.root / "dev/nvidia0").touch()
        self.variables: dict[str, str] = {"CUDA_VISIBLE_DEVICES": ",".join(UUIDS)}
        self.cuda(TWO)
        self.nvml("driver = 580.95.05\ncuda = 13000\n")

    def cuda(self, scenario: str) -> None:
        """What libcuda answers."""
        (self.folder / "cuda").write_text(scenario)

    def nvml(self, system: str, *gpus: str) -> None:
        """What libnvidia-ml answers: the system's lines, and those of each GPU beside its UUID and memory."""
        more = [*gpus, "", ""][:2]
        parts = [f"[gpu]\nuuid = {uuid}\nmemory = {80 * GB}\n{text}\n" for uuid, text in zip(UUIDS, more)]
        (self.folder / "nvml").write_text("\n".join([system, *parts]))

    def torch(self, version: str, cuda: str | None, body: str = "raise SystemExit('it was imported')") -> None:
        """Install a torch whose import does what the body says."""
        package(self.site, "torch", {"torch/version.py": VERSION.format(version, cuda, None)})
        (self.site / "torch/__init__.py").write_text(textwrap.dedent(body))
        for before in self.site.glob("torch-*.dist-info"):
            shutil.rmtree(before)
        distribution(self.site, "torch", version)

    def document(self, **changed: Any) -> dict[str, Any]:
        """A lease of both GPUs."""
        devices = [
            {
                "kind": "nvidia",
                "index": index,
                "uuid": uuid,
                "name": "NVIDIA H100 80GB HBM3",
                "model": "H100",
                "memory": 80 * GB,
                "capability": [9, 0],
                "slice": "",
                "parent": "",
                "links": [],
                "simulated": False,
                "exclusive": True,
            }
            for index, uuid in enumerate(UUIDS)
        ]
        return {
            "devices": devices,
            "memory": 0,
            "driver": "580.95.05",
            "cuda": [13, 0],
            "policy": "require",
            "simulated": False,
            "fallback": "",
            "asked": "H100:2",
            **changed,
        }

    def opened(self, user: str = "", patience: float = 0, **changed: Any) -> dict[str, Any]:
        """What the gate says in a process of its own, which runs the user's lines behind it."""
        program = self.folder / "program" / "look.py"
        program.parent.mkdir(exist_ok=True)
        program.write_text(PROGRAM)
        document = json.dumps(self.document(**changed))
        finished = forks.run(
            [sys.executable, str(program), document, str(self.root), str(patience), textwrap.dedent(user)],
            cwd=program.parent,
            env={
                **{name: value for name, value in os.environ.items() if forks.STARTS.match(name)},
                "PATH": os.environ["PATH"],
                "LIBRARIES": str(self.libraries),
                "FAKE_CUDA_SCENARIO": str(self.folder / "cuda"),
                "FAKE_NVML_SCENARIO": str(self.folder / "nvml"),
                "SITE": str(self.site),
                **self.variables,
            },
            input="",
            timeout=240,
        )
        assert finished is not None
        assert finished.returncode == 0, finished.stderr
        lines = [line for line in finished.stdout.splitlines() if line.startswith("told:")]
        told: dict[str, Any] = json.loads(lines[0].removeprefix("told:"))
        assert not told.get("heavy")
        return told


@pytest.fixture
def place(tmp_path: Path, libraries: Path) -> Place:
    found = Place(tmp_path / "place", libraries)
    found.torch("2.9.0+cu130", "13.0")
    return found


def test_everything_is_proved(place: Place) -> None:
    told = place.opened()
    assert told["facts"] == {
        "driver": "580.95.05 (CUDA 13.0)",
        "devices": "2 visible, as leased",
        "memory": "80 GB free on the fullest",
        "torch": "2.9.0+cu130, built for CUDA 13.0",
    }
    assert not told["fallback"] and not told["refused"]


def refused(told: Mapping[str, Any], cause: str, *said: str) -> None:
    assert told.get("cause") == cause, told
    assert all(part in told["text"] for part in said), told["text"]
    assert told["fix"] and "asked for: H100:2" in told["message"]


def test_a_build_for_the_cpu(place: Place) -> None:
    place.torch("2.4.0+cpu", None)
    told = place.opened()
    refused(told, status.NO_GPU_BUILD, "torch 2.4.0+cpu is a CPU build", "pip install torch==2.4.0+cu124")


def test_a_driver_too_old(place: Place) -> None:
    place.nvml("driver = 535.104.05\ncuda = 12020\n")
    place.cuda(TWO.replace("13000", "12020"))
    refused(place.opened(), status.DRIVER_TOO_OLD, "driver 535.104.05 (CUDA 12.2) is too old", "CUDA 13.0", "580")


def test_forward_compatibility_is_noted(place: Place) -> None:
    place.nvml("driver = 535.104.05\ncuda = 12020\n")
    facts = place.opened()["facts"]
    assert "forward-compatibility" in facts["driver"] and "CUDA 12.2" in facts["driver"]
    assert facts["torch"].startswith("2.9.0+cu130")


def test_no_kernel_image(place: Place) -> None:
    place.torch("2.6.0+cu124", "12.4")
    devices = [{**one, "capability": [12, 0], "model": "RTX5090"} for one in place.document()["devices"]]
    if os.uname().machine == "x86_64":
        refused(
            place.opened(devices=devices), status.NO_KERNEL_IMAGE, "sm_120 (RTX5090)", "PyTorch's own index for cu132"
        )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, "CUDA finds no GPU"),
        ({"CUDA_VISIBLE_DEVICES": UUIDS[0]}, "1 of 2 leased devices are visible"),
    ],
)
def test_not_all_are_visible(change: dict[str, str], said: str, place: Place) -> None:
    place.variables.update(change)
    refused(place.opened(), status.NO_GPU, said, "CUDA_VISIBLE_DEVICES")


def test_more_than_leased(place: Place) -> None:
    told = place.opened(devices=place.document()["devices"][:1])
    refused(told, status.NO_GPU, "2 devices are visible, and 1 were leased")


def test_another_device(place: Place) -> None:
    other = UUIDS[1].replace("aaaa", "bbbb")
    place.cuda(f"version = 13000\nuuid = {UUIDS[0]}\nuuid = {other}\n")
    del place.variables["CUDA_VISIBLE_DEVICES"]
    refused(place.opened(), status.NO_GPU, f"{UUIDS[1]} was leased, and is not among")


SLICES = tuple(f"MIG-{digit * 8}-2222-3333-4444-555555555555" for digit in "67")


def test_slices_are_proved_one_by_one(place: Place) -> None:
    """CUDA shows a process the first one only."""
    place.variables["CUDA_VISIBLE_DEVICES"] = ",".join(SLICES)
    place.cuda("version = 13000\n" + "".join(f"uuid = {uuid}\n" for uuid in SLICES))
    both = "".join(f"[slice]\nuuid = {uuid}\nname = H100 MIG 1g.10gb\nmemory = {10 * GB}\n" for uuid in SLICES)
    system = "driver = 580.95.05\ncuda = 13000\n"
    place.nvml(system, f"mig = 1\n{both}")
    (whole, _), part = place.document()["devices"], {"slice": "1g.10gb", "parent": UUIDS[0], "memory": 10 * GB}
    devices = [{**whole, **part, "uuid": uuid} for uuid in SLICES]
    facts = place.opened(devices=devices)["facts"]
    assert facts["devices"] == "2 visible, as leased, each to a process of its own"
    assert facts["memory"] == "10 GB free on the fullest"
    leased = f"slice 1g.10gb of GPU 0 (H100, {SLICES[1]}) was leased, and it "
    # The second one is destroyed, and another made; then MIG mode ends.
    place.cuda(f"version = 13000\nuuid = {SLICES[0]}\n")
    place.nvml(system, "mig = 1\n" + both.replace(SLICES[1], SLICES[1].replace("7", "8")))
    refused(place.opened(devices=devices), status.NO_GPU, f"{leased}is cut into 1g.10gb, 1g.10gb now; ", "again")
    place.cuda(f"version = 13000\nuuid = {UUIDS[0]}\n")
    place.nvml(system, "mig = 0")
    gone = leased.replace(SLICES[1], SLICES[0])
    refused(place.opened(devices=devices), status.NO_GPU, f"{gone}is not in MIG mode any more; ", "CUDA error 100")


@pytest.mark.parametrize("number", [803, 802, 804, 999, 100, 46])
def test_a_driver_that_does_not_start(number: int, place: Place) -> None:
    from stoker.vendors.nvidia.gate import RESULTS

    place.cuda(f"init = {number}\n{TWO}")
    refused(place.opened(), RESULTS[number][0], f"CUDA error {number}")


def test_nvml_says_why(place: Place) -> None:
    place.cuda(f"init = 999\n{TWO}")
    place.nvml("init = 18\n")
    refused(place.opened(), status.DRIVER_BROKEN, "of different versions", "restart the machine")
    place.nvml("driver = 580.95.05\n", "fails = 15")
    refused(place.opened(), status.GPU_HARDWARE, "the GPU is lost")


def test_no_library(place: Place) -> None:
    place.libraries = place.folder / "nothing"
    place.libraries.mkdir()
    # A machine with a driver would find its own in the system's folders.
    (place.libraries / "libcuda.so.1").write_text("")
    refused(place.opened(), status.DRIVER_BROKEN, "libcuda.so.1 cannot be loaded")
    if not any(Path(folder, "libcuda.so.1").exists() for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64")):
        (place.libraries / "libcuda.so.1").unlink()
        refused(place.opened(), status.NO_DRIVER, "libcuda.so.1 is not here")


def test_a_container_without_gpus(place: Place) -> None:
    place.cuda(f"init = 100\n{TWO}")
    (place.root / ".dockerenv").touch()
    refused(place.opened(), status.NO_GPU, "CUDA finds no GPU")  # it has /dev/nvidia0: something else is wrong
    (place.root / "dev/nvidia0").unlink()
    refused(place.opened(), status.NO_GPU, "the container was started without --gpus", "nvidia.com/gpu")


def test_memory_that_is_not_free(place: Place) -> None:
    place.nvml("driver = 580.95.05\n", "", f"used = {30 * GB}\nprocess = 4242:{30 * GB}")
    told = place.opened()
    refused(told, status.GPU_BUSY, "GPU 1 (H100): 30 GB of its memory is in use by process 4242", "nvidia-smi")
    # Who shares a device needs his part only.
    assert "50 GB free" in place.opened(memory=40 * GB)["facts"]["memory"]
    refused(place.opened(memory=60 * GB), status.GPU_BUSY, "the step leased 60 GB, and 50 GB is free")


def test_memory_that_is_given_back(place: Place) -> None:
    """What a step before held is free again a little later: the gate looks until then."""
    place.nvml("driver = 580.95.05\n", "", f"used = {30 * GB}")
    free = (place.folder / "nvml").read_text().replace(f"used = {30 * GB}", "used = 0")
    (place.folder / "later").write_text(free)
    user = f"sleep 1; mv {place.folder / 'later'} {place.folder / 'nvml'}"
    with subprocess.Popen(["sh", "-c", user]) as other:
        assert place.opened(patience=120)["facts"]["memory"] == "80 GB free on the fullest"
        assert other.wait(60) == 0


def test_a_driver_without_nvml(place: Place) -> None:
    """A container with the driver's part for computing only: CUDA decides, and memory is unproved."""
    place.nvml("init = 999\n")
    facts = place.opened()["facts"]
    assert facts["devices"] == "2 visible, as leased"
    assert facts["driver"] == "580.95.05 (CUDA 13.0)"  # as the lease says
    assert facts["memory"].startswith("unproved: NVML")


def test_prefer(place: Place) -> None:
    place.cuda(f"init = 999\n{TWO}")
    told = place.opened(policy="prefer")
    assert "the driver does not work" in told["fallback"]
    place.cuda(TWO)
    place.torch("2.4.0+cpu", None)
    told = place.opened(policy="prefer")
    assert told["fallback"].startswith("torch 2.4.0+cpu is a CPU build")
    assert told["facts"]["devices"] == "2 visible, as leased"


def test_a_step_that_fell_back_already(place: Place) -> None:
    place.cuda(f"init = 999\n{TWO}")
    told = place.opened(devices=[], fallback="this machine has no GPU", policy="prefer")
    assert (told["facts"], told["fallback"]) == ({}, "this machine has no GPU")


def test_an_unfit_framework_beside_a_fit_one(place: Place) -> None:
    package(place.site, "jax", {"jax/version.py": "_version = '0.9.0'"})
    facts = place.opened()["facts"]
    assert "unfit: jax 0.9.0 is a CPU build" in facts["jax"]
    assert facts["torch"] == "2.9.0+cu130, built for CUDA 13.0"


def test_what_is_imported_already_counts(place: Place) -> None:
    """The fork server has imported the user's module: what that imported is what it works with."""
    package(place.site, "jax", {"jax/version.py": "_version = '0.9.0'", "jax/__init__.py": ""})
    place.variables["BEFORE"] = "jax"
    refused(place.opened(), status.NO_GPU_BUILD, "jax 0.9.0 is a CPU build", "jax[cuda13]==0.9.0")


def simulated(place: Place, **changed: Any) -> dict[str, Any]:
    devices = [
        {**one, "simulated": True, "uuid": f"GPU-simulated-{one['index']}"} for one in place.document()["devices"]
    ]
    place.cuda(f"crash = 1\n{TWO}")  # nobody may ask it
    return place.opened(**{"devices": devices, "simulated": True, **changed})


def test_simulated_devices(place: Place) -> None:
    place.torch("2.13.0+cpu", None)
    told = simulated(place, driver="535.104.05", cuda=[12, 2])
    assert told["facts"] == {
        "devices": "2 simulated (H100)",
        "driver": "535.104.05 (CUDA 12.2), simulated",
        "torch": "2.13.0+cpu is a CPU build: on real devices the gate would refuse it",
    }
    assert told["took"] < 5, "no process was started, and nothing was imported"
    place.torch("2.9.0+cu130", "13.0")
    told = simulated(place, driver="535.104.05", cuda=[12, 2])
    refused(told, status.DRIVER_TOO_OLD, "driver 535.104.05 (CUDA 12.2) is too old")
    assert "torch" in simulated(place, driver="", cuda=None)["facts"]


def test_torch_is_looked_at_when_it_is_imported(place: Place) -> None:
    place.torch("2.9.0+cu130", "13.0", fake_torch())
    user = """
        import os, torch, torch.version
        assert type(torch.__spec__.loader).__name__ == type(torch.__loader__).__name__ == "SourceFileLoader"
        assert "PYTORCH_NVML_BASED_CUDA_CHECK" not in os.environ
    """
    told = place.opened(user)
    assert told["facts"]["torch in use"] == "it sees 2, as leased; it has code for sm_80 sm_90"
    assert not told["refused"]


@pytest.mark.parametrize(
    ("body", "cause", "said"),
    [
        (fake_torch("return False", 0), status.NO_GPU, "sees 0 of the step's 2 GPUs"),
        (fake_torch(count=1), status.NO_GPU, "sees 1 of the step's 2 GPUs"),
        (fake_torch(archs="['sm_80', 'sm_100']"), status.NO_KERNEL_IMAGE, "sm_90 (H100) is not in the list"),
        (
            fake_torch("raise RuntimeError('No CUDA GPUs are available')"),
            status.NO_GPU,
            "not among those that it sees",
        ),
        (
            fake_torch(
                "import warnings; warnings.warn('CUDA initialization: The NVIDIA driver on your system is too old "
                "(found version 12020).'); return False",
                0,
            ),
            status.DRIVER_TOO_OLD,
            "found version 12020",
        ),
        (fake_torch("raise ValueError('of another kind')"), status.DRIVER_BROKEN, "of another kind"),
    ],
)
def test_torch_that_cannot_use_them(body: str, cause: str, said: str, place: Place) -> None:
    place.torch("2.9.0+cu130", "13.0", body)
    user = """
        try:
            import torch
        except ImportError:
            torch = None  # a user's way to go on without
    """
    refused(place.opened(user), cause, said)
    # Whoever catches everything is refused all the same, when the step has returned.
    told = place.opened(user.replace("ImportError", "Exception"))
    assert said in told["refused"] and "cause" not in told
    told = place.opened("import torch", policy="prefer")
    assert said in told["fallback"] and not told["refused"]


def test_another_framework_that_is_imported(place: Place) -> None:
    """A CPU build that a library imports beside the one that works is no error; alone it is."""
    place.torch("2.9.0+cu130", "13.0", fake_torch())
    package(place.site, "jax", {"jax/version.py": "_version = '0.9.0'", "jax/__init__.py": "x = 1"})
    refused(place.opened("import jax"), status.NO_GPU_BUILD, "jax 0.9.0 is a CPU build")
    assert not place.opened("import torch, jax; assert jax.x == 1")["refused"]


def test_a_real_torch_for_the_cpu(place: Place) -> None:
    """The torch that is installed for the tests, beside a jax that fits: it is refused when it is imported."""
    pytest.importorskip("torch")
    shutil.rmtree(place.site / "torch")
    package(place.site, "jax", {"jax/version.py": "_version = '0.9.0'"})
    distribution(place.site, "jax-cuda13-plugin", "0.9.0")
    refused(place.opened("import torch"), status.NO_GPU_BUILD, "is a CPU build")


def test_jax_is_not_started(place: Place) -> None:
    distribution(place.site, "jax-cuda13-plugin", "0.9.0")
    package(place.site, "jax", {"jax/version.py": "_version = '0.9.0'", "jax/__init__.py": "x = 1"})
    assert place.opened("import jax")["facts"]["jax in use"].startswith("unproved")
    place.variables["JAX_PLATFORMS"] = "cpu"
    refused(place.opened("import jax"), status.NO_GPU, "JAX_PLATFORMS=cpu")


@pytest.mark.parametrize(
    ("count", "cause", "said"),
    [(2, "", "it sees 2, as leased"), (1, status.NO_GPU, "1 of the step's 2"), (0, status.NO_GPU_BUILD, "and-cuda")],
)
def test_tensorflow(count: int, cause: str, said: str, place: Place) -> None:
    body = f"""
        from types import SimpleNamespace
        __version__ = "2.18.0"
        config = SimpleNamespace(list_physical_devices=lambda kind: [kind] * {count})
    """
    info = "build_info = dict([('cuda_version', '12.5.1'), ('is_cuda_build', True)])"
    files = {"tensorflow/__init__.py": textwrap.dedent(body), "tensorflow/python/platform/build_info.py": info}
    package(place.site, "tensorflow", files)
    distribution(place.site, "tensorflow", "2.18.0")
    told = place.opened("import tensorflow")
    if cause:
        refused(told, cause, said)
    else:
        assert told["facts"]["tensorflow in use"] == said


def test_an_import_that_fails_by_itself(place: Place) -> None:
    place.torch("2.9.0+cu130", "13.0", "raise ImportError('libcudart.so.13: cannot open shared object file')")
    user = """
        try:
            import torch
        except ImportError as error:
            assert "libcudart" in str(error)
        else:
            raise AssertionError("it was imported")
    """
    assert not place.opened(user)["refused"]


@pytest.mark.parametrize(
    ("kind", "files", "variables", "cause", "said"),
    [
        ("amd", [], {}, status.NO_DRIVER, "/dev/kfd"),
        ("amd", ["dev/kfd"], {}, "", "unproved"),
        ("neuron", [], {}, status.NO_DRIVER, "/dev/neuron0"),
        ("neuron", ["dev/neuron3"], {}, status.NO_GPU, "/dev/neuron0"),
        ("neuron", ["dev/neuron0"], {}, status.NO_GPU, "NEURON_RT_VISIBLE_CORES"),
        ("neuron", ["dev/neuron0"], {"NEURON_RT_VISIBLE_CORES": "0-1"}, "", "unproved"),
        ("tpu", [], {}, status.NO_DRIVER, "0 of 1"),
        ("tpu", ["dev/accel0"], {}, "", "unproved"),
    ],
)
def test_others(kind: str, files: list[str], variables: dict[str, str], cause: str, said: str, place: Place) -> None:
    uuid = "neuron-cores:0-1" if kind == "neuron" else f"{kind}-0"
    device = {"kind": kind, "index": 0, "uuid": uuid, "name": kind, "model": kind, "memory": 0}
    place.torch("2.9.0", None, "")
    (place.site / "torch/version.py").unlink()  # a build of which nothing is known
    for path in files:
        (place.root / path).touch()
    place.variables.update(variables)
    told = place.opened(devices=[device], driver="", cuda=None)
    if cause:
        refused(told, cause, said)
    else:
        assert said in told["facts"]["devices"]


def test_an_error_of_the_gate() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(GateError("no GPU", cause=status.NO_GPU, fix="look")))
    assert (str(error), error.cause) == ("no GPU\n  fix: look", status.NO_GPU)
    assert not isinstance(error, ImportError)
