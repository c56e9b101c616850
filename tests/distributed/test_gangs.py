"""Several nodes run one step together, here as processes of one machine: together or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.distributed.conftest import FORKED

from stoker.backends.base import messages
from stoker.backends.base.messages import gang_task
from stoker.core import wire
from stoker.core.codec import from_json, to_json
from stoker.core.plan import Job, StepPlan
from stoker.core.protocol import FunctionSource, GangTask, StepResult, StepTask, Topology, WorkerJob
from stoker.core.settings import DEFAULTS, StepSettings
from stoker.store import notes
from stoker.worker import agent, cluster, reach
from stoker.worker.cluster import (
    TOPOLOGIES,
    Gang,
    GangBlocked,
    GangIncomplete,
    Member,
    free_port,
    gang_of,
    member_of,
)

SCRIPT = """
    import os, sys, time
    from pathlib import Path

    from stoker import context, pipeline, step
    from stoker.config import Command, ResourceSettings, Torchrun

    TWO = ResourceSettings(nodes=2, cpu_count=0.1)
    FOUR = ResourceSettings(nodes=2, gpu_count=2)

    def agent():
        '''The process that speaks for this node: the parent of the rank's watcher.'''
        return int(open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[1])

    @step(resources=TWO, cache=False)
    def plain() -> dict:
        return {"rank": context.rank, "node": context.node, "nodes": context.nodes, "world": context.world_size}

    @step(resources=TWO, launch={"launcher": "torchrun", "processes_per_node": 1, "outputs": "all"}, cache=False)
    def ranks() -> dict:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        total = torch.tensor([context.rank + 1])
        dist.all_reduce(total)
        dist.destroy_process_group()
        return {"rank": context.rank, "node": context.node, "sum": int(total)}

    @step(resources=TWO, cache=False, launch={"launcher": "single", "outputs": "all"})
    def one_is_slow(who: int) -> int:
        if context.node == who:
            time.sleep(2)
        return 10 * context.node

    @step
    def show(x: object) -> None:
        print("shown:", x)

    @pipeline
    def well():
        show(plain())
        show(ranks())
        show(one_is_slow(0))
        one_is_slow.with_options(name="head_is_done")(1)

    @step(resources=ResourceSettings(nodes=3, cpu_count=0.1), cache=False)
    def faulty(how: str, who: int) -> int:
        here = f"{context.step}-{context.attempt}"
        Path(f"{here}-{context.node}.pid").write_text(f"{os.getpid()} {os.getppid()} {agent()}")
        while len(list(Path(".").glob(f"{here}-*.pid"))) < 3:
            time.sleep(0.01)
        if context.node == who and (how != "once" or context.attempt == 1):
            if how in ("raise", "once"):
                raise ValueError("the culprit")
            os.kill(os.getpid() if how == "kill" else agent(), 9)
        elif how != "once" or context.attempt == 1:
            time.sleep(300)
        return context.attempt

    @step(resources=TWO, cache=False, retry=1)
    def goes_on() -> list:
        (context.checkpoint_dir / f"node {context.node} {context.attempt}").touch()
        while len(list(context.checkpoint_dir.iterdir())) < 2:
            time.sleep(0.01)
        if context.attempt == 1 and context.node == 1:
            time.sleep(0.5)
            os.kill(agent(), 9)
        if context.attempt == 1:
            time.sleep(300)
        return [context.world_size, sorted(path.name for path in context.checkpoint_dir.glob("*1"))]

    @pipeline(failure_mode="continue", max_parallel=3)
    def badly():
        for how, who in (("raise", 0), ("raise", 1), ("raise", 2), ("kill", 0), ("kill", 2), ("node", 0), ("node", 2)):
            faulty.with_options(name=f"{how}_{who}")(how, who)
        faulty.with_options(name="once", retry=1)("once", 1)
        goes_on()

    APART = Command([sys.executable, "forked.py"], processes_per_node=2, hang_after="3s")

    def joined():
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        return dist, torch.ones(4)

    @step(resources=TWO, launch=APART, cache=False)
    def uneven() -> None:
        dist, loss = joined()
        for _ in range(2 if context.rank == 3 else 3):
            dist.all_reduce(loss)

    @step(resources=TWO, launch=APART, cache=False)
    def slow_on_one() -> None:
        dist, loss = joined()
        if context.rank == 2:
            time.sleep(60)
        dist.all_reduce(loss)

    @pipeline(failure_mode="continue")
    def apart():
        uneven()
        slow_on_one()

    @step(resources=TWO, cache=False, launch=Torchrun(nproc_per_node=2, max_restarts=1))
    def restarts() -> list:
        times, places = os.environ["TORCHELASTIC_RESTART_COUNT"], context.checkpoint_dir
        (places / f"{times} {context.rank}").touch()
        while len(list(places.glob(f"{times} *"))) < context.world_size:
            time.sleep(0.01)
        if times == "0":
            raise ConnectionError("once")
        assert os.environ["NODE_RANK"] == os.environ["GROUP_RANK"]
        return [context.rank, context.world_size, os.environ["STOKER_NODE_RANK"]]

    @step(
        resources=ResourceSettings(nodes=3, cpu_count=0.1),
        launch=Torchrun(nnodes="2:3", nproc_per_node=1, outputs="all"),
        cache=False,
    )
    def elastic() -> list:
        (context.checkpoint_dir / f"{time.time()} {context.rank} {context.world_size}").touch()
        killed = Path("killed")
        while True:
            since = float(killed.read_text()) if killed.exists() else 0.0
            places = [path.name.split() for path in context.checkpoint_dir.iterdir()]
            if sum(size == "3" and float(at) > since for at, _, size in places) >= 3:
                if since:
                    return [context.rank, context.world_size, int(os.environ["STOKER_NODE_RANK"])]
                if context.rank == 2:
                    killed.write_text(str(time.time()))
                    pid = os.getpid()
                    while "forkserver" not in open(f"/proc/{pid}/cmdline").read():
                        pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
                    os.kill(pid, 9)
            time.sleep(0.05)

    @pipeline
    def leaves():
        elastic()

    @pipeline
    def again():
        restarts()

    @step(resources=FOUR, cache=False, launch={"launcher": "single", "outputs": "all"})
    def with_devices() -> list:
        return os.environ["CUDA_VISIBLE_DEVICES"].split(",")

    @pipeline
    def devices():
        with_devices()
