"""Pages of tasks: what a step put there, its numbers and charts, its log; also of a task that was killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from stoker.core.cards import Markdown
from stoker.flows.cards import Components

FLOW = """
import os
import signal
from stoker.flow import (
    Artifact, FlowSpec, Image, Markdown, Parameter, Table, card, catch, current, gpu_profile, resources, step,
)

BAD = "<script>alert(1)</script>"
PNG = bytes.fromhex("89504e470d0a1a0a") + b"picture"

class Paged(FlowSpec):
    word = Parameter("word", default="</pre><script>alert(2)</script>")

    @card
    @card(id="extra")
    @gpu_profile(interval=0.1)
    @resources(gpu=1)
    @step
    def start(self):
        print("a line", BAD)
        current.card.append(Markdown("# It *works*" + chr(10) + BAD))
        current.card["extra"].append(Table([[1, Markdown("**two**")], [BAD, None]], headers=["a", BAD]))
        current.card["extra"].extend([Image(PNG, BAD), Artifact({"x": BAD}, name="value")])
        for wrong in ("text", Image(b"no picture"), Table([1])):
            current.card.append(wrong)
        current.card["none"].append(Markdown("nowhere"))
        self.made = [1, 2]
        self.next(self.killed)

    @catch(var="failure")
    @gpu_profile
    @resources(gpu=1)
    @step
    def killed(self):
        os.kill(os.getpid(), signal.SIGKILL)
        self.next(self.spread)

    @step
    def spread(self):
        assert not hasattr(self, "_card_components")
        try:
            current.card
        except AttributeError as error:
            print(error)
        self.next(self.node, num_parallel=2)

    @card
    @step
    def node(self):
        current.card.append(Markdown(f"this is node {current.parallel.node_index}"))
        self.next(self.join)

    @step
    def join(self, inputs):
        self.next(self.each, foreach="rows")

    rows = ["a", "b"]

    @step
    def each(self):
        self.next(self.meet)

    @step
    def meet(self, inputs):
        self.next(self.end)

    @step
    def end(self):
        pass

if __name__ == "__main__":
    Paged()
"""


class Page(HTMLParser):
    """What a browser would see: text, tags, and what it would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        assert not [name for name, _ in attrs if name.startswith("on")], "a page has no scripts"

    def handle_data(self, data: str) -> None:
        self.text += data


def looked_at(path: Path) -> Page:
    page = Page(path.read_text(encoding="utf-8"))
    assert "script" not in page.tags, "what somebody wrote is text"
    assert all(source.startswith("data:image/") for source in page.sources), "nothing is fetched"
    return page


def test_pages(project: Any) -> None:
    project.write({"flow.py": FLOW}).run("flow.py", "run", "--simulate", "2xH100-80GB")
    run = project.client().runs()[0]
    said = [line.text for line in run.steps["start"].logs()]
    warned = [line.removeprefix("[@card WARNING] ") for line in said[1:]]
    words = ("a card takes no str", "no PNG, JPEG or GIF", "a row is no list", "the step has no @card(id='none')")
    assert len(warned) == 4 and all(word in line for word, line in zip(words, warned)), said
    assert [line.text for line in run.steps["spread"].logs()] == ["current.card is there in steps with @card only"]
    assert "_card_components" not in run.steps["start"].outputs

    named = project.run("flow.py", "card", "view", "start").stdout.strip()
    page = looked_at(project.folder / named)
    assert named == f"Paged-{run.id}-start.html"
    assert page.tags.count("h1") == 2 and page.tags.count("img") == 1
    for text in ("It works", "two", "extra", "value", "made", "a line <script>alert(1)</script>", run.id, "H100"):
        assert text in page.text, text
    assert "nothing was measured on them" in page.text and "</pre><script>alert(2)</script>" in page.text

    killed = project.run("flow.py", "card", "get", "killed", "killed.html").stdout.strip()
    page = looked_at(project.folder / killed)
    assert "SIGKILL" in page.text and "nothing was measured on them" in page.text, page.text
    assert project.run("flow.py", "card", "get", "killed").stdout.startswith("<!DOCTYPE html>")

    rows = project.run("flow.py", "card", "list", "node").stdout.splitlines()
    assert [row.split()[:3] for row in rows[1:]] == [[f"node[{node}]", "succeeded", "default"] for node in (0, 1)]
    project.run("flow.py", "card", "view", "node/node[1]", "--output", "node.html")
    page = looked_at(project.folder / "node.html")
    assert "this is node 1" in page.text and "this is node 0" not in page.text

    several = project.run("flow.py", "card", "view", "each", code=2).stderr
    assert "has 2 tasks" in several and "card view each/each[0]" in several
    project.stoker("card", "latest", "each", "--output", "each.html")
    page = looked_at(project.folder / "each.html")
    assert "each[0]" in page.text and "each[1]" in page.text
    project.stoker("card", "latest", "node", "-o", "nodes.html")
    assert "this is node 0" in looked_at(project.folder / "nodes.html").text


