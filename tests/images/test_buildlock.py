"""Builds by several users of one engine: one of them builds, and the dead hold nobody up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from tests.servers.containers import Engine
from tests.servers.loopback import Request, reply, serving

from stoker.images import buildlock
from stoker.images import engine as engines

# What another user's `stoker build` does: a home, a cache and temporary files of its own.
BUILD = """
import sys
from stoker.images import buildlock, engine
from stoker.images.build import build_image
from stoker.images.spec import ImageSpec

buildlock.BEAT, buildlock.SILENT, buildlock.LOOK = 0.2, float(sys.argv[2]), 0.1
spec = ImageSpec(parent="localhost/stoker-base:1", python="3.11", installer="pip")
built = build_image(spec, sys.argv[1], {}, engine=engine.need(), progress=lambda line: print(line, flush=True))
print("reused" if built.reused else "built", built.reference, flush=True)
"""


@attrs.define
class Gate:
    """A server whose answer a build waits for."""

    address: str = ""
    open: threading.Event = attrs.field(factory=threading.Event)
    asked: threading.Event = attrs.field(factory=threading.Event)

    def answer(self, request: Request) -> None:
        self.asked.set()
        self.open.wait(120)
        reply(request, 200)

    def dockerfile(self, name: str) -> str:
        """A build that takes until the gate is open."""
        call = f"import urllib.request; urllib.request.urlopen('http://{self.address}/')"
        return f'FROM localhost/stoker-base:1\nENV NAME={name}\nRUN python3 -c "{call}"\n'


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    with serving(made.answer) as made.address:
        yield made
        made.open.set()


class User:
    """A build by a user with folders of its own."""

    def __init__(self, folder: Path, engine: Engine, dockerfile: str, *, silent: float = 60.0) -> None:
        folder.mkdir()
        places = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "STOKER_HOME", "TMPDIR"), str(folder))
        self.process = subprocess.Popen(
            [sys.executable, "-c", BUILD, dockerfile, str(silent)],
            env={**os.environ, **engine.environment, **places},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def until(self, words: str) -> str:
        """The first line with these words."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if words in line:
                return line
        raise AssertionError(f"it ended without {words!r}")

    def result(self) -> tuple[str, str]:
        """("built" or "reused", the image)."""
        out, _ = self.process.communicate(timeout=180)
        assert self.process.returncode == 0, out
        word, image = out.strip().splitlines()[-1].split()
        return word, image


def locks(engine: Engine) -> list[str]:
    return engine.run("ps", "--all", "--quiet", "--filter", "name=stoker-build-").stdout.split()


def test_two_users_of_one_engine_build_once(engine: Engine, base_image: str, gate: Gate, tmp_path: Path) -> None:
    del base_image
    text = gate.dockerfile("once")
    first = User(tmp_path / "first", engine, text)
    assert gate.asked.wait(120), "the first one builds"
    second = User(tmp_path / "second", engine, text, silent=2.0)
    second.until("another run builds")
    assert len(locks(engine)) == 1
    gate.open.set()
    results = [first.result(), second.result()]
    assert [word for word, _ in results] == ["built", "reused"] and len({image for _, image in results}) == 1
    assert locks(engine) == []


def test_a_dead_user_holds_nobody_up(engine: Engine, base_image: str, gate: Gate, tmp_path: Path) -> None:
    del base_image
    text = gate.dockerfile("dead")
    dead = User(tmp_path / "dead", engine, text)
    assert gate.asked.wait(120)
    os.killpg(dead.process.pid, signal.SIGKILL)
    dead.process.communicate()
    assert len(locks(engine)) == 1, "its lock stays"
    gate.open.set()
    living = User(tmp_path / "living", engine, text, silent=1.0)
    living.until("another run builds")
    assert living.result()[0] == "built" and locks(engine) == []


def test_an_engine_that_makes_no_container_builds_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    waited: list[str] = []
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\necho 'permission denied' >&2\nexit 1\n")
    program.chmod(0o755)
    engine = engines.ImageEngine("docker", [str(program)], version="1", platform="linux/amd64")
    with buildlock.one_build(engine, "localhost/stoker:1", lambda: waited.append("waits")):
        assert not waited