"""


@pytest.fixture
def gangs(project: Any) -> Any:
    return project.write({"gangs.py": SCRIPT, "forked.py": FORKED})


def steps(project: Any) -> Any:
    """The steps of the newest run."""
    return project.client().runs()[0].steps


def everyone_is_gone(folder: Path) -> bool:
    """None of the processes of any node is left."""
    for note in folder.glob("*.pid"):
        for pid in map(int, note.read_text().split()):
            if os.path.exists(f"/proc/{pid}") and "State:\tZ" not in Path(f"/proc/{pid}/status").read_text():
                return False
    return True


def test_a_gang_runs_together(gangs: Any) -> None:
    gangs.stoker("run", "gangs.py:well")
    found = steps(gangs)
    assert found["plain"].load() == {"rank": 0, "node": 0, "nodes": 2, "world": 2}
    assert found["ranks"].load() == [{"rank": rank, "node": rank, "sum": 3} for rank in range(2)]
    assert found["one_is_slow"].load() == found["head_is_done"].load() == [0, 10], "who is done waits for the others"


def test_the_plan_says_what_nodes_are_here(gangs: Any) -> None:
    shown = gangs.stoker("plan", "gangs.py:well")
    assert "STK104" in shown.stdout + shown.stderr
    assert "processes of this machine" in shown.stdout + shown.stderr


LATE = """
import os, sys, time

if os.environ.get("STOKER_NODE_RANK") == "0" and "torch.distributed.run" in sys.orig_argv:
    time.sleep(2)
    if pid := os.fork():
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
"""torchrun numbers nodes by their addresses as text, and by their launchers' pids: so the head comes last."""


@pytest.mark.slow
def test_ranks_start_again_on_all_nodes_whose_numbers_torchrun_gives(gangs: Any) -> None:
    gangs.write({"late/sitecustomize.py": LATE})
    # NODE_RANK as an allocation around the driver may have it, which is not that of the ranks.
    gangs.stoker("run", "gangs.py:again", env={"PYTHONPATH": str(gangs.folder / "late"), "NODE_RANK": "7"})
    step = steps(gangs)["restarts"]
    assert step.load() == [0, 4, "1"], "rank 0 of 4 is on node 1"
    assert len(step.attempts) == 1


