"""Package the running Stoker: a wheel for images that are built, a folder for images that are used as they are.

Both are made from the files that this process imports, an editable checkout included. No network and no build tool is
used. The same files give the same bytes.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import importlib.util
import io
import os
import py_compile
import re
import shutil
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Final, Iterable, Iterator, Mapping

from stoker.core.errors import InfrastructureError
from stoker.core.status import PYTHON_TOO_OLD
from stoker.images.dockerfile import RequirementList

DEPENDENCIES: Final = (
    "attrs",
    "cloudpickle",
    "fsspec",
    "nvidia-ml-py",
)
"""What a worker may import, all of it pure Python: it runs on every Python from 3.10 and every machine. psutil is not;
the worker reads Linux's /proc in its place where it is missing."""
DRIVER_DEPENDENCIES: Final = ("click", "packaging", "pyyaml", "tomli")
"""What a driver imports besides that has a form in pure Python; those that are not installed here are not needed."""
COMPILED: Final = (".so", ".pyd", ".dylib")
"""Endings of what fits one machine and one Python."""
WORKER_LIST: Final = "stoker"
"""The name of the list of what Stoker's wheel requires."""
VENDORED: Final = "stoker_dependencies"
"""The folder of the bundle with other people's packages. It is put at the path's end: the image's own go first."""
OLDEST_PYTHON: Final = (3, 10)
"""The oldest Python that a worker runs on."""
_SKIPPED: Final = frozenset({"__pycache__"})
_OF_WORKERS: Final = frozenset({"core", "system", "worker", "vendors", "store", "attr", "attrs"})
"""Folders of the bundle that every worker imports from."""
_STAMP: Final = (1980, 1, 1, 0, 0, 0)
"""The time of every file: zip knows no earlier one."""
_PRELUDE: Final = f"""

def _add_dependencies() -> None:
    import os
    import sys

    folder = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "{VENDORED}")
    if folder not in sys.path:
        sys.path.append(folder)


_add_dependencies()
"""


_FUTURE: Final = b"from __future__ import annotations\n"
_VERSION_CHECK: Final = f"""
import sys as _sys

if _sys.version_info < {OLDEST_PYTHON}:
    _sys.exit("%s is Python %d.%d: {PYTHON_TOO_OLD}" % ((_sys.executable,) + _sys.version_info[:2]))
"""
"""Says so before anything is imported that an older Python lacks."""


def worker_wheel(folder: Path) -> Path:
    """A wheel of the running Stoker, in `folder`; its version ends in a digest of its contents.

    The digest makes pip replace another Stoker of the same version in the parent image.
    """
    files = dict(_package_files())
    metadata_text = _metadata()
    licences = dict(_licences())
    digest = _digest([*files.items(), ("METADATA", metadata_text.encode()), *licences.items()])
    version = f"{_version(metadata_text)}+g{digest[:12]}"
    name = f"stoker-{version}-py3-none-any.whl"
    path = folder / name
    if path.is_file():
        return path
    info = f"stoker-{version}.dist-info"
    contents = {f"stoker/{inner}": data for inner, data in files.items()}
    contents[f"{info}/METADATA"] = re.sub(r"(?m)^Version:.*$", f"Version: {version}", metadata_text, count=1).encode()
    # https://packaging.python.org/en/latest/specifications/binary-distribution-format/
    contents[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: stoker\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    contents[f"{info}/entry_points.txt"] = b"[console_scripts]\nstoker = stoker.cli.main:main\n"
    contents.update({f"{info}/licenses/{inner}": data for inner, data in licences.items()})
    contents[f"{info}/RECORD"] = _record(contents, f"{info}/RECORD")
    folder.mkdir(parents=True, exist_ok=True)
    # Not compressed: two versions of zlib may write the same files in two ways.
    with (
        tempfile.NamedTemporaryFile(dir=folder, delete=False) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
    ):
        for inner, data in contents.items():
            entry = zipfile.ZipInfo(inner, _STAMP)
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, data)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)
    return path


def worker_requirements(python: str, extras: Iterable[str] = ()) -> RequirementList:
    """What Stoker's wheel requires for a Python such as "3.11" with these extras of Stoker."""
    from packaging.requirements import Requirement  # half of the time that importing this module would take

    wanted = frozenset(extras)
    release = ".".join(python.split(".")[:2])
    here = {"python_version": release, "python_full_version": f"{release}.0", "sys_platform": "linux"}
    distribution = _distribution("stoker")
    lines = []
    for line in (distribution.requires or ()) if distribution is not None else ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({**here, "extra": extra}) for extra in ("", *wanted)):
            requirement.marker = None
            lines.append(str(requirement))
    return RequirementList(name=WORKER_LIST, lines=tuple(lines), origin="Stoker")


def worker_bundle(folder: Path) -> Path:
    """A folder for PYTHONPATH, below `folder`, with Stoker and its worker's dependencies; it is made once.

    An image's own packages take precedence: importing `stoker` puts the dependencies at the end of the path.
    """
    contents = {f"stoker/{inner}": data for inner, data in _package_files()}
    contents["stoker/__init__.py"] = _with_prelude(contents["stoker/__init__.py"])
    contents["stoker.dist-info/METADATA"] = _metadata().encode()
    for name in DEPENDENCIES:
        for inner, data in _distribution_files(name):
            contents[f"{VENDORED}/{inner}"] = data
    return _bundle(folder, f"bundle-{_digest(contents.items())[:16]}", contents)


