"""A base image for tests, made without a registry: this Python, the libraries that it needs, and a shell.

The Python is the one that runs the tests, so that what it pickles can be unpickled in a container. The shell and its
commands are Debian's `busybox-static`; pip is the one beside the tests.
"""

from __future__ import annotations

import importlib.metadata
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

PREFIX = "usr" if sys.base_prefix == "/usr" else "usr/local"
"""Where Python lies in the image. Debian's own expects to lie below /usr; others find themselves anywhere."""
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
LEFT_OUT = re.compile(
    r"/(site-packages|dist-packages|test|tests|idlelib|tkinter|turtledemo|pydoc_data|lib2to3|ensurepip|config-.*)$"
    r"|/_?(tkinter|test\w*|ctypes_test|xx\w*)\.[^/]*so$"
)
"""What of the standard library a container does not need, and what others installed into it."""
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "hosts: files dns\npasswd: files\ngroup: files\n",
}
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
EMPTY = {"tmp": 0o1777, "var/tmp": 0o1777, "proc": 0o555, "sys": 0o555, "dev": 0o755, "run": 0o755, "root": 0o755}
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHON_VERSION": ".".join(str(part) for part in sys.version_info[:3]),  # as the official images have it
    "SSL_CERT_FILE": f"/{CERTIFICATES}",
    "PIP_CERT": f"/{CERTIFICATES}",
    # Pip compiles all of Stoker, which takes longer than the rest of a build, and of which a step imports a tenth. It
    # takes the opposite of an option whose name begins with "no".
    "PIP_NO_COMPILE": "0",
}


def changes() -> list[str]:
    """What `docker import` is to set beside the files, as instructions of a Dockerfile."""
    return [*(f"ENV {name}={value}" for name, value in ENVIRONMENT.items()), 'CMD ["/bin/sh"]']


def write(path: Path) -> None:
    """The image's files as a tar archive; takes about a second."""
    stdlib = Path(sysconfig.get_path("stdlib", vars={"base": sys.base_prefix, "installed_base": sys.base_prefix}))
    program = Path(os.path.realpath(sys.executable))
    busybox = Path("/bin/busybox")
    home = f"{PREFIX}/lib/python{VERSION}"
    packages = "usr/lib/python3/dist-packages" if PREFIX == "usr" else f"{home}/site-packages"
    with tarfile.open(path, "w") as archive:
        rootfs = _Rootfs(archive)
        for link, target in (("lib", "usr/lib"), ("lib64", "usr/lib64"), ("bin", "usr/bin"), ("sbin", "usr/sbin")):
            rootfs.folder(target)
            rootfs.link(link, target)
        for name, mode in EMPTY.items():
            rootfs.folder(name, mode)
        for name, text in FILES.items():
            rootfs.text(name, text)
        if Path("/", CERTIFICATES).exists():
            rootfs.file(CERTIFICATES, Path("/", CERTIFICATES))
        rootfs.file("usr/bin/busybox", busybox)
        for applet in _lines([str(busybox), "--list"]):
            rootfs.link(f"usr/bin/{applet}", "busybox")
        compiled = {f"{PREFIX}/bin/python{VERSION}": program}
        for alias in ("python3", "python"):
            rootfs.link(f"{PREFIX}/bin/{alias}", f"python{VERSION}")
        for name, source in _tree(stdlib):
            if ".so" in source.suffixes:
                compiled[f"{home}/{name}"] = source
            else:
                rootfs.file(f"{home}/{name}", source)
        rootfs.folder(packages)
        for name, source in _distribution("pip"):
            rootfs.file(f"{packages}/{name}", source)
        rootfs.text(
            f"{PREFIX}/bin/pip", f"#!/{PREFIX}/bin/python3\nimport sys\nfrom pip import main\nsys.exit(main())\n", 0o755
        )
        compiled |= _libraries(list(compiled.values()))
        with tempfile.TemporaryDirectory(prefix="stoker-base-") as folder:
            for name, source in _stripped(compiled, Path(folder)):
                rootfs.file(name, source)