def test_the_culprit_is_named_wherever_it_ran_and_another_attempt_meets_no_ghost(gangs: Any) -> None:
    gangs.stoker("run", "gangs.py:badly", code=1)
    found = steps(gangs)
    for name, cause, words, rank in (
        *((f"raise_{who}", "user-error", "the culprit", who) for who in range(3)),
        *((f"kill_{who}", "killed", "was ended by SIGKILL", who) for who in (0, 2)),
        ("node_2", "node-lost", "node 2 of 3", None),
        ("node_0", "killed", "", None),
    ):
        failure = found[name].failure
        assert (failure.cause, failure.rank) == (cause, rank), name
        assert words in failure.message, name
    assert [attempt.status for attempt in found["once"].attempts] == ["failed", "succeeded"]
    assert found["once"].load() == 2
    back = found["goes_on"]
    assert back.load() == [2, ["node 0 1", "node 1 1"]], "all nodes are there, and so is what they had saved"
    assert [attempt.failure and attempt.failure.cause for attempt in back.attempts] == ["node-lost", None]
    assert 0.5 <= back.attempts[0].usage.lost < back.attempts[0].seconds and back.lost.restarting > 0
    assert everyone_is_gone(gangs.folder)


def test_the_evidence_of_all_nodes_counts(gangs: Any) -> None:
    gangs.stoker("run", "gangs.py:apart", code=1)
    found = steps(gangs)
    uneven, slow = found["uneven"].failure, found["slow_on_one"].failure
    assert (uneven.cause, uneven.rank, uneven.failed_ranks) == ("rank-left", 3, (3,))
    assert uneven.message.startswith("rank 3 returned after 2 all_reduce, while ranks 0, 1, 2 waited in the 3rd")
    assert (slow.cause, slow.rank) == ("hang", 2)
    assert "waited in the 1st all_reduce" in slow.message and "rank 2 stands at gangs.py:" in slow.message
    assert slow.stacks, "of the node that noticed it"


@pytest.mark.slow
def test_a_gang_goes_on_without_a_node_and_takes_it_back(gangs: Any) -> None:
    done = gangs.stoker("run", "gangs.py:leaves")
    run = gangs.client().runs()[0]
    step = run.steps["elastic"]
    assert step.load() == [[rank, 3, rank] for rank in range(3)]
    assert len(step.attempts) == 1 and step.lost.work > 0 and step.lost.restarting > 0
    told = [event.data["message"] for event in run.events if event.kind == "resized"]
    assert told[-1] == "node 2 came back: 3 of 3 nodes go on", told
    assert told[-1] in done.stderr


def test_each_node_has_its_share_of_the_devices(gangs: Any) -> None:
    gangs.stoker("run", "gangs.py:devices", "--simulate", "4xH100-80GB")
    first, second = steps(gangs)["with_devices"].load()
    assert len({*first, *second}) == 4
    receipt = steps(gangs)["with_devices"].receipt
    assert {use.uuid for use in receipt.devices} == {*first, *second}
    assert receipt.simulated
    shown = gangs.stoker("run", "gangs.py:devices", "--simulate", "3xH100-80GB", code=3)
    assert "STK103" in shown.stderr
    assert "2 nodes with 2 GPUs each" in shown.stderr


def test_a_node_whose_devices_are_refused_is_the_cause(gangs: Any) -> None:
    faulty = "GPU-simulated-0000-0000-0000-000000000003"
    done = gangs.stoker("run", "gangs.py:devices", "--simulate", "6xH100-80GB;bad=3")
    assert f"device {faulty} is left out for the rest of this run: gpu-hardware" in done.stderr
    first, second = steps(gangs)["with_devices"].attempts
    assert first.failure.cause == "gpu-hardware" and second.status == "succeeded"
    assert "node 1 of 2 cannot take part" in first.failure.message and faulty in first.failure.message


