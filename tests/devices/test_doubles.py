"""What stands in for NVIDIA's library is called, and answers, as nvidia-ml-py knows the real one."""

from __future__ import annotations

import re
from pathlib import Path

from tests.devices.conftest import SOURCE

CODES = {
    # nvmlReturn_t: https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html
    "OK": "SUCCESS",
    "UNINITIALISED": "ERROR_UNINITIALIZED",
    "INVALID": "ERROR_INVALID_ARGUMENT",
    "NOT_SUPPORTED": "ERROR_NOT_SUPPORTED",
    "NOT_FOUND": "ERROR_NOT_FOUND",
    "TOO_SMALL": "ERROR_INSUFFICIENT_SIZE",
    "TIMEOUT": "ERROR_TIMEOUT",
    "LOST": "ERROR_GPU_IS_LOST",
    "UNKNOWN": "ERROR_UNKNOWN",
}


def test_the_fake_library_has_functions_and_errors_of_the_real_one() -> None:
    import pynvml

    text = SOURCE.read_text()
    functions = set(re.findall(r"^(?:int|const char \*|[a-z_ ]+\*?)\s*(nvml\w+)\(", text, re.MULTILINE))
    asked_for = set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', Path(pynvml.__file__).read_text()))
    assert len(functions) > 20 and functions <= asked_for, functions - asked_for
    (listed,) = re.findall(r"enum \{ (OK = [^}]*)\};", text)
    codes = {name: int(number) for name, number in re.findall(r"(\w+) = (\d+)", listed)}
    assert {name: getattr(pynvml, f"NVML_{CODES[name]}") for name in codes} == codes


def test_a_query_that_the_scenario_does_not_answer_is_not_supported() -> None:
    """Of a GPU nothing is known that a test does not say: what a driver lacks is not 0."""
    text = SOURCE.read_text()
    for name in ("nvmlDeviceGetRemappedRows", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetUtilizationRates"):
        (body,) = re.findall(rf"{name}\(.*?\n\}}", text, re.DOTALL)
        assert "NOT_SUPPORTED" in body, name
