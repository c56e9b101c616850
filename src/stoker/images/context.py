"""The user's code as a package: a tar file that is the same to the byte for the same files, known by its digest.

It holds what git tracks and what is new and not ignored; without git, every file outside folders that tools make. What
a file `.stokerignore` in the root names, written as a .gitignore, is left out; a line such as `!data/table.csv` or
`!/table.csv`, which names a path, takes in what git ignores. A container fetches the package when it starts, so that a
change of code builds no image.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final, Iterable, Iterator, Mapping, NamedTuple

import attrs

from stoker.core.errors import InfrastructureError, UsageError
from stoker.core.units import size_text
from stoker.images import ignore

LIMIT: Final = 100 * 10**6
"""Bytes. Every container fetches the package before its step begins; more than this is data, not code."""
IGNORE: Final = ".stokerignore"
MADE: Final = frozenset(
    {".git", ".hg", ".svn", "__pycache__", ".venv", "venv", ".tox", ".nox", "node_modules", ".stoker", ".idea"}
    | {".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints", ".eggs"}
)
"""Folders that tools make: in no package, whatever else is asked for."""
_SHOWN: Final = 10
_FORMAT: Final = 1
"""Another way to write packages gets another number, so that no kept digest is taken for it."""
_SLACK: Final = 50_000_000
"""Nanoseconds. A kernel stamps files with the time of its last tick, 10 ms at most (CONFIG_HZ=100): a file that is
written again within the tick in which it was read would look unchanged."""
_COARSE: Final = 2_000_000_000
"""The same for file systems that keep whole seconds only; FAT keeps every second one."""


@attrs.frozen(kw_only=True)
class Package:
    """The files below `root` that travel, in their order; `digest` is that of the tar file, `size` theirs together.

    `left_out` says which links lead to folders elsewhere and stay behind.
    """

    root: Path
    digest: str
    files: tuple[str, ...]
    size: int
    left_out: tuple[str, ...] = ()


class _Entry(NamedTuple):
    """One file: where its bytes are, what it is like, and where it points if it is a link."""

    name: str
    path: str
    status: os.stat_result
    link: str = ""

    @property
    def size(self) -> int:
        return 0 if self.link else self.status.st_size

    @property
    def stamp(self) -> tuple[Any, ...]:
        status = self.status
        return (
            self.name,
            self.link,
            status.st_mode,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_ino,
        )


def package(root: Path, entry: Iterable[Path] = (), *, home: Path | None = None, limit: int = LIMIT) -> Package:
    """The package of the code below `root`; the files of `entry` are in it whatever is ignored.

    With `home`, Stoker's folder, the digest of unchanged files is remembered there and none of them is read again.
    """
    root = Path(os.path.realpath(root))
    names = set(listed_files(root))
    for path in entry:
        names.update(_entry_names(root, path))
    entries, left_out = _entries(root, sorted(names))
    _check_size(entries, root, limit)
    notebook: Path | None = None
    state = ""
    if home is not None:
        notebook = home / "packages" / f"{hashlib.sha256(os.fsencode(root)).hexdigest()[:32]}.json"
        state = _state(entries)
    digest = _remembered(notebook, state)
    if not digest:
        began = time.time_ns()
        digest = _written(entries, None)
        if notebook is not None:
            _remember(notebook, state, digest, entries, began)
    return Package(
        root=root,
        digest=digest,
        files=tuple(one.name for one in entries),
        size=sum(one.size for one in entries),
        left_out=left_out,
    )


def write(package: Package, sink: BinaryIO) -> None:
    """Write the tar file; its bytes have the package's digest, or an error says that files changed meanwhile."""
    entries, _ = _entries(package.root, package.files)
    if _written(entries, sink) != package.digest:
        raise InfrastructureError(
            "files changed while they were packed", where=str(package.root), fix="run again when nothing writes there"
        )


