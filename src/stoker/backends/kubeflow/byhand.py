"""The script by which a person runs a rendered job by hand: the pipeline, and the order that the step's pod takes."""

from __future__ import annotations

import shlex
from typing import Any, Iterator, Mapping

from stoker.backends.base.byhand import document_lines, file_lines, input_lines, needs, needs_command, stop, subshell
from stoker.backends.kubeflow import compile as kfp
from stoker.backends.kubeflow.api import ENDPOINT
from stoker.core.codec import to_json
from stoker.core.orders import JOB, MailOrder, order_folder, order_note
from stoker.core.plan import Job

PIPELINE = "pipeline.yaml"


def script(job: Job, request: Mapping[str, Any], *, host: str, experiment: str) -> str:
    """The script. That of the run's first step starts the run, whose pods wait for the orders of all steps.

    Where nothing names the endpoint, `host` is empty, and the script takes it from KFP's own variable.
    """
    return subshell(_lines(job, request, host, experiment))


def _lines(job: Job, request: Mapping[str, Any], host: str, experiment: str) -> Iterator[str]:
    yield from input_lines(job.key, request["order"]["job"]["inputs"])
    mailbox = request["mailbox"]
    if "://" in mailbox:
        yield stop(
            f"missing: {mailbox}/{order_note(0)}, and {JOB} beside it, in the artifact store: a run puts them there"
        )
    else:
        yield needs(request["worker"], "Stoker's worker, which the first run puts there")
        folder = f"{mailbox}/{order_folder(0)}"
        yield f"mkdir -p {shlex.quote(folder)}"
        yield from document_lines(shlex.quote(f"{folder}/{JOB}"), {**request["order"], "package": ""})
        yield from document_lines(shlex.quote(f"{mailbox}/{order_note(0)}"), to_json(MailOrder()))
    if "request" not in request:
        return
    specs = request["request"]["pipeline_spec"]
    spec, platform = (specs["pipeline_spec"], specs["platform_spec"]) if "pipeline_spec" in specs else (specs, {})
    yield from file_lines(PIPELINE, kfp.document(spec, platform))
    yield needs_command("kfp", "pip install kfp")
    name = request["request"]["display_name"]
    words = ["run", "create", "--experiment-name", experiment, "--run-name", name, "--package-file", PIPELINE]
    endpoint = shlex.quote(host) if host else f'"${{{ENDPOINT}:?names the endpoint}}"'
    yield f"kfp --endpoint {endpoint} {shlex.join(words)}"
