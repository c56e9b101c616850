"""The documentation as a site: `make site`, then open build/site/site/index.html.

The pages are those of docs/ as they are. Three are made of what the code says: each command with its options, the
public names with their docstrings, and each cause of a failure with what to do. The navigation is the list of
docs/README.md, so that a page stands in one list only.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, Iterator

import click

from stoker.cli.main import COMMANDS, PARTS, invoke
from stoker.core import status
from stoker.core.version import VERSION
from stoker.worker.signatures import general_words, own_rows

ROOT: Final = Path(__file__).resolve().parents[2]
REFERENCE: Final = {
    "reference/commands.md": "Commands and options",
    "reference/api.md": "Names and docstrings",
    "reference/causes.md": "Causes of failures",
}
"""The pages that are made here, in the navigation after those of the reference."""
BESIDE: Final = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
"""Pages beside docs/, and what they are called in the site."""
LINK: Final = re.compile(r"(?<=\]\()([^)#\s]+)((?:#[^)\s]*)?)(?=\))")
ITEM: Final = re.compile(r"^\* \[([^]]+)\]\(([^)]+)\)", re.MULTILINE)
FENCED: Final = re.compile(r"^( *)(```+).*?^\1\2", re.MULTILINE | re.DOTALL)


def main(argv: list[str]) -> int:
    """Build the site; the exit code is 1 where a link leads nowhere."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "site", help="default: build/site")
    os.environ["COLUMNS"] = "110"
    output: Path = parser.parse_args(argv).output.resolve()
    shutil.rmtree(output, ignore_errors=True)
    stage(output / "pages")
    config = (ROOT / "docs" / "site" / "zensical.toml").read_text(encoding="utf-8")
    (output / "zensical.toml").write_text(config.replace("[project]\n", f"[project]\n{navigation()}\n", 1), "utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"}
    program = str(Path(sys.executable).with_name("zensical"))
    return subprocess.run([program, "build", "--strict"], cwd=output, env=environment, check=False).returncode


def stage(pages: Path) -> None:
    """Write all pages into a folder, with links that hold there."""
    docs = ROOT / "docs"
    places = {path: Path(path.relative_to(docs)) for path in docs.rglob("*.md")}
    places |= {ROOT / name: Path(place) for name, place in BESIDE.items()}
    places[docs / "README.md"] = Path("contents.md")
    shown: dict[Path, Path] = {}
    for path, place in places.items():
        write(pages / place, in_site(path, place, places, shown))
    for path, place in shown.items():
        write(pages / place, source_page(path))
    for folder in docs.rglob("pictures"):
        shutil.copytree(folder, pages / folder.relative_to(docs))
    write(pages / "reference" / "commands.md", "\n".join(command_page()))
    write(pages / "reference" / "api.md", "\n".join(names_page()))
    write(pages / "reference" / "causes.md", "\n".join(causes_page()))


