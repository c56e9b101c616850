"""Reads from their files what the installed frameworks were built for. Importing them would take seconds.

A framework is taken from where Python would import it: the first folder of the path that has it. Its own files take
precedence over its wheel's metadata.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from pathlib import Path
from typing import Callable, Final, Iterator, Mapping, Sequence

import attrs

from stoker.vendors.builds import Build, Version, dotted, numbers
from stoker.vendors.nvidia.builds import archs_of, torch_archs

_INFO: Final = re.compile(r"(.+?)-([^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info")
"""The folder of a distribution's metadata: conda's and Debian's torch have an egg-info."""
_JAX_PLUGIN: Final = re.compile(r"jax_(cuda|rocm)(\d+)_plugin")
_CUPY: Final = re.compile(r"cupy_(?:cuda(\d{2,3})x?|rocm_([\d_]+))")
# These are the names under which TensorFlow has been released.
_TENSORFLOW: Final = (
    "tensorflow",
    "tensorflow_cpu",
    "tensorflow_rocm",
    "tensorflow_intel",
    "tensorflow_macos",
    "tensorflow_cpu_aws",
    "tf_nightly",
    "tf_nightly_cpu",
)


@attrs.frozen
class _Installed:
    """Packages and distributions on a path."""

    packages: Mapping[str, Path]
    """Name → folder."""
    distributions: Mapping[str, tuple[str, Path]]
    """Name → version and folder of metadata."""


def builds(paths: Sequence[str] | None = None) -> list[Build]:
    """The builds of torch, jax, tensorflow and cupy that are on a path; without one, on that of this process."""
    installed = _scan_path(sys.path if paths is None else paths)
    results = []
    for name, read in _READERS.items():
        folder = installed.packages.get(name) or (_editable_folder(name) if paths is None else None)
        if folder is not None:
            results.append(read(folder, installed))
    return results


def distributions() -> Mapping[str, str]:
    """Canonical name → version of all distributions on this process's path, by the names of their metadata's folders;
    of several versions the one that is imported."""
    return {name.replace("_", "-"): version for name, (version, _) in _scan_path(sys.path).distributions.items()}


def _scan_path(paths: Sequence[str]) -> _Installed:
    packages: dict[str, Path] = {}
    distributions: dict[str, tuple[str, Path]] = {}
    for path in dict.fromkeys(paths):
        folder = Path(path or os.curdir)
        try:
            names = os.listdir(folder)
        except OSError:
            continue  # a zip file or a missing folder has no framework
        for name in names:
            match = _INFO.fullmatch(name)
            if match is not None:
                key = re.sub(r"[-_.]+", "_", match[1]).lower()
                distributions.setdefault(key, (match[2], folder / name))
            elif name in _READERS and name not in packages and (folder / name / "__init__.py").is_file():
                packages[name] = folder / name
            elif _JAX_PLUGIN.fullmatch(name) or name in ("libtpu", "jaxlib", "jax_plugins"):
                packages.setdefault(name, folder / name)
    return _Installed(packages, distributions)


