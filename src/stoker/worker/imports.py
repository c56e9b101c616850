"""Sees frameworks being imported, and asks those that have been whether they can use the devices of the step.

Whatever they are asked takes no memory of a device, and leaves the process able to fork: for torch that means NVML in
place of CUDA, and jax is not asked at all, as its first question would take three quarters of the memory
(https://docs.jax.dev/en/latest/gpu_memory_allocation.html).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import threading
import warnings
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable, Final, Iterable, Iterator, Mapping, Sequence

from stoker.core import status
from stoker.core.devices import Device
from stoker.devices.compat import Problem, covers, numbers

_NVML: Final = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""https://docs.pytorch.org/docs/stable/notes/cuda.html: with "1", is_available() asks NVML, which survives a fork."""


def watch(names: Iterable[str], check: Callable[[str], None]) -> Callable[[], None]:
    """Call `check` once for each of these packages, right after it has been executed; what is returned ends the watch.

    What `check` raises comes out of the import.
    """
    finder = _Finder(set(names) - sys.modules.keys(), check)
    sys.meta_path.insert(0, finder)

    def end() -> None:
        with contextlib.suppress(ValueError):  # somebody has put another list there, or ended the watch already
            sys.meta_path.remove(finder)

    return end


class _Finder:
    """Finds a watched package where Python finds it, and puts a loader around it that calls back."""

    def __init__(self, names: set[str], check: Callable[[str], None]) -> None:
        self._names = names
        self._check = check
        self._looking = threading.local()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """The import system's question; none of ours unless the package is watched and not yet seen."""
        if name not in self._names or getattr(self._looking, "now", False):
            return None
        self._looking.now = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking.now = False
        if spec is None or spec.loader is None:
            return None
        spec.loader = _Loader(spec.loader, self._seen)  # type: ignore[assignment]
        return spec

    def _seen(self, name: str) -> None:
        if name in self._names:
            self._names.discard(name)
            self._check(name)


class _Loader:
    """A package's own loader, which it has back before its first line runs; then the callback."""

    def __init__(self, loader: Any, seen: Callable[[str], None]) -> None:
        self._loader = loader
        self._seen = seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """What its own loader makes."""
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Execute the package; a look at what came of it."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._seen(module.__name__)


def asked(name: str, devices: Sequence[Device]) -> tuple[str, Problem | None]:
    """What an imported framework says of the devices, as a fact; and why it cannot use them, if it cannot."""
    module = sys.modules.get(name)
    ask = _QUESTIONS.get(name)
    if module is None or ask is None:
        return "", None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            fact, problem = ask(module, devices)
            raised = []
        except Exception as error:  # a framework's own code, which raises what it likes where a driver fails
            fact, problem, raised = "", None, [f"{type(error).__name__}: {error}"]
    said = [*raised, *(str(one.message) for one in warned)]
    if raised or (problem is not None and said):
        return "", _classified(name, said, problem)
    return fact, problem


