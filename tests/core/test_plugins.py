"""Parts by name: Stoker's own and those of other distributions."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from stoker.core import plugins
from stoker.core.errors import MissingPackage, UsageError
from stoker.core.plugins import Registry


@pytest.fixture(autouse=True)
def unread() -> None:
    """No test sees what another one has read."""
    plugins.entry_points.cache_clear()


NUMBERS: Registry[int] = Registry(
    group="stoker.numbers",
    noun="number",
    kind=int,
    builtin={"max": ("sys:maxsize", ""), "lost": ("no_such_package.at_all:IT", "numbers")},
)


@pytest.fixture
def offers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution that offers four numbers: a good one and three that cannot be had."""
    (tmp_path / "offers.py").write_text("SEVEN = 7\nTEXT = 'seven'\n")
    info = tmp_path / "offers-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: offers\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[stoker.numbers]\nseven = offers:SEVEN\ntext = offers:TEXT\nnowhere = offers:NOWHERE\nmax = offers:SEVEN\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.entry_points.cache_clear()
    yield
    plugins.entry_points.cache_clear()
    sys.modules.pop("offers", None)


def test_own_parts_need_no_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda **_: pytest.fail("the distributions were scanned"))
    assert NUMBERS.load("max") == sys.maxsize


def test_an_extra_is_named() -> None:
    with pytest.raises(MissingPackage, match=r"pip install 'stoker\[numbers\]'"):
        NUMBERS.load("lost")


@pytest.mark.usefixtures("offers")
def test_parts_of_other_distributions() -> None:
    assert NUMBERS.load("seven") == 7
    assert NUMBERS.load("max") == sys.maxsize, "a name of Stoker's own cannot be taken"
    assert NUMBERS.names() == ("max", "lost", "seven", "text", "nowhere")


@pytest.mark.usefixtures("offers")
def test_a_wrong_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="there is no number called 'sevn', did you mean 'seven'"):
        NUMBERS.load("sevn")


@pytest.mark.usefixtures("offers")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("text", "the number 'text' of the package 'offers' is of class str, not int"),
        ("nowhere", "the number 'nowhere' of the package 'offers' cannot be loaded"),
    ],
)
def test_a_part_that_is_none_is_refused(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        NUMBERS.load(name)


def test_metadata_is_not_imported_where_nobody_offers_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda **_: pytest.fail("the distributions were scanned"))
    assert list(NUMBERS.third_party_parts()) == []


def test_a_zip_file_on_the_path_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tmp_path / "bundle.zip"
    with zipfile.ZipFile(bundle, "w") as archive:
        archive.writestr("zipped.py", "EIGHT = 8\n")
        archive.writestr("zipped-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: zipped\nVersion: 1\n")
        archive.writestr("zipped-1.dist-info/entry_points.txt", "[stoker.numbers]\neight = zipped:EIGHT\n")
    monkeypatch.syspath_prepend(str(bundle))
    plugins.entry_points.cache_clear()
    assert NUMBERS.load("eight") == 8
    plugins.entry_points.cache_clear()


@pytest.mark.usefixtures("offers")
def test_distributions_are_scanned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert NUMBERS.load("seven") == 7
    monkeypatch.setattr(metadata, "entry_points", lambda **_: pytest.fail("scanned again"))
    assert NUMBERS.load("seven") == 7
