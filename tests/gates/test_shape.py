"""The house grows only on purpose."""

from __future__ import annotations

from tests import shape


def test_it_is_no_larger_than_it_may_be() -> None:
    found = shape.measured()
    larger = {name: (found[name], most) for name, most in shape.MOST.items() if found[name] > most}
    assert not larger, f"{larger}: take something away, or raise the number in tests/shape.py and write why"


def test_what_counts_as_code() -> None:
    text = '"""Words.\n\nMore.\n"""\n\n# A comment.\nX = """a\nb"""\n"""Of X."""\n'
    function = "\n\ndef f(\n    a,\n):  # why\n    'doc'\n    return a\n"
    assert (shape.code_lines(text), shape.code_lines(function)) == (2, 4)
