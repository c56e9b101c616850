"""A folder with code, a store, and documents of jobs for `worker.boot`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from stoker.images import context
from stoker.store.blobs import Blobs

CODE = """
import os, subprocess, sys, time

from stoker import log_metadata, log_metrics

def fine():
    print("fine", flush=True)
    return os.getcwd()

def fails():
    raise ValueError("as it should")

def slow():
    try:
        print("slow", flush=True)
        time.sleep(60)
    finally:
        print("ended", flush=True)

def tells_its_variables():
    print(os.environ.get("MINE"), flush=True)

def tells_its_code():
    top = os.path.dirname(os.path.dirname(__file__))
    names = sorted(os.path.relpath(os.path.join(folder, name), top)
                   for folder, folders, files in os.walk(top) for name in folders + files)
    print(top, names, open(top + "/data.txt").read(), flush=True)
    exec(os.environ.get("DO", ""), {"os": os, "top": top})

def logs_metrics():
    log_metrics({"loss": 0.5}, step=1)
    log_metadata({"name": "a", "token": "a-secret-value"})
    for number in range(500):
        log_metrics({"number": number}, step=number)

def leaves_a_child():
    subprocess.Popen(["sleep", "600"], start_new_session=True)

def dies():
    os.abort()
"""


class Box:
    """A folder with code, a store and a document for the program."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.code = folder / "project"
        (self.code / "inner").mkdir(parents=True)
        (self.code / "inner" / "steps.py").write_text(CODE)
        (self.code / "data.txt").write_text("data")
        self.blobs = Blobs(str(folder / "artifacts"))
        package = context.package(self.code)
        with self.blobs.writer() as writer:
            context.write(package, writer)  # type: ignore[arg-type]  # it has what is written to
        self.package = package

    def spec(self, function: str, *, place: str = "job", **more: Any) -> Path:
        source = {"kind": "script", "module": "steps", "qualname": function, "digest": ""}
        source |= {"path": str(self.code / "inner/steps.py"), "root": str(self.code / "inner")}
        outputs = ["output"] if function == "fine" else []
        step = {"name": function, "source": source, "outputs": outputs, "unpack": False, "split": [], "environment": {}}
        job = {"job": f"r/{function}/1", "step": 0, "inputs": {}, "timed": True}
        document = {
            "version": 1,
            "job": job,
            "step": step,
            "blobs": self.blobs.uri,
            "package": self.package.digest,
            "root": str(self.package.root),
            "folder": str(self.code),
            "path": [],
            "checkpoints": "",
            "environment": {},
            "grace": 5.0,
            **more,
        }
        path = self.folder / place / "job.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(document))
        return path

    def start(self, spec: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "stoker.worker.boot", str(spec)],
            env={**os.environ, "TMPDIR": str(self.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def result(self, place: str = "job") -> dict[str, Any]:
        result: dict[str, Any] = json.loads((self.folder / place / "result.json").read_text())
        return result
