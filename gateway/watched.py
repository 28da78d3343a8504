"""A file that is read again when it changes or when told to; a wrong one is refused, the old one stays. Parses nothing.

    look: is it another file than the one in force? → still for a moment? → parse (in a thread) → apply, or refuse

A file that is being written is left alone until it has rested for one look: the first half of a YAML file is often
valid YAML. `apply` gets a whole parsed file or nothing.

Invariants: `apply` is called only with what `parse` returned, in the order of the changes (tests/unit/test_watched.py).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import structlog

T = TypeVar("T")
LOOK_EACH_S: Final = 0.25
"""A change is in force after two looks and the parsing."""

log = structlog.get_logger("gateway.watched")


class RefusedFile(Exception):
    """A file can't be used; the message starts with `path:line: ` where a line is to blame."""


Signature = tuple[tuple[int, ...] | None, ...]


class WatchedFile(Generic[T]):
    """One file, or several that belong together, as a certificate and its key do."""

    def __init__(
        self, what: str, paths: Sequence[Path], parse: Callable[[], T], apply: Callable[[T], dict[str, object]]
    ) -> None:
        """`what` names it in logs. `parse` reads the files and raises RefusedFile; it runs in a thread. `apply` runs
        in the loop, can't fail, and returns what the log should say of the change.
        """
        self.what = what
        self.num_applied = 0
        self.num_refused = 0
        self.refusal = ""
        """Why the file as it lies there now is not in force, or empty."""
        self._paths = tuple(paths)
        self._parse = parse
        self._apply = apply
        self._known = self._signature()
        self._resting: Signature | None = None
        self._reading = asyncio.Lock()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:  # ends by cancellation
            await asyncio.sleep(LOOK_EACH_S)
            await self.look()

    async def look(self) -> bool:
        """Read it if it changed and rests now; whether it was applied."""
        found = self._signature()
        if found == self._known:
            self._resting = None
            return False
        if found != self._resting:
            self._resting = found
            return False
        return await self.reload()

    async def reload(self) -> bool:
        """Read it whether or not it changed; whether it was applied."""
        async with self._reading:
            found = self._signature()
            self._resting = None
            try:
                parsed = await asyncio.to_thread(self._parse)
            except RefusedFile as e:
                self._known = found
                self.num_refused += 1
                self.refusal = str(e)
                log.error("file-refused", what=self.what, error=str(e), in_force="the file as it was before")
                return False
            except Exception as e:
                # A fault of ours in reading one file must not end the reading of all later ones.
                self._known = found
                self.num_refused += 1
                self.refusal = f"{self._paths[0]}: internal error: {type(e).__name__}"
                log.exception("file-refused", what=self.what, error=self.refusal)
                return False
            self._known = found
            self.num_applied += 1
            self.refusal = ""
            files = ", ".join(str(path) for path in self._paths)
            log.info("file-applied", what=self.what, file=files, **self._apply(parsed))
            return True

    def _signature(self) -> Signature:
        return tuple(_signature(path) for path in self._paths)


class WatchedFiles:
    """All that one process watches."""

    def __init__(self, files: Sequence[WatchedFile[Any]]) -> None:
        self.files = list(files)
        self._tasks: list[asyncio.Task[object]] = []

    def start(self) -> None:
        """Watch until `close`."""
        self._tasks += [asyncio.ensure_future(file.run()) for file in self.files]

    def reload(self) -> None:
        """Read all of them now (SIGHUP)."""
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks += [asyncio.ensure_future(file.reload()) for file in self.files]

    async def close(self) -> None:
        """Watch no more."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


def _signature(path: Path) -> tuple[int, ...] | None:
    """Changes with every write and every replacement; None where there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev)
