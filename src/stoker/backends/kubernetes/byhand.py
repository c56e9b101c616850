"""The script by which a person runs a rendered job by hand: its Secret and its Job, created by kubectl.

Stoker's worker, which runs bring and take away, is made by the Python that printed the script.
"""

from __future__ import annotations

import shlex
import sys
from typing import Any, Final, Iterator, Mapping

from stoker.backends.base.byhand import (
    document_lines,
    input_lines,
    needs_command,
    stop,
    subshell,
    yaml_text,
)
from stoker.backends.kubernetes import pod as podprogram
from stoker.backends.kubernetes.access import UNKNOWN
from stoker.backends.kubernetes.jobs import JOBS, PROGRAM, job_spec, name_of_job, without_token
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core.plan import Job

_WORKER: Final = (
    "import json, sys; from stoker.backends.kubernetes.jobs import worker_maps; "
    "json.dump(worker_maps(sys.argv[1])[int(sys.argv[2])], sys.stdout)"
)


def script(
    job: Job, request: Mapping[str, Any], *, settings: KubernetesSettings, context: str, namespace: str, bundle: str
) -> str:
    """The script; `context` and `namespace` are those that a run would use, `bundle` is the folder with the worker."""
    named = (("--context", context), ("--namespace", namespace))
    words = ["kubectl", *(word for flag, name in named if name != UNKNOWN for word in (flag, name))]
    if settings.get("kubeconfig"):
        words += ["--kubeconfig", settings.get("kubeconfig")]
    return subshell(_lines(job, request, shlex.join(words), bundle))


def _lines(job: Job, request: Mapping[str, Any], kubectl: str, bundle: str) -> Iterator[str]:
    (entry,) = request["document"]
    body = without_token(request["job"])
    name = body["metadata"]["name"]
    yield from input_lines(job.key, entry["spec"]["job"]["inputs"])
    yield needs_command("kubectl", "https://kubernetes.io/docs/tasks/tools/")
    for volume in job_spec(body)["template"]["spec"].get("volumes", ()):
        for number, source in enumerate((volume.get("projected") or {}).get("sources", ())):
            one = shlex.quote(source["configMap"]["name"])
            what = stop(f"missing: the config map {one}; this makes it where Stoker is installed as it is here")
            make = shlex.join([sys.executable, "-c", _WORKER, bundle, str(number)])
            yield f"{kubectl} get configmap {one} >/dev/null 2>&1 || {make} | {kubectl} create -f - || {what}"
    yield "here=$(mktemp -d)"
    yield from document_lines('"$here"/job.json', [entry])
    yield 'gzip -c "$here"/job.json > "$here"/jobs'
    files = f'--from-file={JOBS}="$here"/jobs --from-file={PROGRAM}={shlex.quote(podprogram.__file__)}'
    yield f"{kubectl} create secret generic {name} {files}"
    yield f"{kubectl} apply -f - <<'END'"
    yield yaml_text(body)
    yield "END"
    yield 'rm -r "$here"'
    yield f"echo its output: {kubectl} logs --follow job/{name_of_job(body)}"
    yield f"echo to remove it: {kubectl} delete {body['kind'].lower()}/{name} secret/{name}"
