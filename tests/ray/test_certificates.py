"""Whom a connection by HTTPS trusts: a real server with a certificate that nobody else has signed."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from stoker.backends.base.platforms import Away
from stoker.backends.ray.jobs import Jobs
from stoker.backends.ray.settings import RaySettings


class Dashboard(BaseHTTPRequestHandler):
    """Says its version."""

    def do_GET(self) -> None:
        data = b'{"ray_version": "2.60.0"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words: Any) -> None:
        """Nothing."""


class Server(ThreadingHTTPServer):
    """A server that does not mind clients who turn away from its certificate."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing."""


@pytest.fixture
def certified(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The server's address, and the file of its certificate."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    command = [openssl, *made.split(), "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    server = Server(("127.0.0.1", 0), Dashboard)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"https://localhost:{server.server_port}", certificate
    server.shutdown()
    thread.join()
    server.server_close()


def version(address: str, **settings: Any) -> Any:
    jobs = Jobs(RaySettings(address=address, **settings), {})
    try:
        return jobs.version()["ray_version"]
    finally:
        jobs.close()


def test_which_certificates_are_trusted(certified: tuple[str, Path]) -> None:
    address, certificate = certified
    with pytest.raises(Away, match=r"(?i)certificate"):
        version(address)
    assert version(address, verify=False) == "2.60.0"
    assert version(address, verify=str(certificate)) == "2.60.0"
