"""The one rule for resources, whatever decorators say in whatever order: the largest that anybody wrote."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as some

from stoker.flows.decorators import attach_note, make_note
from stoker.flows.settings import of_step

WORDS = {
    "cpu": ("cpu_count", some.integers(1, 64)),
    "gpu": ("gpu_count", some.integers(0, 16)),
    "memory": ("memory", some.integers(1, 10**6)),
    "disk": ("disk", some.integers(1, 10**6)),
    "shared_memory": ("shared_memory", some.integers(1, 10**5)),
}
UNIT = {"memory": 10**6, "disk": 10**6, "shared_memory": 2**20}
ASKED = some.fixed_dictionaries({}, optional={word: values for word, (_, values) in WORDS.items()})


@given(first=ASKED, second=ASKED, remote=some.sampled_from(["kubernetes", "batch"]), swapped=some.booleans())
def test_the_largest_that_anybody_wrote(
    first: dict[str, int], second: dict[str, int], remote: str, swapped: bool
) -> None:
    def step(self: Any) -> None:
        """A step's method."""

    pairs = [("resources", first), (remote, second)]
    for name, words in pairs[::-1] if swapped else pairs:
        attach_note(step, make_note(name, words, "flow.py:1"))
    options = of_step(object, "step", step)
    found = next((layer.values["resources"] for layer in options.layers if "resources" in layer.values), {})
    wanted = {
        WORDS[word][0]: max(asked[word] for asked in (first, second) if word in asked) * UNIT.get(word, 1)
        for word in {*first, *second}
    }
    assert found == wanted
    assert options.placed
