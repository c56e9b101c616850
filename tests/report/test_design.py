"""The shared parts of pages: text stays text, states need no colour, contrast holds, layouts do not overlap."""

from __future__ import annotations

import itertools
import random
import re
from xml.etree import ElementTree

import pytest

from stoker.core import status
from stoker.report import graphs, markup
from stoker.report import markup as tables
from stoker.report.graphs import GraphStep, PhaseSpan, TimelineRow, graph, timeline
from stoker.report.markup import Html, element, joined, link, markup_of

BAD = "</title></svg><script>alert(1)</script>\"'&\0\ud800"


def tree(markup: Html) -> ElementTree.Element:
    return ElementTree.fromstring(f"<div>{markup.markup}</div>")


# Markup


def test_a_text_is_never_markup() -> None:
    assert markup_of("<b>&") == "&lt;b&gt;&amp;"
    assert markup_of("a\0\ud800") == "a\ufffd?"
    assert element("p", {"title": '"><', "hidden": True, "open": False, "id": None}, "<").markup == (
        '<p title="&quot;&gt;&lt;" hidden>&lt;</p>'
    )
    assert joined(["<", Html("<br/>")], between="&").markup == "&lt;&amp;<br/>"


def test_template_engines_take_markup_as_safe() -> None:
    jinja2 = pytest.importorskip("jinja2")
    template = jinja2.Environment(autoescape=True).from_string("{{ part }}{{ text }}")
    assert template.render(part=element("b", None, "x"), text="<") == "<b>x</b>&lt;"


@pytest.mark.parametrize(
    "address", ["javascript:alert(1)", "//evil.example", "/\\evil.example", "data:text/html,x", "x:y"]
)
def test_a_link_leads_to_pages_only(address: str) -> None:
    assert link(address, "<words>").markup == "&lt;words&gt;"


@pytest.mark.parametrize("address", ["/runs/1", "#steps", "?page=2", "https://example.org/", "mailto:a@example.org"])
def test_a_link_leads_there(address: str) -> None:
    assert link(address, "words").markup.startswith(f'<a href="{address}"')


# States


def test_every_status_has_a_shape_of_its_own() -> None:
    own = {*status.STEP_DONE, *status.RUN_DONE, "pending", "running", "interrupted", "queued"}
    assert own <= set(markup.STATES)
    shapes = [markup.STATES[name].shape for name in own]
    assert len(set(shapes)) == len(shapes)
    assert "exotic" in markup.badge("exotic").markup and markup.tone_of("exotic") == "quiet"
    assert markup.favicon("failed") != markup.favicon("succeeded")


# Colours


def tokens(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))


