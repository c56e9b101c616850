"""How it looks when a module cannot be imported: it, or something below it, is missing in the step's environment."""

from __future__ import annotations

from typing import Final

from stoker.core.status import IMPORT_ERROR
from stoker.worker.signature import Signature

IMPORTS: Final = (
    Signature(
        name="module-missing",
        cause=IMPORT_ERROR,
        why="a module is not installed in the step's environment",
        advice=(
            "install it where the step runs (a container: DockerSettings(requirements=[…])); if it is a file of yours, "
            "it must lie beside the pipeline's file or in a package on sys.path"
        ),
        pattern=r"\A(?:ModuleNotFoundError|ImportError): No module named ",
    ),
    Signature(
        name="library-missing",
        cause=IMPORT_ERROR,
        why="a shared library that a Python package needs is not in the step's environment",
        advice=(
            "install the system package that has it (DockerSettings(apt_packages=[…])); a library of CUDA "
            "(libcudart, libcublas, libcudnn, …) comes with the framework's own CUDA build or an image with "
            "CUDA"
        ),
        # The driver's own libraries are no package's business: see `no-driver`.
        pattern=(
            r"^(?!.*\blib(?:cuda|nvidia-ml)\.so)(?:ImportError|OSError): \S+\.so\S*: cannot open shared object file"
        ),
    ),
    Signature(
        name="library-mismatch",
        cause=IMPORT_ERROR,
        why="a compiled package does not fit the libraries that it found",
        advice="reinstall it for this image and framework version: it was built against other ones",
        pattern=(
            r"\A(?:ImportError|OSError): [^\n]*(?:undefined symbol: |version `\w+_[\d.]+' not found)"
            r"|A module that was compiled using NumPy 1\.x cannot be run in|numpy\.dtype size changed"
        ),
    ),
    Signature(
        name="name-missing",
        cause=IMPORT_ERROR,
        why="a module has no such name: it is another version than the code expects, or another module of that name",
        advice=(
            "compare the installed version with the one that the code was written for; look for a file that hides it"
        ),
        pattern=r"\AImportError: cannot import name ",
    ),
)
