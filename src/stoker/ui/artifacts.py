"""An artifact: what is in it, as far as a page can show it without running its code; which steps made and used it.

Values of pickle and whatever else can run code are never loaded (`store.previews`); besides, the store that the server
opens is not trusted (`store.artifacts`).
"""

from __future__ import annotations

import mimetypes
from typing import Final, Mapping

import attrs

from stoker.client import ArtifactVersion, Output, Run
from stoker.core.artifact import StoredArtifact, picture_type
from stoker.core.errors import NotFound, StokerError
from stoker.report.markup import Html, element, empty
from stoker.report.stepparts import preview_part
from stoker.store import previews
from stoker.store.blobs import Blobs
from stoker.store.store import Store

EXTENSIONS: Final[Mapping[str, str]] = {
    "json": ".json",
    "str": ".txt",
    "bytes": ".bin",
    "list": ".json",
    "numpy": ".npy",
    "torch": ".pt",
    "pandas": ".parquet",
    "polars": ".parquet",
    "pyarrow": ".parquet",
    "pickle": ".pkl",
    "cloudpickle": ".pkl",
}
"""Serializer → the ending of a file with its bytes."""


def file_name(output: Output) -> str:
    """A name for a file with an output's bytes."""
    name = str(output.meta.get("name") or "") if output.serializer == "path" else ""
    if name:
        return f"{name}.tar" if output.meta.get("kind") == "folder" else name
    place = f"{output.name}@{output.version}" if isinstance(output, ArtifactVersion) else f"{output.step}-{output.name}"
    return place.replace("/", "-") + EXTENSIONS.get(output.serializer, ".bin")


def title_of(output: Output) -> str:
    """What an output is called in a title."""
    return output.name if isinstance(output, ArtifactVersion) else f"{output.name} of {output.step}"


def image_type(output: Output) -> str:
    """The type of the picture that an output's bytes are; empty for what is none."""
    if output.serializer not in ("bytes", "path") or output.meta.get("kind") == "folder":
        return ""
    with output.open() as file:
        return picture_type(file.read(16))


def is_page(output: Output) -> bool:
    """Whether an output is a file of HTML, which is shown in a frame that may do nothing."""
    return output.serializer == "path" and mimetypes.guess_type(str(output.meta.get("name")))[0] == "text/html"


def preview(output: Output, artifact: StoredArtifact, blobs: Blobs, *, address: str, frame: str) -> Html:
    """What is in an output; `address` leads to its bytes, `frame` to them as a page in a sandbox."""
    try:
        if image_type(output):
            return element("img", {"src": address, "alt": title_of(output)})
        if is_page(output):
            about = {"title": title_of(output), "class": "user"}
            return element("iframe", {"src": frame, "sandbox": "allow-scripts", **about})
        shown = preview_part(previews.preview(artifact, blobs, previews.LONG), label=title_of(output))
        return shown or empty(f"Nothing is known of what {output.serializer} wrote; download it.")
    except StokerError as error:
        return empty(f"It cannot be shown: {error.message}")


MOST_RUNS: Final = 50
"""Runs whose steps are searched for uses: those that have the bytes as a result, newest first."""


@attrs.frozen(kw_only=True)
class OutputLineage:
    """Where an artifact comes from and goes to."""

    output: Output
    makers: tuple[Output, ...]
    """Outputs with these bytes, oldest run first."""
    users: tuple[tuple[str, str, str], ...]
    """(run, step, input) of the steps that took them."""
    searched: int
    """Runs whose steps were searched."""
    left_out: int
    """Runs that have them, and were not."""


def lineage_of(store: Store, output: Output, run: Run) -> OutputLineage:
    """The lineage of an output of a run: within the run, and in other runs that made or reused the same bytes."""
    makers = tuple(output.producers) or (output,)
    runs = list(dict.fromkeys([run.id, *reversed([maker.run_id for maker in makers])]))
    users = []
    for id in runs[:MOST_RUNS]:
        for row in store.records.all_steps(id):
            users += [(id, row.key, name) for name, text in row.inputs.items() if output.digest in str(text)]
    return OutputLineage(
        output=output,
        makers=makers[-MOST_RUNS:],
        users=tuple(users),
        searched=len(runs[:MOST_RUNS]),
        left_out=max(0, len(runs) - MOST_RUNS),
    )


def output_of(run: Run, key: str, name: str) -> Output:
    """An output of a step of a run."""
    outputs = run.steps[key].outputs
    if name not in outputs:
        raise NotFound(f"step '{key}' of run {run.id} has no output '{name}'", fix="its page lists those that it has")
    return outputs[name]


def artifact_of(store: Store, output: Output) -> StoredArtifact:
    """The artifact of an output; of a fan-out that of its first element, whose list may be long."""
    for key in (output.step, f"{output.step}[0]"):
        for row in store.records.outputs(output.run_id, key):
            if row.name == output.name:
                return row.artifact
    raise NotFound(f"output '{output.name}' of '{output.step}' is not recorded", fix="look at the run's elements")
