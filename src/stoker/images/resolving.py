"""Resolve lists of requirements into a lock, by the programs that install them: uv, or pip.

A resolver is asked for the image's Python and platform, not for this machine's, and sees the indexes that the image's
installer sees: the configuration files and variables of this machine do not count, those of the image do. Nothing is
installed. The metadata of a package that has no wheel is built here, in an environment of the resolver's own.

`plan.locking` decides what is resolved. The result is kept, below Stoker's home and in a project's `stoker.lock`, by
the digest of what was asked for: the same requirements give the same packages until a newer lock is asked for.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Iterable, Iterator, Mapping, Sequence

import attrs
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from stoker.core.codec import from_json, parse_object, to_json
from stoker.core.docker import Installer
from stoker.core.errors import SettingsError, StokerError
from stoker.core.packages import LOCK_FORMAT, Lock, LockedList, Trouble, Unresolved
from stoker.images.dockerfile import RequirementList
from stoker.images.environments import UvWords, uv_words

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SECONDS: Final = 120.0
"""The longest time that one call of a resolver takes; a cold cache and a slow line need most of it."""
CONNECT_SECONDS: Final = 4
"""The longest time that an index may take to accept a connection."""
FRAMEWORKS: Final = frozenset({"torch", "tensorflow", "jax", "jaxlib", "paddlepaddle-gpu", "cupy", "mxnet"})
"""Distributions whose builds are for the parent image's CUDA."""
SILENT_SECONDS: Final = 8
"""The longest time that an index may be silent while it answers; a second try doubles it."""
NEWEST_GLIBC: Final = 40
"""The minor version of the newest glibc that uv knows a platform for (`uv pip compile --help`)."""

