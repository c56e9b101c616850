"""Lists of requirements: files with what they include, a project's pyproject.toml, and what is installed here.

Every list becomes plain lines without comments, in the format that pip and uv both read
(https://pip.pypa.io/en/stable/reference/requirements-file-format): lines that continue, comments, options of the whole
file and of one requirement, variables. What is left of a line is a dependency specifier, which `packaging` parses.
Nothing is resolved and no network is used: whether the lines can be installed shows when the image is built.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Iterable, Iterator, Mapping, Sequence
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion

from stoker.core.errors import SettingsError, nearest
from stoker.images.dockerfile import RequirementList

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

STOKER_NAMES: Final = frozenset({"stoker", "zenml"})
"""Names of Stoker, which installs itself in the driver's version; pipelines written for ZenML list that name."""
TORCH: Final = frozenset({"torch", "torchvision", "torchaudio"})
"""The packages whose wheels PyTorch's own index has for each platform: https://pytorch.org/get-started/locally/."""
INSTALLERS: Final = frozenset({"pip", "setuptools", "wheel", "distribute", "uv"})
"""What `pip freeze` leaves out (https://pip.pypa.io/en/stable/cli/pip_freeze/), and uv: the image has its own."""
EXPORT_SECONDS: Final = 300.0
"""The longest time that a command may take to print requirements; one that locks a project asks its indexes."""
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


def listed(lines: Iterable[str], *, where: str, folder: Path) -> RequirementList:
    """The requirements of a list in the settings; each item is a line as in a file."""
    requirements: list[str] = []
    constraints: list[str] = []
    for number, line in enumerate(lines, 1):
        _add_line(line.strip(), requirements, constraints, folder=folder, where=f"{where}[{number - 1}]", seen=())
    return RequirementList(name="listed", lines=_unique(requirements), constraints=_unique(constraints), origin=where)


def from_file(path: Path) -> RequirementList:
    """The requirements of a file and of the files that it includes."""
    requirements: list[str] = []
    constraints: list[str] = []
    _read_file(path, requirements, constraints, where="requirements", seen=(), constraint=False)
    return RequirementList(name="file", lines=_unique(requirements), constraints=_unique(constraints), origin=path.name)


def from_project(path: Path, extras: Iterable[str] = ()) -> RequirementList:
    """A project's dependencies without the project, by uv from its uv.lock, or from its [project] table."""
    path = path / "pyproject.toml" if path.is_dir() else path
    document = _toml(path)
    names = tuple(extras)
    _check_extras(document, names, path)
    uv = shutil.which("uv")
    if uv is not None and (path.parent / "uv.lock").is_file():
        return RequirementList(name="project", lines=_export_lock(uv, path, names), origin="uv.lock")
    table = document.get("project")
    if not isinstance(table, Mapping):
        raise SettingsError(
            f"{path} has no [project] table, and no uv.lock that uv could export",
            fix="write the dependencies into [project], or export them to a file and name it in requirements=",
        )
    lines = list(_project_lines(table, names, set()))
    return RequirementList(name="project", lines=_unique(lines), origin=path.name)