class _Rootfs:
    """The archive, in which each path appears once and each file's folders before it."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self.archive = archive
        self.there: set[str] = {""}

    def folder(self, name: str, mode: int = 0o755) -> None:
        """A folder and those above it."""
        if name in self.there:
            return
        self.folder(name.rpartition("/")[0])
        self._add(name, tarfile.DIRTYPE, mode)

    def link(self, name: str, target: str) -> None:
        """A symbolic link; what is there already stays."""
        if name not in self.there:
            self.folder(name.rpartition("/")[0])
            self._add(name, tarfile.SYMTYPE, 0o777, target=target)

    def text(self, name: str, text: str, mode: int = 0o644) -> None:
        """A file with a text."""
        self.folder(name.rpartition("/")[0])
        self._add(name, tarfile.REGTYPE, mode, content=text.encode())

    def file(self, name: str, source: Path) -> None:
        """A copy of a file here; symbolic links are followed."""
        if name in self.there:
            return
        self.folder(name.rpartition("/")[0])
        mode = 0o755 if os.access(source, os.X_OK) and source.stat().st_mode & 0o111 else 0o644
        # Compiled modules are good for a source of the very second that they were made from.
        self._add(name, tarfile.REGTYPE, mode, content=source.read_bytes(), time=int(source.stat().st_mtime))

    def _add(self, name: str, kind: bytes, mode: int, *, target: str = "", content: bytes = b"", time: int = 0) -> None:
        self.there.add(name)
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.linkname, info.size, info.mtime = kind, mode, target, len(content), time
        self.archive.addfile(info, io.BytesIO(content))


def _tree(folder: Path) -> Iterator[tuple[str, Path]]:
    for here, below, files in os.walk(folder):
        below[:] = sorted(name for name in below if not LEFT_OUT.search(f"{here}/{name}"))
        for name in sorted(files):
            path = Path(here, name)
            # That file would keep pip from installing anything; the other one is 50 MB that only linkers read.
            unwanted = name == "EXTERNALLY-MANAGED" or path.suffix == ".a" or LEFT_OUT.search(str(path))
            if not unwanted and _wanted(path):
                yield path.relative_to(folder).as_posix(), path


def _wanted(path: Path) -> bool:
    """Whether it is no compiled module, or one for this Python."""
    return path.suffix != ".pyc" or path.name.endswith(f".{sys.implementation.cache_tag}.pyc")


def _distribution(name: str) -> Iterator[tuple[str, Path]]:
    for file in importlib.metadata.distribution(name).files or ():
        path = Path(str(file.locate()))
        if ".." not in file.parts and _wanted(path) and path.is_file():
            yield file.as_posix(), path


def _stripped(files: Mapping[str, Path], folder: Path) -> Iterator[tuple[str, Path]]:
    """Compiled files without what only debuggers read, a third of the image; as they are where there is no `strip`."""
    copies = {name: folder / str(number) for number, name in enumerate(files)}
    for name, copy in copies.items():
        shutil.copy2(files[name], copy)
    if shutil.which("strip"):
        subprocess.run(["strip", "--strip-unneeded", *map(str, copies.values())], check=True, capture_output=True)
    yield from copies.items()


def _libraries(programs: Iterable[Path]) -> dict[str, Path]:
    """The shared objects behind some programs: the loader at its own path, all others beside the C library."""
    found: dict[str, str] = {}
    loader = ""
    for line in _lines(["ldd", *map(str, programs)]):
        match = re.match(r"\s*(?:(\S+) => )?(/\S+) \(0x", line)
        if match is not None and match[1] is None:
            loader = match[2]
        elif match is not None:
            found[match[1]] = match[2]
    beside = os.path.dirname(os.path.realpath(found["libc.so.6"]))
    # glibc loads the first when a thread is cancelled; extensions of installed packages need the others: those in C++,
    # and psycopg's libpq.
    for extra in ("libgcc_s.so.1", "libstdc++.so.6", "libpthread.so.0", "libdl.so.2"):
        if extra not in found and os.path.exists(f"{beside}/{extra}"):
            found[extra] = f"{beside}/{extra}"
    files = {"usr" + loader if not loader.startswith("/usr") else loader[1:]: Path(loader)}
    return files | {f"{beside[1:]}/{name}": Path(path) for name, path in sorted(found.items())}


def _lines(command: list[str]) -> list[str]:
    """What a command prints; nothing where it refuses, as `ldd` does for what is not a dynamic program."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