def unpack(data: bytes | str | Path, folder: str | Path) -> None:
    """Make `folder` from a package: whole, or not at all. One that is there already, made by another, is left alone.

    Refuses what would end up outside the folder.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as beside:
        inner = Path(beside, "package")
        inner.mkdir()
        with io.BytesIO(data) if isinstance(data, bytes) else Path(data).open("rb") as source:
            try:
                with tarfile.open(fileobj=source, mode="r:") as tar:
                    _extract(tar, inner)
            except tarfile.TarError as error:
                raise InfrastructureError(f"the code package cannot be read: {error}") from error
        try:
            inner.rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise


def listed_files(root: Path, *, ignored: Path | None = None, docker: bool = False) -> Iterator[str]:
    """The paths below `root` that are not ignored, each once and in no order.

    `docker`: as an engine reads a build's context, by the patterns of `ignored` alone, seen from the root.
    """
    patterns = ignore.from_file(ignored or root / IGNORE, rooted=docker)
    tracked = None if docker else _of_git(root, "")
    made = frozenset({".stoker"}) if docker else MADE
    for name in _walked(root, patterns, made) if tracked is None else tracked:
        if made.isdisjoint(name.split("/")) and not name.endswith(".pyc") and not patterns.leaves_out(name):
            yield name
    if tracked is not None and patterns.takes_back:
        # What git ignores is not among the tracked; a line with ! takes it in all the same.
        kept = set(tracked)
        yield from (name for name in _walked(root, patterns, made) if name not in kept and patterns.takes_in(name))


def _of_git(root: Path, prefix: str) -> set[str] | None:
    """What git tracks and what is new below `root`; None where git has no say."""
    argv = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        finished = subprocess.run(argv, cwd=root, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        return None
    if finished.returncode != 0:
        said = finished.stderr.decode(errors="replace").strip()
        if "not a git repository" in said:
            return None
        # Without git's word on what is ignored, passwords and data would travel.
        raise UsageError(
            f"git cannot say which files are ignored: {said}", where=str(root), fix="see what `git status` says there"
        )
    found: set[str] = set()
    top = os.fspath(root)
    for name in map(os.fsdecode, filter(None, finished.stdout.split(b"\0"))):
        if name.endswith("/") or stat.S_ISDIR(_mode(f"{top}/{name}")):
            # Another repository, a submodule or not: git names its folder only.
            found |= _of_git(root / name, f"{prefix}{name.rstrip('/')}/") or set()
        else:
            found.add(prefix + name)
    return found or None  # a folder that an outer repository ignores as a whole is nobody's repository


def _mode(path: str) -> int:
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0  # git still tracks what was deleted


def _walked(root: Path, patterns: ignore.Ignore, made: Iterable[str]) -> Iterator[str]:
    skipped = frozenset(made)
    for folder, folders, names in os.walk(root):
        below = os.path.relpath(folder, root)
        prefix = "" if below == os.curdir else f"{below}/"
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = [
            name
            for name in folders
            if name not in skipped
            and name not in links
            and not (skipped >= MADE and os.path.exists(os.path.join(folder, name, "pyvenv.cfg")))
            and (patterns.takes_back or not patterns.leaves_out(f"{prefix}{name}", folder=True))
        ]
        yield from (f"{prefix}{name}" for name in (*names, *links))


def _entry_names(root: Path, path: Path) -> Iterator[str]:
    """A file's path below the root, or those of all files of a folder."""
    whole = os.path.join(os.path.realpath(path.parent), path.name)
    below = os.path.relpath(whole, root)
    if below == os.curdir:
        return
    if below.startswith(os.pardir):
        raise UsageError(
            f"{path} is outside {root}, and would be missing where the step runs",
            fix="move it below the project's folder, or run from a folder that holds both",
        )
    if os.path.isdir(whole) and not os.path.islink(whole):
        yield from (f"{below}/{name}" for name in _walked(Path(whole), ignore.Ignore(), MADE))
    else:
        yield below


def _entries(root: Path, names: Iterable[str]) -> tuple[list[_Entry], tuple[str, ...]]:
    """The files as they are now, without those that are gone, and the links that stay behind."""
    found: list[_Entry] = []
    left_out: list[str] = []
    top = os.fspath(root)
    for name in names:
        path = f"{top}/{name}"
        try:
            status = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue  # git still tracks what was deleted
        if stat.S_ISREG(status.st_mode):
            found.append(_Entry(name, path, status))
        elif stat.S_ISLNK(status.st_mode):
            link = _inner_link(root, name, path)
            if link:
                found.append(_Entry(name, path, status, link))
            elif os.path.isfile(path):
                found.append(_Entry(name, os.path.realpath(path), os.stat(path)))
            else:
                left_out.append(f"{name}: the link leads to {os.readlink(path)}, which is outside {root}")
    return found, tuple(left_out)


