"""The note a running `headrace up` leaves in its data folder, so that other commands find its ports; and its lock."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec

NOTE = "run.json"
LOCK = "lock"


class AlreadyRunning(Exception):
    """Another launcher uses this data folder; two brokers on one store would destroy it."""


class RunNote(msgspec.Struct, frozen=True):
    """Where a launcher's parts listen."""

    pid: int
    http_url: str
    metrics_url: str
    broker_url: str
    model_repository: str
    started_unix_s: float
    broker_max_memory_bytes: int
    pids: dict[str, int] = {}
    """Process id of each part: broker, gateway, workers."""


class DataFolder:
    """A launcher's folder while it runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock_fd = -1

    def take(self) -> None:
        """Create it and hold its lock until `give_back` or our end, however we end.

        Raises:
            AlreadyRunning: somebody else holds it; names the process.
        """
        (self.path / "logs").mkdir(parents=True, exist_ok=True)
        self._lock_fd = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock_fd)
            note = read_note(self.path)
            who = f" (pid {note.pid}, {note.http_url})" if note else ""
            raise AlreadyRunning(
                f"another `headrace up` uses {self.path}{who}: stop it, or give this one its own --data-dir"
            ) from None

    def write(self, note: RunNote) -> None:
        """Leave the note; readers see the old one or the new one, never half of it."""
        new = self.path / f"{NOTE}.new"
        new.write_bytes(msgspec.json.format(msgspec.json.encode(note)) + b"\n")
        new.replace(self.path / NOTE)

    def give_back(self) -> None:
        """Take the note away and let the lock go."""
        (self.path / NOTE).unlink(missing_ok=True)
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def read_note(data_dir: Path) -> RunNote | None:
    """The note of a launcher that still lives, or None."""
    try:
        note = msgspec.json.decode((data_dir / NOTE).read_bytes(), type=RunNote)
        os.kill(note.pid, 0)
    except (OSError, msgspec.MsgspecError):
        return None
    return note
