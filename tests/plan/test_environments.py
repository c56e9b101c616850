"""Whether the driver's environment has what a step asks for, and what its own is called."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Any

import pytest

from stoker.core.packages import PackageSettings
from stoker.images.environments import module_path
from stoker.plan.environments import differences, environment_name, satisfies

VERSION = ".".join(map(str, sys.version_info[:3]))


@pytest.mark.parametrize(
    ("here", "version"),
    [
        ("1.15.0", "1.15.0"),
        ("1.15.0", "1.15"),
        ("1.15", "1.15.0"),
        ("1.15.0", ""),
        ("1.15.0", ">=1.15,<2"),
        ("1.15.3", "1.15.*"),
        ("1.15.3", "~=1.15.1"),
        ("2.8.0+cu128", "2.8.0"),
        ("2.8.0+cu128", "2.8.0+cu128"),
        ("2.0.0rc1", "2.0rc1"),
        ("2.0.0rc1", "==2.0.0.rc1"),
        ("1.15.0", "!=1.16"),
        ("26.1.0", "!=26.1.0rc1"),
        ("26.1.0", "!=26.0.*"),
        ("26.1.0rc1", ">=26.0"),
        ("1!2.0", ">=3"),
    ],
)
def test_satisfied(here: str, version: str) -> None:
    assert satisfies(here, version)


@pytest.mark.parametrize(
    ("here", "version"),
    [
        ("1.15.0", "1.15.1"),
        ("1.15.0", "<1.15"),
        ("2.8.0", "2.8.0+cu128"),
        ("2.8.0+cpu", "2.8.0+cu128"),
        ("2.0.0rc1", "2.0.0"),
        ("2.0.0rc1", ">=2.0"),
        ("1.15.0", "@ https://example.com/x-1.15.0-py3-none-any.whl"),
        ("1.16.0", "1.15.*"),
        ("1.16", "!=1.16"),
        ("1.0.post1", "1.0"),
        ("1.0.post1", ">1.0"),
        ("2.1.0+cu121", ">2.1.0"),
        ("2.1.0", "===2.1"),
        ("unknown", ">=1"),
        ("1.26.4", "=1.26"),
    ],
)
def test_not_satisfied(here: str, version: str) -> None:
    assert not satisfies(here, version)


def test_a_pre_release_that_is_refused_does_not_refuse_the_release() -> None:
    ours = metadata.version("attrs")
    assert not list(differences(PackageSettings(pypi={"attrs": f"!={ours}rc1"})))
    assert list(differences(PackageSettings(pypi={"attrs": f"!={ours}"})))


def test_differences_name_the_field() -> None:
    asked = PackageSettings(
        pypi={"attrs": "0.0.1", "absent-of-all": ">=2"}, conda={"forge::Absent": "1"}, python="3.99"
    )
    assert [(path, wanted) for path, wanted, _ in differences(asked)] == [
        ("python", "Python 3.99"),
        ("pypi.absent-of-all", "absent-of-all>=2"),
        ("pypi.attrs", "attrs==0.0.1"),
        ("conda.forge::Absent", "forge::Absent==1"),
    ]
    here = [here for _, _, here in differences(asked)]
    assert here[0] == f"Python {VERSION}" and here[1] == "no absent-of-all" and here[2].startswith("attrs ")
    assert not list(differences(PackageSettings(pypi={"attrs": "", "absent": None}, python=VERSION)))
    assert not list(differences(PackageSettings(pypi={"attrs": "0.0.1"}, disabled=True)))


def test_an_environment_is_named_by_all_that_is_asked_of_it() -> None:
    asked: dict[str, Any] = {"pypi": {"tiny": "1"}, "environment": "pypi"}
    first = environment_name(PackageSettings(**asked))
    assert first and first == environment_name(PackageSettings(**{**asked, "environment": "conda"}))
    others: list[dict[str, Any]] = [
        {"pypi": {"tiny": "2"}},
        {"pypi": {"tiny": "1", "attrs": "0"}},
        {"conda": {"tiny": "1"}},
        {"python": "3.99"},
        {"index_url": "https://a"},
        {"extra_index_urls": ["https://a"]},
    ]
    names = [environment_name(PackageSettings(**{**asked, **more})) for more in others]
    assert len({first, *names}) == len(others) + 1
    assert environment_name(PackageSettings(**{**asked, "environment": "local"})) == ""
    assert environment_name(PackageSettings(**{**asked, "pypi": {"attrs": ""}})) == "", "it is installed here"
    assert environment_name(None) == ""


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('a warning\n["", "/lib"]\nGoodbye\n', ["", "/lib"]),
        ("", None),
        ("[1]\n[]\n{}\nGoodbye", None),
        ("[" * 100_000, None),
    ],
)
def test_the_path_of_modules_is_found_among_what_packages_print(text: str, path: list[str] | None) -> None:
    assert module_path(text) == path
