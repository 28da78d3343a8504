"""A nats-server of a test's own: free port, own folder, killed, stopped and started again by its pid."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from transport.settings import BrokerSettings

LISTENS_WITHIN_S = 25.0

CONFIG = """\
listen: "127.0.0.1:{port}"
max_pending: 256MB
max_payload: {max_payload}
jetstream {{
    store_dir: "{folder}/js"
    sync_interval: always
    max_memory_store: 1GB
    max_file_store: 1GB
}}
{more}
"""


class Broker:
    """One broker process."""

    def __init__(self, folder: Path, *, more: str = "", max_payload: int = 1024 * 1024) -> None:
        self.folder = folder
        self.port = free_port()
        self._config = CONFIG.format(port=self.port, folder=folder, more=more, max_payload=max_payload)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def settings(self) -> BrokerSettings:
        return BrokerSettings(servers=[self.url], connect_timeout_s=25)

    async def start(self) -> None:
        """Start it and wait until it listens: a first connect to a silent port would cost a pause."""
        file = self.folder / "nats.conf"
        file.write_text(self._config)
        binary = Path(sys.executable).with_name("nats-server")
        command = [str(binary if binary.exists() else shutil.which("nats-server")), "-c", str(file)]
        self._process = await start_server(command, self.folder / "nats.log", self.port)

    def kill(self) -> None:
        """kill -9: what is in memory is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    async def restart(self) -> None:
        """kill -9 and start again on the same port and folder."""
        self.kill()
        await self.start()

    @contextlib.contextmanager
    def pause(self):  # type: ignore[no-untyped-def]
        """Stopped (SIGSTOP) inside the block: connections stay open, nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def rss_bytes(self) -> int:
        assert self._process is not None
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * 4096


def free_port() -> int:
    """A port nobody uses now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


async def start_server(command: list[str], log: Path, port: int) -> subprocess.Popen[bytes]:
    """Start it and wait until it listens; one that does not is ended, and its log is in the error."""
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)  # noqa: ASYNC220 - it does not block
    try:
        async with asyncio.timeout(LISTENS_WITHIN_S):
            while not await listens(port):
                assert process.poll() is None, log.read_text()  # noqa: ASYNC240 - the test is over
                await asyncio.sleep(0.02)
    except BaseException:
        process.kill()
        process.wait(10)
        raise
    return process


async def listens(port: int) -> bool:
    """Whether somebody accepts connections there."""
    with contextlib.suppress(OSError):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return True
    return False
