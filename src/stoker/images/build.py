"""Images built and pushed, each only once: its tag is the digest of everything that goes into it.

The text of a Dockerfile comes from `dockerfile`, the engine from `engine`. Nobody else's image is ever removed or
changed here.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Final, Iterable, Iterator, Mapping, Sequence

import attrs

from stoker.core.errors import BackendError, UsageError
from stoker.images import registry
from stoker.images.dockerfile import ImageSpec, dockerfile
from stoker.images.engine import Engine, need
from stoker.images.failing import Transcript, advice
from stoker.images.inputs import digest, option_words, tag_of
from stoker.images.instructions import parents, pinned
from stoker.images.reference import parse
from stoker.images.transport import Refused

LOCAL: Final = "localhost/stoker"
"""The repository of images that are not pushed: engines look for it nowhere but here."""
LABEL: Final = "dev.stoker.inputs"
"""On each image that Stoker built: the digest of its inputs, by which all of them can be found."""
Progress = Callable[[str], None]


class BuildFailed(BackendError):
    """An instruction of a build failed; `instruction` and its last `output` are kept."""

    def __init__(
        self, message: str, *, instruction: str = "", output: Sequence[str] = (), where: str = "", fix: str = ""
    ) -> None:
        super().__init__(message, where=where, fix=fix)
        self.instruction = instruction
        self.output = tuple(output)


@attrs.frozen(kw_only=True)
class Built:
    """An image that is there. `reference` names it for all time: by its registry's digest, or by its id if only this
    engine has it. `tag` is for people; `reused` is whether it was there before.
    """

    reference: str
    tag: str
    inputs: str
    reused: bool
    seconds: float


def ensure(
    spec: ImageSpec,
    text: str,
    files: Mapping[str, bytes | Path],
    *,
    engine: Engine | None,
    progress: Progress,
    push: str = "",
) -> str:
    """The image of a Dockerfile, by digest: the one that was built from the same before, or a new one."""
    return made(spec, text, files, engine=engine, progress=progress, push=push).reference


def made(
    spec: ImageSpec,
    text: str,
    files: Mapping[str, bytes | Path],
    *,
    engine: Engine | None,
    progress: Progress,
    push: str = "",
) -> Built:
    """`ensure`, with what there is to tell about it.

    `files` are the build's context by their path in it (`spec.context_files`). `push` is the repository where the image
    has to be afterwards. Without an engine only an image that was pushed before can be found; to build, one is looked
    for.
    """
    began = time.monotonic()
    if spec.skip_build:
        return _unbuilt(spec, engine, began)
    repository = parse(push).repository if push else LOCAL
    platform = spec.platform or (engine.platform if engine is not None else "linux/amd64")
    origins = {name: _origin(name, spec, engine, progress) for name in parents(text, _arguments(spec))}
    inputs = digest(
        text, files, parents={name: found for name, (found, _) in origins.items()}, platform=platform, spec=spec
    )
    tag = f"{repository}:{tag_of(inputs)}"
    found = None if spec.prevent_build_reuse else _there(tag, engine, pushed=bool(push))
    if found is not None:
        _name_too(spec, tag, engine, progress, pushed=bool(push))
        return Built(reference=found, tag=tag, inputs=inputs, reused=True, seconds=time.monotonic() - began)
    if push:
        refusal = registry.check_push(tag, _environ(engine))
        if refusal is not None:
            raise BackendError(refusal.what, where=refusal.where, fix=refusal.fix)
    engine = engine or need()
    here = None if spec.prevent_build_reuse else engine.id(tag)
    if here is None:
        exact = {name: pin for name, (_, pin) in origins.items() if pin}
        _build(spec, _understood(spec, text, engine, exact), files, engine=engine, tag=tag, inputs=inputs, say=progress)
        here = engine.id(tag)
        if here is None:
            raise BackendError(f"{engine.kind} built an image and does not know it", where=tag)
    reference = pushed_to(tag, engine=engine, progress=progress) if push else here
    _name_too(spec, tag, engine, progress, pushed=bool(push))
    return Built(reference=reference, tag=tag, inputs=inputs, reused=False, seconds=time.monotonic() - began)


def pushed_to(tag: str, *, engine: Engine, progress: Progress) -> str:
    """Push an image of the engine under its name; the name by digest under which it is at the registry."""
    name = parse(tag)
    progress(f"pushing {tag}")
    transcript: list[str] = []
    with tempfile.TemporaryDirectory(prefix="stoker-push-") as folder:
        note = Path(folder, "digest")
        words = ["push", tag]
        if engine.kind != "docker":
            words = ["push", *_plain([tag], engine), "--digestfile", str(note), tag, f"docker://{tag}"]
        for line in _lines(engine, words, transcript):
            progress(line)
        found = re.search(r"digest: (\S+:[0-9a-f]+)", "\n".join(transcript))
        digest_ = note.read_text().strip() if note.exists() else found[1] if found else None
    digest_ = digest_ or registry.digest_of(tag, engine.environ)
    if not digest_:
        raise BackendError(f"{engine.kind} pushed an image that its registry does not have", where=tag)
    return name.at(digest_)


def _unbuilt(spec: ImageSpec, engine: Engine | None, began: float) -> Built:
    """The parent as it is: by the registry's digest, or by its id if no registry has it."""
    found = engine.has(spec.parent) if engine is not None else None
    name = parse(spec.parent)
    known = found or registry.digest_of(spec.parent, _environ(engine))
    if known is None:
        raise UsageError(f"there is no image '{spec.parent}'", fix="look at it with `stoker image inspect`")
    # What podman calls the digest of an image that was made here is not the one that a registry would give it.
    here = engine.id(spec.parent) if engine is not None and found is not None else None
    only_here = here is not None and (found == here or (engine is not None and engine.kind != "docker"))
    return Built(
        reference=here if here is not None and only_here else name.at(known),
        tag=spec.parent,
        inputs="",
        reused=True,
        seconds=time.monotonic() - began,
    )


