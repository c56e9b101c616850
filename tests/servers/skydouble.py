"""Our own double of SkyPilot's command, for tests: it is not SkyPilot, and no cloud is asked.

    python skydouble.py WORDS …        with SKY_DOUBLE, the folder of its state

A cluster is a process of its own (`supervise`), which runs the task's `setup` and `run` for each node as local
processes with SkyPilot's variables, and goes away by its autostop. What SkyPilot prints for `-o json` is printed here
with all of its fields; with a file `thin`, whose text is the seed, as another release would print it. Other files in
the folder make bad luck: `away` (the API server does not answer), `capacity` (so many launches find no machine),
`slow` (seconds for a launch), `reclaim-NAME` (the cloud takes the machine away). A minute is SKY_DOUBLE_MINUTE seconds.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.skypilot.answers import ANSWERS, thinned  # this file is run as a program

STATE = Path(os.environ.get("SKY_DOUBLE", ""))
MINUTE = float(os.environ.get("SKY_DOUBLE_MINUTE", "60"))
TICK = 0.05
IN_FLIGHT = ("PENDING", "STARTING", "RUNNING", "RECOVERING")


def read(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return document


def write(path: Path, document: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{os.getpid()}")
    scratch.write_text(json.dumps(document))
    scratch.replace(path)


def change(path: Path, **fields: Any) -> None:
    document = read(path)
    if document:
        write(path, {**document, **fields})


def note(words: list[str]) -> None:
    with open(STATE / "calls.log", "a") as file:
        file.write(shlex.join(words) + "\n")


def fail(text: str, code: int = 1) -> None:
    print(text, file=sys.stderr)
    sys.exit(code)


def luck(name: str) -> str:
    path = STATE / name
    return path.read_text().strip() if path.exists() else ""


def record(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    """A record as SkyPilot prints it: all fields of its model, those without a value as null."""
    whole = {name: fields.get(name) for name in ANSWERS["models"][kind]}
    dice = random.Random(f"{luck('thin')} {time.time_ns()}")
    return thinned(whole, kind, dice) if luck("thin") else whole


# Clusters


def cluster(name: str) -> Path:
    return STATE / "clusters" / f"{name}.json"


def clusters() -> list[dict[str, Any]]:
    return [read(path) for path in sorted((STATE / "clusters").glob("*.json"))]


def take_machine(task: dict[str, Any]) -> None:
    """What a launch does before there is a machine."""
    time.sleep(float(luck("slow") or 0))
    left = luck("capacity")
    if left and int(left) > 0:
        (STATE / "capacity").write_text(str(int(left) - 1))
        fail(
            "sky.exceptions.ResourcesUnavailableError: Failed to provision all possible launchable resources. "
            f"Relax the task's resource requirements: {json.dumps(task['resources'])}"
        )


def launch(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--yes", action="store_true")
    parser.add_argument("--detach-run", action="store_true")
    parser.add_argument("--retry-until-up", action="store_true")
    parser.add_argument("--secret", action="append", default=[])
    parser.add_argument("path")
    asked = parser.parse_args(words)
    task = load(asked.path, asked.secret)
    name = asked.cluster
    write(cluster(name), {"name": name, "status": "INIT", "init_kind": "launching", "task": task})
    print("Considered resources (1 node):\n⚙︎ Launching on the double", flush=True)
    if luck("capacity") and not asked.retry_until_up:
        cluster(name).unlink()
    while luck("capacity") not in ("", "0") and asked.retry_until_up:
        time.sleep(TICK)
    take_machine(task)
    if not cluster(name).exists():
        fail("the launch was cancelled by `sky down`")
    start_supervisor("cluster", name)
    deadline = time.monotonic() + 60
    while read(cluster(name)).get("status") == "INIT" and time.monotonic() < deadline:
        time.sleep(TICK)
    if read(cluster(name)).get("setup_failed"):
        fail("Failed to setup: setup commands failed")
    print(f"✓ Cluster launched: {name}. Job submitted, ID: 1")


def load(path: str, secrets: list[str]) -> dict[str, Any]:
    task: dict[str, Any] = json.loads(Path(path).read_text())
    given = {name: os.environ[name] for name in secrets}
    task["secrets"] = {name: given.get(name, text) for name, text in (task.get("secrets") or {}).items()}
    missing = [name for name, text in task["secrets"].items() if text is None]
    if missing:
        fail(f"secrets without a value: {missing}")
    return task


def start_supervisor(kind: str, name: str) -> None:
    with open(STATE / f"supervisor-{name}.log", "ab") as log:
        subprocess.Popen(
            [sys.executable, __file__, "supervise", kind, name],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


class Nodes:
    """The processes of a task, one for each node."""

    def __init__(self, name: str, task: dict[str, Any]) -> None:
        self.task, self.name = task, name
        self.folder = STATE / "machines" / name
        self.processes: list[subprocess.Popen[bytes]] = []

    def environment(self, rank: int) -> dict[str, str]:
        nodes = self.task.get("num_nodes", 1)
        plain = {name: text for name, text in os.environ.items() if not name.startswith(("SKY_DOUBLE", "AWS_", "HF_"))}
        accelerators = self.task["resources"].get("accelerators")
        count = int(accelerators.split(":")[-1]) if isinstance(accelerators, str) and ":" in accelerators else 0
        return {
            **plain,
            **{name: str(text) for name, text in self.task.get("envs", {}).items()},
            **self.task.get("secrets", {}),
            "SKYPILOT_NODE_RANK": str(rank),
            "SKYPILOT_NUM_NODES": str(nodes),
            "SKYPILOT_NODE_IPS": "\n".join(["127.0.0.1"] * nodes),
            "SKYPILOT_NUM_GPUS_PER_NODE": str(count),
            **({"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(count)))} if count else {}),
            "SKYPILOT_TASK_ID": f"sky-double_{self.name}_1-{rank}",
        }

    def setup(self) -> bool:
        self.folder.mkdir(parents=True, exist_ok=True)
        for rank in range(self.task.get("num_nodes", 1)):
            with open(self.folder / "setup.log", "ab") as log:
                script = ["bash", "-c", self.task.get("setup", ":")]
                if subprocess.run(script, env=self.environment(rank), stdout=log, stderr=log, check=False).returncode:
                    return False
        return True

    def start(self) -> None:
        for rank in range(self.task.get("num_nodes", 1)):
            with open(self.folder / f"run-{rank}.log", "ab") as log:
                self.processes.append(
                    subprocess.Popen(
                        ["bash", "-c", self.task["run"]],
                        cwd=self.folder,
                        env=self.environment(rank),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )

    def over(self) -> int | None:
        """The exit code when all nodes are over; a failed one ends the others, as SkyPilot does."""
        codes = [process.poll() for process in self.processes]
        bad = next((code for code in codes if code), None)
        if bad is not None:
            self.kill(signal.SIGTERM)
            for process in self.processes:
                process.wait()
            return bad
        return None if None in codes else 0

    def kill(self, number: int = signal.SIGKILL) -> None:
        for process in self.processes:
            try:
                root = psutil.Process(process.pid)
                tree = [root, *root.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
            for one in tree if number == signal.SIGKILL else [root]:
                try:
                    one.send_signal(number)
                except psutil.NoSuchProcess:
                    continue

    def clear(self) -> None:
        self.kill()
        for process in self.processes:
            process.wait()
        self.processes.clear()


def supervise_cluster(name: str) -> None:
    path = cluster(name)
    task = read(path)["task"]
    nodes = Nodes(name, task)
    if not nodes.setup():
        change(path, status="UP", setup_failed=True, job="FAILED_SETUP")
    else:
        nodes.start()
        change(path, status="UP", job="RUNNING", pid=os.getpid())
    autostop = task["resources"].get("autostop") or {}
    idle_since = None
    while path.exists():
        if (STATE / f"reclaim-{name}").exists():
            (STATE / f"reclaim-{name}").unlink()
            nodes.clear()
            change(path, status="STOPPED", last_event="the cloud took the machine away")
            return
        code = nodes.over() if nodes.processes else -1
        if code is not None:
            idle_since = idle_since or time.monotonic()
            change(path, job="SUCCEEDED" if code == 0 else "FAILED") if nodes.processes else None
            if autostop and time.monotonic() - idle_since >= autostop["idle_minutes"] * MINUTE:
                nodes.clear()
                if autostop.get("down"):
                    path.unlink(missing_ok=True)
                else:
                    change(path, status="STOPPED")
                return
        time.sleep(TICK)
    nodes.clear()


def status(words: list[str]) -> None:
    patterns = [word for word in words if not word.startswith("-") and word != "json"]
    rows = [one for one in clusters() if not patterns or any(fnmatch.fnmatch(one["name"], p) for p in patterns)]
    spot = {one["name"]: "[Spot]" if one["task"]["resources"].get("use_spot") else "" for one in rows}
    shown = [
        record(
            "StatusResponse",
            {
                **ANSWERS["cluster"],
                "name": one["name"],
                "status": one["status"],
                "init_kind": one.get("init_kind") if one["status"] == "INIT" else None,
                "last_event": one.get("last_event"),
                "resources_str": f"1x(double){spot[one['name']]}",
                "resources_str_full": f"1x(double){spot[one['name']]}",
                "nodes": one["task"].get("num_nodes", 1),
            },
        )
        for one in rows
    ]
    print("Clusters\n" if "json" not in words else "", end="")
    print(json.dumps(shown, indent=2))


def down(words: list[str]) -> None:
    names = [word for word in words if not word.startswith("-")]
    matching = [one["name"] for one in clusters() if any(fnmatch.fnmatch(one["name"], name) for name in names)]
    if not matching:
        print(f"Cluster(s) not found: {', '.join(names)}.")
    for name in matching:
        cluster(name).unlink(missing_ok=True)


# Managed jobs


def jobs() -> list[Path]:
    return sorted((STATE / "jobs").glob("*.json"), key=lambda path: -int(path.stem))


def jobs_launch(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--yes", action="store_true")
    parser.add_argument("--detach-run", action="store_true")
    parser.add_argument("--secret", action="append", default=[])
    parser.add_argument("path")
    asked = parser.parse_args(words)
    task = load(asked.path, asked.secret)
    number = 1 + max([int(path.stem) for path in jobs()], default=0)
    write(
        STATE / "jobs" / f"{number}.json", {"job_id": number, "job_name": asked.name, "status": "PENDING", "task": task}
    )
    start_supervisor("job", str(number))
    print(f"Managed job submitted, ID: {number}")


def supervise_job(number: str) -> None:
    path = STATE / "jobs" / f"{number}.json"
    record = read(path)
    task, name = record["task"], record["job_name"]
    left = luck("capacity")
    change(path, status="STARTING")
    time.sleep(float(luck("slow") or 0))
    if left and int(left) > 0:
        (STATE / "capacity").write_text(str(int(left) - 1))
        change(path, status="FAILED_NO_RESOURCE", failure_reason="No resource: the double has no capacity")
        return
    recovery = task["resources"].get("job_recovery") or {}
    restarts = recovery.get("max_restarts_on_errors", 0) if isinstance(recovery, dict) else 0
    nodes = Nodes(f"{name}-{number}", task)
    while True:
        if not nodes.setup():
            change(path, status="FAILED_SETUP", failure_reason="setup failed")
            return
        nodes.start()
        change(path, status="RUNNING")
        code = None
        while code is None:
            if read(path)["status"] == "CANCELLING":
                nodes.clear()
                change(path, status="CANCELLED")
                return
            if (STATE / f"reclaim-{name}").exists():
                (STATE / f"reclaim-{name}").unlink()
                nodes.clear()
                change(path, status="RECOVERING", recovery_count=read(path).get("recovery_count", 0) + 1)
                break
            code = nodes.over()
            time.sleep(TICK)
        if code is None:
            continue
        nodes.clear()
        if code == 0 or restarts <= 0:
            change(path, status="SUCCEEDED" if code == 0 else "FAILED")
            return
        restarts -= 1


def jobs_queue(words: list[str]) -> None:
    rows = [read(path) for path in jobs()]
    if "--skip-finished" in words:
        rows = [one for one in rows if one["status"] in (*IN_FLIGHT, "CANCELLING")]
    print(json.dumps([record("ManagedJobRecord", one) for one in rows], indent=2))


def jobs_cancel(words: list[str]) -> None:
    name = words[words.index("--name") + 1]
    matching = [path for path in jobs() if read(path)["job_name"] == name and read(path)["status"] in IN_FLIGHT]
    if not matching:
        fail(f"No managed job found with name {name!r}")
    for path in matching:
        change(path, status="CANCELLING")


def main(words: list[str]) -> None:
    if words[:1] == ["supervise"]:
        (supervise_cluster if words[1] == "cluster" else supervise_job)(words[2])
        return
    note(words)
    if words == ["--version"]:
        print("skypilot, version 0.14.1")
        return
    if (STATE / "away").exists():
        fail("sky.exceptions.ApiServerConnectionError: Could not connect to SkyPilot API server at http://127.0.0.1:9.")
    table = {"launch": launch, "status": status, "down": down}
    jobs_table = {"launch": jobs_launch, "queue": jobs_queue, "cancel": jobs_cancel}
    if words[0] == "jobs":
        jobs_table[words[1]](words[2:])
    elif words[:2] == ["api", "info"]:
        version = {"version": "0.14.1", "commit": "3f2a"}
        server = {"url": "http://127.0.0.1:46580", "status": "healthy", **version, "api_version": "60"}
        print(json.dumps({"client": version, "server": server, "user": "ada"}))
    elif words[0] == "check":
        print(json.dumps({"default": {"AWS": ["compute", "storage"], "Kubernetes": ["compute"]}}))
    else:
        table[words[0]](words[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
