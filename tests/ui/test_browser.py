"""The pages in Chromium: what a person sees and does, with the keyboard, in the dark, on a telephone.

Screenshots of every page are kept in a folder of the session; with UPDATE_GOLDEN=1, those that docs/guide/ui.md shows
are written to docs/guide/pictures, too.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ui.conftest import HOSTILE, Site, wait

from stoker.ui.rendering import named

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
PATIENCE = 60_000.0
"""Milliseconds: a machine may do other work too."""

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no chromium is installed (Debian: apt-get install chromium)")


class Window:
    """A page of the browser, which must not complain."""

    def __init__(self, browser: Any, site: Site, **look: Any) -> None:
        self.site = site
        self.context = browser.new_context(**{"viewport": {"width": 1200, "height": 800}, **look})
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.complaints: list[str] = []
        self.page.on("console", self._listen)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _listen(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.text} at {self.page.url}")

    def open(self, path: str) -> Any:
        self.page.goto(self.site.server.url + path)
        return self.page

    def close(self) -> None:
        self.context.close()
        assert not self.complaints, "\n".join(self.complaints)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield launched
        launched.close()


@pytest.fixture
def window(browser: Any, site: Site) -> Iterator[Window]:
    opened = Window(browser, site)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def pictures(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where screenshots go."""
    folder = tmp_path_factory.mktemp("pictures")
    yield folder
    shown = repository / "docs" / "guide" / "pictures"
    for picture in shown.glob("ui-*.png") if os.environ.get("UPDATE_GOLDEN") else ():
        shutil.copy(folder / picture.name, picture)


