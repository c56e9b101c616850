"""The client of the API: who asks, whose certificate is trusted, what is refused and what is silence."""

from __future__ import annotations

import base64
import json
import re
import sys
import threading
import time
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import kfp_server_api
import pytest
from tests.kubeflow.endpoint import Endpoint
from tests.servers.authority import certificate

from stoker.backends.kubeflow import requests as kfp
from stoker.backends.kubeflow.api import ENDPOINT, TOKEN_PATH, KubeflowApi
from stoker.backends.kubeflow.settings import KubeflowSettings
from stoker.core.errors import Away, BackendError, SettingsError

POD = {
    "metadata": {},
    "spec": {"containers": [{"name": "step", "image": "team/step:1", "command": ["true"], "args": []}]},
}


def api_of(endpoint: Endpoint, environment: dict[str, str] | None = None, **settings: Any) -> KubeflowApi:
    return KubeflowApi(KubeflowSettings(host=endpoint.host, **settings), environment or {}, patience=20.0)


def test_a_token_is_read_for_each_request(tmp_path: Path) -> None:
    with Endpoint(tmp_path / "kubeflow", token="first") as endpoint:
        file = tmp_path / "token"
        file.write_text("first\n")
        api = api_of(endpoint, token=str(file))
        assert api.health()["tag_name"]
        endpoint.token = "second"
        with pytest.raises(BackendError, match="does not let us in") as refused:
            api.health()
        assert "token=" in refused.value.fix
        file.write_text("second\n")
        assert api.health()["tag_name"]
        assert api_of(endpoint, {TOKEN_PATH: str(file)}).health(), "a pod's own"
        with pytest.raises(BackendError, match=r"the token of .* is not there"):
            api_of(endpoint, token="env:NO_SUCH_TOKEN").health()


def test_a_session_that_has_expired_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "right")
    with Endpoint(tmp_path / "kubeflow", login=("ada", "right")) as endpoint:
        api = api_of(endpoint, {"PASSWORD": "right"}, username="ada", password="env:PASSWORD")
        assert api.health()["tag_name"]
        endpoint.sessions += 1
        assert api.health()["tag_name"]
        assert endpoint.requests.count("POST /dex/auth/local") == 2


GCLOUD = """#!{python}
import sys
open({log!r}, "a").write(" ".join(sys.argv[1:]) + chr(10))
if {fails}:
    sys.exit("ERROR: (gcloud.auth.print-identity-token) Invalid account type for `--audiences`.")
print({token!r})
"""


def token_until(end: float) -> str:
    """A token as Google's look, without a signature."""
    claims = base64.urlsafe_b64encode(json.dumps({"aud": "client", "exp": end}).encode()).decode().rstrip("=")
    return f"e30.{claims}.c2ln"


def test_a_proxy_of_google_by_gcloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token is asked for once, again shortly before it ends, and stands beside one of the endpoint's own."""
    monkeypatch.setenv("MINE", "own")
    log, program = tmp_path / "log", tmp_path / "gcloud"
    environment = {"PATH": str(tmp_path), "MINE": "own"}

    def gcloud(token: str, *, fails: bool = False) -> None:
        program.write_text(GCLOUD.format(python=sys.executable, log=str(log), token=token, fails=fails))
        program.chmod(0o755)

    good = token_until(time.time() + 3600)
    with Endpoint(tmp_path / "kubeflow", token=good) as endpoint:
        gcloud(good)
        api = api_of(endpoint, environment, iap_client_id="client")
        assert api.health() and api.health()
        assert log.read_text() == "auth print-identity-token --audiences=client\n"
        endpoint.token = soon = token_until(time.time() + 60)
        gcloud(soon)
        api = api_of(endpoint, environment, iap_client_id="client")
        assert api.health() and api.health()
        assert len(log.read_text().splitlines()) == 3, "one that ends within two minutes is renewed"
        endpoint.token = "own"
        assert api_of(endpoint, environment, iap_client_id="client", token="env:MINE").health()
        assert f"Bearer {soon}" in endpoint.proxy_authorizations
        gcloud("", fails=True)
        with pytest.raises(BackendError, match="Invalid account type for `--audiences`") as refused:
            api_of(endpoint, environment, iap_client_id="client").health()
        assert "activate-service-account" in refused.value.fix


