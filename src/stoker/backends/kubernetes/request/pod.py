"""The program of a pod: unpacks Stoker's worker, runs one job of a document, and hands the result to whoever reads.

    python3 pod.py DOCUMENT WORKER MESSAGE [CLAIM]

DOCUMENT is the file with the jobs of a Job (`kubernetes.request.jobs`), compressed; WORKER the folder with the parts
of Stoker's worker, empty where the image has it; MESSAGE the file of the container's termination message; CLAIM the
folder of the artifact store's claim, for which "claim://" at the beginning of a text stands in DOCUMENT. This file lies
beside DOCUMENT, so that any image with Python 3.10 runs it: it uses the standard library only.

The step's lines and Stoker's events go to standard output, each as an event behind MARK (`worker.boot`). The result
goes to MESSAGE, compressed, where the kubelet takes it; a longer one goes to the output, in pieces. The last line says
that no more comes:

    {"kubernetes": "names", "here", "there"}, {"kubernetes": "samples", "name", "part", "parts", "text"},
    {"kubernetes": "result", "part", "parts", "text"}, {"kubernetes": "end"}
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import sys
import tempfile
import zlib
from typing import Any

MARK = "\x1estoker "  # core.protocol.MARK: nothing of Stoker's is here yet
LONGEST = 4000
"""Bytes of a termination message, of which Kubernetes keeps 4096.
https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/"""
LINE = 8000
"""Bytes of text in a line: container runtimes cut those that are longer than 16 KiB."""
CLAIM = "claim://"


def main(words: list[str]) -> int:
    """Run the job of this pod; the exit code is 0 where it succeeds."""
    document, worker, message, *claim = words
    with gzip.open(document) as file:
        jobs = json.load(file)
    entry = jobs[int(os.environ.get("JOB_COMPLETION_INDEX", "0")) if len(jobs) > 1 else 0]
    if claim:
        entry = resolved(entry, {CLAIM: claim[0]})
    folder = tempfile.mkdtemp(prefix="stoker-job-")
    sys.path[:] = [place for place in sys.path if place not in ("", os.path.dirname(os.path.abspath(__file__)))]
    if os.path.isdir(worker):
        bundle = os.path.join(folder, "worker")
        unpack(worker, bundle)
        sys.path.insert(0, bundle)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [bundle, os.environ.get("PYTHONPATH", "")]))
    spec = entry["spec"]
    samples = there = (spec["job"].get("accelerators") or {}).get("samples", "")
    if samples:
        samples = spec["job"]["accelerators"]["samples"] = os.path.join(folder, "samples.jsonl")
        write("names", here=samples, there=there)
    path = os.path.join(folder, "job.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(spec, file)
    try:
        from stoker.worker import boot
    except ImportError as error:
        sys.exit(f"{sys.executable} cannot import Stoker's worker: {error}")
    code = boot.main([path], sync=False, merged=True)
    node = int(os.environ["JOB_COMPLETION_INDEX"]) if entry["nodes"] > 1 else 0
    if samples and os.path.exists(of_node(samples, node)):
        with open(of_node(samples, node), encoding="utf-8") as file:
            write("samples", file.read(), name=of_node(there, node))
    result = os.path.join(folder, of_node("result.json", node))
    if os.path.exists(result):
        with open(result, encoding="utf-8") as file:
            hand_over(file.read(), message)
    write("end")
    return code


def resolved(value: object, places: dict[str, str]) -> Any:
    """A document in which the texts that begin with the name of a place of this pod have its path."""
    if isinstance(value, dict):
        return {name: resolved(one, places) for name, one in value.items()}
    if isinstance(value, list):
        return [resolved(one, places) for one in value]
    if isinstance(value, str):
        for name, place in places.items():
            if value.startswith(name):
                return os.path.join(place, value[len(name) :].lstrip("/"))
    return value


def unpack(worker: str, bundle: str) -> bytes:
    """Unpack the worker from the files that config maps hold, in their order (`kubernetes.request.jobs`); the
    archive."""
    parts = []
    for name in sorted(name for name in os.listdir(worker) if name.startswith("part-")):
        with open(os.path.join(worker, name), "rb") as file:
            parts.append(file.read())
    archive = b"".join(parts)
    index, _, contents = gzip.decompress(archive).partition(b"\n")
    place, folders = 0, set()
    for name, size in json.loads(index):
        path = os.path.join(bundle, name)
        folder = os.path.dirname(path)
        if folder not in folders:
            os.makedirs(folder, exist_ok=True)
            folders.add(folder)
        with open(path, "wb") as file:
            file.write(contents[place : place + size])
        place += size
    return archive


def of_node(name: str, node: int) -> str:
    """As `worker.boot.of_node`."""
    stem, dot, ending = name.rpartition(".")
    return f"{stem}-{node}{dot}{ending}" if node else name


def hand_over(result: str, message: str) -> None:
    """Give the result to the kubelet, or to the output where it is too long."""
    short = base64.b64encode(zlib.compress(result.encode(), 9)).decode()
    if len(short) <= LONGEST:
        try:
            with open(message, "w", encoding="utf-8") as file:
                file.write(short)
            return
        except OSError:
            pass
    write("result", result)


def write(kind: str, text: str = "", **facts: Any) -> None:
    """Write a line for the driver, or several where the text is long."""
    data = base64.b64encode(zlib.compress(text.encode(), 6)).decode() if text else ""
    pieces = [data[at : at + LINE] for at in range(0, len(data), LINE)] or [""]
    for part, piece in enumerate(pieces):
        record: dict[str, object] = {"kubernetes": kind, **facts}
        if text:
            record.update(part=part, parts=len(pieces), text=piece)
        line = (MARK + json.dumps(record) + "\n").encode()
        while line:
            line = line[os.write(1, line) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