def test_more_than_the_machine_has_is_refused(project: Any) -> None:
    project.write(
        {
            "big.py": """
            from stoker import pipeline, step
            from stoker.config import ResourceSettings, MPI

            @step(resources=ResourceSettings(nodes=2, cpu_count=1000))
            def cpus() -> None: ...

            @step(resources=ResourceSettings(nodes=100_000))
            def nodes() -> None: ...

            @step(resources=ResourceSettings(nodes=2, cpu_count=0.1), launch=MPI(np=2, program="srun"))
            def mpi() -> None: ...

            @pipeline
            def p():
                cpus(), nodes(), mpi()
            """
        }
    )
    refused = project.stoker("plan", "big.py", code=3).stdout
    assert "asks for 1000 CPUs on each of 2 nodes" in refused
    assert "asks for 100000 nodes; this machine runs" in refused
    assert "asks for 2 nodes with srun" in refused
    program = project.folder / "bin" / "mpirun"
    project.write({"bin/mpirun": "#!/bin/sh\necho 'mpirun (Open MPI) 5.0.11'\n"})
    program.chmod(0o755)
    (project.folder / "big.py").write_text((project.folder / "big.py").read_text().replace("srun", "mpirun"))
    paths = {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    refused = project.stoker("plan", "big.py", env=paths, code=3).stdout
    assert "asks for 2 nodes with mpirun (Open MPI) 5.0.11" in refused


# Finding each other


def gang(node: int, nodes: int, note: Path, *, token: str = "t", timeout: float | None = 30.0, least: int = 0) -> Gang:
    member = Member(node=node, nodes=nodes, head="127.0.0.1", address="127.0.0.1")
    return Gang(member, note=str(note), token=token, timeout=timeout, least=least)


def never() -> bool:
    return False


def test_a_node_that_is_missing_is_named(tmp_path: Path) -> None:
    head = gang(0, 3, tmp_path / "note", timeout=1.0)
    third = gang(2, 3, tmp_path / "note", timeout=30.0)

    def come() -> None:
        with pytest.raises(GangIncomplete):
            third.gather(never)

    came = threading.Thread(target=come)
    came.start()
    with pytest.raises(GangIncomplete, match=r"node 1 of 3 did not come up within 1 s") as told:
        head.gather(never)
    head.close()
    came.join(30)
    assert not came.is_alive(), "the one that came is not left waiting"
    assert told.value.missing == [1]


def test_a_gang_that_is_not_complete_starts_no_user_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in messages.node_environment(0, 2).items():
        monkeypatch.setenv(name, value)
    job = WorkerJob(
        job="run/train/1",
        step=0,
        inputs={},
        launch=attrs.evolve(DEFAULTS, launcher="single"),
        gang=GangTask(topology="stoker", note=str(tmp_path / "note"), token="t", timeout=0.3),
    )
    source = FunctionSource(kind="module", module="steps", qualname="train")
    step = StepTask(name="train", source=source, outputs=(), unpack=False, split=(), environment={})
    result = agent.run(job, step, str(tmp_path), emit=lambda event: pytest.fail(str(event)), notice=None)
    assert (result.ok, result.cause) == (False, "gang-incomplete")
    assert result.error is not None and "node 1 of 2 did not come up within 0.3 s" in result.error.message


def test_a_node_without_a_head_gives_up(tmp_path: Path) -> None:
    with pytest.raises(GangIncomplete, match=r"node 0 \(the head\)"):
        gang(1, 2, tmp_path / "note", timeout=0.3).gather(never)


def test_a_head_that_cannot_be_reached_hears_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a NetworkPolicy: the nodes see its note, and their connections to it fail."""
    monkeypatch.setattr(reach, "PATIENCE", 0.3)
    note = tmp_path / "note"
    head = gang(0, 3, note, timeout=60.0)
    put = notes.put

    def elsewhere(path: str, data: bytes) -> None:
        """The note of a head behind a firewall: nothing answers where it says that it listens."""
        put(path, json.dumps({**json.loads(data), "port": free_port("127.0.0.1")}).encode())

    monkeypatch.setattr(notes, "put", lambda path, data: (elsewhere if path == str(note) else put)(path, data))
    late = threading.Event()
    nodes = [gang(node, 3, note, timeout=60.0) for node in (1, 2)]
    threads = [threading.Thread(target=node.gather, args=(late.is_set,)) for node in nodes]
    for thread in threads:
        thread.start()
    with pytest.raises(GangBlocked) as told:
        head.gather(never)
    late.set()
    for thread in threads:
        thread.join(30)
    head.close()
    assert "cannot reach node 0 (127.0.0.1, port " in str(told.value)
    assert str(told.value).endswith("): Connection refused")


def test_notes_of_another_attempt_shut_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "PATIENCE", 0.1)
    ghost = {"node": 1, "token": "earlier", "address": "10.0.0.1", "port": 1, "reason": "no route"}
    (tmp_path / "note-1").write_text(json.dumps(ghost))
    with pytest.raises(GangIncomplete):
        gang(0, 2, tmp_path / "note", timeout=1.0).gather(never)


def test_waiting_ends_when_it_is_stopped(tmp_path: Path) -> None:
    assert not gang(0, 2, tmp_path / "a", timeout=None).gather(lambda: True)
    assert not gang(1, 2, tmp_path / "b", timeout=None).gather(lambda: True)


def test_strangers_and_ghosts_are_turned_away(tmp_path: Path) -> None:
    note = tmp_path / "note"
    head = gang(0, 2, note)
    gathering = threading.Thread(target=head.gather, args=(never,))
    gathering.start()
    while not note.exists():
        pass
    place = json.loads(note.read_text())
    for hello in ({"op": "here", "node": 1, "token": "of an earlier attempt", "address": ""}, {"op": "?"}):
        stranger = socket.create_connection((place["address"], place["port"]))
        stranger.sendall(wire.framed(hello))
        assert stranger.recv(1) == b"", "the head hangs up"
        stranger.close()
    garbage = socket.create_connection((place["address"], place["port"]))
    garbage.sendall(b"\0\0\0\5{{{{{")
    assert garbage.recv(1) == b""
    garbage.close()
    second = gang(1, 2, note)
    assert second.gather(never)
    gathering.join(30)
    assert second.port == head.port != 0
    assert second.hosts == head.hosts == ("127.0.0.1", "127.0.0.1")
    assert not note.exists(), "nothing is left for a later attempt to find"
    second.close()
    assert not head.hear(head.connections()[0])
    assert head.lost == [1] and head.failed
    head.close()


def test_a_head_that_dies_while_it_gathers_is_missing(tmp_path: Path) -> None:
    note = tmp_path / "note"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        note.write_text(json.dumps({"address": "127.0.0.1", "port": port, "token": "t"}))

        def die() -> None:
            connection, _ = listener.accept()
            assert connection.recv(1 << 16)
            connection.sendall(
                wire.framed({"op": "reach", "places": {"0": ["127.0.0.1", port], "1": ["127.0.0.1", port]}})
            )
            check, _ = listener.accept()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close by a reset
            connection.close()
            check.close()

        head = threading.Thread(target=die)
        head.start()
        node = gang(1, 2, note)
        with pytest.raises(GangIncomplete):
            node.gather(never)
        head.join()
    assert node.connections() == []


@pytest.mark.parametrize("looks", [True, False])
def test_nodes_that_cannot_reach_each_other_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: bool
) -> None:
    """The second node has a port that is closed, the third one that another program has."""
    if not looks:
        monkeypatch.setenv(reach.SETTING, "0")
    head = gang(0, 3, tmp_path / "note")
    problems: list[str] = []

    def gather() -> None:
        try:
            head.gather(never)
        except GangBlocked as error:
            problems.append(str(error))

    gathering = threading.Thread(target=gather)
    gathering.start()
    while not (tmp_path / "note").exists():
        pass
    place = json.loads((tmp_path / "note").read_text())
    with reach.PortCheck("another") as other, contextlib.ExitStack() as stack:
        nodes = []
        for node, port in ((1, free_port("127.0.0.1")), (2, other.port)):
            connection = stack.enter_context(socket.create_connection((place["address"], place["port"]), timeout=60))
            hello = {"op": "here", "node": node, "token": "t", "address": "127.0.0.1", "port": port}
            connection.sendall(wire.framed(hello))
            nodes.append((connection, wire.Frames()))
        for node, (connection, frames) in enumerate(nodes, 1):
            [message] = frames.feed(connection.recv(1 << 16))
            assert message["op"] == "reach" and len(message["places"]) == 3
            blocked = {"0": "no route"} if node == 1 and looks else {}
            connection.sendall(wire.framed({"op": "reached", "blocked": blocked}))
        for connection, frames in nodes:
            [message] = frames.feed(connection.recv(1 << 16))
            assert message["op"] == ("end" if looks else "go")
        gathering.join(60)
    head.close()
    if not looks:
        assert problems == [] and head.port == message["port"]
        return
    [problem] = problems
    assert "node 0 cannot reach node 1 (127.0.0.1, port " in problem and "): Connection refused; " in problem
    assert "node 0 cannot reach node 2" in problem and "): another program answers there; " in problem
    assert "node 1 cannot reach node 0" in problem and problem.endswith("): no route")


def test_a_backend_names_the_variables_of_its_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    source = FunctionSource(kind="module", module="train", qualname="train")
    step = StepPlan(
        key="train", name="train", source=source, outputs=(), unpack=False, inputs={}, settings=StepSettings(),
        backend="x", code="",
    )  # fmt: skip
    job = Job(name="r/train/1", run="r", key="train", attempt=1, step=step, inputs={})
    document = gang_task(job, "/shared", Topology(node="THEIR_NODE", nodes="THEIR_NODES", hosts="THEIR_HOSTS"))
    monkeypatch.setenv("THEIR_NODE", "1")
    monkeypatch.setenv("THEIR_NODES", "2")
    monkeypatch.setenv("THEIR_HOSTS", "first\nsecond")
    member = gang_of(from_json(GangTask, json.loads(json.dumps(to_json(document))), strict=False)).member
    assert (member.node, member.nodes, member.head) == (1, 2, "first")


def test_every_topology_reads_its_variables() -> None:
    environments = {
        "stoker": {"STOKER_NODE_RANK": "1", "STOKER_NODES": "2", "STOKER_HEAD_ADDR": "h", "STOKER_NODE_ADDR": "a"},
        "slurm": {"SLURM_NODEID": "1", "SLURM_JOB_NUM_NODES": "2"},
        "kubernetes": {"JOB_COMPLETION_INDEX": "1", "STOKER_NODES": "2", "STOKER_HEAD_ADDR": "h"},
        "aws_batch": {
            "AWS_BATCH_JOB_NODE_INDEX": "1",
            "AWS_BATCH_JOB_NUM_NODES": "2",
            "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "h",
        },
        "skypilot": {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "h\na"},
    }
    assert environments.keys() == TOPOLOGIES.keys()
    for name, topology in TOPOLOGIES.items():
        member = member_of(topology, environments[name])
        assert (member.node, member.nodes) == (1, 2), name
        assert member.head == ("" if name == "slurm" else "h"), name


def gathered(*gangs: Gang) -> list[tuple[int, ...]]:
    """The nodes that each of them knows once all have gathered."""

    def gather(one: Gang) -> None:
        if one.round and not one.is_head:
            one.report(StepResult(ok=False))
            assert one.gather_again(never)
        assert one.gather(never)

    threads = [threading.Thread(target=gather, args=(one,)) for one in gangs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [one.nodes for one in gangs]


def leaves(head: Gang, node: Gang) -> None:
    """A node hangs up, and the head hears of it."""
    place = node.connections()[0].getsockname()
    (connection,) = [one for one in head.connections() if one.getpeername() == place]
    node.close()
    while head.hear(connection):
        pass


def test_nodes_go_away_from_an_elastic_gang_and_come_back(tmp_path: Path) -> None:
    head, second, third = (gang(node, 3, tmp_path / "note", least=2) for node in range(3))
    assert gathered(head, second, third) == [(0, 1, 2)] * 3
    leaves(head, second)
    assert head.lost == [1] and head.changes and head.change_text() == "node 1 went away"
    assert gathered(head, third) == [(0, 2)] * 2
    assert (head.round, head.hosts, head.port) == (third.round, third.hosts, third.port)
    assert (third.round, third.rank, head.lost) == (2, 1, [])

    for returns in range(1, cluster.RETURNS + 1):
        again = gang(1, 3, tmp_path / "note", least=2)
        coming = threading.Thread(target=again.gather, args=(never,))
        coming.start()
        while not head.hear_comer():
            pass
        assert head.change_text() == "node 1 came back"
        assert gathered(head, third) == [(0, 1, 2)] * 2
        coming.join(60)
        assert again.nodes == (0, 1, 2) and again.round == head.round == 1 + 2 * returns
        leaves(head, again)
        assert gathered(head, third) == [(0, 2)] * 2

    weary = gang(1, 3, tmp_path / "note", timeout=0.5, least=2)
    coming = threading.Thread(target=given_up, args=(weary,))
    coming.start()
    assert not head.hear_comer(), "it came back too often"
    coming.join(60)
    third.close()
    head.close()
    assert not (tmp_path / "note").exists()


def test_an_elastic_gang_begins_without_those_that_do_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "JOIN", 0.0)
    head, third = (gang(node, 3, tmp_path / "note", least=2) for node in (0, 2))
    assert gathered(head, third) == [(0, 2)] * 2
    late = gang(1, 3, tmp_path / "note", least=2)
    coming = threading.Thread(target=late.gather, args=(never,))
    coming.start()
    while not head.hear_comer():
        pass
    assert head.change_text() == "node 1 came"
    assert gathered(head, third) == [(0, 1, 2)] * 2
    coming.join(60)
    for one in (late, third, head):
        one.close()


def given_up(weary: Gang) -> None:
    with pytest.raises(GangIncomplete):
        weary.gather(never)