def test_a_proxy_of_google_by_the_metadata_server(tmp_path: Path) -> None:
    token = token_until(time.time() + 3600)
    asked: list[str] = []

    class Metadata(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.path} {self.headers['Metadata-Flavor']}")
            self.send_response(200 if "audience=client&" in self.path else 404)
            self.end_headers()
            self.wfile.write(token.encode() if "audience=client&" in self.path else b"no")

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {"PATH": str(tmp_path), "GCE_METADATA_HOST": f"127.0.0.1:{server.server_port}"}
    try:
        with Endpoint(tmp_path / "kubeflow", token=token) as endpoint:
            assert api_of(endpoint, environment, iap_client_id="client").health()
            path = "/computeMetadata/v1/instance/service-accounts/default/identity?audience=client&format=full"
            assert asked == [f"{path} Google"]
            with pytest.raises(BackendError, match="the metadata server answers with status 404"):
                api_of(endpoint, environment, iap_client_id="other").health()
    finally:
        server.shutdown()
        server.server_close()
    with pytest.raises(BackendError, match="there is no gcloud here, and no metadata server"):
        api_of(endpoint, environment, iap_client_id="client").health()


def test_experiments_of_a_namespace(endpoint: Endpoint) -> None:
    api = api_of(endpoint, namespace="ada")
    first = api.experiment("trials")
    assert api.experiment("trials") == first and api.experiment("others") != first
    assert {one["namespace"] for one in endpoint.experiments.values()} == {"ada"}


def test_a_run_that_is_not_there(endpoint: Endpoint) -> None:
    api = api_of(endpoint)
    assert api.run("none") is None
    api.terminate("none")
    assert api.find_run(api.experiment("trials"), "none") == ""


def test_silence_and_what_is_not_kubeflow(endpoint: Endpoint) -> None:
    endpoint.answer_with = (503, b"upstream connect error", "text/plain")
    with pytest.raises(Away, match="status 503: upstream connect error"):
        api_of(endpoint).health()
    endpoint.answer_with = (200, b"<html>Welcome</html>", "text/html")
    with pytest.raises(BackendError, match="does not let us in"):
        api_of(endpoint).health()
    endpoint.answer_with = (200, b"[1, 2]", "application/json")
    with pytest.raises(BackendError, match="is not Kubeflow Pipelines") as refused:
        api_of(endpoint).health()
    assert "/pipeline" in refused.value.fix
    endpoint.answer_with = (404, b"no route", "text/plain")
    with pytest.raises(BackendError, match="has no /apis/v2beta1/healthz") as refused:
        api_of(endpoint).health()
    assert "it ends in /pipeline" in refused.value.fix
    endpoint.answer_with = (400, b'{"error": "bad", "error_details": "the pipeline has no tasks"}', "application/json")
    with pytest.raises(BackendError, match=r"refuses GET .*the pipeline has no tasks"):
        api_of(endpoint).health()
    nobody = KubeflowApi(KubeflowSettings(host="http://127.0.0.1:9"), {}, patience=5.0)
    with pytest.raises(Away, match="refused"):
        nobody.health()
    nobody.abandon()
    with pytest.raises(Away, match="not asked any more"):
        nobody.health()


def test_where_the_endpoint_is() -> None:
    assert KubeflowApi(KubeflowSettings(), {ENDPOINT: "http://there/"}).host == "http://there"
    with pytest.raises(SettingsError, match="no endpoint") as missing:
        KubeflowApi(KubeflowSettings(), {}).health()
    assert "host=" in missing.value.fix
    with pytest.raises(SettingsError, match="no address of a web server") as wrong:
        KubeflowSettings(host="kubeflow.example.org")
    assert wrong.value.fix == "write https://kubeflow.example.org"


def test_whose_certificate_is_trusted(tmp_path: Path) -> None:
    """One of an own authority is trusted where its file is named, or where nothing is to be checked."""
    own = certificate(tmp_path, "127.0.0.1")
    with Endpoint(tmp_path / "kubeflow", tls=own.server()) as endpoint:
        with pytest.raises(Away, match="certificate"):
            api_of(endpoint).health()
        assert api_of(endpoint, verify=False).health()
        assert api_of(endpoint, verify=str(own.authority)).health()


