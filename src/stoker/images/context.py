"""The user's code as a package: a tar file, byte for byte the same for the same files, named by its digest.

The package holds the files that git tracks and new files that are not ignored; without git, every file outside folders
that tools make. The patterns of a `.stokerignore` in the root, written as in a .gitignore, leave files out; a line such
as `!data/table.csv` or `!/table.csv`, which names a path, includes a file that git ignores. A container fetches the
package when it starts, so that a change of code builds no image.

Patterns follow https://git-scm.com/docs/gitignore#_pattern_format and
https://docs.docker.com/build/concepts/context/#dockerignore-files: in the first a pattern without a slash matches in
every folder, in the second every pattern begins at the root.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
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
from stoker.core.words import count_text, memory_text

LIMIT: Final = 100 * 10**6
"""Bytes. Every container fetches the package before its step begins; more than this is data, not code."""
IGNORE_FILE: Final = ".stokerignore"
TOOL_FOLDERS: Final = frozenset(
    {".git", ".hg", ".svn", "__pycache__", ".venv", "venv", ".tox", ".nox", "node_modules", ".stoker", ".idea"}
    | {".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints", ".eggs"}
)
"""Folders that tools make; no package contains them, whatever the patterns say."""
LARGE: Final = 10 * 10**6
"""Bytes above which it is shown which files of a package are the largest: rarely is so much of a project code."""
CODE: Final = frozenset({".py", ".pyi", ".pyx", ".ipynb", ".so", ".pyd", ".sh", ".cu", ".cpp", ".c", ".h", ".toml"})
"""Endings of files without which a step may not run: one of them is never left out."""
_LARGEST_SHOWN: Final = 10
_READINGS: Final = 4
_PAUSE: Final = 0.05
"""Seconds before a file that changed while it was read is read again."""
_FORMAT: Final = 1
"""Version of the archive's layout; a change invalidates the remembered digests."""
_TICK_NS: Final = 50_000_000
"""Nanoseconds. A kernel stamps files with the time of its last tick, 10 ms at most (CONFIG_HZ=100): a file that is
written again within the tick in which it was read would look unchanged."""
_COARSE_NS: Final = 2_000_000_000
"""The same for file systems that keep whole seconds only; FAT keeps every second one."""


@attrs.frozen(kw_only=True)
class CodePackage:
    """The files below a folder that travel with a run."""

    root: Path
    digest: str
    """SHA-256 of the tar file, hexadecimal."""
    files: tuple[str, ...]
    """Paths below `root`, in the order in which they are written."""
    size: int
    """Bytes of all files together."""
    left_out: tuple[str, ...] = ()
    """Links that lead to folders outside `root`, each with the reason why it is not in the package."""
    changing: tuple[str, ...] = ()
    """Files that changed each time they were read, and are no code: the package does not have them."""
    largest: tuple[tuple[str, int], ...] = ()
    """The largest files with their sizes in bytes, the largest first."""

    def summary(self) -> str:
        """Count and size of what travels."""
        return f"{count_text(len(self.files), 'file')}, {_size_text(self.size)}"


@attrs.frozen(kw_only=True)
class WrittenPackage:
    """A package as it was written."""

    digest: str
    """SHA-256 of the tar file, hexadecimal: of the files as they were then."""
    changing: tuple[str, ...] = ()
    """As `CodePackage.changing`."""


class _PackedFile(NamedTuple):
    """One file: its name in the package, the path of its bytes, its status, and the target if it is a link."""

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


def package(root: Path, entry: Iterable[Path] = (), *, home: Path | None = None, limit: int = LIMIT) -> CodePackage:
    """The package of the code below `root`; the files of `entry` are included even if they are ignored.

    With `home`, Stoker's folder, the digest of unchanged files is remembered there and the files are not read again; a
    home below `root` is no code.
    """
    root = Path(os.path.realpath(root))
    names = set(listed_files(root))
    if home is not None:
        inside = os.path.relpath(os.path.realpath(home), root)
        names = {name for name in names if not name.startswith(f"{inside}/")}
    for path in entry:
        names.update(_entry_names(root, path))
    entries, left_out = _entries(root, sorted(names))
    _check_size(entries, root, limit)
    cache_file: Path | None = None
    fingerprint = ""
    if home is not None:
        cache_file = home / "packages" / f"{hashlib.sha256(os.fsencode(root)).hexdigest()[:32]}.json"
        fingerprint = _fingerprint(entries)
    digest = _cached_digest(cache_file, fingerprint)
    changing: tuple[str, ...] = ()
    if not digest:
        started = time.time_ns()
        written = _write_tar(entries, None)
        digest, changing = written.digest, written.changing
        if cache_file is not None and not changing:
            _cache_digest(cache_file, fingerprint, digest, entries, started)
    by_size = sorted(entries, key=lambda one: -one.size)
    return CodePackage(
        root=root,
        digest=digest,
        files=tuple(one.name for one in entries),
        size=sum(one.size for one in entries),
        left_out=left_out,
        changing=changing,
        largest=tuple((one.name, one.size) for one in by_size[:_LARGEST_SHOWN] if one.size),
    )


