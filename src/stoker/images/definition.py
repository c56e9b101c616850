"""The definition file from which Apptainer or Singularity build a step's image: the Dockerfile's lines in their words.

It is what a site without a container engine and a registry can build. The file stands for itself: requirements are
written by it, nothing is copied into it, and Stoker's worker is brought to the step as a folder. Pure.

https://apptainer.org/docs/user/latest/definition_files.html
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Final, Iterator

from stoker.core.docker import DockerSettings
from stoker.core.errors import SettingsError
from stoker.core.units import value_or
from stoker.images.dockerfile import BUILD, ImageSpec, dockerfile, requirement_files

_HEAD: Final = "Bootstrap: docker\n"
_END: Final = "STOKER-FILE"
"""Ends a file that a definition writes; no requirement looks like that."""
OF_A_BUILD: Final = (
    *("dockerfile", "build_context_root", "build_config", "local_project_install_command", "conda_packages"),
    *("user", "platform"),
)
"""Settings that need a build's context, an engine's options or files of other images."""


def is_definition(image: str) -> bool:
    """Whether a step's image is the text of a definition, and not a name."""
    return image.startswith(_HEAD)


def undefinable(docker: DockerSettings) -> list[str]:
    """The settings of an image that no definition can have."""
    return [name for name in OF_A_BUILD if value_or(getattr(docker, name), None)]


def definition(spec: ImageSpec) -> str:
    """The definition of an image; a `SettingsError` for an instruction that has no words there."""
    files = {name.removeprefix(f"{BUILD}/"): data.decode() for name, data in requirement_files(spec).items()}
    post, environment = ["set -e"], []
    for line in dockerfile(spec, cache_mounts=False).splitlines():
        word, _, rest = line.partition(" ")
        if word == "ENV":
            environment.append(f"export {_quoted(rest)}")
            post.append(environment[-1])
        elif word == "ARG":
            post.append(f"export {rest}")
        elif word == "RUN":
            post.append(_command(rest))
        elif word == "WORKDIR":
            post.append(f"mkdir -p {rest} && cd {rest}")
        elif word == "COPY" and "--from=" not in rest:
            post += _written(rest, files)
        elif word not in ("FROM", "USER"):
            what = f"no definition of Apptainer can have the line '{line}'"
            raise SettingsError(
                what, fix="name a container_registry in the stack, to which an engine's image is pushed"
            )
    text = f"{_HEAD}From: {spec.parent}\n\n%post\n" + "\n".join(post) + "\n"
    return text + ("\n%environment\n" + "\n".join(environment) + "\n" if environment else "")


def _quoted(assignment: str) -> str:
    """An assignment of a Dockerfile for a shell, in which a backtick within double quotes begins a command."""
    return assignment.replace("`", "\\`")


def _command(text: str) -> str:
    """The shell's command of a RUN instruction without mounts."""
    if not text.startswith("["):
        return f"( {text} )"
    return shlex.join(json.loads(text))


def _written(words: str, files: dict[str, str]) -> Iterator[str]:
    """The lines that write the files of a COPY instruction."""
    *sources, target = words.split()
    yield f"mkdir -p {target}"
    for source in sources:
        name = source.removeprefix(f"{BUILD}/")
        yield f"cat > {target}{shlex.quote(name)} <<'{_END}'"
        yield re.sub(r"(?m)^%", " %", files[name]).rstrip("\n")
        yield _END
