"""How large the house is: what `make shape` prints, and `tests/gates/test_shape.py` compares with `MOST`.

A line of code is one that is not blank, not only a comment, and not part of a docstring or of another text that stands
alone, such as the words below a constant.
"""

from __future__ import annotations

import ast
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
GOALS: Mapping[str, int] = {"modules": 480, "lines of code": 85_000, "lines of tests": 80_000, "longest file": 800}
"""What the house is to shrink to."""
MOST: Mapping[str, int] = {
    # Thirty modules went to the one with their subject; tables are data files; tests that proved a thing twice went.
    "modules": 592,
    "lines of code": 118_800,
    "lines of tests": 117_200,
    "longest file": 800,
    "untyped mappings": 2_160,  # jobs of others, as their files have them; prices, nodes of clusters
}
"""What no change may exceed. Whoever raises one of these numbers writes here why."""
_UNTYPED = re.compile(r"\b(?:Mapping|dict|Dict)\[str, Any\]")


def code_lines(text: str) -> int:
    """Lines of a module that have code on them."""
    alone = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    return sum(bool(line) and not line.startswith("#") and number not in alone for number, line in lines)


def texts_below(folder: Path) -> Iterator[tuple[Path, str]]:
    """The modules below a folder, with their texts."""
    for path in sorted(folder.rglob("*.py")):
        yield path, path.read_text(encoding="utf-8")


def measured() -> dict[str, int]:
    """The figures of the house as it is."""
    source = dict(texts_below(REPOSITORY / "src"))
    lengths = {path: text.count("\n") for path, text in source.items()}
    return {
        "modules": len(source),
        "lines": sum(lengths.values()),
        "lines of code": sum(map(code_lines, source.values())),
        "median file": int(statistics.median(lengths.values())),
        "longest file": max(lengths.values()),
        "files under 60 lines": sum(length < 60 for length in lengths.values()),
        "untyped mappings": sum(len(_UNTYPED.findall(text)) for text in source.values()),
        "lines of tests": sum(text.count("\n") for _, text in texts_below(REPOSITORY / "tests")),
    }


def by_folder() -> Counter[tuple[str, int]]:
    """Folder of the source and its number of modules → its lines of code."""
    modules: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for path, text in texts_below(REPOSITORY / "src" / "stoker"):
        parts = path.relative_to(REPOSITORY / "src" / "stoker").parts[:-1]
        name = "/".join(parts[:2] if parts[:1] == ("backends",) else parts[:1]) or "."
        modules[name] += 1
        lines[name] += code_lines(text)
    return Counter({(name, modules[name]): number for name, number in lines.items()})


def main() -> None:
    """Print the figures beside the goals, and the folders by their size."""
    for name, number in measured().items():
        goal = f"   (goal {GOALS[name]:,})" if name in GOALS else ""
        print(f"{number:>9,}  {name}{goal}")
    print()
    for (name, modules), number in by_folder().most_common():
        print(f"{number:>9,}  {name} ({modules} modules)")


if __name__ == "__main__":
    main()
