"""The server's program: serves the API on loopback, and does what its standard input says until that ends.

It prints one line of JSON with the address and the administrator's token, and then one line for each command.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web
from attrs import define, field
from tests.kubernetes.server.access import CLUSTER_ROLE_RULES, Access, User
from tests.kubernetes.server.admission import Admission
from tests.kubernetes.server.api import Api
from tests.kubernetes.server.deletion import Deletion
from tests.kubernetes.server.faults import Fault, Faults
from tests.kubernetes.server.images import Images
from tests.kubernetes.server.jobs import JobController
from tests.kubernetes.server.jobsets import JobSetController
from tests.kubernetes.server.kubelet import SERVER, Kubelet
from tests.kubernetes.server.nodes import Nodes
from tests.kubernetes.server.objects import (
    CLUSTER_ROLES,
    NAMESPACES,
    PRIORITY_CLASSES,
    STORAGE_CLASSES,
    Object,
    Resource,
)
from tests.kubernetes.server.processes import NICENESS, adopt_orphans, fork_from, no_forks
from tests.kubernetes.server.scheduler import Scheduler
from tests.kubernetes.server.watching import Watches
from tests.kubernetes.server.world import World
from tests.servers.authority import Certificate, certificate

HOST = "127.0.0.1"


@define(eq=False)
class Server:
    """The parts of the cluster, put together."""

    folder: Path
    world: World = field(factory=World)
    access: Access = field(init=False)
    deletion: Deletion = field(init=False)
    nodes: Nodes = field(init=False)
    jobs: JobController = field(init=False)
    job_sets: JobSetController = field(init=False)
    scheduler: Scheduler = field(init=False)
    kubelet: Kubelet = field(init=False)
    api: Api = field(init=False)
    _runner: web.AppRunner = field(init=False)
    _certificate: Certificate = field(init=False)
    _ports: list[int] = field(factory=lambda: [0, 0])
    """Without TLS for whoever has a kubeconfig, and with it for pods, as they have it everywhere."""

    def __attrs_post_init__(self) -> None:
        world = self.world
        self._certificate = certificate(self.folder, HOST)
        self.access = Access(world.store)
        admission = Admission(world, authority=self._certificate.authority.read_text())
        self.deletion = Deletion(world)
        self.nodes = Nodes(world, self.deletion)
        self.jobs = JobController(world, admission, self.deletion)
        self.job_sets = JobSetController(world, admission, self.deletion)
        self.scheduler = Scheduler(world, self.deletion)
        self.kubelet = Kubelet(world, self.access, self.deletion, self.nodes, self.folder)
        self.api = Api(world, self.access, admission, self.deletion, self.kubelet, Watches(world), Faults())

    async def open(self) -> None:
        """Begin to serve."""
        self._runner = web.AppRunner(self.api.application(), access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        await self._listen()

    async def _listen(self) -> None:
        for number, context in enumerate((None, self._certificate.server())):
            port = self._ports[number]
            site = web.TCPSite(self._runner, HOST, port, reuse_address=True, backlog=1024, ssl_context=context)
            await site.start()
            self._ports[number] = self._runner.addresses[number][1]
        self.kubelet.address = f"{HOST}:{self._ports[1]}"

    @property
    def port(self) -> int:
        """The port without TLS."""
        return self._ports[0]

    async def close(self) -> None:
        """Stop serving, and end all containers."""
        await self.kubelet.forget()
        await self._runner.cleanup()
        no_forks()

    async def reset(self, nodes: list[Object], speed: float) -> None:
        """Begin anew: no objects but those that every cluster has, these nodes, and no bad luck."""
        await self.kubelet.forget()
        no_forks()
        self.world.store.clear()
        self.nodes.forget()
        self.jobs.forget()
        self.job_sets.forget()
        self.scheduler.forget()
        self.deletion.forget()
        self.api.faults.clear()
        self.api.counts.clear()
        self.api.installed.clear()
        self.api.executions.cut()
        self.api.executions.cut_after.clear()
        self.kubelet.images = Images()
        self.world.clock.skew = 0.0
        self.world.pace.speed = speed
        for name in ("default", "kube-system"):
            self._put(NAMESPACES, {"metadata": {"name": name}})
        for name, rules in CLUSTER_ROLE_RULES.items():
            self._put(CLUSTER_ROLES, {"metadata": {"name": name}, "rules": rules})
        for name, value in (("system-cluster-critical", 2000000000), ("system-node-critical", 2000001000)):
            self._put(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value})
        standard = {"name": "standard", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
        self._put(STORAGE_CLASSES, {"metadata": standard, "provisioner": "example.com/folder"})
        for node in nodes:
            self.add_node(**node)

    def _put(self, resource: Resource, body: Object) -> None:
        object, _ = self.api.admission.prepared(resource, "", body)
        self.world.store.put(resource, object)
        self.api.admission.follow_up(resource, object)

    def add_node(
        self,
        name: str,
        capacity: dict[str, str],
        labels: dict[str, str] | None = None,
        taints: list[Object] | None = None,
    ) -> None:
        """Add a node."""
        self.nodes.silent.discard(name)
        self.nodes.add(name, capacity, labels or {}, taints or [])

    def answer_node(self, name: str) -> None:
        """Have a silent node answer again."""
        self.nodes.answer(name)
        self.kubelet.catch_up(name)

    def commands(self) -> dict[str, Callable[..., Any]]:
        """What can be asked for, by name."""
        return {
            "reset": self.reset,
            "add_node": self.add_node,
            "put_nodes": self.nodes.put,
            "change_node": self.nodes.change,
            "drain": self.nodes.drain,
            "remove_node": self.nodes.remove,
            "lose_node": self.nodes.lose,
            "answer_node": self.answer_node,
            "fault": lambda **fault: self.api.faults.add(Fault(**fault)),
            "clear_faults": self.api.faults.clear,
            "skew": lambda seconds: setattr(self.world.clock, "skew", seconds),
            "pace": lambda speed: setattr(self.world.pace, "speed", speed),
            "cut_executions": self.api.executions.cut,
            "cut_executions_after": lambda sizes: self.api.executions.cut_after.extend(sizes),
            "image": lambda rule, kind: setattr(
                self.kubelet, "images", Images({rule: kind, **self.kubelet.images.rules})
            ),
            "install": lambda group: self.api.installed.add(group),
            "account_token": self.access.account_token,
            "user_token": lambda name, groups: self.access.token(User(name, tuple(groups))),
            "fork": lambda modules: fork_from(modules, {SERVER: str(self.folder)}),
            "nice": lambda niceness: NICENESS.append(niceness),
            "counts": lambda: dict(self.api.counts),
            "pids": self.kubelet.pids,
        }


async def main(folder: Path) -> None:
    """Serve until the standard input ends."""
    adopt_orphans()
    server = Server(folder)
    await server.open()
    _say({"url": f"http://{HOST}:{server.port}", "token": server.access.admin})
    commands = server.commands()
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        command = json.loads(line)
        try:
            answer = commands[command.pop("do")](**command)
            if isinstance(answer, Awaitable):
                answer = await answer
            _say({"answer": answer})
        except Exception:
            _say({"error": traceback.format_exc()})
    await server.close()


def _say(document: Object) -> None:
    os.write(1, json.dumps(document).encode() + b"\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
