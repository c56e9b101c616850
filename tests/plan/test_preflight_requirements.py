"""Lines of requirement files as values, and which of them a marker leaves in."""

from __future__ import annotations

import pytest
from packaging.markers import Marker
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from stoker.plan.requirements import Wheel, applies, requirement, requirements

LINUX = {
    "python_version": "3.11",
    "python_full_version": "3.11.9",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
    "extra": "",
}


@pytest.mark.parametrize(
    "marker",
    [
        "python_version >= '3.10'",
        "python_version < '3.10'",
        "python_full_version >= '3.11.5'",
        "sys_platform == 'win32'",
        "sys_platform == 'linux' and platform_machine == 'aarch64'",
        "sys_platform == 'linux' and platform_machine == 'x86_64'",
        "sys_platform == 'win32' or platform_machine == 'x86_64'",
        "(sys_platform == 'win32' or sys_platform == 'darwin') and python_version >= '3.8'",
        "sys_platform == 'win32' or (platform_machine == 'x86_64' and (python_version < '3.9' or os_name == 'posix'))",
        'platform_python_implementation == "CPython" and implementation_name != "pypy"',
        "sys_platform == 'darwin' or sys_platform == 'linux' and python_version >= '3.12'",
    ],
)
def test_markers_mean_what_they_mean_to_installers(marker: str) -> None:
    assert applies(marker, python=(3, 11, 9), machine="x86_64") is Marker(marker).evaluate(LINUX)


@pytest.mark.parametrize(
    "marker",
    ["platform_release >= '6'", "extra == 'gpu'", "python_version not in '3.8'", "nonsense", "(os_name == 'a'"],
)
def test_a_marker_that_is_not_understood_is_unknown(marker: str) -> None:
    assert applies(marker, python=(3, 11), machine="x86_64") is None


def test_a_marker_for_a_python_that_is_not_known_is_unknown_unless_the_rest_decides() -> None:
    assert applies("python_version >= '3.10'", python=(), machine="x86_64") is None
    assert applies("python_version >= '3.10' and sys_platform == 'win32'", python=(), machine="x86_64") is False


@pytest.mark.parametrize(
    ("clauses", "release"),
    [
        (clauses, release)
        for clauses in (
            "==2.4",
            "==2.4.*",
            "!=2.4.*",
            "~=2.4",
            "~=2.4.1",
            ">=2.4,<2.6",
            ">2.4",
            "<=2.4.0",
            "!=2.4.1",
            "",
        )
        for release in ("2.3.9", "2.4.0", "2.4.1", "2.5.0", "2.6.0", "3.0.0")
    ],
)
def test_versions_are_allowed_as_installers_allow_them(clauses: str, release: str) -> None:
    item = requirement(f"torch{clauses}")
    assert item is not None
    numbers = tuple(int(part) for part in release.split("."))
    assert item.allows(numbers) is SpecifierSet(clauses).contains(Version(release))


def test_names_extras_and_comments() -> None:
    found = requirements(["Torch_Audio [a, B] >= 2.4 ; os_name == 'posix'  # why", "", "# nothing", "numpy<3,>=1"])
    audio, numpy = found.items
    assert (audio.name, audio.extras, audio.clauses) == ("torch-audio", frozenset({"a", "b"}), ((">=", "2.4"),))
    assert numpy.clauses == (("<", "3"), (">=", "1"))
    assert found.unread == ()


def test_lines_of_a_lock_with_hashes() -> None:
    lines = [
        "torch==2.4.0+cu121 \\",
        "    --hash=sha256:00 \\",
        "    --hash=sha256:11",
        "numpy==1.26.4 --hash=sha256:22",
    ]
    found = requirements(lines)
    assert [(item.name, item.pinned, item.local) for item in found.items] == [
        ("torch", "2.4.0+cu121", "cu121"),
        ("numpy", "1.26.4", ""),
    ]


def test_wheels_by_address() -> None:
    item = requirement("torch @ https://example.com/whl/torch-2.4.0%2Bcu121-cp311-cp311-linux_x86_64.whl")
    assert item is not None
    assert item.wheel == Wheel(version="2.4.0+cu121", pythons=("cp311",), abis=("cp311",), platforms=("linux_x86_64",))
    alone = requirement("https://example.com/a_b-1.0-1-py2.py3-none-any.whl#sha256=00")
    assert alone is not None
    assert (alone.name, alone.pinned, alone.wheel and alone.wheel.pythons) == ("a-b", "1.0", ("py2", "py3"))


def test_options_name_indexes() -> None:
    found = requirements(
        ["--index-url https://example.com/whl/cpu", "-f=wheels"], options={"extra_index_url": ["https://b"]}
    )
    assert found.indexes == ("https://b", "https://example.com/whl/cpu", "wheels")
    assert found.instead
    assert requirements([], options={"torch-backend": "cu124", "system": None}).backend == "cu124"


def test_what_is_not_understood_is_kept_apart() -> None:
    lines = ["-e .", "-r more.txt", "git+https://example.com/a.git", "./local/folder", "numpy"]
    found = requirements(lines)
    assert [item.name for item in found.items] == ["numpy"]
    assert found.unread == ("-e .", "-r more.txt", "git+https://example.com/a.git", "./local/folder")


def test_which_of_two_a_marker_chooses_is_not_guessed() -> None:
    lines = ["torch==2.4.0 ; python_version < '3.12'", "torch==2.6.0 ; python_version >= '3.12'"]
    assert [item.pinned for item in requirements(lines, python=(3, 11)).items] == ["2.4.0"]
    unknown = requirements(lines)
    assert unknown.items == ()
    assert len(unknown.unread) == 2
