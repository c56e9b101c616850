"""Which build runs on which driver and chip, and how the builds that are installed are read; nothing is imported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from stoker.core import status
from stoker.devices.builds import builds, words
from stoker.vendors.base import in_container
from stoker.vendors.builds import Build, Hardware
from stoker.vendors.nvidia import builds as rules
from stoker.vendors.nvidia import gate
from stoker.vendors.nvidia.builds import covers, runs, torch_archs
from stoker.vendors.nvidia.chips import CUDA_OF_BRANCH
from stoker.vendors.registry import notes, unfit

H100 = {(9, 0): "H100"}
FAKE = Path(__file__).with_name("fake_cuda.c")


def torch(version: str, number: tuple[int, int] | None = None) -> Build:
    archs = torch_archs(version, number, "x86_64") if number else ()
    return Build(framework="torch", version=version, cuda=number, cpu=number is None, archs=archs)


def held(
    driver: str = "", number: tuple[int, int] | None = None, chips: Mapping[tuple[int, int], str] = H100
) -> Hardware:
    return Hardware(driver=driver, cuda=number, chips=chips)


@pytest.mark.parametrize(
    ("build", "side", "cause", "said", "fix"),
    [
        (
            torch("2.4.0+cpu"),
            held("535.104.05", (12, 2)),
            status.NO_GPU_BUILD,
            "torch 2.4.0+cpu is a CPU build",
            "pip install torch==2.4.0+cu124, with --index-url set to PyTorch's own index for cu124",
        ),
        (
            torch("2.9.0+cpu"),
            held("470.57.02", (11, 4)),
            status.NO_GPU_BUILD,
            "torch 2.9.0+cpu is a CPU build",
            'no build of torch 2.9 fits; pip install "torch==2.7.*", with --index-url set to PyTorch\'s own index for',
        ),
        (
            torch("2.9.0+cu130", (13, 0)),
            held("535.183.01", (12, 2)),
            status.DRIVER_TOO_OLD,
            "driver 535.183.01 (CUDA 12.2) is too old for torch 2.9.0+cu130, built for CUDA 13.0: ",
            "torch==2.9.0+cu128",
        ),
        (
            torch("2.6.0", (12, 4)),
            held("570.124.06", (12, 8), {(12, 0): "RTX5090"}),
            status.NO_KERNEL_IMAGE,
            "sm_120 (RTX5090) is not in the list of torch 2.6.0",
            "cu128",
        ),
        (
            torch("2.15.0", (13, 2)),
            held("580.95.05", (13, 0), {(7, 0): "V100"}),
            status.NO_KERNEL_IMAGE,
            "sm_70 (V100)",
            "torch==2.14.*\", with --index-url set to PyTorch's own index for cu126",
        ),
        (
            Build(framework="torch", version="2.6.0+rocm6.2.4", rocm="6.2.4"),
            held(),
            status.NO_GPU_BUILD,
            "built for ROCm 6.2.4, and the step holds NVIDIA GPUs",
            "torch==2.6.0+cu126",
        ),
        (
            Build(framework="jax", version="0.9.0", cpu=True),
            held("570.124.06", (12, 8)),
            status.NO_GPU_BUILD,
            "jax 0.9.0 is a CPU build",
            'pip install "jax[cuda12]==0.9.0"',
        ),
        (
            Build(framework="jax", version="0.9.0", cuda=(13,)),
            held("570.124.06", (12, 8)),
            status.DRIVER_TOO_OLD,
            "built for CUDA 13",
            "jax[cuda12]",
        ),
        (
            Build(framework="tensorflow", version="2.18.0", cuda=(12, 5), archs=("sm_80", "compute_90")),
            held("535.104.05", (12, 2), {(10, 0): "B200"}),
            status.DRIVER_TOO_OLD,
            "would have to compile its PTX",
            "tensorflow[and-cuda]",
        ),
        (
            Build(framework="cupy", version="13.6.0", cuda=(13,)),
            held("535.104.05", (12, 2)),
            status.DRIVER_TOO_OLD,
            "cupy",
            "cupy-cuda12x",
        ),
        (
            torch("2.9.0+cu130", (13, 0)),
            Hardware(kind="amd"),
            status.NO_GPU_BUILD,
            "the step holds AMD GPUs",
            "for your ROCm",
        ),
        (
            Build(framework="jax", version="0.9.0", cpu=True),
            Hardware(kind="tpu"),
            status.NO_GPU_BUILD,
            "the step holds TPUs",
            "jax[tpu]",
        ),
    ],
)
def test_unfit(build: Build, side: Hardware, cause: str, said: str, fix: str) -> None:
    problem = unfit(build, side)
    assert problem is not None
    assert problem.cause == cause
    assert said in problem.sentence
    assert fix in problem.fix


@pytest.mark.parametrize(
    ("build", "side"),
    [
        # Minor-version compatibility: the driver is for CUDA 12.2, the build for 12.8.
        (torch("2.8.0", (12, 8)), held("535.104.05", (12, 2))),
        (torch("2.9.0", (12, 8)), held("580.95.05", (13, 0))),
        # Forward compatibility: an old driver whose library has been replaced.
        (torch("2.9.0+cu130", (13, 0)), held("535.104.05", (13, 0))),
        # Nothing is known: of the driver, of the chip, of the build.
        (torch("2.15.0", (13, 2)), held()),
        (torch("2.15.0", (13, 2)), held("580.95.05", (13, 0), {})),
        (Build(framework="torch", version="2.6.0a0+nv25.01", cuda=(12, 8)), held("570.1", (12, 8), {(12, 0): "X"})),
        (Build(framework="cupy", version="13.6.0"), held("535.104.05", (12, 2))),
        # 8.6 runs on 8.9, 10.0 on 10.3, 12.0 on 12.1.
        (torch("2.8.0", (12, 8)), held("570.124.06", (12, 8), {(8, 9): "L4", (10, 3): "B300", (12, 1): "GB10"})),
        (Build(framework="tensorflow", version="2.18.0", cuda=(12, 5), archs=("sm_80", "compute_90")), held("570.1")),
        (Build(framework="torch", version="2.4.0+cpu", cpu=True), Hardware(kind="apple")),
        (Build(framework="torch", version="2.6.0+rocm6.2.4", rocm="6.2.4"), Hardware(kind="amd")),
    ],
)
def test_fit(build: Build, side: Hardware) -> None:
    assert unfit(build, side) is None


def test_an_older_driver_that_fits_is_noted() -> None:
    (note,) = notes(torch("2.8.0", (12, 8)), held("535.104.05", (12, 2)))
    assert "CUDA 12.2" in note
    assert not list(notes(torch("2.8.0", (12, 8)), held("580.95.05", (13, 0))))


@pytest.mark.parametrize(
    ("number", "driver", "newest", "fits"),
    [
        ((13, 2), "580.65.06", None, True),
        ((13, 2), "579.99", None, False),
        ((12, 9), "525.60.13", None, True),
        ((12, 0), "525.60.12", None, False),
        ((11, 8), "450.80.02", (11, 0), True),
        ((10, 2), "418.39", (10, 1), False),
        ((12, 4), "", (11, 8), False),
        ((14, 0), "615.10", (13, 4), False),
        ((12, 4), "", None, True),
    ],
)
def test_drivers(number: tuple[int, int], driver: str, newest: tuple[int, int] | None, fits: bool) -> None:
    assert runs(number, driver, newest) is fits


@pytest.mark.parametrize(
    ("archs", "chip", "way"),
    [
        ("sm_80", (8, 6), "code"),
        ("sm_86", (8, 0), ""),
        ("sm_90", (10, 0), ""),
        ("sm_80 compute_90", (12, 0), "ptx"),
        ("compute_90", (9, 0), "ptx"),
        ("sm_90a", (9, 0), "code"),
        ("sm_100a", (10, 3), ""),
        ("sm_100f", (10, 3), "code"),
        ("compute_100f", (12, 0), ""),
        ("sm_86", (8, 7), ""),
        ("sm_87", (8, 7), "code"),
        ("gfx942", (9, 0), ""),
    ],
)
def test_chips(archs: str, chip: tuple[int, int], way: str) -> None:
    assert covers(archs.split(), chip) == way


def test_tables_agree() -> None:
    """Every row covers at least one version, and later builds for one CUDA follow the earlier ones."""
    for machine, rows in rules.TORCH.items():
        for number, first, last, listed in rows:
            # Before CUDA 11 each toolkit needs the driver that it came with.
            known = number[0] in rules.FLOORS or number in CUDA_OF_BRANCH.values()
            assert first <= last and known
            assert torch_archs(f"{first[0]}.{first[1]}.0", number, machine) == rules.archs_of(listed)
            assert torch_archs(f"{last[0]}.{last[1]}.1", number, machine) == rules.archs_of(listed)
    assert not torch_archs("3.0.0", (13, 0), "x86_64")


def package(folder: Path, name: str, files: Mapping[str, str]) -> None:
    files = {f"{name}/__init__.py": "raise SystemExit('it was imported')", **files}
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def distribution(folder: Path, name: str, version: str, *required: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {one}" for one in required]
    (info / "METADATA").write_text("\n".join(lines) + "\n\nRequires-Dist: nvidia-of-the-description\n")


VERSION = """
from typing import Optional
__version__ = '{}'
debug = False
cuda: Optional[str] = {!r}
hip: Optional[str] = {!r}
"""


def read(folder: Path) -> Build:
    (found,) = builds([str(folder)])
    return found


def test_torch_of_a_registry(tmp_path: Path) -> None:
    """A wheel without a suffix that needs NVIDIA's packages has the chips of PyTorch's release."""
    package(tmp_path, "torch", {"torch/version.py": VERSION.format("2.9.0", "12.8", None)})
    assert read(tmp_path).archs == ()  # conda's look like this, and are built for other chips
    distribution(tmp_path, "torch", "2.9.0", "filelock", "nvidia-cuda-runtime-cu12==12.8.90; platform_system=='Linux'")
    found = read(tmp_path)
    assert (found.cuda, found.cpu) == ((12, 8), False)
    if os.uname().machine == "x86_64":
        assert found.archs == ("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
    assert words(found) == "2.9.0, built for CUDA 12.8"


@pytest.mark.parametrize(
    ("version", "number", "hip", "target"),
    [
        ("2.13.0+cpu", None, None, "the CPU"),
        ("2.13.0", "13.0", None, "CUDA 13.0"),
        ("2.4.0", None, None, "the CPU"),
        ("2.6.0+rocm6.2.4", None, "6.2.41134-65d174c3e", "ROCm 6.2.4"),
        ("2.6.0a0+ecf3bae40a.nv25.01", "12.8", None, "CUDA 12.8"),
    ],
)
def test_torch(version: str, number: str | None, hip: str | None, target: str, tmp_path: Path) -> None:
    package(tmp_path, "torch", {"torch/version.py": VERSION.format(version, number, hip)})
    found = read(tmp_path)
    assert (found.version, found.target, found.cpu) == (version, target, target == "the CPU")
    assert version in found.how


def test_the_first_on_the_path_counts(tmp_path: Path) -> None:
    package(tmp_path / "a", "torch", {"torch/version.py": VERSION.format("2.9.0+cu130", "13.0", None)})
    package(tmp_path / "b", "torch", {"torch/version.py": VERSION.format("2.9.0+cpu", None, None)})
    (found,) = builds([str(tmp_path / "none"), str(tmp_path / "a"), str(tmp_path / "b")])
    assert found.version == "2.9.0+cu130"
    (tmp_path / "a/torch/__init__.py").unlink()  # a folder of that name, as for a model's files
    (found,) = builds([str(tmp_path / "a"), str(tmp_path / "b")])
    assert found.version == "2.9.0+cpu"


def test_jax(tmp_path: Path) -> None:
    package(tmp_path, "jax", {"jax/version.py": "_version = \"0.7.2\"\n_release_version: str | None = '0.7.2'\n"})
    distribution(tmp_path, "jaxlib", "0.7.2")
    assert read(tmp_path).target == "the CPU"
    (tmp_path / "jax_plugins" / "some_vendor").mkdir(parents=True)
    assert not read(tmp_path).target  # it may be for these devices
    distribution(tmp_path, "jax-cuda13-plugin", "0.7.2")
    found = read(tmp_path)
    assert (found.cuda, found.version) == ((13,), "0.7.2")
    assert "jax-cuda13-plugin" in found.how


def test_jaxlib_with_cuda_inside(tmp_path: Path) -> None:
    package(tmp_path, "jax", {})
    distribution(tmp_path, "jax", "0.4.20")
    distribution(tmp_path, "jaxlib", "0.4.20+cuda12.cudnn89")
    assert read(tmp_path).cuda == (12,)


TENSORFLOW = """
build_info = collections.OrderedDict([('cpu_compiler', '/usr/lib/llvm-17/bin/clang'), ('cuda_compute_capabilities',
['sm_60', 'sm_70', 'sm_80', 'sm_89', 'compute_90']), ('cuda_version', '12.5.1'), ('is_cuda_build', True)])
"""


def test_tensorflow(tmp_path: Path) -> None:
    package(tmp_path, "tensorflow", {"tensorflow/python/platform/build_info.py": TENSORFLOW})
    distribution(tmp_path, "tensorflow", "2.18.0")
    found = read(tmp_path)
    assert (found.version, found.cuda) == ("2.18.0", (12, 5))
    assert found.archs == ("sm_60", "sm_70", "sm_80", "sm_89", "compute_90")
    assert "and-cuda" in found.lacks
    distribution(tmp_path, "nvidia-cudnn-cu12", "9.3.0.75")
    assert not read(tmp_path).lacks
    text = "build_info = collections.OrderedDict([('is_cuda_build', False), ('is_rocm_build', False)])"
    package(tmp_path, "tensorflow", {"tensorflow/python/platform/build_info.py": text})
    assert read(tmp_path).cpu


@pytest.mark.parametrize(
    ("name", "target"), [("cupy-cuda12x", "CUDA 12"), ("cupy-cuda118", "CUDA 11.8"), ("cupy-rocm-5-0", "ROCm 5.0")]
)
def test_cupy(name: str, target: str, tmp_path: Path) -> None:
    package(tmp_path, "cupy", {})
    distribution(tmp_path, name, "13.6.0")
    assert words(read(tmp_path)) == f"13.6.0, built for {target}"


def test_reading_imports_nothing() -> None:
    program = (
        "import sys; from stoker.devices.builds import builds; print([b.framework for b in builds()]); "
        "assert not {'torch', 'jax', 'tensorflow', 'importlib.metadata'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


# What the driver answers


@pytest.fixture(scope="session")
def libcuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_cuda(tmp_path_factory.mktemp("cuda"))


def fake_cuda(folder: Path, *flags: str) -> Path:
    """The folder, with a fake libcuda.so.1 in it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler, and CUDA's library is faked in C")
    argv = [compiler, "-shared", "-fPIC", "-O1", *flags, "-Wl,-soname,libcuda.so.1"]
    finished = subprocess.run(
        [*argv, "-o", str(folder / "libcuda.so.1"), str(FAKE)], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    return folder


UUIDS = ("GPU-11111111-2222-3333-4444-555555555555", "GPU-aaaaaaaa-2222-3333-4444-555555555555")
TWO = f"version = 13000\nuuid = {UUIDS[0]}\nuuid = {UUIDS[1]}\n"


def environment(folder: Path, scenario: Path, text: str) -> dict[str, str]:
    scenario.write_text(text)
    return {"LD_LIBRARY_PATH": str(folder), "FAKE_CUDA_SCENARIO": str(scenario)}


def test_cuda_is_seen(libcuda: Path, tmp_path: Path) -> None:
    variables = environment(libcuda, tmp_path / "scenario", f"prints = hello\n{TWO}")
    found = gate.visible_devices(variables)
    assert (found.version, found.problem) == ((13, 0), None)
    assert found.uuids == tuple(map(gate.plain, UUIDS))
    assert gate.visible_devices({**variables, "CUDA_VISIBLE_DEVICES": UUIDS[1]}).uuids == (gate.plain(UUIDS[1]),)
    hidden = gate.visible_devices({**variables, "CUDA_VISIBLE_DEVICES": ""}).problem
    assert hidden is not None and hidden.cause == status.NO_GPU


@pytest.mark.parametrize("number", sorted(gate.RESULTS))
def test_what_cuda_answers(number: int, libcuda: Path, tmp_path: Path) -> None:
    problem = gate.visible_devices(environment(libcuda, tmp_path / "scenario", f"init = {number}\n{TWO}")).problem
    assert problem is not None
    assert problem.cause == gate.RESULTS[number][0]
    assert problem.cause in status.CAUSES
    assert str(number) in problem.sentence and problem.fix


@pytest.mark.parametrize(
    ("text", "said"),
    [("crash = 1", "signal 11"), ("hang = 1", "the driver hangs"), ("init = 718", "718"), ("count = 999", "999")],
)
def test_a_driver_that_does_not_work(text: str, said: str, libcuda: Path, tmp_path: Path) -> None:
    variables = environment(libcuda, tmp_path / "scenario", f"{text}\n{TWO}")
    problem = gate.visible_devices(variables, patience=1 if "hang" in text else gate.TIMEOUT).problem
    assert problem is not None and problem.cause == status.DRIVER_BROKEN
    assert said in problem.sentence


def test_a_library_that_is_not_there(tmp_path: Path) -> None:
    missing = gate.visible_devices({"LD_LIBRARY_PATH": str(tmp_path)}, library="libcuda-that-nobody-has.so.1").problem
    assert missing is not None and missing.cause == status.NO_DRIVER
    (tmp_path / "libcuda.so.1").write_text("")
    broken = gate.visible_devices({"LD_LIBRARY_PATH": str(tmp_path)}).problem
    assert broken is not None and broken.cause == status.DRIVER_BROKEN


@pytest.mark.parametrize(
    ("path", "text", "variables", "inside"),
    [
        (".dockerenv", "", {}, True),
        ("proc/self/cgroup", "0::/kubepods/besteffort/pod1", {}, True),
        ("proc/self/cgroup", "0::/user.slice", {}, False),
        ("dev/null", "", {"container": "podman"}, True),
        ("dev/null", "", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, True),
    ],
)
def test_containers(path: str, text: str, variables: Mapping[str, str], inside: bool, tmp_path: Path) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(text)
    assert in_container(variables, tmp_path) is inside
