"""One store with runs, and one server of it, for all tests of the pages; started once, ended here."""

from __future__ import annotations

import http.client
import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

import attrs
import pytest
from tests.conftest import Project

DAY = 86_400.0

TRAIN = '''
import os, sys, time
from pathlib import Path
from typing import Annotated

import numpy as np

from stoker import context, log_metadata, log_metrics, pipeline, step
from stoker.config import Command

SPAWN = """
import os, subprocess, sys
places = [{"RANK": str(n), "WORLD_SIZE": "2", "LOCAL_RANK": str(n), "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
          for n in range(2)]
ranks = [subprocess.Popen(sys.argv[1:], env={**os.environ, **place}) for place in places]
sys.exit(max(abs(rank.wait()) for rank in ranks))
"""

@step
def load(rows: int) -> Annotated[np.ndarray, "images"]:
    print(f"reading {rows} rows <script>alert(1)</script>")
    return np.random.default_rng(0).normal(size=(rows, 8))

@step(cache=False, launch=Command([sys.executable, "-c", SPAWN], num_processes=2))
def train(images: np.ndarray, batch: int) -> Annotated[dict, "model"]:
    for epoch in range(30):
        log_metrics({"loss": 8 / (8 + epoch * batch / 16) + 0.01 * context.rank}, step=epoch)
        print(f"\\x1b[32mepoch {epoch}\\x1b[0m of rank {context.rank}")
    log_metadata({"architecture": "resnet"})
    if batch > 48:
        if context.rank == 1:
            raise RuntimeError(f"CUDA out of memory. Tried to allocate {batch / 8:.2f} GiB. GPU 0 has a total capacity")
        time.sleep(60)
    return {"weights": 1.0, "batch": batch}

@step
def evaluate(model: dict, images: np.ndarray) -> tuple[
    Annotated[float, "accuracy"], Annotated[Path, "page"], Annotated[bytes, "picture"], Annotated[set, "labels"],
]:
    page = Path("page.html")
    page.write_text("<h1>mine</h1><script>document.body.dataset.ran = 1; top.location = 'about:blank'</script>")
    picture = bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d4944415478da63fccfc0500f00048001"
        "80a5a1d5390000000049454e44ae426082")
    return 0.9, page, picture, {"cat", "dog"}

@pipeline
def training(rows: int = 500, batch: int = 64):
    images = load(rows)
    evaluate(train(images, batch), images)

if __name__ == "__main__":
    training()
'''

SWEEP = """
import time
from pathlib import Path

from stoker import log_metrics, pipeline, step

NAMES = ("adam", "sgd", "lion")

@step
def grid(count: int) -> list:
    return [
        {"rate": round(0.01 * 1.5**n, 4), "optimizer": NAMES[n % 3], "net": {"width": 2 ** (n % 4)}}
        for n in range(count)
    ]

@step
def fit(config: dict, hold: str) -> float:
    loss = 1.0
    for number in range(40):
        loss *= 1 - config["rate"] / 4
        log_metrics({"loss": loss, "accuracy": 1 - loss / 2}, step=number)
    log_metrics({"final": loss})
    while hold and not Path(hold).exists():
        time.sleep(0.05)
    return loss

@step
def best(losses: list, momentum: float) -> float:
    for number, loss in enumerate(sorted(losses, reverse=True)):
        log_metrics({"loss": loss * momentum}, step=number)
    return min(losses)

@pipeline
def sweep(count: int = 12, momentum: float = 0.9, hold: str = "", note: str = ""):
    best(fit.map(grid(count), hold=hold), momentum)

if __name__ == "__main__":
    sweep()
"""

