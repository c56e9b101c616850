"""Build and push images, each only once: its tag is a digest of everything that goes into it.

`image_for` takes a step's docker settings, `build_image` a Dockerfile. The text of the Dockerfile comes from
`dockerfile`, the engine from `engine`. Images that Stoker did not build are never removed or changed here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Final, Iterable, Iterator, Mapping, Sequence

import attrs

from stoker.core.docker import DockerSettings, ImageFacts
from stoker.core.errors import BackendError, SettingsError, UsageError, nearest
from stoker.core.packages import Lock
from stoker.core.secret import looks_secret
from stoker.images import registry
from stoker.images.buildlock import one_build
from stoker.images.contents import known_contents, read_contents
from stoker.images.credentials import account_text, credentials, login_advice, needed
from stoker.images.dockerfile import ImageSpec, base_images, dockerfile, pin_images
from stoker.images.engine import ImageEngine, need
from stoker.images.registries import ImageReference, parse, registry_flavor
from stoker.images.registry import image_facts
from stoker.images.requirements import check_passwords
from stoker.images.spec import context_files, is_opaque, spec_of, with_lock
from stoker.images.transcript import Transcript, advice
from stoker.images.transport import RegistryRefused, authority_advice
from stoker.images.wheel import worker_wheel

LOCAL: Final = "localhost/stoker"
"""The repository of images that are not pushed; engines do not look for it at a registry."""
LABEL: Final = "dev.stoker.inputs"
"""The label of the images that Stoker built; its value is the digest of the inputs."""
FORMAT: Final = 1
"""Part of every input digest; a higher number rebuilds every image."""
TAG_LENGTH: Final = 24
"""Characters of the digest in a tag: 96 bits, enough for no two images to share a tag by chance."""
_CHUNK: Final = 1 << 20
_NEEDS_BUILDKIT: Final = re.compile(
    r"^[ \t]*(?:RUN[ \t]+(?:--\S+[ \t]+)*--mount=\S+|(?:COPY|ADD)[ \t]+(?:--\S+[ \t]+)*<<-?[\"']?\w+)",
    re.IGNORECASE | re.MULTILINE,
)
"""https://docs.docker.com/reference/dockerfile/#run---mount and #here-documents."""
PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
"""This process's Python; the image's Python reads its pickles."""
Progress = Callable[[str], None]
LockOf = Callable[[ImageSpec, ImageFacts, str], "Lock | None"]
"""The lock of an image, the facts of its parent and its processor in the kernel's words; None if there is none."""
MACHINES: Final[Mapping[str, str]] = {"amd64": "x86_64", "arm64": "aarch64"}
"""An engine's name of a processor → the kernel's."""


class BuildFailed(BackendError):
    """An instruction of a build failed: `instruction` is its text, `output` the last lines that it printed."""

    def __init__(
        self, message: str, *, instruction: str = "", output: Sequence[str] = (), where: str = "", fix: str = ""
    ) -> None:
        super().__init__(message, where=where, fix=fix)
        self.instruction = instruction
        self.output = tuple(output)


@attrs.frozen(kw_only=True)
class BuiltImage:
    """An image that is ready for use."""

    reference: str
    """Its name by the registry's digest, or its id if only this engine has it."""
    tag: str
    """Its readable name."""
    inputs: str
    """The digest of what it was built from; empty for an image that is used as it is."""
    reused: bool
    """Whether it existed before."""
    seconds: float
    """How long building, pushing or finding it took."""