def write(package: CodePackage, sink: BinaryIO) -> WrittenPackage:
    """Write the tar file of the files as they are now; another digest than the package's if one of them has changed.

    Each file is read whole: one that changes meanwhile is read again. Raises an `InfrastructureError` for code that
    changes each time.
    """
    entries, _ = _entries(package.root, package.files)
    return _write_tar(entries, sink)


def unpack(data: bytes | str | Path, folder: str | Path) -> None:
    """Unpack a package into `folder`, completely or not at all; a folder that exists already is left as it is.

    Refuses members that would end up outside the folder.
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

    With `docker`, the files are those of a build's context: the patterns of `ignored` alone decide, from the root on.
    """
    patterns = read_ignore_file(ignored or root / IGNORE_FILE, rooted=docker)
    tracked = None if docker else _git_files(root, "")
    skipped = frozenset({".stoker"}) if docker else TOOL_FOLDERS
    for name in _walk_files(root, patterns, skipped) if tracked is None else tracked:
        if skipped.isdisjoint(name.split("/")) and not name.endswith(".pyc") and not patterns.excludes(name):
            yield name
    if tracked is not None and patterns.has_negation:
        # Git does not list what it ignores; a line with ! includes it all the same.
        tracked_names = set(tracked)
        yield from (
            name
            for name in _walk_files(root, patterns, skipped)
            if name not in tracked_names and patterns.reincludes(name)
        )