def _editable_folder(name: str) -> Path | None:
    """The folder of a package that is in no folder of the path, such as one installed for editing."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None  # another package's importer failed, or a module without a file has this name
    return Path(spec.origin).parent if spec is not None and spec.origin and spec.has_location else None


def _torch(folder: Path, installed: _Installed) -> Build:
    text = _text(folder / "version.py")
    declared = re.search(r"^__version__\s*=\s*['\"]([^'\"]+)", text, re.MULTILINE)
    version, info = installed.distributions.get("torch", ("", None))
    version = declared[1] if declared else version
    cuda, hip, xpu = (_assigned_text(text, name) for name in ("cuda", "hip", "xpu"))
    _, _, local = version.partition("+")
    tag = re.match(r"(cpu|cu|rocm)(\d*(?:\.\d+)*)", local)
    if tag is not None and not (cuda or hip):
        # Without a version.py, the suffix names the platform.
        cuda = f"{tag[2][:-1]}.{tag[2][-1:]}" if tag[1] == "cu" else cuda
    if tag is not None and tag[1] == "rocm":
        hip = tag[2]  # ROCm's version; torch.version.hip is HIP's own, such as 6.1.40091-a8dbc0c19
    how = f"torch {version}" + (", torch/version.py" if text else "")
    if cuda:
        number = numbers(cuda)
        # Other builders of torch choose other chips. The lists are those of PyTorch's own wheels, which have a suffix
        # or require NVIDIA's packages.
        released = bool(tag) or _requires(info, r"nvidia[-_]|cuda[-_]toolkit")
        plain = re.fullmatch(r"\d+(?:\.\d+)*", version.partition("+")[0]) is not None
        archs = torch_archs(version, number, platform.machine()) if released and plain else ()
        return Build(framework="torch", version=version, cuda=number, archs=archs, how=how)
    rocm = dotted(numbers(hip)) if hip else ""
    none = "cuda" in text and not xpu
    cpu = not rocm and (none or (tag is not None and tag[1] == "cpu"))
    return Build(framework="torch", version=version, rocm=rocm, cpu=cpu, how=how)


def _jax(folder: Path, installed: _Installed) -> Build:
    declared = re.search(r"^_version\s*=\s*['\"]([^'\"]+)", _text(folder / "version.py"), re.MULTILINE)
    version = declared[1] if declared else installed.distributions.get("jax", ("", None))[0]
    names = {*installed.packages, *installed.distributions}
    plugins = sorted(match.groups() for match in map(_JAX_PLUGIN.fullmatch, names) if match is not None)
    cuda: Version | None = max(((int(number),) for kind, number in plugins if kind == "cuda"), default=None)
    rocm = max((number for kind, number in plugins if kind == "rocm"), default="")
    # Before 0.4.26 jaxlib contained CUDA itself, with a suffix in its version: 0.4.20+cuda12.cudnn89.
    jaxlib = installed.distributions.get("jaxlib", ("", None))[0]
    inside = re.search(r"\+cuda(\d+)", jaxlib)
    if cuda is None and inside is not None:
        digits = inside[1]
        cuda = (int(digits[:2]), *(int(digit) for digit in digits[2:]))
    tpu = "libtpu" in names or "libtpu_nightly" in names
    others = _plugin_names(installed.packages.get("jax_plugins"))
    how = f"jax {version}, " + (", ".join(f"jax-{kind}{number}-plugin" for kind, number in plugins) or "no plugin")
    cpu = not (cuda or rocm or tpu or others)
    return Build(framework="jax", version=version, cuda=cuda, rocm=rocm, tpu=tpu, cpu=cpu, how=how)


def _tensorflow(folder: Path, installed: _Installed) -> Build:
    distributions = (installed.distributions[name] for name in _TENSORFLOW if name in installed.distributions)
    version = next(distributions, ("", None))[0]
    text = _text(folder / "python/platform/build_info.py")
    is_cuda, is_rocm = (re.search(rf"'is_{name}_build'[,:]\s*(True|False)", text) for name in ("cuda", "rocm"))
    declared_cuda = re.search(r"'cuda_version'[,:]\s*'(\d+(?:\.\d+)*)", text)
    how = f"tensorflow {version}" + (", its build_info.py" if text else "")
    if declared_cuda and not (is_cuda and is_cuda[1] == "False"):
        capabilities = re.search(r"'cuda_compute_capabilities'[,:]\s*\[([^\]]*)\]", text)
        archs = tuple(re.findall(r"(?:sm|compute)_\d+[af]?", capabilities[1])) if capabilities else ()
        # "8.0" stands for both code and PTX: TF_CUDA_COMPUTE_CAPABILITIES in TensorFlow's configure.py.
        for number in re.findall(r"'(\d+\.\d)'", capabilities[1] if capabilities else ""):
            plain = number.replace(".", "")
            archs += archs_of(f"{plain} PTX{plain}")
        has_cudnn = any(name.startswith("nvidia_cudnn_cu") for name in installed.distributions)
        lacks = "" if has_cudnn else "NVIDIA's libraries are not among its packages (tensorflow[and-cuda] brings them)"
        cuda = numbers(declared_cuda[1])[:2]
        return Build(framework="tensorflow", version=version, cuda=cuda, archs=archs, how=how, lacks=lacks)
    if is_rocm and is_rocm[1] == "True":
        number = re.search(r"'rocm_version'[,:]\s*'(\d+(?:\.\d+)*)", text)
        return Build(framework="tensorflow", version=version, rocm=number[1] if number else "?", how=how)
    return Build(framework="tensorflow", version=version, cpu=bool(text), how=how)


def _cupy(folder: Path, installed: _Installed) -> Build:
    """CuPy compiles for the chip that it finds, and has no build for the CPU. One built from source names no CUDA."""
    for name, (version, _) in installed.distributions.items():
        match = _CUPY.fullmatch(name)
        if match is None:
            continue
        how = f"{name.replace('_', '-')} {version}"
        if match[2]:
            return Build(framework="cupy", version=version, rocm=match[2].replace("_", "."), how=how)
        cuda = (int(match[1][:2]), *(int(digit) for digit in match[1][2:]))
        return Build(framework="cupy", version=version, cuda=cuda, how=how)
    version = installed.distributions.get("cupy", ("", None))[0]
    return Build(framework="cupy", version=version, how=f"cupy {version}")


_READERS: Final[Mapping[str, Callable[[Path, _Installed], Build]]] = {
    "torch": _torch,
    "jax": _jax,
    "tensorflow": _tensorflow,
    "cupy": _cupy,
}
FRAMEWORKS: Final = tuple(_READERS)


def words(build: Build) -> str:
    """`"2.9.0, built for CUDA 13.0"`, or the version alone where the platform is not known."""
    return f"{build.version}, built for {build.target}" if build.target else build.version


def _assigned_text(text: str, name: str) -> str:
    match = re.search(rf"^{name}\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return match[1] if match else ""


def _requires(info: Path | None, pattern: str) -> bool:
    """Whether a distribution requires one whose name matches `pattern` from its start."""
    if info is None:
        return False
    name = re.compile(rf"Requires-Dist:\s*(?:{pattern})", re.IGNORECASE)
    return any(name.match(line) for line in _header_lines(info / "METADATA"))


def _header_lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if not line.strip():
                    return
                yield line
    except OSError:
        return


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _plugin_names(folder: Path | None) -> list[str]:
    """The packages in a folder of plugins."""
    try:
        return [name for name in os.listdir(folder) if not name.startswith("_")] if folder is not None else []
    except OSError:
        return []