def driver_bundle(folder: Path) -> Path:
    """A folder as `worker_bundle` makes it, from which a driver runs, too, if its database and its artifact store need
    no further package."""
    worker = worker_bundle(folder)
    inside = {path.relative_to(worker).as_posix(): path.read_bytes() for path in _files_below(worker)}
    distribution = _distribution("stoker")
    points = distribution.read_text("entry_points.txt") if distribution is not None else None
    inside["stoker.dist-info/entry_points.txt"] = (points or "").encode()
    for name in DRIVER_DEPENDENCIES:
        inside.update((f"{VENDORED}/{inner}", data) for inner, data in _distribution_files(name, compiled=False))
    return _bundle(folder, f"driver-{_digest(inside.items())[:16]}", inside)


def _files_below(folder: Path) -> Iterator[Path]:
    """The files of a bundle that belong to no version of Python."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not _SKIPPED.intersection(path.parts) and not path.name.startswith(".compiled-"):
            yield path


def _bundle(folder: Path, name: str, contents: Mapping[str, bytes]) -> Path:
    """A folder of this name with these files; it is made once."""
    path = folder / name
    if path.is_dir():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder, prefix=".bundle-"))
    try:
        os.chmod(partial, 0o755)  # the container's user may be another one
        for inner, data in contents.items():
            target = partial / inner
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        partial.rename(path)
    except OSError:
        if not path.is_dir():  # otherwise another process was first, with the same bytes
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return path


def _with_prelude(source: bytes) -> bytes:
    """The package's first module, which looks at Python's version first, and finds the dependencies at last."""
    head, future, rest = source.partition(_FUTURE)
    return head + future + _VERSION_CHECK.encode() + rest + _PRELUDE.encode()


def compile_bundle(bundle: Path) -> None:
    """Put bytecode for this Python into a folder that `worker_bundle` made, once.

    Containers get it read-only: each would compile all that it imports again, which takes longer than importing it.
    """
    mark = bundle / f".compiled-{sys.implementation.cache_tag}"
    if mark.exists():
        return
    for source in sorted(bundle.rglob("*.py"), key=lambda path: _OF_WORKERS.isdisjoint(path.parts)):
        if os.path.exists(importlib.util.cache_from_source(str(source))):
            continue  # an earlier process was interrupted
        # A file for another version of Python cannot be compiled here, nor is it imported; a folder that another user
        # made is read-only.
        with contextlib.suppress(py_compile.PyCompileError, OSError):
            py_compile.compile(str(source), doraise=True)
    with contextlib.suppress(OSError):
        mark.touch()


def _package_files() -> Iterator[tuple[str, bytes]]:
    """Every file of the package `stoker` by its path in the package, in order."""
    root = Path(__file__).resolve().parents[1]
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        for name in sorted(names):
            path = Path(folder, name)
            if path.suffix not in (".pyc", ".pyo"):
                yield path.relative_to(root).as_posix(), path.read_bytes()


def _metadata() -> str:
    """The distribution's METADATA."""
    distribution = _distribution("stoker")
    text = distribution.read_text("METADATA") if distribution is not None else None
    if not text:
        raise InfrastructureError(
            "Stoker is not installed here, so that it does not know what it depends on",
            fix="install it: pip install stoker, or pip install -e . in a checkout",
        )
    return text


def _version(metadata_text: str) -> str:
    match = re.search(r"(?m)^Version:\s*(\S+)", metadata_text)
    return match[1].partition("+")[0] if match is not None else "0"


def _licences() -> Iterator[tuple[str, bytes]]:
    distribution = _distribution("stoker")
    for file in (distribution.files or ()) if distribution is not None else ():
        if "licenses" in file.parts:
            yield file.name, Path(str(file.locate())).read_bytes()


def _distribution(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def _distribution_files(name: str, *, compiled: bool = True) -> Iterator[tuple[str, bytes]]:
    """The files of an installed distribution by their path in site-packages; none if it is not installed.

    Compiled parts are an error, or with `compiled` false left out.
    """
    distribution = _distribution(name)
    for file in sorted((distribution.files or ()) if distribution is not None else (), key=str):
        if ".." in file.parts or _SKIPPED.intersection(file.parts) or file.suffix == ".pyc":
            continue  # scripts, and what belongs to this Python
        if file.suffix in COMPILED and not compiled:
            continue
        if file.suffix in COMPILED:
            raise InfrastructureError(
                f"{name} is installed here with compiled parts ({file}), which fit one machine only"
            )
        path = Path(str(file.locate()))
        if path.is_file():
            yield str(file), path.read_bytes()


def _digest(files: Iterable[tuple[str, bytes]]) -> str:
    hasher = hashlib.sha256()
    for name, data in files:
        hasher.update(f"{name}\0{len(data)}\0".encode())
        hasher.update(data)
    return hasher.hexdigest()


def _record(contents: dict[str, bytes], record_path: str) -> bytes:
    """RECORD: each file with its digest and size, itself with neither."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for name, data in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        writer.writerow([name, f"sha256={digest}", len(data)])
    writer.writerow([record_path, "", ""])
    return text.getvalue().encode()