def test_a_pipeline_has_pages_too(project: Any) -> None:
    project.write(
        {
            "train.py": """
            from stoker import pipeline, step

            @step
            def train(rate: float) -> float:
                print("rate", rate)
                raise ValueError("too <b>small</b>")

            @pipeline
            def training(rate: float = 0.1):
                train(rate)

            if __name__ == "__main__":
                training()
            """
        }
    ).run("train.py", code=1)
    name = project.stoker("card", "latest", "train").stdout.strip()
    page = looked_at(project.folder / name)
    assert "too <b>small</b>" in page.text and "rate 0.1" in page.text and "b" not in page.tags
    printed = project.stoker("card", "latest", "train", "--output", "-").stdout
    assert printed == (project.folder / name).read_text(encoding="utf-8")
    assert "cannot be written" in project.stoker("card", "latest", "train", "-o", "no/such/x.html", code=2).stderr
    assert "no step 'trian'" in project.stoker("card", "latest", "trian", code=2).stderr


LIVE = """
import os
import signal
import time
from pathlib import Path

from stoker.flow import FlowSpec, Frame, Markdown, ProgressBar, card, current, step

class Live(FlowSpec):
    @card
    @step
    def start(self):
        bar = ProgressBar(max=10, label="epochs", unit="epochs")
        current.card.append(Markdown("# Training"))
        current.card.append(bar)
        for epoch in range(1, 8):
            bar.update(epoch, metadata=f"loss {1 / epoch:.2f}")
            current.card.refresh(force=epoch == 7)
        Path("shown").touch()
        while not Path("seen").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
        self.next(self.end)

    @step
    def end(self):
        pass

if __name__ == "__main__":
    Live()
"""


def test_a_card_is_shown_while_its_task_runs_and_after_it_was_killed(project: Any) -> None:
    project.write({"live.py": LIVE})
    command = [sys.executable, "live.py", "run"]
    environment = {**os.environ, "STOKER_HOME": str(project.home)}
    with subprocess.Popen(command, cwd=project.folder, env=environment) as flow:
        try:
            deadline = time.monotonic() + 120
            page = ""
            # What a step logs is in the store within about a second.
            while "7 of 10 epochs" not in page and time.monotonic() < deadline:
                shown = project.stoker("card", "latest", "start", "-o", "-", code=None)
                page = shown.stdout
            assert flow.poll() is None and "7 of 10 epochs" in page and "loss 0.14" in page
            assert 'max="10" value="7"' in page and "running" in page
            (project.folder / "seen").touch()
            assert flow.wait(timeout=120) == 1
        finally:
            (project.folder / "seen").touch()
            flow.kill()
    killed = project.stoker("card", "latest", "start", "-o", "-").stdout
    assert "Training" in killed and "7 of 10 epochs" in killed and "killed" in killed
    assert "logged nothing" in project.stoker("metrics", "latest", "start").stdout, "a card is no fact of the step's"