def in_site(path: Path, place: Path, places: dict[Path, Path], shown: dict[Path, Path]) -> str:
    """A page's text with its links to pages as they are in the site. What is no page of the site, such as an example,
    becomes one: it is added to `shown`."""

    def link(match: re.Match[str]) -> str:
        target = (path.parent / match[1]).resolve()
        if "://" in match[1] or match[1].startswith("mailto:"):
            return match[0]
        if target.suffix in (".png", ".svg"):
            return os.path.relpath(target.relative_to(ROOT / "docs"), place.parent)
        if target not in places and target not in shown:
            shown[target] = Path("source", f"{target.relative_to(ROOT)}.md")
        there = places.get(target) or shown[target]
        return os.path.relpath(there, place.parent) + match[2]

    text, parts, at = path.read_text(encoding="utf-8"), [], 0
    for fence in FENCED.finditer(text):
        parts += [LINK.sub(link, text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join(parts) + LINK.sub(link, text[at:])


def source_page(path: Path) -> str:
    """A file, or each file of a folder, as a page."""
    lines = [f"# {path.relative_to(ROOT)}"]
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file() and "__pycache__" not in file.parts and file.suffix in (".py", ".toml", ".json", ".md"):
            text = file.read_text(encoding="utf-8").rstrip()
            if path.is_dir():
                lines += ["", f"## {file.relative_to(path)}"]
            lines += ["", f"````{file.suffix[1:]}", text, "````"]
    return "\n".join(lines)


def navigation() -> str:
    """The lists of docs/README.md as the site's navigation, each heading a section."""
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    sections = ['{ "Stoker" = ["index.md"] }']
    for part in text.split("\n## ")[1:]:
        title, _, body = part.partition("\n")
        rows = [
            (name, Path(target).name if target.startswith("../") else target) for name, target in ITEM.findall(body)
        ]
        if title == "Reference":
            rows += [(name, target) for target, name in REFERENCE.items()]
        pages = ", ".join(f'{{ "{name}" = "{target}" }}' for name, target in rows)
        sections.append(f'{{ "{title}" = [{pages}] }}')
    return f"nav = [{', '.join(sections)}]"


def command_page() -> Iterator[str]:
    """Each command with what it takes, as its own --help says it."""
    yield "# Commands and options\n\nWhat `--help` says of each command of `stoker`."
    for name, (_, words) in sorted(COMMANDS.items()):
        yield f"\n## stoker {name}\n\n{words[:1].upper()}{words[1:]}.\n\n{help_text(name)}"
        command = PARTS.load(name)
        if isinstance(command, click.Group):
            for child in sorted(command.commands):
                yield f"\n### stoker {name} {child}\n\n{help_text(name, child)}"


def help_text(*command: str) -> str:
    """What a command's --help prints, as a block."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        invoke([*command, "--help"])
    return f"```text\n{printed.getvalue().rstrip()}\n```"


def names_page() -> Iterator[str]:
    """The public names of docs/names.md with their docstrings."""
    yield f"# Names and docstrings\n\nThe [public names](../names.md) of Stoker {VERSION}, as their docstrings say it."
    text = (ROOT / "docs" / "names.md").read_text(encoding="utf-8")
    for part in text.split("\n## `")[1:]:
        module, _, body = part.partition("`")
        yield f"\n## {module}"
        for row in re.findall(r"^\| (`[^|]*`) \|", body, re.MULTILINE):
            for name in re.findall(r"`([\w.]+)`", row):
                yield from docstring(module, name)


def docstring(module: str, name: str) -> Iterator[str]:
    """What a name says, where it is a class or function that says what it is. A decorator that is made when a flow asks
    for it is in no source, which is what the site's plugin reads."""
    value = getattr(sys.modules.get(module) or __import__(module, fromlist=["_"]), name, None)
    if not (inspect.isclass(value) or inspect.isfunction(value)) or not value.__doc__:
        return
    if inspect.isfunction(value) and value.__code__.co_name != name:
        yield f"\n### {name}\n\n{inspect.cleandoc(value.__doc__)}"
    else:
        yield f"\n::: {module}.{name}"


def causes_page() -> Iterator[str]:
    """Each cause of a failed attempt: whether another attempt may help, and what is said of it."""
    yield (
        "# Causes of failures\n\nEvery attempt that fails has one of these causes "
        "([how it is found](../guide/running.md#how-an-attempt-ends)). Which words of the failure lead to which advice:"
    )
    for cause in sorted(status.RETRYABLE):
        yield f"\n## {cause}\n"
        again = status.RETRYABLE[cause]
        why, fix = general_words().get(cause, ("", ""))
        if why:
            yield f"{sentence(why)}\n"
        yield f"Another attempt may help: **{again}**.\n"
        known = {(one.why, one.advice): None for one in own_rows() if one.cause == cause}
        rows = [*known] if not fix else [*known, ("nothing more is known", fix)]
        if rows:
            yield "| why | what to do |\n|---|---|"
        for row in rows:
            yield f"| {cell(row[0])} | {cell(row[1])} |"


def sentence(text: str) -> str:
    """A phrase as a sentence."""
    return f"{text[:1].upper()}{text[1:]}."


def cell(text: str) -> str:
    """A text in a table."""
    return text.replace("|", r"\|").replace("<", "&lt;").replace("\n", " ")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