def image_for(
    settings: DockerSettings | None,
    *,
    root: Path,
    folder: Path,
    engine: ImageEngine | None,
    progress: Progress,
    push: str = "",
    lock_of: LockOf | None = None,
    environ: Mapping[str, str] | None = None,
) -> BuiltImage:
    """The image of a step with these settings; built, and pushed, if it does not exist.

    `root` is the folder of the user's code; `folder` is Stoker's, for its wheel. `lock_of` has the packages to install
    for an image and the facts of its parent; without it, or without a lock, the build's installer chooses them. The
    image is pushed to `push`, or to the `target_repository` of the settings. `environ` has the logins where there is no
    engine, which has one of its own.
    """
    pull = None if lock_of is None else progress
    spec, wheel = image_spec(
        settings, root=root, folder=folder, engine=engine, lock_of=lock_of, pull=pull, environ=environ
    )
    files = {} if spec.skip_build else context_files(spec, root=root, wheel=wheel)
    repository = push or spec.target_repository
    return build_image(
        spec, dockerfile(spec), files, engine=engine, progress=progress, push=repository, environ=environ
    )


def image_spec(
    settings: DockerSettings | None,
    *,
    root: Path,
    folder: Path,
    engine: ImageEngine | None,
    lock_of: LockOf | None = None,
    pull: Progress | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[ImageSpec, Path | None]:
    """What the image is made of, and Stoker's wheel for it; no wheel if the parent is used as it is.

    With `pull` the parent is asked for its packages where they decide what is installed; it takes lines about that.
    """
    spec = spec_of(settings, root=root, python=PYTHON)
    if spec.skip_build:
        return spec, None
    folder.mkdir(parents=True, exist_ok=True)
    wheel = worker_wheel(folder)
    spec = spec_of(settings, root=root, python=PYTHON, worker=wheel.name)
    # The image keeps the parent's user, which only the parent's configuration names.
    facts = image_facts(spec.parent, engine=engine, platform=spec.platform, environ=_environ(engine, environ))
    spec = attrs.evolve(spec, parent_user="" if spec.own_dockerfile else facts.user)
    if lock_of is not None:
        facts = known_contents(facts, folder)
        if pull is not None and engine is not None and is_opaque(spec, facts):
            facts = read_contents(_pulled(facts, spec, engine, pull), folder, engine=engine)
        machine = (spec.platform or (engine.platform if engine is not None else "linux/amd64")).split("/")[1]
        spec = with_lock(spec, lock_of(spec, facts, MACHINES.get(machine, machine)))
    return spec, wheel


@attrs.frozen(kw_only=True)
class WantedImage:
    """The image of a Dockerfile, whether it is there or has to be built."""

    tag: str
    """Its name: the repository, and a tag that follows from the inputs."""
    inputs: str
    """The digest of what it is built from."""
    pins: Mapping[str, str]
    """Base image → its name by digest, for those that the Dockerfile does not pin itself."""
    reference: str
    """Its name by digest, or its id in the engine; empty if it has to be built."""


def wanted_image(
    spec: ImageSpec,
    text: str,
    files: Mapping[str, bytes | Path],
    *,
    engine: ImageEngine | None,
    progress: Progress,
    push: str = "",
    environ: Mapping[str, str] | None = None,
) -> WantedImage:
    """The image of a Dockerfile, looked for at the registry that it is pushed to, or else in the engine."""
    repository = parse(push).repository if push else LOCAL
    platform = spec.platform or (engine.platform if engine is not None else "linux/amd64")
    bases = {name: _base_digest(name, spec, engine, progress, environ) for name in base_images(text, _arguments(spec))}
    inputs = input_digest(
        text, files, parents={name: image for name, (image, _) in bases.items()}, platform=platform, spec=spec
    )
    tag = f"{repository}:{input_tag(inputs)}"
    image = None if spec.prevent_build_reuse else _find_built(tag, engine, environ, pushed=bool(push))
    pins = {name: pin for name, (_, pin) in bases.items() if pin}
    return WantedImage(tag=tag, inputs=inputs, pins=pins, reference=image or "")


def build_image(
    spec: ImageSpec,
    text: str,
    files: Mapping[str, bytes | Path],
    *,
    engine: ImageEngine | None,
    progress: Progress,
    push: str = "",
    environ: Mapping[str, str] | None = None,
) -> BuiltImage:
    """The image of a Dockerfile: the one that was built from the same inputs before, or a new one.

    `files` is the build's context by path (`spec.context_files`). `push` is the repository that has the image
    afterwards. Without `engine`, an image that was pushed before is found, and an engine is looked for only to build.
    """
    started = time.monotonic()
    if spec.skip_build:
        return _use_parent(spec, engine, started, environ)
    wanted = wanted_image(spec, text, files, engine=engine, progress=progress, push=push, environ=environ)
    tag, inputs = wanted.tag, wanted.inputs

    def existing(image: str) -> BuiltImage:
        _add_tag(spec, tag, engine, progress, pushed=bool(push))
        return BuiltImage(reference=image, tag=tag, inputs=inputs, reused=True, seconds=time.monotonic() - started)

    if wanted.reference:
        return existing(wanted.reference)
    if push:
        refusal = registry.check_name(tag) or registry.check_push(tag, _environ(engine, environ))
        if refusal is not None:
            raise BackendError(refusal.what, where=refusal.where, fix=refusal.fix)
    engine = engine or need(environ)
    sent = engine_text(spec, text, engine, wanted.pins)
    _check_mounts(sent, engine)
    with one_build(engine, tag, lambda: progress(f"another run builds {tag}")):
        # Whoever was first, here or elsewhere on the same engine, has built it.
        image = None if spec.prevent_build_reuse else _find_built(tag, engine, environ, pushed=bool(push))
        if image is not None:
            return existing(image)
        image_id = None if spec.prevent_build_reuse else engine.id(tag)
        if image_id is None:
            _build(spec, sent, files, engine=engine, tag=tag, inputs=inputs, say=progress)
            image_id = engine.id(tag)
            if image_id is None:
                raise BackendError(f"{engine.kind} built an image and does not know it", where=tag)
        reference = push_image(tag, engine=engine, progress=progress) if push else image_id
    _add_tag(spec, tag, engine, progress, pushed=bool(push))
    return BuiltImage(reference=reference, tag=tag, inputs=inputs, reused=False, seconds=time.monotonic() - started)


def check(spec: ImageSpec) -> None:
    """Refuse what only the build would refuse: names, options, values that everybody could read, missing files."""
    for name in (spec.target_repository, f"{LOCAL}:{spec.image_tag}" if spec.image_tag else ""):
        if name:
            parse(name)
    if not spec.own_dockerfile:
        parse(spec.parent)
    option_words(spec.options)
    for name, value in _arguments(spec).items():
        check_passwords(value, f"the build argument {name}")
        if looks_secret(name, value):
            raise SettingsError(
                f"the build argument {name} looks like a secret, and the image's history shows it",
                fix=f'mount it while building, build_config={{"options": {{"secrets": {{"{name}": "${name}"}}}}}}',
            )
    for name, source in (spec.options.get("secrets") or {}).items():
        path = os.path.expanduser(str(source))
        if not str(source).startswith("$") and not os.path.isfile(path):
            raise SettingsError(
                f"build_config.options.secrets: there is no file {path} for '{name}'", fix="name a file of this machine"
            )


def push_image(tag: str, *, engine: ImageEngine, progress: Progress) -> str:
    """Push an image of the engine; returns its name with the digest that the registry has."""
    name = parse(tag)
    progress(f"pushing {tag}")
    transcript: list[str] = []
    with tempfile.TemporaryDirectory(prefix="stoker-push-") as folder:
        digest_file = Path(folder, "digest")
        words = ["push", tag]
        if engine.kind != "docker":
            words = ["push", *_tls_flags([tag], engine), "--digestfile", str(digest_file), tag, f"docker://{tag}"]
        try:
            for line in _run_engine(engine, words, transcript):
                progress(line)
        except BackendError as error:
            raise _push_failure(name, engine, error) from error
        match = re.search(r"digest: (\S+:[0-9a-f]+)", "\n".join(transcript))
        digest_ = digest_file.read_text().strip() if digest_file.exists() else match[1] if match else None
    digest_ = digest_ or registry.digest_of(tag, engine.environ)
    if not digest_ or registry.digest_of(name.at(digest_), engine.environ) is None:
        raise BackendError(
            f"{engine.kind} pushed an image that its registry does not have{f': {digest_}' if digest_ else ''}",
            where=tag,
            fix=f"look at {name.registry}: it may clean up, or a mirror may answer for it",
        )
    return name.at(digest_)


def _push_failure(name: ImageReference, engine: ImageEngine, error: BackendError) -> BackendError:
    """A failed push with the registry, the repository, the login that was used and what to do."""
    try:
        account = credentials(name, engine.environ)
        identity, advice_ = account_text(account), login_advice(name, account, engine.environ)
    except BackendError as problem:
        identity, advice_ = f"without a login ({problem.message})", problem.fix
    what = f"{engine.kind} could not push to {name.repository} at {name.registry} {identity}: {error.message}"
    fix = f"a push needs {needed(name, 'push')}; {advice_}"
    if re.search(r"x509|certificate", error.message, re.IGNORECASE):
        fix = authority_advice(name)
    elif re.search(r"repository .*does not exist|name unknown|NAME_UNKNOWN", error.message, re.IGNORECASE):
        command = registry_flavor(name).create(name)
        fix = f"make the repository first{f': {command}' if command else ''}; {fix}"
    elif not re.search(r"denied|unauthorized|authentication|no basic auth|40[13]", error.message, re.IGNORECASE):
        fix = f"try again, since nothing is lost: what is uploaded stays; {fix}"
    return BackendError(what, where=str(name), fix=fix)


def input_digest(
    text: str,
    context: Mapping[str, bytes | Path],
    *,
    parents: Mapping[str, str],
    platform: str,
    spec: ImageSpec,
) -> str:
    """sha256 of everything that decides an image's contents; tags and the values of secrets are not part of it."""
    document = {
        "format": FORMAT,
        "text": text,
        "files": {name: _file_digest(name, content) for name, content in sorted(context.items())},
        "parents": dict(sorted(parents.items())),
        "platform": platform,
        "options": {
            name: _digest_value(name, value) for name, value in sorted(spec.options.items()) if name not in _NO_EFFECT
        },
    }
    encoded = json.dumps(document, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    return "sha256:" + hashlib.sha256(encoded.encode("utf-8", "surrogateescape")).hexdigest()


def engine_text(spec: ImageSpec, text: str, engine: ImageEngine, pins: Mapping[str, str]) -> str:
    """The Dockerfile for an engine: without cache mounts if it has none, and with its base images pinned."""
    if not engine.mounts and text == dockerfile(spec):
        text = dockerfile(spec, cache_mounts=False)
    return pin_images(text, pins, _arguments(spec))


def input_tag(inputs: str) -> str:
    """The tag of an image with this input digest."""
    return inputs.partition(":")[2][:TAG_LENGTH]


def option_words(options: Mapping[str, Any]) -> list[str]:
    """`build_config`'s options as command-line flags; docker, podman and buildah take the same ones."""
    words: list[str] = []
    for name, value in options.items():
        form = _OPTIONS.get(name)
        if form is None:
            raise SettingsError(f"build_config has no option '{name}'{nearest(name, _OPTIONS)}")
        try:
            words += form(value)
        except (AttributeError, TypeError, ValueError) as error:
            raise SettingsError(f"build_config's option '{name}' cannot be {value!r}: {error}") from error
    return words


def _use_parent(
    spec: ImageSpec, engine: ImageEngine | None, started: float, environ: Mapping[str, str] | None
) -> BuiltImage:
    """The parent image as it is: by the registry's digest, or by its id if no registry has it."""
    local = engine.has(spec.parent) if engine is not None else None
    name = parse(spec.parent)
    digest = local or registry.digest_of(spec.parent, _environ(engine, environ))
    if digest is None:
        raise UsageError(f"there is no image '{spec.parent}'", fix="look at it with `stoker image inspect`")
    # Podman gives an image that was built here a digest that no registry would give it.
    image_id = engine.id(spec.parent) if engine is not None and local is not None else None
    local_only = image_id is not None and (local == image_id or (engine is not None and engine.kind != "docker"))
    return BuiltImage(
        reference=image_id if image_id is not None and local_only else name.at(digest),
        tag=spec.parent,
        inputs="",
        reused=True,
        seconds=time.monotonic() - started,
    )


def _base_digest(
    name: str, spec: ImageSpec, engine: ImageEngine | None, progress: Progress, environ: Mapping[str, str] | None
) -> tuple[str, str]:
    """(the digest of a base image, the name to write into the Dockerfile for it; "" for its own name).

    The engine's builder uses the engine's image, unless the options ask it to pull.
    """
    reference = parse(name)
    local = engine.has(name) if engine is not None else None
    if local is not None and engine is not None and not spec.options.get("pull"):
        return _registry_digest(name, local, engine), ""
    try:
        digest = registry.digest_of(name, _environ(engine, environ))
    except BackendError:
        # The engine may have a mirror, a proxy or a login of its own.
        if engine is None:
            raise
        digest = None
    if digest is not None:
        return digest, reference.at(digest)
    if engine is None:
        raise UsageError(f"there is no image '{name}'", fix="look at it with `stoker image inspect`")
    transcript: list[str] = []
    platform = ["--platform", spec.platform] if spec.platform else []
    for line in _run_engine(engine, ["pull", *_tls_flags([name], engine), *platform, name], transcript):
        progress(line)
    return engine.has(name) or "", ""


def _pulled(facts: ImageFacts, spec: ImageSpec, engine: ImageEngine, progress: Progress) -> ImageFacts:
    """The facts of a parent image that is in the engine then; as they were where it cannot be."""
    if spec.platform and spec.platform != engine.platform:
        return facts
    if engine.id(spec.parent) is None:
        progress(f"pulling {spec.parent}, to see which packages it has")
        with contextlib.suppress(BackendError):  # the build says what is wrong with it
            for line in _run_engine(engine, ["pull", *_tls_flags([spec.parent], engine), spec.parent], []):
                progress(line)
        facts = image_facts(spec.parent, engine=engine, environ=engine.environ)
    return facts


def _registry_digest(name: str, local: str, engine: ImageEngine) -> str:
    """One digest of an image with several in the engine: the registry's, which was used before the pull."""
    digests = engine.digests(name)
    if len(digests) < 2:
        return local
    try:
        digest = registry.digest_of(name, engine.environ)
    except BackendError:
        return local
    return digest if digest in digests else local


def _check_mounts(text: str, engine: ImageEngine) -> None:
    """Raise a `BackendError` for a Dockerfile with mounts or copied texts and an engine without BuildKit."""
    if engine.mounts:
        return
    joined = re.sub(r"\\[ \t]*\r?\n", " ", text)
    mounted = _NEEDS_BUILDKIT.search(joined)
    if mounted is not None:
        raise BackendError(
            f"{engine.kind} {engine.version} builds without BuildKit, which '{mounted[0].strip()}' needs",
            fix="install docker's plugin buildx (package docker-buildx-plugin or docker-buildx), or podman or buildah",
        )


def _find_built(tag: str, engine: ImageEngine | None, environ: Mapping[str, str] | None, *, pushed: bool) -> str | None:
    if not pushed:
        return engine.id(tag) if engine is not None else None
    try:
        digest_ = registry.digest_of(tag, _environ(engine, environ))
    except RegistryRefused:
        return (
            None  # some registries refuse to speak of a repository that is not there; `check_push` says what is wrong
        )
    return parse(tag).at(digest_) if digest_ else None


def _add_tag(spec: ImageSpec, tag: str, engine: ImageEngine | None, progress: Progress, *, pushed: bool) -> None:
    """Give the image the tag of the settings (`image_tag`) beside its own."""
    if not spec.image_tag or engine is None or engine.id(tag) is None:
        return
    full_tag = f"{tag.rpartition(':')[0]}:{spec.image_tag}"
    parse(full_tag)  # says what is wrong with the tag
    done = engine.ask("tag", tag, full_tag)
    if done.returncode != 0:
        raise BackendError(f"{engine.kind} cannot tag the image: {done.stderr.strip()}", where=full_tag)
    if pushed:
        push_image(full_tag, engine=engine, progress=progress)


def _build(
    spec: ImageSpec,
    text: str,
    context: Mapping[str, bytes | Path],
    *,
    engine: ImageEngine,
    tag: str,
    inputs: str,
    say: Progress,
) -> None:
    with tempfile.TemporaryDirectory(prefix="stoker-build-") as folder:
        folder_ = Path(folder, "context")
        _write_context(folder_, context)
        recipe = Path(folder, "Dockerfile")
        recipe.write_text(text, encoding="utf-8")
        words = ["build", "--file", str(recipe), "--tag", tag, "--label", f"{LABEL}={inputs}"]
        if engine.kind == "docker":
            words += ["--progress", "plain"] if engine.buildkit else ["--force-rm"]
        else:
            words += ["--format", "docker", "--layers"]  # as docker does: SHELL and HEALTHCHECK are kept
            words += _tls_flags(base_images(text, _arguments(spec)), engine)
        if spec.platform:
            words += ["--platform", spec.platform]
        words += option_words(spec.options)
        if engine.network and not spec.options.keys() & {"network", "network_mode"}:
            words += ["--network", engine.network]
        say(f"building {tag} with {engine.kind} {engine.version}")
        transcript = Transcript()
        lines: list[str] = []
        try:
            for line in _run_engine(engine, [*words, str(folder_)], lines):
                progress_line = transcript.line(line)
                if progress_line:
                    say(progress_line)
        except BackendError as error:
            raise _build_failure(transcript, tag, engine) from error


def _build_failure(transcript: Transcript, tag: str, engine: ImageEngine) -> BuildFailed:
    instruction, output = transcript.failure()
    lines = [f"{engine.kind} could not build the image"]
    if instruction:
        lines = [f"the image could not be built: {instruction}"]
    lines += [f"  | {line}" for line in output]
    fix = advice(transcript.text()) or "the lines above are the failed instruction's own"
    return BuildFailed("\n".join(lines), instruction=instruction, output=output, where=tag, fix=fix)


def _tls_flags(names: Iterable[str], engine: ImageEngine) -> list[str]:
    """The flag for registries on this machine, which have no TLS; docker needs none.

    The flag applies to every registry of a command, and is given only if all of them are on this machine.
    """
    kinds = {parse(name).loopback for name in names if parse(name).registry != "localhost"}
    return ["--tls-verify=false"] if engine.kind != "docker" and kinds == {True} else []


def _write_context(folder: Path, context: Mapping[str, bytes | Path]) -> None:
    """Write the context as a folder, with hard links to the files where the file system allows it."""
    folder.mkdir()
    for name, content in context.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content.is_symlink():
            path.symlink_to(os.readlink(content))
        else:
            try:
                os.link(content, path)
            except OSError:  # another file system
                shutil.copy2(content, path)


def _environ(engine: ImageEngine | None, environ: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """The environment to find logins in: the engine's, so that both use the same login."""
    return environ if engine is None else engine.environ


def _arguments(spec: ImageSpec) -> dict[str, str]:
    """The values of the Dockerfile's ARGs."""
    values: Mapping[str, Any] = {**(spec.options.get("buildargs") or {}), **(spec.options.get("build_args") or {})}
    return {name: str(value) for name, value in values.items()}


def _run_engine(engine: ImageEngine, arguments: Sequence[str], transcript: list[str]) -> Iterator[str]:
    """The output of an engine's command, line by line, also appended to `transcript`; raises if the command fails."""
    process = subprocess.Popen(
        [*engine.program, *arguments],
        env=engine.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    with contextlib.ExitStack() as stack:
        stack.callback(_terminate, process)
        assert process.stdout is not None
        for line in process.stdout:
            transcript.append(line.rstrip())
            yield line.rstrip()
        code = process.wait()
    if code != 0:
        last_lines = [line for line in transcript if line.strip()][-5:]
        raise BackendError(
            f"`{engine.kind} {arguments[0]}` failed: " + ("\n  | ".join(last_lines) or f"exit code {code}"),
            where=arguments[-1],
            fix=advice("\n".join(transcript)),
        )


def _terminate(process: subprocess.Popen[str]) -> None:
    """Stop a command whose output is no longer read."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _file_digest(name: str, content: bytes | Path) -> list[Any]:
    if isinstance(content, bytes):
        return [hashlib.sha256(content).hexdigest(), False]
    if content.is_symlink():
        return ["link", os.readlink(content)]
    hasher = hashlib.sha256()
    try:
        with content.open("rb") as file:
            while chunk := file.read(_CHUNK):
                hasher.update(chunk)
        executable = bool(content.stat().st_mode & 0o111)
    except OSError as error:
        raise SettingsError(
            f"{content} cannot be read for the build's context: {error.strerror}",
            fix="leave it out in .dockerignore, or let yourself read it",
        ) from error
    return [hasher.hexdigest(), executable]


def _digest_value(name: str, value: Any) -> Any:
    """The part of an option's value that is in the digest: of secrets only their names."""
    return sorted(value) if name == "secrets" and isinstance(value, Mapping) else value


def _flag(flag: str) -> Callable[[Any], list[str]]:
    def words(value: Any) -> list[str]:
        if value is not None and not isinstance(value, bool):
            raise ValueError("it is True or False")
        return [flag] if value else []

    return words


def _text(flag: str) -> Callable[[Any], list[str]]:
    def words(value: Any) -> list[str]:
        return [] if value is None else [flag, str(value)]

    return words


def _pairs(flag: str, between: str = "=") -> Callable[[Any], list[str]]:
    def words(value: Any) -> list[str]:
        return [word for key, inner in value.items() for word in (flag, f"{key}{between}{inner}")]

    return words


def _many(flag: str) -> Callable[[Any], list[str]]:
    def words(value: Any) -> list[str]:
        texts = [value] if isinstance(value, str) else list(value)
        return [word for text in texts for word in (flag, str(text))]

    return words


def _secrets(value: Mapping[str, str]) -> list[str]:
    """`{"netrc": "~/.netrc"}`; a name in capitals after a dollar sign is a variable."""
    return list(_secret_words(value))


def _secret_words(value: Mapping[str, str]) -> Iterator[str]:
    for name, source in value.items():
        yield "--secret"
        if source.startswith("$"):
            yield f"id={name},env={source[1:].strip('{}')}"
        else:
            yield f"id={name},src={os.path.expanduser(source)}"


# Names as ZenML takes them, which are those of the Docker SDK's `build`:
# https://docker-py.readthedocs.io/en/stable/images.html; flags: https://docs.docker.com/reference/cli/docker/buildx/build/.
_OPTIONS: Final[Mapping[str, Callable[[Any], list[str]]]] = {
    "build_args": _pairs("--build-arg"),
    "buildargs": _pairs("--build-arg"),
    "labels": _pairs("--label"),
    "extra_hosts": _pairs("--add-host", ":"),
    "cache_from": _many("--cache-from"),
    "nocache": _flag("--no-cache"),
    "pull": _flag("--pull"),
    "squash": _flag("--squash"),
    "target": _text("--target"),
    "shm_size": _text("--shm-size"),
    "network": _text("--network"),
    "network_mode": _text("--network"),
    "platform": _text("--platform"),
    "secrets": _secrets,
}
_NO_EFFECT: Final = frozenset({"nocache", "pull", "cache_from", "network", "network_mode", "extra_hosts", "shm_size"})
"""Options that change how an image is built, not what it contains."""