CHURN = """
import math
from typing import Annotated

from stoker import Artifact, Model, artifact, log_metadata, log_metrics, pipeline, save_artifact, step

@step
def clean(rows: int) -> Annotated[list, Artifact("customers/clean", tags=["weekly"], metadata={"source": "warehouse"})]:
    log_metadata({"rows": rows}, artifact="customers/clean")
    return [round(math.sin(row), 4) for row in range(rows)]

@step
def fit(data: list, rate: float) -> Annotated[dict, Artifact("classifier")]:
    for epoch in range(20):
        log_metrics({"auc": 0.7 + rate * epoch / 19, "loss": 1 / (1 + rate * epoch)}, step=epoch)
    save_artifact(round(0.7 + rate, 4), "auc")
    return {"weights": [round(rate * value, 6) for value in data[:40]]}

@step
def score(model: dict) -> float:
    return sum(model["weights"])

@pipeline(model=Model("churn", description="Who leaves next month"))
def churning(rows: int = 1000, rate: float = 0.1):
    fit(clean(rows), rate)

@pipeline(model=Model("churn", "production"))
def scoring(model=artifact("classifier", version=2)):
    score(model)
"""

HOSTILE = """a/../b //<script>alert(1)</script> "x' ?#%25 é: 北"""
"""A name that markup, addresses and folders could take for something else."""

REGISTER = f"""
from stoker import Client

client = Client()
client.model("churn", 1).promote("production", why="the first one")
model = client.model("churn", 2)
model.set_rules("production", ["auc >= production"])
model.promote("production", why="better on last week's customers")
model.log_metadata({{"architecture": "linear"}})
client.model("churn", 3).promote("staging")
client.artifact("classifier", 2).add_tags("prod", exclusive=True)
odd = {HOSTILE!r}
facts = {{odd: odd, "huge": 10**400, "odd": float("nan"), "nested": {{odd: [odd]}}}}
for value in (odd, 2):
    version = client.save_artifact(value, odd, tags=[odd], metadata=facts)
for _ in range(2):
    strange = client.create_model_version(odd, tags=[odd], metadata=facts, description=odd)
    strange.link(version)
strange.promote(odd, why=odd)
client.save_artifact("dots", "..")
"""

WAIT = """
import sys, time
from pathlib import Path
from stoker import pipeline, step

@step(cache=False)
def work(file: str) -> int:
    number = 0
    while not Path(file).exists():
        print("line", number, flush=True)
        number += 1
        time.sleep(0.05)
    return number

@pipeline
def waiting(file: str):
    work(file)

if __name__ == "__main__":
    waiting()
"""


@attrs.frozen
class Answer:
    """What a server answered."""

    code: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def text(self) -> str:
        return self.data.decode()

    def json(self) -> Any:
        return json.loads(self.data)


