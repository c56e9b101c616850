"""Versions, tags of wheels and conditions of images over the whole of their grammars.

PEP 440 and PEP 425 are read by `packaging`; the conditions are those of
https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html#constraints.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.tags import compatible_tags, cpython_tags
from packaging.version import Version

from stoker.images.requirements import wheel_of
from stoker.plan.requirements import numbers
from stoker.plan.rules_device import condition_holds
from stoker.plan.rules_packages import _tag_fits
from stoker.vendors.builds import Hardware

RELEASES = st.lists(st.integers(0, 9999), min_size=1, max_size=5).map(lambda parts: ".".join(map(str, parts)))
EPOCHS = st.sampled_from(["", "0!", "1!", "20!"])
ENDINGS = st.sampled_from(["", "a1", "b2", "rc3", ".post1", ".dev4", "rc1.post2.dev3"])
LOCALS = st.sampled_from(
    ["", "+cu128", "+cpu", "+rocm6.2.4", "+cu123torch2.4cxx11abiFALSE", "+0.g1234567", "+ubuntu.1"]
)
VERSIONS = st.tuples(st.sampled_from(["", "v"]), EPOCHS, RELEASES, ENDINGS, LOCALS).map("".join)


@given(VERSIONS)
def test_every_version_has_its_release(text: str) -> None:
    assert numbers(text) == Version(text).release


@pytest.mark.parametrize("text", ["", "latest", "?", "cu128", "unknown", "N/A", "-1", ".5", "٣.4", "v", "<1"])
def test_what_is_no_version_is_unknown(text: str) -> None:
    assert numbers(text) == ()


MINORS = range(10, 18)


@given(st.sampled_from(MINORS), st.data())
def test_every_tag_of_cpython_fits_it(minor: int, data: st.DataObject) -> None:
    abis = [f"cp3{minor}", f"cp3{minor}d"]
    tags = [
        *cpython_tags((3, minor), abis, ["linux_x86_64"]),
        *compatible_tags((3, minor), f"cp3{minor}", ["linux_x86_64"]),
    ]
    theirs = {(tag.interpreter, tag.abi) for tag in tags}
    tag = data.draw(st.sampled_from(sorted(theirs)))
    assert _tag_fits(*tag, (3, minor))


@given(st.sampled_from(MINORS), st.sampled_from(MINORS), st.sampled_from(["cp3{}", "none", "abi3"]))
def test_no_tag_of_another_python_fits(minor: int, other: int, abi: str) -> None:
    theirs = {(tag.interpreter, tag.abi) for tag in cpython_tags((3, minor), [f"cp3{minor}"], ["linux_x86_64"])}
    tag = (f"cp3{other}", abi.format(other))
    assert _tag_fits(*tag, (3, minor)) == (tag in theirs)


NAMES = st.sampled_from(["torch", "flash_attn", "nvidia.cudnn_cu12"])
PLATFORMS = st.sampled_from(
    ["any", "manylinux_2_28_x86_64", "manylinux_2_17_x86_64.manylinux2014_x86_64", "musllinux_1_2_aarch64", "win_amd64"]
)


@given(NAMES, VERSIONS.map(lambda text: text.removeprefix("v")), st.sampled_from(["", "-1", "-2abc"]), PLATFORMS)
def test_every_file_name_of_a_wheel(name: str, version: str, build: str, platform: str) -> None:
    """https://packaging.python.org/en/latest/specifications/binary-distribution-format/#file-name-convention"""
    file = f"{name}-{version}{build}-cp310-abi3-{platform}.whl"
    for address in (file, f"https://h/whl/{file.replace('+', '%2B')}#sha256=0", f"https://h/{file}?x=1"):
        found = wheel_of(address)
        assert found is not None
        assert found[1:] == (str(Version(version)), ("cp310", "abi3", platform))


@pytest.mark.parametrize(
    "file", ["torch-2.7.0.tar.gz", "torch-2.7.whl", "torch-new-cp310-abi3-any.whl", "a-1-x-cp310-abi3-any.whl"]
)
def test_what_is_no_wheel(file: str) -> None:
    assert wheel_of(file) is None


HELD = Hardware(cuda=(12, 8), driver="570.86.15")


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("cuda>=12.8", True), ("cuda>=13.0", False), ("cuda>=12.4 driver>=999", True), ("driver<571,cuda=12.8", True),
        ("cuda>=", None), ("cuda>=latest", None), ("driver<unknown", None), ("cuda>=latest cuda>=12", True),
        ("cuda>=latest,cuda>=13", False), ("fabric>=2", None), ("cuda~=12", None), ("arch>=7.0", None),
    ],
)  # fmt: skip
def test_conditions_that_are_not_understood_decide_nothing(condition: str, holds: bool | None) -> None:
    assert condition_holds(condition, HELD) is holds


def test_signs_agree_with_each_other() -> None:
    for version, (sign, opposite) in itertools.product(
        ("12.7", "12.8", "12.9"), ((">=", "<"), ("<=", ">"), ("=", "!="))
    ):
        assert condition_holds(f"cuda{sign}{version}", HELD) is not condition_holds(f"cuda{opposite}{version}", HELD)
