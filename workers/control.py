"""What one worker is asked on its control subject: drain, beat, load, unload. Checks the asking, loads nothing itself.

Anybody who can publish on the broker may ask; the gateway's doors ask for the role `admin` first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import structlog

from contract.errors import Draining, Forbidden, HeadraceError, InvalidInput, ModelFailed, NotFound, NotSupported
from contract.messages import BlobRef, ControlReply, ControlRequest
from transport.base import StreamGone, Transport, TransportError
from workers.lifecycle import Lifecycle
from workers.repository.refusal import ConfigRefused
from workers.repository.uploads import Uploads
from workers.settings import WorkerSettings

FETCH_TIMEOUT_S: Final = 60.0
ACTIONS: Final = ("drain", "beat", "load", "unload")

log = structlog.get_logger()

_decode_files = msgspec.msgpack.Decoder(dict[str, bytes]).decode


class Control:
    """Answers requests to this worker."""

    def __init__(
        self,
        settings: WorkerSettings,
        transport: Transport,
        lifecycle: Lifecycle,
        stop: asyncio.Event,
        beat_soon: Callable[[], None],
        slot: Path | None = None,
    ) -> None:
        self._settings = settings
        self._transport = transport
        self._lifecycle = lifecycle
        self._stop = stop
        self._beat_soon = beat_soon
        self.uploads = Uploads(slot)

    async def answer(self, request: ControlRequest) -> ControlReply:
        """Do what was asked; returns when it is done."""
        log.info("control", action=request.action, model=request.model)
        try:
            note = await self._do(request)
        except HeadraceError as e:
            return ControlReply(e.message, e.code)
        except Exception as e:
            log.exception("control-failed", action=request.action, model=request.model)
            return ControlReply(f"{request.action} failed in the worker: {type(e).__name__}", "internal-error")
        if note:
            log.warning("control-note", action=request.action, model=request.model, note=note)
        return ControlReply()

    async def _do(self, request: ControlRequest) -> str:
        action, model = request.action, request.model
        if action not in ACTIONS:
            raise InvalidInput(f"unknown action {action!r}, there are {', '.join(ACTIONS)}")
        if action in {"drain", "beat"}:
            if action == "drain":
                self._stop.set()
            self._beat_soon()
            return ""
        if self._stop.is_set():
            raise Draining("the worker is draining")
        if (mode := self._settings.model_control_mode) != "explicit":
            raise NotSupported(f"model_control_mode is {mode!r}: {action} on request needs 'explicit'")
        return await (self._load(request) if action == "load" else self._unload(model))

    async def _load(self, request: ControlRequest) -> str:
        is_override = bool(request.config or request.files)
        if is_override and not self._settings.allow_model_upload:
            raise Forbidden("a config or files of one's own need allow_model_upload: true in the workers' settings")
        folder = None if request.files is None else await self._write(request.model, request.files)
        try:
            reason, unneeded = await self._lifecycle.load(request.model, request.config, folder)
        except ConfigRefused as e:
            raise NotFound(str(e)) from None
        await asyncio.to_thread(self.uploads.remove, unneeded)
        if reason:
            raise (InvalidInput if is_override else ModelFailed)(f"model {request.model!r} was not loaded: {reason}")
        return ""

    async def _write(self, model: str, ref: BlobRef) -> Path:
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                files = _decode_files(await self._transport.get_blob(ref))
        except (StreamGone, TransportError, TimeoutError) as e:
            raise InvalidInput(f"the files that were sent could not be fetched: {e or 'time-out'}") from None
        except msgspec.MsgspecError as e:
            raise InvalidInput(f"the files that were sent can't be read: {e}") from None
        return await asyncio.to_thread(self.uploads.write, model, files)

    async def _unload(self, model: str) -> str:
        done = await self._lifecycle.unload(model)
        if done is None:
            if model in self._lifecycle.unloaded:
                return ""
            there = ", ".join(sorted(self._lifecycle.models)) or "none"
            raise NotFound(f"model {model!r} is not loaded, there are {there}")
        has_finished, folder = done
        await asyncio.to_thread(self.uploads.remove, folder)
        return "" if has_finished else "what it did not finish was handed back"
