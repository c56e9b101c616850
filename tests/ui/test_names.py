"""Named artifacts and models, over HTTP."""

from __future__ import annotations

import html
import re
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.ui.conftest import HOSTILE, Server, Site, wait

from stoker.ui.rendering import named


def listed(site: Site, kind: str, **query: Any) -> list[tuple[str, int]]:
    """(name, version) of a list, from the top, as the page and the API have them."""
    text = site.server.get(f"/{kind}s", **query).text
    shown = [html.unescape(name) for name in re.findall(r"data-row>([^<]*)</a>", text)]
    rows = site.server.get(f"/api/v1/{kind}s", **query).json()[f"{kind}s"]
    assert shown == [row["name"] for row in rows]
    return [(row["name"], row["version"]) for row in rows]


def test_names_are_found_by_text_tag_and_stage(site: Site) -> None:
    assert listed(site, "artifact", text="CL") == [("classifier", 3), ("customers/clean", 1)]
    assert listed(site, "artifact", tag="prod") == [("classifier", 2)]
    assert listed(site, "artifact", text=HOSTILE) == listed(site, "artifact", tag=HOSTILE) == [(HOSTILE, 2)]
    assert listed(site, "artifact", text="%") == [(HOSTILE, 2)]
    assert listed(site, "model", text="churn") == [("churn", 3)]
    assert listed(site, "model", stage="production", text="chu") == [("churn", 2)]
    assert "No artifact is like that" in site.server.get("/artifacts", tag="nightly").text
    assert site.server.get("/models", before="churm").code == 404


def test_a_list_goes_on_after_any_name(site: Site) -> None:
    whole = site.server.get("/api/v1/artifacts").json()
    assert whole["next"] is None and len(whole["artifacts"]) > 4
    found: list[Any] = []
    before: str | None = ""
    while before is not None:
        part = site.server.get("/api/v1/artifacts", limit=2, before=before).json()
        found += part["artifacts"]
        before = part["next"]
    assert found == whole["artifacts"]


def test_an_artifact_says_what_is_in_it_where_it_comes_from_and_who_used_it(site: Site) -> None:
    _, second, third, scoring = site.churn
    text = site.server.get("/artifacts/classifier@2").text
    for words in (
        "version 2</span>",
        f'<a href="/runs/{second}/step?key=fit">fit</a> of run <a href="/runs/{second}">',
        'data: <a href="/artifacts/customers/clean@1">customers/clean 1</a>',
        f'<a href="/runs/{scoring}/step?key=score">score</a> of run <a href="/runs/{scoring}"><code>',
        "<code>model</code>, by its name",
        '<a href="/models/churn@2">churn 2</a>',
        'href="/artifacts?tag=prod"',
        "<figcaption>size",
        f'<a href="/runs/{third}"><code>{third}</code></a>',
    ):
        assert words in text, words
    document = site.server.get("/api/v1/artifacts/classifier@tag:prod").json()
    assert (document["version"], document["tags"]) == (2, ["prod"])
    assert [use["run_id"] for use in document["users"]] == [scoring]
    assert document["models"] == [{"name": "churn", "version": 2, "stage": "production"}]
    assert [row["version"] for row in document["versions"]] == [3, 2, 1]
    kept = site.server.get("/artifacts/classifier@1", **{"as": "file"})
    assert kept.headers["content-disposition"].endswith("classifier%401.json") and b"weights" in kept.data
    assert kept.headers["content-security-policy"].startswith("sandbox;")
    assert site.server.get("/artifacts/classifier@1", **{"as": "image"}).code == 404
    assert site.server.get("/artifacts/classifier@1", **{"as": "python"}).code == 400
    clean = site.server.get("/artifacts/customers/clean").text
    assert "1,000 numbers" in clean and "<dt>rows</dt><dd><code>1,000</code>" in clean and "warehouse" in clean
    assert 'data-column="rows">1,000<' in clean
    # Numbers are drawn over the versions, and stand in the table.
    values = site.server.get("/artifacts/auc").text
    assert "<figcaption>value" in values and re.findall(r'data-column="value">([\d.]+)<', values) == [
        "0.75",
        "0.9",
        "0.8",
    ]


