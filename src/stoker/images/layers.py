"""What an image's layers hold: Python and its distributions, CUDA, cuDNN, ROCm, the C library.

A layer is a tar archive, often compressed, that is read as a stream: the names of its files, and the contents of very
few. A file of a layer may remove those of lower ones ("whiteouts"):
https://github.com/opencontainers/image-spec/blob/main/layer.md. What was found in a layer is kept below Stoker's home
by the layer's digest, and never changes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
import zlib
from pathlib import Path
from typing import IO, Any, Final, Iterable, Iterator, Mapping, Sequence

import attrs

from stoker.core.errors import BackendError
from stoker.core.packages import canonical

FOLDER: Final = "images"
"""The folder below Stoker's home in which the contents of layers are kept."""
FORMAT: Final = 1
"""Of a kept file: one of another format is not read."""
LARGEST_FILE: Final = 1 << 16
"""Bytes of a file whose contents are read; torch/version.py has a few hundred."""
CHUNK: Final = 1 << 20
# A plan is made before every run and must stay quick: 64 MiB are some seconds at 100 Mbit/s. An engine's export of an
# image of 1 GiB and its reading took 17 s on a machine with 4 cores under a load of 19. Larger images are read by
# `stoker image inspect --deep`, after which a plan knows them.
_PLANNED_DOWNLOAD: Final = 64 << 20
_PLANNED_EXPORT: Final = 512 << 20
_PLANNED_SECONDS: Final = 20.0

_SITE: Final = r"(?P<site>(?:.+/)?(?:site|dist)-packages)"
# https://packaging.python.org/en/latest/specifications/recording-installed-packages/#the-dist-info-directory
_DIST_INFO: Final = re.compile(_SITE + r"/(?P<name>[^/-]+)-(?P<version>[^/-]+)\.dist-info/METADATA")
_EGG_INFO: Final = re.compile(_SITE + r"/(?P<name>[^/-]+)-(?P<version>[^/-]+)(?:-py\d\.\d+)?\.egg-info(?:/PKG-INFO)?")
_TORCH: Final = re.compile(_SITE + r"/torch/version\.py")
# https://docs.conda.io/projects/conda/en/latest/user-guide/concepts/pkg-specs.html: name-version-build
_CONDA: Final = re.compile(
    r"(?P<prefix>(?:.+/)?)conda-meta/(?P<name>[^/]+)-(?P<version>[^/-]+)-(?P<build>[^/-]+)\.json"
)
_CUDNN: Final = re.compile(
    r"usr/(?:lib/[^/]+-linux-gnu|lib64|local/cuda[^/]*/lib64)/libcudnn\.so\.(?P<version>\d+(?:\.\d+)*)"
)
_TOOLKIT: Final = re.compile(r"usr/local/cuda-\d+\.\d+|opt/rocm-\d+\.\d+(?:\.\d+)?")
_FOLDER_OF: Final = re.compile(rf"(?P<folder>{_TOOLKIT.pattern})(?:/.*)?")
_PYTHON: Final = re.compile(r"(?P<bin>(?:.+/)?bin)/python(?:3(?:\.\d+)?)?")
_MUSL: Final = re.compile(r"(?:usr/)?lib/ld-musl-[\w-]+\.so\.1")
_GLIBC: Final = re.compile(r"(?:usr/)?lib(?:64|/[\w-]+-linux-gnu)?/(?:ld-linux-[\w-]+\.so\.\d|libc\.so\.6)")
_EVIDENCE: Final = (_DIST_INFO, _EGG_INFO, _CONDA, _CUDNN, _PYTHON, _MUSL, _GLIBC)
_LIKELY: Final = re.compile(
    r"(?:-info/METADATA|\.egg-info(?:/PKG-INFO)?|conda-meta/[^/]+\.json|libcudnn\.so\.[\d.]+|bin/python[\d.]*"
    r"|/ld-(?:musl|linux)-[\w.-]+|/libc\.so\.6)$"
)
"""What the end of a name must be, so that most files of a layer are looked at once."""
_WHITEOUT: Final = ".wh."
_OPAQUE: Final = ".wh..wh..opq"


@attrs.frozen(kw_only=True)
class LayerContents:
    """What one layer says of an image's contents."""

    paths: Mapping[str, str] = attrs.field(factory=dict)
    """The files that are evidence → the target of a link, or the contents of torch/version.py, else empty."""
    removed: tuple[str, ...] = ()
    """Files and folders of lower layers that it removes."""
    emptied: tuple[str, ...] = ()
    """Folders of lower layers that it empties."""