def luminance(colour: str) -> float:
    """Relative luminance as in WCAG 2.2."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_and_lines_have_contrast_in_light_and_in_dark() -> None:
    sheet = markup.stylesheet()
    light = tokens(sheet[: sheet.index("@media screen")])
    dark = {**light, **tokens(sheet[sheet.index("@media screen") : sheet.index("*, *::before")])}
    assert {*light} == {*dark} and light["text"] != dark["text"]
    for colours in (light, dark):
        for ground in ("ground", "surface"):
            for name in ("text", "muted", "accent", "good", "bad", "warn", "active", "quiet"):
                assert contrast(colours[name], colours[ground]) >= 4.5, name
            for name in ("control", *(f"series-{number}" for number in range(8))):
                assert contrast(colours[name], colours[ground]) >= 3, name


def test_every_colour_is_a_token_and_nothing_is_loaded() -> None:
    sheet = markup.stylesheet()
    rules = sheet[sheet.index("*, *::before") :]
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b|rgb|hsl|url\(|@import", rules)
    used = set(re.findall(r"var\(--([\w-]+)", sheet))
    assert used <= set(re.findall(r"--([\w-]+):", sheet))


# A document


def test_a_page_is_whole_by_itself() -> None:
    page = markup.document(BAD, markup.section("T", "<p>"), state="failed")
    assert page.count("<script") == 0 and "http" not in re.sub("http-equiv", "", page)
    assert "default-src &#x27;none&#x27;" in page and markup.favicon("failed") in page
    page.encode("utf-8")
    assert not markup.section("empty", markup.folded("x", ""), markup.preformatted(""))


def test_tables_leave_out_columns_without_content() -> None:
    markup = tables.table(["a", "b", "c"], [["1", "", "<"], ["2", "", ""]], right={0}, caption="numbers")
    [table] = tree(markup).iter("table")
    assert [cell.text for cell in table.iter("th")] == ["a", "c"]
    assert [cell.text for cell in table.iter("td")] == ["1", "<", "2", None]
    assert not tables.table(["a"], []) and not tables.facts({"a": ""})


# The graph


def boxes(root: ElementTree.Element) -> dict[str, tuple[float, float, float, float]]:
    found = {}
    for group in root.iter("g"):
        title, rect = group.find("title"), group.find("rect")
        if title is not None and rect is not None:
            x, y, width, height = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
            found[(title.text or "").partition(":")[0]] = (x, y, x + width, y + height)
    return found


@pytest.mark.parametrize("seed", range(12))
def test_boxes_do_not_overlap_and_edges_lead_on(seed: int) -> None:
    source = random.Random(seed)
    count = source.randint(1, 60)
    nodes = [
        GraphStep(
            key=f"s{number}",
            state="succeeded",
            sources=[f"s{other}" for other in range(number) if source.random() < 3 / count],
        )
        for number in range(count)
    ]
    root = tree(graph(nodes))
    placed = boxes(root)
    assert len(placed) == count
    for one, other in itertools.combinations(placed.values(), 2):
        assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    [svg] = root.iter("svg")
    width, height = float(svg.attrib["width"]), float(svg.attrib["height"])
    assert all(min(x, y) >= 0 and right <= width and bottom <= height for x, y, right, bottom in placed.values())
    rightward = all(placed[name][2] <= placed[node.key][0] for node in nodes for name in node.sources)
    downward = all(placed[name][3] <= placed[node.key][1] for node in nodes for name in node.sources)
    assert rightward or downward
    assert sum(one.attrib["class"] == "edge" for one in root.iter("path")) == sum(
        len(set(node.sources)) for node in nodes
    )


def test_a_chain_that_fits_goes_to_the_right_and_a_longer_one_down() -> None:
    def chain(length: int) -> ElementTree.Element:
        return tree(
            graph(
                [
                    GraphStep(key=f"s{one}", state="pending", sources=[f"s{one - 1}"] if one else [])
                    for one in range(length)
                ]
            )
        )

    short, long = boxes(chain(3)), boxes(chain(9))
    assert short["s0"][1] == short["s2"][1] and short["s0"][0] < short["s2"][0]
    assert long["s0"][0] == long["s8"][0] and long["s0"][1] < long["s8"][1]


def test_odd_graphs_are_drawn_or_said_in_words() -> None:
    assert not graph([])
    loop = [GraphStep(key="a", state="x", sources=["b", "a", "gone"]), GraphStep(key="b", state=BAD, sources=["a"])]
    assert set(boxes(tree(graph(loop)))) == {"a", "b"}
    many = [GraphStep(key=f"s{number}", state="succeeded") for number in range(graphs.MOST_NODES + 1)]
    assert "301 steps and 0 edges are too many" in graph(many).markup
    bad = graph([GraphStep(key=BAD, state=BAD, words=BAD, address="#x")], label=BAD).markup
    assert "<script" not in bad and ElementTree.fromstring(bad) is not None


def test_steps_that_follow_nothing_stand_in_rows() -> None:
    placed = boxes(tree(graph([GraphStep(key=f"s{number}", state="succeeded") for number in range(12)])))
    assert len({box[1] for box in placed.values()}) == 3 and len({box[0] for box in placed.values()}) == 5


# The timeline


def test_bars_stand_where_their_time_is() -> None:
    rows = [
        TimelineRow(
            name="a",
            state="failed",
            took="2 s",
            spans=[PhaseSpan(phase="queue", start=100, end=101), PhaseSpan(phase="run", start=101, end=102)],
        ),
        TimelineRow(name="b", state="running", spans=[PhaseSpan(phase="run", start=102, end=104)], address="/b"),
        TimelineRow(name="c", state="pending"),
    ]
    root = tree(timeline(rows))
    bars = [one for one in root.iter("svg") if one.attrib.get("role") == "img"]
    places = [[(rect.attrib["x"], rect.attrib["width"]) for rect in bar.iter("rect")] for bar in bars]
    assert places == [[("0.0", "250.0"), ("250.0", "250.0")], [("500.0", "500.0")], []]
    assert (
        bars[0].attrib["aria-label"] == "a: in a queue 1.0 s, run 1.0 s"
        and "did not run" in bars[2].attrib["aria-label"]
    )
    heights = {rect.attrib["class"]: rect.attrib["height"] for bar in bars for rect in bar.iter("rect")}
    assert heights == {"queue": "4", "run": "20"}


def test_odd_times_stay_inside_and_many_rows_are_counted() -> None:
    assert not timeline([TimelineRow(name="a", state="pending")])
    spans = [PhaseSpan(phase="run", start=5, end=3), PhaseSpan(phase="save", start=0, end=1e9)]
    rects = tree(
        timeline([TimelineRow(name=BAD, state="x", spans=spans, took=BAD, address="javascript:x")], begin=1, end=2)
    ).iter("rect")
    assert all(0 <= float(one.attrib["x"]) <= 1000 for one in rects)
    rows = [
        TimelineRow(name=f"r{one}", state="succeeded", spans=[PhaseSpan(phase="run", start=0, end=1)])
        for one in range(205)
    ]
    assert "… and 5 more rows" in timeline(rows).markup and len(rows) > graphs.MOST_ROWS
