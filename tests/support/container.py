"""Services of compose.yaml as processes: own network, read-only root, own user, no capabilities. No Docker engine.

Linux namespaces give what the file asks for; the programs come from this machine instead of an image. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.compose import ROOT

SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "usr")
ENDS_WITHIN_S = 60.0


@dataclass
class Container:
    """What one service asks for."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    user: str = "0:0"
    mounts: Sequence[tuple[str, str, bool]] = ()
    """(source, target, whether it is read-only)"""
    tmpfs: Sequence[str] = ()
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    log: Path = Path(os.devnull)

    @property
    def output(self) -> str:
        return self.log.read_text()


class Machine:
    """A network of its own, in which services find each other by their names and have every port to themselves."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder = folder
        self.hosts = folder / "hosts"
        self.hosts.write_text("127.0.0.1 localhost\n" + "".join(f"127.0.0.1 {name}\n" for name in names))
        self.passwd = folder / "passwd"
        self.passwd.write_text("root:x:0:0:root:/root:/bin/sh\nheadrace:x:10001:10001::/tmp:/usr/sbin/nologin\n")
        self._holder: subprocess.Popen[bytes] | None = None
        self._containers: list[Container] = []

    def __enter__(self) -> Machine:
        command = ["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec sleep 900"]
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"up\n"
        return self

    def __exit__(self, *_: object) -> None:
        for container in reversed(self._containers):
            self.stop(container)
        assert self._holder is not None
        self._holder.kill()
        self._holder.wait(10)
        assert self._holder.stdout is not None
        self._holder.stdout.close()

    def start(self, container: Container) -> None:
        """Start it; its output goes to a file."""
        root = self.folder / f"root-{container.name}"
        root.mkdir(exist_ok=True)
        script = "\n".join(["set -e", *_mounts(root, container, self)])
        inner = ["chroot", str(root), *_as_user(container), *container.command]
        container.log = self.folder / f"{container.name}.log"
        with container.log.open("ab") as log:
            container.process = subprocess.Popen(
                [*self._enter(), "unshare", "--mount", "sh", "-c", f"{script}\nexec {shlex.join(inner)}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._containers.append(container)

    def exec(self, container: Container, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command in it, as `docker exec` or a health check does."""
        assert container.process is not None
        target = ["nsenter", "--target", str(container.process.pid), "--mount", "--net", "--root", "--wd=/"]
        return _run([*target, *_as_user(container), *command])

    def outside(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command of this machine in that network."""
        return _run([*self._enter(), *command])

    def await_health(self, container: Container, command: Sequence[str], within_s: float = 60.0) -> None:
        """Ask its health check until it passes."""
        end_s = time.monotonic() + within_s
        while (asked := self.exec(container, command)).returncode:
            assert container.process is not None
            assert container.process.poll() is None, container.output
            assert time.monotonic() < end_s, f"{asked.stdout}{asked.stderr}\n{container.output}"
            time.sleep(0.1)

    def stop(self, container: Container) -> int:
        """SIGTERM, then wait; its exit code."""
        assert container.process is not None
        container.process.terminate()
        try:
            return container.process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            container.process.kill()
            return container.process.wait(10)

    def _enter(self) -> list[str]:
        assert self._holder is not None
        return ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net"]


def can_contain() -> bool:
    """Whether this process may make namespaces and mounts, and has the programs for it."""
    if os.geteuid() or not all(map(shutil.which, ("unshare", "nsenter", "setpriv", "chroot", "ip", "wget", "curl"))):
        return False
    probe = "mount --make-rprivate / && mount -t tmpfs tmpfs /tmp && ip link set lo up"
    return _run(["unshare", "--net", "--mount", "sh", "-c", probe]).returncode == 0


@contextlib.contextmanager
def machine(folder: Path, names: Sequence[str]) -> Iterator[Machine]:
    with Machine(folder, names) as made:
        yield made


def _mounts(root: Path, container: Container, host: Machine) -> Iterator[str]:
    """Shell lines that build the root: this machine's programs, our sources, what the service mounts; read-only."""
    yield "mount --make-rprivate /"
    yield f"mount -t tmpfs -o mode=755 tmpfs {root}"
    for name in SYSTEM:
        path = Path("/", name)
        if path.is_symlink():
            yield f"ln -s {path.readlink()} {root}/{name}"
        elif path.is_dir():
            yield _bind(str(path), f"{root}/{name}", is_dir=True, is_read_only=True)
    for folder in {ROOT, Path(sys.prefix), Path(sys.base_prefix)} - {Path("/usr")}:
        yield _bind(str(folder), f"{root}{folder}", is_dir=True, is_read_only=True)
    for name in ("proc", "dev"):
        yield f"mkdir {root}/{name} && mount --rbind /{name} {root}/{name}"
    for source, target in ((host.hosts, "/etc/hosts"), (host.passwd, "/etc/passwd")):
        yield _bind(str(source), f"{root}{target}", is_dir=False, is_read_only=True)
    for target in container.tmpfs:
        yield f"mkdir -p {root}{target} && mount -t tmpfs -o mode=1777 tmpfs {root}{target}"
    for source, target, is_read_only in container.mounts:
        yield _bind(source, f"{root}{target}", is_dir=Path(source).is_dir(), is_read_only=is_read_only)
    yield f"mount -o remount,ro {root}"


def _bind(source: str, target: str, *, is_dir: bool, is_read_only: bool) -> str:
    source, target = shlex.quote(source), shlex.quote(target)
    make = f"mkdir -p {target}" if is_dir else f"mkdir -p $(dirname {target}) && touch {target}"
    bound = f"{make} && mount --bind {source} {target}"
    return f"{bound} && mount -o remount,bind,ro {target}" if is_read_only else bound


def _as_user(container: Container) -> list[str]:
    uid, _, gid = container.user.partition(":")
    privileges = [f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--no-new-privs"]
    privileges += ["--bounding-set=-all", "--inh-caps=-all"]
    return ["setpriv", *privileges, "env", "-i", *(f"{k}={v}" for k, v in container.environment.items())]


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
