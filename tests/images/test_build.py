"""Real images built by a real engine from a base that no registry has: once only, and with a word for what fails."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.servers.containers import Engine, running_registry
from tests.servers.loopback import reply, serving
from tests.servers.postgres import free_port

from stoker.core.errors import BackendError, SettingsError, UsageError
from stoker.images import engine as engines
from stoker.images.build import LABEL, BuildFailed, BuiltImage, build_image
from stoker.images.dockerfile import ImageSpec, RequirementList, dockerfile, requirement_files
from stoker.images.registry import digest_of, inspect


class Workshop:
    """Builds in the tests' engine, and everything that was said meanwhile."""

    def __init__(self, engine: Engine, base: str, path: str) -> None:
        found = engines.find({**os.environ, **engine.environment, "PATH": path})
        assert found is not None
        self.engine, self.tests, self.base, self.said = found, engine, base, list[str]()
        self.spec = ImageSpec(parent=base, python="3.11")

    def made(self, text: str, files: Any = None, *, push: str = "", engine: Any = None, **spec: Any) -> BuiltImage:
        self.said.clear()
        return build_image(
            attrs.evolve(self.spec, **spec),
            text.replace("BASE", self.base),
            files or {},
            engine=engine or self.engine,
            progress=self.said.append,
            push=push,
        )

    def printed(self, reference: str, *command: str) -> str:
        return self.tests.run("run", "--rm", "--network", "none", reference, *command).stdout


@pytest.fixture
def workshop(engine: Engine, base_image: str) -> Workshop:
    return Workshop(engine, base_image, os.environ["PATH"])


@pytest.fixture(params=["buildkit", "older builder"])
def builder(request: pytest.FixtureRequest, engine: Engine, base_image: str, tmp_path: Path) -> Workshop:
    """A workshop with each of Docker's two builders, by whichever command line of the machine's brings it."""
    for folder in [*os.environ["PATH"].split(os.pathsep), "/usr/bin"]:
        if (Path(folder) / "docker").is_file():
            found = Workshop(engine, base_image, os.pathsep.join([folder, os.environ["PATH"]]))
            if found.engine.buildkit == (request.param == "buildkit"):
                return found
            if request.param == "older builder":
                found.engine.buildkit = False
                found.engine.environ["DOCKER_BUILDKIT"] = "0"
                return found
    pytest.skip(f"no command line of docker here has the {request.param}")


def test_the_same_settings_are_built_once(workshop: Workshop) -> None:
    text = "FROM BASE\nCOPY note.txt /note.txt\nRUN echo once >> /note.txt\n"
    first = workshop.made(text, {"note.txt": b"hello\n"})
    assert not first.reused and first.reference.startswith("sha256:")
    assert workshop.printed(first.reference, "cat", "/note.txt") == "hello\nonce\n"
    assert any("RUN echo once" in line for line in workshop.said), "the build is shown"
    again = workshop.made(text, {"note.txt": b"hello\n"})
    assert again.reused and (again.reference, again.tag) == (first.reference, first.tag) and not workshop.said
    labels = workshop.engine.read(first.tag)
    assert labels is not None and labels.facts.labels[LABEL] == first.inputs


def test_whatever_goes_in_changes_the_tag(workshop: Workshop) -> None:
    text = "FROM BASE\nARG X\nCOPY a /a\n"
    made = [
        workshop.made(text, {"a": b"1"}),
        workshop.made(f"{text}RUN true\n", {"a": b"1"}),
        workshop.made(text, {"a": b"2"}),
        workshop.made(text, {"a": b"1", "b": b""}),
        workshop.made(text, {"a": b"1"}, options={"build_args": {"X": "1"}}),
    ]
    assert len({one.tag for one in made}) == 5


def test_a_parent_that_moved_is_built_from_anew(workshop: Workshop) -> None:
    parent = "localhost/moving:1"
    workshop.tests.run("tag", workshop.base, parent)
    text = f"FROM {parent}\nENV STEP=1\n"
    first = workshop.made(text)
    assert workshop.made(text).reused
    newer = workshop.made("FROM BASE\nENV PARENT=newer\n")
    workshop.tests.run("tag", newer.tag, parent)
    second = workshop.made(text)
    assert not second.reused and second.tag != first.tag
    assert "newer" in workshop.printed(second.reference, "env")