OTHERS = """
import time

from stoker.flow import FlowSpec, card, current, step
from stoker.flow.cards import EventsTimeline, Markdown, MetaflowCard, ValueBox, VegaChart, get_cards
from stoker.flow.plugins.cards.exception import CardNotPresentException


class Summary(MetaflowCard):
    type = "summary"
    ALLOW_USER_COMPONENTS = True
    RUNTIME_UPDATABLE = True
    RELOAD_POLICY = MetaflowCard.RELOAD_POLICY_ONCHANGE

    def __init__(self, options=None, components=()):
        self.title, self.parts = (options or {}).get("title", "none"), components

    def render(self, task):
        return f"<h1>{self.title}: {task.data.loss} of {task['loss'].data}, {len(self.parts)} parts</h1>"

    def render_runtime(self, task, data):
        return f"<h1>[METAFLOW_RELOAD_TOKEN] {data['user']['epoch']} {task.finished}</h1>"

    def refresh(self, task, data):
        return data["user"]

    def reload_content_token(self, task, data):
        return f"epoch-{data['user']['epoch']}"


class Broken(MetaflowCard):
    type = "broken"

    def render(self, task):
        raise ValueError("nothing to show")


class Slow(MetaflowCard):
    type = "slow"

    def render(self, task):
        time.sleep(60)


class Carded(FlowSpec):
    @card(type="summary", id="one", options={"title": "loss"})
    @card(id="notes", customize=True)
    @card(type="broken")
    @card(type="slow", timeout=0.2, save_errors=False)
    @card(type="unknown", save_errors=False)
    @step
    def start(self):
        events, box = EventsTimeline("epochs"), ValueBox("loss", 1.0)
        current.card.append(events, id="events")
        current.card.append(box)
        current.card["one"].append(Markdown("a part"))
        current.card.append(VegaChart({"mark": "line", "data": {"values": [{"x": 1, "y": 2}, {"x": 2, "y": 1}]},
                                       "encoding": {"x": {"field": "x"}, "y": {"field": "y"}}}))
        for epoch in range(3):
            current.card.components["events"].update({"epoch": epoch})
            current.card["one"].refresh({"epoch": epoch}, force=True)
            shown = get_cards(current.pathspec, type="summary")[0]
            assert shown.get_data() == {"data": {"epoch": epoch}, "reload_token": f"epoch-{epoch}"}, shown.get_data()
            assert shown.get() == ("<h1>epoch-%d %d False</h1>" % (epoch, epoch)), shown.get()
        box.update("loss", 0.25, change_indicator="better")
        self.loss = 0.25
        self.next(self.end)

    @step
    def end(self):
        pass


if __name__ == "__main__":
    Carded()
"""


def test_cards_of_ones_own_classes(project: Any) -> None:
    project.write({"flow.py": OTHERS}).run("flow.py", "run")
    told = project.run("flow.py", "logs", "--stderr", "start").stdout
    for kind, words in (
        ("broken", "nothing to show"),
        ("slow", "longer than 0.2 s"),
        ("unknown", "import the module of its class"),
    ):
        assert f"the card of the type '{kind}' has failed" in told and words in told, told

    listed = json.loads(project.run("flow.py", "card", "list", "start", "--as-json").stdout)
    found = {(one["type"], one["id"]) for one in listed["cards"]}
    assert found == {("broken", None), ("default", "notes"), ("summary", "one")}
    assert "summary" in project.run("flow.py", "card", "list").stdout
    summary = project.run("flow.py", "card", "get", "start", "--type", "summary").stdout
    assert summary.strip() == "<h1>loss: 0.25 of 0.25, 1 parts</h1>"
    digest = next(one["hash"] for one in listed["cards"] if one["type"] == "broken")
    assert "nothing to show" in project.run("flow.py", "card", "get", "start", "--hash", digest[:5]).stdout
    missing = project.run("flow.py", "card", "get", "start", "--type", "slow", code=2).stderr
    assert "Card not found in datastore" in missing and "with type 'slow'" in missing

    page = project.run("flow.py", "card", "get", "start").stdout
    for words in ("notes", "epoch", "0.25", "better", "<svg", "srcdoc", "0.25 of 0.25", "nothing to show"):
        assert words in page, words


def test_a_component_takes_the_place_of_no_other() -> None:
    warned: list[str] = []
    one, other = Components(warned.append), Components(warned.append)
    for text in "ab":
        one.append(Markdown(text))
    del one[one.keys()[0]]
    one.append(Markdown("c"))
    other.append(Markdown("d"))
    other.extend(one)
    other.append(Markdown("e"), id="e")
    assert [part.render()["text"] for part in other] == ["d", "b", "c", "e"] and "e" in other and not warned