def test_a_model_shows_stages_metrics_promotions_and_rules(site: Site) -> None:
    text = site.server.get("/models/churn").text
    assert re.findall(r'data-column="auc">([\d.]+)<', text) == ["0.75", "0.9", "0.8"]
    assert re.findall(r'stage \w+">(\w+)</span></td>', text)[:3] == ["staging", "production", "archived"]
    assert "<figcaption>auc" in text and "<code>auc &gt;= production</code>" in text
    assert "better on last week&#39;s customers" in text
    version = site.server.get("/models/churn@production").text
    assert "Who leaves next month" in version and "version 2</span>" in version and "linear" in version
    assert (
        f"<code>{site.churn[3]}</code></a> used it" in version
        and f"<code>{site.churn[1]}</code></a> made it" in version
    )
    document = site.server.get("/api/v1/models/churn@2").json()
    assert document["stages"] == {"production": 2, "staging": 3} and document["rules"] == {
        "production": ["auc >= production"]
    }
    assert [(row["version"], row["stage"], row["displaced"]) for row in document["history"]] == [
        (3, "staging", None), (2, "production", 1), (1, "production", None),
    ]  # fmt: skip
    assert document["artifacts"] == {"auc": 2, "classifier": 2, "customers/clean": 1}


def test_two_versions_differ_in_what_made_them(site: Site) -> None:
    text = site.server.get("/models/churn?version=1&version=3").text
    assert re.findall(r'<th scope="row">(\w+)</th>', text) == ["auc", "loss", "auc", "classifier", "rate"]
    assert "+0.16799" in text and "argument: rate" in text and "<code>0.1</code> → <code>0.05</code>" in text
    assert f"/compare?run={site.churn[0]}&amp;run={site.churn[2]}" in text
    difference = site.server.get("/api/v1/models/churn@3", compare="1").json()["difference"]
    assert difference["parameters"] == {"rate": [0.1, 0.05]} and difference["metadata"] == {}
    assert [one["version"] for one in difference["artifacts"]["classifier"]] == [1, 3]
    [step] = difference["steps"]
    assert step["step"] == "fit" and [change["name"] for change in step["changes"]] == ["rate"]
    assert difference["unknown"] == {}
    with_words = site.server.get("/api/v1/models/churn@2", compare="1").json()["difference"]
    assert with_words["metadata"] == {"architecture": [None, "linear"]}
    assert (
        "3 versions chosen; two can be compared."
        in site.server.get("/models/churn?" + urlencode([("version", number) for number in (1, 2, 3)])).text
    )


def test_versions_of_runs_with_other_steps_are_not_called_the_same(site: Site) -> None:
    source = """
        from stoker import Artifact, pipeline, step
        from typing import Annotated

        @step
        def STEP() -> Annotated[int, Artifact("changing")]:
            return 4

        @pipeline(model="changing")
        def once():
            STEP()
    """
    for name in ("first", "second"):
        site.project.write({"changing.py": source.replace("STEP", name)})
        site.project.stoker("run", "changing.py", "--quiet")
    text = site.server.get("/models/changing?version=1&version=2").text
    assert "Their artifacts are the same." in text and "the same code" not in text
    runs = [site.server.get("/api/v1/models/changing@" + number).json()["run"] for number in "12"]
    unknown = site.server.get("/api/v1/models/changing", compare="1").json()["difference"]["unknown"]
    assert unknown == {"first": f"only run {runs[0]} has it", "second": f"only run {runs[1]} has it"}


