"""An index of Python packages over HTTP on loopback: wheels of one module each, which tests publish as they go."""

from __future__ import annotations

import contextlib
import hashlib
import ssl
import threading
import zipfile
from collections.abc import Iterator, Sequence
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any

import attrs
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# https://packaging.python.org/en/latest/specifications/simple-repository-api/


@attrs.define
class PackageIndex:
    """A running index; `url` is what `--index-url` takes."""

    folder: Path
    url: str = ""
    asked: list[str] = attrs.field(factory=list)
    """The paths that were asked for, in order."""

    def put(self, name: str, version: str, *, requires: Sequence[str] = (), hashes: bool = True, size: int = 0) -> None:
        """Publish a wheel of a project that requires others, with `size` bytes more; importing it gives `version`."""
        page = self.folder / "simple" / name
        page.mkdir(parents=True, exist_ok=True)
        plain = name.replace("-", "_")
        info = f"{plain}-{version}.dist-info"
        requirements = "".join(f"Requires-Dist: {line}\n" for line in requires)
        contents = {
            f"{plain}.py": f"version = {version!r}\n",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requirements}",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        if size:
            contents[f"{plain}.txt"] = "x" * size
        contents[f"{info}/RECORD"] = "".join(f"{inner},,\n" for inner in [*contents, f"{info}/RECORD"])
        with zipfile.ZipFile(page / f"{plain}-{version}-py3-none-any.whl", "w") as archive:
            for inner, text in contents.items():
                archive.writestr(inner, text)
        _link(page, hashes=hashes)

    def put_installed(self, name: str) -> None:
        """Publish a distribution as it is installed here."""
        distribution = metadata.distribution(name)
        page = self.folder / "simple" / name
        page.mkdir(parents=True, exist_ok=True)
        # The last of several, such as those of Python 2 and 3.
        tag = [line[4:] for line in str(distribution.read_text("WHEEL")).splitlines() if line[:4] == "Tag:"][-1]
        wheel = f"{distribution.metadata['Name'].replace('-', '_')}-{distribution.version}-{tag.strip()}.whl"
        with zipfile.ZipFile(page / wheel, "w") as archive:
            for file in distribution.files or ():
                if not file.parts[0].startswith("..") and "__pycache__" not in file.parts:
                    archive.write(file.locate(), file.as_posix())
        _link(page, hashes=True)

    def put_what_the_worker_needs(self, *, working: bool = False) -> None:
        """Publish the distributions that Stoker's own metadata require, extras left out: newer ones that are empty, or
        those that are installed here, with what they require."""
        if working:
            self.put_with_requirements(*_required("stoker"))
        else:
            for name in _required("stoker"):
                self.put(canonicalize_name(name.name), "9000.0")

    def put_with_requirements(self, *requirements: Requirement) -> None:
        """Publish what is installed here, with what it requires and what its extras do."""
        seen = set()
        left = list(requirements)
        while left:
            requirement = left.pop()
            name = canonicalize_name(requirement.name)
            if not (self.folder / "simple" / name).exists():
                self.put_installed(name)
            if (key := (name, frozenset(requirement.extras))) not in seen:
                seen.add(key)
                left += _required(name, *requirement.extras)


def _required(name: str, *extras: str) -> list[Requirement]:
    """What an installed distribution requires here, and what some of its extras do."""
    requirements = map(Requirement, metadata.requires(name) or ())
    return [
        one
        for one in requirements
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]


def _link(page: Path, *, hashes: bool) -> None:
    """Write a project's page: a link for each wheel."""
    links = []
    for path in sorted(page.glob("*.whl")):
        digest = f"#sha256={hashlib.sha256(path.read_bytes()).hexdigest()}" if hashes else ""
        links.append(f'<a href="{path.name}{digest}">{path.name}</a>\n')
    (page / "index.html").write_text("".join(links))


@contextlib.contextmanager
def running_index(folder: Path, tls: ssl.SSLContext | None = None) -> Iterator[PackageIndex]:
    """An index that answers as long as the block lasts; over HTTPS with `tls`."""
    (folder / "simple").mkdir(parents=True, exist_ok=True)
    index = PackageIndex(folder)

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, directory=str(folder), **more)

        def log_message(self, format: str, *arguments: Any) -> None:
            index.asked.append(self.path)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that does not trust it hangs up
        # Each connection shakes hands in its own thread: one that gives up must not hold the others.
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    index.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}/simple"
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