@attrs.frozen(kw_only=True)
class ImageContents:
    """What the layers of an image hold together."""

    distributions: Mapping[str, str]
    """Of the Python that a command finds first: canonical name → version; torch's with its local part."""
    python: str = ""
    """Its version, "3.11"."""
    cuda: str = ""
    """That of /usr/local/cuda-X.Y; the newest of several."""
    cudnn: str = ""
    rocm: str = ""
    libc: str = ""


def planned_reading(cache: LayerCache) -> LayerReading:
    """How far a plan reads an image: what was read before, and little more."""
    return LayerReading(
        cache=cache,
        largest_download=_PLANNED_DOWNLOAD,
        largest_export=_PLANNED_EXPORT,
        seconds=_PLANNED_SECONDS,
    )


def read_layer(stream: IO[bytes], deadline: float = 0.0) -> LayerContents:
    """Read a layer, compressed with gzip or zstd or not, from a stream.

    Raises `BackendError` for one that cannot be read, and after `deadline`, a time of `time.monotonic` unless 0.
    """
    paths: dict[str, str] = {}
    removed: list[str] = []
    emptied: list[str] = []
    try:
        with _unpacked(stream) as plain, tarfile.open(fileobj=plain, mode="r|", bufsize=CHUNK) as archive:
            for member in archive:
                if deadline and time.monotonic() > deadline:
                    raise BackendError("its layers take too long to read")
                path = member.name.removeprefix("./").strip("/")
                folder, _, name = path.rpartition("/")
                if name == _OPAQUE:
                    emptied.append(folder)
                elif name.startswith(_WHITEOUT):
                    removed.append(f"{folder}/{name.removeprefix(_WHITEOUT)}".lstrip("/"))
                else:
                    paths.update(_evidence(path, member, archive))
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError) as error:
        raise BackendError(f"a layer cannot be read: {error}") from error
    return LayerContents(paths=paths, removed=tuple(removed), emptied=tuple(emptied))


def contents_of(layers: Sequence[LayerContents], path: str = "") -> ImageContents:
    """What an image holds, of its layers from the lowest up, and the variable PATH of its configuration."""
    present: dict[str, str] = {}
    for layer in layers:
        gone = {*layer.removed}
        above = tuple(f"{folder}/" for folder in (*layer.removed, *layer.emptied))
        if gone or above:
            present = {one: value for one, value in present.items() if one not in gone and not one.startswith(above)}
        present.update(layer.paths)
    binary, version = _interpreter(present, path)
    distributions = _distributions(present, binary.removesuffix("bin").strip("/"), version)
    folders = sorted((one for one in present if _TOOLKIT.fullmatch(one)), key=_numbers_of)
    cudnns = sorted((match["version"] for match in map(_CUDNN.fullmatch, present) if match), key=_numbers_of)
    libc = "musl" if any(map(_MUSL.fullmatch, present)) else "glibc" if any(map(_GLIBC.fullmatch, present)) else ""
    return ImageContents(
        distributions=distributions,
        python=version,
        cuda=next((one.rpartition("-")[2] for one in reversed(folders) if "cuda" in one), ""),
        rocm=next((one.rpartition("-")[2] for one in reversed(folders) if "rocm" in one), ""),
        cudnn=cudnns[-1] if cudnns else "",
        libc=libc,
    )


@attrs.frozen(kw_only=True)
class LayerReading:
    """How far the layers of images are read."""

    cache: LayerCache
    """Where contents are kept; what is there is taken, whatever the limits."""
    largest_download: int | None = None
    """Bytes of compressed layers that may be downloaded for one image; None for any number."""
    largest_export: int | None = None
    """Bytes of unpacked layers that an engine may export for one image; None for any number."""
    seconds: float = 0.0
    """Seconds that one image may take; 0 for as many as it takes."""

    @property
    def deadline(self) -> float:
        """The end of an image's reading that begins now; 0 for none."""
        return time.monotonic() + self.seconds if self.seconds else 0.0


