"""The worker's side of a model's process: starts it, sends executions, and ends it when it doesn't answer in time.

A process that died or was killed stays dead: the caller loads the instance again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from contract.errors import ExecutionTimeout, InstanceDied, ModelFailed
from contract.tensors import Array
from workers.backends.base import InstanceRequest, InstanceSource, LoadFailed, RequestResult
from workers.backends.python_frames import (
    Closed,
    Done,
    Failed,
    Message,
    Ready,
    Start,
    Stop,
    pack_requests,
    receive,
    send,
    unpack_results,
)

LOAD_TIMEOUT_S: Final = 600.0
"""Large checkpoints take minutes to read; a model that never returns from `initialize` must not block for ever."""
_STOP_TIMEOUT_S: Final = 3.0
"""For `finalize`; `close` has five seconds in all."""
_KILL_TIMEOUT_S: Final = 1.0


class ModelProcess:
    """A process that runs a model.py, from spawn to reap.

    Raises:
        LoadFailed: it did not get ready; says why.
    """

    def __init__(self, source: InstanceSource, *, only_complete: bool = False) -> None:
        self.what = f"model {source.config.name!r}, instance {source.index}"
        self._is_ended = False
        self._sock, theirs = socket.socketpair()

        with theirs:
            # A session of its own: killing it takes along what the model started, and Ctrl-C doesn't reach it.
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-P", "-m", "workers.backends.python_child", str(theirs.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self.ready = self._start(source, only_complete=only_complete)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def ask(self, message: Message, body: Sequence[memoryview], timeout_s: float) -> tuple[Message, memoryview]:
        """Send a message and wait for the answer.

        Raises:
            InstanceDied: the process ended first.
            ExecutionTimeout: no answer in time; the process was killed.
        """
        if self._is_ended:
            raise InstanceDied(f"{self.what}: its process is gone")
        deadline_s = time.monotonic() + timeout_s
        try:
            send(self._sock, message, body, deadline_s)
            return receive(self._sock, deadline_s)
        except TimeoutError:
            self.kill()
            raise ExecutionTimeout(f"{self.what}: no answer within max_execution_s = {timeout_s:g}") from None
        except Closed:
            self._raise_died()

    def stop(self) -> None:
        """Let it finalize, then make sure that it is gone; at most five seconds."""
        if self._is_ended:
            return
        try:
            send(self._sock, Stop(), (), time.monotonic() + _KILL_TIMEOUT_S)
            self._process.wait(_STOP_TIMEOUT_S)
        except (TimeoutError, Closed, subprocess.TimeoutExpired):
            pass
        self.kill()

    def kill(self) -> None:
        """End the process and everything it started, now; harmless when it is gone."""
        if self._is_ended:
            return  # its number may be another's by now
        self._is_ended = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            # The process is its group's leader; the group lives on while a process that it started does.
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel: no more can be done from here
            self._process.wait(_KILL_TIMEOUT_S)
        self._sock.close()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _start(self, source: InstanceSource, *, only_complete: bool) -> Ready:
        start = Start(
            config=source.config,
            version=source.version,
            model_dir=str(source.model_dir.absolute()),
            group=source.group,
            index=source.index,
            device_id=source.device_id,
            triton_config=dict(source.triton_config),
            only_complete=only_complete,
        )
        try:
            answer, _ = self.ask(start, (), LOAD_TIMEOUT_S)
        except ModelFailed as error:
            raise LoadFailed(f"{error.message}, while it loaded") from None
        if isinstance(answer, Ready):
            return answer
        self.kill()
        raise LoadFailed(answer.message if isinstance(answer, Failed) else f"unexpected answer {answer!r}")

    def _raise_died(self) -> NoReturn:
        try:
            code: int | None = self._process.wait(_KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = None
        self.kill()
        if code is None:
            how = "its process closed the connection and was killed"
        elif code < 0:
            how = f"its process was killed by {_signal_name(-code)}"
        else:
            how = f"its process ended with exit code {code}"
        raise InstanceDied(f"{self.what}: {how}")


class ProcessInstance:
    """A python model in a process of its own."""

    is_request_wise = True
    holds_process = True

    def __init__(self, source: InstanceSource) -> None:
        self._process = ModelProcess(source)
        self._timeout_s = source.config.max_execution_s
        self._datatypes: dict[str, str] = {spec.name: spec.datatype for spec in source.config.inputs}

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:  # noqa: ARG002 - the Protocol's
        """Not this backend's way: it runs single requests."""
        raise ModelFailed("backend 'python' runs single requests, not joined arrays")

    def run_requests(self, requests: Sequence[InstanceRequest]) -> Sequence[RequestResult]:
        """One execution; see ModelInstance."""
        run, body = pack_requests(requests, self._datatypes)
        answer, given = self._process.ask(run, body, self._timeout_s)
        if isinstance(answer, Done):
            return unpack_results(answer, given)
        raise ModelFailed(answer.message if isinstance(answer, Failed) else "the model's process gave no results")

    def close(self) -> None:
        """Finalize and end the process."""
        self._process.stop()


def completed_in_process(source: InstanceSource) -> dict[str, Any]:
    """The config after the model's `auto_complete_config`, run in a process that ends right after.

    Raises:
        LoadFailed: it raised, or the process died.
    """
    process = ModelProcess(source, only_complete=True)
    process.kill()
    return process.ready.triton_config


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
