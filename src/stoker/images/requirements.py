"""Lists of requirements: files with what they include, a project's pyproject.toml, and what is installed here.

Every list becomes plain lines without comments, in the form that pip and uv both read; `images.requirementlines` knows
that form. Nothing is resolved and no network is asked: whether the lines can be installed is seen when the image is
built.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Iterable, Iterator, Mapping
from urllib.parse import urlsplit

from packaging.utils import canonicalize_name

from stoker.core.errors import SettingsError, nearest
from stoker.images.dockerfile import Requirements
from stoker.images.requirementlines import (
    check,
    logical_lines,
    option_of,
    parsed,
    project_of,
    specifier_of,
    without_comment,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OURS: Final = frozenset({"stoker", "zenml"})
"""Stoker installs itself, in the version that runs here; pipelines written for ZenML list that in its place."""
TORCH: Final = frozenset({"torch", "torchvision", "torchaudio"})
"""The packages whose wheels PyTorch's own index has for each platform: https://pytorch.org/get-started/locally/."""
INSTALLERS: Final = frozenset({"pip", "setuptools", "wheel", "distribute", "uv"})
"""What `pip freeze` leaves out (https://pip.pypa.io/en/stable/cli/pip_freeze/), and uv: the image has its own."""
INCLUDES: Final = ("-r", "--requirement", "-c", "--constraint")
EDITABLE: Final = ("-e", "--editable")
ARCHIVES: Final = (
    *(".whl", ".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz", ".tar.xz", ".txz", ".tar.lzma", ".tlz"),
)
"""Endings of files that pip installs: https://github.com/pypa/pip/blob/main/src/pip/_internal/utils/filetypes.py."""
_OPTIONS: Final = (
    *("-i", "--index-url", "--extra-index-url", "--no-index", "-f", "--find-links", "--no-binary", "--only-binary"),
    *("--prefer-binary", "--require-hashes", "--pre", "--trusted-host", "--use-feature"),
)


def extras_of(line: str) -> tuple[str, ...]:
    """The extras that a line names."""
    requirement = parsed(line)
    return tuple(sorted(requirement.extras)) if requirement is not None else ()


def listed(lines: Iterable[str], *, where: str, folder: Path) -> Requirements:
    """What a person wrote as a list; each item is a line as in a file."""
    found: list[str] = []
    limits: list[str] = []
    for number, line in enumerate(lines, 1):
        _take(line.strip(), found, limits, folder=folder, where=f"{where}[{number - 1}]", seen=())
    return Requirements(name="listed", lines=_once(found), constraints=_once(limits), origin=where)


def from_file(path: Path) -> Requirements:
    """What a requirements file and those that it includes ask for."""
    found: list[str] = []
    limits: list[str] = []
    _file(path, found, limits, where="requirements", seen=(), constraint=False)
    return Requirements(name="file", lines=_once(found), constraints=_once(limits), origin=path.name)


def from_project(path: Path, extras: Iterable[str] = ()) -> Requirements:
    """What a project depends on, without the project: from its uv.lock through uv, or its [project] table."""
    path = path / "pyproject.toml" if path.is_dir() else path
    document = _toml(path)
    wanted = tuple(extras)
    _check_extras(document, wanted, path)
    uv = shutil.which("uv")
    if uv is not None and (path.parent / "uv.lock").is_file():
        return Requirements(name="project", lines=_exported(uv, path, wanted), origin="uv.lock")
    table = document.get("project")
    if not isinstance(table, Mapping):
        raise SettingsError(
            f"{path} has no [project] table, and no uv.lock that uv could export",
            fix="write the dependencies into [project], or export them to a file and name it in requirements=",
        )
    lines = list(_own(table, wanted, set()))
    return Requirements(name="project", lines=_once(lines), origin=path.name)


def installed() -> tuple[Requirements, tuple[str, ...]]:
    """Every distribution of this Python at its version, and those that no index has: installed from a folder here."""
    lines: dict[str, str] = {}
    left_out = []
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if not name or canonicalize_name(name) in lines or canonicalize_name(name) in INSTALLERS | OURS:
            continue  # the first one on the path is the one that is imported
        line = _pinned(name, distribution)
        if line is None:
            left_out.append(f"{name}: installed here from a folder of this machine; its code is not in the image")
        else:
            lines[canonicalize_name(name)] = line
    ordered = tuple(lines[name] for name in sorted(lines))
    return Requirements(name="local", lines=ordered, origin="this Python"), tuple(sorted(left_out))


def without_ours(group: Requirements) -> tuple[Requirements, tuple[str, ...], tuple[str, ...]]:
    """The lines without Stoker's, the extras of Stoker that they name, and what was left out."""
    kept: list[str] = []
    extras: list[str] = []
    left_out: list[str] = []
    for line in group.lines:
        name = project_of(line)
        if name not in OURS:
            kept.append(line)
            continue
        extras += extras_of(line) if name == "stoker" else ()
        left_out.append(f"{line}: Stoker puts itself into the image, in the version that runs here")
    limits = tuple(line for line in group.constraints if project_of(line) not in OURS)
    changed = Requirements(
        name=group.name, lines=tuple(kept), constraints=limits, index=group.index, origin=group.origin
    )
    return changed, tuple(extras), tuple(left_out)


def check_passwords(text: str, where: str) -> None:
    """Refuse an address with a password: whatever is in a Dockerfile or in a file of it can be read from the image."""
    for address in re.findall(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"]+", text):
        try:
            password = urlsplit(address).password
        except ValueError:
            continue  # not an address after all, as [ without ]; the installer will say so
        if password and not re.fullmatch(r"\$\{[A-Z0-9_]+\}", password):
            raise SettingsError(
                f"an address in {where} has a password, and everybody who has the image could read it",
                fix='write it without, and give the build a netrc file: build_config={"options": {"secrets": '
                '{"netrc": "~/.netrc"}}}',
            )