EXTENSION = {
    "metaflow_extensions/team/plugins/cards/shiny/__init__.py": """
from metaflow.cards import MetaflowCard
from metaflow.plugins.cards.card_modules.card import MetaflowCard as Same
from metaflow.plugins.cards.card_modules.basic import DefaultCard
from .words import NOUN

assert Same is MetaflowCard


class Shiny(MetaflowCard):
    type = "shiny"

    def render(self, task):
        import metaflow
        return f"{NOUN} by {metaflow.__name__}: {task.data.loss}"


class Titled(DefaultCard):
    type = "titled"

    def render(self, task):
        return super().render(task).replace("</main>", "by a team</main>")


CARDS = [Shiny, Titled]
""",
    "metaflow_extensions/team/plugins/cards/shiny/words.py": "NOUN = 'the loss'",
    "metaflow_extensions/team/plugins/cards/dull/__init__.py": """
from metaflow.cards import MetaflowCard


class Dull(MetaflowCard):
    type = "dull"


import no_such_package
""",
    "flow.py": """
from stoker.flow import FlowSpec, Markdown, card, current, step
from stoker.flow.plugins.cards.card_modules.components import UserComponent, with_default_component_id


class Chart(UserComponent):
    @with_default_component_id
    def render(self):
        points = [{"x": 1, "y": 2}, {"x": 2, "y": 1}]
        encoding = {"x": {"field": "x"}, "y": {"field": "y"}}
        return {"type": "vegaChart", "spec": {"mark": "line", "encoding": encoding}, "data": points}


class Words(UserComponent):
    def render(self):
        return Markdown("**in bold**").render()


class Extended(FlowSpec):
    @card(type="shiny")
    @card(type="titled")
    @card(type="dull")
    @step
    def start(self):
        self.loss = 0.5
        current.card.extend([Chart(), Words()])
        self.next(self.end)

    @step
    def end(self):
        import importlib.util
        assert importlib.util.find_spec("metaflow") is None


if __name__ == "__main__":
    Extended()
""",
}


WATCHER = """
import sys, time
from stoker.flow.cards import get_cards

card, until = get_cards(sys.argv[1])[0], time.monotonic() + 60
print("one" in card.get(), flush=True)
sys.stdin.readline()
while "two" not in card.get():
    assert time.monotonic() < until
    time.sleep(0.05)
"""
WATCHED = """
import subprocess, sys
from stoker.flow import FlowSpec, Markdown, card, current, step


class Watched(FlowSpec):
    @card
    @step
    def start(self):
        current.card.append(Markdown("one"))
        current.card.refresh(force=True)
        program = [sys.executable, "watcher.py", current.pathspec]
        for attempt in range(200):  # until the driver has read what was kept
            child = subprocess.Popen(program, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            if child.stdout.readline().strip() == "True":
                break
        current.card.append(Markdown("two"))
        current.card.refresh(force=True)
        child.communicate("go\\n")
        assert child.returncode == 0
        self.next(self.end)

    @step
    def end(self):
        pass


if __name__ == "__main__":
    Watched()
"""


def test_a_card_that_another_process_has_is_shown_as_it_is_now(project: Any) -> None:
    project.write({"flow.py": WATCHED, "watcher.py": WATCHER}).run("flow.py", "run")


SLOW = """
import time
from stoker.flow import FlowSpec, card, step, timeout
from stoker.flow.cards import MetaflowCard


class Patient(MetaflowCard):
    type = "patient"

    def render(self, task):
        time.sleep(5)
        return "rendered"


class Timed(FlowSpec):
    @timeout(seconds=4)
    @card(type="patient")
    @step
    def start(self):
        self.next(self.end)

    @step
    def end(self):
        pass


if __name__ == "__main__":
    Timed()
"""


def test_rendering_is_no_part_of_a_steps_timeout(project: Any) -> None:
    project.write({"flow.py": SLOW}).run("flow.py", "run")
    assert project.run("flow.py", "card", "get", "start", "--type", "patient").stdout.strip() == "rendered"


def test_cards_of_an_extension_import_metaflow_and_a_broken_one_is_named(project: Any) -> None:
    ran = project.write(EXTENSION).run("flow.py", "run")
    why = "no card of the type 'dull'; these could not be imported: "
    assert ran.stderr.count(f"start: @card: there is {why}") == 1 and "No module named 'no_such_package'" in ran.stderr
    shiny = project.run("flow.py", "card", "get", "start", "--type", "shiny").stdout
    assert shiny.strip() == "the loss by stoker.flow: 0.5"
    titled = project.run("flow.py", "card", "get", "start", "--type", "titled").stdout
    assert all(part in titled for part in ("by a team", "<svg", "<strong>in bold</strong>", "loss", "0.5")), titled
    assert "no_such_package" in project.run("flow.py", "card", "get", "start", "--type", "dull").stdout
