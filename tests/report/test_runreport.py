"""A run as a page: everything of it is there, small, without network, the same in the dark, narrow and on paper."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Project
from tests.servers.browser import Browser, browser, keep_picture, needs_chromium

import stoker
from stoker.cli.main import invoke
from stoker.client import Client
from stoker.client.placements import Placement
from stoker.core.receipt import Receipt, Track, Use
from stoker.report.figures import receipt_part
from stoker.report.markup import badge, document, element
from stoker.report.runreport import LARGEST, phases, run_report
from stoker.store.rows import local_time

__all__ = ["browser"]

AXE = Path(__file__).parents[1] / "ui" / "vendor" / "axe.min.js"

BAD = "</pre></title><script>alert(1)</script>\"'&"
PROGRAM = """
    import math
    import sys
    from pathlib import Path
    from typing import Annotated

    import numpy as np
    import pandas as pd

    from stoker import log_metadata, log_metrics, pipeline, step
    from stoker.config import ResourceSettings, Retry

    BAD = "</pre></title><script>alert(1)</script>\\"'&"


    @step
    def load(rows: int) -> tuple[Annotated[pd.DataFrame, "table"], Annotated[np.ndarray, "picture"]]:
        source = np.random.default_rng(0)
        ramp = np.linspace(0, 255, 64, dtype=np.uint8)
        picture = np.stack([np.tile(ramp, (64, 1)), np.tile(ramp, (64, 1)).T, np.full((64, 64), 90, np.uint8)], axis=2)
        print(f"read {rows} rows")
        return pd.DataFrame({"label": source.integers(0, 10, rows), "mean": source.normal(size=rows)}), picture


    @step
    def fold(number: int, table: pd.DataFrame) -> float:
        if number == 2:
            raise ValueError(f"fold {number} has no label 7")
        return float(table["mean"].mean())


    @step(retry=Retry(1, on="user-error", delay=0.01))
    def license(rows: int) -> dict:
        if not Path("asked").exists():
            Path("asked").touch()
            print("the license server is away", file=sys.stderr)
            raise ConnectionError("the license server does not answer")
        return {"license": BAD}


    @step(resources=ResourceSettings(gpu_count=2))
    def train(table: pd.DataFrame, rate: float) -> Annotated[np.ndarray, "weights"]:
        log_metadata({"optimizer": "sgd"})
        for number in range(300):
            loss = 2.3 * math.exp(-rate * number / 8)
            log_metrics({"loss": loss, "accuracy": 1 - loss / 2.4}, step=number)
            if number == 100:
                log_metrics({"gradient": math.nan}, step=number)
            log_metrics({"gradient": math.sin(number)}, step=number)
        return np.random.default_rng(1).normal(size=(300, 40))


    @step
    def compare(weights: np.ndarray, folds: list[float], license: dict) -> str:
        return "done"


    @pipeline(failure_mode="continue")
    def digits(rows: int = 500, rate: float = 0.05, token: str = "abc"):
        table, picture = load(rows)
        folds = fold.map([0, 1, 2, 3], table=table)
        compare(train(table, rate), folds, license(rows))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project whose one run failed in an element, was tried again in a step, and trained on pretended GPUs."""
    base = tmp_path_factory.mktemp("report")
    project = Project(base / "project", base / "home")
    project.write({"digits.py": PROGRAM})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STOKER_LEASES", str(base / "leases"))
        project.stoker("run", "digits.py", "--simulate", "4xH100-80GB", "--set", "parameters.rate=0.08", code=1)
        yield project


@pytest.fixture
def client(folder: Project, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setenv("STOKER_HOME", str(folder.home))
    return stoker.Client()


@pytest.fixture
def page(client: Client) -> str:
    return run_report(client.store, client.run("last"))


def words(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)))


def test_everything_of_the_run_is_there(page: str) -> None:
    text = words(page)
    for expected in (
        "digits failed",
        "What went wrong fold[2] user-error : fold 2 has no label 7",
        "stoker resume",
        "license #1",  # in the timeline
        "3 succeeded, 1 failed",
        "rate 0.08 --set parameters.rate",
        "rows 500 the call",
        "user-error: the license server does not answer",
        "optimizer sgd",
        "nan at step 100",
        "2 × H100 (simulated)",
        "500 rows, 2 columns",
        "numpy.ndarray, 300×40, float64",
        "resources.gpu_count 2",
        "read 500 rows",
        "leased, the step did not run",
    ):
        assert expected in text, expected
    assert "failure_mode" not in text, "a setting of the whole pipeline"
    assert page.count("data:image/png") == 1 and page.count('class="bars"') == 2


def test_it_is_small_loads_nothing_and_takes_no_text_for_markup(page: str) -> None:
    assert len(page.encode()) < 120_000
    assert "<script" not in page and "&lt;script&gt;" in page
    assert not re.search(r"(src|href)=\"(?!#|data:)", page) and "default-src" in page
    assert page.partition("<body>")[0].count("<title>") == 1


def test_a_page_that_would_be_large_shows_less(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run_report(client.store, client.run("last"))
    monkeypatch.setattr("stoker.report.runreport.LARGEST", 45_000)
    less = run_report(client.store, client.run("last"))
    assert len(less) < min(60_000, len(whole)) and "What went wrong" in less and LARGEST == 300_000


def test_the_command_writes_pages(folder: Project, tmp_path: Path) -> None:
    written = folder.stoker("report", "last", "-o", str(tmp_path / "run.html"))
    assert written.stdout.strip() == str(tmp_path / "run.html")
    assert "What went wrong" in (tmp_path / "run.html").read_text(encoding="utf-8")
    profile = folder.stoker("report", "last", "train", "--gpu", "-o", "-").stdout
    assert "cores in use" in profile and "2 × H100 (simulated)" in words(profile)
    card = folder.stoker("card", "last", "train", "-o", "-").stdout
    assert card == folder.stoker("report", "last", "train", "-o", "-").stdout and "cores in use" in card


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpu"], "--gpu is about one step"),
        (["fold", "--gpu"], "'fold' is a fan-out"),
        (["load", "--gpu"], "step 'load' asked for no accelerators"),
        (["trian"], "'train'"),
        (["-o", "/none/run.html"], "cannot be written to /none/run.html"),
    ],
)
def test_a_wrong_request_is_said_in_words(
    arguments: list[str], said: str, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["report", "last", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_phases_of_an_attempt() -> None:
    def shown(placement: Placement | None, start: float | None, end: float | None) -> list[tuple[str, float, float]]:
        return [(one.phase, one.start, one.end) for one in phases(placement, start=start, end=end, now=99.0)]

    assert shown(None, 5, 9) == [("run", 5, 9)] and shown(None, 5, None) == [("run", 5, 99)]
    queued = Placement(attempt=1, sent=local_time(10))
    assert shown(queued, None, None) == [("queue", 10, 99)] and shown(None, None, None) == []
    began = Placement(attempt=1, sent=local_time(10), started=local_time(20), ended=local_time(50))
    assert shown(began, 23, 49) == [("queue", 10, 20), ("start", 20, 23), ("run", 23, 49)]
    assert shown(began, 10, 49) == [("queue", 10, 20), ("run", 20, 49)]
    moments = [(one.phase, one.start, one.end) for one in phases(None, start=1, end=9, now=99, called=3, returned=7)]
    assert moments == [("start", 1, 3), ("run", 3, 7), ("save", 7, 9)]
    odd = phases(None, start=1, end=9, now=99, called=0, returned=100)
    assert [(one.phase, one.start, one.end) for one in odd] == [("run", 1, 9)], "another machine's clock"
    assert shown(began, None, None) == [("queue", 10, 20), ("run", 20, 50)]


# In a browser


def no_overflow(shown: Any) -> bool:
    return bool(shown.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


@needs_chromium
def test_it_is_readable_light_dark_narrow_and_on_paper(folder: Project, browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    # The documentation's pictures show no place of the machine that made them.
    text = folder.stoker("report", "last", "-o", "-").stdout.replace(str(folder.folder), "/home/ada/digits")
    path.write_text(text, encoding="utf-8")
    grounds = {}
    for name, width, dark in (("light", 1200, False), ("dark", 1200, True), ("narrow", 360, False)):
        shown = browser.open(path.as_uri(), width=width, dark=dark)
        assert shown.said == [] and shown.title().startswith("digits failed")
        assert no_overflow(shown), name
        shown.evaluate(AXE.read_text(encoding="utf-8"))
        assert shown.evaluate("axe.run(document).then(found => found.violations.map(one => one.id))") == []
        grounds[name] = shown.evaluate("getComputedStyle(document.body).backgroundColor")
        keep_picture(shown, f"report-{name}.png", tmp_path)
        # The graph leads to the step, whose section says the same.
        shown.locator(".graph a", has_text="train").click()
        assert shown.evaluate("document.querySelector(location.hash + ' h2').textContent") == "train"
        if name == "light":
            keep_picture(shown, "report-step.png", tmp_path)
            shown.emulate_media(media="print", color_scheme="dark")
            assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == grounds["light"]
            folded = shown.locator("details:not([open]) table").first
            assert folded.bounding_box()["height"] > 0, "what is folded is printed"
        shown.context.close()
    assert grounds["light"] == grounds["narrow"] == "rgb(255, 255, 255)" != grounds["dark"]


@needs_chromium
def test_a_profile_marks_the_lease_and_idle_stretches(browser: Browser, tmp_path: Path) -> None:
    """Two GPUs, of which one waits for data now and then; the numbers are made up, the page is not."""
    uses = tuple(
        Use(
            uuid=f"GPU-{index}",
            kind="nvidia",
            index=index,
            model="H100-80GB",
            memory=85_899_345_920,
            samples=240,
            utilization_mean=64.0 - 9 * index,
            utilization_peak=99.0,
            memory_peak=61_000_000_000,
            power_mean=480.0,
            energy=115_000.0,
            temperature_peak=67.0,
            first_use=31.0,
            longest_idle=40.0,
        )
        for index in range(2)
    )
    receipt = Receipt(
        verdict="used",
        evidence=("both GPUs computed in 71 % of the samples",),
        asked="2 GPUs of 80 GB",
        started=1_767_225_600.0,
        seconds=210.0,
        devices=uses,
        advice=("both GPUs were idle for 40 s at 120 s: write the checkpoint in the background",),
    )
    moments = tuple(float(second) for second in range(240))
    tracks = []
    for index in range(2):
        busy = [
            0.0 if at < 30 or 120 <= at < 160 else 92.0 - 14 * index + 7 * math.sin(at * (2 + index)) for at in moments
        ]
        quantities = {
            "utilization": busy,
            "memory": [6.1e10 if at >= 30 else 1e9 for at in moments],
            "power": [90 + 5.6 * one for one in busy],
            "temperature": [67 - 30 * math.exp(-at / 40) - (3 * index) for at in moments],
        }
        for name, values in quantities.items():
            tracks.append(Track(name=name, uuid=f"GPU-{index}", times=moments, values=tuple(values), peak=max(values)))
    content = receipt_part(receipt, tracks, span=(receipt.started + 25, receipt.started + 232))
    body = element("main", None, element("h1", None, "digits / train ", badge("succeeded")), content)
    path = tmp_path / "gpu.html"
    path.write_text(document("train of digits: accelerators", body, state="used"), encoding="utf-8")
    shown = browser.open(path.as_uri())
    assert shown.said == [] and no_overflow(shown)
    [power] = shown.get_by_role("img", name="power").all()
    assert power.locator("rect.idle").count() == 1 and power.locator("rect.outside").count() == 2
    assert power.locator("path.curve").count() == 2
    keep_picture(shown, "report-gpu.png", tmp_path, whole=True)
    shown.context.close()


def test_a_run_whose_driver_was_killed_says_so_and_takes_no_longer_every_day(project: Project) -> None:
    program = """
        import os
        import signal

        from stoker import pipeline, step


        @step
        def train() -> None:
            os.kill(int(os.environ["DRIVER"]), signal.SIGKILL)
            signal.pause()


        @pipeline
        def fatal():
            train()


        if __name__ == "__main__":
            os.environ["DRIVER"] = str(os.getpid())
            fatal()
    """
    project.write({"fatal.py": program}).run("fatal.py", code=-9)
    client = project.client()
    run = client.run("last")
    assert run.status == "interrupted"
    shown = run_report(client.store, run)
    assert "The process that drove the run is gone" in words(shown) and "<title>fatal interrupted" in shown
    later = run_report(client.store, run, now=run.created.timestamp() + 1e6)
    assert later == shown