class LayerCache:
    """Contents of layers and of engines' images by digest, in a folder."""

    def __init__(self, home: Path) -> None:
        self._folder = home / FOLDER

    def get(self, digest: str) -> LayerContents | None:
        """The contents of a layer; None if it was not read before."""
        layers = self.layers(digest)
        return layers[0] if layers else None

    def layers(self, digest: str) -> tuple[LayerContents, ...] | None:
        """The contents of all layers of an engine's image; None if it was not read before."""
        try:
            document = json.loads(self._file(digest).read_text(encoding="utf-8"))
            with contextlib.suppress(OSError):
                os.utime(self._file(digest))  # when it was used last, for `sweep`
            if document["format"] != FORMAT:
                return None
            return tuple(
                LayerContents(paths=row["paths"], removed=tuple(row["removed"]), emptied=tuple(row["emptied"]))
                for row in document["layers"]
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None  # a file that somebody has cut is read again from its source

    def put(self, digest: str, *layers: LayerContents) -> None:
        """Keep the contents of a layer, or of an image's layers; a folder that cannot be written keeps nothing."""
        rows = [attrs.asdict(layer) for layer in layers]
        text = json.dumps({"format": FORMAT, "layers": rows}, sort_keys=True)
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._folder)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(name, self._file(digest))

    def sweep(self, *, before: float | None, dry_run: bool) -> tuple[int, int]:
        """Delete what no plan has used since a time, and return how many files it were and their bytes; nothing without
        a time. They are read again from the images where they are needed."""
        count = size = 0
        if before is None:
            return 0, 0
        for file in self._folder.glob("*"):
            with contextlib.suppress(OSError):  # another sweep was faster
                facts = file.stat()
                if facts.st_mtime < before:
                    if not dry_run:
                        file.unlink()
                    count, size = count + 1, size + facts.st_size
        return count, size

    def _file(self, digest: str) -> Path:
        return self._folder / f"{re.sub(r'[^A-Za-z0-9]', '-', digest)}.json"


def saved_layers(stream: IO[bytes], deadline: float = 0.0) -> tuple[LayerContents, ...]:
    """The contents of the layers of one image, lowest first, from an engine's `image save`.

    https://github.com/moby/moby/blob/master/image/spec/spec.md: manifest.json, wherever it stands, lists the layers.
    """
    layers: dict[str, LayerContents] = {}
    links: dict[str, str] = {}
    manifest: Any = None
    try:
        with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK) as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if member.issym() or member.islnk():
                    links[name] = os.path.normpath(os.path.join(os.path.dirname(name), member.linkname))
                file = archive.extractfile(member) if member.isfile() else None
                if file is None:
                    continue
                if name == "manifest.json":
                    manifest = json.load(file)
                elif not name.endswith(".json") and name not in ("VERSION", "repositories", "oci-layout"):
                    with contextlib.suppress(BackendError):  # configurations lie between the layers
                        layers[name] = read_layer(file, deadline)
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise BackendError(f"the engine's archive of the image cannot be read: {error}") from error
    if deadline and time.monotonic() > deadline:
        raise BackendError("its layers take too long to read")
    try:
        return tuple(layers[links.get(name, name)] for name in manifest[0]["Layers"])
    except (TypeError, KeyError, IndexError) as error:
        raise BackendError(f"the engine's archive of the image lacks a layer: {error}") from error


def _evidence(path: str, member: tarfile.TarInfo, archive: tarfile.TarFile) -> Mapping[str, str]:
    folder = _FOLDER_OF.fullmatch(path)
    if folder is not None and not _CUDNN.fullmatch(path):
        return {folder["folder"]: ""}
    if _TORCH.fullmatch(path):
        file = archive.extractfile(member) if member.isfile() else None
        return {path: file.read(LARGEST_FILE).decode("utf-8", "replace")} if file is not None else {}
    if _LIKELY.search(path) and any(pattern.fullmatch(path) for pattern in _EVIDENCE):
        return {path: member.linkname if member.issym() or member.islnk() else ""}
    return {}


def _interpreter(present: Mapping[str, str], path: str) -> tuple[str, str]:
    """(folder, version) of the Python that a command finds first; empty where there is none, or none is known."""
    folders = [one.strip("/") for one in path.split(":") if one] or ["usr/local/bin", "usr/bin", "bin"]
    if "bin" in folders and "usr/bin" not in folders:
        folders.append("usr/bin")  # /bin is a link to it
    for folder in folders:
        versions = sorted(
            (
                match[1]
                for match in (re.fullmatch(re.escape(folder) + r"/python(3\.\d+)", one) for one in present)
                if match
            ),
            key=_numbers_of,
        )
        for name in ("python3", "python"):
            target = os.path.basename(present.get(f"{folder}/{name}", ""))
            target = (
                os.path.basename(present.get(f"{folder}/{target}", "")) or target if target == "python3" else target
            )
            match = re.fullmatch(r"python(3\.\d+)", target)
            if match is not None:
                return folder, match[1]
        if versions:
            return folder, versions[-1]
        if f"{folder}/python3" in present or f"{folder}/python" in present:
            prefix = folder.removesuffix("bin")
            minors = {
                match[1] for one in present if (match := re.match(re.escape(prefix) + r"lib/python(3\.\d+)/", one))
            }
            if len(minors) == 1:
                return folder, minors.pop()
    return "", ""


