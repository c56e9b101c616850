"""Who listens on a port, as a busy one is reported."""

from __future__ import annotations

import os
import socket

from stoker.worker import reach


def test_the_holder_is_seen_although_a_descriptor_is_closed_meanwhile() -> None:
    reading, writing = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as server:
        os.close(reading)  # the list of descriptors is read by one with this number, which is closed behind it
        port = server.getsockname()[1]
        assert reach.holder(port).startswith(f"pid {os.getpid()}, ")
    os.close(writing)
    assert reach.holder(port) == ""
