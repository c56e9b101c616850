"""Tokens (https://www.rfc-editor.org/rfc/rfc7519#section-2) and answers around Kubeflow Pipelines."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.kubeflow.api import KubeflowApi, end_of
from stoker.backends.kubeflow.settings import KubeflowSettings
from stoker.core.errors import BackendError


def token(claims: Any) -> str:
    """A token with these claims, without a signature."""
    return f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.c2ln"


@given(st.integers(1, 10**11) | st.floats(1, 1e11))
def test_every_end_of_a_token(end: float) -> None:
    assert end_of(token({"exp": end})) == end


@pytest.mark.parametrize("end", ["1764000000", None, True, float("nan"), float("inf"), -1, 0, 10**40, [], {}])
def test_a_token_that_does_not_say_when_it_ends(end: Any) -> None:
    assert end_of(token({"exp": end})) is None


@pytest.mark.parametrize("text", ["", "opaque", "a.b", "a.b.c", "e30.e30.c", "e30.W10.c", "ya29.a0.x.y"])
def test_what_is_no_token_does_not_say_it(text: str) -> None:
    assert end_of(text) is None


@pytest.mark.parametrize("field", ["experiment_id", "run_id"])
def test_an_answer_without_its_id(field: str) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(b'{"display_name": "one", "of_a_newer_release": [1]}')

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, format: str, *arguments: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    api = KubeflowApi(KubeflowSettings(host=f"http://127.0.0.1:{server.server_port}"), {}, patience=20.0)
    with pytest.raises(BackendError, match=f"without its {field}: "):
        api.create_run({}) if field == "run_id" else api.experiment("one")
    document = api.run("one")
    assert document is not None and "state" not in document
    server.shutdown()
    server.server_close()
