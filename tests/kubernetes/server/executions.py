"""Commands that are executed in a container that runs, by the websocket protocols v5 and v4.channel.k8s.io."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Awaitable, Callable

from aiohttp import WSMsgType, web
from attrs import define, field
from tests.kubernetes.server.containers import Container
from tests.kubernetes.server.failures import Refused, bad_request
from tests.kubernetes.server.objects import FINISHED, Object
from tests.kubernetes.server.processes import ContainerProcess

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, STATUS, RESIZE = range(5)
CLOSE = 255
"""In v5 the client closes a stream by it."""
PIECE = 1 << 15


@define(eq=False)
class Executions:
    """The commands that run now."""

    cut_after: list[int] = field(factory=list)
    """After how many bytes, both ways, the connections of the next commands break."""
    _open: set[web.WebSocketResponse] = field(factory=set)

    def cut(self) -> int:
        """Break all connections; how many there were."""
        sockets = list(self._open)
        for each in sockets:
            _abort(each)
        return len(sockets)

    async def run(self, http: web.Request, pod: Object, container: Container | None) -> web.StreamResponse:
        """Run the command of a request; the answer when it has ended or its client is gone.

        Raises:
            Refused: It asks for no websocket, or for a pod that does not run.
        """
        if http.headers.get("Upgrade", "").lower() != "websocket":
            raise bad_request("Upgrade request required")
        command = http.query.getall("command", [])
        if not command:
            raise bad_request("you must specify at least 1 command for the container")
        if pod["status"]["phase"] in FINISHED:
            phase = pod["status"]["phase"]
            raise bad_request(f"cannot exec into a container in a completed pod; current phase is {phase}")
        if not pod["spec"].get("nodeName"):
            raise bad_request(f"pod {pod['metadata']['name']} does not have a host assigned")
        offered = [each.strip() for each in http.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        if not set(offered) & set(PROTOCOLS):
            raise Refused(403, "unable to upgrade: no protocol of the client is known", "Forbidden")
        session = _Session(web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=1 << 25), self._limit())
        await session.socket.prepare(http)
        self._open.add(session.socket)
        try:
            if container is None or container.process is None or not container.running:
                name = container.name if container is not None else ""
                await session.end(_failure(f'unable to upgrade connection: container not found ("{name}")'))
            else:
                start = session.run_on_terminal if http.query.get("tty") == "true" else session.run
                await start(container, container.process, command)
        except ConnectionError:
            _abort(session.socket)
        finally:
            self._open.discard(session.socket)
        return session.socket

    def _limit(self) -> int | None:
        return self.cut_after.pop(0) if self.cut_after else None


@define(eq=False)
class _Session:
    socket: web.WebSocketResponse
    limit: int | None
    bytes: int = 0

    async def run(self, container: Container, home: ContainerProcess, command: list[str]) -> None:
        """Run a command in the world of a container."""
        words, environment, folder = container.world_of(command)
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                env=home.marked(environment),
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError:
            await self.end(_not_started(command[0]))
            return
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        outputs = [
            asyncio.create_task(self._copy(process.stdout, STDOUT)),
            asyncio.create_task(self._copy(process.stderr, STDERR)),
        ]
        feeding = asyncio.create_task(self._feed(process.stdin.write, process.stdin.drain, process.stdin.close))
        ending = asyncio.create_task(process.wait())
        try:
            done, _ = await asyncio.wait([feeding, ending], return_when=asyncio.FIRST_COMPLETED)
            if ending not in done and feeding.exception() is None and feeding.result():
                await ending
            if ending.done():
                await asyncio.gather(*outputs)
                await self.end(_status(ending.result()))
        finally:
            # The runtime closes the streams of a command whose client is gone; the command itself goes on.
            process.stdin.close()
            for task in (*outputs, feeding):
                task.cancel()
            await asyncio.gather(*outputs, feeding, return_exceptions=True)

    async def run_on_terminal(self, container: Container, home: ContainerProcess, command: list[str]) -> None:
        """Run a command in the world of a container, on a terminal of its own."""
        words, environment, folder = container.world_of(command)
        leader, follower = pty.openpty()
        os.set_blocking(leader, False)
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                env=home.marked({**environment, "TERM": "xterm"}),
                cwd=folder,
                stdin=follower,
                stdout=follower,
                stderr=follower,
                start_new_session=True,
                preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            )
        except OSError:
            os.close(leader)
            await self.end(_not_started(command[0]))
            return
        finally:
            os.close(follower)
        loop = asyncio.get_running_loop()
        copying = asyncio.create_task(self._copy_terminal(leader))
        feeding = asyncio.create_task(
            self._feed(
                lambda data: os.write(leader, data),
                resize=lambda columns, lines: fcntl.ioctl(
                    leader, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0)
                ),
            )
        )
        ending = asyncio.create_task(process.wait())
        try:
            await asyncio.wait([feeding, ending], return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                await copying
                await self.end(_status(ending.result()))
        finally:
            loop.remove_reader(leader)
            for task in (copying, feeding):
                task.cancel()
            await asyncio.gather(copying, feeding, return_exceptions=True)
            os.close(leader)  # who still has the terminal is told by SIGHUP

    async def _copy_terminal(self, leader: int) -> None:
        """Send what is written to a terminal until nobody has it any more."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(leader, ready.set)
        while True:
            await ready.wait()
            ready.clear()
            try:
                data = os.read(leader, PIECE)
            except BlockingIOError:
                continue
            except OSError:  # EIO
                return
            await self.socket.send_bytes(bytes([STDOUT]) + data)

    async def end(self, status: Object) -> None:
        """Tell how it ended, and close."""
        with contextlib.suppress(ConnectionError):
            await self.socket.send_bytes(bytes([STATUS]) + json.dumps(status).encode())
            await self.socket.close()

    async def _feed(
        self,
        write: Callable[[bytes], object],
        drain: Callable[[], Awaitable[None]] | None = None,
        close: Callable[[], None] | None = None,
        *,
        resize: Callable[[int, int], object] | None = None,
    ) -> bool:
        """Hand on what the client sends; whether it only closed the command's input."""
        async for message in self.socket:
            if message.type is not WSMsgType.BINARY:
                continue
            if message.data[0] == CLOSE and message.data[1:] == bytes([STDIN]):
                if close is not None:
                    close()
                return True
            if message.data[0] == STDIN:
                self._count(len(message.data))
                write(message.data[1:])
                if drain is not None:
                    await drain()
            elif message.data[0] == RESIZE and resize is not None:
                size = json.loads(message.data[1:])
                resize(size["Width"], size["Height"])
        return False

    async def _copy(self, source: asyncio.StreamReader, channel: int) -> None:
        while data := await source.read(PIECE):
            self._count(len(data))
            await self.socket.send_bytes(bytes([channel]) + data)

    def _count(self, size: int) -> None:
        self.bytes += size
        if self.limit is not None and self.bytes > self.limit:
            _abort(self.socket)
            raise ConnectionResetError("the connection is cut")


def _abort(socket: web.WebSocketResponse) -> None:
    transport = socket._req.transport if socket._req is not None else None
    if transport is not None:
        transport.abort()


def _status(code: int) -> Object:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    code = code if code > 0 else 128 - code
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: command terminated with exit code {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def _not_started(program: str) -> Object:
    """In the words of containerd, for a program that the image lacks."""
    return _failure(
        "error executing command in container: failed to exec in container: failed to start exec: OCI runtime exec "
        f'failed: exec failed: unable to start container process: exec: "{program}": executable file not found in '
        "$PATH: unknown"
    )


def _failure(message: str) -> Object:
    return {"metadata": {}, "status": "Failure", "message": message, "reason": "InternalError", "code": 500}
