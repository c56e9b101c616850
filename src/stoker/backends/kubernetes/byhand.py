"""The script by which a person runs a rendered job by hand: its Secret and its Job, created by kubectl.

Stoker's worker, which runs bring and take away, is made by the Python that printed the script.
"""

from __future__ import annotations

import json
import shlex
import sys
from typing import Any, Final, Iterator, Mapping

from stoker.backends.base.byhand import document_lines, input_lines, needs_command, stop, subshell
from stoker.backends.kubernetes.jobs import JOBS, job_spec, name_of_job, without_token
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
    words = ["kubectl", "--context", context, "--namespace", namespace]
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
    yield f'{kubectl} create secret generic {name} --from-file={JOBS}="$here"/jobs'
    yield f"{kubectl} apply -f - <<'END'"
    yield json.dumps(body, indent=2, ensure_ascii=False)
    yield "END"
    yield 'rm -r "$here"'
    yield f"echo its output: {kubectl} logs --follow job/{name_of_job(body)}"
    yield f"echo to remove it: {kubectl} delete {body['kind'].lower()}/{name} secret/{name}"