def test_pages_of_runs_and_steps_name_what_they_made_and_used(site: Site) -> None:
    first, second, _, scoring = site.churn
    text = site.server.get(f"/runs/{second}").text
    for address in ("/artifacts/classifier@2", "/artifacts/auc@2", "/models/churn@2"):
        assert f'<a href="{address}"' in text, address
    used = site.server.get(f"/runs/{scoring}").text
    assert '<a href="/artifacts/classifier@2"' in used and "used by it" in used
    assert (
        '<a href="/artifacts/classifier@2">classifier 2</a>'
        in site.server.get(f"/runs/{scoring}/step", key="score").text
    )
    fit = site.server.get(f"/runs/{first}/step", key="fit").text
    assert '<a href="/artifacts/classifier@1">classifier 1</a>' in fit.partition("Saved by name")[0]
    assert '<a href="/artifacts/auc@1">auc 1</a>' in fit.partition("Saved by name")[2]
    # A cached step took the result that has the name.
    assert '<a href="/artifacts/customers/clean@1">' in site.server.get(f"/runs/{second}/step", key="clean").text
    output = site.server.get(f"/runs/{second}/artifact", key="fit", name="classifier").text
    assert '<a href="/artifacts/classifier@2">classifier 2</a>' in output
    assert "Names</h2>" not in site.server.get(f"/runs/{site.good}").text


def test_no_name_leads_astray_or_becomes_markup(site: Site) -> None:
    """Every link of every page of names leads somewhere, whatever the names are."""
    waiting, seen = ["/artifacts", "/models", "/models?text=a/..", named("model", HOSTILE, 1, do="promote")], set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        answer = site.server.ask("GET", path)
        assert answer.code == 200, path
        if "as=file" in path:
            continue
        assert "<script>alert" not in answer.text and "style=" not in answer.text, path
        links = map(html.unescape, re.findall(r'(?:href|src)="(/(?:artifacts|models)[^"#]*)', answer.text))
        waiting += links
    odd = {path for path in seen if "script" in path}
    assert {named("artifact", HOSTILE), named("artifact", HOSTILE, 1), named("model", HOSTILE, 2)} <= odd
    assert "/artifacts/..@latest" in seen and len(odd) > 8
    both = named("model", HOSTILE) + "?version=1&version=2"
    assert "outside of runs" not in site.server.ask("GET", both).text and "neither" in site.server.ask("GET", both).text
    document = site.server.ask("GET", "/api/v1" + named("model", HOSTILE)).json()
    assert document["metadata"]["odd"] is None and document["metadata"]["huge"] == 10**400
    assert document["metrics"] == {"odd": None}
    for path in ("/artifacts/%00", "/artifacts/@1", "/models/churn@0", "/models/%20"):
        assert site.server.ask("GET", path).code == 400, path
    assert site.server.ask("GET", "/artifacts/..%2f..%2fetc%2fpasswd").code == 404


