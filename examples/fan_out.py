"""Work on many files at once: one call for each, a summary of all, and a failure that does not stop the others.

Run `python examples/fan_out.py`: the unreadable file makes the first run fail; for the second one it is mended, and
only what depends on it runs.
"""

import tempfile
from collections import Counter
from pathlib import Path
from typing import Annotated

from stoker import pipeline, step
from stoker.core.errors import RunFailed


@step(cache=False)  # which files there are is nothing that the cache could see
def texts(folder: str) -> list[Path]:
    return sorted(Path(folder).glob("*.txt"))


@step
def words(path: Path) -> dict[str, int]:  # a Path counts by its content, not by its name
    return dict(Counter(path.read_text(encoding="utf-8").split()))


@step
def most_common(counts: list[dict[str, int]]) -> Annotated[list[str], "words"]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return [word for word, _ in total.most_common(3)]


@pipeline(failure_mode="continue")
def reading(folder: str):
    """The most common words of a folder's text files."""
    most_common(words.map(texts(folder)))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        Path(made, "a.txt").write_text("to be or not to be", encoding="utf-8")
        Path(made, "b.txt").write_text("to the lighthouse", encoding="utf-8")
        Path(made, "c.txt").write_bytes(b"\xff\xfe no text")
        try:
            reading(made)
        except RunFailed as error:
            run = error.run
        assert [element.status == "failed" for element in run.steps["words"]] == [False, False, True]
        print(run.steps["words"][2].failure)

        Path(made, "c.txt").write_text("the end", encoding="utf-8")
        run = reading(made)
        # The third is cached, too, where this example has run before.
        assert [element.status for element in run.steps["words"]][:2] == ["cached", "cached"]
        assert run.steps["words"][2].status in ("succeeded", "cached")
        print(run.steps["most_common"].load())
