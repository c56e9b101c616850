"""All components: Stoker's own by their table, those of other distributions by entry points."""

from __future__ import annotations

from typing import Final, Iterator, Mapping

from stoker.core.plugins import Registry
from stoker.plan.components.base import ProofComponent

_OWN: Final[Mapping[str, str]] = {
    "torch": "stoker.plan.components.torch:TORCH",
    "torch-parts": "stoker.plan.components.torchparts:TORCH_PARTS",
    "extensions": "stoker.plan.components.torchparts:EXTENSIONS",
    "companions": "stoker.plan.components.companions:VISION_AND_AUDIO",
    "triton": "stoker.plan.components.companions:TRITON_COMPONENT",
    "deepspeed": "stoker.plan.components.torchparts:DEEPSPEED",
    "torch-xla": "stoker.plan.components.torchparts:XLA",
    "tensorflow": "stoker.plan.components.tensorflow:TENSORFLOW",
    "jax": "stoker.plan.components.jax:JAX",
    "inference": "stoker.plan.components.inference:INFERENCE",
    "cupy": "stoker.plan.components.arrays:CUPY",
    "rapids": "stoker.plan.components.arrays:RAPIDS",
    "numba-cuda": "stoker.plan.components.arrays:NUMBA",
    "trees": "stoker.plan.components.trees:TREES",
    "cuda": "stoker.plan.components.devices:CUDA",
    "gate": "stoker.plan.components.devices:GATE",
    "chip": "stoker.plan.components.devices:CHIP_AND_DRIVER",
    "image": "stoker.plan.components.images:IMAGE",
    "processor": "stoker.plan.components.images:PROCESSOR",
    "python": "stoker.plan.components.images:PYTHON",
}
"""Component → "module:attribute", in the order in which their facts are shown."""

COMPONENTS: Final[Registry[ProofComponent]] = Registry(
    group="stoker.components",
    noun="component",
    kind=ProofComponent,
    builtin={name: (target, "") for name, target in _OWN.items()},
)


def components() -> Iterator[ProofComponent]:
    """Every component, each loaded."""
    return (component for _, component in COMPONENTS.parts())