def _file(
    path: Path, found: list[str], limits: list[str], *, where: str, seen: tuple[Path, ...], constraint: bool
) -> None:
    if path in seen:
        raise SettingsError(f"{path} includes itself, through {' → '.join(one.name for one in seen)}", where=where)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"the requirements cannot be read: {error}", where=where, fix="name a file, seen from the project's folder"
        ) from None
    target = limits if constraint else found
    for number, line in logical_lines(text):
        _take(line, target, limits, folder=path.parent, where=f"{path.name}:{number}", seen=(*seen, path))


def _take(line: str, found: list[str], limits: list[str], *, folder: Path, where: str, seen: tuple[Path, ...]) -> None:
    """Put one line where it belongs; what it includes comes in its place."""
    if "\n" in line or "\r" in line:
        raise SettingsError(f"{line!r} is not one requirement", where=where, fix="give each one its own item")
    line = without_comment(line)
    option = option_of(line)
    if option is not None and option[0] in INCLUDES:
        limiting = option[0] in ("-c", "--constraint")
        _file((folder / option[1]).resolve(), found, limits, where=where, seen=seen, constraint=limiting)
        return
    _refuse_local(line, where)
    if line.startswith("-"):
        name = option[0] if option is not None else line
        if name not in _OPTIONS:
            raise SettingsError(
                f"'{name}' is no option for a list of requirements{nearest(name, _OPTIONS)}", where=where
            )
    elif line:
        check(line, where)
    check_passwords(line, where)
    if line:
        found.append(line)


def _refuse_local(line: str, where: str) -> None:
    option = option_of(line)
    editable = option if option is not None and option[0] in EDITABLE else None
    target = editable[1] if editable is not None else specifier_of(line)
    direct = re.search(r"(?:^|@\s*)(file:\S+)", target)
    remote = re.match(r"(git|hg|svn|bzr)\+", target)
    path = re.match(r"\.{0,2}/|\.\.?($|\[)", target) or (target.endswith(ARCHIVES) and "://" not in target)
    if direct is not None or path or (editable is not None and not remote):
        raise SettingsError(
            f"{line!r} is a path of this machine, and the image has no such path",
            where=where,
            fix="take it out; modules of your own travel with the run, and "
            'local_project_install_command="pip install ." installs the project',
        )


def _once(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(lines))


def _toml(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"the project cannot be read: {error}", where=str(path), fix="see pyproject_path") from None


def _check_extras(document: Mapping[str, Any], extras: Iterable[str], path: Path) -> None:
    table = document.get("project", {})
    known = [canonicalize_name(name) for name in table.get("optional-dependencies", {})]
    for extra in extras:
        if canonicalize_name(extra) not in known:
            raise SettingsError(
                f"required_extras: the project has no extra '{extra}'{nearest(extra, known)}", where=str(path)
            )


def _own(table: Mapping[str, Any], extras: Iterable[str], seen: set[str]) -> Iterator[str]:
    """The dependencies, and those of extras; an extra may name others of the same project."""
    optional = {canonicalize_name(name): lines for name, lines in table.get("optional-dependencies", {}).items()}
    own = canonicalize_name(str(table.get("name", "")))
    waiting = [*table.get("dependencies", ())]
    for extra in extras:
        if canonicalize_name(extra) not in seen:
            seen.add(canonicalize_name(extra))
            waiting += optional.get(canonicalize_name(extra), ())
    for line in waiting:
        if own and project_of(line) == own:
            yield from _own({**table, "dependencies": ()}, extras_of(line), seen)
        else:
            _refuse_local(line, "pyproject.toml")
            check(line, "pyproject.toml")
            check_passwords(line, "pyproject.toml")
            yield line


def _exported(uv: str, path: Path, extras: Iterable[str]) -> tuple[str, ...]:
    """`uv export` of the lock as it is: --frozen neither asks an index nor writes the lock."""
    # Without hashes: with them, pip takes no line that has none, and sources from git have none.
    argv = [uv, "export", "--frozen", "--format=requirements-txt", "--no-hashes", "--no-header", "--no-annotate"]
    argv += ["--no-emit-project", "--no-dev", "--project", str(path.parent)]
    for extra in extras:
        argv += ["--extra", extra]
    finished = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if finished.returncode != 0:
        said = finished.stderr.strip().splitlines()
        raise SettingsError(
            f"uv cannot export {path.parent / 'uv.lock'}: {said[-1] if said else finished.returncode}",
            fix=f"see what this says: {shlex.join(argv)}",
        )
    found: list[str] = []
    for number, line in logical_lines(finished.stdout):
        _take(line, found, [], folder=path.parent, where=f"uv.lock, line {number} of uv export", seen=())
    return _once(found)


def _pinned(name: str, distribution: metadata.Distribution) -> str | None:
    """`name==version`, or where it was installed from: https://packaging.python.org/en/latest/specifications/direct-url/."""
    try:
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        origin = {}
    # conda says of all that it installs that it came from a folder, which is the one where the package was built.
    conda = (distribution.read_text("INSTALLER") or "").strip() == "conda"
    if "dir_info" in origin and not conda:
        return None
    if conda or origin.get("url", "").startswith("file:"):
        return f"{name}=={distribution.version}"
    if "vcs_info" in origin:
        commit = origin["vcs_info"].get("commit_id", "")
        return f"{name} @ {origin['vcs_info'].get('vcs', 'git')}+{origin['url']}{'@' + commit if commit else ''}"
    if "url" in origin:
        return f"{name} @ {origin['url']}"
    return f"{name}=={distribution.version}"