def _git_files(root: Path, prefix: str) -> set[str] | None:
    """The tracked and the new files below `root`; None if `root` is in no git repository."""
    argv = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        finished = subprocess.run(argv, cwd=root, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        return None
    if finished.returncode != 0:
        message = finished.stderr.decode(errors="replace").strip()
        if "not a git repository" in message:
            return None
        # Without knowing what is ignored, passwords and data would travel.
        raise UsageError(
            f"git cannot say which files are ignored: {message}",
            where=str(root),
            fix="see what `git status` says there",
        )
    names: set[str] = set()
    prefix_path = os.fspath(root)
    for name in map(os.fsdecode, filter(None, finished.stdout.split(b"\0"))):
        if name.endswith("/") or stat.S_ISDIR(_mode(f"{prefix_path}/{name}")):
            # Another repository, a submodule or not: git names its folder only.
            names |= _git_files(root / name, f"{prefix}{name.rstrip('/')}/") or set()
        else:
            names.add(prefix + name)
    return names or None  # empty: an outer repository ignores the folder as a whole


def _mode(path: str) -> int:
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0  # git still tracks what was deleted


def _walk_files(root: Path, patterns: IgnoreRules, skipped_names: Iterable[str]) -> Iterator[str]:
    skipped = frozenset(skipped_names)
    for folder, folders, names in os.walk(root):
        below = os.path.relpath(folder, root)
        prefix = "" if below == os.curdir else f"{below}/"
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = [
            name
            for name in folders
            if name not in skipped
            and name not in links
            and not (skipped >= TOOL_FOLDERS and os.path.exists(os.path.join(folder, name, "pyvenv.cfg")))
            and (patterns.has_negation or not patterns.excludes(f"{prefix}{name}", folder=True))
        ]
        yield from (f"{prefix}{name}" for name in (*names, *links))


def _entry_names(root: Path, path: Path) -> Iterator[str]:
    """The path of a file below the root, or the paths of all files of a folder."""
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
        yield from (f"{below}/{name}" for name in _walk_files(Path(whole), IgnoreRules(), TOOL_FOLDERS))
    else:
        yield below


def _entries(root: Path, names: Iterable[str]) -> tuple[list[_PackedFile], tuple[str, ...]]:
    """The files that exist now, and the links that are left out, each with the reason."""
    entries: list[_PackedFile] = []
    left_out: list[str] = []
    top = os.fspath(root)
    for name in names:
        path = f"{top}/{name}"
        try:
            status = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue  # git still tracks what was deleted
        if stat.S_ISREG(status.st_mode):
            entries.append(_PackedFile(name, path, status))
        elif stat.S_ISLNK(status.st_mode):
            link = _link_target(root, name, path)
            if link:
                entries.append(_PackedFile(name, path, status, link))
            elif os.path.isfile(path):
                entries.append(_PackedFile(name, os.path.realpath(path), os.stat(path)))
            else:
                left_out.append(f"{name}: the link leads to {os.readlink(path)}, which is outside {root}")
    return entries, tuple(left_out)


def _link_target(root: Path, name: str, path: str) -> str:
    """The target of a link, relative to its folder; empty if it is outside the root."""
    target = os.readlink(path)
    real = os.path.realpath(path)
    if os.path.commonpath([real, root]) != os.fspath(root):
        return ""
    folder = os.path.dirname(name)
    plain = os.path.normpath(os.path.join(folder, target))
    if not os.path.isabs(target) and plain.split("/")[0] != os.pardir:
        return target
    return os.path.relpath(real, os.path.join(root, folder))


def _check_size(entries: Iterable[_PackedFile], root: Path, limit: int) -> None:
    by_size = sorted(entries, key=lambda one: -one.size)
    total = sum(entry.size for entry in by_size)
    if total <= limit:
        return
    largest = "".join(
        f"\n    {_size_text(entry.size):>9}  {entry.name}" for entry in by_size[:_LARGEST_SHOWN] if entry.size
    )
    ignore_file = root / IGNORE_FILE
    raise UsageError(
        f"the code is {_size_text(total)} in {len(by_size)} files, more than the {_size_text(limit)} that travel with "
        f"a run; the biggest:{largest}",
        where=str(root),
        fix=f"name what is data in {ignore_file} (written as a .gitignore), and let steps read it from where it is",
    )


def _size_text(size: int) -> str:
    return f"{size / 10**6:.1f} MB" if size >= 10**5 else memory_text(size)


def _write_tar(entries: Iterable[_PackedFile], sink: BinaryIO | None) -> WrittenPackage:
    """Write the tar file of the entries."""
    tee = _DigestWriter(sink)
    changing = []
    # No time and no owner: the bytes depend on the files alone. PAX takes names of any length.
    with tarfile.open(fileobj=tee, mode="w:", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
        for entry in entries:
            info = tarfile.TarInfo(entry.name)
            info.mode = 0o755 if entry.status.st_mode & stat.S_IXUSR else 0o644
            if entry.link:
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.link, 0o777
                tar.addfile(info)
                continue
            try:
                data = _read_whole(entry.path)
            except FileNotFoundError:
                continue  # deleted since it was listed
            except OSError as error:
                raise InfrastructureError(f"a file cannot be packed: {error}", where=entry.path) from error
            if data is None:
                if os.path.splitext(entry.name)[1] in CODE:
                    raise InfrastructureError(
                        f"{entry.name} changed {_READINGS} times while it was packed",
                        where=entry.path,
                        fix="run again when nothing writes there",
                    )
                changing.append(entry.name)
                continue
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return WrittenPackage(digest=tee.digest.hexdigest(), changing=tuple(changing))


def _read_whole(path: str) -> bytes | None:
    """A file's content as it was at one time; None for one that changed during each reading."""
    for _ in range(_READINGS):
        with open(path, "rb") as file:
            before = os.fstat(file.fileno())
            data = file.read()
            after = os.fstat(file.fileno())
        if len(data) == after.st_size and _state(before) == _state(after):
            return data
        time.sleep(_PAUSE)
    return None


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


class _DigestWriter:
    """A file that computes the digest of what is written to it, and passes it on."""

    def __init__(self, sink: BinaryIO | None) -> None:
        self._sink = sink
        self._at = 0
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        """Add bytes to the digest and the sink."""
        self.digest.update(data)
        if self._sink is not None:
            self._sink.write(data)
        self._at += len(data)
        return len(data)

    def tell(self) -> int:
        """The number of bytes written."""
        return self._at


def _fingerprint(entries: Iterable[_PackedFile]) -> str:
    """A digest of the files' status, which changes when a file does; no file is read."""
    stamps = [entry.stamp for entry in entries]
    return hashlib.sha256(repr((_FORMAT, stamps)).encode("utf-8", "surrogatepass")).hexdigest()


def _cached_digest(cache_file: Path | None, fingerprint: str) -> str:
    if cache_file is None:
        return ""
    try:
        document = json.loads(cache_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""  # no digest was kept, or the write was interrupted: the files are read
    same = isinstance(document, Mapping) and document.get("state") == fingerprint
    return str(document.get("digest", "")) if same else ""


def _cache_digest(
    cache_file: Path, fingerprint: str, digest: str, entries: Iterable[_PackedFile], started: int
) -> None:
    for entry in entries:
        latest = max(entry.status.st_mtime_ns, entry.status.st_ctime_ns)
        coarse = latest % 10**9 == 0
        if latest > started - (_COARSE_NS if coarse else _TICK_NS):
            return  # too young: a write within the same tick would not show
    cache_file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=cache_file.parent, delete=False, encoding="utf-8") as file:
        json.dump({"state": fingerprint, "digest": digest}, file)
    os.replace(file.name, cache_file)


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


@attrs.frozen
class IgnorePattern:
    """One line of an ignore file."""

    text: str
    expression: re.Pattern[str]
    negated: bool
    """Whether the line begins with `!`."""
    folders_only: bool
    from_root: bool
    """Whether the pattern begins at the root, as one with a slash does."""

    def matches(self, path: str, *, folder: bool) -> bool:
        """Whether the pattern matches this path itself."""
        return (folder or not self.folders_only) and self.expression.fullmatch(path) is not None


@attrs.frozen
class IgnoreRules:
    """All patterns of an ignore file, in order."""

    patterns: tuple[IgnorePattern, ...] = ()
    rooted: bool = False
    """As in .dockerignore: the last pattern that matches a path or one of its folders decides."""

    def excludes(self, path: str, *, folder: bool = False) -> bool:
        """Whether a file or a folder is left out, by itself or with a folder that contains it."""
        if not self.patterns:
            return False
        parts = path.split("/")
        levels = [("/".join(parts[:depth]), folder or depth < len(parts)) for depth in range(1, len(parts) + 1)]
        if self.rooted:
            for pattern in reversed(self.patterns):
                if any(pattern.matches(level, folder=is_folder) for level, is_folder in levels):
                    return not pattern.negated
            return False
        # As in git, from the outermost folder inwards. Git re-includes nothing below a folder that is left out; here
        # a line that names the path does.
        excluded = False
        for level, is_folder in levels:
            match = self._last_match(level, is_folder)
            if match is not None and (not match.negated or match.from_root or not excluded):
                excluded = not match.negated
        return excluded

    def reincludes(self, path: str) -> bool:
        """Whether a line with `!` includes a file or one of its folders, and no later line leaves the file out."""
        parts = path.split("/")
        included = False
        for depth in range(1, len(parts) + 1):
            match = self._last_match("/".join(parts[:depth]), depth < len(parts))
            if match is not None and (match.from_root or not match.negated):
                included = match.negated
        return included

    @property
    def has_negation(self) -> bool:
        """Whether any line begins with `!`."""
        return any(pattern.negated for pattern in self.patterns)

    def _last_match(self, path: str, folder: bool) -> IgnorePattern | None:
        return next((pattern for pattern in reversed(self.patterns) if pattern.matches(path, folder=folder)), None)


def read_ignore_file(path: Path, *, rooted: bool = False) -> IgnoreRules:
    """The patterns of a file; none if it does not exist."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")
    except FileNotFoundError:
        return IgnoreRules()
    return parse_ignore_lines(text.splitlines(), rooted=rooted)


def parse_ignore_lines(lines: Iterable[str], *, rooted: bool = False) -> IgnoreRules:
    """The patterns of lines; with `rooted`, as in a .dockerignore."""
    patterns = [_pattern(line, rooted) for line in lines]
    return IgnoreRules(tuple(pattern for pattern in patterns if pattern is not None), rooted)


def _pattern(line: str, rooted: bool) -> IgnorePattern | None:
    text = line.strip() if rooted else re.sub(r"(?<!\\)\s+$", "", line)
    if not text or text.startswith("#"):
        return None
    negated = text.startswith("!")
    text = text[1:].strip() if negated else text.removeprefix("\\") if text.startswith(("\\#", "\\!")) else text
    folders_only = text.endswith("/") and not rooted
    text = text.rstrip("/")
    if rooted:
        text = re.sub(r"^(\./|/)+", "", text)
    if not text or text == ".":
        return None
    anchored = rooted or "/" in text
    text = text.removeprefix("/")
    expression = _expression(text, negating="^" if rooted else "!^")
    whole = re.compile(expression if anchored else f"(?:.*/)?{expression}", re.DOTALL)
    return IgnorePattern(line, whole, negated, folders_only, anchored)


def _expression(text: str, *, negating: str) -> str:
    """A pattern as a regular expression. `negating` are the signs that negate a class: not "!" in a .dockerignore."""
    expression = ""
    position = 0
    while position < len(text):
        if text.startswith("**/", position) and (position == 0 or text[position - 1] == "/"):
            expression += "(?:.*/)?"
            position += 3
        elif text.startswith("**", position):
            expression += ".*"
            position += 2
        elif text[position] == "*":
            expression += "[^/]*"
            position += 1
        elif text[position] == "?":
            expression += "[^/]"
            position += 1
        elif text[position] == "[" and (end := text.find("]", position + 2)) > 0:
            inside = text[position + 1 : end].replace("\\", "\\\\")
            inside = "^" + inside[1:] if inside[0] in negating else inside
            expression += f"(?!/)[{inside}]"
            position = end + 1
        else:
            position += text[position] == "\\" and position + 1 < len(text)
            expression += re.escape(text[position])
            position += 1
    return expression