def _origin(name: str, spec: ImageSpec, engine: Engine | None, progress: Progress) -> tuple[str, str]:
    """(the digest of an image that a build starts from, what to write for it so that this one is taken).

    What the engine has is what its builder takes, unless it is told to pull.
    """
    reference = parse(name)
    local = engine.has(name) if engine is not None else None
    if local is not None and engine is not None and not spec.options.get("pull"):
        return _settled(name, local, engine), ""
    try:
        found = registry.digest_of(name, _environ(engine))
    except BackendError:
        # The engine may know a way that we don't: a mirror, a proxy, a login of its own.
        if engine is None:
            raise
        found = None
    if found is not None:
        return found, reference.at(found)
    if engine is None:
        raise UsageError(f"there is no image '{name}'", fix="look at it with `stoker image inspect`")
    transcript: list[str] = []
    platform = ["--platform", spec.platform] if spec.platform else []
    for line in _lines(engine, ["pull", *_plain([name], engine), *platform, name], transcript):
        progress(line)
    return engine.has(name) or "", ""


def _settled(name: str, local: str, engine: Engine) -> str:
    """One digest of an image that has several here: the registry's, by which it was known before it was pulled."""
    several = engine.digests(name)
    if len(several) < 2:
        return local
    try:
        found = registry.digest_of(name, engine.environ)
    except BackendError:
        return local
    return found if found in several else local


def _understood(spec: ImageSpec, text: str, engine: Engine, exact: Mapping[str, str]) -> str:
    """The text for an engine: without cache mounts where it has none, and with its parents by their digests."""
    if not engine.mounts and text == dockerfile(spec):
        text = dockerfile(spec, cache_mounts=False)
    return pinned(text, exact, _arguments(spec))


def _there(tag: str, engine: Engine | None, *, pushed: bool) -> str | None:
    if not pushed:
        return engine.id(tag) if engine is not None else None
    try:
        digest_ = registry.digest_of(tag, _environ(engine))
    except Refused:
        return (
            None  # some registries refuse to speak of a repository that is not there; `check_push` says what is wrong
        )
    return parse(tag).at(digest_) if digest_ else None


def _name_too(spec: ImageSpec, tag: str, engine: Engine | None, progress: Progress, *, pushed: bool) -> None:
    """Give the image the tag that the person wants it to have, beside its own."""
    if not spec.image_tag or engine is None or engine.id(tag) is None:
        return
    wanted = f"{tag.rpartition(':')[0]}:{spec.image_tag}"
    parse(wanted)  # says what is wrong with the tag
    done = engine.ask("tag", tag, wanted)
    if done.returncode != 0:
        raise BackendError(f"{engine.kind} cannot tag the image: {done.stderr.strip()}", where=wanted)
    if pushed:
        pushed_to(wanted, engine=engine, progress=progress)


