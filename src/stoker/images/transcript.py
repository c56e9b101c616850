"""Read what an engine prints while it builds: the failed instruction, its output, and what to do about it. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

LINES_SHOWN: Final = 30
"""Lines of a failed instruction's output that are shown; pip and compilers print the reason last."""

_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
# Docker's older builder: "Step 3/7 : RUN …"; buildah and podman: "STEP 3/7: RUN …", in a second stage with "[2/2]"
# before it.
_STEP: Final = re.compile(r"(?:\[[^\]]*\]\s*)?STEP\s+\d+(?:/\d+)?\s*:\s*(.*)", re.IGNORECASE)
# BuildKit, plain: "#7 [stage 2/5] RUN …", then "#7 0.412 output", "#7 ERROR: …".
_VERTEX: Final = re.compile(r"#(\d+) \[[^\]]*\] (.*)")
_OUTPUT: Final = re.compile(r"#(\d+) (\d+\.\d+ )?(.*)")
_LAYERS: Final = re.compile(r"sha256:[0-9a-f]{12}|DONE|CACHED|\.\.\.$|extracting |transferring |resolve ")
"""BuildKit's own messages among an instruction's output."""
_NOISE: Final = re.compile(
    r"\s*(?:---> |Removing intermediate container|Removed intermediate container|DEPRECATED: The legacy builder"
    r"|\s*BuildKit is currently disabled|\s*environment-variable|\s*Install the buildx component"
    r"|#\d+ (?:sha256:|DONE|\.\.\.))"
)


class Advice(NamedTuple):
    """A pattern of the output and what to do about it; `{1}` is the pattern's first group."""

    pattern: str
    fix: str


# The first match wins, so the particular comes before the general. Each pattern is a program's literal text.
ADVICE: Final[tuple[Advice, ...]] = (
    Advice(
        r"the --mount option requires BuildKit|Unknown flag: mount",
        "this docker has only its older builder: install its plugin buildx (the package docker-buildx-plugin or "
        "docker-buildx)",
    ),
    Advice(
        r"No space left on device|no space left on device|ENOSPC",
        "the engine's disk is full: `docker system prune` (or podman's) removes what nothing uses",
    ),
    Advice(
        r"error: externally-managed-environment|The interpreter at .* is externally managed",
        'the parent image keeps its Python for itself: python_package_installer_args={"break-system-packages": None}',
    ),
    Advice(
        r"No virtual environment found",
        'uv finds no environment to install into: python_package_installer_args={"system": None}',
    ),
    Advice(
        r"Temporary failure (?:in name resolution|resolving)|Could not resolve|Name or service not known|"
        r"Network is unreachable|dns error|bad address|nodename nor servname",
        "the build has no network: look at the engine's DNS and proxy, or give it the machine's network with "
        'build_config={"options": {"network": "host"}}',
    ),
    Advice(
        r"server gave HTTP response to HTTPS client",
        "the registry has no TLS: docker has to be told in /etc/docker/daemon.json (insecure-registries), podman and "
        "buildah in /etc/containers/registries.conf (insecure = true)",
    ),
    Advice(
        r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|self.signed certificate|invalid peer certificate",
        "the build does not know who signed the certificate: have the authority's file in the parent image, and name "
        'it by environment={"PIP_CERT": "/path/in/image.pem", "SSL_CERT_FILE": "/path/in/image.pem"}: pip reads the '
        "first, uv the second",
    ),
    Advice(
        r"Connection timed out|Read timed out|ReadTimeoutError|ConnectTimeoutError|Connection refused|Connection reset",
        "whoever was asked did not answer: try again, and look at the proxy and the index's address",
    ),
    Advice(
        r"The repository located at (\S+) is not a trusted",
        "pip reads {1} by https only: write the index with https://, or python_package_installer_args="
        '{"trusted-host": "HOST"}',
    ),
    Advice(
        r"No matching distribution found for ([^\s(]+)",
        "there is no {1} for the image's Python and architecture, or not in this index: look at the versions listed "
        "above, or choose another parent_image",
    ),
    Advice(
        r"Because there (?:is|are) no versions? of (\S+)",
        "there is no such version of {1}: look at what its index has, or name another index in "
        "python_package_installer_args",
    ),
    Advice(
        r"No solution found when resolving dependencies|ResolutionImpossible|conflicting dependencies",
        "the requirements contradict each other: the lines above say which; loosen one of them",
    ),
    Advice(
        r"requires a different Python: (\S+) not in|Requires-Python|requires Python",
        "a requirement needs another Python than the image's {1}: choose another version of it, or of parent_image",
    ),
    Advice(
        r"THESE PACKAGES DO NOT MATCH THE HASHES|Hash mismatch for",
        "a package is not the one that was locked: lock again, or look who changed the index",
    ),
    Advice(
        r"Unable to locate package (\S+)",
        "the image's distribution has no package {1}: look at its name there, or choose another parent_image",
    ),
    Advice(
        r"has no installation candidate",
        "the image's distribution no longer has this package: choose another parent_image",
    ),
    Advice(
        r"(?:404\s+Not Found|does not have a Release file|no longer has a Release file)",
        "the package lists are old or the distribution is no longer served: choose a newer parent_image",
    ),
    Advice(
        r"(?:gcc|cc|g\+\+|c\+\+|cmake|nvcc)['\":]*(?: failed)?: (?:command )?(?:not found|No such file)|"
        r"command '[^']*(?:gcc|cc|nvcc)' failed: No such file|Failed to build|Failed building wheel|CUDA_HOME",
        'a package has to be compiled: apt_packages=["build-essential"], a version that has a wheel, or a parent_image '
        'with "devel" in its name where nvcc is needed',
    ),
    Advice(
        r"exec format error",
        "the image is for another processor than the engine's: set platform, or install the emulation (binfmt)",
    ),
    Advice(
        r"toomanyrequests|429 Too Many Requests",
        "the registry counts requests by address: `docker login`, or try again later",
    ),
    Advice(
        r"pull access denied|unauthorized|authentication required|denied: ",
        "the registry does not let the engine read the parent image: look at its name, or log in with `docker login`",
    ),
    Advice(
        r"manifest (?:for \S+ )?(?:unknown|not found)|: not found: manifest|name unknown",
        "there is no such parent image: look at its tag with `stoker image inspect`",
    ),
    Advice(r"no match for platform|no matching manifest", "there is no parent image for this platform: set platform"),
    Advice(
        r"(?:returned a non-zero code|exit code|exit status|status)\D{0,2} 137\b|Killed",
        "the instruction was killed, most likely for memory: give the engine more",
    ),
    Advice(
        r"(?:useradd|adduser)['\":]*: (?:command )?not found",
        'the parent image cannot make a user: write a number, as in user="1000:1000", or make the user in a dockerfile',
    ),
    Advice(
        r"python3?['\":]*: (?:executable file )?(?:command )?not found|No module named pip|"
        r"pip3?: (?:command )?not found",
        "the parent image has no Python or no pip: choose another parent_image",
    ),
    Advice(
        r"(?:COPY|ADD) failed|failed to compute cache key|copier: stat|lstat .*: no such file|checking on sources",
        "what is to be copied is not in the build's context: look at build_context_root and the ignore file",
    ),
    Advice(
        r"dockerfile parse error|Dockerfile parse error|unknown instruction|Unknown instruction",
        "the Dockerfile has an error in this line",
    ),
    Advice(
        r"[Pp]ermission denied|Operation not permitted",
        "the parent image's USER may not do that: start from another parent_image, or put USER root in a dockerfile",
    ),
)


