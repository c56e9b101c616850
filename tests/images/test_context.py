"""The code package: real git repositories, ignore files, links, limits, and a package that does no harm unpacked."""

from __future__ import annotations

import hashlib
import io
import os
import random
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.core.errors import InfrastructureError, UsageError
from stoker.images import context
from stoker.images.context import listed_files, package, unpack, write


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def make(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"# {name}\n")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    return folder


def packed(made: context.CodePackage) -> bytes:
    sink = io.BytesIO()
    write(made, sink)
    return sink.getvalue()


def test_what_git_says(root: Path) -> None:
    make(
        root, "train.py", "new.py", "gone.py", "data/big.bin", "lib/util.py", "lib/deep/.gitignore", "lib/deep/out.txt"
    )
    make(root, "__pycache__/x.pyc", ".venv/lib/x.py")
    (root / ".gitignore").write_text("data/\n*.log\n")
    (root / "lib/deep/.gitignore").write_text("out.txt\n")
    (root / "run.log").write_text("x")
    git(root, "init", "-q")
    git(root, "add", "train.py", "gone.py", "lib/util.py")
    git(root, "commit", "-qm", "one")
    (root / "gone.py").unlink()
    assert package(root).files == (".gitignore", "lib/deep/.gitignore", "lib/util.py", "new.py", "train.py")
    # A folder of a repository is a root, too.
    assert package(root / "lib").files == ("deep/.gitignore", "util.py")


def test_a_submodule_and_a_repository_inside(tmp_path: Path, root: Path) -> None:
    other = make(tmp_path / "other", "part.py", "hidden.py")
    (other / ".gitignore").write_text("hidden.py\n")
    git(other, "init", "-q")
    git(other, "add", ".")
    git(other, "commit", "-qm", "one")
    make(root, "train.py")
    git(root, "init", "-q")
    git(root, "submodule", "add", "-q", str(other), "sub")
    git(tmp_path, "clone", "-q", str(other), str(root / "loose"))
    make(root / "sub", "hidden.py", "new.py")
    assert {"sub/part.py", "sub/new.py", "loose/part.py", "train.py"} <= set(package(root).files)
    assert "sub/hidden.py" not in package(root).files


def test_without_git(root: Path) -> None:
    make(root, "a.py", "b/c.py", "__pycache__/a.pyc", ".venv/x.py", "env/pyvenv.cfg", "env/lib.py", "node_modules/x.js")
    make(root, ".stoker/stoker.db", "left.pyc")
    assert package(root).files == ("a.py", "b/c.py")


def test_a_folder_that_a_repository_ignores_is_its_own(root: Path) -> None:
    make(root, "scratch/a.py", "scratch/b.py")
    (root / ".gitignore").write_text("scratch/\n")
    git(root, "init", "-q")
    assert package(root / "scratch").files == ("a.py", "b.py")


def test_git_that_refuses_is_believed(root: Path) -> None:
    make(root, "a.py")
    git(root, "init", "-q")
    (root / ".git/config").write_text("[core\n")
    with pytest.raises(UsageError, match="git cannot say which files are ignored"):
        package(root)


def test_stokerignore(root: Path) -> None:
    make(
        root,
        "train.py",
        "notes/a.md",
        "notes/keep.py",
        "data/table.csv",
        "data/other.csv",
        "weights.pt",
        "x/weights.pt",
    )
    (root / ".gitignore").write_text("data/\n")
    (root / ".stokerignore").write_text("# what stays here\n*.md\n/weights.pt\n!data/table.csv\n")
    git(root, "init", "-q")
    expected = {".gitignore", ".stokerignore", "train.py", "notes/keep.py", "data/table.csv", "x/weights.pt"}
    assert set(package(root).files) == expected


def test_the_entry_is_in_whatever_is_ignored(tmp_path: Path, root: Path) -> None:
    make(root, "scripts/run.py", "a.py", "tree/x.py", "tree/y.py")
    (root / ".gitignore").write_text("scripts/\ntree/\n")
    git(root, "init", "-q")
    assert package(root, [root / "scripts/run.py", root / "tree"]).files == (
        *(".gitignore", "a.py", "scripts/run.py", "tree/x.py", "tree/y.py"),
    )
    elsewhere = make(tmp_path / "elsewhere", "run.py") / "run.py"
    with pytest.raises(UsageError, match="is outside"):
        package(root, [elsewhere])