NOT_HERE: dict[str, tuple[str, ...]] = {
    "V2beta1Run": (
        # Of a pipeline that was uploaded before, of a schedule, of plug-ins; an error of a run that failed.
        "pipeline_version_id", "pipeline_version_reference", "recurring_run_id", "plugins_input", "plugins_output",
        "description", "error",
    ),
    "V2beta1Experiment": ("description", "namespace"),  # of an endpoint that serves several users
    "V2beta1RunDetails": ("pipeline_context_id", "pipeline_run_context_id"),  # of KFP's own record of artifacts
    "V2beta1PipelineTaskDetail": (
        "executor_detail", "execution_id", "inputs", "outputs", "parent_task_id", "pod_name", "error",
    ),  # of the same record; it may lack a task
    "V2beta1ListRunsResponse": ("next_page_token", "total_size"),
    "V2beta1ListExperimentsResponse": ("next_page_token", "total_size"),
    "V2beta1RuntimeStatus": ("error",),
    "V2beta1RuntimeConfig": ("parameters",),
    "PipelineTaskDetailChildTask": ("task_id",),  # a child has one of two names
}  # fmt: skip
"""Fields that a model of KFP's own client has, and the endpoint of the tests never says."""


def unlike(kind: str, said: Any, place: str) -> list[str]:
    """The fields of an answer that KFP's own client does not know, or that it knows and the answer has not."""
    listed = re.fullmatch(r"list\[(.*)\]", kind)
    if listed is not None:
        return [line for one in said for line in unlike(listed[1], one, f"{place}[]")]
    model = getattr(kfp_server_api, kind, None)
    if kind == "datetime":
        return [] if re.fullmatch(r"[0-9-]{10}T[0-9:]{8}Z", said) else [f"{place}: {said}"]
    if model is None or not isinstance(said, dict):
        allowed = getattr(model, "allowable_values", None)
        return [] if allowed is None or said in allowed else [f"{place}: {said} is none of {allowed}"]
    fields = {theirs: model.openapi_types[ours] for ours, theirs in model.attribute_map.items()}
    lines = [f"{place}.{name} is unknown" for name in said.keys() - fields.keys()]
    lines += [f"{place}.{name} is missing" for name in fields.keys() - said.keys() - set(NOT_HERE.get(kind, ()))]
    return lines + [
        line for name in said.keys() & fields for line in unlike(fields[name], said[name], f"{place}.{name}")
    ]


def test_the_endpoint_of_the_tests_answers_in_kfps_own_fields(tmp_path: Path) -> None:
    with Endpoint(tmp_path / "kubeflow") as endpoint:
        api = api_of(endpoint)
        experiment = api.experiment("one")
        spec, _ = kfp.pipeline_spec("one", "", [kfp.PipelineTask(name="row", title="row", template=POD)])
        body = {"display_name": "one", "experiment_id": experiment, "pipeline_spec": spec}
        run = api.create_run({**body, "runtime_config": {"pipeline_root": "s3://team/kfp"}})
        answers = []
        for path, kind in (
            ("healthz", "V2beta1GetHealthzResponse"),
            (f"runs/{run}", "V2beta1Run"),
            ("experiments?filter=" + query("display_name", "one"), "V2beta1ListExperimentsResponse"),
            ("runs?filter=" + query("display_name", "one"), "V2beta1ListRunsResponse"),
        ):
            with urllib.request.urlopen(f"{endpoint.host}/apis/v2beta1/{path}") as answer:
                answers.append((kind, json.loads(answer.read())))
        endpoint.wait(run)
        answers.append(("V2beta1Run", dict(api.run(run) or {})))
        known = {"V2beta1GetHealthzResponse.commit_sha is unknown", "V2beta1GetHealthzResponse.tag_name is unknown"}
        # main.go of KFP's API server writes these two beside what its own model has.
        assert {line for kind, said in answers for line in unlike(kind, said, kind)} == known
        theirs = kfp_server_api.RunServiceApi(kfp_server_api.ApiClient(kfp_server_api.Configuration(endpoint.host)))
        assert theirs.run_service_get_run(run).state in ("SUCCEEDED", "FAILED")


def query(key: str, value: str) -> str:
    """A filter as KFP's own client writes it."""
    predicate = {"operation": "EQUALS", "key": key, "stringValue": value}
    return urllib.parse.quote(json.dumps({"predicates": [predicate]}))
