"""docs/guide/team.md, typed word for word by two people who share a PostgreSQL server and an S3 server alone."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tests.gates.test_docs import blocks
from tests.servers import postgres
from tests.servers.packageindex import running_index
from tests.servers.s3 import S3, running

from stoker.store.database import Database
from stoker.store.schedules import Schedules

DAY = 86400.0


class Person:
    """Somebody with a home, a crontab and a shell, whose folder and variables last from one block to the next."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.folder, self.state = folder, folder / "state"
        self.variables = {**variables, "HOME": str(folder / "home"), "PATH": f"{folder}/bin:/usr/bin:/bin"}
        for part in ("home", "bin", "work", "spool"):
            (folder / part).mkdir(parents=True)
        busybox = shutil.which("busybox") or "/bin/busybox"
        for name, text in {
            "crontab": f'exec {busybox} crontab -c {folder}/spool "$@"',
            "python3": f'exec {sys.executable} "$@"',
        }.items():
            (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / "bin" / name).chmod(0o755)
        self.state.write_text(f"cd {folder}/work\n")

    def types(self, text: str) -> str:
        """What a block prints, on both streams."""
        script = f'. {self.state}\nset -e\n{text}\n{{ export -p; printf "cd %q\\n" "$PWD"; }} >{self.state}'
        words = ["bash", "-c", script]
        done = subprocess.run(
            words,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[S3]:
    """A server of S3 for both of them."""
    (folder := tmp_path / "s3").mkdir()
    with running(folder) as server:
        yield server


@pytest.mark.slow
@pytest.mark.timeout(900)  # two environments are made and filled
@pytest.mark.xdist_group("postgresql")
def test_the_page_word_for_word(repository: Path, tmp_path: Path, bucket: S3) -> None:
    programs = postgres.binaries()
    if programs is None:
        pytest.skip("no PostgreSQL server is installed (Debian: apt-get install postgresql)")
    page = (repository / "docs" / "guide" / "team.md").read_text(encoding="utf-8")
    colleague = page[: page.index("## A colleague")].count("\n") + 1
    with postgres.running(programs) as uri, running_index(tmp_path / "index") as index:
        index.put_with_requirements(Requirement("stoker[aws,postgres]"), Requirement("hatchling"))
        shutil.rmtree(index.folder / "simple" / "stoker")  # it comes from the clone alone
        variables = {
            **bucket.environment,
            "SOURCE": f"file://{repository}",
            "TEAM_DATABASE": uri,
            "TEAM_BUCKET": bucket.bucket("team"),
            "PIP_INDEX_URL": index.url,
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_NO_COMPILE": "0",  # pip takes the opposite of an option whose name begins with "no"
            "TZ": "UTC",
            "LANG": "C.UTF-8",
        }
        anna = Person(tmp_path / "anna", {**variables, "STOKER_USER": "anna"})
        ben = Person(
            tmp_path / "ben", {**variables, "STOKER_USER": "ben", "PROJECT": str(anna.folder / "work" / "mine")}
        )
        said, firings = "", 0
        for block in blocks(page):
            person = ben if block.line > colleague else anna
            if block.language == "sh":
                if "schedule history" in block.text:
                    firings += _night(anna, uri)
                said = person.types(block.text)
                continue
            for line in block.text.splitlines() if block.language == "text" else ():
                assert re.search(re.escape(line).replace("…", ".*"), said), f"team.md:{block.line}: {line}\n{said}"
    assert firings == 1
    kept = anna.folder / "home" / ".stoker" / "schedules" / "training.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert uri in kept.read_text() and not [one for one in (anna.folder / "spool").iterdir() if uri in one.read_text()]


def _night(person: Person, uri: str) -> int:
    """The entry of the crontab, as cron starts it, as if it had been added a day ago."""
    database = Database(uri)
    try:
        Schedules(database).pause("training", paused=False, now=time.time() - DAY)
    finally:
        database.close()
    (entry,) = [line for line in person.types("crontab -l").splitlines() if "schedule fire" in line]
    command = entry.removeprefix("0 2 * * * ").replace("\\%", "%")
    subprocess.run(["/bin/sh", "-c", command], env={"HOME": "/", "PATH": "/usr/bin:/bin"}, cwd="/", check=True)
    return 1