def test_links(tmp_path: Path, root: Path) -> None:
    outside = make(tmp_path / "outside", "shared.py", "folder/x.py")
    make(root, "a.py", "lib/b.py")
    (root / "inner.py").symlink_to("a.py")
    (root / "absolute.py").symlink_to(root / "lib/b.py")
    (root / "lib/up.py").symlink_to("../a.py")
    (root / "folder_link").symlink_to("lib")
    (root / "shared.py").symlink_to(outside / "shared.py")
    (root / "mounted").symlink_to(outside / "folder")
    made = package(root)
    assert made.left_out == (f"mounted: the link leads to {outside / 'folder'}, which is outside {root}",)
    unpack(packed(made), tmp_path / "there")
    there = tmp_path / "there"
    assert os.readlink(there / "inner.py") == "a.py"
    assert os.readlink(there / "absolute.py") == "lib/b.py"
    assert (there / "lib/up.py").read_text() == "# a.py\n" and (
        there / "folder_link/b.py"
    ).read_text() == "# lib/b.py\n"
    assert not (there / "shared.py").is_symlink() and (there / "shared.py").read_text() == "# shared.py\n"
    assert not (there / "mounted").exists()


def test_there_and_back(tmp_path: Path, root: Path) -> None:
    make(root, "train.py", "sub/ünïcode – ok.py", "a" * 90 + "/" + "b" * 90 + ".py")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o700)
    (root / "empty").write_bytes(b"")
    (root / "bytes.bin").write_bytes(bytes(range(256)) * 1000)
    made = package(root)
    data = packed(made)
    assert hashlib.sha256(data).hexdigest() == made.digest
    assert made.size == sum((root / name).stat().st_size for name in made.files)
    kept = tmp_path / "package.tar"
    kept.write_bytes(data)
    for number, source in enumerate((data, kept, str(kept))):
        folder = tmp_path / f"there{number}"
        unpack(source, folder)
        assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == set(made.files)
        assert all((folder / name).read_bytes() == (root / name).read_bytes() for name in made.files)
        assert os.access(folder / "run.sh", os.X_OK) and not os.access(folder / "train.py", os.X_OK)
        assert [path.name for path in tmp_path.glob(".there*")] == []


def test_the_same_bytes_have_the_same_digest(tmp_path: Path) -> None:
    first, second = make(tmp_path / "one", "b.py", "a.py"), make(tmp_path / "two", "a.py", "b.py")
    os.utime(second / "a.py", (1, 1))
    (second / "b.py").chmod(0o640)
    assert package(first).digest == package(second).digest
    (second / "b.py").chmod(0o755)
    assert package(first).digest != package(second).digest
    (second / "b.py").chmod(0o644)
    (second / "b.py").write_text("# c.py\n")
    assert package(first).digest != package(second).digest


def test_too_big(root: Path) -> None:
    make(root, "train.py")
    for number in range(1, 13):
        (root / f"weights{number:02}.pt").write_bytes(b"x" * (100_000 * number))
    with pytest.raises(UsageError) as caught:
        package(root, limit=1_000_000)
    text = str(caught.value)
    assert "the code is 7.8 MB in 13 files, more than the 1.0 MB" in text
    assert text.index("1.2 MB  weights12.pt") < text.index("1.1 MB  weights11.pt")
    assert "weights02.pt" not in text and ".stokerignore" in text
    (root / ".stokerignore").write_text("*.pt\n")
    assert package(root, limit=1_000_000).files == (".stokerignore", "train.py")


def test_a_file_that_changes_meanwhile(root: Path) -> None:
    made = package(make(root, "a.py"))
    (root / "a.py").write_text("# b.py\n")
    sink = io.BytesIO()
    written = write(made, sink)
    assert written.digest == hashlib.sha256(sink.getvalue()).hexdigest() == package(root).digest != made.digest


