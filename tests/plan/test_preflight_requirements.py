"""Lines of requirement files as values, and which of them a marker leaves in."""

from __future__ import annotations

import pytest
from packaging.markers import Marker
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from stoker.core.errors import SettingsError
from stoker.plan.requirements import Wheel, applies, check_versions, requirement, requirements

LINUX = {
    "python_version": "3.11",
    "python_full_version": "3.11.9",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "implementation_name": "cpython",
    "implementation_version": "3.11.9",
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
        "extra == 'gpu'",
        "python_version not in '3.8'",
        "python_version in '3.10, 3.11'",
        "'linux' in sys_platform",
        "'3.9' < python_version",
        "os.name == 'posix' and sys.platform != 'win32'",
        "python_implementation == 'CPython'",
        "python_version == '3.*'",
        "python_version ~= '3.10'",
        "python_full_version < '3.11.9'",
        "implementation_version >= '3.11.9'",
    ],
)
def test_markers_mean_what_they_mean_to_installers(marker: str) -> None:
    assert applies(marker, python=(3, 11, 9), machine="x86_64") is Marker(marker).evaluate(LINUX)


@pytest.mark.parametrize(
    "marker",
    [
        "platform_release >= '6'",
        "platform_release >= '6' and os_name == 'posix'",
        "platform_version != '1' or sys_platform == 'win32'",
        "python_full_version >= '3.11.4'",
        "python_full_version != '3.11.4'",
        "sys_platform ~= 'linux'",
        "nonsense",
        "(os_name == 'a'",
    ],
)
def test_a_marker_that_is_not_understood_is_unknown(marker: str) -> None:
    assert applies(marker, python=(3, 11), machine="x86_64") is None


def test_what_is_unknown_does_not_matter_where_the_rest_decides() -> None:
    def known(marker: str) -> bool | None:
        return applies(marker, python=(3, 11), machine="")

    assert known("platform_release >= '6' or os_name == 'posix'") is True
    assert known("platform_machine == 'x86_64' and (os_name == 'nt' or sys_platform == 'win32')") is False
    # uv writes whole versions, and of an image only the first two numbers may be known.
    assert known("python_full_version < '3.11'") is False and known("python_full_version >= '3.10.4'") is True
    assert known("python_full_version == '3.11.*'") is True


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
    assert item.allows(release) is SpecifierSet(clauses).contains(Version(release))


def test_names_extras_and_comments() -> None:
    found = requirements(["Torch_Audio [a, B] >= 2.4 ; os_name == 'posix'  # why", "", "# nothing", "numpy<3,>=1"])
    audio, numpy = found.items
    assert (audio.name, audio.extras, audio.specifier) == ("torch-audio", frozenset({"a", "b"}), SpecifierSet(">=2.4"))
    assert numpy.specifier == SpecifierSet(">=1,<3")
    assert found.unread == ()


@pytest.mark.parametrize(
    ("line", "here", "fits"),
    [
        # what pip 26 says of a version that is installed
        ("x!=26.1.0rc1", "26.1.0", True),
        ("x!=26.1.0rc1", "26.1.0rc1", False),
        ("x>=26.1.0", "26.1.0rc1", False),
        ("x>=25", "26.1.0rc1", True),
        ("x<26.1.0", "26.1.0rc1", False),
        ("x<=26.1.0", "26.1.0rc1", True),
        ("x>1.0", "1.0.post1", False),
        ("x>=1.0", "1.0.post1", True),
        ("x==1.0", "1.0.post1", False),
        ("x>1.0.post1", "1.0.post2", True),
        ("x==1.0.dev1", "1.0.DEV1", True),
        ("x>1.0.dev1", "1.0a1", True),
        ("x~=2.2", "2.9", True),
        ("x~=2.2", "3.0", False),
        ("x~=2.2.0", "2.3.0", False),
        ("x~=2.2.post3", "2.2.post2", False),
        ("x~=1.4.5a4", "1.4.5b1", True),
        ("x==2.1.*", "2.1.0rc1", True),
        ("x==2.1.*", "2.10", False),
        ("x!=2.1.*", "2.1.5", False),
        ("x==1.1", "1.1.0", True),
        ("x===1.1", "1.1.0", False),
        ("x===1.1.0+cu121", "1.1.0+CU121", True),
        ("x==2.1.0", "2.1.0+cu121", True),
        ("x==2.1.0+cu121", "2.1.0", False),
        ("x==2.1.0+cu121", "2.1.0+cu118", False),
        ("x!=2.1.0+cu121", "2.1.0+cu118", True),
        ("x>2.1.0", "2.1.0+cu121", False),
        ("x<=2.1.0", "2.1.0+cu121", True),
        ("x==1!2.0", "2.0", False),
        ("x>=2.0", "1!1.0", True),
        ("x<3", "2.5.0a0+872d972e41.nv24.8", True),
        ("x==2.5.0", "2.5.0a0+872d972e41.nv24.8", False),
        ("x==v1.0", "1.0", True),
        ("x (>=1.0)", "1.5", True),
        ("x>=1,", "1.5", True),
        ("x>=1", "of-my-own", False),
    ],
)
def test_what_is_installed_fits_as_installers_say(line: str, here: str, fits: bool) -> None:
    item = requirement(line)
    assert item is not None and item.allows(here) is fits


def test_a_version_of_a_setting_is_one() -> None:
    check_versions(
        {"a": "1.0", "b": "", "c": None, "d": ">=1,<2", "e": "==1.*", "f": "@ https://example.com/f.whl"}, {}
    )
    for wrong in ("abc", ">=1.*", "~=1", "==1.*.2", ">=1+cpu", "1.0-"):
        with pytest.raises(SettingsError, match="is not a version of six") as caught:
            check_versions({"six": wrong}, {"packages.pypi.six": "train.py:3 @step"})
        assert caught.value.where == "train.py:3 @step" and '"1.26.*"' in caught.value.fix


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
