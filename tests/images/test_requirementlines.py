"""Lines of requirements files: what is joined, cut off, and read, as pip does it."""

from __future__ import annotations

import pytest

from stoker.core.errors import SettingsError
from stoker.images.requirements import check, logical_lines, option_of, project_of, same, wheel_of

HASH = "--hash=sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("numpy\n\nscipy\n", ["numpy", "scipy"]),
        ("numpy  # why", ["numpy"]),
        ("# numpy", []),
        ("numpy==1.26 \\\n  " + HASH + "\nscipy", ["numpy==1.26   " + HASH, "scipy"]),
        ("# a comment does not continue \\\nnumpy", ["numpy"]),
        ("numpy \\\n# it ends what is continued\nscipy", ["numpy", "scipy"]),
        ("num\\\npy", ["numpy"]),
        ("numpy \\", ["numpy"]),
        ("x @ git+https://e.org/x.git#egg=x  # y", ["x @ git+https://e.org/x.git#egg=x"]),
        ("--pre\r\nnumpy\r\n", ["--pre", "numpy"]),
    ],
)
def test_lines(text: str, lines: list[str]) -> None:
    assert [line for _, line in logical_lines(text)] == lines


def test_lines_have_the_number_of_their_first() -> None:
    text = "a\n\n# b\nc \\\n --hash=x\nd"
    assert [number for number, _ in logical_lines(text)] == [1, 4, 6]


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("-r more.txt", ("-r", "more.txt")),
        ("-rmore.txt", ("-r", "more.txt")),
        ("--requirement=more.txt", ("--requirement", "more.txt")),
        ("--requirement 'a file.txt'", ("--requirement", "a file.txt")),
        ("-c limits.txt", ("-c", "limits.txt")),
        ("-e .", ("-e", ".")),
        ("-e.", ("-e", ".")),
        ("--index-url https://e.org/simple", ("--index-url", "https://e.org/simple")),
        ("-i https://e.org/simple", ("-i", "https://e.org/simple")),
        ("--pre", ("--pre", "")),
        ("numpy", None),
        ("numpy --hash=x", None),
    ],
)
def test_options(line: str, option: tuple[str, str] | None) -> None:
    assert option_of(line) == option


@pytest.mark.parametrize(
    ("line", "project"),
    [
        ("Torch_Audio [a, B] >= 2.4 ; os_name == 'posix'", "torch-audio"),
        ("x (>=1.0)", "x"),
        ("x@https://e.org/x-1.0.zip", "x"),
        ("x==1!2.0.post1", "x"),
        ("x==2.1.0+cu121", "x"),
        ("x===weird", "x"),
        ("x==1.0 " + HASH, "x"),
        ("x_", "x-"),
        ("x==${VERSION}", "x"),
        ("Scikit_Learn[a]>=${VERSION}", "scikit-learn"),
        ("https://e.org/a_b-1.0-1-py2.py3-none-any.whl#sha256=00", "a-b"),
        ("git+https://e.org/x.git#egg=Stoker", "stoker"),
        ("git+https://e.org/x.git@v1#subdirectory=a&egg=my_model[gpu]", "my-model"),
        ("git+https://e.org/x.git", ""),
        ("https://${USER}@e.org/x.tar.gz", ""),
        ("./x", ""),
        ("--pre", ""),
        ("-e git+https://e.org/x.git#egg=x", ""),
        ("numpy=1.26", ""),
    ],
)
def test_the_project_of_a_line(line: str, project: str) -> None:
    assert project_of(line) == project


def test_the_same_in_two_spellings_is_equal() -> None:
    assert same("Torch_Audio[b,A] >=1.0 , <2", "torch-audio[a, b]<2,>=1.0")
    assert same("x==1.0 " + HASH, "x == 1.0.0") and same("--pre", "--pre")
    assert not same("x==1", "x==2") and not same("x[a]", "x") and not same("x", "x; os_name == 'posix'")
    assert same("channel::x =1", "channel::x=1") and not same("channel::x=1", "x=1")


def test_a_wheel_by_its_file_name() -> None:
    name = "https://e.org/flash_attn-2.6.3%2Bcu123torch2.4-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    assert wheel_of(name + "#sha256=0") == (
        "flash-attn",
        "2.6.3+cu123torch2.4",
        ("cp311", "cp311", "manylinux_2_17_x86_64.manylinux2014_x86_64"),
    )
    assert wheel_of("https://e.org/x-1.0.tar.gz") is None
    assert wheel_of("https://e.org/x-new-py3-none-any.whl") is None


@pytest.mark.parametrize("line", ["x==${VERSION}", "git+https://e.org/x.git", "https://e.org/x.zip", "x>=1,", "x>=1;"])
def test_what_an_installer_takes_is_taken(line: str) -> None:
    check(line, "here")


def test_a_line_that_is_none_says_what_where_and_what_to_write() -> None:
    with pytest.raises(SettingsError) as caught:
        check("numpy=1.26", "requirements.txt:3")
    error = caught.value
    assert error.message.startswith("'numpy=1.26' is not a requirement: ") and "\n" not in error.message
    assert (error.where, error.fix) == ("requirements.txt:3", "write a name such as 'numpy>=1.26'")