@pytest.fixture
def busy(root: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """`busy(name, times)`: something writes to the file during its next readings."""
    left: dict[int, int] = {}
    fstat = os.fstat

    def status(descriptor: int) -> os.stat_result:
        found = fstat(descriptor)
        if left.get(found.st_ino, 0) > 0:
            left[found.st_ino] -= 1
            with open(f"/proc/self/fd/{descriptor}", "ab") as file:
                file.write(b"one more line\n")
        return found

    monkeypatch.setattr(os, "fstat", status)
    return lambda name, times: left.update({os.stat(root / name).st_ino: times})


def test_a_log_beside_the_code_is_read_again_and_left_out_if_it_never_rests(root: Path, busy: Any) -> None:
    make(root, "train.py", "logs/train.log", "notes.md")
    busy("notes.md", 2)
    busy("logs/train.log", 1000)
    made = package(root)
    assert made.changing == ("logs/train.log",)
    sink = io.BytesIO()
    assert write(made, sink).changing == ("logs/train.log",)
    with tarfile.open(fileobj=io.BytesIO(sink.getvalue())) as tar:
        assert sorted(tar.getnames()) == ["notes.md", "train.py"]
        notes = tar.extractfile("notes.md")
        assert notes is not None and notes.read() == (root / "notes.md").read_bytes()


def test_code_that_never_rests_is_not_left_out(root: Path, busy: Any) -> None:
    make(root, "train.py", "lib/util.py")
    busy("lib/util.py", 1000)
    with pytest.raises(InfrastructureError, match=r"lib/util\.py changed 4 times while it was packed"):
        package(root)


def test_the_home_is_no_code(root: Path) -> None:
    make(root, "train.py", "state/stoker.db", "state/artifacts/objects/ab/cd")
    assert package(root, home=root / "state").files == ("train.py",)


def test_unchanged_files_are_not_read_again(tmp_path: Path, root: Path) -> None:
    """The second package of a thousand files reads none of them."""
    make(root, *(f"pack{number // 50}/module{number}.py" for number in range(1000)))
    home = tmp_path / "home"
    first = package(root, home=home)
    deadline = time.monotonic() + 60
    while not list(home.glob("packages/*.json")):  # files of this very moment are not trusted yet
        assert time.monotonic() < deadline
        assert package(root, home=home) == first
    reads = []
    hook = reads.append
    _spy(hook)
    try:
        assert package(root, home=home) == first
    finally:
        _spy(None)
    assert not [path for path in reads if str(path).startswith(f"{root}/pack")]
    assert packed(first)


_spies: list[object] = []


def _spy(hook: object) -> None:
    """Tell of each file that this process opens; an audit hook cannot be taken back, so that there is one."""
    import sys

    if not _spies:
        _spies.append(None)
        sys.addaudithook(lambda event, told: _spies[0](told[0]) if event == "open" and callable(_spies[0]) else None)
    _spies[0] = hook


@pytest.mark.parametrize("change", ["content", "mode", "new", "gone", "link"])
def test_a_change_is_seen(change: str, tmp_path: Path, root: Path) -> None:
    make(root, "a.py", "b.py")
    home = tmp_path / "home"
    first = package(root, home=home)
    deadline = time.monotonic() + 60
    while not list(home.glob("packages/*.json")):
        assert time.monotonic() < deadline
        assert package(root, home=home) == first
    status = (root / "a.py").stat()
    if change == "content":
        (root / "a.py").write_text("# z.py\n")
        os.utime(root / "a.py", ns=(status.st_atime_ns, status.st_mtime_ns))  # the same size, the same time
    elif change == "mode":
        (root / "a.py").chmod(0o755)
    elif change == "new":
        make(root, "c.py")
    elif change == "gone":
        (root / "b.py").unlink()
    else:
        (root / "b.py").unlink()
        (root / "b.py").symlink_to("a.py")
    again = package(root, home=home)
    assert again.digest != first.digest and again.digest == package(root).digest


def tar(*members: tuple[str, bytes | str, bytes]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(kind, str):
                info.type, info.linkname = tarfile.SYMTYPE, kind
            else:
                info.type, info.size = kind, len(content)
            archive.addfile(info, io.BytesIO(content))
    return sink.getvalue()


FILE = tarfile.REGTYPE


@pytest.mark.parametrize(
    "data",
    [
        tar(("../evil", FILE, b"x")),
        tar(("a/../../evil", FILE, b"x")),
        tar(("/etc/evil", FILE, b"x")),
        tar(("link", "../..", b"")),
        tar(("link", "/etc/passwd", b"")),
        tar(("deep/er/link", "../../..", b"")),
        tar(("d/e/f/hop", "../../../z", b""), ("z/x", FILE, b""), ("out", "d/e/f/hop/../..", b"")),
        tar(("pipe", tarfile.FIFOTYPE, b"")),
        tar(("device", tarfile.CHRTYPE, b"")),
        tar(("a", FILE, b"x"), ("hard", tarfile.LNKTYPE, b"")),
        b"not a tar file",
    ],
)
def test_what_leads_out_is_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="code package"):
        unpack(data, tmp_path / "inner" / "there")
    assert [path.name for path in tmp_path.rglob("*")] == ["inner"]


def test_no_file_goes_through_a_link(tmp_path: Path) -> None:
    target = tmp_path / "outside"
    target.mkdir()
    data = tar(("link", str(target), b""), ("link/evil", FILE, b"x"))
    with pytest.raises((InfrastructureError, OSError)):
        unpack(data, tmp_path / "there")
    assert list(target.iterdir()) == [] and not (tmp_path / "there").exists()


def test_who_is_second_leaves_the_first_alone(tmp_path: Path, root: Path) -> None:
    data = packed(package(make(root, "a.py")))
    unpack(data, tmp_path / "there")
    (tmp_path / "there/a.py").write_text("mine")
    unpack(data, tmp_path / "there")
    assert (tmp_path / "there/a.py").read_text() == "mine"


@pytest.mark.parametrize(
    ("lines", "left_out", "kept"),
    [
        (["*.csv"], ["a.csv"], ["x/a.csv"]),
        (["**/*.csv", "!keep.csv"], ["a.csv", "x/a.csv"], ["keep.csv"]),
        (["/data", "./more/"], ["data", "data/x", "more/y"], ["x/data"]),
        (["data", "!data/keep"], ["data/x"], ["data/keep"]),
        (["!data/keep", "data"], ["data/keep"], []),
        # as buildah and Docker read it: only ^ turns a class
        (["[!a]1", "x[^a]"], ["a1", "!1", "xb"], ["b1", "xa"]),
    ],
)
def test_patterns_of_dockerignore(lines: list[str], left_out: list[str], kept: list[str]) -> None:
    patterns = context.parse_ignore_lines(lines, rooted=True)
    assert [name for name in (*left_out, *kept) if patterns.excludes(name)] == left_out


def test_our_patterns_are_gits(root: Path) -> None:
    """What git itself makes of the same lines."""
    names = [
        f"{folder}{name}" for folder in ("", "x/", "x/y/", "data/") for name in ("a.py", "b.csv", "logs/c", "data/d")
    ]
    lines = ["*.csv", "!x/b.csv", "/data/", "x/**/c", "logs", "!a.py", "y/a.py"]
    make(root, *names)
    git(root, "init", "-q")
    (root / ".git/info/exclude").write_text("\n".join(lines))
    (root / ".stokerignore").write_text("")
    said = set(listed_files(root)) - {".stokerignore"}
    patterns = context.parse_ignore_lines(lines)
    assert {name for name in names if not patterns.excludes(name)} == said


def test_patterns_without_exceptions_mean_to_git_what_they_mean_here(root: Path) -> None:
    """Four hundred pairs of lines and a path, drawn anew in the same way each time."""
    draw = random.Random(7)
    parts = ["a", "*", "**", "?", "*.py", "[ab]", "[!a]", "[^b]", "[a-c]*", "*b", ".*", "log.*", r"\[x\]", r"a\ b"]
    names = ["a", "b", "ab", "build", "x.py", "a b", "[x]", ".env", "log.txt"]
    git(root, "init", "-q")
    for _ in range(50):
        bodies = ["/".join(draw.choices(parts, k=draw.randint(1, 3))) for _ in range(draw.randint(1, 3))]
        lines = [draw.choice(["", "", "/"]) + body + draw.choice(["", "", "/"]) for body in bodies]
        paths = sorted({"/".join(draw.choices(names, k=draw.randint(1, 4))) for _ in range(8)})
        (root / ".gitignore").write_text("\n".join(lines) + "\n")
        answer = subprocess.run(
            ["git", "-C", str(root), "check-ignore", "--no-index", "-z", "--stdin"],
            input="\0".join(paths),
            capture_output=True,
            text=True,
            check=False,
        )
        patterns = context.parse_ignore_lines(lines)
        left_out = [path for path in paths if patterns.excludes(path)]
        assert left_out == [path for path in answer.stdout.split("\0") if path], lines


def test_a_docker_context(root: Path) -> None:
    make(root, "a.py", "venv/x.py", "data/x", ".git/config", ".stoker/stoker.db")
    (root / ".dockerignore").write_text("data\n")
    found = set(listed_files(root, ignored=root / ".dockerignore", docker=True))
    assert found == {"a.py", "venv/x.py", ".git/config", ".dockerignore"}