@pytest.fixture
def promoted(site: Site, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model with a rule that its second version does not fulfil."""
    monkeypatch.setenv("STOKER_HOME", str(site.project.home))
    client = site.project.client()
    name = f"-p {len(client.models('-p'))}"  # a command takes it for an option, unless it is told
    first = client.create_model_version(name, metadata={"score": 3})
    first.promote("production")
    first.set_rules("production", ["score >= production"])
    client.create_model_version(name, metadata={"score": 2})
    return name


def test_a_version_is_promoted_by_its_page_as_far_as_rules_allow(site: Site, promoted: str) -> None:
    page = named("model", promoted, 2)
    question = site.server.ask("GET", f"{page}?do=promote").text
    assert "score &gt;= production" in question and "stoker models promote" in question
    sent = site.server.post(page, urlencode({"stage": "production", "why": "<b>try</b>"}))
    assert sent.code == 303
    text = wait(lambda: (t := site.server.get(sent.headers["location"]).text) and "exit code" in t and t)
    assert "score &gt;= production (score is 2, and not &gt;= 3)" in text and "it was refused" in text
    again = html.unescape(re.findall(r'<a href="([^"]*do=promote[^"]*)"', text)[0])
    assert 'value="&lt;b&gt;try&lt;/b&gt;"' in site.server.ask("GET", again).text
    sent = site.server.post(page, urlencode({"stage": "production", "why": "it is better", "force": "1"}))
    wait(lambda: site.server.get(sent.headers["location"]).headers.get("location") == page)
    history = site.server.ask("GET", "/api/v1" + page).json()["history"]
    assert [(row["version"], row["stage"], row["reason"]) for row in history] == [
        (2, "production", "it is better"), (1, "production", ""),
    ]  # fmt: skip
    for stage in ("", "a@b"):
        wrong = site.server.post(page, urlencode({"stage": stage}))
        assert wrong.code == 400 and "is no name for a stage" in wrong.text
    program = site.server.post("/api/v1" + page.replace("@2", "@1") + "/promote", '{"stage": "staging", "why": "back"}')
    assert "staging" in program.json()["command"]
    wait(lambda: site.server.ask("GET", "/api/v1" + page).json()["stages"] == {"production": 2, "staging": 1})
    assert site.server.post("/api/v1" + page + "/promote", '{"stagee": "staging"}').code == 400


def test_who_may_only_look_promotes_nothing(site: Site, promoted: str) -> None:
    page = named("model", promoted, 2)
    assert site.server.post(page, "stage=staging", headers={"Origin": "http://evil.example"}).code == 403
    server = Server(site.project, "--read-only")
    try:
        assert server.post(page, "stage=staging").code == 403
        assert "do=promote" not in server.ask("GET", page).text
        assert "only shows models" in server.ask("GET", f"{page}?do=promote").text
    finally:
        server.stop()
    assert site.server.ask("GET", "/api/v1" + page).json()["stages"] == {"production": 1}


def test_who_logged_in_at_a_proxy_promotes(site: Site, promoted: str) -> None:
    page = named("model", promoted, 2)
    server = Server(site.project, "--user-header", "X-User")
    try:
        who = {"X-User": "anna", "Origin": server.url, "Host": f"{server.host}:{server.port}"}
        assert server.post(page, "stage=staging", headers=who).code == 303
        history = wait(lambda: (h := site.server.ask("GET", "/api/v1" + page).json()["history"])[1:] and h)
    finally:
        server.stop()
    assert history[0]["author"].startswith("anna@") and history[0]["stage"] == "staging"


@pytest.mark.parametrize("kind", ["artifact", "model"])
def test_a_version_is_tagged_by_its_page(site: Site, promoted: str, kind: str) -> None:
    if kind == "artifact":
        for number in (1, 2):
            site.project.client().save_artifact(number, promoted)
    page = named(kind, promoted, 2)  # type: ignore[arg-type]
    older = named(kind, promoted, 1)  # type: ignore[arg-type]

    def tag(address: str, **form: str) -> list[Any]:
        sent = site.server.post(address, urlencode({"do": "tag", "tag": "-x", **form}))
        wait(lambda: site.server.get(sent.headers["location"]).headers.get("location") == address)
        return [site.server.ask("GET", f"/api/v1{one}").json()["tags"] for one in (older, page)]

    assert f'action="{page}"' in site.server.ask("GET", page).text
    assert tag(older) == [["-x"], []] and tag(page, move="1") == [[], ["-x"]] and tag(page, remove="1") == [[], []]
    assert site.server.post(page, "do=tag&tag=a@b").code == 400
    assert site.server.post(page, "do=tag&tag=a", headers={"Origin": "http://evil.example"}).code == 403
    server = Server(site.project, "--read-only")
    try:
        assert server.post(page, "do=tag&tag=a").code == 403 and 'value="tag"' not in server.ask("GET", page).text
    finally:
        server.stop()


def test_what_a_deleted_run_made_is_still_shown(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
        from typing import Annotated
        from stoker import Artifact, pipeline, step

        @step
        def make() -> Annotated[int, Artifact("orphan")]:
            return 4

        @pipeline(model="orphans")
        def once():
            make()

        if __name__ == "__main__":
            once()
    """
    site.project.write({"once.py": source}).stoker("run", "once.py", "--quiet")
    run = site.runs(pipeline="once")[0]["id"]
    monkeypatch.setenv("STOKER_HOME", str(site.project.home))
    site.project.client().delete(run)
    text = site.server.get("/artifacts/orphan").text
    assert f"make of run <code>{run}</code>, which is deleted" in text and "<pre" in text
    site.project.client().model("orphans").promote("production")
    for place in (
        "/artifacts?text=orphan",
        "/artifacts/orphan",
        "/models?text=orphan",
        "/models/orphans",
        "/models/orphans@1",
    ):
        text = site.server.get(place).text
        assert run in text and f"/runs/{run}" not in text, place
