"""A nats-server of a test's own: free port, own folder, killed and started again at will."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from transport.settings import BrokerSettings

START_WITHIN_S = 20.0


class NatsServer:
    """One broker process."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder = folder
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def settings(self) -> BrokerSettings:
        return BrokerSettings(servers=[f"nats://127.0.0.1:{self.port}"])

    async def start(self, *more: str) -> None:
        """Start it and wait until it listens."""
        binary = Path(sys.executable).with_name("nats-server")
        command = [str(binary if binary.exists() else shutil.which("nats-server"))]
        command += ["-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self.folder / "js"), *more]
        with (self.folder / "nats.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: ASYNC220 - it does not block
        async with asyncio.timeout(START_WITHIN_S):
            while not await _listens(self.port):  # noqa: ASYNC110 - nothing tells us
                await asyncio.sleep(0.02)

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None


def free_port() -> int:
    """A port nobody uses now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


async def _listens(port: int) -> bool:
    with contextlib.suppress(OSError):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return True
    return False