def advice(text: str) -> str:
    """What to do about an output; "" if no pattern matches."""
    for pattern, fix in ADVICE:
        match = re.search(pattern, text)
        if match is not None:
            group = match[1] if match.re.groups and match[1] else ""
            return re.sub(r" ?\{1\}", f" {group}" if group else "", fix)
    return ""


class Transcript:
    """The output of one build, line by line, from any engine."""

    def __init__(self) -> None:
        self._instruction = ""
        self._output: list[str] = []
        self._vertices: dict[str, tuple[str, list[str]]] = {}
        self._failed = ""
        self._other: list[str] = []
        self._repeating = False

    def line(self, text: str) -> str:
        """Add a line; returns it without escape codes, or "" if it is not worth showing."""
        text = _ANSI.sub("", text).rstrip()
        if self._failed and text.startswith("-----"):
            self._repeating = not self._repeating  # BuildKit repeats the failed instruction's output
        vertex, output, step = _VERTEX.match(text), _OUTPUT.match(text), _STEP.match(text)
        if vertex is not None:
            self._vertices.setdefault(vertex[1], (vertex[2], []))
        elif output is not None:
            if not self._repeating:
                self._add_output(output)
        elif step is not None:
            self._instruction, self._output = step[1], []
        else:
            (self._output if self._instruction else self._other).append(text)
        return "" if _NOISE.match(text) or not text.strip() else text

    def failure(self) -> tuple[str, tuple[str, ...]]:
        """(the instruction that failed, its last lines of output); "" if no instruction was reached."""
        instruction, lines = self._instruction, self._output
        if self._failed:
            instruction, lines = self._vertices[self._failed]
        elif not instruction:
            lines = self._other
        relevant = [line for line in lines if line.strip() and not _NOISE.match(line)]
        return instruction, tuple(relevant[-LINES_SHOWN:])

    def text(self) -> str:
        """The text to look for the reason in: the failed instruction's output and the engine's last lines."""
        return "\n".join([*self.failure()[1], *self._other[-LINES_SHOWN:]])

    def _add_output(self, match: re.Match[str]) -> None:
        number, _, message = match.groups()
        if not _LAYERS.match(message):
            self._vertices.setdefault(number, ("", []))[1].append(message)
        if message.startswith("ERROR") and not self._failed:
            self._failed = number