class Server:
    """A `stoker ui` in a process of its own."""

    def __init__(self, project: Project, *options: str, env: Mapping[str, str] | None = None) -> None:
        self._log = project.folder / f"ui-{time.monotonic_ns()}.log"
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "stoker", "ui", "--port", "0", "--no-open", *options],
                cwd=project.folder,
                env={
                    **os.environ,
                    "STOKER_HOME": str(project.home),
                    "STOKER_LEASES": f"{project.home}-leases",
                    **(env or {}),
                },
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        found = wait(lambda: re.search(r"Stoker is at (http://(\S+):(\d+)/\S*)", self.log()) or self._gone())
        self.address, self.host, port = found.groups()
        self.port = int(port)
        self.url = f"http://{self.host}:{self.port}"

    def log(self) -> str:
        return self._log.read_text()

    def _gone(self) -> None:
        if self._process.poll() is not None:
            pytest.fail(f"the server ended with {self._process.returncode}:\n{self.log()}")

    @property
    def memory(self) -> int:
        """Bytes that it holds in memory."""
        import psutil

        return int(psutil.Process(self._process.pid).memory_info().rss)

    def get(self, path: str, **query: Any) -> Answer:
        headers = query.pop("headers", {})
        return self.ask("GET", path + (f"?{urlencode(query)}" if query else ""), headers=headers)

    def post(self, path: str, body: str = "", *, headers: Mapping[str, str] | None = None) -> Answer:
        return self.ask("POST", path, body=body, headers={"Origin": self.url} if headers is None else headers)

    def ask(self, method: str, path: str, *, body: str = "", headers: Mapping[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
        try:
            connection.request(method, path, body=body or None, headers=dict(headers or {}))
            answer = connection.getresponse()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def stop(self) -> str:
        """End it as Ctrl-C does, and return what it printed."""
        self._process.send_signal(2)
        self._process.wait(60)
        return self.log()


@attrs.frozen
class Site:
    """A server, and the runs of its store."""

    project: Project
    server: Server
    good: str
    """The run of two days ago, which succeeded with a batch of 32."""
    bad: str
    """The run of yesterday, whose rank 1 was out of memory with a batch of 64."""
    sweeps: tuple[str, ...]
    """Three runs of `sweep` with another momentum each; elements of the later ones are cached."""
    churn: tuple[str, ...]
    """Three runs that made versions 1 to 3 of the model `churn`, and one that used version 2."""
    search: str
    """A run with a sweep of 20 trials of the step `fit`, a half of which failed."""

    def runs(self, **query: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.server.get("/api/v1/runs", **query).json()["runs"]
        return found


def wait(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    """What a condition returns as soon as that is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
    return found


def move(project: Project, run: str, days: float) -> None:
    """Have a run of now be one of some days ago."""
    with sqlite3.connect(project.home / "stoker.db") as database:
        shift = -days * DAY
        database.execute(
            "UPDATE runs SET created = created + ?, started = started + ?, ended = ended + ? WHERE id = ?",
            (shift, shift, shift, run),
        )
        for table in ("steps", "attempts"):
            database.execute(
                f"UPDATE {table} SET started = started + ?, ended = ended + ? WHERE run_id = ?", (shift, shift, run)
            )
    database.close()


SEARCH = """
from stoker import between, pipeline, step, sweep

@step
def fit(rate: float, name: str, width: int) -> float:
    if width == 3:
        raise ValueError("too wide")
    return (rate - 0.3) ** 2 + len(name)

@pipeline
def search():
    sweep(fit, space={"rate": between(0.1, 0.5, step=0.1), "name": ["a", "<b>"], "width": [1, 3]}, method="grid")
"""


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The server, with one run that succeeded and one that failed."""
    folder = tmp_path_factory.mktemp("ui")
    project = Project(folder / "project", folder / "home")
    project.write({"train.py": TRAIN, "wait.py": WAIT, "sweep.py": SWEEP})
    leases = {"STOKER_LEASES": f"{project.home}-leases"}
    project.stoker("run", "train.py", "--batch", "32", "--tag", "nightly", "--quiet", env=leases)
    good = project.rows("SELECT id FROM runs")[0]["id"]
    project.stoker("run", "train.py", "--batch", "64", "--tag", "nightly", "--quiet", code=1, env=leases)
    bad = project.rows("SELECT id FROM runs ORDER BY created DESC")[0]["id"]
    move(project, good, 2)
    move(project, bad, 1)
    for momentum in ("0.5", "0.7", "0.9"):
        note = f"<script>alert({momentum})</script>"
        project.stoker("run", "sweep.py", "--momentum", momentum, "--note", note, "--quiet", env=leases)
    sweeps = tuple(row["id"] for row in project.rows("SELECT id FROM runs WHERE pipeline = 'sweep' ORDER BY created"))
    for place, run in enumerate(sweeps):
        move(project, run, 3 + len(sweeps) - place)
    project.write({"churn.py": CHURN, "register.py": REGISTER, "search.py": SEARCH})
    project.stoker("run", "search.py", "--quiet", env=leases)
    (search,) = (row["id"] for row in project.rows("SELECT id FROM runs WHERE pipeline = 'search'"))
    move(project, search, 30)
    for rate in ("0.1", "0.2", "0.05"):
        project.stoker("run", "churn.py:churning", "--rate", rate, "--quiet", env=leases)
    project.run("register.py")
    project.stoker("run", "churn.py:scoring", "--quiet", env=leases)
    churn = tuple(row["id"] for row in project.rows("SELECT run_id AS id FROM model_runs ORDER BY run_id"))
    for place, run in enumerate(churn):
        move(project, run, 20 - place)
    server = Server(project, env={"STOKER_SIMULATE": "2xH100-80GB"})  # a page of devices that has some
    try:
        yield Site(project, server, good, bad, sweeps, churn, search)
        assert "Traceback" not in server.log(), server.log()
    finally:
        server.stop()