def from_command(
    words: Sequence[str], folder: Path, *, name: str, field: str, skip_local: bool = False
) -> tuple[RequirementList, tuple[str, ...]]:
    """The requirements that a command prints in a folder, and those of this machine's folders, left out.

    "{directory}" in a word is the folder. Without `skip_local` a requirement from a folder is a `SettingsError`, as are
    a command that fails and one that does not end within `EXPORT_SECONDS`.
    """
    argv = [word.replace("{directory}", str(folder)) for word in words]
    try:
        finished = subprocess.run(
            argv,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=EXPORT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SettingsError(f"{field}: {shlex.join(argv)}: {error}", fix="see that it runs in this folder") from None
    if finished.returncode != 0:
        output = finished.stderr.strip().splitlines()
        raise SettingsError(
            f"{field}: {shlex.join(argv)} ended with {finished.returncode}: {output[-1] if output else 'no output'}",
            fix=f"run it in {folder}",
        )
    requirements: list[str] = []
    left_out: list[str] = []
    for number, line in logical_lines(finished.stdout):
        if skip_local and _is_local(line):
            left_out.append(f"{line}: installed here from a folder of this machine; its code is not in the image")
            continue
        where = f"{os.path.basename(argv[0])}, line {number}"
        _add_line(line, requirements, [], folder=folder, where=where, seen=())
    group = RequirementList(name=name, lines=_unique(requirements), origin=shlex.join(argv))
    return group, tuple(left_out)


def installed() -> tuple[RequirementList, tuple[str, ...]]:
    """Every distribution of this Python at its version, and those that were installed from a folder, left out."""
    lines: dict[str, str] = {}
    left_out = []
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if not name or canonicalize_name(name) in lines or canonicalize_name(name) in INSTALLERS | STOKER_NAMES:
            continue  # the first one on the path is the one that is imported
        line = _pinned_line(name, distribution)
        if line is None:
            left_out.append(f"{name}: installed here from a folder of this machine; its code is not in the image")
        else:
            lines[canonicalize_name(name)] = line
    ordered = tuple(lines[name] for name in sorted(lines))
    return RequirementList(name="local", lines=ordered, origin="this Python"), tuple(sorted(left_out))


def without_stoker(group: RequirementList) -> tuple[RequirementList, tuple[str, ...], tuple[str, ...]]:
    """The list without Stoker's lines, the extras that they name, and what was left out, each with the reason."""
    lines: list[str] = []
    extras: list[str] = []
    left_out: list[str] = []
    for line in group.lines:
        name = project_of(line)
        if name not in STOKER_NAMES:
            lines.append(line)
            continue
        extras += extras_of(line) if name == "stoker" else ()
        left_out.append(f"{line}: Stoker puts itself into the image, in the version that runs here")
    constraints = tuple(line for line in group.constraints if project_of(line) not in STOKER_NAMES)
    changed = RequirementList(
        name=group.name, lines=tuple(lines), constraints=constraints, index=group.index, origin=group.origin
    )
    return changed, tuple(extras), tuple(left_out)


def check_passwords(text: str, where: str) -> None:
    """Refuse an address with a password: everything in a Dockerfile and its files can be read from the image."""
    for address in re.findall(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"]+", text):
        try:
            password = urlsplit(address).password
        except ValueError:
            continue  # no valid address, such as [ without ]; the installer reports it
        if password and not re.fullmatch(r"\$\{[A-Z0-9_]+\}", password):
            raise SettingsError(
                f"an address in {where} has a password, and everybody who has the image could read it",
                fix='write it without, and give the build a netrc file: build_config={"options": {"secrets": '
                '{"netrc": "~/.netrc"}}}',
            )


def _read_file(
    path: Path, requirements: list[str], constraints: list[str], *, where: str, seen: tuple[Path, ...], constraint: bool
) -> None:
    if path in seen:
        raise SettingsError(f"{path} includes itself, through {' → '.join(file.name for file in seen)}", where=where)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"the requirements cannot be read: {error}", where=where, fix="name a file, seen from the project's folder"
        ) from None
    target = constraints if constraint else requirements
    for number, line in logical_lines(text):
        _add_line(line, target, constraints, folder=path.parent, where=f"{path.name}:{number}", seen=(*seen, path))


def _add_line(
    line: str, requirements: list[str], constraints: list[str], *, folder: Path, where: str, seen: tuple[Path, ...]
) -> None:
    """Add one line; a file that it includes takes its place."""
    if "\n" in line or "\r" in line:
        raise SettingsError(f"{line!r} is not one requirement", where=where, fix="give each one its own item")
    line = without_comment(line)
    option = option_of(line)
    if option is not None and option[0] in INCLUDES:
        limiting = option[0] in ("-c", "--constraint")
        try:
            path = (folder / option[1]).resolve()
        except (OSError, ValueError, RuntimeError) as error:  # no name of a file, or a circle of links
            raise SettingsError(
                f"{option[1]!r} names no file: {error}", where=where, fix="name one, seen from the project's folder"
            ) from None
        _read_file(path, requirements, constraints, where=where, seen=seen, constraint=limiting)
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
        requirements.append(line)