def _build(
    spec: ImageSpec,
    text: str,
    context: Mapping[str, bytes | Path],
    *,
    engine: Engine,
    tag: str,
    inputs: str,
    say: Progress,
) -> None:
    with tempfile.TemporaryDirectory(prefix="stoker-build-") as folder:
        place = Path(folder, "context")
        _lay_out(place, context)
        recipe = Path(folder, "Dockerfile")
        recipe.write_text(text, encoding="utf-8")
        words = ["build", "--file", str(recipe), "--tag", tag, "--label", f"{LABEL}={inputs}"]
        if engine.kind == "docker":
            words += ["--progress", "plain"] if engine.buildkit else ["--force-rm"]
        else:
            words += ["--format", "docker", "--layers"]  # as docker does: SHELL and HEALTHCHECK are kept
            words += _plain(parents(text, _arguments(spec)), engine)
        if spec.platform:
            words += ["--platform", spec.platform]
        words += option_words(spec.options)
        if engine.network and not spec.options.keys() & {"network", "network_mode"}:
            words += ["--network", engine.network]
        say(f"building {tag} with {engine.kind} {engine.version}")
        transcript = Transcript()
        kept_lines: list[str] = []
        try:
            for line in _lines(engine, [*words, str(place)], kept_lines):
                shown = transcript.line(line)
                if shown:
                    say(shown)
        except BackendError as error:
            raise _failed(transcript, tag, engine) from error


def _failed(transcript: Transcript, tag: str, engine: Engine) -> BuildFailed:
    instruction, output = transcript.failure()
    lines = [f"{engine.kind} could not build the image"]
    if instruction:
        lines = [f"the image could not be built: {instruction}"]
    lines += [f"  | {line}" for line in output]
    fix = advice(transcript.text()) or "the lines above are the failed instruction's own"
    return BuildFailed("\n".join(lines), instruction=instruction, output=output, where=tag, fix=fix)


def _plain(names: Iterable[str], engine: Engine) -> list[str]:
    """Registries on this machine have no TLS, which docker knows and the others have to be told.

    The flag is for all registries of a command: it is given only where no other is asked.
    """
    kinds = {parse(name).loopback for name in names if parse(name).registry != "localhost"}
    return ["--tls-verify=false"] if engine.kind != "docker" and kinds == {True} else []


def _lay_out(place: Path, context: Mapping[str, bytes | Path]) -> None:
    """The context as a folder: links to the files where that is possible, since they are only read."""
    place.mkdir()
    for name, content in context.items():
        path = place / name
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


def _environ(engine: Engine | None) -> Mapping[str, str] | None:
    """Where our logins are: the engine's environment, so that it and we are the same person at a registry."""
    return None if engine is None else engine.environ


def _arguments(spec: ImageSpec) -> dict[str, str]:
    """What is given for the Dockerfile's ARGs."""
    given: Mapping[str, Any] = {**(spec.options.get("buildargs") or {}), **(spec.options.get("build_args") or {})}
    return {name: str(value) for name, value in given.items()}


def _lines(engine: Engine, words: Sequence[str], transcript: list[str]) -> Iterator[str]:
    """What a command of the engine prints, line by line, also into `transcript`; an error where it fails."""
    process = subprocess.Popen(
        [*engine.program, *words],
        env=engine.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    with contextlib.ExitStack() as stack:
        stack.callback(_ended, process)
        assert process.stdout is not None
        for line in process.stdout:
            transcript.append(line.rstrip())
            yield line.rstrip()
        code = process.wait()
    if code != 0:
        said = [line for line in transcript if line.strip()][-5:]
        raise BackendError(
            f"`{engine.kind} {words[0]}` failed: " + ("\n  | ".join(said) or f"exit code {code}"),
            where=words[-1],
            fix=advice("\n".join(transcript)),
        )


def _ended(process: subprocess.Popen[str]) -> None:
    """Let no build go on that nobody waits for."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()
