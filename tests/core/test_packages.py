"""What a person may write of packages, and what it is called afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.core.errors import SettingsError
from stoker.core.packages import PackageSettings
from stoker.core.units import UNSET
from stoker.settings.options import layer_of, step_settings


def test_lines_for_installers() -> None:
    asked = PackageSettings(
        pypi={
            "Scikit_Learn": "1.5",
            "requests[Socks, security]": "~=2.31",
            "six": "",
            "gone": None,
            "link": "@ https://example.com/x.whl",
            "near": "==1.*",
        },
        conda={"numpy": "1.26", "bioconda::samtools": ">=1.20", "ffmpeg": ""},
        python="3.12",
        index_url="https://a",
        extra_index_urls=["https://b", "https://c"],
    )
    assert asked.requirements == (
        "link @ https://example.com/x.whl",
        "near==1.*",
        "requests[security,socks]~=2.31",
        "scikit-learn==1.5",
        "six",
    )
    assert asked.specifications == ("bioconda::samtools>=1.20", "ffmpeg", "numpy==1.26")
    assert asked.indexes == ("--index-url=https://a", "--extra-index-url=https://b", "--extra-index-url=https://c")
    assert asked.text.startswith("Python 3.12, link @") and not asked.empty and not asked.makes_environment
    assert PackageSettings().empty and PackageSettings(pypi={"six": None}, environment="uv").empty
    assert PackageSettings(pypi={"six": ""}, disabled=True).empty


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"pypi": {"six": 1.15}}, "not a text"),
        ({"pypi": {"six; rm": "1"}}, "not the name of a package"),
        ({"pypi": {"six": "1.0; python_version<'3'"}}, "not a version of six"),
        ({"pypi": {"six": "1 --hash=x"}}, "not a version"),
        ({"pypi": {"Six": "1", "six": "2"}}, "twice"),
        ({"pypi": ["six"]}, "does not map"),
        ({"pypi": {"six": "@"}}, "address of six is missing"),
        ({"pypi": {"six": "@ https://me:secret@example.com/six.whl"}}, "password"),
        ({"conda": {"a b": "1"}}, "not the name"),
        ({"conda": {"a": "1 && reboot"}}, "not a version"),
        ({"python": "3"}, "not a version of Python"),
        ({"python": 3.11}, "not a version of Python"),
        ({"python": "3.8"}, "3.10 or later"),
        ({"index_url": "https://me:secret@example.com/simple"}, "password"),
        ({"extra_index_urls": "https://a"}, "not a list"),
        ({"environment": "venv"}, "not one of local, pypi, conda, uv"),
        ({"packages": {}}, "packages"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match="(?s).*" + words) as caught:
        PackageSettings(**wrong)
    assert "secret@" not in str(caught.value), "a password is not shown"


def test_it_is_an_option_of_a_step() -> None:
    layer = layer_of("here", packages=PackageSettings(pypi={"six": "1"}))
    assert layer.values == {"packages": {"pypi": {"six": "1"}}}
    settings = step_settings({"packages": {"pypi": {"six": "1"}, "python": None}})
    assert settings.packages == PackageSettings(pypi={"six": "1"}) and settings.packages.python is UNSET
    assert step_settings({}).packages is None
