"""Which ports are free, and who has those that are not. Opens nothing for longer than a look."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

_LISTEN = "0A"


class PortTaken(Exception):
    """A port that had to be this one is in use."""

    def __init__(self, what: str, port: int, holder: str) -> None:
        super().__init__(f"port {port} for {what} is taken{f' by {holder}' if holder else ''}")
        self.port = port
        self.holder = holder


def choose_port(what: str, wanted: int, *, host: str, is_fixed: bool) -> int:
    """`wanted` if it is free, else any free one; 0 always takes any.

    Raises:
        PortTaken: it is in use and `is_fixed`.
    """
    if wanted and is_free(host, wanted):
        return wanted
    if wanted and is_fixed:
        raise PortTaken(what, wanted, holder_of(wanted))
    with socket.socket(_family(host), socket.SOCK_STREAM) as s:
        s.bind((host, 0))
        return int(s.getsockname()[1])


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket(_family(host), socket.SOCK_STREAM) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((host, port))
            s.listen(1)
        except OSError:
            return False
        return True


def holder_of(port: int) -> str:
    """`name (pid 123)` of the process that listens on the port, or empty: nobody, or not ours to see."""
    inodes = _listening_inodes(port)
    for fd in Path("/proc").glob("[0-9]*/fd/*") if inodes else ():
        with contextlib.suppress(OSError):
            if str(fd.readlink()) in inodes:
                process = fd.parents[1]
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
    return ""


def _listening_inodes(port: int) -> set[str]:
    found: set[str] = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        with contextlib.suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rsplit(":", 1)[1], 16) == port:
                    found.add(f"socket:[{fields[9]}]")
    return found


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