def likeness(one: Path, other: Path) -> float:
    """The share of squares of 16 pixels in which two pictures look alike; times and ids differ, a layout does not."""
    image = pytest.importorskip("PIL.Image")
    numpy = pytest.importorskip("numpy")
    squares = []
    for path in (one, other):
        with image.open(path) as picture:
            grey = picture.convert("L")
            squares.append(numpy.asarray(grey.resize((grey.width // 16, grey.height // 16), image.Resampling.BOX), int))
    if squares[0].shape != squares[1].shape:
        return 0.0
    return float((abs(squares[0] - squares[1]) < 24).mean())


ALIKE = 0.92
"""The least likeness of a page and its picture in the guide."""


def pages_of(site: Site) -> dict[str, str]:
    """The pages by name."""
    return {
        "ui-runs": "/runs?tag=nightly",
        "ui-run": f"/runs/{site.bad}",
        "ui-step": f"/runs/{site.bad}/step?key=train",
        "ui-compare": f"/compare?run={site.good}&run={site.bad}",
        "ui-sweep": f"/runs/{site.sweeps[0]}",
        "ui-elements": f"/runs/{site.sweeps[0]}/step?key=fit&sort=-config.rate",
        "ui-trials": f"/runs/{site.search}/step?key=fit&sort=output",
        "ui-runs-compared": compare_address(site),
        "ui-rerun": f"/runs/{site.bad}/rerun",
        "ui-cancel": f"/runs/{site.bad}/cancel",
        "ui-artifact": f"/runs/{site.good}/artifact?key=load&name=images",
        "ui-request": f"/runs/{site.bad}/request?key=load",
        "ui-devices": "/devices",
        "ui-log": f"/runs/{site.bad}/log?key=train&rank=1",
        "ui-choose": "/compare",
        "ui-artifacts": "/artifacts?text=cl",
        "ui-named": "/artifacts/classifier@2",
        "ui-models": "/models?text=churn",
        "ui-model": "/models/churn",
        "ui-version": "/models/churn@2",
        "ui-versions": "/models/churn?version=1&version=3",
        "ui-promote": "/models/churn@1?do=promote",
        "ui-odd-artifact": named("artifact", HOSTILE, 1),
        "ui-odd-version": named("model", HOSTILE, 2),
        "ui-odd-models": "/models?text=script",
        "ui-empty": "/runs?text=nothing+like+it",
        "ui-missing": "/runs/nothing",
    }


def compare_address(site: Site) -> str:
    """Three runs side by side."""
    return "/compare?" + "&".join(f"run={run}" for run in site.sweeps)


FOCUSED = """() => {
  const one = document.activeElement, label = one.labels && one.labels[0];
  return {text: (label || one).innerText.trim(), outline: getComputedStyle(one).outlineStyle};
}"""


def go_to(page: Any, name: str) -> None:
    """Press Tab until what has this name has the focus, and shows it."""
    for _ in range(60):
        page.keyboard.press("Tab")
        focused = page.evaluate(FOCUSED)
        if focused["text"].partition("\n")[0] == name:
            assert focused["outline"] != "none", f"nobody sees that {name} has the focus"
            return
    pytest.fail(f"Tab does not lead to {name}")


def test_yesterdays_failure_is_found_understood_compared_and_started_again_with_half_the_batch(window: Window) -> None:
    """By keys alone; what is read is read from the page, as a person does."""
    site, page = window.site, window.open("/runs")
    keys = page.keyboard
    # Find yesterday's failed run.
    go_to(page, "Status")
    keys.type("failed")
    page.wait_for_url(re.compile("status=failed"))
    row = page.locator("tr", has=page.locator(f"a[href='/runs/{site.bad}']"))
    row.wait_for()
    assert "1 day ago" in row.inner_text()
    keys.press("Escape")  # a letter is a key of the page again, and no choice of the field
    for _ in range(page.locator("a[data-row]").count()):
        keys.press("j")
        if page.evaluate("document.activeElement.id") == f"open-{site.bad}":
            break
    keys.press("Enter")
    # See which rank died of what.
    page.get_by_role("heading", name="Why it failed").wait_for()
    why = page.locator("#failure").inner_text()
    assert "Rank 1 of 2 is to blame" in why and "gpu-oom" in why and "CUDA out of memory" in why
    assert page.title().startswith("failed · training")
    # Compare it with the last good run.
    go_to(page, "Compare with the last good run")
    keys.press("Enter")
    page.get_by_role("heading", name="Parameters").wait_for()
    row = page.locator("#parameters tr", has_text="batch")
    assert re.findall(r"\d+", row.inner_text()) == ["32", "64"]
    assert page.locator("#metrics .chart > svg").count() == 1
    # Start it again with half the batch.
    go_to(page, "Run B again")
    keys.press("Enter")
    page.wait_for_url(re.compile("/rerun"))
    go_to(page, "batch")
    assert page.evaluate("document.activeElement.value") == "64"
    keys.type("32")  # what a field has is chosen when Tab leads to it
    go_to(page, "Tags")
    keys.type("half")
    go_to(page, "Start the run")
    keys.press("Enter")
    page.wait_for_url(re.compile(r"/runs/\w+$"))
    made = page.url.rpartition("/")[2]
    assert made not in (site.good, site.bad)
    page.wait_for_function("() => document.title.startsWith('succeeded')")
    facts = site.server.get(f"/api/v1/runs/{made}").json()
    assert (facts["status"], facts["origin"], facts["parameters"]["batch"]) == ("succeeded", site.bad, 32)
    assert {"half"} <= set(facts["tags"])
    # Title, icon and text told the end without a reload.
    assert page.locator("h1").inner_text().split() == ["training", "succeeded"]
    icon = page.locator("#icon").get_attribute("href")
    assert icon == page.locator(".live").get_attribute("data-icon")


def test_lines_appear_while_they_are_written_and_the_run_is_cancelled(window: Window) -> None:
    site = window.site
    site.project.stoker("run", "wait.py", "--file", "never", "--detach")
    run = wait(lambda: site.runs(pipeline="waiting", status="running"))[0]["id"]
    wait(lambda: b"line 3" in site.server.get(f"/runs/{run}/log/file", key="work").data)
    page = window.open(f"/runs/{run}/step?key=work")
    seen = int(page.locator("#lines .x").last.inner_text().split()[-1])
    page.wait_for_function(
        "(seen) => Number([...document.querySelectorAll('#lines .x')].pop().textContent.split(' ')[1]) > seen + 20",
        arg=seen,
    )
    rows = page.locator("#lines .line").all_inner_texts()
    numbers = [row.split() for row in rows]
    # Each line once, in order, with its number: the lines count from 0, the rows from 1.
    assert [int(one[0]) - 1 for one in numbers] == [int(one[-1]) for one in numbers]
    assert page.title().startswith("running")
    page.goto(f"{site.server.url}/runs/{run}")
    page.get_by_role("link", name="Cancel").click()
    page.get_by_role("button", name="Cancel the run").click()
    page.wait_for_url(re.compile(f"/runs/{run}$"))
    page.wait_for_function("() => document.title.startsWith('cancelled')")
    assert site.server.get(f"/api/v1/runs/{run}").json()["status"] == "cancelled"


def test_lines_are_chosen_by_rank_and_searched(window: Window) -> None:
    page = window.open(f"/runs/{window.site.bad}/step?key=train")
    page.locator("#log-view").get_by_text("rank 1", exact=True).click()
    page.wait_for_function(
        "() => ![...document.querySelectorAll('#lines .rank')].some((one) => one.textContent === 'r0')"
    )
    assert page.locator("#lines .line").count() == 30
    page.locator("#log-search").fill("epoch 29")
    page.wait_for_function("() => document.querySelectorAll('#lines .line').length === 1")
    assert "epoch 29 of rank 1" in page.locator("#lines").inner_text()
    assert page.locator("#lines .ansi-green").inner_text() == "epoch 29"


def test_a_chart_tells_the_values_under_the_pointer(window: Window) -> None:
    page = window.open(f"/runs/{window.site.bad}/step?key=train")
    box = page.locator("#metrics .chart > svg").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 15 / 29, box["y"] + box["height"] / 2)
    bubble = page.locator(".bubble")
    assert bubble.inner_text().split() == ["step", "15", "rank", "0", "0.118", "rank", "1", "0.128"]
    page.mouse.move(0, 0)
    assert not bubble.is_visible()


def test_two_runs_and_more_can_be_compared(window: Window) -> None:
    page = window.open("/runs?tag=nightly")
    button = page.get_by_role("button", name="Compare the chosen")
    page.locator(f"#pick-{window.site.good}").check()
    assert button.is_disabled()
    for run in (window.site.good, window.site.bad):
        page.locator(f"#pick-{run}").check()
    button.click()
    page.get_by_role("heading", name="Parameters").wait_for()


def names(page: Any) -> list[str]:
    """The elements in the table, from the top."""
    found: list[str] = page.eval_on_selector_all(".variants tbody tr", "rows => rows.map(row => row.dataset.name)")
    return found


def test_elements_are_sorted_and_filtered_by_keys_while_the_page_is_looked_at_again(window: Window) -> None:
    site = window.site
    site.project.stoker("run", "sweep.py", "--count", "6", "--hold", "let-go", "--detach")
    run = wait(lambda: site.runs(pipeline="sweep", status="running"))[0]["id"]
    wait(lambda: 'class="dot tone-0" d' in site.server.get(f"/runs/{run}/step", key="fit").text)  # others may wait
    page = window.open(f"/runs/{run}/step?key=fit")
    go_to(page, "config.rate")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("sort=config.rate"))
    page.locator("th[aria-sort=ascending]").wait_for()
    assert page.evaluate("document.activeElement.innerText").startswith("config.rate"), "the head keeps the focus"
    page.keyboard.press("Enter")
    page.locator("th[aria-sort=descending]").wait_for()
    assert names(page) == [f"fit[{index}]" for index in range(5, -1, -1)]
    page.locator("#filter").fill("config.rate<0.02 adam")
    page.wait_for_function("() => document.querySelectorAll('.variants tbody tr').length === 1")
    assert names(page) == ["fit[0]"]
    curves = "() => [...new Set([...document.querySelectorAll('.charts [data-name]')].map(one => one.dataset.name))]"
    assert page.evaluate(curves) == ["fit[0]"], "the curves of the others are hidden, too"
    (site.project.folder / "let-go").touch()
    page.locator(".variants .badge", has_text="succeeded").wait_for()  # it was looked at again
    assert names(page) == ["fit[0]"] and page.locator("#filter").input_value() == "config.rate<0.02 adam"
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("config.rate")
    page.go_back()
    page.wait_for_function("() => document.querySelectorAll('.variants tbody tr').length === 6")
    assert page.locator("#filter").input_value() == "", "the page before is a whole one"
    page.locator("#filter").fill("ratte<1")
    page.get_by_role("alert").wait_for()
    assert "nothing is called 'ratte'" in page.get_by_role("alert").inner_text()


def test_a_row_lights_its_curve_and_a_curve_its_row(window: Window) -> None:
    page = window.open(f"/runs/{window.site.sweeps[0]}/step?key=fit")
    page.locator("tr[data-name='fit[4]']").hover()
    assert page.locator("path.lit").count() == 3
    box = page.locator(".charts .chart > svg").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + box["height"] - 1)
    name = page.locator(".bubble .key").inner_text()
    assert name in ("fit[10]", "fit[11]") and page.locator("tr.lit").get_attribute("data-name") == name


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_follows_axes_rules(browser: Any, site: Site, pictures: Path, scheme: str) -> None:
    """WCAG 2.2 A and AA, contrast among them, in both schemes; and each page as a picture."""
    window = Window(browser, site, color_scheme=scheme, bypass_csp=True)
    found = []
    for name, path in pages_of(site).items():
        if scheme == "dark" and name not in (
            "ui-run", "ui-step", "ui-compare", "ui-sweep", "ui-elements", "ui-trials",
            "ui-runs-compared", "ui-model", "ui-named",
        ):  # fmt: skip
            continue
        page = window.open(path)
        page.add_script_tag(path=str(AXE))
        result = page.evaluate(
            "(tags) => axe.run({runOnly: tags, resultTypes: ['violations']})",
            ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"],
        )
        for violation in result["violations"]:
            places = "; ".join(
                node["html"][:160] + " " + node["failureSummary"][:200] for node in violation["nodes"][:3]
            )
            found.append(f"{name}: {violation['id']}: {places}")
        if name != "ui-missing":
            suffix = "" if scheme == "light" else "-dark"
            # Below are paths of the machine that made the picture.
            part = {"clip": {"x": 0, "y": 0, "width": 1200, "height": 720}} if name == "ui-request" else {}
            page.screenshot(path=str(pictures / f"{name}{suffix}.png"), full_page=False, **part)
    assert not found, "\n".join(found)
    if not os.environ.get("UPDATE_GOLDEN"):
        # The pictures of the guide are what the pages look like.
        shown = Path(__file__).parents[2] / "docs" / "guide" / "pictures"
        kept = [one for one in pictures.glob("ui-*.png") if (shown / one.name).exists()]
        alike = {one.name: likeness(one, shown / one.name) for one in kept}
        assert alike and min(alike.values()) >= ALIKE, f"{alike}: look at them in {pictures}, then UPDATE_GOLDEN=1"
    window.complaints = [one for one in window.complaints if "404" not in one]  # a page that is missing says so
    window.close()


def test_nothing_is_wider_than_a_telephone(browser: Any, site: Site, pictures: Path) -> None:
    window = Window(browser, site, viewport={"width": 360, "height": 740}, is_mobile=True)
    wide = []
    for name, path in pages_of(site).items():
        page = window.open(path)
        if page.evaluate("document.documentElement.scrollWidth") > 360:
            wide.append(name)
        if name == "ui-run":
            page.screenshot(path=str(pictures / "ui-run-narrow.png"))
    assert not wide
    window.complaints = [one for one in window.complaints if "404" not in one]
    window.close()


def test_the_keyboard_reaches_everything(window: Window) -> None:
    page = window.open("/runs?tag=nightly")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "text"
    page.keyboard.type("train")
    page.wait_for_url(re.compile("text=train"))
    page.keyboard.press("Escape")
    assert page.locator("#text").input_value() == "train"  # left, and not emptied
    page.keyboard.press("/")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.activeElement.id.startsWith('open-')")
    first = page.evaluate("document.activeElement.id")
    page.keyboard.press("j")
    second = page.evaluate("document.activeElement.id")
    assert second.startswith("open-") and first != second
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.id").startswith("pick-")
    page.keyboard.press("k")  # from the box of a run, too
    assert page.evaluate("document.activeElement.id") == first
    page.keyboard.press("j")
    with page.expect_response(re.compile("/runs")):
        pass  # the list was looked at again meanwhile, and the focus is where it was
    assert page.evaluate("document.activeElement.id") == second
    page.keyboard.press("k")
    assert page.evaluate("document.activeElement.id") == first
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/runs/\w+$"))
    page.keyboard.press("?")
    assert page.get_by_role("dialog").is_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.wait_for_url(re.compile("/runs$"))


def test_pages_work_without_scripts(browser: Any, site: Site) -> None:
    window = Window(browser, site, java_script_enabled=False)
    page = window.open("/runs")
    page.get_by_label("Search").fill(site.bad)
    page.get_by_role("button", name="Filter").click()
    page.get_by_role("link", name="training", exact=True).click()
    assert "Rank 1 of 2 is to blame" in page.locator("#failure").inner_text()
    page.goto(f"{site.server.url}/runs/{site.bad}/step?key=train")
    page.locator("#log-search").fill("epoch 3")
    page.get_by_role("button", name="Search").click()
    assert page.locator("#lines .line").count() == 2
    page.goto(f"{site.server.url}/runs/{site.sweeps[0]}/step?key=fit")
    page.get_by_role("link", name="config.optimizer").first.click()
    assert page.locator(".colouring strong").inner_text() == "config.optimizer"
    page.get_by_role("link", name="loss last", exact=True).click()
    assert names(page)[0] == "fit[11]"
    page.get_by_label("Filter").fill("width=8")
    page.get_by_role("button", name="Filter").click()
    assert names(page) == ["fit[11]", "fit[7]", "fit[3]"]
    assert page.locator(".colouring strong").inner_text() == "config.optimizer"
    page.goto(f"{site.server.url}/models")
    page.get_by_label("Stage").fill("production")
    page.get_by_label("Search").fill("churn")
    page.get_by_role("button", name="Filter").click()
    page.get_by_role("link", name="churn", exact=True).click()
    for version in (1, 3):
        page.get_by_label(f"compare version {version}").check()
    page.get_by_role("button", name="Compare the chosen").click()
    assert "argument: rate" in page.locator("#code").inner_text()
    page.goto(site.server.url + named("artifact", HOSTILE))
    page.get_by_role("link", name="1", exact=True).click()
    assert page.locator("h1").inner_text() == f"{HOSTILE} version 1"
    window.close()


def test_a_name_is_found_by_keys_and_its_versions_are_compared(window: Window) -> None:
    page = window.open("/runs")
    page.keyboard.press("g")
    page.keyboard.press("m")
    page.wait_for_url(re.compile("/models$"))
    page.keyboard.press("/")
    page.keyboard.type("churn")
    page.wait_for_url(re.compile("text=churn"))
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.activeElement.id === 'open-churn'")
    page.keyboard.press("Enter")
    button = page.get_by_role("button", name="Compare the chosen")
    page.get_by_label("compare version 3").check()
    assert button.is_disabled()
    page.get_by_label("compare version 2").check()
    button.click()
    page.get_by_role("heading", name="Compare versions").wait_for()
    page.get_by_role("link", name="churn 2").click()
    page.get_by_role("link", name="classifier", exact=True).click()
    assert page.locator("h1").inner_text() == "classifier version 2"
    chart = page.locator("#versions .chart > svg").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + box["height"] / 2)
    assert page.locator(".bubble").inner_text().split()[:2] == ["version", "1"]


def test_a_users_page_does_nothing_outside_of_its_frame(window: Window) -> None:
    page = window.open(f"/runs/{window.site.good}/artifact?key=evaluate&name=page")
    frame = page.frame_locator("iframe.user")
    frame.get_by_role("heading", name="mine").wait_for()
    assert frame.locator("body").get_attribute("data-ran") == "1"  # it may draw
    assert page.url.startswith(window.site.server.url)  # and not lead away
    reach = "() => { try { return top.document.title } catch (error) { return error.name } }"
    inner = next(one for one in page.frames if "/artifact/frame" in one.url)
    assert inner.evaluate(reach) == "SecurityError"
    window.complaints = [one for one in window.complaints if "sandboxed" not in one and "navigate" not in one]


def test_a_server_that_is_gone_is_told_and_comes_back(window: Window) -> None:
    page = window.open("/runs")
    window.context.set_offline(True)
    page.locator("#trouble").wait_for(state="visible")
    window.context.set_offline(False)
    page.locator("#trouble").wait_for(state="hidden")
    window.complaints = [one for one in window.complaints if "DISCONNECTED" not in one and "htmx:" not in one]
