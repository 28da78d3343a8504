"""The process that an instance of a python model runs in: loads it, executes what it is sent, ends with its parent.


Started by python_process.py as `python -m workers.backends.python_child <fd>`. Standard input is a pipe that the
parent holds open: its end means that the parent died. What the model prints goes to standard error, with its name.
"""

from __future__ import annotations

import io
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import TextIO

from contract.errors import ModelFailed
from workers.backends.base import InstanceSource, LoadFailed
from workers.backends.python_frames import (
    Closed,
    Done,
    Failed,
    Ready,
    Run,
    Start,
    pack_results,
    receive,
    send,
    unpack_requests,
)


def main(fd: int) -> None:
    """Serve until told to stop, or until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then stops us in order
    threading.Thread(target=_die_with_parent, name="parent-watch", daemon=True).start()
    os.dup2(2, 1)  # native code prints to descriptor 1, which nobody reads
    with socket.socket(fileno=fd) as sock:
        try:
            start, _ = receive(sock)
            assert isinstance(start, Start)
            source = _source(start)
            stream = PrefixedStream(f"[{source.config.name}/{source.version}#{source.index}] ", sys.__stderr__)
            sys.stdout = sys.stderr = stream
            if start.only_complete:
                _complete(sock, source)
            else:
                _serve(sock, source)
        except Closed:
            return


class PrefixedStream(io.TextIOBase):
    """Whole lines with a prefix, so that lines of several models in one log can be told apart."""

    def __init__(self, prefix: str, target: TextIO | None) -> None:
        self._prefix = prefix
        self._target = target
        self._rest = ""
        self._lock = threading.Lock()

    def write(self, text: str, /) -> int:
        """Pass on complete lines, keep the rest."""
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
            if lines and self._target is not None:
                self._target.write("".join(f"{self._prefix}{line}\n" for line in lines))
                self._target.flush()
        return len(text)

    def writable(self) -> bool:
        """It is."""
        return True

    def fileno(self) -> int:
        """Standard error's, for libraries that write to a descriptor."""
        return 2


def _serve(sock: socket.socket, source: InstanceSource) -> None:
    from workers.backends.python_model import LoadedModel

    try:
        model = LoadedModel(source)
    except LoadFailed as error:
        send(sock, Failed(str(error)))
        return
    datatypes = {spec.name: spec.datatype for spec in source.config.outputs}
    try:
        send(sock, Ready())
        message, body = receive(sock)
        while isinstance(message, Run):
            try:
                done: Done | Failed
                done, buffers = pack_results(model.run(unpack_requests(message, body)), datatypes)
            except ModelFailed as error:
                done, buffers = Failed(error.message), []
            send(sock, done, buffers)
            message, body = receive(sock)
    finally:
        model.close()


def _complete(sock: socket.socket, source: InstanceSource) -> None:
    import json

    from workers.backends.python_model import auto_completed

    path = source.version_dir / source.config.default_model_filename
    try:
        completed = auto_completed(path, json.dumps(dict(source.triton_config)))
    except LoadFailed as error:
        send(sock, Failed(str(error)))
    else:
        send(sock, Ready(dict(completed)))


def _source(start: Start) -> InstanceSource:
    return InstanceSource(
        config=start.config,
        version=start.version,
        model_dir=Path(start.model_dir),
        group=start.group,
        index=start.index,
        device_id=start.device_id,
        triton_config=start.triton_config,
    )


def _die_with_parent() -> None:
    """The group is ours (the parent starts a session for us), so processes that the model started end as well."""
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
