"""The script by which a person submits a rendered job by hand: its folder, its document, and sbatch."""

from __future__ import annotations

import shlex
from typing import Any, Iterator, Mapping

from stoker.backends.base.byhand import (
    document_lines,
    file_lines,
    input_lines,
    needs,
    needs_command,
    split_variables,
    subshell,
)
from stoker.backends.slurm.script import DOCUMENT, SCRIPT, bundle_path, image_of
from stoker.backends.slurm.settings import SlurmSettings
from stoker.core.plan import Job, Site
from stoker.core.protocol import RESULT


def script(job: Job, request: Mapping[str, Any], site: Site, settings: SlurmSettings, *, folder: str) -> str:
    """The script; `folder` is that of the submission."""
    return subshell(_lines(job, request, site, settings, folder))


def _lines(job: Job, request: Mapping[str, Any], site: Site, settings: SlurmSettings, folder: str) -> Iterator[str]:
    place = f"paste this into a shell of {settings.host}" if settings.get("host") else "paste this on a login node"
    yield needs_command("sbatch", place)
    yield from input_lines(job.key, request["document"]["job"]["inputs"])
    if settings.shares:
        bundle = bundle_path(site, settings, folder)
        if bundle:
            yield needs(bundle, "Stoker's worker, which a run makes")
    home = "" if folder.startswith("/") else "$HOME"
    here = f'"$HOME"/{shlex.quote(folder[2:])}' if home else shlex.quote(folder)
    yield f"here={here}"
    yield 'mkdir -p "$here"/0'
    document, variables = split_variables(_document(job, request["document"], settings))
    yield from variables
    yield from document_lines(f'"$here"/0/{DOCUMENT}', document)
    yield from file_lines(f'"$here"/{SCRIPT}', request["script"])
    if home:
        # A run asks the login node for the home; in the script and the document it stands as it was set.
        yield f'sed -i "s|~/|$HOME/|g" "$here"/{SCRIPT} "$here"/0/{DOCUMENT}'
    yield f'sbatch "$here"/{SCRIPT}'
    yield f'echo "its output: $here/0/out-0 and err-0, its result: $here/0/{RESULT}"'


def _document(job: Job, document: Mapping[str, Any], settings: SlurmSettings) -> Mapping[str, Any]:
    """Nodes that see this machine's folders take the code from there, not from a package that a run would store."""
    if settings.shares and not image_of(job.step):
        return {**document, "package": ""}
    return document