def _torch(torch: Any, devices: Sequence[Device]) -> tuple[str, Problem | None]:
    if devices[0].kind == "apple":
        if torch.backends.mps.is_available():
            return "torch.backends.mps is available", None
        fix = "install torch in its build for macOS on Apple silicon, on macOS 12.3 or later"
        return "", Problem(cause=status.NO_GPU_BUILD, sentence="torch finds no MPS device", fix=fix)
    held = [device for device in devices if device.kind in ("nvidia", "amd")]
    if not held or any(device.slice for device in held):
        # Of a slice torch asks CUDA itself, and the process could not fork any more; the gate has counted it.
        return "", None
    with _environment({_NVML: "1"}):
        available, count = bool(torch.cuda.is_available()), int(torch.cuda.device_count())
    if not available or count != len(held):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        sentence = f"torch {torch.__version__} sees {count} of the step's {len(held)} GPUs"
        fix = f"leave CUDA_VISIBLE_DEVICES as Stoker set it (it is {visible!r} now)"
        if getattr(torch.version, "cuda", None) is None and getattr(torch.version, "hip", None) is None:
            sentence, fix = f"torch {torch.__version__} was built for the CPU only", "install torch in a build for CUDA"
            return "", Problem(cause=status.NO_GPU_BUILD, sentence=sentence, fix=fix)
        return "", Problem(cause=status.NO_GPU, sentence=sentence, fix=fix)
    archs = tuple(torch.cuda.get_arch_list()) if held[0].kind == "nvidia" else ()
    cuda = numbers(str(torch.version.cuda or ""))
    for device in held:
        if archs and device.capability is not None and not covers(archs, device.capability, cuda):
            chip = "".join(map(str, device.capability))
            sentence = f"sm_{chip} ({device.model}) is not in the list of torch {torch.__version__}: {' '.join(archs)}"
            fix = "install a build of torch that names it (torch.cuda.get_arch_list()), or ask for another GPU"
            return "", Problem(cause=status.NO_KERNEL_IMAGE, sentence=sentence, fix=fix)
    return f"it sees {count}, as leased" + (f"; it has code for {' '.join(archs)}" if archs else ""), None


def _tensorflow(tensorflow: Any, devices: Sequence[Device]) -> tuple[str, Problem | None]:
    held = [device for device in devices if device.kind in ("nvidia", "amd")]
    if not held:
        return "", None
    count = len(tensorflow.config.list_physical_devices("GPU"))
    if count == len(held):
        return f"it sees {count}, as leased", None
    version = tensorflow.__version__
    if count:
        fix = "leave CUDA_VISIBLE_DEVICES as Stoker set it"
        sentence = f"tensorflow {version} sees {count} of the step's {len(held)} GPUs"
        return "", Problem(cause=status.NO_GPU, sentence=sentence, fix=fix)
    # It says "Cannot dlopen some GPU libraries" in the log, and computes on the CPU.
    sentence = f"tensorflow {version} sees none of the step's {len(held)} GPUs; without CUDA's libraries it cannot"
    fix = f'pip install "tensorflow[and-cuda]=={version}", and see what it says of libraries in the step\'s log'
    return "", Problem(cause=status.NO_GPU_BUILD, sentence=sentence, fix=fix)


def _jax(jax: Any, devices: Sequence[Device]) -> tuple[str, Problem | None]:
    if devices[0].kind == "apple":
        return "", None
    chosen = os.environ.get("JAX_PLATFORMS", "")
    wanted = {"nvidia": ("cuda", "gpu"), "amd": ("rocm", "gpu"), "tpu": ("tpu",), "neuron": ("neuron",)}
    platforms = wanted[devices[0].kind]
    if chosen and not set(platforms) & {part.strip() for part in chosen.split(",")}:
        sentence = f"JAX_PLATFORMS={chosen} keeps jax from the step's devices"
        return "", Problem(cause=status.NO_GPU, sentence=sentence, fix="take JAX_PLATFORMS out of the environment")
    return "unproved: jax takes the device's memory when it is first asked; its packages are right", None


_QUESTIONS: Final[Mapping[str, Callable[[Any, Sequence[Device]], tuple[str, Problem | None]]]] = {
    "torch": _torch,
    "tensorflow": _tensorflow,
    "jax": _jax,
}


@contextlib.contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _classified(name: str, said: Sequence[str], problem: Problem | None) -> Problem:
    """What a framework raised or warned of, by the table of failures; the problem that is known where it has no row."""
    from stoker.worker import signatures  # read when something failed: the table costs a start 2 ms

    found = signatures.known(said, "")
    if found is not None:
        row, line = found
        return Problem(cause=row.cause, sentence=f"{name}: {row.why} ({line})", fix=row.advice)
    if problem is not None:
        return problem
    fix = "see whether `nvidia-smi` works here, and import it by hand"
    return Problem(cause=status.DRIVER_BROKEN, sentence=f"{name} fails to look for devices: {said[0]}", fix=fix)