_SHARED: Final = ("find-links", "no-index", "no-binary", "only-binary", "no-deps", "no-build-isolation", "pre")
UV_ARGUMENTS: Final = frozenset(
    {
        *_SHARED,
        *("index", "default-index", "index-url", "i", "extra-index-url", "f", "index-strategy", "keyring-provider"),
        *("resolution", "prerelease", "torch-backend", "no-build", "no-build-isolation-package", "exclude-newer"),
        *("native-tls", "system-certs", "allow-insecure-host", "trusted-host", "config-setting", "no-sources"),
        *("constraints", "constraint", "c", "overrides", "override"),
    }
)
"""Installer arguments that `uv pip compile` takes as `uv pip install` does; the others say how to install."""
PIP_ARGUMENTS: Final = frozenset(
    {
        *_SHARED,
        *("index-url", "i", "extra-index-url", "f", "prefer-binary", "trusted-host", "cert", "client-cert", "proxy"),
        *("use-feature", "use-deprecated", "config-settings", "constraint", "c"),
    }
)
"""Installer arguments that decide what pip chooses."""
_KEPT_VARIABLES: Final = frozenset(
    # Where to keep downloads, and how to reach an index: neither changes what is chosen.
    {"UV_CACHE_DIR", "UV_NO_CACHE", "UV_HTTP_TIMEOUT", "UV_CONCURRENT_DOWNLOADS", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS"}
    | {"PIP_CACHE_DIR", "PIP_NO_CACHE_DIR", "PIP_DEFAULT_TIMEOUT", "PIP_CERT", "PIP_CLIENT_CERT", "PIP_PROXY"}
)
_CERTIFICATES: Final = frozenset({"PIP_CERT", "PIP_CLIENT_CERT"})
_FILE_VARIABLES: Final = {"netrc": "NETRC", "pip.conf": "PIP_CONFIG_FILE", "uv.toml": "UV_CONFIG_FILE"}
_INSTALLERS_VARIABLE: Final = re.compile(r"(?:UV|PIP)_[A-Z_]+")

# The messages of uv (https://github.com/astral-sh/uv/tree/main/crates/uv-resolver/src) and of pip
# (https://github.com/pypa/pip/blob/main/src/pip/_internal/resolution/resolvelib/factory.py). The first that matches.
_TROUBLES: Final[Sequence[tuple[Trouble, re.Pattern[str]]]] = (
    (
        "unanswered",
        re.compile(
            r"error sending request|dns error|client error \(Connect\)|Connection refused|[Tt]imed? ?out|"
            r"NewConnectionError|Failed to establish a new connection|Name or service not known|"
            r"Temporary failure in name resolution|Network is unreachable|No route to host|Connection reset|"
            r"CERTIFICATE_VERIFY_FAILED|invalid peer certificate|ProxyError|HTTP status (?:server|client) error|"
            r"HTTP error (?:401|403|407|429|5\d\d)|Network connectivity is disabled"
        ),
    ),
    (
        "undecided",
        re.compile(r"unexpected argument|invalid value|[Nn]o such option|^usage: ", re.IGNORECASE | re.MULTILINE),
    ),
    (
        "unbuilt",
        re.compile(
            r"Failed to (?:download and )?build|build backend returned|metadata-generation-failed|"
            r"subprocess-exited-with-error|Git operation failed|git (?:clone|fetch)\b.*did not run successfully|"
            r"Failed to (?:parse|read) metadata"
        ),
    ),
    (
        "missing",
        re.compile(r"Because (?:there (?:is|are) no versions? of|\S+ was not found)(?!.*\bdepends? on\b)", re.DOTALL),
    ),
    ("missing", re.compile(r"No matching distribution found")),
    (
        "conflict",
        re.compile(
            r"No solution found|ResolutionImpossible|conflicting dependencies|requires? (?:a different )?Python"
        ),
    ),
)
_TAGS: Final = re.compile(
    r"no wheels with a matching|matching (?:Python|platform) (?:ABI )?tag|different Python|Python version"
)
"""Words of a refusal that depends on the platform and the patch version of Python."""
_PROGRESS: Final = re.compile(r"WARNING: |Ignored the following|Looking in |Collecting |Downloading |Using cached ")
"""Beginnings of lines that tell what a resolver does, not why it failed."""


@attrs.frozen(kw_only=True)
class LockRequest:
    """Everything that a resolver is given."""

    lists: tuple[RequirementList, ...]
    """In the order of installation."""
    python: str
    """The Python of the image: "3.11", or "3.11.7"."""
    platform: str
    """The newest platform of wheels that the image takes: "manylinux_2_36_x86_64", "musllinux_1_2_aarch64"."""
    installer: Installer = "uv"
    arguments: tuple[str, ...] = ()
    """Flags of every installer call, as `ImageSpec.arguments`."""
    wheels: str = ""
    """The platform of torch's wheels, for uv's `--torch-backend`."""
    environment: Mapping[str, str] = attrs.field(factory=dict)
    """Variables of the image; those of pip and uv count."""
    parent: Mapping[str, str] = attrs.field(factory=dict)
    """Distribution → version, of those that the image has already."""
    whole: bool = True
    """Whether `parent` has all that the image has."""
    files: Mapping[str, str] = attrs.field(factory=dict)
    """Files that the build mounts for its installers: "netrc", "pip.conf", "uv.toml" → a path of this machine."""
    sure: bool = True
    """Whether Python and platform are known; otherwise a refusal because of them is no conflict."""

    @property
    def requirements(self) -> str:
        """The digest of what is asked for, wherever it is installed."""
        lists = [[part.name, part.lines, part.constraints, part.index] for part in self.lists]
        return _digest([lists, self.arguments, self.wheels])

    @property
    def digest(self) -> str:
        """The digest of everything that decides the answer of one resolver at one moment."""
        variables = {name: text for name, text in self.environment.items() if _INSTALLERS_VARIABLE.fullmatch(name)}
        where = [self.python, self.platform, self.installer, variables, dict(self.parent), self.whole]
        return _digest([LOCK_FORMAT, self.requirements, *where])


@attrs.frozen(kw_only=True)
class Resolver:
    """A program that resolves."""

    argv: tuple[str, ...]
    kind: Installer
    text: str
    """The program and its version."""


class _Refused(Exception):
    """A resolver's answer that is no list of packages."""

    def __init__(self, unresolved: Unresolved) -> None:
        super().__init__(unresolved.reason)
        self.unresolved = unresolved


def resolver_for(request: LockRequest) -> Resolver | None:
    """The resolver of a request; None if this machine has none that could answer it.

    That is uv, which reads metadata alone and answers for any Python and machine, also for pip, whose rule for several
    indexes it then keeps. Pip resolves what uv has no option for, and where there is no uv: this Python's pip, for an
    image of this Python, since it evaluates the markers of its own.
    """
    uv, lacking = _uv(), pip_words(request).lacking if request.installer == "pip" else ()
    if uv is not None and not lacking:
        return uv
    own_words = {_name_of(word) for word in request.arguments} & (UV_ARGUMENTS - PIP_ARGUMENTS)
    pip = _pip() if _is_this_machine(request) else None
    if pip is None or (request.installer == "uv" and (own_words or request.wheels)):
        return None
    return attrs.evolve(pip, text=f"{pip.text}, since uv has no {', '.join(lacking)}") if lacking else pip


def pip_words(request: LockRequest) -> UvWords:
    """What uv is given in place of the configuration that pip has in the image of a request."""
    arguments = [word for word in request.arguments if _name_of(word) in PIP_ARGUMENTS | {"require-hashes"}]
    return uv_words(request.files.get("pip.conf", ""), request.environment, arguments)


def resolve(
    request: LockRequest, *, resolver: Resolver | None = None, refresh: bool = False, seconds: float | None = None
) -> Lock | Unresolved:
    """The lock of a request. With `refresh` the resolver does not use what it remembers of the indexes.

    A list is resolved beside what the lists before it install, and what the parent image has, as an installer does: a
    version that is there stays if the list allows it. Without `seconds` each list may take `SECONDS`.
    """
    try:
        resolver = resolver or resolver_for(request)
    except SettingsError as error:
        return Unresolved(trouble="undecided", reason=error.message)
    if resolver is None:
        lacking = pip_words(request).lacking if request.installer == "pip" and _uv() is not None else ()
        reason = "uv, which resolves for other machines, is not installed here"
        if lacking:
            reason = f"uv has no {', '.join(lacking)}, and the pip here resolves for another Python or machine"
        return Unresolved(trouble="undecided", reason=reason)
    end = None if seconds is None else time.monotonic() + seconds
    answer = _resolve(request, resolver, refresh, end)
    if isinstance(answer, Unresolved) and answer.wrong and not refresh:
        return _resolve(request, resolver, refresh=True, end=end)  # uv asks an index again after ten minutes only
    return answer


def _resolve(request: LockRequest, resolver: Resolver, refresh: bool, end: float | None) -> Lock | Unresolved:
    pins: dict[str, str] = {
        str(canonicalize_name(name)): version for name, version in request.parent.items() if _is_version(version)
    }
    parent = dict(pins)
    kept: dict[str, str] = {}
    locked: list[LockedList] = []
    for group in request.lists:
        try:
            packages = _beside(resolver, request, group, pins=pins, parent=parent, refresh=refresh, end=end)
        except _Refused as refused:
            return attrs.evolve(refused.unresolved, list=group.origin or group.name)
        kept |= {one.name: one.version for one in packages if one.version and one.version == parent.get(one.name)}
        more = [one for one in packages if not one.version or one.version != pins.get(one.name)]
        pins |= {one.name: one.version for one in more if one.version}
        if more:
            options = tuple(line for line in group.lines if line.startswith("-"))
            locked.append(LockedList(name=group.name, lines=(*options, *_lines(more, request.installer))))
    return Lock(
        digest=request.digest,
        requirements=request.requirements,
        resolver=resolver.text,
        python=request.python,
        platform=request.platform,
        lists=tuple(locked),
        whole=request.whole,
        kept={name: version for name, version in kept.items() if pins.get(name) == version},
        made=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    )


@attrs.frozen(kw_only=True)
class _Package:
    """One package that a resolver chose."""

    name: str
    version: str = ""
    """Empty for a package from an address."""
    address: str = ""
    hashes: tuple[str, ...] = ()
    """"sha256:…" of the files that fit, if the index gives them."""


def _beside(
    resolver: Resolver,
    request: LockRequest,
    group: RequirementList,
    *,
    pins: Mapping[str, str],
    parent: Mapping[str, str],
    refresh: bool,
    end: float | None,
) -> list[_Package]:
    """The packages of a list, at the versions in `pins` where the list allows it; a `_Refused` if there are none."""
    with tempfile.TemporaryDirectory(prefix="stoker-lock-") as folder_name:
        folder = Path(folder_name)
        _write(folder / "requirements.in", group.lines)
        _write(folder / "constraints.txt", group.constraints)
        words = ["--constraint", str(folder / "constraints.txt")] if group.constraints else []
        words += [f"--index-url={group.index}"] if group.index else []
        words += ["--refresh"] if refresh and resolver.kind == "uv" else []
        if parent:
            (folder / "parent").mkdir()
            for name, version in parent.items():
                _write_stub(folder / "parent", name, version)
            words += ["--find-links", str(folder / "parent")]
        for fixed in _attempts(pins, parent):
            try:
                return _ask(resolver, request, folder, words, pins=pins, fixed=fixed, end=end)
            except _Refused as refused:
                if not fixed or refused.unresolved.trouble == "unanswered":
                    raise  # no other question would have another answer
    raise AssertionError("the last attempt fixes nothing, and returns or raises")


def _attempts(pins: Mapping[str, str], parent: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """The versions that must stay, in the order in which it is tried: all, the parent's frameworks, none.

    An installer would take the newest torchvision, and with it another torch than the parent's, which its CUDA is for.
    """
    frameworks = {name: version for name, version in parent.items() if name in FRAMEWORKS and pins[name] == version}
    yield from {len(fixed): fixed for fixed in (dict(pins), frameworks, {})}.values()


def _ask(
    resolver: Resolver,
    request: LockRequest,
    folder: Path,
    words: Sequence[str],
    *,
    pins: Mapping[str, str],
    fixed: Mapping[str, str],
    end: float | None,
) -> list[_Package]:
    if fixed:
        _write(folder / "fixed.txt", [f"{name}=={version}" for name, version in fixed.items()])
        words = [*words, "--constraint", str(folder / "fixed.txt")]
    try:
        if resolver.kind == "uv":
            return _ask_uv(resolver, request, folder, words, pins, end)
        return _ask_pip(resolver, request, folder, words, end)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"what it answers is not understood: {type(error).__name__}: {error}"
        raise _Refused(Unresolved(trouble="undecided", reason=reason, resolver=resolver.text)) from error


def _ask_uv(
    resolver: Resolver,
    request: LockRequest,
    folder: Path,
    words: Sequence[str],
    pins: Mapping[str, str],
    end: float | None,
) -> list[_Package]:
    """https://docs.astral.sh/uv/reference/cli/#uv-pip-compile; the answer is in the format of
    https://packaging.python.org/en/latest/specifications/pylock-toml/. Uv prefers the versions of an output file that
    exists, which are those of `pins` here."""
    output = folder / "pylock.toml"
    output.unlink(missing_ok=True)
    if pins:
        entries = [f'[[packages]]\nname = "{name}"\nversion = "{version}"\n' for name, version in pins.items()]
        output.write_text("\n".join(['lock-version = "1.0"\ncreated-by = "stoker"\n', *entries]), encoding="utf-8")
    arguments = [word for word in request.arguments if _name_of(word) in UV_ARGUMENTS]
    if request.installer == "pip":
        # Pip takes the best version of all indexes; uv by itself only asks the first one that has the project.
        instead = any(word.startswith("--index-url=") for word in words)
        arguments = [
            *(word for word in pip_words(request).flags if not (instead and word.startswith("--index-url="))),
            "--index-strategy=unsafe-best-match",
        ]
    elif request.wheels and not {_name_of(word) for word in arguments} & {
        "torch-backend",
        "index-url",
        "default-index",
    }:
        arguments.append(f"--torch-backend={request.wheels}")
    argv = [*resolver.argv, "pip", "compile", str(folder / "requirements.in"), "--quiet", "--no-header"]
    argv += ["--format", "pylock.toml", "--output-file", str(output), "--python-version", request.python]
    argv += ["--python-platform", _uv_platform(request.platform), *arguments, *words]
    _run(argv, resolver, request, folder, end)
    packages = []
    for package in tomllib.loads(output.read_text(encoding="utf-8")).get("packages", ()):
        name = canonicalize_name(package["name"])
        vcs, archive, directory = (package.get(key) for key in ("vcs", "archive", "directory"))
        if directory is not None:
            raise _Refused(Unresolved(trouble="undecided", reason=f"{name} is a folder of this machine"))
        if vcs is not None:
            address = f"{vcs['type']}+{vcs['url']}@{vcs['commit-id']}"
            subfolder = f"#subdirectory={vcs['subdirectory']}" if vcs.get("subdirectory") else ""
            packages.append(_Package(name=name, address=address + subfolder))
        elif archive is not None:
            packages.append(_Package(name=name, address=archive["url"], hashes=_hashes([archive])))
        else:
            files = package.get("wheels") or ([package["sdist"]] if "sdist" in package else [])
            packages.append(_Package(name=name, version=package["version"], hashes=_hashes(files)))
    return packages


def _ask_pip(
    resolver: Resolver, request: LockRequest, folder: Path, words: Sequence[str], end: float | None
) -> list[_Package]:
    """https://pip.pypa.io/en/stable/reference/installation-report/."""
    report = folder / "report.json"
    arguments = [word for word in request.arguments if _name_of(word) in PIP_ARGUMENTS and not _is_elsewhere(word)]
    argv = [*resolver.argv, "install", "--dry-run", "--ignore-installed", "--no-input", "--disable-pip-version-check"]
    argv += ["--progress-bar=off"]
    argv += ["--report", str(report), f"--timeout={SILENT_SECONDS}", "--retries=1", *arguments, *words]
    _run([*argv, "--requirement", str(folder / "requirements.in")], resolver, request, folder, end)
    packages = []
    for item in json.loads(report.read_text(encoding="utf-8"))["install"]:
        name, origin = canonicalize_name(item["metadata"]["name"]), item["download_info"]
        archive = origin.get("archive_info", {})
        if "vcs_info" in origin:
            vcs = origin["vcs_info"]
            address = f"{vcs['vcs']}+{origin['url']}@{vcs['commit_id']}"
            subfolder = f"#subdirectory={origin['subdirectory']}" if origin.get("subdirectory") else ""
            packages.append(_Package(name=name, address=address + subfolder))
        elif "dir_info" in origin:
            raise _Refused(Unresolved(trouble="undecided", reason=f"{name} is a folder of this machine"))
        elif item.get("is_direct"):
            packages.append(_Package(name=name, address=origin["url"], hashes=_hashes([archive])))
        else:
            packages.append(_Package(name=name, version=item["metadata"]["version"], hashes=_hashes([archive])))
    return packages


def _run(argv: Sequence[str], resolver: Resolver, request: LockRequest, folder: Path, end: float | None) -> None:
    """Run a resolver; a `_Refused` with its own words if it fails."""
    try:
        process = subprocess.Popen(
            argv,
            env=_environment(request, os.environ),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:  # it was there a moment ago
        reason = f"{resolver.text} does not run: {error}"
        raise _Refused(Unresolved(trouble="undecided", reason=reason, resolver=resolver.text)) from None
    seconds = SECONDS if end is None else max(end - time.monotonic(), 0)
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        reason = f"{resolver.text} had no answer after {SECONDS if end is None else seconds:.0f} s"
        raise _Refused(Unresolved(trouble="unanswered", reason=reason, resolver=resolver.text)) from None
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode != 0:
        raise _Refused(_unresolved(output, resolver, request, folder))


def _unresolved(output: str, resolver: Resolver, request: LockRequest, folder: Path) -> Unresolved:
    """What a resolver's failure means."""
    trouble: Trouble = next((name for name, pattern in _TROUBLES if pattern.search(output)), "undecided")
    if trouble in ("conflict", "missing") and not request.sure and _TAGS.search(output):
        trouble = "undecided"
    reason = _reason(output, folder)
    if trouble == "unanswered" and not dict(_TROUBLES)[trouble].search(reason):
        # Pip says in its warnings that nobody answered, and ends with "No matching distribution found".
        reason = next(line for line in reversed(output.splitlines()) if dict(_TROUBLES)[trouble].search(line)).strip()
    return Unresolved(trouble=trouble, reason=reason, resolver=resolver.text)


def _reason(output: str, folder: Path) -> str:
    """The resolver's own words without its marks, its lists of all versions, and the names of temporary files."""
    text = output.replace(f"{folder}{os.sep}", "")
    text = re.sub(r"(\(from versions: )[^)]{80,}\)", r"\1…)", text)
    lines = []
    for line in text.splitlines():
        words = re.sub(r"^\s*(?:×|╰─▶|╰─>|│|ERROR:|error:|cause:)\s?", "", line).strip()
        if words and not _PROGRESS.match(words):
            lines.append(words)
    # Failures are explained last by pip, first by uv; a build's log is between.
    return "\n".join(lines if len(lines) <= 12 else [*lines[:6], "…", *lines[-5:]])


def _is_elsewhere(word: str) -> bool:
    """Whether an argument names a certificate's file that only the image has."""
    return _name_of(word) in ("cert", "client-cert") and not os.path.exists(word.partition("=")[2])


def _environment(request: LockRequest, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a resolver: this machine's without those of its installers, and the image's installers'."""
    variables = {
        name: text
        for name, text in environ.items()
        if name in _KEPT_VARIABLES or not re.match(r"(?:UV|PIP)_", name, re.IGNORECASE)
    }
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME"):
        variables.pop(name, None)
    if "PIP_CERT" in variables:
        # They go before pip's own variable in the requests that pip brings along:
        # https://github.com/psf/requests/blob/v2.31.0/requests/sessions.py#L752-L772
        for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
            variables.pop(name, None)
    variables.setdefault("UV_HTTP_TIMEOUT", str(SILENT_SECONDS))
    images = {
        name: text
        for name, text in request.environment.items()
        # A file of the image's is not this machine's, which has its own way to the index.
        if _INSTALLERS_VARIABLE.fullmatch(name) and not (name in _CERTIFICATES and not os.path.exists(text))
    }
    own = {
        "UV_NO_CONFIG": "1",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INPUT": "1",
        "UV_HTTP_CONNECT_TIMEOUT": str(CONNECT_SECONDS),
        "UV_HTTP_RETRIES": "1",
    }
    for name, path in request.files.items():
        if name in _FILE_VARIABLES:
            own[_FILE_VARIABLES[name]] = path
    if "uv.toml" in request.files:
        del own["UV_NO_CONFIG"]
    if request.installer == "pip":
        own |= pip_words(request).variables
    return {**variables, **own, **images}


def _lines(packages: Iterable[_Package], installer: Installer) -> Iterable[str]:
    """Lines of a requirements file, by name. Pip asks for hashes of all lines as soon as one has some."""
    ordered = sorted(packages, key=lambda one: one.name)
    with_hashes = installer == "uv" or all(one.hashes for one in ordered)
    for one in ordered:
        pin = f"{one.name}=={one.version}" if one.version else f"{one.name} @ {one.address}"
        # An address is not followed by hashes: uv takes none there, and a commit or a file's name says enough.
        hashes = [f"--hash={text}" for text in one.hashes] if with_hashes and one.version else []
        yield " ".join([pin, *hashes])


def _hashes(files: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The hashes of files; empty if one of them has none."""
    texts = []
    for file in files:
        sha256 = (file.get("hashes") or {}).get("sha256")
        if not sha256:
            return ()
        texts.append(f"sha256:{sha256}")
    return tuple(sorted(set(texts)))


def _write(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _write_stub(folder: Path, name: str, version: str) -> None:
    """A wheel that stands for a distribution that is installed: https://packaging.python.org/en/latest/specifications/binary-distribution-format/."""
    plain = name.replace("-", "_")
    info = f"{plain}-{version}.dist-info"
    contents = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: stoker\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(folder / f"{plain}-{version}-py3-none-any.whl", "w") as archive:
        for inner, text in contents.items():
            archive.writestr(inner, text)


def _uv_platform(tag: str) -> str:
    """ "x86_64-manylinux_2_36" of "manylinux_2_36_x86_64"."""
    family, major, minor, machine = re.fullmatch(r"(\w+?)_(\d+)_(\d+)_(\w+)", tag).groups()  # type: ignore[union-attr]
    if family == "musllinux":
        return f"{machine}-unknown-linux-musl"
    return f"{machine}-manylinux_{major}_{min(int(minor), NEWEST_GLIBC)}"


def _is_this_machine(request: LockRequest) -> bool:
    """Whether the image has this process's Python and processor, so that sources are built as they would be there."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    same_python = request.python == here or request.python == platform.python_version()
    return same_python and sys.platform == "linux" and request.platform.endswith(f"_{platform.machine()}")


@functools.cache
def _uv() -> Resolver | None:
    """The uv on PATH, or the one beside this Python; None if there is none that runs."""
    beside = os.path.join(sysconfig.get_path("scripts"), "uv")
    program = shutil.which("uv") or (beside if os.access(beside, os.X_OK) else None)
    text = _version_text([program, "--version"]) if program else ""
    return Resolver(argv=(program,), kind="uv", text=" ".join(text.split()[:2])) if program and text else None


@functools.cache
def _pip() -> Resolver | None:
    """This Python's pip; None if it has none."""
    try:
        version = metadata.version("pip")
    except metadata.PackageNotFoundError:
        return None
    return Resolver(argv=(sys.executable, "-m", "pip"), kind="pip", text=f"pip {version}")


def _version_text(argv: Sequence[str]) -> str:
    try:
        finished = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except OSError:
        return ""
    return finished.stdout.strip() if finished.returncode == 0 else ""


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def _name_of(word: str) -> str:
    return word.lstrip("-").partition("=")[0]


def _digest(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=list).encode()).hexdigest()


FOLDER: Final = "locks"
"""The folder below Stoker's home."""
PROJECT_FILE: Final = "stoker.lock"
"""The file beside a project's code, with the locks that everybody who has the code uses."""


class LockStore:
    """The locks below one home."""

    def __init__(self, home: Path) -> None:
        self.folder = home / FOLDER

    def find(self, request: LockRequest, *, root: Path) -> Lock | None:
        """The lock of a request; None if there is none.

        The `stoker.lock` in `root`, or in the working directory, goes before what the home has.
        """
        digest = request.digest
        files = (read_file(folder / PROJECT_FILE).get(digest) for folder in dict.fromkeys((root, Path.cwd())))
        return next(filter(None, files), None) or self._read(digest)

    def keep(self, lock: Lock) -> None:
        """Keep a lock, in place of an older one of the same request."""
        self._write(f"{lock.digest}.json", to_json(lock))

    def _read(self, digest: str) -> Lock | None:
        try:
            return parse(json.loads((self.folder / f"{digest}.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, StokerError):
            return None  # absent, or damaged: it is resolved again

    def _write(self, name: str, document: Any) -> None:
        with contextlib.suppress(OSError):  # a full disk: the lock is in the plan
            self.folder.mkdir(parents=True, exist_ok=True)
            partial = self.folder / f".{name}.{os.getpid()}"
            partial.write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")
            partial.replace(self.folder / name)


def parse(document: Mapping[str, Any]) -> Lock:
    """A lock of its document; a `SettingsError` if it is none, or has another format."""
    lock = from_json(Lock, document, strict=False)
    if lock.version != LOCK_FORMAT:
        raise SettingsError(f"a lock of format {lock.version}, and this Stoker has format {LOCK_FORMAT}")
    return lock


def file_text(locks: Iterable[Lock]) -> str:
    """The text of a `stoker.lock`."""
    documents = {lock.digest: to_json(lock) for lock in sorted(locks, key=lambda lock: lock.digest)}
    return json.dumps({"locks": documents}, indent=1, sort_keys=True) + "\n"


def read_file(path: Path) -> dict[str, Lock]:
    """The locks of a `stoker.lock` by digest; none if there is no file. One of another kind is a `SettingsError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}", fix=_FIX) from None
    try:
        return {lock.digest: lock for lock in map(parse, parse_object(text)["locks"].values())}
    except (StokerError, KeyError, AttributeError, TypeError) as error:
        raise SettingsError(f"{path} is no file of locks: {error}", fix=_FIX) from None


_FIX: Final = f"remove it, and write it again: stoker plan FILE --lock={PROJECT_FILE}"


def indexes(request: LockRequest) -> str:
    """What the indexes of a request are known by: those that settings name, else the installers' usual one."""
    words = [word for word in request.arguments if "://" in word]
    lines = [line for part in request.lists for line in part.lines if line.startswith("-")]
    named = [part.index for part in request.lists if part.index]
    variables = [f"{name}={text}" for name, text in request.environment.items() if "://" in text]
    return " ".join(sorted({*words, *lines, *named, *variables})) or "usual"
