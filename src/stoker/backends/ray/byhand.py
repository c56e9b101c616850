"""The script by which a person submits a rendered job by hand: its document, and a request to Ray's Jobs API."""

from __future__ import annotations

import json
import os
import shlex
from typing import Any, Iterator, Mapping

from stoker.backends.base.byhand import document_lines, file_lines, input_lines, stop, subshell
from stoker.backends.ray.tasks import DOCUMENT
from stoker.core.plan import Job


def script(job: Job, request: Mapping[str, Any], *, shares: bool, token: str) -> str:
    """The script; `shares`: whether the cluster sees this machine's files, `token`: where the settings say it is."""
    return subshell(_lines(job, request, shares, token))


def _lines(job: Job, request: Mapping[str, Any], shares: bool, source: str) -> Iterator[str]:
    body, document = request["request"], request["document"]
    folder = body["metadata"]["stoker.folder"]
    yield from input_lines(job.key, document["steps"][0]["spec"]["job"]["inputs"])
    if shares:
        (step,) = document["steps"]
        spec = {**step["spec"], "package": ""}
        yield f"mkdir -p {shlex.quote(folder)}"
        path = shlex.quote(f"{folder}/{DOCUMENT}")
        # The batch's token is no secret, although its name is masked: the name of the Ray job ends with it.
        token = body["submission_id"].rpartition("-")[2]
        yield from document_lines(path, {**document, "token": token, "steps": [{**step, "spec": spec}]})
        # Without the file the program would end its step as one that nobody wants any more.
        yield from file_lines(shlex.quote(document["orders"]), json.dumps({"close": True}))
    else:
        yield stop(
            f"missing: Stoker's worker in the cluster, and {folder}/{DOCUMENT} in the artifact store, which a run puts "
            "there"
        )
    address = shlex.quote(request["address"])
    if source.startswith("env:"):
        name = source.removeprefix("env:")
        yield f'token="${{{name}:?missing: the token of the Ray cluster}}"'
    else:  # as Ray's own client finds it
        path = shlex.quote(os.path.expanduser(source)) if source else '"${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token}"'
        yield f'token="${{RAY_AUTH_TOKEN:-$(cat {path} 2>/dev/null || true)}}"'
    header = '${token:+--header "Authorization: Bearer $token"}'
    yield f"curl --fail-with-body --silent --show-error {header} --json @- {address}/api/jobs/ <<'END'"
    yield json.dumps(body, indent=2, ensure_ascii=False)
    yield "END"
    yield f"echo; echo its output: {address}/api/jobs/{body['submission_id']}/logs, its journal: {folder}/journal"