def test_the_mode_of_a_file_counts_and_is_kept(workshop: Workshop, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\necho ran\n")
    text = "FROM BASE\nCOPY . /files/\n"
    plain = workshop.made(text, {"bin/run.sh": script})
    script.chmod(0o755)
    executable = workshop.made(text, {"bin/run.sh": script})
    assert plain.tag != executable.tag
    assert workshop.printed(executable.reference, "/files/bin/run.sh") == "ran\n"


def test_a_failed_instruction_is_shown_with_its_output(builder: Workshop) -> None:
    workshop = builder
    text = "FROM BASE\nRUN echo fine\nRUN echo first words; echo last words >&2; exit 7\nRUN echo never\n"
    with pytest.raises(BuildFailed) as caught:
        workshop.made(text)
    failed = caught.value
    assert "exit 7" in failed.instruction and "first words" in str(failed) and "last words" in str(failed)
    assert not any("fine" in line for line in failed.output), "only the failed instruction's output"
    assert "never" not in str(failed)
    # What failed is not kept under the tag: it is built again, and fails again.
    with pytest.raises(BuildFailed):
        workshop.made(text)


@pytest.mark.parametrize(
    ("instruction", "fix"),
    [
        ("RUN python -m pip install --no-index no-such-package==1.0", "there is no no-such-package==1.0"),
        ("RUN python -m pip install --index-url https://nowhere.invalid/simple --retries 1 six", "no network"),
        (
            "RUN python -m pip install --index-url http://nowhere.invalid/simple --retries 0 six",
            "nowhere.invalid by https",
        ),
        ("RUN mkdir /full && dd if=/dev/zero of=/dev/full bs=1k count=1", "disk is full"),
        ("COPY missing.txt /", "build_context_root"),
        ("RUN mispelled-python3 -m pip; python9 --version; no-such-python3: not found", ""),
        ("USER 1000\nRUN touch /etc/passwd2", "USER may not do that"),
    ],
    ids=["version", "network", "index", "space", "context", "unknown", "permission"],
)
def test_advice_for_what_fails(workshop: Workshop, instruction: str, fix: str) -> None:
    with pytest.raises(BuildFailed) as caught:
        workshop.made(f"FROM BASE\n{instruction}\n")
    assert fix in caught.value.fix, f"{caught.value}"


def test_progress_is_told_while_it_happens(workshop: Workshop, tmp_path: Path) -> None:
    """The instruction goes on when its first line has been told."""
    go = tmp_path / "go"

    def progress(line: str) -> None:
        if "ready to go on" in line and "RUN" not in line:
            go.touch()

    with serving(lambda request: reply(request, 200 if go.exists() else 404)) as address:
        wait = f"for i in $(seq 600); do wget -q -O /dev/null http://{address}/ && exit 0; sleep 0.1; done; exit 1"
        text = f"FROM {workshop.base}\nRUN echo ready to go on; {wait}\n"
        spec = attrs.evolve(workshop.spec, options={"network": "host"})
        assert not build_image(spec, text, {}, engine=workshop.engine, progress=progress).reused


def test_an_image_is_pushed_and_found_again(workshop: Workshop, registry: str) -> None:
    text = "FROM BASE\nENV PUSHED=1\n"
    repository = f"{registry}/team/images"
    first = workshop.made(text, push=repository, image_tag="stable")
    digest = digest_of(first.tag)
    assert not first.reused and first.reference == f"{repository}@{digest}"
    assert digest_of(f"{repository}:stable") == digest, "the tag that was asked for is there too"
    assert inspect(first.reference).env["PUSHED"] == "1"
    assert any("push" in line.lower() for line in workshop.said)
    again = workshop.made(text, push=repository)
    assert again.reused and again.reference == first.reference
    # Nor is it built where it has only been pushed: another machine's engine has nothing.
    workshop.tests.run("rmi", "--force", first.reference, first.tag, f"{repository}:stable")
    elsewhere = workshop.made(text, push=repository)
    assert elsewhere.reused and elsewhere.reference == first.reference and not workshop.said


def test_a_registry_that_refuses_is_asked_before_the_build(workshop: Workshop, registry: str, tmp_path: Path) -> None:
    del registry
    from tests.images.test_registry import HTPASSWD

    refused = pytest.raises(BackendError, match=r"does not let us push without a login(.|\n)*the permission to push")
    with running_registry(tmp_path, htpasswd=HTPASSWD) as guarded, refused:
        workshop.made("FROM BASE\nRUN exit 9\n", push=f"{guarded}/team/images")
    assert not workshop.said, "nothing was built"


def test_a_parent_comes_from_a_registry_by_digest(workshop: Workshop, registry: str) -> None:
    tag = f"{registry}/parents/docker:1"
    workshop.tests.run("tag", workshop.base, tag)
    workshop.tests.run("push", tag)
    workshop.tests.run("rmi", tag)
    digest = digest_of(tag)
    text = f"FROM {tag}\nENV FROM_REGISTRY=1\n"
    first = workshop.made(text)
    assert any(f"@{digest}" in line for line in workshop.said), workshop.said
    assert workshop.made(text).reused, "that the parent is here now changes nothing"
    assert first.reference.startswith("sha256:")


def test_a_parent_that_nobody_has(workshop: Workshop, registry: str) -> None:
    with pytest.raises(BackendError, match="nothing/here"):
        workshop.made(f"FROM {registry}/nothing/here:1\n")


def test_an_image_is_used_as_it_is(workshop: Workshop) -> None:
    found = workshop.made("", skip_build=True)
    assert found.reference == workshop.engine.id(workshop.base) and found.tag == workshop.base
    with pytest.raises((UsageError, BackendError)):
        workshop.made("", skip_build=True, parent=f"127.0.0.1:{free_port()}/nothing:1")


def test_reuse_can_be_prevented(workshop: Workshop) -> None:
    text = "FROM BASE\nRUN cat /proc/sys/kernel/random/uuid > /when\n"
    first = workshop.made(text)
    second = workshop.made(text, prevent_build_reuse=True, options={"nocache": True})
    assert not second.reused and second.tag == first.tag and second.reference != first.reference


def test_options_reach_the_engine(workshop: Workshop) -> None:
    text = "FROM BASE AS first\nARG WORD=none\nENV WORD=$WORD\nFROM first\nENV LATER=1\n"
    found = workshop.made(text, options={"build_args": {"WORD": "given"}, "target": "first"})
    printed = workshop.printed(found.reference, "env")
    assert "WORD=given" in printed and "LATER" not in printed
    with pytest.raises(SettingsError, match=r"no option 'bild_args', did you mean 'build_args'"):
        workshop.made("FROM BASE\nENV NEVER=1\n", options={"bild_args": {}})
    with pytest.raises(SettingsError, match="'nocache' cannot be 'yes'"):
        workshop.made("FROM BASE\nENV NEVER=1\n", options={"nocache": "yes"})


def test_cache_mounts_are_for_builders_that_know_them(builder: Workshop, tmp_path: Path) -> None:
    spec = attrs.evolve(
        builder.spec,
        requirements=(RequirementList(name="listed", lines=("--no-index",)),),
        installer="pip",
        environment={"BUILDER": str(builder.engine.buildkit)},
    )
    text = dockerfile(spec)
    assert "--mount=type=cache" in text
    found = build_image(spec, text, requirement_files(spec), engine=builder.engine, progress=builder.said.append)
    assert not found.reused
    assert any("--mount" in line for line in builder.said) == builder.engine.buildkit
    # The tag is that of the settings, and not of the builder that was there by chance.
    again = build_image(spec, text, requirement_files(spec), engine=builder.engine, progress=builder.said.append)
    assert again.reused and again.tag == found.tag


def test_an_engine_that_is_not_there() -> None:
    nowhere = {"PATH": "/nonexistent"}
    assert engines.find(nowhere) is None
    with pytest.raises(BackendError, match=r"docker: not installed; podman: not installed; buildah: not installed"):
        engines.need(nowhere)
    silent = {**os.environ, "DOCKER_HOST": f"unix:///tmp/stoker-no-engine-{os.getpid()}.sock"}
    assert engines.find(silent) is None


def test_two_runs_that_need_an_image_at_once_build_it_once(engine: Engine, base_image: str) -> None:
    text = "FROM BASE\nRUN sleep 1 && echo once > /built\n"
    workshops = [Workshop(engine, base_image, os.environ["PATH"]) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda workshop: workshop.made(text), workshops))
    assert len({one.reference for one in made}) == 1
    assert sorted(one.reused for one in made) == [False, True, True]
    said = [line for workshop in workshops for line in workshop.said]
    assert sum(line.startswith("building ") for line in said) == 1
    assert sum(line.startswith("another run builds ") for line in said) == 2


def test_what_needs_buildkit_is_refused_without_it(workshop: Workshop) -> None:
    workshop.engine.buildkit = False
    for text in (
        "FROM BASE\nRUN --network=none --mount=type=secret,id=token cat /run/secrets/token\n",
        "FROM BASE\nRUN \\\n  --mount=type=cache,target=/x true\n",
        "FROM BASE\nCOPY <<EOF /note\nhello\nEOF\n",
    ):
        with pytest.raises(BackendError, match="builds without BuildKit") as caught:
            workshop.made(text)
        assert "buildx" in caught.value.fix
    assert not any(line.startswith("building ") for line in workshop.said)
