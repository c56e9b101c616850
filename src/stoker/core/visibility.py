"""The variables by which a process sees its devices and no others. Light: every worker starts with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Iterable, Mapping

if TYPE_CHECKING:
    from stoker.core.devices import Device

SIMULATE: Final = "STOKER_SIMULATE"
"""The variable that describes accelerators to be pretended (`devices.simulate`)."""
CORES: Final = "neuron-cores:"
"""What the UUID of a Neuron device begins with; behind it stand its cores as NEURON_RT_VISIBLE_CORES takes them."""


def environment_of(devices: Iterable[Device]) -> Mapping[str, str]:
    """The variables by which a process sees exactly these devices, by UUID, and of NVIDIA's and AMD's none for none.

    CUDA: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars. ROCm takes its own UUIDs, and HIP counts
    among what ROCr leaves: https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html. Neuron counts cores:
    https://awsdocs-neuron.readthedocs-hosted.com/en/latest/neuron-runtime/nrt-configurable-parameters.html. Neither
    Neuron nor libtpu documents a value for "none", so that theirs are only set for a step that holds some.
    """
    held = list(devices)

    def joined(kind: str) -> str:
        return ",".join(one.uuid for one in held if one.kind == kind)

    variables = {"CUDA_VISIBLE_DEVICES": joined("nvidia"), "ROCR_VISIBLE_DEVICES": joined("amd")}
    if not variables["ROCR_VISIBLE_DEVICES"]:
        variables["HIP_VISIBLE_DEVICES"] = ""
    cores = ",".join(one.uuid.removeprefix(CORES) for one in held if one.kind == "neuron" and not one.simulated)
    chips = ",".join(str(one.index) for one in held if one.kind == "tpu" and not one.simulated)
    if cores:
        variables["NEURON_RT_VISIBLE_CORES"] = cores
    if chips:
        variables["TPU_VISIBLE_CHIPS"] = chips
    return variables