def _distributions(present: Mapping[str, str], prefix: str, version: str) -> Mapping[str, str]:
    """The distributions of one Python; of all folders with some if it is not known which Python is used."""
    sites = _sites(prefix, version) if version else sorted({match["site"] for match in _installed(present)})
    places = {site: number for number, site in enumerate(sites)}
    versions: dict[str, tuple[int, str]] = {}
    for match in _installed(present):
        number = places.get(match["site"])
        name = canonical(match["name"])
        if number is not None and (name not in versions or number < versions[name][0]):
            versions[name] = (number, match["version"].replace("_", "-"))
    by_name = {name: version for name, (_, version) in versions.items()}
    for path, text in present.items():
        torch = _TORCH.fullmatch(path)
        if torch is not None and torch["site"] in places and "torch" in by_name:
            by_name["torch"] = _torch_version(text, by_name["torch"], _conda_build(present, "pytorch"))
    return dict(sorted(by_name.items()))


def _installed(present: Iterable[str]) -> Iterator[re.Match[str]]:
    for path in present:
        match = _DIST_INFO.fullmatch(path) or _EGG_INFO.fullmatch(path)
        if match is not None:
            yield match


def _sites(prefix: str, version: str) -> Sequence[str]:
    """Where a Python looks for distributions, the first first; Debian's own has two folders."""
    head = f"{prefix}/" if prefix else ""
    sites = [f"{head}lib/python{version}/site-packages", f"{head}lib64/python{version}/site-packages"]
    if prefix in ("usr", ""):
        sites = [f"usr/local/lib/python{version}/dist-packages", *sites, "usr/lib/python3/dist-packages"]
        sites.append(f"usr/lib/python{version}/site-packages")
    return sites


def _torch_version(text: str, installed: str, conda_build: str) -> str:
    """torch's version with its local part, from its version.py; a distribution's metadata may lack it.

    A build that is not the PyTorch project's has the version without: for which chips it was built is not known.
    """
    version = re.search(r"^__version__\s*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    if version is None or version[1].partition("+")[0] != installed.partition("+")[0]:
        return installed
    if "+" in version[1] or not re.match(r"py3\.\d+_(?:cuda|cpu)", conda_build):
        return version[1]
    cuda = re.search(r"^cuda(?:\s*:[^=]+)?\s*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return f"{version[1]}+cu{cuda[1].replace('.', '')}" if cuda else f"{version[1]}+cpu"


def _conda_build(present: Iterable[str], name: str) -> str:
    """The build of one of conda's packages: "py3.11_cuda12.1_cudnn8.9.2_0"; empty if it is not installed."""
    matches = filter(None, map(_CONDA.fullmatch, present))
    return next((match["build"] for match in matches if match["name"] == name), "")


def _numbers_of(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text.rpartition("-")[2]))


@contextlib.contextmanager
def _unpacked(stream: IO[bytes]) -> Iterator[IO[bytes]]:
    """The stream without its compression, which its first bytes tell."""
    first = stream.read(4)
    source = _Prefixed(first, stream)
    if first[:2] == b"\x1f\x8b":
        yield _Inflated(source)  # type: ignore[misc]
    elif first == b"\x28\xb5\x2f\xfd":
        with _unzstd(source) as plain:
            yield plain
    else:
        yield source  # type: ignore[misc]


class _Prefixed:
    """A stream whose first bytes have been read."""

    def __init__(self, first: bytes, stream: IO[bytes]) -> None:
        self._first, self._stream = first, stream

    def read(self, size: int = -1) -> bytes:
        if self._first:
            first, self._first = self._first, b""
            return first
        return self._stream.read(size)


class _Inflated:
    """A stream without gzip; several members may follow each other, as pigz and estargz write them."""

    def __init__(self, stream: _Prefixed) -> None:
        self._stream = stream
        self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._buffer = b""

    def read(self, size: int = -1) -> bytes:
        while size < 0 or len(self._buffer) < size:
            if self._inflater.eof:
                packed = self._inflater.unused_data or self._stream.read(CHUNK)
                if not packed.strip(b"\0"):
                    break
                self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
            else:
                packed = self._inflater.unconsumed_tail or self._stream.read(CHUNK)
                if not packed:
                    raise EOFError("it ends early")
            self._buffer += self._inflater.decompress(packed, CHUNK * 4)
        size = len(self._buffer) if size < 0 else size
        part, self._buffer = self._buffer[:size], self._buffer[size:]
        return part


@contextlib.contextmanager
def _unzstd(stream: _Prefixed) -> Iterator[IO[bytes]]:
    """The stream without zstd, by its program: Python has it in the standard library from 3.14 on."""
    program = shutil.which("zstd")
    if program is None:
        raise BackendError(
            "a layer is compressed with zstd, and there is no program `zstd` on this machine", fix="install zstd"
        )
    with tempfile.TemporaryFile() as packed:
        while chunk := stream.read(CHUNK):
            packed.write(chunk)
        packed.seek(0)
        process = subprocess.Popen([program, "-dc"], stdin=packed, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.stdout.close()
            process.kill()
            process.wait()
