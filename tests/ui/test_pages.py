"""What the server answers, over HTTP."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from tests.ui.conftest import Server, Site, wait

from stoker.store.schedules import FiringRow, ScheduleRow, Schedules
from stoker.store.store import open_store


def test_the_list_finds_runs_by_what_people_know_of_them(site: Site) -> None:
    def found(**query: Any) -> set[str]:
        text = site.server.get("/runs", **query).text
        return {run for run in (site.good, site.bad) if f"/runs/{run}" in text}

    assert found() >= {site.good, site.bad}
    assert found(status="failed") == {site.bad}
    assert found(text="TRAIN", status="succeeded") == {site.good}
    assert found(tag="nightly", pipeline="training") == {site.good, site.bad}
    assert found(text=site.bad[:8]) == {site.bad}
    assert found(before=site.bad) == {site.good}
    assert found(since="1h", tag="nightly") == set()
    assert found(stack="nowhere") == found(text="nothing like it") == set()
    assert "No run is like that" in site.server.get("/runs", text="nothing like it").text
    wrong = site.server.get("/runs", status="faild")
    assert "did you mean" in wrong.text and "failed" in wrong.text


def test_a_run_says_which_rank_died_of_what_and_what_to_do(site: Site) -> None:
    text = site.server.get(f"/runs/{site.bad}").text
    assert "Rank 1 of 2 is to blame" in text
    assert "gpu-oom" in text
    assert "CUDA out of memory. Tried to allocate 8.00 GiB" in text
    assert "What to do:" in text
    assert f"<title>failed · training {site.bad} · Stoker</title>" in text


def test_a_step_shows_lines_by_rank_metrics_and_where_settings_come_from(site: Site) -> None:
    text = site.server.get(f"/runs/{site.bad}/step", key="train").text
    assert ">rank 0<" in text and ">rank 1<" in text and "<dt>of a rank</dt>" in text
    assert "launch" in text and "train.py:" in text
    assert 'class="chart"' in text and "loss" in text
    only = site.server.get(f"/runs/{site.bad}/log", key="train", rank="1").text
    assert "epoch 29" in only and "of rank 1" in only and "of rank 0" not in only
    found = site.server.get(f"/runs/{site.bad}/log", key="train", q="EPOCH 7").text
    assert found.count('class="line"') == 2
    whole = site.server.get(f"/runs/{site.bad}/log/file", key="train", rank="0")
    assert whole.headers["content-disposition"].startswith("attachment")
    assert whole.text.splitlines()[0] == "[rank 0] \x1b[32mepoch 0\x1b[0m of rank 0"


def test_the_list_says_why_runs_failed_and_what_they_were_given(site: Site) -> None:
    text = site.server.get("/runs", tag="nightly").text
    assert re.search(r"<strong>train</strong> gpu-oom: CUDA out of memory", text)
    assert "batch=64" in text and "batch=32" in text


def test_a_step_says_what_its_platform_is_sent_and_where_its_inputs_come_from(site: Site) -> None:
    text = site.server.get(f"/runs/{site.bad}/step", key="train").text
    assert f'href="/runs/{site.bad}/artifact?key=load&amp;name=images">load.images</a>' in text
    assert "a value of the call" in text  # batch
    assert "On the orchestrator of stack " in text and "What its platform is sent for it" in text
    sent = site.server.get(f"/runs/{site.bad}/request", key="train")
    assert "would send it now to the orchestrator" in sent.text
    assert sent.code == 200 and "stoker.worker.boot" in sent.text and f"{site.bad}/train/1" in sent.text
    document = site.server.get(f"/api/v1/runs/{site.bad}/request", key="train").json()
    assert document["backend"] == "orchestrator" and document["step"] == "train"
    assert site.server.get(f"/runs/{site.bad}/request", key="nothing").code == 404


def test_a_step_says_why_it_was_cached(site: Site) -> None:
    text = site.server.get(f"/runs/{site.bad}/step", key="load").text
    assert "Why it was cached" in text
    assert f"/runs/{site.good}" in text


def test_two_runs_are_compared(site: Site) -> None:
    answer = site.server.get("/api/v1/compare?" + urlencode([("run", site.good), ("run", site.bad)])).json()
    assert answer["parameters"] == [{"name": "batch", "left": "32", "right": "64"}]
    assert {row["step"]: row["left_status"] for row in answer["steps"]}["train"] == "succeeded"
    assert {row["metric"] for row in answer["metrics"]} == {"loss"}
    text = site.server.get("/compare?" + urlencode([("run", site.good), ("run", site.bad)])).text
    assert "Their code is the same." in text
    assert site.server.get("/compare", run=site.bad).headers["location"].endswith(f"run={site.good}&run={site.bad}")


# Artifacts


def test_an_artifact_is_shown_and_downloaded(site: Site) -> None:
    array = site.server.get(f"/runs/{site.good}/artifact", key="load", name="images").text
    assert "500×8 float64" in array and "histogram of images of load" in array
    assert "as <code>images</code>" in array  # train and evaluate took it
    model = site.server.get(f"/runs/{site.good}/artifact/file", key="train", name="model")
    assert model.data == b'{"weights":1.0,"batch":32}'
    picture = site.server.get(f"/runs/{site.good}/artifact/image", key="evaluate", name="picture")
    assert picture.headers["content-type"] == "image/png"
    for answer in (model, picture):
        assert answer.headers["content-security-policy"].startswith("sandbox;")
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert site.server.get(f"/runs/{site.good}/artifact/image", key="train", name="model").code == 404


def test_a_pickle_is_never_loaded(site: Site, tmp_path: Path) -> None:
    text = site.server.get(f"/runs/{site.good}/artifact", key="evaluate", name="labels").text
    assert "loading it would run code" not in text, "the worker has looked at it"
    project = site.project
    bomb = """
        import os
        from stoker import pipeline, step

        class Bomb:
            def __reduce__(self):
                return os.system, ("touch exploded",)

        @step(cache=False)
        def make() -> object:
            return Bomb()

        @pipeline
        def bombs():
            make()

        if __name__ == "__main__":
            bombs()
    """
    project.write({"bomb.py": bomb}).stoker("run", "bomb.py", "--quiet")
    run = site.runs(pipeline="bombs")[0]["id"]
    for path in ("", "/file"):
        answer = site.server.get(f"/runs/{run}/artifact{path}", key="make", name="output")
        assert answer.code == 200
    site.server.get(f"/api/v1/runs/{run}/lineage", key="make", name="output")
    site.server.get(f"/runs/{run}")
    assert not list(project.folder.rglob("exploded"))


def test_a_users_page_is_shown_in_a_sandbox_alone(site: Site) -> None:
    text = site.server.get(f"/runs/{site.good}/artifact", key="evaluate", name="page").text
    assert '<iframe src="/runs/' in text
    assert 'sandbox="allow-scripts"' in text and "allow-same-origin" not in text
    frame = site.server.get(f"/runs/{site.good}/artifact/frame", key="evaluate", name="page")
    policy = frame.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts; default-src 'none'")
    assert "allow-same-origin" not in policy and "connect-src" not in policy


def test_a_users_card_is_shown_in_a_sandbox_alone(site: Site) -> None:
    flow = """
        from stoker.flow import FlowSpec, Frame, Markdown, card, current, step

        class CardFlow(FlowSpec):
            @card
            @step
            def start(self):
                current.card.append(Markdown("# Mine <script>alert(1)</script>"))
                current.card.append(Frame("<h1>chart</h1><script>document.body.dataset.ran = 1</script>"))
                self.next(self.end)

            @step
            def end(self):
                pass

        if __name__ == "__main__":
            CardFlow()
    """
    site.project.write({"carded.py": flow}).run("carded.py", "run", "--quiet")
    run = site.runs(pipeline="CardFlow")[0]["id"]
    step = site.server.get(f"/runs/{run}/step", key="start")
    assert f'<iframe src="/runs/{run}/card?key=start" sandbox="allow-scripts"' in step.text
    assert "unsafe" not in step.headers["content-security-policy"]
    frame = site.server.get(f"/runs/{run}/card", key="start")
    assert frame.headers["content-security-policy"].startswith("sandbox allow-scripts; default-src 'none'")
    assert "Mine" in frame.text and "<script" not in frame.text and "srcdoc=" in frame.text
    assert "<iframe" not in site.server.get(f"/runs/{run}/step", key="end").text
    assert site.server.get(f"/runs/{run}/card", key="end").code == 404


SINFO = """#!/bin/sh
echo 'gpu|2|96|2000000|0|(null)|gpu:h100:8(S:0-1)|idle|gpu[01-02]'
"""
SCONTROL = """#!/bin/sh
case "$*" in *partition*) echo 'PartitionName=gpu State=UP TotalNodes=2 Default=YES' ;; esac
"""


def test_the_devices_page_lists_the_nodes_of_the_stacks_platforms(project: Any, tmp_path: Path) -> None:
    for name, text in (("sinfo", SINFO), ("scontrol", SCONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    project.write({"stoker.toml": '[stacks.cluster]\norchestrator = "slurm"\n'})
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    server = Server(project, "--stack", "cluster", env={"PATH": path})
    try:
        # The platform is asked beside the page, which refreshes itself.
        text = wait(lambda: "gpu[01-02]" in (page := server.get("/devices").text) and page)
        assert "Nodes of Slurm" in text and "8 h100, 8 free" in text and "idle" in text and "2.1 TB" in text
        [part] = server.get("/api/v1/devices").json()["nodes"]
        assert part["part"] == "Slurm" and [node["count"] for node in part["nodes"]] == [2]
    finally:
        server.stop()


def test_the_page_of_schedules_says_what_was_missed(site: Site) -> None:
    store = open_store(home=str(site.project.home))
    schedules = Schedules(store.records.database)
    since = time.time() - 3 * 86400.0
    row = ScheduleRow(
        name="nightly",
        cron=f"0 {(time.gmtime().tm_hour + 12) % 24} * * *",  # no due time is near
        zone="UTC",
        file="train.py",
        words=(
            "--tag",
            "<b>",
        ),
        folder="/",
        stack="local",
        target="crontab",
        since=since,
        created=since,
        author="me",
    )
    schedules.put(row)
    firing = FiringRow(
        source=row.source,
        occasion="by hand",
        state="started",
        due=since,
        run_id=site.good,
        owner="",
        changed=since,
    )
    assert schedules.claim(firing) is not None
    text = site.server.get("/schedules").text
    assert "3 missed" in text
    assert text.count("<td>missed</td>") == 3 and "&lt;b&gt;" in text
    assert f'<a href="/runs/{site.good}">' in text
    assert "started by" in site.server.get(f"/runs/{site.good}").text
    schedules.remove("nightly")
    store.close()
    assert "No schedules yet" in site.server.get("/schedules").text


# Who may do what


def test_no_page_has_scripts_or_styles_of_its_own(site: Site) -> None:
    for path in (
        "/runs",
        f"/runs/{site.bad}",
        f"/runs/{site.bad}/step?key=train",
        "/devices",
        f"/runs/{site.bad}/rerun",
    ):
        answer = site.server.get(path)
        policy = answer.headers["content-security-policy"]
        assert "script-src 'self'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert "style=" not in answer.text and "<style" not in answer.text and "onclick" not in answer.text
        assert "<script>" not in answer.text
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_what_a_step_prints_is_text(site: Site) -> None:
    text = site.server.get(f"/runs/{site.good}/log", key="load").text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static/..%2f..%2f..%2f..%2fetc%2fpasswd",
        "/static//etc/passwd",
        "/static/vendor/htmx.min.js",
        "/runs/..%2f..%2fetc/log?key=passwd",
        "/runs/{run}/log/file?key=..%2f..%2f..%2fetc%2fpasswd",
        "/runs/{run}/artifact/file?key=..%2f..&name=..%2f..%2fetc%2fpasswd",
        "/runs/{run}/artifact/file?key=train&name=..%2f..%2fstoker.db",
    ],
)
def test_no_address_leads_out_of_the_store(site: Site, path: str) -> None:
    answer = site.server.get(path.replace("{run}", site.good))
    assert answer.code == 404
    assert b"root:" not in answer.data and b"SQLite" not in answer.data and b"import" not in answer.data


def test_a_request_of_another_page_changes_nothing(site: Site) -> None:
    for headers in ({}, {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        for path in (f"/runs/{site.bad}/rerun", f"/api/v1/runs/{site.bad}/rerun", f"/runs/{site.bad}/cancel"):
            answer = site.server.post(path, headers=headers)
            assert answer.code == 403 and "STK343" in answer.text
    assert site.server.get("/runs", headers={"Host": "evil.example"}).code == 403
    assert len(site.runs(pipeline="training", limit=500)) >= 2


def test_another_user_of_the_machine_is_refused(site: Site) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can be somebody else")
    # All that is imported is imported before: another user may not read this Python's folder.
    ask = f"s = socket.create_connection(('127.0.0.1', {site.server.port})); s.sendall(b'GET /runs HTTP/1.0\\r\\nHost: "
    ask += "127.0.0.1\\r\\n\\r\\n'); print(b''.join(iter(lambda: s.recv(65536), b'')).decode())"
    for user, expected in ((0, " 200 "), (65534, " 403 ")):
        program = f"import encodings.idna, os, socket; os.setuid({user}); {ask}"
        answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert expected in answer.stdout.partition("\n")[0]
    assert "STK342" in answer.stdout


def test_a_token_is_shown_once_and_kept_as_a_cookie(site: Site) -> None:
    token = "0123456789abcdef0123456789abcdef"
    server = Server(site.project, "--token", "--read-only", env={"STOKER_UI_TOKEN": token})
    try:
        assert server.address.endswith(f"/login?token={token}")
        sent = server.get(f"/runs/{site.bad}", x="1")
        assert sent.code == 303
        assert sent.headers["location"] == f"/login?next={quote(f'/runs/{site.bad}?x=1', safe='')}"
        assert server.get("/api/v1/runs").code == 401
        assert server.get("/static/ui.css").code == 200  # the login has looks, too
        entered = server.get("/login", token=token, next=f"/runs/{site.bad}")
        assert entered.headers["location"] == f"/runs/{site.bad}"
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=lax" in cookie and token not in cookie
        kept = {"Cookie": cookie.partition(";")[0]}
        assert server.get("/runs", headers=kept).code == 200
        assert server.get("/runs", headers={"Cookie": "stoker_ui=nothing"}).code == 303
        assert server.get("/login", token="wrong-token-of-some-length").code == 403
        assert server.get("/login", token=token, next="https://evil.example/").headers["location"] == "/runs"
        assert server.get("/login", token=token, next="//evil.example/").headers["location"] == "/runs"
        assert server.get("/api/v1/runs", headers={"Authorization": f"Bearer {token}"}).code == 200
        # It is read-only besides.
        refused = server.post(f"/runs/{site.bad}/rerun", headers={"Origin": server.url, **kept})
        assert refused.code == 403 and "STK344" in refused.text
        page = server.get(f"/runs/{site.bad}", headers=kept).text
        assert "read-only" in page and "Run again" not in page
        assert "only shows runs" in server.get(f"/runs/{site.bad}/rerun", headers=kept).text
    finally:
        server.stop()


def test_a_proxys_word_is_believed_and_no_other(site: Site) -> None:
    server = Server(site.project, "--user-header", "X-User")
    try:
        assert server.get("/runs", headers={"X-User": "anna", "Host": "stoker.example.org"}).code == 200
        assert server.get("/runs").code == 403
    finally:
        server.stop()


def test_an_open_address_is_refused_before_it_is_listened_on(site: Site) -> None:
    refused = site.project.stoker("ui", "--host", "0.0.0.0", code=2)
    assert "STK340" in refused.stderr and "--token" in refused.stderr
    taken = site.project.stoker("ui", "--port", str(site.server.port), code=4)
    assert "is taken" in taken.stderr and "--port" in taken.stderr


def test_without_its_packages_the_command_names_the_extra(site: Site) -> None:
    absent = "import sys\nfor name in ('starlette', 'uvicorn', 'jinja2'): sys.modules[name] = None\n"
    site.project.write({"absent/sitecustomize.py": absent})
    missing = site.project.stoker("ui", env={"PYTHONPATH": str(site.project.folder / "absent")}, code=4)
    assert "pip install 'stoker[ui]'" in missing.stderr


# JSON


def test_every_endpoint_is_described_and_answers(site: Site) -> None:
    described = site.server.get("/api/v1/openapi.json").json()
    assert described["openapi"].startswith("3.1")
    values = {"run": site.good, "key": "train", "name": "model", "command": "none"}
    asked = 0
    for path, methods in described["paths"].items():
        for method, about in methods.items():
            if method != "get":
                continue
            query = {
                one["name"]: values[one["name"]]
                for one in about["parameters"]
                if one["in"] == "query" and one["required"]
            }
            name = "churn" if "/models" in path else "classifier@tag:prod"
            address = path.replace("{run}", site.good).replace("{command}", "none").replace("{name}", name)
            answer = site.server.get(address, **query)
            expected = {"/api/v1/compare": 400, "/api/v1/commands/{command}": 404}.get(path, 200)
            assert answer.code == expected, (path, answer.text)
            assert answer.headers["content-type"] == "application/json"
            asked += 1
    assert asked == 15
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(
        described["paths"]["/api/v1/runs/{run}/rerun"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    )


def test_the_api_says_what_the_pages_say(site: Site) -> None:
    run = site.server.get(f"/api/v1/runs/{site.bad}").json()
    failed = next(step for step in run["steps"] if step["key"] == "train")
    assert failed["attempts"][-1]["failure"]["rank"] == 1
    step = site.server.get(f"/api/v1/runs/{site.bad}/step", key="train").json()
    assert any(row["setting"].startswith("launch") and "train.py" in row["origin"] for row in step["settings"])
    lines = site.server.get(f"/api/v1/runs/{site.bad}/log", key="train", rank=1, tail=2).json()["lines"]
    assert {line["rank"] for line in lines} == {1}
    metrics = site.server.get(f"/api/v1/runs/{site.good}/metrics", key="train").json()
    assert len(metrics["metrics"]["loss"]["points"]["0"]) == 30
    assert metrics["facts"] == {"architecture": "resnet"}
    assert site.server.get("/api/v1/runs/zzz").json()["error"].startswith("there is no run")
    assert site.server.get("/api/v1/runs", limit=1).json()["next"]


def test_a_wrong_wish_is_answered_in_words(site: Site) -> None:
    answer = site.server.post(f"/runs/{site.bad}/rerun", urlencode({"settings": "gpu_count 1"}))
    assert answer.code == 400 and "is no setting" in answer.text and "gpu_count 1" in answer.text
    answer = site.server.post(f"/api/v1/runs/{site.bad}/rerun", '{"batch": 3}')
    assert answer.code == 400 and "no field 'batch'" in answer.json()["error"]
    assert site.server.post(f"/api/v1/runs/{site.bad}/rerun", "[").code == 400
    answer = site.server.post(f"/runs/{site.bad}/rerun", urlencode({"settings": "steps.trian.retry=1"}))
    assert answer.code == 303
    command = answer.headers["location"]

    def ended() -> str:
        text = site.server.get(command).text
        return text if "exit code" in text else ""

    text = wait(ended)
    assert "exit code 2" in text and "trian" in text and "train" in text


def test_a_run_is_cancelled_and_gone_on_with_by_its_page(site: Site) -> None:
    project = site.project
    project.stoker("run", "wait.py", "--file", "over", "--detach")
    shown = wait(lambda: site.runs(pipeline="waiting", status="running"))[0]["id"]
    wait(lambda: "line 3" in site.server.get(f"/runs/{shown}/log", key="work").text)
    assert "Cancel" in site.server.get(f"/runs/{shown}").text
    question = site.server.get(f"/runs/{shown}/cancel").text
    assert "Its steps are asked to end" in question and f"stoker cancel {shown}" in question
    sent = site.server.post(f"/runs/{shown}/cancel", "now=1")
    assert sent.code == 303
    wait(lambda: site.server.get(sent.headers["location"]).headers.get("location") == f"/runs/{shown}")
    wait(lambda: site.server.get(f"/api/v1/runs/{shown}").json()["status"] == "cancelled")
    (project.folder / "over").touch()
    sent = site.server.post(f"/runs/{shown}/resume")
    wait(lambda: site.server.get(sent.headers["location"]).headers.get("location") == f"/runs/{shown}")
    wait(lambda: site.server.get(f"/api/v1/runs/{shown}").json()["status"] == "succeeded")
