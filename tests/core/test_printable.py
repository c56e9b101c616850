"""Text from elsewhere as a terminal may get it, and names that hold none but visible characters."""

from __future__ import annotations

import io
import json

import pytest

from stoker.core.errors import UsageError
from stoker.core.printable import check_name, check_names, printable, printable_json
from stoker.core.words import bounded, shown
from stoker.report.streams import painted, write

HOSTILE = {
    "\x1b]52;c;QQ==\x07": "\\x1b]52;c;QQ==\\x07",
    "\x1b]8;;http://a\x1b\\b": "\\x1b]8;;http://a\\x1b\\b",
    "\x1b[2J\x1b[1;1H": "\\x1b[2J\\x1b[1;1H",
    "a\rb\x08": "a\\x0db\\x08",
    "\x9b31m\x85": "\\x9b31m\\x85",
    "a\u202eb\u2066": "a\\u202eb\\u2066",
    "\ud800": "\\ud800",
    "\U000e0041": "\\U000e0041",
    "tab\tand\nline, é 🙂 中": "tab\tand\nline, é 🙂 中",
}


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_terminal_would_obey_is_shown(text: str) -> None:
    assert printable(text) == HOSTILE[text]
    document = json.dumps([text], ensure_ascii=False)
    assert json.loads(printable_json(document)) == [text]
    assert printable(printable_json(document)) == printable_json(document)


def test_colours_pass_where_they_may_and_end_with_the_text() -> None:
    assert printable("\x1b[1;38;5;8mred", colours=True) == "\x1b[1;38;5;8mred\x1b[0m"
    assert printable("\x1b[8mhidden\x1b]0;t\x07", colours=True) == "\\x1b[8mhidden\\x1b]0;t\\x07"


def test_own_colours_cannot_be_imitated() -> None:
    stream = io.StringIO()
    write(painted("own", "1;31") + "\ufdd0[31m\x1b[32m", stream)
    assert stream.getvalue() == "\x1b[1;31mown\x1b[0m\\ufdd0[31m\\x1b[32m"


@pytest.mark.parametrize("name", ["a\x1b[31m", "a\nb", "a\tb", "\u202ea", "\x9b"])
def test_a_name_with_a_control_character_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="a tag holds a control character") as refused:
        check_name(name, "a tag")
    assert "\x1b" not in str(refused.value) and "\x9b" not in str(refused.value)
    assert check_names(["plain", "größe 2"], "a tag") == ("plain", "größe 2")


def test_long_texts_keep_their_ends_and_values_show_themselves_whatever_they_do() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    text = bounded("a" * 1000 + "b" * 1000, 300)
    assert text.startswith("a" * 200) and text.endswith("b" * 100) and "1.7 KB left out" in text
    assert bounded(bounded("a" * 1000, 300, whole="FILE"), 300) == bounded("a" * 1000, 300, whole="FILE")
    assert "whole in FILE" in bounded("a" * 1000, 300, whole="FILE")
    assert shown(Broken()) == "<Broken that cannot be shown: RuntimeError>"
    assert "cannot be shown" in shown(10**5000)
    assert len(shown("a" * 10**6)) == 200