def _is_local(line: str) -> bool:
    """Whether a line is a path of this machine, or editable code of one."""
    option = option_of(line)
    editable = option if option is not None and option[0] in EDITABLE else None
    target = editable[1] if editable is not None else specifier_of(line)
    direct = re.search(r"(?:^|@\s*)(file:\S+)", target)
    remote = re.match(r"(git|hg|svn|bzr)\+", target)
    path = re.match(r"\.{0,2}/|\.\.?($|\[)", target) or (target.endswith(ARCHIVES) and "://" not in target)
    return direct is not None or bool(path) or (editable is not None and not remote)


def _refuse_local(line: str, where: str) -> None:
    if _is_local(line):
        raise SettingsError(
            f"{line!r} is a path of this machine, and the image has no such path",
            where=where,
            fix="take it out; modules of your own travel with the run, and "
            'local_project_install_command="pip install ." installs the project',
        )


def _unique(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(lines))


def _toml(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # also numbers of thousands of digits, and nesting
        raise SettingsError(f"the project cannot be read: {error}", where=str(path), fix="see pyproject_path") from None


def _check_extras(document: Mapping[str, Any], extras: Iterable[str], path: Path) -> None:
    table = document.get("project", {})
    names = [canonicalize_name(name) for name in table.get("optional-dependencies", {})]
    for extra in extras:
        if canonicalize_name(extra) not in names:
            raise SettingsError(
                f"required_extras: the project has no extra '{extra}'{nearest(extra, names)}", where=str(path)
            )


def _project_lines(table: Mapping[str, Any], extras: Iterable[str], seen: set[str]) -> Iterator[str]:
    """The dependencies, and those of extras; an extra may name others of the same project."""
    optional = {canonicalize_name(name): lines for name, lines in table.get("optional-dependencies", {}).items()}
    project = canonicalize_name(str(table.get("name", "")))
    queue = [*table.get("dependencies", ())]
    for extra in extras:
        if canonicalize_name(extra) not in seen:
            seen.add(canonicalize_name(extra))
            queue += optional.get(canonicalize_name(extra), ())
    for line in queue:
        if project and project_of(line) == project:
            yield from _project_lines({**table, "dependencies": ()}, extras_of(line), seen)
        else:
            _refuse_local(line, "pyproject.toml")
            check(line, "pyproject.toml")
            check_passwords(line, "pyproject.toml")
            yield line


def _export_lock(uv: str, path: Path, extras: Iterable[str]) -> tuple[str, ...]:
    """`uv export` of the lock as it is: --frozen neither asks an index nor writes the lock."""
    # Without hashes: with them, pip takes no line that has none, and sources from git have none.
    argv = [uv, "export", "--frozen", "--format=requirements-txt", "--no-hashes", "--no-header", "--no-annotate"]
    argv += ["--no-emit-project", "--no-dev", "--project", str(path.parent)]
    for extra in extras:
        argv += ["--extra", extra]
    finished = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if finished.returncode != 0:
        output = finished.stderr.strip().splitlines()
        raise SettingsError(
            f"uv cannot export {path.parent / 'uv.lock'}: {output[-1] if output else finished.returncode}",
            fix=f"see what this says: {shlex.join(argv)}",
        )
    requirements: list[str] = []
    for number, line in logical_lines(finished.stdout):
        _add_line(line, requirements, [], folder=path.parent, where=f"uv.lock, line {number} of uv export", seen=())
    return _unique(requirements)


def _pinned_line(name: str, distribution: metadata.Distribution) -> str | None:
    """`name==version`, or where it was installed from: https://packaging.python.org/en/latest/specifications/direct-url/."""
    try:
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        origin = {}
    # Conda records for each package the folder in which it was built.
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


_COMMENT: Final = re.compile(r"(^|\s+)#.*$")
_OPTION: Final = re.compile(r"(?:(-[A-Za-z])|(--[a-z][a-z-]*))(?:\s*=\s*|\s+)?(.*)")
_VARIABLE: Final = re.compile(r"\$\{[A-Z0-9_]+\}")
_NAME: Final = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?=[\[<>=!~;@(\s]|$)")
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Logical lines with the number of their first line: continued lines joined, comments and empty lines removed."""
    first, parts = 0, [""]
    for number, line in enumerate(text.splitlines(), 1):
        comment = _COMMENT.match(line) is not None
        first = number if len(parts) == 1 else first
        if line.endswith("\\") and not comment:
            parts.append(line.strip("\\"))
            continue
        # A comment ends what is continued; the space keeps its sign from becoming part of the line before it.
        joined = "".join([*parts, f" {line}" if comment else line])
        parts = [""]
        if plain := without_comment(joined):
            yield first, plain
    if plain := without_comment("".join(parts)):
        yield first, plain


def without_comment(line: str) -> str:
    """A line up to its comment; "#" without a space before it, as in an address, begins none."""
    return _COMMENT.sub("", line).strip()


def option_of(line: str) -> tuple[str, str] | None:
    """The name and the value of an option line; None for any other line."""
    match = _OPTION.fullmatch(line)
    return (match[1] or match[2], match[3].strip().strip("'\"")) if match is not None else None


def specifier_of(line: str) -> str:
    """A requirement line without its options (`--hash`, from the first dash on) and a last ";"."""
    return re.split(r"\s+-", line.strip(), maxsplit=1)[0].rstrip("; ")


def parsed(line: str) -> Requirement | None:
    """The requirement of a line; None for an option, an address without a name, or no requirement."""
    try:
        return Requirement(specifier_of(line))
    except InvalidRequirement:
        return None


def same(one: str, other: str) -> bool:
    """Whether two lines ask for the same, however they are spelled."""
    ours, theirs = parsed(one), parsed(other)
    if ours is None or theirs is None:
        return "".join(one.split()) == "".join(other.split())
    # By parts: before 23.2 `packaging` compares names as they are written.
    return _parts(ours) == _parts(theirs)


def project_of(line: str) -> str:
    """The normalized name of the project that a line asks for; empty if the line does not name it."""
    requirement = parsed(line)
    if requirement is not None:
        return canonicalize_name(requirement.name)
    address = specifier_of(line)
    if _ADDRESS.match(address):
        # pip takes the name of an address from its fragment, or from the file name of a wheel.
        fragment = re.search(r"#(?:[^#]*&)?egg=([A-Za-z0-9._-]+)", address)
        wheel = wheel_of(address.partition(" ")[0])
        return canonicalize_name(fragment[1]) if fragment is not None else wheel[0] if wheel is not None else ""
    # The version may be a variable, which only the installer expands.
    name = _NAME.match(address) if _VARIABLE.search(address) else None
    return canonicalize_name(name[1]) if name is not None else ""


def wheel_of(url: str) -> tuple[str, str, tuple[str, str, str]] | None:
    """Project, version and tags (Pythons, ABIs, platforms, each joined by dots) of the wheel at a URL; None if none."""
    file = unquote(re.split(r"[#?]", url)[0].rpartition("/")[2])
    try:
        name, version, _, _ = parse_wheel_filename(file)
    except (InvalidWheelFilename, InvalidVersion):
        return None
    python, abi, platform = file.removesuffix(".whl").split("-")[-3:]
    return name, str(version), (python, abi, platform)


def check(line: str, where: str) -> None:
    """Refuse a line that is no valid requirement; a line with a variable is left to the installer."""
    text = specifier_of(line)
    if _VARIABLE.search(text) or _ADDRESS.match(text):
        return
    try:
        Requirement(text)
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0]
        reason = reason[:1].lower() + reason[1:]
        raise SettingsError(
            f"{line!r} is not a requirement: {reason}", where=where, fix="write a name such as 'numpy>=1.26'"
        ) from None


def _parts(requirement: Requirement) -> tuple[object, ...]:
    extras = frozenset(map(canonicalize_name, requirement.extras))
    name, marker = canonicalize_name(requirement.name), str(requirement.marker or "")
    return name, extras, requirement.specifier, requirement.url, marker
