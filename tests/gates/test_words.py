"""No file speaks of a particular machine, of how it came to be, or of a registry: those belong to whoever builds it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

SKIPPED = frozenset({".git", ".venv", "venv", "build", "dist", "__pycache__"})
LARGEST = 2_000_000
"""Bytes; a larger file is data."""

# Written with a gap, so that this file may be searched too.
PLACES = [
    place.replace(" ", "") for place in ("/wo rk/", "/tm p/v", "/opt/wh eels", "/opt/py pi", "/ro ot/", "/home/us er/")
]
HOSTS = [
    host.replace(" ", "")
    for host in ("py pi.org", "files.python hosted.org", "deb.deb ian.org", "registry.npm js.org", "proxy.go lang.org")
]
WORDS = [
    word.replace("_", "") for word in ("Chat_GPT", "Clau_de", "Anthro_pic", "prom_pt:", "iss_ue #", "TO_DO", "FIX_ME")
]

FORBIDDEN = re.compile(
    "|".join(
        [
            *(re.escape(place) for place in PLACES),
            *(rf"\b{re.escape(host)}" for host in HOSTS),
            *(rf"\b{re.escape(word)}" + r"\b" * word[-1].isalpha() for word in WORDS),
        ]
    ),
    re.IGNORECASE,
)


def files(root: Path) -> Iterator[Path]:
    """Every file that is or would be committed; without git, every file outside folders that are made."""
    listed = None
    if (root / ".git").exists():
        try:
            listed = subprocess.run(
                ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
                cwd=root,
                capture_output=True,
                text=True,
                check=False,
            )
        except FileNotFoundError:
            pass
    if listed is not None and listed.returncode == 0:
        yield from (root / name for name in listed.stdout.split("\0") if name and (root / name).is_file())
        return
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED and not name.endswith("_cache")]
        yield from (Path(folder, name) for name in names)


def text_of(path: Path) -> str:
    """A file's text, nothing if it is data."""
    if path.is_symlink() or path.stat().st_size > LARGEST:
        return ""
    data = path.read_bytes()
    return "" if b"\0" in data[:8192] else data.decode("utf-8", "replace")


def test_words(repository: Path) -> None:
    found = [
        f"{path.relative_to(repository)}:{number}: {match.group()!r}"
        for path in files(repository)
        if "vendor" not in path.relative_to(repository).parts  # others' files, which stay as they are
        for number, line in enumerate(text_of(path).splitlines(), start=1)
        for match in FORBIDDEN.finditer(line)
    ]
    assert not found, "\n".join(found)


def test_files_are_found(repository: Path) -> None:
    names = {path.relative_to(repository).as_posix() for path in files(repository)}
    assert {"pyproject.toml", "README.md", "tests/gates/test_words.py", "src/stoker/core/errors.py"} <= names
    assert not any(name.startswith(".venv/") for name in names)


@pytest.mark.parametrize(
    "text", [f"cd {PLACES[0]}x", f"https://{HOSTS[0]}/simple", WORDS[0].lower(), f"see {WORDS[4]}12"]
)
def test_the_measure(text: str) -> None:
    assert FORBIDDEN.search(text)


@pytest.mark.parametrize("text", ["/workspace/data", "/network/", "a tissue sample", "a prompt", "an issue"])
def test_the_measure_leaves_others_alone(text: str) -> None:
    assert not FORBIDDEN.search(text)
