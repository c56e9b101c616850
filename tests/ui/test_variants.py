"""Elements of a fan-out and runs side by side, over HTTP."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.ui.conftest import Site

from stoker.ui import runview


def rows(text: str) -> list[str]:
    """The elements or runs of a page's table, from the top."""
    return re.findall(r'<tr data-name="([^"]+)">', text)


def looks(text: str) -> dict[str, str]:
    """The class of each one's curve in the first chart."""
    chart = text.partition("<figcaption>loss")[2].partition("</figure>")[0]
    return {name: look for look, name in re.findall(r'class="curve ([\w-]+)" d="[^"]*" data-name="([^"]+)"', chart)}


def test_a_metric_is_one_chart_with_all_elements_in_the_colours_of_what_they_were_given(site: Site) -> None:
    text = site.server.get(f"/runs/{site.sweeps[0]}/step", key="fit").text
    assert text.count("<figure") == 3 and "coloured by <strong>config.rate</strong>" in text
    found = looks(text)
    assert len(found) == 12 and found["fit[0]"] == "tone-0" and found["fit[11]"] == "tone-10"
    assert rows(text) == [f"fit[{index}]" for index in range(12)]
    # Each has one final loss: drawn over the rate.
    assert text.count('class="dot tone-') == 12 and "over config.rate" in text
    by_text = site.server.get(f"/runs/{site.sweeps[0]}/step", key="fit", by="config.optimizer").text
    assert set(looks(by_text).values()) == {"line-0", "line-1", "line-2"}
    assert all(f"</svg>{name}</li>" in by_text for name in ("adam", "sgd", "lion"))


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"filter": "config.rate>=0.1 loss last<0.5"}, [6, 7, 8, 9, 10, 11]),
        ({"filter": "'loss' last<0.5", "sort": "-config.rate"}, [11, 10, 9, 8, 7, 6, 5]),
        ({"filter": "ADAM", "sort": "loss lowest"}, [9, 6, 3, 0]),
        ({"filter": "optimizer=sgd width=1"}, [4]),
        ({"filter": "config.optimizer=SGD config.net.width!=1"}, [1, 7, 10]),
        ({"filter": "status=failed"}, []),
        ({"filter": '"'}, []),
        ({"sort": "-config.net.width", "filter": "element<5"}, [3, 2, 1, 0, 4]),
        ({"start": "99999"}, list(range(12))),
    ],
)
def test_elements_are_sorted_and_filtered(site: Site, choice: dict[str, str], expected: list[int]) -> None:
    text = site.server.get(f"/runs/{site.sweeps[0]}/step", key="fit", **choice).text
    assert rows(text) == [f"fit[{index}]" for index in expected]
    assert set(looks(text)) == set(rows(text))


def test_a_name_that_is_none_is_told(site: Site) -> None:
    text = site.server.get(f"/runs/{site.sweeps[0]}/step", key="fit", filter="confg.rate<1").text
    assert "nothing is called &#x27;confg.rate&#x27; here, did you mean" in text.replace("&#39;", "&#x27;")
    assert len(rows(text)) == 12


def test_a_run_draws_its_fan_outs(site: Site) -> None:
    for run in site.sweeps:  # the elements of later ones are cached
        text = site.server.get(f"/runs/{run}").text
        assert len(looks(text)) == 12 and 'id="metric-best-loss"' in text and "metric-fit[" not in text


def test_nothing_is_put_together_of_a_large_fan_out(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_HOME", str(site.project.home))
    run = site.project.client().run(site.sweeps[0])
    described = {row[0]: row[1:3] for row in runview.output_rows(run)}
    assert described["fit"] == ("output", "list")
    monkeypatch.setattr(runview, "MOST_GATHERED", 10)
    described = {row[0]: row[1:3] for row in runview.output_rows(run)}
    assert described["fit"] == ("output of fit[0]", "float") and described["best"] == ("output", "float")


def test_more_than_two_runs_are_compared_by_their_parameters(site: Site) -> None:
    def compared(path: str, number: int) -> Any:
        return site.server.get(
            path + "?" * ("?" not in path) + urlencode([("run", run) for run in (site.sweeps * 67)[:number]])
        )

    text = compared("/compare", 3).text
    assert "Compare 3 runs" in text and rows(text) == list(site.sweeps)
    assert "coloured by <strong>momentum</strong>" in text and "loss of best" in text
    assert list(looks(text).values()) == ["tone-0", "tone-5", "tone-10"]
    hostile = compared("/compare?by=note&sort=note&", 3).text
    assert "coloured by" in hostile and "<script>alert" not in hostile
    assert hostile.count("&lt;script&gt;alert(0.5)&lt;/script&gt;") == 2, "in the legend and in the table"
    document = compared("/api/v1/compare", 3).json()["runs"]
    assert [one["given"]["momentum"] for one in document] == [0.5, 0.7, 0.9]
    assert document[0]["metrics"]["loss of best"]["count"] == 12
    assert "two to 200 can be compared" in compared("/compare", 201).text
    assert compared("/api/v1/compare", 201).code == compared("/api/v1/compare", 1).code == 400


def test_a_program_gets_what_elements_were_given(site: Site) -> None:
    elements = site.server.get(f"/api/v1/runs/{site.sweeps[2]}/metrics", key="fit").json()["elements"]
    assert [one["key"] for one in elements] == [f"fit[{index}]" for index in range(12)]
    assert elements[1]["given"] == {"config.rate": 0.015, "config.optimizer": "sgd", "config.net.width": 2}
    assert elements[1]["status"] == "cached" and elements[1]["metrics"]["loss"]["count"] == 40


def test_a_sweep_shows_its_best_trial_what_matters_and_all_in_parallel_coordinates(site: Site) -> None:
    text = site.server.get(f"/runs/{site.search}/step", key="fit", sort="output").text
    chart = text.partition('class="chart parallel"')[2].partition("</figure>")[0]
    lines = dict(re.findall(r'class="curve ([^"]+)" d="[^"]*" data-name="([^"]+)"', chart))
    assert len(re.findall("data-name", chart)) == 20 and "tone-10 best" in lines and "line-7 raw" in lines
    # Above the axes, below them, and their names; a trial without a metric ends at the last parameter.
    words = re.findall("<text[^>]*>([^<]*)</text>", chart)
    assert words[:7] == ["0.5", "a", "3", "3.04", "0.1", "&lt;b&gt;", "1"] and words[8:] == [
        "rate",
        "name",
        "width",
        "output",
    ]
    best = rows(text)[0]
    assert re.search(rf">{re.escape(best)}</a><strong>\u00a0best</strong>", text)
    assert rows(site.server.get(f"/runs/{site.search}/step", key="fit", filter="width=1 output<1.001").text) == [best]
    explained = re.findall(r"<tr><td>(rate|name|width)</td><td[^>]*>(\d+)%", text)
    assert explained[0][0] == "name" and int(explained[0][1]) > 95, "a name of more letters costs 2"