def _inner_link(root: Path, name: str, path: str) -> str:
    """Where a link points, seen from its folder; empty if that is outside the root."""
    target = os.readlink(path)
    real = os.path.realpath(path)
    if os.path.commonpath([real, root]) != os.fspath(root):
        return ""
    folder = os.path.dirname(name)
    plain = os.path.normpath(os.path.join(folder, target))
    if not os.path.isabs(target) and plain.split("/")[0] != os.pardir:
        return target
    return os.path.relpath(real, os.path.join(root, folder))


def _check_size(entries: Iterable[_Entry], root: Path, limit: int) -> None:
    ordered = sorted(entries, key=lambda one: -one.size)
    total = sum(one.size for one in ordered)
    if total <= limit:
        return
    shown = "".join(f"\n    {_rounded(one.size):>9}  {one.name}" for one in ordered[:_SHOWN] if one.size)
    raise UsageError(
        f"the code is {_rounded(total)} in {len(ordered)} files, more than the {_rounded(limit)} that travel with a "
        f"run; the biggest:{shown}",
        where=str(root),
        fix=f"name what is data in {root / IGNORE} (written as a .gitignore), and let steps read it from where it is",
    )


def _rounded(size: int) -> str:
    return f"{size / 10**6:.1f} MB" if size >= 10**5 else size_text(size)


def _written(entries: Iterable[_Entry], sink: BinaryIO | None) -> str:
    """Write the tar file of the entries and return its digest."""
    tee = _Tee(sink)
    # Nothing of this machine is in it: no time, no owner. The format is POSIX's of 2001, for names of any length.
    with tarfile.open(fileobj=tee, mode="w:", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
        for one in entries:
            info = tarfile.TarInfo(one.name)
            info.mode = 0o755 if one.status.st_mode & stat.S_IXUSR else 0o644
            if one.link:
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, one.link, 0o777
                tar.addfile(info)
                continue
            info.size = one.status.st_size
            try:
                with open(one.path, "rb") as file:
                    tar.addfile(info, file)
            except OSError as error:
                raise InfrastructureError(f"a file cannot be packed: {error}", where=one.path) from error
    return tee.digest.hexdigest()


class _Tee:
    """A file that digests what is written, and passes it on."""

    def __init__(self, sink: BinaryIO | None) -> None:
        self._sink = sink
        self._at = 0
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        """Take bytes in."""
        self.digest.update(data)
        if self._sink is not None:
            self._sink.write(data)
        self._at += len(data)
        return len(data)

    def tell(self) -> int:
        """How many bytes there are."""
        return self._at


def _state(entries: Iterable[_Entry]) -> str:
    """What tells that no file has changed, without reading any."""
    stamps = [one.stamp for one in entries]
    return hashlib.sha256(repr((_FORMAT, stamps)).encode("utf-8", "surrogatepass")).hexdigest()


def _remembered(notebook: Path | None, state: str) -> str:
    if notebook is None:
        return ""
    try:
        known = json.loads(notebook.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""  # nothing was kept, or not all of it: the files are read
    same = isinstance(known, Mapping) and known.get("state") == state
    return str(known.get("digest", "")) if same else ""


def _remember(notebook: Path, state: str, digest: str, entries: Iterable[_Entry], began: int) -> None:
    for one in entries:
        latest = max(one.status.st_mtime_ns, one.status.st_ctime_ns)
        coarse = latest % 10**9 == 0
        if latest > began - (_COARSE if coarse else _SLACK):
            return  # too young: what is written to it now might leave no trace
    notebook.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=notebook.parent, delete=False, encoding="utf-8") as file:
        json.dump({"state": state, "digest": digest}, file)
    os.replace(file.name, notebook)


def _extract(tar: tarfile.TarFile, folder: Path) -> None:
    links: list[tarfile.TarInfo] = []
    for member in tar:
        parts = PurePosixPath(member.name).parts
        if not parts or member.name.startswith("/") or os.pardir in parts or not (member.isreg() or member.issym()):
            raise InfrastructureError(f"the code package holds {member.name!r}, which is no file of a project")
        if member.issym():
            links.append(member)
            continue
        path = folder.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        source = tar.extractfile(member)
        assert source is not None  # it is a regular file
        with source, open(path, "xb") as file:
            shutil.copyfileobj(source, file)
        os.chmod(path, member.mode & 0o755)
    # Links last, so that no file is written through one.
    for member in links:
        path = folder.joinpath(*PurePosixPath(member.name).parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(member.linkname)
    top = os.path.realpath(folder)
    for member in links:
        if os.path.commonpath([os.path.realpath(folder / member.name), top]) != top:
            raise InfrastructureError(f"the code package's link {member.name!r} leads out of the package")
